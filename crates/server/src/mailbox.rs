//! The queue in front of a worker: mail between the shards of a world, sockets, verdicts, orders.
//!
//! Senders never wait. A mailbox over its bound of bytes makes its senders stop reading sockets,
//! which slows the peers that cause the traffic; they continue when the owner has emptied it.
//! Nothing is ever thrown away: mail between shards cannot be lost. The bound may be passed by what
//! each sender has read last, 64 KiB, and by what that causes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};

use throng_gateway::{AuthTicket, CloseReason, ConnHandle, ConnId, ConnKind, Mail, Moved, Shard, Verdict};
use throng_net::{DetachedConn, Waker};

use crate::capture::Record;
use crate::report::ShardReport;
use crate::world::{HostParts, World, WorldEpoch};

/// A question to a shard: runs on its thread and sends its answer itself.
pub(crate) type Look = Box<dyn FnOnce(&Shard) + Send>;

/// Something for a worker to do.
pub(crate) enum Post {
    /// From another shard of the world.
    Mail { to: WorldEpoch, mail: Mail },
    /// A connection that shard 0 of the world accepted for the shard here.
    Socket { to: WorldEpoch, conn: ConnHandle, kind: ConnKind, socket: Box<DetachedConn> },
    /// The connection was announced, but its socket did not survive the move.
    SocketLost { to: WorldEpoch, conn: ConnHandle },
    /// The answer of an authentication provider.
    Verdict { to: WorldEpoch, ticket: AuthTicket, verdict: Verdict },
    /// The matcher's word to a player: the answer to its request `stub`, or with 0 a notice.
    TellPlayer { to: WorldEpoch, conn: ConnId, stub: u32, payload: Vec<u8> },
    /// Something across channels broke: begin this life of the world, empty.
    Restart { to: WorldEpoch },
    /// Tell about yourself.
    Report { lists: bool, reply: SyncSender<ShardReport> },
    /// Answer a question about what a world's shard holds.
    Look { world: World, look: Look },
    /// Record the messages of a world's connection, if it is here, and of none otherwise.
    Capture { world: World, record: Arc<Record> },
    /// A connection comes from another world. Worlds that have restarted meanwhile take it as well.
    Arrive { world: World, moved: Box<Moved>, socket: Box<DetachedConn> },
    /// Run the shard of a world that opens.
    Open(Box<HostParts>),
    /// A world is closed: say goodbye to everyone in it, and forget it.
    Close(World),
    /// Stop serving a world whose fence is closed, and call when nothing of it is sent any more.
    Freeze { world: World, done: Box<dyn FnOnce() + Send> },
    /// A world has stood still for too long: close its connections.
    Evict(World),
    /// This node gives a world up: close its connections for this reason, and forget it.
    End { world: World, reason: CloseReason },
    /// Use this configuration from now on.
    Reconfigure(Arc<throng_gateway::Config>),
    /// Say goodbye to everyone and end.
    Shutdown,
    /// Break a world.
    #[cfg(test)]
    Fault(World, crate::faults::Fault),
}

impl Post {
    /// Bytes of memory that it keeps alive, shared ones included.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Post::Mail { mail, .. } => size_of::<Self>() + mail.bytes(),
            Post::TellPlayer { payload, .. } => size_of::<Self>() + payload.len(),
            Post::Arrive { moved, .. } => size_of::<Self>() + moved.bytes() + size_of::<DetachedConn>(),
            Post::Socket { .. } => size_of::<Self>() + size_of::<DetachedConn>(),
            _ => size_of::<Self>(),
        }
    }
}

/// Hands the shard of a world that opens to its worker.
pub(crate) fn giving(mailboxes: &[Mailbox]) -> impl FnMut(u16, HostParts) {
    |worker, parts| mailboxes[usize::from(worker)].post(Post::Open(Box::new(parts)))
}

/// Batch that an owner took out of its mailbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Posts.
    pub(crate) len: usize,
    /// Their bytes.
    pub(crate) bytes: usize,
    /// Senders wait to hear that there is room again.
    pub(crate) awaited: bool,
}

/// From so many bytes on mail is not left lying until a pause of its owner is over: one turn of a
/// game server, which may be for one client.
const URGENT_BYTES: usize = 256 << 10;

/// The queue of one worker.
pub(crate) struct Mailbox {
    queue: Mutex<VecDeque<Post>>,
    waker: Waker,
    bytes_max: usize,
    bytes: AtomicUsize,
    /// Somebody waits for this mailbox to be emptied.
    congested: AtomicBool,
}

impl Mailbox {
    pub(crate) fn new(waker: Waker, bytes_max: usize) -> Mailbox {
        Mailbox {
            queue: Mutex::default(),
            waker,
            bytes_max,
            bytes: AtomicUsize::new(0),
            congested: AtomicBool::new(false),
        }
    }

    /// Adds one post and wakes the owner.
    pub(crate) fn post(&self, post: Post) {
        self.post_all(&mut VecDeque::from([post]));
    }

    /// Adds posts in order and wakes the owner once. Leaves `posts` empty.
    pub(crate) fn post_all(&self, posts: &mut VecDeque<Post>) {
        if posts.is_empty() {
            return;
        }
        let bytes = posts.iter().map(Post::bytes).sum();
        let (was_empty, before) = {
            let mut queue = self.lock();
            let was_empty = queue.is_empty();
            queue.append(posts);
            (was_empty, self.bytes.fetch_add(bytes, Ordering::Relaxed))
        };
        // The owner takes everything at once, so one wake-up a batch is enough.
        if before < URGENT_BYTES && before + bytes >= URGENT_BYTES {
            self.waker.wake_urgent();
        } else if was_empty {
            self.waker.wake();
        }
    }

    /// Takes everything.
    pub(crate) fn take(&self, into: &mut VecDeque<Post>) -> Taken {
        debug_assert!(into.is_empty());
        let bytes = {
            let mut queue = self.lock();
            std::mem::swap(&mut *queue, into);
            self.bytes.swap(0, Ordering::Relaxed)
        };
        Taken { len: into.len(), bytes, awaited: self.congested.swap(false, Ordering::AcqRel) }
    }

    /// True if the queue is over its bound. The caller is then woken when the owner has emptied it.
    pub(crate) fn is_congested(&self) -> bool {
        if self.bytes() <= self.bytes_max {
            return false;
        }
        self.congested.store(true, Ordering::Release);
        // The owner may have emptied it in between and missed the mark.
        self.bytes() > self.bytes_max
    }

    /// True if the queue would be over its bound with so many bytes more.
    pub(crate) fn has_no_room_for(&self, bytes: usize) -> bool {
        self.bytes().saturating_add(bytes) > self.bytes_max
    }

    /// Bytes waiting.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Interrupts the owner's wait, and a pause.
    pub(crate) fn wake(&self) {
        self.waker.wake_urgent();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Post>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use throng_net::EventLoop;

    #[test]
    fn a_full_mailbox_says_so_until_it_is_emptied() {
        let event_loop = EventLoop::new().unwrap();
        let mailbox = Mailbox::new(event_loop.waker(), 2 * Post::Shutdown.bytes());
        for _ in 0..2 {
            mailbox.post(Post::Shutdown);
        }
        assert!(!mailbox.is_congested());
        mailbox.post(Post::Shutdown);
        assert!(mailbox.is_congested());
        let mut taken = VecDeque::new();
        let bytes = 3 * Post::Shutdown.bytes();
        assert_eq!(
            mailbox.take(&mut taken),
            Taken { len: 3, bytes, awaited: true },
            "the sender wants to know"
        );
        assert_eq!(taken.len(), 3);
        taken.clear();
        assert!(!mailbox.is_congested());
        assert_eq!(mailbox.take(&mut taken), Taken::default());
    }
}
