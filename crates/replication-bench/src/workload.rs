//! The workloads: a world of characters and chests whose every step follows from one seed (spec
//! §22).
//!
//! The world knows nothing of replication. A step says which properties of which objects were set;
//! the checksum over what was set proves that two implementations ran the same workload.

#![allow(clippy::approx_constant, reason = "the workload is defined with these digits")]

use core::f32::consts::TAU;

/// Seconds of one frame: 30 Hz.
pub const DT: f32 = 1.0 / 30.0;
/// Seed base whose checksums are published.
pub const SEED_BASE: u64 = 20_240_310;
/// Distance in metres up to which objects are seen.
pub const CULL_DISTANCE: f32 = 250.0;
/// Properties of a character, which all change every frame.
pub const PROPERTIES: usize = 13;
/// Mask of a character's properties.
pub const ALL: u16 = 0x1fff;
/// Properties that are not position, rotation or velocity.
pub const LOAD: u16 = 0x1ff8;

/// Bits of the pseudo-random sequence are part of the workload's definition.
#[derive(Clone, Debug)]
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / 16_777_216.0
    }

    fn range(&mut self, a: f32, b: f32) -> f32 {
        a + (b - a) * self.float()
    }
}

/// Rate at which chests change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chests {
    /// 3 % of the chests (10 % in group 5) change three properties a frame.
    Sparse,
    /// Every chest changes all ten properties every frame.
    Full,
}

/// One of the five groups.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// 1 to 5.
    pub number: u8,
    /// Connections, each owning one character.
    pub connections: usize,
    /// Chests around each character.
    pub chests: usize,
    /// Half the side of the square in metres; dense groups only.
    half_side: Option<f32>,
    /// Chance of a chest to change in a frame, in the sparse variant.
    change: f32,
}

impl Group {
    /// A group by its number, 1 to 5.
    #[must_use]
    pub fn new(number: u8) -> Option<Self> {
        let (connections, chests, half_side, change) = match number {
            1 => (100, 0, Some(100.0), 0.0),
            2 => (100, 0, None, 0.0),
            3 => (100, 10, None, 0.03),
            4 => (100, 20, None, 0.03),
            5 => (200, 5, Some(500.0), 0.1),
            _ => return None,
        };
        Some(Self { number, connections, chests, half_side, change })
    }

    /// A world like group 5 of any size: `connections` characters in a square of `side` metres.
    #[must_use]
    pub fn scaled(connections: usize, chests: usize, side: f32) -> Self {
        Self { number: 5, connections, chests, half_side: Some(side / 2.0), change: 0.1 }
    }

    /// A world like group 3 with any number of connections and chests: islands that do not see each
    /// other.
    #[must_use]
    pub fn islands(connections: usize, chests: usize) -> Self {
        Self { number: 3, connections, chests, half_side: None, change: 0.03 }
    }

    /// Characters and chests.
    #[must_use]
    pub fn objects(&self) -> usize {
        self.connections * (1 + self.chests)
    }

    /// Checksum over 300 frames from the published seed base, where one is published.
    #[must_use]
    pub fn checksum(&self, chests: Chests) -> Option<u64> {
        if Self::new(self.number) != Some(*self) {
            return None;
        }
        Some(match (self.number, chests) {
            (1, _) => 0xeaaa_da82_4f4c_80c0,
            (2, _) => 0x97fa_9326_8d59_8878,
            (3, Chests::Sparse) => 0xdc2d_fb0b_0b2f_3097,
            (3, Chests::Full) => 0x8d54_00da_1b67_0903,
            (4, Chests::Sparse) => 0x39e2_5781_e15a_2731,
            (4, Chests::Full) => 0x19ba_d616_640b_924b,
            (5, Chests::Sparse) => 0xf82c_2368_2ee7_6f7f,
            _ => return None,
        })
    }
}

/// One object of the world, as a game would hold it.
#[derive(Clone, Debug, Default)]
pub struct BenchObject {
    /// Metres.
    pub position: [f32; 3],
    /// Radians about the vertical.
    pub yaw: f32,
    /// Metres per second.
    pub velocity: [f32; 3],
    /// 0 to 999.
    pub health: u16,
    /// 0 to 999.
    pub armor: u16,
    /// Counts down, wraps.
    pub ammo: u8,
    /// 0 to 15.
    pub state: u8,
    /// 12 bits.
    pub flags: u16,
    /// Grows.
    pub score: u32,
    /// Degrees.
    pub pitch: f32,
    /// 0 to 2099.
    pub target: u16,
    /// Unit vector.
    pub aim: [f32; 3],
    /// Seconds.
    pub cooldown: f32,
    /// Moves and is owned by a connection; a chest does not and is not.
    pub is_character: bool,
    /// Properties set in the last step, by number.
    pub marked: u16,
    home: [f32; 2],
}

impl BenchObject {
    /// Rotation as a quaternion: x, y, z, w.
    #[must_use]
    pub fn rotation(&self) -> [f32; 4] {
        let (sin, cos) = (self.yaw * 0.5).sin_cos();
        [0.0, 0.0, sin, cos]
    }

    /// Sets the load properties of `mask`.
    fn mutate(&mut self, mask: u16, rng: &mut SplitMix) {
        for property in 3..PROPERTIES {
            if mask >> property & 1 == 0 {
                continue;
            }
            match property {
                3 => self.health = ((u64::from(self.health) + 1 + rng.next() % 37) % 1000) as u16,
                4 => self.armor = ((u64::from(self.armor) + 1 + rng.next() % 11) % 1000) as u16,
                5 => self.ammo = self.ammo.wrapping_sub(1),
                6 => self.state = (u64::from(self.state) + 1 + rng.next() % 14) as u8 & 15,
                7 => self.flags = (self.flags ^ 1 << (rng.next() % 12)) & 0xfff,
                8 => self.score = self.score.wrapping_add(1 + (rng.next() % 100) as u32),
                9 => self.pitch = rng.range(-89.0, 89.0),
                10 => self.target = (rng.next() % 2100) as u16,
                11 => {
                    let a = rng.range(-3.14159, 3.14159);
                    let z = rng.range(-1.0, 1.0);
                    let s = (1.0 - z * z).sqrt();
                    self.aim = [s * a.cos(), s * a.sin(), z];
                }
                _ => self.cooldown = rng.range(0.0, 60.0),
            }
        }
        self.marked |= mask;
    }
}

/// The world and its sequence of chance.
#[derive(Clone, Debug)]
pub struct World {
    group: Group,
    chests: Chests,
    rng: SplitMix,
    /// Characters, then chests.
    pub things: Vec<BenchObject>,
    checksum: u64,
}

impl World {
    /// Places everything.
    #[must_use]
    pub fn new(group: Group, chests: Chests, seed_base: u64) -> Self {
        let mut rng = SplitMix(seed_base.wrapping_add(u64::from(group.number)));
        let mut things = Vec::with_capacity(group.objects());
        for i in 0..group.connections {
            let [x, y] = match group.half_side {
                Some(half) => [rng.range(-half, half), rng.range(-half, half)],
                None => {
                    let centre = |cell: usize| -4000.0 + 800.0 * (cell as f32 + 0.5);
                    let x = centre(i % 10) + rng.range(-100.0, 100.0);
                    [x, centre(i / 10) + rng.range(-100.0, 100.0)]
                }
            };
            let yaw = rng.range(-3.14159, 3.14159);
            let home = [x, y];
            things.push(BenchObject {
                position: [x, y, 0.0],
                yaw,
                home,
                is_character: true,
                ..BenchObject::default()
            });
        }
        for i in 0..group.connections {
            for k in 0..group.chests {
                let angle = TAU * k as f32 / group.chests as f32;
                let radius = rng.range(2.0, 20.0);
                let [x, y] = things[i].home;
                let home = [x + radius * angle.cos(), y + radius * angle.sin()];
                let yaw = rng.range(-3.14159, 3.14159);
                things.push(BenchObject {
                    position: [home[0], home[1], 0.0],
                    yaw,
                    home,
                    ..BenchObject::default()
                });
            }
        }
        for thing in &mut things {
            thing.mutate(LOAD, &mut rng);
            thing.marked = 0;
        }
        Self { group, chests, rng, things, checksum: 0xcbf2_9ce4_8422_2325 }
    }

    /// Moves the world on by one frame.
    pub fn step(&mut self) {
        let Self { group, chests, rng, things, .. } = self;
        for thing in things {
            thing.marked = 0;
            if thing.is_character {
                walk(thing, group, rng);
                thing.mutate(LOAD, rng);
                thing.marked = ALL;
            } else if *chests == Chests::Full {
                thing.mutate(LOAD, rng);
            } else if rng.float() < group.change {
                let mut mask = 0_u16;
                while mask.count_ones() < 3 {
                    mask |= 1 << (3 + rng.next() % 10);
                }
                thing.mutate(mask, rng);
            }
        }
    }

    /// Adds what the last step set to the checksum.
    pub fn digest(&mut self) {
        let mut hash = self.checksum;
        let mut add = |bytes: &[u8]| {
            for byte in bytes {
                hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            }
        };
        for thing in &self.things {
            add(&thing.health.to_le_bytes());
            add(&thing.armor.to_le_bytes());
            add(&[thing.ammo, thing.state]);
            add(&thing.flags.to_le_bytes());
            add(&thing.score.to_le_bytes());
            add(&thing.target.to_le_bytes());
            add(&thing.marked.to_le_bytes());
        }
        self.checksum = hash;
    }

    /// FNV-1a, 64 bits, over what [`digest`](Self::digest) saw.
    #[must_use]
    pub fn checksum(&self) -> u64 {
        self.checksum
    }

    /// The group it runs.
    #[must_use]
    pub fn group(&self) -> Group {
        self.group
    }
}

fn walk(thing: &mut BenchObject, group: &Group, rng: &mut SplitMix) {
    const PI: f32 = core::f32::consts::PI;
    let [x, y, _] = thing.position;
    thing.yaw += rng.range(-0.1, 0.1);
    match group.half_side {
        Some(half) => {
            if x.abs() > half || y.abs() > half {
                thing.yaw = (-y).atan2(-x);
            }
        }
        None => {
            let (dx, dy) = (thing.home[0] - x, thing.home[1] - y);
            if dx * dx + dy * dy > 400.0 {
                thing.yaw = dy.atan2(dx);
            }
        }
    }
    if thing.yaw > PI {
        thing.yaw -= TAU;
    }
    if thing.yaw < -PI {
        thing.yaw += TAU;
    }
    thing.velocity[0] = 6.0 * thing.yaw.cos();
    thing.velocity[1] = 6.0 * thing.yaw.sin();
    if thing.position[2] <= 0.0 && rng.float() < 0.1 / 30.0 {
        thing.velocity[2] = 4.2;
    }
    for axis in 0..3 {
        thing.position[axis] += thing.velocity[axis] * DT;
    }
    if thing.position[2] <= 0.0 {
        thing.position[2] = 0.0;
        thing.velocity[2] = 0.0;
    } else {
        thing.velocity[2] -= 9.8 * DT;
    }
}
