//! An S3 server over a folder, which can be stopped and started again at its address.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use throng_ddc_store::{Tier, TierOptions};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::Barrier;
use tokio::task::{JoinHandle, JoinSet};

/// Trusts nobody: everything here is without TLS.
pub(crate) fn tls() -> Arc<rustls::ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring has them")
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    Arc::new(config)
}

pub(crate) const ACCESS_KEY: &str = "test-access";
pub(crate) const SECRET_KEY: &str = "test-secret-key";
pub(crate) const BUCKET: &str = "cache-bucket";

/// Settings of the bucket at an address.
pub(crate) fn options(addr: SocketAddr) -> TierOptions {
    let settings =
        [("access_key_id", ACCESS_KEY), ("secret_access_key", SECRET_KEY), ("region", "us-east-1")];
    TierOptions {
        url: format!("s3://{BUCKET}/ddc"),
        endpoint: format!("http://{addr}"),
        settings: settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        timeout: Duration::from_secs(60),
        tls: tls(),
        refresh: None,
    }
}

pub(crate) struct S3 {
    pub(crate) addr: SocketAddr,
    service: S3Service,
    running: Option<JoinHandle<()>>,
    folder: tempfile::TempDir,
    /// New connections are answered when so many are open.
    together: Arc<Mutex<Option<Arc<Barrier>>>>,
}

impl S3 {
    pub(crate) async fn start() -> S3 {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::create_dir(folder.path().join(BUCKET)).expect("a bucket is a folder");
        let mut builder = S3ServiceBuilder::new(s3s_fs::FileSystem::new(folder.path()).expect("it exists"));
        builder.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let addr = listener.local_addr().expect("it is bound");
        let mut s3 = S3 { addr, service: builder.build(), running: None, folder, together: Arc::default() };
        s3.serve(listener);
        s3
    }

    /// A client of its bucket.
    pub(crate) fn tier(&self) -> Tier {
        self.tier_with(None)
    }

    /// The same, for a node that writes again what is this old when it is used.
    pub(crate) fn tier_with(&self, refresh: Option<Duration>) -> Tier {
        Tier::new(&TierOptions { refresh, ..options(self.addr) }).expect("valid options")
    }

    /// From now on, new connections are answered once `count` of them are open; `None` ends that.
    pub(crate) fn answer_together(&self, count: Option<usize>) {
        *self.together.lock().expect("no panic") = count.map(|count| Arc::new(Barrier::new(count)));
    }

    /// Breaks every connection and refuses new ones.
    pub(crate) async fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            running.abort();
            let _ = running.await;
        }
    }

    pub(crate) fn start_again(&mut self) {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_reuseaddr(true).expect("an option");
        socket.bind(self.addr).expect("nobody took the port");
        self.serve(socket.listen(128).expect("it listens"));
    }

    /// The file that an object is.
    pub(crate) fn object(&self, path: &str) -> PathBuf {
        self.folder.path().join(BUCKET).join(path)
    }

    fn serve(&mut self, listener: TcpListener) {
        let (service, together) = (self.service.clone(), Arc::clone(&self.together));
        self.running = Some(tokio::spawn(async move {
            // Dropped with this task, and all connections with it.
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let service = service.clone();
                let gate = together.lock().expect("no panic").clone();
                connections.spawn(async move {
                    if let Some(gate) = gate {
                        gate.wait().await;
                    }
                    let _ = Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        }));
    }
}
