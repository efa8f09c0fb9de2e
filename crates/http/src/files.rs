//! A few files from memory, for pages that belong to a program.

use std::borrow::Cow;
use std::future::Future;
use std::io;

use axum::Router;
use axum::http::header;
use axum::routing::get;
use tokio::net::TcpListener;

use crate::routes::serve_router;

/// Connections at a time. A browser opens six.
const CONNECTIONS_MAX: usize = 256;

/// One file.
#[derive(Debug, Clone)]
pub struct File {
    path: &'static str,
    content_type: &'static str,
    content: Cow<'static, str>,
}

impl File {
    /// A file to be served under `path`, which begins with a slash.
    pub fn new(
        path: &'static str,
        content_type: &'static str,
        content: impl Into<Cow<'static, str>>,
    ) -> Self {
        File { path, content_type, content: content.into() }
    }
}

/// Serves `files` on `listener` until `shutdown` completes; everything else is answered with 404.
///
/// # Errors
/// When the listener itself fails.
pub async fn serve_files(
    listener: TcpListener,
    files: impl IntoIterator<Item = File>,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let mut router = Router::new();
    for File { path, content_type, content } in files {
        let headers = [
            (header::CONTENT_TYPE, content_type),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            // The program may be a newer one the next time.
            (header::CACHE_CONTROL, "no-cache"),
        ];
        router = router.route(path, get(async move || (headers, content)));
    }
    serve_router(listener, router, CONNECTIONS_MAX, shutdown).await
}
