//! A player's view: the merged data, and the steering of a simulated player.

use throng_stdx::Rng;

use crate::arena::{PILLARS, RADIUS};
use crate::messages::ArenaData;

/// Merges an update as the gateway does: entries replace entries, and `removed` deletes them.
pub(crate) fn merge(data: &mut ArenaData, update: ArenaData) {
    for (id, player) in update.players {
        match player.removed {
            true => data.players.remove(&id),
            false => data.players.insert(id, player),
        };
    }
    for (id, body) in update.bodies {
        match body.removed {
            true => data.bodies.remove(&id),
            false => data.bodies.insert(id, body),
        };
    }
    data.round = update.round.or(data.round);
    data.rules = update.rules.or(data.rules.take());
}

/// Distance at which a simulated player notices the one who is it.
const SIGHT: f32 = 380.0;

/// Returns the direction of player `me`: towards the nearest player if `me` is it, otherwise away
/// from the player who is. `mood` is a random direction that changes occasionally.
pub(crate) fn steer(data: &ArenaData, me: u32, mood: &mut f32, rng: &mut Rng) -> (f32, f32) {
    let place = |id: u32| {
        data.bodies.get(&id).map(|body| {
            let ahead = 0.15;
            let at = |place: i32, speed: i32| (place as f32 + speed as f32 * ahead) / 4.0;
            (at(body.x, body.vx), at(body.y, body.vy))
        })
    };
    let (Some(mine), Some(round)) = (place(me), data.round) else { return (0.0, 0.0) };
    let towards = |to: (f32, f32)| {
        let (dx, dy) = (to.0 - mine.0, to.1 - mine.1);
        let far = dx.hypot(dy).max(1.0);
        (dx / far, dy / far, far)
    };
    if rng.chance(0.05) {
        *mood += (rng.f64() as f32 - 0.5) * 3.0;
    }
    let mut wish = (mood.cos() * 0.6, mood.sin() * 0.6);
    if round.it == me {
        let others = data.bodies.keys().filter(|&&id| id != me).filter_map(|&id| place(id));
        if let Some((x, y, _)) = others.map(towards).min_by(|a, b| a.2.total_cmp(&b.2)) {
            wish = (x, y);
        }
    } else if let Some((x, y, far)) = place(round.it).map(towards)
        && far < SIGHT
    {
        // The nearer, the more of everything; sideways a little, or corners become traps.
        let fear = 2.5 * (1.0 - far / SIGHT) + 0.4;
        wish = (wish.0 - x * fear + y * 0.3, wish.1 - y * fear - x * 0.3);
    }
    for (x, y, radius) in PILLARS {
        let (x, y, far) = towards((x, y));
        let gap = far - radius - RADIUS;
        if gap < 50.0 {
            let push = 1.0 - gap.max(0.0) / 50.0;
            // Around rather than away.
            wish = (wish.0 - x * push - y * push, wish.1 - y * push + x * push);
        }
    }
    if let Some(rules) = &data.rules {
        let edge = |at: f32, end: u32| {
            let (near, far) = (at, end as f32 - at);
            if near < 90.0 {
                1.4 * (1.0 - near / 90.0)
            } else if far < 90.0 {
                -1.4 * (1.0 - far / 90.0)
            } else {
                0.0
            }
        };
        let (x, y) = (edge(mine.0, rules.width), edge(mine.1, rules.height));
        wish = (wish.0 + x, wish.1 + y);
        // Corners are no place to stay in.
        if x != 0.0 || y != 0.0 {
            *mood = (rules.height as f32 / 2.0 - mine.1).atan2(rules.width as f32 / 2.0 - mine.0);
        }
    }
    let length = wish.0.hypot(wish.1).max(0.001);
    if length > 1.0 { (wish.0 / length, wish.1 / length) } else { wish }
}
