//! The connections of a listener, and which of them yields to a newcomer when the listener is full.
//!
//! A connection *makes progress* while it transfers at least `RATE` bytes a second, or while the
//! server works on its request. The first KiB of a message, in which its head fits, is no progress,
//! and a message that has ended leaves none. No connection that makes progress yields. The others
//! yield in this order: those that never completed a request, oldest first, then the longest idle.
//!
//! A listener is also full when the process is short of descriptors. Then the connection that
//! yields is one of the fullest listener, so that a crowd at one of them closes none of the others.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// Bytes per second at which a transfer makes progress.
pub(crate) const RATE: u64 = 1 << 10;
/// Longest time for which a burst of bytes counts as progress.
const FRESH_MS_MAX: u64 = 5_000;
/// Bytes at the beginning of a message that are no progress.
const HEAD_BYTES: u64 = 1 << 10;

/// The listeners of this process.
pub(crate) static PROCESS: LazyLock<Arc<Listeners>> = LazyLock::new(Arc::default);

/// Listeners that share the descriptors of a process.
#[derive(Default)]
pub(crate) struct Listeners {
    /// Connections whose descriptors are open.
    open: AtomicUsize,
    /// Listeners whose connections yield to newcomers of any of them.
    crowds: Mutex<Vec<Weak<Crowd>>>,
}

impl Listeners {
    /// Number of connections whose descriptors are open.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Ends the connection that yields first on the fullest listener where one does, for a newcomer
    /// of `crowd`. Reports whether there is one.
    fn make_room(&self, crowd: &Arc<Crowd>) -> bool {
        let mut all: Vec<_> = self.crowds().iter().filter_map(Weak::upgrade).collect();
        all.sort_by_cached_key(|each| Reverse(each.state().guests.len()));
        all.iter().any(|each| each.evict(each.now_ms(), None, crowd))
    }

    fn crowds(&self) -> MutexGuard<'_, Vec<Weak<Crowd>>> {
        self.crowds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reports whether an address stands for many clients, and so has no limit of its own.
pub type Exempt = Arc<dyn Fn(IpAddr) -> bool + Send + Sync>;

/// All connections of one listener.
pub(crate) struct Crowd {
    listeners: Arc<Listeners>,
    connections_max: usize,
    exempt: Exempt,
    start: Instant,
    state: Mutex<State>,
    /// Connections that have yielded to newcomers of this listener and still hold their
    /// descriptors: their tasks have not seen it yet.
    closing: AtomicUsize,
    /// Notified when a connection of this listener ends, or one that has yielded to it.
    pub(crate) left: Notify,
}

#[derive(Default)]
struct State {
    guests: HashMap<u64, Arc<Shared>>,
    per_address: HashMap<IpAddr, usize>,
    next: u64,
}

/// State of one connection that its server updates and the accept loop reads.
struct Shared {
    /// Address, or the /64 network of an IPv6 address.
    address: IpAddr,
    is_exempt: bool,
    start: Instant,
    /// Milliseconds since `start` of the last activity after the first request, of the accept
    /// before.
    active_ms: AtomicU64,
    /// Milliseconds since `start` until which the bytes transferred count as progress.
    fresh_until_ms: AtomicU64,
    /// Bytes of the current message.
    bytes: AtomicU64,
    has_completed: AtomicBool,
    /// Requests that the server works on.
    working: AtomicUsize,
    evicted: Notify,
    /// Listener to whose newcomer it has yielded.
    yielded_to: OnceLock<Arc<Crowd>>,
}

impl Shared {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn moved(&self, now_ms: u64, bytes: usize) {
        let before = self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let counted = (before + bytes as u64).saturating_sub(before.max(HEAD_BYTES));
        let until = self.fresh_until_ms.load(Ordering::Relaxed).max(now_ms);
        let until = (until + counted * 1_000 / RATE).min(now_ms + FRESH_MS_MAX);
        self.fresh_until_ms.store(until, Ordering::Relaxed);
        if self.has_completed.load(Ordering::Relaxed) {
            self.active_ms.store(now_ms, Ordering::Relaxed);
        }
    }

    fn complete(&self, now_ms: u64) {
        self.has_completed.store(true, Ordering::Relaxed);
        self.active_ms.store(now_ms, Ordering::Relaxed);
    }

    fn rest(&self) {
        self.bytes.store(0, Ordering::Relaxed);
        self.fresh_until_ms.store(0, Ordering::Relaxed);
    }

    fn may_yield(&self, now_ms: u64) -> bool {
        self.working.load(Ordering::Relaxed) == 0 && self.fresh_until_ms.load(Ordering::Relaxed) <= now_ms
    }

    /// Connections with the smallest rank yield first.
    fn rank(&self) -> (bool, u64) {
        (self.has_completed.load(Ordering::Relaxed), self.active_ms.load(Ordering::Relaxed))
    }
}

/// Answer to a newcomer.
pub(crate) enum Admission {
    /// It has a place.
    Admitted(Guest),
    /// Its address holds its share, and none of its connections yields.
    Refused,
    /// Every connection makes progress.
    Full,
}

impl Crowd {
    pub(crate) fn new(listeners: &Arc<Listeners>, connections_max: usize, exempt: Exempt) -> Arc<Crowd> {
        Arc::new(Crowd {
            listeners: Arc::clone(listeners),
            connections_max,
            exempt,
            start: Instant::now(),
            state: Mutex::default(),
            closing: AtomicUsize::new(0),
            left: Notify::new(),
        })
    }

    /// Lets connections of this listener yield to newcomers of the others.
    pub(crate) fn share(self: &Arc<Crowd>) {
        let mut crowds = self.listeners.crowds();
        crowds.retain(|crowd| crowd.strong_count() > 0);
        crowds.push(Arc::downgrade(self));
    }

    /// Gives `address` a place. `is_short` says that the process is short of descriptors, which
    /// makes the listener full.
    pub(crate) fn admit(self: &Arc<Crowd>, address: IpAddr, is_short: bool) -> Admission {
        self.admit_at(self.now_ms(), address, is_short)
    }

    fn admit_at(self: &Arc<Crowd>, now_ms: u64, address: IpAddr, is_short: bool) -> Admission {
        let is_exempt = (self.exempt)(address);
        let address = network(address);
        let (count, held) = {
            let state = self.state();
            (state.guests.len(), state.per_address.get(&address).copied().unwrap_or(0))
        };
        let share = (self.connections_max / 4).max(1);
        let is_crowded = count * 4 >= self.connections_max * 3;
        if !is_exempt && is_crowded && held >= share {
            if !self.evict(now_ms, Some(address), self) {
                return Admission::Refused;
            }
        } else if count >= self.connections_max {
            if !self.evict(now_ms, None, self) {
                return Admission::Full;
            }
        } else if is_short && !self.make_room() {
            return Admission::Full;
        }
        let mut state = self.state();
        let id = state.next;
        state.next += 1;
        let shared = Arc::new(Shared {
            address,
            is_exempt,
            start: self.start,
            active_ms: AtomicU64::new(now_ms),
            fresh_until_ms: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            has_completed: AtomicBool::new(false),
            working: AtomicUsize::new(0),
            evicted: Notify::new(),
            yielded_to: OnceLock::new(),
        });
        state.guests.insert(id, Arc::clone(&shared));
        *state.per_address.entry(address).or_default() += 1;
        self.listeners.open.fetch_add(1, Ordering::Relaxed);
        let seat = Seat { id, crowd: Arc::clone(self), shared };
        Admission::Admitted(Guest(Arc::new(seat)))
    }

    /// Ends a connection of any listener for a newcomer of this one. Reports whether one yields.
    pub(crate) fn make_room(self: &Arc<Crowd>) -> bool {
        self.listeners.make_room(self)
    }

    /// Number of connections that have yielded to this listener and are not closed yet.
    pub(crate) fn closing(&self) -> usize {
        self.closing.load(Ordering::Relaxed)
    }

    /// Ends the connection that yields first, of one address or of all, for a newcomer of another
    /// listener or this one. Reports whether there is one.
    fn evict(&self, now_ms: u64, only: Option<IpAddr>, newcomer: &Arc<Crowd>) -> bool {
        let mut state = self.state();
        let Some(guest) = state.evict(now_ms, only) else { return false };
        // Before its end, which needs the lock as well, asks for it.
        newcomer.closing.fetch_add(1, Ordering::Relaxed);
        let _ = guest.yielded_to.set(Arc::clone(newcomer));
        drop(state);
        guest.evicted.notify_one();
        true
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes the place of the connection that yields first, of one address or of all.
    fn evict(&mut self, now_ms: u64, only: Option<IpAddr>) -> Option<Arc<Shared>> {
        let candidates = self.guests.iter().filter(|(_, guest)| {
            guest.may_yield(now_ms) && only.is_none_or(|address| guest.address == address)
        });
        let id = candidates.min_by_key(|(id, guest)| (guest.rank(), **id)).map(|(id, _)| *id)?;
        self.remove(id)
    }

    fn remove(&mut self, id: u64) -> Option<Arc<Shared>> {
        let guest = self.guests.remove(&id)?;
        if let Some(held) = self.per_address.get_mut(&guest.address) {
            *held -= 1;
            if *held == 0 {
                self.per_address.remove(&guest.address);
            }
        }
        Some(guest)
    }
}

/// The network that counts as one client: an IPv6 client owns a /64.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
        v4 => v4,
    }
}

/// The place of a connection among those of its listener. Its server reports progress to it. The
/// place is free when the last clone is dropped.
#[derive(Clone)]
pub struct Guest(Arc<Seat>);

struct Seat {
    id: u64,
    crowd: Arc<Crowd>,
    shared: Arc<Shared>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.crowd.listeners.open.fetch_sub(1, Ordering::Relaxed);
        self.crowd.state().remove(self.id);
        self.crowd.left.notify_one();
        if let Some(newcomer) = self.shared.yielded_to.get() {
            newcomer.closing.fetch_sub(1, Ordering::Relaxed);
            newcomer.left.notify_one();
        }
    }
}

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guest").field("id", &self.0.id).field("address", &self.0.shared.address).finish()
    }
}

impl Guest {
    /// Address of the client, or its /64 network of IPv6; `None` if it stands for many.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        let shared = &self.0.shared;
        (!shared.is_exempt).then_some(shared.address)
    }

    /// Counts bytes that the client sent or took.
    pub fn moved(&self, bytes: usize) {
        let shared = &self.0.shared;
        shared.moved(shared.now_ms(), bytes);
    }

    /// Counts a request that was answered.
    pub fn complete(&self) {
        let shared = &self.0.shared;
        shared.complete(shared.now_ms());
    }

    /// Ends the progress of a connection that has no message under way.
    pub fn rest(&self) {
        self.0.shared.rest();
    }

    /// Begins work on a request, which does not depend on the client. It ends when the result is
    /// dropped.
    #[must_use]
    pub fn work(&self) -> Work {
        self.0.shared.working.fetch_add(1, Ordering::Relaxed);
        Work(self.clone())
    }

    /// Completes when the connection is to yield.
    pub(crate) async fn evicted(&self) {
        self.0.shared.evicted.notified().await;
    }
}

/// Work of the server for a connection, which does not yield meanwhile.
#[derive(Debug)]
pub struct Work(Guest);

impl Drop for Work {
    fn drop(&mut self) {
        self.0.0.shared.working.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The deadline of a transfer: each pause is at most [`Pace::PAUSE`], and after as much time the
/// whole transfer must have made `RATE` bytes a second.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    begun: tokio::time::Instant,
    last: tokio::time::Instant,
    looked: tokio::time::Instant,
    bytes: u64,
}

impl Pace {
    /// Longest pause in a transfer, and the time after which its rate counts.
    pub const PAUSE: Duration = Duration::from_secs(30);
    /// Interval between checks of the bytes that the peer has acknowledged.
    pub const LOOK: Duration = Duration::from_secs(5);

    /// A transfer that begins now.
    #[must_use]
    pub fn begin() -> Pace {
        let now = tokio::time::Instant::now();
        Pace { begun: now, last: now, looked: now, bytes: 0 }
    }

    /// Counts bytes of it.
    pub fn moved(&mut self, bytes: usize) {
        if bytes > 0 {
            self.bytes += bytes as u64;
            self.last = tokio::time::Instant::now();
        }
    }

    /// Counts `bytes` in all, which the peer has taken by `now` of what was sent.
    pub fn reached(&mut self, bytes: u64, now: tokio::time::Instant) {
        self.looked = now;
        if bytes > self.bytes {
            (self.bytes, self.last) = (bytes, now);
        }
    }

    /// Ends a pause without counting bytes: the peer still acknowledges earlier data.
    pub fn goes_on(&mut self) {
        self.last = tokio::time::Instant::now();
    }

    /// Time of the next look at what the peer has taken.
    #[must_use]
    pub fn next_look(&self) -> tokio::time::Instant {
        self.looked + Pace::LOOK
    }

    /// Bytes of it that were counted.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Leaves out the time since `since`, in which the transfer waited for the server.
    pub fn excuse(&mut self, since: tokio::time::Instant) {
        let waited = since.elapsed();
        self.begun += waited;
        self.last += waited;
    }

    /// Time at which the transfer is to be given up, unless more bytes arrive.
    #[must_use]
    pub fn due(&self) -> tokio::time::Instant {
        let earned = Duration::from_millis(self.bytes.saturating_mul(1_000) / RATE).min(Self::YEAR);
        (self.begun + Self::PAUSE + earned).min(self.last + Self::PAUSE)
    }

    /// Bound of the sum above, far from the clock's own.
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3_600);
}

/// Time in which a transfer must move [some bytes](Turn::least) to keep memory that another one
/// waits for.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    end: tokio::time::Instant,
    moved: u64,
}

impl Turn {
    /// Length of a turn.
    pub const TIME: Duration = Duration::from_secs(1);
    /// Bytes that a turn must move at least while another transfer waits.
    const BYTES_MIN: u64 = 16 << 10;
    /// Turns in which a transfer that is waited for must move as many bytes as it holds.
    const TURNS: u64 = 16;

    /// Bytes that a transfer with `held` bytes of memory must move in a turn while another one
    /// waits, so that large holders finish soon.
    #[must_use]
    pub const fn least(held: u64) -> u64 {
        let part = held / Turn::TURNS;
        if part > Turn::BYTES_MIN { part } else { Turn::BYTES_MIN }
    }

    /// The first turn of a transfer that has moved `moved` bytes.
    #[must_use]
    pub fn begin(moved: u64) -> Turn {
        Turn { end: tokio::time::Instant::now() + Turn::TIME, moved }
    }

    /// Time at which it ends.
    #[must_use]
    pub fn end(&self) -> tokio::time::Instant {
        self.end
    }

    /// Bytes that the transfer had moved when it began.
    #[must_use]
    pub fn moved(&self) -> u64 {
        self.moved
    }

    /// Leaves out the time since `since`, in which the transfer waited for the server.
    pub fn excuse(&mut self, since: tokio::time::Instant) {
        self.end += since.elapsed();
    }

    /// Begins the next turn of a transfer that has moved `moved` bytes. Gives those of this one.
    pub fn renew(&mut self, moved: u64) -> u64 {
        let bytes = moved.saturating_sub(self.moved);
        *self = Turn::begin(moved);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_goes_on_while_its_peer_takes_what_was_sent() {
        let mut pace = Pace::begin();
        let (begun, second) = (pace.begun, Duration::from_secs(1));
        assert_eq!((pace.next_look(), pace.due()), (begun + Pace::LOOK, begun + Pace::PAUSE));
        let mut bytes = 0;
        for look in 1..=20 {
            bytes += 6 << 10;
            pace.reached(bytes, begun + look * 5 * second);
            assert_eq!(pace.due(), begun + (look * 5 + 30) * second);
        }
        // It stops, and then takes too little.
        pace.reached(bytes, begun + 105 * second);
        assert_eq!((pace.next_look(), pace.due()), (begun + 110 * second, begun + 130 * second));
        let mut pace = Pace::begin();
        pace.reached(5 << 10, pace.begun + 30 * second);
        assert_eq!(pace.due(), pace.begun + 35 * second);
    }

    #[test]
    fn what_holds_much_memory_must_move_more_in_a_turn() {
        assert_eq!([0, 100 << 10, 256 << 10].map(Turn::least), [16 << 10; 3]);
        assert_eq!(Turn::least(62 << 20), (62 << 20) / 16);
        let mut turn = Turn::begin(5);
        assert_eq!((turn.renew(105), turn.renew(105), turn.moved()), (100, 0, 105));
    }

    fn crowd(connections_max: usize) -> Arc<Crowd> {
        let crowd = Crowd::new(&Arc::default(), connections_max, Arc::new(|address| address == addr(250)));
        crowd.share();
        crowd
    }

    fn addr(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    #[track_caller]
    fn admit(crowd: &Arc<Crowd>, now_ms: u64, last: u8) -> Guest {
        match crowd.admit_at(now_ms, addr(last), false) {
            Admission::Admitted(guest) => guest,
            Admission::Refused => panic!("refused"),
            Admission::Full => panic!("full"),
        }
    }

    fn is_there(crowd: &Arc<Crowd>, guest: &Guest) -> bool {
        crowd.state().guests.contains_key(&guest.0.id)
    }

    #[test]
    fn silent_connections_yield_before_idle_ones_and_the_oldestfirst() {
        let crowd = crowd(4);
        let idle = admit(&crowd, 0, 1);
        idle.0.shared.complete(5);
        let recent = admit(&crowd, 1, 2);
        recent.0.shared.complete(9);
        let silent = admit(&crowd, 2, 3);
        let later = admit(&crowd, 3, 4);
        let order = [&silent, &later];
        let mut newcomers = Vec::new();
        for (at, expected) in order.into_iter().enumerate() {
            let newcomer = admit(&crowd, 100, 10 + at as u8);
            newcomer.0.shared.complete(50);
            assert!(!is_there(&crowd, expected), "{at}");
            newcomers.push(newcomer);
        }
        assert!(is_there(&crowd, &idle));
        let _next = admit(&crowd, 100, 20);
        assert!(!is_there(&crowd, &idle) && is_there(&crowd, &recent));
    }

    #[test]
    fn connections_that_make_progress_do_not_yield() {
        let crowd = crowd(4);
        let uploading = admit(&crowd, 0, 1);
        let dripping = admit(&crowd, 0, 2);
        let working = admit(&crowd, 0, 3);
        let fast = admit(&crowd, 0, 4);
        uploading.0.shared.moved(1_000, 2_048);
        dripping.0.shared.moved(1_000, 1_025);
        fast.0.shared.moved(1_000, 1 << 30);
        let work = working.work();
        let newcomer = admit(&crowd, 1_500, 5);
        assert!(!is_there(&crowd, &dripping), "a byte lasts a millisecond");
        drop(newcomer);
        let newcomer = admit(&crowd, 1_500, 6);
        newcomer.0.shared.moved(1_500, 1 << 20);
        assert!(matches!(crowd.admit_at(1_600, addr(7), false), Admission::Full));
        drop(work);
        let _next = admit(&crowd, 1_600, 7);
        assert!(!is_there(&crowd, &working));
        let _last = admit(&crowd, 6_001, 8);
        assert!(!is_there(&crowd, &uploading) || !is_there(&crowd, &fast), "no burst counts above 5 s");
    }

    #[test]
    fn heads_and_messages_that_have_ended_are_no_progress() {
        let crowd = crowd(4);
        let guests: Vec<Guest> = (1..5).map(|last| admit(&crowd, 0, last)).collect();
        guests[0].0.shared.moved(0, 1_000);
        guests[1].0.shared.moved(0, 1 << 20);
        guests[1].0.shared.complete(0);
        guests[1].rest();
        guests[2].0.shared.moved(0, 1 << 20);
        guests[3].0.shared.moved(0, 1 << 20);
        // Each address is at its share: its own connection yields.
        let _first = admit(&crowd, 1, 1);
        assert!(!is_there(&crowd, &guests[0]) && is_there(&crowd, &guests[1]));
        let _second = admit(&crowd, 1, 2);
        assert!(!is_there(&crowd, &guests[1]));
        assert!(matches!(crowd.admit_at(1, addr(3), false), Admission::Refused));
    }

    #[test]
    fn an_address_holds_a_quarter_once_three_quarters_are_taken() {
        let crowd = crowd(16);
        let mut guests: Vec<Guest> = (0..12).map(|_| admit(&crowd, 0, 1)).collect();
        guests.iter().for_each(|guest| guest.0.shared.moved(0, 1 << 20));
        assert!(matches!(crowd.admit_at(1, addr(1), false), Admission::Refused));
        guests.extend((0..4).map(|at| admit(&crowd, 1, 100 + at)));
        assert!(
            matches!(crowd.admit_at(10_000, addr(1), false), Admission::Admitted(_)),
            "it replaces its own"
        );
        assert!(guests[12..].iter().all(|guest| is_there(&crowd, guest)));
        assert!(
            matches!(crowd.admit_at(10_000, addr(250), false), Admission::Admitted(_)),
            "proxies have none"
        );
        drop(guests);
        assert!(crowd.state().per_address.is_empty() && crowd.state().guests.is_empty());
    }

    #[test]
    fn without_descriptors_a_newcomer_takes_the_place_of_another() {
        let crowd = crowd(100);
        assert!(matches!(crowd.admit_at(0, addr(1), true), Admission::Full));
        let silent = admit(&crowd, 0, 1);
        assert!(matches!(crowd.admit_at(1, addr(2), true), Admission::Admitted(_)));
        assert!(!is_there(&crowd, &silent));
    }

    #[test]
    fn without_descriptors_the_fullest_listener_makes_room() {
        let listeners: Arc<Listeners> = Arc::default();
        let [few, many] = [0, 1].map(|_| Crowd::new(&listeners, 100, Arc::new(|_| false)));
        [&few, &many].into_iter().for_each(Crowd::share);
        assert!(!few.make_room());
        let busy = admit(&many, 0, 1);
        let work = busy.work();
        let idle: Vec<Guest> = (2..5).map(|last| admit(&many, 0, last)).collect();
        let alone = admit(&few, 0, 1);
        let newcomers: Vec<_> = (10..13).map(|last| few.admit_at(1, addr(last), true)).collect();
        assert!(newcomers.iter().all(|newcomer| matches!(newcomer, Admission::Admitted(_))));
        assert_eq!((listeners.open(), few.closing(), many.closing()), (8, 3, 0));
        assert!(!is_there(&few, &alone), "it holds more connections by the third");
        assert!(is_there(&many, &busy));
        drop((work, idle, alone));
        assert_eq!((listeners.open(), few.closing()), (4, 0));
    }

    #[test]
    fn networks_of_ipv6_count_as_one_client() {
        let of = |text: &str| network(text.parse().expect("an address"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), addr(1));
    }

    #[test]
    fn a_transfer_keeps_its_pace() {
        let mut pace = Pace::begin();
        assert_eq!(pace.due() - pace.begun, Pace::PAUSE);
        let begun = pace.begun;
        pace.bytes = 10 << 10;
        pace.last = begun + Duration::from_secs(29);
        assert_eq!(pace.due() - begun, Duration::from_secs(40), "1 KiB/s over the whole");
        pace.bytes = u64::MAX;
        assert_eq!(pace.due() - begun, Duration::from_secs(59), "a pause ends it, whatever was sent before");
    }
}
