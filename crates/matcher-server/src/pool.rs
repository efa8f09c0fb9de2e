//! A matcher of several shards: each on a thread of its own, behind the thread that has the connections.
//!
//! ```text
//!   connections, sessions ──▶ Pool::request ──▶ inbox of a shard ──▶ Worker::turn: Engine ──▶ mail to other inboxes
//!            ▲                                                          │ commit once per turn
//!            └────────────── Pool::collect ◀── outputs: answers, notices┘
//! ```
//!
//! A turn takes all that has come, executes it, writes it to the journal that all share, and only then gives out what came
//! of it, mail too. So the journal has every letter behind what made it be sent, and a replay derives it.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use throng_matcher::{
    Answered, Answers, Caller, Handled, Mail, Matcher, Notices, Route, Scope, Shards, Verdict, named, route,
};
use throng_net::Clock;
use throng_wire::matcher::{Status, Writer};

use crate::Report;
use crate::engine::{Engine, Log, lock};
use crate::frames::write_late;
use crate::hub::{MODES_REPORTED, QUEUES_REPORTED};
use crate::journal::{Journal, no_flushes};
use crate::order::Order;
use crate::policy::Policies;
use crate::trials::Trials;

/// Requests that the shards have and have not answered; beyond, new ones are refused as `OVERLOADED`.
const REQUESTS_MAX: usize = 65_536;
/// Longest sleep of a shard that nothing wakes.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// A request on its way to a shard.
struct Job {
    number: u64,
    srv: String,
    scope: Scope,
    method: u16,
    body: Vec<u8>,
    /// It is not executed any more then.
    due: Instant,
}

enum Entry {
    Request(Job),
    Session { srv: String, up: bool },
    Verdict { id: u64, verdict: Option<Verdict> },
    Tried(Answered),
}

#[derive(Default)]
struct Inbox {
    entries: Vec<Entry>,
    /// By sender.
    mail: Vec<VecDeque<Mail>>,
}

impl Inbox {
    fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.mail.iter().all(VecDeque::is_empty)
    }
}

/// What a turn of a shard gave out.
struct Output {
    shard: u16,
    /// Must be on disk before any of it leaves.
    mark: u64,
    answered: Vec<(u64, Status, Vec<u8>)>,
    /// Server, entry, number for collapsing.
    notices: Vec<(Box<[u8]>, Vec<u8>, u64)>,
}

struct State {
    engine: Engine,
    /// By the shard's number of a request that waits: the pool's.
    waiting: BTreeMap<u64, u64>,
    now: u64,
}

/// A shard, with what reaches it.
pub(crate) struct Worker {
    state: Mutex<State>,
    inbox: Mutex<Inbox>,
    filled: Condvar,
}

/// What shards and the pool share.
pub(crate) struct Common {
    workers: Vec<Worker>,
    outputs: Mutex<Vec<Output>>,
    journal: Option<Arc<Mutex<Journal>>>,
    /// Wakes the thread that has the connections.
    wake: Box<dyn Fn() + Send + Sync>,
    failed: Mutex<Option<io::Error>>,
    stop: AtomicBool,
}

impl Common {
    /// A shard takes what has come, executes it, and gives out what comes of it. When it is to have a turn again.
    pub(crate) fn turn(&self, index: u16, wall: u64) -> io::Result<Option<u64>> {
        let worker = &self.workers[usize::from(index)];
        let mut state = lock(&worker.state);
        let (entries, mail) = {
            let mut inbox = lock(&worker.inbox);
            let mail: Vec<VecDeque<Mail>> = inbox.mail.iter_mut().map(std::mem::take).collect();
            (std::mem::take(&mut inbox.entries), mail)
        };
        state.now = state.now.max(wall);
        let now = state.now;
        let State { engine, waiting, .. } = &mut *state;
        let mut answered = Vec::new();
        for entry in entries {
            match entry {
                Entry::Request(job) => execute(engine, waiting, now, &job, &mut answered),
                Entry::Session { srv, up } => drop(engine.session(now, &srv, up)),
                Entry::Verdict { id, verdict } => engine.verdict(now, id, verdict.as_ref()),
                Entry::Tried(answered) => engine.trials.take_done(answered),
            }
        }
        // After the requests: mail that a later one of a connection gave rise to elsewhere does not overtake an earlier one.
        for (from, mail) in mail.into_iter().enumerate() {
            mail.into_iter().for_each(|mail| engine.mail(now, from as u16, mail));
        }
        engine.timeout(now);
        engine.ask_policies(now);
        while let Some(Answered { request, status, body }) = engine.poll_answered() {
            // One of before a restart nobody waits for.
            if let Some(number) = waiting.remove(&request) {
                answered.push((number, status, body));
            }
        }
        let mark = engine.commit(now)?;
        while let Some((to, mail)) = engine.matcher.poll_mail() {
            let receiver = &self.workers[usize::from(to)];
            lock(&receiver.inbox).mail[usize::from(index)].push_back(mail);
            receiver.filled.notify_one();
        }
        let next = engine.next_timeout();
        self.put_out(index, mark, answered, engine);
        Ok(next)
    }

    fn put_out(&self, shard: u16, mark: u64, answered: Vec<(u64, Status, Vec<u8>)>, engine: &mut Engine) {
        let named = engine.notices.iter().filter_map(|notice| {
            let server = engine.matcher.server_name(notice.server)?;
            Some((Box::from(server), notice.entry.to_vec(), notice.collapse))
        });
        let notices: Vec<(Box<[u8]>, Vec<u8>, u64)> = named.collect();
        engine.notices.clear();
        if answered.is_empty() && notices.is_empty() {
            return;
        }
        lock(&self.outputs).push(Output { shard, mark, answered, notices });
        (self.wake)();
    }

    fn run(&self, index: u16, clock: &Clock, wall_start: u64) {
        let _alarm = Alarm(self);
        let worker = &self.workers[usize::from(index)];
        while !self.stop.load(Ordering::Acquire) {
            let next = match self.turn(index, wall_start + clock.now().as_nanos() / 1_000_000) {
                Ok(next) => next,
                Err(error) => return self.fail(error),
            };
            let wall = wall_start + clock.now().as_nanos() / 1_000_000;
            let sleep = next.map_or(SLEEP_MAX, |at| Duration::from_millis(at.saturating_sub(wall)));
            let inbox = lock(&worker.inbox);
            if !sleep.is_zero() && inbox.is_empty() && !self.stop.load(Ordering::Acquire) {
                // Whatever woke it, it looks.
                drop(worker.filled.wait_timeout(inbox, sleep.min(SLEEP_MAX)));
            }
        }
    }

    /// Ends the service.
    fn fail(&self, error: io::Error) {
        lock(&self.failed).get_or_insert(error);
        (self.wake)();
    }

    fn post(&self, shard: u16, entry: Entry) {
        let worker = &self.workers[usize::from(shard)];
        lock(&worker.inbox).entries.push(entry);
        worker.filled.notify_one();
    }
}

/// A shard that is gone takes the service with it: what belongs to it would never be answered.
struct Alarm<'a>(&'a Common);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(io::Error::other("a shard's thread panicked"));
        }
    }
}

fn execute(
    engine: &mut Engine,
    waiting: &mut BTreeMap<u64, u64>,
    now: u64,
    job: &Job,
    answered: &mut Vec<(u64, Status, Vec<u8>)>,
) {
    let mut body = Vec::new();
    if Instant::now() > job.due {
        let status = write_late(&mut body);
        return answered.push((job.number, status, body));
    }
    let caller = Caller { srv: &job.srv, scope: job.scope };
    match engine.request(now, caller, job.method, &job.body, &mut body) {
        Handled::Done(status) => answered.push((job.number, status, body)),
        Handled::Waits(number) => drop(waiting.insert(number, job.number)),
    }
}

/// What a pool begins with.
pub(crate) struct Begin {
    pub(crate) shards: Shards,
    pub(crate) journal: Option<Journal>,
    pub(crate) policies: Policies,
    pub(crate) wake: Box<dyn Fn() + Send + Sync>,
}

/// The shards, as the thread that has the connections sees them.
pub(crate) struct Pool {
    common: Arc<Common>,
    threads: Vec<JoinHandle<()>>,
    /// The last number of a request.
    number: u64,
    open: usize,
    gathering: BTreeMap<u64, Answers>,
    order: Order<(u16, Job)>,
    answered: VecDeque<Answered>,
    pub(crate) notices: Notices,
    /// Numbers of servers that had a session.
    servers: BTreeMap<String, u32>,
    /// Numbers of those that were forgotten.
    free: Vec<u32>,
    mark: u64,
}

impl Pool {
    /// Shards that have no threads yet.
    pub(crate) fn new(begin: Begin) -> Pool {
        let Begin { shards, journal, policies, wake } = begin;
        let journal = journal.map(|journal| Arc::new(Mutex::new(journal)));
        let count = shards.count();
        let trials = Arc::default();
        let worker = |(index, matcher): (usize, Matcher)| {
            let log = journal.as_ref().map_or(Log::None, |journal| Log::Shared {
                shard: index as u8,
                records: Vec::new(),
                journal: Arc::clone(journal),
            });
            let now = matcher.now();
            let policies = policies.clone();
            let shard = (index as u16, count);
            let trials = Trials::of_shard(policies.late(), index as u16, &trials);
            let engine = Engine { matcher, log, notices: Notices::default(), policies, trials, shard };
            let mail = (0..count).map(|_| VecDeque::new()).collect();
            Worker {
                state: Mutex::new(State { engine, waiting: BTreeMap::new(), now }),
                inbox: Mutex::new(Inbox { entries: Vec::new(), mail }),
                filled: Condvar::new(),
            }
        };
        let workers = shards.into_shards().into_iter().enumerate().map(worker).collect();
        let common = Common {
            workers,
            outputs: Mutex::default(),
            journal,
            wake,
            failed: Mutex::new(None),
            stop: AtomicBool::new(false),
        };
        Pool {
            common: Arc::new(common),
            threads: Vec::new(),
            number: 0,
            open: 0,
            gathering: BTreeMap::new(),
            order: Order::default(),
            answered: VecDeque::new(),
            notices: Notices::default(),
            servers: BTreeMap::new(),
            free: Vec::new(),
            mark: 0,
        }
    }

    /// Gives each shard its thread.
    pub(crate) fn spawn(&mut self, clock: Clock, wall_start: u64) -> io::Result<()> {
        for index in 0..self.count() {
            let common = Arc::clone(&self.common);
            let thread = std::thread::Builder::new()
                .name(format!("matcher-{index}"))
                .spawn(move || common.run(index, &clock, wall_start))?;
            self.threads.push(thread);
        }
        Ok(())
    }

    fn count(&self) -> u16 {
        self.common.workers.len() as u16
    }

    /// Hands a request to its shard, or to all. It is answered by [`poll_answered`](Pool::poll_answered).
    pub(crate) fn request(
        &mut self,
        caller: Caller<'_>,
        method: u16,
        body: &[u8],
        deadline: Duration,
        answer: &mut Vec<u8>,
    ) -> Handled {
        if self.open >= REQUESTS_MAX {
            let why = "as many requests wait as this matcher takes; try again";
            answer.extend_from_slice(&Writer::new().str(1, why).into_bytes());
            return Handled::Done(Status::Overloaded);
        }
        self.number += 1;
        self.open += 1;
        let due = Instant::now() + deadline;
        let job = |number| Job {
            number,
            srv: caller.srv.to_owned(),
            scope: caller.scope,
            method,
            body: body.to_vec(),
            due,
        };
        match route(method, body, self.count()) {
            Route::One(shard) => {
                let (ids, claims) = named(method, body);
                let request = (shard, job(self.number));
                if let Some((shard, job)) = self.order.enter(self.number, caller.srv, &ids, claims, request) {
                    self.common.post(shard, Entry::Request(job));
                }
            }
            Route::All => {
                self.gathering.insert(self.number, Answers::new(method, body, self.count()));
                for shard in 0..self.count() {
                    self.common.post(shard, Entry::Request(job(self.number)));
                }
            }
        }
        Handled::Waits(self.number)
    }

    /// Tells every shard of a session. The server's number in notices.
    pub(crate) fn session(&mut self, srv: &str, up: bool) -> u32 {
        for shard in 0..self.count() {
            self.common.post(shard, Entry::Session { srv: srv.to_owned(), up });
        }
        if let Some(number) = self.servers.get(srv) {
            return *number;
        }
        let number = self.free.pop().unwrap_or(self.servers.len() as u32);
        self.servers.insert(srv.to_owned(), number);
        number
    }

    pub(crate) fn verdict(&self, id: u64, verdict: Option<Verdict>) {
        let count = u64::from(self.count());
        self.common.post((id % count) as u16, Entry::Verdict { id: id / count, verdict });
    }

    pub(crate) fn tried(&self, shard: u16, answered: Answered) {
        self.common.post(shard, Entry::Tried(answered));
    }

    /// Takes what the shards have given out.
    pub(crate) fn collect(&mut self) {
        let outputs = std::mem::take(&mut *lock(&self.common.outputs));
        for Output { shard, mark, answered, notices } in outputs {
            self.mark = self.mark.max(mark);
            for (number, status, body) in answered {
                self.answer(shard, number, status, body);
            }
            for (server, entry, collapse) in notices {
                let number = std::str::from_utf8(&server).ok().and_then(|name| self.servers.get(name));
                // A server that never had a session hears nothing.
                if let Some(number) = number {
                    self.notices.add(*number, &entry, collapse);
                }
            }
        }
    }

    fn answer(&mut self, shard: u16, number: u64, status: Status, body: Vec<u8>) {
        let (status, body) = match self.gathering.get_mut(&number) {
            None => (status, body),
            Some(answers) => {
                let Some(all) = answers.add(shard, status, body) else { return };
                self.gathering.remove(&number);
                all
            }
        };
        self.open -= 1;
        for (shard, job) in self.order.answered(number) {
            self.common.post(shard, Entry::Request(job));
        }
        self.answered.push_back(Answered { request: number, status, body });
    }

    pub(crate) fn poll_answered(&mut self) -> Option<Answered> {
        self.answered.pop_front()
    }

    /// The mark of all that was collected. Writes a snapshot where one pays.
    pub(crate) fn commit(&mut self, now: u64) -> io::Result<u64> {
        if let Some(error) = lock(&self.common.failed).take() {
            return Err(error);
        }
        self.write_snapshot(now, Journal::wants_snapshot);
        Ok(self.mark)
    }

    /// Writes a last snapshot.
    pub(crate) fn last_snapshot(&self, now: u64) {
        self.write_snapshot(now, Journal::has_news);
    }

    /// Writes a snapshot if the journal is of that opinion.
    fn write_snapshot(&self, now: u64, wants: fn(&Journal) -> bool) {
        if let Some(journal) = &self.common.journal
            && wants(&lock(journal))
        {
            self.snapshot(now, |bytes| lock(journal).snapshot(bytes));
        }
    }

    /// All shards between two turns, and the mail between them, are one state of the journal: gives it away while nobody
    /// can have a turn. Not while one of them searches: where a search stands is no part of a snapshot.
    fn snapshot(&self, now: u64, then: impl FnOnce(Vec<u8>)) {
        let states: Vec<_> = self.common.workers.iter().map(|worker| lock(&worker.state)).collect();
        let searches = |state: &State| state.engine.matcher.next_timeout().is_some_and(|at| at <= now);
        if states.iter().any(|state| searches(state)) {
            return;
        }
        let count = self.common.workers.len();
        let mut mail: Vec<VecDeque<Mail>> = (0..count * count).map(|_| VecDeque::new()).collect();
        let mut inboxes: Vec<_> = self.common.workers.iter().map(|worker| lock(&worker.inbox)).collect();
        let exchange = |inboxes: &mut Vec<std::sync::MutexGuard<'_, Inbox>>,
                        mail: &mut Vec<VecDeque<Mail>>| {
            for (to, inbox) in inboxes.iter_mut().enumerate() {
                for (from, letters) in inbox.mail.iter_mut().enumerate() {
                    std::mem::swap(letters, &mut mail[from * count + to]);
                }
            }
        };
        exchange(&mut inboxes, &mut mail);
        let shards = states.iter().map(|state| state.engine.matcher.snapshot()).collect();
        let bytes = Shards::join(shards, &mail);
        exchange(&mut inboxes, &mut mail);
        then(bytes);
    }

    /// Answers with marks up to this may leave.
    pub(crate) fn durable(&self) -> u64 {
        self.common.journal.as_ref().map_or(u64::MAX, |journal| lock(journal).releases())
    }

    /// Whether a server has roles or a session on any shard; one that has neither is forgotten.
    pub(crate) fn keeps(&mut self, srv: &str) -> bool {
        let mut workers = self.common.workers.iter();
        let keeps = workers.any(|worker| lock(&worker.state).engine.matcher.has_server(srv.as_bytes()));
        if !keeps {
            self.free.extend(self.servers.remove(srv));
        }
        keeps
    }

    pub(crate) fn report(&self, report: &mut Report) {
        for worker in &self.common.workers {
            let waiting = lock(&worker.inbox);
            report.shard_queue = report.shard_queue.max(waiting.entries.len());
            drop(waiting);
            let state = lock(&worker.state);
            add_report(report, &state.engine.matcher);
        }
        report.modes.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        report.modes.truncate(MODES_REPORTED);
        report.queues.truncate(QUEUES_REPORTED);
        let journal = self.common.journal.as_ref().map(|journal| lock(journal));
        report.flushes = Some(journal.as_ref().map_or_else(no_flushes, |journal| journal.flushes()));
        report.journal_bytes = journal.map_or(0, |journal| journal.bytes());
    }
}

#[cfg(test)]
impl Pool {
    /// Turns of all shards on this thread, until none has anything to do.
    pub(crate) fn turn_all(&self, wall: u64) {
        loop {
            for index in 0..self.count() {
                self.common.turn(index, wall).unwrap();
            }
            if self.common.workers.iter().all(|worker| lock(&worker.inbox).is_empty()) {
                return;
            }
        }
    }

    pub(crate) fn state(&self) -> Vec<u8> {
        let mut state = Vec::new();
        self.snapshot(0, |bytes| state = bytes);
        state
    }

    pub(crate) fn each(&mut self, mut look: impl FnMut(&mut Matcher)) {
        self.common.workers.iter().for_each(|worker| look(&mut lock(&worker.state).engine.matcher));
    }
}

/// Adds what a shard has to a report.
pub(crate) fn add_report(report: &mut Report, matcher: &Matcher) {
    report.counts.add(&matcher.counts());
    report.open_questions += matcher.open_questions();
    report.open_claims += matcher.open_claims();
    report.modes.extend(matcher.busy_modes(MODES_REPORTED));
    for own in matcher.mode_counts(MODES_REPORTED) {
        match report.mode_counts.iter_mut().find(|known| known.name == own.name) {
            Some(known) => known.add(&own),
            None => report.mode_counts.push(own),
        }
    }
    report.queues.extend(matcher.queue_reports(QUEUES_REPORTED));
    report.core.add(matcher.stats());
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.common.stop.store(true, Ordering::Release);
        for worker in &self.common.workers {
            // Under the lock: a shard that is about to sleep has either seen the flag or hears this.
            drop(lock(&worker.inbox));
            worker.filled.notify_all();
        }
        for thread in self.threads.drain(..) {
            // A panic there was reported there.
            let _ = thread.join();
        }
    }
}
