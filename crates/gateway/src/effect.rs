//! Inputs and outputs of a shard other than bytes: closures, requests to the authentication
//! provider, recordings.

use core::fmt;
use std::net::IpAddr;

use crate::ids::{AuthTicket, ConnHandle, ConnId, ConnKind, ShardIndex};
use crate::reason::CloseReason;

/// The answer to an accepted connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the socket belongs to the shard named here"]
pub struct Accepted {
    /// How drivers and shards name the connection from now on.
    pub conn: ConnHandle,
    /// The shard that handles its bytes.
    pub shard: ShardIndex,
}

/// How the transport saw a connection end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Closed {
    /// The peer closed it without a goodbye, as a process that dies does.
    EndOfStream,
    /// The peer said goodbye: WebSocket close 1000 or an ENet disconnect. Of a server this is an
    /// end of stream like any other, since a server that ends is recovered.
    Left,
    /// Reading or writing failed, or the transport's own protocol was violated.
    Error,
    /// The transport's own liveness check gave up.
    Idle,
    /// Its world stood still for too long, so the connection is closed from here.
    Standstill,
}

impl Closed {
    pub(crate) fn reason(self, kind: ConnKind) -> CloseReason {
        match self {
            Self::Left if kind == ConnKind::Client => CloseReason::Left,
            Self::EndOfStream | Self::Left => CloseReason::EndOfStream,
            Self::Error => CloseReason::TransportError,
            Self::Idle => CloseReason::IdleTimeout,
            Self::Standstill => CloseReason::WorldUnavailable,
        }
    }
}

/// What an authentication provider says.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The player is who it says, and belongs to this world.
    Success,
    /// The player identifier is not acceptable.
    InvalidPit,
    /// The login token is not acceptable.
    InvalidLt,
    /// No verdict; the connection is closed. The text goes to the log.
    Error(String),
    /// The login is right, and for another world of the process; or a resume token is from there,
    /// and that world finds out whether it is right.
    Elsewhere {
        /// The world's number.
        world: u32,
    },
    /// The login is valid, and another node of the cluster serves its world: the answer names that
    /// node's addresses, and the connection is closed.
    OtherNode {
        /// Name of the world.
        world: String,
        /// Addresses of the node for connections of this kind, as URLs.
        addresses: Vec<String>,
    },
    /// The world that a resume token names is not open: the login is an ordinary one.
    NoWorld,
    /// It may not enter the world that it names; the connection is closed.
    Refused(CloseReason),
}

/// A credential. Prints as stars.
#[derive(Clone, PartialEq, Eq)]
pub struct Redacted(pub String);

impl fmt::Debug for Redacted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A world that a connection is to enter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorldChoice {
    /// Its name.
    pub world: Box<str>,
    /// The listener leads there: it may enter without a credential for it.
    pub by_listener: bool,
}

/// Something the driver has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "an effect that is not carried out leaves a peer hanging"]
pub enum Effect {
    /// Close the socket and forget the connection. The shard has forgotten it already; call nothing
    /// more for it.
    Close {
        /// The connection, as the driver knows it.
        conn: ConnHandle,
        /// Why.
        reason: CloseReason,
        /// World that the close message names.
        world: Option<Box<str>>,
        /// Bytes to write first, as far as the transport takes them soon. Empty when nothing is to
        /// be flushed.
        flush: Vec<u8>,
    },
    /// Ask the provider and answer with [`Shard::handle_verdict`](crate::Shard::handle_verdict) on
    /// shard 0, in any order.
    Authenticate {
        /// Names the question.
        ticket: AuthTicket,
        /// Who asks.
        conn: ConnId,
        /// Its kind: client or game server.
        kind: ConnKind,
        /// Where it connects from.
        addr: IpAddr,
        /// Player identifier token.
        pit: Redacted,
        /// Login token.
        lt: Redacted,
        /// The world that the peer asks for. The verdict says whether it enters it.
        asked: Option<WorldChoice>,
    },
    /// A login that needs no provider asks for a world: answer with [`Verdict::Success`] if it is
    /// this one, with [`Verdict::Elsewhere`] or with [`Verdict::Refused`].
    ChooseWorld {
        /// Names the question.
        ticket: AuthTicket,
        /// Address of the peer.
        addr: IpAddr,
        /// The world.
        asked: WorldChoice,
    },
    /// Say whether the world is open whose name a resume token carries: answer with
    /// [`Verdict::Success`] if it is this one, with [`Verdict::Elsewhere`], [`Verdict::NoWorld`] or
    /// [`Verdict::Refused`].
    FindWorld {
        /// Names the question.
        ticket: AuthTicket,
        /// The world's name; empty for the main world.
        world: String,
        /// The world that the peer asks for besides.
        asked: Option<WorldChoice>,
    },
    /// Take the connection's socket to the world that
    /// [`Shard::take_moved`](crate::Shard::take_moved) names. The shard has forgotten it already;
    /// call nothing more for it.
    Move {
        /// The connection, as the driver knows it.
        conn: ConnHandle,
    },
    /// Pass on what concerns a player who uses the matcher, in order; what the matcher says goes to
    /// [`Shard::tell_player`](crate::Shard::tell_player) on shard 0.
    Matchmake {
        /// Connection of the player.
        conn: ConnId,
        /// Player identifier.
        player: Box<str>,
        /// The news.
        what: PlayerNews,
    },
    /// Append to the recording of that name. Long recordings come in several parts.
    Recording {
        /// Whose packets.
        conn: ConnId,
        /// File name without directory, the same for every part.
        name: String,
        /// A part of a `.cpr` file; parts are concatenated.
        bytes: Vec<u8>,
    },
    /// Entities of this data type have no position that can be read, in a world with a grid. Told
    /// once per type.
    NoPosition {
        /// Full name.
        data_type: String,
    },
    /// Something for the security log.
    SecurityLog(SecurityEvent),
}

/// An action of a player that concerns the matcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlayerNews {
    /// It asks the matcher.
    Request {
        /// Names the answer.
        stub: u32,
        /// Body of the message.
        body: Vec<u8>,
    },
    /// It has logged in again, by another connection.
    Login,
    /// It is gone and will not return.
    End,
}

/// An event for the security log.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SecurityEvent {
    /// The connection.
    pub conn: Option<ConnId>,
    /// Its address.
    pub addr: Option<IpAddr>,
    /// The player identifier, where one is known.
    pub pit: Option<String>,
    /// What happened.
    pub what: SecurityEventKind,
}

/// What happened, for the security log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SecurityEventKind {
    /// An authentication failed.
    AuthFailed,
    /// A player was banned.
    PlayerBanned,
    /// A name was locked for an address after failed logins.
    LoginLocked,
    /// A banned player, or a locked name, came back.
    BannedReturned,
    /// A connection did not authenticate in time.
    AuthTimedOut,
    /// Somebody authenticated although neither a provider nor development mode is configured; it
    /// was refused.
    NoProvider,
    /// A resume token was wrong, used or expired.
    BadResumeToken,
}

impl SecurityEventKind {
    /// Stable name for logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AuthFailed => "auth_failed",
            Self::PlayerBanned => "player_banned",
            Self::LoginLocked => "login_locked",
            Self::BannedReturned => "banned_returned",
            Self::AuthTimedOut => "auth_timed_out",
            Self::NoProvider => "no_auth_provider",
            Self::BadResumeToken => "bad_resume_token",
        }
    }
}
