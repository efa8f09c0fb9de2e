//! The program at the end of its pipes, as the cache uses it.

use std::sync::Arc;
use std::time::Duration;

use throng_ddc::compressed::{CompressedError, Decoder, OodleDecoder, OodleOutcome, Verified, wrap_oodle};
use throng_ddc_server::OodleProgram;

fn program() -> OodleProgram {
    OodleProgram::new([env!("CARGO_BIN_EXE_throng-oodle")], Duration::from_secs(60))
}

/// Chunks of the kind that holds chunks, within each other.
fn nested(levels: usize) -> Vec<u8> {
    let mut inner = vec![0x80, 0x01, 0x01];
    for _ in 0..levels {
        let body = [&[2, 0x80, 0x00][..], &inner].concat();
        let raw = 0x1_FFFE_u32;
        let sizes = ((raw & 0x3FFF) << 18) | body.len() as u32;
        inner = [&[0x50 | (raw >> 14) as u8][..], &sizes.to_be_bytes(), &body].concat();
    }
    let size = (inner.len() - 1) as u32;
    [&[0x8C, 0x06][..], &size.to_be_bytes()[1..], &inner].concat()
}

#[test]
fn a_buffer_of_oodle_is_verified() {
    let raw = [vec![42; 4_096], b"the rest".to_vec()].concat();
    let blocks = [b"\x8C\x06\x07\xFF\xFF\x2A".to_vec(), b"\xCC\x06the rest".to_vec()];
    let decoder: Arc<dyn OodleDecoder> = Arc::new(program());
    let read = |bytes: &[u8]| -> Result<Verified, CompressedError> {
        let mut decoder = Decoder::with_oodle(Some(Arc::clone(&decoder)));
        decoder.push(bytes, &mut |_| {})?;
        decoder.finish()
    };
    assert!(read(&wrap_oodle(&raw, 12, &blocks)).expect("valid").hash_checked);
    let other = [vec![43; 4_096], b"the rest".to_vec()].concat();
    assert_eq!(read(&wrap_oodle(&other, 12, &blocks)), Err(CompressedError::BadHash));
    let damaged = [blocks[0].clone(), b"\x8C\x7Fnonsense".to_vec()];
    assert_eq!(read(&wrap_oodle(&raw, 12, &damaged)), Err(CompressedError::BadBlock(1)));
}

#[test]
fn a_block_that_ends_the_decoder_is_damaged_and_the_next_one_decodes() {
    let program = program();
    let mut raw = vec![0; 1 << 18];
    for levels in [3, 5_000, 15_000] {
        assert_eq!(program.decode(&nested(levels), &mut raw), OodleOutcome::Damaged);
        assert_eq!(program.decode(b"\xCC\x06fine", &mut raw[..4]), OodleOutcome::Decoded);
        assert_eq!(&raw[..4], b"fine");
    }
}

#[test]
fn a_program_that_is_none_decides_nothing() {
    for command in [&["/nowhere/at/all"][..], &["/bin/true"], &["/bin/echo", "something else"]] {
        let program = OodleProgram::new(command, Duration::from_secs(60));
        assert_eq!(program.decode(b"\xCC\x06fine", &mut [0; 4]), OodleOutcome::Unavailable);
    }
}

#[test]
fn a_program_that_does_not_answer_is_given_up() {
    // It greets, and says nothing more.
    let script = "printf 'oodle 1\\n'; exec /bin/sleep 60";
    let program = OodleProgram::new(["/bin/sh", "-c", script], Duration::from_millis(50));
    assert_eq!(program.decode(b"\xCC\x06fine", &mut [0; 4]), OodleOutcome::Unavailable);
}
