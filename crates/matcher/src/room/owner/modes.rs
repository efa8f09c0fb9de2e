//! Match modes and the indexes of their rooms.

use std::collections::BTreeMap;

use crate::config::{Config, ModeRules, Select, rules_of_name};
use crate::info::{PLACE_KEYS, RoleRef};
use crate::key::RoomKey;
use crate::problem::{Outcome, Problem, invalid};
use crate::schema::v1;
use crate::stats::ModeCounts;
use throng_wire::matcher::Status;

/// Modes by themselves (`NvM`) that may exist at a time; those that are configured come on top.
const UNCONFIGURED_MODES_MAX: usize = 4_096;

/// A mode and its rooms.
#[derive(Clone, Debug)]
pub(crate) struct Mode {
    name: String,
    pub(super) rules: ModeRules,
    pub(super) open: Open,
    /// Rooms that lists show, by age.
    pub(super) visible: BTreeMap<u64, RoomKey>,
    /// Live rooms, lingering ones included.
    pub(super) rooms: u32,
    /// Members, seats and teams of them all; counted again after a restart.
    pub(super) members: u32,
    pub(super) seats: u32,
    pub(super) teams: u32,
}

/// Open rooms by free places.
#[derive(Clone, Debug)]
pub(crate) enum Open {
    /// For a choice by age: at each number of free places the rooms by age.
    ByAge(Vec<BTreeMap<u64, RoomKey>>),
    /// For a choice by chance.
    Any(Vec<Vec<RoomKey>>),
}

impl Mode {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn rules(&self) -> &ModeRules {
        &self.rules
    }

    /// Rooms with free places.
    pub(crate) fn open(&self) -> &Open {
        &self.open
    }

    /// Rooms that lists show, by age.
    pub(crate) fn visible(&self) -> &BTreeMap<u64, RoomKey> {
        &self.visible
    }

    pub(crate) fn counts(&self) -> ModeCounts {
        ModeCounts {
            name: self.name.clone(),
            rooms: self.rooms.into(),
            members: self.members.into(),
            seats: self.seats.into(),
            teams: self.teams.into(),
        }
    }
}

/// Every mode by index and name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Modes {
    list: Vec<Mode>,
    by_name: BTreeMap<String, u16>,
}

impl Modes {
    /// Modes with rooms and how many those are, the fullest first.
    pub(crate) fn busy(&self, most: usize) -> Vec<(String, u32)> {
        let mut busy: Vec<&Mode> = self.list.iter().filter(|mode| mode.rooms > 0).collect();
        busy.sort_by_key(|mode| std::cmp::Reverse(mode.rooms));
        busy.truncate(most);
        busy.into_iter().map(|mode| (mode.name.clone(), mode.rooms)).collect()
    }

    pub(crate) fn new(config: &Config) -> Modes {
        let mut modes = Modes::default();
        modes.configure(config);
        modes
    }

    /// Applies configured rules; rooms that exist keep their members.
    pub(crate) fn configure(&mut self, config: &Config) {
        for (name, rules) in &config.modes {
            self.put(name, rules.clone());
        }
    }

    /// Makes or changes a mode.
    pub(crate) fn put(&mut self, name: &str, rules: ModeRules) -> u16 {
        if let Some(index) = self.by_name.get(name).copied() {
            let mode = &mut self.list[usize::from(index)];
            let same_order = (mode.rules.select == Select::Random) == (rules.select == Select::Random);
            if same_order {
                mode.rules = rules;
            } else {
                // The way of choosing a room decides the form of the index, so it stays until the
                // mode has no room.
                let select = mode.rules.select;
                mode.rules = ModeRules { select, ..rules };
            }
            return index;
        }
        let index = self.list.len() as u16;
        let open =
            if rules.select == Select::Random { Open::Any(Vec::new()) } else { Open::ByAge(Vec::new()) };
        let name = name.to_owned();
        let (visible, rooms, members, seats, teams) = (BTreeMap::new(), 0, 0, 0, 0);
        self.list.push(Mode { name: name.clone(), rules, open, visible, rooms, members, seats, teams });
        self.by_name.insert(name, index);
        index
    }

    pub(super) fn get_mut(&mut self, index: u16) -> Option<&mut Mode> {
        self.list.get_mut(usize::from(index))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Mode> {
        self.list.iter()
    }

    /// The mode of a name, made if the name speaks for itself.
    ///
    /// # Errors
    /// `UNKNOWN_MODE`.
    #[inline]
    pub(crate) fn resolve(&mut self, name: &[u8]) -> Outcome<u16> {
        let name = std::str::from_utf8(name).unwrap_or_default();
        if let Some(index) = self.by_name.get(name) {
            return Ok(*index);
        }
        match rules_of_name(name) {
            Some(rules) if self.list.len() < UNCONFIGURED_MODES_MAX => Ok(self.put(name, rules)),
            _ => Err(Problem::new(Status::UnknownMode, "no such match mode; configure it or name it NvM")),
        }
    }

    /// The mode of a name, if it exists.
    pub(crate) fn find(&self, name: &[u8]) -> Option<&Mode> {
        let index = self.by_name.get(std::str::from_utf8(name).ok()?)?;
        Some(&self.list[usize::from(*index)])
    }
}

impl Modes {
    pub(crate) fn save(&self) -> Vec<v1::Mode<'_>> {
        // Texts, numbers and flags: nothing in them can fail to be JSON.
        let rules = |mode: &Mode| serde_json::to_string(&mode.rules).unwrap_or_default();
        self.list.iter().map(|mode| v1::Mode { name: &mode.name, rules: rules(mode) }).collect()
    }

    /// Modes without rooms.
    pub(crate) fn load(saved: &[v1::Mode<'_>]) -> Result<Modes, &'static str> {
        let mut modes = Modes::default();
        for mode in saved {
            let rules = serde_json::from_str(&mode.rules).map_err(|_| "rules of a mode are not in order")?;
            modes.put(mode.name, rules);
        }
        if modes.list.len() == saved.len() { Ok(modes) } else { Err("a mode is there twice") }
    }
}

impl std::ops::Index<u16> for Modes {
    type Output = Mode;

    #[inline]
    fn index(&self, index: u16) -> &Mode {
        &self.list[usize::from(index)]
    }
}

impl std::ops::IndexMut<u16> for Modes {
    #[inline]
    fn index_mut(&mut self, index: u16) -> &mut Mode {
        &mut self.list[usize::from(index)]
    }
}

impl ModeRules {
    /// Returns whether callers may set a key of `Data`.
    pub(crate) fn check_key(&self, key: &[u8]) -> Outcome {
        if !key.is_empty() && key == self.count_key.as_bytes() {
            return Err(invalid("the mode's count_key is kept by the matcher"));
        }
        if self.world.is_some() && PLACE_KEYS.contains(&key) {
            return Err(invalid("the mode's allocator sets the place of the match"));
        }
        Ok(())
    }

    /// Checks the rules that concern a newcomer alone.
    pub(crate) fn check_limits(&self, role: &RoleRef<'_>) -> Outcome {
        for limit in &self.limits {
            let fits = match role.float(&limit.key) {
                Some(value) => {
                    limit.min.is_none_or(|min| value >= min) && limit.max.is_none_or(|max| value <= max)
                }
                None => !limit.required,
            };
            if !fits {
                let (key, found) = (&limit.key, role.float(&limit.key));
                let message = match (limit.min, limit.max, found) {
                    (_, _, None) => format!("the mode requires `{key}` in FloatData"),
                    (Some(min), Some(max), Some(found)) => {
                        format!("`{key}` is {found}; the mode admits {min} to {max}")
                    }
                    (Some(min), _, Some(found)) => {
                        format!("`{key}` is {found}; the mode admits {min} and more")
                    }
                    (_, max, Some(found)) => {
                        let max = max.unwrap_or(f64::INFINITY);
                        format!("`{key}` is {found}; the mode admits {max} and less")
                    }
                };
                return Err(Problem::new(Status::Refused, message));
            }
        }
        Ok(())
    }
}

impl Open {
    pub(super) fn insert(&mut self, free: usize, order: u64, room: RoomKey) {
        match self {
            Open::ByAge(levels) => {
                if levels.len() <= free {
                    levels.resize(free + 1, BTreeMap::new());
                }
                levels[free].insert(order, room);
            }
            Open::Any(levels) => {
                if levels.len() <= free {
                    levels.resize(free + 1, Vec::new());
                }
                levels[free].push(room);
            }
        }
    }

    /// Puts a room where a snapshot had it among those with as many free places. Rooms that are
    /// chosen by chance come in order of their place.
    pub(super) fn restore(&mut self, open: v1::Open, order: u64, room: RoomKey) -> bool {
        self.insert(open.free as usize, order, room);
        self.last_place(open.free as usize) == open.at as usize
    }

    /// `place` is where [`Open::Any`] has the room; returns the room that took its place.
    pub(super) fn remove(&mut self, free: usize, order: u64, place: usize) -> Option<RoomKey> {
        match self {
            Open::ByAge(levels) => {
                levels[free].remove(&order);
                None
            }
            Open::Any(levels) => {
                levels[free].swap_remove(place);
                levels[free].get(place).copied()
            }
        }
    }

    /// Place where the room that was inserted last lies.
    pub(super) fn last_place(&self, free: usize) -> usize {
        match self {
            Open::ByAge(_) => 0,
            Open::Any(levels) => levels[free].len() - 1,
        }
    }

    /// The first rooms to try for a group of `size`, at most `limit`; `draw(n)` gives a number
    /// below n.
    pub(crate) fn candidates(
        &self,
        select: Select,
        size: usize,
        limit: usize,
        mut draw: impl FnMut(usize) -> usize,
        found: &mut Vec<RoomKey>,
    ) {
        found.clear();
        match self {
            Open::ByAge(levels) if select == Select::Oldest && limit == 1 => {
                let first = levels.iter().skip(size).filter_map(|level| level.first_key_value());
                found.extend(first.min().map(|(_, room)| *room));
            }
            Open::ByAge(levels) if select == Select::Oldest => {
                let mut all: Vec<(u64, RoomKey)> = levels
                    .iter()
                    .skip(size)
                    .flat_map(|level| level.iter().take(limit).map(|(order, room)| (*order, *room)))
                    .collect();
                all.sort_unstable();
                found.extend(all.into_iter().take(limit).map(|(_, room)| room));
            }
            Open::ByAge(levels) => {
                found.extend(levels.iter().skip(size).flat_map(|level| level.values()).take(limit).copied());
            }
            Open::Any(levels) => {
                let count: usize = levels.iter().skip(size).map(Vec::len).sum();
                let at = |mut index: usize| {
                    for level in levels.iter().skip(size) {
                        if index < level.len() {
                            return level[index];
                        }
                        index -= level.len();
                    }
                    unreachable!("the index is below the count of all levels")
                };
                if count <= limit {
                    // All of them, in an order by chance.
                    found.extend((0..count).map(at));
                    for last in (1..found.len()).rev() {
                        found.swap(last, draw(last + 1));
                    }
                } else {
                    while found.len() < limit {
                        let room = at(draw(count));
                        if !found.contains(&room) {
                            found.push(room);
                        }
                    }
                }
            }
        }
    }
}
