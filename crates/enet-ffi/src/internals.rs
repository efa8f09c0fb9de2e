//! Functions that the C library exports although they are its protocol's internals. No program of
//! Debian calls them; the structures that they take are empty here, so a call ends the process with
//! their name.

use std::ffi::c_int;

fn abort(name: &str) -> ! {
    #[allow(clippy::print_stderr, reason = "the last words of the process")]
    {
        eprintln!(
            "libenet.so.7 (Throng): {name} is an internal of the C library that this one does not have"
        );
    }
    std::process::abort()
}

macro_rules! internal {
    ($($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() {
            abort(stringify!($name))
        }
    )* };
}

internal! {
    enet_host_bandwidth_throttle
    enet_peer_dispatch_incoming_reliable_commands
    enet_peer_dispatch_incoming_unreliable_commands
    enet_peer_on_connect
    enet_peer_on_disconnect
    enet_peer_queue_acknowledgement
    enet_peer_queue_incoming_command
    enet_peer_queue_outgoing_command
    enet_peer_reset_queues
    enet_peer_setup_outgoing_command
    enet_peer_throttle
}

/// Bytes of a command without its payload; 0 for numbers that no command has.
#[unsafe(no_mangle)]
pub extern "C" fn enet_protocol_command_size(command: u8) -> usize {
    const SIZES: [usize; 13] = [0, 8, 48, 44, 8, 4, 6, 8, 24, 8, 12, 16, 24];
    SIZES.get(usize::from(command & 15)).copied().unwrap_or(0)
}

/// Bits from the operating system.
#[unsafe(no_mangle)]
pub extern "C" fn enet_host_random_seed() -> u32 {
    entropy() as u32
}

/// 128 bits that nobody can guess.
pub(crate) fn entropy() -> u128 {
    let mut bytes = [0_u8; 16];
    // SAFETY: the buffer has the stated length. The call cannot fail for so few bytes once the
    // system has started.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    assert_eq!(got, bytes.len() as isize, "the system has no randomness");
    u128::from_ne_bytes(bytes)
}

/// For functions of the header that return a count of bytes or an error.
pub(crate) fn count(result: isize) -> c_int {
    c_int::try_from(result).unwrap_or(-1)
}
