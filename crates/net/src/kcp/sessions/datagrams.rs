//! Datagrams between sessions and sockets, in batches.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::sync::Arc;

use crate::stats::LoopStats;
use crate::sys;

pub(super) fn receive(
    socket: &UdpSocket,
    scratch: &mut [u8],
    arrived: &mut Vec<sys::Arrived>,
    stats: &mut LoopStats,
) -> usize {
    stats.reads += 1;
    // Errors are no more than lost datagrams: reports of unreachable peers among them, which time
    // out.
    let count = sys::receive_datagrams(socket.as_fd(), scratch, arrived).unwrap_or(0);
    stats.datagrams_in += count as u64;
    stats.bytes_in += arrived.iter().map(|(.., range)| range.len() as u64).sum::<u64>();
    count
}

/// Datagrams on their way to one socket.
#[derive(Default)]
pub(super) struct Outgoing {
    pub(super) socket: Option<Arc<UdpSocket>>,
    pub(super) bytes: Vec<u8>,
    /// Addresses and end in `bytes` of each datagram.
    pub(super) ends: Vec<(sys::Addresses, usize)>,
    /// The datagram at hand.
    pub(super) datagram: Vec<u8>,
}

impl Outgoing {
    /// Adds the datagram at hand.
    pub(super) fn push(&mut self, socket: &Arc<UdpSocket>, to: sys::Addresses, stats: &mut LoopStats) {
        let same = self.socket.as_ref().is_some_and(|last| Arc::ptr_eq(last, socket));
        if !same || self.ends.len() == sys::DATAGRAM_BATCH {
            self.send(stats);
            self.socket = Some(socket.clone());
        }
        self.bytes.extend_from_slice(&self.datagram);
        self.ends.push((to, self.bytes.len()));
    }

    pub(super) fn send(&mut self, stats: &mut LoopStats) {
        let Some(socket) = self.socket.take() else { return };
        let mut start = 0;
        let datagrams: Vec<(sys::Addresses, &[u8])> = self
            .ends
            .iter()
            .map(|&(to, end)| (to, &self.bytes[std::mem::replace(&mut start, end)..end]))
            .collect();
        let mut rest = &datagrams[..];
        while !rest.is_empty() {
            stats.writes += 1;
            match sys::send_datagrams(socket.as_fd(), rest) {
                Ok(count) => {
                    stats.datagrams_out += count as u64;
                    stats.bytes_out += rest[..count].iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>();
                    rest = &rest[count.max(1)..];
                }
                // A full buffer loses datagrams, which is what congestion control listens to.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock || sys::is_out_of_memory(&error) => {
                    break;
                }
                // This one cannot be sent (an unreachable peer, for example); the next ones may.
                Err(_) => rest = &rest[1..],
            }
        }
        self.bytes.clear();
        self.ends.clear();
    }
}
