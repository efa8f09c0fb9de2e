//! The updates of a window for receivers that each leave out their own, at a cost that grows with
//! the updates and the receivers and not with their product.
//!
//! ```text
//! page      | A | B |  C and D  | E |      merged once; blocks say nothing about the same things
//! for B     | A |   |  C and D  | E |      two pieces of the page, by reference
//! for C     | A | B |     D     | E |      three: where senders touched the same, their part is made anew
//! ```
//!
//! Concatenated messages are their merge to every protobuf decoder, so the pieces need no merging.
//! What decides is which senders *touched* the same thing: an entry of a map, or a field that is no
//! map. Senders that did form a group, whose updates stay in order.

use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use hashbrown::{DefaultHashBuilder, HashMap};
use smallvec::SmallVec;

use super::check::Update;
use super::cursor::Records;
use super::delta::merged;
use super::map::entry_parts;
use super::mask::FieldMask;
use super::plan::{Kind, MergeOptions, Plan, Profile};

/// The updates of one window, merged so that everything but the updates of one sender can be told
/// by reference.
#[derive(Debug)]
pub struct Mosaic {
    plan: Arc<Plan>,
    options: Option<MergeOptions>,
    mask: Option<Arc<FieldMask>>,
    page_bytes_max: usize,
    /// In handling order.
    updates: Vec<(u32, Update)>,
    pages: Vec<Bytes>,
    groups: Vec<Group>,
    /// Place in `groups`.
    by_sender: HashMap<u32, usize>,
}

/// Senders that touched the same.
#[derive(Debug, Default)]
struct Group {
    /// Indices into `updates`.
    updates: Vec<usize>,
    has_several: bool,
    /// The pages with the group's block; one, or several that hold nothing else.
    pages: Range<usize>,
    /// Where the block lies in its page, if it shares the page.
    cut: Option<Range<usize>>,
    /// The updates one after the other, if that is their merge: made when the first of the senders
    /// asks.
    joined: Option<Joined>,
}

#[derive(Debug)]
struct Joined {
    bytes: Bytes,
    /// Sender and end of each update in `bytes`.
    ends: Vec<(u32, usize)>,
}

/// Everything but the updates of one sender.
#[derive(Debug, Default)]
pub struct Others {
    /// Every page is part of it but these.
    pub without: Range<usize>,
    /// Pieces that form one more message; empty for none.
    pub pieces: SmallVec<[Bytes; 4]>,
    /// Messages of their own, in order.
    pub messages: SmallVec<[Bytes; 1]>,
}

impl Mosaic {
    /// Lays out the updates of a window, each with its sender, in the order in which they were
    /// handled.
    ///
    /// Pages hold `page_bytes_max` bytes, more only where a single block is longer. Cost: a look at
    /// every record, and a merge per group of senders that touched the same.
    #[must_use]
    pub fn new<'a>(
        plan: &Arc<Plan>,
        options: Option<MergeOptions>,
        mask: Option<Arc<FieldMask>>,
        page_bytes_max: usize,
        updates: impl Iterator<Item = (u32, &'a Update)>,
    ) -> Self {
        let updates: Vec<(u32, Update)> = updates.map(|(sender, update)| (sender, update.clone())).collect();
        let (groups, by_sender) = group(plan, &updates);
        let plan = Arc::clone(plan);
        let mut mosaic =
            Self { plan, options, mask, page_bytes_max, updates, pages: Vec::new(), groups, by_sender };
        mosaic.lay_out();
        mosaic
    }

    /// The pages: messages that together say everything.
    #[must_use]
    pub fn pages(&self) -> &[Bytes] {
        &self.pages
    }

    /// What a receiver gets that does not want its own updates back.
    #[must_use]
    pub fn others(&mut self, sender: u32) -> Others {
        let Some(&at) = self.by_sender.get(&sender) else { return Others::default() };
        let rest = if self.groups[at].has_several { self.rest_of_group(at, sender) } else { Rest::Nothing };
        let group = &self.groups[at];
        let mut others = Others { without: group.pages.clone(), ..Others::default() };
        let Some(cut) = group.cut.clone() else {
            others.messages = rest.into_messages();
            return others;
        };
        let page = &self.pages[group.pages.start];
        let keep = |piece: Bytes| Some(piece).filter(|piece| !piece.is_empty());
        others.pieces.extend(keep(page.slice(..cut.start)));
        match rest {
            Rest::Pieces(pieces) if page.len() - cut.len() + len(&pieces) <= self.page_bytes_max => {
                others.pieces.extend(pieces);
            }
            rest => others.messages = rest.into_messages(),
        }
        others.pieces.extend(keep(page.slice(cut.end..)));
        others
    }

    /// Merges the updates of every group and fills pages with the blocks.
    fn lay_out(&mut self) {
        let mut page = Vec::new();
        for at in 0..self.groups.len() {
            let group = &self.groups[at];
            let updates = group.updates.iter().map(|&at| &self.updates[at].1);
            let blocks = merged(&self.plan, self.options.as_ref(), self.mask.as_deref(), updates);
            let (pages, cut) = match blocks.as_slice() {
                [block] if block.len() <= self.page_bytes_max => {
                    if page.len() + block.len() > self.page_bytes_max {
                        self.pages.push(std::mem::take(&mut page).into());
                    }
                    let start = page.len();
                    page.extend_from_slice(block);
                    (self.pages.len()..self.pages.len() + 1, Some(start..page.len()))
                }
                [] => (self.pages.len()..self.pages.len(), None),
                // Several messages, or one that must be split: nobody may share a page with them.
                blocks => {
                    if !page.is_empty() {
                        self.pages.push(std::mem::take(&mut page).into());
                    }
                    let first = self.pages.len();
                    self.pages.extend_from_slice(blocks);
                    (first..self.pages.len(), None)
                }
            };
            let group = &mut self.groups[at];
            (group.pages, group.cut) = (pages, cut);
        }
        self.pages.push(page.into());
    }

    /// What the other senders of a group say.
    fn rest_of_group(&mut self, at: usize, sender: u32) -> Rest {
        if !self.joins() {
            let indices = self.groups[at].updates.iter();
            let updates = indices.map(|&at| &self.updates[at]).filter(|(from, _)| *from != sender);
            let updates = updates.map(|(_, update)| update);
            let messages = merged(&self.plan, self.options.as_ref(), self.mask.as_deref(), updates);
            return if messages.len() == 1 {
                Rest::Pieces(messages.into_iter().collect())
            } else {
                Rest::Messages(messages)
            };
        }
        if self.groups[at].joined.is_none() {
            self.groups[at].joined = Some(self.join(at));
        }
        let mut pieces: SmallVec<[Bytes; 4]> = SmallVec::new();
        if let Some(joined) = &self.groups[at].joined {
            let (mut start, mut end) = (0, 0);
            for &(from, next) in &joined.ends {
                if from == sender {
                    if start < end {
                        pieces.push(joined.bytes.slice(start..end));
                    }
                    start = next;
                }
                end = next;
            }
            if start < end {
                pieces.push(joined.bytes.slice(start..end));
            }
        }
        Rest::Pieces(pieces)
    }

    /// Whether updates that touch the same may be told by putting one behind the other. Not where
    /// entries merge deeply, where a oneof may leave a message and return to it, nor where lists
    /// are cut or replaced.
    fn joins(&self) -> bool {
        let cuts = self.options.is_some_and(|options| options.replace_list || options.list_size_limit > 0);
        let root = self.plan.root;
        let oneof = root.is_some_and(|root| self.plan.types.get(root).has_message_oneof);
        let deep = self.plan.profile == Profile::Unreal || self.plan.has_copies();
        root.is_none() || !(cuts || oneof || deep)
    }

    fn join(&self, at: usize) -> Joined {
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        for &index in &self.groups[at].updates {
            let (from, update) = &self.updates[index];
            // Through a delta of its own: zeros that mean nothing in an update would mean something
            // behind others.
            for message in super::delta::rewritten(&self.plan, self.mask.as_deref(), update) {
                bytes.extend_from_slice(&message);
            }
            ends.push((*from, bytes.len()));
        }
        Joined { bytes: bytes.into(), ends }
    }
}

/// What the others of a group say.
enum Rest {
    Nothing,
    /// One message in pieces.
    Pieces(SmallVec<[Bytes; 4]>),
    Messages(SmallVec<[Bytes; 1]>),
}

impl Rest {
    fn into_messages(self) -> SmallVec<[Bytes; 1]> {
        match self {
            Rest::Nothing => SmallVec::new(),
            Rest::Messages(messages) => messages,
            Rest::Pieces(pieces) if pieces.is_empty() => SmallVec::new(),
            Rest::Pieces(pieces) => SmallVec::from_buf([pieces.concat().into()]),
        }
    }
}

fn len(pieces: &[Bytes]) -> usize {
    pieces.iter().map(Bytes::len).sum()
}

/// Finds the groups of senders that touched the same, in the order of their first updates.
fn group(plan: &Plan, updates: &[(u32, Update)]) -> (Vec<Group>, HashMap<u32, usize>) {
    let mut senders: HashMap<u32, usize> = HashMap::with_capacity(updates.len());
    // Union-find over senders.
    let mut parents: Vec<usize> = Vec::new();
    let mut touched: HashMap<(u32, u64), usize> = HashMap::with_capacity(updates.len());
    let hasher = DefaultHashBuilder::default();
    for (sender, update) in updates {
        let at = *senders.entry(*sender).or_insert_with(|| {
            parents.push(parents.len());
            parents.len() - 1
        });
        for record in Records::new(update.bytes()) {
            let other =
                *touched.entry(touch(plan, &hasher, record.number, record.wire, record.raw)).or_insert(at);
            if other != at {
                let (one, two) = (root_of(&mut parents, other), root_of(&mut parents, at));
                parents[one.max(two)] = one.min(two);
            }
        }
    }
    let mut groups: Vec<Group> = Vec::new();
    let mut places: BTreeMap<usize, usize> = BTreeMap::new();
    let mut firsts: Vec<u32> = Vec::new();
    for (index, (sender, _)) in updates.iter().enumerate() {
        let root = root_of(&mut parents, senders[sender]);
        let place = *places.entry(root).or_insert_with(|| {
            groups.push(Group::default());
            firsts.push(*sender);
            groups.len() - 1
        });
        groups[place].updates.push(index);
        groups[place].has_several |= firsts[place] != *sender;
    }
    let by_sender =
        senders.into_iter().map(|(sender, at)| (sender, places[&root_of(&mut parents, at)])).collect();
    (groups, by_sender)
}

fn root_of(parents: &mut [usize], mut at: usize) -> usize {
    while parents[at] != at {
        parents[at] = parents[parents[at]];
        at = parents[at];
    }
    at
}

/// What a record of an update is about. Different things may give the same, never the other way
/// round.
fn touch(plan: &Plan, hasher: &DefaultHashBuilder, number: u32, wire: u8, raw: &[u8]) -> (u32, u64) {
    let Some(root) = plan.root else { return (0, 0) };
    let types = plan.types.get(root);
    let field = types.classify(number, wire).map(|slot| &types.fields[usize::from(slot)]);
    let key = match field.map(|field| (field.kind, field.oneof)) {
        Some((Kind::Map { key, .. }, _)) => key,
        // The members of a oneof push each other out. No field has such a number.
        Some((_, Some(oneof))) => return (1 << 30 | u32::from(oneof), 0),
        _ => return (number, 0),
    };
    let payload = entry_parts(raw).key;
    let bits = if key.is_text() { hasher.hash_one(payload) } else { key.key_bits(payload) };
    // A removed actor takes the entries of its key in other maps along.
    if plan.profile == Profile::Unreal { (0, bits) } else { (number, bits) }
}
