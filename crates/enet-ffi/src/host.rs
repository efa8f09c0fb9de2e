//! `ENetHost`: creation, the functions about a host, and the work of a service call.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr;
use std::time::Duration;

use throng_enet::{
    Bytes, Config, Delivery, Event, Host, Lane, Limits, PeerId, PeerInfo, PeerState, RangeCoder, Reason,
};
use throng_stdx::Instant;

use crate::abi::{
    ENetAddress, ENetCompressor, ENetEvent, ENetHost, ENetPacket, ENetPeer, event, flag, state,
};
use crate::compression::Foreign;
use crate::driver::{BATCH, Batches, Sent};
use crate::internals::entropy;
use crate::list::enet_list_clear;
use crate::packet::{enet_crc32, enet_packet_create, enet_packet_destroy, flags, slice};
use crate::socket::{
    enet_socket_bind, enet_socket_create, enet_socket_destroy, enet_socket_get_address,
    enet_socket_set_option,
};
use crate::time::{enet_time_get, now};

/// A host as it is allocated: the program's view first, so that a pointer to one is a pointer to
/// the other.
#[repr(C)]
pub(crate) struct Whole {
    pub(crate) view: ENetHost,
    pub(crate) inner: Inner,
}

/// The state behind the program's view.
pub(crate) struct Inner {
    pub(crate) host: Host,
    batches: Batches,
    /// Datagrams of a batch whose taking in an interceptor has ended, and where they are from.
    left_over: VecDeque<(ENetAddress, Vec<u8>)>,
    buf: Vec<u8>,
    /// The array that `peers` points to.
    _peers: Box<[ENetPeer]>,
    slots: Vec<Slot>,
    by_id: HashMap<PeerId, u32>,
    /// Places in the array that no connection has; the lowest is given first.
    free: BinaryHeap<Reverse<u32>>,
    /// Packets that were sent and whose reference is to be dropped.
    sent: Vec<*mut ENetPacket>,
    limits: Limits,
    checksum: bool,
    bandwidth: (u32, u32),
    /// The peer whose figures are written next.
    turn: u32,
    is_warned: bool,
}

/// A place in the array of peers.
#[derive(Clone, Copy, Default)]
struct Slot {
    id: Option<PeerId>,
    /// The program has taken the connect event.
    is_announced: bool,
    /// It is one of `connectedPeers`, and of `bandwidthLimitedPeers`.
    is_counted: bool,
    is_limited: bool,
    leaving: Leaving,
    /// Bytes that had come and gone when its figures were written last.
    traffic: (u64, u64),
}

/// The program's wish to end a connection.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Leaving {
    #[default]
    No,
    Later,
    /// Packets that arrive from now on, or have not been taken, are not delivered: programs free
    /// what they keep of a peer when they disconnect it.
    Now,
}

/// A number of peers beyond which `incomingPeerID` could not be the index.
const PEERS_MAX: usize = 65_535;
/// Datagrams taken in per pass of service, as many as the C library takes.
const PASS_BATCHES: usize = 256 / BATCH;
/// Peers whose figures are written per call of service, beside those that something happened to.
const REFRESHED: usize = 16;
/// Bytes asked for the receive buffer; the system grants what its limit allows.
const RECEIVE_BUFFER_BYTES: c_int = 8 << 20;
const SEND_BUFFER_BYTES: c_int = 2 << 20;
const MTU: u16 = 1_400;

/// # Safety
/// `address` is null or points to an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_host_create(
    address: *const ENetAddress,
    peer_count: usize,
    channel_limit: usize,
    incoming_bandwidth: u32,
    outgoing_bandwidth: u32,
) -> *mut ENetHost {
    if peer_count > PEERS_MAX {
        return ptr::null_mut();
    }
    let channel_limit = if channel_limit == 0 { 255 } else { channel_limit.min(255) };
    let config = Config {
        peers_max: peer_count,
        lanes_max: channel_limit as u8,
        mtu: MTU,
        incoming_bandwidth,
        outgoing_bandwidth,
        packet_bytes_max: 32 << 20,
        ..Config::new(entropy())
    };
    let limits = config.limits();
    let Ok(host) = Host::new(now(), config) else { return ptr::null_mut() };
    let socket = enet_socket_create(2);
    // SAFETY: the caller's promise.
    if socket == -1 || !address.is_null() && unsafe { enet_socket_bind(socket, address) } < 0 {
        enet_socket_destroy(socket);
        return ptr::null_mut();
    }
    for (option, value) in [(1, 1), (2, 1), (3, RECEIVE_BUFFER_BYTES), (4, SEND_BUFFER_BYTES)] {
        enet_socket_set_option(socket, option, value);
    }
    // SAFETY: all-zero is a valid value of both plain C structs.
    let mut view: ENetHost = unsafe { zeroed() };
    let mut peers: Box<[ENetPeer]> = (0..peer_count).map(|_| zeroed_peer()).collect();
    view.socket = socket;
    // SAFETY: the caller's promise.
    if let Some(address) = unsafe { address.as_ref() } {
        // SAFETY: the view is ours.
        if unsafe { enet_socket_get_address(socket, &raw mut view.address) } < 0 {
            view.address = *address;
        }
    }
    view.incomingBandwidth = incoming_bandwidth;
    view.outgoingBandwidth = outgoing_bandwidth;
    view.mtu = MTU.into();
    view.randomSeed = entropy() as u32;
    view.peers = peers.as_mut_ptr();
    view.peerCount = peer_count;
    view.channelLimit = channel_limit;
    view.duplicatePeers = 0xFFF;
    view.maximumPacketSize = 32 << 20;
    view.maximumWaitingData = 32 << 20;
    let inner = Inner {
        host,
        batches: Batches::new(),
        left_over: VecDeque::new(),
        buf: Vec::with_capacity(4_096),
        _peers: peers,
        slots: vec![Slot::default(); peer_count],
        by_id: HashMap::new(),
        free: (0..peer_count as u32).map(Reverse).collect(),
        sent: Vec::new(),
        limits,
        checksum: false,
        bandwidth: (incoming_bandwidth, outgoing_bandwidth),
        turn: 0,
        is_warned: false,
    };
    let whole = Box::into_raw(Box::new(Whole { view, inner }));
    // SAFETY: allocated above and not shared yet.
    unsafe {
        let view = &raw mut (*whole).view;
        enet_list_clear(&raw mut (*view).dispatchQueue);
        for index in 0..peer_count {
            let peer = (*view).peers.add(index);
            (*peer).host = view;
            (*peer).incomingPeerID = index as u16;
            clear(peer);
        }
        view
    }
}

fn zeroed_peer() -> ENetPeer {
    // SAFETY: all-zero is a valid value of this plain C struct.
    unsafe { zeroed() }
}

/// # Safety
/// `host` is null, or came from [`enet_host_create`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_host_destroy(host: *mut ENetHost) {
    if host.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    unsafe {
        enet_socket_destroy((*host).socket);
        drop_references(host);
        drop(Box::from_raw(host.cast::<Whole>()));
    }
}

/// # Safety
/// `host` came from [`enet_host_create`], `address` points to an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_host_connect(
    host: *mut ENetHost,
    address: *const ENetAddress,
    channel_count: usize,
    data: u32,
) -> *mut ENetPeer {
    // SAFETY: the caller's promise.
    unsafe {
        if !read_settings(host) {
            return ptr::null_mut();
        }
        let inner = inner(host);
        let Some(&Reverse(index)) = inner.free.peek() else { return ptr::null_mut() };
        let lanes = channel_count.clamp(1, 255) as u8;
        let Ok(id) = inner.host.connect(now(), (*address).to_std(), lanes, data) else {
            return ptr::null_mut();
        };
        inner.free.pop();
        let peer = occupy(host, index, id);
        write_figures(host, index);
        (*peer).channelCount = lanes.into();
        peer
    }
}

/// # Safety
/// As for [`enet_host_service`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_host_check_events(host: *mut ENetHost, event: *mut ENetEvent) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let Some(event) = event.as_mut() else { return -1 };
        clear_event(event);
        c_int::from(dispatch(host, event))
    }
}

/// # Safety
/// `host` came from [`enet_host_create`] and is used by one thread; `event` is null or points to an
/// event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_host_service(
    host: *mut ENetHost,
    event: *mut ENetEvent,
    timeout_ms: u32,
) -> c_int {
    // SAFETY: the caller's promise. No reference to the host is held while functions of the program
    // run.
    unsafe {
        if host.is_null() || !read_settings(host) {
            return -1;
        }
        drop_references(host);
        if let Some(event) = event.as_mut() {
            clear_event(event);
            if dispatch(host, event) {
                return 1;
            }
        }
        let until = now() + Duration::from_millis(timeout_ms.into());
        loop {
            (*host).serviceTime = enet_time_get();
            match pass(host, event) {
                Pass::Failed => return -1,
                Pass::Intercepted => return 1,
                Pass::Done => {}
            }
            if let Some(event) = event.as_mut()
                && dispatch(host, event)
            {
                return 1;
            }
            let now = now();
            if now >= until {
                return 0;
            }
            let next = inner(host).host.next_timeout().map_or(until, |at| at.min(until));
            // At least a millisecond: a timer that is due now was handled just before.
            let wait_ms = (next.since(now).as_micros() as u64).div_ceil(1_000).max(1);
            let mut poll = libc::pollfd { fd: (*host).socket, events: libc::POLLIN, revents: 0 };
            let timeout = c_int::try_from(wait_ms).unwrap_or(c_int::MAX);
            if libc::poll(&raw mut poll, 1, timeout) < 0
                && std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted
            {
                return -1;
            }
        }
    }
}

/// # Safety
/// `host` came from [`enet_host_create`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_host_flush(host: *mut ENetHost) {
    // SAFETY: the caller's promise.
    unsafe {
        if read_settings(host) {
            drop_references(host);
            transmit(host);
        }
    }
}

/// # Safety
/// `host` came from [`enet_host_create`], `packet` from `enet_packet_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_host_broadcast(host: *mut ENetHost, channel: u8, packet: *mut ENetPacket) {
    // SAFETY: the caller's promise.
    unsafe {
        if read_settings(host) {
            let data = Bytes::copy_from_slice(slice((*packet).data, (*packet).dataLength));
            let delivery = crate::packet::delivery((*packet).flags);
            for index in 0..(*host).peerCount as u32 {
                send(host, index, channel, packet, data.clone(), delivery);
            }
        }
        if (*packet).referenceCount == 0 {
            enet_packet_destroy(packet);
        }
    }
}

/// # Safety
/// `host` came from [`enet_host_create`]; `compressor` is null or its functions and context are
/// valid until it is replaced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_host_compress(host: *mut ENetHost, compressor: *const ENetCompressor) {
    // SAFETY: the caller's promise.
    unsafe {
        // Before the new one is set: programs use one context again.
        inner(host).host.set_compressor(None);
        (*host).compressor.context = ptr::null_mut();
        if let Some(compressor) = compressor.as_ref() {
            (*host).compressor = *compressor;
            // Without a context there is no compression, as in the C library.
            if !compressor.context.is_null() {
                inner(host).host.set_compressor(Some(Box::new(Foreign::new(*compressor))));
            }
        }
    }
}

/// # Safety
/// `host` came from [`enet_host_create`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_host_compress_with_range_coder(host: *mut ENetHost) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { inner(host) }.host.set_compressor(Some(Box::new(RangeCoder::new())));
    0
}

/// # Safety
/// `host` came from [`enet_host_create`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_host_channel_limit(host: *mut ENetHost, limit: usize) {
    // SAFETY: the caller's promise.
    unsafe { (*host).channelLimit = if limit == 0 { 255 } else { limit.min(255) } }
}

/// # Safety
/// `host` came from [`enet_host_create`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_host_bandwidth_limit(host: *mut ENetHost, incoming: u32, outgoing: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        ((*host).incomingBandwidth, (*host).outgoingBandwidth) = (incoming, outgoing);
        let inner = inner(host);
        inner.bandwidth = (incoming, outgoing);
        inner.host.set_bandwidth(now(), incoming, outgoing);
    }
}

/// The state behind a host.
///
/// # Safety
/// `host` came from [`enet_host_create`]. The reference is not kept while functions of the program
/// run.
pub(crate) unsafe fn inner<'a>(host: *mut ENetHost) -> &'a mut Inner {
    // SAFETY: hosts are allocated as `Whole`, whose first field is the view.
    unsafe { &mut (*host.cast::<Whole>()).inner }
}

/// Reads what the program may have changed since the last call. False, with a line on standard
/// error the first time, when it wants a checksum that this library does not compute.
///
/// # Safety
/// `host` came from [`enet_host_create`].
pub(crate) unsafe fn read_settings(host: *mut ENetHost) -> bool {
    // SAFETY: the caller's promise.
    let (view, inner) = unsafe { (&*host, inner(host)) };
    let checksum = view.checksum.is_some();
    if view.checksum.is_some_and(|callback| callback as usize != enet_crc32 as *const () as usize) {
        if !inner.is_warned {
            inner.is_warned = true;
            #[allow(clippy::print_stderr, reason = "the program has no other way to learn why service fails")]
            {
                eprintln!(
                    "libenet.so.7 (Throng): the host's checksum callback is not enet_crc32; service returns -1. \
                     Set host->checksum to enet_crc32 or NULL"
                );
            }
        }
        return false;
    }
    if checksum != inner.checksum {
        inner.checksum = checksum;
        inner.host.set_checksum(checksum);
    }
    if inner.bandwidth != (view.incomingBandwidth, view.outgoingBandwidth) {
        inner.bandwidth = (view.incomingBandwidth, view.outgoingBandwidth);
        inner.host.set_bandwidth(now(), view.incomingBandwidth, view.outgoingBandwidth);
    }
    let packet_bytes_max = view.maximumPacketSize.min(1 << 30);
    let limits = Limits {
        peers_per_ip_max: if view.duplicatePeers >= 0xFFF { usize::MAX } else { view.duplicatePeers },
        lanes_max: view.channelLimit.clamp(1, 255) as u8,
        packet_bytes_max,
        // Half of it is for packets that are not next, so that one of the longest has room beside
        // what waits.
        peer_bytes_max: view
            .maximumWaitingData
            .max(packet_bytes_max)
            .saturating_mul(2)
            .saturating_add(1 << 20),
        waiting_bytes_max: view.maximumWaitingData,
    };
    if limits != inner.limits && inner.host.set_limits(limits).is_ok() {
        inner.limits = limits;
    }
    true
}

/// Drops the references to packets that were sent; runs the callbacks of those that have no other.
///
/// # Safety
/// `host` came from [`enet_host_create`].
pub(crate) unsafe fn drop_references(host: *mut ENetHost) {
    // SAFETY: the caller's promise; a packet that was sent exists until its references are dropped.
    unsafe {
        for packet in std::mem::take(&mut inner(host).sent) {
            (*packet).referenceCount -= 1;
            if (*packet).referenceCount == 0 {
                (*packet).flags |= flag::SENT;
                enet_packet_destroy(packet);
            }
        }
    }
}

/// Sends a packet of which `data` is a copy; whether the host took it.
///
/// # Safety
/// `host` came from [`enet_host_create`], `packet` from `enet_packet_create`.
pub(crate) unsafe fn send(
    host: *mut ENetHost,
    index: u32,
    channel: u8,
    packet: *mut ENetPacket,
    data: Bytes,
    delivery: Delivery,
) -> bool {
    // SAFETY: the caller's promise.
    let inner = unsafe { inner(host) };
    let slot = inner.slots[index as usize];
    let Some(id) = slot.id.filter(|_| slot.is_announced) else { return false };
    if inner.host.send(id, Lane(channel), data, delivery).is_err() {
        return false;
    }
    inner.sent.push(packet);
    // SAFETY: the caller's promise.
    unsafe { (*packet).referenceCount += 1 };
    true
}

enum Pass {
    Done,
    /// The program's interceptor made an event.
    Intercepted,
    Failed,
}

/// Takes in what has arrived, does what is due, and sends.
///
/// # Safety
/// As for [`enet_host_service`].
unsafe fn pass(host: *mut ENetHost, event: *mut ENetEvent) -> Pass {
    // SAFETY: the caller's promise. References to the inner state end before an interceptor runs.
    unsafe {
        transmit(host);
        while let Some((from, mut bytes)) = inner(host).left_over.pop_front() {
            if let Some(end) = take_in(host, event, now(), from, &mut bytes) {
                return end;
            }
        }
        for _ in 0..PASS_BATCHES {
            let count = match inner(host).batches.receive((*host).socket) {
                Ok(count) => count,
                Err(libc::EAGAIN | libc::EINTR | libc::ECONNREFUSED | libc::ENOMEM | libc::ENOBUFS) => break,
                Err(_) => return Pass::Failed,
            };
            let now = now();
            for index in 0..count {
                let Some((from, bytes)) = inner(host).batches.datagram(index) else { continue };
                let bytes = std::slice::from_raw_parts_mut(bytes.as_mut_ptr(), bytes.len());
                if let Some(end) = take_in(host, event, now, from, bytes) {
                    // The rest of the batch has its turn in the next pass, with the interceptor.
                    let Inner { batches, left_over, .. } = inner(host);
                    for index in index + 1..count {
                        left_over.extend(batches.datagram(index).map(|(from, bytes)| (from, bytes.to_vec())));
                    }
                    return end;
                }
            }
            if count < BATCH {
                break;
            }
        }
        let inner = inner(host);
        let now = now();
        if inner.host.next_timeout().is_some_and(|at| at <= now) {
            inner.host.handle_timeout(now);
        }
        transmit(host);
        refresh(host);
    }
    Pass::Done
}

/// Shows a datagram to the program's interceptor and takes it in; how the pass ends, if it ends
/// with this datagram.
///
/// # Safety
/// As for [`enet_host_service`].
unsafe fn take_in(
    host: *mut ENetHost,
    event: *mut ENetEvent,
    now: Instant,
    from: ENetAddress,
    bytes: &mut [u8],
) -> Option<Pass> {
    // SAFETY: the caller's promise. No reference to the inner state is held while the interceptor
    // runs.
    unsafe {
        (*host).receivedAddress = from;
        (*host).receivedData = bytes.as_mut_ptr();
        (*host).receivedDataLength = bytes.len();
        (*host).totalReceivedData = (*host).totalReceivedData.wrapping_add(bytes.len() as u32);
        (*host).totalReceivedPackets = (*host).totalReceivedPackets.wrapping_add(1);
        if let Some(intercept) = (*host).intercept {
            match intercept(host, event) {
                0 => {}
                1 => {
                    let has_event = event.as_ref().is_some_and(|event| event.r#type != event::NONE);
                    return has_event.then_some(Pass::Intercepted);
                }
                _ => return Some(Pass::Failed),
            }
        }
        // The interceptor may have unwrapped the datagram.
        let bytes = slice((*host).receivedData, (*host).receivedDataLength);
        inner(host).host.handle_datagram(now, from.to_std(), bytes);
    }
    None
}

/// Sends everything there is to send.
///
/// # Safety
/// `host` came from [`enet_host_create`].
pub(crate) unsafe fn transmit(host: *mut ENetHost) {
    // SAFETY: the caller's promise.
    let (socket, inner) = unsafe { ((*host).socket, inner(host)) };
    let Inner { host: state, batches, buf, .. } = inner;
    let now = now();
    let mut sum = Sent::default();
    loop {
        let transmit = state.poll_transmit(now, buf);
        let is_full = transmit.is_some_and(|transmit| batches.push(ENetAddress::of_std(transmit.to), buf));
        if transmit.is_none() || is_full {
            let sent = batches.send(socket);
            (sum.datagrams, sum.bytes) = (sum.datagrams + sent.datagrams, sum.bytes.wrapping_add(sent.bytes));
        }
        if transmit.is_none() {
            break;
        }
    }
    // SAFETY: the caller's promise.
    unsafe {
        (*host).totalSentData = (*host).totalSentData.wrapping_add(sum.bytes);
        (*host).totalSentPackets = (*host).totalSentPackets.wrapping_add(sum.datagrams);
    }
}

fn clear_event(event: &mut ENetEvent) {
    event.r#type = event::NONE;
    event.peer = ptr::null_mut();
    event.packet = ptr::null_mut();
}

/// Gives the program the next event; whether there was one.
///
/// # Safety
/// As for [`enet_host_service`].
unsafe fn dispatch(host: *mut ENetHost, out: &mut ENetEvent) -> bool {
    // SAFETY: the caller's promise. `enet_packet_create` may run the program's allocator, which
    // does not touch the host.
    unsafe {
        loop {
            let inner = inner(host);
            let Some(event) = inner.host.poll_event() else { return false };
            let known = inner.by_id.get(&event.peer()).copied();
            match event {
                Event::Connected { peer: id, data } => {
                    let Some(index) = known.or_else(|| inner.free.pop().map(|Reverse(index)| index)) else {
                        // A disconnect event that was not taken holds the last place.
                        inner.host.disconnect_now(id, 0);
                        continue;
                    };
                    let peer = occupy(host, index, id);
                    inner.slots[index as usize].is_announced = true;
                    write_figures(host, index);
                    (*peer).eventData = data;
                    (out.r#type, out.peer, out.data, out.channelID) = (event::CONNECT, peer, data, 0);
                }
                Event::Received { lane, data, delivery, .. } => {
                    let Some(index) = known.filter(|index| !inner.is_leaving(*index)) else { continue };
                    write_figures(host, index);
                    out.packet = packet_of(&data, delivery);
                    (out.r#type, out.peer, out.channelID) = (event::RECEIVE, peer_at(host, index), lane.0);
                }
                Event::Disconnected { data, reason, .. } => {
                    let Some(index) = known else { continue };
                    let peer = peer_at(host, index);
                    let data = if reason == Reason::Remote { data } else { 0 };
                    vacate(host, index);
                    (out.r#type, out.peer, out.data, out.channelID) = (event::DISCONNECT, peer, data, 0);
                }
                _ => continue,
            }
            return true;
        }
    }
}

/// A packet for the program, which owns it.
pub(crate) fn packet_of(data: &Bytes, delivery: Delivery) -> *mut ENetPacket {
    // SAFETY: the data has the stated length and is copied.
    unsafe { enet_packet_create(data.as_ptr().cast(), data.len(), flags(delivery)) }
}

/// # Safety
/// `index` is below `peerCount`.
pub(crate) unsafe fn peer_at(host: *mut ENetHost, index: u32) -> *mut ENetPeer {
    // SAFETY: the caller's promise.
    unsafe { (*host).peers.add(index as usize) }
}

/// Gives a place in the array to a connection.
///
/// # Safety
/// `index` is below `peerCount`.
unsafe fn occupy(host: *mut ENetHost, index: u32, id: PeerId) -> *mut ENetPeer {
    // SAFETY: the caller's promise.
    unsafe {
        let inner = inner(host);
        let slot = &mut inner.slots[index as usize];
        if slot.id != Some(id) {
            *slot = Slot { id: Some(id), ..Slot::default() };
            inner.by_id.insert(id, index);
        }
        peer_at(host, index)
    }
}

/// Ends a connection's use of its place, which the next one may have.
///
/// # Safety
/// `index` is below `peerCount`.
pub(crate) unsafe fn vacate(host: *mut ENetHost, index: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        let inner = inner(host);
        let slot = std::mem::take(&mut inner.slots[index as usize]);
        let Some(id) = slot.id else { return };
        inner.by_id.remove(&id);
        inner.free.push(Reverse(index));
        (*host).connectedPeers -= usize::from(slot.is_counted);
        (*host).bandwidthLimitedPeers -= usize::from(slot.is_limited);
        clear(peer_at(host, index));
    }
}

/// Writes the values of a peer that is not connected. Keeps the program's pointer.
///
/// # Safety
/// `peer` points to a peer of the array.
unsafe fn clear(peer: *mut ENetPeer) {
    // SAFETY: the caller's promise; all-zero is a valid value.
    unsafe {
        let (host, incoming, data) = ((*peer).host, (*peer).incomingPeerID, (*peer).data);
        let address = (*peer).address;
        peer.write(zeroed());
        ((*peer).host, (*peer).incomingPeerID, (*peer).data) = (host, incoming, data);
        (*peer).address = address;
        (*peer).outgoingPeerID = 0xFFF;
        (*peer).outgoingSessionID = 0xFF;
        (*peer).incomingSessionID = 0xFF;
        (*peer).state = state::DISCONNECTED;
        (*peer).packetThrottle = 32;
        (*peer).packetThrottleLimit = 32;
        (*peer).packetThrottleAcceleration = 2;
        (*peer).packetThrottleDeceleration = 2;
        (*peer).packetThrottleInterval = 5_000;
        (*peer).pingInterval = 500;
        (*peer).timeoutLimit = 32;
        (*peer).timeoutMinimum = 5_000;
        (*peer).timeoutMaximum = 30_000;
        (*peer).lastRoundTripTime = 500;
        (*peer).lowestRoundTripTime = 500;
        (*peer).roundTripTime = 500;
        (*peer).mtu = MTU.into();
        (*peer).windowSize = 65_536;
        for list in [
            &raw mut (*peer).acknowledgements,
            &raw mut (*peer).sentReliableCommands,
            &raw mut (*peer).sentUnreliableCommands,
            &raw mut (*peer).outgoingCommands,
            &raw mut (*peer).dispatchedCommands,
        ] {
            enet_list_clear(list);
        }
    }
}

/// Writes the figures of a few peers, in turn.
///
/// # Safety
/// `host` came from [`enet_host_create`].
unsafe fn refresh(host: *mut ENetHost) {
    // SAFETY: the caller's promise.
    unsafe {
        let count = inner(host).slots.len() as u32;
        for _ in 0..REFRESHED.min(count as usize) {
            let inner = inner(host);
            inner.turn = (inner.turn + 1) % count;
            let index = inner.turn;
            write_figures(host, index);
        }
    }
}

/// Writes what the program may want to know of a peer.
///
/// # Safety
/// `index` is below `peerCount`.
pub(crate) unsafe fn write_figures(host: *mut ENetHost, index: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        let inner = inner(host);
        let slot = inner.slots[index as usize];
        let Some(info) = slot.id.and_then(|id| inner.host.peer(id)) else { return };
        let peer = peer_at(host, index);
        let PeerInfo { rtt, rtt_variance, .. } = info;
        let ms = |duration: Duration| duration.as_millis() as u32;
        (*peer).state = match info.state {
            PeerState::Connecting => state::CONNECTING,
            PeerState::Connected if slot.is_announced => state::CONNECTED,
            PeerState::Connected => state::CONNECTION_SUCCEEDED,
            PeerState::Disconnecting if slot.leaving == Leaving::Later => state::DISCONNECT_LATER,
            PeerState::Disconnecting => state::DISCONNECTING,
            _ => state::ZOMBIE,
        };
        let counts = matches!((*peer).state, state::CONNECTED | state::DISCONNECT_LATER);
        let is_limited = counts && info.incoming_bandwidth != 0;
        let count =
            |total: &mut usize, was: bool, is: bool| *total = *total + usize::from(is) - usize::from(was);
        count(&mut (*host).connectedPeers, slot.is_counted, counts);
        count(&mut (*host).bandwidthLimitedPeers, slot.is_limited, is_limited);
        let traffic = (info.traffic.bytes_in, info.traffic.bytes_out);
        inner.slots[index as usize] = Slot { is_counted: counts, is_limited, traffic, ..slot };
        (*peer).address = ENetAddress::of_std(info.address);
        (*peer).connectID = u32::from_ne_bytes(info.connect_id);
        (*peer).outgoingPeerID = info.remote_id;
        let has_channels = !matches!((*peer).state, state::DISCONNECTING | state::ZOMBIE);
        (*peer).channelCount = if has_channels { info.lanes.into() } else { 0 };
        (*peer).incomingBandwidth = info.incoming_bandwidth;
        (*peer).outgoingBandwidth = info.outgoing_bandwidth;
        if traffic.0 != slot.traffic.0 {
            (*peer).lastReceiveTime = (*host).serviceTime;
        }
        if traffic.1 != slot.traffic.1 {
            (*peer).lastSendTime = (*host).serviceTime;
        }
        (*peer).packetLoss = info.loss;
        (*peer).packetThrottle = info.throttle.into();
        let (interval, acceleration, deceleration) = info.throttle_settings;
        (*peer).packetThrottleInterval = ms(interval);
        (*peer).packetThrottleAcceleration = acceleration;
        (*peer).packetThrottleDeceleration = deceleration;
        (*peer).roundTripTime = ms(rtt);
        (*peer).lastRoundTripTime = ms(rtt);
        (*peer).lowestRoundTripTime = info.lowest_rtt.map_or(500, ms);
        (*peer).roundTripTimeVariance = ms(rtt_variance);
        (*peer).lastRoundTripTimeVariance = ms(rtt_variance);
        (*peer).mtu = info.mtu.into();
        (*peer).windowSize = info.window_bytes;
        (*peer).reliableDataInTransit = info.in_flight_bytes as u32;
        (*peer).packetsSent = info.traffic.packets_out as u32;
        (*peer).packetsLost = info.resent_commands as u32;
        (*peer).incomingDataTotal = info.traffic.bytes_in as u32;
        (*peer).outgoingDataTotal = info.traffic.bytes_out as u32;
        (*peer).totalWaitingData = info.waiting_bytes;
    }
}

impl Inner {
    pub(crate) fn id(&self, index: u32) -> Option<PeerId> {
        self.slots[index as usize].id
    }

    pub(crate) fn is_announced(&self, index: u32) -> bool {
        self.slots[index as usize].is_announced
    }

    /// The program has disconnected it, and gets no more packets of it.
    pub(crate) fn is_leaving(&self, index: u32) -> bool {
        self.slots[index as usize].leaving == Leaving::Now
    }

    pub(crate) fn note_leaving(&mut self, index: u32, leaving: Leaving) {
        let slot = &mut self.slots[index as usize];
        if slot.leaving != Leaving::Now {
            slot.leaving = leaving;
        }
    }
}
