//! The asynchronous driver over real sockets, against a small stand-in for a gateway.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use prost::Message as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use throng_client::{
    Backoff, ChannelId, ChannelType, Client, CloseReason, ConnId, ConnectError, CreateChannel, Endpoint,
    Event, RequestError, SessionConfig, msg_type, tls_trusting,
};
use throng_wire::frame::FrameReader;
use throng_wire::{FrameWriter, MessagePack, channeldpb as pb};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_tungstenite::tungstenite;

/// A player for whom a slow machine has all the time that it needs.
fn alice(token: &str) -> SessionConfig {
    let patience = Duration::from_secs(120);
    SessionConfig {
        auth_timeout: patience,
        request_timeout: patience,
        ..SessionConfig::client("alice", token)
    }
}

/// Answers authentications, creations and user-space messages; ends the connection at type 999.
#[derive(Default)]
struct StandIn {
    reader: FrameReader,
    resumed_with: Vec<u8>,
    /// Addresses of the node that serves the world; it serves none itself then.
    elsewhere: Vec<String>,
}

impl StandIn {
    /// The answer to some bytes; `None` to hang up.
    fn answer(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        let (mut writer, mut out, mut hang_up) = (FrameWriter::new(), Vec::new(), false);
        let mut reader = std::mem::take(&mut self.reader);
        reader
            .feed(bytes, &mut |packet| {
                for message in packet.messages() {
                    hang_up |= message.msg_type == 999;
                    self.answer_one(&message, &mut writer, &mut out);
                }
                ControlFlow::Continue(())
            })
            .expect("good frames");
        self.reader = reader;
        writer.flush(&mut out);
        (!hang_up).then_some(out)
    }

    fn answer_one(&mut self, message: &MessagePack<'_>, writer: &mut FrameWriter, out: &mut Vec<u8>) {
        let pushed = match message.msg_type {
            msg_type::AUTH => {
                let body = pb::AuthMessage::decode(message.body).expect("an AuthMessage");
                self.resumed_with = body.resume_token.unwrap_or_default();
                let elsewhere = (!self.elsewhere.is_empty()).then(|| pb::Elsewhere {
                    reason: "world_elsewhere".to_owned(),
                    addresses: self.elsewhere.clone(),
                    world: format!("{}!", body.world.as_deref().unwrap_or_default()),
                });
                let is_negative = body.login_token == "wrong" || elsewhere.is_some();
                let result = pb::AuthResultMessage {
                    result: if is_negative { 2 } else { 0 },
                    conn_id: if self.resumed_with.is_empty() { 5 } else { 6 },
                    resume_token: b"token".to_vec(),
                    elsewhere,
                    ..Default::default()
                };
                writer.push_message(message, &result, out)
            }
            msg_type::CREATE_CHANNEL => {
                let result =
                    pb::CreateChannelResultMessage { channel_id: 42, owner_conn_id: 5, ..Default::default() };
                writer.push_message(message, &result, out)
            }
            100.. => {
                let forward = pb::ServerForwardMessage { client_conn_id: 5, payload: message.body.to_vec() };
                writer.push_message(message, &forward, out)
            }
            _ => Ok(()),
        };
        pushed.expect("answers are small");
    }

    async fn serve(mut self, mut stream: impl AsyncRead + AsyncWrite + Unpin) {
        let mut buf = [0; 4096];
        while let Ok(len @ 1..) = stream.read(&mut buf).await {
            let Some(answer) = self.answer(&buf[..len]) else { return };
            if stream.write_all(&answer).await.is_err() || stream.flush().await.is_err() {
                return;
            }
        }
    }
}

async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address").to_string();
    (listener, address)
}

async fn serve_tcp() -> Endpoint {
    let (listener, address) = listen().await;
    serve_at(listener, Vec::new());
    Endpoint::tcp(address)
}

/// Serves, or names addresses of another node.
fn serve_at(listener: TcpListener, elsewhere: Vec<String>) {
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let elsewhere = elsewhere.clone();
            tokio::spawn(StandIn { elsewhere, ..StandIn::default() }.serve(stream));
        }
    });
}

#[tokio::test]
async fn goes_to_the_node_that_serves_its_world_and_gives_up_after_three_moves() {
    let config = || SessionConfig { world: Some("hub".to_owned()), ..alice("") };
    let (home, address) = listen().await;
    serve_at(home, Vec::new());
    let (first, at_first) = listen().await;
    // An address that is none for this client, one that does not answer, and the right one.
    let (silent, dead) = listen().await;
    drop(silent);
    let addresses = [format!("kcp://{address}"), format!("tcp://{dead}"), format!("tcp://{address}")];
    serve_at(first, addresses.to_vec());
    let (client, mut events) = Client::connect(Endpoint::tcp(&at_first), config()).await.expect("its home");
    assert!(matches!(events.next().await, Some(Event::Authenticated { .. })), "and nothing else");
    client.create_channel(CreateChannel::new(ChannelType::SUBWORLD)).await.expect("an answer");

    // Two nodes that send it to each other.
    let ((one, at_one), (two, at_two)) = (listen().await, listen().await);
    serve_at(one, vec![format!("tcp://{at_two}")]);
    serve_at(two, vec![format!("tcp://{at_one}")]);
    let lost = |config| Client::connect(Endpoint::tcp(&at_one), config);
    let Err(ConnectError::Closed(reason)) = lost(config()).await else { panic!("it is nowhere") };
    let way = [&at_one, &at_two, &at_one].map(|address| format!("tcp://{address}"));
    let CloseReason::Elsewhere { addresses, world, way: gone } = &reason else { panic!("{reason}") };
    assert_eq!((&addresses[..], &gone[..]), (&[format!("tcp://{at_one}")][..], &way[..]));
    assert_eq!(world, "hub!!!!", "each node was asked for the world that the one before named");
    assert!(reason.to_string().contains("world_elsewhere"), "{reason}");
    // A client with no moves left reports the first answer.
    let Err(ConnectError::Closed(reason)) = lost(SessionConfig { moves_max: 0, ..config() }).await else {
        panic!("it is elsewhere")
    };
    let expected = vec![format!("tcp://{at_two}")];
    assert!(
        matches!(&reason, CloseReason::Elsewhere { addresses, way, .. } if *addresses == expected && way.is_empty())
    );
}

/// Creates a channel, sends a message and gets it back.
async fn talk(endpoint: Endpoint) {
    let (client, mut events) = Client::connect(endpoint, alice("")).await.expect("a gateway");
    assert_eq!(client.conn(), ConnId(5));
    let created = client.create_channel(CreateChannel::new(ChannelType::SUBWORLD)).await.expect("an answer");
    assert_eq!(created.channel, ChannelId(42));
    // Larger than one read of any transport.
    let text: Vec<u8> = (0..60_000_u32).map(|i| i as u8).collect();
    client.send(created.channel, 100, text.clone()).await.expect("connected");
    loop {
        match events.next().await.expect("the connection stands") {
            Event::Message { client, payload, .. } => {
                assert_eq!((client, payload.as_ref()), (ConnId(5), text.as_slice()));
                break;
            }
            Event::Authenticated { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    client.close().await;
    while events.next().await.is_some() {}
    assert_eq!(client.send(ChannelId(1), 100, "x").await, Err(RequestError::Closed));
}

#[tokio::test]
async fn talks_over_tcp() {
    talk(serve_tcp().await).await;
}

#[tokio::test]
async fn talks_over_tls() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let certificate: CertificateDer<'static> = made.cert.der().clone();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .expect("a matching key");
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(server));
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    StandIn::default().serve(stream).await;
                }
            });
        }
    });
    let port = address.rsplit_once(':').expect("a port").1;
    let endpoint: Endpoint = format!("tls://localhost:{port}").parse().expect("an endpoint");

    let error = Client::connect(endpoint.clone(), alice("")).await.expect_err("no TLS");
    assert!(error.to_string().contains("Endpoint::with_tls"), "{error}");
    let strangers = tls_trusting([]).expect("no certificates");
    let config = alice("");
    assert!(Client::connect(endpoint.clone().with_tls(strangers), config).await.is_err());
    talk(endpoint.with_tls(tls_trusting([certificate]).expect("a certificate"))).await;
}

#[tokio::test]
async fn talks_over_websocket() {
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut socket = tokio_tungstenite::accept_async(stream).await.expect("an upgrade");
            let mut stand_in = StandIn::default();
            while let Some(Ok(message)) = socket.next().await {
                let tungstenite::Message::Binary(bytes) = message else { continue };
                let Some(answer) = stand_in.answer(&bytes) else { break };
                if !answer.is_empty() {
                    // The client may be gone already.
                    let _ = socket.send(tungstenite::Message::binary(answer)).await;
                }
            }
        }
    });
    talk(format!("ws://{address}/").parse().expect("an endpoint")).await;
}

#[tokio::test]
async fn a_websocket_to_a_plain_listener_names_the_scheme_to_write() {
    let (listener, address) = listen().await;
    tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    let endpoint: Endpoint = format!("ws://{address}").parse().expect("an endpoint");
    let error = Client::connect(endpoint, alice("")).await.expect_err("no WebSocket");
    assert!(error.to_string().contains(&format!("write tcp://{address}")), "{error}");
}

#[tokio::test]
async fn a_refusal_is_reported() {
    let config = alice("wrong");
    let error = Client::connect(serve_tcp().await, config).await.expect_err("a refusal");
    assert!(matches!(error, ConnectError::Refused(_)), "{error}");
}

#[tokio::test]
async fn nobody_listening_is_reported() {
    let (listener, address) = listen().await;
    drop(listener);
    let error = Client::connect(Endpoint::tcp(&address), alice("")).await.expect_err("no listener");
    assert!(error.to_string().starts_with(&format!("cannot connect to tcp://{address}")), "{error}");
}

#[tokio::test]
async fn comes_back_with_its_resume_token() {
    let config = SessionConfig { resume: true, ..alice("") };
    let backoff = Backoff { first: Duration::from_millis(1), ..Backoff::default() };
    let (client, mut events) =
        Client::connect_with(serve_tcp().await, config, backoff).await.expect("a gateway");
    // The stand-in hangs up while a request waits.
    let waiting = client.clone();
    let request = tokio::spawn(async move { waiting.remove_channel(ChannelId(1)).await });
    while client.send(ChannelId(0), 999, "").await.is_ok() {
        if request.is_finished() {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(request.await.expect("no panic"), Err(RequestError::Closed));
    let mut ids = Vec::new();
    while ids.len() < 2 {
        if let Event::Authenticated { conn, .. } = events.next().await.expect("it comes back") {
            ids.push(conn);
        }
    }
    assert_eq!(ids, [ConnId(5), ConnId(6)], "the second authentication presented the token");
}

#[tokio::test]
async fn gives_up_after_the_attempts_allowed() {
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.expect("a client");
        drop(listener);
        StandIn::default().serve(stream).await;
    });
    let backoff =
        Backoff { first: Duration::from_millis(1), longest: Duration::from_millis(2), attempts: Some(3) };
    let config = alice("");
    let (client, mut events) =
        Client::connect_with(Endpoint::tcp(address), config, backoff).await.expect("a gateway");
    client.send(ChannelId(0), 999, "").await.expect("connected");
    let mut last = None;
    while let Some(event) = events.next().await {
        last = Some(event);
    }
    assert!(matches!(last, Some(Event::Closed { .. })), "{last:?}");
    assert_eq!(client.send(ChannelId(0), 100, "").await, Err(RequestError::Closed));
}
