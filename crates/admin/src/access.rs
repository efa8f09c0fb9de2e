//! Access rules of the admin listener.
//!
//! Three ways in: a configured bearer token; a console session, which a one-time token opens and a
//! cookie carries; and, where no tokens are configured, being on this machine. The last is good for
//! reading only.

use std::collections::VecDeque;
use std::io::Read as _;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Console sessions at a time; the oldest makes room.
const SESSIONS_MAX: usize = 64;
/// One-time tokens that wait for their use; the oldest makes room.
const INVITATIONS_MAX: usize = 16;
/// Life of an unused one-time token.
const INVITATION_LIFE: Duration = Duration::from_secs(600);
/// Failed tokens of an address that are answered at once; how long they are remembered, and what
/// later ones wait.
const FAILURES_FREE: u32 = 5;
const FAILURE_MEMORY: Duration = Duration::from_secs(600);
const FAILURE_DELAY: Duration = Duration::from_secs(1);
/// Addresses remembered for it; the one that failed longest ago makes room.
const FAILURES_MAX: usize = 1_024;
/// Life of a session: a working day.
const SESSION_LIFE: Duration = Duration::from_secs(12 * 3600);

/// The access rules of one listener; tokens can be replaced while it runs.
#[derive(Debug, Default)]
pub struct Access {
    tokens: RwLock<Vec<String>>,
    /// Serves `/metrics` to everyone.
    metrics_open: bool,
    invitations: Mutex<VecDeque<Invitation>>,
    failures: Mutex<Failures>,
    sessions: Mutex<Sessions>,
}

/// A one-time token.
#[derive(Debug)]
struct Invitation {
    token: String,
    made: Instant,
}

/// Failed bearer tokens by address, the latest last.
#[derive(Debug, Default)]
struct Failures(VecDeque<(IpAddr, u32, Instant)>);

#[derive(Debug, Default)]
struct Sessions {
    open: VecDeque<Session>,
    /// Sessions opened so far.
    count: u64,
}

#[derive(Debug)]
struct Session {
    secret: String,
    opened: Instant,
    /// Which one it is, from 1.
    number: u64,
}

/// Class of a route, by what it shows or changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Guard {
    /// Served to everyone: whether the process works, and the console's own files.
    Open,
    /// Figures: with a credential, or from this machine where no tokens are configured.
    Monitor,
    /// Player data, the configuration, and everything that changes state: always with a credential.
    Session,
}

/// Credentials that a request carries.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Credentials<'a> {
    pub(crate) path: &'a str,
    /// The method may change something.
    pub(crate) mutating: bool,
    pub(crate) host: Option<&'a str>,
    pub(crate) origin: Option<&'a str>,
    pub(crate) authorization: Option<&'a str>,
    pub(crate) cookie: Option<&'a str>,
    /// Site that a browser names as the request's origin. Absent outside of browsers, and on plain
    /// HTTP beyond loopback.
    pub(crate) fetch_site: Option<&'a str>,
    /// It costs more than an answer: a profile, or a stream that stays open.
    pub(crate) costly: bool,
}

/// The answer of [`Access::check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Allow,
    /// A credential is needed and missing or wrong.
    Unauthorized,
    /// Nothing would help: no tokens are configured and the request is not local.
    Forbidden,
    /// A page of another site caused the request.
    CrossSite,
}

impl Access {
    /// Rules with these tokens; none means loopback only.
    #[must_use]
    pub fn new(tokens: Vec<String>, metrics_open: bool) -> Access {
        Access { tokens: RwLock::new(tokens), metrics_open, ..Access::default() }
    }

    /// Replaces the tokens, for a reload. Console sessions stay.
    pub fn set_tokens(&self, tokens: Vec<String>) {
        *self.tokens.write().unwrap_or_else(PoisonError::into_inner) = tokens;
    }

    /// A new token that opens one console session. `None` when the system provides no random bytes.
    #[must_use]
    pub fn invite(&self) -> Option<String> {
        let token = random()?;
        let mut invitations = self.invitations.lock().unwrap_or_else(PoisonError::into_inner);
        if invitations.len() == INVITATIONS_MAX {
            invitations.pop_front();
        }
        invitations.push_back(Invitation { token: token.clone(), made: Instant::now() });
        Some(token)
    }

    /// Counts a failed token from an address; how long the answer is to wait.
    pub(crate) fn count_failure(&self, addr: IpAddr) -> Duration {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.0.retain(|(_, _, at)| at.elapsed() < FAILURE_MEMORY);
        let known = failures.0.iter().position(|(known, ..)| *known == addr);
        let before = known.and_then(|at| failures.0.remove(at)).map_or(0, |(_, count, _)| count);
        if failures.0.len() == FAILURES_MAX {
            failures.0.pop_front();
        }
        failures.0.push_back((addr, before + 1, Instant::now()));
        if before < FAILURES_FREE { Duration::ZERO } else { FAILURE_DELAY }
    }

    /// Opens a session for a one-time token, which is used up by that, or for a configured one.
    pub(crate) fn open_session(&self, token: &str) -> Option<String> {
        let invited = {
            let mut invitations = self.invitations.lock().unwrap_or_else(PoisonError::into_inner);
            let found = invitations.iter().enumerate().fold(None, |found, (index, each)| {
                if same(&each.token, token) { Some(index) } else { found }
            });
            let used = found.and_then(|index| invitations.remove(index));
            used.is_some_and(|used| used.made.elapsed() < INVITATION_LIFE)
        };
        if !invited && !self.is_token(token) {
            return None;
        }
        let secret = random()?;
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.open.retain(|session| session.opened.elapsed() < SESSION_LIFE);
        if sessions.open.len() == SESSIONS_MAX {
            sessions.open.pop_front();
        }
        sessions.count += 1;
        let number = sessions.count;
        sessions.open.push_back(Session { secret: secret.clone(), opened: Instant::now(), number });
        Some(secret)
    }

    /// Ends the session that a request's cookie names.
    pub(crate) fn close_session(&self, listener: SocketAddr, cookie: Option<&str>) {
        if let Some(session) = session_of(listener, cookie) {
            let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
            sessions.open.retain(|each| !same(&each.secret, session));
        }
    }

    /// True if the request belongs to a console session.
    pub(crate) fn has_session(&self, listener: SocketAddr, cookie: Option<&str>) -> bool {
        self.session_number(listener, cookie).is_some()
    }

    fn session_number(&self, listener: SocketAddr, cookie: Option<&str>) -> Option<u64> {
        let given = session_of(listener, cookie)?;
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.open.iter().fold(None, |found, session| {
            let it = same(&session.secret, given) && session.opened.elapsed() < SESSION_LIFE;
            if it { Some(session.number) } else { found }
        })
    }

    /// Name of the caller in an audit record; `None` without a credential.
    pub(crate) fn name_of(
        &self,
        listener: SocketAddr,
        authorization: Option<&str>,
        cookie: Option<&str>,
    ) -> Option<String> {
        let token = bearer(authorization).and_then(|token| self.token_number(token));
        let session = || self.session_number(listener, cookie);
        token
            .map(|number| format!("token {number}"))
            .or_else(|| session().map(|number| format!("session {number}")))
    }

    pub(crate) fn check(&self, guard: Guard, listener: SocketAddr, claims: &Credentials<'_>) -> Decision {
        // Browsers name the origin of whatever may change something, and scripts of other sites
        // cannot forge it.
        let cross = claims.mutating && claims.origin.is_some_and(|origin| !is_same_site(origin, claims.host));
        // A page elsewhere cannot read what it asks for, but could have it made.
        let used =
            claims.costly && claims.fetch_site.is_some_and(|site| !matches!(site, "none" | "same-origin"));
        if cross || used {
            return Decision::CrossSite;
        }
        if guard == Guard::Open || claims.path == "/metrics" && self.metrics_open {
            return Decision::Allow;
        }
        if bearer(claims.authorization).is_some_and(|token| self.is_token(token)) {
            return Decision::Allow;
        }
        if self.has_session(listener, claims.cookie) {
            // A cookie comes by itself, so the browser must say on whose behalf.
            let vouched = !claims.mutating || claims.origin.is_some();
            return if vouched { Decision::Allow } else { Decision::CrossSite };
        }
        let open = self.tokens.read().unwrap_or_else(PoisonError::into_inner).is_empty();
        if !open || guard == Guard::Session {
            return Decision::Unauthorized;
        }
        let local = listener.ip().is_loopback() && claims.host.is_none_or(is_loopback_name);
        if local { Decision::Allow } else { Decision::Forbidden }
    }

    fn is_token(&self, given: &str) -> bool {
        self.token_number(given).is_some()
    }

    /// Every token is compared, so that the time taken does not tell which one was nearly right.
    fn token_number(&self, given: &str) -> Option<usize> {
        let tokens = self.tokens.read().unwrap_or_else(PoisonError::into_inner);
        let numbered = tokens.iter().zip(1..);
        numbered.fold(None, |found, (token, number)| if same(token, given) { Some(number) } else { found })
    }
}

/// The token of an `Authorization` header.
fn bearer(authorization: Option<&str>) -> Option<&str> {
    let (scheme, token) = authorization?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Name of the session cookie: cookies know no ports, and several gateways may run on one machine.
pub(crate) fn cookie_name(listener: SocketAddr) -> String {
    format!("throng_console_{}", listener.port())
}

fn session_of(listener: SocketAddr, cookie: Option<&str>) -> Option<&str> {
    let name = cookie_name(listener);
    cookie?.split(';').find_map(|pair| pair.trim().strip_prefix(&name)?.strip_prefix('='))
}

/// 128 random bits as hexadecimal digits.
fn random() -> Option<String> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes)).ok()?;
    Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// True if an `Origin` is the site that the request went to.
#[must_use]
pub fn is_same_site(origin: &str, host: Option<&str>) -> bool {
    let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    matches!((authority, host), (Some(authority), Some(host)) if authority.eq_ignore_ascii_case(host))
}

/// Compares in a time that depends on the length of `given` only.
fn same(token: &str, given: &str) -> bool {
    let (token, given) = (token.as_bytes(), given.as_bytes());
    let mut difference = u8::from(token.len() != given.len());
    for (index, byte) in given.iter().enumerate() {
        difference |= byte ^ token.get(index).copied().unwrap_or(!byte);
    }
    std::hint::black_box(difference) == 0
}

/// The name or IP address of a `Host`: without its port, and without the brackets of IPv6.
#[must_use]
pub fn host_name(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or(v6),
        None => host.split(':').next().unwrap_or(host),
    }
}

/// True if a `Host`, with or without a port, names this machine only: a page cannot point such a
/// name anywhere.
#[must_use]
pub fn is_loopback_name(host: &str) -> bool {
    let name = host_name(host);
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: &str = "127.0.0.1:80";

    fn claims<'a>() -> Credentials<'a> {
        Credentials { path: "/api/v1/server", host: Some("localhost:80"), ..Credentials::default() }
    }

    #[test]
    fn who_may_read_what() {
        use Decision::{Allow, Forbidden, Unauthorized};
        let local: SocketAddr = LOCAL.parse().unwrap();
        let public: SocketAddr = "0.0.0.0:1".parse().unwrap();
        let none = Access::new(Vec::new(), false);
        let tokens = Access::new(vec!["first".into(), "second".into()], false);
        let open = Access::new(Vec::new(), true);
        let without_tokens = [
            (local, Some("localhost:80"), Allow),
            (local, Some("[::1]:80"), Allow),
            (local, None, Allow),
            (local, Some("evil.example"), Forbidden),
            (local, Some("127.0.0.1.evil.example"), Forbidden),
            (public, Some("localhost"), Forbidden),
        ];
        for (listener, host, expected) in without_tokens {
            let given = Credentials { path: "/metrics", host, ..Credentials::default() };
            assert_eq!(none.check(Guard::Monitor, listener, &given), expected, "{listener} {host:?}");
            assert_eq!(none.check(Guard::Session, listener, &given), Unauthorized, "{listener} {host:?}");
        }
        let tries = [
            (None, Unauthorized),
            (Some("Bearer first"), Allow),
            (Some("bearer second "), Allow),
            (Some("Bearer"), Unauthorized),
            (Some("Bearer "), Unauthorized),
            (Some("Bearer firs"), Unauthorized),
            (Some("Bearer firstt"), Unauthorized),
            (Some("Basic first"), Unauthorized),
            (Some("first"), Unauthorized),
        ];
        for (authorization, expected) in tries {
            let given = Credentials { path: "/metrics", authorization, ..Credentials::default() };
            for guard in [Guard::Monitor, Guard::Session] {
                assert_eq!(tokens.check(guard, public, &given), expected, "{authorization:?}");
            }
        }
        let metrics = Credentials { path: "/metrics", ..Credentials::default() };
        assert_eq!(open.check(Guard::Monitor, public, &metrics), Allow);
        assert_eq!(open.check(Guard::Monitor, public, &claims()), Forbidden);
    }

    #[test]
    fn a_one_time_token_opens_one_session() {
        let local: SocketAddr = LOCAL.parse().unwrap();
        let access = Access::new(Vec::new(), false);
        let token = access.invite().unwrap();
        assert!(access.open_session("").is_none() && access.open_session(&token[1..]).is_none());
        let session = access.open_session(&token).unwrap();
        assert!(access.open_session(&token).is_none(), "used up");
        let cookie = format!("other=1; throng_console_80={session}");
        let with = Credentials { cookie: Some(&cookie), ..claims() };
        assert_eq!(access.check(Guard::Session, local, &with), Decision::Allow);
        // The cookie of the gateway on another port is none here.
        let other = "127.0.0.1:81".parse().unwrap();
        assert_eq!(access.check(Guard::Session, other, &with), Decision::Unauthorized);
        access.close_session(local, Some(&cookie));
        assert_eq!(access.check(Guard::Session, local, &with), Decision::Unauthorized);
    }

    #[test]
    fn one_time_tokens_and_sessions_end_by_themselves() {
        let local: SocketAddr = LOCAL.parse().unwrap();
        let access = Access::new(Vec::new(), false);
        let back = |by: Duration| Instant::now().checked_sub(by + Duration::from_secs(1)).unwrap();
        let late = access.invite().unwrap();
        access.invitations.lock().unwrap()[0].made = back(INVITATION_LIFE);
        assert!(access.open_session(&late).is_none());
        let session = access.open_session(&access.invite().unwrap()).unwrap();
        let cookie = format!("throng_console_80={session}");
        assert!(access.has_session(local, Some(&cookie)));
        assert!(access.name_of(local, None, Some(&cookie)).is_some());
        access.sessions.lock().unwrap().open[0].opened = back(SESSION_LIFE);
        assert!(!access.has_session(local, Some(&cookie)));
        let with = Credentials { cookie: Some(&cookie), ..claims() };
        assert_eq!(access.check(Guard::Session, local, &with), Decision::Unauthorized);
    }

    #[test]
    fn failed_tokens_of_an_address_are_slow() {
        let access = Access::new(vec!["secret".into()], false);
        let (guesser, other): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let delays: Vec<_> = (0..7).map(|_| access.count_failure(guesser)).collect();
        assert_eq!(delays[..5], [Duration::ZERO; 5]);
        assert_eq!(delays[5..], [FAILURE_DELAY; 2]);
        assert_eq!(access.count_failure(other), Duration::ZERO);
        for index in 0..=FAILURES_MAX as u32 {
            access.count_failure(IpAddr::V4((0x0B00_0000 + index).into()));
        }
        assert_eq!(access.failures.lock().unwrap().0.len(), FAILURES_MAX);
    }

    #[test]
    fn pages_of_other_sites_start_no_profile() {
        let local: SocketAddr = LOCAL.parse().unwrap();
        let access = Access::new(Vec::new(), false);
        for (fetch_site, expected) in [
            (None, Decision::Allow),
            (Some("none"), Decision::Allow),
            (Some("same-origin"), Decision::Allow),
            (Some("same-site"), Decision::CrossSite),
            (Some("cross-site"), Decision::CrossSite),
        ] {
            let given = Credentials { fetch_site, costly: true, ..claims() };
            assert_eq!(access.check(Guard::Monitor, local, &given), expected, "{fetch_site:?}");
            let cheap = Credentials { costly: false, ..given };
            assert_eq!(access.check(Guard::Monitor, local, &cheap), Decision::Allow);
        }
    }

    #[test]
    fn other_sites_change_nothing() {
        let local: SocketAddr = LOCAL.parse().unwrap();
        let access = Access::new(vec!["secret".into()], false);
        let session = access.open_session("secret").unwrap();
        let cookie = format!("throng_console_80={session}");
        let cases = [
            (Some("http://localhost:80"), Decision::Allow),
            (Some("https://LOCALHOST:80"), Decision::Allow),
            (Some("http://localhost:81"), Decision::CrossSite),
            (Some("http://evil.example"), Decision::CrossSite),
            (Some("null"), Decision::CrossSite),
            (None, Decision::CrossSite),
        ];
        for (origin, expected) in cases {
            let given = Credentials { mutating: true, origin, cookie: Some(&cookie), ..claims() };
            assert_eq!(access.check(Guard::Session, local, &given), expected, "{origin:?}");
        }
        let bearer = Credentials { mutating: true, authorization: Some("Bearer secret"), ..claims() };
        assert_eq!(access.check(Guard::Session, local, &bearer), Decision::Allow, "programs name no origin");
        let forged = Credentials { origin: Some("http://evil.example"), ..bearer };
        assert_eq!(access.check(Guard::Session, local, &forged), Decision::CrossSite);
    }

    #[test]
    fn sessions_and_invitations_are_bounded() {
        let local: SocketAddr = LOCAL.parse().unwrap();
        let access = Access::new(vec!["secret".into()], false);
        let first = access.open_session("secret").unwrap();
        for _ in 0..SESSIONS_MAX {
            assert!(access.open_session("secret").is_some());
        }
        assert!(!access.has_session(local, Some(&format!("throng_console_80={first}"))));
        let early = access.invite().unwrap();
        for _ in 0..INVITATIONS_MAX {
            assert!(access.invite().is_some());
        }
        assert!(access.open_session(&early).is_none());
    }
}
