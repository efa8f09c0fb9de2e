//! Linearizability of histories, as Wing and Gong check it; shared by the tests of all services
//! with concurrent clients.

use std::collections::HashSet;
use std::hash::Hash;

/// An operation with what its client saw, and when it was called and answered, in ticks of one
/// clock for all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<O> {
    pub(crate) called: u64,
    pub(crate) answered: u64,
    pub(crate) operation: O,
}

/// Reports whether there is one order of all operations in which each takes effect between its call
/// and its answer. `apply` gives the state after an operation, or `None` where its client would
/// have seen something else. Depth first, remembering what was tried: which are done, and the state
/// then.
pub(crate) fn is_linearizable<S: Clone + Eq + Hash, O>(
    history: &[Entry<O>],
    first: S,
    apply: impl Fn(&S, &O) -> Option<S>,
) -> bool {
    assert!(history.len() <= 1024, "the set below has as many bits");
    type Done = [u64; 16];
    let mut tried: HashSet<(Done, S)> = HashSet::new();
    let mut stack: Vec<(Done, S)> = vec![([0; 16], first)];
    while let Some((done, state)) = stack.pop() {
        let is_done = |index: usize| done[index / 64] >> (index % 64) & 1 == 1;
        let open: Vec<usize> = (0..history.len()).filter(|index| !is_done(*index)).collect();
        // Nothing may come before something that was answered before it was called.
        let Some(first_answer) = open.iter().map(|index| history[*index].answered).min() else { return true };
        for index in open.into_iter().filter(|index| history[*index].called <= first_answer) {
            let Some(next) = apply(&state, &history[index].operation) else { continue };
            let mut more = done;
            more[index / 64] |= 1 << (index % 64);
            if tried.insert((more, next.clone())) {
                stack.push((more, next));
            }
        }
    }
    false
}
