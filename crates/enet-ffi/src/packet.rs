//! Packets, which programs allocate, fill, keep and free; and the checksum over buffers.

use std::ffi::{c_int, c_void};
use std::mem::size_of;
use std::ptr;

use throng_enet::Delivery;

use crate::abi::{ENetBuffer, ENetPacket, flag};
use crate::allocation::{enet_free, enet_malloc};

/// # Safety
/// `data` is null or points to `length` bytes, which stay where they are with
/// `ENET_PACKET_FLAG_NO_ALLOCATE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_packet_create(
    data: *const c_void,
    length: usize,
    flags: u32,
) -> *mut ENetPacket {
    let packet: *mut ENetPacket = enet_malloc(size_of::<ENetPacket>()).cast();
    if packet.is_null() {
        return packet;
    }
    let content = if flags & flag::NO_ALLOCATE != 0 {
        data.cast_mut().cast()
    } else if length == 0 {
        ptr::null_mut()
    } else {
        let content: *mut u8 = enet_malloc(length).cast();
        if content.is_null() {
            // SAFETY: allocated above.
            unsafe { enet_free(packet.cast()) };
            return ptr::null_mut();
        }
        if !data.is_null() {
            // SAFETY: both have `length` bytes; the second is new.
            unsafe { ptr::copy_nonoverlapping(data.cast(), content, length) };
        }
        content
    };
    let value = ENetPacket {
        referenceCount: 0,
        flags,
        data: content,
        dataLength: length,
        freeCallback: None,
        userData: ptr::null_mut(),
    };
    // SAFETY: allocated above with this size.
    unsafe { packet.write(value) };
    packet
}

/// # Safety
/// `packet` is null, or came from [`enet_packet_create`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_packet_destroy(packet: *mut ENetPacket) {
    if packet.is_null() {
        return;
    }
    // SAFETY: the caller's promise. The callback may change the fields, so they are read
    // afterwards.
    unsafe {
        if let Some(callback) = (*packet).freeCallback {
            callback(packet);
        }
        if (*packet).flags & flag::NO_ALLOCATE == 0 && !(*packet).data.is_null() {
            enet_free((*packet).data.cast());
        }
        enet_free(packet.cast());
    }
}

/// # Safety
/// `packet` came from [`enet_packet_create`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_packet_resize(packet: *mut ENetPacket, length: usize) -> c_int {
    // SAFETY: the caller's promise: the old content has `dataLength` bytes, the new more.
    unsafe {
        if length > (*packet).dataLength && (*packet).flags & flag::NO_ALLOCATE == 0 {
            let content: *mut u8 = enet_malloc(length).cast();
            if content.is_null() {
                return -1;
            }
            if !(*packet).data.is_null() {
                ptr::copy_nonoverlapping((*packet).data, content, (*packet).dataLength);
                enet_free((*packet).data.cast());
            }
            (*packet).data = content;
        }
        (*packet).dataLength = length;
    }
    0
}

/// CRC-32 over all buffers, as it stands on the wire.
///
/// # Safety
/// `buffers` points to `count` buffers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_crc32(buffers: *const ENetBuffer, count: usize) -> u32 {
    let mut sum = u32::MAX;
    for index in 0..count {
        // SAFETY: the caller's promise.
        let bytes = unsafe {
            let buffer = &*buffers.add(index);
            slice(buffer.iov_base.cast(), buffer.iov_len)
        };
        for &byte in bytes {
            sum = sum >> 8 ^ TABLE[(sum as u8 ^ byte) as usize];
        }
    }
    (!sum).to_be()
}

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut remainder = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            remainder = (remainder >> 1) ^ (0xEDB8_8320 * (remainder & 1));
            bit += 1;
        }
        table[byte] = remainder;
        byte += 1;
    }
    table
};

/// The bytes at `data`; none when it is null.
///
/// # Safety
/// `data` is null or points to `length` bytes that nothing changes meanwhile.
pub(crate) unsafe fn slice<'a>(data: *const u8, length: usize) -> &'a [u8] {
    if data.is_null() || length == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(data, length) }
}

/// Delivery of a packet with these flags.
pub(crate) fn delivery(flags: u32) -> Delivery {
    let has = |flag| flags & flag != 0;
    match (has(flag::RELIABLE), has(flag::UNSEQUENCED), has(flag::UNRELIABLE_FRAGMENT)) {
        (true, ..) => Delivery::Reliable,
        (_, false, false) => Delivery::Unreliable,
        (_, false, true) => Delivery::UnreliableFragmented,
        (_, true, false) => Delivery::Unsequenced,
        (_, true, true) => Delivery::UnsequencedFragmented,
    }
}

/// The flags of a packet that travelled so.
pub(crate) fn flags(delivery: Delivery) -> u32 {
    match delivery {
        Delivery::Reliable => flag::RELIABLE,
        Delivery::Unreliable => 0,
        Delivery::UnreliableFragmented => flag::UNRELIABLE_FRAGMENT,
        Delivery::Unsequenced | Delivery::UnsequencedFragmented => flag::UNSEQUENCED,
    }
}
