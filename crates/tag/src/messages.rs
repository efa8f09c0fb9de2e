//! The messages of `tag.proto`, which documents them.

use std::collections::BTreeMap;

/// Full name of the channel data's type.
pub const ARENA_TYPE: &str = "tag.Arena";

/// Numbers of the game's messages.
pub const HELLO: u32 = 100;
/// See [`Steer`].
pub const STEER: u32 = 101;
/// See [`Caught`].
pub const CAUGHT: u32 = 110;

/// Channel data of a room.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ArenaData {
    /// By connection.
    #[prost(btree_map = "uint32, message", tag = "1")]
    pub players: BTreeMap<u32, PlayerData>,
    /// By connection.
    #[prost(btree_map = "uint32, message", tag = "2")]
    pub bodies: BTreeMap<u32, Body>,
    /// The round.
    #[prost(message, optional, tag = "3")]
    pub round: Option<Round>,
    /// Constant part of the state.
    #[prost(message, optional, tag = "4")]
    pub rules: Option<Rules>,
}

/// A player, without the position.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PlayerData {
    /// True if the player has left.
    #[prost(bool, tag = "1")]
    pub removed: bool,
    /// Displayed name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Hue of the colour, in degrees.
    #[prost(uint32, tag = "3")]
    pub hue: u32,
    /// True if a program plays.
    #[prost(bool, tag = "4")]
    pub simulated: bool,
    /// Points of this round.
    #[prost(uint32, tag = "5")]
    pub score: u32,
}

/// A player's position and velocity, in quarters of a unit.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Body {
    /// True if the player has left.
    #[prost(bool, tag = "1")]
    pub removed: bool,
    /// Horizontal position.
    #[prost(sint32, tag = "2")]
    pub x: i32,
    /// Vertical position.
    #[prost(sint32, tag = "3")]
    pub y: i32,
    /// Per second.
    #[prost(sint32, tag = "4")]
    pub vx: i32,
    /// Per second.
    #[prost(sint32, tag = "5")]
    pub vy: i32,
}

/// A round; no field is ever zero.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Round {
    /// From 1 on.
    #[prost(uint32, tag = "1")]
    pub number: u32,
    /// 1 played, 2 over.
    #[prost(uint32, tag = "2")]
    pub phase: u32,
    /// Seconds until the phase ends.
    #[prost(uint32, tag = "3")]
    pub seconds_left: u32,
    /// Player who is it and has to catch the others.
    #[prost(uint32, tag = "4")]
    pub it: u32,
    /// Winner of the previous round.
    #[prost(uint32, tag = "5")]
    pub winner: u32,
}

/// Constant part of the state.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Rules {
    /// Of the arena.
    #[prost(uint32, tag = "1")]
    pub width: u32,
    /// Of the arena.
    #[prost(uint32, tag = "2")]
    pub height: u32,
    /// Of every player.
    #[prost(uint32, tag = "3")]
    pub radius: u32,
    /// Pillars, three numbers each: middle and radius.
    #[prost(uint32, repeated, tag = "4")]
    pub pillars: Vec<u32>,
}

/// Identity of a player.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Hello {
    /// Name as typed; the server truncates it.
    #[prost(string, tag = "1")]
    pub name: String,
    /// True if a program plays.
    #[prost(bool, tag = "2")]
    pub simulated: bool,
}

/// Requested direction of a player.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Steer {
    /// Horizontal component, in percent.
    #[prost(sint32, tag = "1")]
    pub x: i32,
    /// Vertical component, in percent.
    #[prost(sint32, tag = "2")]
    pub y: i32,
}

/// Event: one player has caught another.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Caught {
    /// Player who was it.
    #[prost(uint32, tag = "1")]
    pub by: u32,
    /// Player who is it now.
    #[prost(uint32, tag = "2")]
    pub who: u32,
}
