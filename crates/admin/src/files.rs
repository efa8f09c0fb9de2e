//! Server for a few files in memory, for pages of other programs.

use std::borrow::Cow;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::http::header;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::oneshot;

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
    /// Creates a file for `path`, which begins with a slash.
    pub fn new(
        path: &'static str,
        content_type: &'static str,
        content: impl Into<Cow<'static, str>>,
    ) -> Self {
        File { path, content_type, content: content.into() }
    }
}

/// Serves `files` on `listener` until `shutdown` completes. Other paths get a 404.
pub async fn serve_files(
    listener: TcpListener,
    files: impl IntoIterator<Item = File>,
    shutdown: impl Future<Output = ()> + Send,
) {
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
    serve_router(listener, router, CONNECTIONS_MAX, std::pin::pin!(shutdown)).await;
}

/// A text page with changing content, served on a thread of its own until it is dropped.
#[derive(Debug)]
pub struct LivePage {
    /// Address of its listener.
    pub addr: SocketAddr,
    text: Arc<Mutex<String>>,
    /// Dropped to end the thread.
    _stop: oneshot::Sender<()>,
}

impl LivePage {
    /// Serves a page at `path`, initially empty.
    ///
    /// # Errors
    /// If the listener cannot be opened, or the thread cannot be started.
    pub fn serve(addr: SocketAddr, path: &'static str, content_type: &'static str) -> io::Result<Self> {
        let (stop, stopped) = oneshot::channel::<()>();
        let listener = std::net::TcpListener::bind(addr)?;
        listener.set_nonblocking(true)?;
        let addr = listener.local_addr()?;
        let text = Arc::new(Mutex::new(String::new()));
        let shown = Arc::clone(&text);
        let runtime = Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("page".to_owned()).spawn(move || {
            runtime.block_on(async {
                let page = move || async move {
                    let text = shown.lock().unwrap_or_else(PoisonError::into_inner).clone();
                    ([(header::CONTENT_TYPE, content_type)], text)
                };
                let router = Router::new().route(path, get(page));
                // A dropped sender ends the page as a sent one does. A listener that fails leaves
                // the page unreachable.
                let end = async { drop(stopped.await) };
                if let Ok(listener) = TcpListener::from_std(listener) {
                    serve_router(listener, router, CONNECTIONS_MAX, std::pin::pin!(end)).await;
                }
            });
        })?;
        Ok(Self { addr, text, _stop: stop })
    }

    /// Replaces the text.
    pub fn set(&self, text: String) {
        *self.text.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }
}
