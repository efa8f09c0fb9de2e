//! A node on loopback and a client that speaks to it as an editor does.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use throng_ddc_server::{Listener, Node, Origin, Rules, ServeOptions, serve};
use throng_ddc_store::Options;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Notify};

pub(crate) struct Server {
    pub(crate) addr: SocketAddr,
    node: Option<Node>,
    end: Arc<Notify>,
    folder: Option<tempfile::TempDir>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end.notify_one();
    }
}

impl Server {
    pub(crate) async fn start(rules: Rules, listener: Listener) -> Server {
        let folder = tempfile::tempdir().expect("a temporary folder");
        Server::start_in(folder, Options::default(), rules, listener, Origin::Alone).await
    }

    /// Starts with another limit of connections.
    pub(crate) async fn start_with(rules: Rules, connections_max: usize) -> Server {
        let folder = tempfile::tempdir().expect("a temporary folder");
        Server::open(folder, Options::default(), rules, Listener::Public, Origin::Alone, connections_max)
            .await
    }

    pub(crate) async fn start_in(
        folder: tempfile::TempDir,
        options: Options,
        rules: Rules,
        listener: Listener,
        origin: Origin,
    ) -> Server {
        Server::open(folder, options, rules, listener, origin, 100).await
    }

    async fn open(
        folder: tempfile::TempDir,
        options: Options,
        rules: Rules,
        listener: Listener,
        origin: Origin,
        connections_max: usize,
    ) -> Server {
        let node = Node::open_with(folder.path(), options, rules, origin).expect("the folder opens");
        let socket = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let addr = socket.local_addr().expect("it is bound");
        let end = Arc::new(Notify::new());
        let (service, stop) = (Arc::clone(node.service()), Arc::clone(&end));
        let options = ServeOptions {
            connections_max,
            // Every client of a test has the same address.
            exempt: Arc::new(|_| true),
            ..ServeOptions::new(listener)
        };
        tokio::spawn(async move { serve(socket, service, options, stop.notified()).await });
        Server { addr, node: Some(node), end, folder: Some(folder) }
    }

    pub(crate) fn service(&self) -> &Arc<throng_ddc_server::Service> {
        self.node.as_ref().expect("it runs").service()
    }

    /// Stops, and leaves the folder.
    pub(crate) fn stop(mut self) -> tempfile::TempDir {
        self.end.notify_one();
        drop(self.node.take());
        self.folder.take().expect("it has one")
    }

    /// Where it keeps everything.
    pub(crate) fn folder(&self) -> &std::path::Path {
        self.folder.as_ref().expect("it has one").path()
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.addr).await
    }
}

pub(crate) struct Client(Mutex<hyper::client::conn::http1::SendRequest<Full<Bytes>>>);

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: hyper::HeaderMap,
    pub(crate) body: Bytes,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("text"))
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }
}

impl Client {
    pub(crate) async fn connect(addr: SocketAddr) -> Client {
        let stream = TcpStream::connect(addr).await.expect("it listens");
        let (sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("HTTP/1.1");
        tokio::spawn(connection);
        Client(Mutex::new(sender))
    }

    /// Sends a request; `headers` are `Name: value`.
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[&str],
        body: impl Into<Bytes>,
    ) -> Reply {
        let mut request = Request::builder().method(method).uri(path);
        if !headers.iter().any(|line| line.starts_with("Host: ")) {
            request = request.header(header::HOST, "localhost");
        }
        for line in headers {
            let (name, value) = line.split_once(": ").expect("Name: value");
            request = request.header(name, value);
        }
        let request = request.body(Full::new(body.into())).expect("a valid request");
        let mut sender = self.0.lock().await;
        sender.ready().await.expect("the connection stays open");
        let response = sender.send_request(request).await.expect("an answer");
        let (parts, body) = response.into_parts();
        let body = body.collect().await.expect("a whole body").to_bytes();
        Reply { status: parts.status, headers: parts.headers, body }
    }

    pub(crate) async fn get(&self, path: &str, accept: &str) -> Reply {
        self.send("GET", path, &[&format!("Accept: {accept}")], "").await
    }
}
