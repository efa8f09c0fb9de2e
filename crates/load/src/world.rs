//! The simulated world: characters that walk, turn and jump on a walled grid with obstacles.
//!
//! It does only the work of a small game server between two frames: apply inputs, move, collide,
//! and record the characters that moved. Everything follows from the seed and the inputs, so two
//! runs of one seed agree to the bit.

use throng_stdx::Rng;

/// Frames simulated per second.
pub const FRAMES_PER_SECOND: u32 = 30;
/// Bytes of one encoded [`Character`].
pub const CHARACTER_BYTES: usize = 58;

/// Length of one frame in seconds.
const FRAME_SECONDS: f32 = 1.0 / FRAMES_PER_SECOND as f32;
/// Side of a grid cell in metres: larger than the distance covered in one frame, so no character
/// tunnels through an obstacle.
const CELL_METRES: f32 = 2.0;
/// Cells along one side of the map. 256 m is room for 1,000 characters at 8 m distance.
const SIDE_CELLS: usize = 128;
/// Share of the cells inside the wall that are obstacles.
const OBSTACLE_SHARE: f64 = 0.08;
const WALK_METRES_PER_SECOND: f32 = 4.0;
const JUMP_METRES_PER_SECOND: f32 = 5.0;
const GRAVITY: f32 = -9.81;

/// Content of one input message.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Input {
    /// Intended send time, nanoseconds of the monotonic clock.
    pub sent_ns: u64,
    /// Counts the inputs of one player.
    pub sequence: u32,
    /// Radians to turn by; 0 to walk on.
    pub turn: f32,
    /// Jump, if on the ground.
    pub jump: bool,
}

/// One simulated character.
#[derive(Debug, Clone, PartialEq)]
pub struct Character {
    /// Position in metres; the ground is y = 0.
    pub position: [f32; 3],
    /// Direction of walking in radians.
    pub heading: f32,
    /// Vertical speed in metres per second.
    rise: f32,
    /// Newest input applied.
    pub input: Input,
    /// Number of turns on request.
    pub turns: u16,
    /// Number of jumps.
    pub jumps: u16,
    /// Number of turns at obstacles.
    pub collisions: u16,
    /// True if the last frame changed it.
    moved: bool,
}

/// The map and everyone on it.
#[derive(Debug)]
pub struct World {
    /// Row by row; `true` is an obstacle. The border is one closed wall.
    obstacles: Vec<bool>,
    characters: Vec<Character>,
    rng: Rng,
    frame: u32,
}

impl World {
    /// A world with `characters` standing on free cells, all of it drawn from `seed`.
    #[must_use]
    pub fn new(seed: u64, characters: usize) -> Self {
        let mut rng = Rng::new(seed);
        let obstacles = (0..SIDE_CELLS * SIDE_CELLS)
            .map(|cell| {
                let (x, z) = (cell % SIDE_CELLS, cell / SIDE_CELLS);
                let wall = x == 0 || z == 0 || x == SIDE_CELLS - 1 || z == SIDE_CELLS - 1;
                wall || rng.chance(OBSTACLE_SHARE)
            })
            .collect();
        let mut world = Self { obstacles, characters: Vec::with_capacity(characters), rng, frame: 0 };
        for _ in 0..characters {
            let character = world.place();
            world.characters.push(character);
        }
        world
    }

    /// Applies a player's input to the character with this index at once; unknown indices are
    /// ignored.
    pub fn apply(&mut self, index: usize, input: Input) {
        let Some(character) = self.characters.get_mut(index) else { return };
        if input.turn != 0.0 {
            character.heading = wrap(character.heading + input.turn);
            character.turns = character.turns.wrapping_add(1);
        }
        if input.jump && character.position[1] <= 0.0 {
            character.rise = JUMP_METRES_PER_SECOND;
            character.jumps = character.jumps.wrapping_add(1);
        }
        character.input = input;
    }

    /// Advances by one frame: all characters walk; one that meets an obstacle stops and turns away
    /// at a random angle.
    pub fn step(&mut self) {
        self.frame += 1;
        for character in &mut self.characters {
            let before = (character.position, character.heading);
            let [x, y, z] = character.position;
            let (sin, cos) = character.heading.sin_cos();
            let to = [
                x + cos * WALK_METRES_PER_SECOND * FRAME_SECONDS,
                z + sin * WALK_METRES_PER_SECOND * FRAME_SECONDS,
            ];
            if obstacle_at(&self.obstacles, to) {
                // A quarter to three quarters of a full turn: always away from what is in front.
                let turn = (0.25 + 0.5 * self.rng.f64() as f32) * std::f32::consts::TAU;
                character.heading = wrap(character.heading + turn);
                character.collisions = character.collisions.wrapping_add(1);
            } else {
                character.position[0] = to[0];
                character.position[2] = to[1];
            }
            if y > 0.0 || character.rise > 0.0 {
                character.position[1] = (y + character.rise * FRAME_SECONDS).max(0.0);
                character.rise =
                    if character.position[1] > 0.0 { character.rise + GRAVITY * FRAME_SECONDS } else { 0.0 };
            }
            character.moved = before != (character.position, character.heading);
        }
    }

    /// Frames simulated so far.
    #[must_use]
    pub fn frame(&self) -> u32 {
        self.frame
    }

    /// Everyone, by index.
    #[must_use]
    pub fn characters(&self) -> &[Character] {
        &self.characters
    }

    /// Indices of the characters that the last frame moved.
    pub fn moved(&self) -> impl Iterator<Item = usize> + '_ {
        self.characters.iter().enumerate().filter(|(_, character)| character.moved).map(|(index, _)| index)
    }

    /// True if the cell under a position is an obstacle; positions off the map are.
    #[must_use]
    pub fn blocked(&self, x: f32, z: f32) -> bool {
        obstacle_at(&self.obstacles, [x, z])
    }

    fn place(&mut self) -> Character {
        let position = loop {
            let side = SIDE_CELLS as f64 * f64::from(CELL_METRES);
            let (x, z) = ((self.rng.f64() * side) as f32, (self.rng.f64() * side) as f32);
            if !self.blocked(x, z) {
                break [x, 0.0, z];
            }
        };
        let heading = self.rng.f64() as f32 * std::f32::consts::TAU;
        Character {
            position,
            heading,
            rise: 0.0,
            input: Input::default(),
            turns: 0,
            jumps: 0,
            collisions: 0,
            moved: false,
        }
    }
}

impl Character {
    /// Appends the state as `throng.demo.Character`, always [`CHARACTER_BYTES`] long.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let (sin, cos) = self.heading.sin_cos();
        let [x, y, z] = self.position;
        let floats =
            [x, y, z, self.heading, cos * WALK_METRES_PER_SECOND, self.rise, sin * WALK_METRES_PER_SECOND];
        for (field, value) in (1u8..).zip(floats) {
            out.push(field << 3 | FIXED32);
            out.extend_from_slice(&value.to_le_bytes());
        }
        out.push(8 << 3 | FIXED64);
        out.extend_from_slice(&self.input.sent_ns.to_le_bytes());
        out.push(9 << 3 | FIXED32);
        out.extend_from_slice(&self.input.sequence.to_le_bytes());
        out.push(10 << 3 | FIXED64);
        let events = u64::from(self.turns) | u64::from(self.jumps) << 16 | u64::from(self.collisions) << 32;
        out.extend_from_slice(&events.to_le_bytes());
        debug_assert_eq!(out.len() - start, CHARACTER_BYTES, "the schema promises a fixed size");
    }
}

/// Protobuf wire types of the two fixed sizes.
const FIXED32: u8 = 5;
const FIXED64: u8 = 1;

fn obstacle_at(obstacles: &[bool], [x, z]: [f32; 2]) -> bool {
    let cell = |metres: f32| {
        let cell = (metres / CELL_METRES).floor();
        (cell >= 0.0 && cell < SIDE_CELLS as f32).then_some(cell as usize)
    };
    match (cell(x), cell(z)) {
        (Some(x), Some(z)) => obstacles[z * SIDE_CELLS + x],
        _ => true,
    }
}

fn wrap(heading: f32) -> f32 {
    heading.rem_euclid(std::f32::consts::TAU)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays `frames` frames in which every character turns and jumps now and then.
    fn play(seed: u64, frames: u32) -> World {
        let mut world = World::new(seed, 50);
        let mut rng = Rng::new(seed ^ 1);
        for frame in 0..frames {
            for index in 0..50 {
                let turn = if rng.chance(0.01) { 1.0 } else { 0.0 };
                world.apply(index, Input { sent_ns: 0, sequence: frame, turn, jump: rng.chance(0.01) });
            }
            world.step();
        }
        world
    }

    #[test]
    fn same_seed_same_world() {
        assert_eq!(play(7, 300).characters(), play(7, 300).characters());
        assert_ne!(play(7, 300).characters(), play(8, 300).characters());
    }

    #[test]
    fn nobody_ever_stands_in_an_obstacle() {
        let mut world = World::new(3, 200);
        for _ in 0..900 {
            world.step();
            for character in world.characters() {
                let [x, y, z] = character.position;
                assert!(!world.blocked(x, z), "{character:?}");
                assert!(y >= 0.0);
            }
        }
        assert!(world.characters().iter().any(|character| character.collisions > 0), "obstacles must be met");
    }

    #[test]
    fn a_jump_rises_and_lands() {
        let mut world = World::new(5, 1);
        world.apply(0, Input { jump: true, ..Input::default() });
        let mut peak = 0.0f32;
        for _ in 0..60 {
            world.step();
            peak = peak.max(world.characters()[0].position[1]);
        }
        assert!(peak > 0.5, "peak {peak}");
        assert_eq!(world.characters()[0].position[1], 0.0);
        assert_eq!(world.characters()[0].jumps, 1);
    }

    #[test]
    fn everyone_moves_every_frame() {
        let mut world = World::new(9, 100);
        world.step();
        assert_eq!(world.moved().count(), 100, "walking or turning away both count");
    }

    #[test]
    fn state_has_its_fixed_size() {
        let mut out = Vec::new();
        for character in play(1, 10).characters() {
            out.clear();
            character.encode(&mut out);
            assert_eq!(out.len(), CHARACTER_BYTES);
        }
    }
}
