//! The socket of a listener, and which session a datagram of it belongs to.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use throng_stdx::Instant;

use super::session::{Home, Session};
use super::{Cx, Inbox, Letter, Sessions};
use crate::event_loop::{ConnKey, ListenerKey};
use crate::handler::{Accept, CloseCause, Handler, TimedOut};
use crate::kcp::{Kcp, Profile, Segments, Side};
use crate::listener::{Admission, Rules, canonical};

/// Time in which an honest peer proves itself; only sessions older than this make room for new
/// ones.
const ROUND_TRIP: Duration = Duration::from_millis(250);
/// Ended sessions remembered, and for how long: late datagrams must not bring them back to life.
const GRAVES_MAX: usize = 4096;
const GRAVE_TIME: Duration = Duration::from_secs(30);
/// Datagrams kept for a session on its way to another loop. The peer repeats what exceeds it.
const HELD_DATAGRAMS_MAX: usize = 32;
/// Command of segments with payload; only these begin a session.
const PUSH_COMMAND: u8 = 81;

/// A UDP socket that accepts sessions.
pub(super) struct Port {
    pub(super) socket: Arc<UdpSocket>,
    pub(super) profile: Profile,
    /// Sessions by address and number. An address has one whose peer has proven it at most, and
    /// beside it one that has not.
    pub(super) routes: HashMap<(SocketAddr, u32), Route>,
    /// The numbers of each address.
    pub(super) convs: HashMap<SocketAddr, SmallVec<[u32; 2]>>,
    pub(super) admission: Arc<Admission>,
    pub(super) unproven: Arc<Admission>,
    pub(super) rules: Arc<Rules>,
    /// Sessions by age, as far back as the oldest whose peer has not proven its address.
    pub(super) newcomers: VecDeque<ConnKey>,
    /// Sessions that ended, newest last.
    pub(super) graves: VecDeque<(Instant, SocketAddr, u32)>,
    /// No new sessions; the socket stays for those there are.
    pub(super) closing: bool,
}

pub(super) struct Route {
    pub(super) place: SocketLocation,
    /// The peer has shown that it owns its address.
    pub(super) proven: bool,
}

pub(super) enum SocketLocation {
    Here(ConnKey),
    There(Arc<Inbox>, ConnKey),
    /// Detached, not attached yet; datagrams wait.
    Moving(Vec<Vec<u8>>),
}

impl Sessions {
    pub(super) fn moved(
        &mut self,
        port: ListenerKey,
        peer: SocketAddr,
        conv: u32,
        inbox: Arc<Inbox>,
        key: ConnKey,
    ) {
        let route = self.ports.get_mut(port.slot()).and_then(|port| port.routes.get_mut(&(peer, conv)));
        match route {
            Some(route) => {
                if let SocketLocation::Moving(held) = &mut route.place {
                    for bytes in held.drain(..) {
                        inbox.post(Letter::Datagram { key, bytes });
                    }
                }
                route.place = SocketLocation::There(inbox, key);
            }
            // The peer began another session while this one was on its way.
            None => drop(inbox.post(Letter::Replaced { key })),
        }
    }

    pub(super) fn ended(&mut self, port: ListenerKey, peer: SocketAddr, conv: u32, now: Instant) {
        let Some(p) = self.ports.get_mut(port.slot()) else { return };
        p.bury(peer, conv, now);
        if p.forget(peer, conv).is_some() && p.closing && p.routes.is_empty() {
            self.ports.remove(port.slot());
        }
    }

    /// The peer of a session has proven its address: an earlier session of the address is over.
    pub(super) fn proven(
        &mut self,
        port: ListenerKey,
        peer: SocketAddr,
        conv: u32,
        cx: &mut Cx<'_>,
        handler: &mut dyn Handler,
    ) {
        let Some(p) = self.ports.get_mut(port.slot()) else { return };
        let Some(route) = p.routes.get_mut(&(peer, conv)) else { return };
        route.proven = true;
        let others: SmallVec<[u32; 2]> =
            p.convs.get(&peer).into_iter().flatten().copied().filter(|other| *other != conv).collect();
        for other in others {
            self.replace(port, peer, other, cx, handler);
        }
    }

    fn replace(
        &mut self,
        port: ListenerKey,
        peer: SocketAddr,
        conv: u32,
        cx: &mut Cx<'_>,
        handler: &mut dyn Handler,
    ) {
        let Some(p) = self.ports.get_mut(port.slot()) else { return };
        let Some(old) = p.forget(peer, conv) else { return };
        p.bury(peer, conv, cx.now);
        match old.place {
            SocketLocation::Here(key) => self.end(key, CloseCause::Replaced, cx, handler),
            SocketLocation::There(inbox, key) => drop(inbox.post(Letter::Replaced { key })),
            SocketLocation::Moving(_) => {}
        }
    }

    /// Gives a port's datagram to its session, beginning one if it asks for that.
    pub(super) fn route(
        &mut self,
        port: ListenerKey,
        peer: SocketAddr,
        local: Option<IpAddr>,
        datagram: &[u8],
        cx: &mut Cx<'_>,
        handler: &mut dyn Handler,
    ) {
        let Some(Ok(first)) = Segments::new(datagram).next() else {
            cx.stats.bad_datagrams += 1;
            return;
        };
        let Some(p) = self.ports.get_mut(port.slot()) else { return };
        if let Some(route) = p.routes.get_mut(&(peer, first.conv)) {
            match &mut route.place {
                SocketLocation::Here(key) => {
                    let key = *key;
                    self.feed(key, datagram, cx, handler);
                }
                SocketLocation::There(inbox, key) => {
                    inbox.post(Letter::Datagram { key: *key, bytes: datagram.to_vec() });
                }
                SocketLocation::Moving(held) if held.len() < HELD_DATAGRAMS_MAX => {
                    held.push(datagram.to_vec())
                }
                SocketLocation::Moving(_) => {}
            }
            return;
        }
        let known = p.convs.get(&peer).map_or(&[][..], |convs| convs);
        // Any segment of the first window may come first: the network reorders. Spec:
        // gateway-protocol §2.7, beside a session only sn = 0 begins another.
        let window = if known.is_empty() { u32::from(p.profile.window) } else { 1 };
        let begins = first.command == PUSH_COMMAND && first.sn < window;
        if !begins || p.closing || p.is_buried(peer, first.conv, cx.now) {
            cx.stats.bad_datagrams += 1;
            return;
        }
        // Anyone can write the address of a peer on a datagram: its session goes on until the
        // newcomer has proven itself. Of those that have not, the latest stays.
        let unproven =
            known.iter().find(|conv| p.routes.get(&(peer, **conv)).is_some_and(|route| !route.proven));
        if let Some(&conv) = unproven {
            self.replace(port, peer, conv, cx, handler);
        }
        self.accept(port, (peer, local), first.conv, datagram, cx, handler);
    }

    fn accept(
        &mut self,
        port: ListenerKey,
        (peer, local): (SocketAddr, Option<IpAddr>),
        conv: u32,
        datagram: &[u8],
        cx: &mut Cx<'_>,
        handler: &mut dyn Handler,
    ) {
        cx.stats.accepted += 1;
        self.make_room(port, cx, handler);
        let Some(p) = self.ports.get_mut(port.slot()) else { return };
        let permits = p.admission.permit(Some(peer.ip())).zip(p.unproven.permit(Some(peer.ip())));
        let Some((permit, unproven)) = permits else {
            cx.stats.refused_by_limits += 1;
            return;
        };
        if !handler.admit(port, canonical(peer)) {
            cx.stats.refused_by_handler += 1;
            return;
        }
        let kcp = Kcp::new(conv, p.profile, Side::Accepts, self.rng.next_u32(), cx.now);
        let session = Session {
            generation: 0,
            peer,
            local,
            kcp,
            profile: p.profile,
            socket: p.socket.clone(),
            home: Home::Here(port),
            _permit: Some(permit),
            unproven: Some(unproven),
            rules: p.rules.clone(),
            born: cx.now,
            heard: cx.now,
            probed: cx.now,
            timer: None,
            fresh: false,
            paused: false,
            wanted: false,
            finish_by: None,
            dirty: false,
        };
        let key = self.insert(session, cx);
        if let Some(p) = self.ports.get_mut(port.slot()) {
            p.routes.insert((peer, conv), Route { place: SocketLocation::Here(key), proven: false });
            p.convs.entry(peer).or_default().push(conv);
            p.newcomers.push_back(key);
        }
        match handler.accepted(port, key, canonical(peer)) {
            Accept::Keep => {}
            Accept::HandOff => self.pause(key),
            Accept::Refuse { .. } => {
                cx.stats.refused_by_handler += 1;
                self.remove(key, cx);
                return;
            }
        }
        self.feed(key, datagram, cx, handler);
    }

    /// Ends the oldest session whose peer has not proven its address if there is no room for
    /// another: a flood with forged addresses must not keep honest peers out, which prove
    /// themselves in one round trip.
    fn make_room(&mut self, port: ListenerKey, cx: &mut Cx<'_>, handler: &mut dyn Handler) {
        loop {
            let Some(p) = self.ports.get(port.slot()) else { return };
            let Some(&oldest) = p.newcomers.front() else { return };
            let waits_since = self.get(oldest).filter(|it| !it.kcp.is_proven()).map(|it| it.born);
            if let Some(born) = waits_since {
                let is_full = p.admission.is_full() || p.unproven.is_full();
                if is_full && born + ROUND_TRIP <= cx.now {
                    self.end(oldest, CloseCause::TimedOut(TimedOut::Handshake), cx, handler);
                }
                return;
            }
            if let Some(p) = self.ports.get_mut(port.slot()) {
                p.newcomers.pop_front();
            }
        }
    }
}

impl Port {
    fn forget(&mut self, peer: SocketAddr, conv: u32) -> Option<Route> {
        let route = self.routes.remove(&(peer, conv))?;
        if let Some(convs) = self.convs.get_mut(&peer) {
            convs.retain(|other| *other != conv);
            if convs.is_empty() {
                self.convs.remove(&peer);
            }
        }
        Some(route)
    }

    fn bury(&mut self, peer: SocketAddr, conv: u32, now: Instant) {
        while self.graves.len() >= GRAVES_MAX
            || self.graves.front().is_some_and(|(at, ..)| *at + GRAVE_TIME <= now)
        {
            self.graves.pop_front();
        }
        self.graves.push_back((now, peer, conv));
    }

    /// True if a session ended recently. Checked only for datagrams that would begin one.
    fn is_buried(&self, peer: SocketAddr, conv: u32, now: Instant) -> bool {
        let recent = self.graves.iter().rev().take_while(|(at, ..)| *at + GRAVE_TIME > now);
        recent.into_iter().any(|(_, p, c)| (*p, *c) == (peer, conv))
    }
}
