//! Requests of the application: connections, packets, farewells, settings.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use bytes::Bytes;
use throng_stdx::Instant;

use super::{Hook, Host, LOOSE_MAX, Owner, find, is_broadcast};
use crate::Compressor;
use crate::config::{LANES_MAX, Limits};
use crate::estimate::{THROTTLE_INTERVAL_MS, THROTTLE_STEP};
use crate::peer::{Names, Peer, State, Terms, window};
use crate::types::{ConfigError, ConnectError, Delivery, Lane, PeerId, Reason, SendError, Transmit, Via};
use crate::wire::{Dialect, PEER_ID_NONE};

impl Host {
    /// Asks `address` for a connection with `lanes` lanes (at least one). `data` is a number for
    /// its application.
    ///
    /// [`Event::Connected`](crate::Event::Connected) or
    /// [`Event::Disconnected`](crate::Event::Disconnected) follows; with a silent address after
    /// half a minute.
    ///
    /// # Errors
    /// When the host, or the space of ids towards that address, is full.
    pub fn connect(
        &mut self,
        now: Instant,
        address: SocketAddr,
        lanes: u8,
        data: u32,
    ) -> Result<PeerId, ConnectError> {
        self.advance(now);
        let config = &self.ctx.config;
        if self.live.len() >= config.peers_max {
            return Err(ConnectError::HostFull(config.peers_max));
        }
        let (incoming_bandwidth, outgoing_bandwidth) = (config.incoming_bandwidth, config.outgoing_bandwidth);
        let terms = Terms {
            lanes: lanes.clamp(1, LANES_MAX),
            mtu: config.mtu,
            window: window(0, outgoing_bandwidth),
            incoming_bandwidth,
            outgoing_bandwidth,
            throttle_interval: THROTTLE_INTERVAL_MS,
            throttle_acceleration: THROTTLE_STEP,
            throttle_deceleration: THROTTLE_STEP,
        };
        let local_id = self.choose_id(address).ok_or(ConnectError::AddressFull(address))?;
        let (session_in, session_out) = self.closed.sessions(address, local_id);
        let drawn = (self.secret.draw() as u32).to_be_bytes();
        let connect_id = self.next_connect_id.take().unwrap_or(drawn);
        let names = Names {
            address,
            local_id,
            remote_id: PEER_ID_NONE,
            connect_id,
            session_in,
            session_out,
            dialect: Dialect::Stock,
        };
        let id = self.reserve();
        let peer = Peer::connecting(id, names, terms, data);
        self.install(peer);
        if is_broadcast(address) {
            self.broadcasts += 1;
        }
        self.settle(id.index, true);
        Ok(id)
    }

    /// Queues a packet. It leaves with the following [`poll_transmit`](Self::poll_transmit)s, as
    /// the windows allow.
    ///
    /// # Errors
    /// When the peer is not connected, has no such lane, or the packet is too long or too much.
    /// Nothing was queued then.
    pub fn send(
        &mut self,
        peer: PeerId,
        lane: Lane,
        data: impl Into<Bytes>,
        delivery: Delivery,
    ) -> Result<(), SendError> {
        let found = find(&mut self.slots, peer).ok_or(SendError::UnknownPeer)?;
        found.send(&mut self.ctx, lane, data.into(), delivery)?;
        self.mark_dirty(peer.index);
        Ok(())
    }

    /// Queues a packet for every connected peer that has the lane; the number of peers. The content
    /// is shared.
    pub fn broadcast(&mut self, lane: Lane, data: impl Into<Bytes>, delivery: Delivery) -> usize {
        let data = data.into();
        let mut reached = 0;
        for at in 0..self.live.len() {
            let index = self.live[at];
            let Some(peer) = self.slots[index as usize].peer.as_deref_mut() else { continue };
            crate::work::step();
            if peer.send(&mut self.ctx, lane, data.clone(), delivery).is_ok() {
                reached += 1;
                self.mark_dirty(index);
            }
        }
        reached
    }

    /// Ends a connection in an orderly way: what was not sent yet is dropped, and
    /// [`Event::Disconnected`](crate::Event::Disconnected) follows when the other side has
    /// confirmed or no longer answers. An attempt that was not answered yet ends without an event.
    ///
    /// `data` is a number for the other side's application. Does nothing when the connection is
    /// over or ending.
    pub fn disconnect(&mut self, peer: PeerId, data: u32) {
        let Some(found) = find(&mut self.slots, peer) else { return };
        match found.disconnect(&mut self.ctx, data) {
            None => self.settle(peer.index, true),
            Some(farewell) => {
                self.queue_farewell(peer.index, &farewell);
                self.remove(peer.index);
            }
        }
    }

    /// As [`disconnect`](Self::disconnect), once everything sent so far has been acknowledged.
    pub fn disconnect_later(&mut self, peer: PeerId, data: u32) {
        let Some(found) = find(&mut self.slots, peer) else { return };
        if found.state == State::Connecting {
            return self.disconnect(peer, data);
        }
        found.disconnect_later(&mut self.ctx, data);
        self.settle(peer.index, true);
    }

    /// Ends a connection at once: one message tells the other side, which may get lost, and there
    /// is no event. Events that were not taken yet are dropped.
    pub fn disconnect_now(&mut self, peer: PeerId, data: u32) {
        let Some(found) = find(&mut self.slots, peer) else { return };
        if !matches!(found.state, State::Over | State::Disconnecting) {
            let farewell = found.farewell(data);
            self.queue_farewell(peer.index, &farewell);
        }
        self.remove(peer.index);
    }

    /// Forgets a connection without a word. The other side finds out when nothing is acknowledged
    /// any more.
    pub fn reset(&mut self, peer: PeerId) {
        if find(&mut self.slots, peer).is_some() {
            self.remove(peer.index);
        }
    }

    /// Ends everything with `address`, because another client has it from now on. Nothing is sent.
    /// [`Event::Disconnected`](crate::Event::Disconnected) follows for each connection, with
    /// [`Reason::Replaced`].
    pub fn replace_peers_at(&mut self, address: SocketAddr) {
        for owner in self.local_ids.owners_at(address) {
            match owner {
                Owner::HalfOpen(index) => self.forget_half_open(index),
                Owner::Peer(index) => {
                    if let Some(peer) = self.slots[index as usize].peer.as_deref_mut() {
                        peer.finish(&mut self.ctx, 0, Reason::Replaced);
                        self.settle(index, false);
                    }
                }
            }
        }
    }

    /// Limits the host's bandwidth in bytes per second, 0 for no limit. Peers are told within a
    /// second.
    pub fn set_bandwidth(&mut self, now: Instant, incoming: u32, outgoing: u32) {
        self.advance(now);
        (self.ctx.config.incoming_bandwidth, self.ctx.config.outgoing_bandwidth) = (incoming, outgoing);
        self.bandwidth.report = true;
        self.update_meters();
        self.arm_bandwidth();
    }

    /// Sets how the other side adapts its throttle, and this one: the interval between looks, and
    /// by how many 32nds it opens or closes at each acknowledgement. An acceleration of 32 and a
    /// deceleration of 0 switch it off.
    pub fn configure_throttle(
        &mut self,
        peer: PeerId,
        interval: Duration,
        acceleration: u32,
        deceleration: u32,
    ) {
        let interval = u32::try_from(interval.as_millis()).unwrap_or(u32::MAX);
        if let Some(found) = find(&mut self.slots, peer).filter(|peer| peer.state == State::Connected) {
            found.configure_throttle(interval, acceleration, deceleration);
            self.settle(peer.index, true);
        }
    }

    /// Sends a ping now. One that measures the round trip leaves by itself whenever the connection
    /// is quiet.
    pub fn ping(&mut self, peer: PeerId) {
        if let Some(found) = find(&mut self.slots, peer).filter(|peer| peer.state == State::Connected) {
            found.ping();
            self.settle(peer.index, true);
        }
    }

    /// Changes limits of the configuration. Connections beyond them stay.
    ///
    /// # Errors
    /// When they contradict each other. Nothing is changed then.
    pub fn set_limits(&mut self, limits: Limits) -> Result<(), ConfigError> {
        let Limits { peers_per_ip_max, peer_bytes_max, waiting_bytes_max, .. } = limits;
        let config = &mut self.ctx.config;
        let before = config.limits();
        config.set_limits(limits);
        if let Err(error) = config.check() {
            config.set_limits(before);
            return Err(error);
        }
        self.ctx.budget.peer_max = peer_bytes_max;
        self.ctx.budget.waiting_max = waiting_bytes_max;
        if (peers_per_ip_max == usize::MAX) != (before.peers_per_ip_max == usize::MAX) {
            self.count_per_ip();
        }
        Ok(())
    }

    /// Lets a peer that has connected to this host hold [`Config::peer_bytes_max`] from now on, for
    /// instance because it has logged in.
    ///
    /// [`Config::peer_bytes_max`]: crate::Config::peer_bytes_max
    pub fn admit(&mut self, peer: PeerId) {
        if let Some(found) = find(&mut self.slots, peer) {
            found.held.is_newcomer = false;
            self.settle(peer.index, false);
        }
    }

    /// Switches the checksum of all datagrams on or off. Both ends must agree.
    pub fn set_checksum(&mut self, checksum: bool) {
        self.ctx.config.checksum = checksum;
    }

    /// Changes the compressor of all datagrams. Both ends must agree.
    pub fn set_compressor(&mut self, compressor: Option<Box<dyn Compressor>>) {
        self.ctx.config.compressor = compressor;
    }

    /// Sets the time without an acknowledgement after which the peer is pinged, whatever has
    /// arrived meanwhile ([`Pings::WhenSilent`](crate::Pings) ends for it). Default 500 ms.
    pub fn set_ping_interval(&mut self, peer: PeerId, interval: Duration) {
        if let Some(found) = find(&mut self.slots, peer) {
            found.set_ping_interval_ms(u32::try_from(interval.as_millis()).unwrap_or(u32::MAX));
            // The ping may be due before the timer now.
            if let Some((_, key)) = found.timer.take() {
                self.timers.cancel(key);
            }
            self.settle(peer.index, true);
        }
    }

    /// Sets when a connection is given up: when nothing was acknowledged for `max`, or for `min`
    /// while some command was sent so often that its timeout has doubled to `limit` times the first
    /// (a power of two). Default 32, 5 s, 30 s.
    pub fn set_timeout(&mut self, peer: PeerId, limit: u32, min: Duration, max: Duration) {
        let ms = |duration: Duration| u32::try_from(duration.as_millis()).unwrap_or(u32::MAX);
        if let Some(found) = find(&mut self.slots, peer) {
            found.set_timeouts(limit, ms(min), ms(max));
        }
    }

    /// Shows every datagram to `hook` before the host takes it, so that other protocols can share
    /// the port.
    pub fn set_intercept(&mut self, hook: Option<Hook>) {
        self.hook = hook;
    }

    /// Sends a datagram that is not ENet's through the same socket. Dropped when 16,384 of them are
    /// waiting.
    pub fn send_raw(&mut self, to: SocketAddr, datagram: Vec<u8>) {
        if self.loose.len() < LOOSE_MAX {
            self.loose.push_back((Transmit { to, via: Via::default() }, datagram));
        }
    }

    /// Fixes the connect id of the next [`connect`](Self::connect), which is otherwise drawn. For
    /// comparing bytes.
    #[doc(hidden)]
    pub fn set_next_connect_id(&mut self, connect_id: [u8; 4]) {
        self.next_connect_id = Some(connect_id);
    }
}
