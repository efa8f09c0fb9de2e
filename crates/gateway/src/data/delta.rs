//! The updates of a fan-out window, folded into one.

use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use super::DataError;
use super::check::Update;
use super::mask::{FieldMask, MaskNode};
use super::node::{Node, Rules, Target};
use super::plan::{MergeOptions, Plan};

/// An accumulation of updates that does to a receiver's state what the updates would have done one
/// by one.
///
/// Removals stay in it. The channel's list options act on the accumulated lists from the second
/// update on, as in the reference; a receiver with the same options ends with the same lists.
///
/// Rarely one message cannot say it all: an entry that was removed and came back in a type whose
/// entries merge deeply. Then the delta grows a second message, and [`Delta::encode_messages`]
/// gives both.
#[derive(Clone, Debug)]
pub struct Delta {
    plan: Arc<Plan>,
    /// Encoded messages before the current one.
    sealed: Vec<Bytes>,
    node: Node,
    /// Updates of a type without a schema.
    opaque: Vec<u8>,
    /// Updates in the current message.
    count: usize,
}

impl Delta {
    /// An empty delta.
    #[must_use]
    pub fn new(plan: Arc<Plan>) -> Self {
        Self { plan, sealed: Vec::new(), node: Node::default(), opaque: Vec::new(), count: 0 }
    }

    /// Checks `update` and folds it in. On an error nothing has changed.
    ///
    /// # Errors
    /// When the bytes are not a valid encoding.
    pub fn accumulate(&mut self, update: &[u8], options: Option<&MergeOptions>) -> Result<(), DataError> {
        let update = Update::check(&self.plan, Bytes::copy_from_slice(update))?;
        self.accumulate_checked(&update, options);
        Ok(())
    }

    /// Folds in an update that was checked against this delta's plan.
    pub fn accumulate_checked(&mut self, update: &Update, options: Option<&MergeOptions>) {
        let Some(root) = self.plan.root else {
            self.opaque.extend_from_slice(update.bytes());
            return;
        };
        if self.count > 0 && self.node.conflicts(&self.plan, root, update.bytes()) {
            let mut out = Vec::with_capacity(self.node.encoded_len(&self.plan.types, root));
            self.node.encode(&self.plan.types, root, None, &mut out);
            self.sealed.push(Bytes::from(out));
            self.node.clear();
            self.count = 0;
        }
        // The first update of a message is taken as it is.
        let options = options.filter(|_| self.count > 0);
        let rules = Rules::new(self.plan.profile, Target::Delta, options);
        self.node.apply(&self.plan, root, update.bytes(), update.notes, rules);
        self.count += 1;
    }

    /// Appends the accumulated updates, or what `mask` keeps of them, as one message.
    ///
    /// When the delta holds several messages they are concatenated, which decoders read as one;
    /// only what [`Delta::encode_messages`] is for gets lost.
    pub fn encode(&self, mask: Option<&FieldMask>, out: &mut Vec<u8>) {
        for message in &self.sealed {
            self.filter_sealed(mask, message, out);
        }
        self.encode_last(mask, out);
    }

    /// Encodes every message of the delta, or what `mask` keeps of it, leaving out empty ones, in
    /// the order in which they must be applied. Nearly always one.
    pub fn encode_messages(&self, mask: Option<&FieldMask>, out: &mut Vec<Bytes>) {
        for message in &self.sealed {
            let mut bytes = Vec::new();
            self.filter_sealed(mask, message, &mut bytes);
            if !bytes.is_empty() {
                out.push(Bytes::from(bytes));
            }
        }
        let mut bytes = Vec::new();
        self.encode_last(mask, &mut bytes);
        if !bytes.is_empty() {
            out.push(Bytes::from(bytes));
        }
    }

    /// Number of messages the delta consists of, at least 1.
    #[must_use]
    pub fn message_count(&self) -> usize {
        self.sealed.len() + 1
    }

    /// Whether the delta would encode to nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sealed.is_empty() && self.opaque.is_empty() && self.node.is_empty()
    }

    /// Empties the delta for the next window. Memory is kept.
    pub fn clear(&mut self) {
        self.sealed.clear();
        self.node.clear();
        self.opaque.clear();
        self.count = 0;
    }

    /// Size of the encoded delta without a mask, in bytes.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let last =
            self.plan.root.map_or(self.opaque.len(), |root| self.node.encoded_len(&self.plan.types, root));
        self.sealed.iter().map(Bytes::len).sum::<usize>() + last
    }

    /// Memory held, in bytes.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let sealed: usize = self.sealed.iter().map(Bytes::len).sum();
        sealed + self.node.heap_bytes() + self.opaque.capacity()
    }

    /// The plan of the updates' type.
    #[must_use]
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    fn filter_sealed(&self, mask: Option<&FieldMask>, message: &Bytes, out: &mut Vec<u8>) {
        match mask {
            Some(mask) => super::filter(&self.plan, mask, message, out),
            None => out.extend_from_slice(message),
        }
    }

    fn encode_last(&self, mask: Option<&FieldMask>, out: &mut Vec<u8>) {
        match self.plan.root {
            Some(root) => {
                let mask: Option<&MaskNode> = FieldMask::node(mask);
                self.node.encode(&self.plan.types, root, mask, out);
            }
            None => out.extend_from_slice(&self.opaque),
        }
    }
}

/// Merges updates to the messages that say the same; one message in nearly every case. A single
/// update passes as it is.
pub fn merged<'a>(
    plan: &Arc<Plan>,
    options: Option<&MergeOptions>,
    mask: Option<&FieldMask>,
    mut updates: impl Iterator<Item = &'a Update>,
) -> SmallVec<[Bytes; 1]> {
    let Some(first) = updates.next() else { return SmallVec::new() };
    let Some(second) = updates.next() else {
        let Some(mask) = mask else { return SmallVec::from_buf([first.bytes().clone()]) };
        let mut out = Vec::new();
        super::filter(plan, mask, first.bytes(), &mut out);
        return SmallVec::from_buf([out.into()]);
    };
    let mut delta = Delta::new(Arc::clone(plan));
    for update in [first, second].into_iter().chain(updates) {
        delta.accumulate_checked(update, options);
    }
    let mut out = Vec::new();
    delta.encode_messages(mask, &mut out);
    out.into()
}

/// An update without what means nothing: zeros of fields without presence.
pub(crate) fn rewritten(plan: &Arc<Plan>, mask: Option<&FieldMask>, update: &Update) -> Vec<Bytes> {
    let mut delta = Delta::new(Arc::clone(plan));
    delta.accumulate_checked(update, None);
    let mut out = Vec::new();
    delta.encode_messages(mask, &mut out);
    out
}
