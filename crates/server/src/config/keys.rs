//! The one definition of every configuration key: its documentation, unit, allowed values, default
//! and whether a reload applies it.
//!
//! The parser, the flags, the environment names, the typed [`Settings`], `config default`, the JSON
//! Schema and `docs/reference/config.md` all come from the tables in this file.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use super::value::{Kind, Value};

/// Definition of one key.
#[derive(Clone, Debug)]
pub struct Key {
    /// Dotted name, as in `gateway.clients.addr`.
    pub path: String,
    /// Kind of the value.
    pub kind: Kind,
    /// Used when nothing else sets the key.
    pub default: Value,
    /// Unit of a number, empty for none.
    pub unit: &'static str,
    /// `true` when SIGHUP applies a new value without a restart.
    pub reload: bool,
    /// Documentation of the key, in plain sentences.
    pub doc: String,
}

/// A group of keys that share a table of the file.
#[derive(Clone, Debug)]
pub struct Section {
    /// Dotted name of the table.
    pub path: &'static str,
    /// Documentation of the section, one sentence.
    pub doc: &'static str,
    /// Heading in help texts.
    pub heading: &'static str,
}

impl Key {
    /// The environment variable that sets this key.
    #[must_use]
    pub fn env(&self) -> String {
        format!("THRONG_{}", self.path.replace('.', "_").to_ascii_uppercase())
    }

    /// The first sentence of the documentation.
    #[must_use]
    pub fn summary(&self) -> &str {
        self.doc.split_inclusive(". ").next().unwrap_or(&self.doc).trim()
    }
}

/// Effective values by key path; holds every key.
pub(crate) type Values = BTreeMap<String, Value>;

/// A field type that a [`Value`] turns into.
pub(crate) trait FromValue: Sized {
    /// Total: a value of the wrong kind, which the loader never lets through, gives the type's
    /// empty value.
    fn from_value(value: &Value) -> Self;
}

impl FromValue for bool {
    fn from_value(value: &Value) -> bool {
        matches!(value, Value::Bool(true))
    }
}

macro_rules! from_int {
    ($($int:ty),*) => {$(
        impl FromValue for $int {
            fn from_value(value: &Value) -> $int {
                let Value::Int(number) = value else { return 0 };
                <$int>::try_from(*number).unwrap_or(<$int>::MAX)
            }
        }
    )*};
}
from_int!(u8, u16, u32, u64, usize);

impl FromValue for String {
    fn from_value(value: &Value) -> String {
        if let Value::Text(text) = value { text.clone() } else { String::new() }
    }
}

impl FromValue for Vec<String> {
    fn from_value(value: &Value) -> Vec<String> {
        if let Value::List(items) = value { items.clone() } else { Vec::new() }
    }
}

impl FromValue for BTreeMap<String, String> {
    fn from_value(value: &Value) -> BTreeMap<String, String> {
        if let Value::Map(map) = value { map.clone() } else { BTreeMap::new() }
    }
}

/// Turns the literals of the tables below into default values.
trait IntoDefault {
    fn into_default(self) -> Value;
}
impl IntoDefault for bool {
    fn into_default(self) -> Value {
        Value::Bool(self)
    }
}
impl IntoDefault for i64 {
    fn into_default(self) -> Value {
        Value::Int(self)
    }
}
impl IntoDefault for &str {
    fn into_default(self) -> Value {
        Value::Text(self.to_owned())
    }
}
impl<const N: usize> IntoDefault for [&str; N] {
    fn into_default(self) -> Value {
        Value::List(self.iter().map(|item| (*item).to_owned()).collect())
    }
}
impl IntoDefault for () {
    fn into_default(self) -> Value {
        Value::Map(BTreeMap::new())
    }
}

macro_rules! section {
    ($(#[doc = $section_doc:literal])+ $name:ident {
        $($(#[doc = $doc:literal])+ $field:ident: $type:ty = $default:expr, $kind:expr $(, $unit:literal)? $(; $live:ident)?;)*
    }) => {
        $(#[doc = $section_doc])+
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[doc = $doc])+ pub $field: $type,)*
        }

        impl $name {
            fn keys(section: &str) -> Vec<Key> {
                vec![$(Key {
                    path: format!("{section}.{}", stringify!($field)),
                    kind: $kind,
                    default: IntoDefault::into_default($default),
                    unit: section!(@unit $($unit)?),
                    reload: section!(@live $($live)?),
                    doc: concat!($($doc),+).trim().to_owned(),
                }),*]
            }

            fn read(values: &Values, section: &str) -> Self {
                Self {$(
                    $field: FromValue::from_value(&values[&format!("{section}.{}", stringify!($field))]),
                )*}
            }
        }
    };
    (@unit) => { "" };
    (@unit $unit:literal) => { $unit };
    (@live) => { false };
    (@live reload) => { true };
}

const fn int(min: i64, max: i64) -> Kind {
    Kind::Int { min, max }
}
/// One day.
const DAY_MS: i64 = 86_400_000;
const GIB: i64 = 1 << 30;

section! {
    /// The process: threads, data folder, shutdown.
    Server {
        /// Services to start: gateway, ddc, matcher. Empty: every service that has an address. A
        /// selected service without an address is an error.
        only: Vec<String> = [], Kind::List;
        /// Threads that own connections and channels. 0 takes one per two available cores, at most
        /// 8: the kernel needs the others for its share of the network work.
        shards: u16 = 0, int(0, 64), "threads";
        /// Folder of everything the process keeps: development certificates, recordings, the cache,
        /// the matcher's journal. It is made when first needed. A start with a folder that cannot
        /// be written to is refused.
        data: String = "throng-data", Kind::Folder;
        /// Longest duration of a shutdown, counted from the first signal. Output that is not
        /// flushed by then is dropped.
        shutdown_timeout_ms: u64 = 8_000, int(100, 10_000), "ms"; reload;
        /// Shortest average time between two rounds of a busy shard. Everything that arrives in
        /// between shares a round, a wake-up and a write. Fan-outs are never delayed, and neither
        /// are up to 8 rounds in a row. 0 turns the interval off, for the lowest latency at any
        /// cost.
        round_interval_us: u64 = 10_000, int(0, 20_000), "us";
        /// Bytes waiting for a shard before the other shards stop reading sockets, which slows
        /// their peers; they continue when the shard has caught up. Nothing is dropped. The limit
        /// can be exceeded by one read of each other shard.
        mailbox_bytes_max: usize = 67_108_864, int(65_536, 64 * GIB), "bytes";
        /// A shard without progress for this long is reported as not ready.
        watchdog_ms: u64 = 5_000, int(100, 600_000), "ms"; reload;
    }
}

section! {
    /// One listener kind: where it listens and how its connections behave.
    Listener {
        /// Address of the listener. Port 0 takes a free one; empty opens no listener.
        addr: String = "", Kind::Addr;
        /// Protocol below the frames. `ws` is WebSocket; `kcp` and `enet` are reliable UDP.
        transport: String = "tcp", Kind::Choice(&["tcp", "ws", "kcp", "enet"]);
        /// World that connections to `addr` enter, one of `gateway.worlds`; empty is the default
        /// world.
        world: String = "", Kind::Text;
        /// Additional listeners of this kind, each `transport://host:port` with `tcp`, `tls`, `ws`,
        /// `wss`, `kcp` or `enet`; `/WORLD` behind it leads to that world.
        extra: Vec<String> = [], Kind::List;
        /// Encrypts with TLS (WSS for WebSocket). Without a certificate a self-signed one is made
        /// in the data folder, for loopback addresses only.
        tls: bool = false, Kind::Bool;
        /// Certificate chain for TLS, PEM.
        tls_cert: String = "", Kind::Path; reload;
        /// Private key for TLS, PEM.
        tls_key: String = "", Kind::Path; reload;
        /// Allows this listener on a public address although it admits every login (no
        /// authentication, or development mode).
        unsafe_binds: bool = false, Kind::Bool;
        /// Every connection comes from one of `gateway.trusted_proxies` and begins with a header of
        /// the PROXY protocol, version 2, which names the peer's address. `tcp`, `tls`, `ws` and
        /// `wss` only. Without it, WebSocket listeners take the address from the `X-Forwarded-For`
        /// of trusted proxies.
        proxy_protocol: bool = false, Kind::Bool;
        /// Web pages that may open WebSockets: values of the `Origin` header, compared as a whole.
        /// Empty or `*` allows any, because logins need a token and not a cookie. Programs that
        /// send no `Origin` always pass.
        origins: Vec<String> = [], Kind::List;
        /// Timing of KCP. `channeld` has channeld's slow defaults, `game` trades bandwidth for
        /// latency.
        kcp_profile: String = "channeld", Kind::Choice(&["channeld", "game"]);
        /// Delivery of channel data updates over ENet, if they fit a datagram. With `unreliable`, a
        /// lost update never delays the next one; a full state replaces it after
        /// `gateway.limits.enet_repair_ms` at the latest.
        enet_updates: String = "reliable", Kind::Choice(&["reliable", "unreliable"]);
        /// Encrypts ENet and admits only clients with a connect token: a file with the 32 bytes, as
        /// 64 hexadecimal digits, that the gateway shares with the backend that issues tokens.
        /// Empty: plain ENet.
        enet_key_file: String = "", Kind::Path;
        /// DTLS 1.2 for ENet clients, on the same port: the certificate, PEM. Its key must be ECDSA
        /// on P-256 or P-384. Empty: no DTLS.
        enet_dtls_cert: String = "", Kind::Path;
        /// Private key for `enet_dtls_cert`, PEM.
        enet_dtls_key: String = "", Kind::Path;
        /// With `enet_key_file` or `enet_dtls_cert`: clients without a token or DTLS may use plain
        /// ENet on the same port. With both files and without this, DTLS clients need a token too.
        enet_plain: bool = false, Kind::Bool;
        /// With a key: addresses of this gateway as tokens name them, `IP:PORT`. Tokens that name
        /// none of them are refused. Empty: tokens for any address are accepted.
        enet_servers: Vec<String> = [], Kind::List;
        /// With a key: number of the game or version that tokens are issued for. Tokens for another
        /// number are refused.
        enet_protocol: u64 = 0, int(0, 9_007_199_254_740_991), "";
        /// Messages that connections may send in each state: a file in channeld's JSON form or
        /// the name of a built-in one (`server_authoratative`, `client_authoratative`,
        /// `client_non_authoratative`).
        state_machine: String = "", Kind::Text; reload;
        /// Closes connections that sent nothing for this long; 0 = never. Peers of channeld
        /// send no keep-alives. ENet peers are exempt: ENet itself notices the lost ones.
        idle_timeout_ms: u64 = 0, int(0, DAY_MS), "ms";
        /// Time between WebSocket pings on idle connections. A ping without an answer before the
        /// next one closes the connection; 0 = no pings.
        ping_interval_ms: u64 = 20_000, int(0, DAY_MS), "ms";
    }
}

section! {
    /// The gateway: connections, channels, data and fan-out.
    Gateway {
        /// Development mode: connection ids count up from 1, authentication is off and logs are
        /// more detailed. Loopback only.
        dev: bool = false, Kind::Bool;
        /// Addresses and ranges (`10.0.0.0/8`) of proxies in front of the gateway. Limits by
        /// address use the address that the proxy reports.
        trusted_proxies: Vec<String> = [], Kind::List; reload;
        /// Channel settings: a file in channeld's JSON form or a built-in preset (`hifi`,
        /// `lofi`, `tps`, `ue`).
        channels: String = "hifi", Kind::Text; reload;
        /// Files that describe channel data: `.proto` sources or compiled descriptor sets.
        schemas: Vec<String> = [], Kind::List;
        /// Folders searched for the imports of `.proto` files, besides the folder of the file
        /// itself.
        schema_includes: Vec<String> = [], Kind::List;
        /// Merge profile of a message type's data, by full name: `reflect` (channeld's
        /// default), `removable` (honours `removed` map entries), `unreal`.
        profiles: BTreeMap<String, String> = (), Kind::Map;
        /// Merge rules of single fields, by the full name of type and field: `retain FIELD SPAN`
        /// cuts a list to its last elements, `copy FIELD ...` updates only these fields of the
        /// entries of a map.
        merge_rules: BTreeMap<String, String> = (), Kind::Map;
        /// Channel data of types that no schema describes. `allow` keeps it as opaque bytes within
        /// a limit, `refuse` drops the update.
        unknown_types: String = "allow", Kind::Choice(&["allow", "refuse"]);
        /// Permissions of peers. With `safe`, clients may act only on what they own; `channeld`
        /// permits everything that channeld permits.
        permissions: String = "safe", Kind::Choice(&["safe", "channeld"]); reload;
        /// Compression that the login result offers to peers.
        compression: String = "none", Kind::Choice(&["none", "snappy"]);
        /// Width of connection ids. Games on the Unreal plugin need 13.
        connection_id_bits: u8 = 31, int(1, 32), "bits";
        /// First id of spatial channels; ordinary channels use the ids below.
        spatial_channel_id_first: u32 = 65_536, int(2, 4_294_967_295);
        /// Name of the world that every connection enters for which no other is named.
        default_world: String = "main", Kind::Text;
        /// Further worlds that open at the start, each with channels, connection ids, bans, limits
        /// and recordings of its own: `NAME`, or `NAME:CLASS` for one of a class. Listeners and
        /// logins lead to them.
        worlds: Vec<String> = [], Kind::List;
        /// First id of entity channels.
        entity_channel_id_first: u32 = 524_288, int(3, 4_294_967_295);
    }
}

section! {
    /// A class: a named set of settings that worlds are made with.
    ClassKeys {
        /// Name of the class: 1 to 18 lower-case letters, digits and `-`, no `-` first.
        name: String = "", Kind::Text;
        /// Threads that a world of the class uses: one, or all of the process, as the default world
        /// without a cluster does.
        shards: String = "1", Kind::Choice(&["1", "all"]);
        /// Connections whose login names no world may ask for the worlds of this class, by the
        /// field `world` of AUTH or the WebSocket path `/w/NAME`. Without it, only logins, resume
        /// tokens and listeners lead to them.
        open: bool = false, Kind::Bool;
        /// With `open`: a connection that asks for `CLASS-ANYTHING` opens that world if it is not
        /// open. Needs `connections_max` and `world_idle_s`.
        create: bool = false, Kind::Bool;
        /// Open worlds of the class, in a cluster those of all nodes.
        worlds_max: usize = 256, int(1, 65_536), "worlds";
        /// With `create`: worlds that connections from one address (one IPv4 address or one IPv6
        /// /64) may open per minute. Loopback and `gateway.trusted_proxies` have no limit.
        creations_per_address_max: u32 = 6, int(1, 1_000_000), "worlds/min";
        /// Open connections in each world of the class; 0 = as many as
        /// `gateway.limits.connections_max` allows in all worlds.
        connections_max: usize = 0, int(0, 4_294_967_295), "connections";
        /// A world that was opened at run time closes when it has had no connection, and none that
        /// may resume, for this long; 0 = never. Worlds of `gateway.worlds` stay open.
        world_idle_s: u64 = 300, int(0, 31_536_000), "s";
        /// In a cluster: labels, `KEY=VALUE`, of the nodes that serve worlds of the class
        /// (`cluster.labels`).
        labels: Vec<String> = [], Kind::List;
    }
}

/// Keys of `[gateway]` that a class may set for its worlds, or beginnings of such keys.
const CLASS_MAY_SET: &[&str] = &[
    "channels",
    "permissions",
    "compression",
    "connection_id_bits",
    "spatial_channel_id_first",
    "entity_channel_id_first",
    "servers.state_machine",
    "clients.state_machine",
    "spatial.",
    "limits.",
    "recovery.",
    "recordings.enabled",
    "recordings.bytes_max",
];

/// Keys of the groups above that belong to the process.
const CLASS_MAY_NOT_SET: &[&str] = &[
    "limits.connections_max",
    "limits.channel_data_bytes_max",
    "limits.unknown_data_bytes_max",
    "limits.outbox_total_bytes",
];

/// The keys of a class besides those of `[gateway]`.
pub static CLASS_KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| ClassKeys::keys(CLASSES));

/// The table of classes.
pub const CLASSES: &str = "gateway.classes";

/// Keys of `[gateway]` that a class may set, without `gateway.`.
pub fn keys_of_worlds() -> impl Iterator<Item = (&'static str, &'static Key)> {
    let inner = KEYS.iter().filter_map(|key| Some((key.path.strip_prefix("gateway.")?, key)));
    inner.filter(|(name, _)| {
        let set = |known: &str| *name == known || (known.ends_with('.') && name.starts_with(known));
        CLASS_MAY_SET.iter().any(|known| set(known)) && !CLASS_MAY_NOT_SET.contains(name)
    })
}

/// A class of worlds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// Its own keys.
    pub keys: ClassKeys,
    /// The settings of its worlds: those of the process with the keys that the class sets.
    pub settings: Settings,
}

impl Class {
    /// Reads a class out of checked values: its own under their paths, and those that it sets for
    /// its worlds.
    pub(crate) fn read(values: &Values, own: &Values) -> Class {
        let mut all: Values = CLASS_KEYS.iter().map(|key| (key.path.clone(), key.default.clone())).collect();
        all.extend(own.clone());
        let keys = ClassKeys::read(&all, CLASSES);
        let mut values = values.clone();
        values.extend(
            own.iter()
                .filter(|(path, _)| key(path).is_some())
                .map(|(path, value)| (path.clone(), value.clone())),
        );
        let mut settings = Settings::read(&values);
        if keys.connections_max > 0 {
            settings.limits.connections_max = keys.connections_max;
        }
        Class { keys, settings }
    }
}

section! {
    /// Matchmaking for players, through messages to GLOBAL.
    Matchmaking {
        /// Matcher for players: `own` is the one of this process, which is called directly;
        /// otherwise HOST:PORT or unix:///FILE of its framed RPC, and those of all matchers of the
        /// area, separated by commas, where one of several serves it. Empty: no matchmaking through
        /// the gateway.
        matcher: String = "", Kind::Text;
        /// `SrvID` of this gateway at the matcher; every gateway needs its own. Empty: `gateway`, or
        /// in a cluster the name of the node.
        srv: String = "", Kind::Text;
        /// File with the access token for the matcher; the scope `server` suffices, or `trusted`
        /// where players move between gateways and matches get worlds on other nodes.
        token_file: String = "", Kind::Path;
        /// Full name of the data type of match channels, which the players of a match update and
        /// receive. Empty: no data, messages only.
        data_type: String = "", Kind::Text;
    }
}

section! {
    /// The world: spatial channels, interest, entities.
    Spatial {
        /// Spatial controller: a file in channeld's JSON form or a built-in grid (`2x2`,
        /// `4x1`, `benchmark`, `tanks_big`, `tanks_small`); empty = no spatial channels.
        controller: String = "", Kind::Text;
        /// Conversion of areas of interest to cells. `exact` takes every cell that the area
        /// touches, `sampled` the cells that channeld's sampling finds.
        aoi: String = "exact", Kind::Choice(&["exact", "sampled"]);
        /// Update rates of cells by distance: `distance:interval_ms`, optionally with field masks
        /// joined by `+`, as in `3:500+entities.objRef`. The last step applies beyond its distance.
        damping: Vec<String> = ["0:20", "1:50", "2:100"], Kind::List;
        /// Fields of entity data that hold the entity's position: field names joined by dots, with
        /// `:z-up` if the third component is height as in Unreal. The first field that is present
        /// counts.
        positions: Vec<String> = ["actorState.replicatedMovement.location:z-up", "sceneComponentState.relativeLocation:z-up", "position"], Kind::List;
        /// Entities that are created in GLOBAL and have a position are assigned to the owner of the
        /// cell at that position.
        place_entities: bool = true, Kind::Bool;
        /// Update rates of entity channels by distance to the client's own entity, for clients that
        /// request no rate: `distance:interval_ms`, nearest first, in world units. The single word
        /// `published` is the table of the Unreal plugin's benchmark in centimetres: `1000:50`,
        /// `5000:100`. Empty leaves rates to the clients.
        lod: Vec<String> = [], Kind::List;
        /// Update interval of entity channels beyond the last distance of `lod`.
        lod_beyond_ms: u32 = 1_000, int(1, DAY_MS), "ms";
        /// Additional distance, in world units, before the rate of an entity falls.
        lod_hysteresis: u32 = 100, int(0, 1_000_000_000);
        /// Radius, in world units, of an area of interest that follows each client's own entity
        /// without help from game servers; 0 = off.
        follow_radius: u32 = 0, int(0, 1_000_000_000);
        /// Moves cells between game servers by load, one at a time.
        balance: bool = false, Kind::Bool;
        /// Keeps every cell where it is while `balance` is on, for an operation that must not
        /// coincide with a move.
        balance_frozen: bool = false, Kind::Bool; reload;
        /// Handles Unreal's SPAWN and DESTROY messages. `auto` does so with the channel settings
        /// `ue` and the permissions `channeld`.
        unreal: String = "auto", Kind::Choice(&["auto", "on", "off"]);
    }
}

section! {
    /// Authentication of logins.
    Auth {
        /// Authentication of logins. `none` accepts everyone (loopback only), `refuse` no one;
        /// `tokens` reads a file, `jwt` verifies signed tokens, `http` calls a web service.
        kind: String = "none", Kind::Choice(&["none", "refuse", "tokens", "jwt", "http"]);
        /// Game servers log in without authentication. Refused on public listeners unless
        /// `gateway.servers.unsafe_binds` is set.
        servers_bypass: bool = true, Kind::Bool; reload;
        /// For `tokens`: file with one `PLAYER TOKEN` pair a line; `*` as player matches every
        /// player. A third word `server` makes the token valid for game servers only, and
        /// `world=NAME` at the end is the world that its holder enters. `#` starts a comment.
        tokens_file: String = "", Kind::Path; reload;
        /// For `jwt`: accepted signature algorithms.
        jwt_algorithms: Vec<String> = ["RS256", "ES256", "EdDSA"], Kind::List;
        /// For `jwt`: file with the keys: a JWKS (JSON), a public key (PEM), or a shared secret of
        /// at least 32 bytes (HS256, HS384 or HS512).
        jwt_keys_file: String = "", Kind::Path; reload;
        /// For `jwt`: URL of a JWKS, http or https. The keys are cached and refreshed.
        jwt_jwks_url: String = "", Kind::Text;
        /// For `jwt`: time between refreshes of the JWKS. An unknown key id also causes a refresh,
        /// at most every 10 s.
        jwt_jwks_refresh_s: u64 = 300, int(10, 86_400), "s";
        /// For `jwt`: how long keys stay in use while the JWKS cannot be fetched.
        jwt_jwks_stale_s: u64 = 86_400, int(0, 604_800), "s";
        /// For `jwt`: required audience (`aud`); empty = not checked.
        jwt_audience: String = "", Kind::Text;
        /// For `jwt`: required issuer (`iss`); empty = not checked.
        jwt_issuer: String = "", Kind::Text;
        /// For `jwt`: claim that must equal the player identifier of the login; empty = not
        /// checked.
        jwt_player_claim: String = "sub", Kind::Text;
        /// For `jwt`: claim that names the kind of connection a token admits: `server` for game
        /// servers, `client` for players. Without the claim, a token admits players; with another
        /// value, none.
        jwt_kind_claim: String = "throng_kind", Kind::Text;
        /// For `jwt`: claim with the name of the world that a token is for; empty = none.
        jwt_world_claim: String = "", Kind::Text;
        /// For `jwt`: tolerated difference of clocks for `exp` and `nbf`.
        jwt_leeway_s: u64 = 30, int(0, 600), "s";
        /// For `http`: URL that receives a POST with `{"connection", "kind", "address", "player",
        /// "token"}` and answers 200 with `{"result": "ok" | "invalid_player" | "invalid_token",
        /// "world"}`; http or https. The world that the login is for may be absent.
        http_url: String = "", Kind::Text;
        /// For `http` and for the JWKS: timeout of a request.
        http_timeout_ms: u64 = 3_000, int(50, 60_000), "ms";
        /// For `http`: file with the value of the request's `Authorization` header.
        http_authorization_file: String = "", Kind::Path; reload;
        /// For https: file with the trusted certificates, PEM; empty = those of the system.
        https_ca_file: String = "", Kind::Path;
        /// Logins waiting for the result of authentication; further logins are answered with an
        /// error.
        pending_max: usize = 4_096, int(1, 1_048_576), "logins";
    }
}

section! {
    /// Limits on the resources of one peer.
    Limits {
        /// Time from connecting to a successful login; 0 = no limit.
        auth_timeout_ms: u64 = 5_000, int(0, DAY_MS), "ms"; reload;
        /// Failed logins of one name from one address before the name is locked for that address,
        /// as long as bans last; 0 = never. The name can log in from other addresses.
        failed_auth_max: u32 = 5, int(0, 1_000_000), "logins"; reload;
        /// Messages refused by the state machine before the connection is closed and its player
        /// banned; 0 = never.
        refused_messages_max: u32 = 10, int(0, 1_000_000_000), "messages"; reload;
        /// Time for which failures count towards a ban, from the latest one.
        failure_memory_s: u64 = 600, int(1, 31_536_000), "s"; reload;
        /// Duration of bans.
        ban_s: u64 = 900, int(1, 31_536_000), "s"; reload;
        /// Open connections of both kinds.
        connections_max: usize = 65_536, int(1, 4_294_967_295), "connections"; reload;
        /// Client connections from one address (one IPv4 address or one IPv6 /64, and eight times
        /// as many from a /48); 0 = no limit. Loopback and `gateway.trusted_proxies` have none.
        clients_per_address_max: usize = 256, int(0, 4_294_967_295), "connections"; reload;
        /// Channels.
        channels_max: usize = 65_536, int(1, 4_294_967_295), "channels"; reload;
        /// Existing channels that one client has created.
        channels_per_client_max: usize = 64, int(0, 4_294_967_295), "channels"; reload;
        /// Subscriptions of one client.
        subscriptions_per_client_max: usize = 8_192, int(1, 4_294_967_295), "channels"; reload;
        /// Bytes of a channel's metadata.
        metadata_bytes_max: usize = 4_096, int(0, 65_000), "bytes"; reload;
        /// Bytes of one channel's data.
        channel_data_bytes_max: usize = 67_108_864, int(1_024, GIB), "bytes";
        /// Bytes of updates that a channel keeps for subscribers that have not received them;
        /// beyond it updates are merged.
        channel_backlog_bytes_max: usize = 1_048_576, int(4_096, GIB), "bytes"; reload;
        /// Bytes of a channel's data if no schema describes its type (`gateway.unknown_types`).
        unknown_data_bytes_max: usize = 1_048_576, int(1_024, GIB), "bytes";
        /// Bytes of a frame in the legacy form, which can announce up to 16 MiB.
        legacy_frame_bytes_max: usize = 65_535, int(1_024, 16_777_215), "bytes";
        /// Messages per second from one client, with a burst of twice that; 0 = no limit.
        client_messages_per_s_max: u32 = 5_000, int(0, 100_000_000), "messages/s"; reload;
        /// Bytes per second from one client, with a burst of twice that; 0 = no limit.
        client_bytes_per_s_max: u32 = 4_194_304, int(0, 4_294_967_295), "bytes/s"; reload;
        /// Bytes waiting for a slow reader before its channel updates are conflated. A reader that
        /// took all output so far may be sent four times as much at once.
        outbox_soft_bytes: usize = 65_536, int(4_096, GIB), "bytes"; reload;
        /// Bytes waiting for a slow client before it is disconnected.
        outbox_hard_bytes: usize = 4_194_304, int(65_536, GIB), "bytes"; reload;
        /// Bytes waiting for a slow game server before it is disconnected.
        outbox_server_hard_bytes: usize = 67_108_864, int(65_536, GIB), "bytes"; reload;
        /// Memory that the output waiting for all clients may take; beyond it the clients with the
        /// most waiting output are disconnected. 0 = a quarter of the memory of the machine, or of
        /// the control group if that has a limit.
        outbox_total_bytes: usize = 0, int(0, 1_024 * GIB), "bytes"; reload;
        /// A reader that accepts no byte for this long while output waits is disconnected.
        stall_timeout_ms: u64 = 30_000, int(100, DAY_MS), "ms"; reload;
        /// With unreliable data updates: time from an update that may have been lost to the full
        /// state that replaces it. A shorter time repairs sooner, a longer one costs fewer bytes.
        enet_repair_ms: u64 = 1_000, int(20, DAY_MS), "ms"; reload;
    }
}

section! {
    /// Recovery of lost connections.
    Recovery {
        /// Keeps subscriptions and ownership of lost game servers until they return.
        servers: bool = false, Kind::Bool;
        /// Time that a lost game server has to return; 0 = no limit.
        servers_timeout_ms: u64 = 0, int(0, DAY_MS), "ms";
        /// Gives a resume token to clients that request one, so that they can return after a loss.
        clients: bool = true, Kind::Bool;
        /// Time that a lost client has to return.
        clients_timeout_ms: u64 = 30_000, int(100, DAY_MS), "ms";
        /// Lost connections that are kept; beyond it the client lost first is dropped.
        lost_max: usize = 10_000, int(0, 4_294_967_295), "connections";
    }
}

section! {
    /// Recordings of client sessions, for `throng replay`.
    Recordings {
        /// Records every client connection.
        enabled: bool = false, Kind::Bool;
        /// Folder of the `.cpr` files; empty = `recordings` in the data folder.
        dir: String = "", Kind::Path;
        /// Bytes recorded of one connection; the rest is not recorded.
        bytes_max: usize = 268_435_456, int(1_024, GIB), "bytes";
    }
}

section! {
    /// The derived-data cache for editors.
    Ddc {
        /// Address of the cache; empty opens none. `throng up --only ddc` opens it at the address
        /// of `--http`, with metrics and console; so does the same address in `http.addr`.
        addr: String = "", Kind::Addr;
        /// Address of a second listener for internal machines: it also serves non-public
        /// namespaces, administration and the replication log.
        internal_addr: String = "", Kind::Addr;
        /// Host names of a cache without tokens, besides `localhost` and IP addresses, as clients
        /// write them in `Host`. Requests to other names, and from web pages of other sites, are
        /// refused with 403: a page could reach the cache through a developer's browser.
        hosts: Vec<String> = [], Kind::List; reload;
        /// Certificate chain for TLS on both listeners, PEM; empty = plain HTTP. A reload reads it
        /// again.
        tls_cert: String = "", Kind::Path;
        /// Private key for TLS, PEM.
        tls_key: String = "", Kind::Path;
        /// Time of the acknowledgement of an upload. `sync`: when it is on disk. `cache`: when the
        /// operating system has it; a power failure may lose it. With `cache`, an upload does
        /// not wait for the disk, which matters on slow disks; it saves no CPU time.
        durability: String = "sync", Kind::Choice(&["sync", "cache"]);
        /// File with service accounts: each line has a token and its claims, as in `TOKEN
        /// group=build`. `#` starts a comment.
        tokens_file: String = "", Kind::Path; reload;
        /// For signed tokens (JWT): accepted signature algorithms.
        jwt_algorithms: Vec<String> = ["RS256", "ES256", "EdDSA"], Kind::List; reload;
        /// For signed tokens: file with the keys, a JWKS (JSON) or a public key (PEM).
        jwt_keys_file: String = "", Kind::Path; reload;
        /// For signed tokens: URL of a JWKS, http or https. The keys are cached and refreshed.
        jwt_jwks_url: String = "", Kind::Text; reload;
        /// For signed tokens: required audience (`aud`); empty = not checked.
        jwt_audience: String = "", Kind::Text; reload;
        /// For signed tokens: required issuer (`iss`); empty = not checked.
        jwt_issuer: String = "", Kind::Text; reload;
        /// Permissions, each under a name of your choice: `CLAIMS ACTIONS NAMESPACES [BUCKETS]`,
        /// each part a list with commas, as in `group=artists ReadObject,WriteObject game,test`.
        /// `*` is any caller, action, namespace or bucket. Without tokens and keys everything is
        /// allowed.
        grants: BTreeMap<String, String> = (), Kind::Map; reload;
        /// File with further permissions in the form of Cloud DDC: a JSON list of `{name, claims,
        /// actions, scope: {namespaces: [{values, match, not}], buckets: [...]}}`. `match` is a
        /// regular expression; the part of the name that its only group captures is compared with
        /// `values`.
        policies_file: String = "", Kind::Path; reload;
        /// Namespaces that only the internal listener serves.
        internal_namespaces: Vec<String> = [], Kind::List; reload;
        /// Namespaces that refuse compressed buffers whose content cannot be verified here,
        /// regardless of `unverified`.
        verified_namespaces: Vec<String> = [], Kind::List; reload;
        /// Namespace to take missing blobs from, by namespace: `game = "engine"`. The caller needs
        /// permission to read there.
        fallbacks: BTreeMap<String, String> = (), Kind::Map; reload;
        /// Uploads also go to the namespace in `fallbacks`, if the caller has permission to write
        /// there.
        fill_fallbacks: bool = true, Kind::Bool; reload;
        /// Namespaces whose blobs are answered with a redirect (302) to the object storage, if the
        /// client requests it with `supportsRedirect=true`.
        redirect_namespaces: Vec<String> = [], Kind::List; reload;
        /// Bytes of blobs and refs in one namespace; further uploads are answered with 507. What
        /// was overwritten or deleted counts until it is collected, which begins within five
        /// minutes of a refusal and spares unreferenced blobs of the last five minutes. 0 = no
        /// limit.
        namespace_bytes_max: u64 = 0, int(0, 1 << 60), "bytes"; reload;
        /// Bytes of blobs in single namespaces, by name: `game = "500000000000"`.
        quotas: BTreeMap<String, String> = (), Kind::Map; reload;
        /// Days for which the replication log remembers added and removed refs; 0 keeps none. The
        /// log exists only with an `internal_addr`, where it is read.
        replication_days: u32 = 7, int(0, 365), "days";
        /// Allows a public listener without authentication.
        unsafe_binds: bool = false, Kind::Bool;
        /// Replaces the object of a ref without the client having to request an overwrite.
        overwrite_refs: bool = true, Kind::Bool; reload;
        /// Accepts compressed buffers whose content cannot be verified here: those of Oodle, which
        /// editors send by default, without a decoder.
        unverified: bool = true, Kind::Bool; reload;
        /// Program, with its arguments, that decodes Oodle blocks so that they are verified. Empty:
        /// the built-in one; none if Throng was built without the feature `oodle`.
        oodle_decoder: Vec<String> = [], Kind::List; reload;
        /// Timeout of decoding a block; then the decoder is ended and the block counts as not
        /// verified.
        oodle_timeout_ms: u64 = 30_000, int(10, DAY_MS), "ms"; reload;
        /// Days after which an unused ref is removed; 0 keeps refs for ever. Unreferenced blobs are
        /// deleted one hour after upload or later.
        refs_unused_days: u32 = 0, int(0, 36_500), "days"; reload;
        /// Minutes between two garbage collections, which remove expired refs and unreferenced
        /// blobs; 0 = none.
        collect_minutes: u32 = 60, int(0, 525_600), "min";
        /// Hours between two scrubs, which read every blob and move damaged ones to quarantine; 0 =
        /// none.
        scrub_hours: u32 = 168, int(0, 87_600), "h";
        /// Read speed of a scrub.
        scrub_bytes_per_s: u64 = 52_428_800, int(1 << 20, 100 * GIB), "bytes/s";
        /// Bytes in the data folder; above it the least recently used refs and blobs are deleted. 0
        /// = 90% of the folder's size plus free disk space; a loss of free space takes effect after
        /// five to ten minutes. With an object storage `ddc.tier.copies_bytes_max` applies instead.
        /// Deleted blobs free space in segments of a 32nd of this value or of the one at the last
        /// start, whichever is less, at least 1 MiB and at most 256 MiB; less than 8 MiB is
        /// refused. An upload that would exceed the value by more than a 16th of it, or 64 MiB, is
        /// answered with 507, and an eviction makes room for it within seconds. The space that is
        /// reserved for deletes on a full disk (64 MiB, or a 16th of a small volume) comes on top;
        /// so do uploads that arrive at the same moment, until the eviction has ended.
        bytes_max: u64 = 0, int(0, 1 << 60), "bytes"; reload;
        /// Namespaces whose refs stay, with all that they reach, when `bytes_max` is reached;
        /// uploads to them are answered with 507 while that alone is more.
        keep_namespaces: Vec<String> = [], Kind::List; reload;
        /// Age of the last check at which a blob of more than 16 KiB is hashed again before it is
        /// served. Smaller blobs are checked at every read.
        recheck_s: u32 = 3_600, int(0, 31_536_000), "s"; reload;
        /// Bytes of one uploaded blob.
        blob_bytes_max: u64 = 16 * GIB, int(1 << 20, 1024 * GIB), "bytes"; reload;
        /// Open connections to each listener, but no more than the process has descriptors, less
        /// 128. When it is full, a connection that makes no progress yields to a new one: first
        /// those that never completed a request, then the longest idle. Above three quarters one
        /// address holds at most a quarter. A process that is short of descriptors ends connections
        /// of its fullest HTTP listener.
        connections_max: usize = 10_000, int(1, 65_536), "connections";
        /// Addresses and ranges (`10.0.0.0/8`) of proxies in front of the cache, which may hold
        /// any number of its connections.
        trusted_proxies: Vec<String> = [], Kind::List;
    }
}

section! {
    /// Object storage that several nodes of the cache share; their folders then hold copies.
    DdcTier {
        /// URL of the object storage: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX` or
        /// `az://CONTAINER/PREFIX`. Empty: the folder holds everything. With object storage, an
        /// upload is acknowledged when the storage has it, and refs are always read from there.
        url: String = "", Kind::Text;
        /// Address of the service, for S3 servers other than Amazon's: `http://HOST:PORT`.
        endpoint: String = "", Kind::Text;
        /// File with settings of the storage client, credentials included: lines of `NAME=VALUE`,
        /// as in `access_key_id=...`, `secret_access_key=...`, `region=...`. Missing settings come
        /// from the environment (`AWS_ACCESS_KEY_ID`, ...) or the identity of the machine.
        settings_file: String = "", Kind::Path;
        /// Timeout of a request to the storage, retries included, and longest pause inside an
        /// answer.
        timeout_ms: u64 = 5_000, int(100, 600_000), "ms";
        /// Age at which a ref in use, and everything that it reaches, is written to the bucket
        /// again. A lifecycle rule that removes objects older than, say, twice that then removes
        /// only unused ones. 0 = never.
        refresh_days: u32 = 7, int(0, 3_650), "days";
        /// Bytes of copies in the folder; the least recently used are removed first.
        copies_bytes_max: u64 = 100 * GIB, int(64 << 20, 1024 * 1024 * GIB), "bytes";
        /// Trusted certificates for https, PEM; empty = those of the system.
        ca_file: String = "", Kind::Path;
    }
}

section! {
    /// Another cache that this one fetches from.
    DdcUpstream {
        /// URL of a Throng or Cloud DDC to fetch from: `http://HOST:PORT` or `https://HOST:PORT`.
        /// Empty: none. Missing refs and blobs are fetched there, hashed and kept; uploads stay
        /// here. While the upstream does not answer, they are misses: after three requests in a row
        /// without a connection, without an answer within `timeout_ms` or with a status of 500 and
        /// above, no request waits for it; one at a time probes it, after pauses that grow from 1 s
        /// to 30 s. A blob or ref that breaks off, pauses for 8 s, brings less than 30 KiB in 30 s
        /// or has other content than its name says is itself a miss for 1 s.
        url: String = "", Kind::Text;
        /// File with the value of the `Authorization` header to send, as in `ServiceAccount TOKEN`.
        authorization_file: String = "", Kind::Path;
        /// Time within which an answer must begin; its body may take longer.
        timeout_ms: u64 = 5_000, int(100, 600_000), "ms";
        /// Time for which a miss of the upstream is remembered.
        miss_s: u32 = 10, int(0, 86_400), "s";
        /// Age at which a ref that came from the upstream is looked up there again. While the
        /// upstream does not answer, the stored ref is served.
        fresh_s: u32 = 60, int(0, 86_400), "s"; reload;
        /// Trusted certificates for https, PEM; empty = those of the system.
        ca_file: String = "", Kind::Path;
    }
}

section! {
    /// The matcher: teams, rooms and tickets.
    Matcher {
        /// Address of the framed RPC; empty opens none. `throng up --only matcher` opens
        /// 127.0.0.1:11290.
        addr: String = "", Kind::Addr;
        /// Unix socket for the same RPC without TLS; empty opens none. It requires tokens as well.
        unix_path: String = "", Kind::Path;
        /// Address of JSON over HTTP, with notifications as WebSocket messages or Server-Sent
        /// Events; empty opens none.
        http_addr: String = "", Kind::Addr;
        /// Open connections to `http_addr`. When it is full, a connection that makes no progress
        /// yields to a new one.
        http_connections_max: usize = 1_024, int(1, 65_536), "connections";
        /// Concurrent requests over `http_addr`, at most 1 MiB each. Bodies that are not complete
        /// share as much memory, beyond 16 KiB of each. Requests beyond either are answered with
        /// `OVERLOADED`.
        http_requests_max: usize = 256, int(1, 65_536), "requests";
        /// NATS servers, `nats://HOST:PORT`, separated by commas: requests, answers and
        /// notifications on the subjects of the area, which one matcher at a time serves. A second
        /// matcher waits. Empty: no message bus.
        nats_url: String = "", Kind::Text;
        /// File with the token for the NATS servers.
        nats_token_file: String = "", Kind::Path;
        /// Action on a message bus when the matcher of the area is lost. `wait`: no matcher serves
        /// until it is back with its journal, or `throng matcher takeover 1` gives up the state of
        /// area 1. `empty`: the next matcher serves with an empty state; always with `durability =
        /// "none"`.
        takeover: String = "wait", Kind::Choice(&["wait", "empty"]);
        /// Concurrent requests from the message bus; further ones are answered with `OVERLOADED`.
        nats_requests_max: usize = 1_024, int(1, 65_536), "requests";
        /// Certificate chain for TLS, PEM; empty = plain TCP.
        tls_cert: String = "", Kind::Path;
        /// Private key for TLS, PEM.
        tls_key: String = "", Kind::Path;
        /// Time at which an answer or event is sent. `none`: at once, and a restart begins empty.
        /// `async`: when the operating system has the request, which is on disk within 50 ms.
        /// `sync`: when it is on disk; waiting requests share a flush. A journal that cannot be
        /// written ends the process.
        durability: String = "async", Kind::Choice(&["none", "async", "sync"]);
        /// File with access tokens: each line has a token, its scope (`server`, `trusted` or
        /// `admin`) and, for a token of one server, the id of that server. `#` starts a comment.
        /// Without the file every caller is an admin.
        tokens_file: String = "", Kind::Path;
        /// Allows a public listener without authentication.
        unsafe_binds: bool = false, Kind::Bool;
        /// Area that this matcher serves; clients that name another area are refused. Empty: any.
        area: String = "", Kind::Text;
        /// TOML file with match modes, a table `[modes.NAME]` each, and queues, a table
        /// `[[queues]]` each.
        rules: String = "", Kind::Path;
        /// Time for which roles of a lost server keep their seats in rooms and teams.
        presence_grace_ms: u64 = 10_000, int(0, 600_000), "ms";
        /// Skips damaged records of the journal instead of refusing to start; their effects are
        /// lost.
        salvage: bool = false, Kind::Bool;
    }
}

section! {
    /// The cluster that this process is a node of.
    Cluster {
        /// Name of the cluster; empty: the process is no node of one. Lower-case letters, digits
        /// and `-`, at most 32, as for all names in a cluster.
        name: String = "", Kind::Text;
        /// NATS servers with JetStream that keep the cluster's directory, `nats://HOST:PORT` or
        /// `tls://HOST:PORT`, separated by commas; `USER:PASSWORD@` may stand before the host.
        nats_url: String = "", Kind::Text;
        /// File with NATS credentials (a JWT and its key). Credentials, a token or a client
        /// certificate are alternatives.
        nats_credentials_file: String = "", Kind::Path;
        /// File with the token for the NATS servers.
        nats_token_file: String = "", Kind::Path;
        /// Trusted certificates of the NATS servers, PEM; empty = those of the system.
        nats_ca_file: String = "", Kind::Path;
        /// Client certificate for the NATS servers, PEM.
        nats_cert: String = "", Kind::Path;
        /// Private key of `nats_cert`, PEM.
        nats_key: String = "", Kind::Path;
        /// Name of this node, the same after every restart. Empty: the first part of the machine's
        /// name.
        node: String = "", Kind::Text;
        /// File with the secret of the cluster, 64 hex digits, the same on all nodes. A node with
        /// another secret does not start. `openssl rand -hex 32` makes one.
        secret_file: String = "", Kind::Path;
        /// Addresses at which players and game servers reach this node, as in
        /// `client=wss://HOST:PORT` and `server=tcp://HOST:PORT`; for a listener that leads to a
        /// world, `client=tcp://HOST:PORT/WORLD`. Empty: those of the listeners, which other
        /// machines must reach then.
        advertise: Vec<String> = [], Kind::List;
        /// Replicas of the directory, which `throng cluster init` makes and every node checks. With
        /// 1, the loss of one NATS server's disk is the loss of the directory.
        replicas: usize = 3, int(1, 5), "replicas";
        /// Longest time that a login waits for the home of its world, and that connections of
        /// worlds stay open that stand still because the node has lost the directory.
        patience_ms: u64 = 30_000, int(1_000, 600_000), "ms";
        /// Logins that wait for the home of their world at a time; further ones are refused.
        arrivals_max: usize = 10_000, int(1, 1_000_000), "logins";
        /// Worlds on this node at a time.
        worlds_max: u32 = 256, int(1, 10_000), "worlds";
        /// Labels of this node, `KEY=VALUE`. A class may ask for them (`labels` of a class).
        labels: Vec<String> = [], Kind::List;
        /// Moves the worlds to other nodes when the process is stopped. They start empty there.
        drain_on_stop: bool = true, Kind::Bool;
        /// Time for which a stop lets worlds with connections go on before it moves them.
        drain_wait_s: u32 = 0, int(0, 86_400), "s";
        /// Allows NATS without TLS on other machines.
        unsafe_bus: bool = false, Kind::Bool;
    }
}

section! {
    /// The listener for health, metrics, monitoring and profiles.
    Http {
        /// Address of the listener; empty opens none.
        addr: String = "127.0.0.1:11280", Kind::Addr;
        /// File with one access token a line, for everything but health; required on public
        /// addresses.
        tokens_file: String = "", Kind::Path; reload;
        /// Refuses to start if the address is in use; otherwise the process runs without this
        /// listener.
        required: bool = true, Kind::Bool;
        /// Open connections. When the listener is full, one that makes no progress yields to a new
        /// one.
        connections_max: usize = 64, int(1, 65_536), "connections";
    }
}

section! {
    /// The metrics page.
    Metrics {
        /// `channeld` adds channeld's metric names, so that its Grafana dashboard works.
        compat: String = "none", Kind::Choice(&["none", "channeld"]); reload;
        /// Serves `/metrics` without a token, as channeld does.
        open: bool = false, Kind::Bool;
    }
}

section! {
    /// Logs.
    Log {
        /// `auto` is text on a terminal and JSON otherwise.
        format: String = "auto", Kind::Choice(&["auto", "text", "json"]);
        /// Lowest level that is written, `error` to `trace`, optionally by module:
        /// `info,throng_gateway=debug`.
        level: String = "info", Kind::Text; reload;
        /// Additional file for the log; `{time}` is replaced with the start time.
        file: String = "", Kind::Path;
        /// File for security events (bans, failed logins, refused binds); empty puts them into the
        /// log.
        security_file: String = "", Kind::Path;
        /// Lines of the same kind per second; further ones are counted in a summary line.
        repeats_per_s: u32 = 10, int(1, 1_000_000), "lines/s"; reload;
    }
}

/// The whole configuration, typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `[server]`
    pub server: Server,
    /// `[gateway]`
    pub gateway: Gateway,
    /// `[[gateway.classes]]`
    pub classes: Vec<Class>,
    /// `[gateway.servers]`
    pub servers: Listener,
    /// `[gateway.clients]`
    pub clients: Listener,
    /// `[gateway.matchmaking]`
    pub matchmaking: Matchmaking,
    /// `[gateway.spatial]`
    pub spatial: Spatial,
    /// `[gateway.auth]`
    pub auth: Auth,
    /// `[gateway.limits]`
    pub limits: Limits,
    /// `[gateway.recovery]`
    pub recovery: Recovery,
    /// `[gateway.recordings]`
    pub recordings: Recordings,
    /// `[ddc]`
    pub ddc: Ddc,
    /// `[ddc.tier]`
    pub ddc_tier: DdcTier,
    /// `[ddc.upstream]`
    pub ddc_upstream: DdcUpstream,
    /// `[matcher]`
    pub matcher: Matcher,
    /// `[cluster]`
    pub cluster: Cluster,
    /// `[http]`
    pub http: Http,
    /// The command has no listener for `[http]` unless it is given an address: the cache's serves its
    /// pages.
    pub has_pages_at_cache: bool,
    /// `[metrics]`
    pub metrics: Metrics,
    /// `[log]`
    pub log: Log,
}

impl Default for Settings {
    /// The default of every key.
    fn default() -> Settings {
        Settings::read(&KEYS.iter().map(|key| (key.path.clone(), key.default.clone())).collect())
    }
}

impl Settings {
    /// Reads the typed form out of checked values, which hold every key.
    pub(crate) fn read(values: &Values) -> Settings {
        Settings {
            server: Server::read(values, "server"),
            gateway: Gateway::read(values, "gateway"),
            classes: Vec::new(),
            servers: Listener::read(values, "gateway.servers"),
            clients: Listener::read(values, "gateway.clients"),
            matchmaking: Matchmaking::read(values, "gateway.matchmaking"),
            spatial: Spatial::read(values, "gateway.spatial"),
            auth: Auth::read(values, "gateway.auth"),
            limits: Limits::read(values, "gateway.limits"),
            recovery: Recovery::read(values, "gateway.recovery"),
            recordings: Recordings::read(values, "gateway.recordings"),
            ddc: Ddc::read(values, "ddc"),
            ddc_tier: DdcTier::read(values, "ddc.tier"),
            ddc_upstream: DdcUpstream::read(values, "ddc.upstream"),
            matcher: Matcher::read(values, "matcher"),
            cluster: Cluster::read(values, "cluster"),
            http: Http::read(values, "http"),
            has_pages_at_cache: false,
            metrics: Metrics::read(values, "metrics"),
            log: Log::read(values, "log"),
        }
    }
}

/// The sections of the file in the order in which they are documented.
pub const SECTIONS: &[Section] = &[
    Section { path: "server", doc: "The process: threads, data folder, shutdown.", heading: "Server" },
    Section { path: "gateway", doc: "The gateway: channels, data, permissions.", heading: "Gateway" },
    Section {
        path: "gateway.servers",
        doc: "The listener for game servers.",
        heading: "Network (game servers)",
    },
    Section { path: "gateway.clients", doc: "The listener for players.", heading: "Network (players)" },
    Section {
        path: "gateway.spatial",
        doc: "The world: spatial channels, interest, entities.",
        heading: "Spatial",
    },
    Section {
        path: "gateway.matchmaking",
        doc: "Matchmaking for players, through messages to GLOBAL.",
        heading: "Matchmaking",
    },
    Section { path: "gateway.auth", doc: "Authentication of logins.", heading: "Authentication" },
    Section { path: "gateway.limits", doc: "Limits on the resources of one peer.", heading: "Limits" },
    Section { path: "gateway.recovery", doc: "Recovery of lost connections.", heading: "Recovery" },
    Section { path: "gateway.recordings", doc: "Recordings of client sessions.", heading: "Recordings" },
    Section { path: "ddc", doc: "The derived-data cache for editors.", heading: "Derived-data cache" },
    Section {
        path: "ddc.tier",
        doc: "Object storage that several nodes of the cache share.",
        heading: "Derived-data cache (object storage)",
    },
    Section {
        path: "ddc.upstream",
        doc: "Another cache that this one fetches from.",
        heading: "Derived-data cache (upstream)",
    },
    Section { path: "matcher", doc: "The matcher: teams, rooms and tickets.", heading: "Matcher" },
    Section {
        path: "cluster",
        doc: "The cluster that this process is a node of: many worlds on many machines, over NATS.",
        heading: "Cluster",
    },
    Section { path: "http", doc: "Health, metrics, monitoring and profiles.", heading: "Admin HTTP" },
    Section { path: "metrics", doc: "The metrics page.", heading: "Metrics" },
    Section { path: "log", doc: "Logs.", heading: "Logging" },
];

/// All keys, in the order in which they are documented.
pub static KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| {
    let mut keys = Vec::new();
    keys.extend(Server::keys("server"));
    keys.extend(Gateway::keys("gateway"));
    keys.extend(listener_keys("gateway.servers", "127.0.0.1:11288", "server_authoratative"));
    keys.extend(listener_keys("gateway.clients", "127.0.0.1:12108", "client_non_authoratative"));
    keys.extend(Spatial::keys("gateway.spatial"));
    keys.extend(Matchmaking::keys("gateway.matchmaking"));
    keys.extend(Auth::keys("gateway.auth"));
    keys.extend(Limits::keys("gateway.limits"));
    keys.extend(Recovery::keys("gateway.recovery"));
    keys.extend(Recordings::keys("gateway.recordings"));
    keys.extend(Ddc::keys("ddc"));
    keys.extend(DdcTier::keys("ddc.tier"));
    keys.extend(DdcUpstream::keys("ddc.upstream"));
    keys.extend(Matcher::keys("matcher"));
    keys.extend(Cluster::keys("cluster"));
    keys.extend(Http::keys("http"));
    keys.extend(Metrics::keys("metrics"));
    keys.extend(Log::keys("log"));
    keys
});

/// The key with this dotted name.
#[must_use]
pub fn key(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.path == path)
}

fn listener_keys(section: &str, addr: &str, state_machine: &str) -> Vec<Key> {
    let mut keys = Listener::keys(section);
    for key in &mut keys {
        if key.path.ends_with(".addr") {
            key.default = addr.into_default();
        } else if key.path.ends_with(".state_machine") {
            key.default = state_machine.into_default();
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_documented_and_its_default_is_allowed() {
        for key in KEYS.iter() {
            assert!(key.doc.ends_with('.'), "{}: {}", key.path, key.doc);
            assert!(!key.doc.contains("  "), "{}: {}", key.path, key.doc);
            let text = match &key.default {
                Value::Text(text) => text.clone(),
                Value::List(items) => items.join(","),
                Value::Map(_) => String::new(),
                other => other.to_toml(),
            };
            assert_eq!(key.kind.from_text(&text).as_ref(), Ok(&key.default), "{}", key.path);
            let numeric = matches!(key.kind, Kind::Int { .. });
            for (suffix, unit) in [("_ms", "ms"), ("_s", "s"), ("_bytes", "bytes"), ("_bytes_max", "bytes")] {
                assert!(
                    !numeric
                        || !key.path.ends_with(suffix)
                        || key.path.ends_with("_per_s")
                        || key.unit == unit,
                    "{}",
                    key.path
                );
            }
        }
    }

    #[test]
    fn names_are_unique_in_every_form() {
        let mut names: Vec<String> = KEYS.iter().map(Key::env).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), KEYS.len(), "two keys share an environment name");
    }

    #[test]
    fn every_key_lies_in_a_documented_section() {
        for key in KEYS.iter() {
            let (section, _) = key.path.rsplit_once('.').unwrap();
            assert!(SECTIONS.iter().any(|known| known.path == section), "{}", key.path);
        }
    }
}
