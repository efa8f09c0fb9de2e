//! A web service decides about logins.

use std::fmt;
use std::path::PathBuf;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use hyper::header::HeaderValue;
use serde::{Deserialize, Serialize};
use throng_gateway::{ConnKind, Verdict};

use super::fetch::Fetcher;
use super::{Authenticator, Judgement, Login, VerdictFuture};
use crate::config::Auth;

/// Asks `gateway.auth.http_url` about every login.
pub struct Callout {
    fetcher: Fetcher,
    authorization_file: Option<PathBuf>,
    authorization: RwLock<Option<HeaderValue>>,
}

/// Request to the service.
#[derive(Serialize)]
struct CalloutRequest<'a> {
    connection: u32,
    kind: &'static str,
    address: String,
    player: &'a str,
    token: &'a str,
}

/// Response of the service.
#[derive(Deserialize)]
struct CalloutResponse {
    result: CalloutResult,
    world: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum CalloutResult {
    Ok,
    InvalidPlayer,
    InvalidToken,
}

impl Callout {
    /// # Errors
    /// The address or the files of the settings are not usable.
    pub fn new(auth: &Auth) -> Result<Callout, String> {
        let timeout = Duration::from_millis(auth.http_timeout_ms);
        let fetcher = Fetcher::new(&auth.http_url, &auth.https_ca_file, timeout)?;
        let file = &auth.http_authorization_file;
        let authorization_file = (!file.is_empty()).then(|| PathBuf::from(file));
        let authorization = RwLock::new(read_authorization(authorization_file.as_ref())?);
        Ok(Callout { fetcher, authorization_file, authorization })
    }

    async fn judgement(&self, login: &Login) -> Judgement {
        let question = CalloutRequest {
            connection: login.conn,
            kind: if login.kind == ConnKind::Server { "server" } else { "client" },
            address: login.addr.to_string(),
            player: &login.player.0,
            token: &login.token.0,
        };
        let authorization = self.authorization.read().unwrap_or_else(PoisonError::into_inner).clone();
        let body = match serde_json::to_vec(&question) {
            Ok(body) => body.into(),
            Err(error) => return Verdict::Error(error.to_string()).into(),
        };
        let answer = self.fetcher.post(body, authorization.as_ref()).await;
        match answer.and_then(|bytes| serde_json::from_slice(&bytes).map_err(|error| error.to_string())) {
            Ok(CalloutResponse { result: CalloutResult::Ok, world }) => {
                Judgement { verdict: Verdict::Success, world }
            }
            Ok(CalloutResponse { result: CalloutResult::InvalidPlayer, .. }) => Verdict::InvalidPit.into(),
            Ok(CalloutResponse { result: CalloutResult::InvalidToken, .. }) => Verdict::InvalidLt.into(),
            Err(why) => Verdict::Error(why).into(),
        }
    }
}

impl Authenticator for Callout {
    fn judge<'a>(&'a self, login: &'a Login) -> VerdictFuture<'a> {
        Box::pin(self.judgement(login))
    }

    fn reload(&self) -> Result<(), String> {
        let authorization = read_authorization(self.authorization_file.as_ref())?;
        *self.authorization.write().unwrap_or_else(PoisonError::into_inner) = authorization;
        Ok(())
    }
}

impl fmt::Debug for Callout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Callout")
    }
}

fn read_authorization(file: Option<&PathBuf>) -> Result<Option<HeaderValue>, String> {
    let Some(file) = file else { return Ok(None) };
    let shown = file.display();
    let text = std::fs::read_to_string(file).map_err(|error| format!("cannot read `{shown}`: {error}"))?;
    let mut value = HeaderValue::from_str(text.trim())
        .map_err(|_| format!("`{shown}` does not hold the value of a header"))?;
    value.set_sensitive(true);
    Ok(Some(value))
}
