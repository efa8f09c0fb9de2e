//! Random operations of actors.

use std::time::Duration;

use prost::Message as _;
use throng_client::{
    Access, ChannelId, ChannelType, ConnId, CreateChannel, Kind, MergeOptions, SubscribeOptions, broadcast,
};

use super::events::payload;
use super::{CHANNELS_MAX, MASTER, OPERATE, Phase, SERVERS, Simulation, TO_ALL, TO_OWNER, token};
use crate::check::{ActorIndex, Violation};
use crate::data::{SimData, SimEntry, TYPE_NAME, item, keys_of};

impl Simulation {
    /// An actor does something, and something else a little later.
    pub(super) fn operate(&mut self, index: ActorIndex) -> Result<(), Violation> {
        if self.phase == Phase::Settle {
            return Ok(());
        }
        let now = self.world.now();
        let times = if self.actors[index].floods_until > now { 8 } else { 1 };
        if self.phase == Phase::Faults {
            for _ in 0..times {
                self.operate_once(index)?;
            }
        } else if index == MASTER && !self.actors[MASTER].owned.contains(&0) {
            let create = CreateChannel::new(ChannelType::GLOBAL).metadata("master");
            let _ = self.actors[MASTER].session.create_channel(now, &create);
        }
        self.pump(index)?;
        let pause = Duration::from_micros(self.rng.range(4_000..60_000));
        self.world.wake(now + pause, token(OPERATE, index));
        Ok(())
    }

    fn operate_once(&mut self, index: ActorIndex) -> Result<(), Violation> {
        let now = self.world.now();
        if !self.actors[index].session.is_open() {
            return Ok(());
        }
        let live: Vec<u32> =
            self.channels.iter().filter(|(_, c)| !c.removed).map(|(&channel, _)| channel).collect();
        let any = (!live.is_empty()).then(|| live[self.rng.below(live.len() as u64) as usize]);
        let subscribed = |channel| self.actors[index].subscriptions.contains_key(&channel);
        let owned = |channel| self.actors[index].owned.contains(&channel);
        // Sending may fail when the link is stalled and the outbox full; then the actor does
        // nothing.
        match (self.rng.below(100), any) {
            (0..45, Some(channel)) => self.write(index, channel),
            (45..60, Some(channel)) => {
                let actor = &mut self.actors[index];
                let count = actor.messages;
                actor.messages += 1;
                let payload = payload(index, count);
                let _ = match actor.kind {
                    Kind::Client => actor.session.send(ChannelId(channel), TO_OWNER, &payload),
                    Kind::Server => {
                        let to = [broadcast::ALL, broadcast::ALL_BUT_SENDER, broadcast::ALL_BUT_SERVER];
                        let to = to[self.rng.below(3) as usize];
                        actor.session.forward(ChannelId(channel), to, TO_ALL, ConnId(0), &payload)
                    }
                };
            }
            (60..75, Some(channel)) => self.subscribe(index, channel),
            (75..80, Some(channel)) if subscribed(channel) && !owned(channel) => {
                let _ = self.actors[index].session.unsubscribe(now, ChannelId(channel), None);
            }
            (80..85, Some(channel)) if subscribed(channel) => {
                let interval = Duration::from_millis(self.rng.below(120));
                let options = self.actors[index].style.options(Access::Read);
                let options = SubscribeOptions { access: None, ..options }.every(interval);
                self.actors[index].asks_for(channel, interval);
                let _ = self.actors[index].session.change_subscription(ChannelId(channel), None, &options);
            }
            (85..87, Some(channel)) if subscribed(channel) => {
                let access = [Access::None, Access::Read, Access::Write][self.rng.below(3) as usize];
                let options = self.actors[index].style.options(access);
                let _ = self.actors[index].session.subscribe(now, ChannelId(channel), None, &options);
            }
            (87..88, Some(channel)) if owned(channel) => {
                let _ = self.actors[index].session.remove_channel(now, ChannelId(channel));
            }
            (88..91, Some(channel)) if index == MASTER => {
                let whom = self.rng.range(1 + SERVERS as u64..self.actors.len() as u64) as usize;
                if let Some(conn) = self.actors[whom].conn.filter(|_| self.actors[whom].session.is_open()) {
                    let options = self.actors[whom].style.options(Access::Write);
                    let session = &mut self.actors[MASTER].session;
                    let _ = if self.rng.chance(0.6) {
                        session.subscribe(now, ChannelId(channel), Some(conn), &options)
                    } else if self.channels[&channel].owner != whom {
                        session.unsubscribe(now, ChannelId(channel), Some(conn))
                    } else {
                        return Ok(());
                    };
                }
            }
            (91..93, _) => {
                let _ = self.actors[index].session.list_channels(now, None, &[]);
            }
            (93..100, _) if live.len() < CHANNELS_MAX => self.create(index),
            _ => {}
        }
        Ok(())
    }

    fn create(&mut self, index: ActorIndex) {
        let now = self.world.now();
        let channel_type = if self.rng.chance(0.7) { ChannelType::SUBWORLD } else { ChannelType(100) };
        let options = self.actors[index].style.options(Access::Write);
        let create = CreateChannel::new(channel_type)
            .metadata(format!("of {index}"))
            .data(TYPE_NAME, SimData::default().encode_to_vec())
            .merge(MergeOptions { check_removable: true, ..MergeOptions::default() })
            .options(options);
        let _ = self.actors[index].session.create_channel(now, &create);
    }

    pub(super) fn subscribe(&mut self, index: ActorIndex, channel: u32) {
        let now = self.world.now();
        if self.actors[index].subscriptions.contains_key(&channel)
            || self.actors[index].asked.values().any(|&(asked, _)| asked == channel)
        {
            return;
        }
        let rng = &mut self.rng;
        let access = if rng.chance(0.6) { Access::Write } else { Access::Read };
        let options = SubscribeOptions {
            fan_out_interval: rng.chance(0.7).then(|| Duration::from_millis(rng.below(100))),
            fan_out_delay_ms: rng.chance(0.3).then(|| rng.below(200) as i32 - 50),
            ..self.actors[index].style.options(access)
        };
        if let Ok(request) = self.actors[index].session.subscribe(now, ChannelId(channel), None, &options) {
            self.actors[index].asks_for(channel, options.fan_out_interval.unwrap_or_default());
            self.actors[index].asked.insert(request, (channel, options));
        }
    }

    /// Sends an update if the actor may; returns the item.
    pub(super) fn write(&mut self, index: ActorIndex, channel: u32) {
        let actor = &mut self.actors[index];
        let may = actor.owned.contains(&channel)
            || actor.subscriptions.get(&channel).is_some_and(|s| s.access == Access::Write);
        if !may {
            return;
        }
        let mut update = SimData::default();
        for _ in 0..self.rng.range(1..4) {
            update.items.push(item(index, actor.items));
            actor.items += 1;
        }
        for _ in 0..self.rng.below(3) {
            let key = self.rng.range(keys_of(index).start.into()..keys_of(index).end.into()) as u32;
            actor.values += 1;
            let entry = SimEntry { removed: self.rng.chance(0.4), value: actor.values };
            update.entries.insert(key, entry);
        }
        if self.rng.chance(0.6) {
            update.weight = vec![0x55; self.rng.range(500..4000) as usize];
        }
        let last = update.items.last().copied();
        let sent = actor.session.update(ChannelId(channel), TYPE_NAME, &update.encode_to_vec());
        if let (Ok(()), Some(last), Phase::Settle) = (&sent, last, self.phase) {
            actor.last_items.push((channel, last));
        }
        if sent.is_ok() && !actor.slow {
            actor.fresh_items.extend(update.items);
        }
    }
}
