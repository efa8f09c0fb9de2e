//! Questions about a type's fields by name, for code that reads single fields out of encoded data.

use super::plan::{Kind, Plan};

/// A field as readers of single fields need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    /// Field number.
    pub(crate) number: u32,
    /// A singular message.
    pub(crate) message: bool,
}

/// The field that a path of names leads to, through singular messages.
pub(crate) fn field(plan: &Plan, path: &[&str]) -> Option<Field> {
    let mut index = plan.root?;
    let mut found = None;
    for (depth, name) in path.iter().enumerate() {
        let message = plan.types.get(index);
        let slot = message.fields.iter().position(|field| &*field.name == *name)?;
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
