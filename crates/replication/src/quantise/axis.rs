//! Numbers on an axis, by the exact rule and by the quick way to the same result.

use super::{QuantiserError, mask};

/// One axis of a quantised vector: `q = floor((v - min) / step + 0.5)`, clamped to `0..2^bits - 1`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Axis {
    /// Value of `q = 0`.
    pub min: f64,
    /// Distance between neighbouring values, above zero.
    pub step: f64,
    /// Width, 1 to 52.
    pub bits: u8,
}

impl Axis {
    /// An axis from its smallest value, its step and its width in bits.
    #[must_use]
    pub const fn new(min: f64, step: f64, bits: u8) -> Self {
        Self { min, step, bits }
    }

    /// An axis that covers `min..=max` with all of its `2^bits` values.
    #[must_use]
    pub fn range(min: f64, max: f64, bits: u8) -> Self {
        Self { min, step: (max - min) / (mask(u32::from(bits)) as f64), bits }
    }

    /// The largest value that the axis can name.
    #[must_use]
    pub fn max(&self) -> f64 {
        self.min + self.step * mask(u32::from(self.bits)) as f64
    }

    #[inline]
    pub(super) fn quantise(&self, value: f64) -> u64 {
        let scaled = (value - self.min) / self.step + 0.5;
        // NaN compares false and becomes the minimum. Above zero, the cast rounds down as `floor`
        // does.
        if scaled > 0.0 { (scaled as i64 as u64).min(mask(u32::from(self.bits))) } else { 0 }
    }

    #[inline]
    pub(super) fn dequantise(&self, q: u64) -> f64 {
        self.min + q as f64 * self.step
    }

    /// A 32-bit float has room for the distance between two neighbours everywhere on the axis, and
    /// reaches its ends.
    pub(super) fn fits_f32(&self) -> bool {
        let largest = self.min.abs().max(self.max().abs());
        let in_range = largest <= f64::from(f32::MAX) && self.step >= f64::from(f32::MIN_POSITIVE);
        in_range && largest * f64::from(f32::EPSILON) < self.step * 0.49
    }

    pub(super) fn check(&self) -> Result<(), QuantiserError> {
        if !(1..=52).contains(&self.bits) {
            return Err(QuantiserError::Bits { bits: self.bits, min: 1, max: 52 });
        }
        // Also from end to end: values are taken relative to the smallest.
        let finite = self.min.is_finite() && self.max().is_finite() && (self.max() - self.min).is_finite();
        if !(self.step > 0.0 && finite) {
            return Err(QuantiserError::Axis);
        }
        // The same question for the 64-bit floats in which the arithmetic is done.
        let largest = self.min.abs().max(self.max().abs());
        if largest * f64::EPSILON >= self.step * 0.49 { Err(QuantiserError::Precision) } else { Ok(()) }
    }
}

/// An axis made ready for the hot path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    pub(super) axis: Axis,
    /// One over the step.
    inverse: f64,
    /// Largest value.
    max: u64,
    /// Distance from a whole number up to which a product is beyond doubt; below zero where
    /// multiplying by the inverse may be off by [`DOUBT`].
    sure: f64,
    pub(super) bits: u8,
}

/// Products closer than this to the middle between two whole numbers are computed again by
/// division: twice the error of a product of 28 bits.
const DOUBT: f64 = 1e-7;
/// Adding it leaves no room for a fraction: the sum is rounded to the nearest whole number, which
/// its low bits are.
const ROUNDER: f64 = (1_u64 << 52) as f64;

impl Scale {
    pub(super) fn new(axis: Axis) -> Self {
        let sure = if axis.bits <= 28 { 0.5 - DOUBT } else { -1.0 };
        let max = mask(u32::from(axis.bits));
        Self { axis, inverse: axis.step.recip(), max, sure, bits: axis.bits }
    }

    /// As [`Axis::quantise`], to the bit, mostly without its division.
    #[inline(always)]
    pub(super) fn quantise(&self, value: f64) -> u64 {
        let (q, sure) = self.quickly(value);
        if sure { q } else { self.exactly(value) }
    }

    /// The same for some values at once.
    #[inline(always)]
    pub(super) fn quantise_all<const N: usize>(axes: [&Self; N], values: [f64; N]) -> [u64; N] {
        let (parts, sure) = Self::quickly_all(axes, values);
        if sure { parts } else { core::array::from_fn(|i| axes[i].axis.quantise(values[i])) }
    }

    /// The same, and how many of the values are NaN.
    #[inline(always)]
    pub(super) fn quantise_counted<const N: usize>(axes: [&Self; N], values: [f64; N]) -> ([u64; N], u32) {
        let (parts, sure) = Self::quickly_all(axes, values);
        if sure { (parts, 0) } else { exactly_all(axes, values) }
    }

    #[inline(always)]
    fn quickly_all<const N: usize>(axes: [&Self; N], values: [f64; N]) -> ([u64; N], bool) {
        let mut parts = [0; N];
        for i in 0..N {
            let (q, sure) = axes[i].quickly(values[i]);
            // Gathered into one condition, this becomes vectors of truth values, which cost more.
            if !sure {
                return (parts, false);
            }
            parts[i] = q;
        }
        (parts, true)
    }

    /// The result without a division, and whether it is beyond doubt.
    #[inline(always)]
    fn quickly(&self, value: f64) -> (u64, bool) {
        let scaled = (value - self.axis.min) * self.inverse;
        let rounded = scaled + ROUNDER;
        let rest = scaled - (rounded - ROUNDER);
        // Bits of values below zero, too large or not a number lie above those of the largest one.
        let q = rounded.to_bits().wrapping_sub(ROUNDER.to_bits());
        (q, q <= self.max && rest.abs() < self.sure)
    }

    #[cold]
    fn exactly(&self, value: f64) -> u64 {
        self.axis.quantise(value)
    }

    #[inline]
    pub(super) fn dequantise(&self, q: u64) -> f64 {
        self.axis.dequantise(q)
    }
}

#[cold]
fn exactly_all<const N: usize>(axes: [&Scale; N], values: [f64; N]) -> ([u64; N], u32) {
    let parts = core::array::from_fn(|i| axes[i].axis.quantise(values[i]));
    (parts, values.iter().map(|value| u32::from(value.is_nan())).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The division that the exact rule asks for is mostly avoided, never its result.
    #[test]
    fn the_quick_way_rounds_like_the_rule() {
        let mut rng = throng_stdx::Rng::new(11);
        for axis in [
            Axis::new(-5242.88, 0.01, 20),
            Axis::new(-64.0, 1.0 / 32.0, 12),
            Axis::new(0.0, 0.01, 13),
            Axis::range(-90.0, 90.0, 8),
            Axis::new(-3.0, 0.1, 28),
            Axis::new(-3.0, 0.1, 29),
        ] {
            let scale = Scale::new(axis);
            let check =
                |value: f64| assert_eq!(scale.quantise(value), axis.quantise(value), "{axis:?} {value}");
            for _ in 0..100_000 {
                let top = mask(u32::from(axis.bits)) as f64;
                let q = (rng.next_u64() >> 8) as f64 / (1_u64 << 56) as f64 * top;
                check(axis.min + axis.step * q);
                // On and beside the borders between two values.
                let border = axis.min + axis.step * (q.floor() + 0.5);
                for value in [border, border.next_up(), border.next_down(), f64::from(border as f32)] {
                    check(value);
                }
            }
            for value in
                [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN, axis.max(), axis.min]
            {
                check(value);
            }
        }
    }
}
