//! Generator of the `.proto` file and the reference page from the catalogue.

use std::fmt::Write as _;

use super::catalogue::{Access, EVENTS, METHODS, Message, Method, REQUEST_KEY_FIELD, Type, messages};
use super::status::STATUSES;

/// The catalogue as a proto3 file, for code generators.
#[must_use]
pub fn proto_file() -> String {
    let mut out = String::from(
        "// Bodies of the matcher's framed RPC. Generated from the catalogue in crates/wire/src/matcher; do not edit.\n\
         syntax = \"proto3\";\npackage throng.matcher.v1;\n",
    );
    for message in messages() {
        let _ = write!(out, "\nmessage {} {{\n", message.name);
        for field in message.fields {
            let optional = if field.optional { "optional " } else { "" };
            let _ = writeln!(
                out,
                "  {optional}{} {} = {};  // {}",
                proto_type(&field.ty),
                snake(field.name),
                field.number,
                field.doc
            );
        }
        if METHODS.iter().any(|method| method.mutates && method.request.name == message.name) {
            let _ =
                writeln!(out, "  bytes request_key = {REQUEST_KEY_FIELD};  // 16 bytes: makes a retry safe");
        }
        out.push_str("}\n");
    }
    out.push_str(
        "\n// One entry of a batch.\nmessage Entry {\n  repeated string role_ids = 1;\n  oneof event {\n",
    );
    for event in EVENTS {
        let _ = writeln!(out, "    {} {} = {};", event.message.name, snake(event.name), event.number);
    }
    out.push_str("  }\n}\n\nmessage Batch {\n  repeated Entry msgs = 1;\n}\n");
    out
}

/// The reference page of the API.
#[must_use]
pub fn reference_page() -> String {
    let mut out = String::from(
        "# Matcher API\n\nFor programmers of clients of the matcher, over its framed RPC or over HTTP. Generated from the catalogue in \
         `crates/wire/src/matcher` (`THRONG_UPDATE=1 cargo test -p throng-wire --test it matcher_pages::` rewrites it).\n\n\
         ## Framed RPC\n\n\
         A frame is a 20-byte header, little-endian, and a protobuf body: body length (4 bytes), kind (1), flags (1), \
         method or status (2), request id or number of the last entry (8), deadline in ms or processing time in us \
         (4). Fields have the names below in lower_snake_case; `crates/wire/proto/matcher.proto` declares them. A \
         number is a `uint64`, a signed number a zigzag `sint64` (3 is sent as the varint 6), a decimal number a \
         `double`, a time a `uint64` of milliseconds since the Unix epoch, any value its JSON text as `bytes`. A request that changes something may carry an idempotency \
         key, 16 bytes in field 100: within 60 s, a request with the same key returns the first response and has no \
         further effect. The same key with another method or body is refused as `INVALID`; an empty member counts as \
         absent, and a field that this release does not know counts as part of the body. The body of a refusal is {1: message, 2: detail}.\n\n",
    );
    out.push_str(FRAMES);
    out.push_str(HTTP);
    out.push_str("## Methods\n");
    for method in METHODS {
        let Method { name, number, doc, .. } = method;
        let access = match method.access {
            Access::Any => "any scope",
            Access::Own => "`server` for its own roles, `trusted` for all",
            Access::Trusted => "`trusted`",
            Access::Admin => "`admin`",
        };
        let _ =
            write!(out, "\n### {name} ({number})\n\n`POST /matcher/v1/{name}` · scope: {access}\n\n{doc}\n");
        table(&mut out, "Request", method.request);
        table(&mut out, "Response", method.response);
    }
    out.push_str(
        "\n## Notifications\n\nA batch is `{\"Msgs\":[{\"RoleIDs\":[...],\"NotifyMsg\":{NAME:{...}}}]}`.\n",
    );
    for event in EVENTS {
        let _ = write!(out, "\n### {} ({})\n", event.name, event.number);
        table(&mut out, "Content", event.message);
    }
    out.push_str("\n## Shared objects\n");
    for message in messages() {
        let is_body =
            METHODS.iter().any(|m| m.request.name == message.name || m.response.name == message.name)
                || EVENTS.iter().any(|e| e.message.name == message.name);
        if !is_body {
            let _ = write!(out, "\n### {}\n", message.name);
            table(&mut out, "Members", message);
        }
    }
    out.push_str("\n## Status codes\n\n| Code | Name | HTTP | Meaning |\n|---|---|---|---|\n");
    for (status, name, http, doc) in STATUSES {
        let _ = writeln!(out, "| {} | `{name}` | {http} | {doc} |", *status as u16);
    }
    out
}

const FRAMES: &str = "\
| Kind | Name | Direction | Body |
|---|---|---|---|
| 0 | Request | to the matcher | the request of a method; flag 1 requests no response |
| 1 | Response | to the caller | the response, or a refusal if the status is not 0 |
| 2 | Notify | to the caller | a batch of notifications; the id is the number of its last entry |
| 3 | Hello | to the matcher | the first frame of a connection, below |
| 4 | HelloAck | to the caller | response to Hello, below |
| 5 | NotifyAck | to the matcher | empty: the id is the number of the last handled entry |
| 6, 7 | Ping, Pong | both | any bytes, which Pong returns |
| 8 | Goaway | to the caller | {1: status, 2: message, 3 and 4: lowest and highest supported version}: the matcher closes the connection |

| Hello | No. | |
|---|---|---|
| `version` | 1 | 1 |
| `srv_id` | 2 | the caller's `SrvID` |
| `area` | 3 | requested area; empty: any |
| `token` | 4 | access token |
| `seq`, `epoch` | 5, 6 | the last entry that the caller received, and its stream, to resume after it |

| HelloAck | No. | |
|---|---|---|
| `version` | 1 | 1 |
| `matcher_id` | 2 | identifier of the matcher's process |
| `epoch` | 3 | the stream of notifications; a new value means that entries are missing: call `ListMine` |
| `first` | 4 | number of the next entry |
| `frame_bytes_max` | 5 | maximum size of a body |
| `resumed` | 6 | 1: the stream is resumed |

";

const HTTP: &str = "\
## JSON over HTTP

HTTP/1.1 and HTTP/2 on `matcher.http_addr`, encrypted if the matcher has a certificate. Every method is a route. The request
is an object with the members below; so is the response, with status 200. A refusal has the HTTP status of its code and
`{\"code\":\"ROOM_FULL\",\"message\":\"...\",\"detail\":{...}}`. Members that are missing or `null` have the empty value, unknown
members are ignored, and free-form values are returned with the exact JSON text that was sent.

| Header | |
|---|---|
| `Authorization: Bearer TOKEN` | a token of `matcher.tokens_file`; its scope defines the caller's permissions |
| `X-Server-Id` | the caller's `SrvID`; by default that of the role in the request |
| `Idempotency-Key` | an idempotency key: 32 hex digits, or any string, which is hashed |

A body has at most 1 MiB (`TOO_LARGE`); longer listings are split into pages. Requests beyond `matcher.http_requests_max` at a
time are refused with `OVERLOADED` and have no effect. Requests from pages of other sites are refused.

`GET /matcher/v1/notify?srv=SRV_ID` streams the notifications of a server: as text messages if the request asks for a
WebSocket, as Server-Sent Events otherwise. Every message is a batch with its `Epoch` and `Seq`, the number of its last entry.
The first one has no entries and contains the current position of the stream. `&epoch=EPOCH&after=SEQ` (or `Last-Event-ID:
EPOCH-SEQ`) resumes after a batch, up to 10 s after the connection was lost. A new `Epoch` means that entries are missing, because
they have expired, the matcher was restarted, or the reader fell behind by more than 16 MiB or 100,000 entries: call `ListMine`.
After a restart, the entries since the server lost its stream follow, if it returns within its grace period. A reader that does not
read occupies at most 32 MiB of allocated memory in the matcher, buffers included, and slows no other reader; freed memory may stay
with the process for reuse. A server has one stream at a time, and counts as connected while it has one.

";

fn table(out: &mut String, title: &str, message: &Message) {
    if message.fields.is_empty() {
        return;
    }
    let _ = write!(out, "\n| {title} | Type | No. | |\n|---|---|---|---|\n");
    for field in message.fields {
        let _ = writeln!(
            out,
            "| `{}` | {} | {} | {} |",
            field.name,
            json_type(&field.ty),
            field.number,
            field.doc
        );
    }
}

fn proto_type(ty: &Type) -> String {
    match ty {
        Type::Str => "string".into(),
        Type::Json => "bytes".into(),
        Type::Bool => "bool".into(),
        Type::U64 | Type::Time => "uint64".into(),
        Type::I64 => "sint64".into(),
        Type::F64 => "double".into(),
        Type::Msg(message) => message.name.into(),
        Type::List(inner) => format!("repeated {}", proto_type(inner)),
        Type::Map(inner) => format!("map<string, {}>", proto_type(inner)),
        Type::Keyed(message, _) => format!("repeated {}", message.name),
        Type::Set => "repeated string".into(),
    }
}

fn json_type(ty: &Type) -> String {
    match ty {
        Type::Str => "string".into(),
        Type::Json => "any value".into(),
        Type::Bool => "boolean".into(),
        Type::U64 => "number".into(),
        Type::I64 => "signed number".into(),
        Type::F64 => "decimal number".into(),
        Type::Time => "time".into(),
        Type::Msg(message) => format!("`{}`", message.name),
        Type::List(inner) => format!("list of {}", json_type(inner)),
        Type::Map(inner) => format!("object of {}", json_type(inner)),
        Type::Keyed(message, key) => format!("object of `{}` by `{key}`", message.name),
        Type::Set => "object whose keys are the values".into(),
    }
}

/// `RoleIDs` to `role_ids`, `EtaP50Ms` to `eta_p50_ms`.
fn snake(name: &str) -> String {
    let chars: Vec<char> = name.chars().collect();
    let mut out = String::new();
    for (index, &c) in chars.iter().enumerate() {
        let before = index.checked_sub(1).map(|at| chars[at]);
        let starts_word = c.is_ascii_uppercase()
            && before.is_some_and(|b| {
                !b.is_ascii_uppercase()
                    || chars.get(index + 1).is_some_and(|n| n.is_ascii_lowercase() && *n != 's')
            });
        if starts_word {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_snake_case() {
        for (name, wanted) in [
            ("RoleIDs", "role_ids"),
            ("SrvID", "srv_id"),
            ("MaxRole", "max_role"),
            ("EtaP50Ms", "eta_p50_ms"),
            ("NewLeaderID", "new_leader_id"),
            ("rolesJoinRoomMsg", "roles_join_room_msg"),
        ] {
            assert_eq!(snake(name), wanted);
        }
    }

    #[test]
    fn the_proto_file_compiles() {
        let file = protox::file::File::from_source("matcher.proto", &proto_file()).expect("proto3");
        assert_eq!(file.file_descriptor_proto().message_type.len(), messages().len() + 2);
    }
}
