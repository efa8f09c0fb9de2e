//! The link between players and a matcher: a server connection to the gateway of this process and a
//! session with the matcher, so that players find each other without knowing where it is.
//!
//! ```text
//!  player ── MATCHMAKING on GLOBAL ──▶ gateway ──▶ link ── requests ──▶ matcher
//!  player ◀── answers, notices ─────── gateway ◀── link ◀── notices ─── matcher
//!  player ◀── SUB to the match ─────── gateway ◀── link: one sub-world channel per match
//! ```
//!
//! The matcher of this process is called directly, another one over framed RPC: see [`Area`].
//!
//! With `assign = "external"` and the link as the queue's allocator, a match gets its channel
//! before its players hear of it, and the channel's id is its connection.
//!
//! A match is a room that is full, or one that a ticket led to. What a player sends to the channel
//! of a match goes to all who are in it: the link owns the channel and hands it round.

mod area;
mod matches;
mod requests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use throng_client::{
    CallError, ChannelId, Client, ConnId, Endpoint, Event, Events, MATCHMAKING, Matcher, MatcherConfig,
    MatchmakingEvent, MatchmakingRequest, Notice, Notices, Notification, SessionConfig,
};
use throng_matcher_server::Tokens;
use throng_wire::matcher::{Event as Kind, Method, Reader, Status, Writer};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::Instant;

use area::{Area, AreaNotices, Local};
use matches::Matches;

use crate::config::Settings;
use crate::start::{Address, Service, StartError, from_here};

/// Requests of all players that wait for the matcher; further ones are refused as `OVERLOADED`.
const CALLS_MAX: usize = 8_192;
/// Results of tasks that wait for the link's loop.
const DONE_MAX: usize = 1_024;
/// Pause before the matcher is tried again at the start.
const RETRY: Duration = Duration::from_millis(500);
/// Broadcast values of user-space messages.
const TO_ONE: u32 = 1;
const TO_ALL: u32 = 2;

/// Options of a link.
pub(crate) struct Plan {
    /// Place where the gateway takes game servers.
    pub(crate) gateway: Endpoint,
    /// Player identifier by which the gateway knows the link.
    pub(crate) name: Arc<str>,
    /// The matcher.
    pub(crate) matcher: Target,
    /// Type of the data of a match's channel; empty for none.
    pub(crate) data_type: Arc<str>,
}

/// The matcher that players ask.
pub(crate) enum Target {
    /// The one of this process.
    Own(Local),
    /// One that is reached by framed RPC, with the credentials for it.
    Remote(Endpoint, MatcherConfig),
}

/// Place where the configured matcher is, if one is configured and not the one of this process.
///
/// # Errors
/// Why it cannot be used.
pub(crate) fn matcher_endpoint(settings: &Settings) -> Result<Option<Endpoint>, String> {
    match settings.matchmaking.matcher.as_str() {
        "" => Ok(None),
        "own" if !crate::matcher::is_wanted(settings) => {
            Err("this process has no matcher; set `matcher.addr`, or another of its addresses".to_owned())
        }
        "own" => Ok(None),
        other => {
            let endpoint: Endpoint = other.parse().map_err(|error| format!("{error}"))?;
            match endpoint.is_encrypted() {
                true => Err("TLS connections to the matcher are not supported".to_owned()),
                false => Ok(Some(endpoint)),
            }
        }
    }
}

/// The link that the settings ask for. `addresses` are those of the process, `own` is its matcher.
///
/// # Errors
/// A file or an address that cannot be used.
pub(crate) fn plan(
    settings: &Settings,
    name: Option<Arc<str>>,
    addresses: &[Address],
    own: Option<(&throng_matcher_server::Handle, &Tokens)>,
) -> Result<Option<Plan>, StartError> {
    let (Some(name), matching) = (name, &settings.matchmaking) else { return Ok(None) };
    let key = "gateway.matchmaking.matcher";
    let wrong = |why: &str| StartError::File(format!("`{key}`: {why}"));
    let listens = |service| {
        let found = addresses.iter().find(|each| each.service == service && each.scheme == "tcp");
        found.map(|each| Endpoint::tcp(from_here(each.addr)))
    };
    let gateway = listens(Service::Servers)
        .ok_or_else(|| wrong("the gateway has no plain TCP listener for game servers"))?;
    let token = match matching.token_file.as_str() {
        "" => String::new(),
        file => {
            let text = std::fs::read_to_string(file);
            text.map_err(|error| StartError::File(format!("`{file}`: {error}")))?
        }
    };
    let (token, srv) = (token.trim(), &*matching.srv);
    let matcher = match matcher_endpoint(settings).map_err(|why| wrong(&why))? {
        Some(endpoint) => Target::Remote(endpoint, MatcherConfig::new(srv).token(token)),
        None => {
            let (handle, tokens) = own.ok_or_else(|| wrong("this process has no matcher"))?;
            let scope = tokens.scope(token, srv).ok_or_else(|| {
                wrong("the matcher does not know the token; see `gateway.matchmaking.token_file`")
            })?;
            Target::Own(Local::new(handle.clone(), srv, scope))
        }
    };
    let data_type = matching.data_type.as_str().into();
    Ok(Some(Plan { gateway, name, matcher, data_type }))
}

/// Result of a task of the link.
enum Done {
    /// The channel of a match was made, or not.
    Opened { room: String, channel: Option<ChannelId> },
    /// The matcher was told the channel of a match, or would not hear of it.
    Assigned { room: String, is_taken: bool },
    /// A connection of a player was subscribed to it.
    Entered { room: String, player: String, conn: ConnId },
    /// A ticket turned out to be the player's.
    Ticket { player: String, ticket: String },
    /// Everything that concerns this server, after a gap.
    Mine(Vec<throng_client::Room>),
}

struct Player {
    conn: ConnId,
    tickets: BTreeSet<String>,
}

struct Link<A> {
    gateway: Client,
    matcher: A,
    players: BTreeMap<String, Player>,
    matches: Matches,
    slots: Arc<Semaphore>,
    done: mpsc::Sender<Done>,
    data_type: Arc<str>,
}

/// Serves until the gateway or the matcher has ended the link for good.
pub(crate) async fn run(plan: Plan, up: oneshot::Sender<()>) {
    let Plan { gateway, name, matcher, data_type } = plan;
    match matcher {
        Target::Own(local) => {
            let notices = local.notices();
            serve(local, notices, gateway, name, data_type, up).await;
        }
        Target::Remote(endpoint, config) => {
            let (matcher, notices) = connect(&endpoint, &config).await;
            serve(matcher, notices, gateway, name, data_type, up).await;
        }
    }
}

async fn serve<A: Area>(
    matcher: A,
    notices: impl AreaNotices,
    gateway: Endpoint,
    name: Arc<str>,
    data_type: Arc<str>,
    up: oneshot::Sender<()>,
) {
    let session = SessionConfig::server(&*name, "");
    let (gateway, events) = match Client::connect(gateway, session).await {
        Ok(connected) => connected,
        Err(error) => return tracing::error!(%error, "the matchmaking link cannot reach its gateway"),
    };
    tracing::info!("matchmaking is available to players");
    let (done, results) = mpsc::channel(DONE_MAX);
    let (players, matches) = (BTreeMap::new(), Matches::default());
    let slots = Arc::new(Semaphore::new(CALLS_MAX));
    // The caller may have given up.
    let _ = up.send(());
    Link { gateway, matcher, players, matches, slots, done, data_type }.run(events, notices, results).await;
}

/// Tries until the matcher is there: it may start after the gateway.
async fn connect(endpoint: &Endpoint, config: &MatcherConfig) -> (Matcher, Notices) {
    let mut complained = false;
    loop {
        match Matcher::connect(endpoint.clone(), config.clone()).await {
            Ok(connected) => return connected,
            Err(error) if !complained => {
                complained = true;
                tracing::warn!(%error, "the matcher is not reachable yet; retrying");
            }
            Err(_) => {}
        }
        tokio::time::sleep(RETRY).await;
    }
}

impl<A: Area> Link<A> {
    async fn run(
        mut self,
        mut events: Events,
        mut notices: impl AreaNotices,
        mut results: mpsc::Receiver<Done>,
    ) {
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(event) => self.hear_gateway(event).await,
                    None => return tracing::error!("the matchmaking link lost its connection to the gateway"),
                },
                notice = notices.next() => match notice {
                    Some(Notification::Notice(notice)) => self.hear_matcher(notice).await,
                    Some(Notification::Gap) => self.refetch(),
                    ended => {
                        return tracing::error!(?ended, "the matcher closed the session of the matchmaking link");
                    }
                },
                Some(done) = results.recv() => self.finish(done).await,
                () = reach(self.matches.next_deadline()) => {
                    self.matches.end_waits(Instant::now());
                    self.close_empty();
                }
            }
        }
    }

    async fn hear_gateway(&mut self, event: Event) {
        if let Event::Authenticated { recovering: false, .. } = event {
            // Another life of the world: its players, and the channels of their matches, are gone.
            self.players.clear();
            self.matches = Matches::default();
        }
        let Event::Message { channel, msg_type, stub_id, client, payload, .. } = event else { return };
        if channel != ChannelId::GLOBAL {
            return self.hand_round(channel, msg_type, client, payload).await;
        }
        if msg_type != MATCHMAKING {
            return;
        }
        let Ok(said) = Reader::new(&payload) else { return };
        let Ok(name) = said.str(1) else { return };
        match said.last(2) {
            Some(request) => self.ask(name, client, stub_id, request.value).await,
            None if said.u64(3) == 1 => self.take_over(name, client),
            None => self.forget(name, client),
        }
    }

    /// Message of a player in a match, to all who are in it.
    async fn hand_round(&mut self, channel: ChannelId, msg_type: u32, from: ConnId, payload: bytes::Bytes) {
        if self.matches.is_one(channel) {
            // A gateway that is gone has nobody left to tell.
            let _ = self.gateway.forward(channel, TO_ALL, msg_type, from, payload).await;
        }
    }

    async fn ask(&mut self, name: &str, conn: ConnId, stub: u32, request: &[u8]) {
        self.take_over(name, conn);
        let player = self.players.entry(name.to_owned());
        player.or_insert_with(|| Player { conn, tickets: BTreeSet::new() });
        let refused = |status, message: &str| CallError::Refused {
            status,
            message: message.to_owned(),
            detail: Vec::new(),
        };
        let request = MatchmakingRequest::parse(request);
        let method = request.as_ref().map_or(0, |request| request.method);
        let body = request.and_then(|request| requests::in_the_name_of(name, &request));
        let slot = Arc::clone(&self.slots).try_acquire_owned();
        let (Some(body), Ok(slot)) = (body, slot) else {
            let error = match self.slots.available_permits() {
                0 => refused(Status::Overloaded, "too many concurrent matchmaking requests; try again"),
                _ => refused(Status::Forbidden, "unknown request, or not permitted for players"),
            };
            return self.answer(conn, stub, method, Err(error)).await;
        };
        let (matcher, gateway, done) = (self.matcher.clone(), self.gateway.clone(), self.done.clone());
        let player = name.to_owned();
        tokio::spawn(async move {
            let result = matcher.call(method, body).await;
            if let (Method::CREATE_TICKET, Ok(answer)) = (method, &result)
                && let Ok(ticket) = Reader::new(answer).and_then(|body| body.nested(1))
                && let Ok(ticket) = ticket.str(1)
            {
                // The loop ends only with the process.
                let _ = done.send(Done::Ticket { player, ticket: ticket.to_owned() }).await;
            }
            answer(&gateway, conn, stub, MatchmakingEvent::Answered { method, result }).await;
            drop(slot);
        });
    }

    async fn answer(&self, conn: ConnId, stub: u32, method: u16, result: Result<bytes::Bytes, CallError>) {
        answer(&self.gateway, conn, stub, MatchmakingEvent::Answered { method, result }).await;
    }

    /// A known player is at another connection from now on: notices go there, and so do the
    /// subscriptions to its matches, of which it hears as if it had just entered them. The older
    /// connection stays open.
    fn take_over(&mut self, name: &str, conn: ConnId) {
        let Some(player) = self.players.get_mut(name).filter(|player| player.conn != conn) else { return };
        let old = std::mem::replace(&mut player.conn, conn);
        for (room, channel) in self.matches.entered_by(name) {
            let gateway = self.gateway.clone();
            // It may be gone already.
            tokio::spawn(async move { gateway.unsubscribe(channel, Some(old)).await });
            self.subscribe(room, channel, name.to_owned(), conn);
        }
    }

    /// A player is gone for good: out of rooms, matches and queues.
    fn forget(&mut self, name: &str, conn: ConnId) {
        // Somebody of the same name may have come since.
        if self.players.get(name).is_none_or(|player| player.conn != conn) {
            return;
        }
        let Some(player) = self.players.remove(name) else { return };
        let rooms = self.matches.forget(name);
        self.close_empty();
        let (matcher, name) = (self.matcher.clone(), name.to_owned());
        tokio::spawn(async move {
            for ticket in player.tickets {
                // It may have ended, and a room may be gone: that is what is wanted.
                let _ = matcher.call(Method::CANCEL_TICKET, Writer::new().str(1, &ticket)).await;
            }
            for room in rooms {
                let _ = matcher.leave_room(&name, &room).await;
            }
        });
    }

    async fn hear_matcher(&mut self, notice: Notice) {
        for role in &notice.roles {
            if let Some(player) = self.players.get(role) {
                let own = Notice { roles: vec![role.clone()], ..notice.clone() };
                answer(&self.gateway, player.conn, 0, MatchmakingEvent::Notice(own)).await;
            }
        }
        let room = notice.room_id().to_owned();
        match notice.kind {
            Kind::ROLES_JOIN_ROOM => {
                let shown = notice.room().unwrap_or_default();
                let joined: Vec<String> = notice.texts(2).map(str::to_owned).collect();
                let own = joined.into_iter().filter(|role| self.players.contains_key(role));
                self.matches.join(&room, own, shown.is_full);
                self.open(&room);
            }
            Kind::ROLE_LEAVE_ROOM if notice.text(22) != "room_deleted" => self.leave(&room, notice.text(2)),
            // The room is gone, the match goes on.
            Kind::ROLE_LEAVE_ROOM => self.matches.close_room(&room),
            // The matcher asks where the match is to be played.
            Kind::MATCH_READY if notice.roles.is_empty() => {
                self.matches.await_players(&room);
                self.open(&room);
            }
            Kind::SEAT_EXPIRED | Kind::MATCH_CANCELLED => {
                self.matches.end_wait(&room);
                self.close_empty();
            }
            Kind::MATCH_READY => {
                self.matches.join(&room, [], true);
                for role in notice.roles {
                    let (matcher, room) = (self.matcher.clone(), room.clone());
                    // The membership that comes of it is told like any other; without a seat there
                    // is none.
                    tokio::spawn(async move { matcher.claim_seat(&role, &room).await.map(drop) });
                }
            }
            _ => {}
        }
    }

    fn refetch(&self) {
        let (matcher, done) = (self.matcher.clone(), self.done.clone());
        tokio::spawn(async move {
            if let Ok(mine) = matcher.mine().await {
                // The loop ends only with the process.
                let _ = done.send(Done::Mine(mine.rooms)).await;
            }
        });
    }

    async fn finish(&mut self, done: Done) {
        match done {
            Done::Assigned { room, is_taken: true } => self.matches.assigned(&room, Instant::now()),
            Done::Assigned { room, is_taken: false } => {
                self.matches.end_wait(&room);
                self.close_empty();
            }
            Done::Opened { room, channel } => {
                self.matches.opened(&room, channel);
                if let Some(channel) = channel.filter(|_| self.matches.is_awaited(&room)) {
                    self.assign(&room, channel);
                }
                self.open(&room);
                self.close_empty();
            }
            Done::Entered { room, player, conn } => {
                let Some(channel) = self.matches.channel(&room) else { return };
                if self.players.get(&player).is_some_and(|player| player.conn == conn) {
                    answer(&self.gateway, conn, 0, MatchmakingEvent::Entered { room, channel }).await;
                } else {
                    // The player is at another connection by now.
                    let gateway = self.gateway.clone();
                    tokio::spawn(async move { gateway.unsubscribe(channel, Some(conn)).await });
                }
            }
            Done::Ticket { player, ticket } => match self.players.get_mut(&player) {
                Some(player) => drop(player.tickets.insert(ticket)),
                None => {
                    let matcher = self.matcher.clone();
                    let cancel = Writer::new().str(1, &ticket);
                    tokio::spawn(async move { matcher.call(Method::CANCEL_TICKET, cancel).await.map(drop) });
                }
            },
            Done::Mine(rooms) => {
                for room in rooms {
                    let own = room.roles.into_iter().map(|role| role.id);
                    let own = own.filter(|role| self.players.contains_key(role));
                    self.matches.join(&room.id, own, room.is_full);
                    self.open(&room.id);
                }
            }
        }
    }

    /// Brings a match as far as it can come: makes its channel, or lets in who is not in it yet.
    fn open(&mut self, room: &str) {
        if self.matches.wants_channel(room) {
            let (gateway, done, room) = (self.gateway.clone(), self.done.clone(), room.to_owned());
            let create = matches::channel(&room, &self.data_type);
            tokio::spawn(async move {
                let made = gateway.create_channel(create).await;
                let channel = made.map(|made| made.channel).ok();
                // The loop ends only with the process.
                let _ = done.send(Done::Opened { room, channel }).await;
            });
            return;
        }
        let Some(channel) = self.matches.channel(room) else { return };
        for player in self.matches.let_in(room) {
            let Some(conn) = self.players.get(&player).map(|player| player.conn) else { continue };
            self.subscribe(room.to_owned(), channel, player, conn);
        }
    }

    fn subscribe(&self, room: String, channel: ChannelId, player: String, conn: ConnId) {
        let (gateway, done) = (self.gateway.clone(), self.done.clone());
        tokio::spawn(async move {
            if gateway.subscribe_other(channel, Some(conn), matches::options()).await.is_ok() {
                // The loop ends only with the process.
                let _ = done.send(Done::Entered { room, player, conn }).await;
            }
        });
    }

    /// Tells the matcher where a match is played.
    fn assign(&self, room: &str, channel: ChannelId) {
        let (matcher, done, room) = (self.matcher.clone(), self.done.clone(), room.to_owned());
        tokio::spawn(async move {
            let request = Writer::new().str(1, &room).str(2, &channel.0.to_string());
            let told = matcher.call(Method::ASSIGN_MATCH, request).await;
            if let Err(error) = &told {
                tracing::warn!(room, %error, "a match got no channel");
            }
            // The loop ends only with the process.
            let _ = done.send(Done::Assigned { room, is_taken: told.is_ok() }).await;
        });
    }

    fn leave(&mut self, room: &str, player: &str) {
        let Some(channel) = self.matches.leave(room, player) else { return };
        if let Some(conn) = self.players.get(player).map(|player| player.conn) {
            let (gateway, room) = (self.gateway.clone(), room.to_owned());
            tokio::spawn(async move {
                // It may have left by itself.
                let _ = gateway.unsubscribe(channel, Some(conn)).await;
                answer(&gateway, conn, 0, MatchmakingEvent::Left { room, channel }).await;
            });
        }
        self.close_empty();
    }

    fn close_empty(&mut self) {
        for channel in self.matches.take_empty() {
            let gateway = self.gateway.clone();
            tokio::spawn(async move { gateway.remove_channel(channel).await });
        }
    }
}

/// Waits for a deadline; for ever without one.
async fn reach(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

async fn answer(gateway: &Client, conn: ConnId, stub: u32, event: MatchmakingEvent) {
    let payload = event.to_bytes();
    let sent = gateway.tell(move |session| {
        session.forward_as(ChannelId::GLOBAL, TO_ONE, MATCHMAKING, conn, stub, &payload)
    });
    // A gateway that is gone has nobody left to tell.
    let _ = sent.await;
}
