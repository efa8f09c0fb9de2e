//! Structs as classes: what `#[derive(Replicate)]` implements.

use crate::class::{Class, ClassError};
use crate::client::Replica;
use crate::handle::Handle;
use crate::quantise::Value;
use crate::server::{ObjectError, Server};

/// A struct whose fields are the properties of a class.
///
/// ```
/// use throng_replication::{
///     Axis, Classes, Client, ClientConfig, Condition, Filter, Quantiser, Replicate, Server, ServerConfig,
/// };
/// use throng_stdx::Instant;
///
/// const XY: Axis = Axis::new(-5242.88, 0.01, 20);
///
/// #[derive(Clone, Debug, PartialEq, Replicate)]
/// #[replicate(name = "character", cull_distance = 250.0, delta)]
/// struct Character {
///     #[replicate(Quantiser::Vec3([XY, XY, Axis::new(-655.36, 0.01, 17)]), position)]
///     position: [f32; 3],
///     #[replicate(Quantiser::UInt(10), default = 100_u32)]
///     health: u16,
///     #[replicate(Quantiser::UInt(8), condition = Condition::OwnerOnly)]
///     ammo: u8,
///     #[replicate(skip)]
///     last_input: u32,
/// }
///
/// let mut classes = Classes::new();
/// let character = classes.register(Character::class()?)?;
/// let mut server = Server::new(ServerConfig::default(), &classes);
/// let mut client = Client::new(ClientConfig::default(), &classes);
/// let player = server.connect().expect("the first connection");
///
/// let hero = Character { position: [1.0, 2.0, 0.0], health: 90, ammo: 7, last_input: 3 };
/// let handle = server.create(character)?;
/// server.set_owner(handle, Some(player))?;
/// hero.write(&mut server, handle)?;
/// // Or one property: its number has the field's name.
/// server.set(handle, Character::HEALTH, 80_u32)?;
///
/// server.tick(Instant::from_millis(33), |packets| {
///     for packet in packets.iter() {
///         client.receive(packet).expect("the server's packets are right");
///     }
/// });
/// let replica = client.replica(handle.index()).expect("its owner sees it");
/// assert_eq!(Character::read(replica), Some(Character { health: 80, last_input: 0, ..hero }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Replicate: Sized {
    /// The class: register it once, on both sides in the same order.
    ///
    /// # Errors
    /// When a quantiser, a default or the position is wrong.
    fn class() -> Result<Class, ClassError>;

    /// Sets all properties of an object of the class. Those that have the same quantised value cost no byte.
    ///
    /// # Errors
    /// When the object does not exist, has another class, or a value does not fit its quantiser.
    fn write(&self, server: &mut Server, handle: Handle) -> Result<(), ObjectError>;

    /// The values of a replica of the class; fields that are not replicated have their default. `None` for a replica of
    /// another class, or when a number does not fit its field.
    fn read(replica: &Replica) -> Option<Self>;
}

/// Types that replicated fields may have.
pub trait FromValue: Sized {
    /// The value, if it has this type and fits.
    fn from_value(value: Value) -> Option<Self>;
}

macro_rules! from_integer {
    ($($type:ty),*) => {
        $(impl FromValue for $type {
            fn from_value(value: Value) -> Option<Self> {
                match value {
                    Value::UInt(value) => value.try_into().ok(),
                    Value::Int(value) => value.try_into().ok(),
                    _ => None,
                }
            }
        })*
    };
}
from_integer!(u8, u16, u32, u64, i8, i16, i32, i64);

macro_rules! from_variant {
    ($($type:ty => $variant:ident),*) => {
        $(impl FromValue for $type {
            fn from_value(value: Value) -> Option<Self> {
                match value {
                    Value::$variant(value) => Some(value),
                    _ => None,
                }
            }
        })*
    };
}
from_variant!(bool => Bool, [f32; 2] => Vec2, [f32; 3] => Vec3, [f32; 4] => Quat, Handle => Handle, Vec<u8> => Bytes);

impl FromValue for f32 {
    fn from_value(value: Value) -> Option<Self> {
        match value {
            Value::F32(value) => Some(value),
            Value::F64(value) => Some(value as Self),
            _ => None,
        }
    }
}

impl FromValue for f64 {
    fn from_value(value: Value) -> Option<Self> {
        match value {
            Value::F32(value) => Some(value.into()),
            Value::F64(value) => Some(value),
            _ => None,
        }
    }
}
