//! Clocks that differ, answers that get lost, writes that are applied late, processes that stand
//! still: two never serve at a time, and once the faults end somebody does.

use throng_cluster::{Lease, LeaseEvent as Event, Request, Takeover, Written};
use throng_stdx::{Instant, Rng};

use crate::rules::{Directory, identity};

const PROCESSES: usize = 4;
/// Steps of real time.
const STEP_MS: u64 = 50;
const FAULTS_MS: u64 = 180_000;
const HEALED_MS: u64 = 60_000;

struct Process {
    lease: Lease,
    name: usize,
    lives: u32,
    /// Its clock runs at this rate, in thousandths.
    rate: u64,
    /// Real time until which it stands still.
    stands_until: u64,
    is_cut: bool,
    /// A request on its way to the directory, and when it arrives.
    sent: Option<(u64, Request)>,
    /// An answer on its way back.
    answer: Option<(u64, Answer)>,
}

#[derive(Clone)]
enum Answer {
    Read(Result<Option<(u64, throng_cluster::Record)>, ()>),
    Write(Written),
}

impl Process {
    fn now(&self, real: u64) -> Instant {
        Instant::from_nanos(1_000_000_000 + real * self.rate * 1_000)
    }

    fn is_up(&self, real: u64) -> bool {
        real >= self.stands_until
    }
}

fn begin(rng: &mut Rng, name: usize, lives: u32, rate: u64, real: u64) -> Lease {
    let now = Instant::from_nanos(1_000_000_000 + real * rate * 1_000);
    let who = identity(&format!("p{name}.{lives}"), &format!("j{name}"), &format!("m{name}"));
    Lease::new(who, Takeover::Empty, rng.next_u64() >> 1, now)
}

/// Runs a seed; gives how often the area changed hands.
fn run(seed: u64) -> u32 {
    let mut rng = Rng::new(seed);
    let mut directory = Directory::default();
    let mut late: Vec<(u64, u64, throng_cluster::Record)> = Vec::new();
    let mut all: Vec<Process> = (0..PROCESSES)
        .map(|name| {
            let rate = 850 + rng.below(300);
            let lease = begin(&mut rng, name, 0, rate, 0);
            Process { lease, name, lives: 0, rate, stands_until: 0, is_cut: false, sent: None, answer: None }
        })
        .collect();
    let (mut holders, mut last) = (0, None);
    for step in 0..(FAULTS_MS + HEALED_MS) / STEP_MS {
        let real = step * STEP_MS;
        let is_faulty = real < FAULTS_MS;
        // A write whose sender was told nothing is applied now.
        late.retain(|(at, expected, record)| {
            let waits = *at > real;
            if !waits {
                directory.write(*expected, record.clone());
            }
            waits
        });
        for process in &mut all {
            if is_faulty && rng.chance(0.002) {
                process.stands_until = real + rng.below(40_000);
            }
            if is_faulty && rng.chance(0.004) {
                process.is_cut = !process.is_cut;
            }
            if is_faulty && rng.chance(0.000_5) {
                process.lives += 1;
                process.lease = begin(&mut rng, process.name, process.lives, process.rate, real);
                (process.sent, process.answer) = (None, None);
            }
            if !is_faulty {
                (process.is_cut, process.stands_until) = (false, process.stands_until.min(real));
            }
            if let Some((at, request)) = process.sent.clone().filter(|(at, _)| *at <= real) {
                process.sent = None;
                let lost = is_faulty && (process.is_cut || rng.chance(0.03));
                let answer = match request {
                    Request::Read if lost => Answer::Read(Err(())),
                    Request::Read => Answer::Read(Ok(directory.read())),
                    Request::Write { expected, record } if lost => {
                        match rng.below(3) {
                            0 => drop(directory.write(expected, record)),
                            1 => late.push((real + rng.below(8_000), expected, record)),
                            _ => {}
                        }
                        Answer::Write(Written::Unknown)
                    }
                    Request::Write { expected, record } => Answer::Write(directory.write(expected, record)),
                };
                let delay = if lost { 2_000 } else { rng.below(150) };
                process.answer = Some((at + delay, answer));
            }
            if !process.is_up(real) {
                continue;
            }
            let now = process.now(real);
            if let Some((_, answer)) = process.answer.take_if(|(at, _)| *at <= real) {
                match answer {
                    Answer::Read(found) => process.lease.handle_read(now, found),
                    Answer::Write(written) => process.lease.handle_write(now, written),
                }
            }
            if process.lease.next_timeout().is_some_and(|at| at <= now) {
                process.lease.handle_timeout(now);
            }
            while let Some(request) = process.lease.poll_request() {
                process.sent = Some((real + rng.below(150), request));
            }
            while let Some(event) = process.lease.poll_event() {
                holders += u32::from(matches!(event, Event::Granted { .. }));
            }
        }
        // A process that stands still does nothing until it reads its clock again.
        let serving: Vec<usize> = (0..PROCESSES)
            .filter(|at| all[*at].is_up(real) && all[*at].lease.is_serving(all[*at].now(real)))
            .collect();
        assert!(serving.len() <= 1, "seed {seed}, at {real} ms: {serving:?} serve");
        last = serving.first().copied();
    }
    assert!(last.is_some(), "seed {seed}: nobody serves a minute after the last fault");
    holders
}

#[test]
fn two_never_serve_at_a_time_and_in_the_end_somebody_does() {
    let changes: u32 = (0..600).map(run).sum();
    assert!(changes > 1_200, "{changes} grants: does anything fail?");
}
