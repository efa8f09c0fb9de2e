//! Areas of interest: spots, boxes, spheres and cones, with the query that combines them.

use thiserror::Error;

use crate::grid::{Cell, Grid, Point};
use crate::interest::Interest;

/// One named position with an explicit distance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spot {
    /// Position of the spot.
    pub at: Point,
    /// Distance, in cells, assigned to its cell.
    pub distance: u32,
}

/// An axis-aligned rectangle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BoxArea {
    /// Its middle.
    pub centre: Point,
    /// Half side lengths, world units, above 0.
    pub extent: Point,
}

/// A disc on the plane.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sphere {
    /// Its middle.
    pub centre: Point,
    /// World units, above 0.
    pub radius: f64,
}

/// A sector of a disc.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cone {
    /// Its apex.
    pub centre: Point,
    /// Direction of the cone's axis; any length. Zero length means every direction.
    pub direction: Point,
    /// Half aperture in radians.
    pub half_angle: f64,
    /// World units, above 0.
    pub radius: f64,
}

/// The shapes of one interest query. They are evaluated in the order of the fields; if two cover
/// the same cell, the distance of the later one counts.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct AreaQuery {
    /// Single positions.
    pub spots: Vec<Spot>,
    /// A rectangle.
    pub rectangle: Option<BoxArea>,
    /// A disc.
    pub sphere: Option<Sphere>,
    /// A sector.
    pub cone: Option<Cone>,
}

/// Rule that turns a shape into cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Coverage {
    /// Every cell that the shape touches; distance from the nearest point of the cell. A centre
    /// outside the world covers nothing.
    #[default]
    Exact,
    /// The sampling of channeld 0.8: points half a cell apart, the last sample in a cell decides
    /// its distance, cells touched only near a corner may be missed, a centre outside the world is
    /// an error.
    Sampled,
}

/// Defect of a query. The current interest is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum QueryError {
    /// A coordinate, extent, angle or radius is not a finite number.
    #[error("the {shape} has a coordinate, extent, angle or radius that is not a finite number")]
    NotFinite {
        /// The shape.
        shape: &'static str,
    },
    /// An extent or radius of 0 or less.
    #[error("the {shape} has an extent or radius of {size}; it must be above 0")]
    Empty {
        /// The shape.
        shape: &'static str,
        /// The offending size, world units.
        size: f64,
    },
    /// The centre lies outside the world ([`Coverage::Sampled`] only).
    #[error("the centre {x}, {z} of the {shape} lies outside the world")]
    CentreOutside {
        /// The shape.
        shape: &'static str,
        /// Its centre.
        x: f64,
        /// Its centre.
        z: f64,
    },
}

/// Box, sphere and cone as one: a half extent per axis and a test for points or cells.
#[derive(Clone, Copy)]
enum Shape {
    Box,
    Sphere { radius: f64 },
    Cone { radius: f64, direction: Point, half_angle: f64 },
}

struct Region {
    name: &'static str,
    centre: Point,
    extent: Point,
    shape: Shape,
}

impl Grid {
    /// The cells that a query covers.
    ///
    /// Costs at most one visit to each cell of the world per shape with [`Coverage::Exact`]; with
    /// [`Coverage::Sampled`] at most nine samples per cell of the world, because samples outside
    /// the world are clipped away before they are taken.
    ///
    /// # Errors
    /// [`QueryError`] for numbers that describe no area.
    pub fn interest(&self, query: &AreaQuery, coverage: Coverage) -> Result<Interest, QueryError> {
        let mut cells = Vec::new();
        for spot in &query.spots {
            cells.extend(self.cell_at(spot.at).map(|cell| (cell, spot.distance)));
        }
        for region in regions(query) {
            region.check()?;
            match coverage {
                Coverage::Exact => self.cover(&region, &mut cells),
                Coverage::Sampled => self.sample(&region, &mut cells)?,
            }
        }
        Ok(Interest::from_cells(cells))
    }

    fn cover(&self, region: &Region, cells: &mut Vec<(Cell, u32)>) {
        let Some(home) = self.cell_at(region.centre) else { return };
        let (c, e) = (region.centre, region.extent);
        let (columns, rows) =
            self.span(Point { x: c.x - e.x, z: c.z - e.z }, Point { x: c.x + e.x, z: c.z + e.z });
        for row in rows {
            for column in columns.clone() {
                let cell = self.cell(column, row);
                let (low, high) = self.bounds(cell);
                if cell != home && region.touches(low, high) {
                    let nearest = nearest(region.centre, low, high);
                    let away = (length(sub(nearest, region.centre)) / self.diagonal()).ceil();
                    cells.push((cell, (away as u32).max(1)));
                }
            }
        }
        cells.push((home, 0));
    }

    fn sample(&self, region: &Region, cells: &mut Vec<(Cell, u32)>) -> Result<(), QueryError> {
        let (c, e) = (region.centre, region.extent);
        let Some(home) = self.cell_at(c) else {
            return Err(QueryError::CentreOutside { shape: region.name, x: c.x, z: c.z });
        };
        let config = self.config();
        let step = Point { x: e.x.min(config.cell_width) / 2.0, z: e.z.min(config.cell_height) / 2.0 };
        let (mut low, mut high) =
            (Point { x: c.x - e.x, z: c.z - e.z }, Point { x: c.x + e.x, z: c.z + e.z });
        let west = config.offset_x;
        let south = config.offset_z;
        let east = west + config.cell_width * f64::from(config.columns);
        let north = south + config.cell_height * f64::from(config.rows);
        if matches!(region.shape, Shape::Cone { .. }) {
            low = Point { x: low.x.max(west), z: low.z.max(south) };
            high = Point { x: high.x.min(east), z: high.z.min(north) };
        } else {
            // Whole steps that lie outside the world anyway are skipped, so that an absurd extent
            // costs no more than the world; the reference walks them. Rounding of a huge extent may
            // leave the walk far outside: it starts at the edge then.
            let skip = |low: f64, edge: f64, step: f64| {
                let moved = low + ((edge - low) / step - 1.0).floor().max(0.0) * step;
                if moved < edge - 3.0 * step { edge } else { moved }
            };
            low = Point { x: skip(low.x, west, step.x), z: skip(low.z, south, step.z) };
            high = Point { x: high.x.min(east), z: high.z.min(north) };
        }
        // Repeated addition, as the reference does: rounding decides which samples fall on an edge.
        let mut z = low.z;
        while z <= high.z {
            let mut x = low.x;
            while x <= high.x {
                let at = Point { x, z };
                if region.holds(at)
                    && let Some(cell) = self.cell_at(at)
                {
                    cells.push((cell, (length(sub(at, c)) / self.diagonal()).ceil() as u32));
                }
                x = next(x, step.x);
            }
            z = next(z, step.z);
        }
        cells.push((home, 0));
        Ok(())
    }

    fn diagonal(&self) -> f64 {
        self.config().cell_width.hypot(self.config().cell_height)
    }
}

/// The next sample. Far from the origin a small step can vanish in rounding; the walk must still
/// end.
fn next(at: f64, step: f64) -> f64 {
    let moved = at + step;
    if moved > at { moved } else { at.next_up() }
}

fn regions(query: &AreaQuery) -> impl Iterator<Item = Region> {
    let rectangle = query.rectangle.map(|area| Region {
        name: "box",
        centre: area.centre,
        extent: area.extent,
        shape: Shape::Box,
    });
    let sphere = query.sphere.map(|area| Region {
        name: "sphere",
        centre: area.centre,
        extent: Point { x: area.radius, z: area.radius },
        shape: Shape::Sphere { radius: area.radius },
    });
    let cone = query.cone.map(|area| Region {
        name: "cone",
        centre: area.centre,
        extent: Point { x: area.radius, z: area.radius },
        shape: Shape::Cone { radius: area.radius, direction: area.direction, half_angle: area.half_angle },
    });
    [rectangle, sphere, cone].into_iter().flatten()
}

impl Region {
    fn check(&self) -> Result<(), QueryError> {
        let finite = match self.shape {
            Shape::Cone { direction, half_angle, .. } => direction.is_finite() && half_angle.is_finite(),
            Shape::Box | Shape::Sphere { .. } => true,
        };
        if !finite || !self.centre.is_finite() || !self.extent.is_finite() {
            return Err(QueryError::NotFinite { shape: self.name });
        }
        let size = self.extent.x.min(self.extent.z);
        if size > 0.0 { Ok(()) } else { Err(QueryError::Empty { shape: self.name, size }) }
    }

    /// True if a point lies in the shape, with the reference's rounding.
    fn holds(&self, at: Point) -> bool {
        let offset = sub(at, self.centre);
        match self.shape {
            Shape::Box => true,
            Shape::Sphere { radius } => dot(offset, offset) <= radius * radius,
            Shape::Cone { radius, direction, half_angle } => {
                dot(offset, offset) <= radius * radius && within(offset, direction, half_angle)
            }
        }
    }

    /// True if the shape and a rectangle share a point.
    fn touches(&self, low: Point, high: Point) -> bool {
        let closest = sub(nearest(self.centre, low, high), self.centre);
        match self.shape {
            Shape::Box => closest.x.abs() <= self.extent.x && closest.z.abs() <= self.extent.z,
            Shape::Sphere { radius } => dot(closest, closest) <= radius * radius,
            Shape::Cone { radius, direction, half_angle } => {
                // The part of the rectangle within the radius is convex. It meets the sector if one
                // of the sector's two straight edges runs through it; if none does it lies wholly
                // on one side of them, and any of its points, here the nearest, tells which.
                dot(closest, closest) <= radius * radius
                    && (within(closest, direction, half_angle)
                        || [half_angle, -half_angle].into_iter().any(|angle| {
                            let edge = scale(rotate(direction, angle), radius / length(direction));
                            segment_meets(self.centre, edge, low, high)
                        }))
            }
        }
    }
}

/// True if `offset` points within `half_angle` of `direction`. A vector of length 0 is within
/// everything.
fn within(offset: Point, direction: Point, half_angle: f64) -> bool {
    let cosine = dot(offset, direction) / (length(offset) * length(direction));
    cosine.is_nan() || cosine >= half_angle.cos()
}

/// True if the segment from `start` along `edge` meets a rectangle (slab test).
fn segment_meets(start: Point, edge: Point, low: Point, high: Point) -> bool {
    let (mut enter, mut leave) = (0.0_f64, 1.0_f64);
    for (start, edge, low, high) in [(start.x, edge.x, low.x, high.x), (start.z, edge.z, low.z, high.z)] {
        if edge == 0.0 {
            if start < low || start > high {
                return false;
            }
        } else {
            let (a, b) = ((low - start) / edge, (high - start) / edge);
            enter = enter.max(a.min(b));
            leave = leave.min(a.max(b));
        }
    }
    enter <= leave
}

fn nearest(to: Point, low: Point, high: Point) -> Point {
    Point { x: to.x.clamp(low.x, high.x), z: to.z.clamp(low.z, high.z) }
}

fn sub(a: Point, b: Point) -> Point {
    Point { x: a.x - b.x, z: a.z - b.z }
}

fn dot(a: Point, b: Point) -> f64 {
    a.x * b.x + a.z * b.z
}

fn length(a: Point) -> f64 {
    dot(a, a).sqrt()
}

fn scale(a: Point, by: f64) -> Point {
    Point { x: a.x * by, z: a.z * by }
}

fn rotate(a: Point, angle: f64) -> Point {
    let (sin, cos) = angle.sin_cos();
    Point { x: a.x * cos - a.z * sin, z: a.x * sin + a.z * cos }
}
