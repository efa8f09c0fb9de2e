//! Configuration of the world: the grid, rates by distance, the position fields of entities.

use serde_json::{Map, Value};
use throng_spatial::{Coverage, Grid, GridConfig};

use crate::fsm::key;

/// Everything about spatial and entity channels.
#[derive(Debug, Clone)]
pub struct Spatial {
    /// The static 2D grid. Without one there are no spatial channels; entity channels exist all the
    /// same.
    pub grid: Option<Grid>,
    /// How areas of interest become cells.
    pub coverage: Coverage,
    /// What a subscriber gets from a cell by its distance, nearest first. The last step holds for
    /// all cells beyond.
    pub damping: Vec<DampingStep>,
    /// Where entity data holds the entity's position, the first that is present counts.
    pub positions: Vec<PositionPath>,
    /// An entity that is created in GLOBAL and has a position belongs to the owner of the cell at
    /// that position.
    pub place_entities: bool,
    /// Rates of entity channels by distance; `None` leaves them to the subscribers.
    pub lod: Option<Lod>,
    /// Radius, in world units, of the area of interest that follows the entity of a client; 0
    /// leaves interest to the servers.
    pub follow_radius: f64,
    /// Moves cells between servers by load; `None` keeps every cell where the grid puts it.
    pub balance: Option<Balance>,
    /// The balancer measures and moves nothing. Follows
    /// [`Shard::reconfigure`](crate::Shard::reconfigure).
    pub balance_frozen: bool,
}

impl Spatial {
    /// True if entities are more than channels: there are cells, or rates by distance.
    pub(crate) fn is_world(&self) -> bool {
        self.grid.is_some() || self.lod.is_some()
    }
}

/// One step of the damping table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DampingStep {
    /// Cells from this distance on, in cells.
    pub distance: u32,
    /// Fan-out interval in milliseconds.
    pub interval_ms: u32,
    /// Fields that a subscriber at this distance gets; empty for all.
    pub masks: Vec<String>,
}

/// Where entity data holds a position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PositionPath {
    /// Field names from the data's message to one with the fields `x`, `y` and `z`, joined by dots.
    pub path: String,
    /// The third component is up, as in Unreal; otherwise the second is, as on the wire.
    pub z_up: bool,
}

/// Rates of entity channels by the distance between the subscriber's own entity and the channel's.
#[derive(Debug, Clone, PartialEq)]
pub struct Lod {
    /// Nearest first; beyond the last `within` holds `beyond_interval_ms`.
    pub bands: Vec<LodBand>,
    /// Fan-out interval beyond the last band, in milliseconds.
    pub beyond_interval_ms: u32,
    /// How much further than a border, in world units, an entity must be to fall into the slower
    /// band behind it.
    pub hysteresis: f64,
}

/// One band of a [`Lod`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LodBand {
    /// Up to this distance, in world units.
    pub within: f64,
    /// Fan-out interval in milliseconds.
    pub interval_ms: u32,
}

/// When cells move between servers. Loads are updates of entities per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Balance {
    /// Time between two looks at the loads, in milliseconds.
    pub interval_ms: u32,
    /// A server gives a cell away when its load is at least this many times the average.
    pub ratio: f64,
    /// Load below which no server gives anything away.
    pub load_min: f64,
    /// A cell that has moved stays for this long, in milliseconds.
    pub cooldown_ms: u32,
}

impl Default for Spatial {
    fn default() -> Self {
        let step = |distance, interval_ms| DampingStep { distance, interval_ms, masks: Vec::new() };
        Self {
            grid: None,
            coverage: Coverage::Exact,
            damping: vec![step(0, 20), step(1, 50), step(2, 100)],
            positions: vec![
                PositionPath::z_up("actorState.replicatedMovement.location"),
                PositionPath::z_up("sceneComponentState.relativeLocation"),
                PositionPath { path: "position".into(), z_up: false },
            ],
            place_entities: true,
            lod: None,
            follow_radius: 0.0,
            balance: None,
            balance_frozen: false,
        }
    }
}

impl PositionPath {
    fn z_up(path: &str) -> Self {
        Self { path: path.into(), z_up: true }
    }
}

impl Lod {
    /// The published table: up to 10 m at 20 Hz, up to 50 m at 10 Hz, beyond at 1 Hz, with world
    /// units of `units_per_metre` to the metre (Unreal has 100).
    #[must_use]
    pub fn published(units_per_metre: f64) -> Self {
        let band = |metres: f64, interval_ms| LodBand { within: metres * units_per_metre, interval_ms };
        Self {
            bands: vec![band(10.0, 50), band(50.0, 100)],
            beyond_interval_ms: 1000,
            hysteresis: units_per_metre,
        }
    }
}

impl Default for Balance {
    fn default() -> Self {
        Self { interval_ms: 1000, ratio: 1.25, load_min: 100.0, cooldown_ms: 5000 }
    }
}

/// Cells of one server: what the result of their creation, one packet, can name.
const CELLS_PER_SERVER_MAX: u64 = 20_000;

/// The controller that the reference's files name.
const CONTROLLER: &str = "Static2DSpatialController";

/// Reads a controller file of the reference (`-scc`).
///
/// # Errors
/// Every problem of the file, one sentence each.
pub fn parse_controller(text: &str) -> Result<Grid, Vec<String>> {
    let root: Value = serde_json::from_str(text)
        .map_err(|error| vec![format!("line {}, column {}: {error}", error.line(), error.column())])?;
    let root = root.as_object().ok_or_else(|| vec!["the file must be an object".to_owned()])?;
    let mut problems = Vec::new();
    match key(root, "SpatialControllerType").and_then(Value::as_str) {
        None | Some(CONTROLLER) => {}
        Some(other) => {
            problems.push(format!("`SpatialControllerType` is `{other}`; only `{CONTROLLER}` exists"))
        }
    }
    let empty = Map::new();
    let config = key(root, "Config").and_then(Value::as_object).unwrap_or_else(|| {
        problems.push("`Config` must be an object".to_owned());
        &empty
    });
    let mut float = |name: &str| {
        key(config, name).and_then(Value::as_f64).unwrap_or_else(|| {
            problems.push(format!("`Config.{name}` must be a number"));
            1.0
        })
    };
    let (offset_x, offset_z) = (float("WorldOffsetX"), float("WorldOffsetZ"));
    let (cell_width, cell_height) = (float("GridWidth"), float("GridHeight"));
    let mut whole = |name: &str, absent: Option<u32>| {
        let value = key(config, name);
        let number = value.and_then(Value::as_u64).and_then(|number| u32::try_from(number).ok());
        number.or(absent.filter(|_| value.is_none())).unwrap_or_else(|| {
            problems.push(format!("`Config.{name}` must be a whole number"));
            1
        })
    };
    let (columns, rows) = (whole("GridCols", None), whole("GridRows", None));
    let (server_columns, server_rows) = (whole("ServerCols", None), whole("ServerRows", None));
    let border_cells = whole("ServerInterestBorderSize", Some(0));
    if !problems.is_empty() {
        return Err(problems);
    }
    let grid = Grid::new(GridConfig {
        offset_x,
        offset_z,
        cell_width,
        cell_height,
        columns,
        rows,
        server_columns,
        server_rows,
        border_cells,
    })
    .map_err(|error| vec![error.to_string()])?;
    let block = u64::from(columns.div_ceil(server_columns)) * u64::from(rows.div_ceil(server_rows));
    if block > CELLS_PER_SERVER_MAX {
        return Err(vec![format!(
            "a server would own {block} cells; the message that tells it of them holds {CELLS_PER_SERVER_MAX}: use \
             larger cells or more servers"
        )]);
    }
    Ok(grid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stock_controllers_load() {
        let texts = [
            (include_str!("../../../../fixtures/gateway/config/spatial_static_2x2.json"), 4, 2),
            (include_str!("../../../../fixtures/gateway/config/spatial_static_4x1.json"), 4, 2),
            (include_str!("../../../../fixtures/gateway/config/spatial_static_benchmark.json"), 225, 9),
            (include_str!("../../../../fixtures/gateway/config/spatial_static_tanks_big.json"), 100, 1),
            (include_str!("../../../../fixtures/gateway/config/spatial_static_tanks_small.json"), 4, 1),
        ];
        for (text, cells, servers) in texts {
            let grid = parse_controller(text).expect("a stock file loads");
            assert_eq!((grid.cell_count(), grid.server_count()), (cells, servers));
        }
    }

    #[test]
    fn wrong_controllers_are_refused_with_every_problem() {
        let error = parse_controller(r#"{"SpatialControllerType": "Quad", "Config": {"GridCols": -1}}"#);
        assert_eq!(error.expect_err("many problems").len(), 9);
        let zero = r#"{"Config": {"WorldOffsetX": 0, "WorldOffsetZ": 0, "GridWidth": 0, "GridHeight": 1,
                       "GridCols": 1, "GridRows": 1, "ServerCols": 1, "ServerRows": 1}}"#;
        assert!(parse_controller(zero).expect_err("no area")[0].contains("above 0"));
        let large = r#"{"Config": {"WorldOffsetX": 0, "WorldOffsetZ": 0, "GridWidth": 1, "GridHeight": 1,
                        "GridCols": 300, "GridRows": 300, "ServerCols": 2, "ServerRows": 2}}"#;
        assert!(parse_controller(large).expect_err("22,500 cells each")[0].contains("larger cells"));
        assert!(parse_controller("[]").is_err() && parse_controller("{").is_err());
    }
}
