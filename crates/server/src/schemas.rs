//! Reader of the configured schema files and their imports.

use std::collections::{HashSet, VecDeque};
use std::path::{Path, PathBuf};

use throng_gateway::data::{DataLimits, Profile, Schemas, SchemasBuilder};

use crate::config::Settings;

/// Compiles the schemas.
///
/// # Errors
/// A phrase with file, line and what is wrong.
pub(crate) fn load(settings: &Settings) -> Result<Schemas, String> {
    let gateway = &settings.gateway;
    let limits = DataLimits {
        state_bytes_max: settings.limits.channel_data_bytes_max,
        opaque_bytes_max: settings.limits.unknown_data_bytes_max,
    };
    let mut builder = SchemasBuilder::new().limits(limits).allow_opaque(gateway.unknown_types == "allow");
    for (name, profile) in &gateway.profiles {
        let profile = match profile.as_str() {
            "removable" => Profile::Removable,
            "unreal" => Profile::Unreal,
            _ => Profile::Reflect,
        };
        builder = builder.profile(name, profile);
    }
    for (field, rule) in &gateway.merge_rules {
        let rule = rule.parse().map_err(|why| format!("`gateway.merge_rules`: `{field}`: {why}"))?;
        builder = builder.rule(field, rule);
    }
    let mut sources = Sources::new(&gateway.schema_includes);
    for file in &gateway.schemas {
        let path = Path::new(file);
        let bytes = std::fs::read(path).map_err(|error| format!("cannot read `{file}`: {error}"))?;
        if path.extension().is_some_and(|extension| extension == "proto") {
            sources.add(path, bytes)?;
        } else {
            builder = builder.add_descriptor_set(file, &bytes);
        }
    }
    for (name, text) in sources.collect()? {
        builder = builder.add_proto(&name, &text);
    }
    builder.build().map_err(|error| error.to_string())
}

/// `.proto` files still to be read.
struct Sources<'a> {
    includes: &'a [String],
    queue: VecDeque<(PathBuf, String)>,
    seen: HashSet<PathBuf>,
}

impl<'a> Sources<'a> {
    fn new(includes: &'a [String]) -> Sources<'a> {
        Sources { includes, queue: VecDeque::new(), seen: HashSet::new() }
    }

    fn add(&mut self, path: &Path, bytes: Vec<u8>) -> Result<(), String> {
        let text = String::from_utf8(bytes).map_err(|_| format!("`{}` is not UTF-8 text", path.display()))?;
        if self.seen.insert(path.canonicalize().unwrap_or_else(|_| path.to_owned())) {
            self.queue.push_back((path.to_owned(), text));
        }
        Ok(())
    }

    /// All files with those they import, as far as the imports are found next to them or in the
    /// include folders. Others are left to the compiler, which knows the built-in ones and
    /// complains about the rest.
    fn collect(mut self) -> Result<Vec<(String, String)>, String> {
        let mut all = Vec::new();
        while let Some((path, text)) = self.queue.pop_front() {
            for import in imports(&text) {
                let beside = path.parent().map(Path::to_path_buf).unwrap_or_default();
                let folders = std::iter::once(beside).chain(self.includes.iter().map(PathBuf::from));
                let found = folders.map(|folder| folder.join(import)).find(|candidate| candidate.is_file());
                if let Some(file) = found {
                    let bytes = std::fs::read(&file)
                        .map_err(|error| format!("cannot read `{}`: {error}", file.display()))?;
                    self.add(&file, bytes)?;
                }
            }
            all.push((path.display().to_string(), text));
        }
        Ok(all)
    }
}

/// The names in the import statements of a `.proto` file.
fn imports(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let rest = line.trim_start().strip_prefix("import")?;
        let quote = rest.find(['"', '\''])?;
        let name = &rest[quote + 1..];
        name.split(['"', '\'']).next().filter(|name| !name.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Loader;

    fn settings(schema: &Path, includes: &Path) -> Settings {
        let text = format!(
            "[gateway]\nschemas = ['{}']\nschema_includes = ['{}']\n",
            schema.display(),
            includes.display()
        );
        Loader::new().text("t.toml", text).load().unwrap().settings
    }

    #[test]
    fn imports_are_found_beside_the_file_and_in_include_folders() {
        let dir = tempfile::tempdir().unwrap();
        let (game, shared) = (dir.path().join("game"), dir.path().join("shared"));
        std::fs::create_dir_all(&game).unwrap();
        std::fs::create_dir_all(shared.join("types")).unwrap();
        let head = "syntax = \"proto3\";\n";
        std::fs::write(
            game.join("world.proto"),
            format!(
                "{head}import \"near.proto\";\n  import public 'types/far.proto';\npackage game;\n\
                     message World {{ near.N n = 1; far.F f = 2; }}\n"
            ),
        )
        .unwrap();
        std::fs::write(game.join("near.proto"), format!("{head}package near; message N {{}}\n")).unwrap();
        std::fs::write(shared.join("types/far.proto"), format!("{head}package far; message F {{}}\n"))
            .unwrap();
        let schemas = load(&settings(&game.join("world.proto"), &shared)).unwrap();
        for name in ["game.World", "near.N", "far.F"] {
            assert!(schemas.plan(name).is_some(), "{name}");
        }
    }

    #[test]
    fn mistakes_name_file_and_line() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("bad.proto");
        std::fs::write(&file, "syntax = \"proto3\";\nmessage {\n").unwrap();
        let problem = load(&settings(&file, dir.path())).unwrap_err();
        assert!(problem.contains("bad.proto:2:"), "{problem}");
    }
}
