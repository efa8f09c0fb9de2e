//! Commands of a peer that sends many at once, put off so that others are served in between.

use alloc::collections::VecDeque;

use bytes::Bytes;

use super::{Context, Peer};
use crate::budget::OVERHEAD;

/// Commands that have arrived and wait for the peer's next turn.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    /// The commands of a datagram, or what is left of them, and the time that it carried.
    datagrams: VecDeque<(Bytes, Option<u16>)>,
    /// Their cost, as the budget counts it.
    held: usize,
}

impl Peer {
    /// True if the peer may have one more command obeyed in this turn, which it uses up.
    pub(crate) fn takes_command(&mut self, now_ms: u64) -> bool {
        if self.turn_ms != now_ms as u32 {
            (self.turn_ms, self.turn_commands) = (now_ms as u32, 0);
        }
        self.turn_commands += 1;
        self.turn_commands <= COMMANDS_PER_TURN
    }

    pub(crate) fn has_backlog(&self) -> bool {
        self.backlog.is_some()
    }

    /// Puts off the commands of a datagram, behind or before those that wait. False when there is
    /// no room for them.
    pub(crate) fn put_off(
        &mut self,
        ctx: &mut Context,
        commands: &[u8],
        sent_time: Option<u16>,
        is_next: bool,
    ) -> bool {
        let cost = commands.len() + OVERHEAD;
        let held = self.backlog.as_ref().map_or(0, |backlog| backlog.held);
        if held + cost > BACKLOG_MAX || !ctx.budget.has_room(self.held, cost, is_next) {
            // None makes room for what may never be obeyed.
            ctx.budget.wanted = None;
            return false;
        }
        ctx.budget.take(&mut self.held, cost);
        let backlog = self.backlog.get_or_insert_default();
        backlog.held += cost;
        let datagram = (Bytes::copy_from_slice(commands), sent_time);
        if is_next {
            backlog.datagrams.push_front(datagram);
        } else {
            backlog.datagrams.push_back(datagram);
        }
        true
    }

    /// Takes the commands that have waited the longest.
    pub(crate) fn take_put_off(&mut self, ctx: &mut Context) -> Option<(Bytes, Option<u16>)> {
        let backlog = self.backlog.as_mut()?;
        let (commands, sent_time) = backlog.datagrams.pop_front()?;
        let cost = commands.len() + OVERHEAD;
        backlog.held -= cost;
        if backlog.datagrams.is_empty() {
            self.backlog = None;
        }
        ctx.budget.give_back(&mut self.held, cost);
        Some((commands, sent_time))
    }

    pub(crate) fn drop_backlog(&mut self, ctx: &mut Context) {
        if let Some(backlog) = self.backlog.take() {
            ctx.budget.give_back(&mut self.held, backlog.held);
        }
    }

    /// Bytes that the commands cost which were put off.
    pub(crate) fn put_off_bytes(&self) -> usize {
        self.backlog.as_ref().map_or(0, |backlog| backlog.held)
    }
}

/// Commands of one peer that are obeyed in a turn, a millisecond of the host's clock: more than
/// full datagrams bring at 20 Gbit/s. The most expensive ones, fragments of a byte, take some 7 ms.
pub(crate) const COMMANDS_PER_TURN: u32 = 2_048;
/// Bytes of commands put off for one peer; further datagrams are dropped and come again.
const BACKLOG_MAX: usize = 4 << 20;
