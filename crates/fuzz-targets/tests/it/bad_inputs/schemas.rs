//! Schema files as operators may write them.

use throng_gateway::data::SchemasBuilder;

use super::check;

/// Name; the `.proto` file; `ok`, or the error with its place.
pub(crate) const ROWS: &[(&str, &str, &str)] = &[
    ("smallest", "syntax = \"proto3\"; message A {}", "ok"),
    ("an empty file", "", "ok"),
    (
        "not a schema",
        "hello world",
        "game.proto:1:1: expected 'enum', 'extend', 'import', 'message', 'option', 'service', 'package' or ';', but found 'hello'",
    ),
    (
        "a missing brace",
        "syntax = \"proto3\";\nmessage A {",
        "game.proto: expected a message field, oneof, reserved range, enum, message, option or '}', but reached end of file",
    ),
    (
        "a missing semicolon",
        "syntax = \"proto3\";\nmessage A {\n  int32 n = 1\n}",
        "game.proto:4:1: expected ';' or '[', but found '}'",
    ),
    (
        "an unknown type",
        "syntax = \"proto3\";\nmessage A {\n  Vector v = 1;\n}",
        "game.proto:3:3: name 'Vector' is not defined",
    ),
    (
        "an unknown import",
        "syntax = \"proto3\";\nimport \"other.proto\";\nmessage A {}",
        "game.proto:2:1: import 'other.proto' not found",
    ),
    (
        "a built-in import",
        "syntax = \"proto3\"; import \"unreal_common.proto\"; message A { unrealpb.FVector v = 1; }",
        "ok",
    ),
    (
        "a field number twice",
        "syntax = \"proto3\";\nmessage A { int32 a = 1; int32 b = 1; }",
        "game.proto:2:23: field number '1' is already used",
    ),
    (
        "a field name twice",
        "syntax = \"proto3\";\nmessage A { int32 a = 1; int32 a = 2; }",
        "game.proto:2:19: camel-case name of field 'a' conflicts with field 'a'",
    ),
    (
        "field number 0",
        "syntax = \"proto3\";\nmessage A { int32 a = 0; }",
        "game.proto:2:23: message numbers must be between 1 and 536870911",
    ),
    (
        "a reserved field number",
        "syntax = \"proto3\";\nmessage A { int32 a = 19000; }",
        "game.proto:2:23: invalid field number '19000'",
    ),
    (
        "field number 2^29",
        "syntax = \"proto3\";\nmessage A { int32 a = 536870912; }",
        "game.proto:2:23: message numbers must be between 1 and 536870911",
    ),
    (
        "a message twice",
        "syntax = \"proto3\";\nmessage A {}\nmessage A {}",
        "game.proto:2:9: name 'A' is defined twice",
    ),
    ("syntax proto4", "syntax = \"proto4\";\nmessage A {}", "game.proto:1:10: unknown syntax 'proto4'"),
    (
        "a map with message keys",
        "syntax = \"proto3\";\nmessage A { map<A, int32> m = 1; }",
        "game.proto:2:17: a map field key type must be an integer, boolean or string",
    ),
    (
        "an enum that starts at 1",
        "syntax = \"proto3\";\nenum E { ONE = 1; }",
        "game.proto:2:16: the first value for proto3 enums must be 0",
    ),
];

#[test]
fn schemas() {
    check(
        ROWS,
        |row| (row.0, row.2),
        |(_, source, _)| match SchemasBuilder::new().add_proto("game.proto", source).build() {
            Ok(_) => "ok".into(),
            Err(error) => error.to_string(),
        },
    );
}
