//! The data of one channel.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use super::DataError;
use super::check::Update;
use super::mask::{FieldMask, MaskNode};
use super::node::{Node, Rules, Target};
use super::plan::{MergeOptions, Plan, TypeIndex};

/// The data of one channel: everything merged so far.
#[derive(Clone, Debug)]
pub struct ChannelData {
    plan: Arc<Plan>,
    content: Content,
    /// The encoded data is no longer than this, what waits included.
    len_max: usize,
    latest: Option<Latest>,
}

/// The latest update, if it is a short one. One that [covers](Update::covers) it takes its place
/// without a merge: a character that moves is merged when somebody asks for its state, not thirty
/// times a second.
#[derive(Clone, Debug)]
struct Latest {
    update: Update,
    options: Option<MergeOptions>,
    /// It is not part of the content yet.
    waits: bool,
}

/// Longest update that may wait to be merged. Longer ones are rarely about the same fields as the
/// one before, and keeping them would hold memory.
const WAITING_BYTES_MAX: usize = 1024;

#[derive(Clone, Debug)]
enum Content {
    Tree(TypeIndex, Node),
    Opaque(OpaqueData),
}

/// Updates of a type without a schema, oldest first.
#[derive(Clone, Debug, Default)]
struct OpaqueData {
    updates: VecDeque<Bytes>,
    bytes: usize,
    dropped: u64,
}

impl ChannelData {
    /// Empty data.
    #[must_use]
    pub fn new(plan: Arc<Plan>) -> Self {
        let content = match plan.root {
            Some(root) => Content::Tree(root, Node::default()),
            None => Content::Opaque(OpaqueData::default()),
        };
        Self { plan, content, len_max: 0, latest: None }
    }

    /// Data that starts as the encoded message `bytes`: no profile and no options act on it.
    ///
    /// # Errors
    /// When the bytes are not a valid encoding or exceed the bound.
    pub fn from_bytes(plan: Arc<Plan>, bytes: &[u8]) -> Result<Self, DataError> {
        let update = Update::check(&plan, Bytes::copy_from_slice(bytes))?;
        Self::from_update(plan, &update)
    }

    /// Data that starts as an update that was checked against `plan`: how the first update of a
    /// channel without data becomes its data.
    ///
    /// # Errors
    /// [`DataError::TooLarge`] when it exceeds the bound.
    pub fn from_update(plan: Arc<Plan>, update: &Update) -> Result<Self, DataError> {
        let mut data = Self::new(plan);
        data.apply(update, None, Target::Load)?;
        Ok(data)
    }

    /// Checks `update` and merges it. On an error nothing has changed.
    ///
    /// # Errors
    /// When the bytes are not a valid encoding, or the data could outgrow its bound.
    pub fn merge(&mut self, update: &[u8], options: Option<&MergeOptions>) -> Result<(), DataError> {
        let update = Update::check(&self.plan, Bytes::copy_from_slice(update))?;
        self.merge_checked(&update, options).map(drop)
    }

    /// Merges an update that was checked against this data's plan. On an error nothing has changed.
    /// Gives back the update before it if the new one [covers](Update::covers) that and has taken
    /// its place.
    ///
    /// # Errors
    /// [`DataError::TooLarge`] when the data could outgrow its bound.
    pub fn merge_checked(
        &mut self,
        update: &Update,
        options: Option<&MergeOptions>,
    ) -> Result<Option<Update>, DataError> {
        if let Some(covered) = self.put_off(update, options) {
            return Ok(Some(covered));
        }
        self.settle();
        self.apply(update, options, Target::State)?;
        let short = update.bytes().len() <= WAITING_BYTES_MAX && self.plan.root.is_some();
        self.latest =
            short.then(|| Latest { update: update.clone(), options: options.copied(), waits: false });
        Ok(None)
    }

    /// Keeps an update that covers the latest one in its place, and gives that back. `None`, and
    /// nothing done, if it is not the same as merging it or might exceed the bound.
    fn put_off(&mut self, update: &Update, options: Option<&MergeOptions>) -> Option<Update> {
        let latest = self.latest.as_mut()?;
        let covers = latest.options.as_ref() == options && update.covers(&latest.update, &self.plan);
        if !covers || update.bytes().len() > WAITING_BYTES_MAX {
            return None;
        }
        let instead_of = if latest.waits { grown(&latest.update) } else { 0 };
        let len_max = self.len_max - instead_of + grown(update);
        if len_max > self.plan.limits.state_bytes_max {
            return None;
        }
        self.len_max = len_max;
        latest.waits = true;
        Some(std::mem::replace(&mut latest.update, update.clone()))
    }

    /// Merges what waits. Reading does not need it; it saves repeated readers the work.
    pub fn settle(&mut self) {
        if let Content::Tree(root, node) = &mut self.content
            && let Some(latest) = self.latest.as_mut().filter(|latest| latest.waits)
        {
            latest.waits = false;
            latest.merge_into(node, &self.plan, *root);
        }
    }

    /// Whether an update waits to be merged.
    #[cfg(test)]
    pub(super) fn waits(&self) -> bool {
        self.latest.as_ref().is_some_and(|latest| latest.waits)
    }

    /// The tree with everything merged.
    fn settled<'a>(&self, root: TypeIndex, node: &'a Node) -> Cow<'a, Node> {
        let mut node = Cow::Borrowed(node);
        if let Some(latest) = self.latest.as_ref().filter(|latest| latest.waits) {
            latest.merge_into(node.to_mut(), &self.plan, root);
        }
        node
    }

    fn apply(
        &mut self,
        update: &Update,
        options: Option<&MergeOptions>,
        target: Target,
    ) -> Result<(), DataError> {
        match &mut self.content {
            Content::Tree(root, node) => {
                let rules = Rules::new(self.plan.profile, target, options);
                let limit = self.plan.limits.state_bytes_max;
                let types = &self.plan.types;
                // Measuring takes a walk over the data, so that is done when what updates can have
                // added no longer fits.
                let grown = grown(update);
                self.len_max = self.len_max.saturating_add(grown);
                if self.len_max > limit {
                    self.len_max = node.encoded_len(types, *root).saturating_add(grown);
                }
                if self.len_max <= limit {
                    node.apply(&self.plan, *root, update.bytes(), update.notes, rules);
                    return Ok(());
                }
                // The update may replace more than it adds. Near the limit that is tried on a copy.
                let mut copy = node.clone();
                copy.apply(&self.plan, *root, update.bytes(), update.notes, rules);
                let bytes = copy.encoded_len(types, *root);
                if bytes > limit {
                    self.len_max -= grown;
                    return Err(DataError::TooLarge { bytes, limit });
                }
                *node = copy;
                self.len_max = bytes;
                Ok(())
            }
            Content::Opaque(data) => data.push(update.bytes(), self.plan.limits.opaque_bytes_max),
        }
    }

    /// Appends the encoded data, or what `mask` keeps of it. Fields come by number and map entries
    /// in the order in which their keys first came, so equal histories give equal bytes.
    pub fn encode(&self, mask: Option<&FieldMask>, out: &mut Vec<u8>) {
        match &self.content {
            Content::Tree(root, node) => {
                let node = self.settled(*root, node);
                let mask: Option<&MaskNode> = FieldMask::node(mask);
                if mask.is_none() {
                    out.reserve(node.encoded_len(&self.plan.types, *root));
                }
                node.encode(&self.plan.types, *root, mask, out);
            }
            Content::Opaque(data) => {
                for update in &data.updates {
                    out.extend_from_slice(update);
                }
            }
        }
    }

    /// Size of the encoded data without a mask, in bytes.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        match &self.content {
            Content::Tree(root, node) => self.settled(*root, node).encoded_len(&self.plan.types, *root),
            Content::Opaque(data) => data.bytes,
        }
    }

    /// Memory held by the data, in bytes.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let latest = self.latest.as_ref().map_or(0, |latest| latest.update.bytes().len());
        latest
            + match &self.content {
                Content::Tree(_, node) => node.heap_bytes(),
                Content::Opaque(data) => data.bytes + data.updates.capacity() * size_of::<Bytes>(),
            }
    }

    /// The plan of the data's type.
    #[must_use]
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// Updates of a type without a schema that were dropped to stay within the bound.
    #[must_use]
    pub fn dropped_updates(&self) -> u64 {
        match &self.content {
            Content::Tree(..) => 0,
            Content::Opaque(data) => data.dropped,
        }
    }
}

impl Latest {
    fn merge_into(&self, node: &mut Node, plan: &Plan, root: TypeIndex) {
        let rules = Rules::new(plan.profile, Target::State, self.options.as_ref());
        node.apply(plan, root, self.update.bytes(), self.update.notes, rules);
    }
}

/// How much longer an update can make the encoded data: at worst a list of one-byte numbers is
/// written with a tag of five bytes for each.
fn grown(update: &Update) -> usize {
    update.bytes().len().saturating_mul(8)
}

impl OpaqueData {
    /// Keeps a copy of the update, and of those before it as many as the bound allows.
    fn push(&mut self, update: &Bytes, limit: usize) -> Result<(), DataError> {
        if update.len() > limit {
            return Err(DataError::TooLarge { bytes: update.len(), limit });
        }
        if update.is_empty() {
            return Ok(());
        }
        while self.bytes + update.len() > limit {
            let Some(oldest) = self.updates.pop_front() else { break };
            self.bytes -= oldest.len();
            self.dropped += 1;
        }
        self.bytes += update.len();
        self.updates.push_back(update.clone());
        Ok(())
    }
}
