//! Spec §3 and §26.1: the invariants of every quantiser, over random values.

use throng_replication::bits::{BitReader, BitWriter};
use throng_replication::{Axis, Codec, Handle, Quantiser, QuantiserError, Value, WORDS_MAX};
use throng_stdx::Rng;

/// Values per quantiser. `THRONG_CASES=1000000` runs what the specification asks for.
#[expect(clippy::disallowed_methods, reason = "a test may be asked for more cases")]
fn cases() -> u64 {
    std::env::var("THRONG_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(20_000)
}

fn quantise(codec: &Codec, value: &Value) -> [u64; WORDS_MAX] {
    let (mut live, mut q) = ([0; 4], [0; WORDS_MAX]);
    codec.store(value, &mut live).unwrap();
    codec.quantise(&live, &mut q);
    q
}

/// Stable, and read back as written, plain and as a difference to any other value.
fn check(quantiser: &Quantiser, mut draw: impl FnMut(&mut Rng) -> Value) {
    let codec = Codec::compile(quantiser).unwrap();
    let mut rng = Rng::new(3);
    let mut before = quantise(&codec, &draw(&mut rng));
    let (mut plain, mut delta) = (Vec::new(), Vec::new());
    for _ in 0..cases() {
        let value = draw(&mut rng);
        let q = quantise(&codec, &value);
        let back = codec.dequantise(&q);
        assert_eq!(quantise(&codec, &back), q, "{quantiser:?}: {value:?} came back as {back:?}");

        plain.clear();
        let mut writer = BitWriter::new(&mut plain);
        codec.write(&q, &mut writer);
        let bits = writer.finish();
        assert!(codec.fixed_bits().is_none_or(|fixed| fixed == bits));
        let mut read = [0; WORDS_MAX];
        codec.read(&mut BitReader::new(&plain), &mut read).unwrap();
        if matches!(quantiser, Quantiser::Handle { .. }) {
            read[0] |= q[0] >> 32 << 32;
        }
        assert_eq!(read, q, "{quantiser:?}: {value:?} was written and read");

        delta.clear();
        let mut writer = BitWriter::new(&mut delta);
        codec.write_delta(&before, &q, &mut writer);
        writer.finish();
        let mut read = before;
        codec.read_delta(&mut BitReader::new(&delta), &mut read).unwrap();
        if !matches!(quantiser, Quantiser::Handle { .. }) {
            assert_eq!(read, q, "{quantiser:?}: difference of {value:?}");
        }
        before = q;
    }
}

fn number(rng: &mut Rng, min: f64, max: f64) -> f64 {
    min + (max - min) * rng.f64()
}

#[test]
fn integers_are_stable() {
    for bits in [1, 2, 7, 8, 9, 10, 12, 31, 32, 33, 63, 64] {
        check(&Quantiser::UInt(bits), |rng| Value::UInt(rng.next_u64() >> rng.below(64)));
        check(&Quantiser::Int(bits), |rng| Value::Int(rng.next_u64() as i64 >> rng.below(64)));
    }
    check(&Quantiser::VarUInt, |rng| Value::UInt(rng.next_u64() >> rng.below(64)));
    check(&Quantiser::VarInt, |rng| Value::Int(rng.next_u64() as i64 >> rng.below(64)));
    check(&Quantiser::Bool, |rng| Value::Bool(rng.chance(0.5)));
    check(&Quantiser::Token(0), |rng| Value::Token(rng.next_u32()));
    check(&Quantiser::Handle { hide: false }, |rng| {
        Value::Handle(Handle::from_parts(rng.next_u32(), rng.next_u32()))
    });
}

#[test]
fn numbers_are_stable() {
    for (min, step, bits) in
        [(-5242.88, 0.01, 20), (0.0, 0.01, 13), (-64.0, 0.03125, 12), (-1e6, 1e-3, 31), (-3e9, 0.5, 48)]
    {
        let axis = Axis::new(min, step, bits);
        let (low, high) = (min * 1.1 - 1.0, axis.max() * 1.1);
        check(&Quantiser::Fixed(axis), |rng| Value::F64(number(rng, low, high)));
    }
    check(&Quantiser::range(-90.0, 90.0, 8), |rng| Value::F32(number(rng, -100.0, 100.0) as f32));
    for bits in [1, 8, 16, 22] {
        check(&Quantiser::Angle(bits), |rng| Value::F32(number(rng, -20.0, 20.0) as f32));
    }
    let random = |rng: &mut Rng| Value::F32(f32::from_bits(rng.next_u32()));
    check(&Quantiser::F32, |rng| match random(rng) {
        Value::F32(value) if value.is_nan() => Value::F32(1.0),
        value => value,
    });
    check(&Quantiser::F16, |rng| match random(rng) {
        Value::F32(value) if value.is_nan() || value.is_infinite() => {
            Value::F32(number(rng, -70_000.0, 70_000.0) as f32)
        }
        value => value,
    });
    check(&Quantiser::F64, |rng| Value::F64(number(rng, -1e300, 1e300)));
}

#[test]
fn vectors_are_stable() {
    let (xy, z) = (Axis::new(-5242.88, 0.01, 20), Axis::new(-655.36, 0.01, 17));
    let wide = Axis::new(-64.0, 1.0 / 32768.0, 22);
    let float = |rng: &mut Rng, limit: f64| number(rng, -limit, limit) as f32;
    check(&Quantiser::Vec3([xy, xy, z]), |rng| {
        Value::Vec3([float(rng, 6000.0), float(rng, 6000.0), float(rng, 700.0)])
    });
    check(&Quantiser::Vec3([wide; 3]), |rng| Value::Vec3([float(rng, 70.0); 3]));
    check(&Quantiser::Vec2([xy, z]), |rng| Value::Vec2([float(rng, 6000.0), float(rng, 700.0)]));
}

/// Directions and rotations: random, and near the places where the encoding changes its mind.
fn parts<const N: usize>(rng: &mut Rng) -> [f32; N] {
    let mut value = [0.0; N];
    match rng.below(4) {
        0 => value.fill_with(|| number(rng, -1.0, 1.0) as f32),
        // Components of nearly equal magnitude.
        1 => value.fill_with(|| {
            let part = 1.0 + number(rng, -0.01, 0.01) as f32;
            if rng.chance(0.5) { part } else { -part }
        }),
        // Few components, the others nearly zero.
        2 => {
            value.fill_with(|| number(rng, -0.005, 0.005) as f32);
            value[rng.below(N as u64) as usize] = 1.0;
            value[rng.below(N as u64) as usize] = -1.0;
        }
        _ => value[rng.below(N as u64) as usize] = if rng.chance(0.5) { 1.0 } else { -1.0 },
    }
    let length = value.iter().map(|part| part * part).sum::<f32>().sqrt();
    value.map(|part| part / length)
}

#[test]
fn directions_and_rotations_are_stable() {
    for bits in [2, 3, 8, 10, 15, 18] {
        check(&Quantiser::Quat(bits), |rng| Value::Quat(parts(rng)));
    }
    for bits in [2, 3, 8, 10, 15, 20, 24] {
        check(&Quantiser::Unit3(bits), |rng| Value::Vec3(parts(rng)));
    }
}

#[test]
fn opposite_rotations_give_the_same_bits() {
    let codec = Codec::compile(&Quantiser::Quat(10)).unwrap();
    let mut rng = Rng::new(5);
    for _ in 0..cases() {
        let value: [f32; 4] = parts(&mut rng);
        let opposite = value.map(|part| -part);
        assert_eq!(
            quantise(&codec, &Value::Quat(value)),
            quantise(&codec, &Value::Quat(opposite)),
            "{value:?}"
        );
    }
}

#[test]
fn rotations_stay_close() {
    let codec = Codec::compile(&Quantiser::Quat(10)).unwrap();
    let mut rng = Rng::new(6);
    for _ in 0..cases() {
        let value: [f32; 4] = parts(&mut rng);
        let Value::Quat(back) = codec.dequantise(&quantise(&codec, &Value::Quat(value))) else { panic!() };
        let cosine: f32 = value.iter().zip(back).map(|(a, b)| a * b).sum();
        assert!(cosine.abs() > 1.0 - 1e-5, "{value:?} became {back:?}");
    }
}

#[test]
fn not_a_number_is_the_minimum_and_counted() {
    let mut q = [0; WORDS_MAX];
    for (quantiser, parts, nans) in [
        (Quantiser::fixed(-5.0, 0.1, 8), 1, 1),
        (Quantiser::Vec3([Axis::new(-5.0, 0.1, 8); 3]), 3, 3),
        (Quantiser::Quat(10), 4, 1),
        (Quantiser::Unit3(10), 3, 1),
        (Quantiser::Angle(8), 1, 1),
    ] {
        let codec = Codec::compile(&quantiser).unwrap();
        assert_eq!(codec.quantise(&[f32::NAN.to_bits(); 4][..parts], &mut q), nans, "{quantiser:?}");
    }
}

#[test]
fn zero_has_one_sign_and_nan_one_pattern() {
    for quantiser in [Quantiser::F16, Quantiser::F32, Quantiser::F64] {
        let codec = Codec::compile(&quantiser).unwrap();
        let q = |value: f64| quantise(&codec, &Value::F64(value))[0];
        assert_eq!(q(-0.0), q(0.0));
        assert_eq!(q(f64::NAN), q(-f64::NAN));
    }
}

#[test]
fn halves_are_the_usual_ones() {
    let codec = Codec::compile(&Quantiser::F16).unwrap();
    let half = |value: f32| quantise(&codec, &Value::F32(value))[0];
    for (value, bits) in [
        (1.0, 0x3c00),
        (-2.0, 0xc000),
        (65504.0, 0x7bff),
        (65520.0, 0x7c00),
        (f32::INFINITY, 0x7c00),
        (6.103_515_6e-5, 0x0400),
        (5.960_464_5e-8, 0x0001),
        (0.333_251_95, 0x3555),
    ] {
        assert_eq!(half(value), bits, "{value}");
    }
}

#[test]
fn impossible_quantisers_are_refused() {
    let check = |quantiser, error| assert_eq!(Codec::compile(&quantiser).err(), Some(error));
    check(Quantiser::UInt(0), QuantiserError::Bits { bits: 0, min: 1, max: 64 });
    check(Quantiser::Int(65), QuantiserError::Bits { bits: 65, min: 1, max: 64 });
    check(Quantiser::Quat(19), QuantiserError::Bits { bits: 19, min: 2, max: 18 });
    check(Quantiser::fixed(0.0, 0.0, 8), QuantiserError::Axis);
    check(Quantiser::fixed(f64::NAN, 1.0, 8), QuantiserError::Axis);
    check(Quantiser::Vec2([Axis::new(0.0, 0.001, 40); 2]), QuantiserError::Precision);
    let deep = (0..20).fold(Quantiser::Blob(3), |inner, _| Quantiser::Array(Box::new(inner), 2));
    check(deep, QuantiserError::Nested);
}

#[test]
fn lists_and_blobs_come_back() {
    let mut rng = Rng::new(9);
    let list = Codec::compile(&Quantiser::Array(Box::new(Quantiser::UInt(11)), 300)).unwrap();
    let blob = Codec::compile(&Quantiser::Blob(300)).unwrap();
    for _ in 0..500 {
        let count = rng.below(301);
        let values = [
            (&list, Value::List((0..count).map(|_| Value::UInt(rng.below(2048))).collect())),
            (&blob, Value::Bytes((0..count).map(|_| rng.next_u32() as u8).collect())),
        ];
        for (codec, value) in values {
            let mut bytes = Vec::new();
            let bits = codec.write_heap(&value, &mut bytes).unwrap();
            assert_eq!(codec.read_heap(&bytes), Ok(value.clone()));
            // Also from the middle of a byte, and never past the end.
            let mut shifted = Vec::new();
            let mut writer = BitWriter::new(&mut shifted);
            writer.put(5, 3);
            writer.put_bits(&bytes, bits);
            writer.finish();
            let mut reader = BitReader::new(&shifted);
            reader.get(3).unwrap();
            let mut copy = Vec::new();
            assert_eq!(codec.copy_heap(&mut reader, &mut copy), Ok(bits));
            assert_eq!(copy, bytes);
            if bytes.len() > 2 {
                assert!(codec.copy_heap(&mut BitReader::new(&bytes[..bytes.len() - 2]), &mut copy).is_err());
            }
        }
    }
    let long = Value::Bytes(vec![0; 301]);
    assert!(blob.write_heap(&long, &mut Vec::new()).is_err());
}

/// Money: whole and hundredths, sent as one number; differences as their distance.
#[derive(Debug)]
struct Money {
    bits: u32,
}

impl throng_replication::CustomQuantiser for Money {
    fn name(&self) -> String {
        format!("money {}", self.bits)
    }

    fn words(&self) -> (usize, usize) {
        (2, 1)
    }

    fn bits_max(&self) -> u32 {
        self.bits + 1
    }

    fn store(&self, value: &Value, live: &mut [u32]) -> Result<(), throng_replication::ValueMismatch> {
        let Value::F64(value) = value else { return Err(throng_replication::ValueMismatch) };
        let bits = value.to_bits();
        (live[0], live[1]) = (bits as u32, (bits >> 32) as u32);
        Ok(())
    }

    fn quantise(&self, live: &[u32], q: &mut [u64]) {
        let value = f64::from_bits(u64::from(live[0]) | u64::from(live[1]) << 32);
        q[0] = ((value * 100.0).round().max(0.0) as u64).min((1 << self.bits) - 1);
    }

    fn dequantise(&self, q: &[u64]) -> Value {
        Value::F64(q[0] as f64 / 100.0)
    }

    fn write(&self, q: &[u64], writer: &mut BitWriter<'_>) {
        writer.put(q[0], self.bits);
    }

    fn read(
        &self,
        reader: &mut BitReader<'_>,
        q: &mut [u64],
    ) -> Result<(), throng_replication::wire::DecodeError> {
        q[0] = reader.get(self.bits)?;
        Ok(())
    }
}

fn money(bits: u32) -> Quantiser {
    Quantiser::Custom(std::sync::Arc::new(Money { bits }))
}

#[test]
fn a_games_own_quantiser_is_like_any_other() {
    check(&money(30), |rng| Value::F64(number(rng, -10.0, 1e7)));
    let codec = Codec::compile(&money(30)).unwrap();
    let (base, now) = (quantise(&codec, &Value::F64(1.5)), quantise(&codec, &Value::F64(1.51)));
    for (now, bits) in [(now, 31), (base, 1)] {
        let mut out = Vec::new();
        let mut writer = BitWriter::new(&mut out);
        codec.write_delta(&base, &now, &mut writer);
        assert_eq!(writer.finish(), bits);
        let mut q = base;
        codec.read_delta(&mut BitReader::new(&out), &mut q).unwrap();
        assert_eq!(q, now);
    }
    // Parameters are part of what peers compare, and lists have plain elements.
    let hash = |bits| {
        let class = throng_replication::Class::builder("purse");
        class
            .property(throng_replication::Property::new("gold", money(bits)))
            .build()
            .unwrap()
            .protocol_hash()
    };
    assert!(hash(30) == hash(30) && hash(30) != hash(31));
    assert!(Codec::compile(&Quantiser::Array(Box::new(money(30)), 4)).is_err());
}
