//! Checks of what receivers hold: a hash of an object's state now and then.

use super::Stage;
use super::retain::state_hash;
use crate::bits::write_varint;
use crate::client::CHECKS_MAX;
use crate::wire::{ACK_WINDOW, bits_of, kind};

/// Bytes of one object at most.
const ITEM_BYTES: usize = 5 + 10 + 4;

impl Stage<'_> {
    /// Appends hashes of the objects whose turn it is to the packet that is being written. Only
    /// what is settled is hashed: nothing of it waits, and `since` lets the receiver tell whether
    /// it got everything that was under way.
    #[inline(never)]
    pub(super) fn write_checks(&mut self) {
        let (conn, sh, scratch) = (&mut *self.conn, self.sh, &mut *self.scratch);
        let period = u32::from(sh.config.check_frames);
        let since = conn.log.front().map_or(conn.log.newest_seq().wrapping_add(1), |packet| packet.seq);
        let far = conn.log.newest_seq().wrapping_sub(since) < 0x8000
            && conn.log.newest_seq().wrapping_sub(since) >= ACK_WINDOW - 1;
        if !scratch.out.is_open() || far {
            return;
        }
        scratch.record.clear();
        scratch.record.extend_from_slice(&since.to_le_bytes());
        let mut count = 0;
        'words: for word in crate::bitmap::members(conn.scope.top().iter().copied()) {
            let settled = conn.scope.word(word) & conn.live.word(word) & !conn.pending.bits(word as u32);
            for bit in bits_of(settled) {
                let object = (word * 64 + bit) as u32;
                if object % period != sh.frame % period
                    || conn.transfers(object)
                    || conn.gathered(sh, object).1 != 0
                {
                    continue;
                }
                let store = sh.store(object);
                // Receivers hold the state of their creation.
                if store.class.flags.temporary {
                    continue;
                }
                let mut mask = conn.mask_for(sh, object, false) & !store.class.hide_mask;
                // A far band withholds properties.
                if let (band @ 1.., _) = conn.gathered(sh, object) {
                    mask &= sh.gatherings[band - 1].properties;
                }
                write_varint(&mut scratch.record, u64::from(object));
                write_varint(&mut scratch.record, mask);
                let words = store.quant(sh.objects.slot[object as usize]);
                scratch.record.extend_from_slice(&state_hash(&store.class, words, mask).to_le_bytes());
                count += 1;
                if count == CHECKS_MAX || scratch.record.len() + ITEM_BYTES > scratch.out.room().0 {
                    break 'words;
                }
            }
        }
        if count > 0 && scratch.record.len() + 8 < scratch.out.room().0 {
            scratch.out.reserve_skippable(&mut conn.log, kind::CHECK, count as u8, &scratch.record);
        }
    }
}
