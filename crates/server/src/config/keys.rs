//! The one definition of every configuration key: its documentation, unit, allowed values, default and whether a
//! reload applies it.
//!
//! The parser, the flags, the environment names, the typed [`Settings`], `config default`, the JSON Schema and
//! `docs/reference/config.md` all come from the tables in this file.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use super::value::{Kind, Value};

/// What is known about one key.
#[derive(Clone, Debug)]
pub struct Key {
    /// Dotted name, as in `gateway.clients.addr`.
    pub path: String,
    /// What the value may be.
    pub kind: Kind,
    /// Used when nothing else sets the key.
    pub default: Value,
    /// Unit of a number, empty for none.
    pub unit: &'static str,
    /// `true` when SIGHUP applies a new value without a restart.
    pub reload: bool,
    /// What the key does, in plain sentences.
    pub doc: String,
}

/// A group of keys that share a table of the file.
#[derive(Clone, Debug)]
pub struct Section {
    /// Dotted name of the table.
    pub path: &'static str,
    /// What the section is about, one sentence.
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
    /// Total: a value of the wrong kind, which the loader never lets through, gives the type's empty value.
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
    /// The process: its threads, its folder, its end.
    Server {
        /// Services to start, by name; empty starts all there are. `throng up --help` names them at `--only`.
        only: Vec<String> = [], Kind::List;
        /// Threads that own connections and channels. 0 takes one per two available cores, at most 8: the kernel's share
        /// of the network work needs the others.
        shards: u16 = 0, int(0, 64), "threads";
        /// Folder for everything the process keeps: development certificates, recordings. It is made when first needed.
        data: String = "throng-data", Kind::Path;
        /// Longest time a stop may take, counted from the first signal. What is not flushed by then is cut off.
        shutdown_timeout_ms: u64 = 8_000, int(100, 10_000), "ms"; reload;
        /// Shortest average time between two rounds of a busy shard: what arrives meanwhile shares a round, a wake-up and
        /// a write. Fan-outs are never delayed, nor up to 8 rounds in a row. 0 turns it off, for the lowest latency of
        /// messages at any cost.
        round_interval_us: u64 = 10_000, int(0, 20_000), "us";
        /// Bytes waiting for a shard before the others stop reading sockets, which slows the peers that send; they go on when
        /// the shard has taken what waits. Nothing is dropped. The bound may be passed by what each of the others has just read.
        mailbox_bytes_max: usize = 67_108_864, int(65_536, 64 * GIB), "bytes";
        /// A shard that makes no progress for this long is reported as not ready.
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
        /// More listeners of this kind, each `transport://host:port` with `tcp`, `tls`, `ws`, `wss`, `kcp` or `enet`.
        extra: Vec<String> = [], Kind::List;
        /// Encrypts with TLS (WSS for WebSocket). Without a certificate a self-signed one is made in the data folder,
        /// for loopback addresses only.
        tls: bool = false, Kind::Bool;
        /// Certificate chain for TLS, PEM.
        tls_cert: String = "", Kind::Path; reload;
        /// Private key for TLS, PEM.
        tls_key: String = "", Kind::Path; reload;
        /// Allows this listener beyond loopback although it lets anyone in (no authentication, or development mode).
        unsafe_binds: bool = false, Kind::Bool;
        /// Web pages that may open WebSockets: values of the `Origin` header, compared as a whole. Empty or `*` allows any,
        /// since logins need a token and not a cookie. Programs that send no `Origin` always pass.
        origins: Vec<String> = [], Kind::List;
        /// Timing of KCP. `channeld` has the reference's slow defaults, `game` trades bandwidth for latency.
        kcp_profile: String = "channeld", Kind::Choice(&["channeld", "game"]);
        /// How ENet carries channel data updates that fit a datagram. `unreliable` never lets a lost one hold up the next; what
        /// was lost, a full state makes good at the latest after `gateway.limits.enet_repair_ms`.
        enet_updates: String = "reliable", Kind::Choice(&["reliable", "unreliable"]);
        /// Encrypts ENet and admits only who has a connect token: a file with the 32 bytes, as 64 hexadecimal digits, that are
        /// shared with the backend that issues tokens. Empty: plain ENet.
        enet_key_file: String = "", Kind::Path;
        /// With a key: lets clients without a token speak plain ENet through the same port.
        enet_plain: bool = false, Kind::Bool;
        /// With a key: addresses of this gateway as tokens name them, `IP:PORT`; a token that names none of them is refused.
        /// Empty: tokens for any address.
        enet_servers: Vec<String> = [], Kind::List;
        /// With a key: number of the game or version that tokens are issued for; tokens for another are refused.
        enet_protocol: u64 = 0, int(0, 9_007_199_254_740_991), "";
        /// What connections may send in which state: a file in the reference's JSON form or the name of a built-in one
        /// (`server_authoratative`, `client_authoratative`, `client_non_authoratative`).
        state_machine: String = "", Kind::Text; reload;
        /// Closes connections that sent nothing for this long; 0 = never. Peers of the reference send no keep-alives.
        idle_timeout_ms: u64 = 0, int(0, DAY_MS), "ms";
        /// Time between WebSocket pings of idle connections; one that is not answered before the next closes the
        /// connection; 0 = no pings.
        ping_interval_ms: u64 = 20_000, int(0, DAY_MS), "ms";
    }
}

section! {
    /// The gateway: connections, channels, data and fan-out.
    Gateway {
        /// Development mode. Connection ids count up from 1, everyone may log in and logs say more; loopback only.
        dev: bool = false, Kind::Bool;
        /// Addresses and ranges (`10.0.0.0/8`) of proxies in front of the gateway, which stand for many players each.
        trusted_proxies: Vec<String> = [], Kind::List; reload;
        /// Channel settings: a file in the reference's JSON form or a built-in preset (`hifi`, `lofi`, `tps`, `ue`).
        channels: String = "hifi", Kind::Text; reload;
        /// Files that describe channel data: `.proto` sources or compiled descriptor sets.
        schemas: Vec<String> = [], Kind::List;
        /// Folders searched for the imports of `.proto` files, besides the folder of the file itself.
        schema_includes: Vec<String> = [], Kind::List;
        /// How the data of a message type merges, by full name: `reflect` (the reference's default), `removable`
        /// (honours `removed` map entries), `unreal`.
        profiles: BTreeMap<String, String> = (), Kind::Map;
        /// Rules of single fields, by the full name of the type and the field: `retain FIELD SPAN` for a list that is cut
        /// to its last elements, `copy FIELD ...` for a map whose entries take over only these fields.
        merge_rules: BTreeMap<String, String> = (), Kind::Map;
        /// Channel data of types that no schema describes. `allow` keeps it as bounded opaque bytes, `refuse` drops the update.
        unknown_types: String = "allow", Kind::Choice(&["allow", "refuse"]);
        /// What peers may do. `safe` lets clients act on what they own only, `channeld` lets everyone do what the
        /// reference lets them do.
        permissions: String = "safe", Kind::Choice(&["safe", "channeld"]); reload;
        /// Compression that the login answer offers to peers.
        compression: String = "none", Kind::Choice(&["none", "snappy"]);
        /// Width of connection ids. Games on the Unreal plugin need 13.
        connection_id_bits: u8 = 31, int(1, 32), "bits";
        /// First id of spatial channels; ordinary channels use the ids below.
        spatial_channel_id_first: u32 = 65_536, int(2, 4_294_967_295);
        /// First id of entity channels.
        entity_channel_id_first: u32 = 524_288, int(3, 4_294_967_295);
    }
}

section! {
    /// Players that ask a matcher, through messages to GLOBAL.
    Matchmaking {
        /// Framed RPC of the matcher: `own` is the one of this process, else HOST:PORT or unix:///FILE. Empty: players cannot
        /// ask one.
        matcher: String = "", Kind::Text;
        /// `SrvID` by which the matcher knows this gateway; one for every gateway.
        srv: String = "gateway", Kind::Text;
        /// File with the access token for the matcher, which needs no more than the scope `server`.
        token_file: String = "", Kind::Path;
        /// Full name of the type of the data that a match's channel has, which its players update and get. Empty: no
        /// data, messages only.
        data_type: String = "", Kind::Text;
    }
}

section! {
    /// The world: spatial channels, interest, entities.
    Spatial {
        /// Spatial controller: a file in the reference's JSON form or a built-in grid (`2x2`, `4x1`, `benchmark`,
        /// `tanks_big`, `tanks_small`); empty = no spatial channels.
        controller: String = "", Kind::Text;
        /// How areas of interest become cells. `exact` takes every cell that the area touches, `sampled` those that the
        /// reference's sampling finds.
        aoi: String = "exact", Kind::Choice(&["exact", "sampled"]);
        /// What subscribers get from cells by distance: `distance:interval_ms` with further field masks joined by `+`, as
        /// `3:500+entities.objRef`. The last step holds beyond its distance.
        damping: Vec<String> = ["0:20", "1:50", "2:100"], Kind::List;
        /// Where entity data holds the entity's position: field names joined by dots, with `:z-up` where the third
        /// component is height as in Unreal. The first that is present counts.
        positions: Vec<String> = ["actorState.replicatedMovement.location:z-up", "sceneComponentState.relativeLocation:z-up", "position"], Kind::List;
        /// Entities that are created in GLOBAL and have a position belong to the owner of the cell at that position.
        place_entities: bool = true, Kind::Bool;
        /// Rates of entity channels by the distance to the client's own entity, for clients that name no rate themselves:
        /// `distance:interval_ms`, nearest first, in world units; or `published` alone, the table of the Unreal plugin's benchmark
        /// in centimetres: `1000:50`, `5000:100`. Empty leaves rates to the clients.
        lod: Vec<String> = [], Kind::List;
        /// Rate of entity channels beyond the last distance of `lod`.
        lod_beyond_ms: u32 = 1_000, int(1, DAY_MS), "ms";
        /// How much further than a distance of `lod` an entity must be before its rate falls, in world units.
        lod_hysteresis: u32 = 100, int(0, 1_000_000_000);
        /// Radius, in world units, of the interest that follows each client's own entity without the servers' doing; 0 = off.
        follow_radius: u32 = 0, int(0, 1_000_000_000);
        /// Moves cells between servers by load, one at a time.
        balance: bool = false, Kind::Bool;
        /// Keeps every cell where it is while `balance` is on, until it is switched off again: for an operation that must not
        /// meet a move.
        balance_frozen: bool = false, Kind::Bool; reload;
        /// Acts on Unreal's SPAWN and DESTROY messages. `auto` does so with the `ue` channel settings and the `channeld`
        /// permissions.
        unreal: String = "auto", Kind::Choice(&["auto", "on", "off"]);
    }
}

section! {
    /// Who may log in.
    Auth {
        /// How logins are checked. `none` lets everyone in (loopback only), `refuse` nobody, `tokens` reads a file,
        /// `jwt` verifies signed tokens, `http` asks a web service.
        kind: String = "none", Kind::Choice(&["none", "refuse", "tokens", "jwt", "http"]);
        /// Game servers log in without a check; refused on listeners beyond loopback unless `gateway.servers.unsafe_binds` is set.
        servers_bypass: bool = true, Kind::Bool; reload;
        /// For `tokens`: a file with one `PLAYER TOKEN` pair a line; `*` as player fits every player. A third word `server` makes
        /// it a game server's, which is no player's and the other way round. `#` starts a comment.
        tokens_file: String = "", Kind::Path; reload;
        /// For `jwt`: the signature algorithms that are accepted, and no others.
        jwt_algorithms: Vec<String> = ["RS256", "ES256", "EdDSA"], Kind::List;
        /// For `jwt`: a file with the keys: a JWKS (JSON), a public key (PEM), or a shared secret of at least 32 bytes
        /// (HS256, HS384 or HS512).
        jwt_keys_file: String = "", Kind::Path; reload;
        /// For `jwt`: address of a JWKS, http or https. It is cached and refreshed.
        jwt_jwks_url: String = "", Kind::Text;
        /// For `jwt`: time between refreshes of the JWKS. A key id that is not known also causes one, at most every 10 s.
        jwt_jwks_refresh_s: u64 = 300, int(10, 86_400), "s";
        /// For `jwt`: how long keys stay in use when the JWKS cannot be fetched.
        jwt_jwks_stale_s: u64 = 86_400, int(0, 604_800), "s";
        /// For `jwt`: required audience (`aud`); empty = not checked.
        jwt_audience: String = "", Kind::Text;
        /// For `jwt`: required issuer (`iss`); empty = not checked.
        jwt_issuer: String = "", Kind::Text;
        /// For `jwt`: claim that must equal the player identifier of the login; empty = not checked.
        jwt_player_claim: String = "sub", Kind::Text;
        /// For `jwt`: tolerated difference of clocks for `exp` and `nbf`.
        jwt_leeway_s: u64 = 30, int(0, 600), "s";
        /// For `http`: address that gets a POST with `{"connection", "kind", "address", "player", "token"}` and answers
        /// 200 with `{"result": "ok" | "invalid_player" | "invalid_token"}`; http or https.
        http_url: String = "", Kind::Text;
        /// For `http` and for the JWKS: longest time for an answer.
        http_timeout_ms: u64 = 3_000, int(50, 60_000), "ms";
        /// For `http`: a file with the value of the `Authorization` header of the callout.
        http_authorization_file: String = "", Kind::Path; reload;
        /// For https: file with the certificates to trust, PEM; empty = those of the system.
        https_ca_file: String = "", Kind::Path;
        /// Logins waiting for a verdict; more are answered with an error.
        pending_max: usize = 4_096, int(1, 1_048_576), "logins";
    }
}

section! {
    /// Bounds on what one peer can cost.
    Limits {
        /// Time from connecting to a successful login; 0 = no limit.
        auth_timeout_ms: u64 = 5_000, int(0, DAY_MS), "ms"; reload;
        /// Failed logins of one name from one address before the name is locked for the address, as long as bans last; 0 =
        /// never. From other addresses the name passes.
        failed_auth_max: u32 = 5, int(0, 1_000_000), "logins"; reload;
        /// Messages refused by the state machine before the connection is closed and its player banned; 0 = never.
        refused_messages_max: u32 = 10, int(0, 1_000_000_000), "messages"; reload;
        /// How long the failures that lead to a ban are remembered after the latest one.
        failure_memory_s: u64 = 600, int(1, 31_536_000), "s"; reload;
        /// How long bans last.
        ban_s: u64 = 900, int(1, 31_536_000), "s"; reload;
        /// Connections of both kinds that may be open at a time.
        connections_max: usize = 65_536, int(1, 4_294_967_295), "connections"; reload;
        /// Client connections from one address (one IPv4 address or one IPv6 /64, and eight times as many from a /48); 0 = no
        /// limit. Loopback and `gateway.trusted_proxies` have none.
        clients_per_address_max: usize = 256, int(0, 4_294_967_295), "connections"; reload;
        /// Channels that may exist at a time.
        channels_max: usize = 65_536, int(1, 4_294_967_295), "channels"; reload;
        /// Channels that one client has created and that still exist.
        channels_per_client_max: usize = 64, int(0, 4_294_967_295), "channels"; reload;
        /// Subscriptions of one client.
        subscriptions_per_client_max: usize = 8_192, int(1, 4_294_967_295), "channels"; reload;
        /// Bytes of a channel's metadata.
        metadata_bytes_max: usize = 4_096, int(0, 65_000), "bytes"; reload;
        /// Bytes of one channel's data.
        channel_data_bytes_max: usize = 67_108_864, int(1_024, GIB), "bytes";
        /// Bytes of updates that a channel keeps for subscribers that have not had them; beyond it they are folded together.
        channel_backlog_bytes_max: usize = 1_048_576, int(4_096, GIB), "bytes"; reload;
        /// Bytes of a channel's data when no schema describes its type (`gateway.unknown_types`).
        unknown_data_bytes_max: usize = 1_048_576, int(1_024, GIB), "bytes";
        /// Bytes of a frame in the legacy form, which can announce up to 16 MiB.
        legacy_frame_bytes_max: usize = 65_535, int(1_024, 16_777_215), "bytes";
        /// Messages that one client may send per second, with a burst of twice that; 0 = no limit.
        client_messages_per_s_max: u32 = 5_000, int(0, 100_000_000), "messages/s"; reload;
        /// Bytes that one client may send per second, with a burst of twice that; 0 = no limit.
        client_bytes_per_s_max: u32 = 4_194_304, int(0, 4_294_967_295), "bytes/s"; reload;
        /// Bytes waiting for a slow reader before its channel updates are conflated.
        outbox_soft_bytes: usize = 65_536, int(4_096, GIB), "bytes"; reload;
        /// Bytes waiting for a slow client before it is disconnected.
        outbox_hard_bytes: usize = 4_194_304, int(65_536, GIB), "bytes"; reload;
        /// Bytes waiting for a slow game server before it is disconnected.
        outbox_server_hard_bytes: usize = 67_108_864, int(65_536, GIB), "bytes"; reload;
        /// A reader that takes no byte for this long while some wait is disconnected.
        stall_timeout_ms: u64 = 30_000, int(100, DAY_MS), "ms"; reload;
        /// With unreliable data updates: time from an update that may have got lost to the full state that makes it good.
        /// Shorter repairs sooner, longer costs fewer bytes.
        enet_repair_ms: u64 = 1_000, int(20, DAY_MS), "ms"; reload;
    }
}

section! {
    /// Connections that come back after a loss.
    Recovery {
        /// Keeps subscriptions and ownership of lost game servers until they return.
        servers: bool = false, Kind::Bool;
        /// How long a lost game server may take to return; 0 = for ever.
        servers_timeout_ms: u64 = 0, int(0, DAY_MS), "ms";
        /// Gives a resume token to clients that ask for one, so that they can return after a loss.
        clients: bool = true, Kind::Bool;
        /// How long a lost client may take to return.
        clients_timeout_ms: u64 = 30_000, int(100, DAY_MS), "ms";
        /// Lost connections kept at a time; at the bound the client lost first gives way.
        lost_max: usize = 10_000, int(0, 4_294_967_295), "connections";
    }
}

section! {
    /// Recordings of what clients send, for `throng replay`.
    Recordings {
        /// Records every client connection.
        enabled: bool = false, Kind::Bool;
        /// Folder of the `.cpr` files; empty = `recordings` in the data folder.
        dir: String = "", Kind::Path;
        /// Bytes kept of one connection; the rest of it is not recorded.
        bytes_max: usize = 268_435_456, int(1_024, GIB), "bytes";
    }
}

section! {
    /// The derived-data cache for editors.
    Ddc {
        /// Address of the cache; empty opens none. `throng up --only ddc` opens it where `--http` says.
        addr: String = "", Kind::Addr;
        /// Address of a second listener, for machines inside: it also serves namespaces that are not public,
        /// administration and the replication log.
        internal_addr: String = "", Kind::Addr;
        /// Certificate chain for TLS on both listeners, PEM; empty = plain HTTP. A reload reads it again.
        tls_cert: String = "", Kind::Path;
        /// Private key for TLS, PEM.
        tls_key: String = "", Kind::Path;
        /// When an upload is acknowledged. `sync`: when it is on disk. `cache`: when the system has it, which a power
        /// failure may undo.
        durability: String = "sync", Kind::Choice(&["sync", "cache"]);
        /// File with service accounts: a line has a token and what it claims, as in `TOKEN group=build`. `#` starts a comment.
        tokens_file: String = "", Kind::Path; reload;
        /// For signed tokens (JWT): the signature algorithms that are accepted, and no others.
        jwt_algorithms: Vec<String> = ["RS256", "ES256", "EdDSA"], Kind::List; reload;
        /// For signed tokens: a file with the keys, a JWKS (JSON) or a public key (PEM).
        jwt_keys_file: String = "", Kind::Path; reload;
        /// For signed tokens: address of a JWKS, http or https. It is cached and refreshed.
        jwt_jwks_url: String = "", Kind::Text; reload;
        /// For signed tokens: required audience (`aud`); empty = not checked.
        jwt_audience: String = "", Kind::Text; reload;
        /// For signed tokens: required issuer (`iss`); empty = not checked.
        jwt_issuer: String = "", Kind::Text; reload;
        /// Who may do what, by a name of your choice: `CLAIMS ACTIONS NAMESPACES [BUCKETS]`, each a list with commas, as in
        /// `group=artists ReadObject,WriteObject game,test`. `*` is any caller, action, namespace or bucket. Without tokens
        /// and keys everything is allowed.
        grants: BTreeMap<String, String> = (), Kind::Map; reload;
        /// File with more of them, in the form of Cloud DDC: a JSON list of `{name, claims, actions, scope: {namespaces:
        /// [{values, match, not}], buckets: [...]}}`. `match` is a regular expression; what its one group captures of the
        /// name is compared with `values`.
        policies_file: String = "", Kind::Path; reload;
        /// Namespaces that only the internal listener serves.
        internal_namespaces: Vec<String> = [], Kind::List; reload;
        /// Namespaces that take no compressed buffers whose content cannot be verified here, whatever `unverified` says.
        verified_namespaces: Vec<String> = [], Kind::List; reload;
        /// Where a namespace takes blobs from that it does not have, by name: `game = "engine"`. Who asks must be permitted to
        /// read there.
        fallbacks: BTreeMap<String, String> = (), Kind::Map; reload;
        /// Uploads go to the namespace in `fallbacks` as well, if who uploads is permitted to write there.
        fill_fallbacks: bool = true, Kind::Bool; reload;
        /// Namespaces whose blobs are answered with a redirect (302) to the object storage, if the client asks for it with
        /// `supportsRedirect=true`.
        redirect_namespaces: Vec<String> = [], Kind::List; reload;
        /// Bytes of blobs that a namespace may hold; uploads beyond are answered 507. 0 = no limit.
        namespace_bytes_max: u64 = 0, int(0, 1 << 60), "bytes"; reload;
        /// The same for single namespaces, by name: `game = "500000000000"`.
        quotas: BTreeMap<String, String> = (), Kind::Map; reload;
        /// Days for which the replication log remembers which refs came and went; 0 keeps none. It is only kept with an
        /// `internal_addr`, where it is read.
        replication_days: u32 = 7, int(0, 365), "days";
        /// Allows a listener beyond loopback that asks nobody who they are.
        unsafe_binds: bool = false, Kind::Bool;
        /// Replaces the object of a ref without the client having to say that it means it.
        overwrite_refs: bool = true, Kind::Bool; reload;
        /// Takes compressed buffers whose content cannot be verified here: those of Oodle, which editors send by default, if
        /// nothing decodes them.
        unverified: bool = true, Kind::Bool; reload;
        /// Program, and its arguments, that decodes what Oodle compressed, so that it is verified. Empty = the one that is built in
        /// if Throng was built with the feature `oodle`, else none.
        oodle_decoder: Vec<String> = [], Kind::List; reload;
        /// Time within which it decodes a block; then it is ended and the block counts as not verified.
        oodle_timeout_ms: u64 = 30_000, int(10, DAY_MS), "ms"; reload;
        /// Days after which a ref that nobody used is removed; 0 keeps refs for ever. Blobs that no ref reaches go an
        /// hour after they were put.
        refs_unused_days: u32 = 0, int(0, 36_500), "days"; reload;
        /// Minutes between two removals of what expired or is not reached; 0 removes nothing.
        collect_minutes: u32 = 60, int(0, 525_600), "min";
        /// Hours between two scrubs, which read every blob and put damaged ones aside; 0 never scrubs.
        scrub_hours: u32 = 168, int(0, 87_600), "h";
        /// Speed at which a scrub reads.
        scrub_bytes_per_s: u64 = 52_428_800, int(1 << 20, 100 * GIB), "bytes/s";
        /// Largest upload of one blob.
        blob_bytes_max: u64 = 16 * GIB, int(1 << 20, 1024 * GIB), "bytes"; reload;
        /// Connections that may be open at a time.
        connections_max: usize = 1_024, int(1, 65_536), "connections";
    }
}

section! {
    /// Object storage that several nodes of the cache share; their folders then hold copies.
    DdcTier {
        /// Where: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX` or `az://CONTAINER/PREFIX`. Empty: the folder holds everything.
        /// With it an upload is acknowledged when the storage has it, and refs are always asked for there.
        url: String = "", Kind::Text;
        /// Address of the service, for S3 servers other than Amazon's: `http://HOST:PORT`.
        endpoint: String = "", Kind::Text;
        /// File with settings of the storage's client, credentials among them: lines of `NAME=VALUE`, as in
        /// `access_key_id=...`, `secret_access_key=...`, `region=...`. What is not there comes from the environment
        /// (`AWS_ACCESS_KEY_ID`, ...) or the machine's own identity.
        settings_file: String = "", Kind::Path;
        /// Time within which the storage must answer, repeated attempts included.
        timeout_ms: u64 = 5_000, int(100, 600_000), "ms";
        /// Age at which a ref that is used, and what it reaches, is written to the bucket again. A lifecycle rule that removes
        /// what is older than, say, twice that then removes what nobody used. 0 writes nothing again.
        refresh_days: u32 = 7, int(0, 3_650), "days";
        /// Bytes of copies that the folder may hold; what was used longest ago goes first.
        copies_bytes_max: u64 = 100 * GIB, int(64 << 20, 1024 * 1024 * GIB), "bytes";
        /// Certificates to trust for https, PEM; empty = those of the system.
        ca_file: String = "", Kind::Path;
    }
}

section! {
    /// Another cache that this one fills itself from.
    DdcUpstream {
        /// Where: `http://HOST:PORT` or `https://HOST:PORT` of a Throng or Cloud DDC. Empty: there is none. What is not here
        /// is asked for there, hashed and kept; uploads stay here. While it does not answer, what is not here is a miss.
        url: String = "", Kind::Text;
        /// File with the `Authorization` header to send, as in `ServiceAccount TOKEN`.
        authorization_file: String = "", Kind::Path;
        /// Time within which an answer must begin.
        timeout_ms: u64 = 5_000, int(100, 600_000), "ms";
        /// How long something that was not there is not asked for again.
        miss_s: u32 = 10, int(0, 86_400), "s";
        /// Certificates to trust for https, PEM; empty = those of the system.
        ca_file: String = "", Kind::Path;
    }
}

section! {
    /// The matcher: teams, rooms and tickets.
    Matcher {
        /// Address of its framed RPC; empty opens none. `throng up --only matcher` opens 127.0.0.1:11290.
        addr: String = "", Kind::Addr;
        /// File of a Unix socket that serves the same without TLS; empty opens none. Tokens are asked for there as well.
        unix_path: String = "", Kind::Path;
        /// Address of JSON over HTTP, with notifications as WebSocket messages or Server-Sent Events; empty opens none.
        http_addr: String = "", Kind::Addr;
        /// Connections to `http_addr` at a time; more wait in the kernel's queue.
        http_connections_max: usize = 1_024, int(1, 65_536), "connections";
        /// Requests over `http_addr` at a time, at most 1 MiB each; more are answered with `OVERLOADED`.
        http_requests_max: usize = 256, int(1, 65_536), "requests";
        /// NATS servers, `nats://HOST:PORT`, several with commas between them: requests, answers and notifications on the
        /// subjects of the area, several matchers of which share the load. Empty: no bus.
        nats_url: String = "", Kind::Text;
        /// File with the token that the NATS servers ask for.
        nats_token_file: String = "", Kind::Path;
        /// How long a lost matcher keeps its modes and queues before another one serves them.
        nats_lease_s: u64 = 5, int(1, 3_600), "s";
        /// Requests from the bus at a time; more are answered with `OVERLOADED`.
        nats_requests_max: usize = 1_024, int(1, 65_536), "requests";
        /// Certificate chain for TLS, PEM; empty = plain TCP.
        tls_cert: String = "", Kind::Path;
        /// Private key for TLS, PEM.
        tls_key: String = "", Kind::Path;
        /// When an answer or event leaves. `none`: at once, and a restart begins empty. `async`: when the system has the
        /// request, which is on disk within 50 ms. `sync`: when it is on disk; all that wait share a flush. A journal that
        /// cannot be written ends the process.
        durability: String = "async", Kind::Choice(&["none", "async", "sync"]);
        /// File with access tokens: a line has a token, its scope (`server`, `trusted` or `admin`) and, if it is for one
        /// server only, that server's id. `#` starts a comment. Without it everybody is an admin.
        tokens_file: String = "", Kind::Path;
        /// Allows a listener beyond loopback that asks nobody who they are.
        unsafe_binds: bool = false, Kind::Bool;
        /// Area that it serves; clients that name another are sent away. Empty: any.
        area: String = "", Kind::Text;
        /// TOML file with match modes, a table `[modes.NAME]` each, and queues, a table `[[queues]]` each.
        rules: String = "", Kind::Path;
        /// Shards, each on a thread of its own; 1 runs on the thread that has the connections. Rooms belong to a shard by
        /// their mode, tickets by their queue, so more pay where several modes or queues keep more than one core busy. A
        /// journal is bound to the number that it began with.
        shards: u16 = 1, int(1, 16), "shards";
        /// How long roles of a lost server stay in their rooms and teams.
        presence_grace_ms: u64 = 10_000, int(0, 600_000), "ms";
        /// Skips damaged records of the journal instead of refusing to start; what they did is lost.
        salvage: bool = false, Kind::Bool;
    }
}

section! {
    /// The listener for health, metrics, monitoring and profiles.
    Http {
        /// Address of the listener; empty opens none.
        addr: String = "127.0.0.1:11280", Kind::Addr;
        /// File with one access token a line for everything but health; required beyond loopback.
        tokens_file: String = "", Kind::Path; reload;
        /// Whether a busy address stops the start; otherwise the process runs without this listener.
        required: bool = true, Kind::Bool;
        /// Connections that may be open at a time.
        connections_max: usize = 64, int(1, 65_536), "connections";
    }
}

section! {
    /// The metrics page.
    Metrics {
        /// `channeld` adds the reference's metric names, so that its Grafana dashboard works.
        compat: String = "none", Kind::Choice(&["none", "channeld"]); reload;
        /// Serves `/metrics` to everyone and without a token, as the reference does.
        open: bool = false, Kind::Bool;
    }
}

section! {
    /// Logs.
    Log {
        /// `auto` is text on a terminal and JSON otherwise.
        format: String = "auto", Kind::Choice(&["auto", "text", "json"]);
        /// Least level that is written, `error` to `trace`; parts can differ: `info,throng_gateway=debug`.
        level: String = "info", Kind::Text; reload;
        /// Also writes the log to this file; `{time}` becomes the start time.
        file: String = "", Kind::Path;
        /// File for security events (bans, failed logins, refused binds); empty puts them into the log.
        security_file: String = "", Kind::Path;
        /// Lines of the same kind written per second; more are counted and summed up in one line.
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
    /// `[http]`
    pub http: Http,
    /// `[metrics]`
    pub metrics: Metrics,
    /// `[log]`
    pub log: Log,
}

impl Settings {
    /// Reads the typed form out of checked values, which hold every key.
    pub(crate) fn read(values: &Values) -> Settings {
        Settings {
            server: Server::read(values, "server"),
            gateway: Gateway::read(values, "gateway"),
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
            http: Http::read(values, "http"),
            metrics: Metrics::read(values, "metrics"),
            log: Log::read(values, "log"),
        }
    }
}

/// The sections of the file in the order in which they are documented.
pub const SECTIONS: &[Section] = &[
    Section { path: "server", doc: "The process: its threads, its folder, its end.", heading: "Server" },
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
        doc: "Players that ask a matcher, through messages to GLOBAL.",
        heading: "Matchmaking",
    },
    Section { path: "gateway.auth", doc: "Who may log in.", heading: "Authentication" },
    Section { path: "gateway.limits", doc: "Bounds on what one peer can cost.", heading: "Limits" },
    Section {
        path: "gateway.recovery",
        doc: "Connections that come back after a loss.",
        heading: "Recovery",
    },
    Section { path: "gateway.recordings", doc: "Recordings of what clients send.", heading: "Recordings" },
    Section { path: "ddc", doc: "The derived-data cache for editors.", heading: "Derived-data cache" },
    Section {
        path: "ddc.tier",
        doc: "Object storage that several nodes of the cache share.",
        heading: "Derived-data cache (object storage)",
    },
    Section {
        path: "ddc.upstream",
        doc: "Another cache that this one fills itself from.",
        heading: "Derived-data cache (upstream)",
    },
    Section { path: "matcher", doc: "The matcher: teams, rooms and tickets.", heading: "Matcher" },
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
