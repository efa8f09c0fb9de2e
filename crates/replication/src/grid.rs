//! The grid filter: which objects lie within their cull distance of a view (spec §12.1).
//!
//! Cells hold their objects' positions as arrays, so that a query is arithmetic over contiguous memory. An object lives
//! in one cell of the level whose cell edge is at least its cull distance: three by three cells then hold everything.

use crate::bitmap::Bitmap;

/// Bounds and cell size of the world. Positions outside are put into the cell at the border, and counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GridConfig {
    /// Smallest x and y in metres.
    pub min: [f32; 2],
    /// Largest x and y in metres.
    pub max: [f32; 2],
    /// Edge of a cell in metres; the usual cull distance is best.
    pub cell: f32,
}

impl Default for GridConfig {
    /// 16 km around the origin in cells of 250 m.
    fn default() -> Self {
        Self { min: [-8000.0; 2], max: [8000.0; 2], cell: 250.0 }
    }
}

/// Levels at most: the coarsest has cells 2^15 times the finest.
const LEVELS_MAX: usize = 16;
/// Objects that one step of a query tests.
const LANES: usize = 4;

#[derive(Clone, Debug, Default)]
struct Cell {
    objects: Vec<u32>,
    x: Vec<f32>,
    y: Vec<f32>,
    z: Vec<f32>,
    /// Square of the cull distance.
    cull: Vec<f32>,
}

/// Where an object is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    level: u8,
    cell: u32,
    slot: u32,
}

#[derive(Clone, Debug)]
struct Level {
    edge: f32,
    columns: i32,
    rows: i32,
    cells: Vec<Cell>,
    /// Objects of each cell: empty ones are passed over without touching them.
    counts: Vec<u32>,
    objects: u32,
}

/// Squared distances: in scope up to `cull`, and for those that were in scope up to `cull * exit`.
pub(crate) struct Query<'a> {
    pub(crate) view: [f32; 3],
    /// Square of the exit factor; 1 turns the second test off.
    pub(crate) exit: f32,
    pub(crate) before: &'a Bitmap,
}

#[derive(Clone, Debug)]
pub(crate) struct GridIndex {
    config: GridConfig,
    /// Leaving takes this many cull distances; at least 1.
    exit_factor: f32,
    levels: Vec<Level>,
    /// By object index.
    places: Vec<Option<Place>>,
    pub(crate) clamped_total: u64,
}

impl GridIndex {
    pub(crate) fn new(config: GridConfig, exit_factor: f32) -> Self {
        Self {
            config,
            exit_factor: exit_factor.max(1.0),
            levels: Vec::new(),
            places: Vec::new(),
            clamped_total: 0,
        }
    }

    fn level_for(&self, cull: f32) -> u8 {
        let mut level = 0;
        let mut edge = self.config.cell;
        while edge < cull && usize::from(level) < LEVELS_MAX - 1 {
            edge *= 2.0;
            level += 1;
        }
        level
    }

    /// Adds the object or moves it; `cull` is its distance, not the square. Positions must be numbers.
    pub(crate) fn place(&mut self, object: u32, position: [f32; 3], cull: f32) {
        let level = self.level_for(cull * self.exit_factor);
        while self.levels.len() <= usize::from(level) {
            self.levels.push(Level::new(&self.config, self.levels.len()));
        }
        if self.places.len() <= object as usize {
            self.places.resize(object as usize + 1, None);
        }
        let (cell, clamped) = self.levels[usize::from(level)].cell_of(&self.config, position);
        self.clamped_total += u64::from(clamped);
        match self.places[object as usize] {
            Some(place) if place.level == level && place.cell == cell => {
                let cell = &mut self.levels[usize::from(level)].cells[cell as usize];
                let slot = place.slot as usize;
                cell.x[slot] = position[0];
                cell.y[slot] = position[1];
                cell.z[slot] = position[2];
                cell.cull[slot] = cull * cull;
            }
            _ => {
                self.remove(object);
                let level_at = &mut self.levels[usize::from(level)];
                let slot = level_at.counts[cell as usize];
                level_at.counts[cell as usize] += 1;
                level_at.objects += 1;
                level_at.cells[cell as usize].push(object, position, cull * cull);
                self.places[object as usize] = Some(Place { level, cell, slot });
            }
        }
    }

    pub(crate) fn remove(&mut self, object: u32) {
        let Some(place) = self.places.get_mut(object as usize).and_then(Option::take) else { return };
        let level = &mut self.levels[usize::from(place.level)];
        level.counts[place.cell as usize] -= 1;
        level.objects -= 1;
        let cell = &mut level.cells[place.cell as usize];
        let slot = place.slot as usize;
        cell.objects.swap_remove(slot);
        cell.x.swap_remove(slot);
        cell.y.swap_remove(slot);
        cell.z.swap_remove(slot);
        cell.cull.swap_remove(slot);
        if let Some(moved) = cell.objects.get(slot) {
            let moved = &mut self.places[*moved as usize];
            *moved = moved.map(|old| Place { slot: place.slot, ..old });
        }
    }

    /// Sets the bits of all objects in range in `out`, which must have a word for each object. Costs a nanosecond for
    /// a few objects of the three by three cells, and one for each in range.
    pub(crate) fn query(&self, query: &Query<'_>, out: &mut [u64]) {
        for level in self.levels.iter().filter(|level| level.objects > 0) {
            let column = level.column(&self.config, query.view[0]);
            let row = level.row(&self.config, query.view[1]);
            for row in (row - 1).max(0)..=(row + 1).min(level.rows - 1) {
                for column in (column - 1).max(0)..=(column + 1).min(level.columns - 1) {
                    let at = (row * level.columns + column) as usize;
                    if level.counts[at] > 0 {
                        level.cells[at].query(query, out);
                    }
                }
            }
        }
    }
}

impl Level {
    fn new(config: &GridConfig, level: usize) -> Self {
        let edge = config.cell * (1_u32 << level) as f32;
        let count =
            |axis: usize| (((config.max[axis] - config.min[axis]) / edge).ceil() as i32).clamp(1, 4096);
        let (columns, rows) = (count(0), count(1));
        let cells = (columns * rows) as usize;
        Self { edge, columns, rows, cells: vec![Cell::default(); cells], counts: vec![0; cells], objects: 0 }
    }

    fn cell_of(&self, config: &GridConfig, position: [f32; 3]) -> (u32, bool) {
        let (column, row) = (self.column(config, position[0]), self.row(config, position[1]));
        let clamped =
            (0..2).any(|axis| position[axis] < config.min[axis] || position[axis] > config.max[axis]);
        ((row * self.columns + column) as u32, clamped)
    }

    // The cast saturates, so that any number lands in the grid.
    fn column(&self, config: &GridConfig, x: f32) -> i32 {
        (((x - config.min[0]) / self.edge) as i32).clamp(0, self.columns - 1)
    }

    fn row(&self, config: &GridConfig, y: f32) -> i32 {
        (((y - config.min[1]) / self.edge) as i32).clamp(0, self.rows - 1)
    }
}

impl Cell {
    fn push(&mut self, object: u32, position: [f32; 3], cull: f32) {
        self.objects.push(object);
        self.x.push(position[0]);
        self.y.push(position[1]);
        self.z.push(position[2]);
        self.cull.push(cull);
    }

    #[inline]
    fn query(&self, query: &Query<'_>, out: &mut [u64]) {
        let (x, x_rest) = self.x.as_chunks::<LANES>();
        let (y, y_rest) = self.y.as_chunks::<LANES>();
        let (z, z_rest) = self.z.as_chunks::<LANES>();
        let (cull, cull_rest) = self.cull.as_chunks::<LANES>();
        // Results are gathered 64 at a time: a loop over the bits of a word ends unpredictably, but once.
        let (mut word, mut first) = (0_u64, 0);
        for (at, (((x, y), z), cull)) in x.iter().zip(y).zip(z).zip(cull).enumerate() {
            let lane = at * LANES - first;
            let objects = &self.objects[at * LANES..][..LANES];
            word |= u64::from(test(query, [x, y, z, cull], objects)) << lane;
            if lane == 64 - LANES {
                spread(&self.objects[first..], word, out);
                (word, first) = (0, first + 64);
            }
        }
        if !x_rest.is_empty() {
            // Missing lanes have a negative limit, below which no square lies.
            let fill = |rest: &[f32], with: f32| {
                let mut lanes = [with; LANES];
                lanes[..rest.len()].copy_from_slice(rest);
                lanes
            };
            let from = self.objects.len() - x_rest.len();
            let lanes = [fill(x_rest, 0.0), fill(y_rest, 0.0), fill(z_rest, 0.0), fill(cull_rest, -1.0)];
            word |= u64::from(test(query, lanes.each_ref(), &self.objects[from..])) << (from - first);
        }
        spread(&self.objects[first..], word, out);
    }
}

/// Sets the bits of those objects whose bit in `word` is set.
#[inline(always)]
fn spread(objects: &[u32], mut word: u64, out: &mut [u64]) {
    while word != 0 {
        let object = objects[word.trailing_zeros() as usize];
        word &= word - 1;
        out[object as usize / 64] |= 1 << (object % 64);
    }
}

/// Bit i: object i is in range.
#[inline(always)]
fn test(query: &Query<'_>, [x, y, z, cull]: [&[f32; LANES]; 4], objects: &[u32]) -> u32 {
    let square: [f32; LANES] = core::array::from_fn(|i| {
        let (dx, dy, dz) = (x[i] - query.view[0], y[i] - query.view[1], z[i] - query.view[2]);
        dx * dx + dy * dy + dz * dz
    });
    let mut inside = at_most(&square, cull);
    if query.exit > 1.0 {
        let limit = cull.map(|cull| cull * query.exit);
        let mut outer = at_most(&square, &limit) & !inside;
        while outer != 0 {
            let lane = outer.trailing_zeros();
            outer &= outer - 1;
            if query.before.get(objects[lane as usize]) {
                inside |= 1 << lane;
            }
        }
    }
    inside
}

/// Bit i: `a[i] <= b[i]`.
#[inline(always)]
fn at_most(a: &[f32; LANES], b: &[f32; LANES]) -> u32 {
    (0..LANES).fold(0, |bits, i| bits | u32::from(a[i] <= b[i]) << i)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(grid: &GridIndex, view: [f32; 3]) -> Vec<u32> {
        let mut out = vec![0; 256];
        grid.query(&Query { view, exit: 1.0, before: &Bitmap::default() }, &mut out);
        let bits = |(at, word): (usize, &u64)| {
            crate::wire::bits_of(*word).map(move |bit| (at * 64 + bit) as u32).collect::<Vec<_>>()
        };
        out.iter().enumerate().flat_map(bits).collect()
    }

    #[test]
    fn borders_are_inclusive() {
        let mut grid = GridIndex::new(GridConfig::default(), 1.0);
        grid.place(1, [250.0, 0.0, 0.0], 250.0);
        grid.place(2, [250.1, 0.0, 0.0], 250.0);
        grid.place(3, [0.0, 0.0, 250.0], 250.0);
        grid.place(4, [0.0, 0.0, 250.1], 250.0);
        grid.place(5, [900.0, 0.0, 0.0], 1000.0);
        assert_eq!(seen(&grid, [0.0; 3]), [1, 3, 5]);
    }

    #[test]
    fn agrees_with_testing_everything() {
        let mut rng = throng_stdx::Rng::new(4);
        let mut grid = GridIndex::new(GridConfig { min: [-500.0; 2], max: [500.0; 2], cell: 100.0 }, 1.0);
        let mut objects = vec![None; 2000];
        let mut draw = |limit: f64| ((rng.f64() * 2.0 - 1.0) * limit) as f32;
        for round in 0..20_000_u32 {
            let object = (draw(1000.0) + 1000.0) as u32 % 2000;
            if round % 7 == 0 {
                grid.remove(object);
                objects[object as usize] = None;
            } else {
                let (position, cull) = ([draw(600.0), draw(600.0), draw(50.0)], draw(150.0).abs());
                grid.place(object, position, cull);
                objects[object as usize] = Some((position, cull));
            }
            if round % 500 == 0 {
                let view = [draw(550.0), draw(550.0), draw(20.0)];
                let expected: Vec<u32> = (0..2000)
                    .filter(|object| {
                        objects[*object as usize].is_some_and(|(position, cull): ([f32; 3], f32)| {
                            let d: [f32; 3] = core::array::from_fn(|i| position[i] - view[i]);
                            d[0] * d[0] + d[1] * d[1] + d[2] * d[2] <= cull * cull
                        })
                    })
                    .collect();
                assert_eq!(seen(&grid, view), expected);
            }
        }
        assert!(grid.clamped_total > 0);
    }
}
