//! Policies of this process and behind a URL, over the running service.

use crate::crash;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crash::crashed;
use throng_matcher::{Config, ModeRules, PolicyRequest, Scope, Verdict};
use throng_matcher_server::{Durability, Later, Options, Policies, Policy, Service, Tokens, replay, start};
use throng_platform::{Folder, Fs};
use throng_wire::matcher::{Method, Reader, Status, Writer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;

#[allow(dead_code)]
use crate::support;

use rustls::pki_types::CertificateDer;
use support::tls::{certificate, trusting};

fn serve(policy: &str, policies: Policies, folder: Option<&Path>) -> Service {
    let rules = ModeRules { capacity: 4, policy: policy.to_owned(), ..ModeRules::default() };
    start(Options {
        addr: None,
        unix: None,
        tls: None,
        // Long, so that only a policy that never answers runs into it.
        config: Config {
            modes: BTreeMap::from([("m".to_owned(), rules)]),
            policy_timeout_ms: 20_000,
            ..Config::default()
        },
        durability: if folder.is_some() { Durability::Async } else { Durability::None },
        fs: folder.map(|folder| Arc::new(Folder::new(folder).unwrap()) as Arc<dyn Fs>),
        tokens: Tokens::default(),
        area: String::new(),
        secret: [3; 32],
        salvage: false,
        policies,
        gate: throng_matcher_server::Gate::default(),
    })
    .unwrap()
}

fn create(service: &Service, role: &str) -> (Status, Vec<u8>) {
    let body = Writer::new().nested(1, Writer::new().str(1, role)).nested(2, Writer::new().str(1, "m"));
    service.handle().call_and_wait("s", Scope::Server, Method::ROLE_CREATE_ROOM, body.into_bytes()).unwrap()
}

/// Admits nobody called `bad`; answers half of its questions at once and half from another thread.
#[derive(Default)]
struct Picky {
    asked: Mutex<Vec<&'static str>>,
}

impl Policy for Picky {
    fn ask(&self, question: &PolicyRequest, later: Later) -> Option<Verdict> {
        let mut asked = self.asked.lock().unwrap();
        asked.push(question.point.name());
        let is_bad = question.body.windows(3).any(|part| part == b"bad");
        let verdict = if is_bad { Verdict::refusal("bad") } else { Verdict::default() };
        if asked.len().is_multiple_of(2) {
            return Some(verdict);
        }
        std::thread::spawn(move || later.answer(Some(verdict)));
        None
    }
}

#[test]
fn a_policy_of_the_process_decides_at_once_or_later_and_a_replay_does_not_ask_it() {
    let folder = tempfile::tempdir().unwrap();
    let picky = Arc::new(Picky::default());
    let service =
        serve("picky", Policies::default().with("picky", Arc::clone(&picky) as _), Some(folder.path()));
    assert_eq!(create(&service, "good").0, Status::Ok);
    let (status, body) = create(&service, "bad");
    assert_eq!((status, Reader::new(&body).unwrap().str(1).unwrap()), (Status::Refused, "bad"));
    assert_eq!(
        *picky.asked.lock().unwrap(),
        ["OnCreate", "OnAddingRoles", "OnAddedRoles", "OnCreate", "OnAddingRoles"]
    );
    let folder = crashed(folder.path());
    service.stop();
    assert!(replay(folder.path(), true, false).unwrap().records > 5);
    let service =
        serve("picky", Policies::default().with("picky", Arc::clone(&picky) as _), Some(folder.path()));
    let (_, list) = service
        .handle()
        .call_and_wait("s", Scope::Admin, Method::GET_ROOM_LIST, Writer::new().str(1, "m").into_bytes())
        .unwrap();
    assert!(!list.is_empty(), "the room is there again");
    assert_eq!(picky.asked.lock().unwrap().len(), 5);
}

#[test]
fn a_policy_that_nobody_gave_is_unavailable_at_once() {
    let service = serve("nobody", Policies::default(), None);
    assert_eq!(create(&service, "a").0, Status::PolicyUnavailable);
    assert!(Policies::default().check("nobody").is_err());
    assert!(Policies::default().check("").is_ok());
}

type Answers = fn(&str) -> (u16, String);

/// Asks policies behind URLs that show one of these certificates.
fn remote(runtime: &tokio::runtime::Runtime, trusted: &[CertificateDer<'static>]) -> Policies {
    Policies::default().with_remote(runtime.handle().clone(), Duration::from_secs(20), &trusting(trusted))
}

/// Answers every request on `listener` with what `answer` makes of its body.
async fn answer_all(listener: TcpListener, tls: Option<tokio_rustls::TlsAcceptor>, answer: Answers) {
    while let Ok((socket, _)) = listener.accept().await {
        let tls = tls.clone();
        tokio::spawn(async move {
            match tls {
                Some(tls) => answer_one(tls.accept(socket).await.unwrap(), answer).await,
                None => answer_one(socket, answer).await,
            }
        });
    }
}

async fn answer_one(mut socket: impl AsyncRead + AsyncWrite + Unpin, answer: Answers) {
    let mut text = Vec::new();
    let mut part = [0; 4_096];
    loop {
        let Ok(count @ 1..) = socket.read(&mut part).await else { return };
        text.extend_from_slice(&part[..count]);
        let shown = String::from_utf8_lossy(&text).into_owned();
        let Some((head, body)) = shown.split_once("\r\n\r\n") else { continue };
        let lower = head.to_lowercase();
        let (_, length) = lower.split_once("content-length: ").unwrap();
        let length: usize = length.lines().next().unwrap().parse().unwrap();
        if body.len() < length {
            continue;
        }
        let (status, body) = answer(body);
        let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n", body.len());
        socket.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        text.clear();
    }
}

#[test]
fn a_policy_behind_a_url_is_asked_in_json() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let url = format!("http://{}/policy", listener.local_addr().unwrap());
    runtime.spawn(answer_all(listener, None, |question| {
        let question: serde_json::Value = serde_json::from_str(question).unwrap();
        let roles = question["Roles"].to_string();
        match (question["Point"].as_str().unwrap(), &question["MatchMode"]) {
            ("OnCreate", mode) => (200, format!(r#"{{"Data": {{"server": "h:1", "mode": {mode}}}}}"#)),
            ("OnAddingRoles", _) if roles.contains("bad") => {
                (200, r#"{"Refuse": true, "Reason": "no"}"#.to_owned())
            }
            ("OnAddingRoles", _) if roles.contains("odd") => (500, String::new()),
            ("OnAddingRoles", _) if roles.contains("low") => (200, r#"{"refuse": true}"#.to_owned()),
            _ => (200, "{}".to_owned()),
        }
    }));
    let policies = remote(&runtime, &[]);
    assert!(policies.check(&url).is_ok());
    assert!(policies.check("ftp://h/").is_err() && policies.check("http://").is_err());
    let service = serve(&url, policies, None);
    let (status, body) = create(&service, "good");
    assert_eq!(status, Status::Ok);
    assert!(body.windows(5).any(|part| part == b"\"h:1\""), "what OnCreate put into Data");
    assert_eq!(create(&service, "bad").0, Status::Refused);
    for role in ["odd", "low"] {
        let (status, body) = create(&service, role);
        assert_eq!(status, Status::PolicyUnavailable, "{role}");
        let why = Reader::new(&body).unwrap().str(1).unwrap().to_owned();
        assert!(why.contains("failed, or its answer is no verdict"), "{role}: {why}");
    }
}

#[test]
fn a_policy_behind_tls_is_asked_if_its_certificate_is_trusted() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (acceptor, certificate) = certificate(&[]);
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let url = format!("https://localhost:{}/policy", listener.local_addr().unwrap().port());
    runtime.spawn(answer_all(listener, Some(acceptor), |_| (200, r#"{"Data": {"is": "safe"}}"#.to_owned())));
    let stranger = serve(&url, remote(&runtime, &[]), None);
    assert_eq!(create(&stranger, "a").0, Status::PolicyUnavailable, "nobody is trusted");
    let service = serve(&url, remote(&runtime, &[certificate]), None);
    let (status, body) = create(&service, "a");
    assert_eq!(status, Status::Ok);
    assert!(body.windows(6).any(|part| part == b"\"safe\""));
}
