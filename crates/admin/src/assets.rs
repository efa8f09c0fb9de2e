//! The console's files and the documents, embedded in the binary.
//!
//! `console/dist` is checked in, so building the binary needs Rust only. `make console` rebuilds
//! it, and a test fails if it is stale.

use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::response::problem;

/// Content security policy: scripts, styles and connections of this origin only, so markup in a
/// hostile player's name cannot run code.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

macro_rules! files {
    ($($name:literal $kind:literal $path:literal,)*) => {
        &[$(($name, $kind, include_bytes!(concat!("../../../", $path)) as &[u8]),)*]
    };
}

/// Name below `/console/`, content type, content.
static FILES: &[(&str, &str, &[u8])] = files! {
    "" "text/html; charset=utf-8" "console/dist/index.html",
    "app.js" "text/javascript; charset=utf-8" "console/dist/app.js",
    "app.css" "text/css; charset=utf-8" "console/dist/app.css",
    "icon.svg" "image/svg+xml" "console/dist/icon.svg",
};

macro_rules! docs {
    ($($path:literal $title:literal,)*) => {
        &[$(($path, $title, include_str!(concat!("../../../docs/", $path))),)*]
    };
}

/// Documents in the console: path below `docs/`, title, text. A test of the binary
/// compares them with the folder.
pub static DOCS: &[(&str, &str, &str)] = docs! {
    "README.md" "All documents by purpose",
    "tutorial/first-gateway.md" "First gateway",
    "tutorial/first-game.md" "First game",
    "tutorial/shared-ddc.md" "A shared derived-data cache",
    "how-to/gather-players-in-rooms.md" "Gather players in rooms",
    "how-to/rank-players-five-against-five.md" "Rank players five against five",
    "how-to/look-inside.md" "Look inside",
    "how-to/measure-and-compare.md" "Measure and compare",
    "how-to/build-cache.md" "A build cache for C++ and Rust",
    "how-to/connect-a-client.md" "Connect a client",
    "how-to/migrate-from-enet.md" "Migrate from ENet",
    "how-to/migrate-from-cloud-ddc.md" "Migrate from Cloud DDC",
    "how-to/deploy.md" "Deploy",
    "how-to/migrate-from-channeld.md" "Migrate from channeld",
    "how-to/one-world-over-nine-servers.md" "One world over nine servers",
    "how-to/many-worlds.md" "Many worlds in one process",
    "how-to/many-nodes.md" "From one machine to ten",
    "reference/config.md" "Configuration",
    "reference/http.md" "HTTP interface",
    "reference/matcher.md" "Matcher",
    "reference/matcher-journal.md" "Matcher journal",
    "reference/match-modes.md" "Match modes",
    "reference/rule-sets.md" "Rule sets of queues",
    "reference/metrics.md" "Metrics",
    "reference/replication-metrics.md" "Metrics of replication",
    "reference/reasons.md" "Reasons",
    "reference/errors.md" "Error codes",
    "explanation/fan-out-cohorts.md" "Fan-out by cohorts",
    "explanation/enet-without-the-ceiling.md" "ENet without the ceiling",
    "transports.md" "Transports",
    "wire-format.md" "Wire format",
    "channel-data.md" "Channel data",
    "replication.md" "Replication",
    "benchmarks.md" "Benchmarks",
    "weaknesses.md" "Weaknesses",
    "glossary.md" "Glossary",
    "renames.md" "Renames",
};

/// A file of the console or a document.
pub(crate) async fn file(request: Request) -> Response {
    let name = request.uri().path().strip_prefix("/console/").unwrap_or_default();
    let doc = name.strip_prefix("docs/").and_then(|path| DOCS.iter().find(|(known, _, _)| *known == path));
    let (kind, bytes) = match (FILES.iter().find(|(known, _, _)| *known == name), doc) {
        (Some((_, kind, bytes)), _) => (*kind, *bytes),
        (None, Some((_, _, text))) => ("text/markdown; charset=utf-8", text.as_bytes()),
        (None, None) if name == "docs" => {
            let list: Vec<_> = DOCS.iter().map(|(path, title, _)| serde_json::json!([path, title])).collect();
            return axum::Json(list).into_response();
        }
        (None, None) => {
            return (StatusCode::NOT_FOUND, problem("the console has no such file")).into_response();
        }
    };
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // The name stays when the program is replaced.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, bytes).into_response()
}
