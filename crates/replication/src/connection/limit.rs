//! Turns of objects whose number in a frame is limited.

use super::{Map, Stage};
use crate::priority::{CountLimiter, LimitMode, Prioritiser};
use crate::wire::bits_of;

/// State of count limiters for one connection.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// By prioritiser: the object that had its turn last.
    last: Vec<u32>,
    /// Frame of each object's last turn.
    frames: Map<u32>,
}

impl Stage<'_> {
    /// Chooses the objects whose turn it is. Costs a look at each object in scope that has such a
    /// prioritiser.
    #[inline(never)]
    pub(super) fn take_turns(&mut self) {
        let sh = self.sh;
        let words = sh.objects.bitmap_words();
        self.scratch.chosen.grow(words);
        (0..words).for_each(|word| self.scratch.chosen.clear_word(word));
        self.conn.turns.last.resize(sh.prioritisers.len(), 0);
        for (kind, prioritiser) in sh.prioritisers.iter().enumerate() {
            if let Prioritiser::CountLimiter(limiter) = prioritiser {
                self.choose(kind as u8, limiter);
            }
        }
    }

    fn choose(&mut self, kind: u8, limiter: &CountLimiter) {
        let (conn, sh) = (&mut *self.conn, self.sh);
        let last = conn.turns.last[usize::from(kind)];
        let mut waiting = core::mem::take(&mut self.scratch.waiting);
        waiting.clear();
        for word in crate::bitmap::members(conn.scope.top().iter().copied()) {
            for bit in bits_of(conn.scope.word(word) & conn.live.word(word)) {
                let object = (word * 64 + bit) as u32;
                let limited = sh.objects.prioritiser[object as usize] == kind;
                if !limited || limiter.owner_always && conn.owned.get(object) {
                    continue;
                }
                // Objects after the last one come first, then those before it.
                let rank = match limiter.mode {
                    LimitMode::RoundRobin => object.wrapping_sub(last).wrapping_sub(1),
                    LimitMode::Fill => {
                        let changed = sh.streams.iter().any(|stream| stream.mask_of(object) != 0);
                        if !changed && conn.pending.mask(object) == 0 {
                            continue;
                        }
                        // Those that never had a turn first, then by how long ago it was.
                        conn.turns
                            .frames
                            .get(&object)
                            .map_or(0, |frame| u32::MAX - sh.frame.wrapping_sub(*frame).min(u32::MAX - 1))
                    }
                };
                waiting.push((rank, object));
            }
        }
        let count = (limiter.count as usize).min(waiting.len());
        if count < waiting.len() && count > 0 {
            waiting.select_nth_unstable(count - 1);
        }
        for (_, object) in &waiting[..count] {
            self.scratch.chosen.set(*object);
            if limiter.mode == LimitMode::Fill {
                conn.turns.frames.insert(*object, sh.frame);
            }
        }
        if limiter.mode == LimitMode::RoundRobin
            && let Some((_, object)) = waiting[..count].iter().max()
        {
            conn.turns.last[usize::from(kind)] = *object;
        }
        self.scratch.waiting = waiting;
    }
}
