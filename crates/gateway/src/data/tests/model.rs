//! The simple model: decoded messages of the reflection library, merged field by field as the
//! specification says.

use prost_reflect::{
    DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, ReflectMessage, Value,
};
use throng_stdx::Rng;

use crate::data::MergeOptions;

/// The message without fields that hold their default.
pub(super) fn canonical(message: &DynamicMessage) -> DynamicMessage {
    fn value(from: &Value) -> Value {
        match from {
            Value::Message(message) => Value::Message(canonical(message)),
            Value::List(list) => Value::List(list.iter().map(value).collect()),
            Value::Map(map) => Value::Map(map.iter().map(|(k, v)| (k.clone(), value(v))).collect()),
            other => other.clone(),
        }
    }
    let mut out = DynamicMessage::new(message.descriptor());
    for (field, old) in message.fields() {
        out.set_field(&field, value(old));
    }
    out
}

/// The default merge: what a protobuf merge does, except that map entries are replaced.
pub(super) fn merge(target: &mut DynamicMessage, update: &DynamicMessage) {
    for (field, value) in update.fields() {
        if field.is_list() {
            let list = target.get_field_mut(&field).as_list_mut().expect("a list");
            list.extend(value.as_list().expect("a list").iter().cloned());
        } else if field.is_map() {
            let map = target.get_field_mut(&field).as_map_mut().expect("a map");
            map.extend(value.as_map().expect("a map").iter().map(|(k, v)| (k.clone(), v.clone())));
        } else if let (Value::Message(update), true) = (value, target.has_field(&field)) {
            merge(target.get_field_mut(&field).as_message_mut().expect("a message"), update);
        } else {
            target.set_field(&field, value.clone());
        }
    }
}

fn says_removed(value: &Value) -> bool {
    value
        .as_message()
        .and_then(|message| message.get_field_by_name("removed").and_then(|value| value.as_bool()))
        .unwrap_or(false)
}

/// The default merge with a channel's options (§7.3), and with those of a custom merge that deletes
/// removed entries.
pub(super) fn merge_with(
    target: &mut DynamicMessage,
    update: &DynamicMessage,
    options: Option<&MergeOptions>,
    removable: bool,
) {
    merge(target, update);
    let check = options.map_or(removable, |options| options.check_removable);
    let populated: Vec<FieldDescriptor> = target.fields().map(|(field, _)| field).collect();
    for field in populated {
        if let Some(list) = target.get_field_mut(&field).as_list_mut() {
            let Some(options) = options else { continue };
            let source = update.get_field(&field);
            let source = source.as_list().expect("the same list");
            if options.replace_list && !source.is_empty() {
                *list = source.to_vec();
            }
            let limit = options.list_size_limit as usize;
            if limit > 0 && list.len() > limit {
                if options.truncate_top {
                    list.drain(..list.len() - limit);
                } else {
                    list.truncate(limit);
                }
            }
        } else if let Some(map) = target.get_field_mut(&field).as_map_mut()
            && check
        {
            if removable {
                // A custom merge looks at the entries of the update only.
                let source = update.get_field(&field);
                let source = source.as_map().expect("the same map");
                map.retain(|key, _| !source.get(key).is_some_and(says_removed));
            } else {
                map.retain(|_, value| !says_removed(value));
            }
        }
    }
}

/// The Unreal profile (§9.4) for types that are not entity data.
pub(super) fn merge_unreal(target: &mut DynamicMessage, update: &DynamicMessage) {
    let is_actor = |field: &FieldDescriptor| {
        let Kind::Message(entry) = field.kind() else { return false };
        matches!(entry.map_entry_value_field().kind(), Kind::Message(value) if value.full_name() == "unrealpb.ActorState")
    };
    let is_component = |field: &FieldDescriptor| {
        let Kind::Message(entry) = field.kind() else { return false };
        let Kind::Message(value) = entry.map_entry_value_field().kind() else { return false };
        !is_actor(field) && value.get_field_by_name("removed").is_some_and(|field| field.kind() == Kind::Bool)
    };
    let mut fields: Vec<(FieldDescriptor, &Value)> = update.fields().collect();
    fields.sort_by_key(|(field, _)| (field.is_map() && is_actor(field), field.number()));
    for (field, value) in fields {
        let Some(entries) = value.as_map() else {
            let mut single = DynamicMessage::new(update.descriptor());
            single.set_field(&field, value.clone());
            merge(target, &single);
            continue;
        };
        for (key, value) in entries {
            if (is_component(&field) || is_actor(&field)) && says_removed(value) {
                let maps: Vec<FieldDescriptor> =
                    target.descriptor().fields().filter(|f| f.is_map()).collect();
                for map in maps {
                    if map == field || (is_actor(&field) && !is_component(&map)) {
                        target.get_field_mut(&map).as_map_mut().expect("a map").remove(key);
                    }
                }
                continue;
            }
            let map = target.get_field_mut(&field).as_map_mut().expect("a map");
            match (map.get_mut(key), value) {
                (Some(Value::Message(old)), Value::Message(value)) => merge(old, value),
                _ => {
                    map.insert(key.clone(), value.clone());
                }
            }
        }
    }
}

/// What a field mask keeps (§7.4). `removed` survives in map values.
pub(super) fn mask(message: &mut DynamicMessage, paths: &[Vec<String>]) {
    if paths.iter().all(Vec::is_empty) {
        return;
    }
    let populated: Vec<FieldDescriptor> = message.fields().map(|(field, _)| field).collect();
    for field in populated {
        let inner: Vec<Vec<String>> = paths
            .iter()
            .filter(|path| path.first().is_some_and(|name| name == field.name()))
            .map(|path| path[1..].to_vec())
            .collect();
        if inner.is_empty() {
            message.clear_field(&field);
            continue;
        }
        match message.get_field_mut(&field) {
            Value::Message(value) => mask(value, &inner),
            Value::List(list) => {
                list.iter_mut().filter_map(Value::as_message_mut).for_each(|m| mask(m, &inner))
            }
            Value::Map(map) => {
                for value in map.values_mut() {
                    let removed = says_removed(value);
                    let Some(value) = value.as_message_mut() else { continue };
                    mask(value, &inner);
                    if removed {
                        value.set_field_by_name("removed", Value::Bool(true));
                    }
                }
            }
            _ => {}
        }
    }
}

/// A random message. `density` is the chance of each field, `depth` how deep it may nest.
pub(super) fn random(
    rng: &mut Rng,
    descriptor: &MessageDescriptor,
    density: f64,
    depth: u32,
) -> DynamicMessage {
    let mut message = DynamicMessage::new(descriptor.clone());
    for field in descriptor.fields() {
        let nests = matches!(field.kind(), Kind::Message(_)) && !field.is_map();
        if !rng.chance(density) || (nests && depth == 0) {
            continue;
        }
        let value = if let (true, Kind::Message(entry)) = (field.is_map(), field.kind()) {
            let mut entries: Vec<(MapKey, Value)> = Vec::new();
            for _ in 0..rng.below(4) {
                let key = scalar(rng, &entry.map_entry_key_field().kind()).into_map_key().expect("a key");
                let value =
                    single(rng, &entry.map_entry_value_field().kind(), density, depth.saturating_sub(1));
                entries.push((key, value));
            }
            Value::Map(entries.into_iter().collect())
        } else if field.is_list() {
            Value::List(
                (0..rng.below(5))
                    .map(|_| single(rng, &field.kind(), density, depth - u32::from(nests)))
                    .collect(),
            )
        } else {
            single(rng, &field.kind(), density, depth - u32::from(nests))
        };
        message.set_field(&field, value);
    }
    message
}

fn single(rng: &mut Rng, kind: &Kind, density: f64, depth: u32) -> Value {
    match kind {
        Kind::Message(descriptor) => Value::Message(random(rng, descriptor, density, depth)),
        kind => scalar(rng, kind),
    }
}

/// Few distinct values, so that keys meet and zeros are common.
fn scalar(rng: &mut Rng, kind: &Kind) -> Value {
    let few = rng.below(5);
    let wide = if rng.chance(0.2) { rng.next_u64() } else { few };
    match kind {
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => Value::I32(wide as i32),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => Value::I64(wide as i64),
        Kind::Uint32 | Kind::Fixed32 => Value::U32(wide as u32),
        Kind::Uint64 | Kind::Fixed64 => Value::U64(wide),
        Kind::Float => Value::F32(few as f32 / 2.0),
        Kind::Double => Value::F64(few as f64 / 2.0),
        Kind::Bool => Value::Bool(few % 2 == 1),
        Kind::String => Value::String("né".repeat(few as usize)),
        Kind::Bytes => Value::Bytes(vec![few as u8; few as usize].into()),
        Kind::Enum(_) => Value::EnumNumber(few.min(2) as i32),
        Kind::Message(descriptor) => Value::Message(DynamicMessage::new(descriptor.clone())),
    }
}
