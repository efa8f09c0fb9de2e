//! The objects in scope of a connection, their levels of detail, and the changes
//! of both.

use super::{Connection, Count, Pair, Scratch, Stage};
use crate::bitmap::{Sparse, members};
use crate::grid::{Nearby, Query};
use crate::handle::Handle;
use crate::interest::FilterBatch;
use crate::server::{DestroyReason, Event, FollowerKind};
use crate::wire::bits_of;

/// Takes 64 words of the new scope over, and notes what entered and what left.
#[inline(always)]
fn settle(conn: &mut Connection, scratch: &mut Scratch, at: usize) {
    for bit in bits_of(core::mem::take(&mut scratch.top[at]) | conn.scope.top()[at]) {
        let word = at * 64 + bit;
        let (old, new) = (conn.scope.word(word), core::mem::take(&mut scratch.scope[word]));
        if old != new {
            let name = |bit: usize| (word * 64 + bit) as u32;
            scratch.entered.extend(bits_of(new & !old).map(name));
            scratch.left.extend(bits_of(old & !new).map(name));
            conn.scope.put_word(word, new);
        }
    }
}

impl Stage<'_> {
    pub(super) fn update_scope(&mut self) {
        let (conn, sh, scratch) = (&mut *self.conn, self.sh, &mut *self.scratch);
        let objects = &sh.objects;
        let words = objects.bitmap_words();
        conn.grow(words, sh.streams.len());
        let exit = sh.config.exit_factor * sh.config.exit_factor;
        if conn.nearby.len() != conn.views.len() {
            conn.nearby.resize_with(conn.views.len(), Nearby::default);
        }
        for (view, nearby) in conn.views.iter().zip(&mut conn.nearby) {
            let bands = &sh.bands[..];
            let query = Query { view: view.position, exit, before: &conn.scope, bands };
            sh.grid.query(&query, nearby, &mut scratch.found(&mut conn.stats.objects_tested));
        }
        for area in &conn.areas {
            sh.grid.query_area(area, &mut scratch.found(&mut conn.stats.objects_tested));
        }
        if sh.any_team {
            for word in members(conn.teamed.top().iter().copied()) {
                scratch.scope[word] |= conn.teamed.word(word);
                scratch.top[word / 64] |= 1 << (word % 64);
            }
        }
        if !sh.custom.is_empty() {
            self.run_filters();
        }
        let (conn, scratch) = (&mut *self.conn, &mut *self.scratch);
        // Objects in scope without the grid, then those that are out in spite of everything.
        let more = sh.config.hysteresis_frames > 0 || sh.any_follower || !sh.gatherings.is_empty();
        for at in 0..scratch.top.len() {
            let top = scratch.top[at] | objects.always.top()[at] | conn.forced_in.top()[at];
            scratch.top[at] = top;
            for bit in bits_of(top) {
                let word = at * 64 + bit;
                let seen = scratch.scope[word] | objects.always.word(word) | conn.forced_in.word(word);
                scratch.scope[word] = seen & !conn.forced_out.word(word) & objects.alive.word(word);
            }
            if !more {
                settle(conn, scratch, at);
            }
        }
        if !more {
            return;
        }
        if sh.config.hysteresis_frames > 0 {
            self.linger();
        }
        if sh.any_follower {
            self.promote();
        }
        if !sh.gatherings.is_empty() {
            self.detail();
        }
        for at in 0..self.scratch.top.len() {
            settle(self.conn, self.scratch, at);
        }
    }

    /// Asks the game's filters whose turn it is, and takes the last answers of the others.
    #[inline(never)]
    fn run_filters(&mut self) {
        let (conn, sh, scratch) = (&mut *self.conn, self.sh, &mut *self.scratch);
        let objects = &sh.objects;
        conn.answers.resize_with(sh.custom.len(), Sparse::default);
        for (slot, answers) in sh.custom.iter().zip(&mut conn.answers) {
            let due = sh.frame.wrapping_add(conn.id.index()).is_multiple_of(slot.period);
            answers.grow(slot.members.words().len());
            for word in members(slot.members.top().iter().copied()) {
                let bits = slot.members.word(word);
                if due {
                    let from = word * 64;
                    // Arrays over objects are grown by whole words.
                    let lanes =
                        |values: &'_ [f32]| -> [f32; 64] { core::array::from_fn(|i| values[from + i]) };
                    let (x, y, z) = (lanes(&objects.x), lanes(&objects.y), lanes(&objects.z));
                    let batch = FilterBatch { first: from as u32, bits, x: &x, y: &y, z: &z };
                    answers.put_word(word, slot.filter.filter(conn.id, &conn.views, &batch));
                }
                scratch.scope[word] |= answers.word(word) & bits;
                scratch.top[word / 64] |= 1 << (word % 64);
            }
        }
    }

    /// Keeps what the dynamic filter alone refused for some frames more (step 8).
    #[inline(never)]
    fn linger(&mut self) {
        let (conn, sh, scratch) = (&mut *self.conn, self.sh, &mut *self.scratch);
        let keeps =
            |conn: &Connection, object: u32| sh.objects.alive.get(object) && !conn.forced_out.get(object);
        // Those whose time is up are out in this frame; they must not begin to linger again.
        let mut expired = core::mem::take(&mut scratch.expired);
        expired.grow(scratch.scope.len());
        let mut lingering = core::mem::take(&mut conn.lingering);
        lingering.retain(|(object, until)| {
            let (word, bit) = (*object as usize / 64, 1_u64 << (object % 64));
            if scratch.scope[word] & bit != 0 || !keeps(conn, *object) {
                return false;
            }
            if sh.frame.wrapping_sub(*until) as i32 >= 0 {
                expired.set(*object);
                return false;
            }
            scratch.scope[word] |= bit;
            scratch.top[word / 64] |= 1 << (word % 64);
            true
        });
        let until = sh.frame.wrapping_add(u32::from(sh.config.hysteresis_frames));
        for word in members(conn.scope.top().iter().copied()) {
            let refused = conn.scope.word(word) & !scratch.scope[word] & !expired.word(word);
            for place in bits_of(refused) {
                let object = (word * 64 + place) as u32;
                if keeps(conn, object) && !sh.objects.follows.get(object) {
                    scratch.scope[word] |= 1 << place;
                    scratch.top[word / 64] |= 1 << (word % 64);
                    lingering.push((object, until));
                }
            }
        }
        conn.lingering = lingering;
        expired.clear_all();
        scratch.expired = expired;
    }

    /// Sub-objects are where their root is; dependents and creation parents of what is in scope
    /// come with it (step 9).
    #[inline(never)]
    fn promote(&mut self) {
        let (conn, sh, scratch) = (&mut *self.conn, self.sh, &mut *self.scratch);
        let mut queue = core::mem::take(&mut scratch.words);
        queue.clear();
        for word in members(scratch.top.iter().copied()) {
            let leads = scratch.scope[word] & sh.objects.leads.word(word);
            queue.extend(bits_of(leads).map(|bit| (word * 64 + bit) as u32));
        }
        while let Some(leader) = queue.pop() {
            for follower in sh.followers.get(&leader).into_iter().flatten() {
                // A part that is followed needs its root: the root is created before it.
                let root = sh.objects.parent[follower.object as usize];
                let root = if follower.kind == FollowerKind::Parent { root } else { 0 };
                for object in [follower.object, root] {
                    let (word, bit) = (object as usize / 64, 1_u64 << (object % 64));
                    let refused = conn.forced_out.get(object) || !sh.objects.alive.get(object);
                    if refused {
                        break;
                    }
                    if scratch.scope[word] & bit != 0 {
                        continue;
                    }
                    scratch.scope[word] |= bit;
                    scratch.top[word / 64] |= 1 << (word % 64);
                    if sh.objects.leads.get(object) {
                        queue.push(object);
                    }
                }
            }
        }
        scratch.words = queue;
    }

    /// Puts each object in scope into its band: inward at the limit, outward beyond 1.1 times the
    /// limit. What had accumulated in a band that an object leaves becomes pending, so that nothing
    /// is lost in between.
    #[inline(never)]
    fn detail(&mut self) {
        let (conn, sh, scratch) = (&mut *self.conn, self.sh, &mut *self.scratch);
        let last = sh.bands.len();
        for at in 0..scratch.top.len() {
            for bit in bits_of(scratch.top[at] | conn.scope.top()[at]) {
                let word = at * 64 + bit;
                let banded = sh.objects.lod.word(word) & !conn.owned.word(word);
                let mut rest = scratch.scope[word] & banded;
                conn.bands[0].put_word(word, scratch.scope[word] & !banded);
                // Those that were in this band or in one nearer.
                let mut nearer = 0;
                for band in 0..=last {
                    let before = conn.bands[band + 1].word(word);
                    nearer |= before;
                    let inside = match scratch.near.get_mut(band) {
                        Some((near, within)) => {
                            let (near, within) = (&mut near[word], &mut within[word]);
                            (core::mem::take(near) | core::mem::take(within) & nearer) & rest
                        }
                        None => rest,
                    };
                    rest &= !inside;
                    scratch.moves[band] = (before, inside);
                }
                for band in 0..=last {
                    let (before, inside) = scratch.moves[band];
                    if before == inside {
                        continue;
                    }
                    conn.bands[band + 1].put_word(word, inside);
                    // A creation on its way has the values of when it was written: it lacks what
                    // gathered since.
                    let stays = scratch.scope[word] & conn.scope.word(word);
                    for bit in bits_of(before & !inside & stays) {
                        let object = (word * 64 + bit) as u32;
                        if !conn.has(object) {
                            continue;
                        }
                        let missing = sh.missing(band + 1, object) & conn.mask_for(sh, object, false);
                        conn.pending.add(object, missing);
                    }
                }
            }
        }
    }

    /// Begins and ends lives of pairs that entered or left.
    #[inline(never)]
    pub(super) fn apply_transitions(&mut self) {
        let (conn, sh, scratch) = (&mut *self.conn, self.sh, &mut *self.scratch);
        for object in scratch.left.drain(..) {
            conn.counts.push(Count::Unref(object));
            if conn.retain(sh, object) {
                continue;
            }
            // Its end carries what the receiver lacks of them.
            if !sh.objects.flush.get(object) {
                conn.end_arrays(object);
            }
            let reason = match sh.objects.alive.get(object) {
                false => sh.objects.destroy_reason[object as usize],
                true if conn.refuses(sh, object) => DestroyReason::ProtocolMismatch as u8,
                true => DestroyReason::OutOfScope as u8,
            };
            match conn.pairs.get(&object) {
                Some(Pair::CreateQueued { known }) => {
                    // Entries of queues that no longer say so are passed over when they are
                    // written.
                    if *known {
                        conn.pairs.insert(object, Pair::DestroyQueued(reason, 0));
                        conn.destroys.push(object);
                    } else {
                        conn.pairs.remove(&object);
                    }
                }
                Some(Pair::DestroyQueued(..) | Pair::Destroying(..)) => {}
                Some(Pair::Creating(_)) | None => {
                    conn.live.clear(object);
                    conn.pending.remove(object);
                    conn.pairs.insert(object, Pair::DestroyQueued(reason, 0));
                    conn.destroys.push(object);
                }
            }
            if !sh.objects.alive.get(object) {
                let count = conn.attachments.target_gone(object);
                if count > 0 {
                    let object = Handle::from_parts(object, sh.objects.generation[object as usize]);
                    conn.events.push_back(Event::AttachmentsDropped { connection: conn.id, object, count });
                }
            }
        }
        for object in scratch.entered.drain(..) {
            conn.counts.push(Count::Ref(object));
            for (referrer, property) in conn.hidden.remove(&object).unwrap_or_default() {
                if conn.has(referrer) && conn.scope.get(referrer) {
                    conn.pending.add(referrer, property & conn.mask_for(sh, referrer, false));
                }
                conn.reveal_retained(referrer, property);
            }
            if conn.resume(sh, object) {
                continue;
            }
            match conn.pairs.get(&object) {
                // A destroy that was not written yet is taken back; the receiver's copy is brought
                // up to date.
                Some(Pair::DestroyQueued(..)) => {
                    conn.pairs.insert(object, Pair::CreateQueued { known: true });
                    conn.creates.push(object);
                }
                // Wanted again, but only after the receiver has confirmed the destruction.
                Some(Pair::Destroying(..)) => {}
                Some(Pair::CreateQueued { .. } | Pair::Creating(_)) => {}
                None => {
                    conn.pairs.insert(object, Pair::CreateQueued { known: false });
                    conn.creates.push(object);
                }
            }
        }
    }
}
