//! Floats: one zero, one NaN, and half precision.

#[inline]
pub(super) fn canonical(value: f32) -> f32 {
    // Adding zero turns negative zero into zero.
    if value.is_nan() { f32::NAN } else { value + 0.0 }
}

/// Half precision, rounded to nearest, ties to even.
pub(super) fn half_from(value: f32) -> u16 {
    let value = canonical(value);
    let bits = value.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    if value.is_nan() {
        return 0x7e00;
    }
    if magnitude >= 0x4780_0000 {
        return sign | 0x7c00;
    }
    let half = if magnitude < 0x3880_0000 {
        // Subnormal: multiples of 2^-24. The product is exact, so one rounding remains.
        let scaled = f64::from(f32::from_bits(magnitude)) * 16_777_216.0;
        scaled.round_ties_even() as u32
    } else {
        let rounded = magnitude + 0x0fff + (magnitude >> 13 & 1);
        (rounded >> 13) - 0x1_c000
    };
    // A value that rounds to zero loses its sign, like every zero.
    if half == 0 { 0 } else { sign | half as u16 }
}

pub(super) fn half_to(half: u16) -> f32 {
    let sign = if half & 0x8000 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (half >> 10 & 0x1f, f32::from(half & 0x3ff));
    match exponent {
        0 => sign * fraction / 16_777_216.0,
        31 if fraction == 0.0 => sign * f32::INFINITY,
        31 => f32::NAN,
        _ => sign * (1.0 + fraction / 1024.0) * f32::from(exponent as i16 - 15).exp2(),
    }
}
