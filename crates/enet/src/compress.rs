//! The hook for compressing datagrams. Spec: enet §4.1

use alloc::vec::Vec;
use core::fmt;

/// A compressor for whole datagrams, set for a host with
/// [`Config::compressor`](crate::Config::compressor).
///
/// Both ends must use the same one; nothing on the wire says which.
/// [`RangeCoder`](crate::RangeCoder) is the one that every ENet has. Godot's FastLZ, zlib and zstd
/// modes are others of this shape.
pub trait Compressor: Send {
    /// Appends the compressed form of `input` to the empty `output`, at most `output_max` bytes.
    ///
    /// False when that did not work out; `output` then holds rubbish and the datagram goes out as
    /// it is.
    fn compress(&mut self, input: &[u8], output_max: usize, output: &mut Vec<u8>) -> bool;

    /// Appends the original of `input` to the empty `output`, at most `output_max` bytes. Must be
    /// total: `input` is whatever somebody sent.
    ///
    /// # Errors
    /// When `input` is not what [`compress`](Self::compress) makes, or its original is longer than
    /// `output_max`.
    fn decompress(
        &mut self,
        input: &[u8],
        output_max: usize,
        output: &mut Vec<u8>,
    ) -> Result<(), CorruptBlock>;
}

impl fmt::Debug for dyn Compressor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Compressor")
    }
}

/// A compressed block cannot be decompressed, or not within its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the block is not valid compressed data, or too long")]
pub struct CorruptBlock;
