//! Names and addresses.

use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::{size_of, zeroed};
use std::net::Ipv4Addr;
use std::ptr;

use crate::abi::ENetAddress;

/// # Safety
/// `address` points to an address, `name` to a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_address_set_host_ip(address: *mut ENetAddress, name: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let ip = unsafe { CStr::from_ptr(name) }.to_str().ok().and_then(|name| name.parse::<Ipv4Addr>().ok());
    let Some(ip) = ip else { return -1 };
    // SAFETY: the caller's promise.
    unsafe { (*address).host = u32::from_ne_bytes(ip.octets()) };
    0
}

/// # Safety
/// As for [`enet_address_set_host_ip`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_address_set_host(address: *mut ENetAddress, name: *const c_char) -> c_int {
    // SAFETY: the caller's promise; the list is the resolver's until it is freed.
    unsafe {
        let hints = libc::addrinfo { ai_family: libc::AF_INET, ..zeroed() };
        let mut found: *mut libc::addrinfo = ptr::null_mut();
        if libc::getaddrinfo(name, ptr::null(), &raw const hints, &raw mut found) == 0 {
            let mut entry = found;
            let mut host = None;
            while let Some(info) = entry.as_ref() {
                if info.ai_family == libc::AF_INET && !info.ai_addr.is_null() {
                    host = Some((*info.ai_addr.cast::<libc::sockaddr_in>()).sin_addr.s_addr);
                    break;
                }
                entry = info.ai_next;
            }
            libc::freeaddrinfo(found);
            if let Some(host) = host {
                (*address).host = host;
                return 0;
            }
        }
        enet_address_set_host_ip(address, name)
    }
}

/// # Safety
/// `address` points to an address, `name` to `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_address_get_host_ip(
    address: *const ENetAddress,
    name: *mut c_char,
    length: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let ip = Ipv4Addr::from(unsafe { (*address).host }.to_ne_bytes());
    let text = CString::new(ip.to_string()).unwrap_or_default();
    let bytes = text.as_bytes_with_nul();
    if bytes.len() > length {
        return -1;
    }
    // SAFETY: the caller's promise; the text fits.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr().cast(), name, bytes.len()) };
    0
}

/// # Safety
/// As for [`enet_address_get_host_ip`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_address_get_host(
    address: *const ENetAddress,
    name: *mut c_char,
    length: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let socket = (*address).to_sockaddr();
        let size = libc::socklen_t::try_from(length).unwrap_or(libc::socklen_t::MAX);
        let result = libc::getnameinfo(
            (&raw const socket).cast(),
            size_of::<libc::sockaddr_in>() as libc::socklen_t,
            name,
            size,
            ptr::null_mut(),
            0,
            libc::NI_NAMEREQD,
        );
        match result {
            0 => 0,
            libc::EAI_NONAME => enet_address_get_host_ip(address, name, length),
            _ => -1,
        }
    }
}
