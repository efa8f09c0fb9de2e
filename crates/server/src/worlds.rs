//! The worlds of the process by name: opening, closing, and the worker that each is on.
//!
//! The main world has a shard on every worker, and is there from the start to the end. Every other
//! world has one shard on one worker, and costs nothing on other threads, unless its class has
//! `shards = "all"`.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use throng_gateway::data::Schemas;
use throng_gateway::{CloseReason, Shard, ShardIndex, Verdict, address_group};
use throng_stdx::Instant;
use tokio::sync::watch;

use crate::config::{ClassKeys, nearest};
use crate::fence::Fence;
use crate::world::{HostParts, Judgement, World};

/// Characters of a world's name.
const NAME_LEN_MAX: usize = 32;
/// Characters of a class's name, which leaves room for the rest of the names of its worlds.
const CLASS_NAME_LEN_MAX: usize = 18;
/// Time for which the worlds that an address opens are counted.
const CREATION_WINDOW: Duration = Duration::from_secs(60);

/// Checks the name of a world.
///
/// # Errors
/// A phrase with what a name may be.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    check_name_of(name, NAME_LEN_MAX)
}

/// Checks the name of a class.
///
/// # Errors
/// As [`check_name`].
pub(crate) fn check_class_name(name: &str) -> Result<(), String> {
    check_name_of(name, CLASS_NAME_LEN_MAX)
}

fn check_name_of(name: &str, len_max: usize) -> Result<(), String> {
    let lower = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let bytes = name.as_bytes();
    let fits = bytes.first().is_some_and(|first| lower(*first))
        && bytes.len() <= len_max
        && bytes.iter().all(|c| lower(*c) || *c == b'-');
    match fits {
        true => Ok(()),
        false => Err(format!(
            "`{name}` is not a name: 1 to {len_max} lower-case letters, digits and `-`, no `-` first"
        )),
    }
}

/// Name and class of an entry of `gateway.worlds`.
pub(crate) fn name_and_class(entry: &str) -> (&str, Option<&str>) {
    entry.split_once(':').map_or((entry, None), |(name, class)| (name, Some(class)))
}

/// A world that is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OpenWorld {
    pub(crate) name: Arc<str>,
    pub(crate) world: World,
    /// The worker of its first shard.
    pub(crate) worker: u16,
    /// The workers of its shards, the first one first.
    pub(crate) workers: Arc<[u16]>,
    pub(crate) class: Option<Arc<str>>,
    /// It is the main world or in `gateway.worlds`: it stays open without connections.
    pub(crate) lasting: bool,
    /// It is for one match.
    pub(crate) is_match: bool,
}

/// A connection's request to enter a world, by name alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorldRequest<'a> {
    pub(crate) world: &'a str,
    pub(crate) addr: IpAddr,
    pub(crate) now: Instant,
}

/// Live connections in all worlds, which `gateway.limits.connections_max` bounds.
#[derive(Debug)]
pub(crate) struct Connections {
    live: AtomicUsize,
    max: AtomicUsize,
}

impl Connections {
    /// Counts one that is about to be accepted; `false` if there are as many as may be.
    pub(crate) fn reserve(&self) -> bool {
        let max = self.max.load(Ordering::Relaxed);
        let more = |live| (live < max).then_some(live + 1);
        self.live.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Counts one on its way from one world to another, also at the limit.
    pub(crate) fn add(&self) {
        self.live.fetch_add(1, Ordering::Relaxed);
    }

    /// A world that counted `before` connections has `now`.
    pub(crate) fn replace(&self, before: usize, now: usize) {
        self.live.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }

    pub(crate) fn live(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }
}

/// The worlds of a process.
pub(crate) struct Worlds {
    schemas: Arc<Schemas>,
    workers: usize,
    seed: u64,
    unix_start_ns: u64,
    main: OpenWorld,
    pub(crate) connections: Connections,
    table: Mutex<Table>,
}

struct Table {
    /// Configuration of the next world without a class.
    core: Arc<throng_gateway::Config>,
    classes: BTreeMap<Arc<str>, Class>,
    open: BTreeMap<Arc<str>, Entry>,
    /// Worlds of `gateway.worlds` with their classes, open or not.
    configured: BTreeMap<Arc<str>, Option<Arc<str>>>,
    /// Workers whose listeners lead to a world, open or not.
    bound: BTreeMap<Arc<str>, u16>,
    next: u32,
    /// Begin of a window, and worlds that addresses have opened in it.
    creations: (Instant, HashMap<IpAddr, u32>),
}

/// A class: how to make its worlds.
struct Class {
    keys: ClassKeys,
    core: Arc<throng_gateway::Config>,
}

struct Entry {
    world: OpenWorld,
    /// Connections that have been sent there from the main world.
    entrants: u64,
    /// Set with the entry's end, for those who wait for the end of the world.
    end: Option<watch::Sender<bool>>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(end) = &self.end {
            end.send_replace(true);
        }
    }
}

/// Classes with the configuration of their worlds.
pub(crate) type Classes = Vec<(ClassKeys, throng_gateway::Config)>;

/// A world that opens.
struct NewWorld<'a> {
    name: &'a str,
    class: Option<Arc<str>>,
    /// It stays open without connections.
    lasting: bool,
    fence: Option<Arc<Fence>>,
    /// It is for one match: a login closes other connections of its player.
    is_match: bool,
}

impl Worlds {
    /// Only the main world, called `main`.
    pub(crate) fn new(
        main: &str,
        core: &throng_gateway::Config,
        classes: Classes,
        schemas: Arc<Schemas>,
        workers: usize,
        seed: u64,
        unix_start_ns: u64,
    ) -> Worlds {
        let name: Arc<str> = main.into();
        let main = OpenWorld {
            name: Arc::clone(&name),
            world: World::MAIN,
            worker: 0,
            workers: (0..workers as u16).collect(),
            class: None,
            lasting: true,
            is_match: false,
        };
        let table = Table {
            core: Arc::new(of_named_world(core)),
            classes: by_name(classes),
            open: BTreeMap::from([(name, Entry { world: main.clone(), entrants: 0, end: None })]),
            configured: BTreeMap::new(),
            bound: BTreeMap::new(),
            next: 1,
            creations: (Instant::ZERO, HashMap::new()),
        };
        let max = AtomicUsize::new(core.limits.connections);
        let connections = Connections { live: AtomicUsize::new(0), max };
        Worlds { schemas, workers, seed, unix_start_ns, main, connections, table: Mutex::new(table) }
    }

    /// Opens a world of `gateway.worlds`, as [`open`](Self::open) does.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(crate) fn open_configured(
        &self,
        name: &str,
        class: Option<&str>,
        give: impl FnMut(u16, HostParts),
    ) -> Result<OpenWorld, String> {
        self.lock().configured.insert(name.into(), class.map(Arc::from));
        self.open(name, class, give)
    }

    /// Opens a world: `give` hands its shards to the workers that are named. No letter for it comes
    /// there first. One of `gateway.worlds` opens with its own class if none is named, and stays
    /// open without connections.
    ///
    /// # Errors
    /// It is open, its name or class is none, or its class has as many worlds as it may.
    pub(crate) fn open(
        &self,
        name: &str,
        class: Option<&str>,
        give: impl FnMut(u16, HostParts),
    ) -> Result<OpenWorld, String> {
        check_name(name)?;
        let mut table = self.lock();
        if table.open.contains_key(name) {
            return Err(format!("the world `{name}` is already open"));
        }
        let configured = table.configured.get(name);
        let lasting = configured.is_some();
        let own = configured.cloned().flatten();
        let class = match class.or(own.as_deref()) {
            Some(wanted) => Some(table.class(wanted)?),
            None => None,
        };
        class.as_deref().map_or(Ok(()), |class| table.check_room(class))?;
        Ok(self.make(&mut table, NewWorld { name, class, lasting, fence: None, is_match: false }, give))
    }

    /// Opens a world for one match.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(crate) fn open_match(
        &self,
        name: &str,
        class: &str,
        give: impl FnMut(u16, HostParts),
    ) -> Result<OpenWorld, String> {
        check_name(name)?;
        let mut table = self.lock();
        let class = table.class(class)?;
        table.check_room(&class)?;
        let class = Some(class);
        Ok(self.make(&mut table, NewWorld { name, class, lasting: false, fence: None, is_match: true }, give))
    }

    /// Opens a world of a cluster, which is served while its fence is open. The cluster counts the
    /// worlds of a class and closes them.
    ///
    /// # Errors
    /// It is open, or its name or class is none.
    pub(crate) fn open_behind(
        &self,
        fence: Arc<Fence>,
        (name, class): (&str, Option<&str>),
        (lasting, is_match): (bool, bool),
        give: impl FnMut(u16, HostParts),
    ) -> Result<OpenWorld, String> {
        check_name(name)?;
        let mut table = self.lock();
        if table.open.contains_key(name) {
            return Err(format!("the world `{name}` is already open"));
        }
        let class = class.map(|class| table.class(class)).transpose()?;
        let new = NewWorld { name, class, lasting, fence: Some(fence), is_match };
        Ok(self.make(&mut table, new, give))
    }

    /// The keys of a class.
    ///
    /// # Errors
    /// It does not exist.
    pub(crate) fn class(&self, name: &str) -> Result<ClassKeys, String> {
        let table = self.lock();
        table.class(name).map(|class| table.classes[&class].keys.clone())
    }

    /// The class of a world that a connection may open by asking for it. `count` returns the number
    /// of open worlds of a class.
    ///
    /// # Errors
    /// It may open none of this name, or none now.
    pub(crate) fn class_to_create(
        &self,
        asked: WorldRequest<'_>,
        count: impl FnOnce(&str) -> usize,
    ) -> Result<Arc<str>, CloseReason> {
        self.lock().create(asked, |_, class| count(class))
    }

    fn make(&self, table: &mut Table, new: NewWorld<'_>, mut give: impl FnMut(u16, HostParts)) -> OpenWorld {
        let NewWorld { name, class, lasting, fence, is_match } = new;
        let worker = match table.bound.get(name) {
            Some(worker) => *worker,
            None => table.emptiest(self.workers),
        };
        let (name, world): (Arc<str>, _) = (name.into(), World(table.next));
        table.next += 1;
        let of_class = class.as_deref().and_then(|class| table.classes.get(class));
        let core = of_class.map_or(&table.core, |class| &class.core);
        let idle = of_class.map(|class| Duration::from_secs(class.keys.world_idle_s));
        // The streams of ids and tokens of two worlds have nothing in common.
        let seed = self.seed ^ u64::from(world.0).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        let core =
            throng_gateway::Config { world: Arc::clone(&name), supersedes: is_match, ..(**core).clone() };
        let core = Arc::new(core);
        let is_wide = of_class.is_some_and(|class| class.keys.shards == "all");
        let (all, count) = (self.workers as u16, if is_wide { self.workers as u16 } else { 1 });
        let workers: Arc<[u16]> = (0..count).map(|index| (worker + index) % all).collect();
        let idle = idle.filter(|idle| !lasting && !idle.is_zero() && fence.is_none());
        // Only connections make shards write to each other, and they come to the first one: the
        // others are there before it.
        for (index, on) in workers.iter().enumerate().rev() {
            let seed = seed.wrapping_add(index as u64);
            let (core, schemas) = (Arc::clone(&core), Arc::clone(&self.schemas));
            let shard = ShardIndex(index as u16);
            let parts = HostParts {
                world,
                name: Arc::clone(&name),
                shard: Shard::new(core, schemas, shard, count, seed, self.unix_start_ns),
                seed,
                workers: Arc::clone(&workers),
                is_first: index == 0,
                has_class: class.is_some(),
                idle: idle.filter(|_| index == 0),
                fence: fence.clone(),
            };
            give(*on, parts);
        }
        let open = OpenWorld { name: Arc::clone(&name), world, worker, workers, class, lasting, is_match };
        table.open.insert(name, Entry { world: open.clone(), entrants: 0, end: None });
        open
    }

    /// Closes a world, if one of the name is open and not the main one: `tell` tells each of its
    /// workers.
    pub(crate) fn close(&self, name: &str, mut tell: impl FnMut(u16, World)) -> bool {
        let mut table = self.lock();
        if table.open.get(name).is_none_or(|entry| entry.world.world == World::MAIN) {
            return false;
        }
        if let Some(entry) = table.open.remove(name) {
            entry.world.workers.iter().for_each(|worker| tell(*worker, entry.world.world));
        }
        true
    }

    /// The end of a world: true then, and already if it is not open.
    pub(crate) fn end_of(&self, name: &str) -> watch::Receiver<bool> {
        match self.lock().open.get_mut(name) {
            Some(entry) => entry.end.get_or_insert_with(|| watch::Sender::new(false)).subscribe(),
            None => watch::Sender::new(true).subscribe(),
        }
    }

    /// Takes a world out of the directory in which its worker has seen no connection for its idle
    /// time. `seen` are the entrants up to the latest try: with others since, some may be on their
    /// way there, and the world stays.
    pub(crate) fn close_idle(&self, name: &str, world: World, seen: &mut u64) -> bool {
        let mut table = self.lock();
        let Some(entry) = table.open.get(name).filter(|entry| entry.world.world == world) else {
            return false;
        };
        let is_calm = std::mem::replace(seen, entry.entrants) == entry.entrants;
        if is_calm {
            table.open.remove(name);
        }
        is_calm
    }

    /// A world that listeners lead to stays on the worker that has them, open or not: this one.
    pub(crate) fn bind(&self, name: &str) -> u16 {
        let mut table = self.lock();
        let bound = table.bound.get(name).copied();
        let worker = bound.or_else(|| table.open.get(name).map(|open| open.world.worker));
        let worker = worker.unwrap_or_else(|| table.emptiest(self.workers));
        table.bound.insert(name.into(), worker);
        worker
    }

    pub(crate) fn main(&self) -> OpenWorld {
        self.main.clone()
    }

    pub(crate) fn find(&self, name: &str) -> Option<OpenWorld> {
        self.lock().open.get(name).map(|entry| entry.world.clone())
    }

    pub(crate) fn by_number(&self, world: World) -> Option<OpenWorld> {
        self.lock().by_number(world).map(|entry| entry.world.clone())
    }

    /// The verdict about a login of a connection in the world `here`. A world that its credential
    /// names comes before one that it asks for. Only connections of the main world move to others:
    /// into those, a listener leads. `give` is for a world that opens for it.
    pub(crate) fn settle(
        &self,
        here: World,
        judged: Judgement,
        asked: Option<WorldRequest<'_>>,
        give: impl FnMut(u16, HostParts),
    ) -> Verdict {
        let Judgement { verdict: Verdict::Success, world } = judged else { return judged.verdict };
        let mismatch = Verdict::Refused(CloseReason::WorldMismatch);
        let Some(name) = world.as_deref().or(asked.map(|asked| asked.world)) else {
            return Verdict::Success;
        };
        if asked.is_some_and(|asked| asked.world != name) {
            return mismatch;
        }
        let mut table = self.lock();
        let found = table.open.get(name);
        if found.is_some_and(|entry| entry.world.world == here) {
            return Verdict::Success;
        }
        if here != World::MAIN {
            return mismatch;
        }
        // Without a credential, one that exists and may not be entered looks like one that does
        // not.
        let by_request = asked.filter(|_| world.is_none());
        let may_enter = found.is_some_and(|entry| by_request.is_none() || table.admits_all(&entry.world));
        if may_enter && let Some(entry) = table.open.get_mut(name) {
            entry.entrants += 1;
            return Verdict::Elsewhere { world: entry.world.world.0 };
        }
        let Some(asked) = by_request.filter(|_| !table.open.contains_key(name)) else {
            return Verdict::Refused(CloseReason::UnknownWorld);
        };
        let class = match table.create(asked, Table::count) {
            Ok(class) => class,
            Err(reason) => return Verdict::Refused(reason),
        };
        let new = NewWorld { name, class: Some(class), lasting: false, fence: None, is_match: false };
        let open = self.make(&mut table, new, give);
        if let Some(entry) = table.open.get_mut(name) {
            entry.entrants += 1;
        }
        tracing::info!(world = name, worker = open.worker, addr = %asked.addr, "a world has opened on request");
        Verdict::Elsewhere { world: open.world.0 }
    }

    /// The same for the world whose name a resume token carries; the main world's is empty.
    pub(crate) fn settle_token(&self, here: World, name: &str, asked: Option<&str>) -> Verdict {
        let mut table = self.lock();
        let entry = if name.is_empty() { table.by_number(World::MAIN) } else { table.open.get(name) };
        let Some(entry) = entry else { return Verdict::NoWorld };
        let world = entry.world.world;
        let elsewhere = asked.is_some_and(|asked| asked != &*entry.world.name);
        if elsewhere || (here != World::MAIN && here != world) {
            return Verdict::Refused(CloseReason::WorldMismatch);
        }
        if here == world {
            return Verdict::Success;
        }
        let name = Arc::clone(&entry.world.name);
        if let Some(entry) = table.open.get_mut(&name) {
            entry.entrants += 1;
        }
        Verdict::Elsewhere { world: world.0 }
    }

    /// Every world, in the order of their numbers.
    pub(crate) fn list(&self) -> Vec<OpenWorld> {
        let mut list: Vec<_> = self.lock().open.values().map(|entry| entry.world.clone()).collect();
        list.sort_unstable_by_key(|open| open.world);
        list
    }

    /// Names of the classes.
    pub(crate) fn classes(&self) -> Vec<Arc<str>> {
        self.lock().classes.keys().cloned().collect()
    }

    /// Worlds that open from now on get this configuration.
    pub(crate) fn reconfigure(&self, core: &throng_gateway::Config, classes: Classes) {
        self.connections.max.store(core.limits.connections, Ordering::Relaxed);
        let mut table = self.lock();
        table.core = Arc::new(of_named_world(core));
        table.classes = by_name(classes);
    }

    /// Addresses that have opened worlds and are remembered for it.
    #[cfg(test)]
    pub(crate) fn remembered(&self) -> usize {
        self.lock().creations.1.len()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        #[cfg(test)]
        crate::counting::look_up();
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// The worker with the fewest worlds, of equal ones the last: the first one has the listeners
    /// and what the main world has only one of.
    fn emptiest(&self, workers: usize) -> u16 {
        let mut counts = vec![0_usize; workers];
        for entry in self.open.values().filter(|entry| entry.world.world != World::MAIN) {
            counts[usize::from(entry.world.worker)] += 1;
        }
        let emptiest = counts.iter().enumerate().rev().min_by_key(|(_, count)| **count);
        emptiest.map_or(0, |(worker, _)| worker as u16)
    }

    fn by_number(&self, world: World) -> Option<&Entry> {
        self.open.values().find(|entry| entry.world.world == world)
    }

    fn class(&self, wanted: &str) -> Result<Arc<str>, String> {
        if let Some((name, _)) = self.classes.get_key_value(wanted) {
            return Ok(Arc::clone(name));
        }
        let near = nearest(wanted, self.classes.keys().map(|name| &**name));
        let hint = near.map_or_else(
            || "classes are in [[gateway.classes]]".to_owned(),
            |near| format!("did you mean `{near}`?"),
        );
        Err(format!("there is no class `{wanted}`; {hint}"))
    }

    /// True if connections without a credential for a world may enter it.
    fn admits_all(&self, world: &OpenWorld) -> bool {
        let class = world.class.as_deref().and_then(|class| self.classes.get(class));
        class.is_some_and(|class| class.keys.open)
    }

    /// The class that a connection opens a world of by asking for this name: the one with the
    /// longest name before a `-` in it, if that class allows it.
    fn class_to_create(&self, name: &str) -> Option<Arc<str>> {
        check_name(name).ok()?;
        let begins = |class: &&Arc<str>| {
            let rest = name.strip_prefix(&***class).and_then(|rest| rest.strip_prefix('-'));
            rest.is_some_and(|rest| !rest.is_empty())
        };
        let class = self.classes.keys().filter(begins).max_by_key(|class| class.len())?;
        let keys = &self.classes[class].keys;
        (keys.open && keys.create).then(|| Arc::clone(class))
    }

    /// The class of a world that opens on request, whose creation is counted.
    fn create(
        &mut self,
        asked: WorldRequest<'_>,
        count: impl FnOnce(&Table, &str) -> usize,
    ) -> Result<Arc<str>, CloseReason> {
        let class = self.class_to_create(asked.world).ok_or(CloseReason::UnknownWorld)?;
        let is_full = count(self, &class) >= self.classes[&class].keys.worlds_max;
        match !is_full && self.may_create(&class, asked) {
            true => Ok(class),
            false => Err(CloseReason::WorldsMax),
        }
    }

    /// Number of open worlds of a class.
    fn count(&self, class: &str) -> usize {
        self.open.values().filter(|entry| entry.world.class.as_deref() == Some(class)).count()
    }

    fn check_room(&self, class: &str) -> Result<(), String> {
        let max = self.classes.get(class).map_or(0, |class| class.keys.worlds_max);
        match self.count(class) < max {
            true => Ok(()),
            false => Err(format!(
                "{max} worlds of the class `{class}` are open, which is its limit (`worlds_max`); close one"
            )),
        }
    }

    /// Counts a world that an address is about to open, unless it has opened as many as it may.
    fn may_create(&mut self, class: &str, asked: WorldRequest<'_>) -> bool {
        let Some(class) = self.classes.get(class) else { return false };
        let unlimited = &class.core.limits.unlimited_addresses;
        if asked.addr.is_loopback() || unlimited.iter().any(|range| range.contains(asked.addr)) {
            return true;
        }
        let (began, counts) = &mut self.creations;
        if asked.now.since(*began) >= CREATION_WINDOW {
            *began = asked.now;
            counts.clear();
        }
        let count = counts.entry(address_group(asked.addr)).or_default();
        let may = *count < class.keys.creations_per_address_max;
        *count += u32::from(may);
        may
    }
}

fn by_name(classes: Classes) -> BTreeMap<Arc<str>, Class> {
    let class = |(keys, core): (ClassKeys, throng_gateway::Config)| {
        (Arc::from(keys.name.as_str()), Class { keys, core: Arc::new(of_named_world(&core)) })
    };
    classes.into_iter().map(class).collect()
}

/// The main world's configuration without what there is one of in a process.
fn of_named_world(core: &throng_gateway::Config) -> throng_gateway::Config {
    throng_gateway::Config { link: None, ..core.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(name: &str, change: impl FnOnce(&mut ClassKeys)) -> (ClassKeys, throng_gateway::Config) {
        let text = format!("[[gateway.classes]]\nname = '{name}'\n");
        let settings = crate::config::Loader::new().text("test", text).load().unwrap().settings;
        let mut keys = settings.classes[0].keys.clone();
        change(&mut keys);
        (keys, throng_gateway::Config::default())
    }

    fn worlds(workers: usize, classes: Classes) -> Worlds {
        let schemas = Arc::new(Schemas::default());
        Worlds::new("main", &throng_gateway::Config::default(), classes, schemas, workers, 7, 0)
    }

    fn refused(reason: CloseReason) -> Verdict {
        Verdict::Refused(reason)
    }

    #[test]
    fn names_of_worlds() {
        for name in ["a", "main", "duel-00", "0", &"x".repeat(32)] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        for name in ["", "-a", "A", "a_b", "a/b", "ä", &"x".repeat(33)] {
            assert!(check_name(name).is_err(), "{name}");
        }
        assert_eq!((name_and_class("a"), name_and_class("a:b")), (("a", None), ("a", Some("b"))));
    }

    #[test]
    fn worlds_spread_over_workers_and_names_come_back_under_other_numbers() {
        let worlds = worlds(3, Vec::new());
        let open = |name: &str| {
            let mut given = None;
            let open = worlds.open(name, None, |worker, parts| given = Some((worker, parts.world)))?;
            assert_eq!(given, Some((open.worker, open.world)));
            Ok::<_, String>((open.world.0, open.worker))
        };
        assert_eq!(
            [open("a"), open("b"), open("c"), open("d")],
            [Ok((1, 2)), Ok((2, 1)), Ok((3, 0)), Ok((4, 2))]
        );
        assert!(open("a").is_err() && open("main").is_err() && open("no name").is_err());
        let mut told = Vec::new();
        let mut close = |name: &str| worlds.close(name, |worker, world| told.push((worker, world)));
        assert_eq!(["b", "b", "main"].map(&mut close), [true, false, false]);
        assert_eq!(told, [(1, World(2))]);
        assert!(worlds.find("b").is_none() && worlds.find("main").is_some());
        assert_eq!((worlds.bind("b"), worlds.bind("c")), (1, 0), "the emptiest one, and its own");
        assert_eq!(worlds.bind("b"), 1, "as before");
        assert_eq!(open("b"), Ok((5, 1)), "where its listeners are");
        assert_eq!(worlds.list().len(), 5);
    }

    #[test]
    fn the_first_source_that_names_a_world_decides_and_a_credential_contradicts_none() {
        let worlds = worlds(1, vec![class("lobby", |keys| keys.open = true)]);
        let hub = worlds.open_configured("hub", None, |_, _| {}).unwrap().world;
        let lobby = worlds.open_configured("lobby", Some("lobby"), |_, _| {}).unwrap().world;
        let settle = |here, credential: Option<&str>, asked: Option<&str>| {
            let judged = Judgement { verdict: Verdict::Success, world: credential.map(str::to_owned) };
            let addr = IpAddr::from([192, 0, 2, 1]);
            let asked = asked.map(|world| WorldRequest { world, addr, now: Instant::ZERO });
            worlds.settle(here, judged, asked, |_, _| panic!("nothing opens"))
        };
        let unknown = || refused(CloseReason::UnknownWorld);
        let mismatch = || refused(CloseReason::WorldMismatch);
        let to = |world: World| Verdict::Elsewhere { world: world.0 };
        for (here, credential, asked, expected) in [
            (World::MAIN, None, None, Verdict::Success),
            (World::MAIN, Some("main"), None, Verdict::Success),
            (World::MAIN, Some("hub"), None, to(hub)),
            (World::MAIN, Some("other"), None, unknown()),
            (hub, None, None, Verdict::Success),
            (hub, Some("hub"), None, Verdict::Success),
            (hub, Some("main"), None, mismatch()),
            (hub, Some("other"), None, mismatch()),
            // Asking alone opens the door of an open class, and no other.
            (World::MAIN, None, Some("lobby"), to(lobby)),
            (World::MAIN, None, Some("main"), Verdict::Success),
            (World::MAIN, None, Some("hub"), unknown()),
            (World::MAIN, None, Some("other"), unknown()),
            (World::MAIN, None, Some("lobby-1"), unknown()),
            (World::MAIN, None, Some("No Name"), unknown()),
            // A credential may say the same, and nothing else.
            (World::MAIN, Some("hub"), Some("hub"), to(hub)),
            (World::MAIN, Some("hub"), Some("lobby"), mismatch()),
            (World::MAIN, Some("lobby"), Some("hub"), mismatch()),
            (World::MAIN, Some("main"), Some("lobby"), mismatch()),
            // A listener leads to one world.
            (hub, None, Some("hub"), Verdict::Success),
            (hub, None, Some("lobby"), mismatch()),
            (hub, None, Some("other"), mismatch()),
        ] {
            let found = settle(here, credential, asked);
            assert_eq!(found, expected, "{here:?} {credential:?} {asked:?}");
        }
        let failed = Judgement { verdict: Verdict::InvalidLt, world: Some("hub".to_owned()) };
        assert_eq!(worlds.settle(World::MAIN, failed, None, |_, _| {}), Verdict::InvalidLt);
        for (here, token, asked, expected) in [
            (World::MAIN, "hub", None, to(hub)),
            (World::MAIN, "hub", Some("hub"), to(hub)),
            (World::MAIN, "hub", Some("lobby"), mismatch()),
            (World::MAIN, "", Some("main"), Verdict::Success),
            (World::MAIN, "", Some("hub"), mismatch()),
            (World::MAIN, "other", None, Verdict::NoWorld),
            (hub, "", None, mismatch()),
            (hub, "hub", Some("hub"), Verdict::Success),
        ] {
            assert_eq!(worlds.settle_token(here, token, asked), expected, "{here:?} {token:?} {asked:?}");
        }
    }

    #[test]
    fn a_world_opens_on_request_within_the_limits_of_its_class() {
        let classes = vec![
            class("duel", |keys| {
                (keys.open, keys.create, keys.worlds_max) = (true, true, 3);
                (keys.creations_per_address_max, keys.world_idle_s) = (2, 10);
            }),
            class("duel-ranked", |keys| keys.open = true),
        ];
        let worlds = worlds(2, classes);
        let mut given = Vec::new();
        let mut ask = |world: &str, addr: &str, at_s: u64| {
            let asked = WorldRequest {
                world,
                addr: addr.parse().unwrap(),
                now: Instant::ZERO + Duration::from_secs(at_s),
            };
            let judged = Judgement::from(Verdict::Success);
            worlds
                .settle(World::MAIN, judged, Some(asked), |_, parts| given.push((parts.world.0, parts.idle)))
        };
        let (to, full) = (|world| Verdict::Elsewhere { world }, refused(CloseReason::WorldsMax));
        for (world, addr, at_s, expected) in [
            ("duel-a", "192.0.2.1", 1, to(1)),
            ("duel-a", "192.0.2.2", 1, to(1)),
            ("duel-b", "192.0.2.1", 2, to(2)),
            ("duel-c", "192.0.2.1", 3, full.clone()),
            ("duel-c", "192.0.2.1", 61, to(3)),
            ("duel-d", "192.0.2.9", 62, full.clone()),
            ("duel-d", "127.0.0.1", 62, full.clone()),
            ("duel", "192.0.2.9", 62, refused(CloseReason::UnknownWorld)),
            ("duel-", "192.0.2.9", 62, refused(CloseReason::UnknownWorld)),
            ("duel-Z", "192.0.2.9", 62, refused(CloseReason::UnknownWorld)),
            // The class with the longest name decides, and opens nothing.
            ("duel-ranked-1", "192.0.2.9", 62, refused(CloseReason::UnknownWorld)),
        ] {
            assert_eq!(ask(world, addr, at_s), expected, "{world} {addr}");
        }
        let idle = Some(Duration::from_secs(10));
        assert_eq!(given, [(1, idle), (2, idle), (3, idle)]);
        let why = worlds.open("x", Some("duel"), |_, _| {}).unwrap_err();
        assert!(why.contains("3 worlds of the class `duel`"), "{why}");
        let why = worlds.open("x", Some("dual"), |_, _| {}).unwrap_err();
        assert!(why.contains("did you mean `duel`?"), "{why}");

        // One that a connection has been sent to stays until it has been calm for a whole time.
        let mut seen = 0;
        assert!(!worlds.close_idle("duel-a", World(1), &mut seen));
        assert!(!worlds.close_idle("duel-a", World(9), &mut seen), "another life of the name");
        assert!(worlds.close_idle("duel-a", World(1), &mut seen));
        assert!(worlds.find("duel-a").is_none());
    }

    #[test]
    fn connections_of_all_worlds_have_one_limit() {
        let config = throng_gateway::Config::default();
        let worlds = worlds(1, Vec::new());
        let limits = throng_gateway::Limits { connections: 2, ..config.limits.clone() };
        worlds.reconfigure(&throng_gateway::Config { limits, ..config }, Vec::new());
        let count = &worlds.connections;
        assert_eq!([count.reserve(), count.reserve(), count.reserve()], [true, true, false]);
        count.replace(2, 1);
        assert_eq!((count.reserve(), count.reserve(), count.live()), (true, false, 2));
        // One that moves is counted on its way; it is let in, and no newcomer in its place.
        count.add();
        count.replace(1, 0);
        assert_eq!((count.reserve(), count.live()), (false, 2));
    }
}
