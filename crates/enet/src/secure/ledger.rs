//! Which tokens have been used.

use alloc::collections::VecDeque;
use core::net::SocketAddr;

use hashbrown::HashMap;

use super::seal::TAG;
use crate::address::Key;
use crate::secret::{Keyed, Secret};

/// Remembers which tokens have been used, so that each works once. A [`Gate`](super::Gate) has one
/// of its own; gates behind one address, as the shards of a server are, need a common one.
pub trait Ledger: Send {
    /// Decides on a response that is genuine in every other respect. `unix_s` is the wall clock in
    /// seconds.
    fn claim(&mut self, unix_s: u64, claim: &Claim) -> Verdict;
}

/// Somebody wants to use a token.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Claim {
    /// Seal of the token, which differs from all others.
    pub token: [u8; TAG],
    /// The address it is shown from.
    pub by: SocketAddr,
    /// Number of the challenge it was shown with; rises within a gate.
    pub serial: u64,
    /// The second from which on the token is worth nothing and may be forgotten.
    pub expires_unix_s: u64,
}

impl Claim {
    pub(super) fn new(token: [u8; TAG], by: SocketAddr, serial: u64, expires_unix_s: u64) -> Self {
        Self { token, by, serial, expires_unix_s }
    }
}

/// Answer of a [`Ledger`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Used now for the first time, or by the same address after a newer challenge.
    Granted,
    /// The very same response again: the client has not heard from the gate yet.
    Repeated,
    /// Used from another address, or with a newer challenge than this.
    Used,
    /// No room to remember it.
    Full,
}

/// A [`Ledger`] in memory, about 100 bytes per token.
#[derive(Debug)]
pub struct UsedTokens {
    tokens_max: usize,
    used: HashMap<[u8; TAG], Used, Keyed>,
    /// In the order in which they came, which is about that in which they expire.
    order: VecDeque<([u8; TAG], u64)>,
}

#[derive(Debug)]
struct Used {
    by: Key,
    serial: u64,
}

impl UsedTokens {
    /// Room for `tokens_max` tokens that have not expired. `seed`: 128 bits that nobody else can
    /// guess.
    #[must_use]
    pub fn new(tokens_max: usize, seed: u128) -> Self {
        let used = HashMap::with_hasher(Secret::new(seed).table_key());
        Self { tokens_max, used, order: VecDeque::new() }
    }

    fn forget_expired(&mut self, unix_s: u64) {
        while let Some(&(token, expires_unix_s)) = self.order.front() {
            if expires_unix_s > unix_s {
                return;
            }
            self.order.pop_front();
            self.used.remove(&token);
        }
    }
}

impl Ledger for UsedTokens {
    fn claim(&mut self, unix_s: u64, claim: &Claim) -> Verdict {
        let by = Key::new(claim.by, 0);
        match self.used.get_mut(&claim.token) {
            Some(used) if used.by == by && used.serial == claim.serial => Verdict::Repeated,
            // A challenge that is older than the last one taken must not bring an old session, and
            // with it its keys and numbers, back to life.
            Some(used) if used.by != by || used.serial > claim.serial => Verdict::Used,
            Some(used) => {
                used.serial = claim.serial;
                Verdict::Granted
            }
            None => {
                self.forget_expired(unix_s);
                if self.used.len() >= self.tokens_max {
                    return Verdict::Full;
                }
                self.used.insert(claim.token, Used { by, serial: claim.serial });
                self.order.push_back((claim.token, claim.expires_unix_s));
                Verdict::Granted
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(token: u8, by: u8, serial: u64, expires_unix_s: u64) -> Claim {
        Claim::new([token; TAG], SocketAddr::from(([10, 0, 0, by], 5_000)), serial, expires_unix_s)
    }

    #[test]
    fn a_token_belongs_to_who_was_first_until_it_expires() {
        let mut ledger = UsedTokens::new(2, 1);
        let mut check = |unix_s, asked: Claim, expected| {
            assert_eq!(ledger.claim(unix_s, &asked), expected, "{asked:?} at {unix_s}");
        };
        check(0, claim(1, 1, 5, 30), Verdict::Granted);
        check(0, claim(1, 1, 5, 30), Verdict::Repeated);
        check(0, claim(1, 2, 6, 30), Verdict::Used);
        check(0, claim(1, 1, 7, 30), Verdict::Granted);
        check(0, claim(1, 1, 5, 30), Verdict::Used);
        check(0, claim(2, 2, 8, 40), Verdict::Granted);
        check(29, claim(3, 3, 9, 50), Verdict::Full);
        // The first has expired and made room.
        check(30, claim(3, 3, 10, 50), Verdict::Granted);
        check(30, claim(2, 3, 11, 40), Verdict::Used);
    }
}
