//! The client's side: getting in.

use alloc::vec::Vec;
use core::time::Duration;

use throng_stdx::Instant;

use super::seal::{CHALLENGE, Cipher, DATA, MAGIC, REQUEST, RESPONSE, Replay, SALT};
use super::token::{ConnectToken, Reader};
use super::{Opened, SEAL_BYTES};
use crate::secret::Secret;

/// Shows a token to a [`Gate`](super::Gate), and seals and opens the client's datagrams.
///
/// The client calls [`poll_transmit`](Self::poll_transmit) until false after everything it does,
/// sends what it gets, and hands everything that arrives to [`open`](Self::open). As soon as
/// [`is_ready`](Self::is_ready), ENet may connect.
pub struct Entry {
    token: ConnectToken,
    secret: Secret,
    salt: [u8; SALT],
    state: State,
    /// Time of the handshake's next datagram, and how many of this kind have left.
    due: Instant,
    tries: u32,
    give_up: Instant,
}

enum State {
    /// Waits for a challenge.
    Asking,
    /// Has answered it and waits for a genuine datagram.
    Answering { response: Vec<u8>, session: Session },
    /// The gate has let us in.
    Inside(Session),
}

struct Session {
    inward: Cipher,
    outward: Cipher,
    replay: Replay,
    next: u64,
}

impl Entry {
    /// Begins to ask. `seed`: 128 bits from the operating system.
    #[must_use]
    pub fn new(now: Instant, token: &ConnectToken, seed: u128) -> Self {
        let mut entry = Self {
            token: token.clone(),
            secret: Secret::new(seed),
            salt: [0; SALT],
            state: State::Asking,
            due: now,
            tries: 0,
            give_up: now + PATIENCE,
        };
        entry.ask(now);
        entry
    }

    /// Writes the next datagram of the handshake to `out`, which is cleared first; false when none
    /// is due.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut Vec<u8>) -> bool {
        out.clear();
        if now < self.due || now >= self.give_up || matches!(self.state, State::Inside(_)) {
            return false;
        }
        if matches!(self.state, State::Answering { .. }) && self.tries >= ANSWERS {
            // The challenge may have been a forgery, or too old by the time the answer came.
            self.ask(now);
        }
        self.tries += 1;
        self.due = now + AGAIN;
        match &self.state {
            State::Answering { response, .. } => out.extend_from_slice(response),
            _ => self.write_request(out),
        }
        true
    }

    /// Takes in a datagram that came from the server. `scratch` is cleared and holds what is
    /// returned.
    pub fn open<'a>(&mut self, now: Instant, datagram: &[u8], scratch: &'a mut Vec<u8>) -> Opened<'a> {
        scratch.clear();
        let [m0, m1, kind, body @ ..] = datagram else { return Opened::Nothing };
        if [*m0, *m1] != MAGIC {
            return Opened::Nothing;
        }
        match *kind {
            CHALLENGE => {
                // Sent at once by `poll_transmit`.
                let _ = self.take_challenge(now, body);
                Opened::Nothing
            }
            DATA if self.open_data(datagram, scratch) && !scratch.is_empty() => Opened::Enet(scratch),
            _ => Opened::Nothing,
        }
    }

    /// Writes the sealed form of an ENet datagram to `out`, which is cleared first. False before
    /// the challenge has come: the datagram is to be dropped, and ENet sends it again.
    pub fn seal(&mut self, datagram: &[u8], out: &mut Vec<u8>) -> bool {
        out.clear();
        let (State::Answering { session, .. } | State::Inside(session)) = &mut self.state else {
            return false;
        };
        session.outward.seal(session.next, datagram, out);
        session.next += 1;
        true
    }

    /// True if the challenge has been answered, so that ENet's datagrams can be sealed.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        !matches!(self.state, State::Asking)
    }

    /// True if the gate has not let us in within ten seconds. It never says why: the token is
    /// expired, used or not for that server, or nobody is there.
    #[must_use]
    pub fn is_refused(&self, now: Instant) -> bool {
        now >= self.give_up && !matches!(self.state, State::Inside(_))
    }

    /// Time at which [`poll_transmit`](Self::poll_transmit) has something.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        (!matches!(self.state, State::Inside(_)) && self.due < self.give_up).then_some(self.due)
    }

    fn ask(&mut self, now: Instant) {
        self.salt[..8].copy_from_slice(&self.secret.draw().to_be_bytes());
        self.salt[8..].copy_from_slice(&(self.secret.draw() as u32).to_be_bytes());
        self.state = State::Asking;
        (self.due, self.tries) = (now, 0);
    }

    fn write_request(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&MAGIC);
        out.push(REQUEST);
        out.extend_from_slice(&self.token.protocol.to_be_bytes());
        out.extend_from_slice(&self.token.expires_unix_s.to_be_bytes());
        out.extend_from_slice(&self.token.nonce);
        out.extend_from_slice(&self.salt);
        out.extend_from_slice(&self.token.sealed);
    }

    fn take_challenge(&mut self, now: Instant, challenge: &[u8]) -> Option<()> {
        let mut reader = Reader(challenge);
        let client_salt: [u8; SALT] = reader.array()?;
        let server_salt: [u8; SALT] = reader.array()?;
        if !matches!(self.state, State::Asking) || client_salt != self.salt {
            return None;
        }
        let outward = Cipher::derive(&self.token.client_key, &client_salt, &server_salt);
        let mut response = Vec::with_capacity(challenge.len() + SEAL_BYTES);
        response.extend_from_slice(&MAGIC);
        response.push(RESPONSE);
        response.extend_from_slice(challenge);
        let proof = outward.prove(challenge);
        response.extend_from_slice(&proof);
        let inward = Cipher::derive(&self.token.server_key, &client_salt, &server_salt);
        let session = Session { inward, outward, replay: Replay::default(), next: 0 };
        self.state = State::Answering { response, session };
        (self.due, self.tries) = (now, 0);
        Some(())
    }

    fn open_data(&mut self, sealed: &[u8], out: &mut Vec<u8>) -> bool {
        let number =
            sealed.get(3..).and_then(|rest| rest.first_chunk()).map(|number| u64::from_be_bytes(*number));
        let (State::Answering { session, .. } | State::Inside(session)) = &mut self.state else {
            return false;
        };
        let Some(number) = number.filter(|&number| session.replay.is_new(number)) else { return false };
        if session.inward.open(sealed, out).is_none() {
            return false;
        }
        session.replay.note(number);
        self.state = match core::mem::replace(&mut self.state, State::Asking) {
            State::Answering { session, .. } => State::Inside(session),
            other => other,
        };
        true
    }
}

impl core::fmt::Debug for Entry {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let state = match self.state {
            State::Asking => "asking",
            State::Answering { .. } => "answering",
            State::Inside(_) => "inside",
        };
        out.debug_struct("Entry").field("state", &state).finish_non_exhaustive()
    }
}

/// Pause before a datagram of the handshake is sent again.
const AGAIN: Duration = Duration::from_millis(250);
/// Answers to one challenge before another is asked for.
const ANSWERS: u32 = 4;
const PATIENCE: Duration = Duration::from_secs(10);
