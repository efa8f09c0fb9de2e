//! The layer between a socket and a host: nothing, or the sealed layer of [`throng_enet::secure`].

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use throng_enet::secure::{
    Claim, ConnectToken, Entry, Gate, GateConfig, GateStats, Identity, Ledger, Opened, SEAL_BYTES,
    UsedTokens, Verdict,
};
use throng_enet::{Config, Host, PeerId, Transmit};
use throng_stdx::Instant;

use super::entropy;
use crate::udp::UdpPort;

/// Datagrams kept while a client is not in yet: its CONNECT, and once more.
const HELD_MAX: usize = 4;
/// Answers to strangers that wait for the socket, 217 bytes each at most.
const ANSWERS_MAX: usize = 4_096;

pub(super) enum Guard {
    /// Plain ENet.
    None,
    /// A server's: admits clients.
    Gate { gate: Box<Gate>, answers: Vec<(Transmit, Vec<u8>)>, scratch: Vec<u8> },
    /// A client's: gets in.
    Entry { entry: Box<Entry>, server: SocketAddr, held: Vec<Vec<u8>>, scratch: Vec<u8> },
}

impl Guard {
    pub(super) fn of(gate: Gate) -> Self {
        Self::Gate { gate: Box::new(gate), answers: Vec::new(), scratch: Vec::new() }
    }

    pub(super) fn entry(now: Instant, token: Option<&ConnectToken>, server: SocketAddr, seed: u128) -> Self {
        token.map_or(Self::None, |token| {
            let entry = Box::new(Entry::new(now, token, seed));
            Self::Entry { entry, server, held: Vec::new(), scratch: Vec::new() }
        })
    }

    /// Makes room for the seal in the datagrams of a host behind this guard.
    pub(super) fn fit(&self, config: Config) -> Config {
        match self {
            Self::None => config,
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
        match self {
            Self::None => port.receive_via(|from, via, datagram| {
                // An empty datagram is nobody's; the C library stops reading there.
                if !datagram.is_empty() {
                    host.handle_datagram_via(now, from, via, datagram);
                }
            }),
            Self::Gate { gate, answers, scratch } => {
                let unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
                port.receive_via(|from, via, datagram| {
                    match gate.open(now, unix_s, from, datagram, scratch) {
                        Opened::Enet(datagram) if !datagram.is_empty() => {
                            host.handle_datagram_via(now, from, via, datagram);
                        }
                        Opened::Answer(answer) if answers.len() < ANSWERS_MAX => {
                            answers.push((Transmit { to: from, via }, answer.to_vec()));
                        }
                        _ => {}
                    }
                })
            }
            Self::Entry { entry, server, scratch, .. } => port.receive(|from, datagram| {
                if from == *server
                    && let Opened::Enet(datagram) = entry.open(now, datagram, scratch)
                {
                    host.handle_datagram(now, from, datagram);
                }
            }),
        }
    }

    /// Gives the port what the guard itself has to say. Before the host's datagrams.
    pub(super) fn push_own(&mut self, now: Instant, port: &mut UdpPort) {
        match self {
            Self::None => {}
            Self::Gate { answers, .. } => {
                answers.drain(..).for_each(|(transmit, answer)| {
                    port.push_via(transmit.to, transmit.via, &answer);
                });
            }
            Self::Entry { entry, server, held, scratch } => {
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
        let Transmit { to, via } = transmit;
        match self {
            Self::None => port.push_via(to, via, datagram),
            Self::Gate { gate, scratch, .. } => {
                if gate.seal(to, datagram, scratch) {
                    port.push_via(to, via, scratch);
                }
            }
            Self::Entry { entry, held, scratch, .. } => {
                if entry.seal(datagram, scratch) {
                    port.push(to, scratch);
                } else if held.len() < HELD_MAX {
                    held.push(datagram.to_vec());
                }
            }
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if let Self::Gate { gate, .. } = self {
            gate.handle_timeout(now);
        }
    }

    /// Time at which something is due here; a client's own datagrams leave with the next
    /// [`push_own`](Self::push_own).
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        match self {
            Self::None => None,
            Self::Gate { gate, .. } => gate.next_timeout(),
            Self::Entry { entry, .. } => entry.next_timeout(),
        }
    }

    /// Whom the token of a peer names; `None` without a gate, and for plain clients beside one.
    pub(super) fn identity(&self, host: &Host, peer: PeerId) -> Option<Identity> {
        let Self::Gate { gate, .. } = self else { return None };
        gate.identity(host.peer(peer)?.address).copied()
    }

    /// True if the server has not let this client in, and will not.
    pub(super) fn is_refused(&self, now: Instant) -> bool {
        matches!(self, Self::Entry { entry, .. } if entry.is_refused(now))
    }

    /// Counters of the gate.
    pub(super) fn stats(&self) -> GateStats {
        match self {
            Self::Gate { gate, .. } => *gate.stats(),
            _ => GateStats::default(),
        }
    }
}

/// Makes the guards of all sockets of a port: without gates, or with one each that know the tokens
/// which any of them has seen.
pub(super) struct Gates(Option<(GateConfig, SharedTokens)>);

/// Locked only when a client gets in.
#[derive(Clone)]
struct SharedTokens(Arc<Mutex<UsedTokens>>);

impl Ledger for SharedTokens {
    fn claim(&mut self, unix_s: u64, claim: &Claim) -> Verdict {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).claim(unix_s, claim)
    }
}

impl Gates {
    pub(super) fn new(config: Option<GateConfig>) -> io::Result<Self> {
        let Some(config) = config else { return Ok(Self(None)) };
        let used = UsedTokens::new(config.tokens_max, entropy()?);
        Ok(Self(Some((config, SharedTokens(Arc::new(Mutex::new(used)))))))
    }

    pub(super) fn guard(&self, now: Instant) -> io::Result<Guard> {
        let Some((config, used)) = &self.0 else { return Ok(Guard::None) };
        // Two gates with one seed would seal different challenges under the same key and nonce.
        let config = GateConfig { seed: entropy()?, ..config.clone() };
        Ok(Guard::of(Gate::with_ledger(now, config, Box::new(used.clone()))))
    }
}
