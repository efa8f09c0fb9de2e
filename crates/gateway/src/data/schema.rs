//! Schemas: `.proto` sources and descriptor sets compiled to merge plans.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use hashbrown::HashMap;
use miette::Diagnostic;
use prost_reflect::{DescriptorPool, FieldDescriptor, Kind as ProtoKind, MessageDescriptor, Syntax};
use protox::file::{File, FileResolver, GoogleFileResolver};

use super::plan::{
    Action, Class, DataLimits, Element, FieldPlan, Kind, MapStep, MapValue, Plan, Profile, Scalar, Step,
    TypeIndex, TypePlan, Types,
};

use super::rule::{FieldRule, Rule};
use super::shape;

/// Files every schema may import, under the names the reference ships them with.
const BUILT_IN: [(&str, &str); 3] = [
    ("channeld.proto", throng_wire::proto::CHANNELD_PROTO),
    ("unity_common.proto", throng_wire::proto::UNITY_COMMON_PROTO),
    ("unreal_common.proto", throng_wire::proto::UNREAL_COMMON_PROTO),
];

/// The built-in files, compiled without others: by far the longest part of most starts.
static BUILT_IN_POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    let compiled = Files::collect(Vec::new(), &[]).and_then(|mut files| files.compile());
    compiled.expect("the built-in files are valid")
});

/// Compiles the built-in files, which takes some milliseconds. A program can have that done by
/// another thread before it needs [`Schemas`].
pub fn prepare() {
    LazyLock::force(&BUILT_IN_POOL);
}

/// Unreal state messages: a type with one of them among its fields merges by the Unreal profile.
const UNREAL_STATES: [&str; 10] = [
    "unrealpb.ActorState",
    "unrealpb.PawnState",
    "unrealpb.CharacterState",
    "unrealpb.PlayerState",
    "unrealpb.ControllerState",
    "unrealpb.PlayerControllerState",
    "unrealpb.ActorComponentState",
    "unrealpb.SceneComponentState",
    "unrealpb.StaticMeshComponentState",
    "unrealpb.GameStateBase",
];

/// Why a schema could not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{message}", self.place())]
pub struct SchemaError {
    /// The file as it was named when added; empty when no file is to blame.
    pub file: String,
    /// Line, from 1; 0 when unknown.
    pub line: u32,
    /// Column in characters, from 1; 0 when unknown.
    pub column: u32,
    /// What is wrong.
    pub message: String,
}

impl SchemaError {
    fn place(&self) -> String {
        match (self.file.as_str(), self.line) {
            ("", _) => String::new(),
            (file, 0) => format!("{file}: "),
            (file, line) => format!("{file}:{line}:{}: ", self.column),
        }
    }
}

/// Collects schema files and settings; [`SchemasBuilder::build`] compiles them.
///
/// ```
/// use throng_gateway::data::SchemasBuilder;
///
/// let schemas = SchemasBuilder::new()
///     .add_proto("game.proto", "syntax = \"proto3\"; package game; message World { map<uint32, string> names = 1; }")
///     .build()?;
/// assert!(schemas.plan("game.World").is_some());
/// # Ok::<(), throng_gateway::data::SchemaError>(())
/// ```
#[derive(Debug, Default)]
pub struct SchemasBuilder {
    sources: Vec<Source>,
    sets: Vec<(String, Vec<u8>)>,
    profiles: BTreeMap<String, Profile>,
    rules: BTreeMap<String, FieldRule>,
    limits: DataLimits,
    allow_opaque: bool,
}

#[derive(Clone, Debug)]
struct Source {
    /// Name given by the caller, for messages.
    display: String,
    /// Name imports refer to.
    name: String,
    text: String,
}

impl SchemasBuilder {
    /// A builder with the built-in files only.
    #[must_use]
    pub fn new() -> Self {
        Self { allow_opaque: true, ..Self::default() }
    }

    /// Adds a `.proto` file. Other files import it by this name or by any trailing part of its
    /// path.
    #[must_use]
    pub fn add_proto(mut self, file_name: &str, source: &str) -> Self {
        let name = file_name.replace('\\', "/");
        let name = name.trim_start_matches("./").trim_start_matches('/').replace("../", "");
        self.sources.push(Source { display: file_name.to_owned(), name, text: source.to_owned() });
        self
    }

    /// Adds an encoded `google.protobuf.FileDescriptorSet`, as `protoc --descriptor_set_out` writes
    /// it.
    #[must_use]
    pub fn add_descriptor_set(mut self, file_name: &str, bytes: &[u8]) -> Self {
        self.sets.push((file_name.to_owned(), bytes.to_vec()));
        self
    }

    /// Sets the merge profile of a type, by full name.
    #[must_use]
    pub fn profile(mut self, full_name: &str, profile: Profile) -> Self {
        self.profiles.insert(full_name.to_owned(), profile);
        self
    }

    /// Sets a rule for a top-level field, by the full name of its type and its own, as in
    /// `chatpb.ChatChannelData.chatMessages`. Rules act in the profiles [`Profile::Reflect`] and
    /// [`Profile::Removable`].
    #[must_use]
    pub fn rule(mut self, field: &str, rule: FieldRule) -> Self {
        self.rules.insert(field.to_owned(), rule);
        self
    }

    /// Sets the bounds of channel data.
    #[must_use]
    pub fn limits(mut self, limits: DataLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Whether types without a schema are accepted and concatenated (they are by default).
    #[must_use]
    pub fn allow_opaque(mut self, allow: bool) -> Self {
        self.allow_opaque = allow;
        self
    }

    /// Compiles everything that was added.
    ///
    /// # Errors
    /// The first error found in a file, with its place.
    pub fn build(self) -> Result<Schemas, SchemaError> {
        let (files, pool) = if self.sources.is_empty() && self.sets.is_empty() {
            (Files::default(), BUILT_IN_POOL.clone())
        } else {
            let mut files = Files::collect(self.sources, &self.sets)?;
            let pool = files.compile()?;
            (files, pool)
        };
        let names: HashMap<String, TypeIndex> = pool
            .all_messages()
            .filter(|message| !message.is_map_entry())
            .enumerate()
            .map(|(index, message)| (message.full_name().to_owned(), TypeIndex(index as u32)))
            .collect();
        let mut types = Vec::with_capacity(names.len());
        for message in pool.all_messages().filter(|message| !message.is_map_entry()) {
            types.push(compile_type(&message, &names, &files)?);
        }
        mark_message_oneofs(&mut types);
        let types = Arc::new(Types(types));
        for name in self.profiles.keys() {
            if !names.contains_key(name) {
                return Err(unplaced(format!(
                    "merge profile given for {name}, which no schema file defines"
                )));
            }
        }
        let mut rules = compile_rules(&self.rules, &types, &names)?;
        let mut plans = HashMap::with_capacity(names.len());
        for (name, &index) in &names {
            let plan = types.get(index);
            let profile = self.profiles.get(name).copied().unwrap_or_else(|| default_profile(&types, plan));
            let rules = rules.remove(name).unwrap_or_default();
            if profile == Profile::Unreal && !rules.is_empty() {
                return Err(unplaced(format!(
                    "rules of fields given for {name}, which merges by the profile unreal"
                )));
            }
            let classes =
                if profile == Profile::Unreal { unreal_classes(&types, plan) } else { Box::default() };
            plans.insert(
                name.clone(),
                Arc::new(Plan {
                    name: name.as_str().into(),
                    profile,
                    limits: self.limits,
                    types: types.clone(),
                    root: Some(index),
                    classes,
                    rules,
                }),
            );
        }
        Ok(Schemas { plans, pool, limits: self.limits, allow_opaque: self.allow_opaque })
    }
}

fn unplaced(message: String) -> SchemaError {
    SchemaError { file: String::new(), line: 0, column: 0, message }
}

type SlotRules = Box<[Option<Rule>]>;

/// The rules of each type that has some, by slot.
fn compile_rules(
    rules: &BTreeMap<String, FieldRule>,
    types: &Types,
    names: &HashMap<String, TypeIndex>,
) -> Result<HashMap<String, SlotRules>, SchemaError> {
    let mut compiled: HashMap<String, SlotRules> = HashMap::new();
    for (path, rule) in rules {
        let (type_name, field_name) = path.rsplit_once('.').unwrap_or(("", path));
        let place = names.get(type_name).and_then(|&index| {
            let fields = &types.get(index).fields;
            let slot = fields.iter().position(|field| &*field.name == field_name)?;
            Some((slot, fields))
        });
        let Some((slot, fields)) = place else {
            return Err(unplaced(format!("merge rule given for {path}, which no schema file defines")));
        };
        let rule = Rule::compile(rule, types, fields[slot].kind)
            .map_err(|why| unplaced(format!("merge rule for {path}: {why}")))?;
        let slots = compiled.entry(type_name.to_owned()).or_insert_with(|| vec![None; fields.len()].into());
        slots[slot] = Some(rule);
    }
    Ok(compiled)
}

/// Every known message type with its merge plan. The default knows none and refuses what it does
/// not know.
#[derive(Debug, Default)]
pub struct Schemas {
    plans: HashMap<String, Arc<Plan>>,
    pool: DescriptorPool,
    limits: DataLimits,
    allow_opaque: bool,
}

impl Schemas {
    /// The plan of a type by its full name, `None` when no schema defines it.
    #[must_use]
    pub fn plan(&self, full_name: &str) -> Option<&Arc<Plan>> {
        self.plans.get(full_name)
    }

    /// The plan of a type, or the fallback for types without a schema where that is allowed.
    #[must_use]
    pub fn plan_or_opaque(&self, full_name: &str) -> Option<Arc<Plan>> {
        match self.plans.get(full_name) {
            Some(plan) => Some(plan.clone()),
            None if self.allow_opaque => Some(Arc::new(Plan::opaque(full_name, self.limits))),
            None => None,
        }
    }

    /// The descriptors, for tools that show channel data.
    #[must_use]
    pub fn pool(&self) -> &DescriptorPool {
        &self.pool
    }

    /// Whether a type has a vector of `x`, `y` and `z` at a path of field names joined by dots.
    #[must_use]
    pub fn has_position(&self, path: &str) -> bool {
        self.plans.values().any(|plan| shape::vector(plan, path).is_some())
    }

    /// Paths to vectors of `x`, `y` and `z` in the known types, at most four names long, without
    /// those of the vectors' own type.
    #[must_use]
    pub fn position_paths(&self) -> BTreeSet<String> {
        let mut paths = BTreeSet::new();
        for plan in self.plans.values() {
            shape::vectors(plan, &mut paths);
        }
        paths
    }

    /// Number of message types known, built-in ones included.
    #[must_use]
    pub fn type_count(&self) -> usize {
        self.plans.len()
    }
}

/// Schema files under the names by which they import one another.
#[derive(Default)]
struct Files {
    files: BTreeMap<String, File>,
    /// Internal name to the caller's name and the text, for error places.
    texts: BTreeMap<String, (String, String)>,
    /// Files to compile, in the order added.
    order: Vec<String>,
}

impl Files {
    fn collect(mut sources: Vec<Source>, sets: &[(String, Vec<u8>)]) -> Result<Self, SchemaError> {
        let mut descriptors = Vec::new();
        for (display, bytes) in sets {
            let set =
                <prost_reflect::prost_types::FileDescriptorSet as prost::Message>::decode(bytes.as_slice())
                    .map_err(|error| SchemaError {
                    file: display.clone(),
                    line: 0,
                    column: 0,
                    message: format!("not a FileDescriptorSet: {error}"),
                })?;
            descriptors.extend(set.file);
        }
        let base = |name: &str| name.rsplit('/').next().unwrap_or(name).to_owned();
        let given: Vec<String> = sources
            .iter()
            .map(|source| base(&source.name))
            .chain(descriptors.iter().map(|file| base(file.name())))
            .collect();
        let own = sources.len();
        for (name, text) in BUILT_IN {
            // A caller's own copy takes the place of the built-in file.
            if !given.iter().any(|other| other == name) {
                let (display, name) = (name.to_owned(), name.to_owned());
                sources.push(Source { display, name, text: text.to_owned() });
            }
        }
        // Imports name files relative to directories this code never sees: the file whose path ends
        // in the imported name, or the built-in file whose name the import ends in, takes on the
        // imported name.
        let mut imports: Vec<String> = Vec::new();
        for source in &sources[..own] {
            let file = parse(source)?;
            imports.extend(file.file_descriptor_proto().dependency.iter().cloned());
        }
        imports.extend(descriptors.iter().flat_map(|file| file.dependency.iter().cloned()));
        for import in imports {
            if sources.iter().any(|source| source.name == import)
                || descriptors.iter().any(|file| file.name() == import)
            {
                continue;
            }
            let suffix = format!("/{import}");
            let found =
                sources[..own].iter().position(|source| source.name.ends_with(&suffix)).or_else(|| {
                    let wanted = base(&import);
                    sources[own..].iter().position(|source| source.name == wanted).map(|at| own + at)
                });
            if let Some(at) = found {
                sources[at].name = import;
            }
        }
        let mut files = Files::default();
        for source in sources {
            let file = parse(&source)?;
            files.order.push(source.name.clone());
            files.files.insert(source.name.clone(), file);
            files.texts.insert(source.name, (source.display, source.text));
        }
        for descriptor in descriptors {
            // protoc writes imported files into a set only when asked; those named google/protobuf
            // are known anyway.
            let name = descriptor.name().to_owned();
            if !name.starts_with("google/protobuf/") && !files.files.contains_key(&name) {
                files.order.push(name.clone());
                files.files.insert(name, File::from_file_descriptor_proto(descriptor));
            }
        }
        Ok(files)
    }

    fn compile(&mut self) -> Result<DescriptorPool, SchemaError> {
        let resolver = Resolver { files: std::mem::take(&mut self.files), google: GoogleFileResolver::new() };
        let mut compiler = protox::Compiler::with_file_resolver(resolver);
        compiler.include_imports(true).include_source_info(true);
        for name in &self.order {
            compiler.open_file(name).map_err(|error| {
                let file = error.file().unwrap_or(name).to_owned();
                self.error(&file, &error, error.to_string())
            })?;
        }
        Ok(compiler.descriptor_pool())
    }

    fn error(&self, file: &str, diagnostic: &dyn Diagnostic, message: String) -> SchemaError {
        let (display, text) = match self.texts.get(file) {
            Some((display, text)) => (display.as_str(), text.as_str()),
            None => (file, ""),
        };
        located(display, text, diagnostic, message)
    }
}

struct Resolver {
    files: BTreeMap<String, File>,
    google: GoogleFileResolver,
}

impl FileResolver for Resolver {
    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        match self.files.get(name) {
            Some(file) => Ok(file.clone()),
            None => self.google.open_file(name),
        }
    }
}

fn parse(source: &Source) -> Result<File, SchemaError> {
    File::from_source(&source.name, &source.text)
        .map_err(|error| located(&source.display, &source.text, &error, error.to_string()))
}

/// Turns a diagnostic's first label into a line and a column.
fn located(display: &str, text: &str, diagnostic: &dyn Diagnostic, message: String) -> SchemaError {
    let offset = diagnostic.labels().and_then(|mut labels| labels.next()).map(|label| label.offset());
    let before = offset.and_then(|offset| text.as_bytes().get(..offset));
    let (line, column) = match before {
        Some(before) if !text.is_empty() => {
            let start = before.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
            let line = before.iter().filter(|&&b| b == b'\n').count() as u32 + 1;
            (line, String::from_utf8_lossy(&before[start..]).chars().count() as u32 + 1)
        }
        _ => (0, 0),
    };
    SchemaError { file: display.to_owned(), line, column, message }
}

fn compile_type(
    message: &MessageDescriptor,
    names: &HashMap<String, TypeIndex>,
    files: &Files,
) -> Result<TypePlan, SchemaError> {
    let checked = message.parent_file().syntax() == Syntax::Proto3;
    let mut descriptors: Vec<FieldDescriptor> = message.fields().collect();
    descriptors.sort_by_key(FieldDescriptor::number);
    let mut oneofs: Vec<String> = Vec::new();
    let (mut steps, mut fields) = (Vec::new(), Vec::new());
    // Oneofs share the bit of their first member.
    let mut oneof_bits: HashMap<u16, u64> = HashMap::new();
    for (slot, field) in descriptors.iter().enumerate() {
        if field.is_group() {
            return Err(group_error(field, files));
        }
        let kind = field_kind(field, names, checked);
        let oneof =
            field.containing_oneof().filter(|_| field.cardinality() != prost_reflect::Cardinality::Repeated);
        let oneof = oneof.filter(|oneof| !oneof.is_synthetic()).map(|oneof| {
            let name = oneof.name().to_owned();
            oneofs.iter().position(|other| *other == name).unwrap_or_else(|| {
                oneofs.push(name);
                oneofs.len() - 1
            }) as u16
        });
        let own_bit = 1u64.checked_shl(slot as u32).unwrap_or(0);
        let bit = match oneof {
            Some(oneof) => *oneof_bits.entry(oneof).or_insert(own_bit),
            None => own_bit,
        };
        let singular = matches!(kind, Kind::Scalar(_) | Kind::Message(_));
        let (wire, action) = action(kind, field.name());
        let sub = match kind {
            Kind::Message(sub)
            | Kind::Records(Element::Message(sub))
            | Kind::Map { value: MapValue::Message(sub), .. } => sub,
            _ => TypeIndex(0),
        };
        let canonical = match kind {
            Kind::Numbers { scalar, packed: false } => scalar.wire(),
            _ => wire,
        };
        let map = match kind {
            Kind::Map { key, value } => MapStep {
                key: key.wire(),
                value: value.wire(),
                message: value.message().is_some(),
                utf8_key: key == Scalar::Utf8,
                utf8_value: value == MapValue::Scalar(Scalar::Utf8),
            },
            _ => MapStep::default(),
        };
        let seen = if singular { bit } else { 0 };
        steps.push(Step { number: field.number(), sub, seen, wire, action, map });
        fields.push(FieldPlan {
            name: field.name().into(),
            json: field.json_name().into(),
            tag: field.number() << 3 | u32::from(canonical),
            kind,
            implicit: matches!(kind, Kind::Scalar(_)) && !field.supports_presence(),
            oneof,
        });
    }
    let removed = steps.iter().find(|step| step.action == Action::Removed).map(|step| step.number);
    // Field numbers are mostly small; beyond the table they are searched.
    let table_len = steps.iter().map(|step| step.number + 1).filter(|&n| n <= 256).max().unwrap_or(0);
    let mut by_number = vec![0u16; table_len as usize];
    for (slot, step) in steps.iter().enumerate() {
        if let Some(entry) = by_number.get_mut(step.number as usize) {
            *entry = slot as u16 + 1;
        }
    }
    let mut quick = Box::new([Step::NONE; 16]);
    for step in &steps {
        if let Some(entry) = quick.get_mut(step.number as usize) {
            *entry = *step;
        }
    }
    Ok(TypePlan {
        index: names.get(message.full_name()).copied().unwrap_or(TypeIndex(0)),
        quick,
        name: message.full_name().into(),
        steps: steps.into(),
        fields: fields.into(),
        by_number: by_number.into(),
        removed,
        has_message_oneof: false,
    })
}

fn field_kind(field: &FieldDescriptor, names: &HashMap<String, TypeIndex>, checked: bool) -> Kind {
    let message = |kind: &ProtoKind| match kind {
        ProtoKind::Message(message) => names.get(message.full_name()).copied(),
        _ => None,
    };
    let kind = field.kind();
    if let (true, ProtoKind::Message(entry)) = (field.is_map(), &kind) {
        let value = entry.map_entry_value_field().kind();
        return Kind::Map {
            key: scalar(&entry.map_entry_key_field().kind(), checked),
            value: match message(&value) {
                Some(sub) => MapValue::Message(sub),
                None => MapValue::Scalar(scalar(&value, checked)),
            },
        };
    }
    match (field.is_list(), message(&kind)) {
        (true, Some(sub)) => Kind::Records(Element::Message(sub)),
        (true, None) => match scalar(&kind, checked) {
            Scalar::Utf8 => Kind::Records(Element::Utf8),
            Scalar::Bytes => Kind::Records(Element::Bytes),
            scalar => Kind::Numbers { scalar, packed: field.is_packed() },
        },
        (false, Some(sub)) => Kind::Message(sub),
        (false, None) => Kind::Scalar(scalar(&kind, checked)),
    }
}

fn scalar(kind: &ProtoKind, checked: bool) -> Scalar {
    match kind {
        ProtoKind::Int32 | ProtoKind::Uint32 | ProtoKind::Sint32 | ProtoKind::Enum(_) => Scalar::Varint32,
        ProtoKind::Int64 | ProtoKind::Uint64 | ProtoKind::Sint64 => Scalar::Varint64,
        ProtoKind::Bool => Scalar::Bool,
        ProtoKind::Fixed32 | ProtoKind::Sfixed32 | ProtoKind::Float => Scalar::Fixed32,
        ProtoKind::Fixed64 | ProtoKind::Sfixed64 | ProtoKind::Double => Scalar::Fixed64,
        ProtoKind::String if checked => Scalar::Utf8,
        ProtoKind::String | ProtoKind::Bytes | ProtoKind::Message(_) => Scalar::Bytes,
    }
}

/// Wire type and validation of a field.
fn action(kind: Kind, name: &str) -> (u8, Action) {
    use super::cursor::LEN;
    match kind {
        Kind::Scalar(scalar) => (
            scalar.wire(),
            match scalar {
                Scalar::Bool if name == "removed" => Action::Removed,
                Scalar::Varint32 | Scalar::Varint64 | Scalar::Bool => Action::Varint,
                Scalar::Fixed32 => Action::Fixed32,
                Scalar::Fixed64 => Action::Fixed64,
                Scalar::Utf8 => Action::Utf8,
                Scalar::Bytes => Action::Bytes,
            },
        ),
        Kind::Message(_) | Kind::Records(Element::Message(_)) => (LEN, Action::Message),
        Kind::Records(Element::Utf8) => (LEN, Action::Utf8),
        Kind::Records(Element::Bytes) => (LEN, Action::Bytes),
        Kind::Numbers { scalar, .. } => (
            LEN,
            match scalar {
                Scalar::Fixed32 => Action::PackedFixed32,
                Scalar::Fixed64 => Action::PackedFixed64,
                _ => Action::PackedVarint,
            },
        ),
        Kind::Map { .. } => (LEN, Action::Map),
    }
}

/// The refusal of a proto2 group, with its place where the source is known.
fn group_error(field: &FieldDescriptor, files: &Files) -> SchemaError {
    let file = field.parent_message().parent_file();
    let place = file.file_descriptor_proto().source_code_info.as_ref().and_then(|info| {
        let location = info.location.iter().find(|location| location.path == field.path())?;
        Some((*location.span.first()? as u32 + 1, *location.span.get(1)? as u32 + 1))
    });
    let (line, column) = place.unwrap_or((0, 0));
    let display = files.texts.get(file.name()).map_or(file.name(), |(display, _)| display.as_str());
    let message = format!("field {} is a proto2 group; use a message field instead", field.full_name());
    SchemaError { file: display.to_owned(), line, column, message }
}

/// Sets [`TypePlan::has_message_oneof`], following fields until nothing changes.
fn mark_message_oneofs(types: &mut [TypePlan]) {
    loop {
        let mut changed = false;
        for index in 0..types.len() {
            if types[index].has_message_oneof {
                continue;
            }
            let found = types[index].fields.iter().any(|field| match field.kind {
                Kind::Message(sub) => field.oneof.is_some() || types[sub.0 as usize].has_message_oneof,
                Kind::Map { value: MapValue::Message(sub), .. } => types[sub.0 as usize].has_message_oneof,
                _ => false,
            });
            types[index].has_message_oneof = found;
            changed |= found;
        }
        if !changed {
            return;
        }
    }
}

fn default_profile(types: &Types, plan: &TypePlan) -> Profile {
    let is_state = |sub: TypeIndex| UNREAL_STATES.contains(&&*types.get(sub).name);
    let unreal = is_spatial_data(plan)
        || is_entity_reference(types, plan)
        || plan.fields.iter().any(|field| match field.kind {
            Kind::Message(sub) | Kind::Map { value: MapValue::Message(sub), .. } => is_state(sub),
            _ => false,
        });
    if unreal { Profile::Unreal } else { Profile::Reflect }
}

fn is_spatial_data(plan: &TypePlan) -> bool {
    &*plan.name == "unrealpb.SpatialChannelData"
}

/// Whether the type is the data of an entity channel: field 1 is its object reference.
fn is_entity_reference(types: &Types, plan: &TypePlan) -> bool {
    plan.fields.first().is_some_and(|field| {
        let reference =
            matches!(field.kind, Kind::Message(sub) if &*types.get(sub).name == "unrealpb.UnrealObjectRef");
        reference && field.tag >> 3 == 1 && &*field.json == "objRef"
    })
}

fn unreal_classes(types: &Types, plan: &TypePlan) -> Box<[Class]> {
    let entity = is_entity_reference(types, plan);
    let classes = plan.fields.iter().enumerate().map(|(slot, field)| match field.kind {
        Kind::Message(_) if entity && slot == 0 => Class::Fixed,
        Kind::Map { value: MapValue::Message(sub), .. } => {
            let value = types.get(sub);
            if is_spatial_data(plan) {
                Class::KeepFirst
            } else if &*value.name == "unrealpb.ActorState" {
                Class::Actor
            } else if value.removed.is_some() {
                Class::Component
            } else {
                Class::Plain
            }
        }
        _ => Class::Plain,
    });
    classes.collect()
}
