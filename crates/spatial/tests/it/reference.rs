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
    let text = include_str!("../../../../fixtures/gateway/aoi.json");
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

/// Sampling only ever misses cells; what it finds, exact coverage finds too, at no greater
/// distance.
#[test]
fn exact_coverage_holds_everything_that_sampling_finds() {
    for (grid, entry) in recorded() {
        for row in entry["queries"].as_array().expect("queries") {
            let query = query(&row["query"]);
            let Ok(sampled) = grid.interest(&query, Coverage::Sampled) else { continue };
            let exact = grid.interest(&query, Coverage::Exact).expect("sampled did");
            for (cell, distance) in sampled.cells() {
                let found = exact.distance(cell).unwrap_or_else(|| panic!("{cell:?} missed: {row}"));
                // Cells that only their nearest edge brings closer than one diagonal still count as
                // 1.
                assert!(found <= distance.max(1), "{cell:?} {found} {distance} {row}");
            }
        }
    }
}

/// Steps in which each side of a cell is searched.
const STEPS: u32 = 64;

/// True if a shape of the query holds a point or one within `slack` of it. By angles and distances
/// only: nothing here is shared with the code under test.
fn holds(query: &AreaQuery, grid: &Grid, at: Point, slack: f64) -> bool {
    let in_world = |centre: Point| grid.cell_at(centre).is_some();
    let away = |centre: Point| (at.x - centre.x).hypot(at.z - centre.z);
    let in_box = |b: BoxArea| {
        (at.x - b.centre.x).abs() <= b.extent.x + slack && (at.z - b.centre.z).abs() <= b.extent.z + slack
    };
    let in_cone = |c: Cone| {
        let (x, z) = (at.x - c.centre.x, at.z - c.centre.z);
        let turn = z.atan2(x) - c.direction.z.atan2(c.direction.x);
        let turn = turn.sin().atan2(turn.cos()).abs();
        let wide = c.half_angle.cos().acos();
        let all_round = c.direction.x == 0.0 && c.direction.z == 0.0;
        away(c.centre) <= c.radius + slack
            && (all_round || (turn - wide) * away(c.centre) <= slack || away(c.centre) <= slack)
    };
    query.rectangle.is_some_and(|b| in_world(b.centre) && in_box(b))
        || query.sphere.is_some_and(|s| in_world(s.centre) && away(s.centre) <= s.radius + slack)
        || query.cone.is_some_and(|c| in_world(c.centre) && in_cone(c))
}

/// The default of every recorded query against a search of each cell on a lattice.
#[test]
fn exact_coverage_of_every_recorded_query_equals_a_search_of_every_cell() {
    let (mut queries, mut covered, mut open) = (0, 0, 0);
    for (grid, entry) in recorded() {
        let config = *grid.config();
        let diagonal = config.cell_width.hypot(config.cell_height);
        for row in entry["queries"].as_array().expect("queries") {
            queries += 1;
            let query = query(&row["query"]);
            let Ok(exact) = grid.interest(&query, Coverage::Exact) else {
                assert_eq!(row["error"], Value::Bool(true), "{row} is refused by sampling too");
                continue;
            };
            // A disc or rectangle that ends on a side of a cell touches it. Whether the oblique
            // edge of a cone meets a corner is up to rounding.
            let upright = AreaQuery { cone: None, ..query.clone() };
            let centres = [
                query.rectangle.map(|b| b.centre),
                query.sphere.map(|s| s.centre),
                query.cone.map(|c| c.centre),
            ];
            let centres: Vec<Point> =
                centres.into_iter().flatten().filter(|&at| grid.cell_at(at).is_some()).collect();
            for cell in (0..grid.cell_count()).map(Cell) {
                let (low, high) = grid.bounds(cell);
                // A cell has its low sides, not its high ones, which are its neighbours'.
                let lattice = || {
                    (0..STEPS).flat_map(move |i| (0..STEPS).map(move |j| (i, j))).map(move |(i, j)| Point {
                        x: low.x + (high.x - low.x) * f64::from(i) / f64::from(STEPS),
                        z: low.z + (high.z - low.z) * f64::from(j) / f64::from(STEPS),
                    })
                };
                let named = query.spots.iter().any(|spot| grid.cell_at(spot.at) == Some(cell))
                    || centres.iter().any(|&at| grid.cell_at(at) == Some(cell));
                let tiny = 1e-9 * diagonal;
                let surely = named
                    || lattice()
                        .any(|at| holds(&upright, &grid, at, tiny) || holds(&query, &grid, at, -tiny));
                let perhaps =
                    named || lattice().any(|at| holds(&query, &grid, at, diagonal / f64::from(STEPS)));
                let found = exact.distance(cell);
                assert!(!surely || found.is_some(), "{cell:?} missed: {} {row}", entry["grid"]["name"]);
                assert!(perhaps || found.is_none(), "{cell:?} too much: {} {row}", entry["grid"]["name"]);
                covered += u32::from(found.is_some());
                open += u32::from(surely != perhaps);
                // Spots name their distances. Otherwise it is 0 at the centre and grows with the
                // way to the cell.
                if let ([centre], true, Some(found)) = (&centres[..], query.spots.is_empty(), found) {
                    let way = lattice().map(|at| (at.x - centre.x).hypot(at.z - centre.z));
                    let (nearest, step) = (way.fold(f64::MAX, f64::min), 1.0 / f64::from(STEPS));
                    let least = ((nearest / diagonal - step).ceil() as u32).max(1);
                    let most = ((nearest / diagonal).ceil() as u32).max(1);
                    let home = grid.cell_at(*centre) == Some(cell);
                    let fits = if home { found == 0 } else { (least..=most).contains(&found) };
                    assert!(fits, "{cell:?} at {found}, not {least} to {most}: {row}");
                }
            }
        }
    }
    assert_eq!(queries, 54);
    // Cells that the lattice is too coarse to decide: a shape touches or misses them by less than a
    // step.
    assert!(covered > 450 && open * 20 < covered, "{open} of {covered} undecided");
}
