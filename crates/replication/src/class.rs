//! Classes: the static description of a replicated type.

use core::any::TypeId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::keyed::{ARRAYS_MAX, Keyed, KeyedClass};
use crate::quantise::{Codec, Motion, Quantiser, QuantiserError, Value, ValueMismatch, WORDS_MAX};
use crate::wire::PROTOCOL_VERSION;

/// Most properties of one class: the bits of a change mask.
pub const PROPERTIES_MAX: usize = 64;

/// Most classes: an id has 16 bits.
const CLASSES_MAX: usize = 1 << 16;

/// Audience of a property.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Condition {
    /// Everybody who has the object.
    #[default]
    Always,
    /// Everybody, in the create item only: later changes stay at home.
    InitialOnly,
    /// The owning connection, unless it [records](crate::Server::set_replay).
    OwnerOnly,
    /// All connections but the owning one; that one too if it records.
    SkipOwner,
    /// Everybody in the create item, later the owner alone.
    InitialOrOwner,
    /// Receivers that merely watch the object.
    SimulatedOnly,
    /// The receiver that controls the object locally: its owner.
    AutonomousOnly,
    /// Connections that record.
    ReplayOnly,
    /// All but connections that record.
    SkipReplay,
    /// Connections that record, and the owner.
    ReplayOrOwner,
    /// Everybody while it is enabled for the object; see `Server::set_condition_enabled`.
    Custom,
    /// Members of a condition group, 0 to 63.
    Group(u8),
    /// The audience that `Server::set_condition` chose for the object; everybody until then.
    Dynamic,
    /// Nobody; keeps the schema stable.
    Never,
}

/// Relation of a connection to an object; decides, with [`Condition`], which properties it gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    /// Sees it.
    #[default]
    Other = 0,
    /// Owns and controls it.
    Owner = 1,
    /// Records everything.
    Replay = 2,
}

/// Roles, for tables.
pub(crate) const ROLES: usize = 3;

impl Condition {
    /// True when `role` gets the property in updates, and in create items. Groups and custom
    /// switches come on top.
    pub(crate) fn admits(self, role: Role) -> (bool, bool) {
        let (owner, replay) = (role == Role::Owner, role == Role::Replay);
        let both = |yes| (yes, yes);
        match self {
            Self::Always | Self::Custom | Self::Group(_) | Self::Dynamic => both(true),
            Self::InitialOnly => (false, true),
            Self::OwnerOnly | Self::AutonomousOnly => both(owner),
            Self::SkipOwner | Self::SimulatedOnly => both(!owner),
            Self::InitialOrOwner => (owner, true),
            Self::ReplayOnly => both(replay),
            Self::SkipReplay => both(!replay),
            Self::ReplayOrOwner => both(owner || replay),
            Self::Never => both(false),
        }
    }
}

/// One property, for [`ClassBuilder::property`].
#[derive(Clone, Debug)]
pub struct Property {
    name: String,
    quantiser: Quantiser,
    condition: Condition,
    default: Option<Value>,
    position: bool,
    velocity: bool,
}

impl Property {
    /// A property that everybody gets; its default is zero, no rotation, nothing.
    #[must_use]
    pub fn new(name: impl Into<String>, quantiser: Quantiser) -> Self {
        Self {
            name: name.into(),
            quantiser,
            condition: Condition::Always,
            default: None,
            position: false,
            velocity: false,
        }
    }

    /// Restricts who gets it.
    #[must_use]
    pub fn condition(mut self, condition: Condition) -> Self {
        self.condition = condition;
        self
    }

    /// The value that a create item leaves out.
    #[must_use]
    pub fn default_value(mut self, value: impl Into<Value>) -> Self {
        self.default = Some(value.into());
        self
    }

    /// Marks the property, which must hold three numbers, as the object's place in the world:
    /// filters and prioritisers measure from it.
    #[must_use]
    pub fn world_position(mut self) -> Self {
        self.position = true;
        self
    }

    /// Marks the property, which must hold three numbers, as the velocity of the world position in
    /// its units a second: see [`ClassBuilder::predict`].
    #[must_use]
    pub fn velocity(mut self) -> Self {
        self.velocity = true;
        self
    }
}

/// Why a class was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClassError {
    /// More properties than a change mask has bits.
    #[error(
        "class {class}: {count} properties exceed the limit of {PROPERTIES_MAX}; split the class into sub-objects"
    )]
    TooManyProperties {
        /// Name of the class.
        class: String,
        /// The requested value.
        count: usize,
    },
    /// More keyed arrays than the format names.
    #[error("class {class}: {count} keyed arrays exceed the limit of {ARRAYS_MAX}")]
    TooManyArrays {
        /// Name of the class.
        class: String,
        /// The requested value.
        count: usize,
    },
    /// A quantiser's parameters are wrong.
    #[error("class {class}, property {property}: {error}")]
    Quantiser {
        /// Name of the class.
        class: String,
        /// Name of the property.
        property: String,
        /// The problem.
        error: QuantiserError,
    },
    /// The default does not fit the quantiser.
    #[error("class {class}, property {property}: the default value does not fit the quantiser")]
    Default {
        /// Name of the class.
        class: String,
        /// Name of the property.
        property: String,
    },
    /// A world position must be three numbers, and one at most.
    #[error("class {class}: a world position is one property of three numbers")]
    Position {
        /// Name of the class.
        class: String,
    },
    /// A prediction needs a world position, a velocity of three numbers, and a frame rate above
    /// zero.
    #[error("class {class}: a prediction needs a world position, a velocity and a frame rate")]
    Predict {
        /// Name of the class.
        class: String,
    },
    /// A condition group that does not exist.
    #[error("class {class}: condition groups are numbered 0 to 63")]
    Group {
        /// Name of the class.
        class: String,
    },
    /// Two properties of one name.
    #[error("class {class}: two properties are called {property}; names tell them apart in a schema")]
    DuplicateProperty {
        /// Name of the class.
        class: String,
        /// Name of both properties.
        property: String,
    },
    /// Two keyed arrays, two fields of one, or two calls of one name.
    #[error(
        "class {class}: {name} stands there twice; names tell arrays, fields and calls apart in a schema"
    )]
    DuplicateName {
        /// Name of the class.
        class: String,
        /// Name that is used twice; `array.field` for a field.
        name: String,
    },
    /// Two classes of one name.
    #[error("class {class} is registered already")]
    Duplicate {
        /// Name of the class.
        class: String,
    },
    /// More classes than there are ids.
    #[error("class {class}: {CLASSES_MAX} classes are registered, as many as there are ids")]
    TooManyClasses {
        /// Name of the class.
        class: String,
    },
}

/// Describes a class property by property.
///
/// ```
/// use throng_replication::{Axis, Class, Condition, Property, Quantiser};
/// let xy = Axis::new(-5242.88, 0.01, 20);
/// let class = Class::builder("character")
///     .property(Property::new("position", Quantiser::Vec3([xy, xy, Axis::new(-655.36, 0.01, 17)])).world_position())
///     .property(Property::new("health", Quantiser::UInt(10)).default_value(100_u32))
///     .property(Property::new("ammo", Quantiser::UInt(8)).condition(Condition::OwnerOnly))
///     .cull_distance(250.0)
///     .build()?;
/// assert_eq!(class.property_index("health"), Some(1));
/// # Ok::<(), throng_replication::ClassError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ClassBuilder {
    name: String,
    properties: Vec<Property>,
    keyed: Vec<Keyed>,
    calls: Vec<Call>,
    cull_distance: f32,
    flags: Flags,
}

/// Side that a call goes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// From clients to the server.
    #[default]
    ToServer,
    /// From the server to clients.
    ToClients,
}

/// Describes a call on objects of a class, for [`ClassBuilder::call`].
#[derive(Clone, Debug)]
pub struct Call {
    name: String,
    arguments: Vec<Quantiser>,
    direction: Direction,
    reliable: bool,
    callable: bool,
}

impl Call {
    /// A reliable call without arguments, which only an object's owner may send to the server.
    #[must_use]
    pub fn new(name: impl Into<String>, direction: Direction) -> Self {
        Self { name: name.into(), arguments: Vec::new(), direction, reliable: true, callable: false }
    }

    /// Adds an argument.
    #[must_use]
    pub fn argument(mut self, quantiser: Quantiser) -> Self {
        self.arguments.push(quantiser);
        self
    }

    /// Sends the call at most once, without order.
    #[must_use]
    pub fn unreliable(mut self) -> Self {
        self.reliable = false;
        self
    }

    /// Lets every client that has the object send the call.
    #[must_use]
    pub fn callable(mut self) -> Self {
        self.callable = true;
        self
    }
}

/// A described call, ready for use.
#[derive(Clone, Debug)]
pub(crate) struct CallClass {
    /// An enum of one variant, whose fields are the arguments.
    pub(crate) codec: Codec,
    pub(crate) direction: Direction,
    pub(crate) reliable: bool,
    pub(crate) callable: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flags {
    pub(crate) delta: bool,
    pub(crate) atomic: bool,
    pub(crate) required: bool,
    pub(crate) temporary: bool,
    pub(crate) retain: bool,
    pub(crate) callable: bool,
    /// Frames a second with which positions are predicted.
    pub(crate) predict: Option<f64>,
}

impl ClassBuilder {
    /// Adds a property; its index is the number of those before it.
    #[must_use]
    pub fn property(mut self, property: Property) -> Self {
        self.properties.push(property);
        self
    }

    /// Adds a keyed array; its number is the count of those before it, 16 at most.
    #[must_use]
    pub fn keyed(mut self, keyed: Keyed) -> Self {
        self.keyed.push(keyed);
        self
    }

    /// Adds a call; its method number is the count of those before it. A class with described calls
    /// takes no others.
    #[must_use]
    pub fn call(mut self, call: Call) -> Self {
        self.calls.push(call);
        self
    }

    /// Distance in metres up to which, inclusive, the grid filter lets objects through; negative
    /// numbers count as 0. Default 250.
    #[must_use]
    pub fn cull_distance(mut self, metres: f32) -> Self {
        self.cull_distance = metres.max(0.0);
        self
    }

    /// Sends differences to states that the receiver has acknowledged: fewer bytes for
    /// more time.
    #[must_use]
    pub fn delta(mut self, on: bool) -> Self {
        self.flags.delta = on;
        self
    }

    /// With [`delta`](Self::delta): differences of the world position are taken to where the
    /// receiver's state says that the object would be by now, at `frame_rate` frames a second:
    /// steady motion costs two bits for each axis. Whole numbers only, so that both sides agree to
    /// the bit.
    #[must_use]
    pub fn predict(mut self, frame_rate: f64) -> Self {
        self.flags.predict = Some(frame_rate);
        self
    }

    /// Receivers keep objects that leave their scope, as they were: coming back costs only what
    /// changed meanwhile. The server remembers some bytes for each; an object's end is told to
    /// those who keep it.
    #[must_use]
    pub fn retain(mut self, on: bool) -> Self {
        self.flags.retain = on;
        self
    }

    /// Every client that has an object of the class may call on it, not its owner alone.
    #[must_use]
    pub fn callable(mut self, on: bool) -> Self {
        self.flags.callable = on;
        self
    }

    /// Resends all properties that were sent together, together. A change after the lost one may
    /// still arrive before it.
    #[must_use]
    pub fn atomic(mut self, on: bool) -> Self {
        self.flags.atomic = on;
        self
    }

    /// A peer whose description of the class differs cannot connect at all.
    #[must_use]
    pub fn required(mut self, on: bool) -> Self {
        self.flags.required = on;
        self
    }

    /// Objects are sent once, when they come into scope; later changes, of elements of keyed arrays
    /// too, are not. What is sent again after a loss has the values of then.
    #[must_use]
    pub fn temporary(mut self, on: bool) -> Self {
        self.flags.temporary = on;
        self
    }

    /// Checks and prepares the description.
    ///
    /// # Errors
    /// When a quantiser, a default, the position or the count of properties is wrong.
    pub fn build(self) -> Result<Class, ClassError> {
        Class::new(self)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Prop {
    pub(crate) name: String,
    pub(crate) codec: Codec,
    /// First word in the quantised block.
    pub(crate) word: usize,
    /// First word in the live block.
    pub(crate) live: usize,
    /// Place among the class' heap properties, if the value lives there.
    pub(crate) heap: usize,
}

impl Prop {
    #[inline]
    pub(crate) fn words<'a>(&self, block: &'a [u64]) -> &'a [u64] {
        &block[self.word..self.word + self.codec.words()]
    }
}

/// An unsigned integer of a plain class.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Integer {
    /// First word in the live block, and the one in the quantised block.
    pub(crate) live: usize,
    pub(crate) word: usize,
    pub(crate) max: u64,
}

/// A registered class, ready for use. Share it between threads and peers freely.
#[derive(Clone, Debug)]
pub struct Class {
    name: String,
    pub(crate) props: Vec<Prop>,
    /// Words of one object's quantised block, of its live block, and its values on the heap.
    pub(crate) words: usize,
    pub(crate) live_words: usize,
    pub(crate) heap_count: usize,
    pub(crate) position: Option<usize>,
    velocity: Option<usize>,
    /// Motion of the position by the velocity.
    motion: Option<Motion>,
    pub(crate) cull_distance: f32,
    pub(crate) flags: Flags,
    pub(crate) defaults: Vec<u64>,
    pub(crate) live_defaults: Vec<u32>,
    /// Wire bytes and bits of the heap properties' defaults.
    pub(crate) heap_defaults: Vec<(Arc<[u8]>, u32)>,
    /// Properties whose changes can be sent at all.
    pub(crate) update_mask: u64,
    pub(crate) update_masks: [u64; ROLES],
    pub(crate) create_masks: [u64; ROLES],
    pub(crate) custom_mask: u64,
    /// Properties whose condition each object chooses.
    pub(crate) dynamic_mask: u64,
    /// (condition group, its properties).
    pub(crate) groups: Vec<(u8, u64)>,
    /// Properties whose values are tokens, or arrays of tokens.
    pub(crate) token_mask: u64,
    /// References that are hidden from receivers that do not know the target.
    pub(crate) hide_mask: u64,
    /// Properties that are references, or arrays of them.
    pub(crate) handle_mask: u64,
    pub(crate) hash: u64,
    /// Wire bits of each word of the quantised block.
    pub(crate) word_bits: Vec<u8>,
    pub(crate) keyed: Vec<Arc<KeyedClass>>,
    pub(crate) calls: Vec<CallClass>,
    /// Every property is one word of fixed width, so that property and word have the same number.
    pub(crate) plain: bool,
    /// Unsigned integers of a plain class, and the same as bits: most properties of most classes.
    pub(crate) integers: Vec<Integer>,
    pub(crate) integer_mask: u64,
    /// No record is longer, values on the heap aside.
    pub(crate) record_bytes_max: usize,
}

impl Class {
    /// Begins a description.
    #[must_use]
    pub fn builder(name: impl Into<String>) -> ClassBuilder {
        ClassBuilder {
            name: name.into(),
            properties: Vec::new(),
            keyed: Vec::new(),
            calls: Vec::new(),
            cull_distance: 250.0,
            flags: Flags::default(),
        }
    }

    fn new(builder: ClassBuilder) -> Result<Self, ClassError> {
        let ClassBuilder { name, properties, keyed, calls, cull_distance, flags } = builder;
        if properties.len() > PROPERTIES_MAX {
            return Err(ClassError::TooManyProperties { class: name, count: properties.len() });
        }
        if keyed.len() > ARRAYS_MAX {
            return Err(ClassError::TooManyArrays { class: name, count: keyed.len() });
        }
        let mut hash = hash_of((&name, flags), &properties, &keyed, &calls);
        let mut class = Self {
            hash: 0,
            name,
            props: Vec::with_capacity(properties.len()),
            words: 0,
            live_words: 0,
            heap_count: 0,
            position: None,
            velocity: None,
            motion: None,
            cull_distance,
            flags,
            defaults: Vec::new(),
            live_defaults: Vec::new(),
            heap_defaults: Vec::new(),
            update_mask: 0,
            update_masks: [0; ROLES],
            create_masks: [0; ROLES],
            custom_mask: 0,
            dynamic_mask: 0,
            groups: Vec::new(),
            token_mask: 0,
            hide_mask: 0,
            handle_mask: 0,
            record_bytes_max: 0,
            word_bits: Vec::new(),
            plain: true,
            integers: Vec::new(),
            integer_mask: 0,
            keyed: Vec::new(),
            calls: Vec::new(),
        };
        for property in properties {
            class.add(property)?;
        }
        for keyed in keyed {
            let duplicate = |name: String| ClassError::DuplicateName { class: class.name.clone(), name };
            if class.keyed.iter().any(|known| known.name == keyed.name) {
                return Err(duplicate(keyed.name));
            }
            let mut names = BTreeSet::new();
            if let Some((field, _)) = keyed.fields.iter().find(|(field, _)| !names.insert(field)) {
                return Err(duplicate(format!("{}.{field}", keyed.name)));
            }
            if matches!(keyed.condition, Condition::Group(64..)) {
                return Err(ClassError::Group { class: class.name });
            }
            let compiled =
                KeyedClass::compile(&keyed).map_err(|(property, error)| ClassError::Quantiser {
                    class: class.name.clone(),
                    property: format!("{}.{property}", keyed.name),
                    error,
                })?;
            class.keyed.push(Arc::new(compiled));
        }
        let mut names = BTreeSet::new();
        for Call { name, arguments, direction, reliable, callable } in calls {
            if !names.insert(name.clone()) {
                return Err(ClassError::DuplicateName { class: class.name, name });
            }
            let quantiser = Quantiser::Enum(vec![(name.clone(), arguments)]);
            let codec = Codec::compile(&quantiser).map_err(|error| ClassError::Quantiser {
                class: class.name.clone(),
                property: name,
                error,
            })?;
            class.calls.push(CallClass { codec, direction, reliable, callable });
        }
        if let Some(rate) = flags.predict {
            class.motion = class.motion_at(rate);
            if class.motion.is_none() {
                return Err(ClassError::Predict { class: class.name });
            }
        }
        // Create items leave defaults out, so peers must agree on them.
        for word in &class.defaults {
            hash = fnv(hash, &word.to_le_bytes());
        }
        for (bytes, bits) in &class.heap_defaults {
            hash = fnv(fnv(hash, &bits.to_le_bytes()), bytes);
        }
        class.hash = hash;
        // Index, mask and flags, then every property.
        let total: u32 = class.props.iter().map(|prop| prop.codec.bits_max()).sum();
        class.record_bytes_max = 5 + (total as usize + class.props.len() + 4 + 6).div_ceil(8);
        Ok(class)
    }

    fn add(&mut self, property: Property) -> Result<(), ClassError> {
        let Property { name, quantiser, condition, default, position, velocity } = property;
        if self.property_index(&name).is_some() {
            return Err(ClassError::DuplicateProperty { class: self.name.clone(), property: name });
        }
        let codec = Codec::compile(&quantiser).map_err(|error| ClassError::Quantiser {
            class: self.name.clone(),
            property: name.clone(),
            error,
        })?;
        let bit = 1 << self.props.len();
        if position {
            if self.position.is_some() || !matches!(quantiser, Quantiser::Vec3(_) | Quantiser::Floats(3)) {
                return Err(ClassError::Position { class: self.name.clone() });
            }
            self.position = Some(self.props.len());
        }
        if velocity {
            self.velocity = Some(self.props.len());
        }
        for (role, at) in [(Role::Other, 0), (Role::Owner, 1), (Role::Replay, 2)] {
            let (update, create) = condition.admits(role);
            self.update_masks[at] |= if update { bit } else { 0 };
            self.create_masks[at] |= if create { bit } else { 0 };
        }
        match condition {
            Condition::InitialOnly | Condition::Never => {}
            _ => self.update_mask |= bit,
        }
        match condition {
            Condition::Custom => self.custom_mask |= bit,
            Condition::Dynamic => self.dynamic_mask |= bit,
            Condition::Group(group) if group > 63 => {
                return Err(ClassError::Group { class: self.name.clone() });
            }
            Condition::Group(group) => match self.groups.iter_mut().find(|(known, _)| *known == group) {
                Some((_, mask)) => *mask |= bit,
                None => self.groups.push((group, bit)),
            },
            _ => {}
        }

        let (word, live, heap) = (self.words, self.live_words, self.heap_count);
        let refused =
            |_: ValueMismatch| ClassError::Default { class: self.name.clone(), property: name.clone() };
        if codec.is_heap() {
            let value = default.unwrap_or_else(|| codec.default_value());
            let mut bytes = Vec::new();
            let bits = codec.write_heap(&value, &mut bytes).map_err(refused)?;
            self.heap_defaults.push((bytes.into(), bits));
            self.heap_count += 1;
            self.defaults.push(0);
        } else {
            let mut values = [0_u32; 4];
            match (default, &quantiser) {
                (Some(value), _) => codec.store(&value, &mut values).map_err(refused)?,
                (None, Quantiser::Quat(_)) => values[3] = 1.0_f32.to_bits(),
                (None, Quantiser::Unit3(_)) => values[2] = 1.0_f32.to_bits(),
                (None, _) => {}
            }
            let mut q = [0; WORDS_MAX];
            codec.quantise(&values, &mut q);
            self.live_defaults.extend_from_slice(&values[..codec.live_words()]);
            self.defaults.extend_from_slice(&q[..codec.words()]);
        }
        self.plain &= codec.words() == 1 && codec.word_bits()[0] != 0 && !codec.is_heap();
        self.word_bits.extend_from_slice(codec.word_bits());
        if let Quantiser::UInt(bits) = quantiser {
            self.integers.push(Integer { live, word, max: crate::quantise::mask(u32::from(bits)) });
            self.integer_mask |= bit;
        }
        self.words += codec.words();
        self.live_words += codec.live_words();
        let hide = matches!(quantiser, Quantiser::Handle { hide: true });
        self.hide_mask |= if hide { bit } else { 0 };
        self.handle_mask |= if codec.has_handles() { bit } else { 0 };
        self.token_mask |= if codec.token_table().is_some() { bit } else { 0 };
        self.props.push(Prop { name, codec, word, live, heap });
        Ok(())
    }

    fn motion_at(&self, frame_rate: f64) -> Option<Motion> {
        let (position, velocity) = (&self.props[self.position?], &self.props[self.velocity?]);
        (frame_rate > 0.0).then(|| Motion::new(&position.codec, &velocity.codec, frame_rate))?
    }

    /// The words that a difference of a property is taken to: those of the state of `age` frames
    /// ago, or where the position of then would be by now.
    #[inline]
    pub(crate) fn ahead<'a>(
        &self,
        property: usize,
        (base, age): (&'a [u64], u32),
        moved: &'a mut [u64; WORDS_MAX],
    ) -> &'a [u64] {
        let prop = &self.props[property];
        let words = prop.words(base);
        let (Some(motion), Some(velocity)) = (&self.motion, self.velocity) else { return words };
        if self.position != Some(property) {
            return words;
        }
        let velocity = &self.props[velocity];
        let moved = &mut moved[..words.len()];
        moved.copy_from_slice(words);
        motion.advance((&prop.codec, moved), (&velocity.codec, velocity.words(base)), age);
        moved
    }

    /// Every client that has an object of the class may send this call.
    pub(crate) fn is_callable(&self, method: u64) -> bool {
        let call = usize::try_from(method).ok().and_then(|method| self.calls.get(method));
        self.flags.callable || call.is_some_and(|call| call.callable)
    }

    /// Name as registered.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Two peers whose hashes agree read each other's records. FNV-1a, 64 bits, over the class's
    /// name, whether it is `delta`, `callable` and predicted (with the rate); of each property in
    /// order its name, quantiser, condition, default, and whether it is the position or velocity;
    /// of each call its name, direction, reliability, `callable` and argument types; of each keyed
    /// array its name, limit, condition and fields. Not in it: the cull distance,
    /// which only the server reads.
    #[must_use]
    pub fn protocol_hash(&self) -> u64 {
        self.hash
    }

    /// Count of properties.
    #[must_use]
    pub fn property_count(&self) -> usize {
        self.props.len()
    }

    /// Index of a property by name; linear in the number of properties.
    #[must_use]
    pub fn property_index(&self, name: &str) -> Option<usize> {
        self.props.iter().position(|prop| prop.name == name)
    }

    /// Number of a keyed array by name.
    #[must_use]
    pub fn keyed_index(&self, name: &str) -> Option<usize> {
        self.keyed.iter().position(|keyed| keyed.name == name)
    }

    /// Name of a property.
    #[must_use]
    pub fn property_name(&self, index: usize) -> Option<&str> {
        self.props.get(index).map(|prop| prop.name.as_str())
    }

    /// The codec of a property, and where its words begin in the quantised block (64-bit words) and
    /// in the live block (32-bit words).
    ///
    /// The live block holds what [`Codec::store`] writes, [`Codec::live_words`] words each: one
    /// word of `f32` bits for numbers and for each axis of vectors and quaternions, one for
    /// booleans and tokens, two (low word first) for integers and for numbers that need `f64`, two
    /// (index, generation; an empty reference has index 0) for references. Strings, blobs, lists,
    /// options and enums have no words in it.
    ///
    /// # Panics
    /// When there is no such property.
    #[must_use]
    pub fn layout(&self, property: usize) -> (&Codec, usize, usize) {
        let prop = &self.props[property];
        (&prop.codec, prop.word, prop.live)
    }

    /// 64-bit words of one object's quantised block.
    #[must_use]
    pub fn quantised_words(&self) -> usize {
        self.words
    }

    /// 32-bit words of one object's live block.
    #[must_use]
    pub fn live_words(&self) -> usize {
        self.live_words
    }

    /// Mask of all properties.
    #[must_use]
    pub fn all_mask(&self) -> u64 {
        crate::quantise::mask(self.props.len() as u32)
    }

    /// Mask of the properties whose changes can be sent: all but initial-only and never.
    #[must_use]
    pub fn update_mask(&self) -> u64 {
        self.update_mask
    }

    /// Some connection gets other properties than the rest.
    pub(crate) fn is_conditional(&self) -> bool {
        self.update_masks.iter().any(|mask| *mask != self.update_masks[0])
            || !self.groups.is_empty()
            || self.dynamic_mask != 0
    }
}

/// FNV-1a, 64 bits, over the description in words.
fn hash_of((name, flags): (&str, Flags), properties: &[Property], keyed: &[Keyed], calls: &[Call]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |text: &str| hash = fnv(fnv(hash, text.as_bytes()), &[0]);
    add(name);
    add(if flags.delta { "delta" } else { "" });
    add(if flags.callable { "callable" } else { "" });
    if let Some(rate) = flags.predict {
        add(&format!("predict {rate:e}"));
    }
    for property in properties {
        if property.velocity {
            add("velocity");
        }
        if property.position {
            add("position");
        }
        add(&property.name);
        add(&describe(&property.quantiser));
        add(&format!("{:?}", property.condition));
    }
    for call in calls {
        let Call { name, arguments, direction, reliable, callable } = call;
        add(&format!("call {name} {direction:?} {reliable} {callable}"));
        arguments.iter().for_each(|argument| add(&describe(argument)));
    }
    for Keyed { name, fields, max, condition } in keyed {
        add(&format!("keyed {name} {max} {condition:?}"));
        for (name, quantiser) in fields {
            add(name);
            add(&describe(quantiser));
        }
    }
    hash
}

fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Kind and parameters in words that do not depend on how the compiler prints a type.
fn describe(quantiser: &Quantiser) -> String {
    let axis = |axis: &crate::Axis| format!("{:e},{:e},{}", axis.min, axis.step, axis.bits);
    match quantiser {
        Quantiser::Bool => "bool".into(),
        Quantiser::UInt(bits) => format!("uint {bits}"),
        Quantiser::Int(bits) => format!("int {bits}"),
        Quantiser::VarUInt => "varuint".into(),
        Quantiser::VarInt => "varint".into(),
        Quantiser::Fixed(a) => format!("fixed {}", axis(a)),
        Quantiser::Vec2([a, b]) => format!("vec2 {} {}", axis(a), axis(b)),
        Quantiser::Vec3([a, b, c]) => format!("vec3 {} {} {}", axis(a), axis(b), axis(c)),
        Quantiser::Unit3(bits) => format!("unit3 {bits}"),
        Quantiser::Quat(bits) => format!("quat {bits}"),
        Quantiser::Angle(bits) => format!("angle {bits}"),
        Quantiser::F16 => "f16".into(),
        Quantiser::F32 => "f32".into(),
        Quantiser::F64 => "f64".into(),
        Quantiser::Token(table) => format!("token {table}"),
        Quantiser::Handle { hide } => format!("handle {hide}"),
        Quantiser::Blob(max) => format!("blob {max}"),
        Quantiser::Text(max) => format!("text {max}"),
        Quantiser::Array(element, max) => format!("array {max} {}", describe(element)),
        Quantiser::Option(inner) => format!("option {}", describe(inner)),
        Quantiser::Enum(variants) => {
            let variants = variants.iter().map(|(name, fields)| {
                let fields: Vec<String> = fields.iter().map(describe).collect();
                format!("{name}({})", fields.join(","))
            });
            format!("enum {}", variants.collect::<Vec<_>>().join("|"))
        }
        Quantiser::Floats(count) => format!("floats {count}"),
        Quantiser::Custom(custom) => format!("custom {}", custom.name()),
    }
}

/// All classes that two peers share. Both register the same ones in the same order: the place is
/// the class id.
#[derive(Clone, Debug, Default)]
pub struct Classes {
    list: Vec<Arc<Class>>,
    names: BTreeSet<String>,
    /// Classes of replicated structs.
    pub(crate) types: BTreeMap<TypeId, ClassId>,
}

/// Names a class within [`Classes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClassId(pub u16);

/// Version of the wire format and hashes of all classes by id: what two peers must agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protocol {
    /// [`PROTOCOL_VERSION`] of the peer.
    pub version: u16,
    /// [`Class::protocol_hash`] of each class.
    pub classes: Vec<u64>,
}

impl Protocol {
    /// The description as bytes for a handshake: u16 version, then u64 for each class, little
    /// endian.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let classes = self.classes.iter().flat_map(|hash| hash.to_le_bytes());
        self.version.to_le_bytes().into_iter().chain(classes).collect()
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote; `None` for other lengths.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (version, rest) = bytes.split_first_chunk::<2>()?;
        let (classes, []) = rest.as_chunks::<8>() else { return None };
        let classes = classes.iter().map(|hash| u64::from_le_bytes(*hash)).collect();
        Some(Self { version: u16::from_le_bytes(*version), classes })
    }
}

impl Classes {
    /// No classes yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a class.
    ///
    /// # Errors
    /// [`ClassError::Duplicate`] for a name that is taken, [`ClassError::TooManyClasses`] at
    /// 65,536.
    pub fn register(&mut self, class: Class) -> Result<ClassId, ClassError> {
        if self.names.contains(&class.name) {
            return Err(ClassError::Duplicate { class: class.name });
        }
        if self.list.len() == CLASSES_MAX {
            return Err(ClassError::TooManyClasses { class: class.name });
        }
        self.names.insert(class.name.clone());
        let id = ClassId(self.list.len() as u16);
        self.list.push(Arc::new(class));
        Ok(id)
    }

    /// The class of an id.
    #[must_use]
    pub fn get(&self, id: ClassId) -> Option<&Arc<Class>> {
        self.list.get(usize::from(id.0))
    }

    /// Count of classes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// None registered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Description that peers exchange when they connect, for
    /// [`Server::check_protocol`](crate::Server::check_protocol).
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        Protocol { version: PROTOCOL_VERSION, classes: self.list.iter().map(|class| class.hash).collect() }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Class>> {
        self.list.iter()
    }
}
