//! Authentication providers: forged tokens, key sets, callouts, and all of it through a running
//! gateway.

#![cfg(feature = "jwt")]

use crate::common;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD as BASE64};
use common::*;
use jsonwebtoken::{Algorithm, EncodingKey};
use serde_json::{Value, json};
use throng_gateway::{ConnKind, Redacted, Verdict};
use throng_server::auth::{Authenticator, Login, provider};
use throng_server::config::Loader;

const RSA: &str = include_str!("keys/rsa-private.pem");
const RSA_PUBLIC: &str = include_str!("keys/rsa-public.pem");
const RSA_STRANGER: &str = include_str!("keys/rsa-stranger-private.pem");
const EC: &str = include_str!("keys/ec-private.pem");
const EC_PUBLIC: &str = include_str!("keys/ec-public.pem");
const STRANGER: &str = include_str!("keys/stranger-private.pem");
const SECRET: &str = "a shared secret of more than thirty-two bytes";
const PLAYER: &str = "player-7";

/// A provider of one family, with what is needed to sign for it and to try to cheat it.
struct Family {
    name: &'static str,
    algorithm: Algorithm,
    key: EncodingKey,
    stranger: EncodingKey,
    provider: Arc<dyn Authenticator>,
    runtime: tokio::runtime::Runtime,
    _files: tempfile::TempDir,
}

impl Family {
    fn new(name: &'static str, algorithm: Algorithm, keys: &str) -> Family {
        let (key, stranger) = match algorithm {
            Algorithm::RS256 => (
                EncodingKey::from_rsa_pem(RSA.as_bytes()).unwrap(),
                EncodingKey::from_rsa_pem(RSA_STRANGER.as_bytes()).unwrap(),
            ),
            Algorithm::ES256 => (
                EncodingKey::from_ec_pem(EC.as_bytes()).unwrap(),
                EncodingKey::from_ec_pem(STRANGER.as_bytes()).unwrap(),
            ),
            _ => (
                EncodingKey::from_secret(SECRET.as_bytes()),
                EncodingKey::from_secret(b"another secret that is just as long as that"),
            ),
        };
        let files = tempfile::tempdir().unwrap();
        let path = files.path().join("keys");
        std::fs::write(&path, keys).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let algorithm_name = format!("{algorithm:?}");
        let settings = Loader::new()
            .flag("t", "gateway.auth.kind", "jwt")
            .flag("t", "gateway.auth.jwt_keys_file", path.to_str().unwrap())
            .flag("t", "gateway.auth.jwt_algorithms", algorithm_name)
            .flag("t", "gateway.auth.jwt_audience", "throng")
            .flag("t", "gateway.auth.jwt_issuer", "https://login.example")
            .load()
            .unwrap()
            .settings;
        let provider = provider(&settings.auth, runtime.handle()).unwrap().unwrap();
        Family { name, algorithm, key, stranger, provider, runtime, _files: files }
    }

    fn all() -> Vec<Family> {
        let jwk = |pem: &str, algorithm| {
            let key = match algorithm {
                Algorithm::RS256 => EncodingKey::from_rsa_pem(pem.as_bytes()),
                _ => EncodingKey::from_ec_pem(pem.as_bytes()),
            };
            let mut jwk = jsonwebtoken::jwk::Jwk::from_encoding_key(&key.unwrap(), algorithm).unwrap();
            jwk.common.key_id = Some("current".to_owned());
            serde_json::to_value(jwk).unwrap()
        };
        let set = |keys: Vec<Value>| json!({ "keys": keys }).to_string();
        vec![
            Family::new("rsa pem", Algorithm::RS256, RSA_PUBLIC),
            Family::new("rsa set", Algorithm::RS256, &set(vec![jwk(RSA, Algorithm::RS256)])),
            Family::new("ec pem", Algorithm::ES256, EC_PUBLIC),
            Family::new("ec set", Algorithm::ES256, &set(vec![jwk(EC, Algorithm::ES256)])),
            Family::new("shared", Algorithm::HS256, SECRET),
        ]
    }

    fn header(&self) -> Value {
        json!({ "alg": format!("{:?}", self.algorithm), "typ": "JWT", "kid": "current" })
    }

    fn token(&self, header: &Value, claims: &Value) -> String {
        sign(header, claims.to_string().as_bytes(), self.algorithm, &self.key)
    }

    fn good(&self) -> String {
        self.token(&self.header(), &claims())
    }

    fn judge(&self, player: &str, token: &str) -> Verdict {
        self.runtime.block_on(self.provider.judge(&login(player, token))).verdict
    }
}

fn login(player: &str, token: &str) -> Login {
    Login {
        conn: 1,
        kind: ConnKind::Client,
        addr: "192.0.2.9".parse().unwrap(),
        player: Redacted(player.to_owned()),
        token: Redacted(token.to_owned()),
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn claims() -> Value {
    json!({ "sub": PLAYER, "aud": "throng", "iss": "https://login.example", "exp": now() + 600, "nbf": now() - 60 })
}

fn with(mut value: Value, key: &str, replacement: Value) -> Value {
    value[key] = replacement;
    value
}

fn without(mut value: Value, key: &str) -> Value {
    value.as_object_mut().unwrap().remove(key);
    value
}

fn message(header: &Value, payload: &[u8]) -> String {
    format!("{}.{}", BASE64.encode(header.to_string()), BASE64.encode(payload))
}

fn sign(header: &Value, payload: &[u8], algorithm: Algorithm, key: &EncodingKey) -> String {
    let message = message(header, payload);
    let signature = jsonwebtoken::crypto::sign(message.as_bytes(), key, algorithm).unwrap();
    format!("{message}.{signature}")
}

/// Tokens that must not pass, each with a name.
fn forgeries(family: &Family) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    let mut add = |name: String, token: String| all.push((name, token));
    let (header, claims, good) = (family.header(), claims(), family.good());
    let (head, rest) = good.split_once('.').unwrap();
    let (payload, signature) = rest.split_once('.').unwrap();
    let claims_bytes = claims.to_string();

    // The algorithm in the header.
    for alg in ["none", "None", "NONE", "nOnE", "", "HS999", "RS", "ES256K", "hs256", " RS256", "null"] {
        let header = with(header.clone(), "alg", json!(alg));
        let message = message(&header, claims_bytes.as_bytes());
        add(format!("alg {alg:?} unsigned"), format!("{message}."));
        add(format!("alg {alg:?} with the old signature"), format!("{message}.{signature}"));
    }
    for alg in [json!(null), json!(1), json!(["RS256"]), json!({ "alg": "RS256" }), json!(true)] {
        add(format!("alg {alg}"), family.token(&with(header.clone(), "alg", alg), &claims));
    }
    add("no alg".into(), family.token(&without(header.clone(), "alg"), &claims));
    // Public keys, which everybody knows, used as shared secrets.
    for (name, secret) in [("rsa", RSA_PUBLIC), ("ec", EC_PUBLIC), ("empty", ""), ("player", PLAYER)] {
        for algorithm in [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512] {
            for secret in [secret, secret.trim_end()] {
                let header = with(header.clone(), "alg", json!(format!("{algorithm:?}")));
                let key = EncodingKey::from_secret(secret.as_bytes());
                add(
                    format!("{algorithm:?} with the {name} key"),
                    sign(&header, claims_bytes.as_bytes(), algorithm, &key),
                );
            }
        }
    }
    // Another algorithm of the right family, which is not on the list.
    let other = match family.algorithm {
        Algorithm::RS256 => vec![Algorithm::RS384, Algorithm::RS512, Algorithm::PS256],
        Algorithm::HS256 => vec![Algorithm::HS384, Algorithm::HS512],
        _ => vec![],
    };
    for algorithm in other {
        let header = with(header.clone(), "alg", json!(format!("{algorithm:?}")));
        add(
            format!("{algorithm:?} is not configured"),
            sign(&header, claims_bytes.as_bytes(), algorithm, &family.key),
        );
    }
    // The signature.
    let raw = BASE64.decode(signature).unwrap();
    let with_signature = |bytes: &[u8]| format!("{head}.{payload}.{}", BASE64.encode(bytes));
    for (index, bit) in (0..raw.len()).step_by(raw.len() / 16).zip([1u8, 128].into_iter().cycle()) {
        let mut flipped = raw.clone();
        flipped[index] ^= bit;
        add(format!("signature byte {index} flipped"), with_signature(&flipped));
    }
    add("no signature".into(), format!("{head}.{payload}."));
    add("signature of zeroes".into(), with_signature(&vec![0; raw.len()]));
    add("signature of ones".into(), with_signature(&vec![0xff; raw.len()]));
    add("signature cut".into(), with_signature(&raw[..raw.len() - 1]));
    add("signature extended".into(), with_signature(&[raw.as_slice(), &[0]].concat()));
    add("signature twice".into(), with_signature(&[raw.as_slice(), &raw].concat()));
    add("signature padded".into(), format!("{head}.{payload}.{}", STANDARD.encode(&raw)) + "=");
    add("signature of another token".into(), {
        let other = family.token(&header, &with(claims.clone(), "sub", json!("someone")));
        format!("{head}.{payload}.{}", other.rsplit('.').next().unwrap())
    });
    add(
        "signed by a stranger".into(),
        sign(&header, claims_bytes.as_bytes(), family.algorithm, &family.stranger),
    );
    add("signed without kid by a stranger".into(), {
        sign(&without(header.clone(), "kid"), claims_bytes.as_bytes(), family.algorithm, &family.stranger)
    });
    // Claims changed after signing.
    for (key, value) in
        [("sub", json!("admin")), ("exp", json!(now() + 999_999)), ("aud", json!("all")), ("role", json!(1))]
    {
        let changed = BASE64.encode(with(claims.clone(), key, value).to_string());
        add(format!("{key} changed after signing"), format!("{head}.{changed}.{signature}"));
    }
    // Keys that the token brings along, and extensions.
    for (key, value) in [
        ("jku", json!("http://127.0.0.1:1/jwks")),
        ("x5u", json!("http://127.0.0.1:1/cert")),
        ("x5c", json!(["AAAA"])),
        ("jwk", json!({ "kty": "oct", "k": "AAAA" })),
    ] {
        let header = with(header.clone(), key, value);
        add(
            format!("{key} of a stranger"),
            sign(&header, claims_bytes.as_bytes(), family.algorithm, &family.stranger),
        );
    }
    for (key, value) in [
        ("crit", json!(["exp"])),
        ("crit", json!(["b64"])),
        ("crit", json!([])),
        ("enc", json!("A128GCM")),
        ("zip", json!("DEF")),
    ] {
        add(format!("{key} {value}"), family.token(&with(header.clone(), key, value), &claims));
    }
    // Right signature, wrong claims.
    for key in ["exp", "aud", "iss"] {
        add(format!("no {key}"), family.token(&header, &without(claims.clone(), key)));
        for wrong in [json!(null), json!([]), json!({}), json!("")] {
            add(format!("{key} is {wrong}"), family.token(&header, &with(claims.clone(), key, wrong)));
        }
    }
    for (key, wrong) in [
        ("exp", json!(now() - 100)),
        ("exp", json!(0)),
        ("exp", json!(-1)),
        ("exp", json!(true)),
        ("exp", json!("tomorrow")),
        ("exp", json!((now() - 100) as f64 + 0.5)),
        ("nbf", json!(now() + 100)),
        ("nbf", json!("now")),
        ("aud", json!("Throng")),
        ("aud", json!(["other", "another"])),
        ("aud", json!("throng ")),
        ("aud", json!(7)),
        ("iss", json!("https://login.example/")),
        ("iss", json!("http://login.example")),
        ("iss", json!(["https://evil.example"])),
        ("iss", json!(1)),
    ] {
        add(format!("{key} is {wrong}"), family.token(&header, &with(claims.clone(), key, wrong)));
    }
    for (key, wrong) in [
        ("sub", json!("player-8")),
        ("sub", json!("PLAYER-7")),
        ("sub", json!("player-7 ")),
        ("sub", json!([PLAYER])),
        ("sub", json!(7)),
        ("sub", json!(null)),
    ] {
        add(format!("{key} is {wrong}"), family.token(&header, &with(claims.clone(), key, wrong)));
    }
    add("no sub".into(), family.token(&header, &without(claims.clone(), "sub")));
    for payload in ["", "[]", "null", "7", "\"x\"", "{", "{\"exp\":1}{}", "\u{0}"] {
        add(format!("payload {payload:?}"), sign(&header, payload.as_bytes(), family.algorithm, &family.key));
    }
    add("payload is not text".into(), sign(&header, &[0xff, 0xfe], family.algorithm, &family.key));
    // The shape.
    for (name, token) in [
        ("empty", String::new()),
        ("dots", "..".to_owned()),
        ("one dot", format!("{head}.{payload}")),
        ("no dot", head.to_owned()),
        ("four parts", format!("{good}.{signature}")),
        ("five parts", format!("{head}.{payload}.{signature}.{payload}.{signature}")),
        ("leading dot", format!(".{good}")),
        ("trailing dot", format!("{good}.")),
        ("leading blank", format!(" {good}")),
        ("trailing blank", format!("{good} ")),
        ("trailing line", format!("{good}\n")),
        ("NUL", format!("{head}.{payload}\u{0}.{signature}")),
        ("bearer", format!("Bearer {good}")),
        ("quoted", format!("\"{good}\"")),
        ("JSON form", json!({ "protected": head, "payload": payload, "signature": signature }).to_string()),
        ("not base64", format!("{head}.{payload}.***")),
        ("header is not JSON", format!("{}.{payload}.{signature}", BASE64.encode("alg"))),
        ("header is empty", format!(".{payload}.{signature}")),
        ("header is null", format!("{}.{payload}.{signature}", BASE64.encode("null"))),
        ("large", "a".repeat(200_000)),
        ("many dots", ".".repeat(100_000)),
    ] {
        add(name.to_owned(), token);
    }
    // Key ids that lead nowhere, where the provider knows its keys by id.
    if family.name.ends_with("set") {
        for kid in ["", "CURRENT", "old", "../current", "current\u{0}", "' OR 1=1 --", "/dev/null"] {
            add(format!("kid {kid:?}"), family.token(&with(header.clone(), "kid", json!(kid)), &claims));
        }
    }
    all
}

#[test]
fn no_forged_token_passes() {
    let mut tried = 0;
    for family in Family::all() {
        assert_eq!(family.judge(PLAYER, &family.good()), Verdict::Success, "{}: the control", family.name);
        for (name, token) in forgeries(&family) {
            let verdict = family.judge(PLAYER, &token);
            assert!(
                matches!(verdict, Verdict::InvalidLt | Verdict::InvalidPit),
                "{}: {name}: {verdict:?}",
                family.name
            );
            tried += 1;
        }
        assert_eq!(
            family.judge("player-8", &family.good()),
            Verdict::InvalidPit,
            "{}: another player",
            family.name
        );
        assert_eq!(family.judge("", &family.good()), Verdict::InvalidPit, "{}: no player", family.name);
    }
    assert!(tried >= 200, "{tried} forged tokens");
}

#[test]
fn honest_variations_pass() {
    for family in Family::all() {
        let header = family.header();
        for (name, token) in [
            ("several audiences", family.token(&header, &with(claims(), "aud", json!(["x", "throng"])))),
            ("no nbf", family.token(&header, &without(claims(), "nbf"))),
            ("expired within the leeway", family.token(&header, &with(claims(), "exp", json!(now() - 5)))),
            ("no kid", family.token(&without(header.clone(), "kid"), &claims())),
            ("no typ", family.token(&without(header.clone(), "typ"), &claims())),
            ("more claims", family.token(&header, &with(claims(), "role", json!("admin")))),
        ] {
            assert_eq!(family.judge(PLAYER, &token), Verdict::Success, "{}: {name}", family.name);
        }
    }
}

#[test]
fn unusable_key_files_are_refused_at_the_start() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    for (content, algorithms, part) in [
        ("short secret", "HS256", "at least 32"),
        (RSA_PUBLIC, "HS256", "cannot be used with HS256"),
        (RSA, "RS256", "private key"),
        ("garbage", "RS256", "expected a JWKS"),
        ("{\"keys\": []}", "RS256", "no key for the configured algorithms"),
        ("{\"keys\": 7}", "RS256", "not a JWKS"),
        ("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "RS256", "no RSA, EC or Ed25519"),
        (
            "{\"keys\":[{\"kty\":\"oct\",\"k\":\"c2VjcmV0\"}]}",
            "RS256",
            "no key for the configured algorithms",
        ),
    ] {
        let path = dir.path().join("keys");
        std::fs::write(&path, content).unwrap();
        let settings = Loader::new()
            .flag("t", "gateway.auth.kind", "jwt")
            .flag("t", "gateway.auth.jwt_keys_file", path.to_str().unwrap())
            .flag("t", "gateway.auth.jwt_algorithms", algorithms)
            .load()
            .unwrap()
            .settings;
        let why = provider(&settings.auth, runtime.handle()).unwrap_err();
        assert!(why.contains(part) && why.contains("keys"), "{content:.20}: {why}");
    }
}

trait Stream: std::io::Read + std::io::Write {}
impl<T: std::io::Read + std::io::Write> Stream for T {}

/// A web service that answers each request with the next of `answers`, the last one for ever.
struct Service {
    addr: SocketAddr,
    asked: Arc<AtomicUsize>,
    _thread: JoinHandle<()>,
}

impl Service {
    fn start(answer: impl Fn(usize, &str) -> Option<(u16, String)> + Send + 'static) -> Service {
        Service::start_with(None, answer)
    }

    /// As [`Service::start`], over TLS if asked to.
    fn start_with(
        tls: Option<Arc<rustls::ServerConfig>>,
        answer: impl Fn(usize, &str) -> Option<(u16, String)> + Send + 'static,
    ) -> Service {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                let mut stream: Box<dyn Stream> = match &tls {
                    None => Box::new(stream),
                    Some(config) => {
                        let connection = rustls::ServerConnection::new(Arc::clone(config)).unwrap();
                        Box::new(rustls::StreamOwned::new(connection, stream))
                    }
                };
                let mut request = String::new();
                let mut buffer = [0; 65_536];
                // Head and body of these small requests come in one or two pieces.
                while !complete(&request) {
                    match stream.read(&mut buffer) {
                        Ok(read) if read > 0 => request.push_str(&String::from_utf8_lossy(&buffer[..read])),
                        _ => break,
                    }
                }
                // A handshake that failed is no request.
                if request.is_empty() {
                    continue;
                }
                let turn = count.fetch_add(1, Ordering::SeqCst);
                if let Some((status, body)) = answer(turn, &request) {
                    let head = format!(
                        "HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
                        body.len()
                    );
                    let _ = stream.write_all((head + &body).as_bytes());
                    let _ = stream.flush();
                }
            }
        });
        Service { addr, asked, _thread: thread }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

fn complete(request: &str) -> bool {
    let Some((head, body)) = request.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| {
        line.to_ascii_lowercase().strip_prefix("content-length:").map(|rest| rest.trim().to_owned())
    });
    body.len() >= length.and_then(|length| length.parse().ok()).unwrap_or(0)
}

#[test]
fn the_callout_asks_the_service_and_understands_its_answers() {
    let service = Service::start(|_, request| {
        let body: Value = serde_json::from_str(request.split_once("\r\n\r\n").unwrap().1).unwrap();
        assert!(request.starts_with("POST /check?v=1 HTTP/1.1\r\n"), "{request}");
        assert!(request.to_ascii_lowercase().contains("authorization: bearer s3cret\r\n"), "{request}");
        assert_eq!((body["kind"].as_str(), body["address"].as_str()), (Some("client"), Some("192.0.2.9")));
        let result = match (body["player"].as_str().unwrap(), body["token"].as_str().unwrap()) {
            ("slow", _) => return None,
            ("broken", _) => return Some((200, "{".to_owned())),
            ("strange", _) => return Some((200, json!({ "result": "maybe" }).to_string())),
            ("failing", _) => return Some((500, String::new())),
            ("huge", _) => return Some((200, "x".repeat(3 << 20))),
            ("guest", "right") => {
                return Some((200, json!({ "result": "ok", "world": "hub" }).to_string()));
            }
            (_, "right") => "ok",
            ("nobody", _) => "invalid_player",
            _ => "invalid_token",
        };
        Some((200, json!({ "result": result }).to_string()))
    });
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), "Bearer s3cret\n").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let settings = Loader::new()
        .flag("t", "gateway.auth.kind", "http")
        .flag("t", "gateway.auth.http_url", format!("http://{}/check?v=1", service.addr))
        .flag("t", "gateway.auth.http_authorization_file", secret.path().to_str().unwrap())
        .load()
        .unwrap()
        .settings;
    let callout = provider(&settings.auth, runtime.handle()).unwrap().unwrap();
    let judge = |player: &str, token: &str| runtime.block_on(callout.judge(&login(player, token))).verdict;
    assert_eq!(judge("anna", "right"), Verdict::Success);
    let guest = runtime.block_on(callout.judge(&login("guest", "right")));
    assert_eq!((guest.verdict, guest.world.as_deref()), (Verdict::Success, Some("hub")));
    assert_eq!(judge("anna", "wrong"), Verdict::InvalidLt);
    assert_eq!(judge("nobody", "wrong"), Verdict::InvalidPit);
    for player in ["broken", "strange", "failing", "slow", "huge"] {
        assert!(matches!(judge(player, "x"), Verdict::Error(_)), "{player}");
    }
}

/// A certificate authority made up for a test: its certificate in a file, and a server certificate
/// for `localhost`.
struct Authority {
    file: tempfile::NamedTempFile,
    server: Arc<rustls::ServerConfig>,
}

impl Authority {
    fn new() -> Authority {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), certificate.pem()).unwrap();
        let issuer = rcgen::Issuer::new(params, key);
        let server_key = rcgen::KeyPair::generate().unwrap();
        let server_params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let server_certificate = server_params.signed_by(&server_key, &issuer).unwrap();
        let private: rustls::pki_types::PrivateKeyDer<'static> =
            rustls::pki_types::PrivatePkcs8KeyDer::from(server_key.serialize_der()).into();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let server = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![server_certificate.der().clone()], private)
            .unwrap();
        Authority { file, server: Arc::new(server) }
    }

    fn path(&self) -> &str {
        self.file.path().to_str().unwrap()
    }
}

#[test]
fn the_callout_goes_over_https_to_a_service_whose_certificate_is_trusted_and_to_no_other() {
    let (trusted, stranger) = (Authority::new(), Authority::new());
    let service = Service::start_with(Some(Arc::clone(&trusted.server)), |_, request| {
        let body: Value = serde_json::from_str(request.split_once("\r\n\r\n").unwrap().1).unwrap();
        let result = if body["token"] == "right" { "ok" } else { "invalid_token" };
        Some((200, json!({ "result": result }).to_string()))
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let callout = |host: &str, authority: &Authority| {
        let settings = Loader::new()
            .flag("t", "gateway.auth.kind", "http")
            .flag("t", "gateway.auth.http_url", format!("https://{host}:{}/", service.addr.port()))
            .flag("t", "gateway.auth.https_ca_file", authority.path())
            .load()
            .unwrap()
            .settings;
        provider(&settings.auth, runtime.handle()).unwrap().unwrap()
    };
    let judge = |callout: &Arc<dyn Authenticator>, token: &str| {
        runtime.block_on(callout.judge(&login("anna", token))).verdict
    };
    let good = callout("localhost", &trusted);
    assert_eq!(judge(&good, "right"), Verdict::Success);
    assert_eq!(judge(&good, "wrong"), Verdict::InvalidLt);
    assert_eq!(service.asked(), 2);
    // Another authority, and a name that the certificate does not have: nothing is said to the
    // service.
    for bad in [callout("localhost", &stranger), callout("127.0.0.1", &trusted)] {
        let verdict = judge(&bad, "right");
        assert!(matches!(&verdict, Verdict::Error(why) if why.contains("certificate")), "{verdict:?}");
    }
    assert_eq!(service.asked(), 2);
}

#[test]
fn a_key_set_is_fetched_over_https() {
    let (trusted, stranger) = (Authority::new(), Authority::new());
    let key = EncodingKey::from_ec_pem(EC.as_bytes()).unwrap();
    let mut jwk = jsonwebtoken::jwk::Jwk::from_encoding_key(&key, Algorithm::ES256).unwrap();
    jwk.common.key_id = Some("only".to_owned());
    let keys = json!({ "keys": [jwk] }).to_string();
    let service =
        Service::start_with(Some(Arc::clone(&trusted.server)), move |_, _| Some((200, keys.clone())));
    // Of one thread: the login comes before the refresh that begins in the background.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let [token, other] = ["only", "other"].map(|id| {
        let head = json!({ "alg": "ES256", "kid": id });
        sign(&head, claims().to_string().as_bytes(), Algorithm::ES256, &key)
    });
    for (authority, asked) in [(&stranger, 0), (&trusted, 1)] {
        let settings = Loader::new()
            .flag("t", "gateway.auth.kind", "jwt")
            .flag("t", "gateway.auth.jwt_jwks_url", format!("https://localhost:{}/keys", service.addr.port()))
            .flag("t", "gateway.auth.jwt_algorithms", "ES256")
            .flag("t", "gateway.auth.https_ca_file", authority.path())
            .load()
            .unwrap()
            .settings;
        let jwt = provider(&settings.auth, runtime.handle()).unwrap().unwrap();
        let verdict = runtime.block_on(jwt.judge(&login(PLAYER, &token))).verdict;
        assert_eq!((verdict == Verdict::Success, service.asked()), (asked == 1, asked), "{verdict:?}");
        // It waits its turn behind that refresh, and neither asks again.
        let verdict = runtime.block_on(jwt.judge(&login(PLAYER, &other))).verdict;
        assert_eq!((verdict == Verdict::Success, service.asked()), (false, asked), "{verdict:?}");
    }
}

#[test]
fn a_service_that_never_answers_times_out_and_one_that_is_gone_fails() {
    // Bound and never accepted: the system takes the connection, and nobody answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (addr, timeout_ms, part) in
        [(silent.local_addr().unwrap(), "60", "no response within 60 ms"), (gone, "60000", "cannot connect")]
    {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let settings = Loader::new()
            .flag("t", "gateway.auth.kind", "http")
            .flag("t", "gateway.auth.http_url", format!("http://{addr}/"))
            .flag("t", "gateway.auth.http_timeout_ms", timeout_ms)
            .load()
            .unwrap()
            .settings;
        let callout = provider(&settings.auth, runtime.handle()).unwrap().unwrap();
        let verdict = runtime.block_on(callout.judge(&login("a", "b"))).verdict;
        assert!(matches!(&verdict, Verdict::Error(why) if why.contains(part)), "{verdict:?}");
    }
}

#[test]
fn a_key_set_is_fetched_rotated_and_kept_through_an_outage() {
    let jwk = |pem: &str, id: &str| {
        let key = EncodingKey::from_ec_pem(pem.as_bytes()).unwrap();
        let mut jwk = jsonwebtoken::jwk::Jwk::from_encoding_key(&key, Algorithm::ES256).unwrap();
        jwk.common.key_id = Some(id.to_owned());
        json!({ "keys": [jwk] }).to_string()
    };
    let first = jwk(EC, "first");
    let service = Service::start(move |turn, _| match turn {
        0 => Some((200, first.clone())),
        _ => Some((503, String::new())),
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let settings = Loader::new()
        .flag("t", "gateway.auth.kind", "jwt")
        .flag("t", "gateway.auth.jwt_jwks_url", format!("http://{}/keys", service.addr))
        .flag("t", "gateway.auth.jwt_algorithms", "ES256")
        .load()
        .unwrap()
        .settings;
    let jwt = provider(&settings.auth, runtime.handle()).unwrap().unwrap();
    let judge = |token: &str| runtime.block_on(jwt.judge(&login(PLAYER, token))).verdict;
    let token = |pem: &str, id: &str| {
        let header = json!({ "alg": "ES256", "kid": id });
        let key = EncodingKey::from_ec_pem(pem.as_bytes()).unwrap();
        sign(&header, claims().to_string().as_bytes(), Algorithm::ES256, &key)
    };
    // The first login waits for the first fetch if need be.
    assert_eq!(judge(&token(EC, "first")), Verdict::Success);
    assert!(jwt.health().0, "{}", jwt.health().1);
    let (asked, started) = (service.asked(), std::time::Instant::now());
    // A flood of unknown ids asks the service at most once in ten seconds.
    for id in 0..50 {
        assert_eq!(judge(&token(STRANGER, &format!("unknown {id}"))), Verdict::InvalidLt);
    }
    let most = asked + 1 + started.elapsed().as_secs() as usize / 10;
    assert!(service.asked() <= most, "{} requests", service.asked());
    assert_eq!(judge(&token(EC, "first")), Verdict::Success, "the keys outlive the outage");
}

/// Status of a GET of the cache with this `Authorization`.
fn ask_cache(addr: SocketAddr, path: &str, authorization: &str) -> u16 {
    let mut stream = std::net::TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {authorization}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn the_cache_follows_keys_that_rotate() {
    let set = |pem: &str, id: &str| {
        let key = EncodingKey::from_ec_pem(pem.as_bytes()).unwrap();
        let mut jwk = jsonwebtoken::jwk::Jwk::from_encoding_key(&key, Algorithm::ES256).unwrap();
        jwk.common.key_id = Some(id.to_owned());
        json!({ "keys": [jwk] }).to_string()
    };
    let (first, second) = (set(EC, "first"), set(STRANGER, "second"));
    let rotated = Arc::new(AtomicUsize::new(0));
    let turn = Arc::clone(&rotated);
    let service = Service::start(move |_, _| match turn.load(Ordering::SeqCst) {
        0 => Some((200, first.clone())),
        1 => Some((200, second.clone())),
        _ => Some((503, String::new())),
    });
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let config = format!(
        "[gateway.servers]\naddr = \"127.0.0.1:0\"\n[gateway.clients]\naddr = \"127.0.0.1:0\"\n[http]\naddr = \"\"\n\
         [server]\ndata = '{}'\n[gateway.auth]\njwt_jwks_refresh_s = 10\n\
         [ddc]\naddr = \"127.0.0.1:0\"\njwt_jwks_url = \"http://{}/keys\"\njwt_algorithms = [\"ES256\"]\n\
         [ddc.grants]\nall = \"sub=player-7 * *\"\n",
        path("data"),
        service.addr,
    );
    std::fs::write(path("throng.toml"), config).unwrap();
    let running = throng_server::start(Loader::new().file(path("throng.toml")).load().unwrap()).unwrap();
    let addr = running.address(throng_server::Service::Cache).unwrap();
    let ask = |pem: &str, id: &str| {
        let key = EncodingKey::from_ec_pem(pem.as_bytes()).unwrap();
        let header = json!({ "alg": "ES256", "kid": id });
        let token = sign(
            &header,
            with(claims(), "sub", json!(PLAYER)).to_string().as_bytes(),
            Algorithm::ES256,
            &key,
        );
        ask_cache(addr, "/api/v1/auth/game", &format!("Bearer {token}"))
    };
    assert_eq!(ask(EC, "first"), 200);
    assert_eq!(ask(STRANGER, "second"), 401);
    rotated.store(1, Ordering::SeqCst);
    // The next refresh, or the next look for an unknown key, comes within ten seconds.
    let deadline = std::time::Instant::now() + PATIENCE;
    while ask(STRANGER, "second") != 200 {
        assert!(std::time::Instant::now() < deadline, "the new key is never used");
        std::thread::park_timeout(std::time::Duration::from_millis(50));
    }
    assert_eq!(ask(EC, "first"), 401, "the old key is gone");
    // A reload during an outage of their source does not take the keys away.
    rotated.store(2, Ordering::SeqCst);
    running.reload().unwrap();
    assert_eq!(ask(STRANGER, "second"), 200);
}

#[test]
fn the_cache_applies_new_tokens_grants_and_quotas_at_a_reload() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let write = |tokens: &str, actions: &str, quota: &str| {
        std::fs::write(path("tokens"), tokens).unwrap();
        let config = format!(
            "[gateway.servers]\naddr = \"127.0.0.1:0\"\n[gateway.clients]\naddr = \"127.0.0.1:0\"\n[http]\naddr = \"\"\n\
             [server]\ndata = '{}'\n[ddc]\naddr = \"127.0.0.1:0\"\ntokens_file = '{}'\n\
             [ddc.grants]\nall = \"group=a {actions} game\"\n[ddc.quotas]\ngame = \"{quota}\"\n",
            path("data"),
            path("tokens"),
        );
        std::fs::write(path("throng.toml"), config).unwrap();
    };
    write("0123456789abcdef group=a\n", "ReadObject", "10");
    let running = throng_server::start(Loader::new().file(path("throng.toml")).load().unwrap()).unwrap();
    let addr = running.address(throng_server::Service::Cache).unwrap();
    let put = |body: &[u8], token: &str| {
        let mut stream = std::net::TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = format!(
            "POST /api/v1/blobs/game HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\
             Content-Type: application/octet-stream\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap().parse::<u16>().unwrap()
    };
    assert_eq!(put(b"five5", "0123456789abcdef"), 403);
    write("fedcba9876543210 group=a\n", "ReadObject,WriteObject", "10");
    let changes = running.reload().unwrap();
    assert!(changes.applied.contains(&"ddc.grants".to_owned()), "{changes:?}");
    assert_eq!(put(b"five5", "0123456789abcdef"), 401);
    assert_eq!(put(b"five5", "fedcba9876543210"), 200);
    assert_eq!(put(b"six six", "fedcba9876543210"), 507);
    write("fedcba9876543210 group=a\n", "ReadObject,WriteObject", "20");
    running.reload().unwrap();
    assert_eq!(put(b"six six", "fedcba9876543210"), 200);
    // An unreadable file changes nothing.
    std::fs::write(path("tokens"), "short group=a\n").unwrap();
    running.reload().unwrap();
    assert_eq!(put(b"five5", "fedcba9876543210"), 200);
}

#[test]
fn a_running_gateway_lets_in_whom_the_provider_lets_in() {
    let tokens = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(tokens.path(), "anna planted-secret-4711\n").unwrap();
    for shards in ["1", "2"] {
        let running = gateway(&[
            ("gateway.auth.kind", "tokens"),
            ("gateway.auth.tokens_file", tokens.path().to_str().unwrap()),
            ("server.shards", shards),
        ]);
        let mut stranger = Peer::connect(clients(&running), &Dial::Tcp);
        assert_eq!(stranger.authenticate("anna", "wrong").result, 2);
        assert_eq!(stranger.authenticate("ben", "planted-secret-4711").result, 1);
        let anna = Peer::login(clients(&running), &Dial::Tcp, "anna", "planted-secret-4711");
        assert!(anna.id > 0);
        // Game servers pass by default.
        Peer::login(servers(&running), &Dial::Tcp, "server", "whatever");
        for path in ["/metrics", "/api/v1/connections", "/api/v1/server", "/health/ready"] {
            assert!(!http(&running, path).1.contains("planted-secret"), "{path}");
        }
    }
}

#[test]
fn without_a_provider_players_stay_out_and_servers_get_in() {
    let running = gateway(&[("gateway.auth.kind", "refuse")]);
    Peer::login(servers(&running), &Dial::Tcp, "server", "");
    let mut player = Peer::connect(clients(&running), &Dial::Tcp);
    assert_ne!(player.authenticate("anna", "x").result, 0);
}

#[test]
fn the_deployed_configuration_lets_nobody_in_without_a_token() {
    let tokens = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(tokens.path(), "anna a-secret\n").unwrap();
    let deployed = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/throng.toml");
    let data = tempfile::tempdir().unwrap();
    let loader = Loader::new().file(deployed);
    let loader = ["gateway.servers.addr", "gateway.clients.addr", "http.addr"]
        .into_iter()
        .fold(loader, |loader, key| loader.flag("test", key, "127.0.0.1:0"))
        .flag("test", "gateway.clients.extra", "ws://127.0.0.1:0")
        .flag("test", "server.data", data.path().to_str().unwrap())
        .flag("test", "gateway.auth.tokens_file", tokens.path().to_str().unwrap());
    let running = throng_server::start(loader.load().unwrap()).unwrap();
    let clients =
        running.addresses().iter().filter(|address| address.service == throng_server::Service::Clients);
    let dials = [Dial::Tcp, Dial::WebSocket];
    for (address, dial) in clients.zip(dials) {
        for (player, token) in [("anna", ""), ("anna", "wrong"), ("", ""), ("ben", "a-secret")] {
            let result = Peer::connect(address.addr, &dial).authenticate(player, token);
            assert_ne!(result.result, 0, "{player} {token}");
        }
        Peer::login(address.addr, &dial, "anna", "a-secret");
    }
}
