//! A node by its settings and its machine, checked before anything is connected.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::fs::File;
use std::hash::{BuildHasher as _, Hasher as _};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use throng_cluster::{Address as Told, ClusterRecord, Name};
use throng_platform::Folder;

use crate::config::{CLASS_KEYS, Config, Key, Settings, Value, Values};
use crate::worlds::name_and_class;

/// An open listener.
#[derive(Clone, Debug)]
pub(crate) struct Listener {
    /// `client` or `server`.
    pub(crate) kind: &'static str,
    pub(crate) scheme: &'static str,
    pub(crate) addr: SocketAddr,
    /// The world that it leads to, if that is one.
    pub(crate) world: Option<String>,
}

/// A number that no other process has.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Format of the directory that this release reads and writes.
pub(crate) const FORMAT: u32 = 1;
/// The class of worlds that name none: the settings of the gateway.
pub(crate) const CLASS: &str = "default";
/// Folder below the data folder.
const FOLDER: &str = "cluster";
/// File systems on which a lock may lapse under a living process: NFS, SMB, CIFS, FUSE, Ceph, AFS.
const REMOTE_SYSTEMS: [i64; 7] =
    [0x6969, 0x517B, 0xFF53_4D42, 0xFE53_4D42, 0x6573_5546, 0x00C3_6400, 0x5346_414F];

/// Name of the bucket of a cluster.
pub(crate) fn bucket(cluster: &Name) -> String {
    format!("throng-{cluster}-dir")
}

/// Name of this node: `cluster.node`, or the first part of the machine's name.
///
/// # Errors
/// Neither is a name.
pub(crate) fn node_name(settings: &Settings) -> Result<Name, String> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim().split('.').next().unwrap_or_default().to_ascii_lowercase();
    match settings.cluster.node.as_str() {
        "" => Name::new(&host).map_err(|why| format!("the machine's name: {why}; set `cluster.node`")),
        node => Name::new(node).map_err(|why| format!("bad value for `cluster.node`: {why}")),
    }
}

/// The record that all nodes agree on, by this node's settings.
///
/// # Errors
/// A secret that cannot be read or is none.
pub(crate) fn cluster_record(settings: &Settings) -> Result<ClusterRecord, String> {
    let cluster = &settings.cluster;
    if cluster.name.is_empty() {
        return Err("no cluster is configured: name a file that has `cluster.name` with --config".to_owned());
    }
    let name = Name::new(&cluster.name).map_err(|why| format!("bad value for `cluster.name`: {why}"))?;
    let key_id = key_id(&cluster.secret_file)?;
    Ok(ClusterRecord { format: FORMAT, name, key_id, rest: Default::default() })
}

/// Id of the secret key in a file.
fn key_id(path: &str) -> Result<String, String> {
    let id = blake3::derive_key("throng 2026 cluster key id", secret(path)?.as_bytes());
    Ok(id[..8].iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The secret key in a file.
///
/// # Errors
/// It cannot be read, or is none.
pub(crate) fn secret(path: &str) -> Result<String, String> {
    let wrong = |why: &str| {
        Err(format!("`cluster.secret_file`: `{path}` {why}; `openssl rand -hex 32` makes one, for all nodes"))
    };
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => return wrong(&format!("cannot be read ({error})")),
    };
    let digits = text.trim();
    if digits.len() != 64 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return wrong("does not hold 64 hex digits");
    }
    Ok(digits.to_ascii_lowercase())
}

/// Hash of the settings that the worlds of a class are made with: those of the gateway, and `own`,
/// those that the class sets. Keys at their default do not count, so that releases with other keys
/// agree.
fn class_hash(config: &Config, own: &Values) -> String {
    const PARTS: [&str; 4] = ["gateway", "gateway.spatial", "gateway.limits", "gateway.recovery"];
    const OF_THE_PROCESS: [&str; 3] = ["gateway.worlds", "gateway.default_world", "gateway.trusted_proxies"];
    let mut hasher = blake3::Hasher::new();
    let mut note = |key: &Key, value: &Value| {
        if *value != key.default {
            hasher.update(format!("{}={}\n", key.path, value.to_toml()).as_bytes());
        }
    };
    for (key, value, _) in config.entries() {
        let section = key.path.rsplit_once('.').map_or("", |(section, _)| section);
        let counts = PARTS.contains(&section) && !OF_THE_PROCESS.contains(&key.path.as_str());
        if let Some(value) = own.get(&key.path).or_else(|| counts.then_some(value)) {
            note(key, value);
        }
    }
    for key in CLASS_KEYS.iter() {
        if let Some(value) = own.get(&key.path) {
            note(key, value);
        }
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

/// The addresses that players and game servers are sent to: `cluster.advertise`, or those of the
/// listeners.
///
/// # Errors
/// An address that others cannot reach, or that is none.
pub(crate) fn advertised(settings: &Settings, listeners: &[Listener]) -> Result<Vec<Told>, String> {
    let own = |each: &Listener| {
        let world = each.world.as_deref().map(Name::new).transpose()?;
        Ok::<_, String>(Told { world, ..told(each.kind, each.scheme, &each.addr.to_string()) })
    };
    let told: Vec<Told> = match settings.cluster.advertise.as_slice() {
        [] => listeners.iter().map(own).collect::<Result<_, _>>()?,
        listed => listed.iter().map(|each| parse_address(each)).collect::<Result<_, _>>()?,
    };
    for each in &told {
        if host_of(&each.address).is_some_and(|ip| ip.is_unspecified()) {
            return Err(format!(
                "`cluster.advertise`: {}://{} is every address of this machine, which others cannot connect to; \
                 name the one that they reach, as in `{}={}://HOST:PORT`",
                each.transport, each.address, each.kind, each.transport
            ));
        }
    }
    Ok(told)
}

/// Room in a node's record for its counts and for fields of later releases, in bytes.
#[cfg(feature = "nats")]
const RECORD_RESERVE: usize = 512;

/// Checks that the other nodes can read the record of this one.
///
/// # Errors
/// It is too long, with the way out.
#[cfg(feature = "nats")]
pub(crate) fn check_size(setup: &throng_cluster::Setup) -> Result<(), String> {
    let classes = setup.classes.iter().map(|(name, class)| (name.clone(), class.hash.clone())).collect();
    let record = throng_cluster::NodeRecord { classes, ..setup.record.clone() };
    let (bytes, max) = (record.to_bytes().len(), throng_cluster::RECORD_BYTES_MAX - RECORD_RESERVE);
    if bytes <= max {
        return Ok(());
    }
    Err(format!(
        "the record of the node `{}` has {bytes} bytes, and {max} are the limit: it lists {} addresses and {} \
         classes; list those that players and game servers are sent to in `cluster.advertise`, or use fewer classes",
        setup.node,
        record.addresses.len(),
        record.classes.len()
    ))
}

fn told(kind: &str, transport: &str, address: &str) -> Told {
    Told { kind: kind.to_owned(), transport: transport.to_owned(), address: address.to_owned(), world: None }
}

/// Length of the longest name in DNS.
const HOST_BYTES_MAX: usize = 253;

/// Reads `client=wss://HOST:PORT` or `client=tcp://HOST:PORT/WORLD`.
pub(crate) fn parse_address(text: &str) -> Result<Told, String> {
    let parsed = text.split_once('=').and_then(|(kind, url)| {
        let (transport, rest) = url.split_once("://")?;
        let (address, world) = match rest.split_once('/') {
            Some((address, world)) => (address, Some(Name::new(world).ok()?)),
            None => (rest, None),
        };
        let (host, port) = address.rsplit_once(':')?;
        let is_known = ["tcp", "tls", "ws", "wss", "kcp", "enet"].contains(&transport);
        let fits = ["client", "server"].contains(&kind)
            && is_known
            && (1..=HOST_BYTES_MAX).contains(&host.len())
            && port.parse::<u16>().is_ok_and(|port| port > 0);
        fits.then(|| Told { world, ..told(kind, transport, address) })
    });
    parsed.ok_or_else(|| {
        format!(
            "bad value for `cluster.advertise`: `{text}`; write client=TRANSPORT://HOST:PORT or \
             server=TRANSPORT://HOST:PORT, with tcp, tls, ws, wss, kcp or enet, a HOST of at most \
             {HOST_BYTES_MAX} bytes, and /WORLD behind it if the listener there leads to a world"
        )
    })
}

fn host_of(address: &str) -> Option<IpAddr> {
    let host = address.rsplit_once(':')?.0;
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// The first address that only this machine reaches.
pub(crate) fn loopback(addresses: &[Told]) -> Option<&Told> {
    let is_local = |each: &&Told| {
        host_of(&each.address).is_some_and(|ip| ip.is_loopback()) || each.address.starts_with("localhost:")
    };
    addresses.iter().find(is_local)
}

/// The folder of a node on this machine.
pub(crate) struct Ground {
    /// Id of the folder, made with it, and of its lock.
    pub(crate) folder: String,
    /// Boot id of the kernel.
    pub(crate) boot: String,
    /// True if no other process can be using the folder.
    pub(crate) has_lock: bool,
    /// Locked while this exists.
    _lock: Folder,
}

impl Ground {
    /// Opens the folder below the data folder, or makes it.
    ///
    /// # Errors
    /// As the system says; another process of this machine uses it.
    pub(crate) fn open(settings: &Settings) -> Result<Ground, String> {
        let folder = Path::new(&settings.server.data).join(FOLDER);
        let failed = |error: std::io::Error| {
            let shown = folder.display();
            format!(
                "`server.data`: cannot open the node's folder `{shown}`: {error}; name another with --server.data"
            )
        };
        let lock = Folder::new(&folder).map_err(failed)?;
        let path = folder.join("id");
        let id = match std::fs::read_to_string(&path) {
            Ok(id) if !id.trim().is_empty() => id.trim().to_owned(),
            Ok(_) => fresh_id(&path).map_err(failed)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => fresh_id(&path).map_err(failed)?,
            Err(error) => return Err(failed(error)),
        };
        let system = File::open(&folder).and_then(|file| Ok(rustix::fs::fstatfs(&file)?)).map_err(failed)?;
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let boot = boot.trim().to_owned();
        // A copy of the folder has the same id and another lock.
        let id = format!("{id}/{}", Folder::lock_id(&folder).map_err(failed)?);
        // Without a boot id, the lock may be that of an image of the disk on another machine.
        let has_lock = !boot.is_empty() && !REMOTE_SYSTEMS.contains(&system.f_type);
        Ok(Ground { folder: id, boot, has_lock, _lock: lock })
    }
}

fn fresh_id(path: &Path) -> std::io::Result<String> {
    let id = format!("{:016x}{:016x}", random(), random());
    let draft = path.with_extension("new");
    std::fs::write(&draft, &id)?;
    File::open(&draft)?.sync_all()?;
    std::fs::rename(&draft, path)?;
    Ok(id)
}

/// Classes of this node by name, with their hashes.
///
/// # Errors
/// A name that is none.
pub(crate) fn classes(config: &Config) -> Result<BTreeMap<Name, throng_cluster::Class>, String> {
    let none = Values::new();
    let set = config.settings.classes.iter().map(|class| &class.keys).zip(config.class_values());
    let set = set
        .map(|(keys, own)| (keys.name.as_str(), &keys.labels[..], u32::try_from(keys.worlds_max).ok(), own));
    let all = std::iter::once((CLASS, &[][..], None, &none)).chain(set);
    let class = |(name, wanted, worlds_max, own): (&str, &[String], Option<u32>, &Values)| {
        let hash = class_hash(config, own);
        Ok((Name::new(name)?, throng_cluster::Class { hash, labels: labels(wanted)?, worlds_max }))
    };
    all.map(class).collect()
}

/// Characters of a label's value.
const LABEL_LEN_MAX: usize = 64;

/// Labels of a node or class.
///
/// # Errors
/// One that is not `KEY=VALUE`, or a key that is there twice.
pub(crate) fn labels(listed: &[String]) -> Result<BTreeMap<String, String>, String> {
    let mut all = BTreeMap::new();
    for each in listed {
        let label = each
            .split_once('=')
            .filter(|(key, value)| Name::new(key).is_ok() && (1..=LABEL_LEN_MAX).contains(&value.len()));
        let Some((key, value)) = label else {
            return Err(format!(
                "`{each}` is no label: write KEY=VALUE, a key of lower-case letters, digits and `-` and a value of at \
                 most {LABEL_LEN_MAX} bytes"
            ));
        };
        if all.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(format!("the label `{key}` is there twice"));
        }
    }
    Ok(all)
}

/// The worlds that are to be open, with their classes; the default one first.
///
/// # Errors
/// A name that is none.
pub(crate) fn wanted(settings: &Settings) -> Result<Vec<(Name, Name)>, String> {
    let listed = settings.gateway.worlds.iter().map(|entry| name_and_class(entry));
    let all = std::iter::once((settings.gateway.default_world.as_str(), None)).chain(listed);
    all.map(|(name, class)| Ok((Name::new(name)?, Name::new(class.unwrap_or(CLASS))?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Loader;

    #[test]
    fn labels_are_keys_with_values() {
        let parsed =
            |listed: &[&str]| labels(&listed.iter().map(|each| (*each).to_owned()).collect::<Vec<_>>());
        let expected =
            [("disk", "a=b"), ("zone", "eu-1")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(parsed(&["zone=eu-1", "disk=a=b"]), Ok(expected.into()));
        for (wrong, part) in [
            (&["zone"][..], "`zone` is no label"),
            (&["zone="], "no label"),
            (&["=eu"], "no label"),
            (&["Zone=eu"], "no label"),
            (&["zone=eu", "zone=us"], "twice"),
        ] {
            let why = parsed(wrong).unwrap_err();
            assert!(why.contains(part), "{why}");
        }
    }

    #[test]
    fn addresses_that_others_cannot_reach_are_refused() {
        let settings = |advertise: &str| {
            Loader::new().flag("a flag", "cluster.advertise", advertise).load().unwrap().settings
        };
        let listener = |addr: &str| {
            let world = None;
            Listener { kind: "client", scheme: "ws", addr: addr.parse().unwrap(), world }
        };
        let own = advertised(&settings(""), &[listener("10.0.0.7:12108")]).unwrap();
        assert_eq!(own, [told("client", "ws", "10.0.0.7:12108")]);
        for (advertise, addr) in
            [("", "0.0.0.0:1"), ("", "[::]:1"), ("client=tcp://0.0.0.0:12108", "10.0.0.7:1")]
        {
            let why = advertised(&settings(advertise), &[listener(addr)]).unwrap_err();
            assert!(why.contains("`cluster.advertise`") && why.contains("HOST:PORT"), "{why}");
        }
        let listed =
            advertised(&settings("server=tcp://s:1,client=wss://play.example.com:443"), &[]).unwrap();
        assert_eq!(listed[1], told("client", "wss", "play.example.com:443"));
        let door = parse_address("client=tcp://a:1/hub").unwrap();
        assert_eq!((door.address.as_str(), door.world), ("a:1", Some(Name::new("hub").unwrap())));
        for wrong in [
            "client=tcp://a:1/No",
            "ws://a:1",
            "client=ftp://a:1",
            "client=ws://a",
            "client=ws://:1",
            "client=ws://a:0",
            "x=ws://a:1",
            &format!("client=ws://{}:1", "a".repeat(254)),
        ] {
            assert!(parse_address(wrong).is_err(), "{wrong}");
        }
        assert_eq!(loopback(&own), None);
        assert!(loopback(&[told("client", "ws", "[::1]:7")]).is_some());
        assert!(loopback(&[told("client", "ws", "localhost:7")]).is_some());
    }

    #[test]
    fn the_hash_of_a_class_is_that_of_its_settings_beside_the_defaults() {
        let hash = |key: &str, value: &str| {
            class_hash(&Loader::new().flag("a flag", key, value).load().unwrap(), &Values::new())
        };
        let default = class_hash(&Loader::new().load().unwrap(), &Values::new());
        for other in ["gateway.worlds", "gateway.clients.addr", "cluster.node"] {
            assert_eq!(
                hash(other, if other.ends_with("addr") { "127.0.0.1:7" } else { "x" }),
                default,
                "{other}"
            );
        }
        assert_ne!(hash("gateway.limits.connections_max", "7"), default);
        assert_eq!(hash("gateway.limits.connections_max", "7"), hash("gateway.limits.connections_max", "7"));
    }

    #[test]
    fn each_class_has_a_hash_of_its_own_and_of_the_settings_that_it_leaves_to_the_gateway() {
        let classes = |text: &str| {
            let config = Loader::new().text("test", text).load().unwrap();
            let named = |class: (Name, throng_cluster::Class)| (class.0.to_string(), class.1.hash);
            classes(&config).unwrap().into_iter().map(named).collect::<BTreeMap<_, _>>()
        };
        let duel = |lines: &str| classes(&format!("[[gateway.classes]]\nname = 'duel'\n{lines}"));
        let plain = duel("");
        assert_eq!(plain.keys().collect::<Vec<_>>(), ["default", "duel"]);
        assert_eq!(plain["default"], classes("")["default"], "a class changes no other world");
        assert_ne!(plain["duel"], plain["default"], "worlds without a class never close");
        assert_eq!(duel("world_idle_s = 300")["duel"], plain["duel"], "the default");
        for lines in ["open = true", "limits.channels_max = 7", "recordings.bytes_max = 1048577"] {
            let other = duel(lines);
            assert_ne!(other["duel"], plain["duel"], "{lines}");
            assert_eq!(other["default"], plain["default"], "{lines}");
        }
        let inherited = classes("[gateway.limits]\nchannels_max = 7\n[[gateway.classes]]\nname = 'duel'");
        assert_eq!(inherited["duel"], duel("limits.channels_max = 7")["duel"], "by its effect");
    }

    #[cfg(feature = "nats")]
    #[test]
    fn a_record_that_others_cannot_read_is_refused_with_the_way_out() {
        let setup = |addresses: usize| {
            let record =
                br#"{"incarnation":1,"nonce":1,"state":"up","release":"0.1.0","folder":"f","boot":"b",
                "worlds_max":1,"free_worlds":1}"#;
            let mut record = throng_cluster::NodeRecord::parse(record).unwrap();
            record.addresses = vec![told("client", "tcp", "node-1.example.com:12108"); addresses];
            let cluster = ClusterRecord {
                format: FORMAT,
                name: Name::new("prod").unwrap(),
                key_id: String::new(),
                rest: Default::default(),
            };
            throng_cluster::Setup {
                cluster,
                record,
                node: Name::new("n1").unwrap(),
                has_lock: true,
                classes: BTreeMap::new(),
                patience: std::time::Duration::ZERO,
                arrivals_max: 1,
                origin_unix_ms: 0,
            }
        };
        assert_eq!(check_size(&setup(8)), Ok(()));
        let why = check_size(&setup(60)).unwrap_err();
        assert!(why.contains("60 addresses") && why.contains("`cluster.advertise`"), "{why}");
    }

    #[test]
    fn a_command_without_a_cluster_names_the_way_out() {
        let settings = Loader::new().load().unwrap().settings;
        assert!(cluster_record(&settings).unwrap_err().contains("--config"));
    }

    #[test]
    fn the_id_of_a_key_is_not_the_key_and_does_not_depend_on_its_spelling() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let id = |text: &str| {
            std::fs::write(file.path(), text).unwrap();
            key_id(file.path().to_str().unwrap())
        };
        let key = "aB".repeat(32);
        let first = id(&key).unwrap();
        assert_eq!(id(&format!("{}\n", key.to_lowercase())).unwrap(), first);
        assert!(!key.to_lowercase().contains(&first) && first.len() == 16);
        assert_ne!(id(&"ac".repeat(32)).unwrap(), first);
        for wrong in ["", "abc", &"zz".repeat(32)] {
            assert!(id(wrong).unwrap_err().contains("openssl rand -hex 32"), "{wrong}");
        }
        assert!(key_id("/nowhere/key").unwrap_err().contains("cannot be read"));
    }

    #[test]
    fn a_folder_keeps_its_id_and_serves_one_process() {
        let data = tempfile::tempdir().unwrap();
        let config =
            Loader::new().flag("a flag", "server.data", data.path().to_str().unwrap()).load().unwrap();
        let first = Ground::open(&config.settings).unwrap();
        assert!(Ground::open(&config.settings).is_err(), "another process has it");
        let (id, boot) = (first.folder.clone(), first.boot.clone());
        drop(first);
        let second = Ground::open(&config.settings).unwrap();
        assert_eq!((&second.folder, &second.boot), (&id, &boot));
        // A copy beside it has its own lock, which proves nothing about the original.
        let copy = tempfile::tempdir().unwrap();
        std::fs::create_dir(copy.path().join(FOLDER)).unwrap();
        std::fs::copy(data.path().join(FOLDER).join("id"), copy.path().join(FOLDER).join("id")).unwrap();
        let config =
            Loader::new().flag("a flag", "server.data", copy.path().to_str().unwrap()).load().unwrap();
        assert_ne!(Ground::open(&config.settings).unwrap().folder, id);
    }
}
