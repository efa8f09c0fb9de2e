//! Every route, once: the router, the list at `/api/v1` and the reference page are made from this.

use std::fmt::Write as _;

use crate::access::Guard;

/// The methods in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// Reads.
    Get,
    /// Begins something.
    Post,
    /// Ends something.
    Delete,
}

impl Method {
    /// As on the wire.
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
    /// Why a connection does not get a channel's updates.
    Why,
    /// Connections that are gone.
    Closures,
    /// Channels.
    Channels,
    /// One channel.
    Channel,
    /// The data of one channel.
    ChannelData,
    /// Cells and entities.
    World,
    /// The derived-data cache.
    Cache,
    /// Collects garbage in the cache.
    CacheCollect,
    /// Looks for damage in the cache.
    CacheScrub,
    /// Rooms and queues of the matcher.
    Rooms,
    /// A question to the matcher.
    Matcher,
    /// The same, or a queue's rules.
    MatcherCall,
    /// Every bound and how much of it is in use.
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
    /// Audit record: author and change.
    Audit,
    /// State of the console session.
    Session,
    /// Opens a session.
    SessionOpen,
    /// Ends the session.
    SessionClose,
    /// Makes a one-time token.
    Invite,
    /// Server-sent events.
    Stream,
}

/// One route.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// Its method.
    pub method: Method,
    /// Its path; `{id}` stands for a number.
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

const LIMIT: (&str, &str) = ("limit", "most entries, 100 unless given, at most 5000");
const OFFSET: (&str, &str) = ("offset", "entries to skip");
const SEARCH: (&str, &str) =
    ("search", "only entries in which this text occurs, case aside; at most 100 bytes");

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
    get("/api/v1/server", Guard::Monitor, Endpoint::Server, &[], "The process in a few figures."),
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
        &[LIMIT, OFFSET, SEARCH],
        "Live connections by id.",
    ),
    get(
        "/api/v1/connections/{id}",
        Guard::Monitor,
        Endpoint::Connection,
        &[],
        "One connection: queue, subscriptions (at most 1000), interest; or why it was closed.",
    ),
    get(
        "/api/v1/connections/{id}/why",
        Guard::Monitor,
        Endpoint::Why,
        &[("channel", "the channel, or the entity")],
        "Why a connection does not get a channel's updates, or when it will: what an update passes, step by step.",
    ),
    get(
        "/api/v1/closures",
        Guard::Monitor,
        Endpoint::Closures,
        &[LIMIT, OFFSET, SEARCH],
        "The latest 256 closures of each shard with their reasons, newest first.",
    ),
    get(
        "/api/v1/channels",
        Guard::Monitor,
        Endpoint::Channels,
        &[LIMIT, OFFSET, SEARCH, ("type", "only channels of this type, as in `ENTITY`")],
        "Channels by id.",
    ),
    get(
        "/api/v1/channels/{id}",
        Guard::Monitor,
        Endpoint::Channel,
        &[LIMIT, OFFSET],
        "One channel: its subscribers (a page of them) and cohorts.",
    ),
    get(
        "/api/v1/channels/{id}/data",
        Guard::Session,
        Endpoint::ChannelData,
        &[],
        "Its data as decoded fields, up to 1 MiB encoded.",
    ),
    get(
        "/api/v1/world",
        Guard::Monitor,
        Endpoint::World,
        &[
            ("entities", "most entities, 10000 unless given, at most 20000"),
            ("connection", "with the interest of this connection"),
        ],
        "The grid, its cells with their owners, and entities with their positions.",
    ),
    get(
        "/api/v1/cache",
        Guard::Monitor,
        Endpoint::Cache,
        &[],
        "The derived-data cache: traffic, store, namespaces.",
    ),
    get(
        "/api/v1/rooms",
        Guard::Monitor,
        Endpoint::Rooms,
        &[],
        "The matcher: how many rooms, players and tickets, rooms by mode, requests and refusals.",
    ),
    get(
        "/api/v1/matcher",
        Guard::Session,
        Endpoint::Matcher,
        &[
            ("method", "one that changes nothing, as `ListQueues`"),
            ("request", "its body, `{}` unless given"),
        ],
        "Asks one of the [matcher's methods](matcher.md), as its own HTTP interface does.",
    ),
    post(
        "/api/v1/matcher",
        Guard::Session,
        Endpoint::MatcherCall,
        &[
            ("method", "`PutQueue`, or one that changes nothing"),
            ("request", "its body, an object, `{}` unless given"),
        ],
        "The same, with a body of up to 64 KiB: tries or puts a queue's rule set.",
    ),
    get("/api/v1/limits", Guard::Monitor, Endpoint::Limits, &[], "Every bound and how much of it is in use."),
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
        "Begins to read every stored blob, at `ddc.scrub_bytes_per_s`; damaged ones are put aside.",
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
        "The capture: its state, and messages with decoded fields. Credentials are left out.",
    ),
    post(
        "/api/v1/capture",
        Guard::Session,
        Endpoint::CaptureBegin,
        &[("connection", "whose messages"), ("seconds", "for how long, 1 to 600, 60 unless given")],
        "Captures one connection's messages, both ways; at most 512 are kept, the oldest make room.",
    ),
    delete("/api/v1/capture", Guard::Session, Endpoint::CaptureEnd, "Ends the capture and forgets it."),
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
        "Who changed what over this interface, newest first: the end of `audit.jsonl` in the data folder.",
    ),
    get("/api/v1/session", Guard::Open, Endpoint::Session, &[], "Whether this browser has a session."),
    post(
        "/api/v1/session",
        Guard::Open,
        Endpoint::SessionOpen,
        &[("token", "a one-time token, or one of http.tokens_file")],
        "Opens a console session; sets a cookie that is same-site and closed to scripts.",
    ),
    delete("/api/v1/session", Guard::Session, Endpoint::SessionClose, "Ends the session."),
    post(
        "/api/v1/session/tokens",
        Guard::Session,
        Endpoint::Invite,
        &[],
        "Makes a one-time token, for another browser.",
    ),
    get(
        "/api/v1/stream",
        Guard::Monitor,
        Endpoint::Stream,
        &[
            ("topic", "`overview` or `world`"),
            ("interval_ms", "time between events, 50 to 60000, 1000 unless given"),
            ("entities, connection", "as for `/api/v1/world`"),
        ],
        "Server-sent events: what the route of that name answers, again and again.",
    ),
];

/// The reference page of the HTTP interface.
#[must_use]
pub fn markdown() -> String {
    let mut page = String::from(
        "# HTTP interface\n\n\
         For programs that watch a gateway. The console is made of nothing else. Answers are JSON; a failure is\n\
         `{\"error\": \"...\"}` with a fitting status. Lists hold `total`, `offset`, `limit` and one page of entries.\n\n\
         Who may use a route: **everyone**; **monitor** needs a credential, or, where `http.tokens_file` names no tokens, a\n\
         request from this machine under a loopback name; **session** needs a credential always. A credential is\n\
         `Authorization: Bearer TOKEN` with one of the configured tokens, or the cookie of a console session. What may change\n\
         something is refused when its `Origin` is another site; with a cookie the `Origin` has to be there.\n\n\
         | Route | Who | Answer |\n|---|---|---|\n\
         | `GET /health/live` | everyone | 200 while the process works at all. |\n\
         | `GET /health/ready`, `/healthz` | everyone | 200 when it takes players, else 503; JSON with every part. |\n\
         | `GET /metrics` | monitor | [Metrics](metrics.md) as Prometheus text or OpenMetrics. |\n\
         | `GET /debug/pprof/profile?seconds=N` | monitor | A CPU profile, pprof protobuf. |\n\
         | `GET /console/` | everyone | The console's files; they hold no figures. |\n",
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
