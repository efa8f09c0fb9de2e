//! A channel: its owner, its subscribers with their options, its data. Spec §5 and §7.1.
//!
//! `requests` and `recovery` decide the receivers of messages, `fanout` the time of data updates.

use core::hash::BuildHasher as _;
use core::ops::Deref;
use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashTable;
use slab::Slab;
use throng_stdx::Instant;
use throng_wire::channeldpb::{ChannelDataAccess, ChannelDataMergeOptions, ChannelSubscriptionOptions};
use throng_wire::unrealpb::UnrealObjectRef;

use crate::data::{ChannelData, MergeOptions, Plan, Update};
use crate::failpoint::failpoint;
use crate::fanout::{FanOut, FanoutPosition};
use crate::ids::{ChannelId, ConnId, ConnKind, IdHasher};
use crate::mail::{Head, Payload};
use crate::outbox::Entry;
use crate::reason::Refusal;
use crate::settings::{ChannelType, TypeSettings};
use crate::switchboard::{Address, Switchboard};

#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) id: ChannelId,
    pub(crate) channel_type: ChannelType,
    pub(crate) metadata: String,
    /// The live owner. A lost or closed owner is no owner.
    pub(crate) owner: Option<ConnId>,
    pub(crate) settings: Arc<TypeSettings>,
    /// Channel time zero, at most one tick before the creation; ticks lie at whole multiples of the
    /// tick interval after it.
    pub(crate) created: Instant,
    pub(crate) subs: Slab<Subscription>,
    by_conn: ByConn,
    /// Places of lost connections that may return.
    pub(crate) lost: Vec<LostPlace>,
    pub(crate) data: Option<DataState>,
    /// As the creator gave them, for the channel's lifetime.
    pub(crate) merge_options: Option<MergeOptions>,
    pub(crate) fan: FanOut,
    /// Objects spawned and not destroyed (Unreal): id to reference. Told to an owner that recovers.
    pub(crate) objects: BTreeMap<u32, UnrealObjectRef>,
}

/// The channel's data and how it is named.
#[derive(Debug)]
pub(crate) struct DataState {
    pub(crate) content: ChannelData,
    pub(crate) type_url: Box<str>,
}

/// One connection's subscription.
#[derive(Debug)]
pub(crate) struct Subscription {
    pub(crate) address: Address,
    pub(crate) kind: ConnKind,
    pub(crate) options: Options,
    pub(crate) rate_by: RateBy,
    pub(crate) since: Instant,
    /// It has had a full state, or wants none.
    pub(crate) had_first: bool,
    /// It has an older state and missed updates since: what was removed must be told before the
    /// next full state.
    pub(crate) stale: bool,
    /// Channel time in nanoseconds from which its windows count.
    pub(crate) anchor: i64,
    pub(crate) place: FanoutPosition,
}

/// Keys of subscriptions by connection. The ids stand in the subscriptions, so a million of these
/// cost half as much as entries of a map.
#[derive(Debug)]
struct ByConn {
    keys: HashTable<u32>,
    hasher: IdHasher,
}

impl ByConn {
    fn new(hasher: IdHasher) -> Self {
        Self { keys: HashTable::new(), hasher }
    }

    fn get(&self, subs: &Slab<Subscription>, conn: ConnId) -> Option<u32> {
        self.keys.find(self.hasher.hash_one(conn), |&key| subs[key as usize].address.conn == conn).copied()
    }

    /// Notes a subscription that is not noted yet.
    fn insert(&mut self, subs: &Slab<Subscription>, key: u32) {
        let hash = |&key: &u32| self.hasher.hash_one(subs[key as usize].address.conn);
        self.keys.insert_unique(hash(&key), key, hash);
    }

    /// Forgets a subscription, which still exists.
    fn remove(&mut self, subs: &Slab<Subscription>, conn: ConnId) -> Option<u32> {
        let found =
            self.keys.find_entry(self.hasher.hash_one(conn), |&key| subs[key as usize].address.conn == conn);
        found.ok().map(|entry| entry.remove().0)
    }
}

/// The chooser of a subscription's interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RateBy {
    /// Nobody.
    Default,
    /// The subscriber named it: network level of detail leaves it alone.
    Subscriber,
    /// The gateway, by distance. Such subscriptions share their windows, see
    /// [`Channel::shared_phase`].
    Gateway,
}

/// The place of a connection that was lost and may return.
#[derive(Debug)]
pub(crate) struct LostPlace {
    pub(crate) conn: ConnId,
    pub(crate) kind: ConnKind,
    pub(crate) was_owner: bool,
    /// `None` when it owned the channel without being subscribed.
    pub(crate) subscription: Option<(Options, RateBy, Instant)>,
}

/// Effective subscription options. Spec §3.3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Options {
    /// The protocol's `ChannelDataAccess`; an open enumeration, so unknown numbers are kept and can
    /// only read.
    pub(crate) access: i32,
    pub(crate) masks: Masks,
    pub(crate) interval_ms: u32,
    pub(crate) delay_ms: i32,
    pub(crate) skip_self: bool,
    pub(crate) skip_first: bool,
}

/// Paths of a field mask. Takes one word where there are none, which is nearly everywhere.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Masks(Option<Box<Paths>>);

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Paths(Vec<String>);

impl Masks {
    fn add(&mut self, paths: &[String]) {
        if !paths.is_empty() {
            self.0.get_or_insert_default().0.extend_from_slice(paths);
        }
    }
}

impl Deref for Masks {
    type Target = [String];

    fn deref(&self) -> &[String] {
        self.0.as_ref().map_or(&[], |paths| &paths.0)
    }
}

impl Options {
    /// The channel's defaults, overridden by what was asked for.
    pub(crate) fn new(settings: &TypeSettings, request: Option<&ChannelSubscriptionOptions>) -> Self {
        let mut options = Self {
            access: ChannelDataAccess::ReadAccess as i32,
            masks: Masks::default(),
            interval_ms: u32::try_from(settings.fan_out_interval.as_millis()).unwrap_or(u32::MAX),
            delay_ms: settings.fan_out_delay_ms,
            skip_self: true,
            skip_first: false,
        };
        if let Some(request) = request {
            options.merge(request);
        }
        options
    }

    /// Present fields overwrite, masks are added. Spec §5.8.
    pub(crate) fn merge(&mut self, request: &ChannelSubscriptionOptions) {
        let ChannelSubscriptionOptions {
            data_access,
            data_field_masks,
            fan_out_interval_ms,
            fan_out_delay_ms,
            skip_self_update_fan_out,
            skip_first_fan_out,
        } = request;
        self.access = data_access.unwrap_or(self.access);
        self.masks.add(data_field_masks);
        self.interval_ms = fan_out_interval_ms.unwrap_or(self.interval_ms);
        self.delay_ms = fan_out_delay_ms.unwrap_or(self.delay_ms);
        self.skip_self = skip_self_update_fan_out.unwrap_or(self.skip_self);
        self.skip_first = skip_first_fan_out.unwrap_or(self.skip_first);
    }

    pub(crate) fn to_wire(&self) -> ChannelSubscriptionOptions {
        ChannelSubscriptionOptions {
            data_access: Some(self.access),
            data_field_masks: self.masks.to_vec(),
            fan_out_interval_ms: Some(self.interval_ms),
            fan_out_delay_ms: Some(self.delay_ms),
            skip_self_update_fan_out: Some(self.skip_self),
            skip_first_fan_out: Some(self.skip_first),
        }
    }

    pub(crate) fn can_read(&self) -> bool {
        self.access != ChannelDataAccess::NoAccess as i32
    }

    pub(crate) fn can_write(&self) -> bool {
        self.access == ChannelDataAccess::WriteAccess as i32
    }
}

/// What a (re)subscription did.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Subscribed {
    New,
    AccessChanged,
    /// Options changed in ways nobody is told about.
    Silently,
}

impl Channel {
    pub(crate) fn new(
        id: ChannelId,
        channel_type: ChannelType,
        settings: Arc<TypeSettings>,
        now: Instant,
        hasher: IdHasher,
    ) -> Self {
        // Cells and entities tick together: what a thousand of them have for one subscriber leaves
        // in one write.
        let together = is_of_world(channel_type);
        let tick = u64::try_from(settings.tick_interval.as_nanos()).unwrap_or(u64::MAX);
        let since_tick = now.as_nanos().checked_rem(tick).filter(|_| together).unwrap_or(0);
        Self {
            id,
            channel_type,
            metadata: String::new(),
            owner: None,
            settings,
            created: Instant::from_nanos(now.as_nanos() - since_tick),
            subs: Slab::new(),
            by_conn: ByConn::new(hasher),
            lost: Vec::new(),
            data: None,
            merge_options: None,
            fan: FanOut::default(),
            objects: BTreeMap::new(),
        }
    }

    /// One of the many channels that a player of a world is subscribed to.
    pub(crate) fn is_of_world(&self) -> bool {
        is_of_world(self.channel_type)
    }

    pub(crate) fn subscription(&self, conn: ConnId) -> Option<&Subscription> {
        self.key(conn).map(|key| &self.subs[key as usize])
    }

    pub(crate) fn key(&self, conn: ConnId) -> Option<u32> {
        self.by_conn.get(&self.subs, conn)
    }

    /// Subscribes a live connection, or changes its subscription.
    pub(crate) fn subscribe(
        &mut self,
        board: &mut Switchboard,
        address: Address,
        kind: ConnKind,
        request: Option<&ChannelSubscriptionOptions>,
    ) -> Subscribed {
        if let Some(key) = self.key(address.conn) {
            return self.resubscribe(board, key, request);
        }
        let options = Options::new(&self.settings, request);
        self.insert(board, address, kind, options, RateBy::Default, board.now);
        Subscribed::New
    }

    /// As [`subscribe`](Self::subscribe), for the subscriber itself or a game server: an interval
    /// that it names is its own, with windows that count from its own beginning.
    pub(crate) fn subscribe_as_asked(
        &mut self,
        board: &mut Switchboard,
        address: Address,
        kind: ConnKind,
        request: Option<&ChannelSubscriptionOptions>,
    ) -> Subscribed {
        let names_rate = request.is_some_and(|options| options.fan_out_interval_ms.is_some());
        if !names_rate {
            return self.subscribe(board, address, kind, request);
        }
        if let Some(key) = self.key(address.conn) {
            // Before the change: the subscription is to join the cohort of its own windows.
            self.subs[key as usize].rate_by = RateBy::Subscriber;
            return self.resubscribe(board, key, request);
        }
        let options = Options::new(&self.settings, request);
        self.insert(board, address, kind, options, RateBy::Subscriber, board.now);
        Subscribed::New
    }

    /// Adds a subscription that does not exist yet.
    pub(crate) fn insert(
        &mut self,
        board: &mut Switchboard,
        address: Address,
        kind: ConnKind,
        options: Options,
        rate_by: RateBy,
        since: Instant,
    ) {
        board.changing = Some(self.id);
        let had_first = options.skip_first;
        let anchor = self.time(board.now).saturating_add(i64::from(options.delay_ms) * 1_000_000);
        let place = FanoutPosition::Nowhere;
        let key = self.subs.insert(Subscription {
            address,
            kind,
            options,
            rate_by,
            since,
            had_first,
            stale: false,
            anchor,
            place,
        }) as u32;
        self.by_conn.insert(&self.subs, key);
        board.add_place(address.conn, self.id);
        failpoint!();
        board.tell_held(address.conn, self.id, true);
        board.stats.subscriptions += 1;
        failpoint!();
        self.start_fan_out(board, key);
    }

    fn resubscribe(
        &mut self,
        board: &mut Switchboard,
        key: u32,
        request: Option<&ChannelSubscriptionOptions>,
    ) -> Subscribed {
        board.changing = Some(self.id);
        let sub = &mut self.subs[key as usize];
        let before = sub.options.clone();
        failpoint!();
        if let Some(request) = request {
            sub.options.merge(request);
        }
        let access_changed = before.access != sub.options.access;
        if before != sub.options {
            self.options_changed(board, key, &before);
        }
        if access_changed { Subscribed::AccessChanged } else { Subscribed::Silently }
    }

    /// Sets the rate of a subscription, and its masks if any are given, without telling anybody.
    pub(crate) fn set_rate(
        &mut self,
        board: &mut Switchboard,
        key: u32,
        interval_ms: u32,
        masks: Option<&[String]>,
    ) {
        self.subs[key as usize].rate_by = RateBy::Gateway;
        let options = &mut self.subs[key as usize].options;
        if options.interval_ms == interval_ms && masks.is_none_or(|masks| *options.masks == *masks) {
            return;
        }
        let before = options.clone();
        options.interval_ms = interval_ms;
        if let Some(masks) = masks {
            options.masks = Masks::default();
            options.masks.add(masks);
        }
        // A full state that is due comes when it was promised.
        if matches!(self.subs[key as usize].place, FanoutPosition::Waiting { .. }) {
            return;
        }
        self.options_changed(board, key, &before);
        let now = &self.subs[key as usize].options.masks;
        if before.masks != *now && !before.masks.is_empty() {
            // What was hidden until now may never change again, so it comes with a full state.
            self.await_full_state(board, key);
            self.trim();
            self.arm(board);
        }
    }

    /// Ends a subscription; false when there is none. The owner that unsubscribes is the owner no
    /// more.
    pub(crate) fn unsubscribe(&mut self, board: &mut Switchboard, conn: ConnId) -> bool {
        let Some(key) = self.by_conn.remove(&self.subs, conn) else { return false };
        failpoint!();
        self.leave(key);
        self.subs.remove(key as usize);
        board.tell_held(conn, self.id, false);
        failpoint!();
        board.stats.subscriptions -= 1;
        if self.owner != Some(conn) {
            board.remove_place(conn, self.id);
        }
        self.arm(board);
        true
    }

    /// Sets the owner and keeps the index of who has to do with the channel.
    pub(crate) fn set_owner(&mut self, board: &mut Switchboard, owner: Option<ConnId>) {
        // A place that is left over names the former owner after a panic, so it goes last.
        let old = std::mem::replace(&mut self.owner, owner);
        failpoint!();
        if let Some(new) = owner {
            board.add_place(new, self.id);
        }
        if let Some(old) = old.filter(|old| Some(*old) != owner && self.key(*old).is_none()) {
            board.remove_place(old, self.id);
        }
    }

    /// Sends one message to every subscriber that `wanted` picks.
    pub(crate) fn broadcast(
        &self,
        board: &mut Switchboard,
        head: Head,
        body: &impl prost::Message,
        wanted: impl Fn(&Subscription) -> bool,
    ) {
        let mut bytes = Vec::new();
        throng_wire::write_message_entry(&mut bytes, &head.pack(&[]), body);
        self.broadcast_entry(board, bytes, wanted);
    }

    /// Gives one entry to every subscriber that `wanted` picks.
    pub(crate) fn broadcast_entry(
        &self,
        board: &mut Switchboard,
        entry: Vec<u8>,
        wanted: impl Fn(&Subscription) -> bool,
    ) {
        if entry.len() > throng_wire::frame::PACKET_BYTES_SEND_MAX {
            board.refuse(Refusal::Oversize);
            return;
        }
        let payload = Payload::from_buf([Entry::new(entry, &board.entries)]);
        let to = self.subs.iter().filter(|(_, sub)| wanted(sub)).map(|(_, sub)| sub.address);
        board.deliver(&payload, None, to);
    }

    /// Replaces the data. Subscribers that had a state get the new one in full.
    pub(crate) fn set_data(&mut self, board: &mut Switchboard, content: ChannelData) {
        // Before the old data is gone: a panic in between would take the removals along.
        self.keep_removals(&content);
        let type_url = type_url(content.plan());
        match self.data.replace(DataState { content, type_url }) {
            Some(_) => self.data_replaced(board),
            None => self.data_begun(board),
        }
    }

    /// Merges an update that counts as sent by `sender` and queues it for the subscribers.
    ///
    /// The first update of a channel without data becomes its data.
    pub(crate) fn update(
        &mut self,
        board: &mut Switchboard,
        plan: &Arc<Plan>,
        sender: ConnId,
        update: Update,
    ) -> Result<(), Refusal> {
        // Before the entries are gone: a panic in between would leave them with their readers.
        self.keep_removals_of(&update);
        let covered = match &mut self.data {
            Some(data) => data.content.merge_checked(&update, self.merge_options.as_ref()),
            None => ChannelData::from_update(Arc::clone(plan), &update).map(|content| {
                self.data = Some(DataState { content, type_url: type_url(plan) });
                self.data_begun(board);
                None
            }),
        };
        let covered = covered.map_err(|_| Refusal::DataTooLarge)?;
        board.stats.updates_merged += 1;
        failpoint!();
        self.push_update(board, sender, update, covered.as_ref());
        Ok(())
    }

    /// Makes the index of the subscriptions anew.
    pub(crate) fn find_subscriptions_anew(&mut self) {
        self.by_conn = ByConn::new(self.by_conn.hasher);
        for (key, _) in &self.subs {
            self.by_conn.insert(&self.subs, key as u32);
        }
    }

    /// Nanoseconds since the channel was created.
    pub(crate) fn time(&self, now: Instant) -> i64 {
        i64::try_from(now.since(self.created).as_nanos()).unwrap_or(i64::MAX)
    }
}

fn is_of_world(channel_type: ChannelType) -> bool {
    matches!(channel_type, ChannelType::SPATIAL | ChannelType::ENTITY)
}

pub(crate) fn type_url(plan: &Plan) -> Box<str> {
    format!("type.googleapis.com/{}", plan.name()).into()
}

/// The merge options of a creation request.
pub(crate) fn merge_options(wire: &ChannelDataMergeOptions) -> MergeOptions {
    MergeOptions {
        replace_list: wire.should_replace_list,
        list_size_limit: wire.list_size_limit,
        truncate_top: wire.truncate_top,
        check_removable: wire.should_check_removable_map_field,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_merge_present_fields_and_add_masks() {
        let settings = TypeSettings::fallback();
        let mut options = Options::new(&settings, None);
        assert_eq!((options.access, options.interval_ms, options.skip_self), (1, 20, true));
        let request = ChannelSubscriptionOptions {
            data_access: Some(2),
            data_field_masks: vec!["a".into()],
            fan_out_interval_ms: Some(0),
            ..Default::default()
        };
        options.merge(&request);
        options
            .merge(&ChannelSubscriptionOptions { data_field_masks: vec!["a".into()], ..Default::default() });
        assert!(options.can_write());
        assert_eq!((options.interval_ms, options.masks.len(), options.delay_ms), (0, 2, 0));
        let wire = options.to_wire();
        assert_eq!((wire.fan_out_delay_ms, wire.skip_first_fan_out), (Some(0), Some(false)));
    }
}
