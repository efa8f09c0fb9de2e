//! The catalogue of reasons for closed connections, connections that are not accepted, and refused
//! requests.
//!
//! Every reason has a stable name (snake case) that metrics use as a label and logs as a field. The
//! peer is told nothing beyond the closed connection, as the protocol has no negative answers, so
//! these names are how an operator finds out.

macro_rules! catalogue {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal, $what:literal;)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $(#[doc = $what] $(#[$doc])* $variant,)+
        }

        impl $name {
            /// Every reason, in the order of [`Self::index`].
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];
            /// How many reasons there are.
            pub const COUNT: usize = Self::ALL.len();

            /// Stable name: the metric label and log field.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }

            /// One sentence for people.
            #[must_use]
            pub const fn describe(self) -> &'static str {
                match self { $(Self::$variant => $what,)+ }
            }

            /// Position in tables with one entry per reason.
            #[must_use]
            pub const fn index(self) -> usize {
                self as usize
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

catalogue! {
    /// Why a connection was closed.
    CloseReason {
        EndOfStream = "end_of_stream", "The peer closed the connection.";
        TransportError = "transport_error", "Reading from or writing to the transport failed.";
        BadMagic = "bad_magic", "A frame did not start with the tag bytes.";
        ZeroSize = "zero_size", "A frame declared a size of zero.";
        UnknownCompression = "unknown_compression", "A frame named a compression that does not exist.";
        BadSnappy = "bad_snappy", "A compressed frame is not a valid Snappy block.";
        DeclaredTooLarge = "declared_too_large", "A compressed frame declares more than a packet may hold.";
        BadPacket = "bad_packet", "A frame does not hold a valid packet.";
        LegacyTooLarge = "legacy_too_large", "A frame with a 24-bit size exceeds the configured limit.";
        BadFrame = "bad_frame", "A frame is invalid for another reason.";
        Left = "left", "The peer left: WebSocket close 1000, an ENet disconnect, or a DISCONNECT of its own id.";
        Kicked = "kicked", "A DISCONNECT message of another connection named it.";
        AuthTimeout = "auth_timeout", "The connection did not authenticate in time.";
        AuthWrongChannel = "auth_wrong_channel", "An AUTH message was sent to a channel other than GLOBAL.";
        AuthProviderFailed = "auth_provider_failed", "The authentication provider did not answer.";
        AuthFailures = "auth_failures", "Too many failed logins of this name from this address; the name is locked for the address for a while.";
        BannedPlayer = "banned_player", "The player's identifier is banned.";
        StateMachineRefusals = "state_machine_refusals", "The state machine refused too many messages.";
        MessageRate = "message_rate", "More messages per second than allowed.";
        ByteRate = "byte_rate", "More bytes per second than allowed.";
        IdleTimeout = "idle_timeout", "Nothing was received for the idle timeout.";
        SlowReader = "slow_reader", "More output waited for the peer than the hard limit allows.";
        OutputMemory = "output_memory", "The output of all clients together took more memory than the limit allows, and most of it was waiting for this connection.";
        Stalled = "stalled", "Output waited and the transport took none of it for the stall timeout.";
        Superseded = "superseded", "The player resumed its session on a newer connection.";
        Shutdown = "shutdown", "The gateway is shutting down.";
        Restarted = "restarted", "The world was restarted empty: an internal error affected several channels, or its node lost it.";
        Moved = "moved", "The connection belongs to another world of the process and continues there.";
        UnknownWorld = "unknown_world", "The connection names a world that is not open, or that it may not enter.";
        WorldMismatch = "world_mismatch", "The login is for another world than the listener leads to or the connection asks for.";
        WorldClosed = "world_closed", "The world of the connection was closed.";
        WorldsMax = "worlds_max", "The connection asks for a world that would have to open, and its class or its address has opened as many as it may.";
        WorldElsewhere = "world_elsewhere", "Another node of the cluster serves the world.";
        WorldMoving = "world_moving", "The node drains, and another one serves the world now.";
        WorldUnavailable = "world_unavailable", "The world is not served now: its home was not known in time, or has lost the cluster's directory.";
        NoRoom = "no_room", "No node of the cluster has room for the world.";
        GaveWay = "gave_way", "Few file descriptors were left, and this was the oldest client without a login.";
        Internal = "internal", "An invariant of the gateway broke; the connection was closed to protect the others.";
    }
}

impl CloseReason {
    /// True if it ended because of its waiting output, which is dropped then.
    pub(crate) const fn is_of_slow_reader(self) -> bool {
        matches!(self, Self::SlowReader | Self::OutputMemory | Self::Stalled)
    }

    /// Whether the loss was an accident of the network or of framing, after which a connection may
    /// recover (spec §4.7).
    ///
    /// DISCONNECT, bans, limits that only a misbehaving peer reaches, and shutdown are not
    /// accidents.
    #[must_use]
    pub const fn is_unexpected(self) -> bool {
        matches!(
            self,
            Self::EndOfStream
                | Self::TransportError
                | Self::BadMagic
                | Self::ZeroSize
                | Self::UnknownCompression
                | Self::BadSnappy
                | Self::DeclaredTooLarge
                | Self::BadPacket
                | Self::LegacyTooLarge
                | Self::BadFrame
                | Self::IdleTimeout
                | Self::SlowReader
                | Self::OutputMemory
                | Self::Stalled
                | Self::Superseded
        )
    }
}

/// Numbers that tell a WebSocket or ENet peer why its connection ends, and with that whether to
/// come back. TCP and KCP have no words for it. 4016 to 4019 are reserved for clusters.
pub mod close_code {
    /// The peer left.
    pub const NORMAL: u16 = 1000;
    /// The gateway shuts down; reconnect.
    pub const GOING_AWAY: u16 = 1001;
    /// The peer broke a rule.
    pub const POLICY: u16 = 1008;
    /// An invariant of the gateway broke.
    pub const INTERNAL: u16 = 1011;
    /// The world was restarted empty; reconnect.
    pub const RESTARTED: u16 = 1012;
    /// No place is left; try again later.
    pub const FULL: u16 = 1013;
    /// Another connection had this one closed; do not reconnect.
    pub const KICKED: u16 = 4001;
    /// Banned; do not reconnect.
    pub const BANNED: u16 = 4002;
    /// The login was refused or did not come in time.
    pub const LOGIN: u16 = 4003;
    /// Too many messages or bytes; reconnect later.
    pub const RATE: u16 = 4004;
    /// The player resumed its session on a newer connection; do not reconnect.
    pub const SUPERSEDED: u16 = 4005;
    /// Nothing was heard for too long.
    pub const IDLE: u16 = 4007;
    /// There is no such world, or the peer may not enter it.
    pub const UNKNOWN_WORLD: u16 = 4010;
    /// The login is for another world; do not reconnect here with it.
    pub const WORLD_MISMATCH: u16 = 4011;
    /// The world was closed; do not reconnect to it.
    pub const WORLD_CLOSED: u16 = 4012;
    /// Another node serves the world.
    pub const WORLD_ELSEWHERE: u16 = 4013;
    /// The world has moved to another node.
    pub const WORLD_MOVING: u16 = 4014;
    /// The world is not served now; reconnect later.
    pub const WORLD_UNAVAILABLE: u16 = 4015;
}

impl CloseReason {
    /// The [close code](close_code) that the peer is told; `None` where it takes nothing or is
    /// gone.
    #[must_use]
    pub const fn close_code(self) -> Option<u16> {
        Some(match self {
            // The descriptor of one that gives way is needed at once.
            Self::EndOfStream
            | Self::TransportError
            | Self::SlowReader
            | Self::OutputMemory
            | Self::Stalled
            | Self::Moved
            | Self::GaveWay => return None,
            Self::BadMagic
            | Self::ZeroSize
            | Self::UnknownCompression
            | Self::BadSnappy
            | Self::DeclaredTooLarge
            | Self::BadPacket
            | Self::LegacyTooLarge
            | Self::BadFrame => close_code::POLICY,
            Self::Left => close_code::NORMAL,
            Self::Kicked => close_code::KICKED,
            Self::AuthTimeout | Self::AuthWrongChannel | Self::AuthProviderFailed | Self::AuthFailures => {
                close_code::LOGIN
            }
            Self::BannedPlayer | Self::StateMachineRefusals => close_code::BANNED,
            Self::MessageRate | Self::ByteRate => close_code::RATE,
            Self::IdleTimeout => close_code::IDLE,
            Self::Superseded => close_code::SUPERSEDED,
            Self::UnknownWorld => close_code::UNKNOWN_WORLD,
            Self::WorldMismatch => close_code::WORLD_MISMATCH,
            Self::WorldClosed => close_code::WORLD_CLOSED,
            Self::WorldsMax => close_code::FULL,
            Self::WorldElsewhere => close_code::WORLD_ELSEWHERE,
            Self::WorldMoving => close_code::WORLD_MOVING,
            Self::WorldUnavailable | Self::NoRoom => close_code::WORLD_UNAVAILABLE,
            Self::Shutdown => close_code::GOING_AWAY,
            Self::Restarted => close_code::RESTARTED,
            Self::Internal => close_code::INTERNAL,
        })
    }
}

impl AcceptRefusal {
    /// The [close code](close_code) that the peer is told.
    #[must_use]
    pub const fn close_code(self) -> u16 {
        match self {
            Self::ConnectionsMax | Self::ConnectionsPerAddress | Self::IdsExhausted => close_code::FULL,
            Self::Draining => close_code::GOING_AWAY,
            Self::WorldNotOpen => close_code::UNKNOWN_WORLD,
        }
    }
}

catalogue! {
    /// Why a connection was not accepted.
    AcceptRefusal {
        ConnectionsMax = "connections_max", "The gateway has reached its limit of connections.";
        ConnectionsPerAddress = "connections_per_address", "The address has reached its limit of connections.";
        IdsExhausted = "ids_exhausted", "Every connection id of the configured width is in use.";
        Draining = "draining", "The gateway is shutting down.";
        WorldNotOpen = "world_not_open", "The world that the listener leads to is not open.";
    }
}

catalogue! {
    /// Why a request was refused. The sender is not told (spec §3.4); the request changes nothing.
    Refusal {
        StateMachine = "state_machine", "The connection's state machine does not allow the message type now.";
        UnknownChannel = "unknown_channel", "The channel does not exist.";
        UndefinedType = "undefined_type", "No such message type below 100.";
        BadBody = "bad_body", "The message body does not decode.";
        NotGlobal = "not_global", "The message type must be sent to GLOBAL.";
        ChannelType = "channel_type", "The channel type cannot be created this way.";
        Permission = "permission", "The permission profile does not let this kind of connection do that.";
        Access = "access", "The channel's access level does not let the sender do that.";
        AlreadyOwned = "already_owned", "GLOBAL has a live owner.";
        UnknownConnection = "unknown_connection", "The named connection does not exist.";
        NotSubscribed = "not_subscribed", "The connection is not subscribed to the channel.";
        NoOwner = "no_owner", "The channel has no live owner to forward to.";
        OwnerRecovering = "owner_recovering", "The channel's owner has not finished its recovery.";
        WriteAccess = "write_access", "The sender may not update the channel's data.";
        FormerOwner = "former_owner", "The sender lost the entity in a handover and still updates it.";
        NoDataType = "no_data_type", "The data's type is unknown and the fallback for unknown types is off.";
        StaleVersion = "stale_version", "The update is older than the handover that returned the entity to the sender.";
        WrongDataType = "wrong_data_type", "The update's type differs from the type of the channel's data.";
        BadData = "bad_data", "The data does not decode as its type.";
        DataTooLarge = "data_too_large", "The channel's data would grow over its limit.";
        SpatialUnavailable = "spatial_unavailable", "Spatial requests need a grid, and none is configured.";
        NotSpatial = "not_spatial", "The message type must be sent to GLOBAL or to a cell of the grid.";
        NotEntity = "not_entity", "The message type must be sent to an entity channel.";
        NoSlot = "no_slot", "Every slot of the grid has a live server.";
        UnknownCell = "unknown_cell", "The cell has no channel yet; an entity waits where it was.";
        OutsideWorld = "outside_world", "The position is not a number or lies outside the grid.";
        InterestQuery = "interest_query", "The query describes no area: a number is not finite or a size not above 0.";
        EntityId = "entity_id", "The entity id is taken, listed in another cell, or below the first entity id.";
        UnknownEntity = "unknown_entity", "The entity channel does not exist, or is not in the group or cell.";
        NoGroup = "no_group", "The entity is in no group of this kind, or was taken out of its group and moves with none.";
        GroupSize = "group_size", "The group would have more members than allowed.";
        Locked = "locked", "The entity or one that moves with it is locked where it is.";
        BroadcastValue = "broadcast_value", "The broadcast value selects no recipient in this channel.";
        AuthPending = "auth_pending", "The connection already waits for a verdict.";
        AlreadyAuthenticated = "already_authenticated", "The connection is authenticated.";
        ChannelsMax = "channels_max", "The limit of channels is reached.";
        ChannelsPerConnection = "channels_per_connection", "The connection has reached its limit of channels.";
        SubscriptionsPerConnection = "subscriptions_per_connection", "The connection has reached its limit of subscriptions.";
        MetadataBytes = "metadata_bytes", "The metadata is longer than allowed.";
        FieldMasks = "field_masks", "More or longer field masks than allowed.";
        ListFilters = "list_filters", "More or longer list filters than allowed.";
        Oversize = "oversize", "A message does not fit a packet and cannot be split.";
        ClosingConnection = "closing_connection", "The message was for a connection that has just closed.";
        RecordingFull = "recording_full", "The recording of the connection reached its limit and ends here.";
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_stable_snake_case_and_unique() {
        let mut names = BTreeSet::new();
        let all = CloseReason::ALL
            .iter()
            .map(|reason| ("close", reason.name(), reason.describe()))
            .chain(AcceptRefusal::ALL.iter().map(|reason| ("accept", reason.name(), reason.describe())))
            .chain(Refusal::ALL.iter().map(|reason| ("refusal", reason.name(), reason.describe())));
        for (table, name, description) in all {
            assert!(names.insert((table, name)), "{table} {name} twice");
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
            assert!(description.ends_with('.'), "{name} needs a sentence");
        }
    }

    #[test]
    fn indexes_match_positions() {
        for (position, reason) in CloseReason::ALL.iter().enumerate() {
            assert_eq!(reason.index(), position);
        }
        assert_eq!(Refusal::COUNT, Refusal::ALL.len());
    }

    #[test]
    fn deliberate_closures_are_not_accidents() {
        assert!(CloseReason::EndOfStream.is_unexpected());
        assert!(!CloseReason::Kicked.is_unexpected());
        assert!(!CloseReason::Left.is_unexpected());
        assert!(!CloseReason::BannedPlayer.is_unexpected());
        assert!(!CloseReason::Shutdown.is_unexpected());
    }
}
