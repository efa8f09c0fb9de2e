//! The structures of `enet.h` 1.3.17 on 64-bit Linux, field by field.
#![allow(non_snake_case, reason = "the names of the header")]

use std::ffi::{c_int, c_void};
use std::mem::{offset_of, size_of};

use libc::{iovec, sockaddr_in};

/// A buffer of several: `ENetBuffer`, which is an `iovec` on Unix.
pub(crate) type ENetBuffer = iovec;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ENetAddress {
    /// In network byte order.
    pub host: u32,
    /// In the byte order of the machine.
    pub port: u16,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ENetListNode {
    pub next: *mut ENetListNode,
    pub previous: *mut ENetListNode,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ENetList {
    pub sentinel: ENetListNode,
}

#[repr(C)]
pub struct ENetPacket {
    pub referenceCount: usize,
    pub flags: u32,
    pub data: *mut u8,
    pub dataLength: usize,
    pub freeCallback: Option<unsafe extern "C" fn(*mut ENetPacket)>,
    pub userData: *mut c_void,
}

#[repr(C)]
pub struct ENetPeer {
    pub dispatchList: ENetListNode,
    pub host: *mut ENetHost,
    pub outgoingPeerID: u16,
    pub incomingPeerID: u16,
    pub connectID: u32,
    pub outgoingSessionID: u8,
    pub incomingSessionID: u8,
    pub address: ENetAddress,
    pub data: *mut c_void,
    pub state: c_int,
    pub channels: *mut c_void,
    pub channelCount: usize,
    pub incomingBandwidth: u32,
    pub outgoingBandwidth: u32,
    pub incomingBandwidthThrottleEpoch: u32,
    pub outgoingBandwidthThrottleEpoch: u32,
    pub incomingDataTotal: u32,
    pub outgoingDataTotal: u32,
    pub lastSendTime: u32,
    pub lastReceiveTime: u32,
    pub nextTimeout: u32,
    pub earliestTimeout: u32,
    pub packetLossEpoch: u32,
    pub packetsSent: u32,
    pub packetsLost: u32,
    pub packetLoss: u32,
    pub packetLossVariance: u32,
    pub packetThrottle: u32,
    pub packetThrottleLimit: u32,
    pub packetThrottleCounter: u32,
    pub packetThrottleEpoch: u32,
    pub packetThrottleAcceleration: u32,
    pub packetThrottleDeceleration: u32,
    pub packetThrottleInterval: u32,
    pub pingInterval: u32,
    pub timeoutLimit: u32,
    pub timeoutMinimum: u32,
    pub timeoutMaximum: u32,
    pub lastRoundTripTime: u32,
    pub lowestRoundTripTime: u32,
    pub lastRoundTripTimeVariance: u32,
    pub highestRoundTripTimeVariance: u32,
    pub roundTripTime: u32,
    pub roundTripTimeVariance: u32,
    pub mtu: u32,
    pub windowSize: u32,
    pub reliableDataInTransit: u32,
    pub outgoingReliableSequenceNumber: u16,
    pub acknowledgements: ENetList,
    pub sentReliableCommands: ENetList,
    pub sentUnreliableCommands: ENetList,
    pub outgoingCommands: ENetList,
    pub dispatchedCommands: ENetList,
    pub flags: u16,
    pub reserved: u16,
    pub incomingUnsequencedGroup: u16,
    pub outgoingUnsequencedGroup: u16,
    pub unsequencedWindow: [u32; 32],
    pub eventData: u32,
    pub totalWaitingData: usize,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ENetCompressor {
    pub context: *mut c_void,
    pub compress:
        Option<unsafe extern "C" fn(*mut c_void, *const ENetBuffer, usize, usize, *mut u8, usize) -> usize>,
    pub decompress: Option<unsafe extern "C" fn(*mut c_void, *const u8, usize, *mut u8, usize) -> usize>,
    pub destroy: Option<unsafe extern "C" fn(*mut c_void)>,
}

/// Computes the checksum of a datagram.
pub type ENetChecksumCallback = unsafe extern "C" fn(*const ENetBuffer, usize) -> u32;
/// Sees a datagram before the host: 1 takes it, 0 leaves it, -1 is an error.
pub type ENetInterceptCallback = unsafe extern "C" fn(*mut ENetHost, *mut ENetEvent) -> c_int;

#[repr(C)]
pub struct ENetHost {
    pub socket: c_int,
    pub address: ENetAddress,
    pub incomingBandwidth: u32,
    pub outgoingBandwidth: u32,
    pub bandwidthThrottleEpoch: u32,
    pub mtu: u32,
    pub randomSeed: u32,
    pub recalculateBandwidthLimits: c_int,
    pub peers: *mut ENetPeer,
    pub peerCount: usize,
    pub channelLimit: usize,
    pub serviceTime: u32,
    pub dispatchQueue: ENetList,
    pub continueSending: c_int,
    pub packetSize: usize,
    pub headerFlags: u16,
    pub commands: [[u8; 48]; 32],
    pub commandCount: usize,
    pub buffers: [ENetBuffer; 65],
    pub bufferCount: usize,
    pub checksum: Option<ENetChecksumCallback>,
    pub compressor: ENetCompressor,
    pub packetData: [[u8; 4096]; 2],
    pub receivedAddress: ENetAddress,
    pub receivedData: *mut u8,
    pub receivedDataLength: usize,
    pub totalSentData: u32,
    pub totalSentPackets: u32,
    pub totalReceivedData: u32,
    pub totalReceivedPackets: u32,
    pub intercept: Option<ENetInterceptCallback>,
    pub connectedPeers: usize,
    pub bandwidthLimitedPeers: usize,
    pub duplicatePeers: usize,
    pub maximumPacketSize: usize,
    pub maximumWaitingData: usize,
}

#[repr(C)]
pub struct ENetEvent {
    pub r#type: c_int,
    pub peer: *mut ENetPeer,
    pub channelID: u8,
    pub data: u32,
    pub packet: *mut ENetPacket,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ENetCallbacks {
    pub malloc: Option<unsafe extern "C" fn(usize) -> *mut c_void>,
    pub free: Option<unsafe extern "C" fn(*mut c_void)>,
    pub no_memory: Option<unsafe extern "C" fn()>,
}

// Sizes and offsets as the compiler of C has them; `tests/it/header.c` prints the same from the
// header itself.
const _: () = {
    assert!(size_of::<ENetHost>() == 11_024);
    assert!(size_of::<ENetPeer>() == 456);
    assert!(size_of::<ENetPacket>() == 48);
    assert!(size_of::<ENetEvent>() == 32);
    assert!(size_of::<ENetAddress>() == 8);
    assert!(offset_of!(ENetPeer, connectID) == 28);
    assert!(offset_of!(ENetPeer, data) == 48);
    assert!(offset_of!(ENetPeer, state) == 56);
    assert!(offset_of!(ENetPeer, acknowledgements) == 224);
    assert!(offset_of!(ENetPeer, unsequencedWindow) == 312);
    assert!(offset_of!(ENetPeer, totalWaitingData) == 448);
    assert!(offset_of!(ENetHost, peers) == 40);
    assert!(offset_of!(ENetHost, checksum) == 2_704);
    assert!(offset_of!(ENetHost, packetData) == 2_744);
    assert!(offset_of!(ENetHost, receivedAddress) == 10_936);
    assert!(offset_of!(ENetHost, totalSentData) == 10_960);
    assert!(offset_of!(ENetHost, intercept) == 10_976);
    assert!(offset_of!(ENetHost, duplicatePeers) == 11_000);
};

pub(crate) mod state {
    pub(crate) const DISCONNECTED: i32 = 0;
    pub(crate) const CONNECTING: i32 = 1;
    pub(crate) const CONNECTION_SUCCEEDED: i32 = 4;
    pub(crate) const CONNECTED: i32 = 5;
    pub(crate) const DISCONNECT_LATER: i32 = 6;
    pub(crate) const DISCONNECTING: i32 = 7;
    pub(crate) const ZOMBIE: i32 = 9;
}

pub(crate) mod flag {
    pub(crate) const RELIABLE: u32 = 1;
    pub(crate) const UNSEQUENCED: u32 = 2;
    pub(crate) const NO_ALLOCATE: u32 = 4;
    pub(crate) const UNRELIABLE_FRAGMENT: u32 = 8;
    pub(crate) const SENT: u32 = 256;
}

pub(crate) mod event {
    pub(crate) const NONE: i32 = 0;
    pub(crate) const CONNECT: i32 = 1;
    pub(crate) const DISCONNECT: i32 = 2;
    pub(crate) const RECEIVE: i32 = 3;
}

impl ENetAddress {
    pub(crate) fn to_sockaddr(self) -> sockaddr_in {
        sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: self.port.to_be(),
            sin_addr: libc::in_addr { s_addr: self.host },
            sin_zero: [0; 8],
        }
    }

    pub(crate) fn of_sockaddr(name: &sockaddr_in) -> Self {
        Self { host: name.sin_addr.s_addr, port: u16::from_be(name.sin_port) }
    }

    pub(crate) fn to_std(self) -> std::net::SocketAddr {
        (std::net::Ipv4Addr::from(self.host.to_ne_bytes()), self.port).into()
    }

    pub(crate) fn of_std(addr: std::net::SocketAddr) -> Self {
        match addr {
            std::net::SocketAddr::V4(v4) => {
                Self { host: u32::from_ne_bytes(v4.ip().octets()), port: v4.port() }
            }
            // The sockets are of IPv4.
            std::net::SocketAddr::V6(_) => Self::default(),
        }
    }
}
