//! Callers and their permissions.

use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;

use hyper::header::{self, HeaderMap, HeaderName};
use throng_admin::{host_name, is_loopback_name, is_same_site};
use throng_ddc::policy::{Action, Policies, TokenClaims};
use throng_ddc::{Bucket, Namespace};

use crate::headers::SEC_FETCH_SITE;

/// What is known about a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Who it is.
    Known(TokenClaims),
    /// Credentials are missing or wrong.
    Unknown,
    /// It could not be found out, and why.
    Unavailable(String),
}

/// A caller whose credentials were checked.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    /// `None` when everything is allowed.
    pub(crate) claims: Option<TokenClaims>,
}

/// Checks credentials.
pub trait Identify: Send + Sync + fmt::Debug + 'static {
    /// Who sends this `Authorization` header.
    fn identify<'a>(&'a self, authorization: &'a str) -> Pin<Box<dyn Future<Output = Identity> + Send + 'a>>;
}

/// Static tokens, for service accounts: `Authorization: ServiceAccount TOKEN` or `Bearer TOKEN`.
#[derive(Clone, Default)]
pub struct Tokens(Vec<(String, TokenClaims)>);

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tokens({})", self.0.len())
    }
}

impl Tokens {
    /// Reads lines of `TOKEN NAME=VALUE ...`; `#` begins a comment. A token has at least 16
    /// characters.
    ///
    /// # Errors
    /// The number of the line that is wrong, and why. Never the token.
    pub fn parse(text: &str) -> Result<Tokens, String> {
        let mut tokens = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
            let Some(token) = words.next() else { continue };
            if token.len() < 16 {
                return Err(format!("line {}: a token has at least 16 characters", number + 1));
            }
            let claims: Option<Vec<_>> = words.map(|word| word.split_once(['=', ':'])).collect();
            let claims =
                claims.ok_or_else(|| format!("line {}: claims are written NAME=VALUE", number + 1))?;
            tokens.push((token.to_owned(), TokenClaims::new(claims)));
        }
        Ok(Tokens(tokens))
    }

    fn find(&self, token: &str) -> Option<&TokenClaims> {
        // Every token is compared in full, so that time tells nothing about which was nearly right.
        let mut found = None;
        for (known, claims) in &self.0 {
            if same(known.as_bytes(), token.as_bytes()) {
                found = Some(claims);
            }
        }
        found
    }
}

fn same(expected: &[u8], given: &[u8]) -> bool {
    let mut difference = u8::from(expected.len() != given.len());
    for (index, byte) in given.iter().enumerate() {
        difference |= byte ^ expected.get(index).copied().unwrap_or(!byte);
    }
    std::hint::black_box(difference) == 0
}

impl Identify for Tokens {
    fn identify<'a>(&'a self, authorization: &'a str) -> Pin<Box<dyn Future<Output = Identity> + Send + 'a>> {
        let identity = authorization
            .split_once(' ')
            .filter(|(scheme, _)| {
                ["bearer", "serviceaccount"].contains(&scheme.to_ascii_lowercase().as_str())
            })
            .and_then(|(_, token)| self.find(token.trim()))
            .map_or(Identity::Unknown, |claims| Identity::Known(claims.clone()));
        Box::pin(std::future::ready(identity))
    }
}

/// The password of `Basic` authentication, which is a token for tools that can send no other
/// scheme; the user's name is of no importance. No answer asks for this scheme, so that no browser
/// keeps such a password.
fn password(authorization: &str) -> Option<String> {
    use base64::Engine as _;
    let (scheme, text) = authorization.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = base64::engine::general_purpose::STANDARD.decode(text.trim()).ok()?;
    let (_, password) = std::str::from_utf8(&decoded).ok()?.split_once(':')?;
    Some(password.to_owned())
}

/// The access rules of a service.
#[derive(Debug, Default)]
pub struct Access {
    /// Checks credentials, one after the other until one knows the caller. None: nobody has to say
    /// who they are, and everything is allowed.
    pub identify: Vec<Box<dyn Identify>>,
    /// Who may do what.
    pub policies: Policies,
    /// Host names under which a service without credentials is reached, besides `localhost` and IP
    /// addresses.
    pub hosts: Vec<String>,
}

impl Access {
    /// Reports whether a request with these headers is admitted at all.
    ///
    /// Without credentials, every page in a browser on this machine could use the cache: directly,
    /// or by pointing a name of its own at this machine (DNS rebinding). No page can do that with
    /// `localhost`, an IP address or a name of [`Access::hosts`]. With credentials, the page would
    /// need one.
    ///
    /// A browser names no origin where a page embeds what it cannot read, but says of which site
    /// the page is.
    pub(crate) fn admits(&self, headers: &HeaderMap) -> bool {
        if !self.identify.is_empty() {
            return true;
        }
        let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default());
        let (host, origin) = (text(header::HOST), text(header::ORIGIN));
        if origin.is_none() && text(SEC_FETCH_SITE) == Some("cross-site") {
            return false;
        }
        let is_ours = |authority: &str| {
            let name = host_name(authority);
            is_loopback_name(authority) || self.hosts.iter().any(|known| known.eq_ignore_ascii_case(name))
        };
        let is_address = |host: &str| host_name(host).parse::<IpAddr>().is_ok();
        host.is_none_or(|host| is_address(host) || is_ours(host))
            && origin.is_none_or(|origin| {
                is_same_site(origin, host)
                    || origin.split_once("://").is_some_and(|(_, authority)| is_ours(authority))
            })
    }

    /// Identifies the sender of a request by its headers.
    pub(crate) async fn identify(&self, headers: &HeaderMap) -> Result<Caller, Identity> {
        if self.identify.is_empty() {
            return Ok(Caller { claims: None });
        }
        let mut lines = headers.get_all(header::AUTHORIZATION).iter();
        // Of two, a proxy in front may have checked the other.
        let (line, None) = (lines.next(), lines.next()) else { return Err(Identity::Unknown) };
        let authorization = line.and_then(|value| value.to_str().ok());
        let Some(authorization) = authorization else { return Err(Identity::Unknown) };
        let token = password(authorization).map(|password| format!("Bearer {password}"));
        let authorization = token.as_deref().unwrap_or(authorization);
        let mut failed = Identity::Unknown;
        for each in &self.identify {
            match each.identify(authorization).await {
                Identity::Known(claims) => return Ok(Caller { claims: Some(claims) }),
                Identity::Unknown => {}
                unavailable => failed = unavailable,
            }
        }
        Err(failed)
    }

    pub(crate) fn permit(
        &self,
        caller: &Caller,
        action: Action,
        namespace: &Namespace,
        bucket: Option<&Bucket>,
    ) -> bool {
        match &caller.claims {
            None => true,
            Some(claims) => self.policies.permit(claims, action, namespace, bucket),
        }
    }
}
