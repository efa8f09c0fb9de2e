//! The pages of the admin listener on the listener of another service, under the same access rules.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::body::Body;
use hyper::service::Service as _;
use hyper::{Request, Response};
use hyper_util::service::TowerToHyperService;
use tokio::sync::Semaphore;

use crate::access::Access;
use crate::app::App;
use crate::audit::From;
use crate::crowd::Guest;
use crate::http2::{Framed, Received};
use crate::monitor::Monitor;
use crate::routes::{router, serve_connection};
use crate::transport::Transport;
use crate::{ROUTES, api};

/// Metrics, console and API, for a listener that answers other requests itself.
#[derive(Clone)]
pub struct Pages(Router);

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pages")
    }
}

impl Pages {
    /// Pages of `monitor` on the listener at `listener`.
    #[must_use]
    pub fn new(monitor: Arc<dyn Monitor>, access: Arc<Access>, listener: SocketAddr) -> Pages {
        let streams = Arc::new(Semaphore::new(api::STREAMS_MAX));
        Pages(router(App { monitor, access, listener, streams }))
    }

    /// Reports whether `path` is one of these pages. Health is not: the service has its own.
    #[must_use]
    pub fn has(path: &str) -> bool {
        match path.strip_prefix(API) {
            Some(rest) => SEGMENTS.contains(&first_segment(rest)),
            None => {
                matches!(
                    path,
                    "/" | "/metrics" | "/healthz" | "/console" | "/api/v1" | "/debug/pprof/profile"
                ) || path.starts_with("/console/")
            }
        }
    }

    /// Answers the first request of a connection, and ends it: what comes next may be for the
    /// service.
    pub async fn serve<S>(&self, stream: S, from: Option<SocketAddr>, guest: Guest)
    where
        S: Transport,
    {
        serve_connection(stream, from, guest, self.0.clone(), false).await;
    }

    /// Answers a request of an HTTP/2 connection.
    pub async fn answer(
        &self,
        mut request: Request<Received>,
        from: Option<SocketAddr>,
    ) -> Response<Framed<Body>> {
        request.extensions_mut().insert(From(from));
        let answer = TowerToHyperService::new(self.0.clone()).call(request.map(Body::new));
        let Ok(answer) = answer.await;
        answer.map(Framed::new)
    }
}

/// Prefix of the API.
const API: &str = "/api/v1/";

/// Segments behind it that the routes begin with, each once: every request to the other service is
/// compared with them.
static SEGMENTS: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let mut segments: Vec<&str> =
        ROUTES.iter().filter_map(|route| route.path.strip_prefix(API)).map(first_segment).collect();
    segments.sort_unstable();
    segments.dedup();
    segments
});

fn first_segment(path: &str) -> &str {
    path.split('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_leave_the_routes_of_a_cache_alone() {
        for path in [
            "/",
            "/metrics",
            "/console",
            "/console/app.js",
            "/api/v1",
            "/api/v1/server",
            "/api/v1/cache/collect",
        ] {
            assert!(Pages::has(path), "{path}");
        }
        for path in [
            "/health/live",
            "/health/ready",
            "/api/v1/refs/n/b",
            "/api/v1/blobs/n",
            "/api/v1/status",
            "/api/v1/auth/n",
            "/api/v1/admin/settings",
            "/api/v1/replication-log/snapshots/n",
            "/api/v1/",
            "/metricsx",
            "/cas/0",
            "/kv/a/b",
            "/api/v1/objects/n/h",
            "/api/v1/compressed-blobs/n",
            "/api/v1/content-id/n/h",
            "/api/v1/peers",
        ] {
            assert!(!Pages::has(path), "{path}");
        }
    }
}
