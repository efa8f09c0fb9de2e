//! Notifications for users of JSON: Server-Sent Events, or WebSocket text messages.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use http_body_util::{Either, Full};
use hyper::body::{Body, Frame};
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use throng_admin::{Guest, Work};
use throng_matcher::json;
use throng_wire::matcher::Status;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Message, Role, WebSocketConfig};

use crate::http::{Answer, Refusal, refusal, text};
use crate::service::Handle;
use crate::session::Batch;
use crate::watch::Watch;

/// Something is sent so often at least, so that a reader that is gone is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// A reader that takes nothing for so long is gone.
pub(crate) const STALL: Duration = Duration::from_secs(30);
/// Readers have nothing to say but pongs.
const MESSAGE_BYTES_MAX: usize = 4 << 10;

/// The server whose notifications are asked for, if the address says so.
pub(crate) fn whose<B>(request: &Request<B>) -> Option<String> {
    query(request, "srv")
}

/// A place in no stream: who has been there is told of a gap.
const NOWHERE: (u64, u64) = (u64::MAX, 0);

/// Epoch and number in the id of an event.
fn place(id: &[u8]) -> Option<(u64, u64)> {
    let (epoch, number) = std::str::from_utf8(id).ok()?.split_once('-')?;
    Some((epoch.parse().ok()?, number.parse().ok()?))
}

/// Begins a stream, where the request wants to go on.
///
/// # Errors
/// The refusal.
pub(crate) fn answer<B>(handle: &Handle, srv: &str, request: &mut Request<B>) -> Result<Answer, Refusal> {
    if srv.is_empty() {
        return Err(refusal(Status::Invalid, "say whose notifications: ?srv=SRV_ID"));
    }
    if let Some(why) = handle.gate().why_closed() {
        return Err(refusal(Status::Unavailable, why));
    }
    let number = |name: &str| query(request, name).map(|text| text.parse::<u64>());
    let after = match (number("epoch").unwrap_or(Ok(0)), number("after")) {
        (Ok(epoch), Some(Ok(after))) => Some((epoch, after)),
        (Ok(_), None) => None,
        _ => return Err(refusal(Status::Invalid, "`after` and `epoch` are numbers")),
    };
    // Readers of events repeat the last id by themselves.
    let last = request.headers().get("last-event-id").map(|id| place(id.as_bytes()).unwrap_or(NOWHERE));
    let upgrade = text(request.headers(), "upgrade");
    // A stream without notifications is not idle.
    let work = request.extensions().get::<Guest>().map(Guest::work);
    if !upgrade.eq_ignore_ascii_case("websocket") {
        return Ok(events(handle.watch(srv, last.or(after)), work));
    }
    let key = text(request.headers(), "sec-websocket-key");
    if key.is_empty() || text(request.headers(), "sec-websocket-version") != "13" {
        return Err(refusal(Status::Invalid, "a WebSocket of version 13 begins with Sec-WebSocket-Key"));
    }
    let accept = derive_accept_key(key.as_bytes());
    let watch = handle.watch(srv, after);
    let upgrade = hyper::upgrade::on(request);
    tokio::spawn(async move {
        if let Ok(upgraded) = upgrade.await {
            send_messages(TokioIo::new(upgraded), watch).await;
            drop(work);
        }
    });
    let mut response = Response::new(Either::Left(Full::default()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::UPGRADE, header::HeaderValue::from_static("websocket"));
    headers.insert(header::CONNECTION, header::HeaderValue::from_static("Upgrade"));
    if let Ok(accept) = header::HeaderValue::from_str(&accept) {
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    }
    Ok(response)
}

async fn send_messages(stream: TokioIo<hyper::upgrade::Upgraded>, mut watch: Watch) {
    let config = WebSocketConfig::default()
        .max_message_size(Some(MESSAGE_BYTES_MAX))
        .max_frame_size(Some(MESSAGE_BYTES_MAX));
    let mut socket = WebSocketStream::from_raw_socket(stream, Role::Server, Some(config)).await;
    let mut alive = tokio::time::interval(KEEP_ALIVE);
    loop {
        let message = tokio::select! {
            batch = watch.next() => match batch {
                Some(batch) => Message::text(json::batch(batch.epoch, batch.seq, &batch.body)),
                None => break,
            },
            _ = alive.tick() => Message::Ping(Bytes::new()),
            // Pings are answered within; what a reader says besides is of no use here.
            incoming = socket.next() => match incoming {
                Some(Ok(_)) => continue,
                _ => break,
            },
        };
        if !matches!(tokio::time::timeout(STALL, socket.send(message)).await, Ok(Ok(()))) {
            return;
        }
    }
    // A reader that is gone cannot be told so.
    let _ = tokio::time::timeout(STALL, socket.close(None)).await;
}

fn events(watch: Watch, work: Option<Work>) -> Answer {
    let next = Box::pin(next_batch(watch));
    let events = Events { next: Some(next), alive: tokio::time::interval(KEEP_ALIVE), _work: work };
    let mut response = Response::new(Either::Right(events));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
    response
}

async fn next_batch(mut watch: Watch) -> Option<(Batch, Watch)> {
    let batch = watch.next().await?;
    Some((batch, watch))
}

type Next = Pin<Box<dyn Future<Output = Option<(Batch, Watch)>> + Send>>;

/// Notifications as a body of Server-Sent Events. It is asked for more when the connection has
/// taken what there was, so that what a slow reader leaves waits in the [`Watch`].
pub(crate) struct Events {
    next: Option<Next>,
    alive: tokio::time::Interval,
    _work: Option<Work>,
}

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(next) = &mut self.next else { return Poll::Ready(None) };
        if let Poll::Ready(batch) = next.as_mut().poll(context) {
            let Some((batch, watch)) = batch else {
                self.next = None;
                return Poll::Ready(None);
            };
            self.next = Some(Box::pin(next_batch(watch)));
            let text = json::batch(batch.epoch, batch.seq, &batch.body);
            let text = format!("id: {}-{}\ndata: {text}\n\n", batch.epoch, batch.seq);
            return Poll::Ready(Some(Ok(Frame::data(text.into()))));
        }
        match self.alive.poll_tick(context) {
            Poll::Ready(_) => Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b": alive\n\n"))))),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// A parameter of the query, with its escapes resolved.
fn query<B>(request: &Request<B>, name: &str) -> Option<String> {
    let mut pairs = request.uri().query()?.split('&').filter_map(|pair| pair.split_once('='));
    let value = pairs.find(|(key, _)| *key == name)?.1;
    let mut bytes = value.bytes();
    let mut plain = Vec::with_capacity(value.len());
    while let Some(byte) = bytes.next() {
        plain.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [bytes.next()?, bytes.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(plain).ok()
}
