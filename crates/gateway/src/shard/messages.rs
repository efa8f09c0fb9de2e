//! The message path: from the bytes of a connection to the handler of a message.

use core::mem;
use core::ops::ControlFlow;

use throng_wire::channeldpb::MessageType;
use throng_wire::frame::{Form, FrameError};
use throng_wire::{MessagePack, Packet};

use super::Shard;
use crate::effect::Effect;
use crate::ids::{ChannelId, ConnId, ConnKind, ShardIndex};
use crate::mail::{Head, Letter};
use crate::reason::{CloseReason, Refusal};
use crate::requests::Sender;
use crate::world::is_object_message;

impl Shard {
    pub(super) fn receive(&mut self, slot: u32, bytes: &[u8]) {
        let board = &mut self.board;
        let now = board.now;
        let Some(conn) = board.conns.get_mut(slot as usize) else { return };
        let (handle, kind) = (conn.handle, conn.kind);
        conn.received = now;
        board.stats.kind_mut(kind).bytes_in += bytes.len() as u64;
        if kind == ConnKind::Client
            && let Err(reason) = conn.budget.charge_read(now, bytes.len(), &board.config.limits)
        {
            board.doom_slot(slot, reason);
            return;
        }
        // The reader and the scratch memory are lent out while packets are handled, since handling
        // needs the shard.
        let mut reader = mem::take(&mut conn.reader);
        let mut scratch = mem::take(&mut self.scratch);
        if !conn.has_answer {
            conn.has_answer = true;
            let conn = conn.id;
            board.post(ShardIndex::FIRST, Letter::HasAnswer { conn });
        }
        let result = reader.feed_with(&mut scratch, bytes, &mut |packet| self.packet(slot, packet));
        self.scratch = scratch;

        let board = &mut self.board;
        let Some(conn) = board.conns.get_mut(slot as usize).filter(|conn| conn.handle == handle) else {
            return;
        };
        if reader.peer_compresses() {
            conn.outbox.set_compress();
        }
        conn.outbox.set_avoid_legacy_sizes(reader.form() != Form::Current);
        if reader.buffered_bytes() > 0 {
            board.stats.kind_mut(kind).packets_fragmented += 1;
        }
        conn.reader = reader;
        if let Err(error) = result {
            board.doom_slot(slot, frame_reason(&error));
        }
    }

    fn packet(&mut self, slot: u32, packet: Packet<'_>) -> ControlFlow<()> {
        let board = &mut self.board;
        let Some(conn) = board.conns.get_mut(slot as usize) else { return ControlFlow::Break(()) };
        board.stats.kind_mut(conn.kind).packets_in += 1;
        if conn.recorder.is_some() {
            self.record(slot, packet.bytes());
        }
        for message in packet.messages() {
            self.message(slot, &message)?;
        }
        ControlFlow::Continue(())
    }

    fn record(&mut self, slot: u32, packet: &[u8]) {
        let board = &mut self.board;
        let unix_ns = board.next_recording_ns();
        let Some(conn) = board.conns.get_mut(slot as usize) else { return };
        let Some(recorder) = &mut conn.recorder else { return };
        let fits = recorder.record(board.now, packet);
        let (id, part) = (conn.id, recorder.take_part(conn.id.0, unix_ns));
        if !fits {
            board.refuse(Refusal::RecordingFull);
        }
        if let Some((name, bytes)) = part {
            board.recording_ns = unix_ns;
            board.effect(Effect::Recording { conn: id, name, bytes });
        }
    }

    /// One message from a connection of this shard. Spec §3.5.
    ///
    /// The state machine is asked before the channel is looked up, because only the channel's home,
    /// perhaps another shard, knows whether it exists. Unlike in the reference, a forbidden message
    /// to a channel that does not exist therefore counts as a refusal of the state machine.
    #[inline]
    fn message(&mut self, slot: u32, message: &MessagePack<'_>) -> ControlFlow<()> {
        let board = &mut self.board;
        let Some(conn) = board.conns.get_mut(slot as usize) else { return ControlFlow::Break(()) };
        if conn.doomed.is_some() {
            return ControlFlow::Break(());
        }
        let msg_type = message.msg_type;
        if conn.kind == ConnKind::Client
            && let Err(reason) = conn.budget.charge_message(&board.config.limits)
        {
            board.doom_slot(slot, reason);
            return ControlFlow::Break(());
        }
        if msg_type < USER_SPACE && !is_request(msg_type) {
            board.refuse(Refusal::UndefinedType);
            return ControlFlow::Continue(());
        }
        if msg_type == MessageType::Disconnect as u32 && conn.names_itself(message) {
            board.doom_slot(slot, CloseReason::Left);
            return ControlFlow::Break(());
        }
        let machine = board.config.state_machine(conn.kind);
        if !machine.allows(conn.state, msg_type) {
            return self.refused_by_state_machine(slot);
        }
        conn.state = machine.after_message(conn.state, msg_type);
        let sender = Sender { conn: conn.id, kind: conn.kind };
        board.stats.kind_mut(conn.kind).messages_in += 1;
        let head = Head {
            channel: ChannelId(message.channel_id),
            broadcast: message.broadcast,
            stub: message.stub_id,
            msg_type,
        };
        if msg_type == MessageType::SubToChannel as u32
            && sender.kind == ConnKind::Client
            && !board.reserve(slot, head.channel)
        {
            board.refuse(Refusal::SubscriptionsPerConnection);
            return ControlFlow::Continue(());
        }
        let home = board.home(head.channel);
        // Authentication takes effect after the read that brought it, as if it had gone through a
        // queue: whatever was sent along with it is still refused (spec §4.3).
        if home == board.index && msg_type != MessageType::Auth as u32 {
            if !board.hold_back(sender.conn, head, message.body) {
                self.dispatch(sender, head, message.body);
            }
        } else {
            if msg_type == MessageType::Auth as u32
                && let Some(conn) = board.conns.get_mut(slot as usize)
            {
                conn.login.get_or_insert(board.now);
            }
            board.post_message(home, sender.conn, head, message.body);
        }
        ControlFlow::Continue(())
    }

    #[cold]
    fn refused_by_state_machine(&mut self, slot: u32) -> ControlFlow<()> {
        let board = &mut self.board;
        board.refuse(Refusal::StateMachine);
        let max = board.config.abuse.refusals_max;
        let Some(conn) = board.conns.get_mut(slot as usize) else { return ControlFlow::Break(()) };
        conn.refusals += 1;
        if conn.kind == ConnKind::Client && max > 0 && conn.refusals >= max {
            board.doom_slot(slot, CloseReason::StateMachineRefusals);
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// A message to a channel of this shard.
    #[inline]
    pub(super) fn dispatch(&mut self, sender: Sender, head: Head, body: &[u8]) {
        self.board.at_hand = Some(head.channel);
        let for_matcher = sender.kind == ConnKind::Client && self.is_for_matcher(head);
        let result = match self.channels.get_mut(&head.channel) {
            None => Err(Refusal::UnknownChannel),
            Some(_) if for_matcher => self.ask_matcher(sender, head, body),
            Some(channel) if head.msg_type >= USER_SPACE => {
                let objects = self.board.config.unreal_objects && is_object_message(head.msg_type);
                match sender.kind {
                    ConnKind::Client if objects && !self.board.config.permissions.client.send_objects => {
                        Err(Refusal::Permission)
                    }
                    ConnKind::Client => channel.forward_from_client(&mut self.board, sender.conn, head, body),
                    ConnKind::Server if objects => self.on_object(sender, head, body),
                    ConnKind::Server => self.forward_from_server(head.channel, sender.conn, head, body),
                }
            }
            Some(_) => self.request(sender, head, body),
        };
        if let Err(refusal) = result {
            self.board.refuse(refusal);
            if head.msg_type == MessageType::SubToChannel as u32 {
                self.subscription_refused(sender.conn, head.channel);
            }
        }
    }

    /// Gives back what a client's shard reserved for a subscription.
    #[cold]
    fn subscription_refused(&mut self, conn: ConnId, channel: ChannelId) {
        let known = self.channels.get(&channel);
        if known.is_none_or(|channel| channel.subscription(conn).is_none()) {
            self.board.tell_held(conn, channel, false);
        }
    }

    fn request(&mut self, sender: Sender, head: Head, body: &[u8]) -> Result<(), Refusal> {
        match i32::try_from(head.msg_type).ok().and_then(|number| MessageType::try_from(number).ok()) {
            Some(MessageType::Auth) => self.on_auth(sender, head, body),
            Some(MessageType::CreateChannel | MessageType::CreateSpatialChannel) => {
                self.on_create(sender, head, body)
            }
            Some(MessageType::RemoveChannel) => self.on_remove(sender, head, body),
            Some(MessageType::ListChannel) => self.on_list(sender, head, body),
            Some(MessageType::SubToChannel) => self.on_subscribe(sender, head, body),
            Some(MessageType::UnsubFromChannel) => self.on_unsubscribe(sender, head, body),
            Some(MessageType::ChannelDataUpdate) => self.on_update(sender, head, body),
            Some(MessageType::Disconnect) => self.on_disconnect(sender, head, body),
            Some(MessageType::QuerySpatialChannel) => self.on_query(sender, head, body),
            Some(MessageType::UpdateSpatialInterest) => self.on_interest(sender, head, body),
            Some(MessageType::CreateEntityChannel) => self.on_create_entity(sender, head, body),
            Some(MessageType::EntityGroupAdd) => self.on_group_add(sender, head, body),
            Some(MessageType::EntityGroupRemove) => self.on_group_remove(sender, head, body),
            Some(MessageType::DebugGetSpatialRegions) => self.on_debug_regions(sender, head),
            _ => Err(Refusal::UndefinedType),
        }
    }
}

/// First type that belongs to the game.
const USER_SPACE: u32 = 100;

/// Whether peers may send this type below 100. Spec §3.2.
#[inline]
fn is_request(msg_type: u32) -> bool {
    matches!(msg_type, 1 | 3..=11 | 14..=17 | 99)
}

fn frame_reason(error: &FrameError) -> CloseReason {
    match error {
        FrameError::BadMagic { .. } => CloseReason::BadMagic,
        FrameError::ZeroSize => CloseReason::ZeroSize,
        FrameError::UnknownCompression(_) => CloseReason::UnknownCompression,
        FrameError::BadSnappy => CloseReason::BadSnappy,
        FrameError::DeclaredTooLarge { .. } => CloseReason::DeclaredTooLarge,
        FrameError::BadPacket(_) => CloseReason::BadPacket,
        FrameError::LegacyTooLarge { .. } => CloseReason::LegacyTooLarge,
        _ => CloseReason::BadFrame,
    }
}
