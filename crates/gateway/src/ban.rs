//! Bans of players and addresses, and the failures that lead to them. Spec §4.5; weakness A-18:
//! both expire here.

use core::time::Duration;
use std::collections::BTreeMap;
use std::net::IpAddr;

use throng_stdx::Instant;

use crate::config::Abuse;
use crate::ids::address_group;

/// Who is banned or counted. Ordered maps: attackers choose the keys, and comparison cannot be
/// aimed at.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    Player(Box<str>),
    /// Failed logins from an address, whatever the name.
    Address(IpAddr),
    /// Failed logins of a name from an address. From another address the name is none the worse for
    /// them.
    Login(IpAddr, Box<str>),
}

impl Subject {
    pub(crate) fn player(pit: &str) -> Self {
        Self::Player(pit.into())
    }

    pub(crate) fn address(addr: IpAddr) -> Self {
        Self::Address(address_group(addr))
    }

    pub(crate) fn login(addr: IpAddr, pit: &str) -> Self {
        Self::Login(address_group(addr), pit.into())
    }
}

#[derive(Debug)]
pub(crate) struct Bans {
    bans: Expiring<()>,
    failures: Expiring<u32>,
    ban_duration: Duration,
    failure_memory: Duration,
}

impl Bans {
    pub(crate) fn new(config: &Abuse) -> Self {
        Self {
            bans: Expiring::new(config.entries_max),
            failures: Expiring::new(config.entries_max),
            ban_duration: config.ban_duration,
            failure_memory: config.failure_memory,
        }
    }

    /// Bans and failures from now on last as `config` says.
    pub(crate) fn reconfigure(&mut self, config: &Abuse) {
        self.ban_duration = config.ban_duration;
        self.failure_memory = config.failure_memory;
        self.bans.max = config.entries_max.max(1);
        self.failures.max = config.entries_max.max(1);
    }

    pub(crate) fn is_banned(&mut self, now: Instant, subject: &Subject) -> bool {
        self.bans.get(now, subject).is_some()
    }

    pub(crate) fn ban(&mut self, now: Instant, subject: Subject) {
        self.failures.remove(&subject);
        self.bans.insert(now, now + self.ban_duration, subject, ());
    }

    /// Counts a failure; true when the subject has reached `max` (0 switches the rule off) and is
    /// banned from now on.
    pub(crate) fn fail(&mut self, now: Instant, subject: Subject, max: u32) -> bool {
        if max == 0 {
            return false;
        }
        if self.count(now, subject.clone()) >= max {
            self.ban(now, subject);
            return true;
        }
        false
    }

    /// Counts a failure, and says how many of the subject are remembered.
    pub(crate) fn count(&mut self, now: Instant, subject: Subject) -> u32 {
        let count = self.failures.get(now, &subject).copied().unwrap_or(0).saturating_add(1);
        self.failures.insert(now, now + self.failure_memory, subject, count);
        count
    }

    /// A success: earlier failures of the subject are forgiven.
    pub(crate) fn succeed(&mut self, subject: &Subject) {
        self.failures.remove(subject);
    }

    pub(crate) fn len(&mut self, now: Instant) -> usize {
        self.bans.expire(now);
        self.bans.entries.len()
    }
}

/// A bounded map whose entries end by themselves; when it is full the entry that would end first
/// gives way.
#[derive(Debug)]
struct Expiring<V> {
    entries: BTreeMap<Subject, (Instant, V)>,
    by_end: BTreeMap<(Instant, Subject), ()>,
    max: usize,
}

impl<V> Expiring<V> {
    fn new(max: usize) -> Self {
        Self { entries: BTreeMap::new(), by_end: BTreeMap::new(), max: max.max(1) }
    }

    fn get(&mut self, now: Instant, subject: &Subject) -> Option<&V> {
        self.expire(now);
        self.entries.get(subject).map(|(_, value)| value)
    }

    fn insert(&mut self, now: Instant, end: Instant, subject: Subject, value: V) {
        self.expire(now);
        self.remove(&subject);
        while self.entries.len() >= self.max
            && let Some(((_, first), ())) = self.by_end.pop_first()
        {
            self.entries.remove(&first);
        }
        self.by_end.insert((end, subject.clone()), ());
        self.entries.insert(subject, (end, value));
    }

    fn remove(&mut self, subject: &Subject) {
        if let Some((end, _)) = self.entries.remove(subject) {
            self.by_end.remove(&(end, subject.clone()));
        }
    }

    /// Costs as much as there is to expire.
    fn expire(&mut self, now: Instant) {
        while let Some(((end, _), ())) = self.by_end.first_key_value()
            && *end <= now
            && let Some(((_, subject), ())) = self.by_end.pop_first()
        {
            self.entries.remove(&subject);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bans(entries_max: usize) -> Bans {
        Bans::new(&Abuse { entries_max, ..Abuse::default() })
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_millis(seconds * 1000)
    }

    #[test]
    fn a18_bans_and_counters_expire() {
        let mut bans = bans(10);
        let ann = Subject::player("ann");
        for second in 0..4 {
            assert!(!bans.fail(at(second), ann.clone(), 5));
        }
        assert!(bans.fail(at(4), ann.clone(), 5));
        assert!(bans.is_banned(at(5), &ann));
        assert!(bans.is_banned(at(903), &ann));
        assert!(!bans.is_banned(at(904), &ann), "15 minutes later");
        assert!(!bans.fail(at(905), ann.clone(), 2), "counting starts over");
        assert!(!bans.fail(at(905 + 601), ann.clone(), 2), "the earlier failure is forgotten");
        assert_eq!(bans.len(at(2000)), 0);
    }

    #[test]
    fn a_success_forgives_and_a_limit_of_zero_never_bans() {
        let mut bans = bans(10);
        let home = Subject::address("10.0.0.1".parse().expect("an address"));
        assert!(!bans.fail(at(0), home.clone(), 2));
        bans.succeed(&home);
        assert!(!bans.fail(at(1), home.clone(), 2));
        assert!((0..100).all(|_| !bans.fail(at(2), home.clone(), 0)));
    }

    #[test]
    fn a_flood_of_names_does_not_grow_without_bound() {
        let mut bans = bans(100);
        for name in 0..10_000 {
            bans.fail(at(0), Subject::player(&name.to_string()), 1);
        }
        assert_eq!(bans.len(at(1)), 100);
    }
}
