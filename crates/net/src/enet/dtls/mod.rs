//! DTLS 1.2 for the peers of a server, on the port that plain ENet uses. Spec: enet A7
//!
//! The first datagram from an address decides for the address: a ClientHello, or anything else. A
//! record of DTLS then carries one datagram of ENet, which does not know of it.
//!
//! # Strangers
//! The server answers a hello without a valid cookie with one, in a datagram that is no longer than
//! the hello, and keeps nothing. A valid cookie begins a handshake. Limits apply to handshakes in
//! progress and per second, in total and per network, and to the datagrams that one of them keeps.
//! Associations whose client is no ENet peer after ten seconds end.
//!
//! A cookie is valid for one address, one hello and at most a minute. Its key is drawn for each
//! socket and lasts as long. The time is part of what the key signs, so collected cookies expire
//! although the key stays.
//!
//! # A new handshake
//! Nothing tells a client that restarted from another one that has its address now, behind the same
//! NAT or on the path. A new handshake therefore ends the association before it and its peers.
//!
//! # After the end
//! An association that ends leaves its address behind as long as a peer of ENet is there, so that
//! nothing for it leaves in the clear.

mod crypto;
mod hello;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use dimpl::Output;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use throng_enet::{Transmit, Via};
use throng_stdx::Instant;

use crate::tls::{TlsConfigError, certificates, tls_server_config};
use hello::{Cookies, Hello};

/// Time that a client has from its cookie to the end of ENet's handshake, and interval at which an
/// association is asked for its peer.
const LEASE: Duration = Duration::from_secs(10);
/// Associations whose client is no peer yet. A new one replaces the oldest, which at [`STARTS`] per
/// second has had a second: four round trips of a slow connection.
const YOUNG_MAX: usize = 512;
/// Share of one /24 or /64 in [`YOUNG_MAX`].
const YOUNG_PER_BLOCK: usize = 64;
/// Associations of all kinds. A last resort: peers have limits of their own.
const ASSOCIATIONS_MAX: usize = 65_536;
/// Handshakes begun per second. One costs a third of a millisecond: a sixth of a core.
const STARTS: u32 = 500;
/// Share of one /24 or /64 in [`STARTS`].
const STARTS_PER_BLOCK: u32 = 50;
/// Counters of blocks. Two blocks that share one share its rate.
const BLOCK_COUNTERS: usize = 4_096;
/// Bytes that wait to be sent between two rounds; what does not fit is resent by its timer.
const OUT_BYTES_MAX: usize = 512 * 1024;
/// The longest record, with room for the header and the seal.
const RECORD_BYTES_MAX: usize = 17 * 1024;
/// Longest datagram of a handshake: passes everywhere.
const HANDSHAKE_MTU: usize = 1_200;
/// Longest datagram that a client sends: one of ENet, with its record around it.
const DATAGRAM_BYTES_MAX: usize = 4_096 + 64;
/// Longest datagram of a handshake that is taken.
const EARLY_BYTES_MAX: usize = 2_048;
/// Datagrams of a handshake that wait for an earlier one. A client's last flight takes three.
const EARLY_DATAGRAMS_MAX: usize = 8;

/// Server side of DTLS on an ENet port: the certificate, and the policy for plain clients.
///
/// The server sends one certificate and no chain, so clients must trust it or its issuer. Its key
/// is ECDSA on P-256 or P-384. The server does not ask clients for certificates.
#[derive(Clone)]
pub struct DtlsConfig {
    config: Arc<dimpl::Config>,
    identity: dimpl::DtlsCertificate,
    /// Serves plain ENet on the same port. Default: true.
    pub plain: bool,
}

impl DtlsConfig {
    /// Takes a certificate and its private key (PKCS #8 or SEC 1), both as PEM text.
    ///
    /// # Errors
    /// Names the text that cannot be used and the reason.
    pub fn from_pem(cert_pem: &[u8], key_pem: &[u8]) -> Result<Self, TlsConfigError> {
        // Compares the two, among others.
        tls_server_config(cert_pem, key_pem)?;
        let certificate = certificates(cert_pem)?.swap_remove(0);
        let key = PrivateKeyDer::from_pem_slice(key_pem).map_err(TlsConfigError::BadKeyPem)?;
        let provider = crypto::provider();
        if provider.key_provider.load_private_key(key.secret_der()).is_err() {
            return Err(TlsConfigError::NotElliptic);
        }
        let config = dimpl::Config::builder()
            .with_crypto_provider(provider)
            .require_client_certificate(false)
            .mtu(HANDSHAKE_MTU)
            .max_queue_rx(EARLY_DATAGRAMS_MAX)
            // The lease ends those that take too long.
            .handshake_timeout(2 * LEASE)
            .build()
            .map_err(|error| TlsConfigError::Dtls(error.to_string()))?;
        let (certificate, private_key) = (certificate.to_vec(), key.secret_der().to_vec());
        let identity = dimpl::DtlsCertificate { certificate, private_key };
        Ok(Self { config: Arc::new(config), identity, plain: true })
    }
}

impl fmt::Debug for DtlsConfig {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("DtlsConfig").field("plain", &self.plain).finish_non_exhaustive()
    }
}

/// Counters of DTLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DtlsStats {
    /// Associations there are, handshakes included.
    pub associations: usize,
    /// Hellos that were answered with a cookie.
    pub hellos: u64,
    /// Handshakes begun, by clients with a good cookie.
    pub begun: u64,
    /// Handshakes completed.
    pub completed: u64,
    /// Handshakes that failed: no common cipher suite, or wrong bytes.
    pub failed: u64,
    /// Clients that were no peer in time, or gave way to others.
    pub expired: u64,
    /// Handshakes refused by a limit.
    pub limited: u64,
    /// Records that belong to no association, do not pass its checks or are too long.
    pub dropped: u64,
    /// Plain datagrams from the address of an association, or where only DTLS is served.
    pub dropped_plain: u64,
}

impl std::ops::AddAssign for DtlsStats {
    fn add_assign(&mut self, other: Self) {
        let Self { associations, hellos, begun, completed, failed, expired, limited, dropped, dropped_plain } =
            other;
        self.associations += associations;
        self.hellos += hellos;
        self.begun += begun;
        self.completed += completed;
        self.failed += failed;
        self.expired += expired;
        self.limited += limited;
        self.dropped += dropped;
        self.dropped_plain += dropped_plain;
    }
}

/// A host of ENet, behind DTLS.
pub(super) trait Behind {
    /// Takes a datagram of ENet.
    fn deliver(&mut self, from: SocketAddr, via: Via, datagram: &[u8]);
    /// True if a connection with this address exists.
    fn has_peer(&self, address: SocketAddr) -> bool;
    /// Ends the connections with this address, which another client may have now.
    fn replace_peers(&mut self, address: SocketAddr);
}

/// The associations of one socket. One input, then [`drain`](Self::drain).
pub(super) struct Dtls {
    config: DtlsConfig,
    /// dimpl's time at our zero.
    epoch: std::time::Instant,
    cookies: Cookies,
    associations: HashMap<SocketAddr, Association>,
    /// Number of those that have ended: their addresses stay behind until their lease is over.
    ended: usize,
    /// Addresses of young associations, the oldest first.
    young: Vec<SocketAddr>,
    /// Times at which associations are asked for their peer, in order, with their serial.
    leases: VecDeque<(Instant, SocketAddr, u64)>,
    /// Not later than the first timer of a young association.
    wake: Option<Instant>,
    serial: u64,
    starts: Rate,
    starts_of_block: Rate,
    hasher: RandomState,
    out: Outbox,
    record: Box<[u8]>,
    stats: DtlsStats,
}

struct Association {
    serial: u64,
    /// Random number of the client's hello, which tells a resend from a new handshake.
    random: [u8; crypto::COOKIE_BYTES],
    via: Via,
    /// `None` once the association is over.
    dtls: Option<Box<dimpl::Dtls>>,
    /// The handshake is complete.
    is_open: bool,
    /// The client is no peer of ENet yet.
    is_young: bool,
    timer: Option<Instant>,
}

impl Dtls {
    pub(super) fn new(config: DtlsConfig, seed: u128) -> Self {
        Self {
            config,
            epoch: std::time::Instant::now(),
            cookies: Cookies::new(seed),
            associations: HashMap::new(),
            ended: 0,
            young: Vec::new(),
            leases: VecDeque::new(),
            wake: None,
            serial: 0,
            starts: Rate::new(STARTS, 1),
            starts_of_block: Rate::new(STARTS_PER_BLOCK, BLOCK_COUNTERS),
            hasher: RandomState::new(),
            out: Outbox::default(),
            record: vec![0; RECORD_BYTES_MAX].into(),
            stats: DtlsStats::default(),
        }
    }

    pub(super) fn handle_datagram(
        &mut self,
        now: Instant,
        from: SocketAddr,
        via: Via,
        datagram: &[u8],
        behind: &mut dyn Behind,
    ) {
        let association = self.associations.get(&from);
        if !hello::is_record(datagram) {
            if association.is_some() || !self.config.plain {
                self.stats.dropped_plain += 1;
                return;
            }
            return behind.deliver(from, via, datagram);
        }
        if association.is_none() && self.config.plain && behind.has_peer(from) {
            // A plain peer whose datagrams happen to begin like a record.
            return behind.deliver(from, via, datagram);
        }
        let is_open = association.is_some_and(|association| association.is_open);
        if datagram.len() > if is_open { DATAGRAM_BYTES_MAX } else { EARLY_BYTES_MAX } {
            self.stats.dropped += 1;
            return;
        }
        if let Some(hello) = Hello::parse(datagram) {
            if !self.cookies.is_known(now, from, &hello) {
                self.stats.hellos += 1;
                let answer = self.cookies.answer(now, from, &hello);
                return self.out.push(Transmit { to: from, via }, &answer);
            }
            if association.is_none_or(|association| association.random != hello.random) {
                return self.begin(now, from, via, &hello, datagram, behind);
            }
        }
        self.feed(now, from, via, datagram, behind);
    }

    /// Seals a datagram of ENet for `to`; `push` gets what leaves for it: the datagram itself when
    /// `to` is plain, and nothing when its association is over.
    pub(super) fn seal(&mut self, to: SocketAddr, datagram: &[u8], mut push: impl FnMut(&[u8])) {
        let Some(association) = self.associations.get_mut(&to) else {
            if self.config.plain {
                push(datagram);
            }
            return;
        };
        let Some(dtls) = association.dtls.as_mut().filter(|_| association.is_open) else { return };
        if dtls.send_application_data(datagram).is_ok() {
            while let Output::Packet(packet) = dtls.poll_output(&mut self.record) {
                push(packet);
            }
        }
    }

    /// Gives `push` the datagrams of DTLS itself.
    pub(super) fn drain(&mut self, push: impl FnMut(Transmit, &[u8])) {
        self.out.drain(push);
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, behind: &mut dyn Behind) {
        if self.wake.is_some_and(|at| at <= now) {
            for address in self.young.clone() {
                let due = |at: &Association| at.timer.is_some_and(|at| at <= now);
                if self.associations.get(&address).is_some_and(due) {
                    self.step(now, address, None, behind);
                }
            }
            let timers = self.young.iter().filter_map(|address| self.associations.get(address)?.timer);
            self.wake = timers.min();
        }
        while let Some(&(at, address, serial)) = self.leases.front()
            && at <= now
        {
            self.leases.pop_front();
            self.renew(now, address, serial, behind);
        }
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let lease = self.leases.front().map(|(at, ..)| *at);
        [lease, self.wake].into_iter().flatten().min()
    }

    pub(super) fn stats(&self) -> DtlsStats {
        DtlsStats { associations: self.associations.len() - self.ended, ..self.stats }
    }

    /// Begins the handshake of a client that has proven its address.
    fn begin(
        &mut self,
        now: Instant,
        from: SocketAddr,
        via: Via,
        hello: &Hello<'_>,
        datagram: &[u8],
        behind: &mut dyn Behind,
    ) {
        let (Ok(cookie), 1) = (hello.cookie.try_into(), hello.number) else {
            self.stats.dropped += 1;
            return;
        };
        let block = block(from.ip());
        let counter = self.hasher.hash_one(block) as usize % BLOCK_COUNTERS;
        let of_block = self.young.iter().filter(|address| self::block(address.ip()) == block).count();
        // The limits of a block first, so that one block does not use up what all share.
        let is_allowed = self.associations.len() < ASSOCIATIONS_MAX
            && of_block < YOUNG_PER_BLOCK
            && self.starts_of_block.allows(now, counter)
            && self.starts.allows(now, 0);
        if !is_allowed {
            self.stats.limited += 1;
            return;
        }
        self.stats.begun += 1;
        let time = self.time(now);
        let (config, identity) = (self.config.config.clone(), self.config.identity.clone());
        let mut dtls = Box::new(dimpl::Dtls::new_12(config, identity, time));
        let begun = crypto::vouch(hello.random, cookie, || {
            dtls.handle_timeout(time)?;
            dtls.handle_packet(&hello::first(&hello.random))?;
            // Its request for the cookie; the client has had ours.
            while !matches!(dtls.poll_output(&mut self.record), Output::Timeout(_)) {}
            dtls.handle_packet(datagram)
        });
        if begun.is_err() {
            self.stats.failed += 1;
            return;
        }
        self.retire(from);
        // The client that is there now may be another one than that of the association before.
        behind.replace_peers(from);
        if self.young.len() >= YOUNG_MAX {
            self.stats.expired += 1;
            self.retire(self.young[0]);
        }
        self.serial += 1;
        let association = Association {
            serial: self.serial,
            random: hello.random,
            via,
            dtls: Some(dtls),
            is_open: false,
            is_young: true,
            timer: None,
        };
        // One that it replaces was retired above.
        self.ended -= usize::from(self.associations.insert(from, association).is_some());
        self.young.push(from);
        self.leases.push_back((now + LEASE, from, self.serial));
        self.pump(from, behind);
    }

    fn feed(&mut self, now: Instant, from: SocketAddr, via: Via, datagram: &[u8], behind: &mut dyn Behind) {
        match self.associations.get_mut(&from).filter(|association| association.dtls.is_some()) {
            Some(association) => {
                association.via = via;
                self.step(now, from, Some(datagram), behind);
            }
            None => self.stats.dropped += 1,
        }
    }

    /// Gives an association the time, and a datagram.
    fn step(&mut self, now: Instant, address: SocketAddr, datagram: Option<&[u8]>, behind: &mut dyn Behind) {
        let time = self.time(now);
        let Some(association) = self.associations.get_mut(&address) else { return };
        let Some(dtls) = &mut association.dtls else { return };
        // An open association has no timers that matter.
        let timed = if association.is_young { dtls.handle_timeout(time) } else { Ok(()) };
        let result = timed.and_then(|()| datagram.map_or(Ok(()), |datagram| dtls.handle_packet(datagram)));
        if result.is_err() {
            if !association.is_open {
                self.stats.failed += 1;
                return self.retire(address);
            }
            // It may be forged and ends nothing: ENet finds out whether its peer is still there.
            self.stats.dropped += 1;
        }
        self.pump(address, behind);
    }

    /// Takes an association's output: its datagrams, ENet's datagrams from its client, its timer.
    fn pump(&mut self, address: SocketAddr, behind: &mut dyn Behind) {
        let Some(association) = self.associations.get_mut(&address) else { return };
        let Some(dtls) = &mut association.dtls else { return };
        let (mut has_closed, mut has_delivered) = (false, false);
        let timer = loop {
            match dtls.poll_output(&mut self.record) {
                Output::Packet(packet) => {
                    self.out.push(Transmit { to: address, via: association.via }, packet);
                }
                Output::Connected => {
                    association.is_open = true;
                    self.stats.completed += 1;
                }
                Output::ApplicationData(datagram) => {
                    has_delivered = true;
                    behind.deliver(address, association.via, datagram);
                }
                Output::CloseNotify => has_closed = dtls.close().is_ok(),
                Output::Timeout(at) => {
                    let nanos = at.saturating_duration_since(self.epoch).as_nanos();
                    break Instant::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
                }
                // No record is that long.
                Output::BufferTooSmall { .. } => return self.retire(address),
                _ => {}
            }
        };
        if association.is_young {
            association.timer = Some(timer);
            self.wake = Some(self.wake.map_or(timer, |at| at.min(timer)));
        }
        if has_closed {
            self.retire(address);
        } else if association.is_young && has_delivered && behind.has_peer(address) {
            self.grow_up(address);
        }
    }

    /// Ends the association if its address is no peer of ENet, and looks again later otherwise.
    fn renew(&mut self, now: Instant, address: SocketAddr, serial: u64, behind: &mut dyn Behind) {
        let found = self.associations.get_mut(&address).filter(|association| association.serial == serial);
        let Some(association) = found else { return };
        let is_of_use = behind.has_peer(address);
        if association.is_young && !(is_of_use && association.is_open) {
            self.stats.expired += 1;
        }
        if is_of_use {
            if association.is_open {
                self.grow_up(address)
            } else {
                self.retire(address)
            }
            self.leases.push_back((now + LEASE, address, serial));
            return;
        }
        if let Some(dtls) = association.dtls.as_mut().filter(|_| association.is_open)
            && dtls.close().is_ok()
        {
            self.pump(address, behind);
        }
        self.retire(address);
        self.ended -= usize::from(self.associations.remove(&address).is_some());
    }

    /// Ends an association; its address stays behind.
    fn retire(&mut self, address: SocketAddr) {
        self.grow_up(address);
        if let Some(association) = self.associations.get_mut(&address) {
            self.ended += usize::from(association.dtls.take().is_some());
        }
    }

    /// An association is not young any more.
    fn grow_up(&mut self, address: SocketAddr) {
        if let Some(association) = self.associations.get_mut(&address)
            && std::mem::take(&mut association.is_young)
        {
            self.young.retain(|young| *young != address);
        }
    }

    fn time(&self, now: Instant) -> std::time::Instant {
        self.epoch + Duration::from_nanos(now.as_nanos())
    }
}

/// Datagrams one after the other. Keeps its memory, so that answering strangers allocates nothing.
#[derive(Default)]
struct Outbox {
    bytes: Vec<u8>,
    items: Vec<(Transmit, usize)>,
}

impl Outbox {
    fn push(&mut self, transmit: Transmit, datagram: &[u8]) {
        if self.bytes.len() + datagram.len() <= OUT_BYTES_MAX {
            self.bytes.extend_from_slice(datagram);
            self.items.push((transmit, datagram.len()));
        }
    }

    fn drain(&mut self, mut push: impl FnMut(Transmit, &[u8])) {
        let mut rest = &self.bytes[..];
        for (transmit, len) in self.items.drain(..) {
            let (datagram, others) = rest.split_at(len);
            push(transmit, datagram);
            rest = others;
        }
        self.bytes.clear();
    }
}

/// Events per second with a burst of one second, for each of some counters.
struct Rate {
    interval: Duration,
    /// Time at which each counter's next event would be due at an even rate.
    due: Box<[Instant]>,
}

impl Rate {
    fn new(per_second: u32, counters: usize) -> Self {
        Self { interval: Duration::from_secs(1) / per_second, due: vec![Instant::ZERO; counters].into() }
    }

    fn allows(&mut self, now: Instant, counter: usize) -> bool {
        let due = &mut self.due[counter];
        let next = (*due).max(now) + self.interval;
        let is_allowed = next.since(now) <= Duration::from_secs(1);
        if is_allowed {
            *due = next;
        }
        is_allowed
    }
}

/// The network that an address stands for: its /24, or its /64.
fn block(ip: IpAddr) -> (bool, u64) {
    match ip.to_canonical() {
        IpAddr::V4(ip) => (false, u64::from(ip.to_bits() >> 8)),
        IpAddr::V6(ip) => (true, (ip.to_bits() >> 64) as u64),
    }
}
