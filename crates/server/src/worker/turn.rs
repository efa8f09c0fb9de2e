//! Turns of the worlds on a thread: a busy world takes its part of a round, and what is left of its
//! work waits for the next one.
//!
//! In a round, a world reads sockets, runs timers and writes for [`PART`] each at most, beyond
//! which it finishes the step that it is in: one read, one tick of a channel or one write. None of
//! the three can starve the others. So a player of a quiet world waits for three parts and three
//! steps of every busy world on the thread. Mail from other threads and datagrams of KCP and ENet
//! that were received already are handled in any case. A thread with one world has no turns.

use std::time::Duration;

/// Time in a round that a world may spend on reading, on timers, and on writing.
const PART: Duration = Duration::from_millis(2);

/// One world's account of a round, and of a sweep: the one or more rounds in which every connection
/// with input is read once.
#[derive(Debug)]
pub(super) struct Turn {
    /// Time spent in the present part of the round.
    spent: Duration,
    sweep: u32,
    /// Connections with input that have not been read in this sweep.
    waiting: usize,
}

/// One connection's part in the sweeps of its world.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Share {
    /// Sweep in which it was read last.
    read_in: u32,
    /// It is one of those that wait.
    waits: bool,
}

impl Turn {
    pub(super) fn new() -> Turn {
        Turn { spent: Duration::ZERO, sweep: 1, waiting: 0 }
    }

    /// A round begins, with its reads.
    pub(super) fn begin(&mut self) {
        self.begin_part();
        if self.waiting == 0 {
            self.sweep = self.sweep.wrapping_add(1);
        }
    }

    /// The timers or the writes of a round begin.
    pub(super) fn begin_part(&mut self) {
        self.spent = Duration::ZERO;
    }

    pub(super) fn charge(&mut self, time: Duration) {
        self.spent += time;
    }

    /// The present part is over.
    pub(super) fn is_over(&self) -> bool {
        self.spent >= PART
    }

    /// Input waits for the next round.
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting > 0
    }

    /// True if a connection may be read now. While some wait, none is read twice in a sweep: the
    /// loop offers connections in the same order every time, and the last ones would have no turn.
    pub(super) fn admits(&mut self, share: &mut Share) -> bool {
        let is_read = share.read_in == self.sweep;
        if self.is_over() {
            if !is_read && !share.waits {
                share.waits = true;
                self.waiting += 1;
            }
            return false;
        }
        if is_read && self.waiting > 0 {
            return false;
        }
        share.read_in = self.sweep;
        self.forget(*share);
        share.waits = false;
        true
    }

    /// A connection is gone.
    pub(super) fn forget(&mut self, share: Share) {
        if share.waits {
            self.waiting -= 1;
            if self.waiting == 0 {
                self.sweep = self.sweep.wrapping_add(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_connection_has_its_share_of_a_busy_world() {
        // Connections with endless input, which the loop offers in this order in every round.
        let (mut turn, mut shares) = (Turn::new(), [Share::default(); 10]);
        turn.begin();
        assert!(shares.iter_mut().all(|share| turn.admits(share)), "all of a round without much work");
        let mut read = Vec::new();
        for _ in 0..15 {
            turn.begin();
            for (conn, share) in shares.iter_mut().enumerate() {
                if turn.admits(share) {
                    read.push(conn);
                    turn.charge(PART / 2);
                }
            }
        }
        assert_eq!(read, (0..3).flat_map(|_| 0..10).collect::<Vec<_>>(), "two in a round, each in its turn");
    }

    #[test]
    fn connections_that_leave_do_not_hold_up_the_others() {
        let (mut turn, mut other, mut left) = (Turn::new(), Share::default(), Share::default());
        assert!(turn.admits(&mut other));
        turn.charge(PART);
        assert!(!turn.admits(&mut left) && turn.is_waiting());
        turn.begin();
        assert!(!turn.admits(&mut other), "one waits that has not been read");
        turn.forget(left);
        assert!(turn.admits(&mut other) && !turn.is_waiting());
    }
}
