//! Requests about channels and connections: create, remove, list, subscribe, unsubscribe, update,
//! disconnect. Spec §5 and §7.2.
//!
//! Every handler returns the reason of a refusal. The dispatcher counts it and sends no response,
//! as in the reference (§3.4).

use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use throng_wire::channeldpb::list_channel_result_message::ChannelInfo;
use throng_wire::channeldpb::{
    ChannelDataAccess, ChannelSubscriptionOptions, CreateChannelMessage, CreateChannelResultMessage,
    DisconnectMessage, ListChannelMessage, ListChannelResultMessage, MessageType, RemoveChannelMessage,
    SubscribedToChannelMessage, SubscribedToChannelResultMessage, UnsubscribedFromChannelMessage,
    UnsubscribedFromChannelResultMessage,
};
use throng_wire::frame::PACKET_BYTES_SEND_MAX;
use throng_wire::{DataUpdate, entry_len_with};

use crate::channel::{Channel, LostPlace, Options, RateBy, Subscribed, merge_options};
use crate::data::{ChannelData, Plan, Schemas, Update};
use crate::failpoint::failpoint;
use crate::ids::{ChannelId, ConnId, ConnKind, ShardIndex};
use crate::mail::{Head, Letter, NewChannel};
use crate::reason::{CloseReason, Refusal};
use crate::registry::Listed;
use crate::settings::ChannelType;
use crate::shard::Shard;
use crate::switchboard::Switchboard;

/// Data of a request that passed the check against its plan.
pub(crate) type CheckedData = (Arc<Plan>, Vec<u8>);

/// The sender of a request, live when it is handled.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sender {
    pub(crate) conn: ConnId,
    pub(crate) kind: ConnKind,
}

impl Shard {
    // ---- Create ---------------------------------------------------------------------------------

    /// CREATE_CHANNEL, and CREATE_SPATIAL_CHANNEL with an ordinary type. On shard 0. Spec §5.5.
    pub(crate) fn on_create(&mut self, sender: Sender, head: Head, body: &[u8]) -> Result<(), Refusal> {
        only_global(head)?;
        let request = CreateChannelMessage::decode(body).map_err(|_| Refusal::BadBody)?;
        let channel_type = ChannelType(request.channel_type.cast_unsigned());
        let config = Arc::clone(&self.board.config);
        let permissions = config.permissions.of(sender.kind);
        let allowed = match channel_type {
            ChannelType::UNKNOWN => return Err(Refusal::ChannelType),
            ChannelType::SPATIAL => {
                return self.as_whole(|shard| shard.on_create_spatial(sender, head, request));
            }
            ChannelType::GLOBAL => permissions.claim_global,
            other => permissions.create_types.contains(other),
        };
        if !allowed {
            return Err(Refusal::Permission);
        }
        let limits = &config.limits;
        if request.metadata.len() > limits.metadata_bytes {
            return Err(Refusal::MetadataBytes);
        }
        check_masks(&self.board, 0, request.sub_options.as_ref())?;
        let data =
            self.schemas.checked_any(request.data)?.map(|(plan, bytes)| (plan.name().to_owned(), bytes));
        let merge_options = request.merge_options.as_ref().map(merge_options);

        let Some(global) = &mut self.global else { return Err(Refusal::NotGlobal) };
        let id = if channel_type == ChannelType::GLOBAL {
            if self.board.global_owner.is_some() {
                return Err(Refusal::AlreadyOwned);
            }
            if let Some(listed) = global.directory.get_mut(&ChannelId::GLOBAL) {
                listed.metadata.clone_from(&request.metadata);
            }
            ChannelId::GLOBAL
        } else {
            if global.directory.len() >= limits.channels {
                return Err(Refusal::ChannelsMax);
            }
            let entry = global.entries.get_mut(&sender.conn).ok_or(Refusal::ClosingConnection)?;
            if sender.kind == ConnKind::Client && entry.channels >= limits.channels_per_client {
                return Err(Refusal::ChannelsPerConnection);
            }
            let directory = &global.directory;
            let id =
                global.channel_ids.allocate(|id| directory.contains_key(&id)).ok_or(Refusal::ChannelsMax)?;
            self.board.creating = Some((id, sender.conn));
            entry.channels += 1;
            let metadata = request.metadata.clone();
            global.directory.insert(id, Listed { channel_type, metadata, creator: Some(sender.conn) });
            failpoint!();
            id
        };
        self.board.creating = Some((id, sender.conn));

        let new = NewChannel {
            id,
            channel_type,
            metadata: request.metadata,
            owner: sender.conn,
            options: request.sub_options,
            data,
            merge_options,
            answer: Some(head),
        };
        let home = self.board.home(id);
        if home == self.board.index {
            self.create_here(new);
        } else {
            self.board.post(home, Letter::CreateChannel(Box::new(new)));
            self.board.creating = None;
        }
        Ok(())
    }

    /// Makes a channel of this shard, or gives GLOBAL its owner, and subscribes the creator.
    pub(crate) fn create_here(&mut self, new: NewChannel) {
        self.board.creating = Some((new.id, new.owner));
        self.make(new);
        self.board.creating = None;
    }

    fn make(&mut self, new: NewChannel) {
        let NewChannel { id, channel_type, metadata, owner, options, data, merge_options, answer } = new;
        self.board.at_hand = Some(id);
        let settings = self.settings_of(channel_type);
        let (board, schemas) = (&mut self.board, &self.schemas);
        let channel = self.channels.entry(id).or_insert_with(|| {
            *board.stats.channels.entry(channel_type).or_default() += 1;
            Box::new(Channel::new(id, channel_type, settings, board.now, board.hasher))
        });
        channel.metadata = metadata;
        failpoint!();
        if let Some(head) = answer {
            // By the home, once the channel is there for everybody who hears of it.
            let result = CreateChannelResultMessage {
                channel_type: channel_type.0.cast_signed(),
                metadata: channel.metadata.clone(),
                owner_conn_id: owner.0,
                channel_id: id.0,
            };
            board.send(owner, head, &result);
            if let Some(global_owner) = board.global_owner.filter(|global_owner| *global_owner != owner) {
                board.send(global_owner, head.copy(), &result);
            }
        }
        failpoint!();
        channel.merge_options = merge_options;
        // Checked by shard 0 before it answered; without data the registered type starts empty.
        let content = match data {
            Some((name, bytes)) => {
                schemas.plan_or_opaque(&name).and_then(|plan| ChannelData::from_bytes(plan, &bytes).ok())
            }
            None => {
                let name = channel.settings.data_type.as_deref();
                name.and_then(|name| schemas.plan(name)).map(|plan| ChannelData::new(Arc::clone(plan)))
            }
        };
        if let Some(content) = content {
            channel.set_data(board, content);
        }
        let Some(address) = board.address(owner) else {
            // The creator closed while its channel was under way.
            if channel.settings.remove_after_owner_removed {
                self.remove_channel(id, Head::new(ChannelId::GLOBAL, MessageType::RemoveChannel as u32));
            }
            return;
        };
        channel.set_owner(board, Some(owner));
        failpoint!();
        let kind = board.peers.get(&owner).map_or(ConnKind::Server, |peer| peer.kind);
        let subscribed = channel.subscribe(board, address, kind, options.as_ref());
        if subscribed != Subscribed::Silently {
            let broadcast = answer.map_or(0, |head| head.broadcast);
            let head = Head { broadcast, ..Head::new(id, MessageType::SubToChannel as u32) };
            let result = channel.sub_result(owner, kind);
            board.send(owner, head, &result);
        }
        if id == ChannelId::GLOBAL {
            self.announce_global_owner(Some(owner));
        }
        failpoint!();
    }

    // ---- Remove ---------------------------------------------------------------------------------

    /// REMOVE_CHANNEL, accepted in any channel; the victim's home decides. Spec §5.6.
    pub(crate) fn on_remove(&mut self, sender: Sender, head: Head, body: &[u8]) -> Result<(), Refusal> {
        let request = RemoveChannelMessage::decode(body).map_err(|_| Refusal::BadBody)?;
        if !self.board.config.permissions.of(sender.kind).remove_channels {
            return Err(Refusal::Permission);
        }
        let victim = ChannelId(request.channel_id);
        let home = self.board.home(victim);
        if home == self.board.index {
            return self.remove_requested(victim, sender.conn, head);
        }
        self.board.post(home, Letter::RemoveChannel { channel: victim, sender: sender.conn, head });
        Ok(())
    }

    pub(crate) fn remove_requested(
        &mut self,
        victim: ChannelId,
        sender: ConnId,
        head: Head,
    ) -> Result<(), Refusal> {
        let channel = self.channels.get(&victim).ok_or(Refusal::UnknownChannel)?;
        let is_owner = channel.owner == Some(sender);
        let global_owner = self.board.global_owner;
        // GLOBAL is never removed, whatever its access level says.
        if victim == ChannelId::GLOBAL
            || !channel.settings.remove.passes(is_owner, global_owner == Some(sender))
        {
            return Err(Refusal::Access);
        }
        // Those who would learn nothing otherwise are told too: the remover under its stub, and the
        // owner of GLOBAL.
        let tell_sender = channel.subscription(sender).is_none();
        let global_owner =
            global_owner.filter(|owner| *owner != sender && channel.subscription(*owner).is_none());
        self.remove_channel(victim, head.copy());
        let body = RemoveChannelMessage { channel_id: victim.0 };
        if tell_sender {
            self.board.send(sender, head, &body);
        }
        if let Some(owner) = global_owner {
            self.board.send(owner, head.copy(), &body);
        }
        Ok(())
    }

    /// Ends a channel and tells its subscribers under `head`.
    pub(crate) fn remove_channel(&mut self, id: ChannelId, head: Head) {
        let Some(mut channel) = self.channels.remove(&id) else { return };
        let board = &mut self.board;
        board.at_hand = Some(id);
        channel.disarm(board);
        failpoint!();
        let head = Head { msg_type: MessageType::RemoveChannel as u32, ..head };
        channel.broadcast(board, head, &RemoveChannelMessage { channel_id: id.0 }, |_| true);
        let subscribers = channel.subs.iter().map(|(_, sub)| sub.address.conn);
        let involved: Vec<ConnId> =
            subscribers.chain(channel.owner).chain(channel.lost.iter().map(|lost| lost.conn)).collect();
        for conn in involved {
            failpoint!();
            board.remove_place(conn, id);
            board.tell_held(conn, id, false);
        }
        board.stats.subscriptions -= channel.subs.len() as u64;
        failpoint!();
        if let Some(count) = board.stats.channels.get_mut(&channel.channel_type) {
            *count -= 1;
        }
        if channel.channel_type == ChannelType::ENTITY {
            self.entity_removed(id);
        } else if channel.channel_type == ChannelType::SPATIAL {
            self.cell_removed(id);
        }
        if self.global.is_some() {
            // At once, so that an id that is created again in the same breath stays in the list.
            self.channel_removed(id);
        } else {
            self.board.post(ShardIndex::FIRST, Letter::ChannelRemoved { channel: id });
        }
    }

    /// Shard 0: a channel is gone from its home.
    pub(crate) fn channel_removed(&mut self, id: ChannelId) {
        let Some(global) = &mut self.global else { return };
        if let Some(Listed { creator: Some(creator), .. }) = global.directory.remove(&id) {
            if let Some(entry) = global.entries.get_mut(&creator) {
                entry.channels = entry.channels.saturating_sub(1);
            } else if let Some(lost) = global.lost.get_mut(&creator) {
                lost.channels = lost.channels.saturating_sub(1);
            }
        }
    }

    // ---- List -----------------------------------------------------------------------------------

    /// LIST_CHANNEL. On shard 0. Spec §5.7; a result over the size of a packet comes in several
    /// messages.
    pub(crate) fn on_list(&mut self, sender: Sender, head: Head, body: &[u8]) -> Result<(), Refusal> {
        only_global(head)?;
        let request = ListChannelMessage::decode(body).map_err(|_| Refusal::BadBody)?;
        let limits = &self.board.config.limits;
        if !self.board.config.permissions.of(sender.kind).list_channels {
            return Err(Refusal::Permission);
        }
        let filters = &request.metadata_filters;
        if filters.len() > limits.list_filters
            || filters.iter().any(|filter| filter.len() > limits.filter_bytes)
        {
            return Err(Refusal::ListFilters);
        }
        let results_max = limits.list_results;
        let Some(global) = &self.global else { return Err(Refusal::NotGlobal) };
        let wanted_type = ChannelType(request.type_filter.cast_unsigned());
        let matching = global
            .directory
            .iter()
            .filter(|(_, listed)| wanted_type == ChannelType::UNKNOWN || listed.channel_type == wanted_type)
            .filter(|(_, listed)| {
                filters.is_empty() || filters.iter().any(|filter| listed.metadata.contains(filter.as_str()))
            })
            .take(results_max);

        let mut parts = vec![ListChannelResultMessage::default()];
        let mut len = 0;
        for (id, listed) in matching {
            let info = ChannelInfo {
                channel_id: id.0,
                channel_type: listed.channel_type.0.cast_signed(),
                metadata: listed.metadata.clone(),
            };
            // Key and length of one entry take at most five bytes at these sizes.
            let info_len = info.encoded_len() + 5;
            if entry_len_with(&head.pack(&[]), len + info_len) > PACKET_BYTES_SEND_MAX {
                parts.push(ListChannelResultMessage::default());
                len = 0;
            }
            len += info_len;
            if let Some(part) = parts.last_mut() {
                part.channels.push(info);
            }
        }
        for part in &parts {
            self.board.send(sender.conn, head, part);
        }
        Ok(())
    }

    // ---- Subscribe and unsubscribe --------------------------------------------------------------

    /// SUB_TO_CHANNEL. Spec §5.8.
    pub(crate) fn on_subscribe(&mut self, sender: Sender, head: Head, body: &[u8]) -> Result<(), Refusal> {
        let request = SubscribedToChannelMessage::decode(body).map_err(|_| Refusal::BadBody)?;
        let board = &mut self.board;
        let channel = self.channels.get_mut(&head.channel).ok_or(Refusal::UnknownChannel)?;
        // A client always means itself; a server names the connection, also when it is its own.
        let target = match sender.kind {
            ConnKind::Client => sender.conn,
            ConnKind::Server => ConnId(request.conn_id),
        };
        let config = Arc::clone(&board.config);
        let away = board.away(target);
        let known = board.peers.get(&target).copied().zip(board.address(target));
        if known.is_none() && away.is_none() {
            return Err(Refusal::UnknownConnection);
        }
        let permissions = config.permissions.of(sender.kind);
        let mut options = request.sub_options;
        if target == sender.conn {
            if !permissions.subscribe_self_types.contains(channel.channel_type) {
                return Err(Refusal::Permission);
            }
            clamp_access(channel, board, sender, permissions.take_write_access, options.as_mut());
        } else {
            let is_owner = channel.owner == Some(sender.conn);
            if !channel.settings.sub.passes(is_owner, board.global_owner == Some(sender.conn)) {
                return Err(Refusal::Access);
            }
            if !permissions.manage_others {
                return Err(Refusal::Permission);
            }
        }
        let gives_write = target != sender.conn
            && options.as_ref().and_then(|options| options.data_access)
                == Some(ChannelDataAccess::WriteAccess as i32);
        let forgiving = self.world.as_mut().filter(|_| gives_write);
        if let Some(kind) = away {
            channel.change_kept(board, sender.conn, head, (target, kind), options.as_ref())?;
            forgiving.into_iter().for_each(|world| world.forgive(head.channel, target));
            return Ok(());
        }
        let Some((peer, address)) = known else { return Err(Refusal::UnknownConnection) };
        let existing = channel.subscription(target).map(|sub| sub.options.masks.len());
        check_masks(board, existing.unwrap_or(0), options.as_ref())?;
        // What a client asks for itself its own shard has admitted.
        if existing.is_none() && target != sender.conn && peer.full {
            return Err(Refusal::SubscriptionsPerConnection);
        }
        let subscribed = channel.subscribe_as_asked(board, address, peer.kind, options.as_ref());
        forgiving.into_iter().for_each(|world| world.forgive(head.channel, target));
        if subscribed == Subscribed::Silently {
            // Clients change their level of detail this way and expect no answer (spec §9.5).
            return Ok(());
        }
        let result = channel.sub_result(target, peer.kind);
        failpoint!();
        board.send(sender.conn, head, &result);
        if target != sender.conn {
            board.send(target, head.copy(), &result);
        }
        if let Some(owner) = channel.owner.filter(|owner| *owner != sender.conn && *owner != target) {
            board.send(owner, head.copy(), &result);
        }
        if subscribed == Subscribed::New {
            self.rate(target, head.channel);
        }
        Ok(())
    }

    /// UNSUB_FROM_CHANNEL. Spec §5.9.
    pub(crate) fn on_unsubscribe(&mut self, sender: Sender, head: Head, body: &[u8]) -> Result<(), Refusal> {
        let request = UnsubscribedFromChannelMessage::decode(body).map_err(|_| Refusal::BadBody)?;
        let board = &mut self.board;
        let channel = self.channels.get_mut(&head.channel).ok_or(Refusal::UnknownChannel)?;
        let target = ConnId(request.conn_id);
        let is_away = board.away(target).is_some();
        let peer = board.peers.get(&target).copied();
        if peer.is_none() && !is_away {
            return Err(Refusal::UnknownConnection);
        }
        if target != sender.conn {
            let is_owner = channel.owner == Some(sender.conn);
            if !channel.settings.unsub.passes(is_owner, board.global_owner == Some(sender.conn)) {
                return Err(Refusal::Access);
            }
            if !board.config.permissions.of(sender.kind).manage_others {
                return Err(Refusal::Permission);
            }
        }
        if is_away {
            return channel.drop_kept(board, sender.conn, head, target);
        }
        let Some(peer) = peer else { return Err(Refusal::UnknownConnection) };
        let owner = channel.owner;
        failpoint!();
        if !channel.unsubscribe(board, target) {
            return Err(Refusal::NotSubscribed);
        }
        let result = channel.unsub_result(target, peer.kind);
        board.send(sender.conn, head, &result);
        if target != sender.conn {
            board.send(target, head.copy(), &result);
        }
        if let Some(owner) = owner.filter(|owner| *owner != sender.conn && *owner != target) {
            board.send(owner, head.copy(), &result);
        }
        if owner == Some(target) {
            channel.set_owner(board, None);
            if head.channel == ChannelId::GLOBAL {
                self.announce_global_owner(None);
            }
        }
        Ok(())
    }

    // ---- Update and disconnect ------------------------------------------------------------------

    /// CHANNEL_DATA_UPDATE. Spec §7.2.
    pub(crate) fn on_update(&mut self, sender: Sender, head: Head, body: &[u8]) -> Result<(), Refusal> {
        let board = &mut self.board;
        let channel = self.channels.get_mut(&head.channel).ok_or(Refusal::UnknownChannel)?;
        if channel.channel_type == ChannelType::ENTITY
            && channel.owner != Some(sender.conn)
            && self.world.as_ref().is_some_and(|world| world.is_former_owner(head.channel, sender.conn))
        {
            return Err(Refusal::FormerOwner);
        }
        let may_write =
            || channel.subscription(sender.conn).is_some_and(|subscription| subscription.options.can_write());
        let counts_as = if channel.owner == Some(sender.conn) || may_write() {
            sender.conn
        } else {
            let authority = board.config.permissions.of(sender.kind).update_for_owner;
            let is_global_owner = board.global_owner == Some(sender.conn);
            if sender.kind != ConnKind::Server || !authority.passes(is_global_owner) {
                return Err(Refusal::WriteAccess);
            }
            channel.owner.ok_or(Refusal::WriteAccess)?
        };
        let request = DataUpdate::parse(body).map_err(|_| Refusal::BadBody)?;
        // Senders that know no versions pay nothing for them.
        if request.version > 0
            && self.world.as_ref().is_some_and(|world| request.version <= world.owned_since(head.channel))
        {
            return Err(Refusal::StaleVersion);
        }
        let plan = match &channel.data {
            Some(data) if data.content.plan().name() == request.type_name => Arc::clone(data.content.plan()),
            // The reference merges or aborts; either way it fans out what its peers cannot read
            //
            Some(_) => return Err(Refusal::WrongDataType),
            None => self.schemas.plan_or_opaque(request.type_name).ok_or(Refusal::NoDataType)?,
        };
        let update =
            Update::check(&plan, Bytes::copy_from_slice(request.value)).map_err(|_| Refusal::BadData)?;
        let bytes = update.bytes().clone();
        // Before it is merged: nobody could tell it from a place.
        if channel.channel_type == ChannelType::ENTITY
            && self.world.as_mut().is_some_and(|world| world.is_nowhere(&board.config, &plan, &bytes))
        {
            return Err(Refusal::OutsideWorld);
        }
        if channel.holds_entities() {
            return self.update_list(sender, head.channel, counts_as, &plan, update);
        }
        channel.update(board, &plan, counts_as, update)?;
        if channel.channel_type == ChannelType::ENTITY {
            let cause = match sender.kind {
                ConnKind::Client => sender.conn,
                ConnKind::Server => ConnId(request.context_conn_id),
            };
            self.entity_updated(head.channel, &bytes, cause);
        }
        Ok(())
    }

    /// DISCONNECT. Spec §4.6.
    pub(crate) fn on_disconnect(&mut self, sender: Sender, head: Head, body: &[u8]) -> Result<(), Refusal> {
        only_global(head)?;
        let request = DisconnectMessage::decode(body).map_err(|_| Refusal::BadBody)?;
        let target = ConnId(request.conn_id);
        let board = &mut self.board;
        if target != sender.conn {
            let authority = board.config.permissions.of(sender.kind).disconnect_others;
            if !authority.passes(board.global_owner == Some(sender.conn)) {
                return Err(Refusal::Permission);
            }
        }
        if !board.peers.contains_key(&target) {
            // One that is lost does not return.
            let is_lost = self.global.as_ref().is_some_and(|global| global.lost.contains_key(&target));
            if !is_lost {
                return Err(Refusal::UnknownConnection);
            }
            self.expire_lost(target);
            return Ok(());
        }
        board.close(target, if target == sender.conn { CloseReason::Left } else { CloseReason::Kicked });
        Ok(())
    }

    /// Tells every shard who owns GLOBAL.
    pub(crate) fn announce_global_owner(&mut self, owner: Option<ConnId>) {
        self.board.global_owner = owner;
        self.board.post_others(|| Letter::GlobalOwner(owner));
    }
}

impl Schemas {
    /// The data of a request, checked: its plan and its bytes. Refused before anything exists or is
    /// answered (the reference leaves a channel behind).
    pub(crate) fn checked_any(&self, data: Option<prost_types::Any>) -> Result<Option<CheckedData>, Refusal> {
        let Some(any) = data else { return Ok(None) };
        let name = any.type_url.rsplit('/').next().unwrap_or_default();
        let plan = self.plan_or_opaque(name).ok_or(Refusal::NoDataType)?;
        crate::data::validate(&plan, &any.value).map_err(|_| Refusal::BadData)?;
        if any.value.len() > plan.bytes_max() {
            return Err(Refusal::DataTooLarge);
        }
        Ok(Some((plan, any.value)))
    }
}

/// Requests about a connection that is away: they change the places that it returns to.
impl Channel {
    /// Changes the subscription that a connection returns to, or adds one.
    fn change_kept(
        &mut self,
        board: &mut Switchboard,
        sender: ConnId,
        head: Head,
        (conn, kind): (ConnId, ConnKind),
        request: Option<&ChannelSubscriptionOptions>,
    ) -> Result<(), Refusal> {
        let at = self.lost.iter().position(|place| place.conn == conn);
        let kept = at.and_then(|at| self.lost[at].subscription.clone());
        check_masks(board, kept.as_ref().map_or(0, |(options, ..)| options.masks.len()), request)?;
        let (options, mut rate_by, since) = match kept {
            Some((mut options, rate_by, since)) => {
                request.into_iter().for_each(|request| options.merge(request));
                (options, rate_by, since)
            }
            None => (Options::new(&self.settings, request), RateBy::Default, board.now),
        };
        if request.is_some_and(|request| request.fan_out_interval_ms.is_some()) {
            rate_by = RateBy::Subscriber;
        }
        let sub_options = Some(options.to_wire());
        let subscription = Some((options, rate_by, since));
        match at {
            Some(at) => self.lost[at].subscription = subscription,
            None => {
                board.changing = Some(self.id);
                self.lost.push(LostPlace { conn, kind, was_owner: false, subscription });
                board.add_place(conn, self.id);
            }
        }
        let result = SubscribedToChannelResultMessage { sub_options, ..self.sub_result(conn, kind) };
        self.tell_asker_and_owner(board, sender, head, &result);
        Ok(())
    }

    /// Ends the subscription that a connection would return to, and with it the ownership, as that
    /// of a connection here.
    fn drop_kept(
        &mut self,
        board: &mut Switchboard,
        sender: ConnId,
        head: Head,
        conn: ConnId,
    ) -> Result<(), Refusal> {
        let is_kept = |place: &LostPlace| place.conn == conn && place.subscription.is_some();
        let at = self.lost.iter().position(is_kept).ok_or(Refusal::NotSubscribed)?;
        let kind = self.lost.remove(at).kind;
        board.remove_place(conn, self.id);
        let result = self.unsub_result(conn, kind);
        self.tell_asker_and_owner(board, sender, head, &result);
        Ok(())
    }

    fn tell_asker_and_owner(
        &self,
        board: &mut Switchboard,
        sender: ConnId,
        head: Head,
        result: &impl prost::Message,
    ) {
        board.send(sender, head, result);
        if let Some(owner) = self.owner.filter(|owner| *owner != sender) {
            board.send(owner, head.copy(), result);
        }
    }
}

impl Channel {
    pub(crate) fn sub_result(&self, conn: ConnId, kind: ConnKind) -> SubscribedToChannelResultMessage {
        SubscribedToChannelResultMessage {
            conn_id: conn.0,
            sub_options: self.subscription(conn).map(|sub| sub.options.to_wire()),
            conn_type: kind.wire(),
            channel_type: self.channel_type.0.cast_signed(),
        }
    }

    pub(crate) fn unsub_result(&self, conn: ConnId, kind: ConnKind) -> UnsubscribedFromChannelResultMessage {
        UnsubscribedFromChannelResultMessage {
            conn_id: conn.0,
            conn_type: kind.wire(),
            channel_type: self.channel_type.0.cast_signed(),
        }
    }
}

pub(crate) fn only_global(head: Head) -> Result<(), Refusal> {
    if head.channel == ChannelId::GLOBAL { Ok(()) } else { Err(Refusal::NotGlobal) }
}

/// Masks add up over re-subscriptions, so the sum is what is bounded.
pub(crate) fn check_masks(
    board: &Switchboard,
    existing: usize,
    options: Option<&ChannelSubscriptionOptions>,
) -> Result<(), Refusal> {
    let Some(options) = options else { return Ok(()) };
    let limits = &board.config.limits;
    let masks = &options.data_field_masks;
    if masks.is_empty() {
        return Ok(());
    }
    let fits = existing + masks.len() <= limits.field_masks
        && masks.iter().all(|mask| mask.len() <= limits.filter_bytes);
    if fits { Ok(()) } else { Err(Refusal::FieldMasks) }
}

/// Where the profile forbids it, WRITE that a connection asks for itself becomes READ, unless it
/// has WRITE already (somebody gave it) or owns the channel.
fn clamp_access(
    channel: &Channel,
    board: &mut Switchboard,
    sender: Sender,
    may_take_write: bool,
    options: Option<&mut ChannelSubscriptionOptions>,
) {
    let write = ChannelDataAccess::WriteAccess as i32;
    let Some(options) = options.filter(|options| options.data_access == Some(write)) else { return };
    let has_write = channel.subscription(sender.conn).is_some_and(|sub| sub.options.can_write());
    if !may_take_write && !has_write && channel.owner != Some(sender.conn) {
        options.data_access = Some(ChannelDataAccess::ReadAccess as i32);
        board.refuse(Refusal::Permission);
    }
}
