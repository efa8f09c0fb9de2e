//! The matcher on a NATS message bus: requests, answers, notifications, and the lease of the area.
//!
//! ```text
//!  throng.matcher.<area>.<method>            requests; the matcher that serves the area takes them
//!  throng.notify.<SrvID>                     notifications
//! ```
//!
//! Bodies are those of the framed RPC. What a frame's header says stands in headers: see
//! [`header`].
//!
//! An area has one serving matcher, which holds the lease on it. Others wait, on no subject.

mod lease;
mod memory;

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_nats::{Client, HeaderMap, Message as Mail};
use bytes::Bytes;
use futures_util::StreamExt as _;
use throng_cluster::{Identity, Lease, LeaseEvent as Event, Record, State, Takeover};
use throng_matcher::{Scope, check_server_name};
use throng_wire::matcher::{Method, Status, Writer, method_named};
use tokio::sync::Semaphore;

use crate::gate::boot_time;
use crate::service::Handle;
use crate::tokens::Tokens;
use crate::watch::Watch;
use lease::{Answer, Directory};
use memory::Memory;

/// Names of the headers.
pub mod header {
    /// Request: `SrvID` of the caller.
    pub const SERVER: &str = "Throng-Server";
    /// Request: access token, where the matcher asks for one.
    pub const TOKEN: &str = "Throng-Token";
    /// Request: `yes` has the notifications of the caller published, until it asks for nothing any
    /// more for 30 s.
    pub const NOTIFY: &str = "Throng-Notify";
    /// Answer: number of the status.
    pub const STATUS: &str = "Throng-Status";
    /// Answer and notification: the life of the matcher that it comes from.
    pub const MATCHER: &str = "Throng-Matcher";
    /// Notification: the stream; a new one means that entries are missing.
    pub const EPOCH: &str = "Throng-Epoch";
    /// Notification: number of the last entry.
    pub const SEQ: &str = "Throng-Seq";
}

/// Time for an answer of the matcher.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// A server that asks for nothing so long gets no notifications any more; its grace period begins.
const SESSION_IDLE: Duration = Duration::from_secs(30);
/// Most that the headers of a response take.
const HEADERS_BYTES_MAX: usize = 256;
/// Pause before a bus that failed is tried again.
const REST: Duration = Duration::from_millis(500);

/// Options of serving over NATS.
#[derive(Debug, Clone)]
pub struct NatsOptions {
    /// The servers, `nats://HOST:PORT`, several with commas between them.
    pub url: String,
    /// Token for the NATS servers themselves; empty for none.
    pub bus_token: String,
    /// The area that is served: a part of the subjects.
    pub area: String,
    /// Access tokens.
    pub tokens: Tokens,
    /// Names this matcher in the lease of the area.
    pub identity: Identity,
    /// Folder for the state of this matcher if another replaces it; `None` keeps none.
    pub kept: Option<PathBuf>,
    /// File that keeps the record of the area for the next start, so that a bus which has lost its
    /// storage meanwhile is not taken for a new one; `None` keeps none.
    pub memory: Option<PathBuf>,
    /// Action when the holder of the lease is lost.
    pub takeover: Takeover,
    /// Requests at a time; more are answered with `OVERLOADED`.
    pub requests_max: usize,
}

/// Why there is no service over NATS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NatsError {
    /// The area cannot stand in a subject.
    #[error("the area `{0}` is not made of letters, digits, `-` and `_`")]
    Area(String),
    /// No connection.
    #[error("cannot connect to {0}: {1}")]
    Connect(String, String),
    /// The server refuses a subscription.
    #[error("cannot subscribe to `{0}`: {1}")]
    Subscribe(String, String),
    /// No bucket for leases.
    #[error("the bucket `{0}` cannot be used; it needs JetStream: {1}")]
    Bucket(String, String),
    /// Another matcher serves the area with a state of its own.
    #[error("the area was taken over by {0}; the state of this matcher is obsolete")]
    Replaced(String),
}

/// Serves until `shutdown` completes. A bus that fails, or is not there yet, is tried again.
///
/// # Errors
/// [`NatsError::Area`], and [`NatsError::Replaced`]: what this matcher has must not be served any more.
pub async fn serve_nats(
    handle: Handle,
    options: NatsOptions,
    shutdown: impl Future<Output = ()>,
) -> Result<(), NatsError> {
    let valid = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    if options.area.is_empty() || !options.area.chars().all(valid) {
        return Err(NatsError::Area(options.area.clone()));
    }
    tokio::pin!(shutdown);
    let seed = options.identity.incarnation.bytes().fold(boot_time().as_nanos(), |seed: u64, byte| {
        seed.wrapping_mul(0x0100_0000_01B3) ^ u64::from(byte)
    });
    let mut lease = Lease::new(options.identity.clone(), options.takeover, seed, boot_time());
    let mut memory = Memory::open(options.memory.clone());
    if let Some(record) = memory.record() {
        lease.remember(record.clone());
    }
    let mut complained = false;
    loop {
        let serve = async {
            let bridge = Bridge::open(&handle, &options).await?;
            // Every outage is told once.
            complained = false;
            tracing::info!(url = options.url, area = options.area, "the matcher is on its bus");
            Err::<(), NatsError>(bridge.run(&mut lease, &mut memory).await)
        };
        let failed = tokio::select! {
            failed = serve => failed,
            () = &mut shutdown => return Ok(()),
        };
        match failed {
            Err(error @ NatsError::Replaced(_)) => return Err(error),
            Err(error) if !std::mem::replace(&mut complained, true) => {
                tracing::warn!(%error, "the matcher is not on its bus; it is tried again");
            }
            _ => {}
        }
        tokio::select! {
            () = tokio::time::sleep(REST) => {}
            () = &mut shutdown => return Ok(()),
        }
    }
}

/// Gives an area's lost holder up: the next matcher serves, with an empty state if it is another.
/// For operators.
///
/// # Errors
/// Why not, for people.
pub async fn take_over(url: &str, bus_token: &str, area: &str) -> Result<Record, String> {
    let client = connect(url, bus_token).await.map_err(|error| error.to_string())?;
    let directory = Directory::open(&client, area).await.map_err(|error| error.to_string())?;
    directory.give_up(boot_time().as_nanos()).await
}

async fn connect(url: &str, bus_token: &str) -> Result<Client, NatsError> {
    let mut connect = async_nats::ConnectOptions::new()
        .name("throng matcher")
        // Without it the pause grows to 4 s, and the area is served that much later.
        .reconnect_delay_callback(|attempts| if attempts <= 1 { Duration::ZERO } else { REST });
    if !bus_token.is_empty() {
        connect = connect.token(bus_token.to_owned());
    }
    let addresses: Vec<&str> = url.split(',').map(str::trim).collect();
    let client = connect.connect(addresses).await;
    client.map_err(|error| NatsError::Connect(url.to_owned(), error.to_string()))
}

struct Bridge {
    shared: Arc<Shared>,
    directory: Directory,
    journal: String,
    kept: Option<PathBuf>,
}

struct Shared {
    handle: Handle,
    client: Client,
    tokens: Tokens,
    area: String,
    id: String,
    slots: Arc<Semaphore>,
    /// Servers that want notifications.
    sessions: Mutex<BTreeMap<String, Session>>,
}

/// Session of a server that wants notifications.
#[derive(Clone, Copy)]
struct Session {
    /// Number of its subscription.
    reader: u64,
    /// Time of its last request.
    asked: Instant,
}

impl Bridge {
    async fn open(handle: &Handle, options: &NatsOptions) -> Result<Bridge, NatsError> {
        let client = connect(&options.url, &options.bus_token).await?;
        let directory = Directory::open(&client, &options.area).await?;
        let shared = Shared {
            handle: handle.clone(),
            client,
            tokens: options.tokens.clone(),
            area: options.area.clone(),
            id: options.identity.incarnation.clone(),
            slots: Arc::new(Semaphore::new(options.requests_max)),
            sessions: Mutex::default(),
        };
        let (journal, kept) = (options.identity.journal.clone(), options.kept.clone());
        Ok(Bridge { shared: Arc::new(shared), directory, journal, kept })
    }

    /// Keeps the lease, and serves while it is held, until the bus fails; says why it did.
    async fn run(self, lease: &mut Lease, memory: &mut Memory) -> NatsError {
        let gate = self.shared.handle.gate().clone();
        let mut requests: Option<async_nats::Subscriber> = None;
        if lease.is_serving(boot_time()) {
            match self.subscribe().await {
                Ok(subscribed) => requests = Some(subscribed),
                Err(error) => return error,
            }
        }
        let mut under_way: Option<Pin<Box<dyn Future<Output = Answer> + Send>>> = None;
        // One that was sent over the connection before: nobody answers it.
        lease.handle_read(boot_time(), Err(()));
        loop {
            while let Some(request) = lease.poll_request() {
                under_way = Some(Box::pin(self.directory.clone().execute(request)));
            }
            // Before it serves: once the bus has lost the record, no other copy says who served.
            if let Some(record) = lease.known() {
                memory.keep(record);
            }
            while let Some(event) = lease.poll_event() {
                match self.note(event) {
                    Ok(true) => match self.subscribe().await {
                        Ok(subscribed) => requests = Some(subscribed),
                        Err(error) => return error,
                    },
                    Ok(false) => requests = None,
                    Err(error) => return error,
                }
            }
            // After the events: an empty state begins before the first request.
            gate.open_until(lease.serves_until());
            let wait = lease.next_timeout().map_or(Duration::MAX, |at| at.since(boot_time()));
            tokio::select! {
                answer = pending(&mut under_way) => {
                    under_way = None;
                    match answer {
                        Answer::Read(found) => lease.handle_read(boot_time(), found),
                        Answer::Write(written) => lease.handle_write(boot_time(), written),
                    }
                }
                () = tokio::time::sleep(wait) => lease.handle_timeout(boot_time()),
                mail = next(&mut requests) => match mail {
                    Some(mail) => self.take(mail).await,
                    None => {
                        let why = "the subscription ended".to_owned();
                        return NatsError::Subscribe(self.shared.area.clone(), why);
                    }
                },
            }
        }
    }

    /// Acts on a change of the lease. Whether this matcher serves now.
    fn note(&self, event: Event) -> Result<bool, NatsError> {
        let (handle, area) = (&self.shared.handle, &self.shared.area);
        match event {
            Event::Granted { epoch, empty } => {
                tracing::info!(area, epoch, empty, "this matcher serves the area");
                if empty {
                    handle.begin_empty(self.kept.clone(), false);
                }
                Ok(true)
            }
            Event::Waits { record } => {
                let holder = holder_of(&record);
                let why = match record.state {
                    State::Serving => format!("{holder} serves the area; this matcher waits"),
                    State::Lost => format!(
                        "{holder} is lost and has the state of the area; start it again, or give its state up with \
                         `throng matcher takeover {area}`"
                    ),
                    State::Given => format!("the state of {holder} is given up"),
                };
                handle.gate().close(&why);
                if record.journal != self.journal {
                    // The area's state is another one. What is here is never served any more.
                    handle.begin_empty(self.kept.clone(), true);
                }
                tracing::info!(area, why, "this matcher waits");
                Ok(false)
            }
            Event::Deposed { by } => {
                handle.gate().open_until(None);
                match by.filter(|record| record.journal != self.journal) {
                    Some(record) => Err(NatsError::Replaced(holder_of(&record))),
                    None => {
                        tracing::warn!(area, "the lease of the area ended; this matcher asks for it again");
                        Ok(false)
                    }
                }
            }
        }
    }

    async fn subscribe(&self) -> Result<async_nats::Subscriber, NatsError> {
        let all = format!("throng.matcher.{}.*", self.shared.area);
        let requests = self.shared.client.subscribe(all.clone()).await;
        requests.map_err(|error| NatsError::Subscribe(all, error.to_string()))
    }

    async fn take(&self, mail: Mail) {
        let shared = Arc::clone(&self.shared);
        match Arc::clone(&self.shared.slots).try_acquire_owned() {
            Ok(slot) => drop(tokio::spawn(async move {
                let (status, body) = shared.answer(&mail).await;
                shared.reply(&mail, status, body).await;
                drop(slot);
            })),
            Err(_) => {
                let (status, body) = refusal(Status::Overloaded, "too many requests at a time; try again");
                shared.reply(&mail, status, body).await;
            }
        }
    }
}

/// Holder of a record, for people.
fn holder_of(record: &Record) -> String {
    match record.addresses.first() {
        Some(address) => format!("the matcher at {address}"),
        None => format!("the matcher {}", record.incarnation),
    }
}

/// The next of what may not have begun yet.
async fn next(mails: &mut Option<async_nats::Subscriber>) -> Option<Mail> {
    match mails {
        Some(mails) => mails.next().await,
        None => std::future::pending().await,
    }
}

/// The answer to the request under way, if one is.
async fn pending(under_way: &mut Option<Pin<Box<dyn Future<Output = Answer> + Send>>>) -> Answer {
    match under_way {
        Some(request) => request.await,
        None => std::future::pending().await,
    }
}

impl Shared {
    async fn answer(self: &Arc<Self>, mail: &Mail) -> (Status, Bytes) {
        let name = mail.subject.rsplit('.').next().unwrap_or_default();
        let Some(method) = method_named(name) else {
            return refusal(Status::UnknownMethod, &format!("no method is called `{name}`"));
        };
        let head = |name: &str| {
            let value = mail.headers.as_ref().and_then(|headers| headers.get(name));
            value.map(async_nats::HeaderValue::as_str).unwrap_or_default()
        };
        let srv = head(header::SERVER);
        let is_part =
            |part: &str| !part.is_empty() && !part.contains(|c: char| c.is_whitespace() || "*>".contains(c));
        if check_server_name(srv).is_err() || !(srv.is_empty() || srv.split('.').all(is_part)) {
            return refusal(
                Status::Invalid,
                "the server's id is too long, or cannot be a part of a subject: it has an empty part or a character \
                 that a subject cannot have",
            );
        }
        let Some(scope) = self.tokens.scope(head(header::TOKEN), srv) else {
            return refusal(Status::Unauthenticated, "no such token for this server; send Throng-Token");
        };
        let wants_notices = head(header::NOTIFY) == "yes" && !srv.is_empty();
        self.execute(srv, scope, method, mail, wants_notices).await
    }

    async fn execute(
        self: &Arc<Self>,
        srv: &str,
        scope: Scope,
        method: &Method,
        mail: &Mail,
        wants_notices: bool,
    ) -> (Status, Bytes) {
        // A gate or a stall may close between the two: the matcher then refuses the request too.
        let reader = wants_notices.then(|| self.begin_session(srv));
        let asked = self.handle.ask_read_by(reader, srv, scope, method.number, mail.payload.to_vec());
        match tokio::time::timeout(ANSWER_TIMEOUT, asked).await {
            Ok((status, body)) => (status, body.into()),
            Err(_) => refusal(Status::Overloaded, "no answer in time; what became of the request is unknown"),
        }
    }

    async fn reply(&self, mail: &Mail, status: Status, body: Bytes) {
        let Some(to) = &mail.reply else { return };
        let most = self.client.server_info().max_payload;
        let is_too_large = body.len() + HEADERS_BYTES_MAX > most;
        let (status, body) = if is_too_large {
            tracing::warn!(subject = %mail.subject, bytes = body.len(), most, "a response is larger than the bus takes");
            let why =
                "the request was executed, but its response is larger than the bus takes (`max_payload`)";
            refusal(Status::TooLarge, why)
        } else {
            (status, body)
        };
        let mut headers = HeaderMap::new();
        headers.insert(header::STATUS, (status as u16).to_string());
        headers.insert(header::MATCHER, self.id.as_str());
        // The caller asks again when the bus fails.
        let _ = self.client.publish_with_headers(to.clone(), headers, body).await;
    }

    /// Has the notifications of a server published, unless they are already. Returns the number of
    /// the subscription.
    fn begin_session(self: &Arc<Self>, srv: &str) -> u64 {
        let asked = Instant::now();
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(session) = sessions.get_mut(srv) {
            session.asked = asked;
            return session.reader;
        }
        // Before the request that comes with it: what that one has to tell is part of the stream.
        let watch = self.handle.watch(srv, None);
        let reader = watch.id();
        sessions.insert(srv.to_owned(), Session { reader, asked });
        let (shared, srv) = (Arc::clone(self), srv.to_owned());
        tokio::spawn(async move { shared.publish_notices(&srv, watch).await });
        reader
    }

    async fn publish_notices(&self, srv: &str, mut watch: Watch) {
        let subject = format!("throng.notify.{srv}");
        let mut look = tokio::time::interval(SESSION_IDLE / 10);
        loop {
            tokio::select! {
                batch = watch.next() => {
                    let Some(batch) = batch else { break };
                    let mut headers = HeaderMap::new();
                    headers.insert(header::EPOCH, batch.epoch.to_string());
                    headers.insert(header::SEQ, batch.seq.to_string());
                    headers.insert(header::MATCHER, self.id.as_str());
                    let sent = self.client.publish_with_headers(subject.clone(), headers, batch.body.into());
                    if sent.await.is_err() {
                        break;
                    }
                }
                _ = look.tick() => {
                    let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
                    if sessions.get(srv).is_none_or(|session| session.asked.elapsed() > SESSION_IDLE) {
                        sessions.remove(srv);
                        return;
                    }
                }
            }
        }
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).remove(srv);
    }
}

fn refusal(status: Status, message: &str) -> (Status, Bytes) {
    (status, Writer::new().str(1, message).into_bytes().into())
}
