//! The layers between a socket and a host: DTLS if there is a certificate, and behind it nothing,
//! or the sealed layer of [`throng_enet::secure`].

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use throng_enet::secure::{
    Claim, ConnectToken, Entry, Gate, GateConfig, GateStats, Identity, Ledger, Opened, SEAL_BYTES,
    UsedTokens, Verdict,
};
use throng_enet::{Config, Host, PeerId, Transmit, Via};
use throng_stdx::Instant;

use super::dtls::{Behind, Dtls, DtlsConfig, DtlsStats};
use super::entropy;
use crate::udp::UdpPort;

/// Datagrams kept while a client is not in yet: its CONNECT, and once more.
const HELD_MAX: usize = 4;
/// Answers to strangers that wait for the socket, 237 bytes each at most.
const ANSWERS_MAX: usize = 4_096;

pub(super) struct Guard {
    dtls: Option<Box<Dtls>>,
    layer: Layer,
}

enum Layer {
    /// Plain ENet.
    None,
    /// A server's: admits clients.
    Gate { gate: Box<Gate>, answers: Vec<(Transmit, Vec<u8>)>, scratch: Vec<u8> },
    /// A client's: gets in.
    Entry { entry: Box<Entry>, server: SocketAddr, held: Vec<Vec<u8>>, scratch: Vec<u8> },
}

/// A host and the layer in front of it, as DTLS sees them.
struct Inside<'a> {
    now: Instant,
    unix_s: u64,
    layer: &'a mut Layer,
    host: &'a mut Host,
}

impl Behind for Inside<'_> {
    fn deliver(&mut self, from: SocketAddr, via: Via, datagram: &[u8]) {
        match &mut *self.layer {
            // An empty datagram is nobody's; the C library stops reading there.
            Layer::None if !datagram.is_empty() => {
                self.host.handle_datagram_via(self.now, from, via, datagram);
            }
            Layer::None => {}
            Layer::Gate { gate, answers, scratch } => {
                match gate.open(self.now, self.unix_s, from, datagram, scratch) {
                    Opened::Enet(datagram) if !datagram.is_empty() => {
                        self.host.handle_datagram_via(self.now, from, via, datagram);
                    }
                    Opened::Answer(answer) if answers.len() < ANSWERS_MAX => {
                        answers.push((Transmit { to: from, via }, answer.to_vec()));
                    }
                    _ => {}
                }
            }
            Layer::Entry { entry, server, scratch, .. } => {
                if from == *server
                    && let Opened::Enet(datagram) = entry.open(self.now, datagram, scratch)
                {
                    self.host.handle_datagram(self.now, from, datagram);
                }
            }
        }
    }

    fn has_peer(&self, address: SocketAddr) -> bool {
        self.host.has_peer_at(address)
    }

    fn replace_peers(&mut self, address: SocketAddr) {
        self.host.replace_peers_at(address);
    }
}

impl Guard {
    /// Lets everybody through.
    pub(super) const NONE: Self = Self { dtls: None, layer: Layer::None };

    pub(super) fn of(gate: Gate) -> Self {
        let layer = Layer::Gate { gate: Box::new(gate), answers: Vec::new(), scratch: Vec::new() };
        Self { dtls: None, layer }
    }

    pub(super) fn entry(now: Instant, token: Option<&ConnectToken>, server: SocketAddr, seed: u128) -> Self {
        token.map_or(Self::NONE, |token| {
            let entry = Box::new(Entry::new(now, token, seed));
            let layer = Layer::Entry { entry, server, held: Vec::new(), scratch: Vec::new() };
            Self { dtls: None, layer }
        })
    }

    /// Makes room for the seal in the datagrams of a host behind this guard. DTLS needs none: its
    /// header and seal fit between the longest datagram of ENet and that of an Ethernet.
    pub(super) fn fit(&self, config: Config) -> Config {
        match self.layer {
            Layer::None => config,
            _ => Config { mtu: config.mtu - SEAL_BYTES as u16, ..config },
        }
    }

    /// Reads a batch of datagrams into the host; whether there may be more.
    pub(super) fn receive(
        &mut self,
        now: Instant,
        port: &mut UdpPort,
        host: &mut Host,
    ) -> std::io::Result<bool> {
        let Self { dtls, layer } = self;
        let more = port.fetch()?;
        host.prefetch(port.senders());
        let mut inside = Inside { now, unix_s: unix_s(layer), layer, host };
        match dtls {
            None => port.read(|from, via, datagram| inside.deliver(from, via, datagram)),
            Some(dtls) => port.read(|from, via, datagram| {
                dtls.handle_datagram(now, from, via, datagram, &mut inside);
            }),
        }
        Ok(more)
    }

    /// Gives the port what the guard itself has to say. Before the host's datagrams.
    pub(super) fn push_own(&mut self, now: Instant, port: &mut UdpPort) {
        let Self { dtls, layer } = self;
        if let Some(dtls) = dtls {
            dtls.drain(|transmit, datagram| port.push_via(transmit.to, transmit.via, datagram));
        }
        match layer {
            Layer::None => {}
            Layer::Gate { answers, .. } => {
                for (transmit, answer) in answers.drain(..) {
                    seal(dtls, port, transmit, &answer);
                }
            }
            Layer::Entry { entry, server, held, scratch } => {
                while entry.poll_transmit(now, scratch) {
                    port.push(*server, scratch);
                }
                if entry.is_ready() {
                    for datagram in held.drain(..) {
                        if entry.seal(&datagram, scratch) {
                            port.push(*server, scratch);
                        }
                    }
                }
            }
        }
    }

    /// Gives the port a datagram of the host.
    pub(super) fn push(&mut self, port: &mut UdpPort, transmit: Transmit, datagram: &[u8]) {
        match &mut self.layer {
            Layer::None => seal(&mut self.dtls, port, transmit, datagram),
            Layer::Gate { gate, scratch, .. } => {
                if gate.seal(transmit.to, datagram, scratch) {
                    seal(&mut self.dtls, port, transmit, scratch);
                }
            }
            Layer::Entry { entry, held, scratch, .. } => {
                if entry.seal(datagram, scratch) {
                    port.push(transmit.to, scratch);
                } else if held.len() < HELD_MAX {
                    held.push(datagram.to_vec());
                }
            }
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, host: &mut Host) {
        let Self { dtls, layer } = self;
        if let Layer::Gate { gate, .. } = layer {
            gate.handle_timeout(now);
        }
        if let Some(dtls) = dtls {
            dtls.handle_timeout(now, &mut Inside { now, unix_s: unix_s(layer), layer, host });
        }
    }

    /// Time at which something is due here; a client's own datagrams leave with the next
    /// [`push_own`](Self::push_own).
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let layer = match &self.layer {
            Layer::None => None,
            Layer::Gate { gate, .. } => gate.next_timeout(),
            Layer::Entry { entry, .. } => entry.next_timeout(),
        };
        let dtls = self.dtls.as_ref().and_then(|dtls| dtls.next_timeout());
        [layer, dtls].into_iter().flatten().min()
    }

    /// Whom the token of a peer names; `None` without a gate, and for plain clients beside one.
    pub(super) fn identity(&self, host: &Host, peer: PeerId) -> Option<Identity> {
        let Layer::Gate { gate, .. } = &self.layer else { return None };
        gate.identity(host.peer(peer)?.address).copied()
    }

    /// True if the server has not let this client in, and will not.
    pub(super) fn is_refused(&self, now: Instant) -> bool {
        matches!(&self.layer, Layer::Entry { entry, .. } if entry.is_refused(now))
    }

    /// Counters of the gate.
    pub(super) fn stats(&self) -> GateStats {
        match &self.layer {
            Layer::Gate { gate, .. } => *gate.stats(),
            _ => GateStats::default(),
        }
    }

    /// Counters of DTLS.
    pub(super) fn dtls_stats(&self) -> DtlsStats {
        self.dtls.as_ref().map_or_else(DtlsStats::default, |dtls| dtls.stats())
    }
}

fn seal(dtls: &mut Option<Box<Dtls>>, port: &mut UdpPort, transmit: Transmit, datagram: &[u8]) {
    let Transmit { to, via } = transmit;
    match dtls {
        None => port.push_via(to, via, datagram),
        Some(dtls) => dtls.seal(to, datagram, |datagram| port.push_via(to, via, datagram)),
    }
}

/// The time of day, for the layer that needs it.
fn unix_s(layer: &Layer) -> u64 {
    match layer {
        Layer::Gate { .. } => SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        _ => 0,
    }
}

/// Makes the guards of all sockets of a port. Their gates know the tokens which any of them has
/// seen.
pub(super) struct Gates {
    gate: Option<(GateConfig, SharedTokens)>,
    dtls: Option<DtlsConfig>,
}

/// Locked only when a client gets in.
#[derive(Clone)]
struct SharedTokens(Arc<Mutex<UsedTokens>>);

impl Ledger for SharedTokens {
    fn claim(&mut self, unix_s: u64, claim: &Claim) -> Verdict {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).claim(unix_s, claim)
    }
}

impl Gates {
    pub(super) fn new(gate: Option<GateConfig>, dtls: Option<DtlsConfig>) -> io::Result<Self> {
        let shared = |config: GateConfig| {
            let used = UsedTokens::new(config.tokens_max, entropy()?);
            io::Result::Ok((config, SharedTokens(Arc::new(Mutex::new(used)))))
        };
        Ok(Self { gate: gate.map(shared).transpose()?, dtls })
    }

    pub(super) fn guard(&self, now: Instant) -> io::Result<Guard> {
        let mut guard = match &self.gate {
            Some((config, used)) => {
                // Two gates with one seed would seal different challenges under the same key and
                // nonce.
                let config = GateConfig { seed: entropy()?, ..config.clone() };
                Guard::of(Gate::with_ledger(now, config, Box::new(used.clone())))
            }
            None => Guard::NONE,
        };
        if let Some(dtls) = &self.dtls {
            guard.dtls = Some(Box::new(Dtls::new(dtls.clone(), entropy()?)));
        }
        Ok(guard)
    }
}
