//! The matcher that players ask: the one of this process, or one behind framed RPC.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use throng_client::{
    Backoff, CallError, Endpoint, Matcher, MatcherConfig, Mine, Notice, Notices, Notification, Room, Team,
};
use throng_matcher::Scope;
use throng_matcher_server::{Batch, Handle, Watch};
use throng_wire::WireError;
use throng_wire::matcher::{Method, Reader, Status, Writer};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Pause before a request that failed is repeated, or a stream of notifications that ended is begun
/// again.
pub(super) const RETRY: Duration = Duration::from_millis(500);

/// Pause between two checks that the matcher of a session serves.
const CHECK: Duration = Duration::from_secs(3);

/// Longest pause between two attempts at a request that must succeed.
const PERSIST_MAX: Duration = Duration::from_secs(10);

/// Repeats a request, after `pause` at first and then after longer pauses, while the matcher does
/// not answer or cannot take it now. A refusal ends it: the matcher knows the object no longer.
pub(super) async fn persist<T, F>(mut pause: Duration, mut request: impl FnMut() -> F) -> Result<T, CallError>
where
    F: Future<Output = Result<T, CallError>>,
{
    loop {
        match request().await {
            Err(error) if is_passing(&error) => {
                tracing::debug!(%error, "a request to the matcher is repeated")
            }
            outcome => return outcome,
        }
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(PERSIST_MAX);
    }
}

/// Returns whether the same request may succeed later.
fn is_passing(error: &CallError) -> bool {
    match error {
        // A session that ended is followed by another one.
        CallError::Timeout | CallError::TooMany(_) | CallError::Closed => true,
        CallError::Refused { status, .. } => {
            matches!(status, Status::Timeout | Status::Overloaded | Status::Draining | Status::Unavailable)
        }
        _ => false,
    }
}

/// A session with the matcher of the area.
pub(super) trait Area: Clone + Send + Sync + 'static {
    /// Calls a method with its request body and returns the response body.
    fn call(&self, method: u16, body: Writer) -> impl Future<Output = Result<Bytes, CallError>> + Send;

    /// Returns what concerns this server.
    fn mine(&self) -> impl Future<Output = Result<Listed, CallError>> + Send {
        async {
            let (mut mine, mut listed, mut from) = (Mine::default(), Listed::default(), String::new());
            loop {
                let page = self.call(Method::LIST_MINE, Writer::new().str(2, &from)).await?;
                from = mine.add_page(&page)?;
                let page = Reader::new(&page).map_err(|_| CallError::BadAnswer)?;
                listed.matches.extend(page.all(4).filter_map(|found| AllocatedMatch::read(found).ok()));
                let id = |ticket| Some(Reader::new(ticket).ok()?.str(1).ok()?.to_owned());
                listed.tickets.extend(page.all(3).filter_map(|ticket| Some((id(ticket)?, ticket.to_vec()))));
                if from.is_empty() {
                    (listed.rooms, listed.teams) = (mine.rooms, mine.teams);
                    return Ok(listed);
                }
            }
        }
    }

    /// Returns a room, `None` if it is gone.
    fn room(&self, room: &str) -> impl Future<Output = Result<Option<Room>, CallError>> + Send {
        async move {
            // The response has the room in the field in which a list of rooms has them.
            let mut listed = Mine::default();
            match self.call(Method::GET_ROOM_INFO, Writer::new().str(1, room)).await {
                Ok(answer) => listed.add_page(&answer).map(|_| listed.rooms.pop()),
                Err(CallError::Refused { status: Status::NotFound, .. }) => Ok(None),
                Err(error) => Err(error),
            }
        }
    }

    /// Returns whether the matcher has a team.
    fn has_team(&self, team: &str) -> impl Future<Output = Result<bool, CallError>> + Send {
        async move {
            match self.call(Method::GET_TEAM_INFO, Writer::new().str(1, team)).await {
                Ok(_) => Ok(true),
                Err(CallError::Refused { status: Status::NotFound, .. }) => Ok(false),
                Err(error) => Err(error),
            }
        }
    }

    /// Returns a ticket, encoded; `None` if the matcher does not know it.
    fn ticket(&self, ticket: &str) -> impl Future<Output = Result<Option<Vec<u8>>, CallError>> + Send {
        async move {
            match self.call(Method::GET_TICKET, Writer::new().str(1, ticket)).await {
                Ok(answer) => {
                    let answer = Reader::new(&answer).map_err(|_| CallError::BadAnswer)?;
                    Ok(answer.all(1).next().map(<[u8]>::to_vec))
                }
                Err(CallError::Refused { status: Status::NotFound, .. }) => Ok(None),
                Err(error) => Err(error),
            }
        }
    }

    /// Leaves a room.
    fn leave_room(&self, role: &str, room: &str) -> impl Future<Output = Result<Bytes, CallError>> + Send {
        self.call(Method::ROLE_LEAVE_ROOM, Writer::new().str(1, role).str(2, room))
    }

    /// Leaves a room in the name of a player who is gone.
    fn lose_room(&self, role: &str, room: &str) -> impl Future<Output = Result<Bytes, CallError>> + Send {
        self.call(Method::ROLE_LEAVE_ROOM, Writer::new().str(1, role).str(2, room).u64(4, 1))
    }

    /// Leaves a team in the name of a player who is gone.
    fn lose_team(&self, role: &str, team: &str) -> impl Future<Output = Result<Bytes, CallError>> + Send {
        self.call(Method::LEAVE_TEAM, Writer::new().str(1, role).str(2, team).u64(4, 1))
    }

    /// Team and tickets of a role of a server. None if the role has another server by now, which
    /// speaks for it.
    fn own_role(
        &self,
        role: &str,
        srv: &str,
    ) -> impl Future<Output = Result<Option<OwnRole>, CallError>> + Send {
        async move {
            let answer = self.call(Method::GET_ROLE, Writer::new().str(1, role)).await?;
            OwnRole::read(&answer, srv).map_err(|_| CallError::BadAnswer)
        }
    }

    /// Leaves the team that a player of a server was in, who is gone; if there is one.
    fn lose_own_team(&self, role: &str, srv: &str) -> impl Future<Output = Result<(), CallError>> + Send {
        async move {
            match self.own_role(role, srv).await? {
                Some(OwnRole { team, .. }) if !team.is_empty() => self.lose_team(role, &team).await.map(drop),
                _ => Ok(()),
            }
        }
    }

    /// Turns a reserved seat into membership.
    fn claim_seat(&self, role: &str, room: &str) -> impl Future<Output = Result<Bytes, CallError>> + Send {
        self.call(Method::CLAIM_SEAT, Writer::new().str(1, room).str(2, role))
    }
}

/// Team and tickets of a role; an empty team is none.
pub(super) struct OwnRole {
    pub(super) team: String,
    pub(super) tickets: Vec<String>,
}

impl OwnRole {
    fn read(answer: &[u8], srv: &str) -> Result<Option<OwnRole>, WireError> {
        let answer = Reader::new(answer)?;
        if answer.str(2)? != srv {
            return Ok(None);
        }
        let ticket = |ticket| Reader::new(ticket)?.str(1).map(str::to_owned);
        let tickets = answer.all(5).map(ticket).collect::<Result<_, _>>()?;
        Ok(Some(OwnRole { team: answer.nested(4)?.str(1)?.to_owned(), tickets }))
    }
}

/// Everything in the matcher that concerns a server.
#[derive(Default)]
pub(super) struct Listed {
    /// Rooms of its roles.
    pub(super) rooms: Vec<Room>,
    /// Teams of its roles.
    pub(super) teams: Vec<Team>,
    /// Live tickets of its roles, and matched ones whose seats are not claimed, encoded, by their
    /// ids.
    pub(super) tickets: BTreeMap<String, Vec<u8>>,
    /// Matches of which it is the allocator.
    pub(super) matches: Vec<AllocatedMatch>,
}

/// A match of which this server is the allocator.
pub(super) struct AllocatedMatch {
    pub(super) room: String,
    /// It waits for its place.
    pub(super) is_assigning: bool,
    /// Class of the world that it gets; empty if it gets a channel.
    pub(super) class: String,
}

impl AllocatedMatch {
    fn read(body: &[u8]) -> Result<AllocatedMatch, WireError> {
        let body = Reader::new(body)?;
        let (room, class) = (body.str(2)?.to_owned(), body.str(9)?.to_owned());
        Ok(AllocatedMatch { room, is_assigning: body.str(4)? == "assigning", class })
    }
}

/// The notifications of a session, in order.
pub(super) trait AreaNotices: Send + 'static {
    /// Waits for the next notification, or the news that some are missing. Cancel safe.
    fn next(&mut self) -> impl Future<Output = Notification> + Send;
}

/// A matcher that is reached by framed RPC; none while one is looked for. Cheap to clone.
#[derive(Clone)]
pub(super) struct Remote(Arc<Mutex<Option<Matcher>>>);

impl Remote {
    /// Tries until a matcher serves at one of the places: it may start after the gateway.
    pub(super) async fn connect(
        endpoints: Arc<[Endpoint]>,
        config: MatcherConfig,
    ) -> (Remote, RemoteNotices) {
        let (matcher, notices) = connect(&endpoints, &config).await;
        let watching = watch(&endpoints, &matcher);
        let remote = Remote(Arc::new(Mutex::new(Some(matcher))));
        let (connecting, began) = (JoinSet::new(), Instant::now());
        let own = remote.clone();
        let notices = RemoteNotices {
            remote: own,
            endpoints,
            config,
            notices,
            connecting,
            watching,
            began,
            pause: RETRY,
        };
        (remote, notices)
    }

    fn matcher(&self) -> MutexGuard<'_, Option<Matcher>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens a session with the first matcher that serves. One of several does not reopen it: another
/// matcher may serve by then.
async fn connect(endpoints: &[Endpoint], config: &MatcherConfig) -> (Matcher, Notices) {
    let backoff = if endpoints.len() > 1 { Backoff::never() } else { Backoff::default() };
    let mut complained = false;
    loop {
        for endpoint in endpoints {
            match Matcher::connect_with(endpoint.clone(), config.clone(), backoff.clone()).await {
                Ok(connected) => return connected,
                Err(error) if !complained => {
                    tracing::warn!(%error, "the matcher is not reachable yet; retrying");
                }
                Err(_) => {}
            }
        }
        complained = true;
        tokio::time::sleep(RETRY).await;
    }
}

/// A task that ends when the matcher of a session does not answer or does not serve. Without other
/// matchers the session waits for this one, and there is no task.
fn watch(endpoints: &[Endpoint], matcher: &Matcher) -> JoinSet<()> {
    let mut watching = JoinSet::new();
    if endpoints.len() > 1 {
        let matcher = matcher.clone();
        watching.spawn(async move {
            while matcher.call(Method::PING, Writer::new()).await.is_ok() {
                tokio::time::sleep(CHECK).await;
            }
        });
    }
    watching
}

impl Area for Remote {
    async fn call(&self, method: u16, body: Writer) -> Result<Bytes, CallError> {
        let matcher = self.matcher().clone();
        let outcome = match matcher {
            Some(matcher) => matcher.call(method, body).await,
            None => Err(CallError::Closed),
        };
        outcome.map_err(|error| match error {
            CallError::Closed => {
                let message = "the gateway has no session with a matcher that serves; try again".to_owned();
                CallError::Refused { status: Status::Unavailable, message, detail: Vec::new() }
            }
            other => other,
        })
    }
}

/// Notifications from a matcher that is reached by framed RPC. A session that the matcher ends is
/// followed by another one: its reason may pass, such as another session of this server.
pub(super) struct RemoteNotices {
    remote: Remote,
    endpoints: Arc<[Endpoint]>,
    config: MatcherConfig,
    notices: Notices,
    /// The next session, while it is being opened.
    connecting: JoinSet<(Matcher, Notices)>,
    /// Ends when this session's matcher does not serve.
    watching: JoinSet<()>,
    /// Time when this session began, and the pause before the next one: two servers of one name do
    /// not end each other's sessions in quick succession.
    began: Instant,
    pause: Duration,
}

impl AreaNotices for RemoteNotices {
    async fn next(&mut self) -> Notification {
        loop {
            if let Some(Ok((matcher, notices))) = self.connecting.join_next().await {
                self.watching = watch(&self.endpoints, &matcher);
                *self.remote.matcher() = Some(matcher);
                (self.notices, self.began) = (notices, Instant::now());
                return Notification::Gap;
            }
            let ended = tokio::select! {
                notification = self.notices.next() => match notification {
                    Some(Notification::Ended { status, message }) => {
                        self.complain(status, &message);
                        Some(Notification::Ended { status, message })
                    }
                    // The session's task has ended.
                    None => None,
                    Some(other) => return other,
                },
                Some(_) = self.watching.join_next() => {
                    tracing::warn!("the matcher of the link does not serve; another one is looked for");
                    None
                }
            };
            *self.remote.matcher() = None;
            let is_soon = self.began.elapsed() < PERSIST_MAX;
            self.pause = if is_soon { (2 * self.pause).min(PERSIST_MAX) } else { RETRY };
            // The matcher answers a key that it knows as it did in the session before.
            self.config.key_seed = self.config.key_seed.wrapping_add(1);
            let (pause, endpoints, config) = (self.pause, Arc::clone(&self.endpoints), self.config.clone());
            self.connecting.spawn(async move {
                tokio::time::sleep(pause).await;
                connect(&endpoints, &config).await
            });
            if let Some(ended) = ended {
                return ended;
            }
        }
    }
}

impl RemoteNotices {
    fn complain(&self, status: Status, message: &str) {
        let status_name = status.name();
        if status == Status::Invalid {
            tracing::warn!(
                srv = self.config.srv,
                status = status_name,
                message,
                "the matcher ended the session of the link: another process may have its name; give \
                 every gateway a `gateway.matchmaking.srv` of its own"
            );
        } else {
            tracing::warn!(status = status_name, message, "the matcher ended the session of the link");
        }
    }
}

/// The matcher of this process. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Local {
    handle: Handle,
    srv: String,
    scope: Scope,
}

impl Local {
    /// A session of `srv` with the rights of `scope`.
    pub(crate) fn new(handle: Handle, srv: &str, scope: Scope) -> Local {
        Local { handle, srv: srv.to_owned(), scope }
    }

    /// Its notifications from now on.
    pub(super) fn notices(&self) -> LocalNotices {
        let watch = self.handle.watch(&self.srv, None);
        LocalNotices {
            local: self.clone(),
            watch,
            place: None,
            is_new: true,
            again: None,
            waiting: VecDeque::new(),
        }
    }
}

impl Area for Local {
    async fn call(&self, method: u16, body: Writer) -> Result<Bytes, CallError> {
        let (status, body) = self.handle.ask(&self.srv, self.scope, method, body.into_bytes()).await;
        CallError::check(status, body)
    }
}

/// Notifications from the matcher of this process.
pub(super) struct LocalNotices {
    local: Local,
    watch: Watch,
    /// Epoch and number of the last entry.
    place: Option<(u64, u64)>,
    /// No stream has begun yet, so none can have a gap.
    is_new: bool,
    /// Time when the stream is begun again, after it has ended.
    again: Option<Instant>,
    waiting: VecDeque<Notification>,
}

impl LocalNotices {
    fn take(&mut self, batch: &Batch) {
        let is_same = self.place.is_some_and(|(epoch, _)| epoch == batch.epoch);
        if !std::mem::replace(&mut self.is_new, false) && !is_same {
            self.waiting.push_back(Notification::Gap);
        }
        self.place = Some((batch.epoch, batch.seq));
        let entries = Reader::new(&batch.body).ok();
        let entries = entries.iter().flat_map(|body| body.all(1));
        self.waiting.extend(entries.filter_map(Notice::parse).map(Notification::Notice));
    }
}

impl AreaNotices for LocalNotices {
    async fn next(&mut self) -> Notification {
        loop {
            if let Some(notification) = self.waiting.pop_front() {
                return notification;
            }
            if let Some(again) = self.again {
                tokio::time::sleep_until(again).await;
                self.watch = self.local.handle.watch(&self.local.srv, self.place);
                self.again = None;
            }
            match (self.watch.next().await, self.local.handle.why_ended()) {
                (Some(batch), _) => self.take(&batch),
                // Calls say so; there is nothing more to hear.
                (None, Some(_)) => std::future::pending().await,
                // The matcher does not serve the area now. What it tells others is missed.
                (None, None) => (self.is_new, self.again) = (false, Some(Instant::now() + RETRY)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn matcher(addr: Option<SocketAddr>) -> throng_matcher_server::Service {
        throng_matcher_server::start(throng_matcher_server::Options {
            addr,
            unix: None,
            tls: None,
            config: throng_matcher::Config::default(),
            durability: throng_matcher_server::Durability::None,
            fs: None,
            tokens: throng_matcher_server::Tokens::default(),
            area: String::new(),
            secret: [5; 32],
            salvage: false,
            policies: throng_matcher_server::Policies::default(),
            gate: throng_matcher_server::Gate::default(),
        })
        .expect("it starts")
    }

    /// Outcome of a request that fails until its last attempt, and the number of attempts.
    fn outcome(last: Result<(), CallError>) -> (Result<(), CallError>, usize) {
        let refused = |status| CallError::Refused { status, message: String::new(), detail: Vec::new() };
        let failures = [CallError::Timeout, refused(Status::Unavailable), refused(Status::Overloaded)];
        let mut outcomes = failures.map(Err).into_iter().chain([last]);
        let mut attempts = 0;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let ended = runtime.block_on(persist(Duration::ZERO, || {
            attempts += 1;
            std::future::ready(outcomes.next().expect("it ends with the last one"))
        }));
        (ended, attempts)
    }

    #[test]
    fn a_place_that_the_matcher_could_not_take_is_sent_again_until_it_is_taken_or_the_match_is_gone() {
        assert!(matches!(outcome(Ok(())), (Ok(()), 4)));
        for status in [Status::NotFound, Status::NotProposed, Status::Forbidden] {
            let gone = CallError::Refused { status, message: String::new(), detail: Vec::new() };
            let (ended, attempts) = outcome(Err(gone));
            assert!(matches!(ended, Err(CallError::Refused { .. })) && attempts == 4, "{status:?}");
        }
        assert!(matches!(outcome(Err(CallError::BadAnswer)), (Err(CallError::BadAnswer), 4)));
    }

    #[test]
    fn the_matcher_of_this_process_answers_and_notifies_without_a_listener() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(play());
    }

    async fn play() {
        let service = matcher(None);
        let local = Local::new(service.handle().clone(), "gateway", Scope::Server);
        let mut notices = local.notices();
        let role = Writer::new().nested(1, Writer::new().str(1, "ann"));
        let join = role.nested(2, Writer::new().str(1, "2v2"));
        local.call(Method::ROLE_JOIN_RANDOM_ROOM, join).await.expect("a room");
        let Notification::Notice(notice) = notices.next().await else { panic!("no notice") };
        assert_eq!(notice.roles, ["ann"]);
        let rooms = local.mine().await.expect("a list").rooms;
        assert_eq!(rooms[0].id, notice.room_id());
        let shown = local.room(&rooms[0].id).await.expect("an answer").expect("the room");
        assert_eq!(shown, rooms[0]);
        assert_eq!(local.room("gone").await.expect("an answer"), None);
        let refused = local.leave_room("bob", &rooms[0].id).await;
        assert!(matches!(refused, Err(CallError::Refused { .. })), "{refused:?}");
        // Another session of this server takes the stream. This one goes on where it stood.
        let other = service.handle().watch("gateway", None);
        local.leave_room("ann", &rooms[0].id).await.expect("it was a member");
        let Notification::Notice(left) = notices.next().await else { panic!("no notice") };
        assert_eq!((&left.roles[..], left.room_id()), (&["ann".to_owned()][..], &*rooms[0].id));
        drop((other, service));
        let ended = local.mine().await;
        assert!(matches!(ended.err(), Some(CallError::Refused { status: Status::Unavailable, .. })));
    }

    #[test]
    fn a_link_whose_session_another_one_ended_begins_the_next() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let service = matcher(Some("127.0.0.1:0".parse().expect("an address")));
            let endpoint = Endpoint::tcp(service.addr().expect("it listens"));
            let config = MatcherConfig::new("gateway");
            let (remote, mut notices) = Remote::connect([endpoint.clone()].into(), config.clone()).await;
            let join = |role: &str| {
                let role = Writer::new().nested(1, Writer::new().str(1, role));
                remote.call(Method::ROLE_JOIN_RANDOM_ROOM, role.nested(2, Writer::new().str(1, "2v2")))
            };
            join("ann").await.expect("a room");
            let other = Matcher::connect(endpoint, config).await.expect("a session");
            drop(other);
            while !matches!(notices.next().await, Notification::Ended { status: Status::Invalid, .. }) {}
            let meanwhile = remote.mine().await.err();
            assert!(
                matches!(meanwhile, Some(CallError::Refused { status: Status::Unavailable, .. })),
                "{meanwhile:?}"
            );
            while notices.next().await != Notification::Gap {}
            remote.mine().await.expect("a list");
            // It is no repetition of the first request of the session before.
            join("bob").await.expect("a room");
        });
    }
}
