//! Recording of a world for its picture: positions a few times a second, and every handover.

use super::oracle::Entity;
use super::terrain::Terrain;

/// Snapshots per second. A browser fills in the rest.
pub(crate) const SNAPSHOTS_PER_SECOND: u64 = 4;
/// Longest recording, in snapshots; a loop of this length shows the world well enough.
const SNAPSHOTS_MAX: usize = 8 * SNAPSHOTS_PER_SECOND as usize + 1;

/// Positions of all characters at one time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshot {
    /// Since the first one.
    pub(crate) at_ns: u64,
    /// Positions in metres by index.
    pub(crate) places: Vec<(f32, f32)>,
    /// Cell by index, and the middle of the interest of each one's player.
    pub(crate) cells: Vec<(u32, (f32, f32))>,
}

/// One character going from one cell to another.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    pub(crate) at_ns: u64,
    pub(crate) entity: u32,
    pub(crate) to: u32,
    pub(crate) place: (f32, f32),
    /// True if it also changed servers.
    pub(crate) between_servers: bool,
}

/// The record of a run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tape {
    pub(crate) side_metres: f32,
    pub(crate) interest_metres: f32,
    pub(crate) obstacles: Vec<(f32, f32)>,
    pub(crate) snapshots: Vec<Snapshot>,
    pub(crate) steps: Vec<Step>,
    running: bool,
    from_ns: u64,
}

impl Tape {
    pub(crate) fn begin(&mut self, terrain: &Terrain, interest_metres: f32) {
        self.running = true;
        self.side_metres = terrain.side_metres();
        self.interest_metres = interest_metres;
        self.obstacles = terrain.obstacles().collect();
    }

    /// Adds a snapshot when it is time for one. The record begins with the measured window.
    pub(crate) fn snapshot(
        &mut self,
        at_ns: u64,
        measured: bool,
        entities: &[Entity],
        cells: impl FnOnce() -> Vec<(u32, (f32, f32))>,
    ) {
        if !self.running || !measured {
            return;
        }
        let next = self.snapshots.len() as u64;
        if next == 0 {
            self.from_ns = at_ns;
        } else if at_ns < self.from_ns + next * 1_000_000_000 / SNAPSHOTS_PER_SECOND {
            return;
        }
        let at_ns = at_ns - self.from_ns;
        let places = entities.iter().map(Entity::place).collect();
        self.snapshots.push(Snapshot { at_ns, places, cells: cells() });
        self.running = self.snapshots.len() < SNAPSHOTS_MAX;
    }

    pub(crate) fn handover(
        &mut self,
        at_ns: u64,
        entity: u32,
        to: u32,
        place: (f32, f32),
        between_servers: bool,
    ) {
        if self.running && !self.snapshots.is_empty() {
            let at_ns = at_ns.saturating_sub(self.from_ns);
            self.steps.push(Step { at_ns, entity, to, place, between_servers });
        }
    }
}
