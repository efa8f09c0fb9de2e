//! A game's own quantisers.

use super::{Value, ValueMismatch};
use crate::bits::{BitReader, BitWriter};
use crate::wire::DecodeError;

/// A game's own way from a value to bits. Everything must be pure: the same words give
/// the same bits, on both sides, and `quantise(dequantise(q)) == q` for every `q` that `quantise`
/// gives, or values that did not change flicker.
///
/// A value has *live* words, as the game set it, and *quantised* words, which are compared and
/// sent.
pub trait CustomQuantiser: Send + Sync + core::fmt::Debug {
    /// Kind and parameters. Part of the protocol hash: peers with the same name must read each
    /// other's bits.
    fn name(&self) -> String;

    /// Live and quantised words: 1 to 4 of 32 bits, and 1 to 3 of 64 bits.
    fn words(&self) -> (usize, usize);

    /// No value is written with more bits, as a difference neither.
    fn bits_max(&self) -> u32;

    /// Takes a value as live words.
    ///
    /// # Errors
    /// [`ValueMismatch`] for a value of another type; nothing is written then.
    fn store(&self, value: &Value, live: &mut [u32]) -> Result<(), ValueMismatch>;

    /// Quantises live words.
    fn quantise(&self, live: &[u32], q: &mut [u64]);

    /// The value of quantised words. Any words may come: they are from the network.
    fn dequantise(&self, q: &[u64]) -> Value;

    /// Writes quantised words.
    fn write(&self, q: &[u64], writer: &mut BitWriter<'_>);

    /// Reads what [`write`](Self::write) wrote.
    ///
    /// # Errors
    /// When the bits end or are no value.
    fn read(&self, reader: &mut BitReader<'_>, q: &mut [u64]) -> Result<(), DecodeError>;

    /// Writes `now` as a difference to `base`: one bit when they are the same, else that bit and
    /// all of it.
    fn write_delta(&self, base: &[u64], now: &[u64], writer: &mut BitWriter<'_>) {
        writer.put_bool(base == now);
        if base != now {
            self.write(now, writer);
        }
    }

    /// Reads what [`write_delta`](Self::write_delta) wrote; `q` holds the base before and the value
    /// after.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn read_delta(&self, reader: &mut BitReader<'_>, q: &mut [u64]) -> Result<(), DecodeError> {
        if reader.get_bool()? { Ok(()) } else { self.read(reader, q) }
    }
}

impl PartialEq for dyn CustomQuantiser {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}
