//! Everything in the matcher that concerns a link, which reads it at its start and after a gap in
//! its notifications, and the notices that its players have missed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use throng_client::{CallError, Notice, Role, Room};
use throng_wire::matcher::{Event as Kind, Reader, Writer};

use super::area::{Area, Listed};
use super::{CONNECTION, DATA, MATCH, is_live, unquoted};
use crate::monitor::{MatchWorld, Watch};

/// Everything in the matcher that concerns a link.
pub(super) struct Mine {
    /// Rooms of its players.
    pub(super) rooms: Vec<Room>,
    /// Rooms that wait for a world or channel, with the class of the world.
    pub(super) assigning: Vec<(String, String)>,
    /// Rooms with a world of its own, as their data say.
    pub(super) hosted: Vec<(String, MatchWorld)>,
    /// Teams with the roles of this server in each.
    pub(super) teams: Vec<(String, Vec<String>)>,
    /// Live tickets with the roles of this server in each.
    pub(super) waiting: Vec<(String, Vec<String>)>,
    /// Rooms of matches without a world, with the roles of this server that have seats in each.
    pub(super) seated: Vec<(String, Vec<String>)>,
    /// Rooms with players who are not in them any more, and why.
    pub(super) left: Vec<(String, String, &'static str)>,
    /// The same of teams.
    pub(super) left_teams: Vec<(String, String, &'static str)>,
    /// Tickets that have ended, encoded.
    pub(super) ended: Vec<(String, Vec<u8>)>,
    /// Matches that are ready, for each player of the tickets that led there.
    pub(super) ready: Vec<Ready>,
}

/// A match that is ready for a player.
pub(super) struct Ready {
    /// The ticket that led there.
    pub(super) ticket: String,
    pub(super) room: String,
    pub(super) role: String,
    /// The player lives on this server and has not taken its seat.
    pub(super) has_seat: bool,
    body: Bytes,
}

impl Ready {
    /// The notice to the player.
    pub(super) fn notice(self) -> Notice {
        Notice { roles: vec![self.role], kind: Kind::MATCH_READY, body: self.body }
    }
}

/// State of a link before it reads from the matcher what concerns it.
pub(super) struct Known {
    /// `SrvID` of the link.
    pub(super) srv: String,
    /// Rooms and worlds that it has opened for them.
    pub(super) hosted: BTreeSet<(String, String)>,
    /// Rooms with the members among its players.
    pub(super) rooms: BTreeMap<String, BTreeSet<String>>,
    /// Teams with the members among its players.
    pub(super) teams: BTreeMap<String, BTreeSet<String>>,
    /// Tickets by which its players wait.
    pub(super) tickets: BTreeSet<String>,
}

/// Reads what concerns this server from the matcher. Of the worlds that this link has opened, in an
/// earlier life too, it closes those whose rooms are gone: their ends may be among what was missed.
pub(super) async fn read_mine<A: Area>(
    matcher: &A,
    process: &Arc<Watch>,
    known: &Known,
) -> Result<Mine, CallError> {
    let opened = {
        let process = Arc::clone(process);
        tokio::task::spawn_blocking(move || process.opened_match_worlds())
    };
    let mut worlds = known.hosted.clone();
    worlds.extend(opened.await.unwrap_or_default());
    for (room, world) in worlds {
        if matcher.room(&room).await?.is_none() {
            process.close_match_world(&world);
        }
    }
    let Listed { rooms, teams, tickets, matches } = matcher.mine().await?;
    let (mut left, mut left_teams, mut ended, mut ready) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (room, members) in &known.rooms {
        let listed = rooms.iter().find(|listed| listed.id == *room);
        let why = match listed {
            None if matcher.room(room).await?.is_none() => "room_deleted",
            _ => "disconnected",
        };
        let away = members.iter().filter(|member| listed.is_none_or(|room| !has_place(room, member)));
        left.extend(away.map(|member| (room.clone(), member.clone(), why)));
    }
    for (team, members) in &known.teams {
        let listed = teams.iter().find(|listed| listed.id == *team);
        let mut away = members.clone();
        for role in listed.iter().flat_map(|team| &team.roles) {
            away.remove(&role.id);
        }
        let has_team = away.is_empty() || listed.is_some() || matcher.has_team(team).await?;
        let why = if has_team { "disconnected" } else { "deleted" };
        left_teams.extend(away.into_iter().map(|member| (team.clone(), member, why)));
    }
    for ticket in &known.tickets {
        if !tickets.contains_key(ticket) {
            let shown = matcher.ticket(ticket).await?;
            ended.push((ticket.clone(), shown.unwrap_or_else(|| cancelled(ticket))));
        }
    }
    for shown in tickets.values() {
        ready.extend(ready_in(shown, &rooms, &known.srv).unwrap_or_default());
    }
    let (mut assigning, mut hosted) = (Vec::new(), Vec::new());
    for found in matches {
        if found.is_assigning {
            assigning.push((found.room, found.class));
        } else if !found.class.is_empty()
            && let Some(room) = matcher.room(&found.room).await?
            && let Some(world) = world_in(&room)
        {
            hosted.push((found.room, world));
        }
    }
    let own = |roles: &[Role]| -> Vec<String> {
        roles.iter().filter(|role| role.srv == known.srv).map(|role| role.id.clone()).collect()
    };
    let teams = teams.into_iter().map(|team| (team.id, own(&team.roles))).collect();
    let seated = tickets.values().filter_map(|shown| seated_in(shown, &rooms, &known.srv)).collect();
    let waiting = tickets.into_iter().filter_map(|(id, shown)| Some((id, waiting_in(&shown, &known.srv)?)));
    let waiting = waiting.collect();
    Ok(Mine { rooms, teams, waiting, seated, assigning, hosted, left, left_teams, ended, ready })
}

/// Returns whether a player is a member of a room, or has a seat in it. Of a room that is shown in
/// part it may be one.
fn has_place(room: &Room, player: &str) -> bool {
    room.is_partial
        || room.roles.iter().any(|role| role.id == player)
        || room.sides.iter().any(|(_, roles)| roles.iter().any(|role| role == player))
}

/// The roles of a server in a ticket, if it is live.
fn waiting_in(ticket: &[u8], srv: &str) -> Option<Vec<String>> {
    let ticket = Reader::new(ticket).ok()?;
    is_live(ticket.str(8).ok()?).then(|| roles_in(&ticket, srv).collect())
}

/// The room that a ticket has led to, and the roles of a server that have a seat in it and are no
/// members yet. A match that waits for its server has no room to enter; players of a match with a
/// world may be there.
fn seated_in(ticket: &[u8], rooms: &[Room], srv: &str) -> Option<(String, Vec<String>)> {
    let ticket = Reader::new(ticket).ok()?;
    let room = rooms.iter().find(|room| Ok(&*room.id) == ticket.str(12))?;
    let is_matched = ticket.str(8) == Ok("matched");
    let has_seat = |role: &String| {
        room.sides.iter().any(|(_, roles)| roles.contains(role))
            && room.roles.iter().all(|member| member.id != *role)
    };
    let is_sure = is_matched && !room.is_partial && !room.data.contains_key("World");
    is_sure.then(|| (room.id.clone(), roles_in(&ticket, srv).filter(has_seat).collect()))
}

fn roles_in(ticket: &Reader<'_>, srv: &str) -> impl Iterator<Item = String> {
    ticket.all(3).filter_map(move |player| {
        let player = Reader::new(player).ok()?;
        (player.str(2) == Ok(srv)).then(|| player.str(1).ok().map(str::to_owned))?
    })
}

/// The notice that a player has left a room.
pub(super) fn left_room(room: &str, player: &str, why: &str) -> Notice {
    let body = Writer::new().str(2, player).str(20, room).str(22, why).into_bytes();
    Notice { roles: vec![player.to_owned()], kind: Kind::ROLE_LEAVE_ROOM, body: body.into() }
}

/// The notice that a player has left a team.
pub(super) fn left_team(team: &str, player: &str, why: &str) -> Notice {
    let body = Writer::new().str(1, player).str(20, team).str(22, why).into_bytes();
    Notice { roles: vec![player.to_owned()], kind: Kind::LEAVE_TEAM, body: body.into() }
}

/// The match of a ticket for each of its players; none if it is not matched.
fn ready_in(ticket: &[u8], rooms: &[Room], srv: &str) -> Option<Vec<Ready>> {
    let ticket = Reader::new(ticket).ok()?;
    let (id, found, at) = (ticket.str(1).ok()?, ticket.str(11).ok()?, ticket.str(12).ok()?);
    let room = rooms.iter().find(|room| room.id == at).filter(|_| ticket.str(8) == Ok("matched"))?;
    let same = place_of(room).str(MATCH, found).str(5, ticket.str(18).ok()?).str(7, ticket.str(2).ok()?);
    let same = same.into_bytes();
    let ready = |player| {
        let player = Reader::new(player).ok()?;
        let role = player.str(1).ok()?.to_owned();
        let side = room.sides.iter().find(|(_, roles)| roles.contains(&role));
        let is_own = player.str(2) == Ok(srv) && !room.is_partial;
        let has_seat = is_own && side.is_some() && room.roles.iter().all(|member| member.id != role);
        let side = Writer::new().str(3, side.map_or("", |(name, _)| name)).into_bytes();
        let body = [&side[..], &same].concat().into();
        Some(Ready { ticket: id.to_owned(), room: at.to_owned(), role, has_seat, body })
    };
    ticket.all(3).map(ready).collect()
}

/// Fields of the notification that a match is ready: its place, as the data of its room say.
pub(super) fn place_of(room: &Room) -> Writer {
    let place = room.data.get(CONNECTION).and_then(|json| unquoted(json)).unwrap_or_default();
    let world = room.data.iter().filter(|(key, _)| ["World", "Addresses"].contains(&key.as_str()));
    let place = Writer::new().str(4, &place).str(20, &room.id);
    world.fold(place, |place, (key, json)| place.nested(DATA, Writer::new().str(1, key).str(2, json)))
}

/// A ticket that the matcher has lost.
fn cancelled(ticket: &str) -> Vec<u8> {
    Writer::new().str(1, ticket).str(8, "cancelled").str(10, "disconnected").into_bytes()
}

/// The world of a match, as the data of its room say.
fn world_in(room: &Room) -> Option<MatchWorld> {
    let name = unquoted(room.data.get("World")?)?;
    Some(MatchWorld { name, addresses: serde_json::from_str(room.data.get("Addresses")?).ok()? })
}
