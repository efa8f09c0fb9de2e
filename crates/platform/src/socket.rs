//! State of a socket that the standard library does not tell.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Bytes that were written to a TCP socket and that its peer has not acknowledged: what `ss` shows
/// as Send-Q. One system call.
///
/// # Errors
/// As the system says.
pub fn send_queue_bytes(socket: &impl AsFd) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is borrowed for the call, which writes one `int`.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(u64::try_from(bytes).unwrap_or(0)) }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_queue_holds_what_the_peer_did_not_take() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let _client = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let (mut server, _) = listener.accept().expect("a client");
        assert_eq!(send_queue_bytes(&server).expect("a socket"), 0);
        server.set_nonblocking(true).expect("a socket");
        let (block, mut written) = (vec![0; 1 << 20], 0_u64);
        while let Ok(count) = server.write(&block) {
            written += count as u64;
        }
        let queued = send_queue_bytes(&server).expect("a socket");
        assert!(queued > 0 && queued < written, "{queued} of {written}");
        let file = tempfile::tempfile().expect("a file");
        assert!(send_queue_bytes(&file).is_err());
    }
}
