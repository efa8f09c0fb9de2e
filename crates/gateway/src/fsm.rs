//! State machine files: which message types a connection may send in which state. Spec §4.4.
//!
//! The reference's JSON files load unchanged. A [`StateMachine`] is shared by all connections of a
//! kind; each connection holds only the number of its state, so a check costs one word of a bitmap
//! and no lock (weakness A-22).

use serde_json::{Map, Value};

/// The most states a file may declare; connections store the number of theirs in a byte.
pub const STATES_MAX: usize = 255;

/// The number of a state within its [`StateMachine`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct StateIndex(pub(crate) u8);

/// A loaded state machine.
///
/// ```
/// use throng_gateway::StateMachine;
/// let text = r#"{"States": [{"Name": "INIT", "MsgTypeWhitelist": "1"}, {"Name": "OPEN", "MsgTypeWhitelist": "2-99"}]}"#;
/// let machine = StateMachine::parse(text)?;
/// assert!(machine.warnings().is_empty());
/// # Ok::<(), throng_gateway::StateMachineError>(())
/// ```
#[derive(Debug, Clone)]
pub struct StateMachine {
    states: Vec<State>,
    init: StateIndex,
    /// (from, message type, to); few, searched in order, the first match counts.
    transitions: Vec<(StateIndex, u32, StateIndex)>,
    warnings: Vec<String>,
}

#[derive(Debug, Clone)]
struct State {
    name: String,
    allowed: TypeSet,
}

/// Why a state machine file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateMachineError {
    /// The text is not JSON.
    #[error("line {line}, column {column}: {message}")]
    Json {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What the JSON reader expected.
        message: String,
    },
    /// The JSON has another shape than a state machine.
    #[error("`{key}` must be {expected}")]
    Shape {
        /// Path of the offending key.
        key: String,
        /// What belongs there.
        expected: &'static str,
    },
    /// There is no state to start in.
    #[error("`States` is empty; a connection needs a state to start in")]
    NoStates,
    /// Too many states.
    #[error("{count} states exceed the limit of {STATES_MAX}")]
    TooManyStates {
        /// How many the file declares.
        count: usize,
    },
    /// `InitState` names no state.
    #[error("`InitState` names the unknown state `{name}`; known: {known}")]
    UnknownInitState {
        /// The name given.
        name: String,
        /// The names that exist.
        known: String,
    },
}

impl StateMachine {
    /// Reads a state machine file. Keys match case-insensitively, unknown keys are ignored.
    ///
    /// # Errors
    /// Only what leaves no usable machine; lesser mistakes are skipped as the reference does and
    /// kept in [`Self::warnings`].
    pub fn parse(text: &str) -> Result<Self, StateMachineError> {
        let root: Value = serde_json::from_str(text).map_err(|error| StateMachineError::Json {
            line: error.line(),
            column: error.column(),
            message: error.to_string(),
        })?;
        let root = as_object(&root, "the file")?;
        let mut warnings = Vec::new();

        let empty = Vec::new();
        let listed = match key(root, "States") {
            None | Some(Value::Null) => &empty,
            Some(Value::Array(list)) => list,
            Some(_) => return Err(shape("States", "a list of states")),
        };
        if listed.is_empty() {
            return Err(StateMachineError::NoStates);
        }
        if listed.len() > STATES_MAX {
            return Err(StateMachineError::TooManyStates { count: listed.len() });
        }
        let mut states: Vec<State> = Vec::with_capacity(listed.len());
        for (position, value) in listed.iter().enumerate() {
            let path = format!("States[{position}]");
            let state = as_object(value, &path)?;
            let name = string(state, "Name", &path)?;
            if states.iter().any(|known| known.name == name) {
                warnings
                    .push(format!("{path}: a state named `{name}` exists already; the first one is used"));
            }
            let white = string(state, "MsgTypeWhitelist", &path)?;
            let black = string(state, "MsgTypeBlacklist", &path)?;
            let mut ranges = |list: &str, field: &str| {
                let (ranges, bad) = parse_types(list);
                warnings.extend(
                    bad.iter().map(|item| format!("{path}.{field}: `{item}` is not a type or range")),
                );
                ranges
            };
            let (white, black) = (ranges(&white, "MsgTypeWhitelist"), ranges(&black, "MsgTypeBlacklist"));
            states.push(State { name, allowed: TypeSet::new(&white, &black) });
        }

        let index = |name: &str| states.iter().position(|s| s.name == name).map(|at| StateIndex(at as u8));
        let init_name = string(root, "InitState", "the file")?;
        let init = if init_name.is_empty() {
            StateIndex(0)
        } else {
            index(&init_name).ok_or_else(|| StateMachineError::UnknownInitState {
                name: init_name.clone(),
                known: states.iter().map(|s| s.name.as_str()).collect::<Vec<_>>().join(", "),
            })?
        };

        let listed = match key(root, "Transitions") {
            None | Some(Value::Null) => &empty,
            Some(Value::Array(list)) => list,
            Some(_) => return Err(shape("Transitions", "a list of transitions")),
        };
        let mut transitions = Vec::new();
        for (position, value) in listed.iter().enumerate() {
            let path = format!("Transitions[{position}]");
            let transition = as_object(value, &path)?;
            let from = string(transition, "FromState", &path)?;
            let to = string(transition, "ToState", &path)?;
            let msg_type = match key(transition, "MsgType") {
                None | Some(Value::Null) => 0,
                Some(value) => value
                    .as_u64()
                    .and_then(|number| u32::try_from(number).ok())
                    .ok_or_else(|| shape(format!("{path}.MsgType"), "a number from 0 to 4294967295"))?,
            };
            match (index(&from), index(&to)) {
                (Some(from), Some(to)) => transitions.push((from, msg_type, to)),
                _ => warnings
                    .push(format!("{path}: `{from}` or `{to}` is not a state; the transition is ignored")),
            }
        }
        Ok(Self { states, init, transitions, warnings })
    }

    /// The stock machine for servers (`server_authoratative_fsm.json`): everything after
    /// authentication.
    #[must_use]
    pub fn server() -> Self {
        Self::stock(&[(2, 65_535)])
    }

    /// The stock machine for clients of an authoritative game server
    /// (`client_non_authoratative_fsm.json`): unsubscribe, ask for debug regions, and user-space
    /// messages.
    #[must_use]
    pub fn client() -> Self {
        Self::stock(&[(7, 7), (99, 65_535)])
    }

    /// The stock machine for clients that manage channels themselves
    /// (`client_authoratative_fsm.json`), as used with Unreal and Unity.
    #[must_use]
    pub fn client_managing_channels() -> Self {
        Self::stock(&[(3, 8), (15, 65_535)])
    }

    /// How many states there are; states are numbered below it.
    pub(crate) fn state_count(&self) -> usize {
        self.states.len()
    }

    /// What was skipped while loading, one sentence each.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Names of the states in order, for display.
    pub fn state_names(&self) -> impl Iterator<Item = &str> {
        self.states.iter().map(|state| state.name.as_str())
    }

    /// Where every connection starts.
    pub(crate) fn init(&self) -> StateIndex {
        self.init
    }

    /// Whether `msg_type` may be sent in `state`.
    #[inline]
    pub(crate) fn allows(&self, state: StateIndex, msg_type: u32) -> bool {
        self.states[usize::from(state.0)].allowed.contains(msg_type)
    }

    /// The state after `msg_type` was received and allowed in `state`.
    #[inline]
    pub(crate) fn after_message(&self, state: StateIndex, msg_type: u32) -> StateIndex {
        if self.transitions.is_empty() {
            return state;
        }
        let matching = |&&(from, on, _): &&(StateIndex, u32, StateIndex)| from == state && on == msg_type;
        self.transitions.iter().find(matching).map_or(state, |&(_, _, to)| to)
    }

    /// The state after successful authentication: the next in list order, or the same when it is
    /// the last.
    pub(crate) fn after_authentication(&self, state: StateIndex) -> StateIndex {
        StateIndex((state.0 + 1).min((self.states.len() - 1) as u8))
    }

    fn stock(open: &[(u32, u32)]) -> Self {
        let state =
            |name: &str, white: &[(u32, u32)]| State { name: name.into(), allowed: TypeSet::new(white, &[]) };
        let states = vec![state("INIT", &[(1, 1)]), state("OPEN", open)];
        Self { states, init: StateIndex(0), transitions: Vec::new(), warnings: Vec::new() }
    }
}

/// A set of message types: a bitmap for the types that occur, ranges for the rest of `u32`.
#[derive(Debug, Clone)]
struct TypeSet {
    low: Box<[u64; LOW_TYPES / 64]>,
    high_white: Vec<(u32, u32)>,
    high_black: Vec<(u32, u32)>,
}

/// Types below this are looked up in a bitmap of 8 KiB, of which traffic touches a line or two.
const LOW_TYPES: usize = 65_536;

impl TypeSet {
    fn new(white: &[(u32, u32)], black: &[(u32, u32)]) -> Self {
        let mut low = Box::new([0_u64; LOW_TYPES / 64]);
        let last = LOW_TYPES as u32 - 1;
        let mut mark = |ranges: &[(u32, u32)], allow: bool| {
            for &(start, end) in ranges {
                let end = end.min(last);
                for word in start / 64..=end / 64 {
                    let first = 64 * word;
                    // The bits of this word from `start` to `end`.
                    let above = u64::MAX << start.saturating_sub(first);
                    let bits = above & u64::MAX >> (first + 63).saturating_sub(end);
                    let word = &mut low[word as usize];
                    *word = if allow { *word | bits } else { *word & !bits };
                }
            }
        };
        mark(white, true);
        mark(black, false);
        let high = |ranges: &[(u32, u32)]| ranges.iter().copied().filter(|&(_, end)| end > last).collect();
        Self { low, high_white: high(white), high_black: high(black) }
    }

    #[inline]
    fn contains(&self, msg_type: u32) -> bool {
        if (msg_type as usize) < LOW_TYPES {
            return self.low[msg_type as usize / 64] >> (msg_type % 64) & 1 == 1;
        }
        let within =
            |ranges: &[(u32, u32)]| ranges.iter().any(|&(start, end)| (start..=end).contains(&msg_type));
        within(&self.high_white) && !within(&self.high_black)
    }
}

/// Splits a list such as `"2-10, 20"` into ranges and the items that are neither a number nor a
/// range.
fn parse_types(list: &str) -> (Vec<(u32, u32)>, Vec<&str>) {
    let (mut ranges, mut bad) = (Vec::new(), Vec::new());
    for item in list.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let range = match item.split_once('-') {
            None => item.parse().ok().map(|single| (single, single)),
            Some((start, end)) => start.trim().parse().ok().zip(end.trim().parse().ok()),
        };
        match range {
            Some((start, end)) if start <= end => ranges.push((start, end)),
            _ => bad.push(item),
        }
    }
    (ranges, bad)
}

pub(crate) fn key<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    object
        .get(name)
        .or_else(|| object.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value))
}

fn shape(key: impl Into<String>, expected: &'static str) -> StateMachineError {
    StateMachineError::Shape { key: key.into(), expected }
}

fn as_object<'a>(value: &'a Value, path: &str) -> Result<&'a Map<String, Value>, StateMachineError> {
    value.as_object().ok_or_else(|| shape(path, "an object"))
}

fn string(object: &Map<String, Value>, name: &str, path: &str) -> Result<String, StateMachineError> {
    match key(object, name) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(shape(format!("{path}.{name}"), "a string")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: [(&str, &str); 4] = [
        ("server", include_str!("../../../fixtures/gateway/config/server_authoratative_fsm.json")),
        ("client", include_str!("../../../fixtures/gateway/config/client_non_authoratative_fsm.json")),
        ("managing", include_str!("../../../fixtures/gateway/config/client_authoratative_fsm.json")),
        ("transitions", include_str!("../../../fixtures/gateway/config/state_machine_with_transitions.json")),
    ];

    fn allowed(machine: &StateMachine, state: u8) -> Vec<u32> {
        (0..70_000).filter(|&msg_type| machine.allows(StateIndex(state), msg_type)).collect()
    }

    #[test]
    fn stock_files_equal_the_built_in_machines() {
        let built_in =
            [StateMachine::server(), StateMachine::client(), StateMachine::client_managing_channels()];
        for ((name, text), built_in) in FILES.iter().zip(built_in) {
            let machine = StateMachine::parse(text).expect("a stock file loads");
            assert!(machine.warnings().is_empty(), "{name}: {:?}", machine.warnings());
            for state in 0..2 {
                assert_eq!(allowed(&machine, state), allowed(&built_in, state), "{name} state {state}");
            }
            assert!(!machine.allows(StateIndex(1), 65_536), "types above 65535 are not listed");
        }
    }

    #[test]
    fn transitions_blacklists_and_list_order() {
        let machine = StateMachine::parse(FILES[3].1).expect("the file loads");
        let (init, open, handover) = (StateIndex(0), StateIndex(1), StateIndex(2));
        assert_eq!(machine.init(), init);
        assert!(machine.allows(open, 8) && !machine.allows(open, 9) && machine.allows(open, 20));
        assert!(!machine.allows(open, 11));
        assert_eq!(machine.after_message(init, 1), open);
        assert_eq!(machine.after_message(open, 20), handover);
        assert_eq!(machine.after_message(open, 8), open);
        assert_eq!(machine.after_message(handover, 22), open);
        assert_eq!(machine.after_authentication(open), handover);
        assert_eq!(machine.after_authentication(handover), handover);
    }

    #[test]
    fn keys_match_in_any_case_and_mistakes_are_kept_as_warnings() {
        let text = r#"{"states": [{"NAME": "A", "msgtypewhitelist": " 1 , 5-7,x, 9-8, -3, 100000-100002 ", "other": 1}],
                       "transitions": [{"fromstate": "A", "tostate": "B", "msgtype": 1}], "initstate": "A"}"#;
        let machine = StateMachine::parse(text).expect("lenient");
        assert_eq!(machine.warnings().len(), 4, "{:?}", machine.warnings());
        assert_eq!(allowed(&machine, 0), [1, 5, 6, 7]);
        assert!(machine.allows(StateIndex(0), 100_001) && !machine.allows(StateIndex(0), 100_003));
        assert_eq!(machine.after_message(StateIndex(0), 1), StateIndex(0));
    }

    #[test]
    fn unusable_files_say_why() {
        let check = |text: &str, expected: &str| {
            let error = StateMachine::parse(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        };
        check("{", "line 1");
        check("[]", "`the file` must be an object");
        check("{}", "`States` is empty");
        check(r#"{"States": 5}"#, "`States` must be a list");
        check(r#"{"States": [5]}"#, "`States[0]` must be an object");
        check(r#"{"States": [{"Name": 5}]}"#, "`States[0].Name` must be a string");
        check(r#"{"States": [{"Name": "A"}], "InitState": "B"}"#, "unknown state `B`; known: A");
        check(r#"{"States": [{"Name": "A"}], "Transitions": [{"MsgType": -1}]}"#, "Transitions[0].MsgType");
        let many = format!(r#"{{"States": [{}]}}"#, vec![r#"{"Name":"A"}"#; 300].join(","));
        check(&many, "300 states");
    }

    #[test]
    fn ranges_begin_and_end_anywhere_in_a_word() {
        let edges = [0, 1, 63, 64, 65, 127, 128, 700, 65_534, 65_535, 65_536];
        for (at, &start) in edges.iter().enumerate() {
            for &end in &edges[at..] {
                let all = TypeSet::new(&[(start, end)], &[]);
                let none = TypeSet::new(&[(0, u32::MAX)], &[(start, end)]);
                for msg_type in edges.iter().flat_map(|&edge| [edge.saturating_sub(1), edge, edge + 1]) {
                    let within = (start..=end).contains(&msg_type);
                    assert_eq!(all.contains(msg_type), within, "{msg_type} in {start}-{end}");
                    assert_eq!(none.contains(msg_type), !within, "{msg_type} without {start}-{end}");
                }
            }
        }
    }

    #[test]
    fn a_range_over_all_of_u32_is_cheap_and_complete() {
        let machine = StateMachine::parse(
            r#"{"States":[{"Name":"A","MsgTypeWhitelist":"0-4294967295","MsgTypeBlacklist":"70000-80000"}]}"#,
        )
        .expect("loads");
        assert!(machine.allows(StateIndex(0), 0) && machine.allows(StateIndex(0), u32::MAX));
        assert!(!machine.allows(StateIndex(0), 75_000));
    }
}
