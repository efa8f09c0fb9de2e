//! The six grids and 54 queries recorded from channeld 0.8.1, as UPDATE_SPATIAL_INTEREST.

use std::collections::BTreeSet;

use serde_json::Value;
use throng_gateway::Refusal;
use throng_gateway::spatial::Coverage;
use throng_wire::channeldpb::spatial_interest_query::{BoxAoi, ConeAoi, SpotsAoi};

use super::*;

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

fn ids(value: &Value) -> Vec<u32> {
    let ids = value.as_array().into_iter().flatten().filter_map(Value::as_u64);
    ids.map(|id| u32::try_from(id).expect("an id")).collect()
}

fn info(value: &Value) -> Option<SpatialInfo> {
    Some(SpatialInfo { x: number(&value["x"]), y: number(&value["y"]), z: number(&value["z"]) })
}

fn query(value: &Value) -> SpatialInterestQuery {
    SpatialInterestQuery {
        spots_aoi: value.get("spotsAOI").map(|v| SpotsAoi {
            spots: v["spots"].as_array().into_iter().flatten().filter_map(info).collect(),
            dists: ids(&v["dists"]),
        }),
        box_aoi: value
            .get("boxAOI")
            .map(|v| BoxAoi { center: info(&v["center"]), extent: info(&v["extent"]) }),
        sphere_aoi: value
            .get("sphereAOI")
            .map(|v| SphereAoi { center: info(&v["center"]), radius: number(&v["radius"]) }),
        cone_aoi: value.get("coneAOI").map(|v| ConeAoi {
            center: info(&v["center"]),
            direction: info(&v["direction"]),
            angle: number(&v["angle"]),
            radius: number(&v["radius"]),
        }),
    }
}

fn grid(value: &Value) -> Grid {
    let whole = |name: &str| number(&value[name]) as u32;
    Grid::new(GridConfig {
        offset_x: number(&value["WorldOffsetX"]),
        offset_z: number(&value["WorldOffsetZ"]),
        cell_width: number(&value["GridWidth"]),
        cell_height: number(&value["GridHeight"]),
        columns: whole("GridCols"),
        rows: whole("GridRows"),
        server_columns: whole("ServerCols"),
        server_rows: whole("ServerRows"),
        border_cells: whole("ServerInterestBorderSize"),
    })
    .expect("a valid grid")
}

/// Plays every query; gives back how many were refused and how many cells were subscribed to after
/// each, added up.
fn play(coverage: Coverage) -> (u64, usize) {
    let file: Value =
        serde_json::from_str(include_str!("../../../../../fixtures/gateway/aoi.json")).expect("valid JSON");
    let (mut refused, mut seen, mut queries) = (0, 0, 0);
    for entry in file["grids"].as_array().expect("grids") {
        let mut config = config(1, 1);
        let grid = grid(&entry["grid"]);
        config.spatial.coverage = coverage;
        let servers = grid.server_count();
        config.spatial.grid = Some(grid);
        let mut world = world(config);
        let servers: Vec<Id> =
            (0..servers).map(|index| spatial_server(&mut world, &format!("server {index}"))).collect();
        let client = world.join(ConnKind::Client, "c");
        let conn_id = world.conn(client);
        let mut cells: BTreeSet<u32> = BTreeSet::new();
        for row in entry["queries"].as_array().expect("queries") {
            queries += 1;
            let body = UpdateSpatialInterestMessage { conn_id, query: Some(query(&row["query"])) };
            world.send(servers[0], [Send::new(MessageType::UpdateSpatialInterest, &body).to(CELL)]);
            for (what, cell) in subscriptions(&world.take(client)) {
                let changed = if what == 6 { cells.insert(cell) } else { cells.remove(&cell) };
                assert!(changed, "told twice: {row}");
            }
            let is_error = row["error"] == Value::Bool(true);
            let recorded: BTreeSet<u32> =
                row["result"].as_array().into_iter().flatten().map(|pair| ids(pair)[0]).collect();
            match coverage {
                // An error leaves the interest as it was.
                Coverage::Sampled if !is_error => assert_eq!(cells, recorded, "{row}"),
                Coverage::Exact => assert!(cells.is_superset(&recorded) || is_error, "{cells:x?} {row}"),
                Coverage::Sampled => {}
            }
            seen += cells.len();
        }
        refused += world.refused(Refusal::InterestQuery);
    }
    assert_eq!(queries, 54);
    (refused, seen)
}

#[test]
fn recorded_queries_subscribe_to_the_recorded_cells_where_sampling_is_on() {
    let (refused, _) = play(Coverage::Sampled);
    assert_eq!(refused, 6, "as recorded");
}

// Which cells exactly is tested where they are computed; a centre outside the world has none.
#[test]
fn recorded_queries_subscribe_to_the_recorded_cells_and_those_that_sampling_misses_by_default() {
    let (refused, seen) = play(Coverage::Exact);
    // Two sizes of nothing are refused, and leave three cells of the queries before them.
    assert_eq!((refused, seen), (2, 498 + 3));
}
