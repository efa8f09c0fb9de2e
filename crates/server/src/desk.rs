//! The desk between workers and the link to the matcher: what players ask goes there, and what they
//! are answered comes back through the mailbox of the world that they are in.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use throng_client::{CallError, MatchmakingEvent, MatchmakingRequest};
use throng_gateway::{ConnId, PlayerNews};
use throng_wire::matcher::Status;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::mailbox::{Mailbox, Post};
use crate::world::WorldEpoch;

/// Requests of all players that wait for the matcher; further ones are refused as `OVERLOADED`.
const CALLS_MAX: usize = 8_192;

/// Place where a player is: a connection of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlayerLocation {
    /// The worker of the world's first shard.
    pub(crate) worker: u16,
    pub(crate) to: WorldEpoch,
    pub(crate) conn: ConnId,
}

impl PlayerLocation {
    /// Sends an event to the player, as the answer to its request `stub` or with 0 by itself.
    pub(crate) fn tell(self, mailboxes: &[Mailbox], stub: u32, event: &MatchmakingEvent) {
        let payload = event.to_bytes();
        mailboxes[usize::from(self.worker)].post(Post::TellPlayer {
            to: self.to,
            conn: self.conn,
            stub,
            payload,
        });
    }
}

/// Something for the link.
pub(crate) enum News {
    /// A player asks the matcher. The permit counts the request until it is answered.
    Request { player: Box<str>, at: PlayerLocation, stub: u32, body: Vec<u8>, slot: OwnedSemaphorePermit },
    /// A player that the link knows has logged in at another place.
    Login { player: Box<str>, at: PlayerLocation },
    /// A player is gone from this place, and will not return.
    End { player: Box<str>, at: PlayerLocation },
    /// A life of a world has ended, with all that were in it.
    WorldEnded(WorldEpoch),
}

/// The workers' side.
pub(crate) struct Desk {
    news: mpsc::UnboundedSender<News>,
    slots: Arc<Semaphore>,
    is_open: AtomicBool,
}

impl Desk {
    /// A desk that is closed, and its other side.
    pub(crate) fn new() -> (Desk, mpsc::UnboundedReceiver<News>) {
        let (news, receiver) = mpsc::unbounded_channel();
        let slots = Arc::new(Semaphore::new(CALLS_MAX));
        (Desk { news, slots, is_open: AtomicBool::new(false) }, receiver)
    }

    /// The link has reached the matcher.
    pub(crate) fn open(&self) {
        self.is_open.store(true, Ordering::Release);
    }

    /// Takes what a player does. Returns the answer to a request that cannot be passed on.
    pub(crate) fn take(
        &self,
        at: PlayerLocation,
        player: Box<str>,
        what: PlayerNews,
    ) -> Option<(u32, MatchmakingEvent)> {
        let (stub, body) = match what {
            PlayerNews::Request { stub, body } => (stub, body),
            // A link that has ended knows no players.
            PlayerNews::Login => {
                let _ = self.news.send(News::Login { player, at });
                return None;
            }
            PlayerNews::End => {
                let _ = self.news.send(News::End { player, at });
                return None;
            }
        };
        let method = MatchmakingRequest::parse(&body).map_or(0, |request| request.method);
        let refused = |status, message: &str| {
            let (message, detail) = (message.to_owned(), Vec::new());
            let result = Err(CallError::Refused { status, message, detail });
            Some((stub, MatchmakingEvent::Answered { method, result }))
        };
        if !self.is_open.load(Ordering::Acquire) {
            return refused(Status::Unavailable, "the matcher is not reachable yet; try again");
        }
        let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() else {
            return refused(Status::Overloaded, "too many concurrent matchmaking requests; try again");
        };
        match self.news.send(News::Request { player, at, stub, body, slot }) {
            Ok(()) => None,
            Err(_) => refused(Status::Unavailable, "the gateway has lost its connection to the matcher"),
        }
    }

    /// A life of a world has ended.
    pub(crate) fn world_ended(&self, to: WorldEpoch) {
        // A link that has ended knows no players.
        let _ = self.news.send(News::WorldEnded(to));
    }
}
