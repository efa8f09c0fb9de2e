//! Objects, updates and elements that fit no packet go in parts: one transfer at a time on a
//! connection, each part sent until it is acknowledged, the whole applied when the last part has
//! arrived. Other objects go on meanwhile; what changes of this one waits, so that nothing newer is
//! overtaken.

use super::{BURST_PACKETS, Connection, END_LOSSES_MAX, Pair, Stage};
use crate::bits::write_varint;
use crate::client::PARTS_MAX;
use crate::keyed::Cursor;
use crate::sent::Item;
use crate::wire::{HEADER_BYTES, kind};

/// Bytes of a part around its own: section, index, four numbers.
const AROUND: usize = 2 + 5 + 8;
/// Bytes of a part on connections with a budget, whose frames may have room for no more.
const SMALL: usize = 256;

/// Effect on the pair when the transfer has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Create,
    Update {
        mask: u64,
    },
    /// Operations on a keyed array, after this place.
    Elements {
        array: u8,
        from: Option<Cursor>,
    },
    /// The last state, and the end.
    Destroy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Queued,
    InFlight,
    Delivered,
}

/// A transfer under way.
#[derive(Debug)]
pub(super) struct Transfer {
    id: u16,
    pub(super) object: u32,
    purpose: Purpose,
    bytes: Vec<u8>,
    /// Tokens whose texts it brings.
    tokens: Vec<u32>,
    chunk: usize,
    parts: Vec<State>,
    queued: usize,
    open: usize,
    /// The first part that has not arrived, and how often it was lost.
    losses: (u16, u8),
}

impl Connection {
    /// The object goes in parts just now: nothing else of it may be sent.
    #[inline]
    pub(super) fn transfers(&self, object: u32) -> bool {
        self.transfer.as_ref().is_some_and(|transfer| transfer.object == object)
    }

    /// A transfer whose pair has changed its life meanwhile is given up. What an update carried is
    /// still missing then.
    pub(super) fn give_up_transfer(&mut self) {
        let Some(transfer) = &self.transfer else { return };
        let (object, purpose) = (transfer.object, transfer.purpose);
        let holds = match purpose {
            Purpose::Create => matches!(self.pairs.get(&object), Some(Pair::Creating(_))),
            Purpose::Update { .. } | Purpose::Elements { .. } => {
                self.live.get(object) && self.scope.get(object)
            }
            Purpose::Destroy => matches!(self.pairs.get(&object), Some(Pair::Destroying(..))),
        };
        if !holds {
            self.transfer = None;
            match purpose {
                Purpose::Update { mask } => self.reveal_retained(object, mask),
                Purpose::Elements { array, from } => self.set_back(object, array, from),
                Purpose::Create | Purpose::Destroy => {}
            }
        }
    }

    /// Bytes of the parts of a transfer that begins now, and of the longest that a packet holds.
    fn chunk(&self) -> (usize, usize) {
        let whole = self.packet_bytes - HEADER_BYTES - AROUND;
        (if self.budget.is_some() { whole.min(SMALL) } else { whole }, whole)
    }

    /// Begins the transfer again in shorter parts if packets have become too short for its own.
    /// The receiver discards the parts that arrived; the whole may be applied twice.
    fn shorten_parts(&mut self) {
        let (chunk, whole) = self.chunk();
        let Some(transfer) = self.transfer.as_mut().filter(|transfer| transfer.chunk > whole) else { return };
        let count = transfer.bytes.len().div_ceil(chunk);
        if count > usize::from(u16::MAX) {
            self.stats.oversized += 1;
            return;
        }
        self.transfer_id = self.transfer_id.wrapping_add(1);
        (transfer.id, transfer.chunk, transfer.losses) = (self.transfer_id, chunk, (0, 0));
        transfer.parts = vec![State::Queued; count];
        (transfer.queued, transfer.open) = (count, count);
    }

    pub(super) fn part_lost(&mut self, id: u16, part: u16) {
        if let Some(transfer) = self.transfer.as_mut().filter(|transfer| transfer.id == id)
            && let Some(state) = transfer.parts.get_mut(usize::from(part))
            && *state == State::InFlight
        {
            *state = State::Queued;
            transfer.queued += 1;
            let (mut first, mut count) = transfer.losses;
            while transfer.parts.get(usize::from(first)) == Some(&State::Delivered) {
                (first, count) = (first + 1, 0);
            }
            count = count.saturating_add(u8::from(part == first));
            transfer.losses = (first, count);
            self.unresponsive |= transfer.purpose == Purpose::Destroy && count > END_LOSSES_MAX;
        }
    }

    pub(super) fn part_delivered(&mut self, id: u16, part: u16) {
        let Some(transfer) = self.transfer.as_mut().filter(|transfer| transfer.id == id) else { return };
        let Some(state) = transfer.parts.get_mut(usize::from(part)) else { return };
        if *state == State::InFlight {
            *state = State::Delivered;
            transfer.open -= 1;
        }
        if transfer.open > 0 {
            return;
        }
        let (object, purpose) = (transfer.object, transfer.purpose);
        self.known_tokens.extend(transfer.tokens.drain(..).map(|token| (token, ())));
        self.transfer = None;
        self.stats.transfers += 1;
        match purpose {
            Purpose::Create => {
                if matches!(self.pairs.get(&object), Some(Pair::Creating(_))) {
                    self.pairs.remove(&object);
                    self.live.set(object);
                }
            }
            // The next whole record is the next state that differences may build on.
            Purpose::Update { .. } => self.bases.reset(object),
            Purpose::Elements { .. } => {}
            Purpose::Destroy => self.destroyed(object),
        }
    }
}

impl Stage<'_> {
    /// Begins to send `body`, which is sections, in parts; the first are the present exports. False
    /// when another transfer is in flight or the body is longer than transfers may be.
    pub(super) fn begin_transfer(&mut self, object: u32, purpose: Purpose, body: Vec<u8>) -> bool {
        let (conn, sh) = (&mut *self.conn, self.sh);
        if conn.transfer.is_some() {
            return false;
        }
        let (chunk, _) = conn.chunk();
        let count = body.len().div_ceil(chunk);
        if body.len() > sh.config.transfer_bytes_max || count > usize::from(u16::MAX) {
            conn.stats.oversized += 1;
            return false;
        }
        conn.transfer_id = conn.transfer_id.wrapping_add(1);
        conn.held.set(object);
        conn.holds = true;
        conn.transfer = Some(Transfer {
            id: conn.transfer_id,
            object,
            purpose,
            bytes: body,
            tokens: self.scratch.exports.keys().collect(),
            chunk,
            parts: vec![State::Queued; count],
            queued: count,
            open: count,
            losses: (0, 0),
        });
        true
    }

    /// Writes the parts that wait, as long as less than a share of `allowance` is spent.
    #[inline(never)]
    pub(super) fn write_parts(&mut self, allowance: usize) {
        let (conn, sh, scratch) = (&mut *self.conn, self.sh, &mut *self.scratch);
        conn.shorten_parts();
        let Some(transfer) = conn.transfer.as_mut().filter(|transfer| transfer.queued > 0) else { return };
        let share = (allowance as f64 * sh.config.create_share) as usize;
        let count = transfer.parts.len() as u16;
        // Packets before, and parts in the open one.
        let (mut packets, mut together) = (0, 0);
        for (at, state) in transfer.parts.iter_mut().enumerate() {
            if *state != State::Queued {
                continue;
            }
            if scratch.out.spent() > share || scratch.out.ends().len() >= BURST_PACKETS {
                break;
            }
            let from = at * transfer.chunk;
            let bytes = &transfer.bytes[from..transfer.bytes.len().min(from + transfer.chunk)];
            let record = &mut scratch.record;
            record.clear();
            write_varint(record, u64::from(transfer.object));
            for word in [transfer.id, at as u16, count, bytes.len() as u16] {
                record.extend_from_slice(&word.to_le_bytes());
            }
            record.extend_from_slice(bytes);
            if together == PARTS_MAX {
                scratch.out.close(&mut conn.log);
            }
            if !scratch.out.reserve(&mut conn.log, kind::PART, record.len()) {
                break;
            }
            scratch.out.put(record);
            let before = scratch.out.ends().len();
            (packets, together) = (before, if packets == before { together + 1 } else { 1 });
            conn.log.push_item(Item::Part { id: transfer.id, part: at as u16 });
            conn.stats.parts_sent += 1;
            *state = State::InFlight;
            transfer.queued -= 1;
        }
    }
}
