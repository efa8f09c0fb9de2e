//! Policies of rooms outside the state machine: in this process, or behind a URL.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{Request, StatusCode, Uri, header};
use serde::de::IgnoredAny;
use throng_matcher::{PolicyRequest, Verdict, json};
use throng_platform::HttpClient;
use throng_wire::matcher::{POLICY_QUESTION, POLICY_VERDICT};
use tokio::sync::Semaphore;

use crate::service::Handle;

/// Calls of remote policies at a time; beyond, questions fail at once.
const CALLS_MAX: usize = 1_000;
/// Longest verdict of a remote policy.
const VERDICT_BYTES_MAX: usize = 64 << 10;

/// Decides about rooms, in a program that embeds the matcher.
pub trait Policy: Send + Sync {
    /// Answers a question at once, or with `None` later, through `later`. Called on the matcher's
    /// thread: must not block. What waits for a verdict that does not come in time fails with
    /// `POLICY_UNAVAILABLE`; questions that nothing waits for need none.
    fn ask(&self, question: &PolicyRequest, later: Later) -> Option<Verdict>;
}

/// Answers one question later, from any thread.
#[derive(Debug)]
pub struct Later {
    pub(crate) id: u64,
    pub(crate) handle: Option<Handle>,
}

impl Later {
    /// The verdict; `None`: there will be none. One that comes too late is ignored.
    pub fn answer(self, verdict: Option<Verdict>) {
        if let Some(handle) = self.handle {
            handle.give_verdict(self.id, verdict);
        }
    }
}

/// Policies by name.
#[derive(Clone, Default)]
pub struct Policies {
    named: BTreeMap<String, Arc<dyn Policy>>,
    remote: Option<Arc<Remote>>,
    /// Takes late verdicts.
    handle: Option<Handle>,
}

impl fmt::Debug for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policies").field("named", &self.named.keys()).finish_non_exhaustive()
    }
}

impl Policies {
    /// Adds a policy of this process under a name.
    #[must_use]
    pub fn with(mut self, name: &str, policy: Arc<dyn Policy>) -> Policies {
        self.named.insert(name.to_owned(), policy);
        self
    }

    /// Asks those that are `http://` or `https://` URLs: a POST with the question as JSON, answered
    /// with a verdict as JSON. Calls run on `runtime` and end after `limit`; `tls` says who is
    /// trusted.
    #[must_use]
    pub fn with_remote(
        mut self,
        runtime: tokio::runtime::Handle,
        limit: Duration,
        tls: &rustls::ClientConfig,
    ) -> Policies {
        let slots = Arc::new(Semaphore::new(CALLS_MAX));
        self.remote = Some(Arc::new(Remote { web: Arc::new(HttpClient::new(tls)), runtime, limit, slots }));
        self
    }

    /// The same with a place for late verdicts.
    pub(crate) fn answered_by(mut self, handle: Handle) -> Policies {
        self.handle = Some(handle);
        self
    }

    /// Returns whether a mode's policy can be asked.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, policy: &str) -> Result<(), String> {
        if policy.is_empty() || self.named.contains_key(policy) {
            return Ok(());
        }
        if self.remote.is_some() && is_url(policy) {
            return Ok(());
        }
        Err(format!("`{policy}` is no policy: give a URL as http://host:port/path"))
    }

    pub(crate) fn ask(&self, question: &PolicyRequest) -> PolicyAnswer {
        let later = Later { id: question.id, handle: self.handle.clone() };
        let policy: &dyn Policy = match (self.named.get(&question.policy), &self.remote) {
            (Some(named), _) => &**named,
            (None, Some(remote)) if is_url(&question.policy) => &**remote,
            _ => return PolicyAnswer::Nobody,
        };
        policy.ask(question, later).map_or(PolicyAnswer::Later, PolicyAnswer::Now)
    }
}

fn is_url(policy: &str) -> bool {
    let url = policy.parse::<Uri>().ok();
    url.is_some_and(|url| matches!(url.scheme_str(), Some("http" | "https")) && url.host().is_some())
}

/// Result of asking a policy.
pub(crate) enum PolicyAnswer {
    Now(Verdict),
    Later,
    Nobody,
}

/// Policies behind URLs.
struct Remote {
    web: Arc<HttpClient<Full<Bytes>>>,
    runtime: tokio::runtime::Handle,
    limit: Duration,
    slots: Arc<Semaphore>,
}

impl Policy for Remote {
    fn ask(&self, question: &PolicyRequest, later: Later) -> Option<Verdict> {
        let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() else {
            later.answer(None);
            return None;
        };
        let mut text = String::new();
        json::decode(POLICY_QUESTION, &question.body, &mut text);
        let request = Request::post(&question.policy)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(text)));
        let (web, limit) = (Arc::clone(&self.web), self.limit);
        self.runtime.spawn(async move {
            let verdict = match request {
                Ok(request) => tokio::time::timeout(limit, fetch(&web, request, limit)).await,
                Err(_) => Ok(None),
            };
            // The matcher counts the time itself.
            if let Ok(verdict) = verdict {
                later.answer(verdict);
            }
            drop(slot);
        });
        None
    }
}

/// The verdict of a remote policy, unless something is wrong with its answer.
async fn fetch(
    web: &HttpClient<Full<Bytes>>,
    request: Request<Full<Bytes>>,
    limit: Duration,
) -> Option<Verdict> {
    let url = request.uri().clone();
    let fails = |why: String| {
        tracing::warn!(%url, why, "a room policy did not answer as it should");
        None
    };
    let answer = match web.send(request, limit).await {
        Ok(answer) if answer.status() == StatusCode::OK => answer,
        Ok(answer) => return fails(format!("status {}", answer.status())),
        Err(error) => return fails(error.to_string()),
    };
    let body = match Limited::new(answer.into_body(), VERDICT_BYTES_MAX).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return fails(error.to_string()),
    };
    // A veto under another name must not count as none.
    let members: BTreeMap<String, IgnoredAny> = serde_json::from_slice(&body).unwrap_or_default();
    if let Some(name) = members.keys().find(|name| POLICY_VERDICT.named(name).is_none()) {
        return fails(format!(
            "a verdict has no member `{name}`; names are as in the reference, as `Refuse`"
        ));
    }
    let mut encoded = Vec::new();
    match json::encode(POLICY_VERDICT, &body, &mut encoded) {
        Ok(()) => Verdict::parse(&encoded),
        Err(why) => fails(why),
    }
}
