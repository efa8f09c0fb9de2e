//! The worlds of the process by name: opening, closing, and the worker that each is on.
//!
//! The main world has a shard on every worker, and is there from the start to the end. Every other
//! world has one shard on one worker, and costs nothing on other threads.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use throng_gateway::data::Schemas;
use throng_gateway::{CloseReason, Shard, ShardIndex, Verdict};

use crate::fence::Fence;
use crate::world::{HostParts, Judgement, World};

/// Characters of a world's name.
const NAME_LEN_MAX: usize = 32;

/// Checks the name of a world.
///
/// # Errors
/// A phrase with what a name may be.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let lower = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let bytes = name.as_bytes();
    let fits = bytes.first().is_some_and(|first| lower(*first))
        && bytes.len() <= NAME_LEN_MAX
        && bytes.iter().all(|c| lower(*c) || *c == b'-');
    match fits {
        true => Ok(()),
        false => Err(format!(
            "`{name}` is not a name: 1 to {NAME_LEN_MAX} lower-case letters, digits and `-`, no `-` first"
        )),
    }
}

/// A world that is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OpenWorld {
    pub(crate) name: Arc<str>,
    pub(crate) world: World,
    /// The worker of its shard. Of the main world: that of shard 0.
    pub(crate) worker: u16,
}

/// The worlds of a process.
pub(crate) struct Worlds {
    schemas: Arc<Schemas>,
    workers: usize,
    seed: u64,
    unix_start_ns: u64,
    main: OpenWorld,
    table: Mutex<Table>,
}

struct Table {
    /// Configuration of the next world.
    core: Arc<throng_gateway::Config>,
    open: BTreeMap<Arc<str>, OpenWorld>,
    /// Workers whose listeners lead to a world, open or not.
    bound: BTreeMap<Arc<str>, u16>,
    next: u32,
}

impl Worlds {
    /// Only the main world, called `main`.
    pub(crate) fn new(
        main: &str,
        core: &throng_gateway::Config,
        schemas: Arc<Schemas>,
        workers: usize,
        seed: u64,
        unix_start_ns: u64,
    ) -> Worlds {
        let name: Arc<str> = main.into();
        let main = OpenWorld { name: Arc::clone(&name), world: World::MAIN, worker: 0 };
        let table = Table {
            core: Arc::new(of_named_world(core)),
            open: BTreeMap::from([(name, main.clone())]),
            bound: BTreeMap::new(),
            next: 1,
        };
        Worlds { schemas, workers, seed, unix_start_ns, main, table: Mutex::new(table) }
    }

    /// Opens a world: `give` hands its shard to the worker that is named. No letter for it comes
    /// there first.
    ///
    /// # Errors
    /// It is open, or its name is none.
    pub(crate) fn open(&self, name: &str, give: impl FnOnce(u16, HostParts)) -> Result<OpenWorld, String> {
        self.open_behind(None, name, give)
    }

    /// As [`Worlds::open`]; the world is served while its fence is open.
    ///
    /// # Errors
    /// It is open, or its name is none.
    pub(crate) fn open_behind(
        &self,
        fence: Option<Arc<Fence>>,
        name: &str,
        give: impl FnOnce(u16, HostParts),
    ) -> Result<OpenWorld, String> {
        check_name(name)?;
        let mut table = self.lock();
        if table.open.contains_key(name) {
            return Err(format!("the world `{name}` is open"));
        }
        let worker = match table.bound.get(name) {
            Some(worker) => *worker,
            None => table.emptiest(self.workers),
        };
        let (name, world): (Arc<str>, _) = (name.into(), World(table.next));
        table.next += 1;
        let open = OpenWorld { name: Arc::clone(&name), world, worker };
        table.open.insert(Arc::clone(&name), open.clone());
        // The streams of ids and tokens of two worlds have nothing in common.
        let seed = self.seed ^ u64::from(world.0).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        let core = Arc::new(throng_gateway::Config { world: world.0, ..(*table.core).clone() });
        let schemas = Arc::clone(&self.schemas);
        let shard = Shard::new(core, schemas, ShardIndex::FIRST, 1, seed, self.unix_start_ns);
        let parts = HostParts { world, name, shard, seed, workers: Arc::from([worker]), fence };
        give(worker, parts);
        Ok(open)
    }

    /// Closes a world, if one of the name is open and not the main one: `tell` tells its worker.
    pub(crate) fn close(&self, name: &str, tell: impl FnOnce(u16, World)) -> bool {
        let mut table = self.lock();
        if table.open.get(name).is_none_or(|open| open.world == World::MAIN) {
            return false;
        }
        if let Some(open) = table.open.remove(name) {
            tell(open.worker, open.world);
        }
        true
    }

    /// A world that listeners lead to stays on the worker that has them, open or not: this one.
    pub(crate) fn bind(&self, name: &str) -> u16 {
        let mut table = self.lock();
        let bound = table.bound.get(name).copied();
        let worker = bound.or_else(|| table.open.get(name).map(|open| open.worker));
        let worker = worker.unwrap_or_else(|| table.emptiest(self.workers));
        table.bound.insert(name.into(), worker);
        worker
    }

    pub(crate) fn main(&self) -> OpenWorld {
        self.main.clone()
    }

    pub(crate) fn find(&self, name: &str) -> Option<OpenWorld> {
        self.lock().open.get(name).cloned()
    }

    pub(crate) fn by_number(&self, world: World) -> Option<OpenWorld> {
        self.lock().open.values().find(|open| open.world == world).cloned()
    }

    /// The verdict about a login of a connection in the world `here`, if its credential may name a
    /// world. Only connections of the main world move to others: into those, a listener leads.
    pub(crate) fn settle(&self, here: World, judged: Judgement) -> Verdict {
        let Judgement { verdict: Verdict::Success, world: Some(name) } = judged else {
            return judged.verdict;
        };
        match self.find(&name) {
            Some(open) if open.world == here => Verdict::Success,
            _ if here != World::MAIN => Verdict::Refused(CloseReason::WorldMismatch),
            Some(open) => Verdict::Elsewhere { world: open.world.0 },
            None => Verdict::Refused(CloseReason::UnknownWorld),
        }
    }

    /// The same for the world whose number is in a resume token.
    pub(crate) fn settle_token(&self, here: World, world: World) -> Verdict {
        match self.by_number(world) {
            None => Verdict::NoWorld,
            Some(_) if here != World::MAIN => Verdict::Refused(CloseReason::WorldMismatch),
            Some(open) => Verdict::Elsewhere { world: open.world.0 },
        }
    }

    /// Every world, in the order of their numbers.
    pub(crate) fn list(&self) -> Vec<OpenWorld> {
        let mut list: Vec<_> = self.lock().open.values().cloned().collect();
        list.sort_unstable_by_key(|open| open.world);
        list
    }

    /// Worlds that open from now on get this configuration.
    pub(crate) fn reconfigure(&self, core: &throng_gateway::Config) {
        self.lock().core = Arc::new(of_named_world(core));
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// The worker with the fewest worlds, of equal ones the last: the first one has the listeners
    /// and what the main world has only one of.
    fn emptiest(&self, workers: usize) -> u16 {
        let mut counts = vec![0_usize; workers];
        for open in self.open.values().filter(|open| open.world != World::MAIN) {
            counts[usize::from(open.worker)] += 1;
        }
        let emptiest = counts.iter().enumerate().rev().min_by_key(|(_, count)| **count);
        emptiest.map_or(0, |(worker, _)| worker as u16)
    }
}

/// The main world's configuration without what there is one of in a process.
fn of_named_world(core: &throng_gateway::Config) -> throng_gateway::Config {
    throng_gateway::Config { link: None, ..core.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_worlds() {
        for name in ["a", "main", "duel-00", "0", &"x".repeat(32)] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        for name in ["", "-a", "A", "a_b", "a/b", "ä", &"x".repeat(33)] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn worlds_spread_over_workers_and_names_come_back_under_other_numbers() {
        let schemas = Arc::new(Schemas::default());
        let worlds = Worlds::new("main", &throng_gateway::Config::default(), schemas, 3, 7, 0);
        let open = |name: &str| {
            let mut given = None;
            let open = worlds.open(name, |worker, parts| given = Some((worker, parts.world)))?;
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
    fn a_credential_leads_to_its_world_and_contradicts_no_listener() {
        let schemas = Arc::new(Schemas::default());
        let worlds = Worlds::new("main", &throng_gateway::Config::default(), schemas, 1, 7, 0);
        let hub = worlds.open("hub", |_, _| {}).unwrap().world;
        let settle = |here, world: Option<&str>| {
            let world = world.map(str::to_owned);
            worlds.settle(here, Judgement { verdict: Verdict::Success, world })
        };
        let refused = Verdict::Refused;
        for (here, world, expected) in [
            (World::MAIN, None, Verdict::Success),
            (World::MAIN, Some("main"), Verdict::Success),
            (World::MAIN, Some("hub"), Verdict::Elsewhere { world: hub.0 }),
            (World::MAIN, Some("other"), refused(CloseReason::UnknownWorld)),
            (hub, None, Verdict::Success),
            (hub, Some("hub"), Verdict::Success),
            (hub, Some("main"), refused(CloseReason::WorldMismatch)),
            (hub, Some("other"), refused(CloseReason::WorldMismatch)),
        ] {
            assert_eq!(settle(here, world), expected, "{here:?} {world:?}");
        }
        let world = Some("hub".to_owned());
        let failed = Judgement { verdict: Verdict::InvalidLt, world };
        assert_eq!(worlds.settle(World::MAIN, failed), Verdict::InvalidLt);
        assert_eq!(worlds.settle_token(World::MAIN, hub), Verdict::Elsewhere { world: hub.0 });
        assert_eq!(worlds.settle_token(World::MAIN, World(99)), Verdict::NoWorld);
        assert_eq!(worlds.settle_token(hub, World::MAIN), refused(CloseReason::WorldMismatch));
    }
}
