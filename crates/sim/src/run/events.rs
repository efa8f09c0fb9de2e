//! Events that actors receive, and the checks that must hold at once.

use std::time::Duration;

use prost::Message as _;
use throng_client::{
    Access, ChannelId, ChannelType, CloseReason as SessionEnd, ConnId, CreateChannel, Event, RequestId,
    SubscribeOptions,
};

use super::actor::Subscription;
use super::{Channel, MASTER, OBSERVER, Simulation, TO_ALL, TO_OWNER};
use crate::check::{ActorIndex, Field, SubscriptionLog, Violation};
use crate::data::SimData;

impl Simulation {
    pub(super) fn handle_event(&mut self, index: ActorIndex, event: Event) -> Result<(), Violation> {
        match event {
            Event::Authenticated { conn, .. } => {
                let twin = self.actors.iter().position(|a| a.peer.is_some() && a.conn == Some(conn));
                if let Some(twin) = twin.filter(|&twin| twin != index && self.actors[twin].session.is_open())
                {
                    // A vanished twin may still believe in its id; two live ones may not.
                    let peer = self.actors[twin].peer;
                    if peer.is_some_and(|peer| self.world.is_open(peer)) {
                        return Err(format!("actors {twin} and {index} both have connection id {conn}"));
                    }
                }
                self.actors[index].conn = Some(conn);
                if index == MASTER {
                    let now = self.world.now();
                    let create = CreateChannel::new(ChannelType::GLOBAL).metadata("master");
                    // Refused while an earlier owner is alive or may return; tried again later.
                    let _ = self.actors[index].session.create_channel(now, &create);
                }
            }
            Event::Recovered { channels } => self.recovered(index, channels)?,
            // The request may have been given up long ago; copies of others' creations name another
            // owner.
            Event::ChannelCreated { channel, owner, .. } if self.actors[index].conn == Some(owner) => {
                self.created(index, channel.0)?;
            }
            Event::ChannelRemoved { channel, .. } => self.removed(index, channel.0),
            Event::Subscribed { request, channel, conn, options, .. } => {
                self.subscribed(index, request, channel.0, conn, options)?;
            }
            Event::Unsubscribed { channel, conn, .. } if self.actors[index].conn == Some(conn) => {
                let actor = &mut self.actors[index];
                if let Some(subscription) = actor.subscriptions.remove(&channel.0) {
                    self.logs.push(subscription.log);
                }
                if actor.owned.remove(&channel.0)
                    && let Some(channel) = self.channels.get_mut(&channel.0)
                {
                    channel.orphaned = true;
                }
            }
            Event::Update { channel, value, .. } => self.updated(index, channel.0, &value)?,
            Event::Message { channel, msg_type, client, payload, .. } => {
                self.message(index, channel.0, msg_type, client, &payload)?;
            }
            Event::Closed { reason: SessionEnd::BadFrame(error) } => {
                return Err(format!("the gateway sent actor {index} a bad frame: {error}"));
            }
            Event::Other { msg_type, .. } => {
                return Err(format!("the gateway sent actor {index} a message of type {msg_type}"));
            }
            _ => {}
        }
        if self.actors[index].session.counters().malformed > 0 {
            return Err(format!("the gateway sent actor {index} a body that does not decode"));
        }
        Ok(())
    }

    fn created(&mut self, index: ActorIndex, channel: u32) -> Result<(), Violation> {
        if channel == 0 {
            self.actors[index].owned.insert(0);
            return Ok(());
        }
        let new = Channel { owner: index, ..Channel::default() };
        if self.channels.insert(channel, new).is_some() {
            return Err(format!("channel id {channel} was given twice within seconds"));
        }
        self.actors[index].owned.insert(channel);
        // The observer looks at it from now on.
        let now = self.world.now();
        let options =
            SubscribeOptions { skip_self: Some(false), ..SubscribeOptions::read().every(Duration::ZERO) };
        let request = self.actors[OBSERVER].session.subscribe(now, ChannelId(channel), None, &options);
        request.map_err(|error| format!("the observer cannot subscribe: {error}"))?;
        self.pump(OBSERVER)
    }

    pub(super) fn removed(&mut self, index: ActorIndex, channel: u32) {
        if let Some(subscription) = self.actors[index].subscriptions.remove(&channel) {
            self.logs.push(subscription.log);
        }
        self.actors[index].owned.remove(&channel);
        if let Some(channel) = self.channels.get_mut(&channel) {
            channel.orphaned = true;
            channel.removed |= index == OBSERVER;
        }
    }

    fn subscribed(
        &mut self,
        index: ActorIndex,
        request: Option<RequestId>,
        channel: u32,
        conn: ConnId,
        effective: SubscribeOptions,
    ) -> Result<(), Violation> {
        let actor = &mut self.actors[index];
        if let Some(request) = request {
            actor.asked.remove(&request);
        }
        if actor.conn != Some(conn) {
            return Ok(());
        }
        let access = effective.access.unwrap_or(Access::Read);
        let skip_self = effective.skip_self.unwrap_or(true);
        let longest = actor.intervals.entry(channel).or_default();
        *longest = effective.fan_out_interval.unwrap_or_default().max(*longest);
        let interval = *longest;
        let delay = effective.fan_out_delay_ms.and_then(|ms| u64::try_from(ms).ok()).unwrap_or_default();
        let delay = Duration::from_millis(delay);
        if let Some(subscription) = actor.subscriptions.get_mut(&channel) {
            if subscription.access == Access::None {
                subscription.log.resets.push(subscription.log.updates.len());
            }
            subscription.access = access;
            subscription.log.interval = subscription.log.interval.max(interval);
            return Ok(());
        }
        let log = SubscriptionLog {
            actor: index,
            channel,
            skip_self,
            mask: match effective.field_masks.first().map(String::as_str) {
                Some("items") => Some(Field::Items),
                Some("entries") => Some(Field::Entries),
                _ => None,
            },
            updates: Vec::new(),
            given: Vec::new(),
            since: self.world.now() + delay,
            interval,
            slow: actor.slow,
            resets: Vec::new(),
        };
        actor.subscriptions.insert(channel, Subscription { log, access });
        Ok(())
    }

    fn recovered(
        &mut self,
        index: ActorIndex,
        channels: Vec<throng_client::RecoveredChannel>,
    ) -> Result<(), Violation> {
        for channel in channels {
            let id = channel.channel.0;
            let conn = self.actors[index].conn.ok_or("recovered without an id")?;
            self.subscribed(index, None, id, conn, channel.options)?;
            if channel.owner == Some(conn) {
                self.actors[index].owned.insert(id);
                if let Some(known) = self.channels.get_mut(&id) {
                    (known.owner, known.orphaned) = (index, false);
                }
            }
            if let Some(data) = channel.data {
                // The whole data, whatever the subscription's mask (spec §4.7).
                let mut state = SimData::decode(&*data.value).map_err(|e| format!("recovered data: {e}"))?;
                match self.actors[index].style.mask {
                    Some(Field::Items) => state.entries.clear(),
                    Some(Field::Entries) => state.items.clear(),
                    None => {}
                }
                self.updated(index, id, &state.encode_to_vec())?;
            }
        }
        Ok(())
    }

    fn updated(&mut self, index: ActorIndex, channel: u32, value: &[u8]) -> Result<(), Violation> {
        let update = SimData::decode(value).map_err(|e| format!("an update does not decode: {e}"))?;
        self.outcome.updates += 1;
        let given = self.actors[index].peer.and_then(|peer| self.world.given_at(peer));
        let Some(subscription) = self.actors[index].subscriptions.get_mut(&channel) else {
            return Err(format!(
                "actor {index} got an update of channel {channel}, to which it is not subscribed: {update:?}"
            ));
        };
        if subscription.access == Access::None {
            return Err(format!("actor {index} got an update of channel {channel} without access"));
        }
        subscription.log.updates.push(update);
        subscription.log.given.push(given);
        Ok(())
    }

    fn message(
        &mut self,
        index: ActorIndex,
        channel: u32,
        msg_type: u32,
        client: ConnId,
        payload: &[u8],
    ) -> Result<(), Violation> {
        let Some((from, count)) = read_payload(payload) else {
            return Err(format!("actor {index} got a message that no actor sent: {payload:?}"));
        };
        self.outcome.messages += 1;
        if msg_type == TO_OWNER && self.actors[from].conn != Some(client) && self.actors[from].returns == 0 {
            return Err(format!("actor {index}: message of actor {from} names connection {client}"));
        }
        if msg_type == TO_ALL && !self.actors[index].subscriptions.contains_key(&channel) {
            return Err(format!(
                "actor {index} got a broadcast in channel {channel}, to which it is not subscribed"
            ));
        }
        self.in_order.arrived(from, index, channel, count)
    }
}

pub(super) fn payload(from: ActorIndex, count: u32) -> [u8; 8] {
    (((from as u64) << 32) | u64::from(count)).to_le_bytes()
}

fn read_payload(payload: &[u8]) -> Option<(ActorIndex, u32)> {
    let value = u64::from_le_bytes(payload.try_into().ok()?);
    Some(((value >> 32) as usize, value as u32))
}
