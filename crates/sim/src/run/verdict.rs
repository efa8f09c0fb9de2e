//! The final messages of all peers, and the conditions that must hold once they have arrived.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use throng_client::{Access, ChannelId, Kind};

use super::actor::Actor;
use super::events::payload;
use super::{HARD_BYTES, HEAL_PHASE, MASTER, OBSERVER, Phase, Simulation, TO_OWNER, Truth};
use crate::check::{ActorIndex, End, SubscriptionLog, Violation, name_of};
use crate::data::writer_of;

impl Simulation {
    /// Every peer writes once more to each channel that it may write, and sends a message to every
    /// owner.
    pub(super) fn say_last_words(&mut self) -> Result<(), Violation> {
        self.phase = Phase::Settle;
        for index in 1..self.actors.len() {
            if !self.actors[index].session.is_open() {
                return Err(format!(
                    "actor {index} is not back {:?} after the faults ended; connection {:?}, closed {:?}",
                    HEAL_PHASE / 2,
                    self.actors[index].peer,
                    self.world.closed_by_gateway().last(),
                ));
            }
            let channels: Vec<u32> = self.channels.keys().copied().collect();
            for channel in channels {
                if self.channels[&channel].removed {
                    continue;
                }
                self.write(index, channel);
                let owner = self.channels[&channel].owner;
                let owned = self.actors[owner].owned.contains(&channel);
                let actor = &mut self.actors[index];
                if owned && actor.kind == Kind::Client {
                    let count = actor.messages;
                    actor.messages += 1;
                    if actor.session.send(ChannelId(channel), TO_OWNER, &payload(index, count)).is_ok() {
                        actor.last_messages.push((channel, count));
                    }
                }
            }
            self.pump(index)?;
        }
        Ok(())
    }

    pub(super) fn check_end(&mut self) -> Result<(), Violation> {
        let truths = self.truths()?;
        for log in &self.logs {
            let Some((items, _)) = truths.get(&log.channel) else { continue };
            log.check_items(items, self.end_of(log.channel, false))?;
        }
        for actor in &self.actors {
            for (channel, subscription) in &actor.subscriptions {
                let Some((items, entries)) = truths.get(channel) else { continue };
                let end = self.end_of(*channel, subscription.access != Access::None);
                subscription.log.check_items(items, end)?;
                if end == End::Reached {
                    subscription.log.check_entries(entries)?;
                    self.outcome.converged += 1;
                }
            }
        }
        self.check_latencies()?;
        for (index, actor) in self.actors.iter().enumerate() {
            for (channel, last) in &actor.last_items {
                let known = truths.get(channel).is_some_and(|(items, _)| items.contains(last));
                if !known && !self.channels[channel].removed {
                    return Err(format!("actor {index}'s last item {} is lost", name_of(*last)));
                }
            }
            for &(channel, count) in &actor.last_messages {
                let owner = self.channels[&channel].owner;
                if self.actors[owner].owned.contains(&channel)
                    && self.in_order.last(index, owner, channel) != Some(count)
                {
                    return Err(format!(
                        "actor {index}'s last message {count} in channel {channel} did not reach owner {owner}"
                    ));
                }
            }
        }
        self.check_ownership()?;
        let bound = 4 * HARD_BYTES + 2 * throng_wire::frame::PACKET_BYTES_MAX;
        if self.world.peak_outbox_bytes() > bound {
            return Err(format!("an outbox held {} bytes", self.world.peak_outbox_bytes()));
        }
        self.outcome.items = truths.values().map(|(items, _)| items.len() as u64).sum();
        Ok(())
    }

    /// Checks that a slow or stalled peer delays no other: updates of healthy writers are handled
    /// soon, and handled updates reach every healthy subscriber soon.
    fn check_latencies(&mut self) -> Result<(), Violation> {
        let live = |actor: &Actor| actor.subscriptions.values().map(|s| s.log.clone()).collect::<Vec<_>>();
        let logs: Vec<SubscriptionLog> =
            self.actors.iter().flat_map(live).chain(self.logs.drain(..)).collect();
        // The observer gets everything at every tick. Mail crosses at most twice, each time within
        // 0.2 ms.
        let ticks = self.tick + Duration::from_millis(1);
        let (observer, others): (Vec<_>, Vec<_>) = logs.into_iter().partition(|log| log.actor == OBSERVER);
        let mut handled = BTreeMap::new();
        for log in &observer {
            self.outcome.timed += log.check_latency(&self.sent, ticks, &self.disturbed)?;
            for (update, given) in log.updates.iter().zip(&log.given) {
                handled.extend(given.iter().flat_map(|&at| update.items.iter().map(move |&item| (item, at))));
            }
        }
        for log in &others {
            self.outcome.timed += log.check_latency(&handled, ticks, &self.disturbed)?;
        }
        Ok(())
    }

    fn end_of(&self, channel: u32, lives_on: bool) -> End {
        match self.channels.get(&channel) {
            Some(channel) if channel.removed => End::Cut,
            _ if lives_on => End::Reached,
            _ => End::Anywhere,
        }
    }

    /// Updates that every channel handled, in order, and its map, as the observer saw them.
    fn truths(&self) -> Result<BTreeMap<u32, Truth>, Violation> {
        let observer = &self.actors[OBSERVER];
        let ended = self.logs.iter().filter(|log| log.actor == OBSERVER);
        let mut truths = BTreeMap::new();
        for log in observer.subscriptions.values().map(|s| &s.log).chain(ended) {
            let mut items = Vec::new();
            let mut entries = BTreeMap::new();
            for update in &log.updates {
                items.extend_from_slice(&update.items);
                for (&key, entry) in &update.entries {
                    if entry.removed {
                        entries.remove(&key);
                    } else {
                        entries.insert(key, entry.value);
                    }
                }
            }
            let mut seen = BTreeSet::new();
            if let Some(twice) = items.iter().find(|&&item| !seen.insert(item)) {
                return Err(format!("the observer got {} twice in channel {}", name_of(*twice), log.channel));
            }
            let mut last: BTreeMap<usize, u64> = BTreeMap::new();
            for &item in &items {
                let writer = writer_of(item);
                if last.insert(writer, item).is_some_and(|before| before >= item) {
                    return Err(format!("{} was handled after a later one of its writer", name_of(item)));
                }
            }
            truths.insert(log.channel, (items, entries));
        }
        Ok(truths)
    }

    /// No channel has two owners, and GLOBAL has one.
    fn check_ownership(&self) -> Result<(), Violation> {
        let mut owners: BTreeMap<u32, ActorIndex> = BTreeMap::new();
        for (index, actor) in self.actors.iter().enumerate() {
            for &channel in &actor.owned {
                if let Some(other) = owners.insert(channel, index) {
                    return Err(format!("actors {other} and {index} both own channel {channel}"));
                }
            }
        }
        if owners.get(&0) != Some(&MASTER) {
            return Err("the master could not claim GLOBAL again".to_owned());
        }
        Ok(())
    }
}
