//! The worked examples of docs/wire-format.md are frames, and mean what the page says.

#![allow(clippy::disallowed_methods, reason = "the core has no files; this test reads a page")]

use std::{fs, ops::ControlFlow, path::Path};

use throng_wire::{
    FrameError, FrameReader,
    frame::{PACKET_BYTES_MAX, PACKET_BYTES_SEND_MAX},
};

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/wire-format.md");
    fs::read_to_string(path).expect("the page")
}

/// The bytes in front of the remark of a line: pairs of hex digits separated by single blanks,
/// indented.
fn bytes(line: &str) -> Vec<u8> {
    line.trim_start()
        .split(' ')
        .map_while(|pair| (pair.len() == 2).then(|| u8::from_str_radix(pair, 16).ok()).flatten())
        .collect()
}

#[test]
fn worked_examples_decode_to_what_they_say() {
    let page = page();
    let mut examples = 0;
    for block in page.split("```hex\n").skip(1) {
        let (block, _) = block.split_once("```").expect("the block ends");
        let (expected, stream): (Vec<&str>, Vec<&str>) =
            block.lines().partition(|line| line.starts_with("=>"));
        let stream: Vec<u8> = stream.into_iter().flat_map(bytes).collect();

        let mut reader = FrameReader::default();
        let mut messages = Vec::new();
        let result = reader.feed(&stream, &mut |packet| {
            messages.extend(packet.messages().map(|message| {
                let body_len = message.body.len();
                format!(
                    "=> channel {} broadcast {} stub {} type {} body {body_len}",
                    message.channel_id, message.broadcast, message.stub_id, message.msg_type
                )
            }));
            ControlFlow::Continue(())
        });
        assert_eq!(result, Ok(()), "{block}");
        assert_eq!(messages, expected, "{block}");
        assert_eq!((reader.packets(), reader.buffered_bytes()), (1, 0), "{block}");
        examples += 1;
    }
    assert_eq!(examples, 5);
}

#[test]
fn limits_and_reasons_are_those_of_the_code() {
    let page = page();
    for reason in FrameError::REASONS {
        assert!(page.contains(&format!("| `{reason}` |")), "{reason} has no row");
    }
    assert!(page.contains(&format!("packet received | {PACKET_BYTES_MAX} bytes")));
    assert!(page.contains(&format!("packet sent | {PACKET_BYTES_SEND_MAX} bytes")));
}
