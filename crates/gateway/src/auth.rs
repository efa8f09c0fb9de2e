//! Authentication, bans and everything else that shard 0 decides about connections. Spec §4.3 and
//! §4.5.

use core::time::Duration;
use std::net::IpAddr;
use std::sync::Arc;

use prost::Message;
use throng_wire::channeldpb::auth_result_message::AuthResult;
use throng_wire::channeldpb::{AuthMessage, AuthResultMessage, CompressionType, Elsewhere};

use crate::ban::Subject;
use crate::effect::{Effect, Redacted, SecurityEvent, SecurityEventKind, Verdict, WorldChoice};
use crate::ids::{AuthTicket, ChannelId, ConnId, ConnKind};
use crate::mail::{Head, Letter};
use crate::reason::{CloseReason, Refusal};
use crate::registry::{FailedLogin, PendingAuth, world_of_token};
use crate::requests::Sender;
use crate::shard::Shard;
use crate::switchboard::Timer;

/// Failed logins of an address, of whatever names, within the time that failures are remembered,
/// before its negative answers are delayed. A household's typing errors stay below; a thousand
/// guesses take a quarter of an hour and more.
const FAILURES_BEFORE_DELAY: u32 = 50;
const NEGATIVE_ANSWER_DELAY: Duration = Duration::from_secs(1);

impl Shard {
    /// AUTH. On shard 0 when it was sent to GLOBAL.
    pub(crate) fn on_auth(&mut self, sender: Sender, head: Head, body: &[u8]) -> Result<(), Refusal> {
        if head.channel != ChannelId::GLOBAL {
            self.board.close(sender.conn, CloseReason::AuthWrongChannel);
            return Ok(());
        }
        let request = AuthMessage::decode(body).map_err(|_| Refusal::BadBody)?;
        let Some(global) = &mut self.global else { return Err(Refusal::NotGlobal) };
        let entry = global.entries.get(&sender.conn).ok_or(Refusal::ClosingConnection)?;
        if entry.authenticated {
            return Err(Refusal::AlreadyAuthenticated);
        }
        if entry.pending {
            return Err(Refusal::AuthPending);
        }
        let is_client = sender.kind == ConnKind::Client;
        let asked = request.world.filter(|name| !name.is_empty());
        let asked = asked.map(|world| WorldChoice { world: world.into(), by_listener: false });
        if let (Some(here), Some(there)) = (&asked, &entry.asked)
            && here.world != there.world
        {
            self.board.close(sender.conn, CloseReason::WorldMismatch);
            return Ok(());
        }
        let pending = PendingAuth {
            conn: sender.conn,
            head,
            pit: request.player_identifier_token.into(),
            lt: Redacted(request.login_token),
            wants_token: is_client && request.resume_token.is_some(),
            token: request.resume_token.filter(|token| is_client && !token.is_empty()),
            void_token: None,
            asked: entry.asked.clone().or(asked),
        };
        self.log_in(pending, sender.kind, false)
    }

    /// The login of a connection, here or on its way through another world. `judged`: its provider
    /// has said yes.
    pub(crate) fn log_in(
        &mut self,
        mut pending: PendingAuth,
        kind: ConnKind,
        judged: bool,
    ) -> Result<(), Refusal> {
        let config = Arc::clone(&self.board.config);
        let conn = pending.conn;
        let Some(global) = &self.global else { return Err(Refusal::NotGlobal) };
        let entry = global.entries.get(&conn).ok_or(Refusal::ClosingConnection)?;
        let (addr, moved) = (entry.addr, entry.moved);
        // Players are banned from this world, and the login may lead to another one.
        let login = Subject::login(addr, &pending.pit);
        if kind == ConnKind::Client && self.turns_away(conn, &pending.pit, &login) {
            return Ok(());
        }
        if let Some(token) = &pending.token {
            let world = world_of_token(token);
            if (*world != *config.world || pending.asked.is_some()) && !moved {
                let (world, asked) = (world.to_owned(), pending.asked.clone());
                if let Some(ticket) = self.ask(pending) {
                    self.board.effect(Effect::FindWorld { ticket, world, asked });
                }
                return Ok(());
            }
            pending.void_token = Some(world.into());
            let resumable = kind == ConnKind::Client && !config.recovery.client_window.is_zero();
            if let Some(token) = pending.token.take().filter(|_| resumable) {
                if self.turns_away(conn, &pending.pit, &Subject::player(&pending.pit)) {
                    return Ok(());
                }
                if self.resume(&token, &pending) {
                    return Ok(());
                }
                // A token that is of no use any more leads to an ordinary login.
                self.security(conn, &pending.pit, SecurityEventKind::BadResumeToken);
            }
        }
        let is_server = kind == ConnKind::Server;
        let is_link = is_server && config.link.as_deref() == Some(&*pending.pit);
        if judged {
            self.authenticated(pending);
        } else if moved && !config.world.is_empty() {
            // It came for its token alone. The main world finds out where it belongs.
            self.send_away(pending, 0, false);
        } else if is_link || is_server && config.servers_bypass_auth {
            self.admit_to_asked(pending, addr);
        } else if config.auth_provider {
            let (pit, lt) = (Redacted(pending.pit.to_string()), pending.lt.clone());
            let asked = pending.asked.clone();
            if let Some(ticket) = self.ask(pending) {
                self.board.effect(Effect::Authenticate { ticket, conn, kind, addr, pit, lt, asked });
            }
        } else if config.development {
            self.admit_to_asked(pending, addr);
        } else {
            // Without a provider nobody can be told from an impostor. The reference aborts here
            //
            self.security(conn, &pending.pit, SecurityEventKind::NoProvider);
            self.authentication_failed(pending, AuthResult::InvalidLt);
        }
        Ok(())
    }

    /// A login that needs no provider enters the world that it asks for, if it may.
    fn admit_to_asked(&mut self, pending: PendingAuth, addr: IpAddr) {
        let Some(asked) = pending.asked.clone() else { return self.authenticated(pending) };
        if let Some(ticket) = self.ask(pending) {
            self.board.effect(Effect::ChooseWorld { ticket, addr, asked });
        }
    }

    /// Closes a connection whose login is under a ban.
    pub(crate) fn turns_away(&mut self, conn: ConnId, pit: &str, subject: &Subject) -> bool {
        let now = self.board.now;
        if !self.global.as_mut().is_some_and(|global| global.bans.is_banned(now, subject)) {
            return false;
        }
        let reason = match subject {
            Subject::Player(_) => CloseReason::BannedPlayer,
            Subject::Address(_) | Subject::Login(..) => CloseReason::AuthFailures,
        };
        self.security(conn, pit, SecurityEventKind::BannedReturned);
        self.board.close(conn, reason);
        true
    }

    /// The connection waits for an answer of the driver.
    fn ask(&mut self, pending: PendingAuth) -> Option<AuthTicket> {
        let global = self.global.as_mut()?;
        global.entries.get_mut(&pending.conn)?.pending = true;
        global.next_ticket += 1;
        global.tickets.insert(global.next_ticket, pending);
        Some(AuthTicket(global.next_ticket))
    }

    /// The provider answered.
    pub(crate) fn on_verdict(&mut self, ticket: AuthTicket, verdict: Verdict) {
        let Some(global) = &mut self.global else { return };
        let Some(pending) = global.tickets.remove(&ticket.0) else { return };
        // The connection may have closed since; its id may even have come back under another
        // connection, but that one does not wait for a verdict.
        match global.entries.get_mut(&pending.conn) {
            Some(entry) if entry.pending => entry.pending = false,
            _ => return,
        }
        match verdict {
            // A question about a token is asked before the login is.
            Verdict::Success if pending.token.is_some() => {
                self.log_in_again(PendingAuth { asked: None, ..pending });
            }
            Verdict::Success => self.authenticated(pending),
            Verdict::InvalidPit => self.authentication_failed(pending, AuthResult::InvalidPit),
            Verdict::InvalidLt => self.authentication_failed(pending, AuthResult::InvalidLt),
            Verdict::Error(_) => self.board.close(pending.conn, CloseReason::AuthProviderFailed),
            Verdict::Elsewhere { world } => {
                let judged = pending.token.is_none();
                self.send_away(pending, world, judged);
            }
            Verdict::NoWorld => {
                self.security(pending.conn, &pending.pit, SecurityEventKind::BadResumeToken);
                let void_token = pending.token.as_deref().map(|token| world_of_token(token).into());
                self.log_in_after_all(&PendingAuth { void_token, ..pending });
            }
            // A client repeats the world to which the answer about its token sent it. Without that
            // session it has no right to enter, and logs in as if it named no world.
            Verdict::Refused(CloseReason::UnknownWorld) if pending.asks_by_void_token() => {
                self.log_in_after_all(&PendingAuth { asked: None, ..pending });
            }
            Verdict::Refused(reason) => self.board.close(pending.conn, reason),
            Verdict::OtherNode { world, addresses } => {
                let reason = CloseReason::WorldElsewhere;
                let name = Some(world.as_str().into());
                let elsewhere = Elsewhere { reason: reason.name().to_owned(), addresses, world };
                let negative = self.auth_result(AuthResult::InvalidLt, pending.conn);
                let result = AuthResultMessage { elsewhere: Some(elsewhere), ..negative };
                self.board.send(pending.conn, pending.head, &result);
                self.board.close_naming(pending.conn, reason, name);
            }
        }
    }

    /// A question about a client's token is answered.
    fn log_in_again(&mut self, pending: PendingAuth) {
        if let Err(refusal) = self.log_in(pending, ConnKind::Client, false) {
            self.board.refuse(refusal);
        }
    }

    fn authenticated(&mut self, pending: PendingAuth) {
        let PendingAuth { conn, head, ref pit, wants_token, .. } = pending;
        let resume_refused = pending.void_token.is_some();
        let Some(kind) = self.global.as_ref().and_then(|global| global.entries.get(&conn)).map(|e| e.kind)
        else {
            return;
        };
        // The ban may have come while the provider thought about it.
        if kind == ConnKind::Client && self.turns_away(conn, pit, &Subject::player(pit)) {
            return;
        }
        let Some(global) = &mut self.global else { return };
        let Some(entry) = global.entries.get_mut(&conn) else { return };
        entry.authenticated = true;
        entry.pit = pit.clone();
        let addr = entry.addr;
        // What an address has tried before stays on its account: a valid login of its own would
        // clear it.
        global.bans.succeed(&Subject::login(addr, pit));
        let wants_token = wants_token && !self.board.config.recovery.client_window.is_zero();
        let is_link = kind == ConnKind::Server && self.board.config.link.as_deref() == Some(&**pit);
        self.board.stats.kind_mut(kind).authenticated += 1;

        if self.board.config.supersedes && kind == ConnKind::Client {
            self.supersede(conn, pit);
        }
        let returning = match kind {
            ConnKind::Server => self.returning_server(pit),
            ConnKind::Client => None,
        };
        if let Some(old) = returning {
            self.recover(conn, old, head, None);
            return;
        }
        let recoverable = match kind {
            ConnKind::Server => self.board.config.recovery.servers && !pit.is_empty() && !is_link,
            ConnKind::Client => wants_token,
        };
        self.admit(conn, recoverable);
        let resume_token = if wants_token { self.token_for(conn) } else { Vec::new() };
        let result = self.auth_result(AuthResult::Successful, conn);
        let result = AuthResultMessage { resume_token, resume_refused, ..result };
        self.send_auth_result(conn, head, result);
        if kind == ConnKind::Client {
            self.greet_with_well_known(conn);
            self.tell_matcher_of_login(conn, pit);
        }
    }

    /// Closes other connections of a player.
    fn supersede(&mut self, conn: ConnId, pit: &str) {
        let Some(global) = &self.global else { return };
        let others = global.entries.iter().filter(|(other, entry)| {
            **other != conn && entry.authenticated && entry.kind == ConnKind::Client && *entry.pit == *pit
        });
        let others: Vec<ConnId> = others.map(|(other, _)| *other).collect();
        for other in others {
            self.board.close(other, CloseReason::Superseded);
        }
    }

    /// Tells all shards that a connection is authenticated; its state machine moves on.
    pub(crate) fn admit(&mut self, conn: ConnId, recoverable: bool) {
        self.board.post_others(|| Letter::Authenticated { conn, recoverable });
        self.on_authenticated(conn, recoverable);
    }

    pub(crate) fn token_for(&mut self, conn: ConnId) -> Vec<u8> {
        self.global.as_mut().map(|global| global.issue_token(conn)).unwrap_or_default()
    }

    fn authentication_failed(&mut self, pending: PendingAuth, result: AuthResult) {
        let conn = pending.conn;
        let max = self.board.config.abuse.auth_failures_max;
        let now = self.board.now;
        let Some(global) = &mut self.global else { return };
        let Some(entry) = global.entries.get_mut(&conn) else { return };
        let (addr, proven) = (entry.addr, entry.proven);
        let is_client = entry.kind == ConnKind::Client;
        // The sender of an unproven connection may have written another's address on it: nothing is
        // held against that.
        let counts = is_client && proven && max > 0;
        // Everybody without an identifier shares the empty one; locking that would lock them all
        // out.
        let locked = counts
            && !pending.pit.is_empty()
            && global.bans.fail(now, Subject::login(addr, &pending.pit), max);
        let slowed = counts && global.bans.count(now, Subject::address(addr)) > FAILURES_BEFORE_DELAY;
        let failed = FailedLogin { result, locked, closes: locked || (is_client && !proven) };
        self.security(conn, &pending.pit, SecurityEventKind::AuthFailed);
        if slowed && let Some(entry) = self.global.as_mut().and_then(|global| global.entries.get_mut(&conn)) {
            // It waits as if for its verdict.
            entry.pending = true;
            entry.delayed = Some(Box::new((pending, failed)));
            self.board.timers.insert(now + NEGATIVE_ANSWER_DELAY, Timer::Answer(conn));
        } else {
            self.answer_failed(pending, failed);
        }
    }

    /// The negative answer to a connection whose address has failed too often is due.
    pub(crate) fn answer_delayed(&mut self, conn: ConnId) {
        let Some(entry) = self.global.as_mut().and_then(|global| global.entries.get_mut(&conn)) else {
            return;
        };
        if let Some(delayed) = entry.delayed.take() {
            entry.pending = false;
            let (pending, failed) = *delayed;
            self.answer_failed(pending, failed);
        }
    }

    fn answer_failed(&mut self, pending: PendingAuth, failed: FailedLogin) {
        let PendingAuth { conn, head, pit, .. } = pending;
        let body = self.auth_result(failed.result, conn);
        self.send_auth_result(conn, head, body);
        if failed.locked {
            self.board.stats.bans += 1;
            self.security(conn, &pit, SecurityEventKind::LoginLocked);
        }
        if failed.closes {
            self.board.close(conn, CloseReason::AuthFailures);
        }
    }

    pub(crate) fn auth_result(&self, result: AuthResult, conn: ConnId) -> AuthResultMessage {
        let compression = if self.board.config.offer_snappy {
            CompressionType::Snappy
        } else {
            CompressionType::NoCompression
        };
        AuthResultMessage {
            result: result as i32,
            conn_id: conn.0,
            compression_type: compression as i32,
            should_recover: false,
            resume_token: Vec::new(),
            elsewhere: None,
            resume_refused: false,
        }
    }

    /// The result to who asked, and a copy to the owner of GLOBAL, who never learns resume tokens.
    pub(crate) fn send_auth_result(&mut self, to: ConnId, head: Head, result: AuthResultMessage) {
        self.board.send(to, head, &result);
        if let Some(owner) = self.board.global_owner.filter(|owner| *owner != to) {
            let copy = AuthResultMessage { resume_token: Vec::new(), ..result };
            self.board.send(owner, head.copy(), &copy);
        }
    }

    /// Shard 0: a connection was closed for `reason`; punishes what deserves it.
    pub(crate) fn punish(&mut self, conn: ConnId, kind: ConnKind, reason: CloseReason) {
        let now = self.board.now;
        let Some(global) = &mut self.global else { return };
        let Some(entry) = global.entries.get(&conn) else { return };
        let pit = entry.pit.clone();
        let event = match reason {
            CloseReason::AuthTimeout => SecurityEventKind::AuthTimedOut,
            CloseReason::StateMachineRefusals if kind == ConnKind::Client && !pit.is_empty() => {
                global.bans.ban(now, Subject::player(&pit));
                self.end_sessions(conn, &pit);
                SecurityEventKind::PlayerBanned
            }
            _ => return,
        };
        if event != SecurityEventKind::AuthTimedOut {
            self.board.stats.bans += 1;
        }
        self.security(conn, &pit, event);
    }

    /// Ends whatever else a banned player has in this world: connections, and places that are kept.
    /// Without a provider a name proves nothing, and others who use it are not to pay for one.
    fn end_sessions(&mut self, banned: ConnId, pit: &str) {
        if !self.board.config.auth_provider {
            return;
        }
        let Some(global) = &self.global else { return };
        let of_player = |kind: ConnKind, name: &str| kind == ConnKind::Client && name == pit;
        let live = global.entries.iter().filter(|(conn, entry)| {
            **conn != banned && entry.authenticated && of_player(entry.kind, &entry.pit)
        });
        let live: Vec<ConnId> = live.map(|(conn, _)| *conn).collect();
        let lost = global.lost.iter().filter(|(_, lost)| of_player(lost.kind, &lost.pit));
        let lost: Vec<ConnId> = lost.map(|(conn, _)| *conn).collect();
        for conn in live {
            self.board.close(conn, CloseReason::BannedPlayer);
        }
        for conn in lost {
            self.expire_lost(conn);
        }
    }

    pub(crate) fn security(&mut self, conn: ConnId, pit: &str, what: SecurityEventKind) {
        let addr = self.global.as_ref().and_then(|global| global.entries.get(&conn)).map(|entry| entry.addr);
        let pit = (!pit.is_empty()).then(|| pit.to_owned());
        self.board.security(SecurityEvent { conn: Some(conn), addr, pit, what });
    }
}
