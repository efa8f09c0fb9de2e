//! Faults: their beginning, their end, and the healing of all of them.

use std::net::{IpAddr, Ipv4Addr};

use throng_gateway::{ConnKind, Framing, ShardIndex};
use throng_stdx::Instant;

use super::{FAULT_END, FAULT_PHASE, Phase, SERVERS, Simulation, token};
use crate::check::{ActorIndex, Violation};
use crate::data::writer_of;
use crate::fault::FaultKind;
use crate::link::LinkProfile;
use crate::world::Leave;

impl Simulation {
    pub(super) fn begin_fault(&mut self, number: usize) -> Result<(), Violation> {
        if self.phase != Phase::Faults {
            return Ok(());
        }
        let fault = self.faults[number];
        self.outcome.faults.insert(fault.kind);
        let now = self.world.now();
        let until = now + fault.lasts;
        let index = self.rng.range(1..self.actors.len() as u64) as usize;
        self.trace(|| format!("{:?} for {:?}, victim actor {index}", fault.kind, fault.lasts));
        let victim = self.actors[index].peer.filter(|&peer| self.world.is_open(peer));
        let profile = &self.actors[index].profile;
        let slow_profile = match fault.kind {
            FaultKind::Delay => Some(LinkProfile { delay: fault.lasts / 2, ..profile.clone() }),
            FaultKind::TinyChunks => Some(LinkProfile { chunk_bytes_max: 3, ..profile.clone() }),
            FaultKind::Loss => Some(LinkProfile { loss: 0.3, ..profile.clone() }),
            FaultKind::Rate => Some(LinkProfile { rate: self.rng.range(500..8000), ..profile.clone() }),
            FaultKind::TinyWindow => Some(LinkProfile { window_bytes: 64, ..profile.clone() }),
            _ => None,
        };
        if let Some(profile) = slow_profile {
            self.make_slow(index);
            self.actors[index].profile = profile.clone();
            if let Some(peer) = victim {
                self.world.set_profile(peer, profile);
            }
            self.world.wake(until, token(FAULT_END, index));
        }
        match fault.kind {
            FaultKind::StalledReader | FaultKind::StalledWriter | FaultKind::Partition => {
                self.make_slow(index);
                if let Some(peer) = victim {
                    let up = fault.kind != FaultKind::StalledReader;
                    let down = fault.kind != FaultKind::StalledWriter;
                    self.world.stall(peer, up, down, until);
                }
            }
            FaultKind::NeverReads => {
                self.make_slow(index);
                self.actors[index].never_reads = true;
                if let Some(peer) = victim {
                    self.world.stall(peer, false, true, Instant::ZERO + FAULT_PHASE);
                }
            }
            FaultKind::Swizzle => self.swizzle()?,
            FaultKind::Reset => self.end_connection(index, Leave::Reset)?,
            FaultKind::Leave => self.end_connection(index, Leave::Close)?,
            FaultKind::Vanish => self.end_connection(index, Leave::Vanish(fault.lasts))?,
            FaultKind::ServerCrash => {
                let server = self.rng.range(1..1 + SERVERS as u64) as usize;
                self.end_connection(server, Leave::Reset)?;
            }
            FaultKind::ShardPause => {
                let shard = self.rng.below(self.world.shard_count().into()) as u16;
                self.world.pause_shard(ShardIndex(shard), now + fault.lasts / 4);
                self.disturbed.push((now, now + fault.lasts / 4));
            }
            FaultKind::SlowMail => {
                // The last slow mail is under way as long as any before it.
                self.disturbed.push((now, until + fault.lasts / 5));
                self.world.conditions.mail_delay_max = fault.lasts / 10;
                self.world.wake(until, token(FAULT_END, usize::MAX >> 32));
            }
            FaultKind::ProviderDown => {
                self.world.conditions.verdict_error = 0.7;
                self.world.conditions.verdict_delay_max = fault.lasts;
                self.world.wake(until, token(FAULT_END, usize::MAX >> 32));
            }
            FaultKind::Garbage => {
                let mut bytes = vec![0; self.rng.range(1..200) as usize];
                self.rng.fill(&mut bytes);
                if self.rng.chance(0.5) {
                    bytes.splice(..0, *b"CH");
                }
                self.stranger(bytes);
            }
            FaultKind::TornFrame => self.stranger(b"CH\x00\x40\x00\x0a\x30\x18\x01".to_vec()),
            FaultKind::IdleConnections => (0..10).for_each(|_| self.stranger(Vec::new())),
            FaultKind::Flood => self.actors[index].floods_until = until,
            _ => {}
        }
        Ok(())
    }

    pub(super) fn end_fault(&mut self, index: usize) {
        if index >= self.actors.len() {
            self.world.conditions = Default::default();
            return;
        }
        if self.phase != Phase::Faults {
            // Healed in the meantime, which a link that loses would undo.
            return;
        }
        self.actors[index].profile = LinkProfile::random(&mut self.rng);
        if let Some(peer) = self.actors[index].peer {
            let profile = self.actors[index].profile.clone();
            self.world.set_profile(peer, profile);
        }
    }

    fn make_slow(&mut self, index: ActorIndex) {
        // Bytes in flight from there may now take any time.
        let now = self.world.now();
        self.sent.retain(|&item, by| writer_of(item) != index || *by <= now);
        let actor = &mut self.actors[index];
        actor.slow = true;
        for subscription in actor.subscriptions.values_mut() {
            subscription.log.slow = true;
        }
    }

    fn end_connection(&mut self, index: ActorIndex, how: Leave) -> Result<(), Violation> {
        self.actors[index].returns += 1;
        if let Some(peer) = self.actors[index].peer {
            self.world.leave(peer, how);
            self.lost(index)?;
        }
        Ok(())
    }

    /// Cuts off about half of the peers in one order; `lost` brings them back in another.
    fn swizzle(&mut self) -> Result<(), Violation> {
        let mut victims: Vec<usize> = (1..self.actors.len()).collect();
        while victims.len() > self.actors.len() / 2 {
            let which = self.rng.below(victims.len() as u64) as usize;
            let how = if self.rng.chance(0.5) { Leave::Reset } else { Leave::Close };
            self.end_connection(victims.swap_remove(which), how)?;
        }
        Ok(())
    }

    fn stranger(&mut self, bytes: Vec<u8>) {
        let kind = if self.rng.chance(0.5) { ConnKind::Client } else { ConnKind::Server };
        let addr = IpAddr::V4(Ipv4Addr::from(0x0B00_0001 + self.strangers.len() as u32));
        let peer = self.world.connect(kind, Framing::Stream, addr, LinkProfile::local());
        self.strangers.insert(peer, bytes);
    }

    /// Ends all faults: links are good again, and all peers return.
    pub(super) fn heal(&mut self) -> Result<(), Violation> {
        self.phase = Phase::Heal;
        for index in 0..self.actors.len() {
            let actor = &mut self.actors[index];
            actor.never_reads = false;
            actor.profile = LinkProfile { chunk_bytes_max: 2000, ..LinkProfile::local() };
            if let Some(peer) = actor.peer {
                let profile = actor.profile.clone();
                self.world.set_profile(peer, profile);
            }
        }
        self.world.heal();
        for index in 0..self.actors.len() {
            // After losses KCP may wait for many seconds before it tries again. A player's program
            // connects anew.
            if self.actors[index].peer.is_some_and(|peer| self.world.backs_off(peer)) {
                self.end_connection(index, Leave::Reset)?;
            }
        }
        Ok(())
    }
}
