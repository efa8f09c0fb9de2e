//! Texts made from the key tables: the commented default file, the JSON Schema and the reference
//! page.

use std::fmt::Write as _;

use serde_json::{Map, json};

use super::keys::{CLASS_KEYS, CLASSES, KEYS, Key, SECTIONS, keys_of_worlds};
use super::value::{Kind, Value};

/// A configuration file that sets nothing: every key with its documentation, commented out at its
/// default.
#[must_use]
pub fn default_toml() -> String {
    let mut out = String::from(
        "# Throng configuration. Every key is shown with its default; remove the `#` to change it.\n\
         # The same keys are flags (--server.shards 2) and environment variables (THRONG_SERVER_SHARDS=2);\n\
         # flags override the environment, which overrides this file.\n",
    );
    for section in SECTIONS {
        let _ = write!(out, "\n# {}\n[{}]\n", section.doc, section.path);
        for key in keys_of(section.path) {
            for line in wrap(&key.doc, 100) {
                let _ = writeln!(out, "# {line}");
            }
            let _ = writeln!(out, "# {}", facts(key));
            let _ = writeln!(out, "#{} = {}\n", name(key), key.default.to_toml());
        }
    }
    let _ = write!(out, "\n# {CLASS_DOC}\n#[[{CLASSES}]]\n");
    for key in CLASS_KEYS.iter() {
        for line in wrap(&key.doc, 100) {
            let _ = writeln!(out, "# {line}");
        }
        let _ = writeln!(out, "# {}", facts(key));
        let _ = writeln!(out, "#{} = {}\n", name(key), class_example(key));
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

/// JSON Schema (draft 2020-12) of the file, for completion and checks in editors.
#[must_use]
pub fn schema() -> serde_json::Value {
    let mut root = object_schema("Throng configuration");
    for section in SECTIONS {
        let mut node = &mut root;
        for part in section.path.split('.') {
            if node["properties"].get(part).is_none() {
                node["properties"][part] = object_schema(section.doc);
            }
            node = &mut node["properties"][part];
        }
        for key in keys_of(section.path) {
            node["properties"][name(key)] = key_schema(key);
        }
    }
    let mut class = object_schema(CLASS_DOC);
    for key in CLASS_KEYS.iter() {
        class["properties"][name(key)] = key_schema(key);
    }
    class["required"] = json!(["name"]);
    for (inner, key) in keys_of_worlds() {
        let mut node = &mut class;
        let (tables, last) = inner.rsplit_once('.').unwrap_or(("", inner));
        for part in tables.split('.').filter(|part| !part.is_empty()) {
            if node["properties"].get(part).is_none() {
                node["properties"][part] = object_schema("Settings of the worlds of the class.");
            }
            node = &mut node["properties"][part];
        }
        node["properties"][last] = key_schema(key);
    }
    root["properties"]["gateway"]["properties"]["classes"] = json!({ "type": "array", "items": class });
    root["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    root
}

/// The reference page `docs/reference/config.md`.
#[must_use]
pub fn markdown() -> String {
    let mut out = String::from(
        "# Configuration\n\n\
         For operators. Every key can be set in three places, in ascending precedence: the TOML file (`--config FILE`, else\n\
         `throng.toml` in the working directory), the environment (`THRONG_SERVER_SHARDS=2`) and flags\n\
         (`--server.shards 2`). `throng config show --origin` prints the values in effect and where each came from,\n\
         `throng config check` reports every problem at once, `throng config default` prints a commented file and\n\
         `throng config schema` a JSON Schema for editors. Keys marked *live* are applied by a reload (SIGHUP); the\n\
         others are reported as waiting for a restart.\n\n\
         This page is generated from `crates/server/src/config/keys.rs`; a test keeps it fresh.\n",
    );
    for section in SECTIONS {
        let _ = write!(out, "\n## [{}]\n\n{}\n\n", section.path, section.doc);
        out.push_str("| key | allowed | default | live | |\n|---|---|---|---|---|\n");
        for key in keys_of(section.path) {
            let unit = if key.unit.is_empty() { String::new() } else { format!(", {}", key.unit) };
            let _ = writeln!(
                out,
                "| `{}` | {}{unit} | `{}` | {} | {} |",
                name(key),
                key.kind.allowed(),
                key.default.to_toml(),
                if key.reload { "yes" } else { "" },
                key.doc.replace('|', "\\|"),
            );
        }
    }
    let _ = write!(
        out,
        "\n## [[{CLASSES}]]\n\n{CLASS_DOC} Classes stand in the file alone, and a reload applies to\n\
         worlds that open after it. [Many worlds in one process](../how-to/many-worlds.md) shows their use.\n\n\
         | key | allowed | default | |\n|---|---|---|---|\n"
    );
    for key in CLASS_KEYS.iter() {
        let unit = if key.unit.is_empty() { String::new() } else { format!(", {}", key.unit) };
        let (allowed, default) = (key.kind.allowed(), key.default.to_toml());
        let _ = writeln!(out, "| `{}` | {allowed}{unit} | `{default}` | {} |", name(key), key.doc);
    }
    let keys: Vec<String> = keys_of_worlds().map(|(name, _)| format!("`{name}`")).collect();
    let _ = write!(
        out,
        "\nA class may also set these keys of `[gateway]` for its worlds, as in `limits.channels_max = 100`; others come\n\
         from `[gateway]`: {}.\n",
        keys.join(", ")
    );
    out
}

const CLASS_DOC: &str = "A class of worlds: settings that worlds are made with. The table may be repeated.";

/// A class needs a name.
fn class_example(key: &Key) -> String {
    if name(key) == "name" { "\"duel\"".to_owned() } else { key.default.to_toml() }
}

fn keys_of(section: &str) -> impl Iterator<Item = &'static Key> {
    KEYS.iter().filter(move |key| key.path.rsplit_once('.').is_some_and(|(parent, _)| parent == section))
}

fn name(key: &Key) -> &str {
    key.path.rsplit('.').next().unwrap_or(&key.path)
}

fn facts(key: &Key) -> String {
    let mut facts = key.kind.allowed();
    if !key.unit.is_empty() {
        let _ = write!(facts, ", {}", key.unit);
    }
    facts.push_str(if key.reload { "; applied by a reload" } else { "; needs a restart" });
    facts
}

fn object_schema(description: &str) -> serde_json::Value {
    json!({ "type": "object", "description": description, "additionalProperties": false, "properties": Map::new() })
}

fn key_schema(key: &Key) -> serde_json::Value {
    let mut schema = match key.kind {
        Kind::Bool => json!({ "type": "boolean" }),
        Kind::Int { min, max } => json!({ "type": "integer", "minimum": min, "maximum": max }),
        Kind::Choice(words) => json!({ "enum": words }),
        Kind::Text | Kind::Addr | Kind::Path => json!({ "type": "string" }),
        Kind::Folder => json!({ "type": "string", "minLength": 1 }),
        Kind::List => json!({ "type": "array", "items": { "type": "string" } }),
        Kind::Map => json!({ "type": "object", "additionalProperties": { "type": "string" } }),
    };
    schema["description"] = json!(key.doc);
    schema["default"] = match &key.default {
        Value::Map(_) => json!({}),
        other => other.to_json(),
    };
    schema
}

/// Breaks `text` at blanks into lines of at most `width` characters where words allow it.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Loader, Settings};

    #[test]
    fn the_default_file_loads_and_changes_nothing() {
        let uncommented: String = default_toml()
            .lines()
            .map(|line| match line.strip_prefix('#') {
                Some(rest) if !rest.starts_with(' ') => format!("{rest}\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        let defaults = Loader::new().load().unwrap();
        for text in [default_toml(), uncommented] {
            let loaded = Loader::new().text("default.toml", text).load().unwrap();
            let classes = loaded.settings.classes.clone();
            assert_eq!(Settings { classes: Vec::new(), ..loaded.settings }, defaults.settings);
            for class in classes {
                assert_eq!((class.keys.name.as_str(), class.settings), ("duel", defaults.settings.clone()));
            }
        }
    }

    #[test]
    fn the_schema_has_every_key() {
        let schema = schema();
        for key in KEYS.iter() {
            let pointer: String = key.path.split('.').map(|part| format!("/properties/{part}")).collect();
            let node = schema.pointer(&pointer).unwrap_or_else(|| panic!("{pointer}"));
            assert!(node["description"].is_string(), "{pointer}");
        }
    }

    #[test]
    fn the_reference_page_is_fresh() {
        crate::testing::check_generated("docs/reference/config.md", &markdown());
    }
}
