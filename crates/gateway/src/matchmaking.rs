//! Requests of players to a matcher through GLOBAL, which the process passes on.
//!
//! ```text
//!  player ── MATCHMAKING on GLOBAL ──▶ shard 0 ── Effect::Matchmake, Request ──▶ process
//!  player ◀── MATCHMAKING ──────────── shard 0 ◀── Shard::tell_player ────────── process
//!  second login of such a player ────▶ shard 0 ── Effect::Matchmake, Login ────▶ process
//!  player gone for good ─────────────▶ shard 0 ── Effect::Matchmake, End ──────▶ process
//! ```
//!
//! The core adds the identity of the player and interprets nothing.

use throng_stdx::Instant;

use crate::effect::{Effect, PlayerNews};
use crate::ids::{ChannelId, ConnId};
use crate::mail::Head;
use crate::reason::Refusal;
use crate::requests::Sender;
use crate::shard::Shard;

/// Type of the messages between players and the matcher, on GLOBAL. In a world without matchmaking
/// they go to the owner of GLOBAL, like any other of the game's.
pub const MATCHMAKING: u32 = 110;
/// Broadcast value of a message to one connection.
const TO_ONE: u32 = 1;

impl Shard {
    /// Returns whether a client's message is for the matcher.
    pub(crate) fn is_for_matcher(&self, head: Head) -> bool {
        head.msg_type == MATCHMAKING && head.channel == ChannelId::GLOBAL && self.board.config.matchmaking
    }

    /// A client's message to the matcher.
    pub(crate) fn ask_matcher(&mut self, sender: Sender, head: Head, body: &[u8]) -> Result<(), Refusal> {
        let global = self.global.as_mut().ok_or(Refusal::NotGlobal)?;
        let entry = global.entries.get_mut(&sender.conn).ok_or(Refusal::ClosingConnection)?;
        // Players without an identifier could not be told apart.
        if entry.pit.is_empty() {
            return Err(Refusal::Permission);
        }
        let player = entry.pit.clone();
        if !std::mem::replace(&mut entry.asked_matcher, true) {
            *global.matchmakers.entry(player.clone()).or_default() += 1;
        }
        let what = PlayerNews::Request { stub: head.stub, body: body.to_vec() };
        self.board.effect(Effect::Matchmake { conn: sender.conn, player, what });
        self.board.stats.forwarded += 1;
        Ok(())
    }

    /// A client has logged in. A player whom the matcher knows by an earlier connection is its own
    /// from now on: the process passes the match on.
    pub(crate) fn tell_matcher_of_login(&mut self, conn: ConnId, pit: &str) {
        let Some(global) = &mut self.global else { return };
        let Some(count) = global.matchmakers.get_mut(pit) else { return };
        let Some(entry) = global.entries.get_mut(&conn) else { return };
        *count += 1;
        entry.asked_matcher = true;
        self.board.effect(Effect::Matchmake { conn, player: pit.into(), what: PlayerNews::Login });
    }

    /// A client that the matcher knows is gone and will not return.
    pub(crate) fn tell_matcher_of_end(&mut self, conn: ConnId, pit: &str) {
        let Some(global) = &mut self.global else { return };
        if let Some(count) = global.matchmakers.get_mut(pit) {
            *count -= 1;
            if *count == 0 {
                global.matchmakers.remove(pit);
            }
        }
        self.board.effect(Effect::Matchmake { conn, player: pit.into(), what: PlayerNews::End });
    }

    /// Sends a client what the matcher says: the answer to the request with this stub id, or with 0
    /// a notice. Shard 0 only; a connection that is gone hears nothing.
    pub fn tell_player(&mut self, now: Instant, conn: ConnId, stub: u32, payload: &[u8]) {
        self.advance(now);
        if self.global.as_ref().is_some_and(|global| global.entries.contains_key(&conn)) {
            let head = Head { channel: ChannelId::GLOBAL, broadcast: TO_ONE, stub, msg_type: MATCHMAKING };
            if self.board.forward(conn, head, conn, payload) {
                self.board.stats.forwarded += 1;
            }
        }
        self.settle();
    }
}
