//! The grid filter: which objects lie within their cull distance of a view.
//!
//! Cells hold their objects' positions as arrays, so that a query is arithmetic over contiguous
//! memory. An object lives in one cell of the level whose cell edge is at least its cull distance:
//! three by three cells then hold everything.
//!
//! Objects that stand still are kept apart. A view remembers which of them are certainly in range
//! as long as it stays within some metres ([`Nearby`]), so a frame tests the few at the border of
//! its range, and those that move.

use crate::bitmap::Sparse;
use crate::interest::Area;

/// Bounds and cell size of the world. Positions outside are put into the cell at the border, and
/// counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GridConfig {
    /// Smallest x and y in metres.
    pub min: [f32; 2],
    /// Largest x and y in metres.
    pub max: [f32; 2],
    /// Edge of a cell in metres; the usual cull distance is best. An edge that divides the world
    /// into more than 262,144 cells, or one of its sides into more than 4,096, is doubled until it
    /// does not: cells take 80 bytes each, and their size decides cost, never scope.
    pub cell: f32,
}

impl GridConfig {
    /// Columns and rows of cells with this edge.
    fn cells(&self, edge: f32) -> [f64; 2] {
        [0, 1].map(|axis| {
            let side = f64::from(self.max[axis]) - f64::from(self.min[axis]);
            // The greater of a quotient that is not a number and 1 is 1.
            (side / f64::from(edge)).ceil().max(1.0)
        })
    }

    /// Edge of the finest cells: that of the configuration if the world has room for such cells.
    fn edge(&self) -> f32 {
        let fits = |edge: f32| {
            let [columns, rows] = self.cells(edge);
            columns.max(rows) <= CELLS_MAX.0 && columns * rows <= CELLS_MAX.1
        };
        let mut edge = self.cell.max(f32::MIN_POSITIVE);
        while !fits(edge) {
            edge *= 2.0;
        }
        edge
    }
}

impl Default for GridConfig {
    /// 16 km around the origin in cells of 250 m.
    fn default() -> Self {
        Self { min: [-8000.0; 2], max: [8000.0; 2], cell: 250.0 }
    }
}

/// Levels at most: the coarsest has cells 2^15 times the finest.
const LEVELS_MAX: usize = 16;
/// Cells along one side of the world at most, so that one cell of a coarse level covers it all; and
/// cells of a level in all.
const CELLS_MAX: (f64, f64) = (4096.0, 262_144.0);
/// Objects that one step of a query tests.
const LANES: usize = 8;

/// So many objects are quicker one by one.
const FEW: usize = 2;

/// Some objects side by side. Lanes beyond the cell's last object have a negative limit, below
/// which no square lies.
#[derive(Clone, Copy, Debug)]
struct Lanes {
    x: [f32; LANES],
    y: [f32; LANES],
    z: [f32; LANES],
    /// Square of the cull distance.
    cull: [f32; LANES],
    objects: [u32; LANES],
}

const NO_LANES: Lanes =
    Lanes { x: [0.0; LANES], y: [0.0; LANES], z: [0.0; LANES], cull: [-1.0; LANES], objects: [0; LANES] };

/// Metres that a view may move before the objects that stand still are tested again. Longer makes
/// that rarer and the border wider: 8 m are a second of running, and an eighth of the objects
/// within 250 m.
const REACH: f32 = 8.0;
/// Beyond what rounding of distances within the largest world amounts to.
const ROUNDING: f32 = 0.5;
/// Frames between two looks for objects that have come to rest, and frames for which they must not
/// have moved.
const SETTLE_FRAMES: u32 = 16;

/// Some objects, in no order.
#[derive(Clone, Debug, Default)]
struct List {
    lanes: Vec<Lanes>,
    count: usize,
}

#[derive(Clone, Debug, Default)]
struct Cell {
    /// Objects that stand still, and the others.
    settled: List,
    moving: List,
    /// Number of the last change of `settled`; 0 before the first.
    version: u64,
}

/// Memory of a view of the objects around it that stand still.
#[derive(Clone, Debug, Default)]
pub(crate) struct Nearby {
    /// Position at which they were tested, and the versions of the cells around it, mixed.
    origin: [f32; 3],
    versions: u64,
    /// Objects in range from anywhere within [`REACH`] of `origin`, by word.
    inside: Vec<(u32, u64)>,
    /// Objects of which that is not certain, nor the contrary.
    border: List,
}

impl Nearby {
    pub(crate) fn heap_bytes(&self) -> usize {
        self.inside.capacity() * 16 + self.border.lanes.capacity() * size_of::<Lanes>()
    }
}

/// Location of an object in the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GridSlot {
    level: u8,
    cell: u32,
    slot: u32,
    moving: bool,
}

#[derive(Clone, Debug)]
struct Level {
    edge: f32,
    columns: i32,
    rows: i32,
    cells: Vec<Cell>,
    /// Objects of each cell: empty ones are passed over without touching them.
    counts: Vec<u32>,
    /// Cells of the three by three around each cell that have objects, row by row; and how far each
    /// lies from the middle one.
    occupied: Vec<u16>,
    steps: [usize; 16],
    objects: u32,
}

/// Squared distances: in scope up to `cull`, and for those that were in scope up to `cull * exit`.
pub(crate) struct Query<'a> {
    pub(crate) view: [f32; 3],
    /// Square of the exit factor; 1 turns the second test off.
    pub(crate) exit: f32,
    pub(crate) before: &'a Sparse,
    /// Squared limits of bands of detail, nearest first: objects within each, and within the
    /// distance at which they leave it, are wanted too.
    pub(crate) bands: &'a [(f32, f32)],
}

/// Results of a query.
pub(crate) struct Found<'a> {
    /// Objects in range, and the words that have any.
    pub(crate) scope: &'a mut [u64],
    pub(crate) top: &'a mut [u64],
    /// For each band: objects within its limit, and those not yet beyond the distance at which they
    /// leave it.
    pub(crate) near: &'a mut [(Vec<u64>, Vec<u64>)],
    /// Objects whose place was looked at.
    pub(crate) tested: &'a mut u64,
}

#[derive(Clone, Debug)]
pub(crate) struct GridIndex {
    /// With an edge that the world has room for.
    config: GridConfig,
    /// Leaving takes this many cull distances, 1 or more.
    exit_factor: f32,
    levels: Vec<Level>,
    /// By object index.
    slots: Vec<Option<GridSlot>>,
    /// Frame of the last move, by object index; and the objects that are kept as moving.
    moved: Vec<u32>,
    movers: Vec<u32>,
    frame: u32,
    /// Count of changes of settled lists.
    changes: u64,
    pub(crate) clamped_total: u64,
}

impl GridIndex {
    pub(crate) fn new(config: GridConfig, exit_factor: f32) -> Self {
        Self {
            config: GridConfig { cell: config.edge(), ..config },
            exit_factor,
            levels: Vec::new(),
            slots: Vec::new(),
            moved: Vec::new(),
            movers: Vec::new(),
            frame: 0,
            changes: 0,
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

    /// Adds the object or moves it; `cull` is its distance, not the square. Positions must be
    /// numbers.
    pub(crate) fn place(&mut self, object: u32, position: [f32; 3], cull: f32) {
        let level = self.level_for(cull * self.exit_factor);
        while self.levels.len() <= usize::from(level) {
            self.levels.push(Level::new(&self.config, self.levels.len()));
        }
        if self.slots.len() <= object as usize {
            self.slots.resize(object as usize + 1, None);
            self.moved.resize(object as usize + 1, 0);
        }
        let (cell, clamped) = self.levels[usize::from(level)].cell_of(&self.config, position);
        self.clamped_total += u64::from(clamped);
        if let Some(slot) =
            self.slots[object as usize].filter(|slot| (slot.level, slot.cell) == (level, cell))
        {
            let cell = &mut self.levels[usize::from(level)].cells[cell as usize];
            let list = if slot.moving { &mut cell.moving } else { &mut cell.settled };
            if list.holds(slot.slot as usize, position, cull * cull) {
                return;
            }
            if slot.moving {
                list.put(slot.slot as usize, object, position, cull * cull);
                self.moved[object as usize] = self.frame;
                return;
            }
        }
        self.remove(object);
        let slot = GridSlot { level, cell, slot: 0, moving: true };
        self.add(object, slot, position, cull * cull);
        self.moved[object as usize] = self.frame;
        self.movers.push(object);
    }

    /// Begins a frame: now and then objects that have not moved for some frames are settled. Costs
    /// a look at each moving object in every 16th frame.
    pub(crate) fn settle(&mut self, frame: u32) {
        self.frame = frame;
        if !frame.is_multiple_of(SETTLE_FRAMES) {
            return;
        }
        let mut movers = core::mem::take(&mut self.movers);
        movers.retain(|object| {
            let Some(slot) = self.slots[*object as usize].filter(|slot| slot.moving) else { return false };
            if frame.wrapping_sub(self.moved[*object as usize]) < SETTLE_FRAMES {
                return true;
            }
            let cell = &self.levels[usize::from(slot.level)].cells[slot.cell as usize];
            let (position, cull) = cell.moving.get(slot.slot as usize);
            self.remove(*object);
            self.add(*object, GridSlot { moving: false, ..slot }, position, cull);
            false
        });
        // An object that left the grid and came back within these frames is listed twice.
        movers.sort_unstable();
        movers.dedup();
        self.movers = movers;
    }

    fn add(&mut self, object: u32, slot: GridSlot, position: [f32; 3], cull: f32) {
        let level = &mut self.levels[usize::from(slot.level)];
        level.count(slot.cell, 1);
        let cell = &mut level.cells[slot.cell as usize];
        let list = if slot.moving { &mut cell.moving } else { &mut cell.settled };
        list.push(object, position, cull);
        let slot = GridSlot { slot: list.count as u32 - 1, ..slot };
        if !slot.moving {
            self.changes += 1;
            cell.version = self.changes;
        }
        self.slots[object as usize] = Some(slot);
    }

    pub(crate) fn remove(&mut self, object: u32) {
        let Some(slot) = self.slots.get_mut(object as usize).and_then(Option::take) else { return };
        let level = &mut self.levels[usize::from(slot.level)];
        level.count(slot.cell, -1);
        let cell = &mut level.cells[slot.cell as usize];
        if !slot.moving {
            self.changes += 1;
            cell.version = self.changes;
        }
        let list = if slot.moving { &mut cell.moving } else { &mut cell.settled };
        if let Some(moved) = list.swap_remove(slot.slot as usize) {
            let moved = &mut self.slots[moved as usize];
            *moved = moved.map(|old| GridSlot { slot: slot.slot, ..old });
        }
    }

    /// Sets the bits of all objects inside an area, whatever their cull distance. Costs a look at
    /// each object of the cells that the area touches.
    pub(crate) fn query_area(&self, area: &Area, found: &mut Found<'_>) {
        let ([x0, y0], [x1, y1]) = area.shape.bounds();
        for level in self.levels.iter().filter(|level| level.objects > 0) {
            for row in level.row(&self.config, y0)..=level.row(&self.config, y1) {
                for column in level.column(&self.config, x0)..=level.column(&self.config, x1) {
                    let at = (row * level.columns + column) as usize;
                    if level.counts[at] > 0 {
                        *found.tested += u64::from(level.counts[at]);
                        level.cells[at].settled.query_area(area, found);
                        level.cells[at].moving.query_area(area, found);
                    }
                }
            }
        }
    }

    /// Sets the bits of all objects in range in `found`, which must have room for each object.
    /// Costs a nanosecond for a few moving objects of the three by three cells, and for a few at
    /// the border of the range; `nearby` remembers the others between frames.
    pub(crate) fn query(&self, query: &Query<'_>, nearby: &mut Nearby, found: &mut Found<'_>) {
        // Results that depend on the frame before, or on bands, are tested anew.
        if query.exit > 1.0 || !query.bands.is_empty() {
            return self.query_all(query, found);
        }
        let mut versions = 0_u64;
        self.around(query.view, |cell| {
            versions = (versions ^ cell.version).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
            *found.tested += cell.moving.count as u64;
            cell.moving.query_plain(query, found);
        });
        let square: f32 = (0..3).map(|i| (query.view[i] - nearby.origin[i]).powi(2)).sum();
        // A view that is not a number is near nothing: its square is NaN, which is in no range.
        if versions != nearby.versions || !(0.0..=REACH * REACH).contains(&square) {
            nearby.versions = versions;
            self.remember(query.view, nearby, found);
        }
        for (word, bits) in &nearby.inside {
            found.scope[*word as usize] |= bits;
            found.top[*word as usize / 64] |= 1 << (word % 64);
        }
        *found.tested += nearby.border.count as u64;
        nearby.border.query_plain(query, found);
    }

    #[inline(never)]
    fn query_all(&self, query: &Query<'_>, found: &mut Found<'_>) {
        self.around(query.view, |cell| {
            *found.tested += (cell.settled.count + cell.moving.count) as u64;
            cell.settled.query(query, found);
            cell.moving.query(query, found);
        });
    }

    /// Tests the objects that stand still around a view.
    #[inline(never)]
    fn remember(&self, view: [f32; 3], nearby: &mut Nearby, found: &mut Found<'_>) {
        nearby.origin = view;
        nearby.inside.clear();
        nearby.border.clear();
        self.around(view, |cell| {
            *found.tested += cell.settled.count as u64;
            cell.settled.remember(view, nearby);
        });
        nearby.join();
    }

    /// Calls `each` with the cells that have objects, three by three on each level.
    #[inline]
    fn around(&self, view: [f32; 3], mut each: impl FnMut(&Cell)) {
        for level in self.levels.iter().filter(|level| level.objects > 0) {
            let column = level.column(&self.config, view[0]);
            let row = level.row(&self.config, view[1]);
            let at = (row * level.columns + column) as usize;
            for place in crate::wire::bits_of(u64::from(level.occupied[at])) {
                each(&level.cells[at.wrapping_add(level.steps[place & 15])]);
            }
        }
    }
}

impl Nearby {
    /// Joins the bits of one word: objects of neighbouring cells have neighbouring indices.
    fn join(&mut self) {
        self.inside.sort_unstable_by_key(|(word, _)| *word);
        self.inside.dedup_by(|(word, bits), (before, joined)| {
            let same = word == before;
            *joined |= if same { *bits } else { 0 };
            same
        });
    }
}

impl Level {
    fn new(config: &GridConfig, level: usize) -> Self {
        let edge = config.cell * (1_u32 << level) as f32;
        let [columns, rows] = config.cells(edge).map(|count| count as i32);
        let cells = (columns * rows) as usize;
        let mut steps = [0; 16];
        for (place, step) in steps.iter_mut().enumerate().take(9) {
            *step = (place / 3 * columns as usize + place % 3).wrapping_sub(columns as usize + 1);
        }
        Self {
            edge,
            columns,
            rows,
            cells: vec![Cell::default(); cells],
            counts: vec![0; cells],
            occupied: vec![0; cells],
            steps,
            objects: 0,
        }
    }

    /// Adds objects to a cell's count, or takes them off.
    fn count(&mut self, at: u32, change: i32) {
        let count = &mut self.counts[at as usize];
        let before = *count;
        *count = before.wrapping_add_signed(change);
        self.objects = self.objects.wrapping_add_signed(change);
        if (before > 0) == (*count > 0) {
            return;
        }
        let (column, row) = (at as i32 % self.columns, at as i32 / self.columns);
        for place in 0..9 {
            // The cell that has this one at `place`.
            let (column, row) = (column + 1 - place % 3, row + 1 - place / 3);
            if (0..self.columns).contains(&column) && (0..self.rows).contains(&row) {
                self.occupied[(row * self.columns + column) as usize] ^= 1 << place;
            }
        }
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

impl List {
    fn clear(&mut self) {
        self.lanes.clear();
        self.count = 0;
    }

    /// Position and squared cull distance of an object.
    fn get(&self, slot: usize) -> ([f32; 3], f32) {
        let (lanes, lane) = (&self.lanes[slot / LANES], slot % LANES);
        ([lanes.x[lane], lanes.y[lane], lanes.z[lane]], lanes.cull[lane])
    }

    fn holds(&self, slot: usize, position: [f32; 3], cull: f32) -> bool {
        let (held, limit) = self.get(slot);
        held.map(f32::to_bits) == position.map(f32::to_bits) && limit.to_bits() == cull.to_bits()
    }

    /// Sorts the objects into those in range from everywhere near the view, and those that have to
    /// be tested.
    fn remember(&self, view: [f32; 3], nearby: &mut Nearby) {
        for slot in 0..self.count {
            let (position, cull) = self.get(slot);
            let object = self.lanes[slot / LANES].objects[slot % LANES];
            let distance = (0..3).map(|i| (position[i] - view[i]).powi(2)).sum::<f32>().sqrt();
            let limit = cull.sqrt();
            if distance + REACH + ROUNDING <= limit {
                let (word, bit) = (object / 64, 1_u64 << (object % 64));
                match nearby.inside.last_mut() {
                    Some((last, bits)) if *last == word => *bits |= bit,
                    _ => nearby.inside.push((word, bit)),
                }
            } else if distance <= limit + REACH + ROUNDING {
                nearby.border.push(object, position, cull);
            }
        }
    }

    fn push(&mut self, object: u32, position: [f32; 3], cull: f32) {
        if self.count.is_multiple_of(LANES) {
            self.lanes.push(NO_LANES);
        }
        self.count += 1;
        self.put(self.count - 1, object, position, cull);
    }

    #[inline]
    fn put(&mut self, slot: usize, object: u32, [x, y, z]: [f32; 3], cull: f32) {
        let (lanes, lane) = (&mut self.lanes[slot / LANES], slot % LANES);
        (lanes.x[lane], lanes.y[lane], lanes.z[lane]) = (x, y, z);
        (lanes.cull[lane], lanes.objects[lane]) = (cull, object);
    }

    /// Puts the last object in the place of another; returns which, unless it was that one.
    fn swap_remove(&mut self, slot: usize) -> Option<u32> {
        self.count -= 1;
        let (last, lane) = (self.lanes[self.count / LANES], self.count % LANES);
        let moved = last.objects[lane];
        if slot != self.count {
            self.put(slot, moved, [last.x[lane], last.y[lane], last.z[lane]], last.cull[lane]);
        }
        if lane == 0 {
            self.lanes.pop();
        } else {
            self.put(self.count, 0, [0.0; 3], -1.0);
        }
        (slot != self.count).then_some(moved)
    }

    fn query_area(&self, area: &Area, found: &mut Found<'_>) {
        for slot in 0..self.count {
            let (lanes, lane) = (&self.lanes[slot / LANES], slot % LANES);
            if !area.shape.contains([lanes.x[lane], lanes.y[lane], lanes.z[lane]]) {
                continue;
            }
            let (word, bit) = (lanes.objects[lane] as usize / 64, 1 << (lanes.objects[lane] % 64));
            found.scope[word] |= bit;
            found.top[word / 64] |= 1 << (word % 64);
            for (near, within) in found.near.iter_mut().skip(usize::from(area.band)) {
                near[word] |= bit;
                within[word] |= bit;
            }
        }
    }

    /// As [`query`](Self::query), without exit factor and bands.
    #[inline]
    fn query_plain(&self, query: &Query<'_>, found: &mut Found<'_>) {
        if self.count > FEW {
            return self.query(query, found);
        }
        let Some(lanes) = self.lanes.first() else { return };
        let [vx, vy, vz] = query.view;
        for i in 0..self.count.min(LANES) {
            let (dx, dy, dz) = (lanes.x[i] - vx, lanes.y[i] - vy, lanes.z[i] - vz);
            if dx * dx + dy * dy + dz * dz <= lanes.cull[i] {
                let object = lanes.objects[i] as usize;
                found.scope[object / 64] |= 1 << (object % 64);
                found.top[object / 64 / 64] |= 1 << (object / 64 % 64);
            }
        }
    }

    #[inline(never)]
    fn query(&self, query: &Query<'_>, found: &mut Found<'_>) {
        if !query.bands.is_empty() {
            self.query_bands(query, found);
            return;
        }
        for chunk in self.lanes.chunks(64 / LANES) {
            let mut word = 0_u64;
            for (at, lanes) in chunk.iter().enumerate() {
                word |= u64::from(test(query, lanes).0) << (at * LANES);
            }
            for bit in crate::wire::bits_of(word) {
                let object = chunk[bit / LANES].objects[bit % LANES];
                let word = object as usize / 64;
                found.scope[word] |= 1 << (object % 64);
                found.top[word / 64] |= 1 << (word % 64);
            }
        }
    }

    fn query_bands(&self, query: &Query<'_>, found: &mut Found<'_>) {
        // Results are gathered 64 at a time: a loop over the bits of a word ends unpredictably, but
        // once.
        for chunk in self.lanes.chunks(64 / LANES) {
            let mut word = 0_u64;
            let mut squares = [0.0; 64];
            for (at, lanes) in chunk.iter().enumerate() {
                let (inside, square) = test(query, lanes);
                word |= u64::from(inside) << (at * LANES);
                squares[at * LANES..][..LANES].copy_from_slice(&square);
            }
            if word == 0 {
                continue;
            }
            let object = |bit: usize| chunk[bit / LANES].objects[bit % LANES];
            for bit in crate::wire::bits_of(word) {
                let word = object(bit) as usize / 64;
                found.scope[word] |= 1 << (object(bit) % 64);
                found.top[word / 64] |= 1 << (word % 64);
            }
            // Most cells lie beyond the bands near the view, all of their objects at once.
            let nearest = least(&squares[..chunk.len() * LANES]);
            for ((limit, leave), (near, within)) in query.bands.iter().zip(found.near.iter_mut()) {
                if nearest > *leave {
                    continue;
                }
                let inside =
                    (0..64).fold(0_u64, |bits, i| bits | u64::from(squares[i] <= *leave) << i) & word;
                for bit in crate::wire::bits_of(inside) {
                    let (word, mask) = (object(bit) as usize / 64, 1 << (object(bit) % 64));
                    within[word] |= mask;
                    near[word] |= if squares[bit] <= *limit { mask } else { 0 };
                }
            }
        }
    }
}

/// Bit i: object i is in range; and the squares of the distances.
#[allow(clippy::needless_range_loop, reason = "one index for four arrays")]
#[inline(always)]
fn test(query: &Query<'_>, lanes: &Lanes) -> (u32, [f32; LANES]) {
    // Plain loops over arrays of a fixed length become vectors; closures do not always.
    let [vx, vy, vz] = query.view;
    let mut square = [0.0; LANES];
    for i in 0..LANES {
        let (dx, dy, dz) = (lanes.x[i] - vx, lanes.y[i] - vy, lanes.z[i] - vz);
        square[i] = dx * dx + dy * dy + dz * dz;
    }
    let mut inside = at_most(&square, &lanes.cull);
    if query.exit > 1.0 {
        let limit = lanes.cull.map(|cull| cull * query.exit);
        let mut outer = at_most(&square, &limit) & !inside;
        while outer != 0 {
            let lane = outer.trailing_zeros();
            outer &= outer - 1;
            if query.before.get(lanes.objects[lane as usize]) {
                inside |= 1 << lane;
            }
        }
    }
    (inside, square)
}

/// The least of some numbers, whole lanes of them: lane by lane, so that it becomes vectors.
#[inline(always)]
fn least(squares: &[f32]) -> f32 {
    let mut all = [f32::MAX; LANES];
    for lanes in squares.chunks_exact(LANES) {
        for i in 0..LANES {
            all[i] = if lanes[i] < all[i] { lanes[i] } else { all[i] };
        }
    }
    all.into_iter().fold(f32::MAX, f32::min)
}

/// Bit i: `a[i] <= b[i]`. Said with weights of one width, so that it becomes whole vectors and one
/// sum.
#[inline(always)]
fn at_most(a: &[f32; LANES], b: &[f32; LANES]) -> u32 {
    let mut bits = [0_u32; LANES];
    for i in 0..LANES {
        bits[i] = u32::from(a[i] <= b[i]) << i;
    }
    let [a, b, c, d, e, f, g, h] = bits;
    (a | e) | (b | f) | ((c | g) | (d | h))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(grid: &GridIndex, view: [f32; 3]) -> Vec<u32> {
        seen_near(grid, view, &mut Nearby::default())
    }

    fn seen_near(grid: &GridIndex, view: [f32; 3], nearby: &mut Nearby) -> Vec<u32> {
        let (mut scope, mut top) = (vec![0; 256], vec![0; 4]);
        let mut found = Found { scope: &mut scope, top: &mut top, near: &mut [], tested: &mut 0 };
        let query = Query { view, exit: 1.0, before: &Sparse::default(), bands: &[] };
        grid.query(&query, nearby, &mut found);
        let words: Vec<usize> = crate::bitmap::members(top.iter().copied()).collect();
        assert!(scope.iter().enumerate().all(|(at, word)| (*word != 0) == words.contains(&at)));
        crate::bitmap::members(scope.into_iter()).map(|object| object as u32).collect()
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

    /// A world of 16 km in cells of 0 to 10 m took some gigabytes, in each level.
    #[test]
    fn tiny_cells_take_little_memory() {
        let whole = f32::INFINITY;
        let worlds = [([-8000.0; 2], [8000.0; 2]), ([0.0; 2], [1e9, 1.0]), ([-whole; 2], [whole; 2])];
        for ((min, max), cell) in
            worlds.into_iter().flat_map(|world| [-1.0, 0.0, 1e-30, 10.0, f32::NAN].map(|cell| (world, cell)))
        {
            let mut grid = GridIndex::new(GridConfig { min, max, cell }, 1.0);
            for cull in [1.0, 300.0, 1e6, whole] {
                grid.place(1, [5.0, 5.0, 0.0], cull);
            }
            let cells: usize = grid.levels.iter().map(|level| level.cells.len()).sum();
            assert!((1..=2 * 262_144).contains(&cells), "{min:?}, {max:?}, {cell}: {cells} cells");
        }
    }

    /// The cells around a view, of the coarsest level too, were less than the cull distance.
    #[test]
    fn a_grid_of_tiny_or_no_cells_shows_everything_in_range() {
        for cell in [0.0, 1e-6, 1e-3, 1.0, f32::INFINITY] {
            for side in [0.0, 1e-3, 1000.0] {
                let config = GridConfig { min: [-side; 2], max: [side; 2], cell };
                let mut grid = GridIndex::new(config, 1.0);
                grid.place(1, [200.0, -100.0, 0.0], 250.0);
                grid.place(2, [200.0, -200.0, 0.0], 250.0);
                assert_eq!(seen(&grid, [0.0; 3]), [1], "{config:?}");
            }
        }
    }

    #[test]
    fn agrees_with_testing_everything() {
        let mut rng = throng_stdx::Rng::new(4);
        let mut grid = GridIndex::new(GridConfig { min: [-500.0; 2], max: [500.0; 2], cell: 100.0 }, 1.0);
        let mut objects = vec![None; 2000];
        let mut draw = |limit: f64| ((rng.f64() * 2.0 - 1.0) * limit) as f32;
        let (mut nearby, mut walker) = (Nearby::default(), [0.0; 3]);
        for round in 0..20_000_u32 {
            // Most objects come to rest for a while: twenty changes a frame of two thousand.
            if round % 20 == 0 {
                grid.settle(round / 20);
            }
            let object = (draw(1000.0) + 1000.0) as u32 % 2000;
            if round % 7 == 0 {
                grid.remove(object);
                objects[object as usize] = None;
            } else {
                let (position, cull) = ([draw(600.0), draw(600.0), draw(50.0)], draw(150.0).abs());
                grid.place(object, position, cull);
                objects[object as usize] = Some((position, cull));
            }
            if round % 100 == 0 {
                // A view that stands still, walks, or is somewhere else.
                walker = match round / 100 % 8 {
                    0 => [draw(550.0), draw(550.0), draw(20.0)],
                    1..=3 => walker,
                    _ => walker.map(|part: f32| part + draw(3.0)),
                };
                let view = walker;
                let expected: Vec<u32> = (0..2000)
                    .filter(|object| {
                        objects[*object as usize].is_some_and(|(position, cull): ([f32; 3], f32)| {
                            let d: [f32; 3] = core::array::from_fn(|i| position[i] - view[i]);
                            d[0] * d[0] + d[1] * d[1] + d[2] * d[2] <= cull * cull
                        })
                    })
                    .collect();
                assert_eq!(seen_near(&grid, view, &mut nearby), expected);
            }
        }
        assert!(grid.clamped_total > 0);
    }
}
