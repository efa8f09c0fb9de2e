//! Commands become datagrams. Spec: enet §2, §3, §4.1

use alloc::vec::Vec;
use core::net::SocketAddr;

use super::{Host, LOOSE_MAX};
use crate::checksum::Crc32;
use crate::peer::Envelope;
use crate::types::Transmit;
use crate::wire::{Command, Dialect, Header, PEER_ID_NONE};

impl Host {
    pub(super) fn note_transmit(&mut self, len: usize) {
        self.ctx.stats.datagrams_out += 1;
        self.ctx.stats.bytes_out += len as u64;
    }

    /// Sends an answer to the present datagram that belongs to no connection, if there is room for
    /// one more.
    pub(super) fn answer(&mut self, to: SocketAddr, datagram: Vec<u8>) {
        if self.loose.len() < LOOSE_MAX {
            self.loose.push_back((Transmit { to, via: self.via }, datagram));
        }
    }

    /// Puts commands into a datagram. Spec: enet §2, §3, §4.1
    pub(super) fn seal(
        &mut self,
        envelope: Envelope,
        sent_time: Option<u16>,
        body: &[u8],
        out: &mut Vec<u8>,
    ) {
        let config = &mut self.ctx.config;
        if config.compressor.is_none() && !config.checksum {
            let header =
                Header { peer_id: envelope.peer_id, session: envelope.session, compressed: false, sent_time };
            header.encode_in(envelope.dialect, out);
            out.extend_from_slice(body);
            return;
        }
        let mut packed = core::mem::take(&mut self.packed);
        packed.clear();
        let compressor = config.compressor.as_mut().filter(|_| envelope.dialect == Dialect::Stock);
        let compressed = compressor.is_some_and(|compressor| {
            compressor.compress(body, body.len(), &mut packed)
                && !packed.is_empty()
                && packed.len() < body.len()
        });
        let header = Header { peer_id: envelope.peer_id, session: envelope.session, compressed, sent_time };
        header.encode_in(envelope.dialect, out);
        if config.checksum {
            let seed = if envelope.peer_id == PEER_ID_NONE { [0; 4] } else { envelope.connect_id };
            let sum = Crc32::new().update(out).update(&seed).update(body).finish();
            out.extend_from_slice(&sum);
        }
        out.extend_from_slice(if compressed { &packed } else { body });
        self.packed = packed;
    }

    pub(super) fn seal_command(
        &mut self,
        envelope: Envelope,
        sent_time: Option<u16>,
        command: &Command<'_>,
        out: &mut Vec<u8>,
    ) {
        let mut body = core::mem::take(&mut self.body);
        body.clear();
        command.encode(&mut body);
        self.seal(envelope, sent_time, &body, out);
        self.body = body;
    }

    pub(super) fn queue_farewell(&mut self, index: u32, farewell: &Command<'_>) {
        let Some(peer) = self.slots[index as usize].peer.as_ref() else { return };
        let (transmit, envelope) = (peer.transmit(), peer.envelope());
        let mut datagram = Vec::new();
        self.seal_command(envelope, None, farewell, &mut datagram);
        // Not bounded by LOOSE_MAX: there is one per connection.
        self.loose.push_back((transmit, datagram));
    }
}
