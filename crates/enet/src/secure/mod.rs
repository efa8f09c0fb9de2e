//! Encryption and admission for clients of our own, in a layer below ENet: who gets in, and nobody
//! else reads or writes.
//!
//! The C library and Godot know nothing of it and need not: ENet's datagrams travel unchanged
//! inside sealed ones. A backend that knows its players issues a [`ConnectToken`] over a safe
//! channel of its own, such as HTTPS; the client shows it to the server's [`Gate`], which shares
//! only a key with the backend. Tokens expire, work once and only at the servers they name. What
//! this protects from, and what not, is in `SECURITY.md` beside this crate.
//!
//! ```text
//! backend                client                          gate
//!    │ token, keys ────────▶ │ request: token, salt ───────▶ │  nothing is kept
//!    │  (over HTTPS)         │ ◀───── challenge: salt, sealed │  smaller than the request
//!    │                       │ response: challenge, proof ──▶ │  address, token and keys are proven: a session
//!    │                       │ ◀───────────── sealed nothing │
//!    │                       │ ◀── sealed ENet datagrams ──▶ │
//! ```
//!
//! Every datagram of this layer begins with the bytes FF FF, which no ENet datagram can begin with
//! (no peer, but a session), so plain clients can share the port if the gate [lets
//! them](GateConfig::plain).
//!
//! ```
//! use throng_enet::secure::{TokenClaims, Entry, Gate, GateConfig, Opened, TokenKey};
//! use throng_enet::Instant;
//!
//! # fn entropy<const N: usize>() -> [u8; N] { [7; N] }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (client_address, server_address) = ("10.0.0.1:5000".parse()?, "10.0.0.2:7777".parse()?);
//! let (now, unix_s) = (Instant::ZERO, 1_700_000_000);
//! // Backend and gate share 32 secret bytes.
//! let key = TokenKey::new(entropy());
//! let claims = TokenClaims { user_id: 42, expires_unix_s: unix_s + 30, servers: vec![server_address], ..TokenClaims::default() };
//! let token = key.issue(&claims, entropy())?;
//!
//! let mut gate = Gate::new(now, GateConfig { servers: vec![server_address], ..GateConfig::new(key, 1) });
//! let mut entry = Entry::new(now, &token, 2);
//! let (mut out, mut scratch) = (Vec::new(), Vec::new());
//! while entry.poll_transmit(now, &mut out) {
//!     if let Opened::Answer(answer) = gate.open(now, unix_s, client_address, &out, &mut scratch) {
//!         let answer = answer.to_vec();
//!         entry.open(now, &answer, &mut scratch);
//!     }
//! }
//! assert_eq!(gate.identity(client_address).map(|who| who.user_id), Some(42));
//! // From here on ENet's datagrams go through `seal` on their way out and `open` on their way in.
//! assert!(entry.seal(b"a datagram of ENet", &mut out));
//! assert!(matches!(
//!     gate.open(now, unix_s, client_address, &out, &mut scratch),
//!     Opened::Enet(b"a datagram of ENet")
//! ));
//! # Ok(())
//! # }
//! ```

mod entry;
mod gate;
mod ledger;
mod seal;
mod token;

pub use entry::Entry;
pub use gate::{Gate, GateConfig, GateStats, Identity};
pub use ledger::{Claim, Ledger, UsedTokens, Verdict};
pub use seal::SEAL_BYTES;
pub use token::{ConnectToken, TokenClaims, TokenError, TokenKey, USER_DATA_BYTES};

/// Result of opening a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an answer has to be sent, a datagram to be handed on"]
pub enum Opened<'a> {
    /// A datagram for the [`Host`](crate::Host).
    Enet(&'a [u8]),
    /// Part of the handshake; this goes back to where it came from.
    Answer(&'a [u8]),
    /// Part of the handshake, or to be dropped.
    Nothing,
}

#[cfg(test)]
mod tests;
