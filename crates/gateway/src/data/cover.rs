//! Updates that make the ones before them superfluous.
//!
//! A game sends the same fields of a character again and again. Of such updates the last says
//! everything, and merging the others first is work for nothing.

use super::Profile;
use super::check::Update;
use super::cursor::{Record, Records};
use super::plan::{Class, Kind, Plan, TypePlan, Types};

impl Update {
    /// Whether merging `older` and then this is the same as merging this alone, whatever the data.
    ///
    /// True for updates that set the same single fields in the same order; false says nothing.
    /// Costs a walk over both.
    #[must_use]
    pub fn covers(&self, older: &Self, plan: &Plan) -> bool {
        let Some(root) = plan.root else { return false };
        // In the Unreal profile some fields of the root merge in their own way.
        let plain = |slot: u16| {
            plan.rule(slot).is_none() && (plan.profile != Profile::Unreal || plan.class(slot) == Class::Plain)
        };
        !self.notes.removed
            && !older.notes.removed
            && covers(&plan.types, plan.types.get(root), self.bytes(), older.bytes(), &plain)
    }
}

fn covers(types: &Types, plan: &TypePlan, newer: &[u8], older: &[u8], plain: &dyn Fn(u16) -> bool) -> bool {
    let (mut newer, mut older) = (Records::new(newer), Records::new(older));
    loop {
        match (newer.next(), older.next()) {
            (None, None) => return true,
            (Some(newer), Some(older)) if covers_field(types, plan, &newer, &older, plain) => {}
            _ => return false,
        }
    }
}

fn covers_field(
    types: &Types,
    plan: &TypePlan,
    newer: &Record<'_>,
    older: &Record<'_>,
    plain: &dyn Fn(u16) -> bool,
) -> bool {
    if (newer.number, newer.wire) != (older.number, older.wire) {
        return false;
    }
    let Some(slot) = plan.classify(newer.number, newer.wire).filter(|slot| plain(*slot)) else {
        return false;
    };
    let field = &plan.fields[usize::from(slot)];
    match field.kind {
        // A zero without presence leaves the older value.
        Kind::Scalar(scalar) => !(field.implicit && scalar.is_zero(newer.payload)),
        Kind::Message(sub) => covers(types, types.get(sub), newer.payload, older.payload, &|_| true),
        Kind::Records(_) | Kind::Numbers { .. } | Kind::Map { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use throng_stdx::Rng;

    use super::super::{ChannelData, MergeOptions, SchemasBuilder, Update};
    use super::*;

    const PROTO: &str = "syntax = \"proto3\"; package c;
        message Inner { optional float x = 1; float y = 2; Inner deeper = 3; }
        message Outer { optional float a = 1; int32 b = 2; optional string c = 3; Inner d = 4; repeated int32 e = 5;
                        map<uint32, Inner> f = 6; oneof g { int32 h = 7; Inner i = 8; } }";

    fn plan() -> Arc<Plan> {
        let schemas = SchemasBuilder::new().add_proto("c.proto", PROTO).build().expect("it compiles");
        schemas.plan("c.Outer").expect("defined above").clone()
    }

    /// One record of the type, at random.
    fn record(rng: &mut Rng, out: &mut Vec<u8>) {
        let float = |rng: &mut Rng| [rng.below(3) as u8, 0, 0, rng.below(2) as u8 * 0x40];
        let inner = |rng: &mut Rng| {
            let mut bytes = Vec::new();
            for number in 1..3 {
                if rng.chance(0.7) {
                    bytes.push(number << 3 | 5);
                    bytes.extend(float(rng));
                }
            }
            bytes
        };
        let number = rng.range(1..10) as u8;
        match number {
            1 => {
                out.push(1 << 3 | 5);
                out.extend(float(rng));
            }
            2 | 5 | 7 => out.extend([number << 3, rng.below(3) as u8]),
            3 => out.extend([3 << 3 | 2, 1, b'a' + rng.below(3) as u8]),
            4 | 8 => {
                let inner = inner(rng);
                out.extend([number << 3 | 2, inner.len() as u8]);
                out.extend(inner);
            }
            6 => {
                let inner = inner(rng);
                out.extend([6 << 3 | 2, inner.len() as u8 + 4, 1 << 3, 1, 2 << 3 | 2, inner.len() as u8]);
                out.extend(inner);
            }
            // Unknown.
            _ => out.extend([15 << 3, 1]),
        }
    }

    #[test]
    fn what_is_covered_makes_no_difference() {
        let plan = plan();
        let mut rng = Rng::new(5);
        let mut covered = 0;
        for round in 0..60_000 {
            let mut update = |records: u64| {
                let mut bytes = Vec::new();
                for _ in 0..records {
                    record(&mut rng, &mut bytes);
                }
                Update::check(&plan, bytes.into()).expect("valid")
            };
            let (base, older) = (update(4), update(1 + round % 3));
            let newer = update(1 + round % 3);
            if !newer.covers(&older, &plan) {
                continue;
            }
            covered += 1;
            let state = |updates: &[&Update]| {
                let mut data = ChannelData::new(Arc::clone(&plan));
                for update in updates {
                    data.merge(update.bytes(), None).expect("within bounds");
                    data.settle();
                }
                let mut bytes = Vec::new();
                data.encode(None, &mut bytes);
                bytes
            };
            assert_eq!(state(&[&base, &older, &newer]), state(&[&base, &newer]), "{older:?} {newer:?}");
        }
        assert!(covered > 1_000, "{covered}");
    }

    #[test]
    fn data_reads_the_same_whether_updates_wait_or_not() {
        let plan = plan();
        let mut rng = Rng::new(6);
        let options = MergeOptions { list_size_limit: 3, check_removable: true, ..Default::default() };
        let (mut lazy, mut eager) =
            (ChannelData::new(Arc::clone(&plan)), ChannelData::new(Arc::clone(&plan)));
        let (mut waited, mut before) = (0, None::<Update>);
        for round in 0..20_000 {
            let mut bytes = Vec::new();
            for _ in 0..=round % 3 {
                record(&mut rng, &mut bytes);
            }
            // Now and then under other options, which no update may be merged with that came
            // before.
            let options = Some(&options).filter(|_| round % 50 < 40);
            for _ in 0..rng.range(1..4) {
                let update = Update::check(&plan, bytes.clone().into()).expect("valid");
                let covered = lazy.merge_checked(&update, options).expect("within bounds");
                assert_eq!(covered.is_some(), lazy.waits());
                let before = before.replace(update.clone());
                assert!(covered.is_none_or(|covered| before.is_some_and(|before| covered.is(&before))));
                eager.merge_checked(&update, options).expect("within bounds");
                waited += u32::from(lazy.waits());
                eager.settle();
            }
            let encode = |data: &ChannelData| {
                let mut bytes = Vec::new();
                data.encode(None, &mut bytes);
                bytes
            };
            assert_eq!(encode(&lazy), encode(&eager), "round {round}");
            assert_eq!(lazy.encoded_len(), encode(&lazy).len());
        }
        assert!(waited > 1_000, "{waited}");
    }

    #[test]
    fn lists_maps_unknown_fields_and_zeros_without_presence_are_not_covered() {
        let plan = plan();
        let update = |bytes: &[u8]| Update::check(&plan, bytes.to_vec().into()).expect("valid");
        for (newer, covers) in [
            (&[0x0d, 0, 0, 0, 0][..], true),
            (&[0x10, 1], true),
            (&[0x10, 0], false),
            (&[0x22, 5, 0x0d, 1, 2, 3, 4], true),
            (&[0x22, 5, 0x15, 0, 0, 0, 0], false),
            (&[0x28, 1], false),
            (&[0x32, 2, 8, 1], false),
            (&[0x78, 1], false),
            (&[0x38, 0], true),
            (&[], true),
        ] {
            assert_eq!(update(newer).covers(&update(newer), &plan), covers, "{newer:?}");
        }
        assert!(!update(&[0x10, 1]).covers(&update(&[0x0d, 0, 0, 0, 0]), &plan));
        assert!(!update(&[0x10, 1]).covers(&update(&[0x10, 1, 0x0d, 0, 0, 0, 0]), &plan));
        let opaque = Plan::opaque("x", super::super::DataLimits::default());
        assert!(!update(&[0x10, 1]).covers(&update(&[0x10, 1]), &opaque));
    }
}
