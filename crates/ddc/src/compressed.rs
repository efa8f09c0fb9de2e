//! Compressed buffers: data in independently compressed blocks, named by the hash of their raw
//! content.
//!
//! ```text
//! offset size                                      offset size
//!      0    4  magic B7 75 63 62                       12    4  block count
//!      4    4  CRC-32 of bytes 8..64 and the table     16    8  raw size
//!      8    1  method: 0 none, 3 Oodle, 4 LZ4          24    8  compressed size, header and table included
//!      9    2  compressor and level (ignored)          32   20  IoHash of the raw data
//!     11    1  block size as a power of two            52   12  ignored
//!     64  4*n  compressed size of each block (not for method none), then the blocks
//! ```
//!
//! All numbers are big-endian. A block whose compressed size is its raw size is stored as it is.
//!
//! [`Decoder`] takes the bytes as they arrive and keeps at most the block table and one block, so
//! that a buffer of any size is verified while it is being received.

use std::fmt;
use std::sync::Arc;

use crate::{Hasher, IoHash};

/// Size of the header.
pub const HEADER_BYTES: usize = 64;

/// Largest accepted block: 16 MiB. Editors write 256 KiB. A decoder may hold twice this.
pub const BLOCK_EXPONENT_MAX: u8 = 24;

/// Largest accepted block table: a million blocks, which are 256 GiB of raw data in editors'
/// blocks.
pub const BLOCKS_MAX: u32 = 1 << 20;

const MAGIC: [u8; 4] = 0xB775_6362_u32.to_be_bytes();

/// How blocks are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Not at all; there are no blocks.
    None,
    /// Oodle. Blocks that are not stored as they are can be verified only with an [`OodleDecoder`].
    Oodle,
    /// LZ4 block format.
    Lz4,
}

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// How blocks are compressed.
    pub method: Method,
    /// Block size as a power of two.
    pub block_exponent: u8,
    /// Number of blocks; 0 for [`Method::None`], which has no table.
    pub block_count: u32,
    /// Bytes after decompression.
    pub raw_size: u64,
    /// Bytes of the whole buffer, as declared.
    pub total_size: u64,
    /// Hash of the raw data, as declared.
    pub raw_hash: IoHash,
    crc: u32,
}

/// Why bytes are not a compressed buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompressedError {
    /// Fewer bytes than header and block table take.
    #[error("the compressed buffer ends within its header")]
    Truncated,
    /// The first four bytes are wrong.
    #[error("the bytes are not a compressed buffer")]
    BadMagic,
    /// A method that does not exist.
    #[error("compression method {0} is not known; 0, 3 and 4 are")]
    UnsupportedMethod(u8),
    /// The blocks are larger than we decode.
    #[error("blocks of 2^{0} bytes exceed the limit of 2^24")]
    BlocksTooLarge(u8),
    /// The number of blocks does not follow from raw size and block size, or exceeds the limit.
    #[error("{0} blocks do not fit the raw size and the block size")]
    BadBlockCount(u32),
    /// Header and table do not match their checksum.
    #[error("the checksum of header and block table is wrong")]
    BadCrc,
    /// Declared sizes and actual sizes differ.
    #[error("declared and actual sizes of the compressed buffer differ")]
    BadSize,
    /// A block does not decompress to its size.
    #[error("block {0} does not decompress to its size")]
    BadBlock(u32),
    /// The raw data has another hash than the header says.
    #[error("the raw data does not hash to the declared hash")]
    BadHash,
}

impl Header {
    /// Reads the first 64 bytes. The checksum needs the block table too and is not checked here.
    ///
    /// # Errors
    /// Everything that the header alone shows to be wrong.
    pub fn read(bytes: &[u8]) -> Result<Header, CompressedError> {
        let bytes: &[u8; HEADER_BYTES] = bytes.first_chunk().ok_or(CompressedError::Truncated)?;
        if bytes[..4] != MAGIC {
            return Err(CompressedError::BadMagic);
        }
        let method = match bytes[8] {
            0 => Method::None,
            3 => Method::Oodle,
            4 => Method::Lz4,
            other => return Err(CompressedError::UnsupportedMethod(other)),
        };
        let u32_at = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let u64_at = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let header = Header {
            method,
            block_exponent: bytes[11],
            block_count: if method == Method::None { 0 } else { u32_at(12) },
            raw_size: u64_at(16),
            total_size: u64_at(24),
            raw_hash: IoHash::read(&bytes[32..]).expect("the header has room for it"),
            crc: u32_at(4),
        };
        if method == Method::None {
            let total = (HEADER_BYTES as u64).checked_add(header.raw_size);
            return if total == Some(header.total_size) { Ok(header) } else { Err(CompressedError::BadSize) };
        }
        if header.block_exponent > BLOCK_EXPONENT_MAX {
            return Err(CompressedError::BlocksTooLarge(header.block_exponent));
        }
        let expected = header.raw_size.div_ceil(header.block_size());
        if u64::from(header.block_count) != expected || header.block_count > BLOCKS_MAX {
            return Err(CompressedError::BadBlockCount(header.block_count));
        }
        Ok(header)
    }

    /// Raw bytes of every block but the last.
    #[must_use]
    pub fn block_size(&self) -> u64 {
        1 << self.block_exponent.min(BLOCK_EXPONENT_MAX)
    }

    /// Bytes of the block table.
    #[must_use]
    pub fn table_bytes(&self) -> usize {
        4 * self.block_count as usize
    }

    /// Most bytes that a [`Decoder`] of this buffer holds: the block table, as received and as
    /// numbers, and one block, compressed and raw.
    #[must_use]
    pub fn decoder_bytes(&self) -> u64 {
        let raw = self.block_size().min(self.raw_size);
        let block = if self.method == Method::None { 0 } else { raw + self.block_bound(raw as usize) as u64 };
        2 * self.table_bytes() as u64 + block
    }

    /// Raw bytes of block `index`.
    fn raw_block(&self, index: u32) -> usize {
        let start = u64::from(index) * self.block_size();
        self.raw_size.saturating_sub(start).min(self.block_size()) as usize
    }

    /// The most bytes that compressing `raw` bytes may take.
    fn block_bound(&self, raw: usize) -> usize {
        match self.method {
            Method::None => raw,
            Method::Lz4 => raw + raw / 255 + 16,
            Method::Oodle => raw + 274 * raw.div_ceil(0x4_0000),
        }
    }

    /// Reports whether `sum`, which is header, table and blocks, is what the header declares.
    fn total_fits(&self, sum: u64) -> bool {
        let headerless = sum - HEADER_BYTES as u64;
        // Some writers of Oodle buffers leave out the header, or header and table.
        let lenient = [headerless, headerless.saturating_sub(self.table_bytes() as u64)];
        self.total_size == sum || self.method == Method::Oodle && lenient.contains(&self.total_size)
    }
}

/// Decodes blocks of Oodle, a format that has no public specification: whoever embeds this crate
/// may have a decoder, this crate has none.
pub trait OodleDecoder: Send + Sync + fmt::Debug {
    /// Decodes one block of at most 16 MiB, of which `raw.len()` bytes must come.
    ///
    /// The block is what somebody uploaded, so it may be anything.
    fn decode(&self, block: &[u8], raw: &mut [u8]) -> OodleOutcome;
}

/// What came of decoding a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OodleOutcome {
    /// All of `raw` was written.
    Decoded,
    /// The bytes are not a block, or one of another size.
    Damaged,
    /// Nothing is known, because the decoder is out of order.
    Unavailable,
}

/// What a complete buffer was found to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// What the header says.
    pub header: Header,
    /// True if the raw data was decompressed and has the declared hash. False if there was no
    /// decoder for an Oodle block: then only the structure was checked.
    pub hash_checked: bool,
}

/// Decompresses and verifies a buffer that arrives in pieces.
#[derive(Debug)]
pub struct Decoder {
    state: State,
    /// Header, then table, then a block, while they are incomplete.
    pending: Vec<u8>,
    /// A decompressed block.
    raw: Vec<u8>,
    hasher: Hasher,
    oodle: Option<Arc<dyn OodleDecoder>>,
}

#[derive(Debug)]
enum State {
    Header,
    Table(Header),
    Blocks(Blocks),
}

#[derive(Debug)]
struct Blocks {
    header: Header,
    sizes: Vec<u32>,
    index: u32,
    /// Bytes of the current run that are passed through as they are: a stored block, or everything
    /// for method none.
    stored_left: u64,
    /// Bytes of the current block that are skipped because there is no decoder.
    skipped_left: u64,
    hash_checked: bool,
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder {
            state: State::Header,
            pending: Vec::new(),
            raw: Vec::new(),
            hasher: Hasher::new(),
            oodle: None,
        }
    }
}

impl Decoder {
    /// Nothing received yet. Oodle blocks will be skipped.
    #[must_use]
    pub fn new() -> Decoder {
        Decoder::default()
    }

    /// The same with something to decode Oodle blocks with, if there is something.
    #[must_use]
    pub fn with_oodle(oodle: Option<Arc<dyn OodleDecoder>>) -> Decoder {
        Decoder { oodle, ..Decoder::default() }
    }

    /// The header, once it was received.
    #[must_use]
    pub fn header(&self) -> Option<Header> {
        match &self.state {
            State::Header => None,
            State::Table(header) => Some(*header),
            State::Blocks(blocks) => Some(blocks.header),
        }
    }

    /// Bytes of input that complete the header, the table, a block or what is stored as it is.
    /// After as many, `sink` has been given at most one block. 0 when the buffer is complete.
    #[must_use]
    pub fn wanted(&self) -> u64 {
        let missing = |whole: usize| (whole - self.pending.len()) as u64;
        match &self.state {
            State::Header => missing(HEADER_BYTES),
            State::Table(header) => missing(HEADER_BYTES + header.table_bytes()),
            // One of both is 0.
            State::Blocks(blocks) => match blocks.stored_left + blocks.skipped_left {
                0 => blocks.sizes.get(blocks.index as usize).map_or(0, |size| missing(*size as usize)),
                left => left,
            },
        }
    }

    /// False once a block was skipped because nothing decodes it: `sink` is not given all raw data.
    #[must_use]
    pub fn decodes_all(&self) -> bool {
        !matches!(&self.state, State::Blocks(blocks) if !blocks.hash_checked)
    }

    /// Takes the next bytes; calls `sink` with raw data in order, in pieces of at most a block.
    ///
    /// Raw data is handed on before its hash is known: the caller must not make it visible before
    /// [`finish`](Decoder::finish) succeeds. Oodle blocks that are skipped give nothing.
    ///
    /// # Errors
    /// What is wrong; the decoder is of no more use then.
    pub fn push(&mut self, mut input: &[u8], sink: &mut dyn FnMut(&[u8])) -> Result<(), CompressedError> {
        loop {
            match &mut self.state {
                State::Header => {
                    let Some(bytes) = fill(&mut self.pending, &mut input, HEADER_BYTES) else {
                        return Ok(());
                    };
                    let header = Header::read(bytes)?;
                    self.state = State::Table(header);
                }
                State::Table(header) => {
                    let header = *header;
                    let wanted = HEADER_BYTES + header.table_bytes();
                    let Some(bytes) = fill(&mut self.pending, &mut input, wanted) else { return Ok(()) };
                    let blocks = Blocks::read(header, bytes)?;
                    self.pending.clear();
                    self.state = State::Blocks(blocks);
                }
                State::Blocks(blocks) => {
                    let hasher = &mut self.hasher;
                    let mut emit = |raw: &[u8]| {
                        hasher.update(raw);
                        sink(raw);
                    };
                    let oodle = self.oodle.as_deref();
                    return blocks.push(input, &mut self.pending, &mut self.raw, oodle, &mut emit);
                }
            }
        }
    }

    /// Checks that everything was received and has the declared hash.
    ///
    /// # Errors
    /// [`CompressedError::Truncated`] within header and table, [`CompressedError::BadSize`] within
    /// the blocks, [`CompressedError::BadHash`].
    pub fn finish(self) -> Result<Verified, CompressedError> {
        let State::Blocks(blocks) = self.state else { return Err(CompressedError::Truncated) };
        let complete = blocks.index == blocks.header.block_count && self.pending.is_empty();
        if !complete || blocks.stored_left > 0 || blocks.skipped_left > 0 {
            return Err(CompressedError::BadSize);
        }
        if blocks.hash_checked && self.hasher.finish() != blocks.header.raw_hash {
            return Err(CompressedError::BadHash);
        }
        Ok(Verified { header: blocks.header, hash_checked: blocks.hash_checked })
    }
}

impl Blocks {
    /// Checks the checksum and the sizes of header and table.
    fn read(header: Header, bytes: &[u8]) -> Result<Blocks, CompressedError> {
        if crc32fast::hash(&bytes[8..]) != header.crc {
            return Err(CompressedError::BadCrc);
        }
        let table = bytes[HEADER_BYTES..].chunks_exact(4);
        let sizes: Vec<u32> =
            table.map(|size| u32::from_be_bytes(size.try_into().expect("four bytes"))).collect();
        let mut sum = bytes.len() as u64;
        for (index, size) in (0..).zip(&sizes) {
            if *size as usize > header.block_bound(header.raw_block(index)) {
                return Err(CompressedError::BadSize);
            }
            sum += u64::from(*size);
        }
        let stored_left = if header.method == Method::None { header.raw_size } else { 0 };
        if !header.total_fits(sum + stored_left) {
            return Err(CompressedError::BadSize);
        }
        Ok(Blocks { header, sizes, index: 0, stored_left, skipped_left: 0, hash_checked: true })
    }

    fn push(
        &mut self,
        mut input: &[u8],
        pending: &mut Vec<u8>,
        raw: &mut Vec<u8>,
        oodle: Option<&dyn OodleDecoder>,
        emit: &mut dyn FnMut(&[u8]),
    ) -> Result<(), CompressedError> {
        while !input.is_empty() {
            if self.stored_left > 0 {
                let piece = take(&mut input, &mut self.stored_left);
                emit(piece);
                continue;
            }
            if self.skipped_left > 0 {
                take(&mut input, &mut self.skipped_left);
                continue;
            }
            let Some(&size) = self.sizes.get(self.index as usize) else {
                return Err(CompressedError::BadSize);
            };
            let raw_size = self.header.raw_block(self.index);
            // Once a block was skipped the hash cannot be had: the others need no decoding.
            let decoder = oodle.filter(|_| self.hash_checked);
            if size == 0 {
                return Err(CompressedError::BadBlock(self.index));
            } else if size as usize == raw_size {
                self.stored_left = u64::from(size);
            } else if self.header.method == Method::Oodle && decoder.is_none() {
                self.skipped_left = u64::from(size);
                self.hash_checked = false;
            } else {
                let Some(block) = fill(pending, &mut input, size as usize) else { return Ok(()) };
                raw.resize(raw_size, 0);
                match self.decode(block, raw, decoder) {
                    OodleOutcome::Decoded => emit(raw),
                    OodleOutcome::Damaged => return Err(CompressedError::BadBlock(self.index)),
                    OodleOutcome::Unavailable => self.hash_checked = false,
                }
                pending.clear();
            }
            self.index += 1;
        }
        // Blocks without bytes need no more input to be over, and there must be none.
        match self.sizes.get(self.index as usize) {
            Some(0) => Err(CompressedError::BadBlock(self.index)),
            _ => Ok(()),
        }
    }

    fn decode(&self, block: &[u8], raw: &mut [u8], oodle: Option<&dyn OodleDecoder>) -> OodleOutcome {
        match (self.header.method, oodle) {
            (Method::Oodle, Some(oodle)) => oodle.decode(block, raw),
            (Method::Oodle, None) => OodleOutcome::Unavailable,
            _ if lz4_flex::block::decompress_into(block, raw).ok() == Some(raw.len()) => {
                OodleOutcome::Decoded
            }
            _ => OodleOutcome::Damaged,
        }
    }
}

/// Moves bytes from `input` to `pending` until that has `wanted`; `None` while it has fewer.
fn fill<'p>(pending: &'p mut Vec<u8>, input: &mut &[u8], wanted: usize) -> Option<&'p [u8]> {
    let (head, rest) = input.split_at(wanted.saturating_sub(pending.len()).min(input.len()));
    pending.extend_from_slice(head);
    *input = rest;
    (pending.len() >= wanted).then_some(pending)
}

fn take<'i>(input: &mut &'i [u8], left: &mut u64) -> &'i [u8] {
    let (piece, rest) = input.split_at(usize::try_from(*left).unwrap_or(usize::MAX).min(input.len()));
    *input = rest;
    *left -= piece.len() as u64;
    piece
}

/// Verifies a whole buffer.
///
/// # Errors
/// As [`Decoder`].
pub fn verify(bytes: &[u8]) -> Result<Verified, CompressedError> {
    let mut decoder = Decoder::new();
    decoder.push(bytes, &mut |_| {})?;
    decoder.finish()
}

/// Decompresses a whole buffer. `None` inside `Ok` if there is no decoder for it.
///
/// # Errors
/// As [`Decoder`]; [`CompressedError::BadSize`] if the raw data would be longer than
/// `raw_bytes_max`.
pub fn decompress(
    bytes: &[u8],
    raw_bytes_max: u64,
    oodle: Option<Arc<dyn OodleDecoder>>,
) -> Result<Option<Vec<u8>>, CompressedError> {
    if Header::read(bytes)?.raw_size > raw_bytes_max {
        return Err(CompressedError::BadSize);
    }
    let mut raw = Vec::new();
    let mut decoder = Decoder::with_oodle(oodle);
    decoder.push(bytes, &mut |piece| raw.extend_from_slice(piece))?;
    Ok(decoder.finish()?.hash_checked.then_some(raw))
}

/// A buffer that stores `raw` as it is.
#[must_use]
pub fn store(raw: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_BYTES + raw.len());
    write_header(&mut out, Method::None, 0, 1, raw, raw.len());
    seal(&mut out, HEADER_BYTES);
    out.extend_from_slice(raw);
    out
}

/// A buffer of LZ4 blocks of 2^`block_exponent` bytes each; blocks that do not shrink are stored as
/// they are.
///
/// # Panics
/// If `block_exponent` exceeds [`BLOCK_EXPONENT_MAX`] or there would be more than [`BLOCKS_MAX`]
/// blocks.
#[must_use]
pub fn compress_lz4(raw: &[u8], block_exponent: u8) -> Vec<u8> {
    assert!(block_exponent <= BLOCK_EXPONENT_MAX, "blocks of 2^{block_exponent} bytes");
    let compress = |block: &[u8]| {
        let compressed = lz4_flex::block::compress(block);
        if compressed.len() < block.len() { compressed } else { block.to_vec() }
    };
    let blocks: Vec<_> = raw.chunks(1 << block_exponent).map(compress).collect();
    assemble(Method::Lz4, raw, block_exponent, &blocks)
}

/// A buffer of Oodle blocks that somebody else compressed, of 2^`block_exponent` raw bytes each.
///
/// # Panics
/// If `block_exponent` exceeds [`BLOCK_EXPONENT_MAX`] or there are more than [`BLOCKS_MAX`] blocks.
#[must_use]
pub fn wrap_oodle(raw: &[u8], block_exponent: u8, blocks: &[Vec<u8>]) -> Vec<u8> {
    assemble(Method::Oodle, raw, block_exponent, blocks)
}

/// Header, table and blocks.
fn assemble<B: AsRef<[u8]>>(method: Method, raw: &[u8], block_exponent: u8, blocks: &[B]) -> Vec<u8> {
    assert!(block_exponent <= BLOCK_EXPONENT_MAX, "blocks of 2^{block_exponent} bytes");
    assert!(blocks.len() <= BLOCKS_MAX as usize, "{} blocks", blocks.len());
    let body = blocks.iter().map(|block| 4 + block.as_ref().len()).sum::<usize>();
    let mut out = Vec::with_capacity(HEADER_BYTES + body);
    write_header(&mut out, method, block_exponent, blocks.len() as u32, raw, body);
    for block in blocks {
        out.extend_from_slice(&(block.as_ref().len() as u32).to_be_bytes());
    }
    let sealed = out.len();
    seal(&mut out, sealed);
    for block in blocks {
        out.extend_from_slice(block.as_ref());
    }
    out
}

/// The header without its checksum; `body` is what follows it.
fn write_header(
    out: &mut Vec<u8>,
    method: Method,
    block_exponent: u8,
    block_count: u32,
    raw: &[u8],
    body: usize,
) {
    let code = match method {
        Method::None => 0,
        Method::Oodle => 3,
        Method::Lz4 => 4,
    };
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&[code, 0, 0, block_exponent]);
    out.extend_from_slice(&block_count.to_be_bytes());
    out.extend_from_slice(&(raw.len() as u64).to_be_bytes());
    out.extend_from_slice(&((HEADER_BYTES + body) as u64).to_be_bytes());
    out.extend_from_slice(IoHash::of(raw).as_bytes());
    out.extend_from_slice(&[0; 12]);
}

/// Writes the checksum of the first `len` bytes: header and table.
fn seal(out: &mut [u8], len: usize) {
    let crc = crc32fast::hash(&out[8..len]);
    out[4..8].copy_from_slice(&crc.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Vec<u8>> {
        let noise: Vec<u8> = (0..5000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        vec![Vec::new(), b"test".to_vec(), vec![7; 10_000], [vec![0; 4096], noise, b"tail".to_vec()].concat()]
    }

    #[test]
    fn what_is_compressed_comes_back() {
        for raw in samples() {
            for bytes in [store(&raw), compress_lz4(&raw, 12), compress_lz4(&raw, 18)] {
                let verified = verify(&bytes).expect("we read what we write");
                assert_eq!(verified.header.raw_hash, IoHash::of(&raw));
                assert!(verified.hash_checked);
                assert_eq!(decompress(&bytes, 1 << 20, None), Ok(Some(raw.clone())));
            }
        }
    }

    #[test]
    fn the_cut_of_the_input_makes_no_difference() {
        for raw in samples() {
            let bytes = compress_lz4(&raw, 12);
            for size in [1, 3, 63, 64, 65, 1000] {
                let mut decoder = Decoder::new();
                let mut found = Vec::new();
                for piece in bytes.chunks(size) {
                    decoder.push(piece, &mut |raw| found.extend_from_slice(raw)).expect("valid");
                }
                decoder.finish().expect("valid");
                assert_eq!(found, raw);
            }
        }
    }

    #[test]
    fn input_as_wanted_gives_one_block_at_a_time() {
        for raw in samples() {
            for bytes in [store(&raw), compress_lz4(&raw, 12)] {
                let header = Header::read(&bytes).expect("ours");
                let (mut decoder, mut at, mut found) = (Decoder::new(), 0, Vec::new());
                while decoder.wanted() > 0 {
                    let count = decoder.wanted() as usize;
                    let mut given = 0;
                    decoder
                        .push(&bytes[at..at + count], &mut |raw| {
                            given += raw.len();
                            found.extend_from_slice(raw);
                        })
                        .expect("valid");
                    at += count;
                    assert!(header.method == Method::None || given as u64 <= header.block_size());
                    let held = decoder.pending.capacity() + decoder.raw.capacity();
                    // Buffers grow by doubling.
                    assert!(held as u64 <= 2 * (header.decoder_bytes() + HEADER_BYTES as u64), "{held}");
                }
                assert_eq!((at, found), (bytes.len(), raw.clone()));
                assert!(decoder.decodes_all() && decoder.finish().is_ok());
            }
        }
    }

    #[test]
    fn a_flipped_bit_gives_an_error_or_the_same_data() {
        let raw = [vec![1; 5000], b"some other text".to_vec()].concat();
        let bytes = compress_lz4(&raw, 12);
        for at in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[at / 8] ^= 1 << (at % 8);
            // A match one byte further back within a run is another way to write the same.
            let result = decompress(&changed, 1 << 20, None);
            assert!(result.is_err() || result == Ok(Some(raw.clone())), "bit {at}: {result:?}");
            assert!(result.is_err() || at / 8 > HEADER_BYTES + 8, "bit {at} of header or table");
        }
    }

    /// Blocks of this kind repeat their first byte; one that begins with 0 is damaged, with 255
    /// finds no decoder.
    #[derive(Debug)]
    struct Repeats;

    impl OodleDecoder for Repeats {
        fn decode(&self, block: &[u8], raw: &mut [u8]) -> OodleOutcome {
            raw.fill(block[0]);
            match block[0] {
                0 => OodleOutcome::Damaged,
                255 => OodleOutcome::Unavailable,
                _ => OodleOutcome::Decoded,
            }
        }
    }

    fn with_repeats(bytes: &[u8], step: usize) -> Result<(Verified, Vec<u8>), CompressedError> {
        let mut decoder = Decoder::with_oodle(Some(Arc::new(Repeats)));
        let mut raw = Vec::new();
        for piece in bytes.chunks(step) {
            decoder.push(piece, &mut |piece| raw.extend_from_slice(piece))?;
        }
        Ok((decoder.finish()?, raw))
    }

    #[test]
    fn oodle_blocks_are_verified_with_a_decoder() {
        let raw = [vec![7; 4096], vec![9; 100]].concat();
        let bytes = wrap_oodle(&raw, 12, &[vec![7, 1, 2], vec![9]]);
        for step in [1, 5, 64, 1000] {
            let (verified, found) = with_repeats(&bytes, step).expect("valid");
            assert!(verified.hash_checked && found == raw);
        }
        assert_eq!(decompress(&bytes, 1 << 20, Some(Arc::new(Repeats))), Ok(Some(raw.clone())));
        assert!(!verify(&bytes).expect("its structure is right").hash_checked);

        let other = wrap_oodle(&raw, 12, &[vec![7], vec![8]]);
        assert_eq!(with_repeats(&other, 9), Err(CompressedError::BadHash));
        assert!(!verify(&other).expect("its structure is right").hash_checked);
        let damaged = wrap_oodle(&raw, 12, &[vec![7], vec![0]]);
        assert_eq!(with_repeats(&damaged, 9), Err(CompressedError::BadBlock(1)));
        let out_of_order = wrap_oodle(&raw, 12, &[vec![255], vec![0]]);
        assert!(!with_repeats(&out_of_order, 9).expect("its structure is right").0.hash_checked);
    }

    #[test]
    fn a_block_without_bytes_is_damaged_wherever_it_is() {
        let raw = [vec![7; 4096], vec![9; 100]].concat();
        for (blocks, bad) in [([vec![], vec![9]], 0), ([vec![7], vec![]], 1)] {
            let bytes = wrap_oodle(&raw, 12, &blocks);
            for step in [1, 72, 1000] {
                assert_eq!(with_repeats(&bytes, step), Err(CompressedError::BadBlock(bad)));
            }
            assert_eq!(verify(&bytes), Err(CompressedError::BadBlock(bad)));
        }
    }

    #[test]
    fn limits_hold_to_the_byte() {
        let raw = [vec![7; 4096], vec![9; 100]].concat();
        let blocks = |first: usize, last: usize| wrap_oodle(&raw, 12, &[vec![7; first], vec![9; last]]);
        let longest = blocks(4096 + 274, 100 + 274);
        assert_eq!(with_repeats(&longest, 1000).expect("as long as may be").1, raw);
        for bytes in [blocks(4096 + 275, 100), blocks(4096, 100 + 275)] {
            assert_eq!(with_repeats(&bytes, 1000), Err(CompressedError::BadSize));
        }
        let bytes = compress_lz4(&raw, 12);
        assert_eq!(decompress(&bytes, 4196, None), Ok(Some(raw)));
        assert_eq!(decompress(&bytes, 4195, None), Err(CompressedError::BadSize));
    }

    #[test]
    fn a_bomb_costs_nothing() {
        let mut bytes = compress_lz4(&[0; 4096], 12);
        bytes[16..24].copy_from_slice(&u64::MAX.to_be_bytes());
        assert!(matches!(verify(&bytes), Err(CompressedError::BadBlockCount(1))));
        bytes[12..16].copy_from_slice(&u32::MAX.to_be_bytes());
        assert!(matches!(verify(&bytes), Err(CompressedError::BadBlockCount(_))));
        bytes[11] = 63;
        assert_eq!(verify(&bytes), Err(CompressedError::BlocksTooLarge(63)));
    }
}
