//! Export and import: what outlives a move to another matcher, as JSON lines.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use throng_wire::fields;
use throng_wire::matcher::{FieldDef, Message, Type, method_named};

use crate::config::{Config, ModeRules};
use crate::id::Id;
use crate::info::{PLACE_KEYS, ROOM_DATA_FIELD, RoleRef, Text, check_id, check_number, entry};
use crate::json;
use crate::key::RoomKey;
use crate::matcher::Matcher;
use crate::notices::Notices;
use crate::problem::{Outcome, invalid};
use crate::queue::QueueRules;
use crate::rating::{ExportedGame, ExportedPool, ExportedRating};
use crate::room::{Room, RoomBuild, Rooms};
use crate::timers::Timer;
use crate::turn::Turn;
use crate::wall::WallMs;

/// Version of the lines.
const VERSION: u32 = 1;
/// Places of rooms beyond this are refused: every place below one that is taken costs memory.
const PLACE_MAX: u32 = 1 << 24;

/// Place of the last line.
const LAST_RANK: u8 = 8;

/// A line, in the order in which they come.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Line {
    Matcher(Head),
    Queue(ExportedQueue),
    Mode(ExportedMode),
    Pool(ExportedPool),
    Rating(ExportedRating),
    Game(ExportedGame),
    Player(ExportedPlayer),
    Room(ExportedRoom),
    End(ExportEnd),
}

impl Line {
    /// Place in the order of lines.
    fn rank(&self) -> u8 {
        match self {
            Line::Matcher(_) => 0,
            Line::Queue(_) => 1,
            Line::Mode(_) => 2,
            Line::Pool(_) => 3,
            Line::Rating(_) => 4,
            Line::Game(_) => 5,
            Line::Player(_) => 6,
            Line::Room(_) => 7,
            Line::End(_) => LAST_RANK,
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    export: u32,
    release: String,
    time: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportedQueue {
    rules: Box<RawValue>,
    /// The rule set that the rules file had for it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    configured: Option<Box<RawValue>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportedMode {
    name: String,
    rules: ModeRules,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportedPlayer {
    role: String,
    server: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportedRoom {
    info: Box<RawValue>,
    forced_full: bool,
    sealed: bool,
    /// Server that gave its match a world; empty for none.
    #[serde(default)]
    host: String,
}

/// The last line, without which an export is known to be cut off.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportEnd {
    /// Number of lines before it.
    lines: usize,
}

/// Why lines cannot be imported.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct ImportError {
    /// Number of the line, from 1.
    pub line: usize,
    /// The problem.
    pub why: String,
}

impl Matcher {
    /// Appends queues, modes, ratings, and rooms with their players, a JSON object on each line.
    /// Left out are rooms that are ending, and those that only reserved seats keep.
    pub fn export(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let release = env!("CARGO_PKG_VERSION").to_owned();
        push(out, &Line::Matcher(Head { export: VERSION, release, time: self.now }));
        for (_, queue) in self.queues.iter() {
            // The texts were read as JSON once.
            if let Ok(rules) = one_line(&queue.source) {
                let configured = queue.configured().and_then(|rules| one_line(rules).ok());
                push(out, &Line::Queue(ExportedQueue { rules, configured }));
            }
        }
        let mut modes: Vec<_> = self.rooms.modes().iter().collect();
        modes.sort_unstable_by(|a, b| a.name().cmp(b.name()));
        for mode in modes {
            push(
                out,
                &Line::Mode(ExportedMode { name: mode.name().to_owned(), rules: mode.rules().clone() }),
            );
        }
        self.ratings.pools().for_each(|pool| push(out, &Line::Pool(pool)));
        self.ratings.exported().for_each(|rating| push(out, &Line::Rating(rating)));
        self.ratings.games().for_each(|game| push(out, &Line::Game(game)));
        let mut rooms: Vec<(u64, RoomKey)> = self
            .rooms
            .iter()
            .filter(|(_, room)| !room.deleting())
            .filter(|(key, room)| !room.members().is_empty() || self.rooms.rules_of(*key).keep_empty)
            .map(|(index, room)| (room.order(), index))
            .collect();
        rooms.sort_unstable();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut players = BTreeMap::new();
        for (_, room) in &rooms {
            for member in self.rooms[*room].members() {
                let role = text(self.people[member.player].id());
                players.insert(role, text(self.people.server_of(member.player)));
            }
        }
        for (role, server) in players {
            push(out, &Line::Player(ExportedPlayer { role, server }));
        }
        for (_, index) in rooms {
            let (mut body, mut info) = (Vec::new(), String::new());
            self.write_room(index, None, &mut body);
            json::decode(room_info(), &body, &mut info);
            let (forced_full, sealed) = (self.rooms[index].forced_full(), self.rooms[index].sealed());
            if let Ok(info) = one_line(&info) {
                let host = text(self.rooms[index].host());
                push(out, &Line::Room(ExportedRoom { info, forced_full, sealed, host }));
            }
        }
        let lines = out[start..].iter().filter(|byte| **byte == b'\n').count();
        push(out, &Line::End(ExportEnd { lines }));
    }

    /// A matcher of exported lines.
    ///
    /// # Errors
    /// The first line that is wrong.
    pub fn import(lines: &str, secret: [u8; 32]) -> Result<Matcher, ImportError> {
        let mut import = Import::new(secret);
        let mut count = 0;
        for (line, text) in (1..).zip(lines.lines()) {
            import.line(text).map_err(|why| ImportError { line, why })?;
            count = line;
        }
        import.finish().map_err(|why| ImportError { line: count, why })
    }
}

/// An import under way.
struct Import {
    matcher: Matcher,
    /// Rank of the last line; `None` before the first.
    rank: Option<u8>,
    /// Lines that were read.
    lines: usize,
    /// Servers by role, and whether a room has named the role.
    players: BTreeMap<String, (String, bool)>,
    rooms: Vec<(u32, Room)>,
    /// Rooms that lines have made.
    made: u64,
    /// Places and names that were taken.
    places: BTreeSet<u32>,
    modes: BTreeSet<String>,
}

impl Import {
    fn new(secret: [u8; 32]) -> Import {
        let matcher = Matcher::new(Config::default(), secret, WallMs(0));
        let (players, rooms) = (BTreeMap::new(), Vec::new());
        Import {
            matcher,
            rank: None,
            lines: 0,
            players,
            rooms,
            made: 0,
            places: BTreeSet::new(),
            modes: BTreeSet::new(),
        }
    }

    fn line(&mut self, text: &str) -> Result<(), String> {
        let line: Line = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let rank = line.rank();
        if self.rank.is_none() != (rank == 0) {
            return Err("the first line, and only that, is {\"matcher\": ...}".to_owned());
        }
        if self.rank.is_some_and(|last| last > rank || last == LAST_RANK) {
            let order = "queue, mode, pool, rating, game, player, room, end";
            return Err(format!("it comes too late: the order is {order}"));
        }
        self.rank = Some(rank);
        self.lines += 1;
        match line {
            Line::End(end) if end.lines + 1 == self.lines => Ok(()),
            Line::End(end) => Err(format!("{} lines are before it, of {}", self.lines - 1, end.lines)),
            Line::Matcher(head) if head.export == VERSION => {
                check_number("time", head.time)?;
                (self.matcher.now, self.matcher.clock) = (head.time, head.time);
                Ok(())
            }
            Line::Matcher(head) => Err(format!(
                "it is of version {} of release {}; this release reads version {VERSION}",
                head.export, head.release
            )),
            Line::Queue(queue) => self.queue(&queue),
            Line::Mode(mode) => {
                if !self.modes.insert(mode.name.clone()) {
                    return Err(format!("mode `{}` is there twice", mode.name));
                }
                mode.rules.check().map_err(|problem| format!("rules.{problem}"))?;
                self.matcher.rooms.modes_mut().put(&mode.name, mode.rules);
                Ok(())
            }
            Line::Pool(pool) => {
                let ends = self.matcher.ratings.import_pool(&pool, self.matcher.now)?;
                if ends > 0 {
                    let name = Text::from_slice(pool.name.as_bytes());
                    self.matcher.timers.set(ends, Timer::Period(name));
                }
                Ok(())
            }
            Line::Rating(rating) => self.matcher.ratings.import(&rating),
            Line::Game(game) => self.matcher.ratings.import_game(&game),
            Line::Player(player) => self.player(player),
            Line::Room(room) => self.room(&room).map_err(|problem| problem.message.to_string()),
        }
    }

    fn queue(&mut self, queue: &ExportedQueue) -> Result<(), String> {
        let rules = QueueRules::parse(queue.rules.get().as_bytes()).map_err(|problem| problem.to_string())?;
        if self.matcher.queues.find(rules.name().as_bytes()).is_some() {
            return Err(format!("queue `{}` is there twice", rules.name()));
        }
        let (mut no_answer, mut notices) = (Vec::new(), Notices::default());
        let turn = &mut Turn::of_matcher(self.matcher.now, &mut no_answer, &mut notices);
        // The rules file that it may need is that of the next start.
        let compiled = rules.compile().map_err(|problem| problem.to_string())?;
        let key = self.matcher.set_queue(turn, &rules, compiled);
        if let Some(configured) = &queue.configured {
            self.matcher.queues.note_configured(key, configured.get());
        }
        Ok(())
    }

    fn player(&mut self, player: ExportedPlayer) -> Result<(), String> {
        let checked = check_id(player.role.as_bytes(), "RoleID");
        checked.map_err(|problem| problem.message.to_string())?;
        crate::matcher::check_server_name(&player.server)?;
        let role = player.role.clone();
        match self.players.insert(player.role, (player.server, false)) {
            None => Ok(()),
            Some(_) => Err(format!("role `{role}` is there twice")),
        }
    }

    fn room(&mut self, room: &ExportedRoom) -> Outcome {
        let mut body = Vec::new();
        json::encode(room_info(), room.info.get().as_bytes(), &mut body).map_err(invalid)?;
        let (mut id, mut mode, mut build) = (None, None, RoomBuild::default());
        let (mut roles, mut data) = (Vec::new(), Vec::new());
        for field in fields(&body) {
            let field = field?;
            match field.number {
                1 => id = Id::parse(field.value),
                2 => build.created = field.scalar,
                3 => mode = Some(self.matcher.rooms.modes_mut().resolve(field.value)?),
                4 => roles.push(RoleRef::parse(field.value)?),
                5 => build.hidden = field.scalar != 0,
                8 => data.push(entry(&field)?),
                9 => build.rev = field.scalar,
                10 => build.sides.extend_from_slice(field.raw),
                _ => {}
            }
        }
        let id = id.ok_or_else(|| invalid("RoomID is no id of a room"))?;
        let mode = mode.ok_or_else(|| invalid("MatchMode is missing"))?;
        if id.index >= PLACE_MAX || !self.places.insert(id.index) {
            return Err(invalid("RoomID is that of another room, or its place is too large"));
        }
        check_number("CreateTime", build.created).map_err(invalid)?;
        check_number("Rev", build.rev).map_err(invalid)?;
        let rules = self.matcher.rooms.mode(mode).rules();
        // The matcher counts again. A mode whose capacity was lowered may have rooms beyond it.
        let is_kept = |key: &[u8]| PLACE_KEYS.contains(&key) || rules.check_key(key).is_ok();
        for (key, value) in data.into_iter().filter(|(key, _)| is_kept(key)) {
            build.data.set(ROOM_DATA_FIELD, key, value.map_or(&[][..], |value| value.value))?;
        }
        if roles.is_empty() && !rules.keep_empty {
            return Err(invalid("it has no members, and its mode keeps no empty rooms"));
        }
        crate::matcher::check_server_name(&room.host).map_err(invalid)?;
        build.host.clone_from(&room.host);
        let exclusive = rules.exclusive;
        for role in &roles {
            let name = String::from_utf8_lossy(role.id).into_owned();
            let Some((server, named)) = self.players.get_mut(&name) else {
                return Err(invalid(format!("role `{name}` has no line {{\"player\": ...}}")));
            };
            *named = true;
            let people = &mut self.matcher.people;
            let server = people.server_entry(server.as_bytes());
            let player = people.player_entry(role.id, server);
            let entry = &people[player];
            if entry.rooms().contains(&RoomKey::new(id.index)) || exclusive && entry.room().is_some() {
                return Err(invalid(format!("role `{name}` is in another room, or there twice")));
            }
            people.enter_room(player, RoomKey::new(id.index), exclusive);
            let of = |number| {
                let own = fields(role.body()).map_while(Result::ok).find(|field| field.number == number);
                own.map_or(&[][..], |field| field.value)
            };
            build.members.push((player, role.info(of(2), of(3))));
        }
        self.made += 1;
        let capacity = self.matcher.rooms.mode(mode).rules().capacity as usize;
        let full = room.forced_full || room.sealed || build.members.len() >= capacity;
        (build.forced_full, build.sealed, build.full) = (room.forced_full, room.sealed, full);
        self.rooms.push((id.index, build.room(id, self.made, mode)));
        Ok(())
    }

    fn finish(mut self) -> Result<Matcher, String> {
        if self.rank.is_none() {
            return Err("there are no lines".to_owned());
        }
        if self.rank != Some(LAST_RANK) {
            return Err("the last line, {\"end\": ...}, is missing: the export was cut off".to_owned());
        }
        if let Some((role, _)) = self.players.iter().find(|(_, (_, named))| !named) {
            return Err(format!("role `{role}` has a line {{\"player\": ...}} and is in no room"));
        }
        let end = self.places.last().map_or(0, |last| last + 1);
        let free = (0..end).rev().filter(|place| !self.places.contains(place)).collect();
        let modes = std::mem::take(self.matcher.rooms.modes_mut());
        self.matcher.rooms = Rooms::build(self.rooms, free, modes, self.made)?;
        self.matcher.check_invariants()?;
        Ok(self.matcher)
    }
}

fn push(out: &mut Vec<u8>, line: &Line) {
    // Texts, numbers, flags and JSON: nothing in it can fail to be JSON.
    out.extend_from_slice(&serde_json::to_vec(line).unwrap_or_default());
    out.push(b'\n');
}

/// JSON without line feeds.
fn one_line(text: &str) -> Result<Box<RawValue>, serde_json::Error> {
    if text.contains('\n') {
        // A line feed in JSON is white space, as strings escape theirs.
        return RawValue::from_string(text.replace(['\n', '\r'], " "));
    }
    RawValue::from_string(text.to_owned())
}

/// The catalogue's message of a room.
fn room_info() -> &'static Message {
    let response = method_named("GetRoomInfo").map(|method| method.response);
    let field: Option<&FieldDef> = response.and_then(|response| response.named("RoomInfo"));
    match field.map(|field| &field.ty) {
        Some(Type::Msg(message)) => message,
        _ => unreachable!("the answer of GetRoomInfo has a room"),
    }
}
