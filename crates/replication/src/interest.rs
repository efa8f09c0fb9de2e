//! Filters beside the grid: a game's own filters, and areas that a connection watches.

use crate::priority::View;
use crate::server::ConnId;

/// A game's own filter, for [`Server::add_filter`](crate::Server::add_filter).
/// Called for up to 64 objects at once, never for single ones, and from several threads.
pub trait CustomFilter: Send + Sync + core::fmt::Debug {
    /// Once a frame, before any connection: for what does not depend on connections.
    fn begin_frame(&mut self, frame: u32) {
        let _ = frame;
    }

    /// Which of `candidates.bits` the connection may see. Other bits of the answer are ignored.
    fn filter(&self, connection: ConnId, views: &[View], candidates: &FilterBatch<'_>) -> u64;
}

/// Objects that a filter is asked about: bit i is the object with the network index `first + i`.
#[derive(Clone, Copy, Debug)]
pub struct FilterBatch<'a> {
    /// Index of bit 0.
    pub first: u32,
    /// Objects that have this filter.
    pub bits: u64,
    /// Positions by bit, in metres; those of other objects too.
    pub x: &'a [f32; 64],
    /// As `x`.
    pub y: &'a [f32; 64],
    /// As `x`.
    pub z: &'a [f32; 64],
}

/// A part of the world in which a connection sees everything, wherever its views are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// All within `radius` metres of `centre`.
    Sphere {
        /// Metres.
        centre: [f32; 3],
        /// Metres.
        radius: f32,
    },
    /// All between two corners, inclusive.
    Box {
        /// Smallest x, y, z.
        min: [f32; 3],
        /// Largest x, y, z.
        max: [f32; 3],
    },
    /// All within `length` metres of `apex`, and within an angle of `direction`.
    Cone {
        /// Metres.
        apex: [f32; 3],
        /// Unit vector.
        direction: [f32; 3],
        /// Cosine of half the opening angle.
        cosine: f32,
        /// Metres.
        length: f32,
    },
}

/// A shape, and the band of detail in which its objects are seen at least: 0 is the nearest.
/// Without bands it means nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Area {
    /// The watched part of the world.
    pub shape: Shape,
    /// Band of detail.
    pub band: u8,
}

/// Areas of one connection at most; more are ignored.
pub(crate) const AREAS_MAX: usize = 16;

impl Shape {
    /// Smallest and largest x and y of everything inside.
    pub(crate) fn bounds(&self) -> ([f32; 2], [f32; 2]) {
        let around = |[x, y, _]: [f32; 3], r: f32| ([x - r, y - r], [x + r, y + r]);
        match *self {
            Self::Sphere { centre, radius } => around(centre, radius),
            Self::Box { min: [a, b, _], max: [c, d, _] } => ([a, b], [c, d]),
            Self::Cone { apex, length, .. } => around(apex, length),
        }
    }

    pub(crate) fn contains(&self, position: [f32; 3]) -> bool {
        let to = |from: [f32; 3]| -> [f32; 3] { core::array::from_fn(|i| position[i] - from[i]) };
        let square = |v: [f32; 3]| v.iter().map(|part| part * part).sum::<f32>();
        match *self {
            Self::Sphere { centre, radius } => square(to(centre)) <= radius * radius,
            Self::Box { min, max } => (0..3).all(|i| (min[i]..=max[i]).contains(&position[i])),
            Self::Cone { apex, direction, cosine, length } => {
                let way = to(apex);
                let along: f32 = way.iter().zip(direction).map(|(a, b)| a * b).sum();
                square(way) <= length * length && along >= cosine * square(way).sqrt()
            }
        }
    }
}
