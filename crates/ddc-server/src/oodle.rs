//! Oodle blocks, decoded by another program.
//!
//! Uploaders choose the bytes, and a decoder of a format without a specification cannot be trusted
//! with them. It runs as a separate process that has only two pipes. An input that makes it fail,
//! hang or exhaust its memory ends the process, and the block is refused. A process decodes one
//! block at a time and is used again; there is at most one for each core.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use throng_ddc::compressed::{OodleDecoder, OodleOutcome};
use tracing::{debug, warn};

use crate::blocking;

/// What a program says first.
const GREETING: [u8; 8] = *b"oodle 1\n";

/// Decodes blocks of Oodle with a program.
///
/// The program writes the eight bytes `oodle 1\n` to its standard output. Then it reads requests
/// from its standard input until that ends, and answers each before it reads the next:
///
/// ```text
/// request:  u32 n, u32 m (big-endian), then a block of n bytes, of which m bytes must come (at most 16 MiB)
/// answer:   byte 1 and m bytes, or byte 0 if the bytes are not such a block
/// ```
///
/// It is started without environment when the first block comes, and again after it ended.
#[derive(Debug)]
pub struct OodleProgram {
    command: Vec<OsString>,
    within: Duration,
    at_once_max: usize,
    processes: Mutex<Processes>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct Processes {
    idle: Vec<Process>,
    busy: usize,
}

impl OodleProgram {
    /// A program and its arguments, which gets `within` for each block and for its start.
    #[must_use]
    pub fn new<A: Into<OsString> + Clone>(command: impl AsRef<[A]>, within: Duration) -> OodleProgram {
        OodleProgram {
            command: command.as_ref().iter().cloned().map(Into::into).collect(),
            within,
            at_once_max: std::thread::available_parallelism().map_or(1, usize::from),
            processes: Mutex::default(),
            freed: Condvar::new(),
        }
    }

    fn processes(&self) -> MutexGuard<'_, Processes> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An idle process, or a new one; waits while there are as many busy ones as there may be.
    fn begin(&self) -> io::Result<Process> {
        let full = |processes: &mut Processes| processes.busy >= self.at_once_max;
        let waited = self.freed.wait_while(self.processes(), full);
        let mut processes = waited.unwrap_or_else(PoisonError::into_inner);
        processes.busy += 1;
        let idle = processes.idle.pop();
        drop(processes);
        let begun = idle.map_or_else(|| Process::start(&self.command, self.within), Ok);
        if begun.is_err() {
            self.end(None);
        }
        begun
    }

    fn end(&self, process: Option<Process>) {
        let mut processes = self.processes();
        processes.busy -= 1;
        processes.idle.extend(process);
        drop(processes);
        self.freed.notify_one();
    }

    fn decode_waiting(&self, block: &[u8], raw: &mut [u8]) -> OodleOutcome {
        let mut process = match self.begin() {
            Ok(process) => process,
            Err(error) => {
                let program = self.command.first();
                warn!(?program, %error, "no decoder for Oodle: what it compressed is not verified");
                return OodleOutcome::Unavailable;
            }
        };
        let result = process.decode(block, raw, Instant::now() + self.within);
        // A process that failed is ended: whatever it says next is not an answer.
        self.end(result.is_ok().then_some(process));
        match result {
            Ok(true) => OodleOutcome::Decoded,
            Ok(false) => OodleOutcome::Damaged,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                warn!(%error, "a block of Oodle took too long to decode");
                OodleOutcome::Unavailable
            }
            Err(error) => {
                debug!(%error, "a block of Oodle ended its decoder");
                OodleOutcome::Damaged
            }
        }
    }
}

impl OodleDecoder for OodleProgram {
    fn decode(&self, block: &[u8], raw: &mut [u8]) -> OodleOutcome {
        // Other requests go on meanwhile.
        blocking::in_place(|| self.decode_waiting(block, raw))
    }
}

#[derive(Debug)]
struct Process {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    fn start(command: &[OsString], within: Duration) -> io::Result<Process> {
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        // Without environment: credentials of the object storage may be there.
        let mut child = Command::new(program)
            .args(arguments)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let mut process = Process { child, input, output };
        for pipe in [process.input.as_fd(), process.output.as_fd()] {
            fcntl_setfl(pipe, OFlags::NONBLOCK)?;
        }
        let mut greeting = [0; GREETING.len()];
        process.receive(&mut greeting, Instant::now() + within)?;
        if greeting != GREETING {
            return Err(io::Error::other("the program does not speak this protocol"));
        }
        Ok(process)
    }

    fn decode(&mut self, block: &[u8], raw: &mut [u8], until: Instant) -> io::Result<bool> {
        let size = |len: usize| u32::try_from(len).map_err(io::Error::other).map(u32::to_be_bytes);
        let head = [size(block.len())?, size(raw.len())?].concat();
        self.send(&head, until)?;
        self.send(block, until)?;
        let mut decoded = [0];
        self.receive(&mut decoded, until)?;
        match decoded {
            [0] => Ok(false),
            [1] => self.receive(raw, until).map(|()| true),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn send(&mut self, mut bytes: &[u8], until: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.input.write(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(error) => wait(self.input.as_fd(), PollFlags::OUT, error, until)?,
            }
        }
        Ok(())
    }

    fn receive(&mut self, mut bytes: &mut [u8], until: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.output.read(bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => bytes = &mut bytes[read..],
                Err(error) => wait(self.output.as_fd(), PollFlags::IN, error, until)?,
            }
        }
        Ok(())
    }
}

/// Waits until a pipe is ready, if that is what was wrong with it.
fn wait(pipe: BorrowedFd<'_>, wanted: PollFlags, error: io::Error, until: Instant) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::Interrupted => return Ok(()),
        io::ErrorKind::WouldBlock => {}
        _ => return Err(error),
    }
    let left = until.saturating_duration_since(Instant::now());
    let left = Timespec::try_from(left).map_err(io::Error::other)?;
    match poll(&mut [PollFd::from_borrowed_fd(pipe, wanted)], Some(&left)) {
        Ok(0) => Err(io::ErrorKind::TimedOut.into()),
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
