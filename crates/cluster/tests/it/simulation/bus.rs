//! The directory of the simulation, at least as hostile as NATS.

use std::collections::BTreeMap;
use std::rc::Rc;

/// One applied write.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) at: u64,
    pub(crate) key: Rc<str>,
    pub(crate) revision: u64,
    pub(crate) value: Option<Rc<[u8]>>,
}

/// All writes in their order, and the current record of each key.
#[derive(Default)]
pub(crate) struct Bus {
    pub(crate) log: Vec<Entry>,
    current: BTreeMap<Rc<str>, usize>,
    pub(crate) revision: u64,
    /// Time until which no node reaches it.
    pub(crate) away_until: u64,
    /// Periods in which no node reached it.
    pub(crate) away: Vec<(u64, u64)>,
}

impl Bus {
    /// Compare-and-set. Returns the new revision; `None` if the key is at another one.
    pub(crate) fn write(&mut self, at: u64, key: &str, expected: u64, value: Option<Vec<u8>>) -> Option<u64> {
        let current = self.current.get(key).map_or(0, |index| self.log[*index].revision);
        if current != expected {
            return None;
        }
        self.revision += 1;
        let key: Rc<str> = key.into();
        self.current.insert(Rc::clone(&key), self.log.len());
        self.log.push(Entry { at, key, revision: self.revision, value: value.map(Rc::from) });
        Some(self.revision)
    }

    /// The record of a key as it was at a time.
    pub(crate) fn read(&self, key: &str, at: u64) -> (u64, Option<Vec<u8>>) {
        let found = self.log.iter().rev().find(|entry| entry.at <= at && &*entry.key == key);
        found.map_or((0, None), |entry| (entry.revision, entry.value.as_deref().map(<[u8]>::to_vec)))
    }

    /// The current record of a key.
    pub(crate) fn get(&self, key: &str) -> Option<&Entry> {
        Some(&self.log[*self.current.get(key)?])
    }

    /// The current record of every key.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Entry> {
        self.current.values().map(|index| &self.log[*index])
    }

    /// All records as they were after the first `length` writes.
    pub(crate) fn snapshot(&self, length: usize) -> Vec<Entry> {
        let mut last: BTreeMap<&str, &Entry> = BTreeMap::new();
        for entry in &self.log[..length] {
            last.insert(&entry.key, entry);
        }
        last.into_values().cloned().collect()
    }

    /// Number of writes up to a time.
    pub(crate) fn length_at(&self, at: u64) -> usize {
        self.log.partition_point(|entry| entry.at <= at)
    }

    /// Loses all but the first `length` writes.
    pub(crate) fn lose(&mut self, length: usize) {
        self.log.truncate(length);
        self.revision = self.log.last().map_or(0, |entry| entry.revision);
        self.current.clear();
        for (index, entry) in self.log.iter().enumerate() {
            self.current.insert(Rc::clone(&entry.key), index);
        }
    }

    /// Loses the newest write of one key.
    pub(crate) fn lose_newest(&mut self, key: &str) {
        let newest = self.current[key];
        let before = self.log[..newest].iter().rposition(|entry| &*entry.key == key);
        self.current.insert(key.into(), before.expect("the key has had another record"));
    }

    pub(crate) fn is_away(&self, at: u64) -> bool {
        at < self.away_until
    }

    /// No node reaches it until `until`.
    pub(crate) fn leave(&mut self, at: u64, until: u64) {
        if until <= self.away_until {
            return;
        }
        match self.away.last_mut() {
            Some(last) if last.1 >= at => last.1 = until,
            _ => self.away.push((at, until)),
        }
        self.away_until = until;
    }
}
