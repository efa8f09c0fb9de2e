//! Listings come in pages that fit into a frame, and their pages together are the whole.

use crate::world;

use throng_matcher::{Config, ModeRules, OnFull, Scope};
use throng_wire::matcher::{METHODS, Method, Reader, Status, Type, Writer};
use world::{World, player};

/// Numbers of the fields of a listing: `Token`, the items, `Next`.
struct Fields {
    token: u32,
    items: u32,
    next: u32,
}

/// The items of all pages, and how many pages there are.
fn all_pages(world: &mut World, method: u16, ask: &Writer, fields: &Fields) -> (Vec<Vec<u8>>, usize) {
    let (mut items, mut from, mut count) = (Vec::new(), String::new(), 0);
    loop {
        let body = ask.clone().str(fields.token, &from);
        let (status, page) = world.ask_as("s", Scope::Admin, method, body);
        assert_eq!(status, Status::Ok);
        assert!(page.len() < 1 << 20, "{} bytes", page.len());
        let page = Reader::new(&page).unwrap();
        items.extend(page.all(fields.items).map(<[u8]>::to_vec));
        count += 1;
        from = page.str(fields.next).unwrap().to_owned();
        if from.is_empty() {
            return (items, count);
        }
    }
}

fn id_of(item: &[u8]) -> String {
    Reader::new(item).unwrap().str(1).unwrap().to_owned()
}

/// Rooms of 128 KB each that `a` is in, the oldest first.
fn with_rooms() -> (World, Vec<String>) {
    let hall = ModeRules { capacity: 40, on_full: OnFull::Keep, exclusive: false, ..ModeRules::default() };
    let mut world = World::new(Config { modes: [("hall".to_owned(), hall)].into(), ..Config::default() });
    let value = format!("\"{}\"", "x".repeat(16_000));
    let mut made = Vec::new();
    for _ in 0..30 {
        let room = world.create_room("s", "a", "hall");
        for key in 0..8 {
            let body = Writer::new().str(1, &room).str(2, &format!("k{key}")).str(3, &value);
            world.ok("s", Method::SET_ROOM_DATA, body);
        }
        made.push(room);
        world.pass(1);
    }
    (world, made)
}

#[test]
fn the_rooms_of_a_role_and_rooms_by_id_come_in_pages_below_a_frame() {
    let (mut world, mut made) = with_rooms();
    let by_id = made.iter().fold(Writer::new(), |ask, id| ask.str(1, id));
    for (method, ask, fields) in [
        (Method::GET_ROLE, Writer::new().str(1, "a"), Fields { token: 2, items: 3, next: 6 }),
        (Method::GET_ROOM_INFOS, by_id, Fields { token: 2, items: 1, next: 2 }),
    ] {
        let (rooms, pages) = all_pages(&mut world, method, &ask, &fields);
        let mut seen: Vec<String> = rooms.iter().map(|room| id_of(room)).collect();
        seen.sort_unstable();
        made.sort_unstable();
        assert_eq!((&seen, pages > 3), (&made, true), "method {method}");
    }
}

#[test]
fn listed_rooms_come_in_pages_below_a_frame_and_in_their_order() {
    let (mut world, made) = with_rooms();
    let newest_first: Vec<String> = made.iter().rev().cloned().collect();
    let other = world.create_room("s", "a", "2v2");
    for (sort, wanted) in [("", &made), ("CreateTime", &made), ("-CreateTime", &newest_first)] {
        let ask = Writer::new().str(1, "hall").str(1, "no such mode").str(1, "2v2").str(3, sort);
        let fields = Fields { token: 5, items: 1, next: 2 };
        let (modes, pages) = all_pages(&mut world, Method::LIST_ROOMS, &ask, &fields);
        let mut seen = Vec::new();
        for mode in &modes {
            let mode = Reader::new(mode).unwrap();
            assert!(mode.all(2).count() > 0, "a mode without rooms is left out");
            seen.extend(mode.all(2).map(|room| (mode.str(1).unwrap().to_owned(), id_of(room))));
        }
        let hall = wanted.iter().map(|room| ("hall".to_owned(), room.clone()));
        let wanted: Vec<_> = hall.chain([("2v2".to_owned(), other.clone())]).collect();
        assert_eq!((seen, pages > 3), (wanted, true), "{sort}");
    }
}

#[test]
fn sorted_rooms_come_once_each_while_others_are_deleted() {
    let hall = ModeRules { capacity: 4, on_full: OnFull::Keep, ..ModeRules::default() };
    let mut world = World::new(Config { modes: [("hall".to_owned(), hall)].into(), ..Config::default() });
    let mut made = Vec::new();
    for number in 0..130 {
        let room = world.create_room("s", &format!("r{number}"), "hall");
        // Numbers, texts of which the first bytes are alike, and nothing.
        let value = match number % 3 {
            0 => (number * 37 % 130).to_string(),
            1 => format!("\"{}{number}\"", "long".repeat(20 * (number % 2))),
            _ => "null".to_owned(),
        };
        world.ok("s", Method::SET_ROOM_DATA, Writer::new().str(1, &room).str(2, "i").str(3, &value));
        made.push(room);
    }
    for sort in ["Data.i", "-Data.i"] {
        let ask = |world: &mut World, token: &str| {
            let body = Writer::new().str(1, "hall").str(1, "hall").str(3, sort).u64(4, 7).str(5, token);
            let (status, page) = world.ask_as("s", Scope::Admin, Method::LIST_ROOMS, body);
            assert_eq!(status, Status::Ok);
            let page = Reader::new(&page).unwrap();
            let modes = page.all(1).map(|mode| Reader::new(mode).unwrap());
            let rooms: Vec<String> =
                modes.flat_map(|mode| mode.all(2).map(id_of).collect::<Vec<_>>()).collect();
            (rooms, page.str(2).unwrap().to_owned())
        };
        let (mut seen, mut token) = ask(&mut world, "");
        // Rooms that were listed go; the others are listed all the same.
        let (gone, left) = (seen[..5].to_vec(), seen[5..].to_vec());
        for room in &gone {
            let body = Writer::new().str(1, room);
            assert_eq!(world.ask_as("s", Scope::Admin, Method::DELETE_ROOM, body).0, Status::Ok);
        }
        seen = left;
        made.retain(|room| !gone.contains(room));
        while !token.is_empty() {
            let (rooms, next) = ask(&mut world, &token);
            assert!(rooms.len() <= 7, "{} rooms", rooms.len());
            seen.extend(rooms);
            token = next;
        }
        seen.sort_unstable();
        made.sort_unstable();
        assert_eq!(seen, made, "{sort}");
    }
}

#[test]
fn rooms_are_filtered_by_the_time_of_creation_as_it_is_shown() {
    let (mut world, made) = with_rooms();
    let rooms = |world: &mut World, value: &str| {
        let filter = Writer::new().str(1, "CreateTime").str(2, ">=").str(3, value);
        let body = Writer::new().str(1, "hall").nested(2, filter).u64(4, 1);
        world.ask_as("s", Scope::Admin, Method::LIST_ROOMS, body)
    };
    assert_eq!(rooms(&mut world, "\"soon\"").0, Status::Invalid);
    let (status, page) = rooms(&mut world, "\"1970-01-01T00:00:00.000Z\"");
    assert_eq!(status, Status::Ok);
    let page = Reader::new(&page).unwrap();
    let first = page.all(1).flat_map(|mode| Reader::new(mode).unwrap().all(2).map(id_of).collect::<Vec<_>>());
    assert_eq!(first.collect::<Vec<_>>(), made[..1]);
    let (status, page) = rooms(&mut world, "\"2100-01-01T00:00:00Z\"");
    assert_eq!((status, Reader::new(&page).unwrap().all(1).count()), (Status::Ok, 0));
}

#[test]
fn listed_tickets_and_queues_come_in_pages_below_a_frame() {
    let mut world = World::new(Config::default());
    let mut queues: Vec<String> = (0..20).map(|number| format!("q{number:02}")).collect();
    let version = "v".repeat(30_000);
    for name in &queues {
        let side = r#"{"name": "s", "min": 64, "max": 64}"#;
        let rules = format!(r#"{{"name": "{name}", "version": "{version}", "sides": [{side}]}}"#);
        assert_eq!(world.put_queue(&rules).0, Status::Ok);
    }
    let long = "x".repeat(110);
    // No number of such parties makes a side of 64.
    let party =
        |ticket: usize| (0..25).map(|member| player(&format!("{ticket}.{member}{long}"), &[])).collect();
    let mut tickets: Vec<String> = (0..400).map(|ticket| world.ticket("s", "q00", party(ticket))).collect();
    for (method, ask, fields, wanted) in [
        (Method::LIST_QUEUES, Writer::new(), Fields { token: 1, items: 1, next: 2 }, &mut queues),
        (
            Method::LIST_TICKETS,
            Writer::new().str(2, "q00"),
            Fields { token: 3, items: 1, next: 2 },
            &mut tickets,
        ),
    ] {
        let (items, pages) = all_pages(&mut world, method, &ask, &fields);
        let mut seen: Vec<String> = items.iter().map(|item| id_of(item)).collect();
        seen.sort_unstable();
        wanted.sort_unstable();
        assert_eq!((&seen, pages > 1), (&*wanted, true), "method {method}");
    }
}

/// A method whose answer repeats something has pages, unless what it repeats is few.
#[test]
fn every_answer_that_grows_has_pages() {
    let few = [
        ("GetRoomList", "1,000 ids"),
        ("GetRoomHistory", "16 KiB"),
        ("PutQueue", "one queue"),
        ("GetQueueStats", "200 buckets, and a number for each time that a rule relaxes"),
        ("ReportResult", "200 players"),
        ("GetRatings", "1,000 players"),
        ("ExplainTicket", "32 candidates"),
    ];
    for method in METHODS {
        let repeats = |ty: &Type| matches!(ty, Type::List(_) | Type::Map(_) | Type::Keyed(..) | Type::Set);
        let grows = method.response.fields.iter().any(|field| repeats(&field.ty))
            && few.iter().all(|(name, _)| *name != method.name);
        let (token, next) = (method.request.named("Token"), method.response.named("Next"));
        assert_eq!((token.is_some(), next.is_some()), (grows, grows), "{}", method.name);
    }
}
