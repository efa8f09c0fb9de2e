//! The reference page and the `.proto` file of the matcher follow its catalogue.
#![allow(clippy::disallowed_methods, reason = "a test may read and write the repository's files")]

use std::path::Path;

use throng_wire::matcher::{proto_file, reference_page};

#[test]
fn the_reference_page_and_the_proto_file_are_fresh() {
    for (file, wanted) in
        [("../../docs/reference/matcher.md", reference_page()), ("proto/matcher.proto", proto_file())]
    {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        if std::env::var_os("THRONG_UPDATE").is_some() {
            std::fs::write(&path, &wanted).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == wanted,
            "{file} is stale: THRONG_UPDATE=1 cargo test -p throng-wire --test it matcher_pages::"
        );
    }
}
