//! The functions about one peer.

use std::ffi::c_int;
use std::ptr;
use std::time::Duration;

use throng_enet::{Bytes, Event, PeerId, PeerState};

use crate::abi::{ENetHost, ENetPacket, ENetPeer};
use crate::host::{Leaving, inner, packet_of, read_settings, send, transmit, vacate, write_figures};
use crate::packet::{delivery, slice};

/// The host of a peer, its place, and its connection.
///
/// # Safety
/// `peer` points to a peer of a host's array.
unsafe fn find(peer: *mut ENetPeer) -> (*mut ENetHost, u32, Option<PeerId>) {
    // SAFETY: the caller's promise.
    unsafe {
        let (host, index) = ((*peer).host, u32::from((*peer).incomingPeerID));
        (host, index, inner(host).id(index))
    }
}

/// # Safety
/// `peer` points to a peer of a host, `packet` came from `enet_packet_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_peer_send(peer: *mut ENetPeer, channel: u8, packet: *mut ENetPacket) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let (host, index, _) = find(peer);
        let is_long = (*packet).dataLength > (*host).maximumPacketSize;
        if is_long || !inner(host).is_announced(index) || !read_settings(host) {
            return -1;
        }
        let data = Bytes::copy_from_slice(slice((*packet).data, (*packet).dataLength));
        let is_sent = send(host, index, channel, packet, data, delivery((*packet).flags));
        write_figures(host, index);
        if is_sent { 0 } else { -1 }
    }
}

/// # Safety
/// `peer` points to a peer of a host; `channel` is null or points to a byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_peer_receive(peer: *mut ENetPeer, channel: *mut u8) -> *mut ENetPacket {
    // SAFETY: the caller's promise.
    unsafe {
        let (host, index, id) = find(peer);
        let id = id.filter(|_| !inner(host).is_leaving(index));
        let Some(Event::Received { lane, data, delivery, .. }) =
            id.and_then(|id| inner(host).host.poll_packet(id))
        else {
            return ptr::null_mut();
        };
        if let Some(channel) = channel.as_mut() {
            *channel = lane.0;
        }
        write_figures(host, index);
        packet_of(&data, delivery)
    }
}

/// # Safety
/// `peer` points to a peer of a host.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_peer_ping(peer: *mut ENetPeer) {
    // SAFETY: the caller's promise.
    unsafe {
        if let (host, _, Some(id)) = find(peer) {
            inner(host).host.ping(id);
        }
    }
}

/// # Safety
/// `peer` points to a peer of a host.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_peer_ping_interval(peer: *mut ENetPeer, interval_ms: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        let interval_ms = if interval_ms == 0 { 500 } else { interval_ms };
        (*peer).pingInterval = interval_ms;
        if let (host, _, Some(id)) = find(peer) {
            inner(host).host.set_ping_interval(id, Duration::from_millis(interval_ms.into()));
        }
    }
}

/// # Safety
/// `peer` points to a peer of a host.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_peer_timeout(
    peer: *mut ENetPeer,
    limit: u32,
    minimum_ms: u32,
    maximum_ms: u32,
) {
    let or = |value: u32, default: u32| if value == 0 { default } else { value };
    let (limit, minimum, maximum) = (or(limit, 32), or(minimum_ms, 5_000), or(maximum_ms, 30_000));
    // SAFETY: the caller's promise.
    unsafe {
        ((*peer).timeoutLimit, (*peer).timeoutMinimum, (*peer).timeoutMaximum) = (limit, minimum, maximum);
        if let (host, _, Some(id)) = find(peer) {
            let ms = |ms: u32| Duration::from_millis(ms.into());
            inner(host).host.set_timeout(id, limit, ms(minimum), ms(maximum));
        }
    }
}

/// # Safety
/// `peer` points to a peer of a host.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_peer_throttle_configure(
    peer: *mut ENetPeer,
    interval_ms: u32,
    acceleration: u32,
    deceleration: u32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        (*peer).packetThrottleInterval = interval_ms;
        (*peer).packetThrottleAcceleration = acceleration;
        (*peer).packetThrottleDeceleration = deceleration;
        if let (host, _, Some(id)) = find(peer) {
            let interval = Duration::from_millis(interval_ms.into());
            inner(host).host.configure_throttle(id, interval, acceleration, deceleration);
        }
    }
}

/// # Safety
/// `peer` points to a peer of a host.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_peer_reset(peer: *mut ENetPeer) {
    // SAFETY: the caller's promise.
    unsafe {
        if let (host, index, Some(id)) = find(peer) {
            inner(host).host.reset(id);
            vacate(host, index);
        }
    }
}

/// # Safety
/// `peer` points to a peer of a host.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_peer_disconnect(peer: *mut ENetPeer, data: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        let (host, index, Some(id)) = find(peer) else { return };
        let inner = inner(host);
        let is_over = inner.host.peer(id).is_none_or(|info| info.state == PeerState::Over);
        if !inner.is_announced(index) && !is_over {
            // The program does not have it yet: the farewell needs no answer, and no event follows.
            return enet_peer_disconnect_now(peer, data);
        }
        inner.host.disconnect(id, data);
        inner.note_leaving(index, Leaving::Now);
        write_figures(host, index);
    }
}

/// # Safety
/// `peer` points to a peer of a host.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_peer_disconnect_now(peer: *mut ENetPeer, data: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        let (host, index, Some(id)) = find(peer) else { return };
        inner(host).host.disconnect_now(id, data);
        transmit(host);
        vacate(host, index);
    }
}

/// # Safety
/// `peer` points to a peer of a host.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_peer_disconnect_later(peer: *mut ENetPeer, data: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        let (host, index, Some(id)) = find(peer) else { return };
        let inner = inner(host);
        let waits = inner.is_announced(index)
            && inner.host.peer(id).is_some_and(|info| info.queued_bytes > 0 && info.state != PeerState::Over);
        if !waits || inner.is_leaving(index) {
            return enet_peer_disconnect(peer, data);
        }
        inner.note_leaving(index, Leaving::Later);
        inner.host.disconnect_later(id, data);
        (*peer).eventData = data;
        write_figures(host, index);
    }
}
