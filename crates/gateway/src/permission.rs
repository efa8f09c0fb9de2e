//! Permissions of each kind of connection, beyond the state machine and the channels' access
//! levels. Weakness A-19.

use crate::ids::ConnKind;
use crate::settings::ChannelType;

/// Permissions of both kinds of connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permissions {
    /// For game servers.
    pub server: KindPermissions,
    /// For players.
    pub client: KindPermissions,
}

/// What one kind of connection may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindPermissions {
    /// Claim GLOBAL while it has no live owner.
    pub claim_global: bool,
    /// Channel types it may create, besides GLOBAL.
    pub create_types: TypeRule,
    /// Keep WRITE access that it asks for itself on a channel that it does not own. Without this
    /// the subscription gets READ access instead; access that a server grants is not affected.
    pub take_write_access: bool,
    /// Subscribe itself to channels of these types. Being subscribed by a server is not affected.
    pub subscribe_self_types: TypeRule,
    /// Subscribe or unsubscribe other connections where the channel's access level allows it.
    pub manage_others: bool,
    /// Remove channels where the access level allows it.
    pub remove_channels: bool,
    /// See the list of all channels.
    pub list_channels: bool,
    /// Disconnect other connections; itself it always may.
    pub disconnect_others: Authority,
    /// Update the data of a channel that it neither owns nor may write to, in the name of its
    /// owner.
    pub update_for_owner: Authority,
    /// Change the area of interest of another connection.
    pub interest_of_others: Authority,
    /// Send Unreal's SPAWN and DESTROY where these are acted upon. From clients they only ever
    /// reach the channel's owner, which may take them for a server's.
    pub send_objects: bool,
}

/// Who among the connections of a kind may do something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Authority {
    /// Nobody.
    Nobody,
    /// The owner of GLOBAL.
    GlobalOwner,
    /// Everybody.
    Anybody,
}

impl Authority {
    /// Whether a connection passes.
    #[must_use]
    pub const fn passes(self, is_global_owner: bool) -> bool {
        match self {
            Self::Nobody => false,
            Self::GlobalOwner => is_global_owner,
            Self::Anybody => true,
        }
    }
}

/// A set of channel types.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TypeRule {
    /// Every type.
    All,
    /// These types.
    Only(Vec<ChannelType>),
}

impl TypeRule {
    /// Whether the type is in the set.
    #[must_use]
    pub fn contains(&self, channel_type: ChannelType) -> bool {
        match self {
            Self::All => true,
            Self::Only(types) => types.contains(&channel_type),
        }
    }
}

impl Permissions {
    /// The default: servers are trusted with their work, clients with their own subscriptions.
    #[must_use]
    pub fn safe() -> Self {
        Self {
            server: KindPermissions {
                update_for_owner: Authority::GlobalOwner,
                disconnect_others: Authority::Anybody,
                interest_of_others: Authority::Anybody,
                ..KindPermissions::everything()
            },
            client: KindPermissions {
                claim_global: false,
                create_types: TypeRule::Only(vec![ChannelType::PRIVATE]),
                take_write_access: false,
                subscribe_self_types: TypeRule::All,
                manage_others: false,
                remove_channels: true,
                list_channels: true,
                disconnect_others: Authority::Nobody,
                update_for_owner: Authority::Nobody,
                interest_of_others: Authority::Nobody,
                send_objects: false,
            },
        }
    }

    /// What the reference allows: everything that the state machine and the access levels let
    /// through.
    #[must_use]
    pub fn permissive() -> Self {
        // Clients never update for an owner in the reference either; that rule is about servers.
        let client = KindPermissions { update_for_owner: Authority::Nobody, ..KindPermissions::everything() };
        Self { server: KindPermissions::everything(), client }
    }

    /// Permissions of a kind.
    #[must_use]
    pub fn of(&self, kind: ConnKind) -> &KindPermissions {
        match kind {
            ConnKind::Server => &self.server,
            ConnKind::Client => &self.client,
        }
    }
}

impl Default for Permissions {
    fn default() -> Self {
        Self::safe()
    }
}

impl KindPermissions {
    /// Everything allowed.
    #[must_use]
    pub fn everything() -> Self {
        Self {
            claim_global: true,
            create_types: TypeRule::All,
            take_write_access: true,
            subscribe_self_types: TypeRule::All,
            manage_others: true,
            remove_channels: true,
            list_channels: true,
            disconnect_others: Authority::Anybody,
            update_for_owner: Authority::Anybody,
            interest_of_others: Authority::Anybody,
            send_objects: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a19_the_default_profile_keeps_authority_from_clients() {
        let client = Permissions::default().client;
        assert!(!client.claim_global && !client.take_write_access && !client.manage_others);
        assert!(!client.create_types.contains(ChannelType::SUBWORLD));
        assert!(!client.disconnect_others.passes(true));
        assert!(Permissions::default().server.claim_global);
    }

    #[test]
    fn the_permissive_profile_lets_all_through_that_the_reference_does() {
        let Permissions { server, client } = Permissions::permissive();
        assert!(
            client.claim_global
                && client.take_write_access
                && client.create_types.contains(ChannelType(9000))
        );
        assert!(server.update_for_owner.passes(false) && !client.update_for_owner.passes(false));
    }
}
