//! Replicas that stay on the receiver after they left its scope.

use super::{Connection, Pair};
use crate::sent::Item;
use crate::server::Shared;
use crate::wire::bits_of;

/// Changes that a receiver lacks of an object that it kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retained {
    /// Changes from this frame on are missing.
    since: u32,
    /// And these, whenever they changed.
    mask: u64,
}

impl Connection {
    /// The pair leaves scope. True when the receiver keeps its replica: then nothing is sent and
    /// nothing forgotten.
    pub(super) fn retain(&mut self, sh: &Shared, object: u32) -> bool {
        let keeps = sh.store(object).class.flags.retain && sh.objects.alive.get(object);
        if !keeps || !self.live.get(object) || self.refuses(sh, object) {
            return false;
        }
        let mut mask = self.pending.mask(object);
        for item in self.log.items() {
            if let Item::Update { object: sent, mask: open, .. } = item
                && *sent == object
            {
                mask |= open;
            }
        }
        if !sh.gatherings.is_empty() && sh.store(object).class.position.is_some() {
            // Changes gathered in a band are older than any packet, also if the object leaves the
            // bands in this very frame.
            mask = u64::MAX;
        }
        let since = self.log.front().map_or(sh.frame, |packet| packet.frame);
        self.live.clear(object);
        self.pending.remove(object);
        self.retained.insert(object, Retained { since, mask });
        true
    }

    /// The pair is in scope again: what changed meanwhile is sent. False when the receiver does not
    /// have it.
    pub(super) fn resume(&mut self, sh: &Shared, object: u32) -> bool {
        let Some(kept) = self.retained.remove(&object) else { return false };
        let slot = sh.objects.slot[object as usize];
        let mask = kept.mask | sh.store(object).changed_since(slot, kept.since, sh.frame);
        self.live.set(object);
        self.bases.invalidate(object);
        self.pending.add(object, mask & self.mask_for(sh, object, false));
        self.recheck_arrays(object);
        true
    }

    /// Properties became visible to the receiver, who may have kept the object.
    pub(super) fn reveal_retained(&mut self, object: u32, mask: u64) {
        if let Some(kept) = self.retained.get_mut(&object) {
            kept.mask |= mask;
        }
    }

    /// The object is no more: a receiver that kept it is notified, with the last state if it ends
    /// with a `flush`.
    pub(crate) fn end_retained(&mut self, object: u32, reason: u8, flush: bool) {
        if self.retained.remove(&object).is_some() {
            if !flush {
                self.end_arrays(object);
            }
            self.pairs.insert(object, Pair::DestroyQueued(reason, 0));
            self.destroys.push(object);
        }
    }

    /// The receiver has the object, in scope or not.
    pub(crate) fn keeps(&self, object: u32) -> bool {
        self.scope.get(object) || self.retained.contains_key(&object)
    }
}

/// FNV-1a, 32 bits, over the words of some properties; those outside the block are left out.
pub(crate) fn state_hash(class: &crate::Class, words: &[u64], mask: u64) -> u32 {
    let mut hash = 0x811c_9dc5_u32;
    for property in bits_of(mask) {
        let Some(prop) = class.props.get(property).filter(|prop| !prop.codec.is_heap()) else { continue };
        for byte in prop.words(words).iter().flat_map(|word| word.to_le_bytes()) {
            hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        }
    }
    hash
}
