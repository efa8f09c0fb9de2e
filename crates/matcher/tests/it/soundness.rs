//! D.5-1: every match holds every hard rule with the values of its tick, by a check of its own, for
//! random rule sets.

use crate::world;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use throng_matcher::Config;
use throng_stdx::Rng;
use throng_wire::matcher::{Event, Reader, Status};
use world::{World, player};

/// Time when limits relax, after which wait.
const RELAXED_MS: u64 = 3_000;

#[derive(Clone, Debug)]
struct Ticket {
    created: u64,
    players: Vec<(String, f64, f64, &'static str, bool)>,
}

/// Limits before and after they relax.
struct Limits {
    clock: &'static str,
    near: [f64; 2],
    near_other: [f64; 2],
    spread: [f64; 2],
    balance: [f64; 2],
    least: [usize; 2],
    most: usize,
    total: f64,
    healers: usize,
    policy: &'static str,
}

impl Limits {
    fn random(rng: &mut Rng) -> Limits {
        let mut pair = |least: u64, more: u64| {
            let first = (least + rng.below(more)) as f64;
            [first, first + rng.below(more) as f64]
        };
        let (near, near_other, spread, balance) = (pair(2, 8), pair(3, 9), pair(4, 8), pair(1, 4));
        let most = 1 + rng.below(4) as usize;
        let min = 1 + rng.below(most as u64) as usize;
        Limits {
            clock: ["each", "oldest", "newest"][rng.below(3) as usize],
            near,
            near_other,
            spread,
            balance,
            least: [min, 1 + rng.below(min as u64) as usize],
            most,
            total: (8 + rng.below(12)) as f64 * most as f64,
            healers: 1 + rng.below(2) as usize,
            policy: ["any", "same_size", "large_vs_large"][rng.below(3) as usize],
        }
    }

    fn rules(&self) -> Value {
        let step =
            |target: &str, value: Value| json!({"target": target, "steps": [{"after_s": 3, "value": value}]});
        json!({
            "name": "q", "timeout_s": 60, "expand_clock": self.clock, "seat_ttl_s": 1,
            "sides": [{"name": "side", "count": 2, "min": self.least[0], "max": self.most}],
            "party": {"policy": self.policy, "skill": "max"},
            "attributes": {"a": {"type": "number"}, "b": {"type": "number"}, "lang": {"type": "string"},
                           "kind": {"type": "string_list"}},
            "partition": ["lang"],
            "rules": [{"name": "near", "type": "near", "key": "a", "max": self.near[0]},
                      {"name": "other", "type": "near", "key": "b", "max": self.near_other[0]},
                      {"name": "spread", "type": "spread", "key": "b", "max": self.spread[0], "of": "side"},
                      {"name": "fair", "type": "balance", "key": "a", "agg": "mean", "max": self.balance[0]},
                      {"type": "total", "key": "a", "max": self.total, "of": "side"},
                      {"type": "contains", "key": "kind", "value": "healer", "max": self.healers, "of": "side"}],
            "expand": [step("rules.near.max", json!(self.near[1])), step("rules.other.max", json!(self.near_other[1])),
                       step("rules.spread.max", json!(self.spread[1])), step("rules.fair.max", json!(self.balance[1])),
                       step("sides.side.min", json!(self.least[1])), step("partition", json!([]))]
        })
    }

    /// What is wrong with a match, by the text of the specification.
    fn check(&self, now: u64, sides: &[Vec<&Ticket>]) -> Vec<String> {
        let all: Vec<&Ticket> = sides.iter().flatten().copied().collect();
        let level = |ticket: &Ticket| usize::from(now - ticket.created >= RELAXED_MS);
        let levels = || all.iter().map(|ticket| level(ticket));
        let whole = match self.clock {
            "oldest" => levels().max().unwrap(),
            _ => levels().min().unwrap(),
        };
        let party = |ticket: &Ticket, of: fn(&(String, f64, f64, &'static str, bool)) -> f64| {
            ticket.players.iter().map(of).fold(f64::NEG_INFINITY, f64::max)
        };
        let mut wrong = Vec::new();
        let mut must = |holds: bool, what: &str| {
            if !holds {
                wrong.push(what.to_owned());
            }
        };
        for (at, one) in all.iter().enumerate() {
            for two in &all[at + 1..] {
                let pair = if self.clock == "each" { level(one).min(level(two)) } else { whole };
                must((party(one, |p| p.1) - party(two, |p| p.1)).abs() <= self.near[pair], "near");
                must(
                    (party(one, |p| p.2) - party(two, |p| p.2)).abs() <= self.near_other[pair],
                    "near, other",
                );
            }
        }
        let languages: BTreeSet<&str> = all.iter().flat_map(|t| &t.players).map(|p| p.3).collect();
        must(whole == 1 || languages.len() == 1, "partition");
        let mut means = Vec::new();
        for side in sides {
            let players = || side.iter().flat_map(|ticket| &ticket.players);
            let count = players().count();
            must((self.least[whole]..=self.most).contains(&count), "size");
            let values = || side.iter().map(|ticket| party(ticket, |p| p.2));
            let wide = values().fold(f64::NEG_INFINITY, f64::max) - values().fold(f64::INFINITY, f64::min);
            must(wide <= self.spread[whole], "spread");
            must(players().map(|p| p.1).sum::<f64>() <= self.total, "total");
            must(players().filter(|p| p.4).count() <= self.healers, "contains");
            let sum: f64 = side.iter().map(|t| party(t, |p| p.1) * t.players.len() as f64).sum();
            means.push(sum / count as f64);
        }
        must((means[0] - means[1]).abs() <= self.balance[whole] + 1e-9, "balance");
        let sizes = |side: &Vec<&Ticket>| {
            let mut sizes: Vec<usize> = side.iter().map(|ticket| ticket.players.len()).collect();
            sizes.sort_unstable();
            sizes
        };
        let has_large = |side: &Vec<&Ticket>| side.iter().any(|ticket| 2 * ticket.players.len() >= self.most);
        match self.policy {
            "same_size" => must(sizes(&sides[0]) == sizes(&sides[1]), "same_size"),
            "large_vs_large" => must(has_large(&sides[0]) == has_large(&sides[1]), "large_vs_large"),
            _ => {}
        }
        wrong
    }
}

#[test]
fn every_match_holds_every_rule() {
    let mut matches = 0;
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let limits = Limits::random(&mut rng);
        let mut world = World::new(Config::default());
        let rules = limits.rules();
        let (status, answer) = world.put_queue(&rules.to_string());
        assert_eq!(status, Status::Ok, "{rules}: {}", String::from_utf8_lossy(&answer));
        let (mut of_player, mut tickets, mut seated) = (BTreeMap::new(), Vec::new(), BTreeSet::new());
        for _ in 0..40 {
            for _ in 0..rng.below(6) {
                let size = (1 + rng.below(3)).min(limits.most as u64);
                let players: Vec<_> = (0..size)
                    .map(|_| {
                        let id = format!("r{}", of_player.len());
                        of_player.insert(id.clone(), tickets.len());
                        let lang = ["en", "fr"][usize::from(rng.chance(0.2))];
                        (id, rng.below(20) as f64, rng.below(20) as f64, lang, rng.chance(0.3))
                    })
                    .collect();
                let bodies = players.iter().map(|(id, a, b, lang, heals)| {
                    let kind = if *heals { r#"["healer","tank"]"# } else { r#"["tank"]"# };
                    let lang = format!("\"{lang}\"");
                    player(
                        id,
                        &[("a", &a.to_string()), ("b", &b.to_string()), ("lang", &lang), ("kind", kind)],
                    )
                });
                let (status, _) = world.try_ticket("s", "q", bodies.collect());
                assert_eq!(status, Status::Ok);
                tickets.push(Ticket { created: world.now, players });
            }
            world.pass(250);
            let mut rooms: Vec<String> =
                world.take_kind(Event::MATCH_READY).iter().map(|heard| heard.str(20)).collect();
            rooms.dedup();
            for room in rooms {
                let info = world.room(&room).1;
                let info = Reader::new(&info).unwrap().nested(1).unwrap();
                let mut sides: Vec<Vec<&Ticket>> = Vec::new();
                for side in info.all(10).map(|side| Reader::new(side).unwrap()) {
                    let ids: Vec<&str> = side.all(2).map(|id| std::str::from_utf8(id).unwrap()).collect();
                    let own: BTreeSet<usize> = ids.iter().map(|id| of_player[*id]).collect();
                    let whole: usize = own.iter().map(|ticket| tickets[*ticket].players.len()).sum();
                    assert_eq!(whole, ids.len(), "seed {seed}: no party is split");
                    assert!(ids.iter().all(|id| seated.insert((*id).to_owned())), "seed {seed}: twice");
                    sides.push(own.iter().map(|ticket| &tickets[*ticket]).collect());
                }
                let wrong = limits.check(world.now, &sides);
                assert!(wrong.is_empty(), "seed {seed}: {wrong:?} in {sides:?} under {rules}");
                matches += 1;
            }
        }
    }
    assert!(matches > 300, "{matches} matches");
}
