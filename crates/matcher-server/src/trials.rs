//! Trials of rule sets: copied between other inputs, worked out on threads of their own, few at a
//! time.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use throng_matcher::{Answered, Caller, Handled, Matcher, Trial, WallMs};
use throng_wire::matcher::{Status, Writer};

use crate::service::Handle;

/// Trials at a time; beyond, requests are refused as `OVERLOADED`.
const TRIALS_MAX: usize = 2;
/// Numbers of requests from here on are those of trials; a matcher never counts so far.
const FIRST: u64 = 1 << 63;

/// Trials that are copied or run.
#[derive(Default)]
pub(crate) struct Trials {
    /// Takes what came of them; without one they are done at once.
    handle: Option<Handle>,
    running: Arc<AtomicUsize>,
    begun: u64,
    copying: VecDeque<(u64, Trial, Slot)>,
    done: VecDeque<Answered>,
}

/// One of those at a time.
struct Slot(Arc<AtomicUsize>);

impl Slot {
    fn take(running: &Arc<AtomicUsize>) -> Option<Slot> {
        let slot = Slot(Arc::clone(running));
        (running.fetch_add(1, Ordering::Relaxed) < TRIALS_MAX).then_some(slot)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Trials {
    /// Trials whose results come through a handle.
    pub(crate) fn answered_by(handle: Handle) -> Trials {
        Trials { handle: Some(handle), ..Trials::default() }
    }

    /// Begins to copy what is to be tried.
    pub(crate) fn begin(
        &mut self,
        (matcher, now): (&Matcher, u64),
        caller: Caller<'_>,
        body: &[u8],
        answer: &mut Vec<u8>,
    ) -> Handled {
        let Some(slot) = Slot::take(&self.running) else {
            answer.extend_from_slice(&refusal("as many trials run as there may; try again"));
            return Handled::Done(Status::Overloaded);
        };
        match matcher.trial(WallMs(now), caller, body) {
            Ok(trial) => {
                let request = FIRST + self.begun;
                self.begun += 1;
                self.copying.push_back((request, trial, slot));
                Handled::Waits(request)
            }
            Err((status, problem)) => {
                answer.extend_from_slice(&problem);
                Handled::Done(status)
            }
        }
    }

    /// Returns whether something is to be copied.
    pub(crate) fn is_copying(&self) -> bool {
        !self.copying.is_empty()
    }

    /// Copies some more; what is whole goes to a thread.
    pub(crate) fn copy(&mut self, matcher: &Matcher) {
        if !self.copying.front_mut().is_some_and(|(_, trial, _)| trial.copy(matcher)) {
            return;
        }
        let Some((request, trial, slot)) = self.copying.pop_front() else { return };
        let Some(handle) = self.handle.clone() else {
            return self.take_done(Answered { request, status: Status::Ok, body: trial.run() });
        };
        let work = move || {
            let (status, body) = run(&trial);
            drop(slot);
            handle.give_tried(Answered { request, status, body });
        };
        if std::thread::Builder::new().name("matcher-trial".to_owned()).spawn(work).is_err() {
            let body = refusal("the system refuses a thread");
            self.take_done(Answered { request, status: Status::Overloaded, body });
        }
    }

    /// A trial is done; [`poll`](Trials::poll) gives it.
    pub(crate) fn take_done(&mut self, answered: Answered) {
        self.done.push_back(answered);
    }

    pub(crate) fn poll(&mut self) -> Option<Answered> {
        self.done.pop_front()
    }
}

/// A trial that panics is a defect of ours, and its caller's answer says so.
fn run(trial: &Trial) -> (Status, Vec<u8>) {
    match catch_unwind(AssertUnwindSafe(|| trial.run())) {
        Ok(body) => (Status::Ok, body),
        Err(_) => (Status::Internal, refusal("the trial failed")),
    }
}

pub(crate) fn refusal(why: &str) -> Vec<u8> {
    Writer::new().str(1, why).into_bytes()
}

#[cfg(test)]
mod tests {
    use throng_matcher::{Config, Scope};

    use super::*;

    const RULES: &str = r#"{"name": "q", "sides": [{"name": "s", "count": 2, "min": 1, "max": 1}]}"#;

    #[test]
    fn more_than_may_run_are_refused() {
        let matcher = Matcher::new(Config::default(), [1; 32], WallMs(0));
        let (caller, body) =
            (Caller { srv: "", scope: Scope::Admin }, Writer::new().str(1, RULES).into_bytes());
        let mut trials = Trials::default();
        let running: Vec<Option<Slot>> = (0..TRIALS_MAX).map(|_| Slot::take(&trials.running)).collect();
        let mut answer = Vec::new();
        let handled = trials.begin((&matcher, 5), caller, &body, &mut answer);
        assert_eq!(handled, Handled::Done(Status::Overloaded));
        drop(running);
        assert_eq!(trials.begin((&matcher, 5), caller, &body, &mut answer), Handled::Waits(FIRST));
        trials.copy(&matcher);
        let done = trials.poll().unwrap();
        assert_eq!((done.request, done.status), (FIRST, Status::Ok));
        assert!(!trials.is_copying() && trials.running.load(Ordering::Relaxed) == 0);
    }
}
