//! Acts of operators on a cluster, over its bus: no node needs to run for them.

use std::fmt::Write as _;
use std::future::Future;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use throng_cluster::{
    Action, DirectoryResult, DrainRecord, Key, Name, NodeRecord, NodeState, WorldRecord, WorldState,
};

use super::bus::{Bus, Directory, replicas};
use super::plan;
use super::view::{node_row, world_row};
use crate::config::{Settings, nearest};

/// Times that an act is tried again when another writer came first.
const TRIES: usize = 20;
/// Pause between two looks at a node that drains.
const LOOK: Duration = Duration::from_millis(200);

fn block_on<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| error.to_string())?.block_on(work)
}

fn check_settings(settings: &Settings) -> Result<(), String> {
    match settings.cluster.name.is_empty() {
        true => Err("`cluster.name` is not set: name the configuration of a node with --config".to_owned()),
        false => Ok(()),
    }
}

async fn connect(settings: &Settings) -> Result<Bus, String> {
    check_settings(settings)?;
    Bus::connect(settings, &plan::node_name(settings)?).await
}

async fn directory(settings: &Settings) -> Result<Directory, String> {
    let record = plan::cluster_record(settings)?;
    let directory = connect(settings).await?.open(settings).await?;
    directory.check_cluster(&record).await?;
    Ok(directory)
}

/// Makes the bucket of a cluster and its first record; does nothing if they are there.
///
/// # Errors
/// Why not, with the way out.
pub fn init(settings: &Settings) -> Result<String, String> {
    check_settings(settings)?;
    let record = plan::cluster_record(settings)?;
    block_on(async {
        connect(settings).await?.init(settings, &record).await?;
        Ok(format!(
            "the bucket {} is there, with {} replicas\n",
            plan::bucket(&record.name),
            settings.cluster.replicas
        ))
    })
}

/// The permissions that a node needs on NATS, as a part of the configuration of nats-server.
///
/// # Errors
/// The settings are not those of a node.
pub fn permissions(settings: &Settings) -> Result<String, String> {
    check_settings(settings)?;
    let cluster = Name::new(&settings.cluster.name)?;
    let (node, bucket) = (plan::node_name(settings)?, plan::bucket(&cluster));
    let stream = format!("KV_{bucket}");
    let publish = [
        format!("$KV.{bucket}.>"),
        "$JS.API.INFO".to_owned(),
        format!("$JS.API.STREAM.INFO.{stream}"),
        format!("$JS.API.STREAM.MSG.GET.{stream}"),
        format!("$JS.API.CONSUMER.CREATE.{stream}"),
        format!("$JS.API.CONSUMER.DELETE.{stream}.>"),
        "$JS.FC.>".to_owned(),
    ];
    let lines: String = publish.iter().fold(String::new(), |mut lines, subject| {
        let _ = writeln!(lines, "    \"{subject}\"");
        lines
    });
    Ok(format!(
        "permissions: {{\n  publish: [\n{lines}  ]\n  subscribe: [\n    \"_INBOX.throng.{node}.>\"\n  ]\n}}\n"
    ))
}

/// Connects as configured, and tries what a node does. Each line is one result.
///
/// # Errors
/// The first thing that does not work, with the way out.
pub fn check(settings: &Settings) -> Result<String, String> {
    let record = plan::cluster_record(settings)?;
    let node = plan::node_name(settings)?;
    block_on(async {
        let began = Instant::now();
        let bus = connect(settings).await?;
        let explained = |why| bus.explained(why);
        let mut text = format!("connected to {} as {node}\n", bus.url());
        let directory = bus.open(settings).await?;
        directory.check_cluster(&record).await.map_err(explained)?;
        let info = directory.info().await.map_err(explained)?;
        let (missing, wanted) = replicas(&info);
        let _ = writeln!(
            text,
            "the bucket {} has {} of {wanted} replicas",
            plan::bucket(&record.name),
            wanted - missing
        );
        let records = directory.read_all().await.map_err(explained)?.len();
        let _ = writeln!(text, "{records} records read");
        // A write that cannot apply: the record of the cluster is not at revision 0.
        let asked = Instant::now();
        let write = Action::Write { expected: 0, value: record.to_bytes() };
        let refused = directory.execute(&Key::Cluster, write).await.map_err(explained)?;
        if refused != DirectoryResult::Refused {
            return Err("a write that compares with a wrong revision was not refused".to_owned());
        }
        let _ = writeln!(text, "a write takes {:.1} ms", asked.elapsed().as_secs_f64() * 1e3);
        bus.try_permissions().await?;
        text.push_str("all permissions are there\n");
        let _ = writeln!(text, "all checks passed in {:.1} s", began.elapsed().as_secs_f64());
        match missing {
            0 => Ok(text),
            _ => Err(format!("{text}{missing} replicas are missing: are all NATS servers running?")),
        }
    })
}

/// Nodes, worlds and the state of the bucket.
///
/// # Errors
/// The bus or the bucket cannot be used.
pub fn read(settings: &Settings) -> Result<Value, String> {
    block_on(async {
        let directory = directory(settings).await?;
        let info = directory.info().await?;
        let (missing, wanted) = replicas(&info);
        let (mut nodes, mut worlds, mut unreadable) = (Vec::new(), Vec::new(), Vec::new());
        let now_ms = unix_ms();
        for entry in directory.read_all().await? {
            let parsed = match Key::parse(&entry.key) {
                Some(Key::Node(name)) => NodeRecord::parse(&entry.value).map(|record| {
                    nodes.push(node_row(&name, &record, now_ms.saturating_sub(entry.written_ms)));
                }),
                Some(Key::World(name)) => WorldRecord::parse(&entry.value).map(|record| {
                    worlds.push(world_row(&name, &record));
                }),
                Some(Key::Cluster | Key::Matcher(_) | Key::Drain(_) | Key::Permit(..)) => Ok(()),
                None => Err(String::new()),
            };
            if parsed.is_err() {
                unreadable.push(entry.key);
            }
        }
        Ok(json!({
            "cluster": settings.cluster.name, "replicas": { "missing": missing, "wanted": wanted },
            "nodes": nodes, "worlds": worlds, "unreadable": unreadable,
        }))
    })
}

/// Has a node move its worlds away and leave. With `wait`, returns when it has left, or an error
/// after that time.
///
/// # Errors
/// No such node; the node has not left in time; the bus or the bucket cannot be used.
pub fn drain(settings: &Settings, node: &str, wait: Option<Duration>) -> Result<String, String> {
    let name = Name::new(node)?;
    block_on(async {
        let directory = directory(settings).await?;
        let DirectoryResult::Found { value: Some(value), .. } =
            directory.execute(&Key::Node(name.clone()), Action::Read).await?
        else {
            return Err(no_node(&directory, &name).await);
        };
        let record = NodeRecord::parse(&value);
        let record = record.map_err(|why| unreadable(settings, &Key::Node(name.clone()), &why))?;
        if !record.is_live() {
            return Err(format!("the node `{name}` is not in the cluster any more"));
        }
        let incarnation = record.incarnation;
        let by = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
        let record = DrainRecord { incarnation, by, at_ms: unix_ms(), rest: Default::default() };
        replace(&directory, &Key::Drain(name.clone()), |_| Ok(Some(record.to_bytes()))).await?;
        let Some(wait) = wait else {
            return Ok(format!("{name} moves its worlds away and leaves when it has none\n"));
        };
        match tokio::time::timeout(wait, gone(&directory, &name, incarnation)).await {
            Ok(how) => how,
            Err(_) => Err(format!(
                "{name} still has worlds after {} s, and continues to drain; `throng cluster worlds` lists them, and \
                 `throng cluster undrain {name}` takes the drain back",
                wait.as_secs()
            )),
        }
    })
}

/// Waits until an incarnation of a node has left.
async fn gone(directory: &Directory, name: &Name, incarnation: u64) -> Result<String, String> {
    loop {
        // Without an answer, the next one may come.
        if let Ok(DirectoryResult::Found { value, .. }) =
            directory.execute(&Key::Node(name.clone()), Action::Read).await
        {
            let record = value.as_deref().map(NodeRecord::parse).transpose()?;
            match record.filter(|record| record.incarnation == incarnation).map(|record| record.state) {
                Some(NodeState::Up | NodeState::Draining) => {}
                Some(NodeState::Lost) => return Err(format!("{name} was lost before it had left")),
                Some(NodeState::Left) | None => return Ok(format!("{name} has left\n")),
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Takes a drain back.
///
/// # Errors
/// No such node; the bus or the bucket cannot be used.
pub fn undrain(settings: &Settings, node: &str) -> Result<String, String> {
    let name = Name::new(node)?;
    block_on(async {
        let directory = directory(settings).await?;
        let found = directory.execute(&Key::Node(name.clone()), Action::Read).await?;
        let DirectoryResult::Found { value: Some(record), .. } = found else {
            return Err(no_node(&directory, &name).await);
        };
        replace(&directory, &Key::Drain(name.clone()), |_| Ok(None)).await?;
        match NodeRecord::parse(&record)?.is_live() {
            true => Ok(format!("{name} keeps its worlds\n")),
            false => Err(format!("{name} has left already; it takes worlds again when it starts")),
        }
    })
}

/// Has the home of a world close it.
///
/// # Errors
/// The world is not open, or the default one; the bus or the bucket cannot be used.
pub fn close(settings: &Settings, world: &str) -> Result<String, String> {
    let name = Name::new(world)?;
    if settings.gateway.default_world == name.as_str() {
        return Err(super::DEFAULT_STAYS.to_owned());
    }
    let missing = || Err(format!("the world `{name}` is not open"));
    block_on(async {
        let directory = directory(settings).await?;
        let closing = |value: Option<&[u8]>| {
            let Some(value) = value else { return missing() };
            let record = WorldRecord::parse(value);
            let mut record = record.map_err(|why| unreadable(settings, &Key::World(name.clone()), &why))?;
            if record.state == WorldState::Closed {
                return missing();
            }
            (record.state, record.nonce) = (WorldState::Closing, plan::random());
            "closed by an operator".clone_into(&mut record.why);
            Ok(Some(record.to_bytes()))
        };
        replace(&directory, &Key::World(name.clone()), closing).await?;
        Ok(format!("{name} is being closed\n"))
    })
}

/// The error of a record that cannot be read, with the way out.
fn unreadable(settings: &Settings, key: &Key, why: &str) -> String {
    let way = match key {
        Key::World(name) => format!(", then `throng world open {name}` at a node"),
        _ => String::new(),
    };
    format!(
        "the record `{key}` of the directory cannot be read ({why}): use the release that wrote it, or, if it is \
         damaged, delete it with `nats kv del throng-{}-dir {key}`{way}",
        settings.cluster.name
    )
}

/// The error of a node that does not exist, with a similar name.
async fn no_node(directory: &Directory, name: &Name) -> String {
    let all = directory.read_all().await.unwrap_or_default();
    let nodes: Vec<Name> = all
        .iter()
        .filter_map(|entry| match Key::parse(&entry.key) {
            Some(Key::Node(name)) => Some(name),
            _ => None,
        })
        .collect();
    let hint = match nearest(name.as_str(), nodes.iter().map(Name::as_str)) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "`throng cluster status` lists the nodes".to_owned(),
    };
    format!("there is no node `{name}` in the cluster; {hint}")
}

/// Replaces a value, or deletes it, again while other writers come first.
async fn replace(
    directory: &Directory,
    key: &Key,
    change: impl Fn(Option<&[u8]>) -> Result<Option<Vec<u8>>, String>,
) -> Result<(), String> {
    for _ in 0..TRIES {
        let DirectoryResult::Found { revision, value } = directory.execute(key, Action::Read).await? else {
            continue;
        };
        let action = match change(value.as_deref())? {
            Some(value) => Action::Write { expected: revision, value },
            None if value.is_none() => return Ok(()),
            None => Action::Delete { expected: revision },
        };
        if let DirectoryResult::Applied(_) = directory.execute(key, action).await? {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Err(format!("the record `{key}` changes all the time; try again"))
}

fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
