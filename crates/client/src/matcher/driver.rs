//! The asynchronous driver: a task that owns a [`MatcherSession`] and its transport.

use std::collections::HashMap;

use bytes::Bytes;
use throng_stdx::{Instant, Rng};
use throng_wire::matcher::{Status, Writer};
use tokio::sync::{mpsc, oneshot};

use super::session::{CallError, CallId, MatcherConfig, MatcherEvent, MatcherSession, Notice};
use crate::driver::Backoff;
use crate::transport::{self, Endpoint, OpenError, Pipe};

/// Calls of all handles that may wait for the task; above this, callers wait.
const COMMANDS_WAITING_MAX: usize = 1_024;
/// Notifications that may wait for [`Notices::next`]; above this, the driver stops reading the
/// connection, and responses wait as well. The matcher queues notifications up to its own bound and
/// then starts a new stream, which is reported as [`Notification::Gap`].
pub const NOTICES_WAITING_MAX: usize = 4_096;

/// Failure to establish a session.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MatcherConnectError {
    /// The transport could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The matcher does not admit this server.
    #[error("the matcher refused the session: {}: {message}", status.name())]
    Refused {
        /// Reason.
        status: Status,
        /// Message for people.
        message: String,
    },
    /// The connection ended before the hello.
    #[error("the connection ended before the matcher's hello")]
    Closed,
}

/// Item that [`Notices`] yields.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notification {
    /// A notification.
    Notice(Notice),
    /// Notifications are missing; call [`Matcher::mine`] for the current state.
    Gap,
    /// The matcher ended the session for good, for example because another session with the same
    /// `SrvID` began.
    Ended {
        /// Reason.
        status: Status,
        /// Message for people.
        message: String,
    },
}

/// Handle of a session with a matcher; clones share it. The session ends when the last one is
/// dropped.
///
/// The task reopens lost connections and repeats unanswered calls with the same idempotency key. A
/// response therefore means that the call had its effect exactly once, and a refusal that it had
/// none.
///
/// ```no_run
/// use throng_client::{Matcher, MatcherConfig, Notification, Role};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let endpoint = "127.0.0.1:11290".parse()?;
/// let (matcher, mut notices) = Matcher::connect(endpoint, MatcherConfig::new("game_1")).await?;
/// let room = matcher.join_random_room(&Role::new("alice").float("level", 7.0), "2v2").await?;
/// println!("{} of {}", room.roles.len(), room.id);
/// while let Some(Notification::Notice(notice)) = notices.next().await {
///     println!("{} for {:?}", notice.name(), notice.roles);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Matcher {
    commands: mpsc::Sender<Command>,
}

/// The notifications of a session, in order.
#[derive(Debug)]
pub struct Notices {
    events: mpsc::Receiver<Notification>,
}

impl Notices {
    /// Waits for the next notification; `None` after the end of the session.
    pub async fn next(&mut self) -> Option<Notification> {
        self.events.recv().await
    }
}

type Answer = oneshot::Sender<Result<Bytes, CallError>>;

#[derive(Debug)]
struct Command {
    method: u16,
    body: Writer,
    answer: Answer,
}

impl Matcher {
    /// Connects, sends the hello and starts the task.
    ///
    /// # Errors
    /// If the first connection fails; see [`MatcherConnectError`].
    pub async fn connect(
        endpoint: Endpoint,
        config: MatcherConfig,
    ) -> Result<(Matcher, Notices), MatcherConnectError> {
        Matcher::connect_with(endpoint, config, Backoff::default()).await
    }

    /// Like `connect`, with another policy for reconnecting.
    ///
    /// # Errors
    /// If the first connection fails; see [`MatcherConnectError`].
    pub async fn connect_with(
        endpoint: Endpoint,
        config: MatcherConfig,
        backoff: Backoff,
    ) -> Result<(Matcher, Notices), MatcherConnectError> {
        let (commands, command_queue) = mpsc::channel(COMMANDS_WAITING_MAX);
        let (notices, events) = mpsc::channel(NOTICES_WAITING_MAX);
        let pipe = transport::open(&endpoint, config.hello_timeout).await?;
        let (ready, admitted) = oneshot::channel();
        let task = Task {
            endpoint,
            backoff,
            open_timeout: config.hello_timeout,
            rng: Rng::new(config.key_seed),
            session: MatcherSession::new(config),
            commands: command_queue,
            notices,
            answers: HashMap::new(),
            ready: Some(ready),
            began: tokio::time::Instant::now(),
        };
        tokio::spawn(task.run(pipe));
        match admitted.await {
            Ok(Ok(())) => Ok((Matcher { commands }, Notices { events })),
            Ok(Err(error)) => Err(error),
            // The task ended without a word: its runtime is shutting down.
            Err(_) => Err(MatcherConnectError::Closed),
        }
    }

    /// Calls a method of the catalogue with its request body, and returns the response body.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn call(&self, method: u16, body: Writer) -> Result<Bytes, CallError> {
        let (answer, result) = oneshot::channel();
        self.commands.send(Command { method, body, answer }).await.map_err(|_| CallError::Closed)?;
        result.await.unwrap_or(Err(CallError::Closed))
    }
}

struct Task {
    endpoint: Endpoint,
    backoff: Backoff,
    open_timeout: std::time::Duration,
    rng: Rng,
    session: MatcherSession,
    commands: mpsc::Receiver<Command>,
    notices: mpsc::Sender<Notification>,
    answers: HashMap<CallId, Answer>,
    ready: Option<oneshot::Sender<Result<(), MatcherConnectError>>>,
    began: tokio::time::Instant,
}

impl Task {
    async fn run(mut self, pipe: Pipe) {
        let mut pipe = Some(pipe);
        while let Some(open) = pipe.take() {
            self.session.handle_connected(self.now());
            let goes_on = self.serve(open).await;
            if !goes_on || self.session.is_over() || self.ready.is_some() {
                break;
            }
            pipe = self.reopen().await;
        }
        if let Some(ready) = self.ready.take() {
            // The caller may have given up.
            let _ = ready.send(Err(MatcherConnectError::Closed));
        }
    }

    /// Serves one connection. Returns `false` if all handles are dropped.
    async fn serve(&mut self, mut pipe: Pipe) -> bool {
        loop {
            let mut bytes = Vec::new();
            if self.session.poll_transmit(&mut bytes) && pipe.outgoing.send(bytes).await.is_err() {
                self.session.handle_closed();
            }
            let Some(is_lost) = self.deliver().await else { return false };
            if is_lost {
                return true;
            }
            let deadline = self.deadline();
            tokio::select! {
                chunk = pipe.incoming.recv() => match chunk {
                    Some(chunk) => self.session.handle_bytes(&chunk),
                    None => self.session.handle_closed(),
                },
                command = self.commands.recv() => match command {
                    Some(command) => self.execute(command),
                    None => return false,
                },
                () = tokio::time::sleep_until(deadline) => self.session.handle_timeout(self.now()),
            }
            // Requests that wait already leave with the same write.
            while let Ok(command) = self.commands.try_recv() {
                self.execute(command);
            }
        }
    }

    /// Opens another connection, while calls may time out. `None` if the attempts are used up or
    /// all handles are dropped.
    async fn reopen(&mut self) -> Option<Pipe> {
        for attempt in 0.. {
            if self.backoff.attempts.is_some_and(|most| attempt >= most) {
                return None;
            }
            let pause = tokio::time::sleep(self.backoff.pause(attempt, &mut self.rng));
            tokio::pin!(pause);
            loop {
                let deadline = self.deadline();
                tokio::select! {
                    () = &mut pause => break,
                    command = self.commands.recv() => self.execute(command?),
                    () = tokio::time::sleep_until(deadline) => self.session.handle_timeout(self.now()),
                }
                self.deliver().await?;
            }
            if let Ok(pipe) = transport::open(&self.endpoint, self.open_timeout).await {
                return Some(pipe);
            }
        }
        None
    }

    fn execute(&mut self, command: Command) {
        match self.session.call(self.now(), command.method, command.body) {
            Ok(call) => drop(self.answers.insert(call, command.answer)),
            // The caller may have given up.
            Err(error) => drop(command.answer.send(Err(error))),
        }
    }

    /// Delivers events. Returns whether the connection was lost; `None` if all handles are dropped.
    async fn deliver(&mut self) -> Option<bool> {
        let mut is_lost = false;
        while let Some(event) = self.session.poll_event() {
            match event {
                MatcherEvent::Connected { .. } => {
                    if let Some(ready) = self.ready.take() {
                        ready.send(Ok(())).ok()?;
                    }
                }
                MatcherEvent::Answered { call, result } => {
                    if let Some(answer) = self.answers.remove(&call) {
                        // The caller may have given up.
                        let _ = answer.send(result);
                    }
                }
                MatcherEvent::Notice(notice) => self.tell(Notification::Notice(notice)).await,
                MatcherEvent::Gap => self.tell(Notification::Gap).await,
                MatcherEvent::Lost => is_lost = true,
                MatcherEvent::Refused { status, message } => {
                    is_lost = true;
                    match self.ready.take() {
                        // The caller may have given up.
                        Some(ready) => {
                            drop(ready.send(Err(MatcherConnectError::Refused { status, message })));
                        }
                        None => self.tell(Notification::Ended { status, message }).await,
                    }
                }
            }
        }
        Some(is_lost)
    }

    /// Queues a notification, waiting for room. Without a reader it is dropped.
    async fn tell(&self, notification: Notification) {
        let _ = self.notices.send(notification).await;
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.began.elapsed()
    }

    fn deadline(&self) -> tokio::time::Instant {
        let far = self.began.elapsed() + std::time::Duration::from_secs(3_600);
        let next = self.session.next_timeout().map_or(far, |at| at.since(Instant::ZERO));
        self.began + next
    }
}
