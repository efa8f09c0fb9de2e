//! Modes and limits, as given from outside.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::queue::ruleset::{MatchWorld, QueueRules, RuleProblem, problem};

/// Most members of a room.
pub(crate) const CAPACITY_MAX: u32 = 10_000;
/// Longest time between the end of a room and its destruction: a day.
const LINGER_MS_MAX: u64 = 86_400_000;

/// Configuration of the matcher.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Rules of match modes by name. Names of the form `NvM` exist without being listed.
    pub modes: BTreeMap<String, ModeRules>,
    /// Time for which roles of a lost server are kept, in ms.
    pub presence_grace_ms: u64,
    /// Time for which answers to request keys are kept, in ms.
    pub key_ttl_ms: u64,
    /// Request keys kept of one server; beyond, the oldest are forgotten.
    pub keys_per_server: usize,
    /// Queues that exist from the start. One that was changed while running stays as it is, until
    /// something else is written here.
    pub queues: Vec<QueueRules>,
    /// Live tickets one player may have.
    pub tickets_per_player: usize,
    /// Live tickets in all; beyond, new ones are refused as `OVERLOADED`.
    pub tickets_max: usize,
    /// Time limit of a policy's verdict, in ms; requests that wait for it fail then.
    pub policy_timeout_ms: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            modes: BTreeMap::new(),
            presence_grace_ms: 10_000,
            key_ttl_ms: 60_000,
            keys_per_server: 64 << 10,
            queues: Vec::new(),
            tickets_per_player: 3,
            tickets_max: 1_000_000,
            policy_timeout_ms: 200,
        }
    }
}

/// Rules of one match mode: the declarative policy.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModeRules {
    /// Most members, 1 to 10,000, as far as their infos have space in the 256 KiB of a room's; 0
    /// admits nobody, except in the mode of a queue, whose rule set defines the number.
    pub capacity: u32,
    /// Limits of a newcomer's `FloatData`.
    pub limits: Vec<Limit>,
    /// Keys of `FloatData` of which no two members may share a value.
    pub unique_float: Vec<String>,
    /// Keys of `StringData` of which no two members may share a value.
    pub unique_string: Vec<String>,
    /// Action on a room that fills up.
    pub on_full: OnFull,
    /// True if a room without members stays.
    pub keep_empty: bool,
    /// Which open room a random join takes.
    pub select: Select,
    /// True if random joins also take hidden rooms.
    pub random_joins_hidden: bool,
    /// True if members of these rooms are in no other room.
    pub exclusive: bool,
    /// Time between the end of a room and its destruction, in ms.
    pub linger_ms: u64,
    /// Key of `Data` that shows the number of members; empty shows none.
    pub count_key: String,
    /// True if new rooms are hidden unless their maker says otherwise.
    pub hidden: bool,
    /// Part of a room that its events carry.
    pub snapshot: Snapshot,
    /// True if later values replace earlier ones that were not sent yet.
    pub collapse: bool,
    /// Policy that decides besides these rules: a URL, or the name of a policy of the process.
    /// Empty: none.
    pub policy: String,
    /// Points at which the policy is asked; a point less is a request less.
    pub policy_points: Vec<HookPoint>,
    /// World that the match of a room gets when its members have filled it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub world: Option<MatchWorld>,
    /// Server that opens the world.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub allocator: String,
}

impl Default for ModeRules {
    fn default() -> ModeRules {
        ModeRules {
            capacity: 0,
            limits: Vec::new(),
            unique_float: Vec::new(),
            unique_string: Vec::new(),
            on_full: OnFull::Delete,
            keep_empty: false,
            select: Select::Fill,
            random_joins_hidden: false,
            exclusive: true,
            linger_ms: 1_000,
            count_key: "roleCount".to_owned(),
            hidden: false,
            snapshot: Snapshot::Auto,
            collapse: false,
            policy: String::new(),
            policy_points: HookPoint::ALL.to_vec(),
            world: None,
            allocator: String::new(),
        }
    }
}

/// A point in a room's life where its policy has a say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum HookPoint {
    /// Before a room is made: may veto, and fill `Data`. Also for the server of a match, with
    /// `assign = "policy"`.
    OnCreate,
    /// Before roles are added: may veto.
    OnAddingRoles,
    /// With roles added, before anybody hears of it: may change the room.
    OnAddedRoles,
    /// Before a role is removed: may change the room. Told only, when the role is lost or the room
    /// ends.
    OnDeletingRole,
    /// The end of a room; told only.
    OnDestroy,
}

impl HookPoint {
    /// Every point, in the order of a room's life.
    pub const ALL: [HookPoint; 5] = [
        HookPoint::OnCreate,
        HookPoint::OnAddingRoles,
        HookPoint::OnAddedRoles,
        HookPoint::OnDeletingRole,
        HookPoint::OnDestroy,
    ];

    /// Its name, in configuration and in questions.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            HookPoint::OnCreate => "OnCreate",
            HookPoint::OnAddingRoles => "OnAddingRoles",
            HookPoint::OnAddedRoles => "OnAddedRoles",
            HookPoint::OnDeletingRole => "OnDeletingRole",
            HookPoint::OnDestroy => "OnDestroy",
        }
    }
}

impl ModeRules {
    /// Returns whether its numbers are in range.
    ///
    /// # Errors
    /// The first that is not, with its key.
    pub fn check(&self) -> Result<(), RuleProblem> {
        if self.capacity > CAPACITY_MAX {
            return Err(problem("capacity", format!("it is at most {CAPACITY_MAX}")));
        }
        if self.linger_ms > LINGER_MS_MAX {
            return Err(problem("linger_ms", format!("it is at most {LINGER_MS_MAX}, a day")));
        }
        for (at, limit) in self.limits.iter().enumerate() {
            if [limit.min, limit.max].into_iter().flatten().any(|bound| !bound.is_finite()) {
                return Err(problem(format!("limits[{at}]"), "min and max are finite"));
            }
        }
        self.world.as_ref().map_or(Ok(()), |world| self.check_world(world))
    }

    fn check_world(&self, world: &MatchWorld) -> Result<(), RuleProblem> {
        world.check()?;
        let why = if self.capacity == 0 {
            "its rooms are never full: set `capacity`; matches of a queue have the `world` of the queue"
        } else if self.on_full != OnFull::Seal {
            "the room lasts as long as the match: set `on_full` to \"seal\""
        } else if self.allocator.is_empty() {
            "the allocator opens it: set `allocator` to the `SrvID` of a gateway's link"
        } else {
            return Ok(());
        };
        Err(problem("world", why))
    }

    /// Returns whether a policy is asked at a point.
    #[inline]
    pub(crate) fn asks(&self, point: HookPoint) -> bool {
        !self.policy.is_empty() && self.policy_points.contains(&point)
    }
}

impl Config {
    /// Returns whether queues and modes fit each other.
    ///
    /// # Errors
    /// A queue with the name of a mode that players join by themselves, one whose matches a policy
    /// is to place, while its mode names none, or two queues that rate in one pool by two systems.
    pub fn check(&self) -> Result<(), RuleProblem> {
        for name in self.queues.iter().map(QueueRules::name) {
            self.check_queue_name(name)?;
        }
        let mut pools = BTreeMap::new();
        for (pool, system) in self.queues.iter().filter_map(QueueRules::rating) {
            if *pools.entry(pool.clone()).or_insert(system) != system {
                let reason = format!("two queues rate in pool `{pool}` by two systems");
                return Err(RuleProblem { path: "rating.system".to_owned(), reason });
            }
        }
        for queue in self.queues.iter().filter(|queue| queue.asks_policy()) {
            if !self.modes.get(queue.name()).is_some_and(|rules| rules.asks(HookPoint::OnCreate)) {
                let reason = format!(
                    "queue `{0}` wants servers from a policy, but `modes.{0}.policy` names none that is asked \
                     OnCreate",
                    queue.name()
                );
                return Err(RuleProblem { path: "assign".to_owned(), reason });
            }
        }
        Ok(())
    }

    /// Refuses the name of a mode that players join by themselves.
    pub(crate) fn check_queue_name(&self, name: &str) -> Result<(), RuleProblem> {
        let capacity = match self.modes.get(name) {
            Some(rules) => rules.capacity,
            None => rules_of_name(name).map_or(0, |rules| rules.capacity),
        };
        check_queue_name(name, capacity)
    }
}

/// Bounds of one number of a newcomer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    /// Key in `FloatData`.
    pub key: String,
    /// Least value.
    #[serde(default)]
    pub min: Option<f64>,
    /// Greatest value.
    #[serde(default)]
    pub max: Option<f64>,
    /// True if a role without the key is refused.
    #[serde(default)]
    pub required: bool,
}

/// Action on a room that fills up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFull {
    /// The match is made; the room goes.
    Delete,
    /// It stays and accepts nobody, ever.
    Seal,
    /// It stays full until someone leaves.
    Keep,
}

/// Which open room a random join takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Select {
    /// The one with the fewest free places that fits, the oldest among equals.
    Fill,
    /// The oldest.
    Oldest,
    /// Any, with equal chance.
    Random,
}

/// Part of a room that its events carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Snapshot {
    /// All members.
    Full,
    /// Only the change.
    Delta,
    /// All up to 16 members.
    Auto,
}

/// Refuses a queue if the mode of its name has a capacity of its own: it is not the queue's, which
/// would change the rooms that players make and join there.
pub(crate) fn check_queue_name(name: &str, capacity: u32) -> Result<(), RuleProblem> {
    if capacity > 0 {
        let reason = format!(
            "`{name}` is a match mode with a capacity of its own; give the queue another name, or list \
             `modes.{name}` in the rules file without `capacity`"
        );
        return Err(problem("name", reason));
    }
    Ok(())
}

/// Rules of a mode that is not configured: `NvM` has room for N + M.
pub(crate) fn rules_of_name(name: &str) -> Option<ModeRules> {
    let (a, b) = name.split_once('v')?;
    let side = |text: &str| {
        let plain = !text.is_empty() && text.len() <= 3 && text.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| text.parse::<u32>().ok()).flatten()
    };
    let capacity = side(a)? + side(b)?;
    (capacity > 0).then(|| ModeRules { capacity, ..ModeRules::default() })
}

/// Scope of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Scope {
    /// May act for roles of its own server.
    Server,
    /// May act for any role, delete any room, report results.
    Trusted,
    /// May also change queues and drain.
    Admin,
}

/// Caller of a request.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// Server of the session, or what an HTTP caller says it is; may be empty.
    pub srv: &'a str,
    /// Scope of its token.
    pub scope: Scope,
}

#[cfg(test)]
mod tests {
    use super::rules_of_name;

    #[test]
    fn modes_named_n_v_m_exist_by_themselves() {
        let capacity = |name: &str| rules_of_name(name).map(|rules| rules.capacity);
        assert_eq!(capacity("1v1"), Some(2));
        assert_eq!(capacity("5v5"), Some(10));
        assert_eq!(capacity("1v99"), Some(100));
        for none in ["", "v", "1v", "xv2", "0v0", "1v1v1", "+1v1", "1v1000000"] {
            assert_eq!(capacity(none), None, "{none}");
        }
    }
}
