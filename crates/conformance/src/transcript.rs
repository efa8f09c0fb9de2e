//! Reads the conversations, plays them on a stage and compares the received messages.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use prost_reflect::prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, SerializeOptions};
use serde_json::Value;
use throng_gateway::ConnKind;
use throng_gateway::data::{Schemas, SchemasBuilder};
use throng_wire::frame::{Compression, FrameReader};
use throng_wire::{FrameWriter, MessagePack, channeldpb::MessageType};

/// One conversation.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// As in the fixture.
    pub name: String,
    /// File in `fixtures/gateway/config`.
    pub channel_settings: String,
    /// File in `fixtures/gateway/config`.
    pub client_state_machine: String,
    /// File in `fixtures/gateway/config`.
    pub server_state_machine: String,
    /// Longest absence of a lost server; `None` when lost servers are not kept.
    pub recover_timeout_ms: Option<u64>,
    /// The grid of spatial channels: a file in `fixtures/gateway/config`.
    pub spatial_controller: Option<String>,
    data_types: Vec<String>,
    steps: Vec<Step>,
}

#[derive(Clone, Debug)]
struct Step {
    connect: Vec<(String, ConnKind)>,
    from: Option<String>,
    send: Vec<Message>,
    raw: Option<Vec<u8>>,
    close: Option<String>,
    wait_ms: Option<u64>,
    expect: BTreeMap<String, Vec<Message>>,
    closed_by_peer: Vec<String>,
    note: String,
}

/// A message as the fixture writes it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Message {
    /// Channel id.
    pub channel: u32,
    /// Broadcast bits.
    pub broadcast: u32,
    /// Correlates request and answer; 0 for none.
    pub stub: u32,
    /// `MessageType`, or 100 and above for user space.
    pub msg_type: u32,
    /// The encoded body.
    pub body: Vec<u8>,
    /// The body where the fixture gives it only as JSON, because a part differs from run to run.
    pub json: Option<Value>,
}

/// A gateway and connections to it, by name.
///
/// Time on a stage is exact (a simulation) or runs by itself (sockets). In the second case messages
/// that a timer causes may come during an earlier step than at the reference, if this process is
/// slow: such a stage keeps what a step does not want for the next one. What nobody wanted is left
/// at the end and counts as a difference.
pub trait Stage {
    /// True if timers fire exactly when they are due. If not, what a timer causes (state updates,
    /// the end of a recovery) may come before or after answers that it races with.
    const EXACT_TIME: bool;

    /// Opens a connection. The gateway knows it when this returns.
    fn connect(&mut self, name: &str, kind: ConnKind);
    /// Sends bytes that end with a whole frame.
    fn send(&mut self, name: &str, bytes: &[u8]);
    /// Sends bytes so that each arrives alone.
    fn send_bytewise(&mut self, name: &str, bytes: &[u8]);
    /// Ends a connection without a goodbye. The gateway may not know it yet when this returns.
    fn close(&mut self, name: &str);
    /// Lets the gateway do what it was asked to, so that what follows comes later in every order.
    fn settle(&mut self);
    /// Waits as long as the reference was watched, or until everything expected is there and
    /// nothing more is due.
    fn finish_step(&mut self, wait_ms: u64, complete: &dyn Fn(&Self) -> bool);
    /// Messages that a connection received and the stage has not taken yet.
    fn received(&self, name: &str) -> &[Message];
    /// Takes what belongs to a step that expects `wanted` messages for this connection.
    fn take_received(&mut self, name: &str, wanted: usize) -> Vec<Message>;
    /// True when the gateway closed the connection.
    fn is_closed(&self, name: &str) -> bool;
}

/// A file of `fixtures/`.
#[must_use]
pub fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(path)
}

/// The text of a file of `fixtures/`.
///
/// # Panics
/// When it cannot be read.
#[must_use]
pub fn read(path: &str) -> String {
    let path = fixture(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All conversations.
///
/// # Panics
/// When the fixture is not what it should be.
#[must_use]
pub fn scenarios() -> Vec<Scenario> {
    let file: Value = serde_json::from_str(&read("gateway/transcripts.json")).expect("the fixture is JSON");
    let scenarios = file["scenarios"].as_array().expect("scenarios");
    scenarios.iter().map(Scenario::parse).collect()
}

impl Scenario {
    fn parse(value: &Value) -> Scenario {
        let settings = &value["settings"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let texts = |value: &Value| value.as_array().into_iter().flatten().map(text).collect();
        Scenario {
            name: text(&value["name"]),
            channel_settings: text(&settings["channelSettings"]),
            client_state_machine: text(&settings["clientStateMachine"]),
            server_state_machine: text(&settings["serverStateMachine"]),
            recover_timeout_ms: (settings["serverRecoverable"] == true)
                .then(|| settings["recoverTimeoutMs"].as_u64().unwrap_or(0)),
            spatial_controller: settings["spatialController"].as_str().map(str::to_owned),
            data_types: texts(&value["dataTypes"]),
            steps: value["steps"].as_array().into_iter().flatten().map(Step::parse).collect(),
        }
    }

    /// The `.proto` files of `fixtures/proto` with the types that the reference had linked in for
    /// this conversation.
    pub fn schema_files(&self) -> impl Iterator<Item = &'static str> {
        [("chatpb.", "chat.proto"), ("tpspb.", "tps.proto")]
            .into_iter()
            .filter(|(package, _)| self.data_types.iter().any(|name| name.starts_with(package)))
            .map(|(_, file)| file)
    }

    /// [`Scenario::schema_files`], compiled.
    ///
    /// # Panics
    /// When a fixture does not compile.
    #[must_use]
    pub fn schemas(&self) -> Schemas {
        let add = |builder: SchemasBuilder, file| builder.add_proto(file, &read(&format!("proto/{file}")));
        self.schema_files().fold(SchemasBuilder::new(), add).build().expect("the fixtures compile")
    }

    /// Plays the conversation and returns what was different.
    pub fn play<S: Stage>(&self, stage: &mut S, deviations: &[Deviation]) -> Vec<String> {
        let pool = self.schemas().pool().clone();
        let mut run = Run { scenario: self, pool, ids: BTreeMap::from([(0, 0)]), differences: Vec::new() };
        // Steps without a pause belong together: what they cause is listed at the next one.
        let mut causes = Vec::new();
        for (index, step) in self.steps.iter().enumerate() {
            let deviation = deviations.iter().find(|d| d.scenario == self.name && d.step == index);
            causes.extend(run.act(stage, step));
            let Some(wait_ms) = step.wait_ms else {
                // Messages arrive in the order of sending, as they did at the reference.
                stage.settle();
                continue;
            };
            let mut expect = step.expect.clone();
            let mut closed = step.closed_by_peer.clone();
            if let Some(deviation) = deviation {
                (deviation.change)(&mut expect, &mut closed);
            }
            stage.finish_step(wait_ms, &|stage: &S| {
                expect.iter().all(|(name, list)| stage.received(name).len() >= list.len())
                    && closed.iter().all(|name| stage.is_closed(name))
            });
            let order = Order::of(&std::mem::take(&mut causes), self.spatial_controller.is_some());
            run.compare(stage, index, &expect, &closed, order);
        }
        run.compare_rest(stage);
        run.differences
    }

    /// The names of all connections of the first `steps` steps.
    fn names(&self, steps: usize) -> BTreeSet<&str> {
        self.steps[..steps].iter().flat_map(|step| &step.connect).map(|(name, _)| name.as_str()).collect()
    }
}

/// A step where this gateway does something else than the reference, on purpose.
#[derive(Debug)]
pub struct Deviation {
    /// Name of the conversation.
    pub scenario: &'static str,
    /// Step from 0.
    pub step: usize,
    /// Difference and its reason; printed by `cargo test -- --nocapture`.
    pub why: &'static str,
    /// Turns the reference's behaviour into ours: messages by connection, connections closed.
    pub change: fn(&mut BTreeMap<String, Vec<Message>>, &mut Vec<String>),
}

impl Step {
    fn parse(value: &Value) -> Step {
        let messages = |value: &Value| -> Vec<Message> {
            value.as_array().into_iter().flatten().map(Message::parse).collect()
        };
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let kind = |value: &Value| match value.as_str() {
            Some("server") => ConnKind::Server,
            Some("client") => ConnKind::Client,
            other => panic!("{other:?} is no kind of connection"),
        };
        Step {
            connect: value["connect"]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(name, k)| (name.clone(), kind(k)))
                .collect(),
            from: text(&value["from"]),
            send: messages(&value["send"]),
            raw: value["sendRawHex"].as_str().map(unhex),
            close: text(&value["close"]),
            wait_ms: value["waitMs"].as_u64(),
            expect: value["expect"]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(name, list)| (name.clone(), messages(list)))
                .collect(),
            closed_by_peer: value["closedByPeer"].as_array().into_iter().flatten().filter_map(text).collect(),
            note: text(&value["note"]).unwrap_or_default(),
        }
    }
}

impl Message {
    fn parse(value: &Value) -> Message {
        let number = |key: &str| value[key].as_u64().unwrap_or(0) as u32;
        Message {
            channel: number("channelId"),
            broadcast: number("broadcast"),
            stub: number("stubId"),
            msg_type: number("msgType"),
            body: unhex(value["bodyHex"].as_str().unwrap_or_default()),
            json: value["bodyHex"].is_null().then(|| value["body"].clone()).filter(|body| !body.is_null()),
        }
    }
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2)
        .map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("hex digits"))
        .collect()
}

struct Run<'a> {
    scenario: &'a Scenario,
    pool: DescriptorPool,
    /// Channel ids of the reference to channel ids here, by first appearance.
    ids: BTreeMap<u32, u32>,
    differences: Vec<String>,
}

impl Run<'_> {
    /// Does what a step does; returns who thereby causes messages.
    fn act(&mut self, stage: &mut impl Stage, step: &Step) -> Option<Cause> {
        for (name, kind) in &step.connect {
            stage.connect(name, *kind);
        }
        let mut cause = None;
        if let Some(from) = &step.from
            && !stage.is_closed(from)
        {
            cause = Some(Cause::Sent(from.clone()));
            let mut bytes = step.raw.clone().unwrap_or_default();
            if !step.send.is_empty() {
                self.frame_of(step, &mut bytes);
            }
            if step.note.contains("one byte at a time") {
                stage.send_bytewise(from, &bytes);
            } else {
                stage.send(from, &bytes);
            }
        }
        if let Some(name) = &step.close {
            stage.close(name);
            cause = Some(Cause::Closed);
        }
        cause
    }

    fn frame_of(&self, step: &Step, out: &mut Vec<u8>) {
        let mut writer = FrameWriter::new();
        if step.note.contains("compression byte 1") {
            // Small packets do not get smaller, so the block is made here.
            let mut packet = Vec::new();
            for message in &step.send {
                throng_wire::write_entry(&mut packet, &self.translated(message).pack());
            }
            let block = snappy_literal(&packet);
            out.extend_from_slice(&throng_wire::frame::tag(block.len(), Compression::Snappy));
            out.extend_from_slice(&block);
            return;
        }
        for message in &step.send {
            writer.push(&self.translated(message).pack(), out).expect("fixture messages are small");
        }
        writer.flush(out);
        if step.note.contains("compression byte 7") {
            out[4] = 7;
        }
    }

    /// A message to send, with the channel ids of this gateway.
    fn translated(&self, message: &Message) -> Message {
        let channel = self.ids.get(&message.channel).copied().unwrap_or(message.channel);
        let mut body = message.body.clone();
        if message.msg_type == 4
            && let Ok(mut remove) = throng_wire::channeldpb::RemoveChannelMessage::decode(body.as_slice())
        {
            remove.channel_id = self.ids.get(&remove.channel_id).copied().unwrap_or(remove.channel_id);
            body = remove.encode_to_vec();
        }
        Message { channel, body, ..message.clone() }
    }

    fn compare<S: Stage>(
        &mut self,
        stage: &mut S,
        index: usize,
        expect: &BTreeMap<String, Vec<Message>>,
        closed: &[String],
        order: Order,
    ) {
        let mut names = self.scenario.names(index + 1);
        names.extend(expect.keys().map(String::as_str));
        let scenario = &self.scenario.name;
        for name in names {
            let wanted = expect.get(name).cloned().unwrap_or_default();
            let got = stage.take_received(name, wanted.len());
            if !S::EXACT_TIME && wanted.iter().any(|m| m.msg_type == MessageType::RecoveryEnd as u32) {
                // A slow process sends this step's messages after the recovery, which then does not
                // discard them.
                let is_forwarded = |m: &Message| m.msg_type >= MessageType::UserSpaceStart as u32;
                while stage.received(name).first().is_some_and(is_forwarded) {
                    stage.take_received(name, 1);
                }
            }
            // New channels are announced by their creation; it comes before anything about them.
            for (wanted, got) in wanted.iter().zip(&got) {
                if let (Some(theirs), Some(ours)) = (wanted.created_channel(), got.created_channel()) {
                    self.ids.insert(theirs, ours);
                }
            }
            let wanted: Vec<String> = wanted.iter().map(|m| self.print(m, true)).collect();
            let got: Vec<String> = got.iter().map(|m| self.print(m, false)).collect();
            if !order.same(&wanted, &got, S::EXACT_TIME) {
                self.differences.push(format!(
                    "{scenario} step {index}, {name} received\n  {}\nbut the reference sends\n  {}",
                    got.join("\n  "),
                    wanted.join("\n  ")
                ));
            }
            if closed.iter().any(|closed| closed == name) && !stage.is_closed(name) {
                self.differences.push(format!("{scenario} step {index}: {name} should have been closed"));
            }
        }
    }

    /// Messages that a stage kept for a next step that never came.
    fn compare_rest(&mut self, stage: &mut impl Stage) {
        for name in self.scenario.names(self.scenario.steps.len()) {
            let got = stage.take_received(name, usize::MAX);
            if !got.is_empty() {
                let got: Vec<String> = got.iter().map(|m| self.print(m, false)).collect();
                let scenario = &self.scenario.name;
                self.differences
                    .push(format!("{scenario}, {name} received too much\n  {}", got.join("\n  ")));
            }
        }
    }

    /// A message in a form that is equal iff the decoded content is, with this gateway's channel
    /// ids.
    fn print(&self, message: &Message, theirs: bool) -> String {
        let own = |id: u32| if theirs { self.ids.get(&id).copied().unwrap_or(id) } else { id };
        let mut body = self.decode(message);
        if theirs {
            self.translate_ids(&mut body);
        }
        if let Some(fields) = body.as_object_mut() {
            // Absolute time of a subscription.
            fields.remove("subTime");
            // Extensions, which the reference's peers skip.
            fields.remove("version");
            fields.remove("versions");
        }
        if message.msg_type == 5
            && let Some(channels) = body.get_mut("channels").and_then(Value::as_array_mut)
        {
            channels.sort_by_key(ToString::to_string);
        }
        let Message { channel, broadcast, stub, msg_type, .. } = message;
        format!("ch{} bc{broadcast} stub{stub} type{msg_type} {body}", own(*channel))
    }

    fn decode(&self, message: &Message) -> Value {
        if let Some(json) = &message.json {
            return json.clone();
        }
        let name = match message.msg_type {
            1 => "AuthResultMessage",
            10 if message.created_channel().is_none() => "CreateSpatialChannelsResultMessage",
            3 | 10 | 15 => "CreateChannelResultMessage",
            0 | 4 => "RemoveChannelMessage",
            5 => "ListChannelResultMessage",
            6 => "SubscribedToChannelResultMessage",
            7 => "UnsubscribedFromChannelResultMessage",
            8 => "ChannelDataUpdateMessage",
            11 => "QuerySpatialChannelResultMessage",
            12 => "ChannelDataHandoverMessage",
            13 => "SpatialRegionsUpdateMessage",
            18 => "SpatialChannelsReadyMessage",
            20 => "ChannelDataRecoveryMessage",
            21 => "EndRecoveryMesssage",
            22 => "ChannelOwnerLostMessage",
            23 => "ChannelOwnerRecoveredMessage",
            100.. => "ServerForwardMessage",
            other => panic!("the gateway sent a message of type {other}"),
        };
        let descriptor =
            self.pool.get_message_by_name(&format!("channeldpb.{name}")).expect("a built-in type");
        let decoded = DynamicMessage::decode(descriptor, message.body.as_slice()).expect("a good body");
        let options = SerializeOptions::new().use_proto_field_name(true);
        decoded
            .serialize_with_options(serde_json::value::Serializer, &options)
            .unwrap_or_else(|error| panic!("type {}: {error}", message.msg_type))
    }

    fn translate_ids(&self, value: &mut Value) {
        match value {
            Value::Object(fields) => {
                for (key, value) in fields {
                    match value.as_u64() {
                        Some(id) if key == "channelId" => {
                            *value = self.ids.get(&(id as u32)).copied().unwrap_or(id as u32).into();
                        }
                        _ => self.translate_ids(value),
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.translate_ids(item)),
            _ => {}
        }
    }
}

impl Message {
    fn pack(&self) -> MessagePack<'_> {
        MessagePack {
            channel_id: self.channel,
            broadcast: self.broadcast,
            stub_id: self.stub,
            msg_type: self.msg_type,
            body: &self.body,
        }
    }

    fn created_channel(&self) -> Option<u32> {
        if !matches!(self.msg_type, 3 | 10) {
            return None;
        }
        let body = throng_wire::channeldpb::CreateChannelResultMessage::decode(self.body.as_slice()).ok()?;
        Some(body.channel_id)
    }
}

/// Input that makes the gateway send.
#[derive(PartialEq)]
enum Cause {
    /// Messages of a connection.
    Sent(String),
    /// The end of a connection.
    Closed,
}

/// Strictness about the order of the messages that one connection received.
#[derive(Clone, Copy)]
enum Order {
    /// All of it: one thing was done.
    Whole,
    /// Within each channel: messages to different channels have no mutual order (spec §1), nor have
    /// the notices about a lost connection.
    ByChannel,
    /// Not at all: several connections did something at once.
    None,
}

impl Order {
    /// In a world one message may act on many channels, which the reference does in the loop of
    /// each.
    fn of(causes: &[Cause], world: bool) -> Order {
        match causes {
            [] | [Cause::Sent(_)] if world => Order::ByChannel,
            [] | [Cause::Sent(_)] => Order::Whole,
            [first, rest @ ..] if rest.iter().all(|cause| cause == first) => Order::ByChannel,
            _ => Order::None,
        }
    }

    fn same(self, wanted: &[String], got: &[String], exact_time: bool) -> bool {
        let by = |messages: &[String], updates_apart: bool| {
            let mut groups: BTreeMap<(String, bool), Vec<String>> = BTreeMap::new();
            for message in messages {
                let channel = message.split(' ').next().unwrap_or_default().to_owned();
                let apart = updates_apart && message.contains(" type8 ");
                groups.entry((channel, apart)).or_default().push(message.clone());
            }
            groups
        };
        let sorted = |messages: &[String]| {
            let mut messages = messages.to_vec();
            messages.sort();
            messages
        };
        match self {
            Order::Whole if exact_time => wanted == got,
            Order::ByChannel if exact_time => by(wanted, false) == by(got, false),
            Order::Whole | Order::ByChannel => by(wanted, true) == by(got, true),
            Order::None => sorted(wanted) == sorted(got),
        }
    }
}

/// A Snappy block that holds `bytes` as one literal.
fn snappy_literal(bytes: &[u8]) -> Vec<u8> {
    assert!((1..=60).contains(&bytes.len()), "one short literal");
    let mut block = vec![bytes.len() as u8, (bytes.len() as u8 - 1) << 2];
    block.extend_from_slice(bytes);
    block
}

/// Cuts what a connection received into messages.
#[derive(Debug, Default)]
pub struct Inbox {
    reader: FrameReader,
    /// Received and not taken yet, oldest first.
    pub messages: Vec<Message>,
}

impl Inbox {
    /// Takes in bytes as the transport gave them.
    ///
    /// # Panics
    /// When the gateway sends a bad frame.
    pub fn feed(&mut self, bytes: &[u8]) {
        let messages = &mut self.messages;
        self.reader
            .feed(bytes, &mut |packet| {
                messages.extend(packet.messages().map(|m| Message {
                    channel: m.channel_id,
                    broadcast: m.broadcast,
                    stub: m.stub_id,
                    msg_type: m.msg_type,
                    body: m.body.to_vec(),
                    json: None,
                }));
                ControlFlow::Continue(())
            })
            .expect("the gateway sends good frames");
    }
}
