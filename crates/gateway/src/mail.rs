//! Mail between shards.
//!
//! | from | to | letters |
//! |---|---|---|
//! | a connection's shard | a channel's home | [`Letter::Messages`], [`Letter::Resume`] |
//! | a channel's home | connections' shards | [`Letter::Append`], [`Letter::Deliver`], [`Letter::NotSubscribed`], [`Letter::Held`] |
//! | shard 0 | all | [`Letter::Opened`], [`Letter::Authenticated`], [`Letter::Recovered`], [`Letter::Restore`], [`Letter::Settled`], [`Letter::Expired`], [`Letter::GlobalOwner`] |
//! | a connection's shard | all | [`Letter::Closed`], [`Letter::Full`] |
//! | shard 0 | a channel's home | [`Letter::CreateChannel`] |
//! | any | a channel's home | [`Letter::RemoveChannel`] |
//! | a channel's home | shard 0 | [`Letter::ChannelRemoved`], [`Letter::Restored`], [`Letter::SpawnInCell`], [`Letter::ObjectSpawned`], [`Letter::ObjectDestroyed`] |
//! | any | a connection's shard | [`Letter::CloseConn`] |
//! | shard 0 | a connection's shard | [`Letter::Leave`] |
//! | a connection's shard | shard 0 | [`Letter::Proven`], [`Letter::HasAnswer`] |
//! | all but shard 0 | a connection's shard | [`Letter::Renamed`] |

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;
use throng_wire::channeldpb::ChannelSubscriptionOptions;

use crate::data::MergeOptions;
use crate::effect::{Redacted, WorldChoice};
use crate::ids::{ChannelId, ConnId, ConnKind, ShardIndex};
use crate::outbox::{Entry, Framing};
use crate::reason::CloseReason;
use crate::settings::ChannelType;

/// A message from one shard to another. Drivers carry it and never look inside.
#[derive(Debug)]
#[must_use = "lost mail leaves shards with different views"]
pub struct Mail(pub(crate) Letter);

impl Mail {
    /// Bytes of memory that this mail keeps alive, shared ones included: an upper bound for queues
    /// of mail.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let beside = match &self.0 {
            Letter::Messages(batch) => batch.heads.len() * size_of::<(ConnId, Head, u32)>() + batch.bytes(),
            Letter::Append { batch, .. } => batch.entries.len() * size_of::<(ConnId, u32)>() + batch.bytes(),
            Letter::Deliver { payload, conns, .. } => {
                payload.iter().map(|entry| entry.len()).sum::<usize>() + size_of_val(&**conns)
            }
            Letter::CreateChannel(new) => {
                let data = new.data.as_ref().map_or(0, |(name, bytes)| name.len() + bytes.len());
                let masks = new.options.iter().flat_map(|options| &options.data_field_masks);
                size_of::<NewChannel>() + new.metadata.len() + data + masks.map(String::len).sum::<usize>()
            }
            Letter::SpawnInCell { object, body, .. } => object.len() + body.len(),
            Letter::ObjectSpawned { object, .. } => object.len(),
            _ => 0,
        };
        size_of::<Self>() + beside
    }
}

/// One logical data message: one entry, or several when it had to be split.
pub(crate) type Payload = SmallVec<[Arc<Entry>; 1]>;

/// The envelope of a message without its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) channel: ChannelId,
    pub(crate) broadcast: u32,
    pub(crate) stub: u32,
    pub(crate) msg_type: u32,
}

#[derive(Debug)]
pub(crate) enum Letter {
    /// A connection was accepted; `shard` handles its bytes.
    Opened {
        conn: ConnId,
        kind: ConnKind,
        shard: ShardIndex,
        framing: Framing,
        addr: IpAddr,
    },
    /// A connection authenticated; after an accidental loss its place is kept if `recoverable`.
    Authenticated {
        conn: ConnId,
        recoverable: bool,
    },
    /// A connection is gone, which was accepted as `accepted`. `keep` its places for its return.
    Closed {
        conn: ConnId,
        accepted: ConnId,
        kind: ConnKind,
        keep: bool,
        reason: CloseReason,
    },
    /// GLOBAL has this live owner.
    GlobalOwner(Option<ConnId>),
    /// `fresh`, a connection of `shard`, is the lost connection `old` and goes by that name from
    /// now on.
    Recovered {
        fresh: ConnId,
        old: ConnId,
        kind: ConnKind,
        shard: ShardIndex,
    },
    /// A shard calls `fresh` by the name `old` from now on: what it sent before under that name is
    /// for the connection that was lost. To the shard of the connection.
    Renamed {
        fresh: ConnId,
        old: ConnId,
        from: ShardIndex,
    },
    /// It has had its AUTH result: give it back its places.
    Restore {
        conn: ConnId,
        /// The id it was accepted under; tells this recovery from an earlier one.
        fresh: ConnId,
    },
    /// The recovery of a connection has ended.
    Settled {
        conn: ConnId,
    },
    /// A lost connection will not return: its places are free.
    Expired {
        conn: ConnId,
        kind: ConnKind,
    },
    /// A connection has shown that it owns its address.
    Proven {
        conn: ConnId,
    },
    /// A connection that has resumed sends, so it has the answer with its new token.
    HasAnswer {
        conn: ConnId,
    },
    /// A connection of the receiving shard belongs to another world of the process.
    Leave {
        conn: ConnId,
        departure: Box<Departure>,
    },
    /// Close a connection.
    CloseConn {
        conn: ConnId,
        reason: CloseReason,
        world: Option<Box<str>>,
    },
    /// Messages of connections to channels of the receiving shard.
    Messages(MessageBatch),
    /// Entries for single connections, of the shard `from`.
    Append {
        from: ShardIndex,
        batch: EntryBatch,
    },
    /// The same entries for many connections.
    Deliver {
        from: ShardIndex,
        payload: Payload,
        state: Option<State>,
        conns: Arc<[ConnId]>,
    },
    /// A connection has room again for a channel whose updates it missed.
    Resume {
        channel: ChannelId,
        conn: ConnId,
    },
    /// The answer to [`Letter::Resume`] when the connection has no subscription.
    NotSubscribed {
        channel: ChannelId,
        conn: ConnId,
    },
    /// A client of the receiving shard is, or is no longer, subscribed to a channel of the sending
    /// one.
    Held {
        conn: ConnId,
        channel: ChannelId,
        held: bool,
    },
    /// A client has, or no longer has, as many subscriptions as it may.
    Full {
        conn: ConnId,
        full: bool,
    },
    CreateChannel(Box<NewChannel>),
    /// Remove a channel if the sender may; `head` is the request's.
    RemoveChannel {
        channel: ChannelId,
        sender: ConnId,
        head: Head,
    },
    ChannelRemoved {
        channel: ChannelId,
    },
    /// An object was spawned in another channel than the cell it lies in: note it there and pass
    /// the message on.
    SpawnInCell {
        sender: ConnId,
        head: Head,
        cell: ChannelId,
        id: ChannelId,
        /// Encoded reference to the object.
        object: Bytes,
        body: Vec<u8>,
    },
    /// An object lies in a cell, if one is named; the object of an entity, if there is one with
    /// this id, has this reference.
    ObjectSpawned {
        id: ChannelId,
        object: Bytes,
        /// Other channels than cells list nothing.
        lies_in: Option<ChannelId>,
    },
    /// The object of an entity, if there is one with this id, is gone; `told` is the channel that
    /// was told so.
    ObjectDestroyed {
        id: ChannelId,
        told: ChannelId,
    },
    /// This shard has restored every place of a returned connection.
    Restored {
        conn: ConnId,
        fresh: ConnId,
    },
}

/// What makes an entry a state update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) channel: ChannelId,
    /// A full state: the receiver has not missed anything any more.
    pub(crate) full: bool,
}

#[derive(Debug)]
pub(crate) struct NewChannel {
    pub(crate) id: ChannelId,
    pub(crate) channel_type: ChannelType,
    pub(crate) metadata: String,
    pub(crate) owner: ConnId,
    pub(crate) options: Option<ChannelSubscriptionOptions>,
    /// Full type name and checked bytes.
    pub(crate) data: Option<(String, Vec<u8>)>,
    pub(crate) merge_options: Option<MergeOptions>,
    /// The request to answer, unless it is answered already.
    pub(crate) answer: Option<Head>,
}

/// The login of a connection that leaves.
#[derive(Debug)]
pub(crate) struct Departure {
    /// Number of the world.
    pub(crate) world: u32,
    pub(crate) head: Head,
    pub(crate) pit: Box<str>,
    pub(crate) lt: Redacted,
    pub(crate) token: Option<Vec<u8>>,
    pub(crate) wants_token: bool,
    pub(crate) void_token: Option<Box<str>>,
    pub(crate) asked: Option<WorldChoice>,
    /// The provider has said yes.
    pub(crate) judged: bool,
    /// Its address is its own.
    pub(crate) proven: bool,
}

/// Messages to channels of one shard, in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct MessageBatch {
    heads: Vec<(ConnId, Head, u32)>,
    bodies: Vec<u8>,
}

impl MessageBatch {
    pub(crate) fn push(&mut self, sender: ConnId, head: Head, body: &[u8]) {
        self.heads.push((sender, head, body.len() as u32));
        self.bodies.extend_from_slice(body);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bodies.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ConnId, Head, &[u8])> {
        let mut rest = &self.bodies[..];
        self.heads.iter().map(move |&(sender, head, len)| {
            let (body, tail) = rest.split_at(len as usize);
            rest = tail;
            (sender, head, body)
        })
    }
}

/// Entries for connections of one shard, each for one connection.
#[derive(Debug, Default)]
pub(crate) struct EntryBatch {
    entries: Vec<(ConnId, u32)>,
    bytes: Vec<u8>,
}

impl EntryBatch {
    pub(crate) fn push(&mut self, to: ConnId, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        write(&mut self.bytes);
        self.entries.push((to, (self.bytes.len() - start) as u32));
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ConnId, &[u8])> {
        let mut rest = &self.bytes[..];
        self.entries.iter().map(move |&(to, len)| {
            let (entry, tail) = rest.split_at(len as usize);
            rest = tail;
            (to, entry)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::EntryBytes;

    #[test]
    fn batches_give_back_what_they_took_in_order() {
        let head = |msg_type| Head { channel: ChannelId(3), broadcast: 0, stub: 1, msg_type };
        let mut messages = MessageBatch::default();
        messages.push(ConnId(1), head(100), b"one");
        messages.push(ConnId(2), head(101), b"");
        messages.push(ConnId(1), head(102), b"three");
        let got: Vec<_> =
            messages.iter().map(|(sender, head, body)| (sender.0, head.msg_type, body.to_vec())).collect();
        assert_eq!(got, [(1, 100, b"one".to_vec()), (2, 101, vec![]), (1, 102, b"three".to_vec())]);

        let mut entries = EntryBatch::default();
        entries.push(ConnId(7), |out| out.extend_from_slice(b"ab"));
        entries.push(ConnId(8), |_| {});
        let got: Vec<_> = entries.iter().map(|(to, bytes)| (to.0, bytes.to_vec())).collect();
        assert_eq!(got, [(7, b"ab".to_vec()), (8, vec![])]);
    }

    #[test]
    fn mail_knows_its_bytes() {
        let empty = Mail(Letter::GlobalOwner(None)).bytes();
        let payload = || Payload::from_iter([Entry::new(vec![0; 1000], &EntryBytes::default())]);
        let deliver = |conns: &[ConnId]| {
            Mail(Letter::Deliver {
                from: ShardIndex(1),
                payload: payload(),
                state: None,
                conns: conns.into(),
            })
            .bytes()
        };
        assert_eq!(deliver(&[]) - empty, 1000);
        assert_eq!(deliver(&[ConnId(1); 25]) - empty, 1100);
        let mut batch = MessageBatch::default();
        for _ in 0..3 {
            batch.push(
                ConnId(1),
                Head { channel: ChannelId(0), broadcast: 0, stub: 0, msg_type: 100 },
                &[7; 50],
            );
        }
        assert!(Mail(Letter::Messages(batch)).bytes() - empty > 3 * (50 + size_of::<Head>()));
    }

    #[test]
    fn mail_can_cross_threads() {
        fn is_send<T: Send>() {}
        is_send::<Mail>();
    }
}
