//! A message as a tree over encoded parts, and how updates are applied to it.

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::check::Notes;
use super::cursor::{LEN, Record, Records, varint_len, write_prefixed, write_varint};
use super::list::{ListField, numbers_len, write_numbers};
use super::map::{Key, MapField, entry_parts};
use super::mask::{MaskNode, filter_entry, filter_message};
use super::merge::merge_message;
use super::plan::{
    Class, FieldPlan, Kind, MapValue, MergeOptions, Plan, Profile, TypeIndex, TypePlan, Types,
};
use super::rule::{Rule, copy_fields, truncate_retaining};

/// One message. Fields that hold nothing are absent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    /// By slot.
    fields: Vec<Field>,
    /// Records of fields that the schema does not know.
    unknown: Vec<u8>,
}

#[derive(Clone, Debug)]
struct Field {
    slot: u16,
    value: Value,
}

#[derive(Clone, Debug)]
enum Value {
    /// The whole record.
    Scalar(SmallVec<[u8; 22]>),
    Message(Box<Node>),
    List(Box<ListField>),
    Map(Box<MapField>),
}

/// What an update is applied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// An empty tree that becomes the message itself: no profile, no options.
    Load,
    /// Channel data: `removed` entries delete.
    State,
    /// An accumulation of updates: `removed` entries stay, for receivers to see.
    Delta,
}

/// How a profile and the channel's options act in one merge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    target: Target,
    unreal: bool,
    replace_list: bool,
    list_limit: Option<(usize, bool)>,
    /// Entries of an update that say `removed` delete.
    removes: bool,
    /// Entries of the data that say `removed` are deleted too.
    sweeps: bool,
}

impl Rules {
    pub(crate) fn new(profile: Profile, target: Target, options: Option<&MergeOptions>) -> Self {
        let unreal = profile == Profile::Unreal && target != Target::Load;
        let active = options.filter(|_| !unreal && target != Target::Load);
        let check = match (profile, options) {
            (_, Some(options)) => options.check_removable,
            (Profile::Removable, None) => true,
            _ => false,
        };
        let state = target == Target::State;
        Self {
            target,
            unreal,
            replace_list: active.is_some_and(|options| options.replace_list),
            list_limit: active
                .filter(|options| options.list_size_limit > 0)
                .map(|options| (options.list_size_limit as usize, options.truncate_top)),
            removes: state && (unreal || check),
            sweeps: state && !unreal && check && profile == Profile::Reflect,
        }
    }
}

/// Buffers one merge shares between entries.
#[derive(Debug, Default)]
struct Scratch {
    record: Vec<u8>,
}

impl Node {
    /// Applies a checked, regular update.
    pub(crate) fn apply(&mut self, plan: &Plan, root: TypeIndex, bytes: &[u8], notes: Notes, rules: Rules) {
        let types = &*plan.types;
        let type_plan = types.get(root);
        let mut scratch = Scratch::default();
        let mut replaced: SmallVec<[u16; 4]> = SmallVec::new();
        let mut unknown: Vec<Record<'_>> = Vec::new();
        let mut actors = false;
        let mut hint = 0;
        for record in Records::new(bytes) {
            let Some(slot) = type_plan.classify(record.number, record.wire) else {
                unknown.push(record);
                continue;
            };
            let field = &type_plan.fields[usize::from(slot)];
            let class = if rules.unreal { plan.class(slot) } else { Class::Plain };
            match field.kind {
                Kind::Map { key, value } => {
                    if class == Class::Actor {
                        actors = true;
                        continue;
                    }
                    let rule = plan.rule(slot).filter(|_| rules.target != Target::Load);
                    let map = self.map_mut(slot, &mut hint);
                    apply_entry(types, map, key, value, class, rule, &record, notes, rules, &mut scratch);
                }
                Kind::Records(_) | Kind::Numbers { .. } => {
                    let list = self.list_mut(slot);
                    // An element may be empty, but an empty packed payload has none.
                    let has_element = matches!(field.kind, Kind::Records(_)) || !record.payload.is_empty();
                    if rules.replace_list && has_element && !replaced.contains(&slot) {
                        replaced.push(slot);
                        list.clear();
                    }
                    push(list, field, &record);
                }
                Kind::Message(_) if class == Class::Fixed => {
                    // Updates never change the reference; a delta keeps the first one it sees.
                    if rules.target == Target::Delta && self.position(slot).is_err() {
                        self.put_single(types, type_plan, slot, &record);
                    }
                }
                Kind::Message(_) | Kind::Scalar(_) => self.put_single(types, type_plan, slot, &record),
            }
        }
        self.put_unknown(unknown);
        if actors {
            self.apply_actors(plan, type_plan, bytes, notes, rules, &mut scratch);
        }
        self.finish(plan, type_plan, rules);
    }

    /// Applies a checked, regular update to a nested message: no profile, no options.
    fn apply_nested(&mut self, types: &Types, index: TypeIndex, bytes: &[u8]) {
        let type_plan = types.get(index);
        let mut unknown: Vec<Record<'_>> = Vec::new();
        let mut hint = 0;
        for record in Records::new(bytes) {
            let Some(slot) = type_plan.classify(record.number, record.wire) else {
                unknown.push(record);
                continue;
            };
            let field = &type_plan.fields[usize::from(slot)];
            match field.kind {
                Kind::Map { key, .. } => {
                    self.map_mut(slot, &mut hint).put(Key::of_entry(key, record.payload), record.raw);
                }
                Kind::Records(_) | Kind::Numbers { .. } => push(self.list_mut(slot), field, &record),
                Kind::Message(_) | Kind::Scalar(_) => self.put_single(types, type_plan, slot, &record),
            }
        }
        self.put_unknown(unknown);
    }

    /// Merges the actor states of an update: last, since a removed actor takes its other states
    /// along.
    fn apply_actors(
        &mut self,
        plan: &Plan,
        type_plan: &TypePlan,
        bytes: &[u8],
        notes: Notes,
        rules: Rules,
        scratch: &mut Scratch,
    ) {
        let mut hint = 0;
        for record in Records::new(bytes) {
            let Some(slot) = type_plan.classify(record.number, record.wire) else { continue };
            let Kind::Map { key, value } = type_plan.fields[usize::from(slot)].kind else { continue };
            if plan.class(slot) != Class::Actor {
                continue;
            }
            let map = self.map_mut(slot, &mut hint);
            apply_entry(&plan.types, map, key, value, Class::Actor, None, &record, notes, rules, scratch);
            let parts = entry_parts(record.raw);
            if notes.removed && says_removed(&plan.types, value, parts.value()) {
                for field in &mut self.fields {
                    let same_keys = matches!(type_plan.fields[usize::from(field.slot)].kind, Kind::Map { key: other, .. } if other == key);
                    if let (Value::Map(map), true) = (&mut field.value, same_keys)
                        && plan.class(field.slot) == Class::Plain
                    {
                        map.remove(Key::new(key, parts.key));
                    }
                }
            }
        }
    }

    /// What follows once all records are in: list limits, sweeping, upkeep.
    fn finish(&mut self, plan: &Plan, type_plan: &TypePlan, rules: Rules) {
        for field in &mut self.fields {
            let field_plan = &type_plan.fields[usize::from(field.slot)];
            match &mut field.value {
                Value::List(list) => match (rules.list_limit, plan.rule(field.slot)) {
                    (Some((limit, true)), Some(&Rule::Retain { number, span })) => {
                        truncate_retaining(list, limit, number, span);
                    }
                    (Some((limit, keep_last)), _) => {
                        list.truncate(scalar_of(field_plan), limit, keep_last);
                    }
                    (None, _) => {}
                },
                Value::Map(map) => {
                    if let (true, true, Kind::Map { value, .. }) =
                        (rules.sweeps, map.holds_removed, field_plan.kind)
                    {
                        map.remove_if(|record| says_removed(&plan.types, value, entry_parts(record).value()));
                        map.holds_removed = false;
                    }
                    if rules.target == Target::State {
                        map.tidy();
                    }
                }
                Value::Scalar(_) | Value::Message(_) => {}
            }
        }
    }

    /// Sets a scalar, or merges a message.
    fn put_single(&mut self, types: &Types, type_plan: &TypePlan, slot: u16, record: &Record<'_>) {
        let field = &type_plan.fields[usize::from(slot)];
        if let Kind::Scalar(scalar) = field.kind
            && field.implicit
            && scalar.is_zero(record.payload)
        {
            // A zero without presence is absent, and what is absent changes nothing.
            return;
        }
        if let Some(oneof) = field.oneof {
            self.fields.retain(|other| {
                other.slot == slot || type_plan.fields[usize::from(other.slot)].oneof != Some(oneof)
            });
        }
        let at = self.position(slot);
        match (field.kind, at) {
            (Kind::Scalar(_), Ok(at)) => {
                if let Value::Scalar(bytes) = &mut self.fields[at].value {
                    bytes.clear();
                    bytes.extend_from_slice(record.raw);
                }
            }
            (Kind::Scalar(_), Err(at)) => {
                let value = Value::Scalar(SmallVec::from_slice(record.raw));
                self.fields.insert(at, Field { slot, value });
            }
            (Kind::Message(sub), Ok(at)) => {
                if let Value::Message(node) = &mut self.fields[at].value {
                    node.apply_nested(types, sub, record.payload);
                }
            }
            (Kind::Message(sub), Err(at)) => {
                let mut node = Box::<Node>::default();
                node.apply_nested(types, sub, record.payload);
                self.fields.insert(at, Field { slot, value: Value::Message(node) });
            }
            _ => {}
        }
    }

    /// Keeps the unknown records of an update. What it holds of a number replaces what was there:
    /// without a schema nobody can tell a list from a value, and appending would grow for ever.
    fn put_unknown(&mut self, mut records: Vec<Record<'_>>) {
        if !self.unknown.is_empty() && !records.is_empty() {
            let mut numbers: Vec<u32> = records.iter().map(|record| record.number).collect();
            numbers.sort_unstable();
            let mut kept = Vec::with_capacity(self.unknown.len());
            for old in Records::new(&self.unknown) {
                if numbers.binary_search(&old.number).is_err() {
                    kept.extend_from_slice(old.raw);
                }
            }
            self.unknown = kept;
        }
        // The records of a number come together, in the place of the last one, so that a long
        // message can be cut between them. Writers write them so, nearly always.
        if !records.is_sorted_by_key(|record| record.number) {
            let place: HashMap<u32, usize> =
                records.iter().enumerate().map(|(at, record)| (record.number, at)).collect();
            records.sort_by_key(|record| place[&record.number]);
        }
        for record in records {
            self.unknown.extend_from_slice(record.raw);
        }
    }

    fn position(&self, slot: u16) -> Result<usize, usize> {
        self.fields.binary_search_by_key(&slot, |field| field.slot)
    }

    fn map_mut(&mut self, slot: u16, hint: &mut usize) -> &mut MapField {
        if self.fields.get(*hint).is_none_or(|field| field.slot != slot) {
            *hint = self.position(slot).unwrap_or_else(|at| {
                self.fields.insert(at, Field { slot, value: Value::Map(Box::new(MapField::new())) });
                at
            });
        }
        match &mut self.fields[*hint].value {
            Value::Map(map) => map,
            _ => unreachable!("a map field holds a map"),
        }
    }

    fn list_mut(&mut self, slot: u16) -> &mut ListField {
        let at = self.position(slot).unwrap_or_else(|at| {
            self.fields.insert(at, Field { slot, value: Value::List(Box::default()) });
            at
        });
        match &mut self.fields[at].value {
            Value::List(list) => list,
            _ => unreachable!("a list field holds a list"),
        }
    }

    /// Empties the message, keeping the memory of its maps and lists.
    pub(crate) fn clear(&mut self) {
        self.unknown.clear();
        self.fields.retain_mut(|field| match &mut field.value {
            Value::List(list) => {
                list.clear();
                true
            }
            Value::Map(map) => {
                map.clear();
                true
            }
            Value::Scalar(_) | Value::Message(_) => false,
        });
    }

    /// Whether nothing would be encoded.
    pub(crate) fn is_empty(&self) -> bool {
        self.unknown.is_empty()
            && self.fields.iter().all(|field| match &field.value {
                Value::List(list) => list.count == 0,
                Value::Map(map) => map.len() == 0,
                Value::Scalar(_) | Value::Message(_) => false,
            })
    }

    /// Appends the encoded message: fields by number, then unknown ones.
    pub(crate) fn encode(&self, types: &Types, index: TypeIndex, mask: Option<&MaskNode>, out: &mut Vec<u8>) {
        let type_plan = types.get(index);
        for field in &self.fields {
            let Some(inner) = MaskNode::pick(mask, field.slot) else { continue };
            let field_plan = &type_plan.fields[usize::from(field.slot)];
            match &field.value {
                Value::Scalar(record) => out.extend_from_slice(record),
                Value::Message(node) => {
                    let Kind::Message(sub) = field_plan.kind else { continue };
                    write_varint(out, u64::from(field_plan.tag));
                    write_prefixed(out, |out| node.encode(types, sub, inner, out));
                }
                Value::List(list) => encode_list(types, field_plan, list, inner, out),
                Value::Map(map) => match (inner, field_plan.kind) {
                    (Some(inner), Kind::Map { value: MapValue::Message(sub), .. }) => {
                        for record in map.iter() {
                            filter_entry(types, sub, inner, field_plan.tag, &entry_parts(record), out);
                        }
                    }
                    _ => {
                        for record in map.iter() {
                            out.extend_from_slice(record);
                        }
                    }
                },
            }
        }
        if mask.is_none() {
            out.extend_from_slice(&self.unknown);
        }
    }

    /// Size of what [`Node::encode`] writes without a mask.
    pub(crate) fn encoded_len(&self, types: &Types, index: TypeIndex) -> usize {
        let type_plan = types.get(index);
        let fields = self.fields.iter().map(|field| {
            let field_plan = &type_plan.fields[usize::from(field.slot)];
            match (&field.value, field_plan.kind) {
                (Value::Scalar(record), _) => record.len(),
                (Value::Message(node), Kind::Message(sub)) => {
                    let len = node.encoded_len(types, sub);
                    varint_len(u64::from(field_plan.tag)) + varint_len(len as u64) + len
                }
                (Value::List(list), Kind::Numbers { packed, .. }) => {
                    numbers_len(field_plan.tag >> 3, packed, list)
                }
                (Value::List(list), _) => list.bytes.len(),
                (Value::Map(map), _) => map.encoded_len(),
                (Value::Message(_), _) => 0,
            }
        });
        fields.sum::<usize>() + self.unknown.len()
    }

    /// Bytes of memory held, this struct aside.
    pub(crate) fn heap_bytes(&self) -> usize {
        let fields = self.fields.iter().map(|field| match &field.value {
            Value::Scalar(record) if record.spilled() => record.capacity(),
            Value::Scalar(_) => 0,
            Value::Message(node) => size_of::<Node>() + node.heap_bytes(),
            Value::List(list) => size_of::<ListField>() + list.bytes.capacity(),
            Value::Map(map) => size_of::<MapField>() + map.heap_bytes(),
        });
        self.unknown.capacity() + self.fields.capacity() * size_of::<Field>() + fields.sum::<usize>()
    }

    /// Whether `update` must not be folded into this delta, since one message cannot say both.
    ///
    /// Two things cannot be said: that an entry was removed and came back where entries merge
    /// deeply, and that a oneof left a message member and came back to it.
    pub(crate) fn conflicts(&mut self, plan: &Plan, root: TypeIndex, update: &[u8]) -> bool {
        let type_plan = plan.types.get(root);
        ((plan.profile == Profile::Unreal || plan.has_copies()) && self.revives(plan, type_plan, update))
            || (type_plan.has_message_oneof && self.switches_back(plan, root, update))
    }

    /// Whether `update` sets a key that this delta removes.
    fn revives(&mut self, plan: &Plan, type_plan: &TypePlan, update: &[u8]) -> bool {
        let holds_removed =
            self.fields.iter().any(|field| matches!(&field.value, Value::Map(map) if map.holds_removed));
        if !holds_removed {
            return false;
        }
        for record in Records::new(update) {
            let Some(slot) = type_plan.classify(record.number, record.wire) else { continue };
            let Kind::Map { key, value } = type_plan.fields[usize::from(slot)].kind else { continue };
            let copies = plan.rule(slot).is_some();
            if !copies && plan.profile != Profile::Unreal {
                continue;
            }
            let parts = entry_parts(record.raw);
            if (copies || plan.class(slot) != Class::Plain) && says_removed(&plan.types, value, parts.value())
            {
                continue;
            }
            for field in &mut self.fields {
                let same = field.slot == slot;
                let actor = plan.class(field.slot) == Class::Actor && plan.class(slot) == Class::Plain;
                let Kind::Map { key: own_key, value: own_value } =
                    type_plan.fields[usize::from(field.slot)].kind
                else {
                    continue;
                };
                if let (Value::Map(map), true) = (&mut field.value, (same || actor) && own_key == key)
                    && map.holds_removed
                    && map
                        .get(Key::new(key, parts.key))
                        .is_some_and(|old| says_removed(&plan.types, own_value, entry_parts(old).value()))
                {
                    return true;
                }
            }
        }
        false
    }

    /// Whether `update` sets a oneof to a message after this delta set it to something else, or may
    /// do so inside a map entry that merges deeply.
    fn switches_back(&mut self, plan: &Plan, index: TypeIndex, update: &[u8]) -> bool {
        let type_plan = plan.types.get(index);
        Records::new(update).any(|record| {
            let Some(slot) = type_plan.classify(record.number, record.wire) else { return false };
            let field = &type_plan.fields[usize::from(slot)];
            match field.kind {
                Kind::Message(sub) => {
                    let other_member = field.oneof.is_some()
                        && self.fields.iter().any(|other| {
                            other.slot != slot
                                && type_plan.fields[usize::from(other.slot)].oneof == field.oneof
                        });
                    let own = self.position(slot).ok();
                    other_member
                        || own.is_some_and(|at| match &mut self.fields[at].value {
                            Value::Message(node) => node.switches_back(plan, sub, record.payload),
                            _ => false,
                        })
                }
                Kind::Map { key, value: MapValue::Message(sub) } => {
                    plan.profile == Profile::Unreal
                        && plan.types.get(sub).has_message_oneof
                        && self.position(slot).is_ok_and(|at| match &mut self.fields[at].value {
                            Value::Map(map) => map.get(Key::new(key, entry_parts(record.raw).key)).is_some(),
                            _ => false,
                        })
                }
                _ => false,
            }
        })
    }
}

#[inline]
fn apply_entry(
    types: &Types,
    map: &mut MapField,
    key: super::plan::Scalar,
    value: MapValue,
    class: Class,
    rule: Option<&Rule>,
    record: &Record<'_>,
    notes: Notes,
    rules: Rules,
    scratch: &mut Scratch,
) {
    let map_key = Key::of_entry(key, record.payload);
    if !rules.unreal && !notes.removed && rule.is_none() {
        map.put(map_key, record.raw);
        return;
    }
    let parts = super::check::Entry::read(record.payload);
    if notes.removed && says_removed(types, value, parts.value()) {
        let counts = !rules.unreal || class != Class::Plain;
        if rules.removes && counts {
            map.remove(map_key);
            return;
        }
        map.holds_removed = true;
        if (rules.unreal && class != Class::Plain) || (rule.is_some() && rules.target == Target::Delta) {
            // A removal says all there is to say about the entry.
            map.put(map_key, record.raw);
            return;
        }
    }
    if let (Some(Rule::Copy(slots)), MapValue::Message(sub), Some(old)) = (rule, value, map.get(map_key)) {
        let out = &mut scratch.record;
        out.clear();
        let tag = record.number << 3 | u32::from(LEN);
        copy_fields(types, sub, slots, tag, old, record.raw, out);
        map.put(map_key, out);
        return;
    }
    let deep = rules.unreal;
    match (deep, value) {
        (true, MapValue::Message(sub)) => {
            let Some(old) = map.get(map_key) else {
                map.put(map_key, record.raw);
                return;
            };
            if class == Class::KeepFirst {
                return;
            }
            let out = &mut scratch.record;
            out.clear();
            write_varint(out, u64::from(record.number << 3 | u32::from(LEN)));
            write_prefixed(out, |out| {
                out.extend_from_slice(parts.key_raw);
                write_varint(out, u64::from(2 << 3 | LEN));
                write_prefixed(out, |out| {
                    merge_message(types, sub, entry_parts(old).value(), parts.value(), out)
                });
            });
            map.put(map_key, out);
        }
        _ => map.put(map_key, record.raw),
    }
}

fn says_removed(types: &Types, value: MapValue, bytes: &[u8]) -> bool {
    value.message().is_some_and(|sub| types.get(sub).says_removed(bytes))
}

fn push(list: &mut ListField, field: &FieldPlan, record: &Record<'_>) {
    match field.kind {
        Kind::Numbers { scalar, .. } => list.push_numbers(scalar, record),
        _ => list.push_record(record.raw),
    }
}

fn scalar_of(field: &FieldPlan) -> Option<super::plan::Scalar> {
    match field.kind {
        Kind::Numbers { scalar, .. } => Some(scalar),
        _ => None,
    }
}

fn encode_list(
    types: &Types,
    field: &FieldPlan,
    list: &ListField,
    mask: Option<&MaskNode>,
    out: &mut Vec<u8>,
) {
    match (field.kind, mask) {
        (Kind::Numbers { scalar, packed }, _) => {
            write_numbers(field.tag >> 3, scalar, packed, &list.bytes, out)
        }
        (Kind::Records(element), Some(mask)) if element.message().is_some() => {
            let Some(sub) = element.message() else { return };
            for record in Records::new(&list.bytes) {
                write_varint(out, u64::from(field.tag));
                write_prefixed(out, |out| filter_message(types, sub, mask, record.payload, out));
            }
        }
        _ => out.extend_from_slice(&list.bytes),
    }
}
