//! Schema files: imports, descriptor sets, and errors with their places.

use prost::Message;

use super::*;
use crate::data::SchemaError;

fn refused(builder: SchemasBuilder) -> SchemaError {
    builder.build().expect_err("a bad schema")
}

#[test]
fn errors_name_file_line_and_column() {
    let error = refused(
        SchemasBuilder::new()
            .add_proto("maps/game.proto", "syntax = \"proto3\";\nmessage A {\n  int32 x 1;\n}\n"),
    );
    assert_eq!((error.file.as_str(), error.line, error.column), ("maps/game.proto", 3, 11));
    assert!(error.to_string().starts_with("maps/game.proto:3:11: expected"), "{error}");

    let unknown_type = "syntax = \"proto3\";\n// é\nmessage A { Missing x = 1; }\n";
    let error = refused(SchemasBuilder::new().add_proto("/etc/game.proto", unknown_type));
    assert_eq!((error.file.as_str(), error.line, error.column), ("/etc/game.proto", 3, 13), "{error}");
    assert!(error.message.contains("Missing"), "{error}");

    let error = refused(
        SchemasBuilder::new().add_proto("game.proto", "syntax = \"proto3\";\n\nimport \"nowhere.proto\";\n"),
    );
    assert_eq!((error.file.as_str(), error.line), ("game.proto", 3), "{error}");
    assert!(error.message.contains("nowhere.proto"), "{error}");
}

#[test]
fn groups_are_refused_with_their_place() {
    let source =
        "syntax = \"proto2\";\nmessage A {\n  optional group Old = 1 {\n    optional int32 x = 1;\n  }\n}\n";
    let error = refused(SchemasBuilder::new().add_proto("old.proto", source));
    assert_eq!((error.file.as_str(), error.line), ("old.proto", 3), "{error}");
    assert!(error.message.contains("A.old is a proto2 group"), "{error}");
}

#[test]
fn a_descriptor_set_that_is_none_is_refused() {
    let error = refused(SchemasBuilder::new().add_descriptor_set("game.pb", b"not a set"));
    assert_eq!(error.file, "game.pb");
    assert!(error.to_string().starts_with("game.pb: not a FileDescriptorSet"), "{error}");
}

#[test]
fn a_profile_for_an_unknown_type_is_refused() {
    let error = refused(SchemasBuilder::new().profile("game.Wrold", Profile::Unreal));
    assert!(error.message.contains("game.Wrold"), "{error}");
}

#[test]
fn files_import_each_other_by_the_end_of_their_paths() {
    let schemas = SchemasBuilder::new()
        .add_proto(
            "/srv/schemas/world.proto",
            "syntax = \"proto3\"; package w; import \"parts/item.proto\"; import \"pkg/unrealpb/unreal_common.proto\"; \
             message World { map<uint32, i.Item> items = 1; unrealpb.FVector at = 2; }",
        )
        .add_proto("/srv/schemas/parts/item.proto", "syntax = \"proto3\"; package i; message Item { bool removed = 1; }")
        .build()
        .expect("both are found");
    assert!(schemas.plan("w.World").is_some());
    assert!(schemas.plan("i.Item").is_some());
    assert!(schemas.plan("channeldpb.TransformState").is_some());
}

#[test]
fn a_copy_of_a_built_in_file_takes_its_place() {
    let own = format!("{}\nmessage Extra {{ int32 x = 1; }}\n", throng_wire::proto::UNREAL_COMMON_PROTO);
    let schemas = SchemasBuilder::new()
        .add_proto("protos/unreal_common.proto", &own)
        .add_proto("tps.proto", TPS_PROTO)
        .build()
        .expect("compiles once");
    assert!(schemas.plan("unrealpb.Extra").is_some());
    assert_eq!(schemas.plan("tpspb.TestRepChannelData").map(|plan| plan.profile()), Some(Profile::Unreal));
}

#[test]
fn descriptor_sets_serve_as_well_as_sources() {
    let from_sources = schemas();
    let files = from_sources
        .pool()
        .files()
        .filter(|file| !file.name().starts_with("google/"))
        .map(|file| file.file_descriptor_proto().clone())
        .collect();
    let set = prost_reflect::prost_types::FileDescriptorSet { file: files };
    let from_set =
        SchemasBuilder::new().add_descriptor_set("all.pb", &set.encode_to_vec()).build().expect("compiles");
    assert_eq!(from_set.type_count(), from_sources.type_count());
    assert_eq!(from_set.plan("tpspb.EntityChannelData").map(|plan| plan.profile()), Some(Profile::Unreal));
}

#[test]
fn unreal_types_get_their_profile_unasked() {
    let schemas = schemas();
    let profile = |name: &str| schemas.plan(name).map(|plan| plan.profile());
    assert_eq!(profile("tpspb.TestRepChannelData"), Some(Profile::Unreal));
    assert_eq!(profile("tpspb.EntityChannelData"), Some(Profile::Unreal));
    assert_eq!(profile("unrealpb.SpatialChannelData"), Some(Profile::Unreal));
    assert_eq!(profile("chatpb.ChatChannelData"), Some(Profile::Reflect));
    assert_eq!(profile("testpb.TestMergeMessage"), Some(Profile::Reflect));
    let asked = builder().profile("tpspb.TestRepChannelData", Profile::Reflect).build().expect("compiles");
    assert_eq!(asked.plan("tpspb.TestRepChannelData").map(|plan| plan.profile()), Some(Profile::Reflect));
}

#[test]
fn types_without_a_schema_are_opaque_or_refused() {
    let schemas = schemas();
    assert!(schemas.plan("game.Unknown").is_none());
    assert!(
        schemas
            .plan_or_opaque("game.Unknown")
            .is_some_and(|plan| plan.is_opaque() && plan.name() == "game.Unknown")
    );
    assert!(schemas.plan_or_opaque("chatpb.ChatChannelData").is_some_and(|plan| !plan.is_opaque()));
    let strict = builder().allow_opaque(false).build().expect("compiles");
    assert!(strict.plan_or_opaque("game.Unknown").is_none());
}
