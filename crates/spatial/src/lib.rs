//! Static 2D grid of a world, areas of interest over it, and interest as an
//! incremental diff.
//!
//! The plane is X/Z (Y is up and ignored). A [`Grid`] maps positions to [`Cell`]s, assigns cells to
//! servers, and defines the cells that a server watches across its border. An
//! [`AreaQuery`] names shapes; [`Grid::interest`] turns it into an [`Interest`]: the covered cells,
//! each with a distance in cells. [`Interest::diff`] returns the differences between two interests,
//! so that callers visit only those cells.
//!
//! Everything here is a pure function of its arguments: no clock, no I/O, no global state. No query
//! costs more than one visit to each cell of the world.
//!
//! ```
//! use throng_spatial::{AreaQuery, Coverage, Grid, GridConfig, Point, Sphere};
//! let grid = Grid::new(GridConfig {
//!     offset_x: 0.0, offset_z: 0.0, cell_width: 10.0, cell_height: 10.0,
//!     columns: 4, rows: 4, server_columns: 2, server_rows: 1, border_cells: 1,
//! })?;
//! let query = AreaQuery { sphere: Some(Sphere { centre: Point { x: 5.0, z: 5.0 }, radius: 6.0 }), ..Default::default() };
//! let near = grid.interest(&query, Coverage::Exact)?;
//! assert_eq!(near.cells().count(), 3); // its own cell, one to the right, one below; the corner is too far
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod area;
mod grid;
mod interest;

pub use area::{AreaQuery, BoxArea, Cone, Coverage, QueryError, Sphere, Spot};
pub use grid::{Cell, Grid, GridConfig, GridError, Point, ServerIndex};
pub use interest::{Change, Interest};
