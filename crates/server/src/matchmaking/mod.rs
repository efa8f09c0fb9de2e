//! The link between players and a matcher: a session with the matcher, and in a process with a main
//! world a server connection to it, so that players find each other without knowing where they are.
//!
//! ```text
//!  player ── MATCHMAKING on GLOBAL ──▶ its world ──▶ desk ──▶ link ── requests ──▶ matcher
//!  player ◀── answers, notices ─────── its world ◀────────── link ◀── notices ─── matcher
//!  player ◀── SUB to the match ─────── main world ◀───────── link: one sub-world channel per match
//! ```
//!
//! The matcher of this process is called directly, another one over framed RPC: see [`Area`].
//!
//! With `assign = "external"` and the link as the queue's allocator, a match gets its channel
//! before its players hear of it, and the channel's id is its connection. The matches of a queue or
//! mode with a `world` get a world of that class each instead.
//!
//! A match is a room that is full, or one that a ticket led to. What a player sends to the channel
//! of a match goes to all who are in it: the link owns the channel and hands it round. Only players
//! in the main world can be in a channel of it; those in other worlds are notified.
//!
//! A player who goes to the world of its match leaves the one where it asked for the match, and
//! keeps its place in the room: that lasts until the world ends, and the world until the room does.
//!
//! The link of a queue's or mode's allocator follows the worlds that it has opened: a new home's
//! addresses go into the room's data. After a restart or a gap it reads its matches from the
//! matcher, opens worlds for those that wait, follows the others, and closes worlds whose room is
//! gone.

mod area;
mod matches;
mod mine;
mod plan;
mod requests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use throng_admin::Problem;
use throng_client::{
    CallError, ChannelId, Client, ConnId, Endpoint, Event, Events, MatchmakingEvent, MatchmakingRequest,
    Notice, Notification, SessionConfig,
};
use throng_gateway::ConnKind;
use throng_wire::matcher::{Event as Kind, Method, Reader, Status, Writer};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use area::{Area, AreaNotices, RETRY, Remote, persist};
use matches::Matches;
use mine::{Known, Mine, Ready, left_room, left_team, place_of, read_mine};
use plan::{Plan, Target};

pub(crate) use plan::{check_files, is_wanted, matcher_endpoints, plan};

use crate::desk::{Desk, News, PlayerLocation};
use crate::monitor::{MatchWorld, Watch};
use crate::world::World;

/// Results of tasks that wait for the link's loop.
const DONE_MAX: usize = 1_024;
/// Time for which the matcher waits for the world of a match, and the pause between two attempts to
/// open it.
const WORLD_WAIT: Duration = Duration::from_secs(10);
const WORLD_PAUSE: Duration = Duration::from_secs(1);
/// Times after which no other process has the name of a link whose session has lasted: another one
/// that was there before takes the session back within a second, and within the longest pause of a
/// link if the two have done so to each other before.
const ALONE_AT_FIRST: Duration = Duration::from_secs(3);
const ALONE_AGAIN: Duration = Duration::from_secs(15);
/// Broadcast value of a message to all of a channel but its owner, which is the link.
const TO_MEMBERS: u32 = 8;
/// Field of a notification about a team: its id.
const TEAM: u32 = 20;
/// Fields of the notification that a match is ready: match, data, and the class of its world.
const MATCH: u32 = 1;
const DATA: u32 = 11;
const CLASS: u32 = 12;
/// Key of the address in a room's data.
const CONNECTION: &str = "connection";

/// Result of a task of the link.
enum Done {
    /// The channel of a match was made, or not.
    Opened { room: String, channel: Option<ChannelId> },
    /// The matcher was told the channel of a match, or would not hear of it.
    Assigned { room: String, is_taken: bool },
    /// A connection of a player was subscribed to it.
    Entered { room: String, player: String, at: PlayerLocation },
    /// The world of a match has ended.
    WorldOver { room: String },
    /// This link has opened a world for a match, or could not.
    Hosted { room: String, world: Option<MatchWorld> },
    /// A world that this link has opened has another home.
    HostedMoved { room: String, world: MatchWorld },
    /// A world that this link has opened has ended.
    HostedOver { room: String },
    /// A player has made a ticket, for itself or for its team, or could not.
    Ticket { maker: String, ticket: Option<TicketNews> },
    /// The matcher has given up the places of a player who is gone, or was not reached.
    Left { player: String },
    /// Everything that concerns this server, at the start or after a gap.
    Mine(Mine),
}

/// Gives up the places of a player who is gone: its tickets, rooms, and its team unless it is in
/// the world of a match.
async fn leave_all<A: Area>(matcher: &A, srv: &str, name: &str, rooms: Vec<String>, is_elsewhere: bool) {
    // Tickets of its team that another gateway has queued are known to the matcher only.
    let Ok(Some(role)) = matcher.own_role(name, srv).await else { return };
    for ticket in role.tickets {
        // It may have ended, and a room may be gone: that is what is wanted.
        let _ = matcher.call(Method::CANCEL_TICKET, lost_from(&ticket, name)).await;
    }
    for room in rooms {
        let _ = matcher.lose_room(name, &room).await;
    }
    if !is_elsewhere && !role.team.is_empty() {
        let _ = matcher.lose_team(name, &role.team).await;
    }
}

/// The request that a player who is gone leaves a ticket.
fn lost_from(ticket: &str, player: &str) -> Writer {
    Writer::new().str(1, ticket).str(2, player)
}

/// Certainty that no other process has the `SrvID` of a link. Roles of that name whose players are
/// not here may be players of the other one, and keep their places.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Claim {
    Sole,
    /// Another process would have ended the session by this time.
    Until(Instant),
    /// Another process has ended the session.
    Lost,
}

/// A world that a link has opened for a room.
struct Hosted {
    world: MatchWorld,
    /// Sends the world's latest addresses to the matcher; ends with the entry.
    assigning: JoinSet<()>,
}

struct Player {
    at: PlayerLocation,
    team: Option<String>,
    tickets: BTreeSet<String>,
    /// Room of the last match that it has heard to be ready.
    ready: Option<String>,
}

struct Link<A> {
    /// Connection to the main world.
    gateway: Option<Client>,
    process: Arc<Watch>,
    matcher: A,
    /// `SrvID` of this gateway.
    srv: String,
    claim: Claim,
    players: BTreeMap<String, Player>,
    /// Players who are gone and whose places are being given up. Each ends when that is done: what
    /// they request after a return comes after it.
    leaving: BTreeMap<String, watch::Receiver<()>>,
    /// Open proposals to players who have not made a request yet, as after a restart.
    unheard: BTreeMap<String, Notice>,
    /// Tickets that players are making.
    creating: usize,
    /// Tickets that have ended meanwhile and were not known, such as those.
    ended_early: BTreeSet<String>,
    matches: Matches,
    /// Worlds that this link has opened for rooms. Each lasts as long as its room, and the room as
    /// long as its world.
    hosted: BTreeMap<String, Hosted>,
    /// Rooms for which worlds are being opened.
    opening: BTreeSet<String>,
    /// Reads what concerns this server from the matcher, once.
    refetching: JoinSet<()>,
    done: mpsc::Sender<Done>,
    data_type: Arc<str>,
}

/// Parts of the process that a link works with.
pub(crate) struct Around {
    pub(crate) process: Arc<Watch>,
    pub(crate) desk: Arc<Desk>,
    pub(crate) news: mpsc::UnboundedReceiver<News>,
}

/// Serves until the process ends, or its main world.
pub(crate) async fn run(plan: Plan, around: Around, up: oneshot::Sender<()>) {
    let Plan { gateway, matcher, srv, data_type } = plan;
    match matcher {
        Target::Own(local) => {
            let notices = local.notices();
            serve((local, srv, Claim::Sole), notices, gateway, around, data_type, up).await;
        }
        Target::Remote(endpoints, config) => {
            let (matcher, notices) = Remote::connect(endpoints.into(), config).await;
            let claim = Claim::Until(Instant::now() + ALONE_AT_FIRST);
            serve((matcher, srv, claim), notices, gateway, around, data_type, up).await;
        }
    }
}

async fn serve<A: Area>(
    (matcher, srv, claim): (A, String, Claim),
    notices: impl AreaNotices,
    gateway: Option<(Endpoint, Arc<str>)>,
    around: Around,
    data_type: Arc<str>,
    up: oneshot::Sender<()>,
) {
    let (mut client, mut events) = (None, None);
    if let Some((endpoint, name)) = gateway {
        match Client::connect(endpoint, SessionConfig::server(&*name, "")).await {
            Ok((connected, its)) => (client, events) = (Some(connected), Some(its)),
            Err(error) => return tracing::error!(%error, "the matchmaking link cannot reach its gateway"),
        }
    }
    let Around { process, desk, news } = around;
    tracing::info!("matchmaking is available to players");
    desk.open();
    let (done, results) = mpsc::channel(DONE_MAX);
    let (players, matches, hosted) = (BTreeMap::new(), Matches::default(), BTreeMap::new());
    // The caller may have given up.
    let _ = up.send(());
    let (opening, refetching) = (BTreeSet::new(), JoinSet::new());
    let gateway = client;
    let link = Link {
        gateway,
        process,
        matcher,
        srv,
        claim,
        players,
        leaving: BTreeMap::new(),
        unheard: BTreeMap::new(),
        matches,
        hosted,
        opening,
        refetching,
        done,
        data_type,
        creating: 0,
        ended_early: BTreeSet::new(),
    };
    link.run(events, news, notices, results).await;
}

impl<A: Area> Link<A> {
    async fn run(
        mut self,
        mut events: Option<Events>,
        mut news: mpsc::UnboundedReceiver<News>,
        mut notices: impl AreaNotices,
        mut results: mpsc::Receiver<Done>,
    ) {
        self.refetch();
        loop {
            tokio::select! {
                event = next_event(&mut events) => match event {
                    Some(event) => self.hear_gateway(event).await,
                    None => return tracing::error!("the matchmaking link lost its connection to the gateway"),
                },
                news = news.recv() => match news {
                    Some(news) => self.hear_worlds(news),
                    // The workers have ended.
                    None => return,
                },
                notice = notices.next() => match notice {
                    Notification::Notice(notice) => self.hear_matcher(notice),
                    Notification::Ended { status: Status::Invalid, .. } => self.claim = Claim::Lost,
                    Notification::Ended { .. } => {}
                    // Another session has begun, or notifications are missing.
                    _ => {
                        if self.claim == Claim::Lost {
                            self.claim = Claim::Until(Instant::now() + ALONE_AGAIN);
                        }
                        // The matcher sends open proposals again.
                        self.unheard.clear();
                        self.refetch();
                    }
                },
                Some(done) = results.recv() => self.finish(done),
                () = reach(self.matches.next_deadline()) => {
                    self.matches.end_waits(Instant::now());
                    self.close_empty();
                }
                () = reach(self.matches.next_return()) => self.lose_teams(),
                () = reach(self.claimed_at()) => {
                    self.claim = Claim::Sole;
                    self.refetch();
                }
            }
        }
    }

    /// Time at which no other process has the name of this link.
    fn claimed_at(&self) -> Option<Instant> {
        match self.claim {
            Claim::Until(at) => Some(at),
            Claim::Sole | Claim::Lost => None,
        }
    }

    async fn hear_gateway(&mut self, event: Event) {
        match event {
            // Another life of the main world: the channels of matches are gone.
            Event::Authenticated { recovering: false, .. } => self.matches.lose_channels(),
            // A message of a player in a match, to all who are in it.
            Event::Message { channel, msg_type, client, payload, .. } if self.matches.is_one(channel) => {
                let Some(gateway) = &self.gateway else { return };
                // A gateway that is gone has no one left to tell.
                let _ = gateway.forward(channel, TO_MEMBERS, msg_type, client, payload).await;
            }
            _ => {}
        }
    }

    fn hear_worlds(&mut self, news: News) {
        match news {
            News::Request { player, at, stub, body, slot } => self.ask(&player, at, stub, &body, slot),
            News::Login { player, at } => self.take_over(&player, at),
            News::End { player, at } => self.forget(&player, at),
            News::WorldEnded(to) => {
                let gone = self.players.iter().filter(|(_, player)| player.at.to == to);
                let gone: Vec<_> = gone.map(|(name, player)| (name.clone(), player.at)).collect();
                for (name, at) in gone {
                    self.forget(&name, at);
                }
            }
        }
    }

    fn ask(&mut self, name: &str, at: PlayerLocation, stub: u32, request: &[u8], slot: OwnedSemaphorePermit) {
        self.take_over(name, at);
        let player = self.players.entry(name.to_owned());
        player.or_insert_with(|| Player { at, team: None, tickets: BTreeSet::new(), ready: None });
        if let Some(proposal) = self.unheard.remove(name) {
            self.tell(at, 0, &MatchmakingEvent::Notice(proposal));
        }
        let request = MatchmakingRequest::parse(request);
        let method = request.as_ref().map_or(0, |request| request.method);
        let body = request.and_then(|request| requests::in_the_name_of(name, &request));
        let Some(body) = body else {
            let message = "unknown request, or not permitted for players".to_owned();
            let refused = CallError::Refused { status: Status::Forbidden, message, detail: Vec::new() };
            return self.tell(at, stub, &MatchmakingEvent::Answered { method, result: Err(refused) });
        };
        let (matcher, process, done) = (self.matcher.clone(), Arc::clone(&self.process), self.done.clone());
        let maker = name.to_owned();
        let makes_ticket = method == Method::CREATE_TICKET;
        self.creating += usize::from(makes_ticket);
        let leaving = self.leaving.get(name).cloned();
        tokio::spawn(async move {
            if let Some(mut leaving) = leaving {
                // It never changes, but ends.
                let _ = leaving.changed().await;
            }
            let result = matcher.call(method, body).await;
            if makes_ticket {
                let ticket = result.as_ref().ok().and_then(|answer| TicketNews::read(answer));
                // The loop ends only with the process.
                let _ = done.send(Done::Ticket { maker, ticket }).await;
            }
            at.tell(&process.mailboxes, stub, &MatchmakingEvent::Answered { method, result });
            drop(slot);
        });
    }

    fn tell(&self, at: PlayerLocation, stub: u32, event: &MatchmakingEvent) {
        at.tell(&self.process.mailboxes, stub, event);
    }

    /// A known player is at another place from now on: notices go there, and so do the
    /// subscriptions to its matches, of which it hears as if it had just entered them. The older
    /// connection stays open.
    fn take_over(&mut self, name: &str, at: PlayerLocation) {
        let Some(player) = self.players.get_mut(name).filter(|player| player.at != at) else { return };
        let old = std::mem::replace(&mut player.at, at);
        for (room, channel) in self.matches.entered_by(name) {
            self.unsubscribe(channel, old);
            self.subscribe(room, channel, name.to_owned(), at);
        }
    }

    /// A player is gone for good: out of rooms, matches, queues and its team. In the world of a
    /// match it may still be: then it keeps that place, and its team.
    fn forget(&mut self, name: &str, at: PlayerLocation) {
        // The player may have come back, to another place.
        if self.players.get(name).is_none_or(|player| player.at != at) {
            return;
        }
        self.players.remove(name);
        let (rooms, is_elsewhere) = (self.matches.forget(name), self.matches.is_in_world(name));
        self.close_empty();
        let (matcher, srv, player) = (self.matcher.clone(), self.srv.clone(), name.to_owned());
        let (until, leaving) = watch::channel(());
        self.leaving.insert(player.clone(), leaving);
        let done = self.done.clone();
        tokio::spawn(async move {
            leave_all(&matcher, &srv, &player, rooms, is_elsewhere).await;
            drop(until);
            // The loop ends only with the process.
            let _ = done.send(Done::Left { player }).await;
        });
    }

    /// The players of a ticket that are of this gateway wait by it, or not any more.
    fn note_ticket(&mut self, ticket: TicketNews) {
        let (mut is_here, mut was_known) = (false, false);
        for name in &ticket.players {
            let Some(player) = self.players.get_mut(name) else { continue };
            is_here = true;
            if ticket.is_live {
                player.tickets.insert(ticket.id.clone());
            } else {
                was_known |= player.tickets.remove(&ticket.id);
            }
        }
        // Of players who are gone nothing is to be remembered.
        if !ticket.is_live && is_here && !was_known && self.creating > 0 {
            self.ended_early.insert(ticket.id);
        }
    }

    /// Players of this gateway are in a room, which may be a match. Those who are gone leave it:
    /// the matcher let them in too late, or kept the places of an earlier life of this gateway.
    fn join(&mut self, room: &str, players: Vec<String>, shown: &throng_client::Room) {
        let (here, gone): (Vec<_>, Vec<_>) =
            players.into_iter().partition(|role| self.players.contains_key(role));
        // They may be in the world of their match.
        if !self.matches.has_world(room) {
            self.lose_room(room, gone);
        }
        self.matches.join(room, here, has_channel(shown));
        self.open(room);
    }

    /// Players of this gateway are in a team.
    fn join_team(&mut self, team: &str, roles: &[String]) {
        for role in roles {
            if let Some(player) = self.players.get_mut(role) {
                player.team = Some(team.to_owned());
            }
        }
    }

    /// Has players who are gone leave a team, except those who may come back from the world of a
    /// match. `in_worlds` are further ones that may be in one.
    fn lose_team(&self, team: &str, roles: Vec<String>, in_worlds: &BTreeSet<&str>) {
        let away: BTreeSet<&str> = self.matches.away().collect();
        let may_return =
            |role: &str| in_worlds.contains(role) || away.contains(role) || self.matches.is_in_world(role);
        for role in self.gone(roles).into_iter().filter(|role| !may_return(role)) {
            let (matcher, team) = (self.matcher.clone(), team.to_owned());
            tokio::spawn(async move { matcher.lose_team(&role, &team).await.map(drop) });
        }
    }

    /// Returns whether a player is in a team, as far as is known here.
    fn is_in_team(&self, team: &str, player: &str) -> bool {
        self.players.get(player).is_some_and(|player| player.team.as_deref() == Some(team))
    }

    /// Returns the roles whose players are gone.
    fn gone(&self, roles: Vec<String>) -> Vec<String> {
        let is_gone = |role: &String| self.claim == Claim::Sole && !self.players.contains_key(role);
        roles.into_iter().filter(is_gone).collect()
    }

    /// Players have left a match with a world of its own. Those who are not here have some time to
    /// come back to their teams.
    fn await_return(&mut self, players: Vec<String>) {
        let away = players.into_iter().filter(|player| !self.players.contains_key(player)).collect();
        self.matches.await_return(away, Instant::now());
    }

    /// Has players who did not come back from the world of a match leave their teams.
    fn lose_teams(&mut self) {
        let away = self.matches.take_away(Instant::now());
        for player in self.gone(away) {
            let (matcher, srv) = (self.matcher.clone(), self.srv.clone());
            tokio::spawn(async move { persist(RETRY, || matcher.lose_own_team(&player, &srv)).await });
        }
    }

    /// Has players who are gone leave a room.
    fn lose_room(&self, room: &str, roles: Vec<String>) {
        for player in self.gone(roles) {
            let (matcher, room) = (self.matcher.clone(), room.to_owned());
            tokio::spawn(async move { matcher.lose_room(&player, &room).await.map(drop) });
        }
    }

    /// Has a player who is gone leave a ticket. The rules of its queue decide whether it ends.
    fn lose_ticket(&self, ticket: &str, player: &str) {
        let (matcher, lost) = (self.matcher.clone(), lost_from(ticket, player));
        tokio::spawn(async move { matcher.call(Method::CANCEL_TICKET, lost).await.map(drop) });
    }

    fn hear_matcher(&mut self, notice: Notice) {
        let room = notice.room_id().to_owned();
        let world = if notice.kind == Kind::MATCH_READY { world_of(&notice) } else { None };
        for role in &notice.roles {
            if let Some(player) = self.players.get(role) {
                let mut own = Notice { roles: vec![role.clone()], ..notice.clone() };
                if let Some(world) = &world {
                    self.add_ticket(&mut own, role, world, &room);
                }
                self.tell(player.at, 0, &MatchmakingEvent::Notice(own));
            } else if notice.kind == Kind::MATCH_PROPOSED {
                let own = Notice { roles: vec![role.clone()], ..notice.clone() };
                self.unheard.insert(role.clone(), own);
            } else if [Kind::MATCH_CANCELLED, Kind::MATCH_READY].contains(&notice.kind) {
                self.unheard.remove(role);
            }
        }
        match notice.kind {
            Kind::JOIN_TEAM => {
                self.join_team(notice.text(TEAM), &notice.roles);
                // A player was gone before the matcher let it in.
                self.lose_team(notice.text(TEAM), notice.roles.clone(), &BTreeSet::new());
            }
            // The first news of it to members of a team that was queued at another gateway.
            Kind::MATCH_PROPOSED => {
                let (id, players) = (notice.text(4).to_owned(), notice.roles);
                self.note_ticket(TicketNews { id, players, is_live: true });
            }
            Kind::LEAVE_TEAM => {
                if self.is_in_team(notice.text(TEAM), notice.text(1))
                    && let Some(player) = self.players.get_mut(notice.text(1))
                {
                    player.team = None;
                }
            }
            Kind::ROLES_JOIN_ROOM => {
                let shown = notice.room().unwrap_or_default();
                let joined = notice.texts(2).map(str::to_owned);
                let own = joined.filter(|role| notice.roles.contains(role));
                self.join(&room, own.collect(), &shown);
            }
            // To the allocator of the room's world.
            Kind::ROLE_LEAVE_ROOM if notice.roles.is_empty() => {
                self.hosted.remove(&room);
                let shown = notice.room().unwrap_or_default();
                if let Some(world) = shown.data.get("World").and_then(|json| unquoted(json)) {
                    self.close_world(world);
                }
            }
            Kind::ROLE_LEAVE_ROOM if notice.text(22) != "room_deleted" => {
                if self.matches.has_world(&room) {
                    self.await_return(vec![notice.text(2).to_owned()]);
                }
                self.leave(&room, notice.text(2));
            }
            // The room is gone. A match with a channel continues, one with a world has ended.
            Kind::ROLE_LEAVE_ROOM => {
                if self.matches.has_world(&room) {
                    self.await_return(self.matches.members(&room));
                }
                if let Some(world) = self.matches.close_room(&room) {
                    self.close_world(world);
                }
            }
            // The matcher asks where the match is to be played.
            Kind::MATCH_READY if notice.roles.is_empty() => self.find_place(room, notice.text(CLASS)),
            // The only news of it to members of a team that was queued at another gateway.
            Kind::TICKET_UPDATE => {
                let Some(ticket) = TicketNews::read(&notice.body) else { return };
                // A player was gone before its team was queued, or before its match got no server.
                let roles = if ticket.is_live { notice.roles.clone() } else { Vec::new() };
                for player in self.gone(roles) {
                    self.lose_ticket(&ticket.id, &player);
                }
                self.note_ticket(TicketNews { players: notice.roles, ..ticket });
            }
            Kind::SEAT_EXPIRED | Kind::MATCH_CANCELLED => {
                self.matches.end_wait(&room);
                self.close_empty();
            }
            Kind::MATCH_READY => {
                // Rooms that players have filled by themselves have no match, and end no tickets.
                let is_of_tickets = !notice.text(MATCH).is_empty();
                for role in &notice.roles {
                    if let Some(player) = self.players.get_mut(role).filter(|_| is_of_tickets) {
                        // They have led here, and end well.
                        player.tickets.clear();
                        player.ready = Some(room.clone());
                    }
                }
                let (here, gone): (Vec<_>, Vec<_>) =
                    notice.roles.into_iter().partition(|role| self.players.contains_key(role));
                self.lose_room(&room, gone);
                match world {
                    Some(world) => self.enter_world(&room, world, here.iter().cloned()),
                    None => self.matches.join(&room, [], true),
                }
                for role in here {
                    let (matcher, room) = (self.matcher.clone(), room.clone());
                    // The membership that comes of it is told like any other; without a seat there
                    // is none.
                    tokio::spawn(async move { matcher.claim_seat(&role, &room).await.map(drop) });
                }
            }
            _ => {}
        }
    }

    /// Gets a match the place that it waits for: a world of a class, or a channel without one.
    fn find_place(&mut self, room: String, class: &str) {
        match class {
            "" if self.gateway.is_none() => tracing::warn!(
                room,
                "a match gets no server: on a node of a cluster its queue needs a `world`"
            ),
            "" => {
                self.matches.await_players(&room);
                self.open(&room);
            }
            class => self.host(room, class),
        }
    }

    /// Opens a world for a match, and tells the matcher.
    fn host(&mut self, room: String, class: &str) {
        if !self.opening.insert(room.clone()) {
            return;
        }
        let (process, matcher, class) = (Arc::clone(&self.process), self.matcher.clone(), class.to_owned());
        let done = self.done.clone();
        tokio::spawn(async move {
            let open = || {
                let (process, room, class) = (Arc::clone(&process), room.clone(), class.clone());
                let open = move || process.open_match_world(&class, &room, true);
                let opening = tokio::task::spawn_blocking(open);
                async { opening.await.unwrap_or_else(|error| Err(Problem::new(500, error.to_string()))) }
            };
            let mut world = match open_in_time(Instant::now() + WORLD_WAIT, WORLD_PAUSE, open).await {
                Ok(opened) => Some(opened),
                // The match ends, and its tickets wait again.
                Err(problem) => {
                    tracing::warn!(room, why = problem.what, "a match got no world");
                    None
                }
            };
            if let Some(opened) = &world
                && let Err(error) = matcher.call(Method::ASSIGN_MATCH, assignment(&room, opened)).await
            {
                tracing::warn!(room, %error, "a match did not get its world");
                process.close_match_world(&opened.name);
                world = None;
            }
            // The loop ends only with the process.
            let _ = done.send(Done::Hosted { room, world }).await;
        });
    }

    /// Adds the login token for its match's world to a player's notice.
    fn add_ticket(&self, notice: &mut Notice, player: &str, world: &str, room: &str) {
        match self.process.match_ticket(player, ConnKind::Client, world, room) {
            Ok(ticket) => {
                let entry = Writer::new().str(1, "Ticket").str(2, &format!("\"{ticket}\""));
                let more = Writer::new().nested(DATA, entry).into_bytes();
                notice.body = [&notice.body[..], &more].concat().into();
            }
            Err(why) => tracing::error!(room, why, "a player got no ticket for the world of its match"),
        }
    }

    /// Players are in a match with a world of its own.
    fn enter_world(&mut self, room: &str, world: String, players: impl Iterator<Item = String>) {
        if self.matches.join_world(room, &world, players) {
            let (life, done, room) =
                (self.process.follow_match_world(&world), self.done.clone(), room.to_owned());
            tokio::spawn(async move {
                life.end().await;
                // The loop ends only with the process.
                let _ = done.send(Done::WorldOver { room }).await;
            });
        }
    }

    /// Notes a world that this link opened: its end ends the room, also when no member is here, and
    /// another home's addresses go into the room's data.
    fn keep_hosted(&mut self, room: String, world: MatchWorld) {
        let (mut life, done) = (self.process.follow_match_world(&world.name), self.done.clone());
        let (name, mut last) = (world.name.clone(), world.addresses.clone());
        self.hosted.insert(room.clone(), Hosted { world, assigning: JoinSet::new() });
        tokio::spawn(async move {
            while let Some(addresses) = life.next().await {
                if addresses != last {
                    last.clone_from(&addresses);
                    let world = MatchWorld { name: name.clone(), addresses };
                    // The loop ends only with the process.
                    let _ = done.send(Done::HostedMoved { room: room.clone(), world }).await;
                }
            }
            let _ = done.send(Done::HostedOver { room }).await;
        });
    }

    /// The world of a match has another home: the room's data name it. The matcher is asked until
    /// it takes that, or does not know the match any more; at the longest until the world ends or
    /// moves on.
    fn assign_again(&mut self, room: String, world: MatchWorld) {
        let Some(hosted) = self.hosted.get_mut(&room) else { return };
        let (matcher, request) = (self.matcher.clone(), assignment(&room, &world));
        tracing::info!(room, world = world.name, "the world of a match has another home");
        *hosted = Hosted { world, assigning: JoinSet::new() };
        hosted.assigning.spawn(async move {
            let assign = || matcher.call(Method::ASSIGN_MATCH, request.clone());
            if let Err(error) = persist(RETRY, assign).await {
                tracing::warn!(room, %error, "a match did not get the addresses of its world's new home");
            }
        });
    }

    fn close_world(&self, world: String) {
        let process = Arc::clone(&self.process);
        tokio::task::spawn_blocking(move || process.close_match_world(&world));
    }

    /// Reads what concerns this server from the matcher, until that succeeds.
    fn refetch(&mut self) {
        let (matcher, done, process) = (self.matcher.clone(), self.done.clone(), Arc::clone(&self.process));
        let hosted = self.hosted.iter().map(|(room, hosted)| (room.clone(), hosted.world.name.clone()));
        let hosted = hosted.collect();
        let rooms = self.matches.joined().filter(|(_, members)| !members.is_empty());
        let rooms = rooms.map(|(room, members)| (room.clone(), members.clone())).collect();
        let tickets = self.players.values().flat_map(|player| &player.tickets).cloned().collect();
        let mut teams = BTreeMap::<String, BTreeSet<String>>::new();
        for (name, player) in &self.players {
            if let Some(team) = &player.team {
                teams.entry(team.clone()).or_default().insert(name.clone());
            }
        }
        let known = Known { srv: self.srv.clone(), hosted, rooms, teams, tickets };
        self.refetching = JoinSet::new();
        self.refetching.spawn(async move {
            if let Ok(mine) = persist(RETRY, || read_mine(&matcher, &process, &known)).await {
                // The loop ends only with the process.
                let _ = done.send(Done::Mine(mine)).await;
            }
        });
    }

    fn finish(&mut self, done: Done) {
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
            Done::Entered { room, player, at } => {
                let Some(channel) = self.matches.channel(&room) else { return };
                if self.players.get(&player).is_some_and(|player| player.at == at) {
                    self.tell(at, 0, &MatchmakingEvent::Entered { room, channel });
                } else {
                    // The player is at another connection by now.
                    self.unsubscribe(channel, at);
                }
            }
            Done::WorldOver { room } => {
                // They stay in it here until the matcher says so, or turns out to have lost the
                // room.
                for player in self.matches.members(&room) {
                    let (matcher, room) = (self.matcher.clone(), room.clone());
                    tokio::spawn(async move {
                        persist(RETRY, || matcher.leave_room(&player, &room)).await.map(drop)
                    });
                }
                self.close_empty();
            }
            Done::Hosted { room, world } => {
                self.opening.remove(&room);
                if let Some(world) = world {
                    self.keep_hosted(room, world);
                }
            }
            Done::HostedMoved { room, world } => self.assign_again(room, world),
            Done::HostedOver { room } => {
                if self.hosted.remove(&room).is_some() {
                    let (matcher, delete) = (self.matcher.clone(), Writer::new().str(1, &room));
                    // It may be gone: that is what is wanted.
                    tokio::spawn(async move { matcher.call(Method::DELETE_ROOM, delete).await.map(drop) });
                }
            }
            Done::Left { player } => {
                // It may be gone again.
                if self.leaving.get(&player).is_some_and(|leaving| leaving.has_changed().is_err()) {
                    self.leaving.remove(&player);
                }
            }
            Done::Ticket { maker, ticket } => {
                self.creating -= 1;
                // The news of its end may come before the answer.
                let live = ticket.filter(|ticket| !self.ended_early.remove(&ticket.id));
                if self.creating == 0 {
                    self.ended_early.clear();
                }
                if let Some(ticket) = live {
                    if !self.players.contains_key(&maker) {
                        self.lose_ticket(&ticket.id, &maker);
                    }
                    self.note_ticket(ticket);
                }
            }
            Done::Mine(Mine {
                rooms,
                teams,
                waiting,
                seated,
                assigning,
                hosted,
                left,
                left_teams,
                ended,
                ready,
            }) => {
                for notice in self.missed(left, left_teams, ended, ready) {
                    self.hear_matcher(notice);
                }
                for (id, players) in waiting {
                    for player in self.gone(players.clone()) {
                        self.lose_ticket(&id, &player);
                    }
                    self.note_ticket(TicketNews { id, players, is_live: true });
                }
                for (room, roles) in seated {
                    self.lose_room(&room, roles);
                }
                let in_worlds = rooms.iter().filter(|room| room.data.contains_key("World"));
                let in_worlds = in_worlds.flat_map(|room| &room.roles).map(|role| &*role.id);
                teams.iter().for_each(|(team, roles)| self.join_team(team, roles));
                let in_worlds = in_worlds.collect();
                for (team, roles) in teams {
                    self.lose_team(&team, roles, &in_worlds);
                }
                for (room, class) in assigning {
                    if !self.hosted.contains_key(&room) {
                        self.find_place(room, &class);
                    }
                }
                for (room, world) in hosted {
                    self.adopt(room, world);
                }
                for room in rooms {
                    let own = room.roles.iter().filter(|role| role.srv == self.srv);
                    let own: Vec<String> = own.map(|role| role.id.clone()).collect();
                    match room.data.get("World").and_then(|json| unquoted(json)) {
                        Some(world) => {
                            let here = own.iter().filter(|role| self.players.contains_key(*role));
                            let roles: Vec<String> = here.cloned().collect();
                            // The notice of it is among those that were missed.
                            if !roles.is_empty() && !self.matches.has_world(&room.id) {
                                let body = place_of(&room).into_bytes().into();
                                self.hear_matcher(Notice { roles, kind: Kind::MATCH_READY, body });
                            }
                            self.enter_world(&room.id, world, own.into_iter());
                        }
                        None => self.join(&room.id, own, &room),
                    }
                }
            }
        }
    }

    /// The notices that players have not heard of the ends of memberships and tickets: a matcher
    /// that came back without its state sends none, and one that restarts none again.
    fn missed(
        &self,
        left: Vec<(String, String, &'static str)>,
        left_teams: Vec<(String, String, &'static str)>,
        ended: Vec<(String, Vec<u8>)>,
        ready: Vec<Ready>,
    ) -> Vec<Notice> {
        let left = left.into_iter().filter(|(room, player, _)| self.matches.is_member(room, player));
        let left = left.map(|(room, player, why)| left_room(&room, &player, why));
        let left_teams = left_teams.into_iter().filter(|(team, player, _)| self.is_in_team(team, player));
        let left_teams = left_teams.map(|(team, player, why)| left_team(&team, &player, why));
        let ended = ended.into_iter().map(|(ticket, shown)| {
            let waits = |(_, player): &(&String, &Player)| player.tickets.contains(&ticket);
            let roles = self.players.iter().filter(waits).map(|(name, _)| name.clone()).collect();
            let body = Writer::new().bytes(1, &shown).into_bytes().into();
            Notice { roles, kind: Kind::TICKET_UPDATE, body }
        });
        // The notice itself ends that wait, and takes the seat.
        let waits = |ready: &Ready| {
            let player = self.players.get(&ready.role);
            let is_news = |player: &Player| player.ready.as_ref() != Some(&ready.room);
            player.is_some_and(|player| {
                player.tickets.contains(&ready.ticket) || ready.has_seat && is_news(player)
            })
        };
        let ready = ready.into_iter().filter(waits);
        let ended = ended.filter(|notice| !notice.roles.is_empty());
        left.chain(left_teams).chain(ended).chain(ready.map(Ready::notice)).collect()
    }

    /// Takes up the world of a match that an earlier life of this link has opened. The addresses of
    /// a world that was followed all the time are compared with those in the room's data.
    fn adopt(&mut self, room: String, world: MatchWorld) {
        match self.hosted.get(&room) {
            Some(Hosted { world: hosted, .. }) if hosted.addresses == world.addresses => {}
            Some(Hosted { world: hosted, .. }) => self.assign_again(room, hosted.clone()),
            None if self.opening.contains(&room) => {}
            None => {
                let (process, done) = (Arc::clone(&self.process), self.done.clone());
                self.opening.insert(room.clone());
                tokio::task::spawn_blocking(move || {
                    let has_ended = process.has_match_world_ended(&world.name);
                    let adopted = Done::Hosted { room: room.clone(), world: Some(world) };
                    // The loop ends only with the process.
                    let _ = done.blocking_send(adopted);
                    if has_ended {
                        let _ = done.blocking_send(Done::HostedOver { room });
                    }
                });
            }
        }
    }

    /// Brings a match as far as it can come: makes its channel, or lets in who is not in it yet.
    fn open(&mut self, room: &str) {
        let Some(gateway) = &self.gateway else { return };
        if self.matches.wants_channel(room) {
            let (gateway, done, room) = (gateway.clone(), self.done.clone(), room.to_owned());
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
            let Some(at) = self.players.get(&player).map(|player| player.at) else { continue };
            self.subscribe(room.to_owned(), channel, player, at);
        }
    }

    /// Subscribes a player to the channel of its match, which is in the main world.
    fn subscribe(&self, room: String, channel: ChannelId, player: String, at: PlayerLocation) {
        let Some(gateway) = self.gateway.clone().filter(|_| at.to.world == World::MAIN) else { return };
        let done = self.done.clone();
        tokio::spawn(async move {
            let conn = ConnId(at.conn.0);
            if gateway.subscribe_other(channel, Some(conn), matches::options()).await.is_ok() {
                // The loop ends only with the process.
                let _ = done.send(Done::Entered { room, player, at }).await;
            }
        });
    }

    fn unsubscribe(&self, channel: ChannelId, at: PlayerLocation) {
        let Some(gateway) = self.gateway.clone().filter(|_| at.to.world == World::MAIN) else { return };
        // It may be gone already.
        tokio::spawn(async move { gateway.unsubscribe(channel, Some(ConnId(at.conn.0))).await });
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
        let channel = self.matches.leave(room, player);
        let at = self.players.get(player).map(|player| player.at);
        if let (Some(channel), Some(at)) = (channel, at.filter(|at| at.to.world == World::MAIN))
            && let Some(gateway) = self.gateway.clone()
        {
            let (process, room) = (Arc::clone(&self.process), room.to_owned());
            tokio::spawn(async move {
                // It may have left by itself.
                let _ = gateway.unsubscribe(channel, Some(ConnId(at.conn.0))).await;
                at.tell(&process.mailboxes, 0, &MatchmakingEvent::Left { room, channel });
            });
        }
        self.close_empty();
    }

    fn close_empty(&mut self) {
        for channel in self.matches.take_empty() {
            let Some(gateway) = self.gateway.clone() else { continue };
            tokio::spawn(async move { gateway.remove_channel(channel).await });
        }
    }
}

/// Opens a world, again after pauses until a time while no node has room for it or serves it.
async fn open_in_time<T, F>(
    until: Instant,
    pause: Duration,
    mut open: impl FnMut() -> F,
) -> Result<T, Problem>
where
    F: Future<Output = Result<T, Problem>>,
{
    loop {
        match open().await {
            Err(problem) if problem.status == 503 && Instant::now() + pause < until => {}
            outcome => return outcome,
        }
        tokio::time::sleep(pause).await;
    }
}

/// A ticket in a response or notification.
struct TicketNews {
    id: String,
    players: Vec<String>,
    is_live: bool,
}

impl TicketNews {
    fn read(body: &[u8]) -> Option<TicketNews> {
        let ticket = Reader::new(body).ok()?.nested(1).ok()?;
        let players =
            ticket.all(3).filter_map(|player| Reader::new(player).ok()?.str(1).ok().map(str::to_owned));
        Some(TicketNews {
            id: ticket.str(1).ok()?.to_owned(),
            players: players.collect(),
            is_live: is_live(ticket.str(8).ok()?),
        })
    }
}

/// Returns whether a ticket with this status waits for a match.
fn is_live(status: &str) -> bool {
    matches!(status, "searching" | "proposed" | "placing")
}

/// The next event of the connection to the main world, for ever without one.
async fn next_event(events: &mut Option<Events>) -> Option<Event> {
    match events {
        Some(events) => events.next().await,
        None => std::future::pending().await,
    }
}

/// The world of a match that is ready, if it has one of its own.
fn world_of(notice: &Notice) -> Option<String> {
    unquoted(&notice.data("World")?)
}

/// Returns whether a room is a match that is played in a channel.
fn has_channel(room: &throng_client::Room) -> bool {
    room.is_full && room.world.is_empty()
}

/// The request that gives a match its world.
fn assignment(room: &str, world: &MatchWorld) -> Writer {
    let MatchWorld { name, addresses } = world;
    let client = &addresses["client"];
    let first = client.get("tcp").or_else(|| client.as_object()?.values().next());
    let connection = first.and_then(|url| url.as_str()).unwrap_or_default();
    let data = |key: &str, json: String| Writer::new().str(1, key).str(2, &json);
    let request = Writer::new().str(1, room).str(2, connection);
    let request = request.nested(3, data("World", format!("\"{name}\"")));
    request.nested(3, data("Addresses", addresses.to_string()))
}

/// The text of a JSON string.
fn unquoted(json: &str) -> Option<String> {
    serde_json::from_str(json).ok()
}

/// Waits for a deadline; for ever without one.
async fn reach(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_world_of_a_match_is_opened_again_while_no_node_takes_it_and_its_time_is_not_over() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        for (status, left, attempts) in [(503, 3_600, 3), (409, 3_600, 1), (503, 0, 1)] {
            let (mut made, until) = (0, Instant::now() + Duration::from_secs(left));
            let opened = runtime.block_on(open_in_time(until, Duration::ZERO, || {
                made += 1;
                std::future::ready(if made < 3 { Err(Problem::new(status, "no room")) } else { Ok(()) })
            }));
            assert_eq!((made, opened.is_ok()), (attempts, attempts == 3), "{status} {left}");
        }
    }
}
