//! The end of a window: the merged update and its encoding.

use core::mem;
use std::sync::Arc;

use throng_wire::frame::PACKET_BYTES_SEND_MAX;
use throng_wire::{data_update_entry_len, write_data_update_entry, write_data_update_head};

use super::{FanoutPosition, Joiner, Made, Members, Position, compile_mask, same_mask};
use crate::channel::Channel;
use crate::data::{FieldMask, Mosaic, Plan, Update, merged, split_without_oversize};
use crate::failpoint::failpoint;
use crate::ids::{ChannelId, ConnId};
use crate::mail::{Payload, State};
use crate::outbox::Entry;
use crate::reason::Refusal;
use crate::switchboard::Switchboard;

impl Channel {
    pub(super) fn flush(&mut self, board: &mut Switchboard, index: usize, at: i64, made: &mut Made) {
        let end = self.fan.end();
        let cohort = &mut self.fan.cohorts[index];
        let mask = cohort.mask.clone();
        let start = cohort.start;
        let folded = mem::take(&mut cohort.folded);
        let mut members = mem::take(&mut cohort.members);
        let joiners = mem::take(&mut cohort.joiners);
        failpoint!();
        let state = Some(State { channel: self.id, full: false });

        let pending = start < end || !folded.is_empty();
        let private_count = members.privates(start).count();
        if pending && private_count < members.len() {
            let shared = self.range_payload(board, start, end, &mask, &folded, None, made);
            failpoint!();
            board.deliver_to_all(&shared, state, members.recipients(board.index));
            board.deliver(&shared, state, members.silent_writers(start));
        }
        failpoint!();
        if private_count < MOSAIC_MEMBERS_MIN {
            for (at, conn) in members.privates(start) {
                let payload = self.range_payload(board, start, end, &mask, &folded, Some(conn), made);
                if !payload.is_empty() {
                    board.deliver(&payload, state, [members.address(at)]);
                }
            }
        } else {
            self.flush_mosaic(board, start, &mask, &folded, &members);
        }

        let mut early = Vec::new();
        failpoint!();
        for joiner in joiners {
            if joiner.not_before > at {
                early.push(joiner);
                continue;
            }
            let Joiner { member, cursor, folded, .. } = joiner;
            if cursor < end || !folded.is_empty() {
                let own = (member.skip_self && member.own_end > cursor).then_some(member.conn);
                let payload = self.range_payload(board, cursor, end, &mask, &folded, own, made);
                board.deliver(&payload, state, [member.address()]);
            }
            let at = members.push(member);
            self.subs[member.sub as usize].place = FanoutPosition::Member { cohort: index as u32, at };
        }
        for (position, joiner) in early.iter().enumerate() {
            self.subs[joiner.member.sub as usize].place =
                FanoutPosition::Joiner { cohort: index as u32, at: position as u32 };
        }

        let cohort = &mut self.fan.cohorts[index];
        cohort.start = end;
        failpoint!();
        cohort.done = cohort.done.max(at);
        cohort.members = members;
        cohort.due = early
            .iter()
            .any(|joiner| joiner.cursor < end || !joiner.folded.is_empty())
            .then(|| cohort.due_after(at));
        cohort.joiners = early;
    }

    /// Gives each of many members the updates from `start` on without its own, in pieces of shared
    /// pages.
    fn flush_mosaic(
        &self,
        board: &mut Switchboard,
        start: u64,
        mask: &Option<Arc<FieldMask>>,
        folded: &[Update],
        members: &Members,
    ) {
        let Some(data) = &self.data else { return };
        let plan = data.content.plan();
        let name = EntryName { channel: self.id, type_url: &data.type_url };
        let from = start.saturating_sub(self.fan.first) as usize;
        // What was folded is nobody's: who sent some of it has become a joiner. No connection has
        // the id 0.
        let folded = folded.iter().map(|update| (0, update));
        let changes = self.fan.ring.range(from..).map(|change| (change.sender.0, &change.update));
        let mut mosaic = Mosaic::new(
            plan,
            self.merge_options,
            mask.clone(),
            name.value_bytes_max(),
            folded.chain(changes),
        );
        let state = Some(State { channel: self.id, full: false });
        let pages: Vec<Payload> = mosaic
            .pages()
            .iter()
            .map(|page| {
                let mut payload = Payload::new();
                if !page.is_empty() {
                    append_entries(board, plan, name, page, &mut payload);
                }
                payload
            })
            .collect();
        board.stats.fan_out_encodes += pages.len() as u64;
        failpoint!();
        for (at, conn) in members.privates(start) {
            let others = mosaic.others(conn.0);
            let mut payload: Payload = pages[..others.without.start].iter().flatten().cloned().collect();
            let value_len: usize = others.pieces.iter().map(bytes::Bytes::len).sum();
            if value_len > 0 {
                let mut head = Vec::new();
                write_data_update_head(&mut head, name.channel.0, name.type_url, value_len);
                payload.push(Entry::in_pieces(head, others.pieces, &board.entries));
            }
            payload.extend(pages[others.without.end..].iter().flatten().cloned());
            for message in others.messages.iter().filter(|message| !message.is_empty()) {
                append_entries(board, plan, name, message, &mut payload);
                board.stats.fan_out_encodes += 1;
            }
            board.deliver(&payload, state, [members.address(at)]);
        }
    }

    /// The updates of `start..end`, without those of `own`, as one message; made once per tick for
    /// the same range.
    pub(super) fn range_payload(
        &self,
        board: &mut Switchboard,
        start: u64,
        end: u64,
        mask: &Option<Arc<FieldMask>>,
        folded: &[Update],
        own: Option<ConnId>,
        made: &mut Made,
    ) -> Payload {
        let Some(data) = &self.data else { return Payload::new() };
        let shareable = own.is_none() && folded.is_empty();
        // Where the last update says it all, the others need no merging, and all such ranges are
        // one.
        let start = match self.fan.ring.back() {
            Some(last) if shareable && (last.covers_from..end).contains(&start) => end - 1,
            _ => start,
        };
        if shareable
            && let Some((_, _, payload)) =
                made.ranges.iter().find(|(from, with, _)| *from == start && same_mask(with, mask))
        {
            return payload.clone();
        }
        debug_assert!(start >= self.fan.first && end == self.fan.end());
        let from = start.saturating_sub(self.fan.first) as usize;
        let changes = self.fan.ring.range(from..).filter(|change| own != Some(change.sender));
        let updates = folded.iter().chain(changes.map(|change| &change.update));
        let mut payload = Payload::new();
        let plan = data.content.plan();
        let name = EntryName { channel: self.id, type_url: &data.type_url };
        let values = merged(plan, self.merge_options.as_ref(), mask.as_deref(), updates);
        board.stats.fan_out_encodes += u64::from(!values.is_empty());
        for value in values {
            // An update of which a mask leaves nothing is not sent (the reference sends an empty
            // message).
            if mask.is_none() || !value.is_empty() {
                append_entries(board, plan, name, &value, &mut payload);
            }
        }
        if shareable {
            made.ranges.push((start, mask.clone(), payload.clone()));
        }
        payload
    }

    pub(super) fn send_full_state(&mut self, board: &mut Switchboard, key: u32, at: i64, made: &mut Made) {
        let Some(data) = &mut self.data else { return };
        data.content.settle();
        let sub = &mut self.subs[key as usize];
        sub.place = FanoutPosition::Nowhere;
        failpoint!();
        sub.had_first = true;
        // Spec §7.5: windows count from the tick of the full state.
        sub.anchor = at;
        let stale = mem::take(&mut sub.stale) && !self.fan.removals.updates.is_empty();
        let address = sub.address;
        let plan = data.content.plan();
        let mask = compile_mask(plan, &sub.options.masks);
        let made_before =
            made.states.iter().find(|(with, behind, _)| *behind == stale && same_mask(with, &mask));
        let payload = match made_before {
            Some((.., payload)) => payload.clone(),
            None => {
                let mut payload = Payload::new();
                let name = EntryName { channel: self.id, type_url: &data.type_url };
                if stale {
                    let removed = self.fan.removals.encode(plan, mask.as_deref());
                    if !removed.is_empty() {
                        append_entries(board, plan, name, &removed, &mut payload);
                    }
                }
                let mut value = Vec::new();
                data.content.encode(mask.as_deref(), &mut value);
                append_entries(board, plan, name, &value, &mut payload);
                board.stats.fan_out_encodes += 1;
                made.states.push((mask, stale, payload.clone()));
                payload
            }
        };
        let state = State { channel: self.id, full: true };
        board.deliver(&payload, Some(state), [address]);
        let cursor = self.fan.end();
        failpoint!();
        self.join(board, key, Position::at(cursor));
    }
}

/// Members with own updates in a window from which on their messages are laid out in shared pages.
/// Below, as many merges cost less than finding out which senders touched the same.
const MOSAIC_MEMBERS_MIN: usize = 3;

/// How a data message is labelled.
#[derive(Clone, Copy)]
struct EntryName<'a> {
    channel: ChannelId,
    type_url: &'a str,
}

impl EntryName<'_> {
    /// The longest value that fits a packet.
    fn value_bytes_max(self) -> usize {
        let overhead = data_update_entry_len(self.channel.0, self.type_url, PACKET_BYTES_SEND_MAX)
            - PACKET_BYTES_SEND_MAX;
        PACKET_BYTES_SEND_MAX - overhead
    }
}

/// Appends a data message, split where it fits no packet. Parts merge to the whole at the
/// receiver.
fn append_entries(
    board: &mut Switchboard,
    plan: &Plan,
    name: EntryName<'_>,
    value: &[u8],
    out: &mut Payload,
) {
    let entries = &board.entries;
    let entry = |value: &[u8]| {
        let mut bytes = Vec::with_capacity(data_update_entry_len(name.channel.0, name.type_url, value.len()));
        write_data_update_entry(&mut bytes, name.channel.0, name.type_url, value);
        Entry::new(bytes, entries)
    };
    if data_update_entry_len(name.channel.0, name.type_url, value.len()) <= PACKET_BYTES_SEND_MAX {
        out.push(entry(value));
        return;
    }
    let mut parts = Vec::new();
    // A single element over the size of a packet cannot be sent to anybody; the rest can.
    let left_out = split_without_oversize(plan, value, name.value_bytes_max(), &mut parts);
    out.extend(parts.iter().map(|part| entry(part)));
    for _ in 0..left_out {
        board.refuse(Refusal::Oversize);
    }
}
