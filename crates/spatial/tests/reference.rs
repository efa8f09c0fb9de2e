//! The six grids and 54 queries recorded from channeld 0.8.1 (`fixtures/gateway/aoi.json`).

use serde_json::Value;
use throng_spatial::{
    AreaQuery, BoxArea, Cell, Cone, Coverage, Grid, GridConfig, Point, ServerIndex, Sphere, Spot,
};

/// Channel id of cell 0 in the recordings.
const FIRST: u32 = 65_536;

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

fn id(value: &Value) -> u32 {
    u32::try_from(value.as_u64().expect("an id")).expect("fits")
}

fn point(value: &Value) -> Point {
    Point { x: number(&value["x"]), z: number(&value["z"]) }
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().map(|list| list.iter().map(id).collect()).unwrap_or_default()
}

fn channels(cells: impl IntoIterator<Item = Cell>) -> Vec<u32> {
    cells.into_iter().map(|cell| FIRST + cell.0).collect()
}

fn query(value: &Value) -> AreaQuery {
    let shape = |name: &str| value.get(name);
    AreaQuery {
        spots: shape("spotsAOI").map_or_else(Vec::new, |v| {
            let spots = v["spots"].as_array().cloned().unwrap_or_default();
            let distances = ids(&v["dists"]);
            let distance = |i: usize| distances.get(i).copied().unwrap_or(0);
            spots.iter().enumerate().map(|(i, at)| Spot { at: point(at), distance: distance(i) }).collect()
        }),
        rectangle: shape("boxAOI")
            .map(|v| BoxArea { centre: point(&v["center"]), extent: point(&v["extent"]) }),
        sphere: shape("sphereAOI")
            .map(|v| Sphere { centre: point(&v["center"]), radius: number(&v["radius"]) }),
        cone: shape("coneAOI").map(|v| Cone {
            centre: point(&v["center"]),
            direction: point(&v["direction"]),
            half_angle: number(&v["angle"]),
            radius: number(&v["radius"]),
        }),
    }
}

fn recorded() -> Vec<(Grid, Value)> {
    let text = include_str!("../../../fixtures/gateway/aoi.json");
    let file: Value = serde_json::from_str(text).expect("valid JSON");
    let grids = file["grids"].as_array().expect("grids").clone();
    assert_eq!(grids.len(), 6);
    let grid = |g: &Value| {
        Grid::new(GridConfig {
            offset_x: number(&g["WorldOffsetX"]),
            offset_z: number(&g["WorldOffsetZ"]),
            cell_width: number(&g["GridWidth"]),
            cell_height: number(&g["GridHeight"]),
            columns: id(&g["GridCols"]),
            rows: id(&g["GridRows"]),
            server_columns: id(&g["ServerCols"]),
            server_rows: id(&g["ServerRows"]),
            border_cells: id(&g["ServerInterestBorderSize"]),
        })
        .expect("a valid grid")
    };
    grids.into_iter().map(|entry| (grid(&entry["grid"]), entry)).collect()
}

#[test]
fn grids_map_points_blocks_borders_and_neighbours_as_recorded() {
    for (grid, entry) in recorded() {
        let name = &entry["grid"]["name"];
        let servers: Vec<u32> = (0..grid.cell_count()).map(|c| grid.server_of(Cell(c)).0).collect();
        assert_eq!(servers, ids(&entry["serverIndexByCell"]), "{name}");
        for server in 0..grid.server_count() {
            let index = server as usize;
            let server = ServerIndex(server);
            assert_eq!(channels(grid.cells_of(server)), ids(&entry["channelsByServer"][index]), "{name}");
            let border = ids(&entry["borderSubscriptionsByServer"][index]);
            assert_eq!(channels(grid.border_of(server)), border, "{name} {index}");
        }
        for at in entry["points"].as_array().expect("points") {
            let cell = grid.cell_at(point(at)).map_or(0, |cell| FIRST + cell.0);
            assert_eq!(cell, id(&at["channelId"]), "{name} {at}");
        }
        for row in entry["adjacency"].as_array().expect("adjacency") {
            let cell = Cell(id(&row["channelId"]) - FIRST);
            assert_eq!(channels(grid.adjacent(cell)), ids(&row["adjacent"]), "{name} {row}");
        }
    }
}

#[test]
fn sampled_coverage_equals_the_recorded_results() {
    let mut queries = 0;
    for (grid, entry) in recorded() {
        for row in entry["queries"].as_array().expect("queries") {
            queries += 1;
            let result = grid.interest(&query(&row["query"]), Coverage::Sampled);
            let Ok(interest) = result else {
                assert_eq!(row["error"], Value::Bool(true), "{row}: {result:?}");
                continue;
            };
            assert_ne!(row["error"], Value::Bool(true), "{row} must be refused");
            let got: Vec<(u32, u32)> = interest.cells().map(|(c, d)| (FIRST + c.0, d)).collect();
            let mut want: Vec<(u32, u32)> = row["result"]
                .as_array()
                .expect("result")
                .iter()
                .map(|pair| (id(&pair[0]), id(&pair[1])))
                .collect();
            want.sort_unstable();
            assert_eq!(got, want, "{} {row}", entry["grid"]["name"]);
        }
    }
    assert_eq!(queries, 54);
}

/// Sampling only ever misses cells; what it finds, exact coverage finds too, at no greater distance.
#[test]
fn exact_coverage_holds_everything_that_sampling_finds() {
    for (grid, entry) in recorded() {
        for row in entry["queries"].as_array().expect("queries") {
            let query = query(&row["query"]);
            let Ok(sampled) = grid.interest(&query, Coverage::Sampled) else { continue };
            let exact = grid.interest(&query, Coverage::Exact).expect("sampled did");
            for (cell, distance) in sampled.cells() {
                let found = exact.distance(cell).unwrap_or_else(|| panic!("{cell:?} missed: {row}"));
                // Cells that only their nearest edge brings closer than one diagonal still count as 1.
                assert!(found <= distance.max(1), "{cell:?} {found} {distance} {row}");
            }
        }
    }
}
