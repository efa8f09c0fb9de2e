//! Roles, rooms and teams as values, and the calls about them.

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
    /// Server that its notifications go to; filled in by the matcher.
    pub srv: String,
    /// The team it came with; empty without one.
    pub team: String,
    /// Values for matching: level, score.
    pub floats: BTreeMap<String, f64>,
    /// Name, picture, packed extras.
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

    /// With a value for matching.
    #[must_use]
    pub fn float(mut self, key: impl Into<String>, value: f64) -> Role {
        self.floats.insert(key.into(), value);
        self
    }

    /// With a text.
    #[must_use]
    pub fn string(mut self, key: impl Into<String>, value: impl Into<String>) -> Role {
        self.strings.insert(key.into(), value.into());
        self
    }

    /// With a tag.
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

/// One match, being gathered or in play.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Room {
    /// Assigned by the matcher.
    pub id: String,
    /// Its mode.
    pub mode: String,
    /// Members in the order of joining; not all of them where `is_partial` says so.
    pub roles: Vec<Role>,
    /// Number of members.
    pub members: u64,
    /// Not listed.
    pub is_hidden: bool,
    /// Accepts nobody.
    pub is_full: bool,
    /// Being removed.
    pub is_deleting: bool,
    /// Only what changed is listed: the room has more members than a snapshot takes.
    pub is_partial: bool,
    /// Free-form values, as JSON text.
    pub data: BTreeMap<String, String>,
    /// Grows by one with every change.
    pub rev: u64,
    /// Sides of a match: name and roles.
    pub sides: Vec<(String, Vec<String>)>,
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

/// Roles that want to be matched together.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Team {
    /// Assigned by the matcher.
    pub id: String,
    /// The leader.
    pub leader: String,
    /// Capacity.
    pub role_max: u64,
    /// True if joining needs a password.
    pub has_password: bool,
    /// Members, longest-standing first.
    pub roles: Vec<Role>,
    /// Grows by one with every change.
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

/// Everything that concerns the roles of a server: what to fetch after a gap.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Mine {
    /// Rooms that they are in.
    pub rooms: Vec<Room>,
    /// Teams that they are in.
    pub teams: Vec<Team>,
}

impl Notice {
    /// The room as it was before or after the change, if the notification shows one.
    #[must_use]
    pub fn room(&self) -> Option<Room> {
        let shows = [Event::ROLES_JOIN_ROOM, Event::ROLE_LEAVE_ROOM].contains(&self.kind);
        shows.then(|| self.nested(1, Room::read)).flatten()
    }

    /// Id of the room it is about; empty if it is about none.
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

    /// Text in a field of its content; empty when there is none.
    #[must_use]
    pub fn text(&self, number: u32) -> &str {
        Reader::new(&self.body).and_then(|body| body.str(number)).unwrap_or_default()
    }

    /// Every text in a field of its content.
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

/// Calls about rooms and teams. For everything else, and for what these leave out, there is
/// [`Matcher::call`]. All fail as [`CallError`] says.
#[allow(clippy::missing_errors_doc, reason = "the same for all, and said above")]
impl Matcher {
    /// Joins an open room of a mode, or makes one.
    pub async fn join_random_room(&self, role: &Role, mode: &str) -> Result<Room, CallError> {
        let body = Writer::new().nested(1, role.write()).nested(2, Writer::new().str(1, mode));
        self.room_call(Method::ROLE_JOIN_RANDOM_ROOM, body).await
    }

    /// Makes a room with its first member.
    pub async fn create_room(&self, role: &Role, mode: &str) -> Result<Room, CallError> {
        let body = Writer::new().nested(1, role.write()).nested(2, Writer::new().str(1, mode));
        self.room_call(Method::ROLE_CREATE_ROOM, body).await
    }

    /// Joins a room; takes a reserved seat.
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

    /// Shows a room.
    pub async fn room(&self, room: &str) -> Result<Room, CallError> {
        self.room_call(Method::GET_ROOM_INFO, Writer::new().str(1, room)).await
    }

    /// Removes a room. Whether there was one.
    pub async fn delete_room(&self, room: &str) -> Result<bool, CallError> {
        let answer = self.call(Method::DELETE_ROOM, Writer::new().str(1, room)).await?;
        Ok(Reader::new(&answer).map_err(|_| CallError::BadAnswer)?.u64(1) != 0)
    }

    /// Sends a JSON value to all members.
    pub async fn broadcast_room(&self, room: &str, json: &str) -> Result<(), CallError> {
        let body = Writer::new().str(1, room).str(2, json);
        self.call(Method::BROADCAST_ROOM, body).await.map(drop)
    }

    /// Sets one of a room's free-form values, a JSON text.
    pub async fn set_room_data(&self, room: &str, key: &str, json: &str) -> Result<(), CallError> {
        let body = Writer::new().str(1, room).str(2, key).str(3, json);
        self.call(Method::SET_ROOM_DATA, body).await.map(drop)
    }

    /// Makes a team for `role_max` roles, with a password unless it is empty.
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

    /// All members of a team join an open room of a mode, or one is made for them.
    pub async fn team_join_random_room(&self, team: &str, mode: &str) -> Result<Room, CallError> {
        let body = Writer::new().str(1, team).nested(2, Writer::new().str(1, mode));
        self.room_call(Method::TEAM_JOIN_RANDOM_ROOM, body).await
    }

    /// Rooms and teams of this server's roles.
    pub async fn mine(&self) -> Result<Mine, CallError> {
        let (mut mine, mut from) = (Mine { rooms: Vec::new(), teams: Vec::new() }, String::new());
        loop {
            let answer = self.call(Method::LIST_MINE, Writer::new().str(2, &from)).await?;
            let mut read = || {
                let body = Reader::new(&answer)?;
                for room in body.all(1) {
                    mine.rooms.push(Room::read(room)?);
                }
                for team in body.all(2) {
                    mine.teams.push(Team::read(team)?);
                }
                Ok(body.str(5)?.to_owned())
            };
            from = read().map_err(|_: WireError| CallError::BadAnswer)?;
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
