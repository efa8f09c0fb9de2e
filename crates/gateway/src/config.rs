//! Configuration of the gateway, as plain values.
//!
//! The server crate reads files and flags into this; the core takes it as it is.
//! [`Config::default`] is the safe profile of a production gateway without an authentication
//! provider (nobody but servers gets in); [`Config::development`] lets everybody in;
//! [`Config::reference`] behaves as the reference gateway with its default flags.

use core::str::FromStr;
use core::time::Duration;
use std::net::IpAddr;
use std::sync::Arc;

use crate::fsm::StateMachine;
use crate::ids::ConnKind;
use crate::permission::Permissions;
use crate::settings::ChannelSettings;
use crate::world::config::Spatial;

/// The configuration of a gateway; the same value for every shard.
#[derive(Debug, Clone)]
pub struct Config {
    /// Development mode: ids 1, 2, 3, ...; without a provider everybody authenticates with any
    /// tokens.
    pub development: bool,
    /// Name of the world, which its resume tokens carry; empty for the main world.
    pub world: Arc<str>,
    /// A login closes other connections of the same player.
    pub supersedes: bool,
    /// Somebody answers [`Effect::Authenticate`](crate::Effect::Authenticate).
    pub auth_provider: bool,
    /// The process answers [`Effect::Matchmake`](crate::Effect::Matchmake). Otherwise
    /// [`MATCHMAKING`](crate::MATCHMAKING) messages go to the owner of GLOBAL.
    pub matchmaking: bool,
    /// Player identifier of the process's own server connection; it needs no other credential, so
    /// that it must not be guessable.
    pub link: Option<Arc<str>>,
    /// Server connections authenticate with any tokens.
    pub servers_bypass_auth: bool,
    /// AUTH results offer Snappy to peers. Peers that send Snappy get it back whatever this says.
    pub offer_snappy: bool,
    /// Treat frames with an unknown compression byte as uncompressed, as the reference does,
    /// instead of closing.
    pub ignore_unknown_compression: bool,
    /// Largest frame accepted from a peer that uses the legacy 24-bit size, in bytes.
    pub legacy_packet_bytes_max: usize,
    /// Width of connection ids in bits, 1 to 32. Unreal needs 13.
    pub conn_id_bits: u8,
    /// Which messages servers may send when.
    pub server_state_machine: Arc<StateMachine>,
    /// Which messages clients may send when.
    pub client_state_machine: Arc<StateMachine>,
    /// Timing and access per channel type.
    pub channel_settings: ChannelSettings,
    /// First spatial channel id; ordinary ids end before it.
    pub spatial_channel_start: u32,
    /// First entity channel id; spatial ids end before it.
    pub entity_channel_start: u32,
    /// What happens to lost connections.
    pub recovery: Recovery,
    /// Bans and the failures that lead to them.
    pub abuse: Abuse,
    /// What each kind of connection may do.
    pub permissions: Permissions,
    /// Upper bounds of everything that peers can make grow.
    pub limits: Limits,
    /// Bounds of what waits for a peer that reads slowly.
    pub outbox: OutboxBounds,
    /// Record what clients send.
    pub recording: bool,
    /// Remember the objects of SPAWN and DESTROY in GLOBAL and SUBWORLD channels for their owner's
    /// recovery (Unreal).
    pub unreal_objects: bool,
    /// The world: grid, interest, entities.
    pub spatial: Spatial,
    /// Key material for connection ids, resume tokens and hash keys. Fill it from the operating
    /// system's generator; all zeroes are for simulations, where only the seed counts.
    pub secret: [u8; 32],
}

/// What happens to connections that were lost by accident. Spec §4.7.
#[derive(Debug, Clone)]
pub struct Recovery {
    /// Keep the place of lost servers that had authenticated.
    pub servers: bool,
    /// How long; `None` waits for ever.
    pub server_timeout: Option<Duration>,
    /// How long the place of a lost client is kept if it asked for a resume token; zero switches
    /// resuming off.
    pub client_window: Duration,
    /// Lost connections kept at once, servers and clients together. At the bound the oldest lost
    /// client gives way, and when there is none the newly lost connection is not kept.
    pub lost_max: usize,
    /// Shortest time between return and the end of recovery.
    pub settle: Duration,
}

/// Bans and the failures that lead to them. Spec §4.5; limits of zero switch a rule off.
#[derive(Debug, Clone)]
pub struct Abuse {
    /// Time from accept to authentication.
    pub auth_timeout: Option<Duration>,
    /// Time from a connection's first AUTH to authentication, if that ends later.
    pub verdict_timeout: Duration,
    /// Failed logins of one name from one address before the name is locked for the address.
    pub auth_failures_max: u32,
    /// Messages that a state machine may refuse on one client connection before its player is
    /// banned.
    pub refusals_max: u32,
    /// How long failures are remembered after the latest one.
    pub failure_memory: Duration,
    /// How long a ban lasts.
    pub ban_duration: Duration,
    /// Bans and failure counts kept at once; the ones that expire first give way.
    pub entries_max: usize,
}

/// Addresses that share their first bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressRange {
    addr: IpAddr,
    bits: u8,
}

impl AddressRange {
    /// Whether an address lies within; an IPv4 address in its IPv6 form counts as the former.
    #[must_use]
    pub fn contains(&self, addr: IpAddr) -> bool {
        match (self.addr, addr.to_canonical()) {
            (IpAddr::V4(mine), IpAddr::V4(other)) => {
                let host = u32::MAX.checked_shr(self.bits.into()).unwrap_or(0);
                (mine.to_bits() ^ other.to_bits()) & !host == 0
            }
            (IpAddr::V6(mine), IpAddr::V6(other)) => {
                let host = u128::MAX.checked_shr(self.bits.into()).unwrap_or(0);
                (mine.to_bits() ^ other.to_bits()) & !host == 0
            }
            _ => false,
        }
    }
}

impl FromStr for AddressRange {
    type Err = String;

    /// Reads `10.0.0.0/8`, `fd00::/8`, or a single address.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is neither an address nor a range such as 10.0.0.0/8");
        let (addr, bits) = text.split_once('/').map_or((text, None), |(addr, bits)| (addr, Some(bits)));
        let addr: IpAddr = addr.parse().map_err(|_| wrong())?;
        let all = if addr.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => all,
            Some(bits) => bits.parse().ok().filter(|bits| *bits <= all).ok_or_else(wrong)?,
        };
        Ok(Self { addr, bits })
    }
}

/// Upper bounds of everything that peers can make grow. Weakness A-20.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Live connections.
    pub connections: usize,
    /// Live client connections from one address (one IPv4 address or IPv6 /64; eight times as many
    /// from a /48); 0 for no limit. Loopback has none.
    pub client_connections_per_address: usize,
    /// Addresses for which the limit above does not hold: proxies, which stand for many.
    pub unlimited_addresses: Vec<AddressRange>,
    /// Channels, GLOBAL included.
    pub channels: usize,
    /// Channels that one client connection has created and that still exist.
    pub channels_per_client: usize,
    /// Subscriptions of one client connection.
    pub subscriptions_per_client: usize,
    /// Bytes of a channel's metadata.
    pub metadata_bytes: usize,
    /// Field masks of one subscription.
    pub field_masks: usize,
    /// Bytes of one field mask or list filter.
    pub filter_bytes: usize,
    /// Filters of one LIST request.
    pub list_filters: usize,
    /// Channels in the answer to one LIST request; further ones are left out.
    pub list_results: usize,
    /// Bytes of updates kept for subscribers that have not had them; beyond it they are folded
    /// together.
    pub channel_backlog_bytes: usize,
    /// Messages a client may send, per second, with a burst of twice that; 0 is no limit.
    pub client_messages_per_second: u32,
    /// Bytes a client may send, per second, with a burst of twice that; 0 is no limit.
    pub client_bytes_per_second: u32,
    /// Close connections that have sent nothing for this long. Off by default, since stock peers
    /// send no keep-alive.
    pub idle_timeout: [Option<Duration>; 2],
    /// Bytes of one connection's recording.
    pub recording_bytes: usize,
}

/// Bounds of what waits for a peer that reads slowly. Weakness A-2.
#[derive(Debug, Clone)]
pub struct OutboxBounds {
    /// Above this many queued bytes, state updates are dropped and replaced by a full state later.
    /// Output since the latest write, which took everything, may be four times as long: its
    /// reader is not known to be slow.
    pub soft_bytes: usize,
    /// Below this many queued bytes, dropped channels are resumed.
    pub low_water_bytes: usize,
    /// Above this many queued bytes the connection is closed, for clients and for servers.
    pub hard_bytes: [usize; 2],
    /// The connection is closed when output waits and the transport takes none of it for this long.
    pub stall_timeout: Duration,
    /// Where state updates may get lost ([`Framing::Packets`](crate::Framing::Packets)): the
    /// longest time from one that did to the full state that makes it good.
    pub repair_interval: Duration,
}

/// Soft limits that a burst may take: with the default, as much as the kernel takes of a TCP
/// connection ahead of the network.
const BURST: usize = 4;

impl OutboxBounds {
    /// Queued bytes above which state updates are dropped.
    #[inline]
    pub(crate) fn state_bytes_max(&self, kind: ConnKind, is_behind: bool) -> usize {
        if is_behind {
            return self.soft_bytes;
        }
        self.soft_bytes.saturating_mul(BURST).min(self.hard_bytes[kind.index()])
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            world: Arc::default(),
            supersedes: false,
            development: false,
            auth_provider: false,
            matchmaking: false,
            link: None,
            servers_bypass_auth: true,
            offer_snappy: false,
            ignore_unknown_compression: false,
            legacy_packet_bytes_max: 65_535,
            conn_id_bits: 31,
            server_state_machine: Arc::new(StateMachine::server()),
            client_state_machine: Arc::new(StateMachine::client()),
            channel_settings: ChannelSettings::default(),
            spatial_channel_start: 0x1_0000,
            entity_channel_start: 0x8_0000,
            recovery: Recovery::default(),
            abuse: Abuse::default(),
            permissions: Permissions::safe(),
            limits: Limits::default(),
            outbox: OutboxBounds::default(),
            recording: false,
            unreal_objects: false,
            spatial: Spatial::default(),
            secret: [0; 32],
        }
    }
}

impl Config {
    /// Everybody gets in, ids count up.
    #[must_use]
    pub fn development() -> Self {
        Self { development: true, ..Self::default() }
    }

    /// Behaves as the reference gateway does with its default flags, apart from its defects.
    ///
    /// No authentication timeout and no bans (the reference never switches them on), every
    /// permission, and no limit that a peer of the reference could meet.
    #[must_use]
    pub fn reference() -> Self {
        Self {
            ignore_unknown_compression: true,
            permissions: Permissions::permissive(),
            abuse: Abuse { auth_timeout: None, auth_failures_max: 0, refusals_max: 0, ..Abuse::default() },
            limits: Limits::generous(),
            recovery: Recovery { client_window: Duration::ZERO, ..Recovery::default() },
            unreal_objects: true,
            ..Self::default()
        }
    }

    /// The state machine of a kind.
    #[must_use]
    pub fn state_machine(&self, kind: ConnKind) -> &StateMachine {
        match kind {
            ConnKind::Server => &self.server_state_machine,
            ConnKind::Client => &self.client_state_machine,
        }
    }
}

impl Default for Recovery {
    fn default() -> Self {
        Self {
            servers: false,
            server_timeout: None,
            client_window: Duration::from_secs(30),
            lost_max: 10_000,
            settle: Duration::from_secs(1),
        }
    }
}

impl Default for Abuse {
    fn default() -> Self {
        Self {
            auth_timeout: Some(Duration::from_secs(5)),
            verdict_timeout: Duration::ZERO,
            auth_failures_max: 5,
            refusals_max: 10,
            failure_memory: Duration::from_secs(600),
            ban_duration: Duration::from_secs(900),
            entries_max: 65_536,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 65_536,
            client_connections_per_address: 256,
            unlimited_addresses: Vec::new(),
            channels: 65_536,
            channels_per_client: 64,
            subscriptions_per_client: 8_192,
            metadata_bytes: 4_096,
            field_masks: 64,
            filter_bytes: 256,
            list_filters: 32,
            list_results: 16_384,
            channel_backlog_bytes: 1 << 20,
            client_messages_per_second: 5_000,
            client_bytes_per_second: 4 << 20,
            idle_timeout: [None, None],
            recording_bytes: 256 << 20,
        }
    }
}

impl Limits {
    /// Bounds that keep the process safe and that no honest peer of the reference meets.
    #[must_use]
    pub fn generous() -> Self {
        Self {
            connections: 1 << 20,
            client_connections_per_address: 0,
            channels: 1 << 20,
            channels_per_client: 1 << 20,
            subscriptions_per_client: 1 << 20,
            metadata_bytes: 60_000,
            field_masks: 4_096,
            filter_bytes: 4_096,
            list_filters: 4_096,
            list_results: 1 << 20,
            client_messages_per_second: 0,
            client_bytes_per_second: 0,
            ..Self::default()
        }
    }
}

impl Default for OutboxBounds {
    fn default() -> Self {
        Self {
            soft_bytes: 64 << 10,
            low_water_bytes: 16 << 10,
            hard_bytes: [64 << 20, 4 << 20],
            stall_timeout: Duration::from_secs(30),
            repair_interval: Duration::from_secs(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_safe_and_bounds_are_ordered() {
        let config = Config::default();
        assert!(!config.development && !config.auth_provider);
        assert!(config.abuse.auth_timeout.is_some());
        let OutboxBounds { soft_bytes, low_water_bytes, hard_bytes, .. } = config.outbox;
        assert!(low_water_bytes < soft_bytes && hard_bytes.iter().all(|hard| soft_bytes < *hard));
    }

    #[test]
    fn the_reference_profile_bans_nobody() {
        let config = Config::reference();
        assert_eq!((config.abuse.auth_timeout, config.abuse.refusals_max), (None, 0));
        assert_eq!(config.permissions, Permissions::permissive());
    }
}
