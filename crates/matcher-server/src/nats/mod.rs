//! The matcher on a NATS message bus: requests, answers, notifications, and several matchers of one area.
//!
//! ```text
//!  throng.matcher.<area>.<method>            requests; any matcher of the area takes one
//!  throng.matcher.<area>.at.<id>.<method>    requests for the matcher `id`, from the others
//!  throng.matcher.<area>.at.<id>.Meet        one that comes says its id to the matcher `id`
//!  throng.notify.<SrvID>                     notifications
//! ```
//!
//! Bodies are those of the framed RPC. What a frame's header says stands in headers: see [`header`].
//!
//! A room lives where it was made. New rooms of a mode, and tickets of a queue, are the business of one matcher, which holds
//! a lease on it; a request that names a room, a team or a ticket is answered by the matcher that has it. A matcher that
//! is lost loses its leases, and the next request for a mode makes another one its home. One that comes takes requests once
//! the others have met it: from then on each finds what any of them has.

mod lease;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_nats::client::RequestErrorKind;
use async_nats::{Client, HeaderMap, Message as Mail, Request};
use bytes::Bytes;
use futures_util::StreamExt as _;
use throng_matcher::{Scope, check_server_name};
use throng_wire::matcher::{Method, Reader, Status, Type, Writer, method_named};
use tokio::sync::Semaphore;

use crate::service::Handle;
use crate::tokens::Tokens;
use crate::watch::Watch;
use lease::Leases;

/// Names of the headers.
pub mod header {
    /// Request: `SrvID` of the caller.
    pub const SERVER: &str = "Throng-Server";
    /// Request: access token, where the matcher asks for one.
    pub const TOKEN: &str = "Throng-Token";
    /// Request: `yes` has the notifications of the caller published, until it asks for nothing any more for 30 s.
    pub const NOTIFY: &str = "Throng-Notify";
    /// Answer: number of the status.
    pub const STATUS: &str = "Throng-Status";
    /// Answer and notification: the matcher that it comes from.
    pub const MATCHER: &str = "Throng-Matcher";
    /// Notification: the stream; every matcher has its own, and a new one means that entries are missing.
    pub const EPOCH: &str = "Throng-Epoch";
    /// Notification: number of the last entry.
    pub const SEQ: &str = "Throng-Seq";
}

/// Queue group of the matchers of an area.
const GROUP: &str = "matchers";
/// What a matcher that comes asks of the others: to look its lease up. Not one of the methods, which callers have.
const MEET: &str = "Meet";
/// Time for an answer of the matcher, or of another one.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// Time between two looks for the matcher of a mode while the former one is lost.
const RETRY: Duration = Duration::from_millis(250);
/// A server that asks for nothing so long gets no notifications any more; its grace period begins.
const SESSION_IDLE: Duration = Duration::from_secs(30);
/// Pause before a bus that failed is tried again.
const REST: Duration = Duration::from_millis(500);

/// How to serve over NATS.
#[derive(Debug, Clone)]
pub struct NatsOptions {
    /// The servers, `nats://HOST:PORT`, several with commas between them.
    pub url: String,
    /// Token for the NATS servers themselves; empty for none.
    pub bus_token: String,
    /// The area that is served: a part of the subjects.
    pub area: String,
    /// Who may call.
    pub tokens: Tokens,
    /// How long a lost matcher keeps its modes; whole seconds, at least one.
    pub lease: Duration,
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
    #[error("the bucket `{0}` cannot be used; it needs JetStream of nats-server 2.11 or newer: {1}")]
    Bucket(String, String),
}

/// Serves until `shutdown` completes. A bus that fails, or is not there yet, is tried again.
pub async fn serve_nats(handle: Handle, options: NatsOptions, shutdown: impl Future<Output = ()>) {
    tokio::pin!(shutdown);
    let mut complained = false;
    loop {
        let serve = async {
            let mut bridge = Bridge::open(&handle, &options).await?;
            // Every outage is told once.
            complained = false;
            tracing::info!(url = options.url, area = options.area, "the matcher is on its bus");
            Err::<(), NatsError>(bridge.run().await)
        };
        let failed = tokio::select! {
            failed = serve => failed,
            () = &mut shutdown => return,
        };
        if let Err(error) = failed
            && !std::mem::replace(&mut complained, true)
        {
            tracing::warn!(%error, "the matcher is not on its bus; it is tried again");
        }
        tokio::select! {
            () = tokio::time::sleep(REST) => {}
            () = &mut shutdown => return,
        }
    }
}

struct Bridge {
    shared: Arc<Shared>,
    own: async_nats::Subscriber,
}

struct Shared {
    handle: Handle,
    client: Client,
    leases: Arc<Leases>,
    tokens: Tokens,
    area: String,
    id: String,
    slots: Arc<Semaphore>,
    /// How many of them may wait for a lost matcher to be replaced: the rest is for modes that have a home.
    waits: Semaphore,
    /// When each server that wants notifications has asked for something last.
    sessions: Mutex<BTreeMap<String, Instant>>,
}

impl Bridge {
    async fn open(handle: &Handle, options: &NatsOptions) -> Result<Bridge, NatsError> {
        let valid = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        if options.area.is_empty() || !options.area.chars().all(valid) {
            return Err(NatsError::Area(options.area.clone()));
        }
        let mut connect = async_nats::ConnectOptions::new().name("throng matcher");
        if !options.bus_token.is_empty() {
            connect = connect.token(options.bus_token.clone());
        }
        let addresses: Vec<&str> = options.url.split(',').map(str::trim).collect();
        let client = connect.connect(addresses).await;
        let client = client.map_err(|error| NatsError::Connect(options.url.clone(), error.to_string()))?;
        // Unique among the matchers of the area, and for each time on the bus.
        let id = client.new_inbox().rsplit('.').next().unwrap_or_default().to_owned();
        let area = options.area.clone();
        // First what others may send on, then what makes them do so.
        let own = client.subscribe(format!("throng.matcher.{area}.at.{id}.*")).await;
        let own = own.map_err(|error| NatsError::Subscribe(format!("at.{id}"), error.to_string()))?;
        let leases = Leases::open(&client, &area, &id, options.lease.max(Duration::from_secs(1))).await?;
        let shared = Shared {
            handle: handle.clone(),
            client,
            leases,
            tokens: options.tokens.clone(),
            area,
            id,
            slots: Arc::new(Semaphore::new(options.requests_max)),
            waits: Semaphore::new((options.requests_max / 4).max(1)),
            sessions: Mutex::default(),
        };
        Ok(Bridge { shared: Arc::new(shared), own })
    }

    /// Serves until the bus fails; says why it did.
    async fn run(&mut self) -> NatsError {
        let leases = Arc::clone(&self.shared.leases);
        let (keep, join) = (leases.keep(), self.shared.join());
        tokio::pin!(keep, join);
        let mut requests: Option<async_nats::Subscriber> = None;
        loop {
            let (mail, sent_on) = tokio::select! {
                joined = &mut join, if requests.is_none() => match joined {
                    Ok(joined) => {
                        requests = Some(joined);
                        continue;
                    }
                    Err(error) => return error,
                },
                mail = next(&mut requests) => (mail, false),
                mail = self.own.next() => (mail, true),
                ended = &mut keep => {
                    let why = "nothing is kept any more".to_owned();
                    return ended.err().unwrap_or(NatsError::Bucket(String::new(), why));
                }
            };
            let Some(mail) = mail else {
                return NatsError::Subscribe(self.shared.area.clone(), "the subscription ended".to_owned());
            };
            let shared = Arc::clone(&self.shared);
            match Arc::clone(&self.shared.slots).try_acquire_owned() {
                Ok(slot) => drop(tokio::spawn(async move {
                    let (status, body) = shared.answer(&mail, sent_on).await;
                    shared.reply(&mail, status, body).await;
                    drop(slot);
                })),
                Err(_) => {
                    let (status, body) =
                        refusal(Status::Overloaded, "too many requests at a time; try again");
                    shared.reply(&mail, status, body).await;
                }
            }
        }
    }
}

/// The next of what may not have begun yet.
async fn next(mails: &mut Option<async_nats::Subscriber>) -> Option<Mail> {
    match mails {
        Some(mails) => mails.next().await,
        None => std::future::pending().await,
    }
}

impl Shared {
    /// Meets the others, then takes requests with them. One of them that had not heard of this matcher would call what it
    /// has missing.
    async fn join(&self) -> Result<async_nats::Subscriber, NatsError> {
        self.leases.wait_until_known().await;
        let meet = |other: String| async move {
            let subject = format!("throng.matcher.{}.at.{other}.{MEET}", self.area);
            let request = Request::new().payload(self.id.clone().into()).timeout(Some(ANSWER_TIMEOUT));
            // Those that do not answer are lost, or hear of it by their own watch.
            let _ = self.client.send_request(subject, request).await;
        };
        futures_util::future::join_all(self.leases.others().into_iter().map(meet)).await;
        let all = format!("throng.matcher.{}.*", self.area);
        let requests = self.client.queue_subscribe(all.clone(), GROUP.to_owned()).await;
        requests.map_err(|error| NatsError::Subscribe(all, error.to_string()))
    }

    async fn answer(self: &Arc<Self>, mail: &Mail, sent_on: bool) -> (Status, Bytes) {
        let name = mail.subject.rsplit('.').next().unwrap_or_default();
        if sent_on && name == MEET {
            self.leases.look_up(&mail.payload).await;
            return (Status::Ok, Bytes::new());
        }
        let Some(method) = method_named(name) else {
            return refusal(Status::UnknownMethod, &format!("no method is called `{name}`"));
        };
        let head = |name: &str| {
            let value = mail.headers.as_ref().and_then(|headers| headers.get(name));
            value.map(async_nats::HeaderValue::as_str).unwrap_or_default()
        };
        let srv = head(header::SERVER);
        if check_server_name(srv).is_err() || srv.contains(|c: char| c.is_whitespace() || "*>".contains(c)) {
            return refusal(Status::Invalid, "the server's id is too long, or cannot stand in a subject");
        }
        let Some(scope) = self.tokens.scope(head(header::TOKEN), srv) else {
            return refusal(Status::Unauthenticated, "no such token for this server; send Throng-Token");
        };
        let wants_notices = head(header::NOTIFY) == "yes" && !srv.is_empty();
        if sent_on {
            return self.execute(srv, scope, method, mail, wants_notices).await;
        }
        match Home::of(method, &mail.payload) {
            Home::Any => self.execute(srv, scope, method, mail, wants_notices).await,
            Home::Of(key) => self.at_home(&key, srv, scope, method, mail, wants_notices).await,
            Home::Existing => {
                let found = self.execute(srv, scope, method, mail, wants_notices).await;
                self.elsewhere(found, method, mail).await
            }
        }
    }

    async fn execute(
        self: &Arc<Self>,
        srv: &str,
        scope: Scope,
        method: &Method,
        mail: &Mail,
        wants_notices: bool,
    ) -> (Status, Bytes) {
        if wants_notices {
            self.begin_session(srv);
        }
        let asked = self.handle.ask(srv, scope, method.number, mail.payload.to_vec());
        match tokio::time::timeout(ANSWER_TIMEOUT, asked).await {
            Ok((status, body)) => (status, body.into()),
            Err(_) => refusal(Status::Overloaded, "no answer in time; what became of the request is unknown"),
        }
    }

    /// Has the matcher answer that serves `key`, and becomes it when that one is lost.
    async fn at_home(
        self: &Arc<Self>,
        key: &str,
        srv: &str,
        scope: Scope,
        method: &Method,
        mail: &Mail,
        wants_notices: bool,
    ) -> (Status, Bytes) {
        let until = Instant::now() + 2 * ANSWER_TIMEOUT + self.leases.ttl();
        let mut wait = None;
        while Instant::now() < until {
            let home = match self.leases.home(key).await {
                Ok(home) => home,
                Err(error) => {
                    tracing::warn!(%error, "no lease");
                    break;
                }
            };
            if home == self.id {
                return self.execute(srv, scope, method, mail, wants_notices).await;
            }
            match self.send_on(&home, method, mail).await {
                Ok(answer) => return answer,
                Err(Unsent::Unknown(answer)) => return answer,
                // Nothing was done there. Its lease ends within its time.
                Err(Unsent::Nobody) => self.leases.doubt(key, &home),
            }
            wait = wait.or_else(|| self.waits.try_acquire().ok());
            if wait.is_none() {
                break;
            }
            tokio::time::sleep(RETRY).await;
        }
        refusal(Status::Overloaded, "the matcher of this mode is lost and not replaced yet; try again")
    }

    /// Has the other matchers of the area answer, if this one does not have what the request is about.
    async fn elsewhere(&self, found: (Status, Bytes), method: &Method, mail: &Mail) -> (Status, Bytes) {
        // DeleteRoom succeeds with nothing.
        let deleted =
            method.number == Method::DELETE_ROOM && found.0 == Status::Ok && is_empty_answer(&found.1);
        if found.0 != Status::NotFound && !deleted {
            return found;
        }
        for other in self.leases.others() {
            match self.send_on(&other, method, mail).await {
                Ok((Status::NotFound, _)) | Err(Unsent::Nobody) => {}
                Ok((Status::Ok, body)) if deleted && is_empty_answer(&body) => {}
                Ok(answer) | Err(Unsent::Unknown(answer)) => return answer,
            }
        }
        found
    }

    async fn send_on(&self, to: &str, method: &Method, mail: &Mail) -> Result<(Status, Bytes), Unsent> {
        let subject = format!("throng.matcher.{}.at.{to}.{}", self.area, method.name);
        let request = Request::new()
            .headers(mail.headers.clone().unwrap_or_default())
            .payload(mail.payload.clone())
            .timeout(Some(ANSWER_TIMEOUT));
        match self.client.send_request(subject, request).await {
            Ok(answer) => Ok((status_of(&answer), answer.payload)),
            Err(error) if error.kind() == RequestErrorKind::NoResponders => Err(Unsent::Nobody),
            Err(_) => {
                let why = "another matcher did not answer; what became of the request is unknown";
                Err(Unsent::Unknown(refusal(Status::Overloaded, why)))
            }
        }
    }

    async fn reply(&self, mail: &Mail, status: Status, body: Bytes) {
        let Some(to) = &mail.reply else { return };
        let mut headers = HeaderMap::new();
        headers.insert(header::STATUS, (status as u16).to_string());
        headers.insert(header::MATCHER, self.id.as_str());
        // Who asked asks again when the bus fails.
        let _ = self.client.publish_with_headers(to.clone(), headers, body).await;
    }

    /// Has the notifications of a server published, unless they are already.
    fn begin_session(self: &Arc<Self>, srv: &str) {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if sessions.insert(srv.to_owned(), Instant::now()).is_none() {
            // Before the request that comes with it: what that one has to tell is part of the stream.
            let watch = self.handle.watch(srv, None);
            let (shared, srv) = (Arc::clone(self), srv.to_owned());
            tokio::spawn(async move { shared.publish_notices(&srv, watch).await });
        }
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
                    if sessions.get(srv).is_none_or(|asked| asked.elapsed() > SESSION_IDLE) {
                        sessions.remove(srv);
                        return;
                    }
                }
            }
        }
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).remove(srv);
    }
}

/// Why another matcher gave no answer.
enum Unsent {
    /// It is not there: nothing was done.
    Nobody,
    /// It may have done what was asked; this is to be answered.
    Unknown((Status, Bytes)),
}

/// Where a request belongs.
#[derive(Debug, PartialEq, Eq)]
enum Home {
    /// Nowhere in particular.
    Any,
    /// To the matcher that serves this mode or queue.
    Of(String),
    /// To the matcher that has what it names.
    Existing,
}

impl Home {
    /// Read off the catalogue: what a request names says where it belongs.
    fn of(method: &Method, body: &[u8]) -> Home {
        let Ok(body) = Reader::new(body) else { return Home::Any };
        let field = |name: &str| method.request.named(name);
        let text = |name: &str| {
            let field = field(name).filter(|field| matches!(field.ty, Type::Str))?;
            body.str(field.number).ok().filter(|text| !text.is_empty())
        };
        let ids = ["RoomID", "TeamID", "CreatorTeamID", "TicketID", "MatchID", "BackfillID"];
        if ids.into_iter().any(|id| text(id).is_some()) || field("Update").is_some() {
            return Home::Existing;
        }
        let mode = field("CreateInfo").and_then(|field| body.nested(field.number).ok()?.str(1).ok());
        match (mode.filter(|mode| !mode.is_empty()).or_else(|| text("MatchMode")), text("Queue")) {
            (Some(mode), _) => Home::Of(format!("mode {mode}")),
            (None, Some(queue)) => Home::Of(format!("queue {queue}")),
            (None, None) => Home::Any,
        }
    }
}

fn is_empty_answer(body: &[u8]) -> bool {
    Reader::new(body).is_ok_and(|body| body.u64(1) == 0)
}

fn status_of(answer: &Mail) -> Status {
    let number = answer.headers.as_ref().and_then(|headers| headers.get(header::STATUS));
    let number = number.and_then(|number| number.as_str().parse().ok());
    number.and_then(Status::from_code).unwrap_or(Status::Internal)
}

fn refusal(status: Status, message: &str) -> (Status, Bytes) {
    (status, Writer::new().str(1, message).into_bytes().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_say_where_they_belong() {
        let of = |name: &str, body: Writer| Home::of(method_named(name).unwrap(), &body.into_bytes());
        let mode = || Writer::new().str(1, "2v2");
        let home = Home::Of("mode 2v2".to_owned());
        assert_eq!(of("RoleJoinRandomRoom", Writer::new().nested(2, mode())), home);
        assert_eq!(of("RoleCreateRoom", Writer::new().nested(2, mode())), home);
        assert_eq!(of("GetRoomList", mode()), home);
        assert_eq!(of("CreateTicket", Writer::new().str(1, "ranked")), Home::Of("queue ranked".to_owned()));
        // The team lives somewhere already, and its members with it.
        assert_eq!(of("TeamJoinRandomRoom", Writer::new().str(1, "t").nested(2, mode())), Home::Existing);
        assert_eq!(of("GetRoomInfo", Writer::new().str(1, "r")), Home::Existing);
        assert_eq!(of("UpdateRoomRoleData", Writer::new()), Home::Existing);
        assert_eq!(of("Ping", Writer::new()), Home::Any);
        assert_eq!(of("CreateTeam", Writer::new()), Home::Any);
    }
}
