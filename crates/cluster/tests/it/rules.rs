//! One rule at a time, with a directory that always answers.

use std::time::Duration;

use throng_cluster::{Identity, Lease, LeaseEvent as Event, Record, Request, State, Takeover, Written};
use throng_stdx::Instant;

pub(crate) fn identity(name: &str, journal: &str, machine: &str) -> Identity {
    Identity {
        incarnation: name.to_owned(),
        journal: journal.to_owned(),
        machine: machine.to_owned(),
        addresses: vec![format!("{name}:1")],
    }
}

/// The record of an area, with its revision.
#[derive(Clone, Debug, Default)]
pub(crate) struct Directory {
    pub(crate) revision: u64,
    pub(crate) record: Option<Record>,
}

impl Directory {
    pub(crate) fn write(&mut self, expected: u64, record: Record) -> Written {
        let current = if self.record.is_some() { self.revision } else { 0 };
        if expected != current {
            return Written::Refused;
        }
        self.revision += 1;
        self.record = Some(record);
        Written::At(self.revision)
    }

    /// Loses everything, as a bus does whose storage is replaced.
    fn lose(&mut self) {
        *self = Directory::default();
    }

    pub(crate) fn read(&self) -> Option<(u64, Record)> {
        Some((self.revision, self.record.clone()?))
    }
}

struct Bench {
    directory: Directory,
    now: Instant,
}

impl Bench {
    fn new() -> Bench {
        Bench { directory: Directory::default(), now: Instant::from_millis(1) }
    }

    fn lease(&self, name: &str, journal: &str, machine: &str, takeover: Takeover) -> Lease {
        let seed = name.bytes().fold(7, |seed: u64, byte| seed * 1_000_003 + u64::from(byte)) << 20;
        Lease::new(identity(name, journal, machine), takeover, seed, self.now)
    }

    /// Lets a process do what it does for a time.
    fn run(&mut self, leases: &mut [&mut Lease], time: Duration) -> Vec<Event> {
        let (end, mut events) = (self.now + time, Vec::new());
        loop {
            let next =
                leases.iter().enumerate().filter_map(|(at, lease)| Some((lease.next_timeout()?, at))).min();
            let Some((at, index)) = next.filter(|(at, _)| *at <= end) else { break };
            self.now = self.now.max(at);
            let lease = &mut leases[index];
            lease.handle_timeout(self.now);
            while let Some(request) = lease.poll_request() {
                match request {
                    Request::Read => lease.handle_read(self.now, Ok(self.directory.read())),
                    Request::Write { expected, record } => {
                        let written = self.directory.write(expected, record);
                        lease.handle_write(self.now, written);
                    }
                }
            }
            events.extend(std::iter::from_fn(|| lease.poll_event()));
        }
        self.now = end;
        events
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn the_first_serves_and_the_second_waits_and_knows_for_whom() {
    let mut bench = Bench::new();
    let mut a = bench.lease("a", "ja", "m", Takeover::Wait);
    let mut b = bench.lease("b", "jb", "m", Takeover::Wait);
    let granted = bench.run(&mut [&mut a], SECOND);
    assert_eq!(granted, [Event::Granted { epoch: 1, empty: false }]);
    let waits = bench.run(&mut [&mut a, &mut b], 30 * SECOND);
    assert!(matches!(&waits[..], [Event::Waits { record }] if record.incarnation == "a"), "{waits:?}");
    assert!(a.is_serving(bench.now) && !b.is_serving(bench.now));
}

#[test]
fn a_holder_that_restarts_on_its_machine_serves_at_once_and_a_copy_of_its_folder_waits() {
    for (machine, seconds) in [("m", 0), ("elsewhere", 13)] {
        let mut bench = Bench::new();
        let mut old = bench.lease("old", "j", "m", Takeover::Wait);
        bench.run(&mut [&mut old], 3 * SECOND);
        let mut new = bench.lease("new", "j", machine, Takeover::Wait);
        let events = bench.run(&mut [&mut new], SECOND + seconds * SECOND);
        assert_eq!(new.is_serving(bench.now), machine == "m", "{events:?}");
        bench.run(&mut [&mut new], 3 * SECOND);
        assert!(new.is_serving(bench.now), "the lease was waited out");
    }
}

#[test]
fn a_lost_holder_is_replaced_as_configured() {
    let mut bench = Bench::new();
    let mut a = bench.lease("a", "ja", "m", Takeover::Wait);
    bench.run(&mut [&mut a], SECOND);
    let mut waits = bench.lease("b", "jb", "m", Takeover::Wait);
    bench.run(&mut [&mut waits], 60 * SECOND);
    assert!(!waits.is_serving(bench.now));
    assert_eq!(bench.directory.record.as_ref().unwrap().state, State::Lost, "its renewals fail from now on");
    // An operator gives its state up.
    let mut given = bench.directory.record.clone().unwrap();
    (given.state, given.nonce) = (State::Given, 1);
    bench.directory.write(bench.directory.revision, given);
    let events = bench.run(&mut [&mut waits], 2 * SECOND);
    assert_eq!(events, [Event::Granted { epoch: 2, empty: true }]);
    // The one that was replaced learns it at its next renewal.
    let events = bench.run(&mut [&mut a, &mut waits], 3 * SECOND);
    assert!(
        matches!(&events[0], Event::Deposed { by: Some(record) } if record.incarnation == "b"),
        "{events:?}"
    );
    assert!(!a.is_serving(bench.now) && waits.is_serving(bench.now));
    let mut empty = bench.lease("c", "jc", "m", Takeover::Empty);
    let events = bench.run(&mut [&mut empty], 20 * SECOND);
    assert!(events.contains(&Event::Granted { epoch: 3, empty: true }), "{events:?}");
}

#[test]
fn a_marked_holder_whose_journal_comes_back_serves_again() {
    let mut bench = Bench::new();
    let mut a = bench.lease("a", "ja", "m", Takeover::Wait);
    bench.run(&mut [&mut a], SECOND);
    let mut b = bench.lease("b", "jb", "m", Takeover::Wait);
    bench.run(&mut [&mut b], 40 * SECOND);
    // It slept for 40 s: its renewal is refused, and as nobody else serves it does again.
    let events = bench.run(&mut [&mut a], 3 * SECOND);
    assert!(matches!(events[0], Event::Deposed { .. }), "{events:?}");
    assert_eq!(events[1], Event::Granted { epoch: 2, empty: false });
}

#[test]
fn a_holder_whose_record_is_lost_makes_it_again() {
    for takeover in [Takeover::Wait, Takeover::Empty] {
        let mut bench = Bench::new();
        let mut a = bench.lease("a", "ja", "m", takeover);
        bench.run(&mut [&mut a], SECOND);
        let mut b = bench.lease("b", "jb", "m", takeover);
        bench.run(&mut [&mut b, &mut a], 30 * SECOND);
        bench.directory.lose();
        // The standby looks first, and more than once.
        let events = bench.run(&mut [&mut b], 5 * SECOND);
        assert_eq!(events, []);
        let events = bench.run(&mut [&mut b, &mut a], 60 * SECOND);
        let again = Event::Granted { epoch: 2, empty: false };
        assert_eq!(events, [Event::Deposed { by: None }, again], "{takeover:?}");
        assert!(a.is_serving(bench.now) && !b.is_serving(bench.now));
        assert_eq!(bench.directory.record.as_ref().unwrap().incarnation, "a");
    }
}

#[test]
fn a_standby_remembers_the_holder_that_the_directory_has_forgotten() {
    let mut bench = Bench::new();
    let mut a = bench.lease("a", "ja", "m", Takeover::Wait);
    bench.run(&mut [&mut a], SECOND);
    let mut b = bench.lease("b", "jb", "m", Takeover::Wait);
    bench.run(&mut [&mut b], 3 * SECOND);
    bench.directory.lose();
    bench.run(&mut [&mut b], 60 * SECOND);
    assert!(!b.is_serving(bench.now), "the area is not a new one");
    let record = bench.directory.record.clone().unwrap();
    let expected = (State::Lost, "ja", 2);
    assert_eq!((record.state, record.journal.as_str(), record.epoch), expected);
    // The holder starts again, with its journal.
    let mut restarted = bench.lease("a2", "ja", "m", Takeover::Wait);
    let events = bench.run(&mut [&mut restarted, &mut b], 3 * SECOND);
    assert!(events.contains(&Event::Granted { epoch: 3, empty: false }), "{events:?}");
}

/// The process after a restart, with the record that it saw last.
fn restarted(bench: &Bench, old: &Lease, name: &str, journal: &str) -> Lease {
    let mut new = bench.lease(name, journal, "m", Takeover::Wait);
    new.remember(old.known().expect("a record").clone());
    new
}

#[test]
fn the_holder_serves_again_after_all_have_restarted_on_a_bus_that_lost_its_storage() {
    for standby_first in [true, false] {
        let mut bench = Bench::new();
        let mut a = bench.lease("a", "ja", "m", Takeover::Wait);
        bench.run(&mut [&mut a], SECOND);
        let mut b = bench.lease("b", "jb", "m", Takeover::Wait);
        bench.run(&mut [&mut a, &mut b], 3 * SECOND);
        bench.directory.lose();
        let mut standby = restarted(&bench, &b, "b2", "jb");
        let mut holder = restarted(&bench, &a, "a2", "ja");
        let first = if standby_first { &mut standby } else { &mut holder };
        bench.run(&mut [first], 3 * SECOND);
        bench.run(&mut [&mut standby, &mut holder], 3 * SECOND);
        assert!(holder.is_serving(bench.now) && !standby.is_serving(bench.now), "{standby_first}");
    }
}

#[test]
fn a_standby_that_restarts_on_an_empty_directory_waits_for_the_holder_and_then_marks_it_lost() {
    let mut bench = Bench::new();
    let mut a = bench.lease("a", "ja", "m", Takeover::Wait);
    bench.run(&mut [&mut a], SECOND);
    let mut b = bench.lease("b", "jb", "m", Takeover::Wait);
    bench.run(&mut [&mut a, &mut b], 3 * SECOND);
    bench.directory.lose();
    let mut standby = restarted(&bench, &b, "b2", "jb");
    let events = bench.run(&mut [&mut standby], 14 * SECOND);
    assert!(matches!(&events[..], [Event::Waits { record }] if record.incarnation == "a"), "{events:?}");
    assert_eq!(bench.directory.record, None);
    bench.run(&mut [&mut standby], 10 * SECOND);
    assert_eq!(bench.directory.record.as_ref().unwrap().state, State::Lost);
    bench.run(&mut [&mut standby], 60 * SECOND);
    assert!(!standby.is_serving(bench.now), "only an operator gives the state up");
}

#[test]
fn the_newest_holder_takes_the_area_back_from_one_that_remembers_an_older_lease() {
    for newest_first in [true, false] {
        let mut bench = Bench::new();
        let mut old = bench.lease("a", "ja", "m", Takeover::Wait);
        bench.run(&mut [&mut old], SECOND);
        // It is off while another takes over.
        let mut newest = bench.lease("b", "jb", "m", Takeover::Empty);
        let events = bench.run(&mut [&mut newest], 20 * SECOND);
        assert!(events.contains(&Event::Granted { epoch: 2, empty: true }), "{events:?}");
        bench.directory.lose();
        let mut new = restarted(&bench, &newest, "b2", "jb");
        let mut old = restarted(&bench, &old, "a2", "ja");
        let first = if newest_first { &mut new } else { &mut old };
        bench.run(&mut [first], 3 * SECOND);
        let mut events = Vec::new();
        for _ in 0..30 {
            events.extend(bench.run(&mut [&mut new, &mut old], SECOND));
            assert!(!(new.is_serving(bench.now) && old.is_serving(bench.now)), "{events:?}");
        }
        assert!(new.is_serving(bench.now), "{events:?}");
        let deposed =
            |event: &Event| matches!(event, Event::Deposed { by: Some(record) } if record.journal == "jb");
        assert_eq!(events.iter().any(deposed), !newest_first, "{events:?}");
    }
}

#[test]
fn a_newcomer_on_an_empty_directory_does_not_replace_the_holder() {
    let mut bench = Bench::new();
    let mut holder = bench.lease("a", "ja", "m", Takeover::Wait);
    bench.run(&mut [&mut holder], 3 * SECOND);
    bench.directory.lose();
    let mut newcomer = bench.lease("c", "jc", "m", Takeover::Wait);
    // It looks before the holder renews.
    bench.run(&mut [&mut newcomer], Duration::ZERO);
    assert!(newcomer.is_serving(bench.now), "for it, the area is a new one");
    let events = bench.run(&mut [&mut holder, &mut newcomer], 30 * SECOND);
    assert_eq!(events[0], Event::Deposed { by: None }, "its state is not obsolete");
    assert!(events.contains(&Event::Granted { epoch: 3, empty: false }), "{events:?}");
    assert!(holder.is_serving(bench.now) && !newcomer.is_serving(bench.now));
}

#[test]
fn a_forgotten_holder_is_replaced_where_it_is_not_waited_for() {
    let mut bench = Bench::new();
    let mut a = bench.lease("a", "ja", "m", Takeover::Empty);
    bench.run(&mut [&mut a], SECOND);
    let mut b = bench.lease("b", "jb", "m", Takeover::Empty);
    bench.run(&mut [&mut b], SECOND);
    bench.directory.lose();
    assert_eq!(bench.run(&mut [&mut b], 14 * SECOND), [], "it still has its lease");
    let events = bench.run(&mut [&mut b], 10 * SECOND);
    assert_eq!(events, [Event::Granted { epoch: 3, empty: true }]);
}

#[test]
fn a_record_that_was_made_again_is_watched_although_its_revision_is_low() {
    let mut bench = Bench::new();
    let mut a = bench.lease("a", "ja", "m", Takeover::Wait);
    bench.run(&mut [&mut a], SECOND);
    let mut b = bench.lease("b", "jb", "m", Takeover::Wait);
    bench.run(&mut [&mut a, &mut b], 60 * SECOND);
    bench.directory.lose();
    // The standby never sees that it is absent.
    bench.run(&mut [&mut a], 3 * SECOND);
    assert!(bench.directory.revision < 10, "revisions begin again");
    bench.run(&mut [&mut b], 30 * SECOND);
    assert_eq!(bench.directory.record.as_ref().unwrap().state, State::Lost, "its holder is silent");
}
