//! Sharing out the host's bandwidth. Spec: enet §13.2, §13.3

use alloc::vec::Vec;

use throng_stdx::Instant;

use super::{Host, Timer};
use crate::config::BandwidthReports;
use crate::estimate::THROTTLE_SCALE;
use crate::peer::State;
use crate::work;

/// Sharing out of the host's bandwidth. Spec: enet §13.2, §13.3
#[derive(Debug)]
pub(super) struct Bandwidth {
    /// Time of the last look; later ones follow at whole seconds.
    pub(super) epoch_ms: u64,
    pub(super) is_armed: bool,
    /// Peers have to be told.
    pub(super) report: bool,
    /// Peers that announced what they can take.
    pub(super) limited: usize,
    /// Peers that sent something since the last look, and those whose throttle it limited.
    pub(super) active: Vec<u32>,
    pub(super) adjusted: Vec<u32>,
}

impl Host {
    pub(super) fn peers_changed(&mut self) {
        let config = &self.ctx.config;
        if config.bandwidth_reports == BandwidthReports::Always || config.incoming_bandwidth != 0 {
            self.bandwidth.report = true;
        }
        self.update_meters();
        self.arm_bandwidth();
    }

    pub(super) fn update_meters(&mut self) {
        self.ctx.meters = self.ctx.config.outgoing_bandwidth != 0 || self.bandwidth.limited > 0;
    }

    /// Looks at the bandwidth at the next whole second, if there is something to see.
    pub(super) fn arm_bandwidth(&mut self) {
        let has_work = self.bandwidth.report || self.ctx.meters;
        if self.bandwidth.is_armed || !has_work || self.by_remote.is_empty() {
            return;
        }
        let since = self.ctx.now_ms.saturating_sub(self.bandwidth.epoch_ms);
        let at = self.bandwidth.epoch_ms + (since / BANDWIDTH_LOOK_MS + 1) * BANDWIDTH_LOOK_MS;
        self.bandwidth.is_armed = true;
        self.timers.insert(Instant::from_millis(at), Timer::Bandwidth);
    }

    pub(super) fn share_bandwidth(&mut self) {
        let elapsed = self.ctx.now_ms.saturating_sub(self.bandwidth.epoch_ms);
        self.bandwidth.epoch_ms += elapsed / BANDWIDTH_LOOK_MS * BANDWIDTH_LOOK_MS;
        self.share_throttle(elapsed.min(2 * BANDWIDTH_LOOK_MS));
        if core::mem::take(&mut self.bandwidth.report) {
            self.report_bandwidth();
        }
    }

    /// Lowers the throttles of those who would get more than there is. Spec: enet §13.2
    fn share_throttle(&mut self, elapsed_ms: u64) {
        let bandwidth = &mut self.bandwidth;
        for index in bandwidth.adjusted.drain(..) {
            if let Some(peer) = self.slots[index as usize].peer.as_deref_mut() {
                peer.estimate.limit = None;
            }
        }
        let per_look = |rate: u32| u64::from(rate) * elapsed_ms / 1_000;
        // Index, bytes sent and bytes that fit, for each active peer.
        let mut senders: Vec<(u32, u64, u64)> = Vec::new();
        for index in bandwidth.active.drain(..) {
            let Some(peer) = self.slots[index as usize].peer.as_deref_mut().filter(|peer| peer.in_active)
            else {
                continue;
            };
            peer.in_active = false;
            senders.push((
                index,
                core::mem::take(&mut peer.metered_bytes),
                per_look(peer.incoming_bandwidth),
            ));
        }
        let outgoing = self.ctx.config.outgoing_bandwidth;
        let is_limited = outgoing != 0;
        let mut budget = per_look(outgoing);
        let mut data: u64 = senders.iter().map(|&(_, bytes, _)| bytes).sum();
        let scale = u64::from(THROTTLE_SCALE);
        // Taking out those who can take less than their share never raises the share of the others,
        // so the second round finds nobody.
        loop {
            let share = if !is_limited || data <= budget { scale } else { budget * scale / data };
            self.ctx.share = share as u32;
            let before = senders.len();
            senders.retain(|&(index, bytes, room)| {
                work::step();
                if room == 0 || share * bytes / scale <= room {
                    return true;
                }
                if let Some(peer) = self.slots[index as usize].peer.as_deref_mut() {
                    let limit = (room * scale / bytes).max(1) as u32;
                    peer.estimate.limit = Some(limit);
                    peer.estimate.throttle = peer.estimate.throttle.min(limit);
                    bandwidth.adjusted.push(index);
                }
                budget = budget.saturating_sub(room);
                data = data.saturating_sub(room);
                false
            });
            if senders.len() == before {
                return;
            }
        }
    }

    /// Tells every peer what this host can take from it. Spec: enet §13.3
    fn report_bandwidth(&mut self) {
        let (incoming, outgoing) = (self.ctx.config.incoming_bandwidth, self.ctx.config.outgoing_bandwidth);
        // Announced sending limit and index of each peer.
        let mut wishes: Vec<(u32, u32)> = Vec::new();
        for &index in &self.live {
            let Some(peer) = &self.slots[index as usize].peer else { continue };
            if matches!(peer.state, State::Connected | State::DisconnectLater(_)) {
                wishes.push((peer.outgoing_bandwidth, index));
            }
        }
        // A peer that wants less than an equal share leaves the rest to the others, whose share
        // grows. In order of what they want this takes one look at each; the reference starts again
        // after every round and comes to the same end, since a share never shrinks.
        wishes.sort_unstable();
        let mut left = incoming;
        let mut modest = if incoming == 0 { wishes.len() } else { 0 };
        while let Some(&(wish, _)) = wishes.get(modest) {
            work::step();
            let share = left / (wishes.len() - modest) as u32;
            if wish != 0 && wish >= share {
                break;
            }
            left = left.saturating_sub(wish);
            modest += 1;
        }
        let sharing = (wishes.len() - modest) as u32;
        for (place, &(wish, index)) in wishes.iter().enumerate() {
            let room = match left.checked_div(sharing) {
                _ if incoming == 0 => 0,
                Some(share) if place >= modest => share,
                _ => wish,
            };
            let Some(peer) = self.slots[index as usize].peer.as_deref_mut() else { continue };
            peer.report_bandwidth(&mut self.ctx, room, outgoing);
            self.settle(index, true);
        }
    }
}

/// Spec: enet §6
const BANDWIDTH_LOOK_MS: u64 = 1_000;
