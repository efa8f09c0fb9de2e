//! Catalogue of routes. The router, the list at `/api/v1` and the reference page are generated from
//! it.

use std::fmt::Write as _;

use crate::access::Guard;

/// HTTP methods of the routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// Reads state.
    Get,
    /// Starts an operation.
    Post,
    /// Ends an operation.
    Delete,
}

impl Method {
    /// Name on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Post => "POST",
            Method::Delete => "DELETE",
        }
    }
}

/// Handler of a route of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// This catalogue.
    Index,
    /// The process as a whole.
    Server,
    /// Counters and loads, for rates.
    Overview,
    /// Live connections.
    Connections,
    /// One connection.
    Connection,
    /// Diagnosis of a connection that gets no updates of a channel.
    Why,
    /// Recently closed connections.
    Closures,
    /// Channels.
    Channels,
    /// One channel.
    Channel,
    /// The data of one channel.
    ChannelData,
    /// Cells and entities.
    World,
    /// Worlds of the process.
    Worlds,
    /// Opens a world.
    WorldOpen,
    /// Opens a world for a match.
    MatchOpen,
    /// Closes a world.
    WorldClose,
    /// Nodes of the cluster, and its worlds by state.
    Cluster,
    /// One node of the cluster.
    ClusterNode,
    /// Worlds of the cluster.
    ClusterWorlds,
    /// One world of the cluster.
    ClusterWorld,
    /// Changes of nodes and worlds of the cluster.
    ClusterEvents,
    /// Drains a node of the cluster.
    ClusterDrain,
    /// Takes a drain back.
    ClusterUndrain,
    /// The derived-data cache.
    Cache,
    /// Collects garbage in the cache.
    CacheCollect,
    /// Scrubs the cache.
    CacheScrub,
    /// Rooms and queues of the matcher.
    Rooms,
    /// A read-only request to the matcher.
    Matcher,
    /// The same, or a request that tries or replaces a queue's rules.
    MatcherCall,
    /// Every limit and its current usage.
    Limits,
    /// The configuration with origins.
    Config,
    /// Version, build, reliability.
    About,
    /// The packets of the running capture.
    Capture,
    /// Begins a capture.
    CaptureBegin,
    /// Ends the capture.
    CaptureEnd,
    /// Load runs.
    Runs,
    /// One load run.
    Run,
    /// Begins a load run.
    RunBegin,
    /// Stops a load run.
    RunStop,
    /// Audit log: callers and changes.
    Audit,
    /// State of the console session.
    Session,
    /// Opens a session.
    SessionOpen,
    /// Ends the session.
    SessionClose,
    /// Creates a one-time token.
    Invite,
    /// Server-sent events.
    Stream,
}

/// One route.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// Its method.
    pub method: Method,
    /// Its path; `{id}` stands for a number, `{name}` for a name.
    pub path: &'static str,
    /// Access that it requires.
    pub guard: Guard,
    /// Its handler.
    pub endpoint: Endpoint,
    /// Query parameters or body fields: name and meaning.
    pub parameters: &'static [(&'static str, &'static str)],
    /// Its response, in one sentence.
    pub about: &'static str,
}

const WORLD: (&str, &str) = ("world", "a world of the process, default `gateway.default_world`");
const LIMIT: (&str, &str) = ("limit", "maximum number of entries, default 100, at most 5000");
const OFFSET: (&str, &str) = ("offset", "entries to skip");
const SEARCH: (&str, &str) =
    ("search", "only entries that contain this string, ignoring case; at most 100 bytes");

const fn get(
    path: &'static str,
    guard: Guard,
    endpoint: Endpoint,
    parameters: &'static [(&'static str, &'static str)],
    about: &'static str,
) -> Route {
    Route { method: Method::Get, path, guard, endpoint, parameters, about }
}

const fn post(
    path: &'static str,
    guard: Guard,
    endpoint: Endpoint,
    parameters: &'static [(&'static str, &'static str)],
    about: &'static str,
) -> Route {
    Route { method: Method::Post, path, guard, endpoint, parameters, about }
}

const fn delete(path: &'static str, guard: Guard, endpoint: Endpoint, about: &'static str) -> Route {
    Route { method: Method::Delete, path, guard, endpoint, parameters: &[], about }
}

/// The API, in the order of its reference page.
pub const ROUTES: &[Route] = &[
    get("/api/v1", Guard::Monitor, Endpoint::Index, &[], "This list."),
    get("/api/v1/server", Guard::Monitor, Endpoint::Server, &[], "The process: version, uptime, load."),
    get(
        "/api/v1/overview",
        Guard::Monitor,
        Endpoint::Overview,
        &[],
        "Counters by kind of connection and load by shard; two of them give rates.",
    ),
    get(
        "/api/v1/connections",
        Guard::Monitor,
        Endpoint::Connections,
        &[WORLD, LIMIT, OFFSET, SEARCH],
        "Live connections by id.",
    ),
    get(
        "/api/v1/connections/{id}",
        Guard::Monitor,
        Endpoint::Connection,
        &[WORLD],
        "One connection: queue, subscriptions (at most 1000), interest; or the reason of its closure.",
    ),
    get(
        "/api/v1/connections/{id}/why",
        Guard::Monitor,
        Endpoint::Why,
        &[WORLD, ("channel", "id of a channel or entity")],
        "The path of a channel's updates to a connection: each step, and whether it passes or holds the update.",
    ),
    get(
        "/api/v1/closures",
        Guard::Monitor,
        Endpoint::Closures,
        &[WORLD, LIMIT, OFFSET, SEARCH],
        "The latest 256 closures of each shard with their reasons, newest first.",
    ),
    get(
        "/api/v1/channels",
        Guard::Monitor,
        Endpoint::Channels,
        &[WORLD, LIMIT, OFFSET, SEARCH, ("type", "only channels of this type, as in `ENTITY`")],
        "Channels by id.",
    ),
    get(
        "/api/v1/channels/{id}",
        Guard::Monitor,
        Endpoint::Channel,
        &[WORLD, LIMIT, OFFSET],
        "One channel: its subscribers (a page of them) and cohorts.",
    ),
    get(
        "/api/v1/channels/{id}/data",
        Guard::Session,
        Endpoint::ChannelData,
        &[WORLD],
        "The channel's data as decoded fields, up to 1 MiB encoded.",
    ),
    get(
        "/api/v1/world",
        Guard::Monitor,
        Endpoint::World,
        &[
            WORLD,
            ("entities", "maximum number of entities, default 10000, at most 20000"),
            ("connection", "adds the interest of this connection"),
        ],
        "The grid, its cells with their owners, and entities with their positions.",
    ),
    get(
        "/api/v1/worlds",
        Guard::Monitor,
        Endpoint::Worlds,
        &[],
        "The open worlds with their classes, shards, connections and channels. The first is the default world; \
         `lasting` worlds stay open without connections. A node of a cluster lists the worlds that it serves.",
    ),
    post(
        "/api/v1/worlds",
        Guard::Session,
        Endpoint::WorldOpen,
        &[("name", "name of the world"), ("class", "one of `[[gateway.classes]]`, may be absent")],
        "Opens a world on the shard with the fewest worlds. It ends with the process, or by its class. A node of a \
         cluster opens it on any node, waits until it is served, at most 10 s, and answers with the `node`; status 409 \
         if it is open with another class, 503 if no node has room, or none served it in time: then this node does \
         not open it later.",
    ),
    post(
        "/api/v1/matches",
        Guard::Session,
        Endpoint::MatchOpen,
        &[
            ("class", "class of the world"),
            ("world", "in place of `class`: an open world of a match, for which further tickets are made"),
            ("room", "room of the match, for the tickets, may be absent"),
            ("players", "player identifiers, at most 1,000"),
            ("servers", "player identifiers of game servers, at most 1,000"),
        ],
        "Opens a world for a match, in a cluster on any node, and waits until it is served, at most 10 s. Answers with \
         its name, the addresses of its node and a ticket for each player and game server; status 404 if `world` is \
         not open, 409 if it is not that of a match.",
    ),
    post(
        "/api/v1/worlds/close",
        Guard::Session,
        Endpoint::WorldClose,
        &[("name", "name of the world, not the default one")],
        "Closes a world and its connections; status 404 if it is not open. A node of a cluster has the world's home \
         close it, and answers when the directory says so; status 503 if nothing was written within 10 s: then it may \
         close later.",
    ),
    get(
        "/api/v1/cluster",
        Guard::Monitor,
        Endpoint::Cluster,
        &[],
        "The cluster, as this node sees it: nodes with the age of their leases, worlds by state, replicas of the \
         directory, and the number of the latest event. Without a cluster this and the next six have status 404.",
    ),
    get(
        "/api/v1/cluster/nodes/{name}",
        Guard::Monitor,
        Endpoint::ClusterNode,
        &[],
        "One node of the cluster.",
    ),
    get(
        "/api/v1/cluster/worlds",
        Guard::Monitor,
        Endpoint::ClusterWorlds,
        &[LIMIT, OFFSET, SEARCH, ("class", "only worlds of this class")],
        "Worlds of the cluster with their states and homes.",
    ),
    get(
        "/api/v1/cluster/worlds/{name}",
        Guard::Monitor,
        Endpoint::ClusterWorld,
        &[],
        "One world of the cluster, with the addresses of its home.",
    ),
    get(
        "/api/v1/cluster/events",
        Guard::Monitor,
        Endpoint::ClusterEvents,
        &[("after", "only events after this number, default 0")],
        "Changes of nodes and worlds that this node has seen since its start, oldest first; the latest 1000 are kept, \
         and `missed` is true if some after the number are not.",
    ),
    post(
        "/api/v1/cluster/drain",
        Guard::Session,
        Endpoint::ClusterDrain,
        &[("node", "name of the node")],
        "Has a node move its worlds away and leave, each when it is empty.",
    ),
    post(
        "/api/v1/cluster/undrain",
        Guard::Session,
        Endpoint::ClusterUndrain,
        &[("node", "name of the node")],
        "Takes a drain back.",
    ),
    get(
        "/api/v1/cache",
        Guard::Monitor,
        Endpoint::Cache,
        &[],
        "The derived-data cache: traffic, store, namespaces, and which refs or copies are evicted next.",
    ),
    get(
        "/api/v1/rooms",
        Guard::Monitor,
        Endpoint::Rooms,
        &[],
        "The matcher: numbers of rooms, players and tickets, rooms by mode, requests and refusals.",
    ),
    get(
        "/api/v1/matcher",
        Guard::Session,
        Endpoint::Matcher,
        &[
            ("method", "a read-only method, such as `ListQueues`"),
            ("request", "body of the request, default `{}`"),
        ],
        "Calls one of the [matcher's methods](matcher.md) like the matcher's own HTTP interface.",
    ),
    post(
        "/api/v1/matcher",
        Guard::Session,
        Endpoint::MatcherCall,
        &[
            ("method", "`PutQueue` or a read-only method"),
            ("request", "body of the request, an object, default `{}`"),
        ],
        "The same, with a body of up to 64 KiB, to try or replace a queue's rule set.",
    ),
    get("/api/v1/limits", Guard::Monitor, Endpoint::Limits, &[], "Every limit and its current usage."),
    post(
        "/api/v1/cache/collect",
        Guard::Session,
        Endpoint::CacheCollect,
        &[],
        "Starts a garbage collection of the cache: expired refs and unreferenced blobs. Requests continue meanwhile.",
    ),
    post(
        "/api/v1/cache/scrub",
        Guard::Session,
        Endpoint::CacheScrub,
        &[],
        "Starts a scrub, which reads every stored blob at `ddc.scrub_bytes_per_s` and quarantines damaged ones.",
    ),
    get(
        "/api/v1/config",
        Guard::Session,
        Endpoint::Config,
        &[],
        "Every key with its value, its default and its origin.",
    ),
    get(
        "/api/v1/about",
        Guard::Monitor,
        Endpoint::About,
        &[],
        "Version, target, addresses, reliability ledger.",
    ),
    get(
        "/api/v1/capture",
        Guard::Session,
        Endpoint::Capture,
        &[("after", "only messages after this number")],
        "The capture: its state, and messages with decoded fields. Credentials are omitted.",
    ),
    post(
        "/api/v1/capture",
        Guard::Session,
        Endpoint::CaptureBegin,
        &[WORLD, ("connection", "connection to capture"), ("seconds", "duration, 1 to 600, default 60")],
        "Captures one connection's messages in both directions; the latest 512 are kept.",
    ),
    delete("/api/v1/capture", Guard::Session, Endpoint::CaptureEnd, "Ends the capture and deletes it."),
    get("/api/v1/runs", Guard::Session, Endpoint::Runs, &[], "Load runs, newest first, at most 32."),
    get("/api/v1/runs/{id}", Guard::Session, Endpoint::Run, &[], "One load run with its report."),
    post(
        "/api/v1/runs",
        Guard::Session,
        Endpoint::RunBegin,
        &[
            ("kind", "`swarm` against this gateway, or `bench` with a gateway of its own"),
            ("players", "for a swarm: 1 to 20000"),
            ("seconds", "for a swarm: 1 to 600"),
            ("test", "for a bench: a suite and a test, as `throng bench list` names them"),
        ],
        "Starts simulated players or a tiny benchmark; one at a time.",
    ),
    delete("/api/v1/runs/{id}", Guard::Session, Endpoint::RunStop, "Stops a load run."),
    get(
        "/api/v1/audit",
        Guard::Session,
        Endpoint::Audit,
        &[LIMIT, OFFSET, SEARCH],
        "Changes made over this interface with their callers, newest first: the end of `audit.jsonl` in the data folder.",
    ),
    get("/api/v1/session", Guard::Open, Endpoint::Session, &[], "Whether this browser has a session."),
    post(
        "/api/v1/session",
        Guard::Open,
        Endpoint::SessionOpen,
        &[("token", "a one-time token, or a token of `http.tokens_file`")],
        "Opens a console session with an HttpOnly, SameSite cookie.",
    ),
    delete("/api/v1/session", Guard::Session, Endpoint::SessionClose, "Ends the session."),
    post(
        "/api/v1/session/tokens",
        Guard::Session,
        Endpoint::Invite,
        &[],
        "Creates a one-time token for another browser.",
    ),
    get(
        "/api/v1/stream",
        Guard::Monitor,
        Endpoint::Stream,
        &[
            ("topic", "`overview` or `world`"),
            ("interval_ms", "time between events, 50 to 60000, default 1000"),
            ("entities, connection", "as for `/api/v1/world`"),
        ],
        "Server-sent events: the response of the route with that name, at an interval.",
    ),
];

/// The reference page of the HTTP interface.
#[must_use]
pub fn markdown() -> String {
    let mut page = String::from(
        "# HTTP interface\n\n\
         For programs that monitor a gateway. The console uses this interface only. Responses are JSON; a failure is\n\
         `{\"error\": \"...\"}` with an HTTP status. Lists contain `total`, `offset`, `limit` and one page of entries.\n\n\
         Each route requires one of three kinds of access. **everyone**: none. **monitor**: a credential; without tokens in\n\
         `http.tokens_file`, a request from this machine under a loopback name suffices. **session**: always a credential. A\n\
         credential is `Authorization: Bearer TOKEN` with a configured token, or the cookie of a console session. Requests that\n\
         can change something are refused if their `Origin` is another site; with a cookie, the `Origin` header is required.\n\n\
         | Route | Access | Response |\n|---|---|---|\n\
         | `GET /health/live` | everyone | 200 while the process works. |\n\
         | `GET /health/ready`, `/healthz` | everyone | 200 if it accepts players, else 503; JSON with the state of every part. |\n\
         | `GET /metrics` | monitor | [Metrics](metrics.md) as Prometheus text or OpenMetrics. |\n\
         | `GET /debug/pprof/profile?seconds=N` | monitor | A CPU profile, pprof protobuf. |\n\
         | `GET /console/` | everyone | The console's files, which contain no data. |\n",
    );
    for route in ROUTES {
        let who = match route.guard {
            Guard::Open => "everyone",
            Guard::Monitor => "monitor",
            Guard::Session => "session",
        };
        let _ = write!(page, "| `{} {}` | {who} | {}", route.method.name(), route.path, route.about);
        for (name, meaning) in route.parameters {
            let _ = write!(page, " `{name}`: {meaning}.");
        }
        page.push_str(" |\n");
    }
    page.push_str(
        "\nFrom a shell, against a gateway on this machine:\n\n\
         ```console\n\
         $ curl -s http://127.0.0.1:11280/api/v1/overview\n\
         $ curl -s 'http://127.0.0.1:11280/api/v1/connections?search=client&limit=10'\n\
         $ curl -sN 'http://127.0.0.1:11280/api/v1/stream?topic=overview&interval_ms=500'\n\
         ```\n",
    );
    page
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn what_changes_something_needs_a_session() {
        for route in ROUTES {
            let open = route.endpoint == Endpoint::SessionOpen;
            assert!(route.method == Method::Get || route.guard == Guard::Session || open, "{}", route.path);
        }
    }

    #[test]
    fn routes_and_endpoints_are_distinct() {
        let routes: HashSet<_> = ROUTES.iter().map(|route| (route.method, route.path)).collect();
        let endpoints: HashSet<_> = ROUTES.iter().map(|route| route.endpoint).collect();
        assert_eq!((routes.len(), endpoints.len()), (ROUTES.len(), ROUTES.len()));
    }
}
