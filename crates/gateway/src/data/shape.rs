//! Questions about a type's fields by name, for code that reads single fields out of encoded data.

use std::collections::BTreeSet;

use smallvec::SmallVec;

use super::plan::{Kind, Plan};

/// A field as readers of single fields need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    /// Field number.
    pub(crate) number: u32,
    /// A singular message.
    pub(crate) message: bool,
}

/// A vector within a message: the numbers of the fields that lead to it, and of its components.
pub(crate) struct Vector {
    pub(crate) path: SmallVec<[u32; 3]>,
    /// `x`, `y` and `z`.
    pub(crate) components: [u32; 3],
}

/// The vector at a path of names joined by dots, if one is there.
pub(crate) fn vector(plan: &Plan, path: &str) -> Option<Vector> {
    let names: SmallVec<[&str; 4]> = path.split('.').collect();
    let mut numbers = SmallVec::new();
    for depth in 1..=names.len() {
        let field = field(plan, &names[..depth])?;
        if !field.message {
            return None;
        }
        numbers.push(field.number);
    }
    let component = |name: &'static str| {
        let names: SmallVec<[&str; 4]> = names.iter().copied().chain([name]).collect();
        field(plan, &names).map(|field| field.number)
    };
    Some(Vector { path: numbers, components: [component("x")?, component("y")?, component("z")?] })
}

/// Adds the paths of all vectors of a type that are at most [`VECTOR_DEPTH`] names long.
pub(crate) fn vectors(plan: &Plan, paths: &mut BTreeSet<String>) {
    let mut open = Vec::from_iter(plan.root.map(|root| (root, String::new(), 0)));
    while let Some((index, prefix, depth)) = open.pop() {
        let message = plan.types.get(index);
        let has = |name| message.fields.iter().any(|field| &*field.name == name);
        if depth > 0 && ["x", "y", "z"].into_iter().all(has) {
            paths.insert(prefix.clone());
        }
        if depth < VECTOR_DEPTH && paths.len() < VECTORS_MAX {
            open.extend(message.fields.iter().filter_map(|field| match field.kind {
                Kind::Message(sub) if prefix.is_empty() => Some((sub, field.name.to_string(), depth + 1)),
                Kind::Message(sub) => Some((sub, format!("{prefix}.{}", field.name), depth + 1)),
                _ => None,
            }));
        }
    }
}

const VECTOR_DEPTH: usize = 4;
const VECTORS_MAX: usize = 1_000;

/// The name that protobuf gives a field in JSON.
fn json_name(name: &str) -> String {
    let mut json = String::with_capacity(name.len());
    let mut upper = false;
    for character in name.chars() {
        match character {
            '_' => upper = true,
            other if upper => {
                json.extend(other.to_uppercase());
                upper = false;
            }
            other => json.push(other),
        }
    }
    json
}

/// The field that a path of names leads to, through singular messages. Names are compared as in
/// JSON, so that `net_guid` and `netGuid` are one.
pub(crate) fn field(plan: &Plan, path: &[&str]) -> Option<Field> {
    let mut index = plan.root?;
    let mut found = None;
    for (depth, name) in path.iter().enumerate() {
        let message = plan.types.get(index);
        let json = json_name(name);
        let slot = message.fields.iter().position(|field| *field.json == *json || &*field.name == *name)?;
        let number = message.steps[slot].number;
        let sub = match message.fields[slot].kind {
            Kind::Message(sub) => Some(sub),
            _ => None,
        };
        found = Some(Field { number, message: sub.is_some() });
        if depth + 1 < path.len() {
            index = sub?;
        }
    }
    found
}
