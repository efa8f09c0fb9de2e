//! The routes over a real socket.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use throng_admin::{
    Access, Act, ApiRequest, Family, FamilyKind, Guard, Health, Method, Monitor, Part, Problem, ROUTES,
    Sample, SampleValue, ServeOptions, serve,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

struct Fixed {
    ready: bool,
    acts: Acts,
}

type Acts = Arc<Mutex<Vec<Act>>>;

impl Monitor for Fixed {
    fn health(&self) -> Health {
        let part = Part { name: "shard 0".into(), ok: self.ready, detail: "serving".into() };
        Health { live: true, ready: self.ready, parts: vec![part] }
    }

    fn metrics(&self) -> Vec<Family> {
        let labels = vec![("kind", Cow::Borrowed("client"))];
        let samples = vec![Sample { labels, value: SampleValue::Number(3.0) }];
        vec![Family { name: "throng_x", help: "Counts x.", kind: FamilyKind::Counter, samples }]
    }

    fn answer(&self, ask: &ApiRequest) -> Result<serde_json::Value, Problem> {
        if ask.id == Some(404) {
            return Err(Problem::new(404, "no such thing: <script>"));
        }
        Ok(serde_json::json!({
            "endpoint": format!("{:?}", ask.endpoint), "id": ask.id, "limit": ask.page.limit,
            "offset": ask.page.offset, "search": ask.search, "query": ask.query, "body": ask.body,
        }))
    }

    fn record(&self, act: &Act) {
        self.acts.lock().unwrap().push(act.clone());
    }
}

async fn start(ready: bool, tokens: &[&str]) -> SocketAddr {
    start_recorded(ready, tokens, Acts::default()).await
}

async fn start_recorded(ready: bool, tokens: &[&str], acts: Acts) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let access = Arc::new(Access::new(tokens.iter().map(|token| (*token).to_owned()).collect(), false));
    let options = ServeOptions { access, connections_max: 8 };
    tokio::spawn(serve(listener, Arc::new(Fixed { ready, acts }), options, std::future::pending()));
    addr
}

async fn request(addr: SocketAddr, path: &str, headers: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let status = text.split(' ').nth(1).unwrap_or_default().parse().unwrap_or(0);
    (status, text)
}

#[tokio::test]
async fn every_route_answers() {
    let addr = start(true, &[]).await;
    let table = [
        ("/", 200, "/health/live"),
        ("/health/live", 200, r#"{"live":true}"#),
        ("/health/ready", 200, r#""name":"shard 0""#),
        ("/healthz", 200, r#""ready":true"#),
        ("/metrics", 200, "throng_x_total{kind=\"client\"} 3"),
        ("/api/v1/server", 200, r#""endpoint":"Server""#),
        ("/api/v1/connections?limit=7&offset=2", 200, r#""limit":7,"offset":2"#),
        ("/api/v1/channels?limit=999999", 200, r#""limit":5000"#),
        ("/api/v1/limits", 200, r#""endpoint":"Limits""#),
        ("/api/v1/channels?limit=x", 400, "must be integers"),
        ("/api/v1/channels?search=%3CB%3E%20x", 200, r#""search":"<b> x""#),
        ("/api/v1/channels/7", 200, r#""id":7"#),
        ("/api/v1/channels/404", 404, "no such thing: <script>"),
        ("/api/v1/channels/-1", 400, "must be an integer"),
        ("/api/v1/channels/99999999999", 400, "must be an integer"),
        ("/api/v1/cluster/worlds/hub-7", 200, r#""query":{"name":"hub-7"}"#),
        ("/api/v1/stream?topic=cats", 400, "topic must be"),
        ("/api/v1/stream?topic=world&interval_ms=1", 400, "from 50 to 60000"),
        ("/api/v1", 200, r#""path":"/api/v1/world""#),
        ("/console/", 200, "text/html"),
        ("/console/app.js", 200, "script-src 'self'"),
        ("/console/docs", 200, "First gateway"),
        ("/console/docs/reference/config.md", 200, "text/markdown"),
        ("/console/../Cargo.toml", 404, "no such"),
        ("/debug/pprof/profile?seconds=0", 400, "from 1 to 300"),
        ("/debug/pprof/profile?seconds=301", 400, "from 1 to 300"),
        ("/nothing", 404, "no such route"),
        ("/metrics/../api", 404, "no such route"),
    ];
    for (path, status, part) in table {
        let (actual, text) = request(addr, path, "").await;
        assert_eq!(actual, status, "{path}: {text}");
        assert!(text.contains(part), "{path}: {text}");
    }
}

#[tokio::test]
async fn connections_beyond_the_bound_take_the_place_of_silent_ones() {
    let addr = start(true, &[]).await;
    // After this time they are closed for their silence, which proves nothing: a slow machine tries
    // again.
    let head_timeout = std::time::Duration::from_secs(10);
    for attempt in 1.. {
        let began = std::time::Instant::now();
        let mut silent = Vec::new();
        for _ in 0..20 {
            silent.push(TcpStream::connect(addr).await.unwrap());
        }
        assert_eq!(request(addr, "/health/live", "").await.0, 200);
        // Eight may stay, and the oldest yield first.
        for stream in silent.iter_mut().take(12) {
            assert!(stream.read_u8().await.is_err(), "nothing was asked");
        }
        if began.elapsed() < head_timeout {
            break;
        }
        assert!(attempt < 10, "they were closed for their silence only");
    }
}

#[tokio::test]
async fn not_ready_is_503_and_says_why() {
    let addr = start(false, &[]).await;
    assert_eq!(request(addr, "/health/ready", "").await.0, 503);
    assert_eq!(request(addr, "/health/live", "").await.0, 200);
}

#[tokio::test]
async fn tokens_guard_everything_but_health() {
    let addr = start(true, &["secret"]).await;
    for path in [
        "/metrics",
        "/api/v1/server",
        "/api/v1/connections",
        "/debug/pprof/profile?seconds=1",
        "/api/v1/limits",
    ] {
        let (status, text) = request(addr, path, "").await;
        assert_eq!(status, 401, "{path}");
        assert!(!text.contains("secret"), "{text}");
        assert_eq!(request(addr, path, "Authorization: Bearer wrong\r\n").await.0, 401, "{path}");
    }
    assert_eq!(request(addr, "/metrics", "Authorization: Bearer secret\r\n").await.0, 200);
    assert_eq!(request(addr, "/healthz", "").await.0, 200);
}

#[tokio::test]
async fn a_foreign_host_name_is_refused_on_loopback() {
    let addr = start(true, &[]).await;
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let head = "GET /api/v1/server HTTP/1.1\r\nHost: rebound.example\r\nConnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 403"), "{text}");
}

#[cfg(feature = "profiling")]
#[tokio::test]
async fn the_profile_shows_what_is_busy() {
    let addr = start(true, &[]).await;
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let busy = std::thread::spawn(move || spin_until(&stopped));
    // A second on a machine that has other work may pass without a sample of this process.
    for attempt in 1.. {
        let (status, text) = request(addr, "/debug/pprof/profile?seconds=1", "").await;
        assert_eq!(status, 200, "{text}");
        assert!(text.contains("application/octet-stream"), "{text}");
        if text.contains("spin_until") {
            break;
        }
        assert!(attempt < 100, "no profile names the busy function, the last has {} bytes", text.len());
    }
    stop.store(true, Ordering::Relaxed);
    busy.join().unwrap();
}

#[cfg(feature = "profiling")]
#[inline(never)]
fn spin_until(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        std::hint::black_box((0..100).sum::<u64>());
    }
}

#[tokio::test]
async fn oversized_and_broken_heads_are_refused() {
    let addr = start(true, &[]).await;
    for head in
        [format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "a".repeat(100_000)), "\0\x01 garbage\r\n\r\n".into()]
    {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        // The server may answer and close before everything is written.
        let _ = stream.write_all(head.as_bytes()).await;
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes).await;
        assert!(!bytes.starts_with(b"HTTP/1.1 200"));
    }
    assert_eq!(request(addr, "/health/live", "").await.0, 200);
}

async fn send(addr: SocketAddr, method: &str, path: &str, headers: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let text = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n{body}",
        body.len()
    );
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let status = text.split(' ').nth(1).unwrap_or_default().parse().unwrap_or(0);
    (status, text)
}

const JSON: &str = "Content-Type: application/json\r\n";

#[tokio::test]
async fn every_route_keeps_to_its_guard() {
    for (tokens, monitor) in [(&[][..], 200), (&["secret"][..], 401)] {
        let addr = start(true, tokens).await;
        for route in ROUTES {
            let path = route.path.replace("{id}", "7");
            let expected = match route.guard {
                // The stream has no topic, the login no token.
                Guard::Open if route.method == Method::Get => 200,
                Guard::Open => 415,
                Guard::Monitor if path.ends_with("/stream") && monitor == 200 => 400,
                Guard::Monitor => monitor,
                Guard::Session => 401,
            };
            let (status, text) = send(addr, route.method.name(), &path, "", "").await;
            assert_eq!(status, expected, "{} {path}: {text}", route.method.name());
        }
    }
}

#[tokio::test]
async fn a_session_reads_and_changes_and_other_sites_do_not() {
    let addr = start(true, &["secret"]).await;
    let wrong = send(addr, "POST", "/api/v1/session", JSON, r#"{"token":"wrong"}"#).await;
    assert_eq!(wrong.0, 401, "{}", wrong.1);
    let (status, text) = send(addr, "POST", "/api/v1/session", JSON, r#"{"token":"secret"}"#).await;
    assert_eq!(status, 200, "{text}");
    let cookie = text.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    let cookie = format!("Cookie: {}\r\n", cookie.split(';').next().unwrap());
    assert_eq!(request(addr, "/api/v1/config", &cookie).await.0, 200);
    let own = format!("{cookie}{JSON}Origin: http://localhost\r\n");
    let body = r#"{"kind":"swarm","players":5,"seconds":1}"#;
    let (status, text) = send(addr, "POST", "/api/v1/runs", &own, body).await;
    assert!(status == 200 && text.contains(r#""players":5"#), "{text}");
    for other in ["http://evil.example", "http://localhost:1", "null"] {
        let headers = format!("{cookie}{JSON}Origin: {other}\r\n");
        assert_eq!(send(addr, "POST", "/api/v1/runs", &headers, body).await.0, 403, "{other}");
    }
    assert_eq!(
        send(addr, "POST", "/api/v1/runs", &format!("{cookie}{JSON}"), body).await.0,
        403,
        "no origin"
    );
    let form = format!("{cookie}Content-Type: text/plain\r\nOrigin: http://localhost\r\n");
    assert_eq!(send(addr, "POST", "/api/v1/runs", &form, body).await.0, 415);
    for (body, status) in
        [("[]", 400), ("{", 400), ("", 400), (&*format!("{{\"a\":\"{}\"}}", "x".repeat(70_000)), 413)]
    {
        assert_eq!(send(addr, "POST", "/api/v1/runs", &own, body).await.0, status, "{body:.20}");
    }
    assert_eq!(send(addr, "DELETE", "/api/v1/session", &own, "").await.0, 200);
    assert_eq!(request(addr, "/api/v1/config", &cookie).await.0, 401, "the session is over");
}

#[tokio::test]
async fn events_come_again_and_again() {
    let addr = start(true, &[]).await;
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let head = "GET /api/v1/stream?topic=overview&interval_ms=50 HTTP/1.1\r\nHost: localhost\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut text = String::new();
    while text.matches("\ndata: {").count() < 2 {
        let mut part = [0; 4_096];
        let length = stream.read(&mut part).await.unwrap();
        assert!(length > 0, "the stream ended: {text}");
        text.push_str(&String::from_utf8_lossy(&part[..length]));
    }
    assert!(text.contains("text/event-stream") && text.contains(r#""endpoint":"Overview""#), "{text}");
}

#[tokio::test]
async fn what_changes_something_is_recorded_with_who_and_from_where_and_without_secrets() {
    let acts = Acts::default();
    let addr = start_recorded(true, &["first-secret", "second-secret"], acts.clone()).await;
    let taken = || std::mem::take(&mut *acts.lock().unwrap());
    let body = r#"{"kind":"swarm","players":5}"#;
    let bearer = format!("{JSON}Authorization: Bearer second-secret\r\n");
    assert_eq!(send(addr, "POST", "/api/v1/runs", &bearer, body).await.0, 200);
    let found = taken();
    let [act] = &found[..] else { panic!("one record: {found:?}") };
    assert_eq!((&*act.who, &*act.what, act.status), ("token 2", "POST /api/v1/runs", 200));
    assert!(act.from.is_some_and(|from| from.ip().is_loopback()), "{act:?}");
    assert_eq!(act.parameters["players"], 5);
    // Failures are recorded too, reads are not, and a stranger cannot write anything.
    assert_eq!(send(addr, "DELETE", "/api/v1/runs/404", &bearer, "").await.0, 404);
    assert_eq!(taken()[0].status, 404);
    assert_eq!(request(addr, "/api/v1/config", &bearer).await.0, 200);
    assert_eq!(send(addr, "POST", "/api/v1/runs", JSON, body).await.0, 401);
    assert_eq!(send(addr, "POST", "/api/v1/session", JSON, r#"{"token":"wrong"}"#).await.0, 401);
    assert_eq!(taken(), []);
    let (_, text) = send(addr, "POST", "/api/v1/session", JSON, r#"{"token":"first-secret"}"#).await;
    let cookie = text.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
    let own = format!("Cookie: {}\r\nOrigin: http://localhost\r\n", cookie.split(';').next().unwrap());
    assert_eq!(send(addr, "DELETE", "/api/v1/session", &own, "").await.0, 200);
    let found = taken();
    let said: Vec<_> = found.iter().map(|act| (&*act.who, &*act.what)).collect();
    assert_eq!(said, [("session 1", "POST /api/v1/session"), ("session 1", "DELETE /api/v1/session")]);
    assert!(found.iter().all(|act| act.parameters.is_null()), "{found:?}");
}
