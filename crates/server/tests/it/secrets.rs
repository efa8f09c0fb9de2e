//! Secrets stay out of logs (at the most talkative level), metrics and monitoring: passwords,
//! tokens, keys, resume tokens, in their own form and in the usual encodings.

use crate::common;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use common::*;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use prost::Message as _;
use serde_json::json;
use throng_server::Service;
use throng_server::config::Loader;
use throng_wire::{MessagePack, channeldpb as pb};

const RIGHT: &str = "planted-right-token-4711";
const WRONG: &str = "planted-wrong-token-4712";
const SHARED: &str = "planted-shared-secret-of-more-than-thirty-two-bytes";
const AUTHORIZATION: &str = "planted-authorization-4713";
const ADMIN: &str = "planted-admin-token-4714";
const ADMIN_WRONG: &str = "planted-admin-guess-4715";

/// Kind, keys, a token that it takes, one that it does not.
type Provider<'a> = (&'a str, Vec<(&'a str, String)>, &'a str, &'a str);

/// Every form in which a secret could be printed.
fn forms(secret: &[u8]) -> Vec<String> {
    let hex = secret.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let list = secret.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let mut forms =
        vec![hex.to_uppercase(), hex, list, STANDARD.encode(secret), URL_SAFE_NO_PAD.encode(secret)];
    forms.extend(String::from_utf8(secret.to_vec()).ok());
    forms
}

fn admin(running: &throng_server::Running, path: &str, token: &str) -> String {
    let addr = running.address(Service::Admin).unwrap();
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {addr}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn planted_secrets_show_up_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let log_path = folder.path().join("log");
    let settings = Loader::new()
        .flag("test", "log.level", "trace")
        .flag("test", "log.file", log_path.to_str().unwrap())
        .flag("test", "log.repeats_per_s", "1000000")
        .load()
        .unwrap()
        .settings;
    let log = throng_server::log::start(&settings.log).unwrap();

    let claims = json!({ "sub": "anna", "exp": 4_000_000_000_u64 });
    let jwt = |secret: &str| {
        jsonwebtoken::encode(
            &Header::new(Algorithm::HS256),
            &claims,
            &EncodingKey::from_secret(secret.as_bytes()),
        )
        .unwrap()
    };
    let (good_jwt, forged_jwt) = (jwt(SHARED), jwt("another-planted-secret-of-thirty-two-bytes"));
    let (_taken, gone) = deaf_address();
    let providers: [Provider<'_>; 3] = [
        (
            "tokens",
            vec![("gateway.auth.tokens_file", file("tokens", &format!("anna {RIGHT}\n")))],
            RIGHT,
            WRONG,
        ),
        (
            "jwt",
            vec![
                ("gateway.auth.jwt_keys_file", file("shared", SHARED)),
                ("gateway.auth.jwt_algorithms", "HS256".to_owned()),
            ],
            &good_jwt,
            &forged_jwt,
        ),
        // Nobody listens there: what goes wrong is logged.
        (
            "http",
            vec![
                ("gateway.auth.http_url", format!("http://{gone}/")),
                ("gateway.auth.http_authorization_file", file("authorization", AUTHORIZATION)),
            ],
            RIGHT,
            WRONG,
        ),
    ];
    let admin_tokens = file("admin", &format!("{ADMIN}\n"));
    let mut secrets: Vec<Vec<u8>> =
        [RIGHT, WRONG, SHARED, AUTHORIZATION, ADMIN, ADMIN_WRONG, &good_jwt, &forged_jwt]
            .map(|secret| secret.as_bytes().to_vec())
            .to_vec();
    // The parts of a token by themselves, signatures above all.
    secrets.extend(
        good_jwt.split('.').chain(forged_jwt.split('.')).skip(1).map(|part| part.as_bytes().to_vec()),
    );
    let mut shown = String::new();
    for (kind, keys, right, wrong) in providers {
        let mut all = vec![
            ("gateway.auth.kind", kind),
            ("server.shards", "2"),
            ("gateway.auth.servers_bypass", "false"),
            ("http.tokens_file", admin_tokens.as_str()),
            ("gateway.limits.failed_auth_max", "3"),
        ];
        all.extend(keys.iter().map(|(key, value)| (*key, value.as_str())));
        let running = gateway(&all);
        for addr in [clients(&running), servers(&running)] {
            for token in [wrong, right] {
                let mut peer = Peer::connect(addr, &Dial::Tcp);
                let auth = pb::AuthMessage {
                    player_identifier_token: "anna".to_owned(),
                    login_token: token.to_owned(),
                    resume_token: Some(Vec::new()),
                    ..Default::default()
                };
                if kind == "http" {
                    // Nobody judges: the gateway hangs up.
                    let head = MessagePack { msg_type: 1, stub_id: 9, ..Default::default() };
                    peer.send(head, &auth.encode_to_vec());
                    peer.until_closed();
                    continue;
                }
                let answer: pb::AuthResultMessage = peer.ask(0, pb::MessageType::Auth, &auth);
                if !answer.resume_token.is_empty() {
                    secrets.push(answer.resume_token.clone());
                    drop(peer);
                    // Back with it, then with one that nobody has given out.
                    for token in
                        [answer.resume_token.clone(), answer.resume_token.iter().map(|b| !b).collect()]
                    {
                        secrets.push(token.clone());
                        let again = pb::AuthMessage { resume_token: Some(token), ..auth.clone() };
                        let mut peer = Peer::connect(addr, &Dial::Tcp);
                        peer.send(
                            MessagePack { msg_type: 1, stub_id: 9, ..Default::default() },
                            &again.encode_to_vec(),
                        );
                        peer.receive(|message| message.stub == 9);
                    }
                }
            }
        }
        for path in [
            "/metrics",
            "/api/v1/connections",
            "/api/v1/channels",
            "/api/v1/server",
            "/api/v1/limits",
            "/health/ready",
        ] {
            for token in [ADMIN, ADMIN_WRONG] {
                shown += &admin(&running, path, token);
            }
        }
        shown += &format!("{running:?}");
        assert!(running.shutdown());
    }
    log.flush();
    let logged = std::fs::read_to_string(&log_path).unwrap();
    assert!(logged.lines().count() > 20 && logged.contains("\"DEBUG\""), "the log talks: {logged}");
    assert!(secrets.len() > 14, "resume tokens were given out");
    shown += &logged;
    for secret in secrets {
        for form in forms(&secret) {
            if let Some(at) = shown.find(&form) {
                let from = shown[..at].rfind('\n').unwrap_or(0);
                panic!(
                    "{:?} is shown: {}",
                    String::from_utf8_lossy(&secret),
                    &shown[from..(at + 200).min(shown.len())]
                );
            }
        }
    }
}
