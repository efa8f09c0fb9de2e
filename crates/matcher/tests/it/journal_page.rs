//! The reference page of the journal has every type of the snapshot's format.

const SOURCE: &str = include_str!("../../src/schema/v1.rs");
const PAGE: &str = include_str!("../../../../docs/reference/matcher-journal.md");
const MARK: &str = "journal_page:: -->\n";

/// The types as tables: a field's name, its type, and what its comment says.
fn tables() -> String {
    let (mut page, mut comment) = (String::new(), String::new());
    for line in SOURCE.lines().skip_while(|line| !line.starts_with("use ")) {
        let text = line.trim();
        if let Some(more) = text.strip_prefix("///") {
            comment = format!("{comment} {}", more.trim()).trim().to_owned();
            continue;
        }
        let item = text.strip_prefix("pub(crate) ").unwrap_or(text);
        let is_item = item.starts_with("struct ") || item.starts_with("enum ");
        if is_item {
            let name = item.split([' ', '<']).nth(1).unwrap_or_default();
            let columns = if item.starts_with("struct ") { "Field | Type | Meaning" } else { "Variant" };
            let rule = columns.split('|').map(|_| "---|").collect::<String>();
            page += &format!("\n### {name}\n\n{}\n\n| {columns} |\n|{rule}\n", std::mem::take(&mut comment));
        } else if let Some((name, kind)) = item.split_once(": ").filter(|_| text.starts_with("pub(crate)")) {
            let kind = kind.trim_end_matches(',').replace("<'a>", "").replace("&'a [u8]", "bytes");
            let kind =
                kind.replace("&'a str", "string").replace("String", "string").replace("Vec<u8>", "bytes");
            page += &format!("| `{name}` | `{kind}` | {} |\n", std::mem::take(&mut comment));
        } else if text.ends_with(',') && line.starts_with("    ") {
            let variant = text.trim_end_matches(',').replace("<'a>", "").replace("&'a [u8]", "bytes");
            page += &format!("| `{variant}` |\n");
        }
    }
    page
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "the page is a file of the repository, no input of the matcher"
)]
fn the_page_has_every_type_of_the_format() {
    let tables = tables();
    assert!(tables.contains("### State\n") && tables.contains("| `secret` | `[u8; 32]` |"));
    let end = PAGE.find(MARK).expect("the mark") + MARK.len();
    let wanted = format!("{}{tables}", &PAGE[..end]);
    if std::env::var_os("THRONG_UPDATE").is_some() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/matcher-journal.md");
        std::fs::write(page, wanted).unwrap();
        return;
    }
    assert!(
        PAGE == wanted,
        "docs/reference/matcher-journal.md is not of schema/v1.rs; THRONG_UPDATE=1 writes it"
    );
}
