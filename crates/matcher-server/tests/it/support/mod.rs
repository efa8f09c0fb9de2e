//! A matcher with its HTTP listener, and plain sockets to it, as a script would use it.

pub(crate) mod tls;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};
use throng_admin::Tls;
use throng_matcher::Config;
use throng_matcher_server::{Durability, HttpOptions, Options, Service, Tokens, serve_http, start};

/// Far beyond what any step needs; reached only when a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct Server {
    pub(crate) addr: SocketAddr,
    pub(crate) service: Service,
    pub(crate) runtime: tokio::runtime::Runtime,
}

pub(crate) fn serve(tokens: &str, requests_max: usize) -> Server {
    serve_behind(None, tokens, requests_max)
}

pub(crate) fn serve_behind(tls: Option<Tls>, tokens: &str, requests_max: usize) -> Server {
    let tokens = Tokens::parse(tokens).unwrap();
    let service = start(Options {
        addr: Some("127.0.0.1:0".parse().unwrap()),
        unix: None,
        tls: None,
        config: Config::default(),
        durability: Durability::None,
        fs: None,
        tokens: tokens.clone(),
        area: String::new(),
        secret: [3; 32],
        salvage: false,
        policies: throng_matcher_server::Policies::default(),
        gate: throng_matcher_server::Gate::default(),
    })
    .unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let addr = listener.local_addr().unwrap();
    let options = HttpOptions { tokens, connections_max: 64, requests_max, tls };
    runtime.spawn(serve_http(listener, service.handle().clone(), options, std::future::pending()));
    Server { addr, service, runtime }
}

impl Server {
    /// Sends a request with these lines of head.
    pub(crate) fn open(&self, head: &str, body: &str) -> BufReader<TcpStream> {
        let mut socket = TcpStream::connect(self.addr).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let host = if head.contains("\r\nHost:") { "" } else { "\r\nHost: localhost" };
        let text = format!("{head}{host}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        socket.write_all(text.as_bytes()).unwrap();
        BufReader::new(socket)
    }

    pub(crate) fn post(&self, method: &str, headers: &str, body: &Value) -> (u16, Value) {
        self.post_text(method, headers, &body.to_string())
    }

    pub(crate) fn post_text(&self, method: &str, headers: &str, body: &str) -> (u16, Value) {
        let head = format!("POST /matcher/v1/{method} HTTP/1.1\r\nConnection: close{headers}");
        let mut reader = self.open(&head, body);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head[9..12].parse().unwrap(), serde_json::from_str(body).unwrap())
    }
}

pub(crate) fn join(role: &str) -> Value {
    json!({"RoleInfo": {"RoleID": role}, "CreateInfo": {"MatchMode": "5v5"}})
}

/// The next batch of a stream of Server-Sent Events.
pub(crate) fn next_event(reader: &mut BufReader<TcpStream>) -> Value {
    loop {
        let mut line = String::new();
        assert_ne!(reader.read_line(&mut line).unwrap(), 0, "the stream ended");
        if let Some(data) = line.strip_prefix("data: ") {
            return serde_json::from_str(data).unwrap();
        }
    }
}

/// Opens a WebSocket for notifications.
pub(crate) fn open_websocket(server: &Server, path: &str) -> BufReader<TcpStream> {
    let head = format!(
        "GET {path} HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
    );
    let mut reader = server.open(&head, "");
    let (mut line, mut accepted) = (String::new(), false);
    while line != "\r\n" {
        line.clear();
        assert_ne!(reader.read_line(&mut line).unwrap(), 0, "the connection ended");
        accepted |= line.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
    assert!(accepted);
    reader
}

/// The next text message of a WebSocket.
pub(crate) fn next_message(reader: &mut BufReader<TcpStream>) -> Value {
    loop {
        let mut head = [0; 2];
        reader.read_exact(&mut head).unwrap();
        let len = match head[1] {
            126 => {
                let mut long = [0; 2];
                reader.read_exact(&mut long).unwrap();
                u64::from(u16::from_be_bytes(long))
            }
            127 => {
                let mut long = [0; 8];
                reader.read_exact(&mut long).unwrap();
                u64::from_be_bytes(long)
            }
            short => u64::from(short),
        };
        let mut payload = vec![0; len as usize];
        reader.read_exact(&mut payload).unwrap();
        if head[0] == 0x81 {
            return serde_json::from_slice(&payload).unwrap();
        }
    }
}
