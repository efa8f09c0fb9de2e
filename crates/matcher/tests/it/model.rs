//! Random operations against a plain model: maps of sets, no indexes, no interning, no snapshots.

use crate::world;

use std::collections::{BTreeMap, BTreeSet};

use throng_matcher::{Config, ModeRules, OnFull};
use throng_stdx::Rng;
use throng_wire::matcher::{Event, Method, Reader, Status, Writer};
use world::{World, id_in, role, roles_in, team, to_mode, to_room};

const OPERATIONS: u64 = 200_000;
const ROLES: u64 = 60;
const SERVERS: u64 = 4;
const CAPACITY: usize = 4;
const TEAM_MAX: usize = 3;

#[derive(Default)]
struct Model {
    /// Members of live rooms, and the mode.
    rooms: BTreeMap<String, (String, Vec<String>)>,
    teams: BTreeMap<String, Vec<String>>,
    /// Revisions that each server has seen, by room or team.
    seen: BTreeMap<(String, String), u64>,
}

impl Model {
    fn room_of(&self, role: &str) -> Option<&String> {
        self.rooms
            .iter()
            .find(|(_, (_, members))| members.iter().any(|member| member == role))
            .map(|(id, _)| id)
    }

    fn team_of(&self, role: &str) -> Option<&String> {
        self.teams.iter().find(|(_, members)| members.iter().any(|member| member == role)).map(|(id, _)| id)
    }

    /// A room after an admission: gone from the living when the mode deletes full ones.
    fn admit(&mut self, room: &str, mode: &str, members: &[String]) {
        let entry = self.rooms.entry(room.to_owned()).or_insert_with(|| (mode.to_owned(), Vec::new()));
        entry.1.extend_from_slice(members);
        assert!(entry.1.len() <= CAPACITY, "{room} is over its capacity");
        if mode == "2v2" && entry.1.len() == CAPACITY {
            self.rooms.remove(room);
        }
    }
}

fn server(role: &str) -> String {
    let number: u64 = role[1..].parse().unwrap();
    format!("s{}", number % SERVERS)
}

fn pick<'a>(rng: &mut Rng, items: impl ExactSizeIterator<Item = &'a String>) -> Option<String> {
    let count = items.len() as u64;
    let mut items = items;
    if count == 0 { None } else { items.nth(rng.below(count) as usize).cloned() }
}

#[test]
fn two_hundred_thousand_operations_agree_with_the_model() {
    let rules = ModeRules { capacity: CAPACITY as u32, on_full: OnFull::Keep, ..ModeRules::default() };
    let config = Config { modes: [("keep".to_owned(), rules)].into(), ..Config::default() };
    let mut world = World::new(config.clone());
    (0..SERVERS).for_each(|server| world.session(&format!("s{server}"), true));
    let mut model = Model::default();
    let mut rng = Rng::new(7);
    for step in 0..OPERATIONS {
        let id = format!("r{}", rng.below(ROLES));
        let srv = server(&id);
        let mode = if rng.chance(0.5) { "2v2" } else { "keep" };
        match rng.below(14) {
            0..=2 => random_join(&mut world, &mut model, &id, &srv, mode),
            3 => create(&mut world, &mut model, &id, &srv, mode),
            4 | 5 => {
                let Some(room) = pick(&mut rng, model.rooms.keys()) else { continue };
                join(&mut world, &mut model, &id, &srv, &room);
            }
            6 | 7 => leave(&mut world, &mut model, &id, &srv),
            8 => {
                let Some(room) = pick(&mut rng, model.rooms.keys()) else { continue };
                let body = Writer::new().str(1, &room);
                let (status, _) = world.ask_as("", throng_matcher::Scope::Trusted, Method::DELETE_ROOM, body);
                assert_eq!(status, Status::Ok);
                model.rooms.remove(&room);
            }
            9 => create_team(&mut world, &mut model, &id, &srv),
            10 => {
                let Some(team) = pick(&mut rng, model.teams.keys()) else { continue };
                join_team(&mut world, &mut model, &id, &srv, &team);
            }
            11 => leave_team(&mut world, &mut model, &id, &srv),
            12 => {
                let Some(team) = pick(&mut rng, model.teams.keys()) else { continue };
                team_join(&mut world, &mut model, &team, &srv, mode);
            }
            _ => world.pass(rng.below(400)),
        }
        hear(&mut world, &mut model);
        if step % 5_000 == 0 {
            compare(&mut world, &model);
            // A restart in between changes nothing that anybody sees.
            let again = throng_matcher::Matcher::restore(&world.matcher.snapshot()).unwrap();
            assert_eq!(again.digest(), world.matcher.digest(), "step {step}");
            world.matcher = again;
        }
    }
    compare(&mut world, &model);
}

fn random_join(world: &mut World, model: &mut Model, id: &str, srv: &str, mode: &str) {
    let (status, answer) = world.ask(srv, Method::ROLE_JOIN_RANDOM_ROOM, to_mode(id, mode));
    let before = model.room_of(id).cloned();
    if let Some(room) = before {
        if model.rooms[&room].0 == mode {
            assert_eq!((status, id_in(&answer)), (Status::Ok, room));
        } else {
            assert_eq!(status, Status::AlreadyInRoom);
        }
        return;
    }
    assert_eq!(status, Status::Ok);
    let room = id_in(&answer);
    let created = Reader::new(&answer).unwrap().u64(2) == 1;
    let open = model.rooms.values().any(|(of, members)| of == mode && members.len() < CAPACITY);
    assert_eq!(created, !open, "a room is made exactly when none is open");
    assert_eq!(created, !model.rooms.contains_key(&room));
    if !created {
        let fullest =
            model.rooms.values().filter(|(of, m)| of == mode && m.len() < CAPACITY).map(|(_, m)| m.len());
        assert_eq!(Some(model.rooms[&room].1.len()), fullest.max());
    }
    model.admit(&room, mode, &[id.to_owned()]);
}

fn create(world: &mut World, model: &mut Model, id: &str, srv: &str, mode: &str) {
    let (status, answer) = world.ask(srv, Method::ROLE_CREATE_ROOM, to_mode(id, mode));
    if model.room_of(id).is_some() {
        assert_eq!(status, Status::AlreadyInRoom);
    } else {
        assert_eq!(status, Status::Ok);
        model.admit(&id_in(&answer), mode, &[id.to_owned()]);
    }
}

fn join(world: &mut World, model: &mut Model, id: &str, srv: &str, room: &str) {
    let (status, _) = world.ask(srv, Method::ROLE_JOIN_ROOM, to_room(id, room));
    let (mode, members) = model.rooms[room].clone();
    let wanted = match model.room_of(id) {
        Some(other) if other == room => Status::Ok,
        Some(_) => Status::AlreadyInRoom,
        None if members.len() == CAPACITY => Status::RoomFull,
        None => {
            model.admit(room, &mode, &[id.to_owned()]);
            Status::Ok
        }
    };
    assert_eq!(status, wanted);
}

fn leave(world: &mut World, model: &mut Model, id: &str, srv: &str) {
    let Some(room) = model.room_of(id).cloned() else { return };
    world.ok(srv, Method::ROLE_LEAVE_ROOM, Writer::new().str(1, id).str(2, &room));
    let members = &mut model.rooms.get_mut(&room).unwrap().1;
    members.retain(|member| member != id);
    if members.is_empty() {
        model.rooms.remove(&room);
    }
}

fn create_team(world: &mut World, model: &mut Model, id: &str, srv: &str) {
    let body = Writer::new().nested(1, role(id)).nested(2, team(TEAM_MAX as i64, ""));
    let (status, answer) = world.ask(srv, Method::CREATE_TEAM, body);
    if model.team_of(id).is_some() {
        assert_eq!(status, Status::AlreadyInTeam);
    } else {
        assert_eq!(status, Status::Ok);
        model.teams.insert(id_in(&answer), vec![id.to_owned()]);
    }
}

fn join_team(world: &mut World, model: &mut Model, id: &str, srv: &str, team: &str) {
    let status = world.join_team(srv, id, team, "");
    let wanted = match model.team_of(id) {
        Some(own) if own == team => Status::Ok,
        Some(_) => Status::AlreadyInTeam,
        None if model.teams[team].len() == TEAM_MAX => Status::TeamFull,
        None => {
            model.teams.get_mut(team).unwrap().push(id.to_owned());
            Status::Ok
        }
    };
    assert_eq!(status, wanted);
}

fn leave_team(world: &mut World, model: &mut Model, id: &str, srv: &str) {
    let Some(team) = model.team_of(id).cloned() else { return };
    world.ok(srv, Method::LEAVE_TEAM, Writer::new().str(1, id).str(2, &team));
    let members = model.teams.get_mut(&team).unwrap();
    members.retain(|member| member != id);
    if members.is_empty() {
        model.teams.remove(&team);
    }
}

/// All members go or none does, and only for a server that hosts one of them.
fn team_join(world: &mut World, model: &mut Model, team: &str, srv: &str, mode: &str) {
    let body = Writer::new().str(1, team).nested(2, Writer::new().str(1, mode));
    let (status, answer) = world.ask(srv, Method::TEAM_JOIN_RANDOM_ROOM, body);
    let members = model.teams[team].clone();
    if members.iter().all(|member| server(member) != srv) {
        assert_eq!(status, Status::Forbidden);
        return;
    }
    let rooms: BTreeSet<Option<&String>> = members.iter().map(|member| model.room_of(member)).collect();
    if let [Some(room)] = rooms.iter().collect::<Vec<_>>()[..]
        && model.rooms[*room].0 == mode
    {
        assert_eq!((status, &id_in(&answer)), (Status::Ok, *room));
    } else if rooms.iter().any(Option::is_some) {
        assert_eq!(status, Status::AlreadyInRoom);
    } else {
        assert_eq!(status, Status::Ok);
        let joined = roles_in(&answer, 4);
        assert!(members.iter().all(|member| joined.contains(member)), "a team is never split");
        model.admit(&id_in(&answer), mode, &members);
    }
}

/// Events about one object reach each server in order, and none twice.
fn hear(world: &mut World, model: &mut Model) {
    for heard in world.take_heard() {
        let object = heard.str(20);
        let rev = heard.u64(21);
        let destroys = heard.kind == Event::ROLE_LEAVE_ROOM && heard.str(22) == "room_deleted";
        let last = model.seen.entry((heard.server.clone(), object)).or_default();
        assert!(rev > *last || destroys && rev == *last, "{heard:?} after {last}");
        *last = rev;
        assert!(heard.roles.iter().all(|role| server(role) == heard.server), "{heard:?}");
    }
}

fn compare(world: &mut World, model: &Model) {
    for (id, (mode, members)) in &model.rooms {
        let (status, answer) = world.room(id);
        assert_eq!(status, Status::Ok);
        assert_eq!(&roles_in(&answer, 4), members);
        assert_eq!(Reader::new(&answer).unwrap().nested(1).unwrap().str(3), Ok(mode.as_str()));
    }
    for (id, members) in &model.teams {
        let answer = world.ok("s0", Method::GET_TEAM_INFO, Writer::new().str(1, id));
        assert_eq!(&roles_in(&answer, 5), members);
    }
    assert_eq!(world.matcher.counts().teams, model.teams.len());
    for mode in ["2v2", "keep"] {
        let answer = world.ok("s0", Method::GET_ROOM_LIST, Writer::new().str(1, mode));
        let listed: BTreeSet<String> =
            Reader::new(&answer).unwrap().all(1).map(|id| String::from_utf8(id.to_vec()).unwrap()).collect();
        let wanted: BTreeSet<String> =
            model.rooms.iter().filter(|(_, (of, _))| of == mode).map(|(id, _)| id.clone()).collect();
        assert_eq!(listed, wanted);
    }
}
