//! The thread that drives it all, and handles to it.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use throng_matcher::{Answered, Config, Counts, Matcher, Scope, Verdict, json};
use throng_net::{Clock, CloseMode, EventLoop, Limits, ListenerSpec, TlsAcceptor, Transport, Waker};
use throng_platform::{Folder, Fs};
use throng_stdx::Instant;
use throng_wire::matcher::{Method, Status, method, method_named};
use tokio::sync::watch;

use crate::Report;
use crate::engine::Engine;
use crate::gate::{Gate, Guard, boot_time};
use crate::hub::{Act, Hub};
use crate::journal::{Durability, Journal, JournalError, OpenOptions, Recovered, Replay};
use crate::policy::Policies;
use crate::session::Sink;
use crate::tokens::Tokens;
use crate::trials::{Trials, refusal};
use crate::watch::Watch;

/// Time between two looks at what has no timer of its own.
const TIDY_MS: u64 = 200;
/// Posts from this process that wait for the matcher's thread: some 100 ms of its work.
pub const INBOX_MAX: usize = 65_536;
/// A request that was not executed so long after its arrival is answered with `TIMEOUT`, unless it
/// says otherwise.
pub(crate) const DEADLINE_MS: u64 = 3_000;
/// Descriptors that connections of the framed RPC leave to health, the admin API and files.
const DESCRIPTORS_SPARED: u64 = 64;
/// Time that output gets to leave at the end.
const GOODBYE: Duration = Duration::from_millis(300);

/// Options of a service.
#[derive(Debug)]
pub struct Options {
    /// Address of the framed RPC; `None` serves only this process.
    pub addr: Option<SocketAddr>,
    /// File of a Unix socket that serves the same; `None` opens none.
    pub unix: Option<PathBuf>,
    /// TLS on `addr`.
    pub tls: Option<TlsAcceptor>,
    /// Modes and limits.
    pub config: Config,
    /// Time when answers leave.
    pub durability: Durability,
    /// Folder of the journal; may be absent with [`Durability::None`].
    pub fs: Option<Arc<dyn Fs>>,
    /// Access tokens.
    pub tokens: Tokens,
    /// The area that is served; empty: whatever callers name.
    pub area: String,
    /// Unguessable bytes, for ids.
    pub secret: [u8; 32],
    /// Skips damaged records.
    pub salvage: bool,
    /// Policies of modes that name one.
    pub policies: Policies,
    /// True if this matcher may serve.
    pub gate: Gate,
}

/// Why a service did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The address cannot be listened on.
    #[error("cannot listen on {addr}: {source}")]
    Bind {
        /// The address.
        addr: SocketAddr,
        /// Error of the system.
        source: io::Error,
    },
    /// The Unix socket cannot be opened.
    #[error("cannot listen on `{}`: {source}", path.display())]
    Unix {
        /// Its file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The system refuses a thread or an event loop.
    #[error("{what}: {source}")]
    System {
        /// The operation.
        what: &'static str,
        /// Error of the system.
        source: io::Error,
    },
}

/// Why lines cannot be imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// A journal is made in a folder of its own.
    #[error("the folder is not empty; import into a new one")]
    NotEmpty,
    /// A line is wrong.
    #[error(transparent)]
    Line(#[from] throng_matcher::ImportError),
    /// The journal cannot be written.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// A request from this process.
pub struct Call {
    /// Caller of a request.
    pub srv: String,
    /// Scope of the caller.
    pub scope: Scope,
    /// Number of the method.
    pub method: u16,
    /// Body of the request.
    pub body: Vec<u8>,
    /// Takes the answer, on the matcher's thread: must not block.
    pub reply: Reply,
}

/// Takes an answer.
pub type Reply = Box<dyn FnOnce(Status, Vec<u8>) + Send>;

pub(crate) enum Post {
    /// A call, which is not executed any more when it is `due`, nor without the subscription
    /// `reader`, which is to read of its effects.
    Call {
        call: Call,
        reader: Option<u64>,
        due: std::time::Instant,
    },
    Subscribe {
        srv: String,
        after: Option<(u64, u64)>,
        sink: Sink,
        id: u64,
    },
    Unsubscribe {
        srv: String,
        id: u64,
    },
    Resume {
        srv: String,
        id: u64,
    },
    Verdict {
        id: u64,
        verdict: Option<Verdict>,
    },
    /// The state of the area is given up: it begins anew.
    #[cfg(feature = "nats")]
    BeginEmpty {
        kept: Option<PathBuf>,
        waits: bool,
    },
    /// A trial is done.
    Tried(Answered),
    Stop,
}

/// Calls a service from its own process. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    inbox: Arc<Mutex<Vec<Post>>>,
    waker: Waker,
    report: Arc<Mutex<Report>>,
    subscriptions: Arc<AtomicU64>,
    /// Bytes of all batches that wait in a [`Watch`].
    watched: Arc<AtomicUsize>,
    gate: Gate,
    /// The reason, once the matcher's thread takes nothing any more.
    ended: Arc<watch::Sender<Option<String>>>,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

impl Handle {
    /// Sends a request; its `reply` is called once, unless the service ends first. With
    /// [`INBOX_MAX`] waiting it is called at once, with `OVERLOADED`; after the end at once, with
    /// `UNAVAILABLE`. One that waits for more than 3 s is answered with `TIMEOUT` and has no
    /// effect.
    pub fn call(&self, call: Call) {
        self.call_read_by(None, call);
    }

    fn call_read_by(&self, reader: Option<u64>, call: Call) {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(why) = self.why_ended() {
            drop(inbox);
            return (call.reply)(Status::Unavailable, refusal(&why));
        }
        if inbox.len() >= INBOX_MAX {
            drop(inbox);
            return (call.reply)(Status::Overloaded, Vec::new());
        }
        let due = std::time::Instant::now() + Duration::from_millis(DEADLINE_MS);
        inbox.push(Post::Call { call, reader, due });
        drop(inbox);
        self.waker.wake();
    }

    /// Sends a request. The answer is `UNAVAILABLE` when the service ends before it answers: the
    /// request may have had its effect, as the text says.
    pub async fn ask(&self, srv: &str, scope: Scope, method: u16, body: Vec<u8>) -> (Status, Vec<u8>) {
        self.ask_read_by(None, srv, scope, method, body).await
    }

    /// Sends a request. Without the subscription `reader` it is refused with `UNAVAILABLE`: a
    /// server that has its answer has the notifications of it too.
    pub(crate) async fn ask_read_by(
        &self,
        reader: Option<u64>,
        srv: &str,
        scope: Scope,
        method: u16,
        body: Vec<u8>,
    ) -> (Status, Vec<u8>) {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        // The caller may have given up.
        let reply: Reply = Box::new(move |status, body| drop(sender.send((status, body))));
        self.call_read_by(reader, Call { srv: srv.to_owned(), scope, method, body, reply });
        receiver.await.unwrap_or_else(|_| {
            let why = self.why_ended().unwrap_or_else(|| "the matcher has ended".to_owned());
            let unknown =
                "it is unknown whether the request had its effect; repeat it with the same idempotency key";
            (Status::Unavailable, refusal(&format!("{why}; {unknown}")))
        })
    }

    /// Sends a request and waits for the answer. Not for the matcher's own thread.
    ///
    /// # Errors
    /// `Err(())` when the service ended.
    #[allow(clippy::result_unit_err)]
    pub fn call_and_wait(
        &self,
        srv: &str,
        scope: Scope,
        method: u16,
        body: Vec<u8>,
    ) -> Result<(Status, Vec<u8>), ()> {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        let reply: Reply = Box::new(move |status, body| {
            // The caller may have given up.
            let _ = sender.send((status, body));
        });
        self.call(Call { srv: srv.to_owned(), scope, method, body, reply });
        receiver.recv().map_err(drop)
    }

    /// Takes the notifications of a server, from now or after (epoch, number); epoch 0 is the
    /// current one. Replaces its session, if it has one. Answers the subscription's number.
    pub fn subscribe(&self, srv: &str, after: Option<(u64, u64)>, sink: Sink) -> u64 {
        let id = self.subscriptions.fetch_add(1, Ordering::Relaxed);
        self.post(Post::Subscribe { srv: srv.to_owned(), after, sink, id });
        id
    }

    /// The same as a stream with bounds of its own.
    #[must_use]
    pub fn watch(&self, srv: &str, after: Option<(u64, u64)>) -> Watch {
        let id = self.subscriptions.fetch_add(1, Ordering::Relaxed);
        let (watch, sink) = Watch::new(self.clone(), srv, id, Arc::clone(&self.watched));
        self.post(Post::Subscribe { srv: srv.to_owned(), after, sink, id });
        watch
    }

    /// Lets a sink that was full have more.
    pub fn resume(&self, srv: &str, id: u64) {
        self.post(Post::Resume { srv: srv.to_owned(), id });
    }

    /// Ends a subscription, if it is still the server's; the server's grace period begins.
    pub fn unsubscribe(&self, srv: &str, id: u64) {
        self.post(Post::Unsubscribe { srv: srv.to_owned(), id });
    }

    /// Asks a method that changes nothing, in the JSON of the HTTP interface, with an operator's
    /// rights. Not for the matcher's own thread.
    ///
    /// # Errors
    /// An HTTP status and what stands in the way: no such method, one that changes something, a
    /// body that does not fit, or the matcher's own problem as JSON.
    pub fn ask_json(&self, method: &str, request: &str) -> Result<String, (u16, String)> {
        let Some(method) = method_named(method).filter(|method| !method.mutates) else {
            return Err((404, format!("no method that changes nothing is called `{method}`")));
        };
        self.operate(method, request)
    }

    /// Makes or replaces a queue, in the same JSON, with an operator's rights. Not for the
    /// matcher's own thread.
    ///
    /// # Errors
    /// As [`ask_json`](Handle::ask_json).
    pub fn put_queue_json(&self, request: &str) -> Result<String, (u16, String)> {
        let method = method(Method::PUT_QUEUE).ok_or_else(|| (500, "no such method".to_owned()))?;
        self.operate(method, request)
    }

    fn operate(&self, method: &Method, request: &str) -> Result<String, (u16, String)> {
        let mut body = Vec::new();
        json::encode(method.request, request.as_bytes(), &mut body).map_err(|why| (400, why))?;
        let (status, body) = self
            .call_and_wait("", Scope::Admin, method.number, body)
            .map_err(|()| (503, self.why_ended().unwrap_or_default()))?;
        if status != Status::Ok {
            return Err((status.http(), json::problem(status.name(), &body)));
        }
        let mut answer = String::new();
        json::decode(method.response, &body, &mut answer);
        Ok(answer)
    }

    /// Counters, at most a fifth of a second old.
    #[must_use]
    pub fn report(&self) -> Report {
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner).clone();
        report.stream_bytes += self.watched.load(Ordering::Relaxed);
        report
    }

    /// The permission to serve.
    #[must_use]
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Ends the service, as [`Service::stop`] does, without waiting for it.
    pub fn stop(&self) {
        self.post(Post::Stop);
    }

    /// Begins again with an empty state: another matcher has replaced this one, which `waits` or is
    /// to serve. What is there goes to a folder called `kept`.
    #[cfg(feature = "nats")]
    pub(crate) fn begin_empty(&self, kept: Option<PathBuf>, waits: bool) {
        self.post(Post::BeginEmpty { kept, waits });
    }

    /// A policy's late verdict.
    pub(crate) fn give_verdict(&self, id: u64, verdict: Option<Verdict>) {
        self.post(Post::Verdict { id, verdict });
    }

    /// A trial is done.
    pub(crate) fn give_tried(&self, answered: Answered) {
        self.post(Post::Tried(answered));
    }

    /// Completes when the service has ended: it was stopped, or its journal failed.
    pub async fn ended(&self) {
        // The sender is here, so there is no error.
        let _ = self.ended.subscribe().wait_for(Option::is_some).await;
    }

    /// The reason why the service has ended, for people; `None` while it runs.
    #[must_use]
    pub fn why_ended(&self) -> Option<String> {
        self.ended.borrow().clone()
    }

    fn post(&self, post: Post) {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        if self.ended.borrow().is_none() {
            inbox.push(post);
        }
        drop(inbox);
        self.waker.wake();
    }

    /// Takes nothing any more. Who waits for an answer gets none, at once.
    fn end(&self, why: String) {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        self.ended.send_if_modified(|ended| {
            let is_first = ended.is_none();
            ended.get_or_insert(why);
            is_first
        });
        let posts = std::mem::take(&mut *inbox);
        drop(inbox);
        drop(posts);
    }
}

/// Ends a handle with the thread that has it, however that ends.
struct Ends(Handle);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.end("the matcher's thread panicked".to_owned());
    }
}

/// A running matcher. Dropping it stops it.
#[derive(Debug)]
pub struct Service {
    handle: Handle,
    addr: Option<SocketAddr>,
    replayed: u64,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Calls it.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Place where the framed RPC listens.
    #[must_use]
    pub fn addr(&self) -> Option<SocketAddr> {
        self.addr
    }

    /// Records that the start replayed.
    #[must_use]
    pub fn replayed(&self) -> u64 {
        self.replayed
    }

    /// Tells everybody, flushes the journal, writes a last snapshot and ends.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.handle.post(Post::Stop);
            // A panic there was reported there.
            let _ = thread.join();
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.end();
    }
}

/// Reads the journal and starts to serve.
///
/// # Errors
/// See [`StartError`]; nothing stays behind then.
pub fn start(options: Options) -> Result<Service, StartError> {
    let Options { addr, unix, tls, config, durability, fs, tokens, area, secret, salvage, policies, gate } =
        options;
    let system = |what| move |source| StartError::System { what, source };
    let mut event_loop = EventLoop::new().map_err(system("cannot make an event loop"))?;
    let waker = event_loop.waker();
    let clock = Clock::start();
    let wake = {
        let waker = waker.clone();
        Box::new(move || waker.wake())
    };
    let now = wall_ms();
    let open = OpenOptions { fs, durability, config, secret, now, salvage, wake };
    let Recovered { matcher, mut journal, replayed, notices } = Journal::open(open)?;
    let mut bound = None;
    if let Some(addr) = addr {
        let mut spec = ListenerSpec { tls, ..ListenerSpec::new(addr, Transport::Tcp) };
        spec.limits.descriptors_spared = DESCRIPTORS_SPARED.min(throng_net::descriptor_limit() / 4);
        let (_, at) = event_loop.listen(spec).map_err(|source| StartError::Bind { addr, source })?;
        bound = Some(at);
    }
    if let Some(path) = unix {
        let opened = event_loop.listen_unix(&path, Limits::default());
        opened.map_err(|source| StartError::Unix { path, source })?;
    }
    let inbox = Arc::new(Mutex::new(Vec::new()));
    let report = Arc::new(Mutex::new(Report::default()));
    let handle = Handle {
        inbox: Arc::clone(&inbox),
        waker,
        report: Arc::clone(&report),
        subscriptions: Arc::default(),
        watched: Arc::default(),
        gate: gate.clone(),
        ended: Arc::new(watch::Sender::new(None)),
    };
    let now = now.max(matcher.now().0);
    if let Some(journal) = &mut journal {
        journal.commit(now).map_err(system("cannot write the journal"))?;
    }
    // Epochs of different lives of the process differ: they begin at the wall time. They fit the 53
    // bits of a JavaScript number, and leave room for 2,048 streams per millisecond.
    let guard = Guard::new(gate, Instant::from_nanos(boot_time().as_nanos() - clock.now().as_nanos()));
    let wall_start = now.saturating_sub(clock.now().as_nanos() / 1_000_000);
    let policies = policies.answered_by(handle.clone());
    let trials = Trials::answered_by(handle.clone());
    let engine = Engine { matcher, journal, notices, policies, trials };
    let mut hub =
        Hub::new(engine, guard, tokens, area, format!("{now:x}"), now, now << 11, inbox, report, wall_start);
    let ends = Ends(handle.clone());
    let thread = std::thread::Builder::new()
        .name("matcher".to_owned())
        .spawn(move || {
            let why = drive(&mut event_loop, &mut hub, clock, wall_start);
            ends.0.end(why);
        })
        .map_err(system("cannot start the matcher's thread"))?;
    Ok(Service { handle, addr: bound, replayed, thread: Some(thread) })
}

/// Result of [`replay`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Records that were replayed.
    pub records: u64,
    /// Number of the next record.
    pub sequence: u64,
    /// Of the state; the same for every replay.
    pub digest: String,
    /// Time that it took.
    pub elapsed: Duration,
    /// Hashes of answers, notices and states that were the same as in the run that wrote the log.
    pub compared: u64,
}

/// Replays the journal in a folder; with `verify` from its oldest snapshot, comparing answers,
/// notices and states with those of the run that wrote it. Writes nothing to it, a torn end stays
/// for the next start to cut.
///
/// # Errors
/// A journal that cannot be read, also because a matcher runs in the folder; `Diverged` when the
/// replay does something else, which is a defect of the matcher.
pub fn replay(folder: &Path, verify: bool, salvage: bool) -> Result<Verified, JournalError> {
    let fs =
        Folder::new(folder).map_err(|source| JournalError::Io { what: "cannot open the folder", source })?;
    let began = std::time::Instant::now();
    let mut replay =
        if verify { Replay::begin_to_verify(&fs, salvage) } else { Replay::begin(&fs, salvage) }?;
    replay.run(&fs)?;
    let elapsed = began.elapsed();
    if let Some((sequence, what)) = replay.diverged.filter(|_| verify) {
        return Err(JournalError::Diverged { sequence, what });
    }
    let digest = replay.matcher.as_ref().map_or([0; 32], Matcher::digest);
    let digest = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let Replay { replayed: records, sequence, compared, .. } = replay;
    Ok(Verified { records, sequence, digest, elapsed, compared })
}

/// Replays the journal in a folder and leaves only a snapshot of the state, which a later release
/// reads. Gives the number of records that it replayed.
///
/// # Errors
/// A journal that cannot be read, also because a matcher runs in the folder.
pub fn settle(folder: &Path) -> Result<u64, JournalError> {
    let fs =
        Folder::new(folder).map_err(|source| JournalError::Io { what: "cannot open the folder", source })?;
    crate::journal::settle(&fs)
}

/// The first folder that is not there: this one, or it with a number behind its name, from 2.
#[must_use]
pub fn unused_folder(folder: &Path) -> PathBuf {
    let numbered = |number: u32| {
        let mut name = folder.as_os_str().to_owned();
        name.push(format!("-{number}"));
        PathBuf::from(name)
    };
    let mut found = folder.to_owned();
    for number in 2.. {
        if !found.exists() {
            break;
        }
        found = numbered(number);
    }
    found
}

/// Exports the state of the journal in a folder as JSON lines. Writes nothing to the folder.
///
/// # Errors
/// A journal that cannot be read, also because a matcher runs in the folder.
pub fn export(folder: &Path) -> Result<Vec<u8>, JournalError> {
    let fs =
        Folder::new(folder).map_err(|source| JournalError::Io { what: "cannot open the folder", source })?;
    let mut replay = Replay::begin(&fs, false)?;
    replay.run(&fs)?;
    let mut lines = Vec::new();
    if let Some(matcher) = &replay.matcher {
        matcher.export(&mut lines);
    }
    Ok(lines)
}

/// Makes a journal of exported lines in a folder that is empty or not there yet. All lines are
/// checked before anything is written. Gives what it holds.
///
/// # Errors
/// A folder that is not empty, a line that is wrong, or as the system says.
pub fn import(folder: &Path, lines: &str, secret: [u8; 32]) -> Result<Counts, ImportError> {
    if !crate::journal::is_unused(folder) {
        return Err(ImportError::NotEmpty);
    }
    let matcher = Matcher::import(lines, secret)?;
    crate::journal::keep(folder, &matcher)?;
    Ok(matcher.counts())
}

/// Runs until the service is stopped or cannot go on. Returns which, for people.
fn drive(event_loop: &mut EventLoop, hub: &mut Hub, clock: Clock, wall_start: u64) -> String {
    let mut tidied = 0;
    loop {
        let next = hub.next_timeout().unwrap_or(u64::MAX).min(tidied + TIDY_MS);
        let deadline = if hub.has_fresh() || next <= hub.now {
            clock.now()
        } else {
            Instant::from_millis(next.saturating_sub(wall_start))
        };
        if let Err(error) = event_loop.poll(&clock, Some(deadline), hub) {
            tracing::error!(%error, "the matcher's event loop failed");
            return format!("the matcher has ended, because its event loop failed: {error}");
        }
        if let Err(error) = hub.end() {
            tracing::error!(%error, "the matcher's journal failed; the service ends and what was not durable is lost");
            return format!("the matcher has ended, because its journal cannot be written: {error}");
        }
        hub.release();
        write_out(event_loop, hub);
        if hub.now >= tidied + TIDY_MS {
            tidied = hub.now;
            hub.tidy();
        }
        act(event_loop, hub);
        if hub.stop {
            let stopped = "the matcher was stopped".to_owned();
            hub.say_goodbye();
            let until = clock.now() + GOODBYE;
            while hub.end().is_ok() && clock.now() < until && hub.has_output() {
                hub.release();
                write_out(event_loop, hub);
                act(event_loop, hub);
                if event_loop.poll(&clock, Some(clock.now() + Duration::from_millis(5)), hub).is_err() {
                    return stopped;
                }
            }
            hub.engine.last_snapshot(hub.now);
            return stopped;
        }
    }
}

fn write_out(event_loop: &mut EventLoop, hub: &mut Hub) {
    for index in hub.take_dirty() {
        let Some((key, bytes)) = hub.output(index) else { continue };
        let outcome = event_loop.write(key, &[IoSlice::new(bytes)]);
        hub.wrote(index, outcome.taken, outcome.blocked);
    }
}

fn act(event_loop: &mut EventLoop, hub: &mut Hub) {
    for act in std::mem::take(&mut hub.acts) {
        match act {
            Act::Close(key) => {
                event_loop.close(key, CloseMode::Flush);
                hub.forget(key);
            }
            Act::CloseNow(key) => {
                event_loop.close(key, CloseMode::Now);
                hub.forget(key);
            }
            Act::Resume(key) => event_loop.resume_read(key),
        }
    }
}

fn wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
