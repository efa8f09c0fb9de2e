//! The server's side: admission.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use chacha20poly1305::XChaCha20Poly1305;
use chacha20poly1305::aead::{AeadInPlace, KeyInit};
use hashbrown::HashMap;
use throng_stdx::{Instant, TimerWheel};

use super::Opened;
use super::ledger::{Claim, Ledger, UsedTokens, Verdict};
use super::seal::{CHALLENGE, Cipher, DATA, KEY, MAGIC, REQUEST, RESPONSE, Replay, SALT, TAG};
use super::token::{Reader, TokenKey, USER_DATA_BYTES, write_address};
use crate::address::Key;
use crate::secret::{Keyed, Secret};

/// Configuration of a [`Gate`].
#[derive(Clone, Debug)]
pub struct GateConfig {
    /// Shared with the backend that issues tokens.
    pub key: TokenKey,
    /// 128 bits that nobody else can guess, from the operating system, new at every start.
    pub seed: u128,
    /// Tokens for another protocol are refused. Default 0.
    pub protocol: u64,
    /// Addresses of this server as tokens name them; a token that names none of them is refused.
    /// Default: none are checked.
    pub servers: Vec<SocketAddr>,
    /// True if clients without a token may speak plain ENet through the same port. Never from an
    /// address that has a session. Default: no.
    pub plain: bool,
    /// Sessions at the same time, about 450 bytes each. Beyond it new ones are refused. Default
    /// 1,048,576.
    pub sessions_max: usize,
    /// Tokens that have been used and have not expired, about 100 bytes each. Beyond it new ones
    /// are refused, as they could not be told from used ones later. Default 262,144.
    pub tokens_max: usize,
    /// A session in which nothing genuine arrives for this long is forgotten. Longer than ENet
    /// takes to give up a connection. Default 40 s.
    pub idle_timeout: Duration,
}

impl GateConfig {
    /// The defaults.
    #[must_use]
    pub fn new(key: TokenKey, seed: u128) -> Self {
        Self {
            key,
            seed,
            protocol: 0,
            servers: Vec::new(),
            plain: false,
            sessions_max: 1 << 20,
            tokens_max: 1 << 18,
            idle_timeout: Duration::from_secs(40),
        }
    }
}

/// Admits clients with a token, and seals and opens their datagrams. Stands between a socket and a
/// [`Host`](crate::Host); see [the module's page](super).
///
/// Keeps nothing of strangers: a request is answered with a challenge that carries, encrypted, all
/// that the gate will want to know when it comes back. Opening a datagram costs a look into a table
/// and its decryption, a request two short decryptions and an encryption.
pub struct Gate {
    config: GateConfig,
    secret: Secret,
    /// Seals challenges; nobody else has the key.
    challenge_key: [u8; KEY],
    challenges: u64,
    sessions: HashMap<Key, Session, Keyed>,
    ledger: Box<dyn Ledger>,
    timers: TimerWheel<(Key, u64)>,
    stats: GateStats,
}

/// Whom a session belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity {
    /// As the backend wrote it into the token.
    pub user_id: u64,
    /// The same.
    pub user_data: [u8; USER_DATA_BYTES],
}

/// Counters of a gate. All counters only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GateStats {
    /// Sessions begun.
    pub admitted: u64,
    /// Requests answered with a challenge.
    pub challenged: u64,
    /// Requests and responses with a token or challenge that is not genuine, not for this server,
    /// or expired.
    pub refused_tokens: u64,
    /// Responses with a token that has been used from another address, or again with an old
    /// challenge.
    pub refused_used: u64,
    /// Responses refused because a table is full.
    pub refused_full: u64,
    /// Sealed datagrams that are not genuine, or whose sender has no session.
    pub dropped_forged: u64,
    /// Sealed datagrams that have been seen before or are too old to tell.
    pub dropped_replayed: u64,
    /// Datagrams of plain ENet where there may be none.
    pub dropped_plain: u64,
}

impl core::ops::AddAssign for GateStats {
    /// Adds the counts of another gate, for a sum over several.
    fn add_assign(&mut self, other: Self) {
        let Self {
            admitted,
            challenged,
            refused_tokens,
            refused_used,
            refused_full,
            dropped_forged,
            dropped_replayed,
            dropped_plain,
        } = other;
        self.admitted += admitted;
        self.challenged += challenged;
        self.refused_tokens += refused_tokens;
        self.refused_used += refused_used;
        self.refused_full += refused_full;
        self.dropped_forged += dropped_forged;
        self.dropped_replayed += dropped_replayed;
        self.dropped_plain += dropped_plain;
    }
}

struct Session {
    identity: Identity,
    inward: Cipher,
    outward: Cipher,
    replay: Replay,
    /// Number of the next datagram out.
    next: u64,
    /// Number of the challenge that it began with; no two sessions share one.
    serial: u64,
    heard: Instant,
}

/// Content of a challenge, which goes to the client and back encrypted.
struct Challenge {
    address: SocketAddr,
    serial: u64,
    issued: Instant,
    expires_unix_s: u64,
    token: [u8; TAG],
    identity: Identity,
    client_key: [u8; KEY],
    server_key: [u8; KEY],
}

impl Gate {
    /// A gate that nobody has passed yet.
    #[must_use]
    pub fn new(now: Instant, config: GateConfig) -> Self {
        let ledger = Box::new(UsedTokens::new(config.tokens_max, config.seed));
        Self::with_ledger(now, config, ledger)
    }

    /// The same, with a ledger that others use as well; [`GateConfig::tokens_max`] does not matter
    /// then.
    #[must_use]
    pub fn with_ledger(now: Instant, config: GateConfig, ledger: Box<dyn Ledger>) -> Self {
        let mut secret = Secret::new(config.seed);
        let mut challenge_key = [0; KEY];
        for part in challenge_key.chunks_mut(8) {
            part.copy_from_slice(&secret.draw().to_be_bytes());
        }
        let mut timers = TimerWheel::new();
        // Brings the wheel to the present.
        let _ = timers.pop_due(now);
        Self {
            challenge_key,
            challenges: 0,
            sessions: HashMap::with_hasher(secret.table_key()),
            ledger,
            timers,
            stats: GateStats::default(),
            config,
            secret,
        }
    }

    /// Takes in a datagram as received from `from`. `unix_s` is the wall clock in seconds, for the
    /// expiry of tokens; `scratch` is cleared and holds what is returned.
    pub fn open<'a>(
        &mut self,
        now: Instant,
        unix_s: u64,
        from: SocketAddr,
        datagram: &'a [u8],
        scratch: &'a mut Vec<u8>,
    ) -> Opened<'a> {
        scratch.clear();
        let key = Key::new(from, 0);
        let [m0, m1, kind, body @ ..] = datagram else { return self.open_plain(key, datagram) };
        if [*m0, *m1] != MAGIC {
            return self.open_plain(key, datagram);
        }
        match *kind {
            DATA => {
                if self.open_data(now, key, datagram, scratch) && !scratch.is_empty() {
                    return Opened::Enet(scratch);
                }
            }
            REQUEST => {
                if self.challenge(now, unix_s, from, body, scratch).is_some() {
                    debug_assert!(scratch.len() <= datagram.len(), "a stranger gets no more than it sent");
                    self.stats.challenged += 1;
                    return Opened::Answer(scratch);
                }
                self.stats.refused_tokens += 1;
            }
            RESPONSE => match self.read_response(now, unix_s, from, body) {
                Some((challenge, salts)) => {
                    if self.admit(now, unix_s, key, &challenge, salts) {
                        // Something genuine tells the client that it is in.
                        self.seal(from, b"", scratch);
                        return Opened::Answer(scratch);
                    }
                }
                None => self.stats.refused_tokens += 1,
            },
            _ => self.stats.dropped_forged += 1,
        }
        Opened::Nothing
    }

    /// Writes what has to be sent for an ENet datagram to `out`, which is cleared first. False when
    /// there is no session with that address and plain ENet is not allowed: the datagram is to be
    /// dropped.
    pub fn seal(&mut self, to: SocketAddr, datagram: &[u8], out: &mut Vec<u8>) -> bool {
        out.clear();
        match self.sessions.get_mut(&Key::new(to, 0)) {
            Some(session) => {
                session.outward.seal(session.next, datagram, out);
                session.next += 1;
            }
            None if self.config.plain => out.extend_from_slice(datagram),
            None => return false,
        }
        true
    }

    /// Whom the session with this address belongs to.
    #[must_use]
    pub fn identity(&self, address: SocketAddr) -> Option<&Identity> {
        self.sessions.get(&Key::new(address, 0)).map(|session| &session.identity)
    }

    /// Ends a session: what still comes from there is dropped. Its token remains used.
    pub fn remove(&mut self, address: SocketAddr) {
        self.sessions.remove(&Key::new(address, 0));
    }

    /// Forgets sessions that have been silent for too long.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((_, (key, serial))) = self.timers.pop_due(now) {
            let Some(session) = self.sessions.get(&key).filter(|session| session.serial == serial) else {
                continue;
            };
            let deadline = session.heard + self.config.idle_timeout;
            if deadline <= now {
                self.sessions.remove(&key);
            } else {
                self.timers.insert(deadline, (key, serial));
            }
        }
    }

    /// Time at which [`handle_timeout`](Self::handle_timeout) is to be called next.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Sessions at present.
    #[must_use]
    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// Counters of the gate.
    #[must_use]
    pub fn stats(&self) -> &GateStats {
        &self.stats
    }

    fn open_plain<'a>(&mut self, key: Key, datagram: &'a [u8]) -> Opened<'a> {
        // From an address with a session, plain datagrams are somebody else's.
        if self.config.plain && !self.sessions.contains_key(&key) {
            return Opened::Enet(datagram);
        }
        self.stats.dropped_plain += 1;
        Opened::Nothing
    }

    fn open_data(&mut self, now: Instant, key: Key, sealed: &[u8], out: &mut Vec<u8>) -> bool {
        let number =
            sealed.get(3..).and_then(|rest| rest.first_chunk()).map(|number| u64::from_be_bytes(*number));
        let (Some(session), Some(number)) = (self.sessions.get_mut(&key), number) else {
            self.stats.dropped_forged += 1;
            return false;
        };
        if !session.replay.is_new(number) {
            self.stats.dropped_replayed += 1;
            return false;
        }
        if session.inward.open(sealed, out).is_none() {
            self.stats.dropped_forged += 1;
            return false;
        }
        session.replay.note(number);
        session.heard = session.heard.max(now);
        true
    }

    /// Answers a request. Keeps nothing.
    fn challenge(
        &mut self,
        now: Instant,
        unix_s: u64,
        from: SocketAddr,
        request: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<()> {
        let mut reader = Reader(request);
        let protocol = u64::from_be_bytes(reader.array()?);
        let expires_unix_s = u64::from_be_bytes(reader.array()?);
        let nonce = reader.array()?;
        let client_salt: [u8; SALT] = reader.array()?;
        let sealed = reader.array()?;
        if protocol != self.config.protocol || expires_unix_s <= unix_s || !reader.0.is_empty() {
            return None;
        }
        let private = self.config.key.open(protocol, expires_unix_s, &nonce, &sealed)?;
        let ours = &self.config.servers;
        if !ours.is_empty() && !private.servers.iter().any(|server| ours.contains(server)) {
            return None;
        }
        self.challenges += 1;
        let challenge = Challenge {
            address: from,
            serial: self.challenges,
            issued: now,
            expires_unix_s,
            token: *sealed.last_chunk()?,
            identity: Identity { user_id: private.user_id, user_data: private.user_data },
            client_key: private.client_key,
            server_key: private.server_key,
        };
        let mut server_salt = [0; SALT];
        server_salt[..8].copy_from_slice(&self.secret.draw().to_be_bytes());
        server_salt[8..].copy_from_slice(&(self.secret.draw() as u32).to_be_bytes());
        out.extend_from_slice(&MAGIC);
        out.push(CHALLENGE);
        out.extend_from_slice(&client_salt);
        out.extend_from_slice(&server_salt);
        let start = out.len();
        challenge.write(out);
        let tag = self.challenge_cipher().encrypt_in_place_detached(
            &nonce_of(&client_salt, &server_salt).into(),
            b"",
            &mut out[start..],
        );
        out.extend_from_slice(&tag.ok()?);
        Some(())
    }

    /// The challenge that a response brings back, if all of it is genuine and fresh.
    fn read_response(
        &self,
        now: Instant,
        unix_s: u64,
        from: SocketAddr,
        response: &[u8],
    ) -> Option<(Challenge, [[u8; SALT]; 2])> {
        let (text, proof) = response.split_last_chunk::<TAG>()?;
        let mut reader = Reader(text);
        let client_salt: [u8; SALT] = reader.array()?;
        let server_salt: [u8; SALT] = reader.array()?;
        let mut sealed: [u8; Challenge::LEN + TAG] = reader.array()?;
        let (body, tag) = sealed.split_at_mut(Challenge::LEN);
        let tag: [u8; TAG] = (*tag).try_into().ok()?;
        let nonce = nonce_of(&client_salt, &server_salt);
        self.challenge_cipher().decrypt_in_place_detached(&nonce.into(), b"", body, &tag.into()).ok()?;
        let challenge = Challenge::read(body)?;
        let is_fresh = now.since(challenge.issued) <= CHALLENGE_TIME && challenge.expires_unix_s > unix_s;
        if !reader.0.is_empty() || !is_fresh || Key::new(challenge.address, 0) != Key::new(from, 0) {
            return None;
        }
        let inward = Cipher::derive(&challenge.client_key, &client_salt, &server_salt);
        inward.is_proven(text, proof).then_some((challenge, [client_salt, server_salt]))
    }

    /// True if the session that the challenge is for stands.
    fn admit(
        &mut self,
        now: Instant,
        unix_s: u64,
        key: Key,
        challenge: &Challenge,
        salts: [[u8; SALT]; 2],
    ) -> bool {
        if !self.sessions.contains_key(&key) && self.sessions.len() >= self.config.sessions_max {
            self.stats.refused_full += 1;
            return false;
        }
        let claim =
            Claim::new(challenge.token, challenge.address, challenge.serial, challenge.expires_unix_s);
        match self.ledger.claim(unix_s, &claim) {
            Verdict::Granted => {}
            Verdict::Repeated => {
                return self.sessions.get(&key).is_some_and(|session| session.serial == challenge.serial);
            }
            Verdict::Used => {
                self.stats.refused_used += 1;
                return false;
            }
            Verdict::Full => {
                self.stats.refused_full += 1;
                return false;
            }
        }
        let [client_salt, server_salt] = &salts;
        let session = Session {
            identity: challenge.identity,
            inward: Cipher::derive(&challenge.client_key, client_salt, server_salt),
            outward: Cipher::derive(&challenge.server_key, client_salt, server_salt),
            replay: Replay::default(),
            next: 0,
            serial: challenge.serial,
            heard: now,
        };
        self.sessions.insert(key, session);
        self.timers.insert(now + self.config.idle_timeout, (key, challenge.serial));
        self.stats.admitted += 1;
        true
    }

    fn challenge_cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new(&self.challenge_key.into())
    }
}

impl Challenge {
    const LEN: usize = 18 + 8 + 8 + 8 + TAG + 8 + USER_DATA_BYTES + 2 * KEY;

    fn write(&self, out: &mut Vec<u8>) {
        write_address(out, self.address);
        out.extend_from_slice(&self.serial.to_be_bytes());
        out.extend_from_slice(&self.issued.as_nanos().to_be_bytes());
        out.extend_from_slice(&self.expires_unix_s.to_be_bytes());
        out.extend_from_slice(&self.token);
        out.extend_from_slice(&self.identity.user_id.to_be_bytes());
        out.extend_from_slice(&self.identity.user_data);
        out.extend_from_slice(&self.client_key);
        out.extend_from_slice(&self.server_key);
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        Some(Self {
            address: reader.address()?,
            serial: u64::from_be_bytes(reader.array()?),
            issued: Instant::from_nanos(u64::from_be_bytes(reader.array()?)),
            expires_unix_s: u64::from_be_bytes(reader.array()?),
            token: reader.array()?,
            identity: Identity { user_id: u64::from_be_bytes(reader.array()?), user_data: reader.array()? },
            client_key: reader.array()?,
            server_key: reader.array()?,
        })
    }
}

impl core::fmt::Debug for Gate {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        out.debug_struct("Gate")
            .field("sessions", &self.sessions.len())
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

fn nonce_of(client_salt: &[u8; SALT], server_salt: &[u8; SALT]) -> [u8; 2 * SALT] {
    let mut nonce = [0; 2 * SALT];
    nonce[..SALT].copy_from_slice(client_salt);
    nonce[SALT..].copy_from_slice(server_salt);
    nonce
}

/// A challenge comes back within a round trip.
const CHALLENGE_TIME: Duration = Duration::from_secs(10);
