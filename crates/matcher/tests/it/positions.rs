//! D.8: what tickets are told of how many are ahead of them.

use crate::world;

use std::collections::BTreeMap;

use throng_matcher::{Config, Scope};
use throng_stdx::Rng;
use throng_wire::matcher::{Event, Method, Reader, Status, Writer};
use world::{Heard, World, player, shown};

/// Nobody meets anybody: values are too far from each other.
const RULES: &str = r#"{"name": "q", "timeout_s": 3000, "sides": [{"name": "side", "count": 2, "min": 1, "max": 1}],
    "attributes": {"n": {"type": "number"}, "t": {"type": "string"}}, "partition": ["t"],
    "rules": [{"type": "near", "key": "n", "max": 0.5}]}"#;

/// A waiting ticket: its part of the pool, then its place in the order of fairness.
type Place = (u64, i64, u64, String);

fn come(world: &mut World, rng: &mut Rng, number: usize) -> Place {
    let (part, priority) = (rng.below(2), [0, 0, 0, 5][rng.below(4) as usize]);
    let attrs = [("n", number.to_string()), ("t", format!("\"{part}\""))];
    let attrs = attrs.each_ref().map(|(key, json)| (*key, json.as_str()));
    let body =
        Writer::new().str(1, "q").nested(2, player(&format!("r{number}"), &attrs)).u64(5, priority * 2);
    let (status, answer) = world.ask_as("s", Scope::Trusted, Method::CREATE_TICKET, body);
    assert_eq!(status, Status::Ok);
    (part, -(priority as i64), world.now, shown(&answer).id)
}

/// Positions by ticket, of the news of some time.
fn told(heard: &[Heard]) -> BTreeMap<String, u64> {
    let news = heard.iter().filter(|heard| heard.kind == Event::TICKET_UPDATE);
    news.map(|heard| {
        let ticket = Reader::new(&heard.body).unwrap().nested(1).unwrap();
        (ticket.str(1).unwrap().to_owned(), ticket.u64(17))
    })
    .collect()
}

#[test]
fn everybody_is_told_how_many_of_their_part_are_ahead() {
    let (mut world, mut rng) = (World::new(Config::default()), Rng::new(8));
    assert_eq!(world.put_queue(RULES).0, Status::Ok);
    let mut waiting: Vec<Place> = (0..3_000).map(|number| come(&mut world, &mut rng, number)).collect();
    waiting.retain(|(.., id)| {
        let stays = rng.chance(0.5);
        assert!(stays || world.cancel("s", id) == Status::Ok);
        stays
    });
    // Whose numbers are taken again by those that come later.
    world.pass(61_000);
    for number in 3_000..6_000 {
        world.pass(rng.below(2));
        waiting.push(come(&mut world, &mut rng, number));
    }
    waiting.sort();
    world.take_heard();
    world.pass(6_000);
    let told = told(&world.take_heard());
    assert_eq!(told.len(), waiting.len(), "everybody is told");
    for part in 0..2 {
        let own = waiting.iter().filter(|(of, ..)| *of == part);
        for (position, (.., id)) in own.enumerate() {
            assert_eq!(told[id], position as u64, "{id} of part {part}");
        }
    }
}
