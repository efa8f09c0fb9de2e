//! Random schemas' messages, random updates, and the model's word for what comes out.

use bytes::Bytes;
use prost::Message;
use prost_reflect::{DynamicMessage, Kind, MessageDescriptor};
use throng_stdx::Rng;

use super::*;
use crate::data::cursor::{LEN, Records, write_prefixed, write_varint};
use crate::data::{Delta, Joint, Mosaic, Update, filter, merged, split, validate};

const SHAPES_PROTO: &str = include_str!("shapes.proto");

/// The types tried, with the profile each is merged by.
const TYPES: [(&str, Profile); 13] = [
    ("unrealpb.CharacterState", Profile::Reflect),
    ("channeldpb.CreateChannelMessage", Profile::Reflect),
    ("shapes.Small", Profile::Reflect),
    ("shapes.Small", Profile::Removable),
    ("shapes.Shapes", Profile::Reflect),
    ("shapes.World", Profile::Unreal),
    ("shapes.World", Profile::Reflect),
    ("testpb.TestFieldMaskMessage", Profile::Reflect),
    ("testpb.TestMergeMessage", Profile::Removable),
    ("testpb.TestMapMessage", Profile::Reflect),
    ("chatpb.ChatChannelData", Profile::Reflect),
    ("tankspb.TankGameChannelData", Profile::Removable),
    ("tpspb.TestRepChannelData", Profile::Unreal),
];

struct World {
    schemas: Schemas,
    plan: Arc<Plan>,
    name: &'static str,
    profile: Profile,
    descriptor: MessageDescriptor,
}

/// Runs `check` over all types with many seeds, naming the seed of a failure.
fn for_all(runs: u64, check: impl Fn(&World, &mut Rng)) {
    for (index, (name, profile)) in TYPES.into_iter().enumerate() {
        let schemas = builder()
            .add_proto("shapes.proto", SHAPES_PROTO)
            .profile(name, profile)
            .build()
            .unwrap_or_else(|error| panic!("{error}"));
        let descriptor = schemas.pool().get_message_by_name(name).expect("a known type");
        let world = World { plan: plan(&schemas, name), schemas, name, profile, descriptor };
        for run in 0..runs {
            let seed = index as u64 * 1_000_000 + run;
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                check(&world, &mut Rng::new(seed));
            }));
            assert!(outcome.is_ok(), "{name} {profile:?} failed with seed {seed}");
        }
    }
}

impl World {
    fn random(&self, rng: &mut Rng) -> DynamicMessage {
        let dense = self.name == "shapes.Shapes";
        let density = if dense { 0.06 } else { 0.5 };
        let depth = 1 + rng.below(3) as u32;
        model::random(rng, &self.descriptor, density, depth)
    }

    /// A random encoding: canonical, or irregular in all the ways a decoder must understand.
    fn random_bytes(&self, rng: &mut Rng) -> Vec<u8> {
        let bytes = self.random(rng).encode_to_vec();
        if rng.chance(0.6) {
            return bytes;
        }
        let mut joined = bytes;
        for _ in 0..rng.below(3) {
            joined.extend(self.random(rng).encode_to_vec());
        }
        scramble(rng, &self.descriptor, &joined)
    }

    fn decode(&self, bytes: &[u8]) -> DynamicMessage {
        decode(&self.schemas, self.name, bytes)
    }

    fn options(&self, rng: &mut Rng) -> Option<MergeOptions> {
        rng.chance(0.6).then(|| MergeOptions {
            replace_list: rng.chance(0.3),
            list_size_limit: if rng.chance(0.5) { 1 + rng.below(5) as u32 } else { 0 },
            truncate_top: rng.chance(0.5),
            check_removable: rng.chance(0.5),
        })
    }

    fn merge_model(
        &self,
        state: &mut DynamicMessage,
        update: &DynamicMessage,
        options: Option<&MergeOptions>,
    ) {
        match self.profile {
            Profile::Reflect => model::merge_with(state, update, options, false),
            Profile::Removable => model::merge_with(state, update, options, true),
            Profile::Unreal => model::merge_unreal(state, update),
        }
    }
}

/// Shuffles records, writes zeros out, cuts messages in two, turns map entries round.
fn scramble(rng: &mut Rng, descriptor: &MessageDescriptor, bytes: &[u8]) -> Vec<u8> {
    let mut pieces: Vec<Vec<u8>> = Vec::new();
    for record in Records::new(bytes) {
        let field = descriptor.get_field(record.number).expect("made from the schema");
        let mut piece = Vec::new();
        match field.kind() {
            Kind::Message(sub) if record.wire == LEN => {
                let inner = scramble(rng, &sub, record.payload);
                // Single messages may come in several occurrences.
                let cut = Records::new(&inner).nth(1).is_some() && !field.is_list() && rng.chance(0.3);
                let first = Records::new(&inner).next().map_or(0, |record| record.raw.len());
                let halves = if cut { vec![&inner[..first], &inner[first..]] } else { vec![&inner[..]] };
                for half in halves {
                    write_varint(&mut piece, u64::from(record.number << 3 | u32::from(LEN)));
                    write_prefixed(&mut piece, |out| out.extend_from_slice(half));
                }
            }
            _ => piece.extend_from_slice(record.raw),
        }
        if rng.chance(0.15) && !field.is_list() && !field.is_map() {
            // The same field again, set to zero.
            let tag = u64::from(record.number << 3 | u32::from(record.wire));
            let zero: &[u8] = match record.wire {
                1 => &[0; 8],
                5 => &[0; 4],
                _ => &[0],
            };
            let mut extra = Vec::new();
            write_varint(&mut extra, tag);
            extra.extend_from_slice(zero);
            pieces.push(extra);
        }
        if rng.chance(0.95) {
            pieces.push(piece);
        }
    }
    for at in (1..pieces.len()).rev() {
        if rng.chance(0.5) {
            pieces.swap(at, rng.below(at as u64 + 1) as usize);
        }
    }
    pieces.concat()
}

#[test]
fn merging_agrees_with_the_model() {
    for_all(400, |world, rng| {
        let start = world.random_bytes(rng);
        let mut data = ChannelData::from_bytes(world.plan.clone(), &start).expect("valid");
        let mut model = world.decode(&start);
        assert_same(&world.decode(&encoded(&data, None)), &model, &"loaded");
        let options = world.options(rng);
        for _ in 0..rng.below(6) {
            let update = world.random_bytes(rng);
            data.merge(&update, options.as_ref()).expect("valid");
            world.merge_model(&mut model, &world.decode(&update), options.as_ref());
            assert_same(&world.decode(&encoded(&data, None)), &model, &options);
        }
    });
}

/// A-7d and A-6: whatever a window folds together does what the updates would have done, removals
/// included.
#[test]
fn a_delta_does_what_its_updates_did() {
    for_all(400, |world, rng| {
        let start = world.random_bytes(rng);
        let options = world.options(rng);
        let mut data = ChannelData::from_bytes(world.plan.clone(), &start).expect("valid");
        // Options act on what is there at the next merge, even an empty one.
        data.merge(&[], options.as_ref()).expect("empty");
        let mut receiver = data.clone();
        let mut delta = Delta::new(world.plan.clone());
        for _ in 0..3 {
            assert!(delta.is_empty());
            for _ in 0..rng.below(6) {
                let update = Update::check(&world.plan, Bytes::from(world.random_bytes(rng))).expect("valid");
                data.merge_checked(&update, options.as_ref()).expect("small");
                delta.accumulate_checked(&update, options.as_ref());
            }
            let mut messages = Vec::new();
            delta.encode_messages(None, &mut messages);
            assert_eq!(messages.iter().map(Bytes::len).sum::<usize>(), delta.encoded_len());
            for message in messages {
                receiver.merge(&message, options.as_ref()).expect("valid");
            }
            assert_same(
                &world.decode(&encoded(&receiver, None)),
                &world.decode(&encoded(&data, None)),
                &options,
            );
            delta.clear();
        }
    });
}

/// What a writer gets of a window in pieces of shared pages does what a merge without its own
/// updates does.
#[test]
fn a_mosaic_without_one_sender_is_the_merge_without_it() {
    for_all(300, |world, rng| {
        let start = world.random_bytes(rng);
        let options = world.options(rng);
        let senders = 1 + rng.below(5) as u32;
        let updates: Vec<(u32, Update)> = (0..rng.below(8))
            .map(|_| {
                let update = Update::check(&world.plan, Bytes::from(world.random_bytes(rng))).expect("valid");
                (rng.below(u64::from(senders)) as u32, update)
            })
            .collect();
        let page_max = [20, 200, 60_000][rng.below(3) as usize];
        let each = updates.iter().map(|(sender, update)| (*sender, update));
        let mut mosaic = Mosaic::new(&world.plan, options, None, page_max, each);
        let applied = |messages: &[Bytes]| {
            let mut data = ChannelData::from_bytes(world.plan.clone(), &start).expect("valid");
            data.merge(&[], options.as_ref()).expect("empty");
            for message in messages {
                data.merge(message, options.as_ref()).expect("valid");
            }
            world.decode(&encoded(&data, None))
        };
        for sender in 0..=senders {
            let others = mosaic.others(sender);
            let without = others.without.clone();
            let mut messages: Vec<Bytes> = mosaic.pages()[..without.start].to_vec();
            let piece = others.pieces.concat();
            assert!(piece.len() <= page_max || mosaic.pages()[without.start].len() > page_max);
            messages.push(piece.into());
            messages.extend_from_slice(&mosaic.pages()[without.end..]);
            messages.extend(others.messages);
            let plain = updates.iter().filter(|(from, _)| *from != sender).map(|(_, update)| update);
            let plain = merged(&world.plan, options.as_ref(), None, plain);
            assert_same(&applied(&messages), &applied(&plain), &(sender, &options));
        }
    });
}

#[test]
fn a_delta_of_one_update_is_the_update() {
    for_all(50, |world, rng| {
        let update = world.random_bytes(rng);
        let mut delta = Delta::new(world.plan.clone());
        let options = world.options(rng);
        delta.accumulate(&update, options.as_ref()).expect("valid");
        let mut out = Vec::new();
        delta.encode(None, &mut out);
        if world.profile != Profile::Unreal {
            assert_same(&world.decode(&out), &world.decode(&update), &options);
        }
    });
}

/// masks cut what is sent, never what is kept.
#[test]
fn masks_agree_with_the_model() {
    fn path(rng: &mut Rng, descriptor: &MessageDescriptor) -> Vec<String> {
        let fields: Vec<_> = descriptor.fields().collect();
        let mut names = Vec::new();
        if fields.is_empty() || rng.chance(0.05) {
            return vec!["nosuch".into()];
        }
        let field = &fields[rng.below(fields.len() as u64) as usize];
        names.push(field.name().to_owned());
        let sub = match field.kind() {
            Kind::Message(entry) if field.is_map() => match entry.map_entry_value_field().kind() {
                Kind::Message(sub) => Some(sub),
                _ => None,
            },
            Kind::Message(sub) => Some(sub),
            _ => None,
        };
        match sub {
            Some(sub) if rng.chance(0.6) => names.extend(path(rng, &sub)),
            None if rng.chance(0.1) => names.push("deeper".into()),
            _ => {}
        }
        names
    }
    for_all(300, |world, rng| {
        let update = Update::check(&world.plan, Bytes::from(world.random_bytes(rng))).expect("valid");
        let paths: Vec<Vec<String>> = (0..rng.below(5)).map(|_| path(rng, &world.descriptor)).collect();
        let joined: Vec<String> =
            paths.iter().map(|path| path.join(if rng.chance(0.9) { "." } else { ".." })).collect();
        let mask = FieldMask::compile(&world.plan, &joined);
        assert_eq!(mask.is_everything(), paths.is_empty());
        let mut expected = world.decode(update.bytes());
        model::mask(&mut expected, &paths);
        let mut filtered = Vec::new();
        filter(&world.plan, &mask, update.bytes(), &mut filtered);
        assert_same(&world.decode(&filtered), &expected, &joined);
        let mut data = ChannelData::from_bytes(world.plan.clone(), update.bytes()).expect("valid");
        assert_same(&world.decode(&encoded(&data, Some(&mask))), &expected, &joined);
        assert_same(&world.decode(&encoded(&data, None)), &world.decode(update.bytes()), &joined);
        data.merge(&[], None).expect("empty");
    });
}

/// nothing is too long to be delivered, unless a single element is.
#[test]
fn parts_of_a_split_merge_to_the_whole() {
    for_all(300, |world, rng| {
        let update = Update::check(&world.plan, Bytes::from(world.random_bytes(rng))).expect("valid");
        let max = 1 + rng.below(update.bytes().len() as u64 + 20) as usize;
        let mut parts = Vec::new();
        match split(&world.plan, update.bytes(), max, &mut parts) {
            Ok(joint) => {
                assert_eq!(joint, Joint::Exact);
                assert!(parts.iter().all(|part| part.len() <= max));
                assert_same(&world.decode(&parts.concat()), &world.decode(update.bytes()), &max);
                let start = world.random_bytes(rng);
                let mut whole = ChannelData::from_bytes(world.plan.clone(), &start).expect("valid");
                let mut piecewise = whole.clone();
                whole.merge_checked(&update, None).expect("small");
                for part in &parts {
                    piecewise.merge(part, None).expect("valid");
                }
                assert_same(
                    &world.decode(&encoded(&piecewise, None)),
                    &world.decode(&encoded(&whole, None)),
                    &max,
                );
            }
            Err(oversize) => {
                assert!(oversize.bytes > max, "{oversize}");
                assert!(parts.is_empty());
            }
        }
    });
}

#[test]
fn random_bytes_never_panic_and_never_half_apply() {
    // The library reads a map field as length-delimited whatever its wire type, so it cannot judge
    // types with maps.
    fn has_maps(descriptor: &MessageDescriptor) -> bool {
        descriptor.fields().any(|field| field.is_map())
    }
    for_all(1500, |world, rng| {
        let judged = !has_maps(&world.descriptor);
        let mut bytes = world.random_bytes(rng);
        for _ in 0..1 + rng.below(4) {
            if bytes.is_empty() {
                break;
            }
            let at = rng.below(bytes.len() as u64) as usize;
            match rng.below(4) {
                0 => bytes[at] = rng.next_u32() as u8,
                1 => bytes[at] ^= 1 << rng.below(8),
                2 => bytes.truncate(at),
                _ => bytes.insert(at, rng.next_u32() as u8),
            }
        }
        let start = world.random_bytes(rng);
        let mut data = ChannelData::from_bytes(world.plan.clone(), &start).expect("valid");
        let before = encoded(&data, None);
        let reference = DynamicMessage::decode(world.descriptor.clone(), bytes.as_slice());
        let outcome = data.merge(&bytes, None);
        assert_eq!(outcome.is_ok(), validate(&world.plan, &bytes).is_ok());
        match (&outcome, &reference) {
            (Err(error), Ok(_)) if judged => panic!("refused what others accept: {error} {bytes:02x?}"),
            (Err(_), _) => assert_eq!(encoded(&data, None), before),
            (Ok(()), _) => {
                let after = encoded(&data, None);
                assert!(validate(&world.plan, &after).is_ok());
                let fresh = ChannelData::from_bytes(world.plan.clone(), &bytes).expect("validated");
                let whole = encoded(&fresh, None);
                if let Ok(reference) = reference
                    && judged
                    && reference.unknown_fields().next().is_none()
                {
                    let ours = world.decode(&whole);
                    let same =
                        ours == reference || ours.encode_to_vec().len() == reference.encode_to_vec().len();
                    assert!(same, "{ours:?}\n{reference:?}");
                }
                let mut delta = Delta::new(world.plan.clone());
                delta.accumulate(&start, None).expect("valid");
                delta.accumulate(&bytes, None).expect("validated");
                let mut parts = Vec::new();
                let _ = split(&world.plan, &after, 1 + rng.below(100) as usize, &mut parts);
            }
        }
    });
}

#[test]
fn pure_noise_is_refused_or_read() {
    for_all(2000, |world, rng| {
        let mut bytes = vec![0; rng.below(40) as usize];
        rng.fill(&mut bytes);
        let mut data = ChannelData::new(world.plan.clone());
        if data.merge(&bytes, None).is_err() {
            assert_eq!(data.encoded_len(), 0);
        }
    });
}
