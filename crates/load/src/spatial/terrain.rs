//! Terrain shared by the simulated game servers: obstacles, and the positions of characters.
//!
//! Every character occupies one square metre. Walking into an obstacle, the edge of the map or
//! somebody else turns it around, whichever server simulates the other one: a world without seams
//! has no border that one could stand on twice.

use throng_stdx::Rng;

/// Frames simulated per second, by every server.
pub(crate) const FRAMES_PER_SECOND: u32 = 30;
const FRAME_SECONDS: f32 = 1.0 / FRAMES_PER_SECOND as f32;
/// Side of an obstacle in metres: larger than the distance covered in one frame, so no character
/// tunnels through it.
pub(crate) const OBSTACLE_METRES: f32 = 2.0;
/// Share of the squares inside the wall that are obstacles.
const OBSTACLE_SHARE: f64 = 0.08;
const WALK_METRES_PER_SECOND: f32 = 4.0;
const JUMP_METRES_PER_SECOND: f32 = 5.0;
const GRAVITY: f32 = -9.81;

/// The map, from (0, 0) to (side, side) in metres.
#[derive(Debug)]
pub(crate) struct Terrain {
    side_metres: f32,
    /// Obstacles along one side, and row by row; the border is one closed wall.
    side: usize,
    obstacles: Vec<bool>,
    /// Square metres along one side, and the character on each: index + 1, or 0 for none.
    places: usize,
    standing: Vec<u32>,
}

/// One character as physics knows it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Body {
    /// Position in metres; the ground is y = 0.
    pub(crate) x: f32,
    pub(crate) y: f32,
    pub(crate) z: f32,
    /// Direction of walking in radians.
    pub(crate) heading: f32,
    /// Vertical speed in metres per second.
    pub(crate) rise: f32,
    pub(crate) jumps: u16,
    pub(crate) collisions: u16,
}

impl Body {
    /// Velocity on the plane in metres per second.
    pub(crate) fn velocity(&self) -> [f32; 2] {
        let (sin, cos) = self.heading.sin_cos();
        [cos * WALK_METRES_PER_SECOND, sin * WALK_METRES_PER_SECOND]
    }

    /// A player's wish: turn by so many radians, jump if on the ground.
    pub(crate) fn steer(&mut self, turn: f32, jump: bool) {
        if turn != 0.0 {
            self.heading = wrap(self.heading + turn);
        }
        if jump && self.y <= 0.0 {
            self.rise = JUMP_METRES_PER_SECOND;
            self.jumps = self.jumps.wrapping_add(1);
        }
    }
}

impl Terrain {
    /// A square map of this side, which is a multiple of two metres, with obstacles drawn from
    /// `rng`.
    pub(crate) fn new(side_metres: f32, rng: &mut Rng) -> Self {
        let side = (side_metres / OBSTACLE_METRES) as usize;
        let places = side_metres as usize;
        let obstacles = (0..side * side).map(|square| {
            let (x, z) = (square % side, square / side);
            let wall = x == 0 || z == 0 || x == side - 1 || z == side - 1;
            wall || rng.chance(OBSTACLE_SHARE)
        });
        Self { side_metres, side, obstacles: obstacles.collect(), places, standing: vec![0; places * places] }
    }

    pub(crate) fn side_metres(&self) -> f32 {
        self.side_metres
    }

    /// Lower corners of all obstacles in metres.
    pub(crate) fn obstacles(&self) -> impl Iterator<Item = (f32, f32)> + '_ {
        let side = self.side;
        (0..self.obstacles.len()).filter(|&square| self.obstacles[square]).map(move |square| {
            ((square % side) as f32 * OBSTACLE_METRES, (square / side) as f32 * OBSTACLE_METRES)
        })
    }

    /// True if there is an obstacle at a position; everything off the map is one.
    pub(crate) fn blocked(&self, x: f32, z: f32) -> bool {
        let square = |metres: f32| {
            let square = (metres / OBSTACLE_METRES).floor();
            (square >= 0.0 && square < self.side as f32).then_some(square as usize)
        };
        match (square(x), square(z)) {
            (Some(x), Some(z)) => self.obstacles[z * self.side + x],
            _ => true,
        }
    }

    /// Returns a free position on the map.
    pub(crate) fn free_place(&self, rng: &mut Rng) -> (f32, f32) {
        loop {
            let x = (rng.f64() * f64::from(self.side_metres)) as f32;
            let z = (rng.f64() * f64::from(self.side_metres)) as f32;
            if !self.blocked(x, z) && self.standing_at(x, z) == 0 {
                return (x, z);
            }
        }
    }

    fn place(&self, x: f32, z: f32) -> Option<usize> {
        let (x, z) = (x.floor(), z.floor());
        let inside = |metres: f32| metres >= 0.0 && metres < self.places as f32;
        (inside(x) && inside(z)).then(|| z as usize * self.places + x as usize)
    }

    fn standing_at(&self, x: f32, z: f32) -> u32 {
        self.place(x, z).map_or(0, |place| self.standing[place])
    }

    /// Places character `index` at the position of `body`. Two may share a position until one
    /// moves.
    pub(crate) fn enter(&mut self, index: u32, body: &Body) {
        if let Some(place) = self.place(body.x, body.z) {
            self.standing[place] = index + 1;
        }
    }

    /// Moves `body` by one frame. A character that meets an obstacle or another character stops and
    /// turns away at a random angle.
    pub(crate) fn step(&mut self, index: u32, body: &mut Body, rng: &mut Rng) {
        let [across, along] = body.velocity();
        let (x, z) = (body.x + across * FRAME_SECONDS, body.z + along * FRAME_SECONDS);
        let other = self.standing_at(x, z);
        if self.blocked(x, z) || other != 0 && other != index + 1 {
            // A quarter to three quarters of a full turn: always away from what is in front.
            let turn = (0.25 + 0.5 * rng.f64() as f32) * std::f32::consts::TAU;
            body.heading = wrap(body.heading + turn);
            body.collisions = body.collisions.wrapping_add(1);
        } else {
            if let Some(from) = self.place(body.x, body.z)
                && self.standing[from] == index + 1
            {
                self.standing[from] = 0;
            }
            (body.x, body.z) = (x, z);
            self.enter(index, body);
        }
        if body.y > 0.0 || body.rise > 0.0 {
            body.y = (body.y + body.rise * FRAME_SECONDS).max(0.0);
            body.rise = if body.y > 0.0 { body.rise + GRAVITY * FRAME_SECONDS } else { 0.0 };
        }
    }
}

fn wrap(heading: f32) -> f32 {
    heading.rem_euclid(std::f32::consts::TAU)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crowd(seed: u64, count: u32, side: f32, frames: u32) -> (Terrain, Vec<Body>) {
        let mut rng = Rng::new(seed);
        let mut terrain = Terrain::new(side, &mut rng);
        let mut bodies = Vec::new();
        for index in 0..count {
            let (x, z) = terrain.free_place(&mut rng);
            let body = Body { x, z, heading: rng.f64() as f32, ..Body::default() };
            terrain.enter(index, &body);
            bodies.push(body);
        }
        for _ in 0..frames {
            for (index, body) in (0..).zip(&mut bodies) {
                terrain.step(index, body, &mut rng);
            }
        }
        (terrain, bodies)
    }

    #[test]
    fn nobody_stands_in_an_obstacle_or_on_somebody() {
        let (terrain, bodies) = crowd(3, 200, 60.0, 600);
        let mut places = std::collections::BTreeSet::new();
        for body in &bodies {
            assert!(!terrain.blocked(body.x, body.z), "{body:?}");
            assert!(places.insert(terrain.place(body.x, body.z)), "two on one place: {body:?}");
        }
        assert!(bodies.iter().all(|body| body.collisions > 0), "a crowd this dense bumps into itself");
    }

    #[test]
    fn same_seed_same_crowd() {
        assert_eq!(crowd(7, 50, 100.0, 100).1, crowd(7, 50, 100.0, 100).1);
        assert_ne!(crowd(7, 50, 100.0, 100).1, crowd(8, 50, 100.0, 100).1);
    }

    #[test]
    fn a_jump_rises_and_lands() {
        let mut rng = Rng::new(1);
        let mut terrain = Terrain::new(100.0, &mut rng);
        let mut body = Body { x: 50.0, z: 50.0, ..Body::default() };
        body.steer(0.0, true);
        let mut peak = 0.0f32;
        for _ in 0..60 {
            terrain.step(0, &mut body, &mut rng);
            peak = peak.max(body.y);
        }
        assert!(peak > 0.5 && body.y == 0.0 && body.jumps == 1, "peak {peak}");
    }
}
