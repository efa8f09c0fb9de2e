//! Metrics and console on the listener of the cache.

use std::sync::{Arc, OnceLock};

use hyper::StatusCode;
use throng_admin::{Access, Act, ApiRequest, Family, Health, Monitor, Pages, Problem};
use throng_ddc_server::{Listener, Node, Rules, ServeOptions, serve};
use throng_ddc_store::Options;
use tokio::net::TcpListener;

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

#[tokio::test]
async fn a_connection_that_was_opened_before_the_pages_gets_them_too() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let node = Node::open(folder.path(), Options::default(), Rules::default()).expect("the folder opens");
    let socket = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let addr = socket.local_addr().expect("it is bound");
    let pages = Arc::<OnceLock<Pages>>::default();
    let options = ServeOptions { pages: Arc::clone(&pages), ..ServeOptions::new(Listener::Public) };
    let service = Arc::clone(node.service());
    tokio::spawn(serve(socket, service, options, std::future::pending()));
    let client = Client::connect(addr).await;
    assert_eq!(client.get("/health/ready", "*/*").await.status, StatusCode::OK);
    assert_eq!(client.get("/metrics", "*/*").await.status, StatusCode::NOT_FOUND);
    let access = Arc::new(Access::new(Vec::new(), false));
    assert!(pages.set(Pages::new(Arc::new(Nothing), access, addr)).is_ok());
    assert_eq!(client.get("/metrics", "*/*").await.status, StatusCode::OK);
}
