//! Requests of players to a matcher through GLOBAL, which are passed to the process's own
//! connection to the matcher, the *link*.
//!
//! ```text
//!  player ── MATCHMAKING on GLOBAL ──▶ shard 0 ── MATCHMAKING {1: player identifier, 2: body} ──▶ link
//!  player ◀── MATCHMAKING, one connection ────────────────────────────────────────────────────── link
//!  player gone for good ────────────▶ shard 0 ── MATCHMAKING {1: player identifier} ────────────▶ link
//!  second login of such a player ───▶ shard 0 ── MATCHMAKING {1: player identifier, 3: 1} ──────▶ link
//! ```
//!
//! The core adds the identity of the player and interprets nothing.

use throng_wire::matcher::Writer;

use crate::ids::{ChannelId, ConnId};
use crate::mail::Head;
use crate::reason::Refusal;
use crate::requests::Sender;
use crate::shard::Shard;

/// Type of the messages between players and the link, on GLOBAL. Without a link they go to the
/// owner of GLOBAL, like any other of the game's.
pub const MATCHMAKING: u32 = 110;

impl Shard {
    /// Whether a client's message is for the link.
    pub(crate) fn is_for_link(&self, head: Head) -> bool {
        head.msg_type == MATCHMAKING && head.channel == ChannelId::GLOBAL && self.board.config.link.is_some()
    }

    /// A client's message to the link.
    pub(crate) fn ask_link(&mut self, sender: Sender, head: Head, body: &[u8]) -> Result<(), Refusal> {
        let global = self.global.as_mut().ok_or(Refusal::NotGlobal)?;
        let link = global.link.ok_or(Refusal::NoOwner)?;
        let entry = global.entries.get_mut(&sender.conn).ok_or(Refusal::ClosingConnection)?;
        // Players without an identifier could not be told apart.
        if entry.pit.is_empty() {
            return Err(Refusal::Permission);
        }
        if !std::mem::replace(&mut entry.asked_link, true) {
            *global.link_users.entry(entry.pit.clone()).or_default() += 1;
        }
        let payload = Writer::new().str(1, &entry.pit).bytes(2, body).into_bytes();
        if self.board.forward(link, head, sender.conn, &payload) {
            self.board.stats.forwarded += 1;
        }
        Ok(())
    }

    /// A client has logged in. A player that the link knows by an earlier connection is its own
    /// from now on: the link passes the match on.
    pub(crate) fn tell_link_of_login(&mut self, conn: ConnId, pit: &str) {
        let Some(global) = &mut self.global else { return };
        let Some(count) = global.link_users.get_mut(pit) else { return };
        let Some(entry) = global.entries.get_mut(&conn) else { return };
        *count += 1;
        entry.asked_link = true;
        self.tell_link(conn, &Writer::new().str(1, pit).u64(3, 1).into_bytes());
    }

    /// A client that the link knows is gone and will not return.
    pub(crate) fn tell_link_of_end(&mut self, conn: ConnId, pit: &str) {
        let Some(global) = &mut self.global else { return };
        if let Some(count) = global.link_users.get_mut(pit) {
            *count -= 1;
            if *count == 0 {
                global.link_users.remove(pit);
            }
        }
        self.tell_link(conn, &Writer::new().str(1, pit).into_bytes());
    }

    fn tell_link(&mut self, conn: ConnId, payload: &[u8]) {
        let Some(link) = self.global.as_ref().and_then(|global| global.link) else { return };
        let head = Head { channel: ChannelId::GLOBAL, broadcast: 0, stub: 0, msg_type: MATCHMAKING };
        self.board.forward(link, head, conn, payload);
    }
}
