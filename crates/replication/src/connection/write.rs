//! Updates: copies of common records where that will do, records of their own where something is
//! out of the ordinary, the best first where the budget does not suffice.

use std::time::Duration;

use super::transfer::Purpose;
use super::{Connection, Stage};
use crate::frames::{Stream, Word};
use crate::sent::Item;
use crate::server::{FollowerKind, Hint, Shared};
use crate::wire::{BASELINE_AGE_MAX, HEADER_BYTES, bits_of, kind, write_delta_record, write_record};

/// So many objects are quicker one by one than gathered.
const FEW: u32 = 4;
/// Packets in flight that are kept free for those of one frame.
const IN_FLIGHT_RESERVE: usize = 8;

impl Stage<'_> {
    // ---- writing --------------------------------------------------------------------------------

    pub(super) fn write(&mut self) {
        let (conn, sh, scratch) = (&mut *self.conn, self.sh, &mut *self.scratch);
        let mut allowance = usize::MAX / 2;
        if let Some(budget) = &mut conn.budget {
            let congested =
                core::mem::take(&mut conn.congested) || conn.stats.packets_lost > conn.losses_seen;
            conn.losses_seen = conn.stats.packets_lost;
            allowance = budget.refill(sh.now, congested, Duration::from_nanos(conn.rtt_ns));
        }
        let overhead = if conn.budget.is_some() { sh.config.overhead_bytes } else { 0 };
        let packet_max = if conn.log.in_flight() + IN_FLIGHT_RESERVE < sh.config.packets_in_flight_max {
            conn.packet_bytes
        } else {
            // Too much on its way: nothing more until something is settled.
            0
        };
        scratch.out.begin((allowance, packet_max, overhead), &conn.acks, sh.frame, sh.now);

        // Most connections have little of this: conditions stand here, so that they cost no calls.
        self.hold();
        if !self.conn.destroys.is_empty() {
            self.write_destroys();
        }
        if !self.conn.roles.is_empty() {
            self.write_roles();
        }
        if !self.conn.endings.is_empty() {
            self.write_endings();
        }
        if self.has_slow() {
            self.collect_slow();
        }
        if sh.any_limiter {
            self.take_turns();
        }
        if !self.conn.calling.is_empty() {
            self.write_attachments(allowance);
        }
        // Without a budget everything has room.
        let waiting = if self.conn.budget.is_none() { 0 } else { self.estimate_updates() };
        if !self.conn.creates.is_empty() {
            self.write_creates(allowance, waiting > 0);
        }
        if !self.conn.cursors.is_empty() {
            self.write_arrays(allowance);
        }
        if self.conn.transfer.is_some() {
            self.write_parts(allowance);
        }
        // Items that go before updates, and need more than a frame's income, are saved up for.
        let out = &mut self.scratch.out;
        let saves = self.conn.budget.is_some_and(|budget| allowance < budget.burst as usize);
        let stopped = packet_max == 0 || saves && out.refused() && out.spent() == 0;
        if stopped {
            out.stop();
        }
        if self.conn.budget.is_none() && !stopped {
            self.write_all();
        } else if waiting > 0 || stopped {
            let left = allowance.saturating_sub(self.scratch.out.spent());
            let packets = waiting / (self.conn.packet_bytes - HEADER_BYTES - 4) + 2;
            if waiting + packets * (HEADER_BYTES + 4 + overhead) <= left && !stopped {
                self.write_all();
            } else {
                self.write_best(if stopped { 0 } else { left });
            }
        }
        self.conn.stats.budget_saturated_frames += u64::from(self.scratch.out.refused());

        let (conn, scratch) = (&mut *self.conn, &mut *self.scratch);
        for object in conn.calling.drain(..) {
            conn.held.clear(object);
        }
        if let Some(transfer) = &conn.transfer {
            conn.held.clear(transfer.object);
        }
        // With nothing to send, an empty packet after a round trip asks what became of the last
        // ones.
        let asks = |conn: &Connection| {
            conn.unheard.is_some()
                && conn.log.is_quiet(sh.now - Duration::from_nanos(conn.rtt_ns + conn.rtt_ns / 4))
        };
        if scratch.out.is_empty() && (conn.ack_owed || asks(conn)) {
            scratch.out.acknowledge(&mut conn.log);
        }
        if let Some(interval) = sh.config.clock_interval
            && scratch.out.is_open()
            && conn.clock_at.is_none_or(|at| sh.now.since(at) >= interval)
            && scratch.out.reserve(&mut conn.log, kind::TIME, 8)
        {
            scratch.out.put(&clock_sample(sh));
            conn.clock_at = Some(sh.now);
        }
        if sh.config.check_frames > 0 {
            self.write_checks();
        }
        let (conn, scratch) = (&mut *self.conn, &mut *self.scratch);
        scratch.out.close(&mut conn.log);
        if !scratch.out.ends().is_empty() {
            conn.ack_owed = false;
        }
        if conn.unheard.is_none() && conn.log.is_laden() {
            conn.unheard = Some(sh.now);
        }
        if let Some(budget) = &mut conn.budget {
            budget.tokens -= scratch.out.spent() as f64;
        }
        conn.stats.packets_sent += scratch.out.ends().len() as u64;
        conn.stats.bytes_sent += scratch.out.bytes().len() as u64;
    }

    /// Objects of a frame-list word that can be sent by copying their common record.
    #[inline]
    pub(super) fn fast_bits(conn: &Connection, sh: &Shared, stream: usize, word: &Word) -> u64 {
        let at = word.word as usize;
        let mut bits = word.fast & conn.scope.words()[at] & conn.live.words()[at];
        if bits == 0 {
            return 0;
        }
        if let Some(band) = conn.bands.get(stream) {
            bits &= band.words()[at];
        }
        bits &= !conn.owned_special.word(at);
        if conn.replay {
            bits &= !sh.objects.conditional.word(at);
        }
        if conn.holds {
            bits &= !conn.held.word(at);
        }
        if conn.pending.is_empty() { bits } else { bits & !conn.pending.bits(word.word) }
    }

    /// Something in scope may have changed that cannot be copied.
    #[inline]
    fn has_slow(&self) -> bool {
        let (conn, sh) = (&*self.conn, self.sh);
        !conn.pairs.is_empty()
            || sh.any_special
            || conn.replay
            || !conn.pending.is_empty()
            || !conn.owned_special.words().is_empty()
            || conn.holds
            || sh.any_slow
    }

    /// Everything that changed and cannot be copied becomes pending.
    #[inline(never)]
    fn collect_slow(&mut self) {
        let (conn, sh) = (&mut *self.conn, self.sh);
        for (index, stream) in sh.streams.iter().enumerate() {
            let list = stream.present();
            for word in stream.among(conn.scope.top()) {
                let at = word.word as usize;
                let mut slow = word.bits & conn.scope.words()[at] & !Self::fast_bits(conn, sh, index, word);
                if let Some(band) = conn.bands.get(index) {
                    slow &= band.words()[at];
                }
                for bit in bits_of(slow) {
                    let object = word.word * 64 + bit as u32;
                    if conn.has(object) {
                        let place = stream.places[object as usize] as usize;
                        let mask = list.masks[place] & conn.mask_for(sh, object, false);
                        conn.pending.add(object, mask);
                    }
                }
            }
        }
    }

    /// Upper bound of the bytes of all updates that wait.
    #[inline(never)]
    fn estimate_updates(&mut self) -> usize {
        let (conn, sh) = (&*self.conn, self.sh);
        let mut bytes = 0;
        for (index, stream) in sh.streams.iter().enumerate() {
            for word in stream.among(conn.scope.top()) {
                let bits = Self::fast_bits(conn, sh, index, word);
                if bits != 0 {
                    for bit in bits_of(bits) {
                        let place = stream.places[word.word as usize * 64 + bit] as usize;
                        bytes += (stream.offsets[place + 1] - stream.offsets[place]) as usize;
                    }
                }
            }
        }
        if !conn.pending.is_empty() {
            bytes += conn.pending.iter().map(|object| sh.record_bytes_max(object)).sum::<usize>();
        }
        bytes
    }

    /// The frame has room for everything: in index order, without sorting.
    fn write_all(&mut self) {
        let sh = self.sh;
        for (at, stream) in sh.streams.iter().enumerate() {
            for seen in 0..self.conn.scope.top().len() {
                let words = stream.top.get(seen).copied().unwrap_or(0) & self.conn.scope.top()[seen];
                for bit in bits_of(words) {
                    self.conn.stats.words_seen += 1;
                    let word = &stream.present().words[stream.place_of((seen * 64 + bit) as u32)];
                    let bits = Self::fast_bits(self.conn, sh, at, word);
                    if bits != 0 {
                        self.write_word(at, stream, word, bits);
                    }
                }
            }
        }
        if !self.conn.pending.is_empty() {
            self.write_all_pending();
        }
    }

    #[inline(never)]
    fn write_all_pending(&mut self) {
        let sh = self.sh;
        let mut words = core::mem::take(&mut self.scratch.words);
        self.conn.pending.words(&mut words);
        for word in &words {
            let bits = self.conn.waiting(*word);
            if bits == 0 {
                continue;
            }
            self.prioritise(*word, bits);
            for bit in bits_of(bits) {
                let object = word * 64 + bit as u32;
                let priority = self.conn.pending.grow(object, self.scratch.priorities.0[bit]);
                if priority >= sh.config.send_threshold {
                    self.write_pending(object, 0);
                }
            }
        }
        self.scratch.words = words;
    }

    /// Computes priorities of the objects `bits` of `word`; returns those below the threshold.
    #[inline(never)]
    fn prioritise(&mut self, word: u32, bits: u64) -> u64 {
        let threshold = self.sh.config.send_threshold;
        if bits.count_ones() <= FEW && self.prioritise_few(word, bits) {
            let p = &self.scratch.priorities.0;
            return bits_of(bits).fold(0, |all, bit| all | u64::from(p[bit] < threshold) << bit);
        }
        let (conn, objects) = (&*self.conn, &self.sh.objects);
        let first = word as usize * 64;
        let kinds = &objects.prioritiser[first..first + 64];
        let kind = kinds[bits.trailing_zeros() as usize];
        let mut below = 0;
        let (batch, lanes) = (&mut *self.scratch.batch, &mut self.scratch.priorities.0);
        if bits.count_ones() >= 24 && kinds.iter().all(|other| *other == kind) {
            batch.x.copy_from_slice(&objects.x[first..first + 64]);
            batch.y.copy_from_slice(&objects.y[first..first + 64]);
            batch.z.copy_from_slice(&objects.z[first..first + 64]);
            batch.first = Some(first as u32);
            batch.owned = conn.owned.word(word as usize);
            batch.chosen = self.scratch.chosen.word(word as usize);
            batch.len = 64;
            self.sh.prioritisers[usize::from(kind)].run(&conn.views, batch);
            lanes.copy_from_slice(&batch.p);
            if lanes.iter().fold(f32::MAX, |least, p| least.min(*p)) >= threshold {
                return 0;
            }
            for bit in bits_of(bits) {
                below |= u64::from(lanes[bit] < threshold) << bit;
            }
            return below;
        }
        let mut left = bits;
        while left != 0 {
            let kind = kinds[left.trailing_zeros() as usize];
            let (mut same, mut len) = (0_u64, 0);
            (batch.owned, batch.chosen) = (0, 0);
            for bit in bits_of(left) {
                if kinds[bit] == kind {
                    same |= 1 << bit;
                    batch.x[len] = objects.x[first + bit];
                    batch.y[len] = objects.y[first + bit];
                    batch.z[len] = objects.z[first + bit];
                    batch.objects[len] = (first + bit) as u32;
                    batch.owned |= (conn.owned.word(word as usize) >> bit & 1) << len;
                    batch.chosen |= (self.scratch.chosen.word(word as usize) >> bit & 1) << len;
                    len += 1;
                }
            }
            batch.len = len;
            batch.first = None;
            self.sh.prioritisers[usize::from(kind)].run(&conn.views, batch);
            for (bit, p) in bits_of(same).zip(batch.p) {
                lanes[bit] = p;
                below |= u64::from(p < threshold) << bit;
            }
            left &= !same;
        }
        below
    }

    /// Priorities of a few objects one by one; false if a prioritiser wants batches.
    #[inline]
    fn prioritise_few(&mut self, word: u32, bits: u64) -> bool {
        let (views, objects) = (&self.conn.views, &self.sh.objects);
        for bit in bits_of(bits) {
            let at = word as usize * 64 + bit;
            let position = [objects.x[at], objects.y[at], objects.z[at]];
            let prioritiser = &self.sh.prioritisers[usize::from(objects.prioritiser[at])];
            let Some(p) = prioritiser.single(views, position) else { return false };
            self.scratch.priorities.0[bit] = p;
        }
        true
    }

    /// Common records that are not sent now become pending, with the priority just computed.
    #[inline(never)]
    fn postpone(&mut self, stream: &Stream, word: &Word, bits: u64) {
        for bit in bits_of(bits) {
            let object = word.word * 64 + bit as u32;
            let place = stream.places[object as usize] as usize;
            self.conn.pending.add(object, stream.present().masks[place]);
            self.conn.pending.grow(object, self.scratch.priorities.0[bit]);
        }
    }

    /// Writes the changed objects `bits` of a word through records that connections share.
    #[inline]
    fn write_word(&mut self, index: usize, stream: &Stream, word: &Word, mut bits: u64) {
        let sh = self.sh;
        let throttled = bits & sh.objects.throttled.word(word.word as usize);
        let below = if throttled != 0 { self.prioritise(word.word, throttled) } else { 0 };
        if below != 0 {
            self.postpone(stream, word, bits & below);
            bits &= !below;
        }
        if sh.any_delta {
            bits = self.copy_differences(index, stream, word, bits);
        }
        if bits != 0 {
            let offsets = &stream.offsets[word.first as usize..];
            let left = copy_records(self, (index, stream, word, bits), offsets, &stream.bytes);
            self.postpone_all(stream, word, left);
        }
    }

    /// Postpones what found no room.
    fn postpone_all(&mut self, stream: &Stream, word: &Word, bits: u64) {
        if bits != 0 {
            self.prioritise(word.word, bits);
            self.postpone(stream, word, bits);
        }
    }

    /// Copies differences to what the receiver is known to hold; returns the objects that are sent
    /// plain.
    fn copy_differences(&mut self, index: usize, stream: &Stream, word: &Word, mut bits: u64) -> u64 {
        let sh = self.sh;
        let mut rest = bits & sh.objects.delta.word(word.word as usize);
        let mut at = 0;
        while rest != 0 {
            let Some((frame, members)) = self.conn.bases.held(word.word).get(at).copied() else { break };
            at += 1;
            let age = sh.frame.wrapping_sub(frame);
            let group = rest & members;
            if group == 0 || !(1..=BASELINE_AGE_MAX).contains(&age) {
                continue;
            }
            // Borrowed apart from the rest of the scratch memory while the records are copied.
            let mut variants = core::mem::take(&mut self.scratch.variants);
            let built = &mut self.conn.stats.records_built;
            let (offsets, bytes) = variants.records(sh, (index, stream), word, age, built);
            let left = copy_records(self, (index, stream, word, group), offsets, bytes);
            self.scratch.variants = variants;
            self.postpone_all(stream, word, left);
            rest &= !group;
            bits &= !group;
        }
        bits
    }

    /// Writes what is pending of one object, into a packet that has room for `call` bytes of a call
    /// beside it, if there is any; true when it went out and nothing is pending any more.
    pub(super) fn write_pending(&mut self, object: u32, call: usize) -> bool {
        let (conn, sh) = (&mut *self.conn, self.sh);
        let room = conn.packet_bytes - HEADER_BYTES - 2;
        if conn.transfers(object) || conn.transfer.is_some() && sh.record_bytes_max(object) > room {
            return false;
        }
        // Changes gathered in a band of detail go along, so that nothing stays behind.
        let (band, missing) = conn.gathered(sh, object);
        let mut mask = conn.pending.mask(object) | missing;
        if sh.objects.conditional.get(object) {
            // Some of it may have become pending under a condition that is closed now.
            mask &= conn.mask_for(sh, object, false);
            if mask == 0 {
                conn.pending.remove(object);
                return true;
            }
        }
        let creating = !conn.live.get(object);
        let store = sh.store(object);
        let slot = sh.objects.slot[object as usize];
        let held = if store.class.flags.delta && !creating { conn.bases.frame(object) } else { None };
        let hides = store.class.hide_mask & mask != 0;
        // What hid references were sent as is not what the kept states say.
        let held = held.filter(|_| !hides).map(|frame| (frame, sh.frame.wrapping_sub(frame)));
        let state = held
            .filter(|(_, age)| (1..=BASELINE_AGE_MAX).contains(age))
            .and_then(|(frame, age)| Some((store.state_at(slot, frame, sh.frame)?, age, frame)));
        let base = state.map_or(u32::MAX, |(_, _, frame)| frame);

        let cache = &mut self.scratch.cache;
        let words = hide(conn, sh, object, mask, &mut self.scratch.block);
        if hides || cache.find(object, mask, base).is_none() {
            let record = &mut self.scratch.record;
            record.clear();
            write_record(record, object, &store.class, mask, words, store.heap(slot));
            if let Some((state, age, _)) = state {
                let delta = &mut self.scratch.delta;
                delta.clear();
                write_delta_record(delta, object, &store.class, mask, (state, age), words, store.heap(slot));
                if delta.len() < record.len() {
                    core::mem::swap(record, delta);
                }
            }
            conn.stats.records_built += 1;
            if !hides {
                cache.keep(object, mask, base, record, sh.config.record_cache_bytes);
            }
        } else {
            conn.stats.records_hit += 1;
        }
        let cached = if hides { None } else { cache.find(object, mask, base) };
        let len = cached.unwrap_or(&self.scratch.record).len();
        let exports = &mut self.scratch.exports;
        exports.clear();
        exports.need_of(&conn.known_tokens, sh, (&store.class, mask), words, store.heap(slot));
        if exports.len() + len + 2 > room {
            return self.write_in_parts(object, mask);
        }
        if call > 0 {
            // With the heads of three sections, and the length of the record.
            let together = exports.len() + len + call + 8;
            let out = &mut self.scratch.out;
            out.keep_together(&mut conn.log, together);
            // Both wait for the budget, or the state would go alone in every frame.
            if HEADER_BYTES + together <= conn.packet_bytes && !out.find_room(together) {
                return false;
            }
        }
        if !self.write_exports(len + 4) {
            return false;
        }
        let (conn, cache, out) = (&mut *self.conn, &self.scratch.cache, &mut self.scratch.out);
        let cached = if hides { None } else { cache.find(object, mask, base) };
        let record = cached.unwrap_or(&self.scratch.record);
        if creating {
            if !out.reserve(&mut conn.log, kind::SIZED_UPDATE, len + 2) {
                return false;
            }
            out.buf[out.at..out.at + 2].copy_from_slice(&(len as u16).to_le_bytes());
            out.buf[out.at + 2..out.at + 2 + len].copy_from_slice(record);
            out.wrote(len + 2, 1);
        } else {
            if !out.reserve(&mut conn.log, kind::UPDATE, len) {
                return false;
            }
            out.put(record);
        }
        let complete = !sh.streams[band].partial;
        conn.log.push_item(Item::Update { object, mask, complete });
        if store.class.flags.delta && complete {
            conn.bases.sent_again(object / 64, 1 << (object % 64), sh.frame);
        }
        let waited = u64::from(conn.pending.waited(object));
        conn.stats.starvation_frames_max = conn.stats.starvation_frames_max.max(waited);
        conn.pending.remove(object);
        true
    }

    /// Begins to send what is pending of an object in parts, because no packet holds it. Always
    /// false: nothing of it went out, and its attachments have to wait.
    fn write_in_parts(&mut self, object: u32, mask: u64) -> bool {
        let (conn, sh) = (&mut *self.conn, self.sh);
        // An update of parts has no length, so the receiver must have the object.
        if !conn.live.get(object) {
            return false;
        }
        let store = sh.store(object);
        let words = hide(conn, sh, object, mask, &mut self.scratch.block);
        let mut body = Vec::new();
        self.scratch.exports.write_section(&mut body);
        body.extend_from_slice(&[kind::UPDATE, 1]);
        let heap = store.heap(sh.objects.slot[object as usize]);
        write_record(&mut body, object, &store.class, mask, words, heap);
        if self.begin_transfer(object, Purpose::Update { mask }, body) {
            self.conn.bases.invalidate(object);
            self.conn.pending.remove(object);
        }
        false
    }

    /// Writes what depends on an object and waits, those that go before it or those that go after.
    fn write_dependents(&mut self, object: u32, before: bool) {
        let sh = self.sh;
        for follower in sh.followers.get(&object).into_iter().flatten() {
            let FollowerKind::Dependent(hint) = follower.kind else { continue };
            let initial = !self.conn.live.get(object);
            let first = hint == Hint::Before || hint == Hint::BeforeIfInitial && initial;
            let waits = self.conn.waiting(follower.object / 64) >> (follower.object % 64) & 1 != 0;
            if first == before && waits {
                self.write_pending(follower.object, 0);
            }
        }
    }

    /// The frame has no room for everything: the best first.
    #[inline(never)]
    fn write_best(&mut self, left: usize) {
        let sh = self.sh;
        let mut candidates = core::mem::take(&mut self.scratch.candidates);
        candidates.clear();
        // Everything that is not written now is pending; so everything becomes pending first, with
        // its priority.
        for (index, stream) in sh.streams.iter().enumerate() {
            for word in stream.among(&stream.top) {
                let bits = Self::fast_bits(self.conn, sh, index, word);
                for bit in bits_of(bits) {
                    let object = word.word * 64 + bit as u32;
                    let place = stream.places[object as usize] as usize;
                    self.conn.pending.add(object, stream.present().masks[place]);
                }
            }
        }
        let mut words = core::mem::take(&mut self.scratch.words);
        self.conn.pending.words(&mut words);
        let mut bytes = 0;
        for word in &words {
            let bits = self.conn.waiting(*word);
            if bits == 0 {
                continue;
            }
            self.prioritise(*word, bits);
            let owned = self.conn.owned.word(*word as usize);
            for bit in bits_of(bits) {
                let object = word * 64 + bit as u32;
                let priority = self.conn.pending.grow(object, self.scratch.priorities.0[bit]);
                if priority >= sh.config.send_threshold {
                    // Positive floats order like their bits; the lower index wins a tie; the
                    // owner's own come first.
                    let rank = if owned >> bit & 1 != 0 { u32::MAX } else { priority.to_bits() };
                    candidates.push(u64::from(rank) << 32 | u64::from(u32::MAX - object));
                    bytes += sh.record_bytes_max(object);
                }
            }
        }
        self.scratch.words = words;
        // About as many as fit, and some: only these are sorted.
        let fits = candidates.len() * left / bytes.max(1) * 5 / 4 + 8;
        let mut from = 0;
        while from < candidates.len() {
            let rest = &mut candidates[from..];
            let count = fits.clamp(8, rest.len().max(8)).min(rest.len());
            if count < rest.len() {
                rest.select_nth_unstable_by(count, |a, b| b.cmp(a));
            }
            rest[..count].sort_unstable_by(|a, b| b.cmp(a));
            let mut refused = 0;
            for candidate in &rest[..count] {
                let object = u32::MAX - (*candidate & u64::from(u32::MAX)) as u32;
                // A dependent may have gone before, with its parent.
                if self.conn.pending.mask(object) == 0 {
                    continue;
                }
                if sh.objects.leads.get(object) {
                    self.write_dependents(object, true);
                }
                let written = self.write_pending(object, 0);
                if written && sh.objects.leads.get(object) {
                    self.write_dependents(object, false);
                }
                // What waits for a transfer says nothing of the room.
                let too_long = || sh.record_bytes_max(object) > self.conn.packet_bytes - HEADER_BYTES;
                let waits = self.conn.transfer.is_some() && too_long();
                if !(written || waits) {
                    refused += 1;
                    // A smaller record may still fit, a fourth refusal says that nothing does.
                    if refused > 3 {
                        break;
                    }
                }
            }
            if refused > 0 {
                break;
            }
            from += count;
        }
        self.scratch.candidates = candidates;
    }
}

/// The frame, and the server's time in milliseconds, wrapping.
fn clock_sample(sh: &Shared) -> [u8; 8] {
    let ms = sh.now.as_nanos() / 1_000_000;
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&sh.frame.to_le_bytes());
    bytes[4..].copy_from_slice(&(ms as u32).to_le_bytes());
    bytes
}

/// The object's words as this receiver may see them: hidden references to what it does not have in
/// scope become none, and are noted, to be sent when the target comes into scope.
pub(super) fn hide<'a>(
    conn: &mut Connection,
    sh: &'a Shared,
    object: u32,
    mask: u64,
    block: &'a mut Vec<u64>,
) -> &'a [u64] {
    let store = sh.store(object);
    let words = store.quant(sh.objects.slot[object as usize]);
    let hidden = store.class.hide_mask & mask;
    if hidden == 0 {
        return words;
    }
    block.clear();
    block.extend_from_slice(words);
    for property in bits_of(hidden) {
        let word = &mut block[store.class.props[property].word];
        let (target, generation) = (*word as u32, (*word >> 32) as u32);
        if target == 0 {
            continue;
        }
        // The object that was meant has ended; another may have its index.
        if !sh.objects.alive.get(target) || sh.objects.generation[target as usize] != generation {
            *word = 0;
        } else if !conn.scope.get(target) {
            *word = 0;
            conn.hidden.entry(target).or_default().insert((object, 1 << property));
        }
    }
    block
}

/// Copies the records of the objects `bits` of a word: runs that nothing interrupts in one piece,
/// as far as a packet has room. `offsets` begin with the word's first listed object. Returns what
/// found no room.
#[inline]
fn copy_records(
    stage: &mut Stage<'_>,
    (index, stream, word, bits): (usize, &Stream, &Word, u64),
    offsets: &[u32],
    bytes: &[u8],
) -> u64 {
    let (log, out) = (&mut stage.conn.log, &mut stage.scratch.out);
    let place_of = |bit: u32| (stream.places[(word.word * 64 + bit) as usize] - word.first) as usize;
    if bits & bits.wrapping_sub(1) == 0 && bits != 0 {
        // One object: the usual case where few change.
        let place = place_of(bits.trailing_zeros());
        let (from, to) = (offsets[place] as usize, offsets[place + 1] as usize);
        if !out.reserve(log, kind::UPDATE, to - from) {
            return bits;
        }
        out.copy(&bytes[from..], to - from, 1);
        log.push_word(index, word.word, bits);
        stage.conn.stats.records_copied += 1;
        return 0;
    }
    let mut left = bits;
    while left != 0 {
        let start = left.trailing_zeros();
        let interrupted = word.bits & !bits & (u64::MAX << start);
        // Bits of this run: up to the first listed object that is not copied.
        let mut run =
            if interrupted == 0 { left } else { left & ((interrupted & interrupted.wrapping_neg()) - 1) };
        left &= !run;
        let mut place = place_of(start);
        let end = place_of(63 - run.leading_zeros()) + 1;
        while place < end {
            let from = offsets[place] as usize;
            let one = offsets[place + 1] as usize - from;
            if !out.reserve(log, kind::UPDATE, one) {
                // The estimate was too low: what is left waits for the next frame.
                return run | left;
            }
            let (room, items) = out.room();
            let limit = (from + room) as u32;
            let count = if end - place <= items && offsets[end] <= limit {
                end - place
            } else {
                offsets[place + 1..(place + items).min(end) + 1].partition_point(|end| *end <= limit)
            };
            let len = offsets[place + count] as usize - from;
            out.copy(&bytes[from..], len, count);
            place += count;
            stage.conn.stats.records_copied += count as u64;
            let written = if place == end { run } else { first_bits(run, count) };
            run &= !written;
            log.push_word(index, word.word, written);
        }
    }
    0
}

/// The lowest `count` set bits.
#[inline]
fn first_bits(bits: u64, count: usize) -> u64 {
    let mut rest = bits;
    for _ in 0..count {
        rest &= rest.wrapping_sub(1);
    }
    bits & !rest
}
