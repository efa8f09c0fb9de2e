//! Decoder of Oodle blocks for the derived-data cache, as a separate process.
//!
//! The decoder is `oozextract`: free, in Rust without `unsafe` as it is built here, and written
//! without a specification. Its input is uploaded by untrusted clients, and it is not robust
//! against that: it panics on some inputs, and 40 kB of nested chunks make it recurse until the
//! stack overflows, which ends the process. The decoder therefore runs in a process that may end.
//!
//! The other end is `throng_ddc_server::OodleProgram`, which documents the protocol on the pipes.
//! Any program with the same protocol can replace this one, for example one around the licensed
//! decoder of an engine.
#![forbid(unsafe_code)]

use std::io::{self, Read, Write};
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;

use oozextract::Extractor;

/// Greeting of the program.
const GREETING: &[u8] = b"oodle 1\n";
/// Largest block, raw; compressed it may be a little larger.
const BLOCK_BYTES_MAX: usize = 16 << 20;
/// Stack of the decoder. Blocks made by a compressor nest a few levels deep.
const STACK_BYTES: usize = 1 << 20;

/// Serves standard input and output until the input ends. Panics are not reported: there may be one
/// for each block.
pub fn run() -> ExitCode {
    std::panic::set_hook(Box::new(|_| {}));
    // A stack that is full ends the process with a signal; nobody wants its memory on disk.
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
    let serve = || serve(io::stdin().lock(), io::stdout().lock());
    let served = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(serve);
    match served.map(std::thread::JoinHandle::join) {
        Ok(Ok(Ok(()))) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// Decodes block after block.
///
/// # Errors
/// If a pipe is broken, or a request exceeds the size of a block.
pub fn serve(mut input: impl Read, mut output: impl Write) -> io::Result<()> {
    output.write_all(GREETING)?;
    output.flush()?;
    let (mut block, mut raw) = (Vec::new(), Vec::new());
    loop {
        let mut head = [0; 8];
        if input.read(&mut head[..1])? == 0 {
            return Ok(());
        }
        input.read_exact(&mut head[1..])?;
        let [block_bytes, raw_bytes] = [0, 4]
            .map(|at| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]) as usize);
        if block_bytes > 2 * BLOCK_BYTES_MAX || raw_bytes > BLOCK_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the block is too large"));
        }
        block.resize(block_bytes, 0);
        input.read_exact(&mut block)?;
        raw.clear();
        raw.resize(raw_bytes, 0);
        let decoded = decode(&block, &mut raw);
        output.write_all(&[u8::from(decoded)])?;
        if decoded {
            output.write_all(&raw)?;
        }
        output.flush()?;
    }
}

/// True if the block decoded to all of `raw`. Each block has a decoder of its own, so no state of a
/// damaged block remains.
fn decode(block: &[u8], raw: &mut [u8]) -> bool {
    let wanted = raw.len();
    let decoded = std::panic::catch_unwind(AssertUnwindSafe(|| Extractor::new().read_from_slice(block, raw)));
    matches!(decoded, Ok(Ok(written)) if written == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(requests: &[(&[u8], u32)]) -> Vec<u8> {
        let mut input = Vec::new();
        for (block, raw) in requests {
            input.extend_from_slice(&(block.len() as u32).to_be_bytes());
            input.extend_from_slice(&raw.to_be_bytes());
            input.extend_from_slice(block);
        }
        let mut output = Vec::new();
        serve(&input[..], &mut output).expect("the input ends between requests");
        output.strip_prefix(GREETING).expect("it greets").to_vec()
    }

    #[test]
    fn blocks_are_answered_in_order() {
        // Kraken: stored; a run of one byte; the end is missing.
        let (stored, run) = (b"\xCC\x06hello".as_slice(), b"\x8C\x06\x07\xFF\xFF\x2A".as_slice());
        let answers = ask(&[(stored, 5), (run, 3), (b"\x8C\x06\x07\xFF\xFF", 3), (b"", 9), (stored, 5)]);
        assert_eq!(answers, [b"\x01hello".as_slice(), b"\x01***", b"\0", b"\0", b"\x01hello"].concat());
    }

    #[test]
    fn what_is_not_a_block_is_refused_and_the_next_one_decodes() {
        let mut seed = 7_u32;
        let mut next = move || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 24) as u8
        };
        for decoder in [0x02, 0x05, 0x06, 0x0A, 0x0B, 0x0C] {
            for len in [0_usize, 1, 4, 20, 300] {
                // A quantum of the size that follows, filled with anything.
                let mut block = vec![0x8C, decoder, 0, (len >> 8) as u8, len as u8];
                block.extend((0..=len).map(|_| next()));
                let answers = ask(&[(&block, 2_000), (b"\xCC\x06fine", 4)]);
                assert!(answers.ends_with(b"\x01fine"), "{decoder:#x}, {len} bytes");
            }
        }
    }

    #[test]
    fn a_request_beyond_the_limits_ends_it() {
        let head = [&1_u32.to_be_bytes()[..], &u32::MAX.to_be_bytes()].concat();
        assert_eq!(serve(&head[..], io::sink()).expect_err("too large").kind(), io::ErrorKind::InvalidData);
        assert_eq!(serve(&head[..3], io::sink()).expect_err("cut").kind(), io::ErrorKind::UnexpectedEof);
    }
}
