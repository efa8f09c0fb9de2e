//! Rotations and directions.

use super::axis::Scale;
use super::mask;

/// Longest way to a value that maps to itself, and longest circle of values that map to each other.
const SETTLE_STEPS: usize = 8;

/// Follows `q` to where `again` leaves it: near a tie a value may come back under another name.
/// With very few bits such names may form a circle; its smallest member stands for all, so the
/// result is stable either way.
fn settle(mut q: u64, again: impl Fn(u64) -> u64) -> u64 {
    for _ in 0..SETTLE_STEPS {
        let next = again(q);
        if next == q {
            return q;
        }
        q = next;
    }
    let mut least = q;
    for _ in 0..SETTLE_STEPS {
        q = again(q);
        least = least.min(q);
    }
    least
}

#[inline]
pub(super) fn quantise_quat([x, y, z, w]: [f32; 4], axis: &Scale) -> (u64, u32) {
    let mut value = [f64::from(x), f64::from(y), f64::from(z), f64::from(w)];
    let square: f64 = value.iter().map(|part| part * part).sum();
    // NaN is in no range.
    if !(0.0..=1e-5).contains(&(square - 1.0).abs()) {
        if !(square.is_finite() && square > 1e-12) {
            return (smallest_three([0.0, 0.0, 0.0, 1.0], axis).0, 1);
        }
        let scale = square.sqrt().recip();
        value.iter_mut().for_each(|part| *part *= scale);
    }
    let (mut q, close) = smallest_three(value, axis);
    if close {
        q = settle(q, |q| smallest_three(dequantise_quat(q, axis).map(f64::from), axis).0);
    }
    (q, 0)
}

/// The components beside the one of each number.
const OTHERS: [[usize; 3]; 4] = [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]];

/// Packed bits, and whether two components are so close that rounding may exchange them.
#[inline]
fn smallest_three(value: [f64; 4], axis: &Scale) -> (u64, bool) {
    let mut largest = 0;
    let mut most = value[0].abs();
    for (at, part) in value.iter().enumerate().skip(1) {
        let larger = part.abs() > most;
        largest = if larger { at } else { largest };
        most = if larger { part.abs() } else { most };
    }
    let sign = if value[largest] < 0.0 { -1.0 } else { 1.0 };
    let near = most - 4.0 * axis.axis.step;
    let [a, b, c] = OTHERS[largest & 3];
    let (a, b, c) = (value[a & 3], value[b & 3], value[c & 3]);
    let close = a.abs().max(b.abs()).max(c.abs()) >= near;
    let bits = u32::from(axis.bits);
    let [a, b, c] = Scale::quantise_all([axis; 3], [sign * a, sign * b, sign * c]);
    (largest as u64 | a << 2 | b << (2 + bits) | c << (2 + 2 * bits), close)
}

pub(super) fn dequantise_quat(q: u64, axis: &Scale) -> [f32; 4] {
    let largest = (q & 3) as usize;
    let bits = u32::from(axis.bits);
    let (mut value, mut shift, mut square) = ([0.0; 4], 2, 0.0);
    for (at, part) in value.iter_mut().enumerate() {
        if at != largest {
            *part = axis.dequantise(q >> shift & mask(bits));
            square += *part * *part;
            shift += bits;
        }
    }
    value[largest] = (1.0 - square).max(0.0).sqrt();
    value.map(|part| part as f32)
}

#[inline]
pub(super) fn quantise_unit([x, y, z]: [f32; 3], axis: &Scale) -> (u64, u32) {
    let value = [f64::from(x), f64::from(y), f64::from(z)];
    let sum = value[0].abs() + value[1].abs() + value[2].abs();
    if !(sum.is_finite() && sum > 1e-12) {
        return (octahedron([0.0, 0.0, 1.0], 1.0, axis), 1);
    }
    let mut q = octahedron(value, sum, axis);
    let top = mask(u32::from(axis.bits));
    let (u, v) = (q & top, q >> axis.bits);
    // The map's outer edge is folded: a point on it has two names. Elsewhere rounding cannot leave
    // the cell.
    if u <= 1 || v <= 1 || u >= top - 1 || v >= top - 1 {
        q = settle(q, |q| {
            let back = dequantise_unit(q, axis).map(f64::from);
            octahedron(back, back.iter().map(|part| part.abs()).sum(), axis)
        });
    }
    (q, 0)
}

#[inline]
fn octahedron(value: [f64; 3], sum: f64, axis: &Scale) -> u64 {
    let (mut u, mut v) = (value[0] / sum, value[1] / sum);
    if value[2] < 0.0 {
        (u, v) = ((1.0 - v.abs()).copysign(u), (1.0 - u.abs()).copysign(v));
    }
    let [u, v] = Scale::quantise_all([axis; 2], [u, v]);
    u | v << axis.bits
}

pub(super) fn dequantise_unit(q: u64, axis: &Scale) -> [f32; 3] {
    let top = mask(u32::from(axis.bits));
    let (mut u, mut v) = (axis.dequantise(q & top), axis.dequantise(q >> axis.bits & top));
    let z = 1.0 - u.abs() - v.abs();
    if z < 0.0 {
        (u, v) = ((1.0 - v.abs()).copysign(u), (1.0 - u.abs()).copysign(v));
    }
    let length = (u * u + v * v + z * z).sqrt();
    [u, v, z].map(|part| (part / length) as f32)
}
