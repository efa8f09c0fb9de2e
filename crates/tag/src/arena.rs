//! The rules: a state machine without sockets and clock.
//!
//! One player is *it* and slightly faster than the others. A player whom it touches becomes it. A
//! second without being it scores one point, a catch five. After a round, the winner is shown for a
//! few seconds before the next round begins.

use std::collections::BTreeMap;
use std::time::Duration;

use throng_stdx::Rng;

use crate::messages::{ArenaData, Body, Caught, PlayerData, Round, Rules};

const WIDTH: f32 = 1600.0;
const HEIGHT: f32 = 900.0;
/// Radius of a player, in units.
pub(crate) const RADIUS: f32 = 20.0;
/// Pillars: middle and radius.
pub(crate) const PILLARS: [(f32, f32, f32); 7] = [
    (800.0, 450.0, 90.0),
    (360.0, 250.0, 60.0),
    (1240.0, 250.0, 60.0),
    (360.0, 650.0, 60.0),
    (1240.0, 650.0, 60.0),
    (800.0, 140.0, 40.0),
    (800.0, 760.0, 40.0),
];
/// Speed of a player, units per second.
const SPEED: f32 = 270.0;
/// Speed of the player who is it: enough to catch a player who runs straight, but not one who turns
/// well.
const SPEED_IT: f32 = 315.0;
/// Time in which the difference between wanted and actual velocity falls to a third.
const RESPONSE: f32 = 0.09;
/// Time in seconds for which a player cannot be caught after having been it, or after entering.
const IMMUNE: f32 = 1.5;
const POINTS_PER_CATCH: u32 = 5;
/// Duration for which a result is shown.
const RESULT: Duration = Duration::from_secs(6);
/// Longest name that is shown, in characters.
const NAME_CHARS_MAX: usize = 14;

/// Steps of the simulation per second.
pub(crate) const STEPS_PER_SECOND: u32 = 30;

/// One room.
#[derive(Debug)]
pub struct Arena {
    players: BTreeMap<u32, Player>,
    round: Round,
    /// Remaining seconds of the phase.
    left: f32,
    length: Duration,
    rng: Rng,
    /// State sent so far; updates are differences to it.
    told: ArenaData,
}

#[derive(Debug)]
struct Player {
    name: String,
    hue: u32,
    simulated: bool,
    /// Points; the integer part is shown.
    score: f32,
    place: (f32, f32),
    speed: (f32, f32),
    wish: (f32, f32),
    immune: f32,
}

impl Arena {
    /// An empty room with rounds of the given length.
    #[must_use]
    pub fn new(length: Duration, seed: u64) -> Self {
        let round = Round { number: 1, phase: 1, ..Round::default() };
        let mut arena = Arena {
            players: BTreeMap::new(),
            round,
            left: length.as_secs_f32(),
            length,
            rng: Rng::new(seed),
            told: ArenaData::default(),
        };
        arena.count_seconds();
        arena
    }

    /// Returns the full state, for the creation of the channel.
    #[must_use]
    pub fn snapshot(&mut self) -> ArenaData {
        let pillars = PILLARS.iter().flat_map(|&(x, y, r)| [x as u32, y as u32, r as u32]).collect();
        let rules = Rules { width: WIDTH as u32, height: HEIGHT as u32, radius: RADIUS as u32, pillars };
        self.told = self.data();
        ArenaData { rules: Some(rules), ..self.told.clone() }
    }

    /// Changes since the last call; `None` if there are none.
    #[must_use]
    pub fn update(&mut self) -> Option<ArenaData> {
        let now = self.data();
        let told = std::mem::replace(&mut self.told, now);
        let now = &self.told;
        let mut update = ArenaData::default();
        let is_new = |(id, player): &(&u32, &PlayerData)| told.players.get(id) != Some(player);
        update.players.extend(now.players.iter().filter(is_new).map(|(&id, player)| (id, player.clone())));
        let has_moved = |(id, body): &(&u32, &Body)| told.bodies.get(id) != Some(body);
        update.bodies.extend(now.bodies.iter().filter(has_moved).map(|(&id, &body)| (id, body)));
        for &id in told.players.keys().filter(|id| !now.players.contains_key(id)) {
            update.players.insert(id, PlayerData { removed: true, ..PlayerData::default() });
            update.bodies.insert(id, Body { removed: true, ..Body::default() });
        }
        update.round = now.round.filter(|_| now.round != told.round);
        (update != ArenaData::default()).then_some(update)
    }

    /// Players in the room.
    #[must_use]
    pub fn len(&self) -> usize {
        self.players.len()
    }

    /// True if the room is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.players.is_empty()
    }

    /// True if the player is in the room.
    #[must_use]
    pub fn contains(&self, id: u32) -> bool {
        self.players.contains_key(&id)
    }

    /// Adds a player, or changes its name.
    pub fn enter(&mut self, id: u32, name: &str, simulated: bool) {
        let shown: String = name.chars().filter(|c| !c.is_control()).take(NAME_CHARS_MAX).collect();
        let shown = shown.trim().to_owned();
        let name = if shown.is_empty() { format!("player {id}") } else { shown };
        if let Some(player) = self.players.get_mut(&id) {
            player.name = name;
            return;
        }
        // Golden angle: colours of players that come one after another differ most.
        let hue = (self.players.len() as u32 * 137 + 20) % 360;
        let place = self.free_place();
        let player = Player {
            name,
            hue,
            simulated,
            score: 0.0,
            place,
            speed: (0.0, 0.0),
            wish: (0.0, 0.0),
            immune: IMMUNE,
        };
        self.players.insert(id, player);
        if !self.players.contains_key(&self.round.it) {
            self.round.it = id;
        }
    }

    /// Removes a player. If it was it, a random player becomes it.
    pub fn leave(&mut self, id: u32) {
        self.players.remove(&id);
        if self.round.it == id {
            self.choose_it();
        }
    }

    /// Sets the requested direction of a player, a vector of length 1 at most.
    pub fn steer(&mut self, id: u32, wish: (f32, f32)) {
        let Some(player) = self.players.get_mut(&id) else { return };
        let length = wish.0.hypot(wish.1);
        let scale = if length > 1.0 { 1.0 / length } else { 1.0 };
        player.wish = (wish.0 * scale, wish.1 * scale);
    }

    /// Runs one step of the simulation and returns the catch in it, if there was one.
    pub fn step(&mut self) -> Option<Caught> {
        let dt = 1.0 / STEPS_PER_SECOND as f32;
        let playing = self.round.phase == 1;
        for (&id, player) in &mut self.players {
            player.immune = (player.immune - dt).max(0.0);
            let speed = if id == self.round.it { SPEED_IT } else { SPEED };
            let wish = if playing { player.wish } else { (0.0, 0.0) };
            let share = 1.0 - (-dt / RESPONSE).exp();
            player.speed.0 += (wish.0 * speed - player.speed.0) * share;
            player.speed.1 += (wish.1 * speed - player.speed.1) * share;
            player.place.0 += player.speed.0 * dt;
            player.place.1 += player.speed.1 * dt;
            player.keep_inside();
            if playing && id != self.round.it {
                player.score += dt;
            }
        }
        let caught = if playing { self.catch() } else { None };
        // Nobody plays alone; the round begins with the second.
        if self.players.len() > 1 || !playing {
            self.left -= dt;
        }
        if self.left <= 0.0 {
            self.next_phase();
        }
        self.count_seconds();
        caught
    }

    fn catch(&mut self) -> Option<Caught> {
        let by = self.round.it;
        let hunter = self.players.get(&by)?;
        // A player who has just become it waits as well, so that two do not tag each other back and
        // forth.
        if hunter.immune > 0.0 {
            return None;
        }
        let reach = 2.0 * RADIUS;
        let distance =
            |player: &Player| (player.place.0 - hunter.place.0).hypot(player.place.1 - hunter.place.1);
        let others = self.players.iter().filter(|&(&id, player)| id != by && player.immune == 0.0);
        let nearest = others.map(|(&id, player)| (id, distance(player)));
        let (who, _) = nearest.filter(|&(_, far)| far < reach).min_by(|a, b| a.1.total_cmp(&b.1))?;
        if let Some(hunter) = self.players.get_mut(&by) {
            hunter.immune = IMMUNE;
            hunter.score += POINTS_PER_CATCH as f32;
        }
        if let Some(hunted) = self.players.get_mut(&who) {
            hunted.immune = IMMUNE / 2.0;
        }
        self.round.it = who;
        Some(Caught { by, who })
    }

    fn next_phase(&mut self) {
        if self.round.phase == 1 {
            self.round.phase = 2;
            self.left = RESULT.as_secs_f32();
            let best = self.players.iter().max_by(|a, b| a.1.score.total_cmp(&b.1.score));
            self.round.winner = best.map_or(0, |(&id, _)| id);
            return;
        }
        self.round.phase = 1;
        self.round.number += 1;
        self.left = self.length.as_secs_f32();
        let ids: Vec<u32> = self.players.keys().copied().collect();
        for id in ids {
            let place = self.free_place();
            if let Some(player) = self.players.get_mut(&id) {
                (player.place, player.score, player.immune) = (place, 0.0, IMMUNE);
            }
        }
        self.choose_it();
    }

    fn choose_it(&mut self) {
        if self.players.is_empty() {
            return;
        }
        let index = self.rng.below(self.players.len() as u64) as usize;
        self.round.it = self.players.keys().nth(index).copied().unwrap_or_default();
    }

    fn count_seconds(&mut self) {
        self.round.seconds_left = (self.left.ceil() as u32).max(1);
    }

    /// Returns a position clear of walls and pillars and, if a few attempts find one, of other
    /// players.
    fn free_place(&mut self) -> (f32, f32) {
        let mut place = (WIDTH / 4.0, HEIGHT / 2.0);
        for _ in 0..32 {
            place = (
                60.0 + self.rng.f64() as f32 * (WIDTH - 120.0),
                60.0 + self.rng.f64() as f32 * (HEIGHT - 120.0),
            );
            let clear = |(x, y): (f32, f32), gap: f32| (place.0 - x).hypot(place.1 - y) > gap;
            if PILLARS.iter().all(|&(x, y, r)| clear((x, y), r + 2.0 * RADIUS))
                && self.players.values().all(|player| clear(player.place, 5.0 * RADIUS))
            {
                break;
            }
        }
        place
    }

    fn data(&self) -> ArenaData {
        let quarters = |value: f32| (value * 4.0).round() as i32;
        let player = |(&id, player): (&u32, &Player)| {
            let &Player { ref name, hue, simulated, score, .. } = player;
            (id, PlayerData { removed: false, name: name.clone(), hue, simulated, score: score as u32 })
        };
        let body = |(&id, player): (&u32, &Player)| {
            let [x, y] = [player.place.0, player.place.1].map(quarters);
            let [vx, vy] = [player.speed.0, player.speed.1].map(quarters);
            (id, Body { removed: false, x, y, vx, vy })
        };
        ArenaData {
            players: self.players.iter().map(player).collect(),
            bodies: self.players.iter().map(body).collect(),
            round: Some(self.round),
            rules: None,
        }
    }
}

impl Player {
    /// Pushes the player out of pillars and walls; the remaining velocity slides along them.
    fn keep_inside(&mut self) {
        for (x, y, radius) in PILLARS {
            let (dx, dy) = (self.place.0 - x, self.place.1 - y);
            let (far, gap) = (dx.hypot(dy).max(0.001), radius + RADIUS);
            if far < gap {
                let (nx, ny) = (dx / far, dy / far);
                self.place = (x + nx * gap, y + ny * gap);
                let into = (self.speed.0 * nx + self.speed.1 * ny).min(0.0);
                self.speed.0 -= nx * into;
                self.speed.1 -= ny * into;
            }
        }
        let inside =
            (self.place.0.clamp(RADIUS, WIDTH - RADIUS), self.place.1.clamp(RADIUS, HEIGHT - RADIUS));
        // Pages go on in the direction of the speed until the next update.
        if inside.0 != self.place.0 {
            self.speed.0 = 0.0;
        }
        if inside.1 != self.place.1 {
            self.speed.1 = 0.0;
        }
        self.place = inside;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena(players: u32) -> Arena {
        let mut arena = Arena::new(Duration::from_secs(30), 1);
        for id in 1..=players {
            arena.enter(id, &format!("p{id}"), false);
        }
        arena
    }

    fn place(arena: &Arena, id: u32) -> (f32, f32) {
        arena.players[&id].place
    }

    #[test]
    fn the_first_is_it_and_passes_it_on_by_touch() {
        let mut arena = arena(2);
        assert_eq!(arena.round.it, 1);
        for player in arena.players.values_mut() {
            (player.place, player.immune) = ((200.0, 100.0), 0.0);
        }
        assert_eq!(arena.step(), Some(Caught { by: 1, who: 2 }));
        assert_eq!((arena.round.it, arena.players[&1].score as u32), (2, POINTS_PER_CATCH));
        // Not back at once.
        assert_eq!(arena.step(), None);
    }

    #[test]
    fn freedom_is_worth_a_point_a_second_and_the_best_wins() {
        let mut arena = arena(2);
        arena.players.get_mut(&1).unwrap().place = (100.0, 100.0);
        arena.players.get_mut(&2).unwrap().place = (1500.0, 800.0);
        for _ in 0..30 * STEPS_PER_SECOND + 2 {
            assert_eq!(arena.step(), None);
        }
        assert_eq!((arena.round.phase, arena.round.winner, arena.round.number), (2, 2, 1));
        assert!((29..=30).contains(&arena.data().players[&2].score), "{:?}", arena.data().players);
        for _ in 0..6 * STEPS_PER_SECOND + 2 {
            arena.step();
        }
        assert_eq!((arena.round.phase, arena.round.number, arena.data().players[&2].score), (1, 2, 0));
    }

    #[test]
    fn nobody_leaves_the_arena_or_walks_through_pillars() {
        let mut arena = arena(8);
        let mut rng = Rng::new(7);
        for step in 0..2_000_u32 {
            for id in 1..=8 {
                if step % 15 == 0 {
                    arena.steer(id, (rng.f64() as f32 * 8.0 - 4.0, rng.f64() as f32 * 8.0 - 4.0));
                }
                let before = place(&arena, id);
                assert!(before.0 >= RADIUS && before.0 <= WIDTH - RADIUS, "{before:?}");
                assert!(before.1 >= RADIUS && before.1 <= HEIGHT - RADIUS, "{before:?}");
                for (x, y, r) in PILLARS {
                    assert!((before.0 - x).hypot(before.1 - y) > r + RADIUS - 1.0, "{before:?}");
                }
            }
            arena.step();
        }
    }

    #[test]
    fn updates_add_up_to_the_room() {
        let mut arena = arena(3);
        let mut seen = arena.snapshot();
        let mut rng = Rng::new(3);
        for step in 0..300 {
            match step {
                50 => arena.leave(2),
                80 => arena.enter(9, "late", true),
                90 => arena.leave(1),
                _ => arena.steer(3, (rng.f64() as f32 * 2.0 - 1.0, 0.5)),
            }
            arena.step();
            if let Some(update) = arena.update() {
                crate::view::merge(&mut seen, update);
            }
            assert_eq!(ArenaData { rules: None, ..seen.clone() }, arena.data());
        }
        assert!(arena.contains(arena.round.it));
    }

    #[test]
    fn names_are_cut_and_never_empty() {
        let mut arena = arena(0);
        arena.enter(1, "\u{7}  ", false);
        arena.enter(2, &"é".repeat(50), false);
        let data = arena.data();
        assert_eq!(data.players[&1].name, "player 1");
        assert_eq!(data.players[&2].name.chars().count(), NAME_CHARS_MAX);
    }
}
