//! A cache without tokens answers the names of its machine only, so that no web page reaches it
//! through a browser.

use hyper::StatusCode;
use throng_ddc_server::{Access, Listener, Rules, Tokens};

use crate::common::Server;

const STATUS: &str = "/api/v1/status";

async fn check(access: Access, cases: &[(&[&str], StatusCode)]) {
    let server = Server::start(Rules { access, ..Rules::default() }, Listener::Public).await;
    for (headers, expected) in cases {
        let reply = server.client().await.send("GET", STATUS, headers, "").await;
        assert_eq!(reply.status, *expected, "{headers:?}: {}", reply.text());
    }
}

#[tokio::test]
async fn a_name_that_points_at_this_machine_is_refused_unless_it_is_listed() {
    let access = Access { hosts: vec!["cache.studio".to_owned()], ..Access::default() };
    let (ok, refused) = (StatusCode::OK, StatusCode::FORBIDDEN);
    check(
        access,
        &[
            (&["Host: localhost:8558"], ok),
            (&["Host: 127.0.0.1:8558"], ok),
            (&["Host: [::1]:8558"], ok),
            (&["Host: 192.0.2.7"], ok),
            (&["Host: Cache.Studio:8558"], ok),
            (&["Host: evil.example:8558"], refused),
            (&["Host: localhost.evil.example"], refused),
            (&["Host: 127.0.0.1.evil.example"], refused),
            (&["Host: cache.studio.evil.example"], refused),
            (&["Host: "], refused),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_page_of_another_site_is_refused() {
    let (ok, refused) = (StatusCode::OK, StatusCode::FORBIDDEN);
    let host = "Host: 127.0.0.1:8558";
    check(
        Access::default(),
        &[
            (&[host, "Origin: http://127.0.0.1:8558"], ok),
            (&[host, "Origin: http://localhost:3000"], ok),
            (&[host, "Origin: https://evil.example"], refused),
            (&[host, "Origin: http://192.0.2.7"], refused),
            (&[host, "Origin: null"], refused),
            // As for an image, which a page embeds without reading it.
            (&[host, "Sec-Fetch-Site: cross-site"], refused),
            (&[host, "Sec-Fetch-Site: same-origin"], ok),
            (&[host, "Sec-Fetch-Site: none"], ok),
            (&[host, "Sec-Fetch-Site: cross-site", "Origin: http://localhost:3000"], ok),
        ],
    )
    .await;
}

#[tokio::test]
async fn health_is_open_and_tokens_make_names_irrelevant() {
    let server = Server::start(Rules::default(), Listener::Public).await;
    let health = server.client().await.send("GET", "/health/ready", &["Host: balancer"], "").await;
    assert_eq!(health.status, StatusCode::OK);
    let tokens = Tokens::parse("a-token-of-16-chars group=build\n").expect("tokens");
    let access = Access { identify: vec![Box::new(tokens)], ..Access::default() };
    let token = "Authorization: Bearer a-token-of-16-chars";
    check(access, &[(&["Host: cache.example", token], StatusCode::OK)]).await;
}
