//! Grid of cells over the plane, divided into one block for each server.

use thiserror::Error;

/// A position on the plane, in world units. Y is up and plays no part.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Point {
    /// East, world units.
    pub x: f64,
    /// North, world units.
    pub z: f64,
}

impl Point {
    /// True if both coordinates are finite numbers.
    #[must_use]
    pub fn is_finite(self) -> bool {
        self.x.is_finite() && self.z.is_finite()
    }
}

/// One cell of a grid: its row-major index, `column + row * columns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cell(pub u32);

/// One server's block of cells: `server_column + server_row * server_columns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerIndex(pub u32);

/// Shape of a world: its position, its division into cells, and the assignment of cells to servers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GridConfig {
    /// West edge, world units.
    pub offset_x: f64,
    /// South edge, world units.
    pub offset_z: f64,
    /// Width of a cell along X, world units, above 0.
    pub cell_width: f64,
    /// Height of a cell along Z, world units, above 0.
    pub cell_height: f64,
    /// Cells along X, at least 1.
    pub columns: u32,
    /// Cells along Z, at least 1.
    pub rows: u32,
    /// Servers along X, 1 to `columns`.
    pub server_columns: u32,
    /// Servers along Z, 1 to `rows`.
    pub server_rows: u32,
    /// Width, in cells, of the strip beyond its own block that a server watches. 0 = none.
    pub border_cells: u32,
}

/// Defect of a [`GridConfig`].
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum GridError {
    /// A cell has no area, or a number is not finite.
    #[error("cell size {width} x {height} at offset {x}, {z} must be finite and above 0")]
    BadExtent {
        /// Given cell width.
        width: f64,
        /// Given cell height.
        height: f64,
        /// Given west edge.
        x: f64,
        /// Given south edge.
        z: f64,
    },
    /// No cells, or more than fit in a `u32`.
    #[error("{columns} columns x {rows} rows must give between 1 and 4294967295 cells")]
    BadCellCount {
        /// Given columns.
        columns: u32,
        /// Given rows.
        rows: u32,
    },
    /// More servers than cells along an axis, or none.
    #[error("{columns} x {rows} servers must be at least 1 and at most the cells along each axis")]
    BadServerCount {
        /// Given server columns.
        columns: u32,
        /// Given server rows.
        rows: u32,
    },
    /// Blocks are rounded up to whole cells, which leaves nothing for the last server of an axis.
    #[error(
        "{cells} cells over {servers} servers along one axis leave server {idle} without cells; use {fits} servers"
    )]
    IdleServer {
        /// Cells along that axis.
        cells: u32,
        /// Servers along that axis.
        servers: u32,
        /// First server without a cell.
        idle: u32,
        /// The number of servers that this cell count serves.
        fits: u32,
    },
}

/// A validated static grid. Look-ups are O(1).
#[derive(Clone, Debug, PartialEq)]
pub struct Grid {
    config: GridConfig,
    /// Cells per server block along X and Z; blocks at the far edges may be smaller.
    block: (u32, u32),
}

impl Grid {
    /// Checks the description of a world.
    ///
    /// # Errors
    /// [`GridError`] names the value that does not fit.
    pub fn new(config: GridConfig) -> Result<Self, GridError> {
        let GridConfig { cell_width: width, cell_height: height, offset_x: x, offset_z: z, .. } = config;
        let positive = |v: f64| v.is_finite() && v > 0.0;
        if !positive(width) || !positive(height) || !x.is_finite() || !z.is_finite() {
            return Err(GridError::BadExtent { width, height, x, z });
        }
        let (columns, rows) = (config.columns, config.rows);
        if columns.checked_mul(rows).is_none_or(|cells| cells == 0) {
            return Err(GridError::BadCellCount { columns, rows });
        }
        let servers = (config.server_columns, config.server_rows);
        if servers.0 == 0 || servers.1 == 0 || servers.0 > columns || servers.1 > rows {
            return Err(GridError::BadServerCount { columns: servers.0, rows: servers.1 });
        }
        let block = (columns.div_ceil(servers.0), rows.div_ceil(servers.1));
        for (cells, servers, block) in [(columns, servers.0, block.0), (rows, servers.1, block.1)] {
            let fits = cells.div_ceil(block);
            if fits < servers {
                return Err(GridError::IdleServer { cells, servers, idle: fits, fits });
            }
        }
        Ok(Self { config, block })
    }

    /// The description this grid was made from.
    #[must_use]
    pub fn config(&self) -> &GridConfig {
        &self.config
    }

    /// Number of cells; indices run from 0 to this, exclusive.
    #[must_use]
    pub fn cell_count(&self) -> u32 {
        self.config.columns * self.config.rows
    }

    /// Number of server blocks.
    #[must_use]
    pub fn server_count(&self) -> u32 {
        self.config.server_columns * self.config.server_rows
    }

    /// The cell that holds `point`; `None` outside the world or for a point that is not finite.
    #[must_use]
    pub fn cell_at(&self, point: Point) -> Option<Cell> {
        let column = ((point.x - self.config.offset_x) / self.config.cell_width).floor();
        let row = ((point.z - self.config.offset_z) / self.config.cell_height).floor();
        let inside = |v: f64, count: u32| v >= 0.0 && v < f64::from(count);
        (inside(column, self.config.columns) && inside(row, self.config.rows))
            .then(|| self.cell(column as u32, row as u32))
    }

    /// South-west and north-east corner of a cell.
    #[must_use]
    pub fn bounds(&self, cell: Cell) -> (Point, Point) {
        let (column, row) = self.position(cell);
        let corner = |column: u32, row: u32| Point {
            x: self.config.offset_x + self.config.cell_width * f64::from(column),
            z: self.config.offset_z + self.config.cell_height * f64::from(row),
        };
        (corner(column, row), corner(column + 1, row + 1))
    }

    /// The up to eight neighbours of a cell, row by row, without the cell itself.
    pub fn adjacent(&self, cell: Cell) -> impl Iterator<Item = Cell> + '_ {
        let (column, row) = self.position(cell);
        let columns = column.saturating_sub(1)..=(column + 1).min(self.config.columns - 1);
        let rows = row.saturating_sub(1)..=(row + 1).min(self.config.rows - 1);
        rows.flat_map(move |r| columns.clone().map(move |c| (c, r)))
            .map(|(c, r)| self.cell(c, r))
            .filter(move |&other| other != cell)
    }

    /// The server whose block holds a cell.
    #[must_use]
    pub fn server_of(&self, cell: Cell) -> ServerIndex {
        let (column, row) = self.position(cell);
        ServerIndex(column / self.block.0 + row / self.block.1 * self.config.server_columns)
    }

    /// The cells of a server's block, row by row. Empty for an index past the last server.
    pub fn cells_of(&self, server: ServerIndex) -> impl Iterator<Item = Cell> + '_ {
        let (columns, rows) = self.block_of(server);
        rows.flat_map(move |r| columns.clone().map(move |c| self.cell(c, r)))
    }

    /// The cells beyond its block that a server watches: strips of `border_cells` along the sides
    /// that have a neighbour, nearest first, without corners. Order: left, right, below, above.
    #[must_use]
    pub fn border_of(&self, server: ServerIndex) -> Vec<Cell> {
        let (columns, rows) = self.block_of(server);
        let border = self.config.border_cells;
        let mut cells = Vec::new();
        if columns.is_empty() || rows.is_empty() {
            return cells;
        }
        for row in rows.clone() {
            let nearest = (0..border).map_while(|i| columns.start.checked_sub(i + 1));
            cells.extend(nearest.map(|column| self.cell(column, row)));
        }
        for row in rows.clone() {
            let nearest = (columns.end..self.config.columns).take(border as usize);
            cells.extend(nearest.map(|column| self.cell(column, row)));
        }
        for row in (0..border).map_while(|i| rows.start.checked_sub(i + 1)) {
            cells.extend(columns.clone().map(|column| self.cell(column, row)));
        }
        for row in (rows.end..self.config.rows).take(border as usize) {
            cells.extend(columns.clone().map(|column| self.cell(column, row)));
        }
        cells
    }

    pub(crate) fn cell(&self, column: u32, row: u32) -> Cell {
        Cell(column + row * self.config.columns)
    }

    /// Columns and rows of the cells that a rectangle touches, clipped to the world.
    pub(crate) fn span(&self, low: Point, high: Point) -> (std::ops::Range<u32>, std::ops::Range<u32>) {
        let axis = |low: f64, high: f64, offset: f64, size: f64, count: u32| {
            // `as` saturates, so any finite extent is clipped to the world without overflow.
            let first = ((low - offset) / size).floor().max(0.0) as u32;
            let last = ((high - offset) / size).floor();
            if last < 0.0 { 0..0 } else { first.min(count)..(last as u32).saturating_add(1).min(count) }
        };
        let c = &self.config;
        (
            axis(low.x, high.x, c.offset_x, c.cell_width, c.columns),
            axis(low.z, high.z, c.offset_z, c.cell_height, c.rows),
        )
    }

    fn position(&self, cell: Cell) -> (u32, u32) {
        (cell.0 % self.config.columns, cell.0 / self.config.columns)
    }

    fn block_of(&self, server: ServerIndex) -> (std::ops::Range<u32>, std::ops::Range<u32>) {
        let (x, y) = (server.0 % self.config.server_columns, server.0 / self.config.server_columns);
        let clip = |index: u32, block: u32, count: u32| {
            let start = index.saturating_mul(block).min(count);
            start..start.saturating_add(block).min(count)
        };
        (clip(x, self.block.0, self.config.columns), clip(y, self.block.1, self.config.rows))
    }
}
