//! Random operations on tickets against a plain model: what every player may do, and whether every
//! match is sound.

use crate::world;

use std::collections::{BTreeMap, BTreeSet};

use throng_matcher::{Config, Matcher};
use throng_stdx::Rng;
use throng_wire::matcher::{Event, Method, Status, Writer};
use world::{Heard, World, player, shown};

const OPERATIONS: u64 = 200_000;
const ROLES: u64 = 60;
const SERVERS: u64 = 4;
const COOLDOWN_MS: u64 = 3_000;
const TIMEOUT_MS: u64 = 30_000;
const TICK_MS: u64 = 250;

/// Queues: name, players of a side, whether players are asked.
const QUEUES: [(&str, usize, bool); 3] = [("duel", 1, true), ("pairs", 2, false), ("trios", 3, false)];

fn rules((name, side, asks): (&str, usize, bool)) -> String {
    let accept = if asks {
        r#""accept": {"required": true, "timeout_s": 2, "cooldown_s": 3, "on_silence": "requeue"},"#
    } else {
        ""
    };
    format!(
        r#"{{"name": "{name}", "timeout_s": 30, "seat_ttl_s": 4, {accept}
        "sides": [{{"name": "side", "count": 2, "min": {side}, "max": {side}}}],
        "attributes": {{"skill": {{"type": "number", "default": 0}}, "mode": {{"type": "string", "default": ""}}}},
        "partition": ["mode"],
        "rules": [{{"name": "near", "type": "near", "key": "skill", "max": 5}},
                  {{"name": "fair", "type": "balance", "key": "skill", "max": 6}},
                  {{"name": "foes", "type": "avoid"}}],
        "expand": [{{"target": "rules.near.max", "steps": [{{"after_s": 5, "value": 40}}]}}]}}"#
    )
}

/// Roles by side.
type Sides = BTreeMap<String, BTreeSet<String>>;

#[derive(Clone, Debug)]
struct Ticket {
    queue: &'static str,
    players: Vec<String>,
    skill: f64,
    mode: &'static str,
    created: u64,
    avoid: String,
    state: String,
    matched: String,
}

#[derive(Default)]
struct Model {
    live: BTreeMap<String, Ticket>,
    /// Role to room and end of the seat.
    seats: BTreeMap<String, (String, u64)>,
    rooms: BTreeMap<String, String>,
    cooldown: BTreeMap<String, u64>,
    /// What happened how often.
    counts: BTreeMap<String, u64>,
}

impl Model {
    fn count(&mut self, what: &str) {
        *self.counts.entry(what.to_owned()).or_default() += 1;
    }

    fn tickets_of(&self, role: &str) -> Vec<(&String, &Ticket)> {
        self.live.iter().filter(|(_, ticket)| ticket.players.iter().any(|player| player == role)).collect()
    }
}

fn server(role: &str) -> String {
    let number: u64 = role[1..].parse().unwrap();
    format!("s{}", number % SERVERS)
}

#[test]
fn two_hundred_thousand_ticket_operations_agree_with_the_model() {
    let mut world = World::new(Config::default());
    for queue in QUEUES {
        assert_eq!(world.put_queue(&rules(queue)).0, Status::Ok);
    }
    let (mut model, mut rng) = (Model::default(), Rng::new(11));
    for step in 0..OPERATIONS {
        match rng.below(16) {
            0..=5 => create(&mut world, &mut model, &mut rng),
            6 => cancel(&mut world, &mut model, &mut rng),
            7..=9 => answer(&mut world, &mut model, &mut rng),
            10 | 11 => claim(&mut world, &mut model, &mut rng),
            12 => leave(&mut world, &mut model, &mut rng),
            13 if rng.chance(0.02) => lose_server(&mut world, &mut model, &mut rng),
            _ => {
                let ms = rng.below(400);
                world.pass(ms);
            }
        }
        hear(&mut world, &mut model);
        if step % 2_000 == 0 {
            compare(&mut world, &model, step);
            let again = Matcher::restore(&world.matcher.snapshot()).unwrap();
            assert_eq!(again.digest(), world.matcher.digest(), "step {step}");
            world.matcher = again;
        }
    }
    for what in [
        "matched duel",
        "matched pairs",
        "matched trios",
        "declined",
        "timed_out",
        "matched_elsewhere",
        "relaxed",
        "party",
        "claimed",
        "seat expired",
        "COOLDOWN",
        "ALREADY_IN_QUEUE",
        "disconnected",
    ] {
        assert!(
            model.counts.get(what).is_some_and(|count| *count > 20),
            "{what} happened rarely: {:?}",
            model.counts
        );
    }
}

fn create(world: &mut World, model: &mut Model, rng: &mut Rng) {
    let (queue, side, _) = QUEUES[rng.below(3) as usize];
    let home = rng.below(SERVERS);
    let size = 1 + rng.below(side as u64) as usize;
    let mut roles = BTreeSet::new();
    while roles.len() < size {
        roles.insert(format!("r{}", home + SERVERS * rng.below(ROLES / SERVERS)));
    }
    let roles: Vec<String> = roles.into_iter().collect();
    let skill = rng.below(100) as f64;
    let mode = if rng.chance(0.8) { "" } else { "hard" };
    let avoid = format!("r{}", rng.below(ROLES));
    let text = skill.to_string();
    let mode_json = format!("\"{mode}\"");
    let players = roles
        .iter()
        .map(|role| player(role, &[("skill", &text), ("mode", &mode_json)]).str(6, &avoid))
        .collect();
    let (status, answer) = world.try_ticket(&format!("s{home}"), queue, players);
    let wanted = roles.iter().find_map(|role| {
        let tickets = model.tickets_of(role);
        if model.cooldown.get(role).is_some_and(|until| *until > world.now) {
            Some(Status::Cooldown)
        } else if tickets.len() >= 3 || tickets.iter().any(|(_, ticket)| ticket.queue == queue) {
            Some(Status::AlreadyInQueue)
        } else {
            model.rooms.contains_key(role).then_some(Status::AlreadyInRoom)
        }
    });
    let wanted = wanted.unwrap_or(if roles.contains(&avoid) && size > 1 { status } else { Status::Ok });
    assert_eq!(status, wanted, "{roles:?} in {queue}");
    model.count(status.name());
    if status == Status::Ok {
        let created = world.now;
        let state = "searching".to_owned();
        let ticket =
            Ticket { queue, players: roles, skill, mode, created, avoid, state, matched: String::new() };
        model.live.insert(shown(&answer).id, ticket);
    }
}

fn any_ticket(model: &Model, rng: &mut Rng, state: &str) -> Option<(String, Ticket)> {
    let some: Vec<&String> = model
        .live
        .iter()
        .filter(|(_, ticket)| state.is_empty() || ticket.state == state)
        .map(|(id, _)| id)
        .collect();
    let id = some.get(rng.below(some.len().max(1) as u64) as usize)?;
    Some(((*id).clone(), model.live[*id].clone()))
}

fn cancel(world: &mut World, model: &mut Model, rng: &mut Rng) {
    let Some((id, ticket)) = any_ticket(model, rng, "") else { return };
    let srv = server(&ticket.players[0]);
    assert_eq!(world.cancel("elsewhere", &id), Status::Forbidden);
    assert_eq!(world.cancel(&srv, &id), Status::Ok);
    assert_eq!(world.cancel(&srv, &id), Status::Ok, "twice is once");
    if ticket.state == "proposed" {
        for role in &ticket.players {
            model.cooldown.insert(role.clone(), world.now + COOLDOWN_MS);
        }
    }
}

fn answer(world: &mut World, model: &mut Model, rng: &mut Rng) {
    let Some((id, ticket)) = any_ticket(model, rng, "proposed") else { return };
    let role = &ticket.players[rng.below(ticket.players.len() as u64) as usize];
    let yes = rng.chance(0.85);
    let body = Writer::new().str(1, &ticket.matched).str(2, &id).str(3, role).u64(4, u64::from(yes));
    let (status, _) = world.ask(&server(role), Method::ACCEPT_MATCH, body);
    assert_eq!(status, Status::Ok);
    if !yes {
        model.cooldown.insert(role.clone(), world.now + COOLDOWN_MS);
        model.count("declined");
    }
}

fn claim(world: &mut World, model: &mut Model, rng: &mut Rng) {
    let Some((role, (room, until))) = pick(&model.seats, rng) else { return };
    let body = Writer::new().str(1, &room).str(2, &role);
    let (status, _) = world.ask(&server(&role), Method::CLAIM_SEAT, body);
    model.seats.remove(&role);
    if until <= world.now {
        assert!(matches!(status, Status::SeatExpired | Status::NotFound), "{status:?}");
        model.count("seat expired");
        return;
    }
    let wanted = if model.rooms.contains_key(&role) { Status::AlreadyInRoom } else { Status::Ok };
    assert_eq!(status, wanted);
    if status == Status::Ok {
        model.rooms.insert(role, room);
        model.count("claimed");
    }
}

fn leave(world: &mut World, model: &mut Model, rng: &mut Rng) {
    let Some((role, room)) = pick(&model.rooms, rng) else { return };
    world.ok(&server(&role), Method::ROLE_LEAVE_ROOM, Writer::new().str(1, &role).str(2, &room));
    model.rooms.remove(&role);
}

fn pick<T: Clone>(map: &BTreeMap<String, T>, rng: &mut Rng) -> Option<(String, T)> {
    let at = rng.below(map.len().max(1) as u64) as usize;
    map.iter().nth(at).map(|(key, value)| (key.clone(), value.clone()))
}

/// A server is gone for longer than its grace: its players leave everything, their tickets end.
fn lose_server(world: &mut World, model: &mut Model, rng: &mut Rng) {
    let srv = format!("s{}", rng.below(SERVERS));
    world.session(&srv, true);
    world.session(&srv, false);
    world.pass(10_000);
    hear(world, model);
    for (id, ticket) in model.live.clone() {
        assert!(ticket.players.iter().all(|role| server(role) != srv), "{id} {ticket:?}");
    }
    model.rooms.retain(|role, _| server(role) != srv);
    // Seats outlast the connection.
    world.session(&srv, true);
}

fn hear(world: &mut World, model: &mut Model) {
    let heard = world.take_heard();
    let mut ready: BTreeMap<(String, u64, String), Sides> = BTreeMap::new();
    for heard in &heard {
        // A lost server is forgotten with its last role; what is said to it then nobody hears.
        let known = heard.server != "?";
        assert!(!known || heard.roles.iter().all(|role| server(role) == heard.server), "{heard:?}");
        match heard.kind {
            Event::MATCH_PROPOSED => proposed(world, model, heard),
            Event::TICKET_UPDATE => updated(world, model, heard),
            Event::MATCH_READY => {
                let sides = ready.entry((heard.str(20), heard.u64(6), heard.str(7))).or_default();
                sides.entry(heard.str(3)).or_default().extend(heard.roles.iter().cloned());
            }
            _ => {}
        }
    }
    for ((room, until, queue), sides) in ready {
        made(world, model, &queue, (room, until), &sides);
    }
}

fn proposed(world: &World, model: &mut Model, heard: &Heard) {
    let id = heard.str(4);
    if world.matcher.counts().tickets == 0 {
        return;
    }
    if let Some(ticket) = model.live.get_mut(&id) {
        assert_eq!(ticket.state, "searching", "a ticket is in one proposal at most");
        (ticket.state, ticket.matched) = ("proposed".to_owned(), heard.str(1));
    }
}

fn updated(world: &World, model: &mut Model, heard: &Heard) {
    let now = shown(&heard.body);
    let Some(ticket) = model.live.get_mut(&now.id) else {
        panic!("{now:?} is told of again after its end");
    };
    match now.status.as_str() {
        "searching" | "proposed" => {
            ticket.state = now.status;
            return;
        }
        "timed_out" => assert!(world.now >= ticket.created + TIMEOUT_MS),
        "cancelled" => {}
        other => panic!("{other}"),
    }
    model.live.remove(&now.id);
    model.count(if now.status == "timed_out" { "timed_out" } else { &now.reason });
}

/// Every match is sound: whole parties, full sides, near enough for how long each has waited,
/// nobody twice.
fn made(world: &mut World, model: &mut Model, mode: &str, seat: (String, u64), sides: &Sides) {
    let (queue, size, _) = QUEUES.into_iter().find(|(name, ..)| *name == mode).unwrap();
    assert_eq!(sides.len(), 2);
    let mut tickets: Vec<(String, Ticket)> = Vec::new();
    for roles in sides.values() {
        assert_eq!(roles.len(), size, "{queue}: {sides:?}");
        for role in roles {
            let own = model.tickets_of(role).into_iter().find(|(_, ticket)| ticket.queue == queue);
            let (id, ticket) = own.map(|(id, ticket)| (id.clone(), ticket.clone())).unwrap();
            assert!(ticket.players.iter().all(|other| roles.contains(other)), "a party is split");
            if !tickets.iter().any(|(known, _)| *known == id) {
                tickets.push((id, ticket));
            }
        }
    }
    let limit = |ticket: &Ticket| -> f64 { if world.now - ticket.created >= 5_000 { 40.0 } else { 5.0 } };
    for (_, a) in &tickets {
        for (_, b) in &tickets {
            let far = (a.skill - b.skill).abs();
            assert!(far <= limit(a).min(limit(b)), "{far} apart: {a:?} {b:?}");
            assert_eq!(a.mode, b.mode);
            assert!(!b.players.contains(&a.avoid) || tickets.len() == 1, "{a:?} avoids {b:?}");
        }
    }
    if tickets.iter().any(|(_, a)| tickets.iter().any(|(_, b)| (a.skill - b.skill).abs() > 5.0)) {
        model.count("relaxed");
    }
    if tickets.iter().any(|(_, ticket)| ticket.players.len() > 1) {
        model.count("party");
    }
    model.count(&format!("matched {queue}"));
    for (id, ticket) in tickets {
        model.live.remove(&id);
        for role in ticket.players {
            model.seats.insert(role, seat.clone());
        }
    }
}

fn compare(world: &mut World, model: &Model, step: u64) {
    assert_eq!(world.matcher.counts().tickets, model.live.len(), "step {step}");
    for (id, ticket) in &model.live {
        let seen = world.get_ticket(id);
        assert_eq!(seen.status, ticket.state, "step {step}: {ticket:?}");
        let late = world.now > ticket.created + TIMEOUT_MS + 2 * TICK_MS;
        assert!(!late || ticket.state == "proposed", "step {step}: {ticket:?} should have ended");
    }
    for (role, room) in &model.rooms {
        let info = world.room(room).1;
        assert!(world::roles_in(&info, 4).contains(role), "step {step}");
    }
}
