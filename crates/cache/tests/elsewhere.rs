//! Blobs that a namespace does not hold itself: taken from another namespace, or at an address of the object storage.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod common;
#[path = "common/s3.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod s3;

use common::Server;
use hyper::StatusCode;
use s3::S3;
use throng_cache::{Access, Listener, NamespaceRules, Origin, Rules, Tokens};
use throng_ddc::IoHash;
use throng_ddc::compressed::compress_lz4;
use throng_ddc::policy::{Acl, Action, Policies, Policy, Scope};
use throng_store::Options;

const OCTETS: &str = "Content-Type: application/octet-stream";
const COMP: &str = "Content-Type: application/x-ue-comp";

/// The namespace `game` takes from `engine` what it does not have.
fn rules() -> Rules {
    let mut rules = Rules::default();
    let fallback = Some("engine".parse().expect("a name"));
    let game = NamespaceRules { fallback, ..NamespaceRules::default() };
    rules.namespaces.insert("game".parse().expect("a name"), game);
    rules
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_takes_over_what_its_fallback_has() {
    let server = Server::start(rules(), Listener::Public).await;
    let client = server.client().await;
    let (small, large, raw) = (vec![1_u8; 5_000], vec![2_u8; 3 << 20], vec![3_u8; 70_000]);
    let compressed = compress_lz4(&raw, 18);
    let blob = |namespace: &str, bytes: &[u8]| format!("/api/v1/blobs/{namespace}/{}", IoHash::of(bytes));
    for bytes in [&small, &large] {
        let put = client.send("PUT", &blob("engine", bytes), &[OCTETS], bytes.clone()).await;
        assert_eq!(put.status, StatusCode::OK);
    }
    let form = |namespace: &str| format!("/api/v1/compressed-blobs/{namespace}/{}", IoHash::of(&raw));
    assert_eq!(client.send("PUT", &form("engine"), &[COMP], compressed.clone()).await.status, StatusCode::OK);

    assert_eq!(client.get(&blob("game", &small), "*/*").await.body, small);
    assert_eq!(client.send("HEAD", &blob("game", &large), &[], "").await.header("Content-Length"), "3145728");
    assert_eq!(client.get(&form("game"), "*/*").await.body, compressed);
    // They are its own now, and nothing goes the other way.
    assert_eq!(client.send("DELETE", "/api/v1/blobs/engine", &[], "").await.status, StatusCode::NO_CONTENT);
    assert_eq!(client.get(&blob("engine", &small), "*/*").await.status, StatusCode::NOT_FOUND);
    assert_eq!(client.get(&blob("game", &large), "*/*").await.body, large);
    assert_eq!(client.get(&form("game"), "*/*").await.body, compressed);
    assert_eq!(client.get(&blob("game", b"nowhere"), "*/*").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_taken_over_for_who_may_not_read_it() {
    let grant = |claim: &str, namespace: &str| Policy {
        name: claim.to_owned(),
        acl: Acl { claims: vec![claim.to_owned()], actions: Action::ALL.to_vec() },
        namespaces: vec![Scope { values: vec![namespace.to_owned()], not: false }],
        buckets: Vec::new(),
    };
    let tokens = Tokens::parse("builder group=all\nartist group=game\n").expect("tokens");
    let policies = Policies(vec![grant("group=all", "*"), grant("group=game", "game")]);
    let access = Access { identify: vec![Box::new(tokens)], policies };
    let server = Server::start(Rules { access, ..rules() }, Listener::Public).await;
    let client = server.client().await;
    let bytes = b"of the engine".to_vec();
    let [engine, game] =
        ["engine", "game"].map(|name| format!("/api/v1/blobs/{name}/{}", IoHash::of(&bytes)));
    let [builder, artist] = ["builder", "artist"].map(|name| format!("Authorization: ServiceAccount {name}"));
    let put = client.send("PUT", &engine, &[OCTETS, &builder], bytes.clone()).await;
    assert_eq!(put.status, StatusCode::OK, "{}", put.text());
    assert_eq!(client.send("GET", &game, &[&artist], "").await.status, StatusCode::NOT_FOUND);
    assert_eq!(client.send("GET", &game, &[&builder], "").await.body, bytes);
    // It belongs to the namespace since, and to whoever may read that.
    assert_eq!(client.send("GET", &game, &[&artist], "").await.body, bytes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_asks_is_sent_to_the_bucket() {
    let s3 = S3::start().await;
    let mut rules = Rules::default();
    let game = NamespaceRules { redirects: true, ..NamespaceRules::default() };
    rules.namespaces.insert("game".parse().expect("a name"), game);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let origin = Origin::Tier(s3.tier());
    let server = Server::start_in(folder, Options::default(), rules, Listener::Public, origin).await;
    let client = server.client().await;
    let bytes = vec![7_u8; 200_000];
    for namespace in ["game", "other"] {
        let path = format!("/api/v1/blobs/{namespace}/{}", IoHash::of(&bytes));
        assert_eq!(client.send("PUT", &path, &[OCTETS], bytes.clone()).await.status, StatusCode::OK);
        assert_eq!(client.get(&path, "*/*").await.body, bytes);
        let sent = client.get(&format!("{path}?supportsRedirect=true"), "*/*").await;
        if namespace == "other" {
            assert_eq!((sent.status, &sent.body[..]), (StatusCode::OK, &bytes[..]));
            continue;
        }
        assert_eq!(sent.status, StatusCode::FOUND);
        // The address works without credentials.
        let location = sent.header("Location").to_owned();
        let path = location.strip_prefix(&format!("http://{}", s3.addr)).expect("the storage's address");
        let direct = common::Client::connect(s3.addr).await;
        let host = format!("Host: {}", s3.addr);
        let got = direct.send("GET", path, &[&host], "").await;
        assert_eq!((got.status, &got.body[..]), (StatusCode::OK, &bytes[..]), "{location}");
    }
    let absent = format!("/api/v1/blobs/game/{}?supportsRedirect=true", IoHash::of(b"absent"));
    assert_eq!(client.get(&absent, "*/*").await.status, StatusCode::NOT_FOUND);
}
