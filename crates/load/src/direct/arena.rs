//! The game's rules: positions, the effect of inputs, and the replicated state. No sockets and no
//! clock.

use std::collections::BTreeMap;

use throng_replication::{
    ClassId, Classes, ConnId, DestroyReason, Event, GridConfig, Handle, LodProfile, Prioritiser,
    PrioritiserId, Replicate as _, Server, ServerConfig, Sphere, View,
};
use throng_stdx::Rng;

use super::character::{Character, HALF_SIDE, SIGHT, read_inputs, stepped};

/// Inputs of one player that a frame applies: more would be faster than others.
const INPUTS_PER_FRAME: u32 = 3;

/// A player's state in the game.
struct Seat {
    handle: Handle,
    body: Character,
    /// Inputs that this frame may still apply.
    credit: u32,
}

/// The authoritative side.
pub(super) struct Arena {
    pub(super) server: Server,
    character: ClassId,
    prioritiser: Option<PrioritiserId>,
    seats: BTreeMap<ConnId, Seat>,
    rng: Rng,
    /// Inputs applied, from the beginning.
    pub(super) inputs: u64,
}

impl Arena {
    pub(super) fn new(classes: &Classes, character: ClassId, seed: u64) -> Self {
        let side = HALF_SIDE + SIGHT;
        let config = ServerConfig {
            lod: Some(LodProfile::reference()),
            grid: GridConfig { min: [-side; 2], max: [side; 2], cell: SIGHT },
            ..ServerConfig::default()
        };
        let mut server = Server::new(config, classes);
        // Without a budget every object may be sent in every frame; the order decides when a packet
        // overflows.
        let near_first = Sphere { p_in: 2.0, p_out: 1.0, p_outside: 1.0, ..Sphere::default() };
        let prioritiser = server.add_prioritiser(Prioritiser::Sphere(near_first));
        Self { server, character, prioritiser, seats: BTreeMap::new(), rng: Rng::new(seed), inputs: 0 }
    }

    /// A new player with a character somewhere; `None` at a limit.
    pub(super) fn join(&mut self) -> Option<ConnId> {
        let id = self.server.connect()?;
        let Ok(handle) = self.server.create(self.character) else {
            self.server.disconnect(id);
            return None;
        };
        let mut place = || (self.rng.f64() as f32 * 2.0 - 1.0) * HALF_SIDE;
        let body = Character { position: [place(), place(), 0.0], heading: 0.0, input: 0 };
        let owned = self.server.set_owner(handle, Some(id));
        let ranked = self.prioritiser.map_or(Ok(()), |sphere| self.server.set_prioritiser(handle, sphere));
        debug_assert!(owned.is_ok() && ranked.is_ok(), "just created");
        self.seats.insert(id, Seat { handle, body, credit: 0 });
        Some(id)
    }

    pub(super) fn leave(&mut self, id: ConnId) {
        if let Some(seat) = self.seats.remove(&id) {
            // The seat's object exists until the seat is left.
            let _ = self.server.destroy(seat.handle, DestroyReason::Destroyed, false);
        }
        self.server.disconnect(id);
    }

    pub(super) fn players(&self) -> usize {
        self.seats.len()
    }

    /// Applies the inputs that arrived since the last frame. Inputs that packets repeat are applied
    /// once.
    pub(super) fn step(&mut self) {
        for seat in self.seats.values_mut() {
            seat.credit = INPUTS_PER_FRAME;
        }
        while let Some(event) = self.server.poll_event() {
            let Event::Input(id, bytes) = event else { continue };
            let Some(seat) = self.seats.get_mut(&id) else { continue };
            for (number, heading) in read_inputs(&bytes) {
                if number.wrapping_sub(seat.body.input) as i32 > 0 && seat.credit > 0 {
                    seat.credit -= 1;
                    seat.body.input = number;
                    seat.body.heading = heading;
                    let [x, y, z] = stepped(seat.body.position, heading);
                    seat.body.position = [x.clamp(-HALF_SIDE, HALF_SIDE), y.clamp(-HALF_SIDE, HALF_SIDE), z];
                    self.inputs += 1;
                }
            }
        }
        for (id, seat) in &self.seats {
            // As above: it exists.
            let _ = seat.body.write(&mut self.server, seat.handle);
            self.server.set_views(*id, &[View { position: seat.body.position, ..View::default() }]);
        }
    }

    #[cfg(test)]
    pub(super) fn body(&self, id: ConnId) -> Character {
        self.seats[&id].body
    }

    #[cfg(test)]
    pub(super) fn put(&mut self, id: ConnId, position: [f32; 3]) {
        if let Some(seat) = self.seats.get_mut(&id) {
            seat.body.position = position;
        }
    }
}
