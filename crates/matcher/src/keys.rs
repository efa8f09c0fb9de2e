//! Answers to requests that carried a key, so that a retry has no further effect.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

/// What was answered.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

/// Answers by server and key. Memory is bounded by the number of keys per server and their time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Keys {
    answers: BTreeMap<(u32, u128), Answer>,
    /// In order of time: when each goes.
    queue: VecDeque<(u64, u32, u128)>,
    counts: BTreeMap<u32, usize>,
}

impl Keys {
    pub(crate) fn find(&self, server: u32, key: u128) -> Option<&Answer> {
        self.answers.get(&(server, key))
    }

    /// Keeps an answer. Returns how many of the server's keys are kept now.
    pub(crate) fn keep(&mut self, until: u64, server: u32, key: u128, answer: Answer, max: usize) -> bool {
        if self.counts.get(&server).is_some_and(|count| *count >= max) {
            return false;
        }
        if self.answers.insert((server, key), answer).is_none() {
            *self.counts.entry(server).or_default() += 1;
            self.queue.push_back((until, server, key));
        }
        true
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
    pub(crate) fn make_room(&mut self, server: u32) {
        if let Some(at) = self.queue.iter().position(|(_, owner, _)| *owner == server)
            && let Some((_, server, key)) = self.queue.remove(at)
        {
            self.answers.remove(&(server, key));
            self.lower(server);
        }
    }

    fn forget_first(&mut self, server: u32, key: u128) {
        self.queue.pop_front();
        self.answers.remove(&(server, key));
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
