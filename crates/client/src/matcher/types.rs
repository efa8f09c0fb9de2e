//! Plain values for roles, rooms and teams, and the calls about them.

use std::collections::{BTreeMap, BTreeSet};

use throng_wire::WireError;
use throng_wire::matcher::{Event, Method, Reader, Writer};

use super::driver::Matcher;
use super::session::{CallError, Notice};

/// One player as the matcher sees it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Role {
    /// Identity, chosen by the caller.
    pub id: String,
    /// Server that receives its notifications; set by the matcher.
    pub srv: String,
    /// The team that it joined with; empty without one.
    pub team: String,
    /// Numbers for matching: level, score.
    pub floats: BTreeMap<String, f64>,
    /// Strings: name, picture, packed extras.
    pub strings: BTreeMap<String, String>,
    /// Tags.
    pub tags: BTreeSet<String>,
}

impl Role {
    /// A role without data.
    #[must_use]
    pub fn new(id: impl Into<String>) -> Role {
        Role { id: id.into(), ..Role::default() }
    }

    /// Adds a number for matching.
    #[must_use]
    pub fn float(mut self, key: impl Into<String>, value: f64) -> Role {
        self.floats.insert(key.into(), value);
        self
    }

    /// Adds a string.
    #[must_use]
    pub fn string(mut self, key: impl Into<String>, value: impl Into<String>) -> Role {
        self.strings.insert(key.into(), value.into());
        self
    }

    /// Adds a tag.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Role {
        self.tags.insert(tag.into());
        self
    }

    fn write(&self) -> Writer {
        let mut body = Writer::new().str(1, &self.id);
        for (key, value) in &self.floats {
            body = body.nested(4, Writer::new().str(1, key).f64(2, *value));
        }
        for (key, value) in &self.strings {
            body = body.nested(5, Writer::new().str(1, key).str(2, value));
        }
        self.tags.iter().fold(body, |body, tag| body.str(6, tag))
    }

    fn read(body: &[u8]) -> Result<Role, WireError> {
        let body = Reader::new(body)?;
        let mut role = Role {
            id: body.str(1)?.to_owned(),
            srv: body.str(2)?.to_owned(),
            team: body.str(3)?.to_owned(),
            ..Role::default()
        };
        for entry in body.all(4) {
            let entry = Reader::new(entry)?;
            role.floats.insert(entry.str(1)?.to_owned(), f64::from_bits(entry.u64(2)));
        }
        for entry in body.all(5) {
            let entry = Reader::new(entry)?;
            role.strings.insert(entry.str(1)?.to_owned(), entry.str(2)?.to_owned());
        }
        for field in body.fields().filter(|field| field.number == 6) {
            role.tags.insert(field.str()?.to_owned());
        }
        Ok(role)
    }
}

/// A room: a match that is filling up or in play.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Room {
    /// Assigned by the matcher.
    pub id: String,
    /// Name of its match mode.
    pub mode: String,
    /// Members in the order of joining; not all of them if `is_partial`.
    pub roles: Vec<Role>,
    /// Number of members, also if `is_partial`.
    pub members: u64,
    /// True if listings omit it.
    pub is_hidden: bool,
    /// True if it accepts no more players.
    pub is_full: bool,
    /// True if it is being removed.
    pub is_deleting: bool,
    /// True if `roles` has only the members that an event concerns, because the room exceeds the
    /// size of a snapshot.
    pub is_partial: bool,
    /// Free-form values, as JSON text.
    pub data: BTreeMap<String, String>,
    /// Revision, incremented by every change.
    pub rev: u64,
    /// Sides of a match: name and ids of the roles.
    pub sides: Vec<(String, Vec<String>)>,
    /// Class of the world that its match gets when it is full; empty if its mode has none.
    pub world: String,
}

impl Room {
    fn read(body: &[u8]) -> Result<Room, WireError> {
        let body = Reader::new(body)?;
        let text = |bytes| std::str::from_utf8(bytes).map(str::to_owned).unwrap_or_default();
        let mut room = Room {
            id: body.str(1)?.to_owned(),
            mode: body.str(3)?.to_owned(),
            roles: body.all(4).map(Role::read).collect::<Result<_, _>>()?,
            members: body.u64(12),
            is_hidden: body.u64(5) != 0,
            is_full: body.u64(6) != 0,
            is_deleting: body.u64(7) != 0,
            is_partial: body.u64(13) != 0,
            rev: body.u64(9),
            world: body.str(14)?.to_owned(),
            ..Room::default()
        };
        for entry in body.all(8) {
            let entry = Reader::new(entry)?;
            room.data.insert(entry.str(1)?.to_owned(), text(entry.bytes(2)));
        }
        for side in body.all(10) {
            let side = Reader::new(side)?;
            room.sides.push((side.str(1)?.to_owned(), side.all(2).map(text).collect()));
        }
        Ok(room)
    }
}

/// A team: roles that join rooms and queues together.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Team {
    /// Assigned by the matcher.
    pub id: String,
    /// Id of the leader's role.
    pub leader: String,
    /// Capacity, in roles.
    pub role_max: u64,
    /// True if joining needs a password.
    pub has_password: bool,
    /// Members in the order of joining.
    pub roles: Vec<Role>,
    /// Revision, incremented by every change.
    pub rev: u64,
}

impl Team {
    fn read(body: &[u8]) -> Result<Team, WireError> {
        let body = Reader::new(body)?;
        Ok(Team {
            id: body.str(1)?.to_owned(),
            leader: body.str(6)?.to_owned(),
            role_max: body.u64(3) >> 1,
            has_password: body.u64(2) != 0,
            roles: body.all(5).map(Role::read).collect::<Result<_, _>>()?,
            rev: body.u64(7),
        })
    }
}

/// Rooms and teams of a server's roles, for a caller that missed notifications.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Mine {
    /// Rooms with a member or a reserved seat of these roles.
    pub rooms: Vec<Room>,
    /// Teams with a member of these roles.
    pub teams: Vec<Team>,
}

impl Mine {
    /// Adds a page: the response body of `ListMine`. Returns the `From` of the next page's request,
    /// empty after the last page.
    ///
    /// # Errors
    /// [`CallError::BadAnswer`].
    pub fn add_page(&mut self, body: &[u8]) -> Result<String, CallError> {
        let mut read = || {
            let body = Reader::new(body)?;
            for room in body.all(1) {
                self.rooms.push(Room::read(room)?);
            }
            for team in body.all(2) {
                self.teams.push(Team::read(team)?);
            }
            Ok(body.str(5)?.to_owned())
        };
        read().map_err(|_: WireError| CallError::BadAnswer)
    }
}

/// Field of the data in the notification that a match is ready.
const MATCH_DATA_FIELD: u32 = 11;

/// The world of a match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MatchWorld {
    /// Its name.
    pub name: String,
    /// An address of its node for players, as a URL. All addresses are `Addresses` in
    /// [`Notice::data`].
    pub address: String,
    /// The player's login token there.
    pub ticket: String,
}

impl Notice {
    /// The room before (departures) or after (joins) the change, if the notification contains it.
    #[must_use]
    pub fn room(&self) -> Option<Room> {
        let shows = [Event::ROLES_JOIN_ROOM, Event::ROLE_LEAVE_ROOM].contains(&self.kind);
        shows.then(|| self.nested(1, Room::read)).flatten()
    }

    /// Id of the room that it concerns; empty if it concerns none.
    #[must_use]
    pub fn room_id(&self) -> &str {
        let is_team = [
            Event::JOIN_TEAM,
            Event::LEAVE_TEAM,
            Event::CHANGE_TEAM_LEADER,
            Event::SET_TEAM_DATA,
            Event::BROADCAST_TEAM,
        ]
        .contains(&self.kind);
        if is_team { "" } else { self.text(20) }
    }

    /// The string in a field of its content; empty without one.
    #[must_use]
    pub fn text(&self, number: u32) -> &str {
        Reader::new(&self.body).and_then(|body| body.str(number)).unwrap_or_default()
    }

    /// A value of the data of a match that is ready, as JSON text. Of a match with a world of its
    /// own there are `World`, `Addresses` (of the world's node, by kind and transport) and
    /// `Ticket`.
    #[must_use]
    pub fn data(&self, key: &str) -> Option<String> {
        let body = Reader::new(&self.body).ok().filter(|_| self.kind == Event::MATCH_READY)?;
        let entries = body.all(MATCH_DATA_FIELD).filter_map(|entry| Reader::new(entry).ok());
        let found = entries.filter(|entry| entry.str(1) == Ok(key)).last()?;
        found.str(2).map(str::to_owned).ok()
    }

    /// The world of a match that is ready, if it has one of its own: log in there with the ticket.
    #[must_use]
    pub fn match_world(&self) -> Option<MatchWorld> {
        // Names, URLs and tickets have nothing that JSON escapes.
        let text = |key| Some(self.data(key)?.trim_matches('"').to_owned());
        Some(MatchWorld { name: text("World")?, address: self.text(4).to_owned(), ticket: text("Ticket")? })
    }

    /// All strings in a repeated field of its content.
    pub fn texts(&self, number: u32) -> impl Iterator<Item = &str> {
        let body = Reader::new(&self.body).ok();
        let all = body.into_iter().flat_map(move |body| body.all(number));
        all.filter_map(|value| std::str::from_utf8(value).ok())
    }

    fn nested<T>(&self, number: u32, read: impl FnOnce(&[u8]) -> Result<T, WireError>) -> Option<T> {
        let body = Reader::new(&self.body).ok()?;
        read(body.bytes(number)).ok()
    }
}

/// Calls about rooms and teams. [`Matcher::call`] makes all other calls, and those with optional
/// fields. Every call fails with a [`CallError`].
#[allow(clippy::missing_errors_doc, reason = "the same for all, and documented above")]
impl Matcher {
    /// Joins an open room of a mode, or creates one.
    pub async fn join_random_room(&self, role: &Role, mode: &str) -> Result<Room, CallError> {
        let body = Writer::new().nested(1, role.write()).nested(2, Writer::new().str(1, mode));
        self.room_call(Method::ROLE_JOIN_RANDOM_ROOM, body).await
    }

    /// Creates a room with its first member.
    pub async fn create_room(&self, role: &Role, mode: &str) -> Result<Room, CallError> {
        let body = Writer::new().nested(1, role.write()).nested(2, Writer::new().str(1, mode));
        self.room_call(Method::ROLE_CREATE_ROOM, body).await
    }

    /// Joins a room, using the role's reserved seat if it has one.
    pub async fn join_room(&self, role: &Role, room: &str) -> Result<Room, CallError> {
        self.room_call(Method::ROLE_JOIN_ROOM, Writer::new().nested(1, role.write()).str(2, room)).await
    }

    /// Leaves a room.
    pub async fn leave_room(&self, role: &str, room: &str) -> Result<Room, CallError> {
        self.room_call(Method::ROLE_LEAVE_ROOM, Writer::new().str(1, role).str(2, room)).await
    }

    /// Turns a reserved seat into membership.
    pub async fn claim_seat(&self, role: &str, room: &str) -> Result<Room, CallError> {
        self.room_call(Method::CLAIM_SEAT, Writer::new().str(1, room).str(2, role)).await
    }

    /// Returns a room.
    pub async fn room(&self, room: &str) -> Result<Room, CallError> {
        self.room_call(Method::GET_ROOM_INFO, Writer::new().str(1, room)).await
    }

    /// Removes a room. Returns true if it existed.
    pub async fn delete_room(&self, room: &str) -> Result<bool, CallError> {
        let answer = self.call(Method::DELETE_ROOM, Writer::new().str(1, room)).await?;
        Ok(Reader::new(&answer).map_err(|_| CallError::BadAnswer)?.u64(1) != 0)
    }

    /// Sends a JSON value to all members.
    pub async fn broadcast_room(&self, room: &str, json: &str) -> Result<(), CallError> {
        let body = Writer::new().str(1, room).str(2, json);
        self.call(Method::BROADCAST_ROOM, body).await.map(drop)
    }

    /// Sets one of a room's free-form values to JSON text.
    pub async fn set_room_data(&self, room: &str, key: &str, json: &str) -> Result<(), CallError> {
        let body = Writer::new().str(1, room).str(2, key).str(3, json);
        self.call(Method::SET_ROOM_DATA, body).await.map(drop)
    }

    /// Creates a team for `role_max` roles; an empty password means none.
    pub async fn create_team(&self, role: &Role, role_max: u32, password: &str) -> Result<Team, CallError> {
        let team = Writer::new().u64(3, u64::from(role_max) << 1).str(8, password);
        self.team_call(Method::CREATE_TEAM, Writer::new().nested(1, role.write()).nested(2, team)).await
    }

    /// Joins a team.
    pub async fn join_team(&self, role: &Role, team: &str, password: &str) -> Result<Team, CallError> {
        let body = Writer::new().nested(1, role.write()).str(2, team).str(3, password);
        self.team_call(Method::JOIN_TEAM, body).await
    }

    /// Leaves a team.
    pub async fn leave_team(&self, role: &str, team: &str) -> Result<(), CallError> {
        self.call(Method::LEAVE_TEAM, Writer::new().str(1, role).str(2, team)).await.map(drop)
    }

    /// Moves all members of a team into an open room of a mode, or into a new one.
    pub async fn team_join_random_room(&self, team: &str, mode: &str) -> Result<Room, CallError> {
        let body = Writer::new().str(1, team).nested(2, Writer::new().str(1, mode));
        self.room_call(Method::TEAM_JOIN_RANDOM_ROOM, body).await
    }

    /// Returns the rooms and teams of this server's roles.
    pub async fn mine(&self) -> Result<Mine, CallError> {
        let (mut mine, mut from) = (Mine::default(), String::new());
        loop {
            let answer = self.call(Method::LIST_MINE, Writer::new().str(2, &from)).await?;
            from = mine.add_page(&answer)?;
            if from.is_empty() {
                return Ok(mine);
            }
        }
    }

    async fn room_call(&self, method: u16, body: Writer) -> Result<Room, CallError> {
        let answer = self.call(method, body).await?;
        let room = Reader::new(&answer).and_then(|body| Room::read(body.bytes(1)));
        room.map_err(|_| CallError::BadAnswer)
    }

    async fn team_call(&self, method: u16, body: Writer) -> Result<Team, CallError> {
        let answer = self.call(method, body).await?;
        let team = Reader::new(&answer).and_then(|body| Team::read(body.bytes(1)));
        team.map_err(|_| CallError::BadAnswer)
    }
}

#[cfg(test)]
mod tests {
    use throng_wire::matcher::Writer;

    use super::*;

    #[test]
    fn the_notice_of_a_match_names_its_world() {
        let entry = |key: &str, json: &str| Writer::new().str(1, key).str(2, json);
        let body = Writer::new().str(4, "tcp://a:1").nested(11, entry("World", "\"duel-1\""));
        let notice = |body: Writer, kind| Notice { roles: Vec::new(), kind, body: body.into_bytes().into() };
        assert_eq!(notice(body.clone(), Event::MATCH_READY).match_world(), None, "no ticket, no world");
        let body = body.nested(11, entry("Ticket", "\"e.y.J\""));
        let found = notice(body.clone(), Event::MATCH_READY).match_world().unwrap();
        assert_eq!((&*found.name, &*found.address, &*found.ticket), ("duel-1", "tcp://a:1", "e.y.J"));
        assert_eq!(notice(body, Event::MATCH_PROPOSED).match_world(), None);
    }
}
