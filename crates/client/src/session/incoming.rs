//! Received messages: conversion to events, and matching of responses to requests.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use throng_stdx::Instant;
use throng_wire::{DataUpdate, Forward, MessagePack, channeldpb as pb};

use super::{CompressionPolicy, Session, State, msg_type};
use crate::event::{
    AuthOutcome, ChannelEntry, ChannelId, ChannelType, CloseReason, ConnId, Event, Kind, Payload,
    RecoveredChannel, RequestId,
};
use crate::matcher::{MATCHMAKING, MatchmakingEvent};
use crate::options::SubscribeOptions;

impl Session {
    pub(super) fn handle_message(&mut self, now: Instant, message: &MessagePack<'_>) {
        if self.state == State::Closed {
            return;
        }
        self.counters.messages_in += 1;
        let handled = match message.msg_type {
            msg_type::AUTH => self.handle_auth_result(now, message),
            msg_type::RECOVERY_CHANNEL_DATA if self.state == State::Recovering => {
                self.handle_recovery_data(message)
            }
            msg_type::RECOVERY_END if self.state == State::Recovering => {
                self.handle_recovery_end();
                Some(())
            }
            _ => self.decode_event(message).map(|event| self.push(event)),
        };
        if handled.is_none() {
            self.counters.malformed += 1;
        }
    }

    /// Handles the session's own result or, at the owner of GLOBAL, that of another connection,
    /// which has stub 0.
    fn handle_auth_result(&mut self, _now: Instant, message: &MessagePack<'_>) -> Option<()> {
        let body = pb::AuthResultMessage::decode(message.body).ok()?;
        let outcome = match body.result {
            0 => AuthOutcome::Successful,
            1 => AuthOutcome::InvalidPit,
            2 => AuthOutcome::InvalidLoginToken,
            other => AuthOutcome::Other(other),
        };
        if !matches!(self.state, State::Authenticating { .. }) {
            self.push(Event::PeerAuthenticated {
                conn: ConnId(body.conn_id),
                outcome,
                recovering: body.should_recover,
            });
            return Some(());
        }
        if let Some(pb::Elsewhere { addresses, world, .. }) = body.elsewhere {
            self.close(CloseReason::Elsewhere { addresses, world, way: Vec::new() });
            return Some(());
        }
        if outcome != AuthOutcome::Successful {
            self.state = State::Authenticating { deadline: None };
            self.push(Event::AuthRefused { outcome });
            return Some(());
        }
        let conn = ConnId(body.conn_id);
        self.conn = Some(conn);
        if self.config.resume && !body.resume_token.is_empty() {
            self.resume_token = body.resume_token;
        }
        if self.config.compression == CompressionPolicy::WhenOffered {
            self.compress(body.compression_type == pb::CompressionType::Snappy as i32);
        }
        self.state = State::Open;
        let (recovering, resume_refused) = (body.should_recover, body.resume_refused);
        self.push(Event::Authenticated { conn, recovering, resume_refused });
        if body.should_recover && self.state == State::Open {
            self.state = State::Recovering;
        }
        Some(())
    }

    fn handle_recovery_data(&mut self, message: &MessagePack<'_>) -> Option<()> {
        let body = pb::ChannelDataRecoveryMessage::decode(message.body).ok()?;
        if self.recovered.len() >= self.config.events_max {
            self.close(CloseReason::EventsNotTaken { limit: self.config.events_max });
            return Some(());
        }
        let channel = ChannelId(body.channel_id);
        let data = body.channel_data.map(Payload::from_any);
        // Updates of the channel that came before are contained in its data: they were under way
        // when the connection was lost.
        self.held.retain(|event| !matches!(event, Event::Update { channel: of, .. } if *of == channel));
        if let Some(known) = self.recovered.iter_mut().find(|known| known.channel == channel) {
            // A message above the size of a packet comes in parts; serialized messages merge by
            // concatenation.
            let extension = body.recovery_data.map(Payload::from_any);
            for (whole, part) in [(&mut known.data, data), (&mut known.extension, extension)] {
                match (whole, part) {
                    (Some(whole), Some(part)) => {
                        whole.value = [whole.value.as_ref(), part.value.as_ref()].concat().into();
                    }
                    (whole, part) => *whole = whole.take().or(part),
                }
            }
            return Some(());
        }
        self.recovered.push(RecoveredChannel {
            channel,
            channel_type: ChannelType::from_wire(body.channel_type),
            metadata: body.metadata,
            owner: (body.owner_conn_id != 0).then_some(ConnId(body.owner_conn_id)),
            subscribed_at_unix_ns: body.sub_time,
            options: SubscribeOptions::from_proto(body.sub_options.unwrap_or_default()),
            data,
            extension: body.recovery_data.map(Payload::from_any),
        });
        Some(())
    }

    fn handle_recovery_end(&mut self) {
        let mut channels = std::mem::take(&mut self.recovered);
        // A stable sort: equal times keep the order of arrival.
        channels.sort_by_key(|c| c.subscribed_at_unix_ns);
        self.state = State::Open;
        self.events.push_back(Event::Recovered { channels });
        self.events.append(&mut self.held);
    }

    /// Takes the request that a message answers, if any.
    fn answered(&mut self, message: &MessagePack<'_>) -> Option<RequestId> {
        let stub = message.stub_id;
        match self.requests.get(&stub) {
            Some(request) if request.msg_type == message.msg_type => {
                self.requests.remove(&stub);
                Some(RequestId(stub))
            }
            _ => None,
        }
    }

    fn answered_removal(&mut self, message: &MessagePack<'_>, victim: u32) -> Option<RequestId> {
        if let Some(request) = self.answered(message) {
            return Some(request);
        }
        if message.stub_id != 0 {
            return None;
        }
        let stub = self
            .requests
            .iter()
            .find(|(_, r)| r.msg_type == msg_type::REMOVE_CHANNEL && r.victim == victim)
            .map(|(&stub, _)| stub)?;
        self.requests.remove(&stub);
        Some(RequestId(stub))
    }

    /// `None` when the body does not decode.
    fn decode_event(&mut self, message: &MessagePack<'_>) -> Option<Event> {
        let channel = ChannelId(message.channel_id);
        Some(match message.msg_type {
            msg_type::CHANNEL_DATA_UPDATE => {
                let update = DataUpdate::parse(message.body).ok()?;
                Event::Update {
                    channel,
                    type_name: self.type_name(update.type_name),
                    value: Bytes::copy_from_slice(update.value),
                }
            }
            MATCHMAKING if self.config.kind == Kind::Client && channel == ChannelId::GLOBAL => {
                let forward = Forward::parse(message.body).ok()?;
                let event = MatchmakingEvent::parse(forward.payload)?;
                Event::Matchmaking { request: self.answered(message), event }
            }
            msg_type::USER_SPACE_START.. => {
                let forward = Forward::parse(message.body).ok()?;
                Event::Message {
                    channel,
                    msg_type: message.msg_type,
                    broadcast: message.broadcast,
                    stub_id: message.stub_id,
                    client: ConnId(forward.client_conn_id),
                    payload: Bytes::copy_from_slice(forward.payload),
                }
            }
            msg_type::CREATE_CHANNEL => {
                let body = pb::CreateChannelResultMessage::decode(message.body).ok()?;
                Event::ChannelCreated {
                    request: self.answered(message),
                    channel: ChannelId(body.channel_id),
                    channel_type: ChannelType::from_wire(body.channel_type),
                    metadata: body.metadata,
                    owner: ConnId(body.owner_conn_id),
                }
            }
            msg_type::REMOVE_CHANNEL => {
                let body = pb::RemoveChannelMessage::decode(message.body).ok()?;
                Event::ChannelRemoved {
                    request: self.answered_removal(message, body.channel_id),
                    channel: ChannelId(body.channel_id),
                }
            }
            msg_type::LIST_CHANNEL => {
                let body = pb::ListChannelResultMessage::decode(message.body).ok()?;
                let channels = body.channels.into_iter().map(|c| ChannelEntry {
                    channel: ChannelId(c.channel_id),
                    channel_type: ChannelType::from_wire(c.channel_type),
                    metadata: c.metadata,
                });
                Event::ChannelList { request: self.answered(message), channels: channels.collect() }
            }
            msg_type::SUB_TO_CHANNEL => {
                let body = pb::SubscribedToChannelResultMessage::decode(message.body).ok()?;
                Event::Subscribed {
                    request: self.answered(message),
                    channel,
                    conn: ConnId(body.conn_id),
                    kind: Kind::from_wire(body.conn_type),
                    options: SubscribeOptions::from_proto(body.sub_options.unwrap_or_default()),
                    channel_type: ChannelType::from_wire(body.channel_type),
                }
            }
            msg_type::UNSUB_FROM_CHANNEL => {
                let body = pb::UnsubscribedFromChannelResultMessage::decode(message.body).ok()?;
                Event::Unsubscribed {
                    request: self.answered(message),
                    channel,
                    conn: ConnId(body.conn_id),
                    kind: Kind::from_wire(body.conn_type),
                    channel_type: ChannelType::from_wire(body.channel_type),
                }
            }
            msg_type::CHANNEL_OWNER_LOST => Event::OwnerLost { channel },
            msg_type::CHANNEL_OWNER_RECOVERED => Event::OwnerRecovered { channel },
            msg_type => Event::Other {
                request: self.answered(message),
                channel,
                msg_type,
                broadcast: message.broadcast,
                stub_id: message.stub_id,
                body: Bytes::copy_from_slice(message.body),
            },
        })
    }

    fn type_name(&mut self, name: &str) -> Arc<str> {
        // A session meets a handful of types; the bound keeps a hostile gateway from growing the
        // list.
        const TYPE_NAMES_MAX: usize = 64;
        if let Some(known) = self.type_names.iter().find(|known| &***known == name) {
            return Arc::clone(known);
        }
        let name: Arc<str> = Arc::from(name);
        if self.type_names.len() < TYPE_NAMES_MAX {
            self.type_names.push(Arc::clone(&name));
        }
        name
    }
}
