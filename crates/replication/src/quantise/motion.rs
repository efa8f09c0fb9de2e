//! Prediction of a position by its velocity: whole numbers only, so that both sides agree to the
//! bit.

use super::codec::{Codec, Op, pack, unpack};
use super::mask;

/// Binary digits behind the point of a factor, and of a velocity.
const FACTOR_BITS: u32 = 24;
const STILL_BITS: u32 = 16;

/// A position and its velocity, prepared for a frame rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Motion {
    /// For each axis: steps of the position that one step of the velocity goes in a frame, and the
    /// velocity that stands still, in steps.
    axes: [(i128, i128); 3],
}

impl Motion {
    /// `None` unless both are vectors of three, and slow enough to be counted.
    pub(crate) fn new(position: &Codec, velocity: &Codec, frame_rate: f64) -> Option<Self> {
        let (Op::Vec3(places), Op::Vec3(speeds)) = (&position.op, &velocity.op) else { return None };
        let mut axes = [(0, 0); 3];
        for ((axis, place), speed) in axes.iter_mut().zip(places).zip(speeds) {
            let factor = speed.axis.step / frame_rate / place.axis.step * f64::from(1_u32 << FACTOR_BITS);
            let still = -speed.axis.min / speed.axis.step * f64::from(1_u32 << STILL_BITS);
            // Products of 28 and 40 bits and an age leave room in 128.
            if !(factor.abs() < 1e12 && still.abs() < 1e18) {
                return None;
            }
            *axis = (factor.round() as i128, still.round() as i128);
        }
        Some(Self { axes })
    }

    /// Moves a quantised position `age` frames on, up to the ends of its axes.
    pub(crate) fn advance(
        &self,
        (position, place): (&Codec, &mut [u64]),
        (velocity, speed): (&Codec, &[u64]),
        age: u32,
    ) {
        let (Op::Vec3(places), Op::Vec3(speeds)) = (&position.op, &velocity.op) else { return };
        let mut parts = unpack(places, position.words, place);
        let speed = unpack(speeds, velocity.words, speed);
        for (at, (factor, still)) in self.axes.iter().enumerate() {
            let moved = ((i128::from(speed[at]) << STILL_BITS) - still) * factor * i128::from(age);
            let point = FACTOR_BITS + STILL_BITS;
            let steps = (moved + (1 << (point - 1))) >> point;
            let top = i128::from(mask(u32::from(places[at].bits)));
            parts[at] = (i128::from(parts[at]) + steps).clamp(0, top) as u64;
        }
        pack(places, parts, position.words, place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantise::{Axis, Quantiser};

    #[test]
    fn steady_motion_is_followed_and_borders_hold() {
        let axis = Axis::new(-655.36, 0.01, 17);
        let speed = Axis::new(-64.0, 1.0 / 32.0, 12);
        let position = Codec::compile(&Quantiser::Vec3([axis; 3])).unwrap();
        let velocity = Codec::compile(&Quantiser::Vec3([speed; 3])).unwrap();
        let motion = Motion::new(&position, &velocity, 30.0).unwrap();
        let words = |codec: &Codec, value: [f32; 3]| {
            let mut q = [0; 3];
            codec.quantise(&value.map(f32::to_bits), &mut q);
            q
        };
        let fast = words(&velocity, [6.0, -3.0, 63.0]);
        for age in [1, 7, 30] {
            let mut place = words(&position, [10.0, -20.0, 650.0]);
            motion.advance((&position, &mut place), (&velocity, &fast), age);
            let crate::Value::Vec3(seen) = position.dequantise(&place) else { panic!("a vector") };
            let seconds = age as f32 / 30.0;
            let wanted = [10.0 + 6.0 * seconds, -20.0 - 3.0 * seconds, (650.0 + 63.0 * seconds).min(655.35)];
            for (seen, wanted) in seen.iter().zip(wanted) {
                assert!((seen - wanted).abs() < 0.0101, "{age} frames: {seen}, not {wanted}");
            }
        }
        assert!(Motion::new(&position, &Codec::compile(&Quantiser::Quat(10)).unwrap(), 30.0).is_none());
    }
}
