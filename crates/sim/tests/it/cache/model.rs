//! Model of what a cache holds: the values that each key may have.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::StatusCode;
use throng_ddc::{Document, IoHash, Key};

use super::requests::{Op, Seen, raw_object};

/// Value of a ref: its object, and whether everything that it reaches was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Value {
    pub(super) object: IoHash,
    pub(super) finalised: bool,
}

/// Values that a key may have.
pub(super) type Possible = BTreeSet<Option<Value>>;

#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    /// Everything that was ever sent.
    pub(super) bytes: BTreeMap<IoHash, Bytes>,
    /// Blobs that were acknowledged, and neither deleted nor collected.
    pub(super) blobs: BTreeSet<IoHash>,
    /// Compressed buffers that were acknowledged, by the hash of their content.
    pub(super) forms: BTreeMap<IoHash, BTreeSet<IoHash>>,
    pub(super) refs: BTreeMap<Key, Possible>,
    /// Every value that a key had or may have had.
    pub(super) history: BTreeMap<Key, Possible>,
    /// Conditions under which requests may fail.
    pub(super) trouble: Trouble,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trouble {
    /// Writes or the bucket fail: an answer may be 503, and the outcome is unknown.
    pub(super) fails: bool,
    /// The disk or the quota is full: an upload may be refused with 507.
    pub(super) is_full: bool,
    /// Bits flipped: something may be missing.
    pub(super) damage: bool,
    /// Bodies from the bucket may be damaged: something may seem to be missing.
    pub(super) is_garbled: bool,
    /// The disk lost whole sectors, or what it said it had synced: a key may have any acknowledged
    /// value, or none.
    pub(super) forgets: bool,
}

/// Operation, and the answer to it.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) op: Op,
    pub(super) seen: Seen,
    /// The answer came after the power had failed, so it reached no client.
    pub(super) is_unheard: bool,
    /// It came from a node that fills itself from another one: it may be older.
    pub(super) is_edge: bool,
}

impl Exchange {
    /// Line about it for a printed run.
    pub(super) fn line(&self) -> String {
        let op = format!("{:?}", self.op);
        let op: String = op.chars().take(120).collect();
        let heard = if self.is_unheard { "unheard " } else { "" };
        format!("{heard}{} {op} {:?}", self.seen.status.as_u16(), self.op.writes())
    }
}

impl Model {
    pub(super) fn possible(&self, key: &Key) -> Possible {
        let mut possible = self.refs.get(key).cloned().unwrap_or_else(|| Possible::from([None]));
        if self.trouble.forgets {
            possible.extend(self.past(key));
        }
        possible
    }

    /// Values that a key had or may have had, or that it had none.
    fn past(&self, key: &Key) -> Possible {
        let mut past = self.history.get(key).cloned().unwrap_or_default();
        past.insert(None);
        past
    }

    pub(super) fn learn_bytes(&mut self, bytes: &Bytes) {
        self.bytes.insert(IoHash::of(bytes), bytes.clone());
    }

    /// Reports whether the content of an attachment was acknowledged and is still there.
    pub(super) fn holds(&self, id: &IoHash) -> bool {
        let has_form = |forms: &BTreeSet<IoHash>| forms.iter().any(|form| self.blobs.contains(form));
        self.blobs.contains(id) || self.forms.get(id).is_some_and(has_form)
    }

    /// Attachments of refs that are surely there, finalised or not.
    pub(super) fn attached(&self) -> BTreeSet<IoHash> {
        self.attached_to(&|_, _| true)
    }

    /// The same for refs that were so `before` or are finalised: what another ref reaches may have
    /// been missing when it was put.
    pub(super) fn still_attached(&self, before: &Model) -> BTreeSet<IoHash> {
        self.attached_to(&|key, value| value.finalised || before.refs.get(key) == self.refs.get(key))
    }

    fn attached_to(&self, counts: &dyn Fn(&Key, &Value) -> bool) -> BTreeSet<IoHash> {
        let refs = self.refs.iter().filter(|(_, possible)| possible.len() == 1);
        let values =
            refs.flat_map(|(key, possible)| possible.iter().flatten().map(move |value| (key, value)));
        let values = values.filter(|(key, value)| counts(key, value));
        let objects = values.filter_map(|(_, value)| self.bytes.get(&value.object));
        let mut attached = BTreeSet::new();
        for object in objects {
            let document = Document::parse(object).expect("it was put whole");
            attached.extend(document.attachments().iter().map(|attachment| attachment.hash));
        }
        attached
    }

    /// Values that a round may give to keys.
    pub(super) fn round_values(&self, ops: &[Op]) -> BTreeMap<Key, Possible> {
        let mut values: BTreeMap<Key, Possible> = BTreeMap::new();
        for (key, object) in ops.iter().flat_map(Op::writes) {
            let possible = values.entry(key).or_insert_with(|| self.possible(&key));
            match object {
                None => drop(possible.insert(None)),
                Some(object) => {
                    let both = [false, true].map(|finalised| Some(Value { object, finalised }));
                    possible.extend(both);
                }
            }
        }
        values
    }

    /// Checks an answer, which may see what others of its round did: `possible` of each key, blobs
    /// that may have gone.
    pub(super) fn check(
        &self,
        outcome: &Exchange,
        values: &BTreeMap<Key, Possible>,
        may_be_gone: &dyn Fn(&IoHash) -> bool,
    ) {
        let Exchange { op, seen, .. } = outcome;
        let trouble = &self.trouble;
        if outcome.is_unheard {
            return;
        }
        if !seen.is_whole {
            assert!(trouble.damage || trouble.fails, "an answer broke off: {op:?}");
            return;
        }
        match seen.status.as_u16() {
            503 => return assert!(trouble.fails, "{op:?}: {seen:?}"),
            507 => return assert!(trouble.is_full, "{op:?}: {seen:?}"),
            429 | 500.. => panic!("{op:?}: {seen:?}"),
            _ => {}
        }
        let may_miss = trouble.damage || trouble.is_garbled || outcome.is_edge;
        let absent = |id: &IoHash| !self.holds(id) || may_be_gone(id) || may_miss;
        let found = seen.status.is_success();
        match op {
            Op::PutBroken(..) => assert_eq!(seen.status, StatusCode::BAD_REQUEST, "{op:?}"),
            Op::PutBlob(_) | Op::PutCompressed(..) | Op::Batch(_) => {
                assert_eq!(seen.status, StatusCode::OK, "{op:?} {seen:?}");
            }
            Op::BlobBatch(puts, gets) => {
                assert_eq!(seen.status, StatusCode::OK, "{op:?} {seen:?}");
                let results = seen.blob_results();
                assert_eq!(results.len(), puts.len() + gets.len(), "{op:?}");
                for (number, result) in results.iter().enumerate() {
                    let get = number.checked_sub(puts.len()).map(|number| &gets[number]);
                    match (get, result) {
                        (_, Err(503)) => assert!(trouble.fails, "{op:?}: {seen:?}"),
                        (_, Err(507)) => assert!(trouble.is_full, "{op:?}: {seen:?}"),
                        (None, Ok(_)) => {}
                        (Some(hash), Ok(content)) => {
                            let bytes = STANDARD.decode(content).expect("base64");
                            assert_eq!(IoHash::of(&bytes), *hash, "wrong bytes: {op:?}");
                        }
                        (Some(hash), Err(404)) => {
                            let is_gone = !self.blobs.contains(hash) || absent(hash);
                            assert!(is_gone, "{op:?}: {hash} is missing, and was acknowledged");
                        }
                        _ => panic!("{op:?}: {seen:?}"),
                    }
                }
            }
            Op::PutRef(..) | Op::PutRaw(..) => assert!(seen.needs().is_some(), "{op:?} {seen:?}"),
            Op::GetBlob(hash) if found => assert_eq!(IoHash::of(&seen.body), *hash, "wrong bytes: {op:?}"),
            Op::GetPart(hash, start, end) if found => {
                let part = self.bytes[hash].slice(*start as usize..*end as usize);
                assert!(seen.body == part || seen.body == self.bytes[hash], "wrong bytes: {op:?}");
            }
            Op::GetForm(id) if found => {
                let hash = IoHash::of(&seen.body);
                let is_form = self.bytes.get(&hash).is_some_and(|bytes| is_form_of(bytes, id));
                assert!(hash == *id || is_form, "wrong bytes: {op:?}");
            }
            Op::GetBlob(hash) | Op::HeadBlob(hash) | Op::GetPart(hash, ..) if !found => {
                let is_gone = !self.blobs.contains(hash) || absent(hash);
                assert!(is_gone, "{op:?} is {}, and was acknowledged", seen.status);
            }
            Op::GetForm(id) => assert!(absent(id), "{op:?} is {}, and was acknowledged", seen.status),
            Op::GetRef(key) => {
                let mut possible = values.get(key).cloned().unwrap_or_else(|| self.possible(key));
                if outcome.is_edge {
                    possible.extend(self.past(key));
                }
                let is_right = possible.iter().any(|value| match (seen.status.as_u16(), value) {
                    (200, Some(value)) => value.finalised && IoHash::of(&seen.body) == value.object,
                    (400, Some(value)) => !value.finalised,
                    (404, value) => value.is_none() || trouble.damage || trouble.is_garbled,
                    _ => false,
                });
                assert!(
                    is_right,
                    "{op:?} is {} {}, not one of {possible:?}",
                    seen.status,
                    IoHash::of(&seen.body)
                );
            }
            _ => {}
        }
    }

    /// Takes over what a round did. `is_certain` is false if it ended with a power failure.
    pub(super) fn learn(&mut self, outcomes: &[Exchange]) {
        let mut acknowledged: BTreeMap<Key, Possible> = BTreeMap::new();
        let mut unknown: BTreeMap<Key, Possible> = BTreeMap::new();
        let mut deleted = BTreeSet::new();
        let mut forgotten = BTreeSet::new();
        for outcome in outcomes {
            let Exchange { op, seen, .. } = outcome;
            let is_heard = !outcome.is_unheard && seen.is_whole;
            let is_unknown = !is_heard || seen.status.is_server_error();
            let is_done = is_heard && seen.status.is_success();
            match op {
                Op::PutBlob(bytes) if is_done => drop(self.blobs.insert(IoHash::of(bytes))),
                Op::BlobBatch(puts, _) if is_done => {
                    let stored = puts.iter().zip(seen.blob_results()).filter(|(_, result)| result.is_ok());
                    self.blobs.extend(stored.map(|(bytes, _)| IoHash::of(bytes)));
                }
                Op::PutRaw(_, bytes) if is_done => drop(self.blobs.insert(IoHash::of(bytes))),
                Op::PutCompressed(raw, buffer) if is_done => {
                    self.blobs.insert(IoHash::of(buffer));
                    self.forms.entry(*raw).or_default().insert(IoHash::of(buffer));
                }
                Op::DeleteBlob(hash) => drop(deleted.insert(*hash)),
                Op::DeleteForms(id) => drop(forgotten.insert(*id)),
                _ => {}
            }
            let needs = match op {
                Op::Batch(puts) => seen.batch_needs(puts.len()),
                Op::DeleteRef(_) => vec![is_done.then_some(0)],
                _ => vec![seen.needs()],
            };
            for ((key, object), needs) in op.writes().into_iter().zip(needs) {
                match (object, needs) {
                    (None, Some(_)) if is_heard => drop(acknowledged.entry(key).or_default().insert(None)),
                    (Some(object), Some(needs)) if is_heard => {
                        // A finalisation that still needs something changes nothing.
                        if needs > 0 && matches!(op, Op::Finalise(..)) {
                            continue;
                        }
                        let value = Value { object, finalised: needs == 0 };
                        acknowledged.entry(key).or_default().insert(Some(value));
                    }
                    (object, _) if is_unknown || matches!(op, Op::Batch(_)) => {
                        let values = unknown.entry(key).or_default();
                        match object {
                            None => drop(values.insert(None)),
                            Some(object) => values
                                .extend([false, true].map(|finalised| Some(Value { object, finalised }))),
                        }
                    }
                    _ => {}
                }
            }
        }
        let keys: BTreeSet<Key> = acknowledged.keys().chain(unknown.keys()).copied().collect();
        for key in keys {
            let mut possible = match acknowledged.remove(&key) {
                Some(values) => values,
                None => self.possible(&key),
            };
            possible.extend(unknown.remove(&key).unwrap_or_default());
            self.history.entry(key).or_default().extend(possible.iter().copied());
            self.refs.insert(key, possible);
        }
        self.blobs.retain(|hash| !deleted.contains(hash));
        self.forms.retain(|id, _| !forgotten.contains(id));
    }

    /// Refs are resolved again against what there is now.
    pub(super) fn resolve_again(&mut self) {
        for (key, possible) in &mut self.refs {
            let both: Vec<_> = possible.iter().flatten().copied().collect();
            for value in both {
                possible.extend([false, true].map(|finalised| Some(Value { finalised, ..value })));
            }
            self.history.entry(*key).or_default().extend(possible.iter().copied());
        }
    }

    /// Forgets blobs whose upload was not acknowledged: the power failed while others were removed,
    /// so a blob that was removed and uploaded again is there until the power failed, and not
    /// after.
    pub(super) fn forget_unheard(&mut self, outcomes: &[Exchange]) {
        for outcome in outcomes.iter().filter(|outcome| outcome.is_unheard) {
            match &outcome.op {
                Op::PutBlob(bytes) | Op::PutRaw(_, bytes) | Op::PutCompressed(_, bytes) => {
                    self.blobs.remove(&IoHash::of(bytes));
                }
                Op::BlobBatch(puts, _) => puts.iter().for_each(|bytes| {
                    self.blobs.remove(&IoHash::of(bytes));
                }),
                _ => {}
            }
        }
    }

    /// Remembers what an operation sends.
    pub(super) fn learn_sent(&mut self, op: &Op) {
        match op {
            Op::PutBlob(bytes)
            | Op::PutBroken(bytes, _)
            | Op::PutRef(_, bytes)
            | Op::PutCompressed(_, bytes) => {
                self.learn_bytes(bytes);
            }
            Op::PutRaw(_, bytes) => {
                self.learn_bytes(bytes);
                self.learn_bytes(&raw_object(bytes).into());
            }
            Op::Batch(puts) => puts.iter().for_each(|(_, object)| self.learn_bytes(object)),
            Op::BlobBatch(puts, _) => puts.iter().for_each(|bytes| self.learn_bytes(bytes)),
            _ => {}
        }
    }
}

fn is_form_of(buffer: &[u8], id: &IoHash) -> bool {
    let raw = throng_ddc::compressed::decompress(buffer, 64 << 20, None);
    raw.is_ok_and(|raw| raw.is_some_and(|raw| IoHash::of(&raw) == *id))
}
