//! Areas of interest against brute force, and numbers that describe no area.

use proptest::prelude::*;
use throng_spatial::{
    AreaQuery, BoxArea, Cell, Change, Cone, Coverage, Grid, GridConfig, GridError, Interest, Point,
    QueryError, Sphere,
};

fn grid() -> Grid {
    let config = GridConfig {
        offset_x: -30.0,
        offset_z: -20.0,
        cell_width: 10.0,
        cell_height: 7.0,
        columns: 9,
        rows: 6,
        server_columns: 3,
        server_rows: 2,
        border_cells: 1,
    };
    Grid::new(config).expect("valid")
}

fn inside() -> impl Strategy<Value = Point> {
    (-30.0..60.0, -20.0..22.0).prop_map(|(x, z)| Point { x, z })
}

/// A point of the world that lies in the shape must lie in a covered cell, and every covered cell
/// must hold such a point, searched for on a fine lattice with a small tolerance at the rim.
fn check_cover(query: &AreaQuery, holds: impl Fn(Point, f64) -> bool) -> Result<(), TestCaseError> {
    let grid = grid();
    let interest = grid.interest(query, Coverage::Exact).expect("valid");
    for cell in (0..grid.cell_count()).map(Cell) {
        let (low, high) = grid.bounds(cell);
        let lattice = || {
            (0..=40).flat_map(move |i| (0..=40).map(move |j| (i, j))).map(move |(i, j)| Point {
                x: low.x + (high.x - low.x) * f64::from(i) / 40.0,
                z: low.z + (high.z - low.z) * f64::from(j) / 40.0,
            })
        };
        if interest.distance(cell).is_some() {
            prop_assert!(lattice().any(|p| holds(p, 0.3)), "{cell:?} covered for nothing");
        } else {
            prop_assert!(!lattice().any(|p| holds(p, -0.001)), "{cell:?} missed");
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn exact_sphere_covers_the_cells_that_it_touches(centre in inside(), radius in 0.5..40.0) {
        let query = AreaQuery { sphere: Some(Sphere { centre, radius }), ..Default::default() };
        check_cover(&query, |p, slack| (p.x - centre.x).hypot(p.z - centre.z) <= radius + slack)?;
    }

    #[test]
    fn exact_box_covers_the_cells_that_it_touches(centre in inside(), ex in 0.5..40.0, ez in 0.5..40.0) {
        let query = AreaQuery {
            rectangle: Some(BoxArea { centre, extent: Point { x: ex, z: ez } }),
            ..Default::default()
        };
        check_cover(&query, |p, slack| {
            (p.x - centre.x).abs() <= ex + slack && (p.z - centre.z).abs() <= ez + slack
        })?;
    }

    #[test]
    fn exact_cone_covers_the_cells_that_it_touches(
        centre in inside(), radius in 1.0..40.0, angle in 0.1..3.0, turn in 0.0..std::f64::consts::TAU,
    ) {
        let direction = Point { x: f64::cos(turn), z: f64::sin(turn) };
        let cone = Cone { centre, direction, half_angle: angle, radius };
        let grid = grid();
        let home = grid.cell_at(centre).expect("inside");
        let (home_low, home_high) = grid.bounds(home);
        check_cover(&AreaQuery { cone: Some(cone), ..Default::default() }, |p, slack| {
            let (x, z) = (p.x - centre.x, p.z - centre.z);
            let away = x.hypot(z);
            // Distance of the point to the sector's rim along the arc, so that the slack is a
            // length.
            let off = (f64::acos(((x * direction.x + z * direction.z) / away).clamp(-1.0, 1.0)) - angle) * away;
            let at_home = p.x >= home_low.x && p.x <= home_high.x && p.z >= home_low.z && p.z <= home_high.z;
            // The apex cell is covered whatever the lattice of another cell's rim says.
            (slack > 0.0 && at_home) || (away <= radius + slack && (off <= slack || away <= slack))
        })?;
    }

    #[test]
    fn diff_turns_one_interest_into_the_other(
        a in proptest::collection::vec((0_u32..40, 0_u32..4), 0..30),
        b in proptest::collection::vec((0_u32..40, 0_u32..4), 0..30),
    ) {
        let interest = |v: &[(u32, u32)]| Interest::from_cells(v.iter().map(|&(c, d)| (Cell(c), d)));
        let (old, new) = (interest(&a), interest(&b));
        let mut cells: std::collections::BTreeMap<_, _> = old.cells().collect();
        for change in old.diff(&new) {
            match change {
                Change::Enter(cell, d) => prop_assert_eq!(cells.insert(cell, d), None),
                Change::Move(cell, d) => prop_assert!(cells.insert(cell, d).is_some_and(|was| was != d)),
                Change::Leave(cell) => prop_assert!(cells.remove(&cell).is_some()),
            }
        }
        prop_assert_eq!(cells.into_iter().collect::<Vec<_>>(), new.cells().collect::<Vec<_>>());
    }

    /// Any numbers at all: an answer or an error, and never more than a visit to each cell.
    #[test]
    fn absurd_numbers_neither_hang_nor_panic(x in any::<f64>(), z in any::<f64>(), size in any::<f64>()) {
        let centre = Point { x, z };
        let query = AreaQuery {
            spots: Vec::new(),
            rectangle: Some(BoxArea { centre, extent: Point { x: size, z: size } }),
            sphere: Some(Sphere { centre, radius: size }),
            cone: Some(Cone { centre, direction: centre, half_angle: size, radius: size }),
        };
        let _ = grid().interest(&query, Coverage::Exact);
        let at_home = Point { x: 1.0, z: 1.0 };
        let query = AreaQuery {
            rectangle: Some(BoxArea { centre: at_home, extent: Point { x: size, z: 1e300 } }),
            sphere: Some(Sphere { centre: at_home, radius: size }),
            ..Default::default()
        };
        if size >= 0.01 {
            let _ = grid().interest(&query, Coverage::Sampled);
        }
    }
}

#[test]
fn empty_and_infinite_shapes_are_refused_by_name() {
    let at = Point { x: 0.0, z: 0.0 };
    let sphere = |radius| AreaQuery { sphere: Some(Sphere { centre: at, radius }), ..Default::default() };
    for coverage in [Coverage::Exact, Coverage::Sampled] {
        let refused = |query: &AreaQuery| grid().interest(query, coverage).expect_err("refused");
        assert_eq!(refused(&sphere(f64::NAN)), QueryError::NotFinite { shape: "sphere" });
        assert_eq!(refused(&sphere(f64::INFINITY)), QueryError::NotFinite { shape: "sphere" });
        assert_eq!(refused(&sphere(0.0)), QueryError::Empty { shape: "sphere", size: 0.0 });
        assert_eq!(refused(&sphere(-3.0)), QueryError::Empty { shape: "sphere", size: -3.0 });
    }
}

#[test]
fn a_centre_outside_covers_nothing_or_is_refused() {
    let centre = Point { x: 1e6, z: 0.0 };
    let query = AreaQuery { sphere: Some(Sphere { centre, radius: 5.0 }), ..Default::default() };
    assert!(grid().interest(&query, Coverage::Exact).expect("empty").is_empty());
    let refused = grid().interest(&query, Coverage::Sampled).expect_err("refused");
    assert_eq!(refused, QueryError::CentreOutside { shape: "sphere", x: 1e6, z: 0.0 });
}

#[test]
fn grids_without_area_or_with_idle_servers_are_refused() {
    let good = *grid().config();
    let refused = |config: GridConfig| Grid::new(config).expect_err("refused");
    assert!(matches!(refused(GridConfig { cell_width: 0.0, ..good }), GridError::BadExtent { .. }));
    assert!(matches!(refused(GridConfig { offset_x: f64::NAN, ..good }), GridError::BadExtent { .. }));
    assert!(matches!(refused(GridConfig { columns: 0, ..good }), GridError::BadCellCount { .. }));
    assert!(matches!(refused(GridConfig { columns: u32::MAX, ..good }), GridError::BadCellCount { .. }));
    assert!(matches!(refused(GridConfig { server_rows: 7, ..good }), GridError::BadServerCount { .. }));
    // 9 columns over 6 servers: blocks of 2, the sixth server would have none.
    let idle = refused(GridConfig { server_columns: 6, ..good });
    assert_eq!(idle, GridError::IdleServer { cells: 9, servers: 6, idle: 5, fits: 5 });
}
