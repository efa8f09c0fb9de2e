//! Answers by request key, so that a retry has no further effect.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::key::ServerKey;
use crate::schema::v1;

/// A stored answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// Method and body of the request.
    pub(crate) request: (u16, [u8; 16]),
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

/// Something by server and key. Memory is bounded by the number of keys per server and their time.
/// Cost of a change: O(log keys), whatever other servers have.
#[derive(Clone, Debug)]
pub(crate) struct Keys<T> {
    values: BTreeMap<(ServerKey, u128), T>,
    /// Keys of each server in order of time, and when they go. None is empty.
    queues: BTreeMap<ServerKey, VecDeque<(u64, u128)>>,
    /// Time when the first of each server goes.
    firsts: BTreeSet<(u64, ServerKey)>,
}

impl<T> Default for Keys<T> {
    fn default() -> Keys<T> {
        Keys { values: BTreeMap::new(), queues: BTreeMap::new(), firsts: BTreeSet::new() }
    }
}

impl<T> Keys<T> {
    pub(crate) fn find(&self, server: ServerKey, key: u128) -> Option<&T> {
        self.values.get(&(server, key))
    }

    /// Keeps a value, in the place of the server's oldest where that has `max`. Whether the server
    /// has one key more now.
    pub(crate) fn keep(&mut self, until: u64, server: ServerKey, key: u128, value: T, max: usize) -> bool {
        if let Some(known) = self.values.get_mut(&(server, key)) {
            *known = value;
            return false;
        }
        let is_full = self.queues.get(&server).is_some_and(|queue| queue.len() >= max);
        if is_full {
            self.forget_first(server);
        }
        self.values.insert((server, key), value);
        let queue = self.queues.entry(server).or_default();
        if queue.is_empty() {
            self.firsts.insert((until, server));
        }
        queue.push_back((until, key));
        !is_full
    }

    /// Forgets a key that is due; gives its server.
    pub(crate) fn expire(&mut self, now: u64) -> Option<ServerKey> {
        let (until, server) = *self.firsts.first()?;
        if until > now {
            return None;
        }
        self.forget_first(server);
        Some(server)
    }

    fn forget_first(&mut self, server: ServerKey) {
        let Some(queue) = self.queues.get_mut(&server) else { return };
        let Some((until, key)) = queue.pop_front() else { return };
        self.values.remove(&(server, key));
        self.firsts.remove(&(until, server));
        match queue.front() {
            Some((next, _)) => {
                self.firsts.insert((*next, server));
            }
            None => {
                self.queues.remove(&server);
            }
        }
    }
}

impl Keys<Answer> {
    /// Answers to a server's requests; the oldest first.
    pub(crate) fn save(&self, server: ServerKey) -> Vec<v1::Answer<'_>> {
        let own = self.queues.get(&server).into_iter().flatten();
        let answer = |(until, key): &(u64, u128)| {
            let Answer { request: (method, digest), status, body } = self.values.get(&(server, *key))?;
            let (until, key) = (*until, *key);
            Some(v1::Answer { until, key, method: *method, digest: *digest, status: *status, body })
        };
        own.filter_map(answer).collect()
    }

    /// Takes a server's answers back.
    pub(crate) fn load(&mut self, server: ServerKey, saved: &[v1::Answer<'_>]) {
        for v1::Answer { until, key, method, digest, status, body } in saved {
            let answer = Answer { request: (*method, *digest), status: *status, body: body.to_vec() };
            self.keep(*until, server, *key, answer, usize::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use throng_stdx::Rng;

    use super::*;

    #[test]
    fn it_does_what_a_list_does() {
        const MAX: usize = 8;
        let (mut rng, mut keys) = (Rng::new(7), Keys::default());
        let mut list: Vec<(u64, ServerKey, u128)> = Vec::new();
        for now in 0..20_000_u64 {
            let (server, key) = (ServerKey::new(rng.below(4) as u32), u128::from(rng.below(40)));
            let known = list.iter().any(|(_, own, other)| (*own, *other) == (server, key));
            assert_eq!(keys.find(server, key).is_some(), known);
            let own = list.iter().filter(|(_, owner, _)| *owner == server).count();
            let is_more = keys.keep(now + 20, server, key, now, MAX);
            assert_eq!(is_more, !known && own < MAX);
            if !known {
                if own == MAX {
                    let oldest = list.iter().position(|(_, owner, _)| *owner == server).unwrap();
                    list.remove(oldest);
                }
                list.push((now + 20, server, key));
            }
            assert_eq!(keys.find(server, key), Some(&now));
            // Not each time: several are due at once.
            if rng.chance(0.3) {
                let mut gone: Vec<ServerKey> = std::iter::from_fn(|| keys.expire(now)).collect();
                let due = list.iter().filter(|(until, ..)| *until <= now);
                let mut expected: Vec<ServerKey> = due.map(|(_, server, _)| *server).collect();
                gone.sort_unstable();
                expected.sort_unstable();
                assert_eq!(gone, expected);
                list.retain(|(until, ..)| *until > now);
            }
            assert_eq!(keys.values.len(), list.len());
            assert_eq!(keys.firsts.len(), keys.queues.len());
        }
    }
}
