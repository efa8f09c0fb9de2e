//! The reasons for which a node cannot run, or opens and closes no world, with the way out.

use throng_admin::Problem;
use throng_cluster::{Failure, Name, NodeRecord, NodeState, Refusal, WorldRecord, WorldState};

use super::Driver;
use crate::cluster::plan::{bucket, loopback};
use crate::cluster::{HOME, bus};

impl Driver {
    /// The reason why this node cannot write to the directory, if it knows one.
    pub(super) fn hindrance(&self) -> Option<String> {
        if !self.parts.bus.is_connected() {
            return Some("the node is not connected to NATS".to_owned());
        }
        let status = self.parts.shared.status();
        match &status.problem {
            Some(problem) => Some(format!("the latest request to the directory failed: {problem}")),
            None if status.synced_since.is_none() => Some("the directory is being read again".to_owned()),
            None => None,
        }
    }

    /// The reason why a world that was to be opened has no home.
    pub(super) fn no_home(&self, world: &Name) -> Problem {
        let record = self.parts.core.world(world);
        let why = match (self.hindrance(), record.filter(|record| record.state == WorldState::Closing)) {
            (Some(why), _) => why,
            (None, Some(record)) => {
                format!("it is closing, and its home, the node `{}`, has not ended it yet", record.home.node)
            }
            (None, None) => "`throng cluster status` shows the nodes".to_owned(),
        };
        Problem::new(503, format!("the world `{world}` has no home after {} s: {why}", HOME.as_secs()))
    }

    /// The reason why no node can open a world, if all that have its class drain or are gone.
    pub(super) fn no_node_for(&self, world: &Name, class: &Name) -> Option<Problem> {
        let core = &self.parts.core;
        let is_there = core.world(world).is_some_and(|record| record.state != WorldState::Closed);
        let is_read = self.parts.shared.status().synced_since.is_some();
        let mut nodes = core.nodes().filter(|(_, record)| record.classes.contains_key(class));
        let takes = |(_, record): (&Name, &NodeRecord)| record.state == NodeState::Up;
        if is_there || !is_read || core.incarnation().is_none() || nodes.any(takes) {
            return None;
        }
        let what = format!(
            "no node takes the world `{world}`: all that have its class `{class}` drain or have left; start another \
             one, or `throng cluster undrain` one"
        );
        Some(Problem::new(503, what))
    }

    /// The reason why a world of a class was not opened, with the way out.
    pub(super) fn not_opened(&self, world: &Name, class: &Name, why: Refusal) -> Problem {
        match why {
            Refusal::WorldsMax => {
                let max = self.parts.worlds.class(class.as_str()).map_or(0, |keys| keys.worlds_max);
                let is_open =
                    |record: &WorldRecord| record.class == *class && record.state != WorldState::Closed;
                let open = self.parts.core.worlds().filter(|(_, record)| is_open(record)).count();
                let what = format!(
                    "the world `{world}` was not opened: {open} worlds of the class `{class}` are open in the cluster, \
                     and its limit is {max} (`worlds_max`); close one, or raise the limit on all nodes"
                );
                Problem::new(409, what)
            }
            Refusal::Closed => {
                Problem::new(409, format!("the world `{world}` was closed while it was being opened"))
            }
            Refusal::NoRoom => {
                let takes = |record: &&NodeRecord| {
                    record.state == NodeState::Up && record.classes.contains_key(class)
                };
                let (mut nodes, mut open, mut max) = (0, 0, 0);
                for record in self.parts.core.nodes().map(|(_, record)| record).filter(takes) {
                    nodes += 1;
                    open += u64::from(record.worlds);
                    max += u64::from(record.worlds_max);
                }
                let what = format!(
                    "no node has room for the world `{world}`: the nodes that have its class `{class}` and do not drain \
                     ({nodes}) serve {open} worlds, and {max} are their limit (`cluster.worlds_max`); start another node, \
                     with the labels of the class if it has any, close a world, or raise the limit"
                );
                Problem::new(503, what)
            }
            Refusal::Unavailable | Refusal::UnknownWorld => Problem::new(
                503,
                format!(
                    "the world `{world}` was not opened: no node with its class `{class}` was known in time; `throng \
                     cluster status` shows the nodes"
                ),
            ),
        }
    }

    /// Describes an address in this node's record that other machines cannot reach.
    pub(super) fn unreachable(&self) -> Option<String> {
        let address = loopback(&self.parts.addresses)?;
        let is_other = |name: &Name| *name != self.parts.node;
        let mut nodes = self.parts.core.nodes().filter(|(name, record)| is_other(name) && record.is_live());
        let (other, _) = nodes.find(|(_, record)| record.boot != self.parts.boot)?;
        Some(format!(
            "{}://{} is an address that only this machine reaches, and the node `{other}` is on another machine: name \
             one that all reach in `cluster.advertise`",
            address.transport, address.address
        ))
    }

    /// Says why the node cannot run, with the way out.
    pub(super) fn explain(&self, failure: &Failure) -> String {
        let want = self.parts.shared.cluster();
        match failure {
            Failure::NoCluster => bus::no_record(&bucket(&want.name)),
            Failure::OtherCluster(is) => {
                bus::difference(is, want).unwrap_or_else(|| "other settings".to_owned())
            }
            Failure::NameHeld(record) => {
                let addresses =
                    record.addresses.iter().map(|each| format!("{}://{}", each.transport, each.address));
                format!(
                    "another process is the node `{}`: {}; stop it, or give this one another `cluster.node`",
                    self.parts.node,
                    addresses.collect::<Vec<_>>().join(", ")
                )
            }
            Failure::NameUnreadable => format!(
                "another process is the node `{}` and its record cannot be read: it is of a later release; use \
                 that one, or another `cluster.node`",
                self.parts.node
            ),
        }
    }
}
