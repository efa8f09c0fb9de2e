//! Settings and values at their bounds and beyond: each counts as the nearest possible one, or is
//! refused where it is given.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::harness;
use harness::*;
use throng_replication::wire::{DecodeError, HEADER_BYTES, Header, kind};
use throng_replication::{
    Adaptive, Area, Axis, Band, Call, Class, ClassError, Classes, Codec, Condition, CustomPrioritiser,
    Direction, FieldOfView, Filter, GridConfig, Handle, Keyed, LodProfile, Prioritiser, Property, Quantiser,
    QuantiserError, ServerConfig, Shape, Sphere, Value, View,
};

/// Smaller packets panicked, larger ones had lengths of 16 bits that did not hold them.
#[test]
fn a_packet_size_out_of_range_counts_as_the_nearest() {
    for packet_bytes_max in [0, 17, 20, 40, 63, 65_536, 200_000] {
        let mut net = Net::with(ServerConfig { packet_bytes_max, ..ServerConfig::default() }, 1);
        let things = [THING, PAWN].map(|class| net.server.create(class).unwrap());
        let me = net.peers[0].id;
        net.server.set_owner(things[0], Some(me)).unwrap();
        for round in 0..20_u32 {
            net.server.set(things[0], HEALTH, round).unwrap();
            net.server.set(things[0], NAME, vec![round as u8; 60]).unwrap();
            net.server.attach(me, things[0], 1, &[2; 100], true).unwrap();
            net.step();
            for packet in &net.peers[0].sent {
                assert!((HEADER_BYTES..=packet_bytes_max.clamp(64, 65_535)).contains(&packet.len()));
            }
        }
        net.peers[0].client.attach(things[0], 1, &[3; 100], true).unwrap();
        net.settle(60);
        net.check(&things);
    }
}

/// A rate that is not a number divided by zero in the first frame with a change.
#[test]
fn a_band_without_a_rate_that_is_a_number_is_rare() {
    for (rate, frame_rate) in [(0.0, 0.0), (f32::NAN, 30.0), (10.0, f32::NAN), (-5.0, 30.0), (10.0, -1.0)] {
        let lod = Some(LodProfile { bands: vec![Band::new(f32::INFINITY, rate)], frame_rate });
        let mut net = Net::with(ServerConfig { lod, ..ServerConfig::default() }, 1);
        let thing = net.server.create(THING).unwrap();
        for value in 0..40_u32 {
            net.server.set(thing, HEALTH, value).unwrap();
            net.step();
        }
        // As often as its frames, or hardly ever.
        let seen = net.value(0, thing, HEALTH);
        assert_eq!(seen, if rate >= frame_rate { 39 } else { 0 }, "{rate} of {frame_rate}");
    }
}

/// The raw word went into the record, over the bits of its neighbour.
#[test]
fn a_boolean_written_as_another_number_is_true() {
    let mut classes = Classes::new();
    let class = Class::builder("switch")
        .property(Property::new("on", Quantiser::Bool))
        .property(Property::new("count", Quantiser::UInt(8)))
        .build()
        .unwrap();
    let switch = classes.register(class).unwrap();
    let mut net = Net::of(classes, ServerConfig::default(), 1);
    let switch = net.server.create(switch).unwrap();
    net.server.set_filter(switch, Filter::Always).unwrap();
    net.steps(4);
    for word in [u32::MAX, 2, 1] {
        net.server.write_live(switch, 1, |live| live[0] = word).unwrap();
        net.steps(2);
        let replica = net.peers[0].client.get(switch).unwrap();
        assert_eq!(replica.value(0), Some(Value::Bool(true)));
        assert_eq!(replica.value(1), Some(Value::UInt(0)));
        net.server.write_live(switch, 1, |live| live[0] = 0).unwrap();
        net.steps(2);
        assert_eq!(net.peers[0].client.get(switch).unwrap().value(0), Some(Value::Bool(false)));
    }
}

/// A cone that ends before it begins stopped the server's frame.
#[test]
fn a_cone_of_no_length_sees_nothing() {
    for end in [-1.0, f32::NAN] {
        let mut net = Net::new(1);
        let shape = FieldOfView { cone_length: (30.0, end), ..FieldOfView::default() };
        let prioritiser = net.server.add_prioritiser(Prioritiser::FieldOfView(shape)).unwrap();
        let thing = net.server.create(THING).unwrap();
        net.server.set_prioritiser(thing, prioritiser).unwrap();
        net.steps(4);
        net.server.set(thing, HEALTH, 7_u32).unwrap();
        net.steps(8);
        net.check(&[thing]);
    }
}

/// Priorities of which the second is not a number; counts the calls.
#[derive(Debug, Default)]
struct OnceOdd(AtomicU32);

impl CustomPrioritiser for OnceOdd {
    fn prioritise(&self, _: &[View], _: &[u32], _: &[[f32; 3]], out: &mut [f32]) {
        let odd = self.0.fetch_add(1, Ordering::Relaxed) == 1;
        out.fill(if odd { f32::NAN } else { 0.6 });
    }
}

/// The sum of an object's priorities was not a number from then on: it never left again.
#[test]
fn a_priority_that_is_not_a_number_counts_nothing() {
    let mut net = Net::new(1);
    let thing = net.server.create(THING).unwrap();
    net.steps(6);
    let prioritiser = Prioritiser::Custom(Arc::new(OnceOdd::default()));
    let prioritiser = net.server.add_prioritiser(prioritiser).unwrap();
    net.server.set_prioritiser(thing, prioritiser).unwrap();
    net.server.set(thing, HEALTH, 7_u32).unwrap();
    net.steps(8);
    net.check(&[thing]);
}

/// Each lane that was asked for got memory of its own, whether it had connections or not.
#[test]
fn lanes_are_as_many_as_connections_at_most() {
    let mut net = Net::new(3);
    net.server.begin_frame(net.now + FRAME);
    assert_eq!(net.server.lanes(usize::MAX).count(), 3);
    net.server.end_frame();
}

/// Values of 32 bits were infinite or zero where the axis had a value, and came back as another.
#[test]
fn an_axis_beyond_single_precision_keeps_its_values() {
    let axes = [
        Axis::new(-1e300, 1e294, 21),
        Axis::new(0.0, 1e-300, 10),
        Axis::new(1e38, 1e34, 20),
        Axis::new(0.0, 1e300, 20),
    ];
    for axis in axes {
        for quantiser in [Quantiser::Vec2([axis; 2]), Quantiser::Vec3([axis; 3])] {
            assert!(matches!(Codec::compile(&quantiser), Err(QuantiserError::Precision)), "{axis:?}");
        }
        let codec = Codec::compile(&Quantiser::Fixed(axis)).unwrap();
        let top = (1_u64 << axis.bits) - 1;
        for q in [0, 1, 2, top / 2, top - 1, top] {
            let (mut live, mut again) = ([0; 4], [0; 3]);
            codec.store(&codec.dequantise(&[q]), &mut live).unwrap();
            codec.quantise(&live, &mut again);
            assert_eq!(again[0], q, "{axis:?}");
        }
    }
    // From end to end it is longer than a number can be.
    let long = Quantiser::Fixed(Axis::new(-1e308, 1e303, 18));
    assert!(matches!(Codec::compile(&long), Err(QuantiserError::Axis)));
    let fine = Quantiser::Fixed(Axis::new(0.0, 5e-324, 10));
    assert!(matches!(Codec::compile(&fine), Err(QuantiserError::Precision)));
}

/// The classes of an earlier description stayed refused.
#[test]
fn a_second_description_of_classes_replaces_the_first() {
    let mut net = Net::new(1);
    let things = [THING, PAWN].map(|class| net.server.create(class).unwrap());
    let (me, right) = (net.peers[0].id, net.classes.protocol());
    let mut wrong = right.clone();
    wrong.classes[usize::from(THING.0)] ^= 1;
    assert_eq!(net.server.check_protocol(me, &wrong), Ok(vec![THING]));
    net.steps(5);
    assert_eq!(net.peers[0].client.len(), 1);
    assert_eq!(net.server.check_protocol(me, &right), Ok(Vec::new()));
    net.steps(5);
    assert_eq!(net.peers[0].client.len(), 2);
    let later = net.server.create(THING).unwrap();
    net.steps(5);
    assert!(things.into_iter().chain([later]).all(|thing| net.peers[0].client.get(thing).is_some()));
}

/// A packet of a client with the second part of a call: without the first it waits.
fn second_part(seq: u16, object: Handle, sequence: u8, bytes: usize) -> Vec<u8> {
    let mut packet = Header { seq, ack: u16::MAX, ack_bits: 0, frame: 0 }.to_bytes().to_vec();
    let varint = |number: usize| [number as u8 | 0x80, (number >> 7) as u8];
    packet.extend([kind::ATTACH, 1]);
    packet.extend(varint(object.index() as usize));
    packet.extend([1, sequence, 0]);
    packet.extend(varint(bytes));
    packet.resize(packet.len() + bytes, 7);
    packet
}

/// Each object that a client may call on had room for 128 parts that wait for an earlier one: some
/// hundred megabytes of a connection that sees a thousand.
#[test]
fn calls_that_wait_for_their_first_part_are_bounded() {
    for bytes in [0, 1100] {
        let mut net = Net::new(1);
        let me = net.peers[0].id;
        let things: Vec<Handle> = (0..500).map(|_| net.server.create(THING).unwrap()).collect();
        things.iter().for_each(|thing| net.server.set_owner(*thing, Some(me)).unwrap());
        net.steps(20);
        let mut packets =
            (0_u16..).zip(things.iter().flat_map(|thing| (1..=127).map(move |at| (*thing, at))));
        let refused = packets.find_map(|(seq, (thing, sequence))| {
            let packet = second_part(1000 + seq, thing, sequence, bytes);
            net.server.receive(me, &packet).err().map(|error| (seq, error))
        });
        let (taken, error) = refused.expect("the memory of a connection is bounded");
        assert_eq!(error, DecodeError::TooLong);
        let held = usize::from(taken) * (64 + bytes);
        assert!((1 << 20..2 << 20).contains(&held), "{taken} parts of {bytes} bytes");
    }
}

/// Whole calls of the largest size, many at a time over a bad link with the smallest packets, are
/// never too much.
#[test]
fn a_client_that_calls_as_much_as_it_may_is_not_refused() {
    for packet_bytes_max in [64, 1200] {
        let mut net = Net::with(ServerConfig { packet_bytes_max, ..ServerConfig::default() }, 1);
        let me = net.peers[0].id;
        let things: Vec<Handle> = (0..40).map(|_| net.server.create(THING).unwrap()).collect();
        things.iter().for_each(|thing| net.server.set_owner(*thing, Some(me)).unwrap());
        net.steps(100);
        net.link = Link { loss: 0.3, reorder: 2, ..Link::default() };
        for round in 0..400_usize {
            for (at, thing) in things.iter().enumerate() {
                let bytes = vec![9; [0, 60_000, 700][(round + at) % 3]];
                let _ = net.peers[0].client.attach(*thing, round as u64, &bytes, true);
            }
            if round % 50 == 20 {
                // Calls on the way lose their right, in the middle of their parts.
                let owner = (round % 100 == 20).then_some(me);
                things.iter().for_each(|thing| net.server.set_owner(*thing, owner).unwrap());
            }
            net.step();
            while net.server.poll_event().is_some() {}
        }
    }
}

/// Every setting and argument with every number that means little: frames go on, and with sound
/// arguments again clients have what the server has.
#[test]
fn odd_numbers_stop_no_frame() {
    let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, f32::MIN_POSITIVE, 0.0, -1.0];
    for (odd, which) in odd.into_iter().flat_map(|odd| (0..9).map(move |which| (odd, which))) {
        let mut config = ServerConfig { hysteresis_frames: 0, ..ServerConfig::default() };
        match which {
            0 => config.exit_factor = odd,
            1 => config.create_share = odd.into(),
            2 => config.attach_share = odd.into(),
            3 => config.grid = GridConfig { cell: odd, ..config.grid },
            4 => config.grid = GridConfig { min: [odd; 2], ..config.grid },
            5 => config.grid = GridConfig { max: [odd; 2], ..config.grid },
            6 => config.grid = GridConfig { min: [odd; 2], max: [odd; 2], cell: odd },
            7 => {
                let bands = vec![Band::new(odd, 30.0), Band::new(odd, odd), Band::new(odd, 10.0)];
                config.lod = Some(LodProfile { bands, frame_rate: 30.0 });
            }
            _ => {}
        }
        let mut net = Net::with(config, 1);
        let (me, wide) = (net.peers[0].id, f64::from(odd));
        let things = [THING, DELTA_THING, PAWN].map(|class| net.server.create(class).unwrap());
        net.steps(3);
        let sphere = Sphere { r_in: odd, p_in: odd, r_out: odd, p_out: odd, p_outside: odd };
        let pairs = ((odd, odd), (odd, odd), (odd, odd), (odd, odd));
        let field = FieldOfView {
            inner: pairs.0,
            outer: pairs.1,
            cone_cosine: odd,
            cone_length: pairs.2,
            cone_priority: pairs.3,
            sight: (odd, odd),
        };
        let prioritisers = [
            Prioritiser::Static(odd),
            Prioritiser::Sphere(sphere),
            Prioritiser::SphereOwnerBoost(sphere, odd),
            Prioritiser::FieldOfView(field),
        ];
        let at = [odd; 3];
        let shapes = [
            Shape::Sphere { centre: at, radius: odd },
            Shape::Box { min: at, max: at },
            Shape::Cone { apex: at, direction: at, cosine: odd, length: odd },
        ];
        let adaptive = Adaptive { rate_min: wide, rate_max: wide, lower: wide, raise: wide };
        for (round, prioritiser) in (0_u32..).zip(prioritisers) {
            let prioritiser = net.server.add_prioritiser(prioritiser).unwrap();
            net.server.set_views(me, &[View { position: at, direction: at }]);
            net.server.set_areas(me, &shapes.map(|shape| Area { shape, band: 255 }));
            match round {
                0 => net.server.set_adaptive_budget(me, adaptive),
                _ => net.server.set_budget(me, Some((wide, wide))),
            }
            net.server.report_congestion(me);
            for thing in things {
                net.server.set_prioritiser(thing, prioritiser).unwrap();
                net.server.set_cull_distance(thing, odd).unwrap();
                net.server.set(thing, POSITION, at).unwrap();
                net.server.set(thing, HEALTH, round).unwrap();
            }
            net.steps(3);
        }
        let plain = net.server.add_prioritiser(Prioritiser::Static(1.0)).unwrap();
        net.server.set_views(me, &[View::default()]);
        net.server.set_areas(me, &[]);
        net.server.set_budget(me, None);
        for thing in things {
            net.server.set_prioritiser(thing, plain).unwrap();
            net.server.set_cull_distance(thing, 250.0).unwrap();
            net.server.set(thing, POSITION, [200.0_f32, -100.0, 0.0]).unwrap();
        }
        net.settle(60);
        for thing in things {
            assert!(net.server.in_scope(me, thing), "setting {which}: {odd}");
            let held = net.peers[0].client.get(thing).and_then(|replica| replica.value(HEALTH));
            assert_eq!(held, Some(Value::UInt(3)), "setting {which}: {odd}");
        }
    }
}

/// The shift by the number of the group overflowed, in the first frame with an element.
#[test]
fn condition_groups_of_arrays_are_numbered_as_those_of_properties() {
    for (group, refused) in [(63, false), (64, true), (255, true)] {
        let bag = Keyed::new("bag", 9).field("item", Quantiser::UInt(9)).condition(Condition::Group(group));
        let class = Class::builder("chest").keyed(bag).build();
        assert_eq!(matches!(class, Err(ClassError::Group { .. })), refused, "{group}");
    }
}

/// Its square was taken: such objects were seen.
#[test]
fn a_negative_cull_distance_counts_as_none() {
    let mut classes = Classes::new();
    let place = Quantiser::Vec3([Axis::new(-100.0, 0.5, 9); 3]);
    let class = Class::builder("thing").property(Property::new("place", place).world_position());
    let class = classes.register(class.cull_distance(-50.0).build().unwrap()).unwrap();
    let mut net = Net::of(classes, ServerConfig::default(), 1);
    let thing = net.server.create(class).unwrap();
    net.server.set(thing, POSITION, [20.0_f32, 0.0, 0.0]).unwrap();
    net.steps(3);
    assert!(!net.server.in_scope(net.peers[0].id, thing));
}

/// The sums overflowed.
#[test]
fn frames_of_any_length_are_observed() {
    let mut net = Net::new(0);
    (0..2).for_each(|_| net.server.observe_frame(Duration::MAX, Duration::MAX));
    let mut text = String::new();
    net.server.write_metrics(&mut text);
    assert!(text.contains("throng_repl_frame_seconds_count{stage=\"shared\"} 2"));
}

/// The ids wrapped: an object of class 65,539 had class 3.
#[test]
fn classes_are_as_many_as_their_ids() {
    let mut classes = Classes::new();
    for number in 0..=u16::MAX {
        let id = classes.register(Class::builder(number.to_string()).build().unwrap()).unwrap();
        assert_eq!(id.0, number);
    }
    let more = |name: &str| Class::builder(name).build().unwrap();
    let refused = classes.register(more("one more"));
    assert_eq!(refused, Err(ClassError::TooManyClasses { class: "one more".into() }));
    assert_eq!(classes.register(more("7")), Err(ClassError::Duplicate { class: "7".into() }));
}

/// Names tell properties apart in a schema, and were not looked at elsewhere.
#[test]
fn two_of_one_name_are_refused_everywhere() {
    let duplicate = |name: &str| Some(ClassError::DuplicateName { class: "door".into(), name: name.into() });
    let class = || Class::builder("door");
    let bag = |name: &str| Keyed::new(name, 9).field("item", Quantiser::UInt(9));
    let call = |name: &str| Call::new(name, Direction::ToServer);
    let variants = |names: [&str; 2]| Quantiser::Enum(names.map(|name| (name.into(), vec![])).to_vec());
    assert_eq!(class().keyed(bag("bag")).keyed(bag("bag")).build().err(), duplicate("bag"));
    let twice = bag("bag").field("item", Quantiser::Bool);
    assert_eq!(class().keyed(twice).build().err(), duplicate("bag.item"));
    assert_eq!(class().call(call("open")).call(call("open")).build().err(), duplicate("open"));
    assert!(class().keyed(bag("open")).keyed(bag("bag")).call(call("open")).build().is_ok());
    assert!(Codec::compile(&variants(["a", "b"])).is_ok());
    assert!(matches!(Codec::compile(&variants(["a", "a"])), Err(QuantiserError::Duplicate)));
}
