//! The directory of a cluster in a key-value bucket of NATS.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::jetstream::context::{CreateKeyValueErrorKind, GetStreamErrorKind, PublishErrorKind};
use async_nats::jetstream::kv::{self, Operation, Store};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{Info, LastRawMessageErrorKind, StorageType, Stream};
use async_nats::jetstream::{self, Context, ErrorCode};
use async_nats::{Client, ConnectErrorKind, ConnectOptions, ServerError};
use bytes::Bytes;
use futures_util::StreamExt as _;
use throng_cluster::{Action, ClusterRecord, DirectoryResult, Key, Name};
use tokio::sync::{mpsc, watch};

use super::plan::{FORMAT, bucket};
use crate::config::Settings;

/// A request to the directory has this time.
pub(super) const TIMEOUT: Duration = Duration::from_secs(2);
/// Time for the first connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Pings find a server that vanished without a word: two unanswered ones end the connection.
const PING: Duration = Duration::from_secs(1);
/// Pause before a connection or a watch that failed is tried again.
const REST: Duration = Duration::from_millis(250);
/// Time between two looks at the state of the bucket.
const LOOK: Duration = Duration::from_secs(5);
/// Time for which the mark of a deletion is kept.
const MARK: Duration = Duration::from_secs(3_600);
/// Room that the bucket reserves, and never needs: 100,000 records have less than 1 KiB each. A
/// server or an account without it refuses the bucket when it is made, not a node's lease later.
const ROOM_BYTES: i64 = 256 << 20;
/// Entries of the watch that wait for the driver. Beyond, the watch waits, and NATS behind it.
const ENTRIES_MAX: usize = 4_096;

/// A connection to NATS with the settings of a node. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Bus {
    pub(crate) client: Client,
    context: Context,
    bucket: String,
    url: String,
    /// Changes of the connection up to now: with an odd number it is connected.
    changes: watch::Receiver<u64>,
    /// The latest act that the server has forbidden.
    denied: Arc<Mutex<Option<String>>>,
}

/// The bucket of a cluster. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Directory {
    bus: Bus,
    stream: Stream,
    store: Store,
}

/// A record that was read.
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) value: Bytes,
    /// Time of its last change by the clock of NATS, in milliseconds since 1970.
    pub(crate) written_ms: u64,
}

/// News of the watch, in its order.
pub(super) enum News {
    /// The watch has a gap: everything is read again.
    Gap,
    /// The directory has lost acknowledged writes.
    Rewound,
    /// A record, or the mark of its deletion.
    Entry { key: String, revision: u64, value: Option<Bytes> },
    /// Everything was read. Keys that were not are gone, at this revision at the latest.
    Synced { revision: u64 },
    /// The state of the bucket: replicas that are missing, out of all.
    Replicas { missing: usize, wanted: usize },
}

impl Bus {
    /// Connects as configured.
    ///
    /// # Errors
    /// Why not, with the way out.
    pub(crate) async fn connect(settings: &Settings, node: &Name) -> Result<Bus, String> {
        let keys = &settings.cluster;
        let read = |key: &str, path: &str| {
            std::fs::read_to_string(path)
                .map_err(|error| format!("`cluster.{key}`: cannot read `{path}`: {error}"))
        };
        let (changed, changes) = watch::channel(0_u64);
        let denied = Arc::<Mutex<Option<String>>>::default();
        let noted = Arc::clone(&denied);
        let mut options = ConnectOptions::new()
            .name(format!("throng node {node}"))
            .custom_inbox_prefix(format!("_INBOX.throng.{node}"))
            .connection_timeout(PING)
            .ping_interval(PING)
            .max_reconnects(None)
            .reconnect_delay_callback(|attempts| if attempts <= 1 { Duration::ZERO } else { REST })
            .event_callback(move |event| {
                if let async_nats::Event::ServerError(ServerError::Other(error)) = &event
                    && error.to_ascii_lowercase().starts_with("permissions violation")
                {
                    *noted.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.clone());
                }
                changed.send_modify(|changes| {
                    *changes += match event {
                        async_nats::Event::Connected => 1 - *changes % 2,
                        async_nats::Event::Disconnected | async_nats::Event::Closed => *changes % 2,
                        _ => 0,
                    };
                });
                std::future::ready(())
            });
        if !keys.nats_credentials_file.is_empty() {
            let text = read("nats_credentials_file", &keys.nats_credentials_file)?;
            options = options.credentials(&text).map_err(|error| {
                format!("`cluster.nats_credentials_file`: `{}`: {error}", keys.nats_credentials_file)
            })?;
        }
        if !keys.nats_token_file.is_empty() {
            options = options.token(read("nats_token_file", &keys.nats_token_file)?.trim().to_owned());
        }
        if !keys.nats_ca_file.is_empty() {
            options = options.add_root_certificates(PathBuf::from(&keys.nats_ca_file));
        }
        if !keys.nats_cert.is_empty() {
            let (cert, key) = (PathBuf::from(&keys.nats_cert), PathBuf::from(&keys.nats_key));
            options = options.add_client_certificate(cert, key);
        }
        let (servers, login) = without_login(&keys.nats_url);
        if let Some((user, password)) = login {
            options = options.user_and_password(user, password);
        }
        let url = servers.join(",");
        let client = match tokio::time::timeout(CONNECT, options.connect(servers)).await {
            Err(_) => return Err(no_connection(&url, "no answer", "is nats-server running there?")),
            Ok(Err(error)) => {
                let way = match error.kind() {
                    ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
                        "check `cluster.nats_credentials_file`, `cluster.nats_token_file` or `cluster.nats_cert`"
                    }
                    ConnectErrorKind::ServerParse => {
                        "`cluster.nats_url` is one or more of nats://HOST:PORT or tls://HOST:PORT"
                    }
                    ConnectErrorKind::Tls => "check `cluster.nats_ca_file` and `cluster.nats_cert`",
                    _ => "is nats-server running there?",
                };
                return Err(no_connection(&url, &error.to_string(), way));
            }
            Ok(Ok(client)) => client,
        };
        let mut context = jetstream::new(client.clone());
        context.set_timeout(TIMEOUT);
        let cluster = Name::new(&keys.name).map_err(|why| format!("bad value for `cluster.name`: {why}"))?;
        Ok(Bus { client, context, bucket: bucket(&cluster), url, changes, denied })
    }

    /// Makes the bucket of the cluster with its first record. Does nothing if both are there.
    ///
    /// # Errors
    /// Why not, with the way out.
    pub(crate) async fn init(&self, settings: &Settings, record: &ClusterRecord) -> Result<(), String> {
        self.jetstream().await?;
        let replicas = settings.cluster.replicas;
        let config = kv::Config {
            bucket: self.bucket.clone(),
            description: format!("Throng cluster {}", record.name),
            history: 1,
            storage: StorageType::File,
            num_replicas: replicas,
            limit_markers: Some(MARK),
            max_bytes: ROOM_BYTES,
            ..kv::Config::default()
        };
        if let Err(error) = self.context.create_key_value(config).await {
            let why = with_source(&error);
            return Err(match error.kind() {
                CreateKeyValueErrorKind::LimitMarkersNotSupported => {
                    format!("{} is too old: a cluster needs nats-server 2.11 or newer", self.url)
                }
                _ if why.contains("10074") || why.contains("10005") || why.contains("replicas") => format!(
                    "the bucket `{}` cannot have {replicas} replicas: {why}; run that many servers as one NATS \
                     cluster, or set `cluster.replicas = 1`, with which one lost disk is the end of the directory",
                    self.bucket
                ),
                _ if why.contains("10047") || why.contains("10023") || why.contains("resource") => format!(
                    "NATS has no room for the bucket `{}`, which reserves {} MiB: {why}; raise the server's \
                     `max_file_store` or the account's limit of disk storage",
                    self.bucket,
                    ROOM_BYTES >> 20
                ),
                _ => self.explained(format!("the bucket `{}` cannot be made: {why}", self.bucket)),
            });
        }
        let directory = self.open(settings).await?;
        let value = record.to_bytes();
        let key = Key::Cluster;
        let written = directory
            .execute(&key, Action::Write { expected: 0, value })
            .await
            .map_err(|why| format!("the bucket `{}` cannot be written to: {why}", self.bucket))?;
        match written {
            DirectoryResult::Refused => directory.check_cluster(record).await,
            _ => Ok(()),
        }
    }

    /// Refuses a server without JetStream.
    async fn jetstream(&self) -> Result<(), String> {
        match self.context.query_account().await {
            Ok(_) => Ok(()),
            Err(error) => {
                let why = with_source(&error);
                let denied = self.denied();
                Err(denied.unwrap_or_else(|| {
                    format!(
                        "{} has no JetStream for this account ({why}); start nats-server with `--jetstream`, and \
                         allow it for the account",
                        self.url
                    )
                }))
            }
        }
    }

    /// Opens the bucket and checks what it is.
    ///
    /// # Errors
    /// Why it cannot be used, with the way out.
    pub(crate) async fn open(&self, settings: &Settings) -> Result<Directory, String> {
        let name = format!("KV_{}", self.bucket);
        let stream = match self.context.get_stream(&name).await {
            Ok(stream) => stream,
            Err(error) => {
                return Err(match error.kind() {
                    GetStreamErrorKind::JetStream(error)
                        if error.error_code() == ErrorCode::STREAM_NOT_FOUND =>
                    {
                        format!("there is no bucket `{}`; `throng cluster init` makes it", self.bucket)
                    }
                    GetStreamErrorKind::JetStream(error) => {
                        self.jetstream().await?;
                        format!("the bucket `{}` cannot be used: {error}", self.bucket)
                    }
                    _ => {
                        let why =
                            format!("the bucket `{}` does not answer: {}", self.bucket, with_source(&error));
                        match self.denied() {
                            Some(denied) => denied,
                            None => {
                                self.jetstream().await?;
                                why
                            }
                        }
                    }
                });
            }
        };
        let config = &stream.cached_info().config;
        let wanted = settings.cluster.replicas;
        if config.num_replicas != wanted {
            return Err(format!(
                "the bucket `{}` has {} replicas, and `cluster.replicas` is {wanted}; set the key to the number, or \
                 change the bucket with `nats stream edit {name} --replicas {wanted}`",
                self.bucket, config.num_replicas
            ));
        }
        if config.max_messages_per_subject != 1
            || config.storage != StorageType::File
            || !config.allow_message_ttl
        {
            return Err(format!(
                "the bucket `{}` is not one that `throng cluster init` made; delete it with `nats stream rm {name}` \
                 while no node runs, and make it again",
                self.bucket
            ));
        }
        let store = self.context.get_key_value(&self.bucket).await;
        let store =
            store.map_err(|error| format!("the bucket `{}`: {}", self.bucket, with_source(&error)))?;
        Ok(Directory { bus: self.clone(), stream, store })
    }

    /// The latest act that the server has forbidden, with the way out.
    fn denied(&self) -> Option<String> {
        let denied = self.denied.lock().unwrap_or_else(PoisonError::into_inner).clone();
        denied.map(|error| {
            format!(
                "{} forbids what a node does: {error}; `throng cluster init --print-permissions` prints what its \
                 account needs",
                self.url
            )
        })
    }

    /// An error, or what the server has forbidden, which is then its reason.
    pub(crate) fn explained(&self, why: String) -> String {
        self.denied().unwrap_or(why)
    }

    /// Tries what a node does besides reading and writing: the account's state, deleting a consumer
    /// (one that does not exist), and the flow control of a watch.
    ///
    /// # Errors
    /// The first subject that the server refuses, or no answer.
    pub(crate) async fn try_permissions(&self) -> Result<(), String> {
        let flow = self.client.publish("$JS.FC.check", Bytes::new()).await;
        flow.map_err(|error| self.explained(with_source(&error)))?;
        let subject = format!("CONSUMER.DELETE.KV_{}.none", self.bucket);
        let deleted: Result<jetstream::response::Response<serde_json::Value>, _> =
            self.context.request(subject, &()).await;
        deleted.map_err(|error| self.explained(with_source(&error)))?;
        self.jetstream().await?;
        // The server has named a forbidden act before its later answers.
        self.denied().map_or(Ok(()), Err)
    }

    /// The servers, without passwords.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Returns whether it is connected, as far as the client knows.
    pub(super) fn is_connected(&self) -> bool {
        *self.changes.borrow() % 2 == 1
    }
}

/// The servers of `cluster.nats_url` as they may be shown, and the user and password of the first
/// one that names them.
fn without_login(urls: &str) -> (Vec<String>, Option<(String, String)>) {
    let mut login = None;
    let bare = urls.split(',').map(str::trim).map(|url| {
        let (scheme, rest) = url.split_once("://").unwrap_or(("nats", url));
        let Some((user, host)) = rest.rsplit_once('@') else { return url.to_owned() };
        let (user, password) = user.split_once(':').unwrap_or((user, ""));
        login.get_or_insert_with(|| (user.to_owned(), password.to_owned()));
        format!("{scheme}://{host}")
    });
    (bare.collect(), login)
}

fn no_connection(url: &str, why: &str, way: &str) -> String {
    format!("cannot connect to NATS at `{url}` (`cluster.nats_url`): {why}; {way}")
}

/// An error with the one that caused it.
fn with_source(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) if !error.to_string().contains(&source.to_string()) => format!("{error}: {source}"),
        _ => error.to_string(),
    }
}

impl Directory {
    fn subject(&self, key: &Key) -> String {
        format!("$KV.{}.{key}", self.bus.bucket)
    }

    /// Carries a request out.
    ///
    /// # Errors
    /// There is no answer, or one that says nothing about the outcome: the reason.
    pub(crate) async fn execute(&self, key: &Key, action: Action) -> Result<DirectoryResult, String> {
        let done = async {
            match action {
                Action::Read => self.read(key).await,
                Action::Write { expected, value } => {
                    self.publish(key, PublishMessage::build().payload(Bytes::from(value)), expected).await
                }
                Action::Delete { expected } => {
                    let mark = PublishMessage::build().header("KV-Operation", "DEL").ttl(MARK);
                    self.publish(key, mark, expected).await
                }
            }
        };
        let done = tokio::time::timeout(TIMEOUT, done).await;
        done.unwrap_or_else(|_| Err("NATS did not answer within 2 s".to_owned()))
    }

    /// Reads through the leader, not a replica that may lag.
    async fn read(&self, key: &Key) -> Result<DirectoryResult, String> {
        match self.stream.get_last_raw_message_by_subject(&self.subject(key)).await {
            Ok(message) => {
                // Marks are messages with a header that says so.
                let is_mark = message.headers.get("KV-Operation").is_some()
                    || message.headers.get("Nats-Marker-Reason").is_some();
                let value = (!is_mark).then(|| message.payload.to_vec());
                Ok(DirectoryResult::Found { revision: message.sequence, value })
            }
            Err(error) if matches!(error.kind(), LastRawMessageErrorKind::NoMessageFound) => {
                Ok(DirectoryResult::Found { revision: 0, value: None })
            }
            Err(error) => Err(with_source(&error)),
        }
    }

    async fn publish(
        &self,
        key: &Key,
        message: PublishMessage,
        expected: u64,
    ) -> Result<DirectoryResult, String> {
        let message = message.expected_last_subject_sequence(expected);
        let outcome = |error: jetstream::context::PublishError| match error.kind() {
            PublishErrorKind::WrongLastSequence => Ok(DirectoryResult::Refused),
            _ => Err(with_source(&error)),
        };
        match self.bus.context.send_publish(self.subject(key), message).await {
            Err(error) => outcome(error),
            Ok(sent) => match sent.await {
                Err(error) => outcome(error),
                Ok(at) => Ok(DirectoryResult::Applied(at.sequence)),
            },
        }
    }

    /// Compares the record of the cluster with this node's settings.
    ///
    /// # Errors
    /// The difference, with the way out.
    pub(crate) async fn check_cluster(&self, want: &ClusterRecord) -> Result<(), String> {
        let found = self.execute(&Key::Cluster, Action::Read).await?;
        let DirectoryResult::Found { value: Some(value), .. } = found else {
            return Err(no_record(&self.bus.bucket));
        };
        match ClusterRecord::parse(&value) {
            Ok(is) => difference(&is, want).map_or(Ok(()), Err),
            Err(why) => Err(format!("the record `cluster` in `{}` cannot be read: {why}", self.bus.bucket)),
        }
    }

    /// Every record, read once.
    ///
    /// # Errors
    /// The bus does not answer.
    pub(crate) async fn read_all(&self) -> Result<Vec<Entry>, String> {
        let mut all = Vec::new();
        let reading = async {
            let mut watch = self.store.watch_with_history(">").await.map_err(|error| with_source(&error))?;
            while let Some(entry) = watch.next().await {
                let entry = entry.map_err(|error| with_source(&error))?;
                if entry.operation == Operation::Put {
                    let written = entry.created.unix_timestamp_nanos() / 1_000_000;
                    let written_ms = u64::try_from(written).unwrap_or(0);
                    all.push(Entry { key: entry.key, value: entry.value, written_ms });
                }
                if entry.seen_current {
                    break;
                }
            }
            Ok::<(), String>(())
        };
        match tokio::time::timeout(CONNECT, reading).await {
            Ok(read) => read.map(|()| all),
            Err(_) => Err("NATS did not answer within 10 s".to_owned()),
        }
    }

    /// The state of the bucket.
    pub(crate) async fn info(&self) -> Result<Info, String> {
        let info = tokio::time::timeout(TIMEOUT, self.stream.get_info()).await;
        info.map_err(|_| "no answer".to_owned())?.map_err(|error| with_source(&error))
    }

    /// Starts the watch of the whole bucket, on the runtime of the caller.
    pub(super) fn watch(&self) -> mpsc::Receiver<News> {
        let (sender, receiver) = mpsc::channel(ENTRIES_MAX);
        let watcher = Watcher {
            directory: self.clone(),
            sender,
            revision_max: 0,
            created: None,
            behind: 0,
            records: BTreeMap::new(),
        };
        tokio::spawn(watcher.run());
        receiver
    }
}

pub(super) fn no_record(bucket: &str) -> String {
    format!("the bucket `{bucket}` has no readable record `cluster`; `throng cluster init` writes it")
}

/// The difference between the record of a cluster and a node's settings, with the way out.
pub(super) fn difference(is: &ClusterRecord, want: &ClusterRecord) -> Option<String> {
    if is.format != want.format {
        return Some(format!(
            "the cluster's directory has format {}, and this release knows format {FORMAT}: use a release that knows it",
            is.format
        ));
    }
    if is.name != want.name {
        return Some(format!(
            "the bucket is that of the cluster `{}`, not of `{}`: correct `cluster.name`",
            is.name, want.name
        ));
    }
    (is.key_id != want.key_id).then(|| {
        format!(
            "`cluster.secret_file` is another key ({}) than that of the cluster ({}): copy the file of another node",
            want.key_id, is.key_id
        )
    })
}

/// Replicas of a bucket that are not up to date, out of all that it should have.
pub(crate) fn replicas(info: &Info) -> (usize, usize) {
    let wanted = info.config.num_replicas;
    let Some(cluster) = &info.cluster else { return (wanted.saturating_sub(1), wanted) };
    let current = cluster.replicas.iter().filter(|peer| peer.current && !peer.offline).count();
    let leader = usize::from(cluster.leader.is_some());
    (wanted.saturating_sub(current + leader), wanted)
}

/// Keeps the watch alive.
struct Watcher {
    directory: Directory,
    sender: mpsc::Sender<News>,
    /// Greatest revision that was seen.
    revision_max: u64,
    /// Time at which the bucket was made.
    created: Option<i128>,
    /// Looks in a row that found fewer revisions than were seen, or that the oldest record is gone.
    /// One may be an old answer, or precede its news.
    behind: u32,
    /// Records by key, with their revisions.
    records: BTreeMap<String, u64>,
}

impl Watcher {
    async fn run(mut self) {
        while self.sender.send(News::Gap).await.is_ok() {
            // It fails with the connection, and begins again with the next one.
            if self.follow().await.is_err() {
                tokio::time::sleep(REST).await;
            }
        }
    }

    async fn follow(&mut self) -> Result<(), String> {
        let mut changes = self.directory.bus.changes.clone();
        let connected = *changes.borrow_and_update();
        if connected.is_multiple_of(2) {
            let _ = tokio::time::timeout(TIMEOUT, changes.changed()).await;
            return Err("no connection".to_owned());
        }
        self.look().await?;
        let started = self.directory.store.watch_with_history(">");
        let started = tokio::time::timeout(TIMEOUT, started).await.map_err(|_| "no answer".to_owned())?;
        let mut watch = started.map_err(|error| with_source(&error))?;
        let (mut is_synced, mut newest) = (false, 0);
        self.records.clear();
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                entry = watch.next() => {
                    let entry = entry.ok_or("the watch ended")?.map_err(|error| with_source(&error))?;
                    self.revision_max = self.revision_max.max(entry.revision);
                    newest = newest.max(entry.revision);
                    match entry.operation {
                        Operation::Put => drop(self.records.insert(entry.key.clone(), entry.revision)),
                        Operation::Delete | Operation::Purge => drop(self.records.remove(&entry.key)),
                    }
                    let value = (entry.operation == Operation::Put).then_some(entry.value);
                    self.tell(News::Entry { key: entry.key, revision: entry.revision, value }).await?;
                    if entry.seen_current && !is_synced {
                        is_synced = true;
                        self.tell(News::Synced { revision: newest }).await?;
                    }
                }
                _ = look.tick() => {
                    if self.look().await?.1 {
                        return Err("the directory has lost writes".to_owned());
                    }
                }
                changed = changes.changed() => {
                    changed.map_err(|_| "the connection is closed".to_owned())?;
                    return Err("the connection broke".to_owned());
                }
            }
        }
    }

    async fn tell(&self, news: News) -> Result<(), String> {
        self.sender.send(news).await.map_err(|_| "the node has ended".to_owned())
    }

    /// Looks at the state of the bucket: its last revision, and whether it has lost writes.
    async fn look(&mut self) -> Result<(u64, bool), String> {
        let seen = self.revision_max;
        let info = self.directory.info().await?;
        let created = info.created.unix_timestamp_nanos();
        let is_other = self.created.replace(created).is_some_and(|before| before != created);
        let last = info.state.last_sequence;
        // A purge of the bucket deletes no key by name, so the watch does not show it.
        let is_purged = self.records.values().min().is_some_and(|oldest| *oldest < info.state.first_sequence);
        self.behind = if last < seen || is_purged { self.behind + 1 } else { 0 };
        let (missing, wanted) = replicas(&info);
        self.tell(News::Replicas { missing, wanted }).await?;
        let is_rewound = is_other || self.behind > 1;
        if is_rewound {
            (self.revision_max, self.behind) = (0, 0);
            self.tell(News::Gap).await?;
            self.tell(News::Rewound).await?;
        }
        Ok((last, is_rewound))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_used_and_never_shown() {
        let (servers, login) = without_login("nats://n1:s3cret@a:4222, tls://b:4222");
        assert_eq!(servers, ["nats://a:4222", "tls://b:4222"]);
        assert_eq!(login, Some(("n1".to_owned(), "s3cret".to_owned())));
        assert_eq!(without_login("nats://a:4222"), (vec!["nats://a:4222".to_owned()], None));
    }
}
