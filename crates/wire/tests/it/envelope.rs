//! The hand-written envelope code and the generated types agree. Spec: gateway §3.1, §3.3.

use proptest::{collection::vec, prelude::*};
use prost::Message;
use throng_wire::{
    AnyRef, DataUpdate, Forward, MessagePack, Packet, WireError, channeldpb, data_update_entry_len,
    entry_len, fields, forward_entry_len, write_data_update_entry, write_data_update_entry_with, write_entry,
    write_entry_with, write_forward_entry, write_message_entry,
};

fn cases() -> ProptestConfig {
    ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() }
}

fn owned(message: &MessagePack<'_>) -> channeldpb::MessagePack {
    channeldpb::MessagePack {
        channel_id: message.channel_id,
        broadcast: message.broadcast,
        stub_id: message.stub_id,
        msg_type: message.msg_type,
        msg_body: message.body.to_vec(),
    }
}

fn borrowed(message: &channeldpb::MessagePack) -> MessagePack<'_> {
    MessagePack {
        channel_id: message.channel_id,
        broadcast: message.broadcast,
        stub_id: message.stub_id,
        msg_type: message.msg_type,
        body: &message.msg_body,
    }
}

/// Numbers of every length, small ones and 0 more often.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![2 => Just(0), 3 => 1..200u32, 1 => any::<u32>(), 1 => (0..32u32).prop_map(|bit| 1 << bit)]
}

fn message() -> impl Strategy<Value = channeldpb::MessagePack> {
    (number(), number(), number(), number(), vec(any::<u8>(), 0..300)).prop_map(
        |(channel_id, broadcast, stub_id, msg_type, msg_body)| channeldpb::MessagePack {
            channel_id,
            broadcast,
            stub_id,
            msg_type,
            msg_body,
        },
    )
}

/// Any field a peer may add: every wire type, groups included.
fn field(number: std::ops::Range<u32>) -> impl Strategy<Value = Vec<u8>> {
    (number, 0..5u8, any::<u64>(), vec(any::<u8>(), 0..20)).prop_map(|(number, kind, scalar, bytes)| {
        let mut out = Vec::new();
        let tag = |out: &mut Vec<u8>, wire_type| {
            throng_wire::write_varint(out, u64::from(number) << 3 | wire_type);
        };
        match kind {
            0 => {
                tag(&mut out, 0);
                throng_wire::write_varint(&mut out, scalar);
            }
            1 => {
                tag(&mut out, 1);
                out.extend_from_slice(&scalar.to_le_bytes());
            }
            2 => {
                tag(&mut out, 2);
                throng_wire::write_varint(&mut out, bytes.len() as u64);
                out.extend_from_slice(&bytes);
            }
            3 => {
                tag(&mut out, 3);
                out.extend_from_slice(&[0x08, 0x01, 0x13, 0x14]);
                tag(&mut out, 4);
            }
            _ => {
                tag(&mut out, 5);
                out.extend_from_slice(&(scalar as u32).to_le_bytes());
            }
        }
        out
    })
}

proptest! {
    #![proptest_config(cases())]

    /// The generated types decode the writer's bytes, and the announced lengths are right.
    #[test]
    fn entries_are_read_by_the_generated_types(messages in vec(message(), 0..10)) {
        let mut bytes = Vec::new();
        for message in &messages {
            let start = bytes.len();
            write_entry(&mut bytes, &borrowed(message));
            prop_assert_eq!(bytes.len() - start, entry_len(&borrowed(message)));
        }
        let packet = channeldpb::Packet { messages };
        prop_assert_eq!(&bytes, &packet.encode_to_vec());
        prop_assert_eq!(channeldpb::Packet::decode(bytes.as_slice()), Ok(packet));
    }

    /// The reader decodes the bytes of the generated types, with fields of the future anywhere in
    /// between.
    #[test]
    fn packets_are_read_whatever_surrounds_the_fields(
        messages in vec((message(), vec(field(6..30), 0..3), any::<bool>()), 0..6),
        around in vec(field(2..30), 7),
    ) {
        let mut bytes = Vec::new();
        for ((message, inside, front), around) in messages.iter().zip(&around) {
            bytes.extend_from_slice(around);
            let mut content = message.encode_to_vec();
            let inside = inside.concat();
            content.splice(if *front { 0..0 } else { content.len()..content.len() }, inside);
            bytes.push(0x0A);
            throng_wire::write_varint(&mut bytes, content.len() as u64);
            bytes.extend_from_slice(&content);
        }
        let packet = Packet::parse(&bytes).expect("a packet");
        let read: Vec<_> = packet.messages().map(|message| owned(&message)).collect();
        let written: Vec<_> = messages.into_iter().map(|(message, ..)| message).collect();
        prop_assert_eq!(packet.messages().len(), written.len());
        prop_assert_eq!(read, written);
    }

    /// A valid packet with bytes changed, removed and doubled: no panic, and whatever the generated
    /// types make of it the reader makes of it too. (It also takes a known number with another wire
    /// type, as the reference does.)
    #[test]
    fn damaged_packets_are_judged_alike(
        messages in vec(message(), 1..5),
        changes in vec((any::<prop::sample::Index>(), any::<u8>(), 0..3u8), 0..6),
    ) {
        let mut bytes = channeldpb::Packet { messages }.encode_to_vec();
        for (at, byte, kind) in changes {
            let at = at.index(bytes.len().max(1));
            match kind {
                0 if at < bytes.len() => bytes[at] = byte,
                1 if at < bytes.len() => drop(bytes.remove(at)),
                _ => bytes.insert(at, byte),
            }
        }
        if let Ok(expected) = channeldpb::Packet::decode(bytes.as_slice()) {
            let packet = Packet::parse(&bytes).expect("the generated types read it");
            let read: Vec<_> = packet.messages().map(|message| owned(&message)).collect();
            prop_assert_eq!(read, expected.messages);
        } else if let Ok(packet) = Packet::parse(&bytes) {
            // Iterating what was accepted yields as many messages as promised.
            prop_assert_eq!(packet.messages().count(), packet.messages().len());
        }
    }

    /// No bytes whatever make a reader panic, and fields cover exactly what they were read from.
    #[test]
    fn any_bytes_are_read(bytes in vec(any::<u8>(), 0..200)) {
        let _ = MessagePack::parse(&bytes);
        let _ = Forward::parse(&bytes);
        let _ = DataUpdate::parse(&bytes);
        let _ = AnyRef::parse(&bytes);
        if let Ok(packet) = Packet::parse(&bytes) {
            prop_assert_eq!(packet.messages().count(), packet.messages().len());
        }
        if let Ok(fields) = fields(&bytes).collect::<Result<Vec<_>, _>>() {
            let raw: Vec<u8> = fields.iter().flat_map(|field| field.raw).copied().collect();
            prop_assert_eq!(raw, bytes);
        }
    }

    /// Forwarded messages, both ways.
    #[test]
    fn forwards_agree(head in message(), client_conn_id in number(), payload in vec(any::<u8>(), 0..300)) {
        let mut bytes = Vec::new();
        write_forward_entry(&mut bytes, &borrowed(&head), client_conn_id, &payload);
        prop_assert_eq!(bytes.len(), forward_entry_len(&borrowed(&head), client_conn_id, payload.len()));

        let body = channeldpb::ServerForwardMessage { client_conn_id, payload: payload.clone() };
        let mut expected = Vec::new();
        write_message_entry(&mut expected, &borrowed(&head), &body);
        prop_assert_eq!(&bytes, &expected);

        let packet = Packet::parse(&bytes).expect("a packet");
        let message = packet.messages().next().expect("a message");
        prop_assert_eq!(Forward::parse(message.body), Ok(Forward { client_conn_id, payload: &payload }));
    }

    /// Data updates, both ways.
    #[test]
    fn data_updates_agree(
        channel_id in number(),
        name in "[a-z]{0,10}(\\.[A-Z][a-z]{0,80})?",
        value in vec(any::<u8>(), 0..400),
    ) {
        let type_url = format!("type.googleapis.com/{name}");
        let mut bytes = Vec::new();
        write_data_update_entry(&mut bytes, channel_id, &type_url, &value);
        prop_assert_eq!(bytes.len(), data_update_entry_len(channel_id, &type_url, value.len()));

        let packet = channeldpb::Packet::decode(bytes.as_slice()).expect("a packet");
        let [message] = &packet.messages[..] else { panic!("one message") };
        prop_assert_eq!((message.channel_id, message.msg_type), (channel_id, 8));
        let body = channeldpb::ChannelDataUpdateMessage::decode(&message.msg_body[..]).expect("an update");
        let any = body.data.as_ref().expect("data");
        prop_assert_eq!((&any.type_url, &any.value, body.context_conn_id), (&type_url, &value, 0));

        let with_context = channeldpb::ChannelDataUpdateMessage { context_conn_id: 7, version: 9, ..body };
        let bytes = with_context.encode_to_vec();
        let read = DataUpdate::parse(&bytes).expect("an update");
        prop_assert_eq!(read, DataUpdate { type_name: &name, value: &value, context_conn_id: 7, version: 9 });
    }
}

#[test]
fn explicit_defaults_and_odd_orders_are_accepted() {
    // As the JavaScript client writes: every field, zeros included; here also backwards and twice.
    let bytes = [
        0x0A, 0x0F, 0x2A, 0x00, 0x20, 0x07, 0x20, 0x08, 0x18, 0x00, 0x10, 0x00, 0x08, 0x00, 0x88, 0x00, 0x03,
    ];
    let packet = Packet::parse(&bytes).expect("a packet");
    let messages: Vec<_> = packet.messages().collect();
    let expected = MessagePack { channel_id: 3, msg_type: 8, ..MessagePack::default() };
    assert_eq!(messages, [expected]);
}

#[test]
fn numbers_over_32_bits_are_cut_as_the_reference_does() {
    let bytes = [0x0A, 0x08, 0x08, 0x81, 0x80, 0x80, 0x80, 0x10, 0x20, 0x64];
    let packet = Packet::parse(&bytes).expect("a packet");
    let message = packet.messages().next().expect("a message");
    assert_eq!((message.channel_id, message.msg_type), (1, 100));
}

#[test]
fn repeated_numbers_are_read_packed_and_unpacked() {
    use channeldpb::QuerySpatialChannelResultMessage as Ids;
    for bytes in [&[0x0A, 0x03, 0x01, 0x80, 0x01][..], &[0x08, 0x01, 0x08, 0x80, 0x01]] {
        assert_eq!(Ids::decode(bytes).map(|ids| ids.channel_id), Ok(vec![1, 128]));
    }
}

#[test]
fn a_type_is_named_by_what_follows_the_last_slash() {
    let check = |type_url, expected| {
        assert_eq!(AnyRef { type_url, value: &[] }.type_name(), expected);
    };
    check("type.googleapis.com/chatpb.ChatChannelData", "chatpb.ChatChannelData");
    check("https://example.org/a/b/tpspb.EntityChannelData", "tpspb.EntityChannelData");
    check("tpspb.EntityChannelData", "tpspb.EntityChannelData");
    check("type.googleapis.com/", "");
    check("", "");
}

#[test]
fn an_update_needs_data_and_readable_names() {
    assert_eq!(DataUpdate::parse(&[]), Err(WireError::Missing(1)));
    assert_eq!(DataUpdate::parse(&[0x10, 0x07]), Err(WireError::Missing(1)));
    assert_eq!(DataUpdate::parse(&[0x0A, 0x03, 0x0A, 0x01, 0xFF]), Err(WireError::BadUtf8(1)));
    // An empty Any is there; it names no type.
    let empty = DataUpdate { type_name: "", value: &[], context_conn_id: 0, version: 0 };
    assert_eq!(DataUpdate::parse(&[0x0A, 0x00]), Ok(empty));
    // Two occurrences are merged field by field.
    let bytes = [0x0A, 0x03, 0x0A, 0x01, b'a', 0x0A, 0x03, 0x12, 0x01, 9];
    let merged = DataUpdate { type_name: "a", value: &[9], context_conn_id: 0, version: 0 };
    assert_eq!(DataUpdate::parse(&bytes), Ok(merged));
}

#[test]
fn an_update_produced_in_place_is_the_same() {
    let (mut copied, mut in_place) = (Vec::new(), Vec::new());
    write_data_update_entry(&mut copied, 5, "type.googleapis.com/a.B", &[1, 2, 3]);
    write_data_update_entry_with(&mut in_place, 5, "type.googleapis.com/a.B", 3, |out| out.extend([1, 2, 3]));
    assert_eq!(copied, in_place);
}

#[test]
#[should_panic(expected = "the body has the length announced")]
fn a_body_of_another_length_than_announced_is_a_defect_of_ours() {
    write_entry_with(&mut Vec::new(), &MessagePack::default(), 3, |out| out.push(1));
}

#[test]
fn messages_nested_too_deep_are_refused() {
    // No message of the protocol contains itself, so groups are the one way to nest without end.
    let group = [vec![0x0B; 30_000], vec![0x0C; 30_000]].concat();
    assert_eq!(Packet::parse(&group), Err(WireError::TooDeep));
    assert!(channeldpb::AuthMessage::decode(group.as_slice()).is_err());
}
