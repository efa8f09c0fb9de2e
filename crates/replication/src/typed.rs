//! The typed layer: structs instead of property numbers. It writes the same bytes as the untyped
//! one.

use core::any::TypeId;
use std::collections::BTreeMap;

use crate::attach::{AttachError, Attachment};
use crate::bits::BitReader;
use crate::class::{Call, ClassError, ClassId, Classes, Direction};
use crate::client::{Client, Replica};
use crate::field::{Field, FieldReader};
use crate::handle::Handle;
use crate::keyed::Keyed;
use crate::quantise::{Quantiser, Value};
use crate::server::{ConnId, DestroyReason, ObjectError, Server};

/// A struct whose fields are the properties of a class; `#[derive(Replicate)]` implements it.
///
/// ```
/// use throng_replication::{
///     Axis, Call, Classes, Client, ClientConfig, ClientEvent, Condition, Event, Quantiser, Ref, Replicate, Server,
///     ServerConfig,
/// };
/// use throng_replication::Instant;
///
/// const XY: Axis = Axis::new(-5242.88, 0.01, 20);
///
/// #[derive(Clone, Debug, Default, PartialEq, Replicate)]
/// #[replicate(name = "character", cull_distance = 250.0, delta, calls(Fire))]
/// struct Character {
///     #[replicate(Quantiser::Vec3([XY, XY, Axis::new(-655.36, 0.01, 17)]), position)]
///     position: [f32; 3],
///     #[replicate(Quantiser::UInt(10), default = 100_u32)]
///     health: u16,
///     #[replicate(condition = Condition::OwnerOnly)]
///     ammo: u8,
///     #[replicate(max = 24)]
///     name: String,
///     target: Ref<Character>,
///     #[replicate(skip)]
///     last_input: u32,
/// }
///
/// // Only the owner may fire; the server learns it exactly once, in order.
/// #[derive(Clone, Debug, Default, PartialEq, throng_replication::Call)]
/// #[call(to = server)]
/// struct Fire {
///     power: u8,
/// }
///
/// let mut classes = Classes::new();
/// classes.add::<Character>()?;
/// let mut server = Server::new(ServerConfig::default(), &classes);
/// let mut client = Client::new(ClientConfig::default(), &classes);
/// let player = server.connect().expect("the first connection");
///
/// let mut hero = Character { position: [1.0, 2.0, 0.0], health: 90, ammo: 7, ..Character::default() };
/// let handle = server.create(&hero)?;
/// server.set_owner(handle.untyped(), Some(player))?;
/// // One setter for each field; setting the value that it has sends nothing.
/// Character::set_health(&mut server, handle, &80)?;
/// Character::set_target(&mut server, handle, &handle.into())?;
///
/// server.tick(Instant::from_millis(33), |packets| {
///     for packet in packets.iter() {
///         client.receive(packet).expect("the server's packets are right");
///     }
/// });
/// let Some(ClientEvent::Created(created)) = client.poll_event() else { panic!("its owner sees it") };
/// let seen = client.typed::<Character>(created).expect("a character");
/// // Read into a value that exists: what it has allocated is used again.
/// client.read(seen, &mut hero).expect("it is there");
/// assert_eq!((hero.health, hero.target.handle()), (80, handle));
///
/// client.call(seen, &Fire { power: 3 })?;
/// let packet = client.poll_packet(Instant::from_millis(40)).expect("a call and an acknowledgement");
/// server.receive(player, packet)?;
/// let Some(Event::Attachment(_, call)) = server.poll_event() else { panic!("a call") };
/// assert_eq!(server.read_call::<Fire>(&call), Some((handle, Fire { power: 3 })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A call on an object of another class does not compile:
///
/// ```compile_fail
/// # use throng_replication::*;
/// #[derive(Default, Replicate)]
/// struct Door {
///     open: bool,
/// }
/// #[derive(Default, Replicate)]
/// #[replicate(calls(Fire))]
/// struct Cannon {
///     loaded: bool,
/// }
/// #[derive(Default, throng_replication::Call)]
/// #[call(to = server)]
/// struct Fire {
///     power: u8,
/// }
/// fn fire(client: &mut Client, door: Handle<Door>) {
///     client.call(door, &Fire { power: 1 }).unwrap();
/// }
/// ```
pub trait Replicate: Sized + 'static {
    /// The class; [`Classes::add`] registers it, on both sides in the same order.
    ///
    /// # Errors
    /// When a quantiser, a default or the position is wrong.
    fn class() -> Result<crate::Class, ClassError>;

    /// Sets all properties of an object of the class. Those that have the same quantised value cost
    /// no byte.
    ///
    /// # Errors
    /// When the object does not exist, has another class, a value does not fit its quantiser or a
    /// keyed array is full. The fields and elements before that one are set.
    fn write(&self, server: &mut Server, handle: Handle) -> Result<(), ObjectError>;

    /// Takes the values of a replica of the class, without allocation where the memory of `self`
    /// suffices; fields that are not replicated stay. `None` for a replica of another class, or
    /// when a number does not fit its field.
    fn read_into(&mut self, replica: &Replica) -> Option<()>;

    /// A new value from a replica; fields that are not replicated have their default.
    #[must_use]
    fn read(replica: &Replica) -> Option<Self>
    where
        Self: Default,
    {
        let mut value = Self::default();
        value.read_into(replica)?;
        Some(value)
    }
}

/// A struct that is a call on objects of one class: `#[derive(Call)]`, named in the class'
/// `#[replicate(calls(...))]`.
pub trait TypedCall: Default {
    /// Direction, reliability, `callable` and arguments.
    fn description() -> Call;

    /// The arguments.
    fn to_value(&self) -> Value;

    /// Takes the arguments that were received.
    fn read_from(&mut self, reader: &mut FieldReader<'_, '_>) -> Option<()>;
}

/// The class that a call belongs to, and its number there. `#[derive(Replicate)]` implements it for
/// the calls it names.
pub trait CallOn: TypedCall {
    /// Class of the objects.
    type Object: Replicate;
    /// Method number.
    const NUMBER: u64;
}

/// A reference to an object of one class, as a field of a replicated struct.
#[derive(Debug)]
pub struct Ref<T> {
    handle: Handle<T>,
}

impl<T> Ref<T> {
    /// Names an object.
    #[must_use]
    pub const fn new(handle: Handle<T>) -> Self {
        Self { handle }
    }

    /// The object, or [none](Handle::is_none). [`Client::get`] tells whether it is here.
    #[must_use]
    pub const fn handle(&self) -> Handle<T> {
        self.handle
    }
}

impl<T> From<Handle<T>> for Ref<T> {
    fn from(handle: Handle<T>) -> Self {
        Self::new(handle)
    }
}

impl<T> Clone for Ref<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Ref<T> {}

impl<T> Default for Ref<T> {
    fn default() -> Self {
        Self { handle: Handle::default() }
    }
}

impl<T> PartialEq for Ref<T> {
    fn eq(&self, other: &Self) -> bool {
        self.handle == other.handle
    }
}

impl<T> Eq for Ref<T> {}

impl<T: 'static> Field for Ref<T> {
    fn quantiser(_: u32) -> Quantiser {
        Quantiser::Handle { hide: false }
    }

    fn to_value(&self) -> Value {
        Value::Handle(self.handle().untyped())
    }

    fn read_from(&mut self, reader: &mut FieldReader<'_, '_>) -> Option<()> {
        let Value::Handle(handle) = reader.value()? else { return None };
        *self = Self::new(Handle::assume(handle));
        Some(())
    }
}

/// Something that [`Server::create`] makes an object of: a class, or a value of a replicated
/// struct.
pub trait Creation {
    /// Name of the new object.
    type Handle;

    /// Creates the object, within `root` if there is one.
    ///
    /// # Errors
    /// As [`Server::create`].
    fn create(self, server: &mut Server, root: Option<Handle>) -> Result<Self::Handle, ObjectError>;
}

impl Creation for ClassId {
    type Handle = Handle;

    fn create(self, server: &mut Server, root: Option<Handle>) -> Result<Handle, ObjectError> {
        match root {
            None => server.create_object(self),
            Some(root) => server.create_sub(root, self),
        }
    }
}

impl<T: Replicate> Creation for &T {
    type Handle = Handle<T>;

    fn create(self, server: &mut Server, root: Option<Handle>) -> Result<Handle<T>, ObjectError> {
        let class = server.class_of::<T>().ok_or(ObjectError::UnknownClass)?;
        let handle = class.create(server, root)?;
        if let Err(error) = self.write(server, handle) {
            // An object without a handle must not stay.
            server.destroy(handle, DestroyReason::Destroyed, false)?;
            return Err(error);
        }
        Ok(Handle::assume(handle))
    }
}

impl Classes {
    /// Registers the class of a replicated struct.
    ///
    /// # Errors
    /// As [`Replicate::class`] and [`register`](Self::register).
    pub fn add<T: Replicate>(&mut self) -> Result<ClassId, ClassError> {
        let id = self.register(T::class()?)?;
        self.types.insert(TypeId::of::<T>(), id);
        Ok(id)
    }

    /// The class of a struct that was [added](Self::add).
    #[must_use]
    pub fn id_of<T: Replicate>(&self) -> Option<ClassId> {
        self.types.get(&TypeId::of::<T>()).copied()
    }
}

impl Server {
    /// The class of a struct that was [added](Classes::add).
    #[must_use]
    pub fn class_of<T: Replicate>(&self) -> Option<ClassId> {
        self.types.get(&TypeId::of::<T>()).copied()
    }

    /// The typed name of an object; `None` when it does not exist or has another class.
    #[must_use]
    pub fn typed<T: Replicate>(&self, handle: Handle) -> Option<Handle<T>> {
        (self.class_id(handle)? == self.class_of::<T>()?).then(|| Handle::assume(handle))
    }

    /// Queues a call on an object for one connection.
    ///
    /// # Errors
    /// As [`attach`](Self::attach), and [`AttachError::Direction`] for a call to the server.
    pub fn call<C: CallOn>(
        &mut self,
        id: ConnId,
        handle: Handle<C::Object>,
        call: &C,
    ) -> Result<(), AttachError> {
        let (bytes, reliable) = self.arguments(handle, call)?;
        self.attach(id, handle.untyped(), C::NUMBER, &bytes, reliable)
    }

    /// Queues a call on an object for every connection that has it in scope; returns the
    /// connections whose queue is full.
    ///
    /// # Errors
    /// As [`attach_all`](Self::attach_all), and [`AttachError::Direction`] for a call to the
    /// server.
    pub fn call_all<C: CallOn>(
        &mut self,
        handle: Handle<C::Object>,
        call: &C,
    ) -> Result<Vec<ConnId>, AttachError> {
        let (bytes, reliable) = self.arguments(handle, call)?;
        self.attach_all(handle.untyped(), C::NUMBER, &bytes, reliable)
    }

    /// The call that arrived, if it is this one, and its object.
    #[must_use]
    pub fn read_call<C: CallOn>(&self, call: &Attachment) -> Option<(Handle<C::Object>, C)> {
        let handle = self.typed::<C::Object>(call.object)?;
        Some((handle, read_call(self.class(handle.untyped())?, call)?))
    }

    fn arguments<C: CallOn>(
        &self,
        handle: Handle<C::Object>,
        call: &C,
    ) -> Result<(Vec<u8>, bool), AttachError> {
        let class = self.class(handle.untyped()).ok_or(AttachError::UnknownObject)?;
        write_call(class, Direction::ToClients, call)
    }
}

impl Client {
    /// The typed name of an object; `None` when it is not here or has another class.
    #[must_use]
    pub fn typed<T: Replicate>(&self, handle: Handle) -> Option<Handle<T>> {
        let class = self.class(self.id_of::<T>()?)?;
        let same = core::ptr::eq(self.get(handle)?.class(), class);
        same.then(|| Handle::assume(handle))
    }

    /// Reads a replica into a value that exists; `None` when it is not here or does not fit.
    pub fn read<T: Replicate>(&self, handle: Handle<T>, into: &mut T) -> Option<()> {
        into.read_into(self.get(handle.untyped())?)
    }

    /// Queues a call on an object.
    ///
    /// # Errors
    /// As [`attach`](Self::attach), and [`AttachError::Direction`] for a call to clients.
    pub fn call<C: CallOn>(&mut self, handle: Handle<C::Object>, call: &C) -> Result<(), AttachError> {
        let replica = self.get(handle.untyped()).ok_or(AttachError::UnknownObject)?;
        let (bytes, reliable) = write_call(replica.class(), Direction::ToServer, call)?;
        self.attach(handle.untyped(), C::NUMBER, &bytes, reliable)
    }

    /// The call that arrived, if it is this one, and its object.
    #[must_use]
    pub fn read_call<C: CallOn>(&self, call: &Attachment) -> Option<(Handle<C::Object>, C)> {
        let handle = self.typed::<C::Object>(call.object)?;
        Some((handle, read_call(self.get(call.object)?.class(), call)?))
    }
}

fn write_call<C: CallOn>(
    class: &crate::Class,
    direction: Direction,
    call: &C,
) -> Result<(Vec<u8>, bool), AttachError> {
    let known = class.calls.get(C::NUMBER as usize).ok_or(AttachError::Direction)?;
    if known.direction != direction {
        return Err(AttachError::Direction);
    }
    let mut bytes = Vec::new();
    known.codec.write_heap(&call.to_value(), &mut bytes).map_err(AttachError::Argument)?;
    Ok((bytes, known.reliable))
}

fn read_call<C: CallOn>(class: &crate::Class, call: &Attachment) -> Option<C> {
    let known = class.calls.get(C::NUMBER as usize).filter(|_| call.method == C::NUMBER)?;
    let mut value = C::default();
    let mut bits = BitReader::new(&call.bytes);
    value.read_from(&mut FieldReader::of_bits(&known.codec, &mut bits))?;
    Some(value)
}

/// Reads one property of a replica into a field.
#[doc(hidden)]
pub fn read_field(replica: &Replica, property: usize, field: &mut impl Field) -> Option<()> {
    replica.read_field(property, field)
}

/// The fields of a keyed array's elements: `#[derive(Element)]` implements it for a struct of plain
/// fields.
pub trait Element: Default {
    /// Describes an array of such elements.
    fn keyed(name: &str, max: u32) -> Keyed;

    /// Values of the fields, in order.
    fn values(&self) -> Vec<Value>;

    /// Takes the values of the fields.
    fn read_from(&mut self, fields: &mut dyn Iterator<Item = FieldReader<'_, '_>>) -> Option<()>;
}

/// Makes a keyed array equal to a map.
#[doc(hidden)]
pub fn write_elements<E: Element>(
    server: &mut Server,
    handle: Handle,
    array: usize,
    elements: &BTreeMap<u32, E>,
) -> Result<(), ObjectError> {
    let gone: Vec<u32> =
        server.element_keys(handle, array).filter(|key| !elements.contains_key(key)).collect();
    for key in gone {
        server.remove_element(handle, array, key).map_err(ObjectError::Element)?;
    }
    for (key, element) in elements {
        server.set_element(handle, array, *key, &element.values()).map_err(ObjectError::Element)?;
    }
    Ok(())
}

/// Makes a map equal to a keyed array, in the memory that it has.
#[doc(hidden)]
pub fn read_elements<E: Element>(
    replica: &Replica,
    array: usize,
    elements: &mut BTreeMap<u32, E>,
) -> Option<()> {
    elements.retain(|key, _| replica.has_element(array, *key));
    replica.read_elements(array, &mut |key, fields| elements.entry(key).or_default().read_from(fields))
}

/// A field that is a keyed array.
#[doc(hidden)]
pub trait ElementMap {
    /// Its elements.
    type Element: Element;
}

impl<E: Element> ElementMap for BTreeMap<u32, E> {
    type Element = E;
}

/// Describes the keyed array of a field.
#[doc(hidden)]
#[must_use]
pub fn keyed_of<M: ElementMap>(name: &str, max: u32) -> Keyed {
    M::Element::keyed(name, max)
}
