//! What is known of requests that carried a key, so that a retry has no further effect.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

/// What was answered.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

/// Something by server and key. Memory is bounded by the number of keys per server and their time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Keys<T> {
    values: BTreeMap<(u32, u128), T>,
    /// In order of time: when each goes.
    queue: VecDeque<(u64, u32, u128)>,
    counts: BTreeMap<u32, usize>,
}

impl<T> Default for Keys<T> {
    fn default() -> Keys<T> {
        Keys { values: BTreeMap::new(), queue: VecDeque::new(), counts: BTreeMap::new() }
    }
}

impl<T> Keys<T> {
    pub(crate) fn find(&self, server: u32, key: u128) -> Option<&T> {
        self.values.get(&(server, key))
    }

    /// Keeps a value, in the place of the server's oldest where that has `max`. Whether the server has one key more now.
    pub(crate) fn keep(&mut self, until: u64, server: u32, key: u128, value: T, max: usize) -> bool {
        if let Some(known) = self.values.get_mut(&(server, key)) {
            *known = value;
            return false;
        }
        let is_full = self.counts.get(&server).is_some_and(|count| *count >= max);
        if is_full {
            self.make_room(server);
        }
        self.values.insert((server, key), value);
        *self.counts.entry(server).or_default() += 1;
        self.queue.push_back((until, server, key));
        !is_full
    }

    /// Forgets what is due; gives the servers concerned, one per forgotten key.
    pub(crate) fn expire(&mut self, now: u64) -> Option<u32> {
        let (until, server, key) = *self.queue.front()?;
        if until > now {
            return None;
        }
        self.forget_first(server, key);
        Some(server)
    }

    /// Forgets the oldest key of a server that has too many.
    fn make_room(&mut self, server: u32) {
        if let Some(at) = self.queue.iter().position(|(_, owner, _)| *owner == server)
            && let Some((_, server, key)) = self.queue.remove(at)
        {
            self.values.remove(&(server, key));
            self.lower(server);
        }
    }

    fn forget_first(&mut self, server: u32, key: u128) {
        self.queue.pop_front();
        self.values.remove(&(server, key));
        self.lower(server);
    }

    fn lower(&mut self, server: u32) {
        if let Some(count) = self.counts.get_mut(&server) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&server);
            }
        }
    }
}
