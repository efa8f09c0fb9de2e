//! A peer that answers every frame with an empty one and does nothing else: the limit that figures
//! are compared with.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};

use throng_wire::matcher::{FRAME_BODY_BYTES_MAX, FrameSplit, Header, Kind, Writer, split};

/// Serves one connection after the other; `ready` is told the address.
///
/// # Errors
/// When the address cannot be listened on.
pub fn serve(addr: SocketAddr, ready: impl FnOnce(SocketAddr)) -> io::Result<()> {
    let listener = TcpListener::bind(addr)?;
    ready(listener.local_addr()?);
    for socket in listener.incoming() {
        let mut socket = socket?;
        socket.set_nodelay(true)?;
        let mut input = vec![0; 1 << 18];
        let (mut have, mut out) = (0, Vec::new());
        'connection: loop {
            match socket.read(&mut input[have..]) {
                Ok(0) | Err(_) => break,
                Ok(count) => have += count,
            }
            let mut at = 0;
            loop {
                match split(&input[at..have], FRAME_BODY_BYTES_MAX) {
                    Ok(FrameSplit::Whole { header, used, .. }) => {
                        at += used;
                        match header.kind {
                            Kind::Request => {
                                Header { kind: Kind::Response, id: header.id, ..Header::default() }
                                    .write(&mut out, b"");
                            }
                            Kind::Hello => {
                                let body =
                                    Writer::new().u64(1, 1).str(2, "echo").u64(3, 1).u64(4, 1).into_bytes();
                                Header { kind: Kind::HelloAck, ..Header::default() }.write(&mut out, &body);
                            }
                            _ => {}
                        }
                    }
                    Ok(FrameSplit::Partial { .. }) => break,
                    Err(_) => break 'connection,
                }
            }
            input.copy_within(at..have, 0);
            have -= at;
            if socket.write_all(&out).is_err() {
                break;
            }
            out.clear();
        }
    }
    Ok(())
}
