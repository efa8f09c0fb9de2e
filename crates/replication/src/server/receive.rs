//! Packets of clients: acknowledgements, calls, inputs; and calls to clients.

use std::sync::Arc;

use super::{ConnId, Event, Server, Shared};
use crate::attach::{AttachError, Attachment, ItemView, check_call};
use crate::bits::BitReader;
use crate::class::Direction;
use crate::connection::Connection;
use crate::handle::Handle;
use crate::wire::{DecodeError, Header, kind};

impl Server {
    /// Takes a packet from a client: acknowledgements, attachments, inputs. Old packets are
    /// discarded. What it says is among the [events](Self::poll_event) at once, so that an input
    /// counts in the frame in which it arrived.
    ///
    /// # Errors
    /// When the client sent what it must not; nothing was changed, and the connection should be
    /// closed.
    pub fn receive(&mut self, id: ConnId, packet: &[u8]) -> Result<(), DecodeError> {
        let shared = &self.shared;
        let Some(conn) = super::named(&mut self.connections, id) else { return Ok(()) };
        let result = receive(shared, conn, packet);
        if !conn.events.is_empty() {
            self.events.extend(conn.events.drain(..));
        }
        if result.is_err() {
            self.stats.decode_errors += 1;
        }
        result
    }

    /// The oldest event not taken yet.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Queues a call on an object for one connection. It leaves with the next frame that has room
    /// and in which the receiver holds the object.
    ///
    /// - Reliable (up to 64 KiB, in parts of 512 bytes): exactly once, in the order of the calls on
    ///   that object. It waits while the object is out of the connection's scope, and ends with the
    ///   object. What waits on a connection is bounded at 256 KiB, each call counted with 64 bytes
    ///   more.
    /// - Unreliable (up to 1 KiB, and at most what a packet holds): at most once. It is dropped
    ///   when the object is out of scope or the burst of the connection's budget holds no packet
    ///   with it, and of more than 16 that wait for one object the oldest is dropped; see
    ///   [`calls_dropped`](crate::ConnectionStats::calls_dropped).
    ///
    /// Calls on different objects have no mutual order.
    ///
    /// A class that describes its calls takes no others: `method` is then the number of the call,
    /// and `bytes` are a zero bit and the encoded arguments, as [`call`](Self::call) writes them.
    ///
    /// # Errors
    /// When object or connection do not exist, the object's class describes its calls and this is
    /// none of them, the bytes are too many, or the queue of reliable attachments is full.
    pub fn attach(
        &mut self,
        id: ConnId,
        handle: Handle,
        method: u64,
        bytes: &[u8],
        reliable: bool,
    ) -> Result<(), AttachError> {
        let index = self.index(handle).ok_or(AttachError::UnknownObject)?;
        check_call(&self.shared.store(index).class, Direction::ToClients, method, bytes, reliable)?;
        let conn = self.conn(id).ok_or(AttachError::UnknownConnection)?;
        conn.attachments.push(handle, method, &Arc::from(bytes), reliable)
    }

    /// Queues a call on an object for every connection that has it in scope; the bytes are shared.
    /// Connections whose queue is full do not get it; they are returned and should be closed.
    ///
    /// # Errors
    /// When the object does not exist, its class describes its calls and this is none of them, or
    /// the bytes are too many.
    pub fn attach_all(
        &mut self,
        handle: Handle,
        method: u64,
        bytes: &[u8],
        reliable: bool,
    ) -> Result<Vec<ConnId>, AttachError> {
        let index = self.index(handle).ok_or(AttachError::UnknownObject)?;
        check_call(&self.shared.store(index).class, Direction::ToClients, method, bytes, reliable)?;
        let bytes: Arc<[u8]> = Arc::from(bytes);
        let mut full = Vec::new();
        for conn in self.connections.iter_mut().flatten().filter(|conn| conn.scope.get(index)) {
            match conn.attachments.push(handle, method, &bytes, reliable) {
                Ok(()) => {}
                Err(AttachError::Overflow) => full.push(conn.id),
                Err(error) => return Err(error),
            }
        }
        Ok(full)
    }
}

fn receive(shared: &Shared, conn: &mut Connection, packet: &[u8]) -> Result<(), DecodeError> {
    if packet.len() > shared.config.packet_bytes_max {
        return Err(DecodeError::TooLong);
    }
    let (header, sections) = Header::parse(packet)?;
    if !conn.is_new(header.seq) {
        conn.stats.packets_stale += 1;
        return Ok(());
    }
    if sections.is_empty() {
        conn.acknowledge(shared, header.ack, header.ack_bits)?;
        conn.applied(header.seq, false);
        return Ok(());
    }
    // First everything is checked, then everything is applied.
    let mut resets = Vec::new();
    let mut attachments = Vec::new();
    let mut inputs = Vec::new();
    let mut reader = BitReader::new(sections);
    while reader.bits_left() > 0 {
        let section = reader.get(8)? as u8;
        let count = reader.get_varint()?;
        match section {
            kind::ATTACH => {
                for _ in 0..count {
                    let item = ItemView::read(&mut reader)?;
                    if item.object as usize >= shared.objects.class.len() {
                        return Err(DecodeError::Index);
                    }
                    attachments.push(item);
                }
            }
            kind::BASELINE_RESET | kind::INPUT => {
                let len = reader.get(16)? as usize;
                let from = reader.byte_position();
                reader.skip_bytes(len)?;
                let bytes = &sections[from..from + len];
                if section == kind::INPUT {
                    inputs.push(bytes);
                    continue;
                }
                let mut items = BitReader::new(bytes);
                for _ in 0..count {
                    let index = u32::try_from(items.get_varint()?).map_err(|_| DecodeError::Index)?;
                    if index as usize >= shared.objects.class.len() {
                        return Err(DecodeError::Index);
                    }
                    resets.push(index);
                }
            }
            kind::SKIPPABLE.. => {
                let len = reader.get(16)? as usize;
                reader.skip_bytes(len)?;
            }
            _ => return Err(DecodeError::Forbidden),
        }
    }
    // Only of calls that never become whole there can be so much.
    if !attachments.is_empty() && !conn.attachments.has_room(packet.len()) {
        return Err(DecodeError::TooLong);
    }
    conn.acknowledge(shared, header.ack, header.ack_bits)?;
    conn.applied(header.seq, true);
    for index in resets {
        conn.reset_baseline(index);
    }
    let id = conn.id;
    for item in &attachments {
        // An honest client can call while the object ends or changes its owner.
        if conn.may_call(shared, item.object, item.method) {
            let generation = shared.objects.generation[item.object as usize];
            let class = &shared.store(item.object).class;
            let (events, refused) = (&mut conn.events, &mut conn.stats.calls_refused);
            let deliver = &mut |call: Attachment| {
                if check_call(class, Direction::ToServer, call.method, &call.bytes, call.reliable).is_ok() {
                    events.push_back(Event::Attachment(id, call));
                } else {
                    *refused += 1;
                }
            };
            conn.attachments.receive(generation, item, deliver);
        } else {
            conn.stats.calls_refused += 1;
            let objects = &shared.objects;
            let generation = objects.alive.get(item.object).then(|| objects.generation[item.object as usize]);
            let refused = &mut conn.stats.calls_refused;
            conn.attachments.refuse(generation, item, &mut |_| *refused += 1);
        }
    }
    conn.events.extend(inputs.into_iter().map(|bytes| Event::Input(id, bytes.to_vec())));
    Ok(())
}
