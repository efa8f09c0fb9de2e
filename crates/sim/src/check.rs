//! Checkers: the gateway's guarantees, compared with the observations of every peer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use throng_stdx::Instant;

use crate::data::{SimData, keys_of, writer_of};

/// A broken promise, in words.
pub type Violation = String;

/// A peer of the simulation; keeps its number over reconnects.
pub type ActorIndex = usize;

/// Updates that one subscription received, from its confirmation to its end.
#[derive(Debug, Clone)]
pub struct SubscriptionLog {
    /// Subscriber.
    pub actor: ActorIndex,
    /// Channel that it subscribed to.
    pub channel: u32,
    /// Own updates are left out.
    pub skip_self: bool,
    /// Only one of the two fields is received.
    pub mask: Option<Field>,
    /// Messages in order.
    pub updates: Vec<SimData>,
    /// Instants at which the gateway gave each message to the link, if the link had room for it at
    /// once.
    pub given: Vec<Option<Instant>>,
    /// Instant at which the subscription was confirmed or restored and its delay had passed.
    pub since: Instant,
    /// The longest interval that may ever have been in force.
    pub interval: Duration,
    /// True if the peer's link was slow at some time, so that it may have received a full state
    /// again.
    pub slow: bool,
    /// Numbers of updates before which access was revoked and granted again, so that a full state
    /// follows with the removals in between.
    pub resets: Vec<usize>,
}

/// A field of [`SimData`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// The list.
    Items,
    /// The map.
    Entries,
}

/// Update that a subscriber must have reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It was subscribed to the end: it has everything.
    Reached,
    /// Its subscription ended some time.
    Anywhere,
    /// The channel was removed. What it handled last was sent to nobody, but is in a state that was
    /// sent then.
    Cut,
}

impl SubscriptionLog {
    /// Checks the list against the order in which the channel handled all items.
    ///
    /// # Errors
    /// An item twice, out of order, left out, or never sent by anybody.
    pub fn check_items(&self, truth: &[u64], end: End) -> Result<(), Violation> {
        if self.mask == Some(Field::Entries) {
            return match self.updates.iter().find(|update| !update.items.is_empty()) {
                Some(update) => Err(format!("{} got masked-out items {:?}", self.name(), update.items)),
                None => Ok(()),
            };
        }
        let own = |item: u64| self.skip_self && writer_of(item) == self.actor;
        let mut position = 0;
        let mut full_states = 0;
        for (number, update) in self.updates.iter().enumerate() {
            let Some(first) = update.items.first() else { continue };
            if Some(first) == truth.first() && truth.starts_with(&update.items) {
                if update.items.len() < position {
                    return Err(format!(
                        "{} update {number}: a full state with {} items after {position}",
                        self.name(),
                        update.items.len()
                    ));
                }
                full_states += 1;
                position = update.items.len();
                continue;
            }
            for &item in &update.items {
                let rest_is_own = truth[position..].iter().all(|&t| own(t));
                if end == End::Cut && rest_is_own && !truth.contains(&item) {
                    return Ok(());
                }
                let skipped = truth[position..].iter().take_while(|&&t| t != item && own(t)).count();
                if truth.get(position + skipped) != Some(&item) {
                    return Err(self.explain(truth, position, item, number));
                }
                position += skipped + 1;
            }
        }
        if full_states > 1 + self.resets.len() && !self.slow {
            return Err(format!("{} is healthy and got {full_states} full states", self.name()));
        }
        if end == End::Reached
            && let Some(missing) = truth[position..].iter().find(|&&item| !own(item))
        {
            return Err(format!(
                "{} has converged without item {} (and others behind place {position} of {})",
                self.name(),
                name_of(*missing),
                truth.len()
            ));
        }
        Ok(())
    }

    /// Checks that merging the received updates gives the channel's map.
    ///
    /// # Errors
    /// A wrong value, a missing entry, or an entry that should be gone.
    pub fn check_entries(&self, truth: &BTreeMap<u32, u64>) -> Result<(), Violation> {
        let mut mine: BTreeMap<u32, u64> = BTreeMap::new();
        for update in &self.updates {
            for (&key, entry) in &update.entries {
                if entry.removed {
                    mine.remove(&key);
                } else {
                    mine.insert(key, entry.value);
                }
            }
        }
        if self.mask == Some(Field::Items) {
            return if mine.is_empty() {
                Ok(())
            } else {
                Err(format!("{} got masked-out entries", self.name()))
            };
        }
        let own_keys = keys_of(self.actor);
        let others = |map: &BTreeMap<u32, u64>| -> BTreeMap<u32, u64> {
            map.iter()
                .filter(|(key, _)| !self.skip_self || !own_keys.contains(key))
                .map(|(&key, &value)| (key, value))
                .collect()
        };
        let (mine, theirs) = (others(&mine), others(truth));
        let keys: BTreeSet<u32> = mine.keys().chain(theirs.keys()).copied().collect();
        let different: Vec<String> = keys
            .into_iter()
            .filter(|key| mine.get(key) != theirs.get(key))
            .map(|key| format!("{key}: has {:?}, should have {:?}", mine.get(&key), theirs.get(&key)))
            .collect();
        if different.is_empty() {
            return Ok(());
        }
        Err(format!("{} did not converge: {}", self.name(), different.join("; ")))
    }

    /// Checks that a healthy subscriber gets every item soon after the channel handled it, whatever
    /// others do.
    ///
    /// `handled` says by when at the latest the channel handled each item, `ticks` how long a
    /// window may take beyond its interval, `disturbed` when the gateway itself was held up. What
    /// the link does afterwards is not the gateway's doing.
    ///
    /// # Errors
    /// An item that came too late.
    pub fn check_latency(
        &self,
        handled: &BTreeMap<u64, Instant>,
        ticks: Duration,
        disturbed: &[(Instant, Instant)],
    ) -> Result<u64, Violation> {
        if self.slow {
            return Ok(0);
        }
        let mut checked = 0;
        for (number, (update, given)) in self.updates.iter().zip(&self.given).enumerate() {
            let Some(given) = *given else { continue };
            // A full state comes when it was asked for to come; one that comes again may follow
            // what was removed.
            if number == 0 || self.resets.iter().any(|&reset| (reset..reset + 2).contains(&number)) {
                continue;
            }
            for item in &update.items {
                let Some(&by) = handled.get(item) else { continue };
                if disturbed.iter().any(|&(from, to)| by < to && given > from) {
                    continue;
                }
                checked += 1;
                // Updates handled while a connection was away arrive after its return.
                let by = by.max(self.since);
                if given.since(by) > self.interval + ticks {
                    return Err(format!(
                        "{} is healthy and was sent {} {:?} after it was handled; {:?} of interval and {ticks:?} of ticks \
                         are allowed",
                        self.name(),
                        name_of(*item),
                        given.since(by),
                        self.interval,
                    ));
                }
            }
        }
        Ok(checked)
    }

    fn explain(&self, truth: &[u64], position: usize, item: u64, number: usize) -> Violation {
        let what = match truth.iter().position(|&t| t == item) {
            None => "an item that the channel does not have".to_owned(),
            Some(place) if place < position => format!("an item again (place {place})"),
            Some(place) => format!(
                "place {place} without the items before, {}",
                truth[position..place].iter().map(|&t| name_of(t)).collect::<Vec<_>>().join(" ")
            ),
        };
        format!("{} update {number}: {} is {what}; it was at place {position}", self.name(), name_of(item))
    }

    fn name(&self) -> String {
        format!("actor {} in channel {}", self.actor, self.channel)
    }
}

/// An item in words.
#[must_use]
pub fn name_of(item: u64) -> String {
    format!("{}#{}", writer_of(item), item as u32)
}

/// Messages of one sender on one path, which arrive in order and once.
#[derive(Debug, Default)]
pub struct InOrder {
    last: BTreeMap<(ActorIndex, ActorIndex, u32), u32>,
}

impl InOrder {
    /// Takes note of an arrival.
    ///
    /// # Errors
    /// A message again, or after a later one.
    pub fn arrived(
        &mut self,
        from: ActorIndex,
        to: ActorIndex,
        channel: u32,
        count: u32,
    ) -> Result<(), Violation> {
        match self.last.insert((from, to, channel), count) {
            Some(last) if last >= count => Err(format!(
                "actor {to} got message {count} of actor {from} in channel {channel} after message {last}"
            )),
            _ => Ok(()),
        }
    }

    /// The latest message that arrived on a path.
    #[must_use]
    pub fn last(&self, from: ActorIndex, to: ActorIndex, channel: u32) -> Option<u32> {
        self.last.get(&(from, to, channel)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{SimEntry, item};

    fn log(updates: &[&[u64]]) -> SubscriptionLog {
        SubscriptionLog {
            actor: 1,
            channel: 9,
            skip_self: true,
            mask: None,
            updates: updates
                .iter()
                .map(|items| SimData { items: items.to_vec(), ..SimData::default() })
                .collect(),
            given: (1..=updates.len())
                .map(|number| Some(Instant::from_millis(number as u64 * 100)))
                .collect(),
            since: Instant::ZERO,
            interval: Duration::from_millis(50),
            slow: false,
            resets: Vec::new(),
        }
    }

    const A: u64 = 7 << 32;

    #[test]
    fn exactly_once_passes_and_everything_else_fails() {
        let own = item(1, 0);
        let truth = [A, A + 1, own, A + 2, A + 3];
        let check = |updates: &[&[u64]]| log(updates).check_items(&truth, End::Reached);
        assert_eq!(check(&[&[A, A + 1], &[A + 2], &[A + 3]]), Ok(()));
        assert_eq!(check(&[&[A, A + 1, own, A + 2], &[], &[A + 3]]), Ok(()));
        for wrong in [
            &[&[A, A + 1][..], &[A + 2]][..],
            &[&[A, A + 1], &[A + 1, A + 2, A + 3]],
            &[&[A, A + 1], &[A + 3]],
            &[&[A], &[A + 1, A + 3, A + 2]],
            &[&[A, A + 1, own, A + 2], &[A, A + 1, own, A + 2, A + 3]],
            &[&[A, A + 1, own, A + 2, A + 3], &[A + 9]],
        ] {
            assert!(check(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_slow_subscriber_may_get_the_full_state_again() {
        let truth = [A, A + 1, A + 2];
        let slow = SubscriptionLog { slow: true, ..log(&[&[A], &[A, A + 1, A + 2]]) };
        assert_eq!(slow.check_items(&truth, End::Reached), Ok(()));
        let back = SubscriptionLog { slow: true, ..log(&[&[A, A + 1], &[A]]) };
        assert!(back.check_items(&truth, End::Anywhere).is_err());
    }

    #[test]
    fn ghosts_are_found() {
        let entry = |removed| SimEntry { removed, value: 5 };
        let mut log = log(&[]);
        log.updates
            .push(SimData { entries: [(70, entry(false)), (71, entry(false))].into(), ..SimData::default() });
        assert!(log.check_entries(&BTreeMap::from([(70, 5)])).is_err());
        // Being slow is no excuse: what was removed is told before a full state.
        let slow = SubscriptionLog { slow: true, ..log.clone() };
        assert!(slow.check_entries(&BTreeMap::from([(70, 5)])).is_err());
        log.updates.push(SimData { entries: [(71, entry(true))].into(), ..SimData::default() });
        assert_eq!(log.check_entries(&BTreeMap::from([(70, 5)])), Ok(()));
    }

    #[test]
    fn late_updates_are_found() {
        // Updates are sent at 100, 200 and 300 ms; 60 ms after handling is allowed.
        let log = log(&[&[A], &[A + 1], &[A + 2]]);
        let (ticks, at) = (Duration::from_millis(10), Instant::from_millis);
        let handled = |second, third| BTreeMap::from([(A, at(0)), (A + 1, at(second)), (A + 2, at(third))]);
        let check = |handled, disturbed: &[_]| log.check_latency(&handled, ticks, disturbed);
        assert_eq!(check(handled(140, 240), &[]), Ok(2));
        assert!(check(handled(140, 239), &[]).is_err());
        assert_eq!(check(handled(140, 239), &[(at(230), at(240))]), Ok(1));
        let slow = SubscriptionLog { slow: true, ..log.clone() };
        assert_eq!(slow.check_latency(&handled(140, 239), ticks, &[]), Ok(0));
        let unknown = SubscriptionLog { given: vec![None; 3], ..log.clone() };
        assert_eq!(unknown.check_latency(&handled(140, 239), ticks, &[]), Ok(0));
    }
}
