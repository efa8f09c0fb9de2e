//! Names of worlds within the process, and what passes between the parts that deal with them.

use std::sync::Arc;
use std::time::Duration;

use throng_gateway::{Shard, Verdict};

use crate::fence::Fence;

/// Lives of a world that have ended in this process. Whatever was meant for another life than the
/// present one is void.
pub(crate) type Life = u32;

/// A world of this process. Numbers are never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct World(pub(crate) u32);

impl World {
    /// The world that exists from the start to the end, with a shard on every worker.
    pub(crate) const MAIN: World = World(0);
}

/// One life of a world: the address of every letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorldEpoch {
    pub(crate) world: World,
    pub(crate) life: Life,
}

/// Parts of a shard that is to run on a worker.
pub(crate) struct HostParts {
    pub(crate) world: World,
    pub(crate) name: Arc<str>,
    pub(crate) shard: Shard,
    /// Makes the identifiers of later lives of the world differ.
    pub(crate) seed: u64,
    /// The workers that its world's shards are on.
    pub(crate) workers: Arc<[u16]>,
    /// It is the first shard of its world, which knows all connections.
    pub(crate) is_first: bool,
    /// Its configuration is that of a class, and stays.
    pub(crate) has_class: bool,
    /// Time without connections after which it closes.
    pub(crate) idle: Option<Duration>,
    /// Of a world of a cluster: it is served while this is open.
    pub(crate) fence: Option<Arc<Fence>>,
}

/// Answer of a provider about a login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// May it log in?
    pub verdict: Verdict,
    /// The world that it belongs to, if the credential names one.
    pub world: Option<String>,
}

impl From<Verdict> for Judgement {
    fn from(verdict: Verdict) -> Judgement {
        Judgement { verdict, world: None }
    }
}
