//! The asynchronous driver: a task that owns a [`Session`] and its transport.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher as _;
use std::time::Duration;

use throng_stdx::{Instant, Rng};
use throng_wire::matcher::Reader;
use tokio::sync::{mpsc, oneshot};

use crate::event::{
    AuthOutcome, ChannelEntry, ChannelId, ChannelType, CloseCode, CloseReason, ConnId, Event, RequestFailure,
    RequestId,
};
use crate::matcher::{CallError, MatchmakingEvent, MatchmakingRequest};
use crate::options::{CreateChannel, SubscribeOptions};
use crate::session::{SendError, Session, SessionConfig};
use crate::transport::{self, Endpoint, OpenError, Pipe};

/// Policy for reconnecting after a loss.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backoff {
    /// Pause before the first attempt.
    pub first: Duration,
    /// Longest pause; every failure doubles it up to here.
    pub longest: Duration,
    /// Maximum number of attempts; `None` = unlimited, 0 = do not reconnect.
    pub attempts: Option<u32>,
}

impl Default for Backoff {
    /// 100 ms, doubling to 10 s, without a limit of attempts. A restarted gateway is found within a
    /// second, and a thousand players together make at most a hundred attempts a second.
    fn default() -> Self {
        Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(10), attempts: None }
    }
}

impl Backoff {
    /// Policy that never reconnects.
    #[must_use]
    pub fn never() -> Self {
        Backoff { attempts: Some(0), ..Backoff::default() }
    }

    /// Returns the pause before attempt `attempt` (from 0): a random time between half and all of
    /// the doubled pause, so that peers that lost their gateway together do not return together.
    pub(crate) fn pause(&self, attempt: u32, rng: &mut Rng) -> Duration {
        let full = self.first.saturating_mul(1_u32 << attempt.min(20)).min(self.longest);
        full.mul_f64(0.5 + rng.f64() / 2.0)
    }
}

/// Failure to establish a session.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The transport could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The gateway does not admit this peer.
    #[error("gateway refused the authentication: {0:?}")]
    Refused(AuthOutcome),
    /// The connection ended before the result.
    #[error("connection ended during the authentication: {0}")]
    Closed(CloseReason),
}

/// Failure of a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// It was not sent.
    #[error(transparent)]
    Send(#[from] SendError),
    /// No response in time: the gateway refused, or is too slow.
    #[error("no answer in time; the gateway does not answer requests that it refuses")]
    Timeout,
    /// The connection ended first.
    #[error("connection ended before the answer")]
    Closed,
    /// The matcher behind the gateway refused.
    #[error(transparent)]
    Matcher(#[from] CallError),
    /// The response does not belong to this kind of request.
    #[error("the gateway answered with something else")]
    Unexpected,
}

/// A channel that this connection created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Created {
    /// Its id.
    pub channel: ChannelId,
    /// Its owner: this connection.
    pub owner: ConnId,
}

/// Handle of a running connection; clones share it. The connection ends when the last one is
/// dropped, or with [`Client::close`].
///
/// ```no_run
/// use throng_client::{ChannelType, Client, CreateChannel, Event, SessionConfig};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let endpoint = "127.0.0.1:12108".parse()?;
/// let (client, mut events) = Client::connect(endpoint, SessionConfig::client("alice", "")).await?;
/// let room = client.create_channel(CreateChannel::new(ChannelType::SUBWORLD).metadata("lobby")).await?;
/// client.send(room.channel, 100, "hello").await?;
/// while let Some(event) = events.next().await {
///     println!("{event:?}");
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Client {
    commands: mpsc::Sender<Command>,
    conn: ConnId,
}

/// Events of the connection, in order; responses to requests of [`Client`] go to their caller
/// instead.
///
/// If the application does not read them, the connection stops reading its transport after
/// [`EVENTS_WAITING_MAX`] events: the gateway then conflates channel data for it and finally closes
/// it.
#[derive(Debug)]
pub struct Events {
    events: mpsc::Receiver<Event>,
}

/// Events that may wait for [`Events::next`]; above this, the driver stops reading the transport.
/// The queue holds about a second of several busy channels (50 Hz), so a stuck application is
/// noticed within seconds.
pub const EVENTS_WAITING_MAX: usize = 1024;

/// Commands of all handles that may wait for the task; above this, senders wait.
const COMMANDS_WAITING_MAX: usize = 256;

/// Longest time that a transport may take to connect.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// Work on the session, executed in the task that owns it.
type Operation = Box<dyn FnOnce(&mut Session, Instant) -> Result<Option<RequestId>, SendError> + Send>;
type Answer = oneshot::Sender<Result<Option<Event>, RequestError>>;

enum Command {
    Run(Operation, Answer),
    Close,
}

impl Client {
    /// Connects, authenticates and starts the task; reconnects with [`Backoff::default`] when the
    /// connection is lost later.
    ///
    /// # Errors
    /// If the first connection fails; see [`ConnectError`].
    pub async fn connect(
        endpoint: Endpoint,
        config: SessionConfig,
    ) -> Result<(Client, Events), ConnectError> {
        Client::connect_with(endpoint, config, Backoff::default()).await
    }

    /// Like `connect`, with another policy for reconnecting.
    ///
    /// # Errors
    /// If the first connection fails; see [`ConnectError`].
    pub async fn connect_with(
        endpoint: Endpoint,
        config: SessionConfig,
        backoff: Backoff,
    ) -> Result<(Client, Events), ConnectError> {
        let (commands, command_queue) = mpsc::channel(COMMANDS_WAITING_MAX);
        let (event_queue, events) = mpsc::channel(EVENTS_WAITING_MAX);
        let pipe = transport::open(&endpoint, OPEN_TIMEOUT).await?;
        let (ready, admitted) = oneshot::channel();
        let task = Task {
            endpoint,
            world: config.world.clone(),
            home: None,
            way: Vec::new(),
            elsewhere: None,
            backoff,
            session: Session::new(config),
            commands: command_queue,
            events: event_queue,
            undelivered: VecDeque::new(),
            answers: HashMap::new(),
            ready: Some(ready),
            epoch: tokio::time::Instant::now(),
            listening: true,
            was_open: false,
            closing: false,
            leaving: false,
            overloaded: false,
        };
        tokio::spawn(task.run(pipe));
        match admitted.await {
            Ok(Ok(conn)) => Ok((Client { commands, conn }, Events { events })),
            Ok(Err(error)) => Err(error),
            // The task ended without a word: its runtime is shutting down.
            Err(_) => Err(ConnectError::Closed(CloseReason::Transport)),
        }
    }

    /// Returns the id from the first authentication. A reconnect without resumption assigns another
    /// id; see [`Event::Authenticated`].
    #[must_use]
    pub fn conn(&self) -> ConnId {
        self.conn
    }

    /// Creates a channel; the creator owns it and is subscribed to it.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn create_channel(&self, create: CreateChannel) -> Result<Created, RequestError> {
        let answer = self.request(move |session, now| session.create_channel(now, &create)).await?;
        match answer {
            Event::ChannelCreated { channel, owner, .. } => Ok(Created { channel, owner }),
            _ => Err(RequestError::Unexpected),
        }
    }

    /// Removes a channel.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn remove_channel(&self, channel: ChannelId) -> Result<(), RequestError> {
        self.request(move |session, now| session.remove_channel(now, channel)).await.map(drop)
    }

    /// Lists channels of a type whose metadata contains one of the filters.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn list_channels(
        &self,
        type_filter: Option<ChannelType>,
        metadata_filters: Vec<String>,
    ) -> Result<Vec<ChannelEntry>, RequestError> {
        let answer = self
            .request(move |session, now| session.list_channels(now, type_filter, &metadata_filters))
            .await?;
        match answer {
            Event::ChannelList { channels, .. } => Ok(channels),
            _ => Err(RequestError::Unexpected),
        }
    }

    /// Subscribes this connection to a channel; returns the options in force.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn subscribe(
        &self,
        channel: ChannelId,
        options: SubscribeOptions,
    ) -> Result<SubscribeOptions, RequestError> {
        self.subscribe_other(channel, None, options).await
    }

    /// Subscribes another connection to a channel (servers); returns the options in force.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn subscribe_other(
        &self,
        channel: ChannelId,
        conn: Option<ConnId>,
        options: SubscribeOptions,
    ) -> Result<SubscribeOptions, RequestError> {
        let answer =
            self.request(move |session, now| session.subscribe(now, channel, conn, &options)).await?;
        match answer {
            Event::Subscribed { options, .. } => Ok(options),
            _ => Err(RequestError::Unexpected),
        }
    }

    /// As a player, joins a room of a mode with a free seat, or opens one. The match begins when
    /// the room is full: the gateway subscribes this player to its channel and sends
    /// [`MatchmakingEvent::Entered`].
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn join_random_room(&self, mode: &str) -> Result<(), RequestError> {
        self.matchmake(MatchmakingRequest::join_random_room(mode)).await.map(drop)
    }

    /// As a player, queues for a match by the rules of a queue. The match begins as with
    /// [`join_random_room`](Self::join_random_room). Returns the id of the ticket.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn join_queue(&self, queue: &str) -> Result<String, RequestError> {
        let answer = self.matchmake(MatchmakingRequest::join_queue(queue)).await?;
        let ticket = Reader::new(&answer).and_then(|body| Ok(body.nested(1)?.str(1)?.to_owned()));
        ticket.map_err(|_| RequestError::Unexpected)
    }

    /// As a player, calls any method of the matcher that players may call; returns the body of the
    /// response.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn matchmake(&self, ask: MatchmakingRequest) -> Result<bytes::Bytes, RequestError> {
        match self.request(move |session, now| session.matchmake(now, &ask)).await? {
            Event::Matchmaking { event: MatchmakingEvent::Answered { result, .. }, .. } => Ok(result?),
            _ => Err(RequestError::Unexpected),
        }
    }

    /// Unsubscribes this connection, or the given one.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn unsubscribe(&self, channel: ChannelId, conn: Option<ConnId>) -> Result<(), RequestError> {
        self.request(move |session, now| session.unsubscribe(now, channel, conn)).await.map(drop)
    }

    /// Sends an update of a channel's data.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn update(
        &self,
        channel: ChannelId,
        type_name: impl Into<String>,
        value: impl Into<bytes::Bytes>,
    ) -> Result<(), RequestError> {
        let (type_name, value) = (type_name.into(), value.into());
        self.tell(move |session| session.update(channel, &type_name, &value)).await
    }

    /// Sends a user-space message to the owner of a channel.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn send(
        &self,
        channel: ChannelId,
        msg_type: u32,
        payload: impl Into<bytes::Bytes>,
    ) -> Result<(), RequestError> {
        let payload = payload.into();
        self.tell(move |session| session.send(channel, msg_type, &payload)).await
    }

    /// Sends a user-space message as a server; see [`Session::forward`].
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn forward(
        &self,
        channel: ChannelId,
        broadcast: u32,
        msg_type: u32,
        client: ConnId,
        payload: impl Into<bytes::Bytes>,
    ) -> Result<(), RequestError> {
        let payload = payload.into();
        self.tell(move |session| session.forward(channel, broadcast, msg_type, client, &payload)).await
    }

    /// Runs an operation on the session, without waiting for a response.
    ///
    /// # Errors
    /// What the operation returns.
    pub async fn tell(
        &self,
        operation: impl FnOnce(&mut Session) -> Result<(), SendError> + Send + 'static,
    ) -> Result<(), RequestError> {
        self.run(Box::new(move |session, _| operation(session).map(|()| None))).await.map(drop)
    }

    /// Sends a request whose response arrives as an event with the returned id, for callers that do
    /// not wait.
    ///
    /// # Errors
    /// What the operation returns.
    pub async fn submit(
        &self,
        operation: impl FnOnce(&mut Session, Instant) -> Result<RequestId, SendError> + Send + 'static,
    ) -> Result<RequestId, RequestError> {
        let (sent, id) = oneshot::channel();
        // Without an id of its own the operation leaves the answer to the events.
        let operation = move |session: &mut Session, now| {
            // A caller that stopped waiting finds the answer among the events all the same.
            let _ = sent.send(operation(session, now)?);
            Ok(None)
        };
        self.run(Box::new(operation)).await?;
        id.await.map_err(|_| RequestError::Closed)
    }

    /// Ends the connection for all handles. The player leaves: its seats in rooms, queues and
    /// channels are freed at once. If all handles are dropped instead, the connection is lost, and
    /// a player with a resume token can resume it for a while.
    pub async fn close(&self) {
        // A task that has ended already leaves nothing to close.
        let _ = self.commands.send(Command::Close).await;
    }

    async fn request(
        &self,
        operation: impl FnOnce(&mut Session, Instant) -> Result<RequestId, SendError> + Send + 'static,
    ) -> Result<Event, RequestError> {
        let event = self.run(Box::new(move |session, now| operation(session, now).map(Some))).await?;
        event.ok_or(RequestError::Unexpected)
    }

    async fn run(&self, operation: Operation) -> Result<Option<Event>, RequestError> {
        let (answer, answered) = oneshot::channel();
        self.commands.send(Command::Run(operation, answer)).await.map_err(|_| RequestError::Closed)?;
        answered.await.map_err(|_| RequestError::Closed)?
    }
}

impl Events {
    /// Waits for the next event; `None` once the connection has ended for good.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// Returns the next event if one is queued.
    pub fn try_next(&mut self) -> Option<Event> {
        self.events.try_recv().ok()
    }
}

/// State of the task behind a [`Client`].
struct Task {
    /// The endpoint and the world that the application named.
    endpoint: Endpoint,
    world: Option<String>,
    /// Endpoint of the node that serves the world, if the gateway named one.
    home: Option<Endpoint>,
    /// Endpoints that named another one, since a session last worked.
    way: Vec<String>,
    /// The latest connection ended because another node serves the world: addresses, world.
    elsewhere: Option<(Vec<String>, String)>,
    backoff: Backoff,
    session: Session,
    commands: mpsc::Receiver<Command>,
    events: mpsc::Sender<Event>,
    /// Events that found the queue full.
    undelivered: VecDeque<Event>,
    answers: HashMap<RequestId, Answer>,
    /// Reports the result of the first authentication; taken then.
    ready: Option<oneshot::Sender<Result<ConnId, ConnectError>>>,
    epoch: tokio::time::Instant,
    /// False once `Events` is dropped; events are discarded then.
    listening: bool,
    /// The current connection was admitted.
    was_open: bool,
    closing: bool,
    /// The application has closed the connection, so the player leaves.
    leaving: bool,
    /// The gateway closed the latest connection because of overload or a rate limit.
    overloaded: bool,
}

impl Task {
    async fn run(mut self, pipe: Pipe) {
        // Any seed will do: it only keeps peers that lost their gateway together from returning
        // together.
        let mut rng = Rng::new(std::hash::RandomState::new().hash_one(0));
        let mut pipe = Some(pipe);
        let mut attempt = 0;
        loop {
            if let Some(open) = pipe.take() {
                self.drive(open).await;
                // Back soon after a session that worked, with growing pauses otherwise.
                if std::mem::take(&mut self.was_open) {
                    attempt = 0;
                }
                if let Some((addresses, world)) = self.elsewhere.take() {
                    pipe = self.follow(&addresses, world).await;
                    if pipe.is_some() {
                        continue;
                    }
                }
            }
            // A first connection that fails is reported by `connect`, not retried behind its back.
            if self.closing || self.ready.is_some() || self.backoff.attempts.is_some_and(|max| attempt >= max)
            {
                return;
            }
            // A gateway that has too much already is not asked again soon.
            let tries = if std::mem::take(&mut self.overloaded) { u32::MAX } else { attempt };
            let pause = self.backoff.pause(tries, &mut rng);
            attempt += 1;
            if !self.wait(pause).await {
                return;
            }
            pipe = self.open_again().await;
        }
    }

    /// Opens a connection to the first of these addresses that answers. If none does, that is
    /// reported.
    async fn follow(&mut self, addresses: &[String], world: String) -> Option<Pipe> {
        self.way.push(self.home.as_ref().unwrap_or(&self.endpoint).to_string());
        self.session.set_world(Some(world.clone()));
        for endpoint in self.endpoint.siblings(addresses) {
            if let Ok(pipe) = transport::open(&endpoint, OPEN_TIMEOUT).await {
                self.home = Some(endpoint);
                return Some(pipe);
            }
        }
        self.report_elsewhere(addresses.to_vec(), world);
        None
    }

    /// The search for the world's node has failed. The next attempt begins where the first did.
    fn report_elsewhere(&mut self, addresses: Vec<String>, world: String) {
        let reason = CloseReason::Elsewhere { addresses, world, way: std::mem::take(&mut self.way) };
        self.home = None;
        self.deliver(Event::Closed { reason });
    }

    /// Connects again: to the node that served the world, or to the first endpoint if that does not
    /// answer.
    async fn open_again(&mut self) -> Option<Pipe> {
        if let Some(home) = &self.home {
            match transport::open(home, OPEN_TIMEOUT).await {
                Ok(pipe) => return Some(pipe),
                Err(_) => self.home = None,
            }
        }
        self.session.set_world(self.world.clone());
        transport::open(&self.endpoint, OPEN_TIMEOUT).await.ok()
    }

    /// Runs one connection until it ends.
    async fn drive(&mut self, mut pipe: Pipe) {
        self.session.handle_connected(self.now());
        let events = self.events.clone();
        let mut frames: VecDeque<Vec<u8>> = VecDeque::new();
        loop {
            self.take_events();
            // One frame ahead is enough: the rest gathers in the session and shares the next frame.
            if frames.is_empty() {
                let mut frame = Vec::new();
                let now = self.now();
                if self.session.poll_transmit(now, &mut frame).is_some() {
                    frames.push_back(frame);
                }
            }
            if self.session.is_closed() || self.closing {
                break;
            }
            let timeout = self.session.next_timeout().map(|at| self.epoch + at.since(Instant::ZERO));
            tokio::select! {
                chunk = pipe.incoming.recv(), if self.undelivered.is_empty() => match chunk {
                    Some(chunk) => {
                        let now = self.now();
                        self.session.handle_bytes(now, &chunk);
                    }
                    None => break,
                },
                permit = pipe.outgoing.reserve(), if !frames.is_empty() => match permit {
                    Ok(permit) => {
                        if let Some(frame) = frames.pop_front() {
                            permit.send(frame);
                        }
                    }
                    Err(_) => break,
                },
                permit = events.reserve(), if !self.undelivered.is_empty() => match permit {
                    Ok(permit) => {
                        if let Some(event) = self.undelivered.pop_front() {
                            permit.send(event);
                        }
                    }
                    Err(_) => self.stop_listening(),
                },
                command = self.commands.recv() => self.handle_command(command),
                () = sleep_until(timeout) => {
                    let now = self.now();
                    self.session.handle_timeout(now);
                }
            }
        }
        let now = self.now();
        let code = pipe.close_code();
        self.closing |= code.is_some_and(CloseCode::is_final);
        self.overloaded = code.is_some_and(CloseCode::is_overload);
        // A close that was asked for lets the last messages out; a lost connection has nobody to
        // read.
        if self.closing {
            let mut rest: Vec<u8> = frames.into_iter().flatten().collect();
            if self.leaving {
                self.session.leave(now, &mut rest);
            }
            while self.session.poll_transmit(now, &mut rest).is_some() {}
            // Failing means that the transport ended at the same time.
            let _ = pipe.outgoing.send(rest).await;
            pipe.finish(FAREWELL_TIMEOUT).await;
        }
        self.session.handle_closed(now, code);
        self.take_events();
    }

    /// Answers commands during a pause. Returns false if all handles are dropped.
    async fn wait(&mut self, pause: Duration) -> bool {
        let events = self.events.clone();
        let end = tokio::time::Instant::now() + pause;
        while !self.closing {
            tokio::select! {
                () = tokio::time::sleep_until(end) => return true,
                permit = events.reserve(), if !self.undelivered.is_empty() => match permit {
                    Ok(permit) => {
                        if let Some(event) = self.undelivered.pop_front() {
                            permit.send(event);
                        }
                    }
                    Err(_) => self.stop_listening(),
                },
                command = self.commands.recv() => self.handle_command(command),
            }
        }
        false
    }

    fn handle_command(&mut self, command: Option<Command>) {
        match command {
            Some(Command::Run(operation, answer)) => {
                let now = self.now();
                let reply = match operation(&mut self.session, now) {
                    Ok(Some(request)) => {
                        self.answers.insert(request, answer);
                        return;
                    }
                    Ok(None) => Ok(None),
                    Err(error) => Err(error.into()),
                };
                // A caller that stopped waiting does not need the answer.
                let _ = answer.send(reply);
            }
            Some(Command::Close) => (self.closing, self.leaving) = (true, true),
            None => self.closing = true,
        }
    }

    fn stop_listening(&mut self) {
        self.listening = false;
        self.undelivered.clear();
    }

    /// Routes the session's events.
    fn take_events(&mut self) {
        while let Some(event) = self.session.poll_event() {
            match event {
                Event::Closed { reason: CloseReason::Elsewhere { addresses, world, .. } } => {
                    if self.way.len() < self.session.config().moves_max {
                        self.elsewhere = Some((addresses, world));
                    } else {
                        self.report_elsewhere(addresses, world);
                    }
                }
                event => self.deliver(event),
            }
        }
    }

    fn deliver(&mut self, event: Event) {
        self.report_admission(&event);
        let Some(event) = self.answer(event) else { return };
        if !self.listening {
            return;
        }
        if self.undelivered.is_empty() {
            match self.events.try_send(event) {
                Ok(()) => {}
                Err(mpsc::error::TrySendError::Full(event)) => self.undelivered.push_back(event),
                Err(mpsc::error::TrySendError::Closed(_)) => self.stop_listening(),
            }
        } else {
            self.undelivered.push_back(event);
        }
    }

    /// Reports the result of the first authentication to `connect`.
    fn report_admission(&mut self, event: &Event) {
        let outcome = match event {
            Event::Authenticated { conn, .. } => {
                self.was_open = true;
                self.way.clear();
                Ok(*conn)
            }
            Event::AuthRefused { outcome } => Err(ConnectError::Refused(*outcome)),
            Event::Closed { reason } => Err(ConnectError::Closed(reason.clone())),
            _ => return,
        };
        if let Some(ready) = self.ready.take() {
            self.closing |= outcome.is_err();
            // A caller that gave up connecting is noticed as dropped handles.
            let _ = ready.send(outcome);
        }
    }

    /// Passes an event to the request that waits for it, or returns it.
    fn answer(&mut self, event: Event) -> Option<Event> {
        let Some(request) = event.request() else { return Some(event) };
        let Some(answer) = self.answers.remove(&request) else { return Some(event) };
        let reply = match event {
            Event::RequestFailed { reason: RequestFailure::Timeout, .. } => Err(RequestError::Timeout),
            Event::RequestFailed { reason: RequestFailure::Closed, .. } => Err(RequestError::Closed),
            event => Ok(Some(event)),
        };
        // A caller that stopped waiting does not need the answer.
        let _ = answer.send(reply);
        None
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.epoch.elapsed()
    }
}

/// Time for a gateway to read the last messages of a closed connection.
const FAREWELL_TIMEOUT: Duration = Duration::from_millis(400);

async fn sleep_until(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
