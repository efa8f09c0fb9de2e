//! A stream of large messages from one game server to one client, as fast as they get through.

use std::io::{self, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use throng_wire::frame::FrameReader;

use crate::protocol::{self, CHANNEL_TYPE_GLOBAL, kind};

/// Bytes sent and not received: enough to keep every buffer on the way full, and less than a
/// gateway lets wait for a client.
const IN_FLIGHT_BYTES: u64 = 2 << 20;
/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(10);
const WARM_UP: Duration = Duration::from_millis(300);
const READ_BYTES: usize = 256 << 10;

/// Plan of a stream.
pub(crate) struct StreamPlan {
    pub(crate) clients: SocketAddr,
    pub(crate) servers: SocketAddr,
    pub(crate) message_bytes: usize,
    /// Measured windows, one after the other, and the length of each.
    pub(crate) windows: usize,
    pub(crate) window: Duration,
}

/// Figures of a stream.
pub(crate) struct Streamed {
    /// Bytes per second of each window.
    pub(crate) rates: Vec<f64>,
    /// All bytes received, before and between the windows included.
    pub(crate) bytes: u64,
}

/// Progress that the two ends share.
#[derive(Default)]
struct Progress {
    received: AtomicU64,
    stop: AtomicBool,
}

/// Plays both ends.
pub(crate) fn run(plan: &StreamPlan) -> io::Result<Streamed> {
    let mut server = connect(plan.servers)?;
    let (mut reader, mut frame) = (FrameReader::default(), Vec::new());
    protocol::auth(&mut frame, 1, "stream", "");
    ask(&mut server, &mut reader, &frame, kind::AUTH)?;
    frame.clear();
    protocol::create_channel(&mut frame, 2, CHANNEL_TYPE_GLOBAL, "", None);
    ask(&mut server, &mut reader, &frame, kind::CREATE_CHANNEL)?;
    let mut client = connect(plan.clients)?;
    frame.clear();
    protocol::auth(&mut frame, 1, "reader", "");
    let answer = ask(&mut client, &mut FrameReader::default(), &frame, kind::AUTH)?;
    let (conn, _) = protocol::auth_result(&answer);
    frame.clear();
    protocol::forward_to(&mut frame, 0, conn, &vec![0; plan.message_bytes]);
    let (progress, ending) = (Progress::default(), server.try_clone()?);
    thread::scope(|scope| {
        let sender = scope.spawn(|| send(server, &frame, &progress));
        let result = receive(client, plan, &progress, sender.thread());
        progress.stop.store(true, Ordering::Relaxed);
        // Ends a write that the gateway does not take.
        drop(ending.shutdown(Shutdown::Both));
        sender.thread().unpark();
        result
    })
}

fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Sends frames and returns the body of the next message of this kind. `reader` keeps the bytes of
/// a frame that has not arrived whole.
///
/// # Errors
/// Of the socket, its read timeout included; if the stream ends, or its bytes are no frames.
pub(crate) fn ask(
    stream: &mut TcpStream,
    reader: &mut FrameReader,
    frames: &[u8],
    kind: u32,
) -> io::Result<Vec<u8>> {
    stream.write_all(frames)?;
    let (mut buf, mut found) = ([0; 16 << 10], None);
    loop {
        let count = read(stream, &mut buf)?;
        let fed = reader.feed(&buf[..count], &mut |packet| {
            let wanted = packet.messages().find(|message| message.msg_type == kind);
            found = found.take().or(wanted.map(|message| message.body.to_vec()));
            ControlFlow::Continue(())
        });
        fed.map_err(io::Error::other)?;
        if let Some(body) = found {
            return Ok(body);
        }
    }
}

fn read(stream: &mut impl io::Read, buf: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.read(buf) {
            Ok(0) => return Err(io::Error::other("the server closed the stream")),
            // A read with a time limit ends when a stopped process continues.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// The game server: sends the same frame until the end.
fn send(mut stream: TcpStream, frame: &[u8], progress: &Progress) {
    let mut sent = 0;
    while !progress.stop.load(Ordering::Relaxed) {
        if u64::saturating_sub(sent, progress.received.load(Ordering::Relaxed)) >= IN_FLIGHT_BYTES {
            thread::park_timeout(PATIENCE);
            continue;
        }
        // An error here ends the client's reads as well.
        if stream.write_all(frame).is_err() {
            return;
        }
        sent += frame.len() as u64;
    }
}

/// The client: counts what comes.
fn receive(
    mut stream: TcpStream,
    plan: &StreamPlan,
    progress: &Progress,
    sender: &Thread,
) -> io::Result<Streamed> {
    let (mut buf, mut bytes, mut rates) = (vec![0; READ_BYTES], 0, Vec::new());
    // The first one warms up.
    for window in 0..=plan.windows {
        let length = if window == 0 { WARM_UP } else { plan.window };
        let (begun, before) = (Instant::now(), bytes);
        while begun.elapsed() < length {
            bytes += read(&mut stream, &mut buf)? as u64;
            progress.received.store(bytes, Ordering::Relaxed);
            sender.unpark();
        }
        if window > 0 {
            rates.push((bytes - before) as f64 / begun.elapsed().as_secs_f64());
        }
    }
    Ok(Streamed { rates, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A socket with a time limit, after the process was stopped.
    struct Stopped(bool);

    impl io::Read for Stopped {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            match std::mem::take(&mut self.0) {
                true => Err(io::ErrorKind::Interrupted.into()),
                false => Ok(buf.len()),
            }
        }
    }

    #[test]
    fn a_read_that_was_interrupted_is_repeated() {
        assert_eq!(read(&mut Stopped(true), &mut [0; 7]).expect("bytes"), 7);
    }
}
