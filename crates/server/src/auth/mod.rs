//! Authentication of logins: providers behind one trait, called from the side runtime so that no
//! shard ever waits for one.
//!
//! | `gateway.auth.kind` | provider |
//! |---|---|
//! | `none` | everyone gets in, answered on the spot |
//! | `refuse` | none; the core refuses players itself |
//! | `tokens` | [`Tokens`]: pairs from a file |
//! | `jwt` | [`Jwt`]: signed tokens, keys from a file or a JWKS address |
//! | `http` | [`Callout`]: a web service decides |

mod callout;
pub(crate) mod fetch;
#[cfg(feature = "jwt")]
mod jwt;
#[cfg(not(feature = "jwt"))]
#[path = "no_jwt.rs"]
mod jwt;
#[cfg(feature = "jwt")]
mod tickets;
#[cfg(not(feature = "jwt"))]
#[path = "no_tickets.rs"]
mod tickets;
mod tokens;

use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use throng_gateway::{AuthTicket, CloseReason, ConnKind, Redacted, Verdict, WorldChoice};
use throng_stdx::Instant;

pub use callout::Callout;
pub(crate) use fetch::check_url;
pub use jwt::Jwt;
pub(crate) use tickets::Tickets;
pub use tokens::Tokens;

use crate::cluster::Cluster;
use crate::config::Auth;
use crate::mailbox::{Mailbox, Post, giving};
pub use crate::world::Judgement;
use crate::world::{World, WorldEpoch};
use crate::worlds::{WorldRequest, Worlds};

/// Bytes of a player identifier or a token beyond which no provider is asked. Signed tokens with
/// many claims reach a few KiB; the protocol would allow 64.
pub const CREDENTIAL_BYTES_MAX: usize = 16 * 1024;

/// A login to be judged. Prints without its credentials.
#[derive(Clone, Debug)]
pub struct Login {
    /// The connection that wants to log in.
    pub conn: u32,
    /// Game server or player.
    pub kind: ConnKind,
    /// Address of the peer.
    pub addr: IpAddr,
    /// Player identifier token (PIT).
    pub player: Redacted,
    /// Login token (LT).
    pub token: Redacted,
}

/// A verdict on its way.
pub type VerdictFuture<'a> = Pin<Box<dyn Future<Output = Judgement> + Send + 'a>>;

/// Decides who may log in.
pub trait Authenticator: Send + Sync + fmt::Debug + 'static {
    /// Judges one login. Failures of the provider itself are [`Verdict::Error`], which closes the
    /// connection.
    fn judge<'a>(&'a self, login: &'a Login) -> VerdictFuture<'a>;

    /// Reads its files again.
    ///
    /// # Errors
    /// What is wrong with them; the old content stays in use.
    fn reload(&self) -> Result<(), String> {
        Ok(())
    }

    /// True if verdicts can be given, with a remark; for the readiness report.
    fn health(&self) -> (bool, String) {
        (true, "ready".to_owned())
    }
}

/// Makes the provider that the settings ask for; `None` when nobody has to be asked.
///
/// # Errors
/// What is wrong with the files that the settings name.
pub fn provider(
    auth: &Auth,
    runtime: &tokio::runtime::Handle,
) -> Result<Option<Arc<dyn Authenticator>>, String> {
    Ok(match auth.kind.as_str() {
        "tokens" => Some(Arc::new(Tokens::open(&auth.tokens_file)?)),
        "jwt" => Some(Jwt::start(auth, runtime)?),
        "http" => Some(Arc::new(Callout::new(auth)?)),
        _ => None,
    })
}

/// Hands logins to the provider and its verdicts back to the worker that asked.
pub(crate) struct Logins {
    provider: Option<Arc<dyn Authenticator>>,
    tickets: Option<Arc<Tickets>>,
    runtime: tokio::runtime::Handle,
    process: OnceLock<(Arc<[Mailbox]>, Arc<Worlds>)>,
    pending: Arc<AtomicUsize>,
    pending_max: usize,
    lobby: Option<Lobby>,
    cluster: OnceLock<Arc<Cluster>>,
}

/// The main world of a process whose every login is judged there, by these settings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lobby {
    /// The process is a node of a cluster, which finds the worlds of logins.
    pub(crate) is_node: bool,
    /// Game servers need no verdict of a provider.
    pub(crate) servers_bypass: bool,
    /// Without a provider, logins are refused.
    pub(crate) is_closed: bool,
}

impl Lobby {
    /// The verdict that needs no provider.
    fn judge(self, kind: ConnKind, has_provider: bool) -> Option<Verdict> {
        match (kind, has_provider) {
            (ConnKind::Server, _) if self.servers_bypass => Some(Verdict::Success),
            (_, true) => None,
            (_, false) if self.is_closed => Some(Verdict::InvalidLt),
            (_, false) => Some(Verdict::Success),
        }
    }
}

impl Logins {
    pub(crate) fn new(
        provider: Option<Arc<dyn Authenticator>>,
        runtime: tokio::runtime::Handle,
        pending_max: usize,
        lobby: Option<Lobby>,
        tickets: Option<Arc<Tickets>>,
    ) -> Logins {
        let (process, cluster) = (OnceLock::new(), OnceLock::new());
        Logins { provider, tickets, runtime, process, pending: Arc::default(), pending_max, lobby, cluster }
    }

    /// Says by which node logins find their worlds.
    pub(crate) fn join(&self, cluster: Arc<Cluster>) {
        let first = self.cluster.set(cluster).is_ok();
        debug_assert!(first, "joined once");
    }

    /// Says where verdicts go and where worlds are; before the first login.
    pub(crate) fn connect(&self, mailboxes: Arc<[Mailbox]>, worlds: Arc<Worlds>) {
        let first = self.process.set((mailboxes, worlds)).is_ok();
        debug_assert!(first, "connected once");
    }

    pub(crate) fn provider(&self) -> Option<&Arc<dyn Authenticator>> {
        self.provider.as_ref()
    }

    pub(crate) fn tickets(&self) -> Option<&Arc<Tickets>> {
        self.tickets.as_ref()
    }

    /// Returns whether every login of the main world is judged.
    pub(crate) fn has_lobby(&self) -> bool {
        self.lobby.is_some()
    }

    /// Logins without a verdict yet.
    pub(crate) fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    /// Asks for a verdict. Returns it when it is known on the spot; else it comes as a
    /// [`Post::Verdict`].
    pub(crate) fn ask(
        &self,
        worker: u16,
        to: WorldEpoch,
        ticket: AuthTicket,
        login: Login,
        asked: Option<WorldChoice>,
        now: Instant,
    ) -> Option<Verdict> {
        let (addr, kind, requested) = (login.addr, login.kind, asked.clone());
        let settle = move |mailboxes: &[Mailbox], worlds: &Worlds, judged: Judgement| {
            let asked = asked.as_ref().map(|asked| WorldRequest { world: &asked.world, addr, now });
            worlds.settle(to.world, judged, asked, giving(mailboxes))
        };
        let lobby = self.lobby;
        let is_node = to.world == World::MAIN && lobby.is_some_and(|lobby| lobby.is_node);
        let is_long =
            login.player.0.len() > CREDENTIAL_BYTES_MAX || login.token.0.len() > CREDENTIAL_BYTES_MAX;
        let tickets = self.tickets.clone().filter(|tickets| !is_long && tickets.is_one(&login.token.0));
        let judged = lobby.filter(|_| tickets.is_none());
        let judged = judged.and_then(|lobby| lobby.judge(login.kind, self.provider.is_some()));
        if !is_node && tickets.is_none() && (judged.is_some() || self.provider.is_none()) {
            let (mailboxes, worlds) = self.process.get()?;
            return Some(settle(mailboxes, worlds, judged.unwrap_or(Verdict::Success).into()));
        }
        if is_long {
            return Some(Verdict::InvalidLt);
        }
        if self.pending.fetch_add(1, Ordering::Relaxed) >= self.pending_max {
            self.pending.fetch_sub(1, Ordering::Relaxed);
            return Some(Verdict::Error("too many logins are waiting for authentication".to_owned()));
        }
        let Some((mailboxes, worlds)) = self.process.get().cloned() else {
            return Some(Verdict::Error("the gateway is starting".to_owned()));
        };
        let (provider, pending) = (self.provider.clone(), Pending(Arc::clone(&self.pending)));
        let cluster = self.cluster.get().cloned();
        self.runtime.spawn(async move {
            let judged = match (judged, tickets, provider) {
                (_, Some(tickets), _) => tickets.judge(&login),
                (Some(verdict), ..) => verdict.into(),
                (None, None, None) => Verdict::Success.into(),
                (None, None, Some(provider)) => {
                    // A provider that panics must not leave the peer waiting for ever.
                    let judged = tokio::spawn(async move { provider.judge(&login).await }).await;
                    judged.unwrap_or_else(|error| {
                        Verdict::Error(format!("the provider failed: {error}")).into()
                    })
                }
            };
            drop(pending);
            let verdict = match (is_node, cluster) {
                (false, _) => settle(&mailboxes, &worlds, judged),
                (true, Some(cluster)) => {
                    let by_listener = requested.as_ref().is_some_and(|asked| asked.by_listener);
                    let asked =
                        requested.as_ref().map(|asked| WorldRequest { world: &asked.world, addr, now });
                    cluster.settle(kind, judged, asked, by_listener).await
                }
                // The node starts.
                (true, None) => Verdict::Refused(CloseReason::WorldUnavailable),
            };
            mailboxes[usize::from(worker)].post(Post::Verdict { to, ticket, verdict });
        });
        None
    }

    /// Finds the world whose name a resume token carries. Returns the verdict if it is known on the
    /// spot; else it comes as a [`Post::Verdict`].
    pub(crate) fn find_world(
        &self,
        worker: u16,
        to: WorldEpoch,
        ticket: AuthTicket,
        world: String,
        asked: Option<WorldChoice>,
    ) -> Option<Verdict> {
        let (mailboxes, worlds) = self.process.get()?;
        let is_node = to.world == World::MAIN && self.lobby.is_some_and(|lobby| lobby.is_node);
        if !is_node {
            return Some(worlds.settle_token(to.world, &world, asked.as_ref().map(|asked| &*asked.world)));
        }
        let Some(cluster) = self.cluster.get().cloned() else {
            // The node starts.
            return Some(Verdict::Refused(CloseReason::WorldUnavailable));
        };
        let mailboxes = Arc::clone(mailboxes);
        self.runtime.spawn(async move {
            let verdict = cluster.settle_token(&world, asked).await;
            mailboxes[usize::from(worker)].post(Post::Verdict { to, ticket, verdict });
        });
        None
    }
}

/// Counts a login as pending until it is dropped.
struct Pending(Arc<AtomicUsize>);

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Compares in a time that depends on the length of `given` only.
fn same_secret(expected: &str, given: &str) -> bool {
    let (expected, given) = (expected.as_bytes(), given.as_bytes());
    let mut difference = u8::from(expected.len() != given.len());
    for (index, byte) in given.iter().enumerate() {
        difference |= byte ^ expected.get(index).copied().unwrap_or(!byte);
    }
    std::hint::black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn login(player: &str, token: &str) -> Login {
        Login {
            conn: 7,
            kind: ConnKind::Client,
            addr: "192.0.2.1".parse().unwrap(),
            player: Redacted(player.to_owned()),
            token: Redacted(token.to_owned()),
        }
    }

    #[test]
    fn a_login_prints_without_its_credentials() {
        let text = format!("{:?}", login("planted-player", "planted-secret"));
        assert!(!text.contains("planted"), "{text}");
    }
}
