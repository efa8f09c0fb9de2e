//! Metrics and console on the listener of the cache.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use throng_admin::{Access, Act, ApiRequest, Family, Health, Monitor, Pages, Problem};
use throng_ddc_server::{Listener, Node, Rules, ServeOptions, serve};
use throng_ddc_store::Options;
use tokio::net::{TcpListener, TcpStream};

use crate::common::Client;

struct Nothing;

impl Monitor for Nothing {
    fn health(&self) -> Health {
        Health { live: true, ready: true, parts: Vec::new() }
    }

    fn metrics(&self) -> Vec<Family> {
        Vec::new()
    }

    fn answer(&self, _request: &ApiRequest) -> Result<serde_json::Value, Problem> {
        Ok(serde_json::Value::Null)
    }

    fn record(&self, _act: &Act) {}
}

/// A node whose pages the test sets.
struct Server {
    _folder: tempfile::TempDir,
    _node: Node,
    addr: SocketAddr,
    pages: Arc<OnceLock<Pages>>,
}

impl Server {
    async fn start() -> Server {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let node = Node::open(folder.path(), Options::default(), Rules::default()).expect("the folder opens");
        let socket = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let addr = socket.local_addr().expect("it is bound");
        let pages = Arc::<OnceLock<Pages>>::default();
        let options = ServeOptions { pages: Arc::clone(&pages), ..ServeOptions::new(Listener::Public) };
        tokio::spawn(serve(socket, Arc::clone(node.service()), options, std::future::pending()));
        Server { _folder: folder, _node: node, addr, pages }
    }

    fn set_pages(&self) {
        let access = Arc::new(Access::new(Vec::new(), false));
        assert!(self.pages.set(Pages::new(Arc::new(Nothing), access, self.addr)).is_ok());
    }
}

#[tokio::test]
async fn a_connection_that_was_opened_before_the_pages_gets_them_too() {
    let server = Server::start().await;
    let client = Client::connect(server.addr).await;
    assert_eq!(client.get("/health/ready", "*/*").await.status, StatusCode::OK);
    assert_eq!(client.get("/metrics", "*/*").await.status, StatusCode::NOT_FOUND);
    server.set_pages();
    assert_eq!(client.get("/metrics", "*/*").await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_connection_of_http_2_gets_pages_beside_the_service() {
    let server = Server::start().await;
    let stream = TokioIo::new(TcpStream::connect(server.addr).await.expect("loopback"));
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream);
    let (mut sender, connection) = handshake.await.expect("HTTP/2");
    tokio::spawn(connection);
    let mut status = async |host: &str, path: &str| {
        let request = Request::get(format!("http://{host}{path}")).body(Empty::<Bytes>::new());
        let answer = sender.send_request(request.expect("a request")).await.expect("an answer");
        let status = answer.status();
        answer.into_body().collect().await.map(|_| status.as_u16()).expect("a whole body")
    };
    assert_eq!(status("localhost", "/metrics").await, 404);
    server.set_pages();
    for (path, expected) in [
        ("/metrics", 200),
        ("/console/", 200),
        ("/api/v1/server", 200),
        ("/health/ready", 200),
        ("/none", 404),
    ] {
        assert_eq!(status("localhost", path).await, expected, "{path}");
    }
    assert_eq!(status("evil.example", "/metrics").await, 403, "the rules of the admin listener");
}
