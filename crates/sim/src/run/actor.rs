//! Actor of a run: a peer with its session, its habits and its history.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use throng_client::{
    Access, CompressionPolicy, ConnId, Kind, RequestId, Session, SessionConfig, SubscribeOptions, TagForm,
};
use throng_gateway::Framing;
use throng_net::kcp::Profile as KcpProfile;
use throng_stdx::{Instant, Rng};

use super::{OBSERVER, SERVERS};
use crate::check::{ActorIndex, Field, SubscriptionLog};
use crate::link::LinkProfile;
use crate::world::{Carrier, PeerId};

pub(super) struct Actor {
    pub(super) kind: Kind,
    pub(super) style: Style,
    pub(super) profile: LinkProfile,
    /// Most time that bytes spent on its link while it was in good health.
    pub(super) link_delay: Duration,
    pub(super) session: Session,
    pub(super) peer: Option<PeerId>,
    /// Bytes that the link has not taken yet.
    pub(super) unsent: Vec<u8>,
    pub(super) session_timer: Option<Instant>,
    pub(super) conn: Option<ConnId>,
    /// Live subscriptions by channel.
    pub(super) subscriptions: BTreeMap<u32, Subscription>,
    /// Subscribe requests in flight, with their options.
    pub(super) asked: BTreeMap<RequestId, (u32, SubscribeOptions)>,
    /// The longest interval in each channel that it was given or has asked for. Nobody answers a
    /// change, and what was sent for one subscription may meet the next.
    pub(super) intervals: BTreeMap<u32, Duration>,
    pub(super) owned: BTreeSet<u32>,
    /// Items made so far.
    pub(super) items: u32,
    /// User-space messages made so far.
    pub(super) messages: u32,
    /// Items sent in the settle phase, by channel: they must be there at the end.
    pub(super) last_items: Vec<(u32, u64)>,
    /// Items that wait to be given to the link.
    pub(super) fresh_items: Vec<u64>,
    pub(super) last_messages: Vec<(u32, u32)>,
    pub(super) values: u64,
    pub(super) slow: bool,
    /// Sends several times as much until then.
    pub(super) floods_until: Instant,
    pub(super) never_reads: bool,
    /// Last connection was lost with a chance of recovery.
    pub(super) returns: u32,
}

#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) log: SubscriptionLog,
    pub(super) access: Access,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Style {
    pub(super) carrier: Carrier,
    pub(super) legacy: bool,
    pub(super) snappy: bool,
    pub(super) resume: bool,
    /// The same in all its subscriptions, whoever asks for them: masks add up and answers may be
    /// missed, so nobody could say what the subscription of an actor that varies them gets.
    pub(super) mask: Option<Field>,
    pub(super) skip_self: bool,
}

impl Style {
    pub(super) fn options(self, access: Access) -> SubscribeOptions {
        SubscribeOptions {
            access: Some(access),
            field_masks: match self.mask {
                None => vec![],
                Some(Field::Items) => vec!["items".to_owned()],
                Some(Field::Entries) => vec!["entries".to_owned()],
            },
            skip_self: Some(self.skip_self),
            ..SubscribeOptions::default()
        }
    }
}

impl Actor {
    /// Records a request for an interval, regardless of its result.
    pub(super) fn asks_for(&mut self, channel: u32, interval: Duration) {
        let longest = self.intervals.entry(channel).or_default();
        *longest = interval.max(*longest);
        if let Some(subscription) = self.subscriptions.get_mut(&channel) {
            subscription.log.interval = subscription.log.interval.max(interval);
        }
    }

    pub(super) fn new(index: ActorIndex, rng: &mut Rng) -> Actor {
        let kind = if index <= SERVERS { Kind::Server } else { Kind::Client };
        let plain = index == OBSERVER;
        let style = Style {
            carrier: match rng.below(20) {
                0..8 if !plain => Carrier::Stream(Framing::WebSocket),
                8..10 if !plain => Carrier::Kcp(KcpProfile::GAME),
                10..11 if !plain => Carrier::Kcp(KcpProfile::REFERENCE),
                _ => Carrier::Stream(Framing::Stream),
            },
            legacy: rng.chance(0.2) && !plain,
            snappy: rng.chance(0.3) && !plain,
            resume: rng.chance(0.5),
            mask: match rng.below(8) {
                0 if !plain => Some(Field::Items),
                1 if !plain => Some(Field::Entries),
                _ => None,
            },
            skip_self: rng.chance(0.6) && !plain,
        };
        let name = format!("actor-{index}");
        let config = match kind {
            Kind::Client => SessionConfig::client(name, "secret"),
            Kind::Server => SessionConfig::server(name, "secret"),
        };
        let profile = if plain {
            LinkProfile { window_bytes: 8 << 20, ..LinkProfile::local() }
        } else {
            LinkProfile::random(rng)
        };
        // Less than what a burst of updates needs: such a peer falls behind now and then. So does
        // one whose datagrams are lost and sent again.
        let slow = profile.window_bytes < 128 << 10 || matches!(style.carrier, Carrier::Kcp(_));
        let config = SessionConfig {
            tag_form: if style.legacy { TagForm::Legacy } else { TagForm::Current },
            compression: if style.snappy { CompressionPolicy::Always } else { CompressionPolicy::Never },
            resume: style.resume && kind == Kind::Client,
            auth_timeout: Duration::from_secs(2),
            request_timeout: Duration::from_millis(800),
            ..config
        };
        Actor {
            kind,
            style,
            link_delay: profile.delay_max(),
            profile,
            session: Session::new(config),
            peer: None,
            unsent: Vec::new(),
            session_timer: None,
            conn: None,
            subscriptions: BTreeMap::new(),
            asked: BTreeMap::new(),
            intervals: BTreeMap::new(),
            owned: BTreeSet::new(),
            items: 0,
            messages: 0,
            last_items: Vec::new(),
            fresh_items: Vec::new(),
            last_messages: Vec::new(),
            values: 0,
            slow,
            floods_until: Instant::ZERO,
            never_reads: false,
            returns: 0,
        }
    }
}
