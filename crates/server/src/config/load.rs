//! Puts the layers of a configuration together: defaults, file, environment, flags.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::keys::{CLASS_KEYS, CLASSES, Class, KEYS, Key, SECTIONS, Settings, Values, key, keys_of_worlds};
use super::problem::{Origin, Problem, ProblemKind, Problems};
use super::value::{Value, nearest};
use super::{Config, check};

/// Variables that start like ours without setting a key.
const RESERVED_ENV: &[&str] = &["THRONG_CONFIG", "THRONG_SEED", "THRONG_UPDATE", "THRONG_LOG"];

/// Collects the layers; [`Loader::load`] resolves them.
///
/// ```
/// use throng_server::config::Loader;
/// let config = Loader::new().flag("--gateway.clients.addr", "gateway.clients.addr", "127.0.0.1:0").load().unwrap();
/// assert_eq!(config.settings.clients.addr, "127.0.0.1:0");
/// assert_eq!(config.origin("gateway.clients.addr").to_string(), "flag --gateway.clients.addr");
/// ```
#[derive(Clone, Debug, Default)]
pub struct Loader {
    command: Vec<(&'static str, &'static str, Value)>,
    file: Option<PathBuf>,
    text: Option<(String, String)>,
    env: Vec<(String, String)>,
    flags: Vec<(String, String, String)>,
}

impl Loader {
    /// Defaults only; nothing is read from the process' surroundings unless asked for.
    #[must_use]
    pub fn new() -> Loader {
        Loader::default()
    }

    /// Replaces a built-in default for a subcommand. `path` must be a known key.
    #[must_use]
    pub fn command_default(mut self, command: &'static str, path: &'static str, value: Value) -> Loader {
        debug_assert!(key(path).is_some(), "{path} is not a key");
        self.command.push((command, path, value));
        self
    }

    /// Reads a TOML file.
    #[must_use]
    pub fn file(mut self, path: impl Into<PathBuf>) -> Loader {
        self.file = Some(path.into());
        self
    }

    /// Takes `text` as the content of a file called `name`.
    #[must_use]
    pub fn text(mut self, name: impl Into<String>, text: impl Into<String>) -> Loader {
        self.text = Some((name.into(), text.into()));
        self
    }

    /// Takes the variables that begin with `THRONG_`.
    #[must_use]
    pub fn env(mut self, variables: impl IntoIterator<Item = (String, String)>) -> Loader {
        self.env.extend(variables.into_iter().filter(|(name, _)| name.starts_with("THRONG_")));
        self
    }

    /// Sets the key `path`; `shown` is the flag as the user wrote it.
    #[must_use]
    pub fn flag(
        mut self,
        shown: impl Into<String>,
        path: impl Into<String>,
        value: impl Into<String>,
    ) -> Loader {
        self.flags.push((shown.into(), path.into(), value.into()));
        self
    }

    /// Puts the layers together and checks the result.
    ///
    /// # Errors
    /// Every problem found, not only the first.
    pub fn load(self) -> Result<Config, Problems> {
        let mut layers = Layers::default();
        let mut files = Vec::new();
        for (command, path, value) in &self.command {
            layers.set(path, value.clone(), Origin::Command(command));
        }
        if let Some((name, text)) = &self.text {
            files.push((name.clone(), text.clone()));
        }
        if let Some(path) = &self.file {
            match std::fs::read_to_string(path) {
                Ok(text) => files.push((path.display().to_string(), text)),
                Err(error) => layers.problems.push(unreadable(path, &error)),
            }
        }
        for (name, text) in &files {
            layers.apply_file(name, text);
        }
        for (name, text) in &self.env {
            layers.apply_env(name, text);
        }
        for (shown, path, text) in &self.flags {
            layers.apply_text(path, text, Origin::Flag(shown.clone()));
        }
        let Layers { values, origins, classes, mut problems, warnings } = layers;
        let mut settings = Settings::read(&values);
        settings.classes = classes.iter().map(|class| Class::read(&values, &class.values)).collect();
        settings.has_pages_at_cache =
            settings.http.addr.is_empty() && matches!(origins.get("http.addr"), Some(Origin::Command(_)));
        let file = self.file.clone();
        let config = Config { settings, values, origins, classes, warnings, file, loader: self };
        problems.extend(check::check(&config).into_iter().map(|problem| with_line(problem, &files)));
        problems.sort_by_key(|problem| match &problem.origin {
            Origin::File { path, line, column } => (path.clone(), *line, *column),
            _ => (String::new(), 0, 0),
        });
        if problems.is_empty() { Ok(config) } else { Err(Problems(problems)) }
    }
}

struct Layers {
    values: Values,
    origins: BTreeMap<String, Origin>,
    classes: Vec<ClassLayer>,
    problems: Vec<Problem>,
    warnings: Vec<String>,
}

/// One `[[gateway.classes]]`: its own keys under their paths, and keys of `[gateway]` under theirs.
#[derive(Clone, Debug, Default)]
pub(super) struct ClassLayer {
    pub(super) values: Values,
    /// By the path within the class; of the class itself under the empty one.
    pub(super) origins: BTreeMap<String, Origin>,
}

impl Default for Layers {
    fn default() -> Layers {
        Layers {
            values: KEYS.iter().map(|key| (key.path.clone(), key.default.clone())).collect(),
            origins: BTreeMap::new(),
            classes: Vec::new(),
            problems: Vec::new(),
            warnings: Vec::new(),
        }
    }
}

impl Layers {
    fn set(&mut self, path: &str, value: Value, origin: Origin) {
        self.values.insert(path.to_owned(), value);
        self.origins.insert(path.to_owned(), origin);
    }

    fn apply_text(&mut self, path: &str, text: &str, origin: Origin) {
        let Some(key) = key(path) else {
            let problem = Problem::new(ProblemKind::UnknownKey, origin, format!("unknown key `{path}`"));
            self.problems.push(with_suggestion(problem, path, KEYS.iter().map(|key| key.path.as_str())));
            return;
        };
        match key.kind.from_text(text) {
            Ok(value) => self.set(path, value, origin),
            Err(found) => self.problems.push(bad_value(key, &found, origin)),
        }
    }

    fn apply_env(&mut self, name: &str, text: &str) {
        if let Some(key) = KEYS.iter().find(|key| key.env() == name) {
            return self.apply_text(&key.path, text, Origin::Env(name.to_owned()));
        }
        if RESERVED_ENV.contains(&name) {
            return;
        }
        // Only a warning: a cluster that has a service called "throng" sets THRONG_PORT and the
        // like by itself.
        let names: Vec<String> = KEYS.iter().map(Key::env).collect();
        let hint = nearest(name, names.iter().map(String::as_str));
        let hint = hint.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
        self.warnings.push(format!("environment variable {name} matches no key{hint}"));
    }

    fn apply_file(&mut self, name: &str, text: &str) {
        let source = Source { name, text };
        let (table, errors) = DeTable::parse_recoverable(text);
        for error in &errors {
            let span = error.span().unwrap_or(0..0);
            self.problems.push(source.problem(ProblemKind::Syntax, span, error.message().to_owned()));
        }
        if errors.is_empty() {
            self.apply_table(&source, "", table.get_ref());
        }
    }

    fn apply_table(&mut self, source: &Source<'_>, prefix: &str, table: &DeTable<'_>) {
        for (name, value) in table {
            let path = if prefix.is_empty() {
                name.get_ref().to_string()
            } else {
                format!("{prefix}.{}", name.get_ref())
            };
            if let Some(key) = key(&path) {
                if let Some(checked) = self.checked(source, key, value) {
                    self.set(&path, checked, source.origin(name.span().start));
                }
            } else if path == CLASSES {
                self.apply_classes(source, value);
            } else if is_section(&path) {
                self.apply_section(source, &path, value);
            } else {
                self.problems.push(unknown_key(source, prefix, &path, name));
            }
        }
    }

    /// The value of a key, unless it is wrong.
    fn checked(&mut self, source: &Source<'_>, key: &Key, value: &Spanned<DeValue<'_>>) -> Option<Value> {
        match key.kind.from_toml(value.get_ref()) {
            Ok(checked) => Some(checked),
            Err(found) => {
                let at = source.problem(ProblemKind::BadValue, value.span(), String::new());
                let problem = bad_value(key, &found, at.origin.clone());
                self.problems.push(Problem { source_line: at.source_line, width: at.width, ..problem });
                None
            }
        }
    }

    fn apply_classes(&mut self, source: &Source<'_>, value: &Spanned<DeValue<'_>>) {
        let items = match value.get_ref() {
            DeValue::Array(items) => &items[..],
            _ => &[],
        };
        let tables: Vec<_> = items
            .iter()
            .filter_map(|item| match item.get_ref() {
                DeValue::Table(table) => Some((item.span().start, table)),
                _ => None,
            })
            .collect();
        if tables.is_empty() || tables.len() < items.len() {
            let message = format!("`{CLASSES}` is a list of tables");
            let problem = source.problem(ProblemKind::BadValue, value.span(), message);
            let note =
                format!("write [[{CLASSES}]] on a line of its own for each class, and its keys below it");
            self.problems.push(problem.note(note));
        }
        for (start, table) in tables {
            let mut class = ClassLayer::default();
            class.origins.insert(String::new(), source.origin(start));
            self.apply_class(source, "", table, &mut class);
            self.classes.push(class);
        }
    }

    fn apply_class(
        &mut self,
        source: &Source<'_>,
        prefix: &str,
        table: &DeTable<'_>,
        class: &mut ClassLayer,
    ) {
        for (name, value) in table {
            let inner = format!("{prefix}{}", name.get_ref());
            let path = format!("{CLASSES}.{inner}");
            let own = CLASS_KEYS.iter().find(|key| key.path == path);
            let of_world = keys_of_worlds().find(|(known, _)| *known == inner).map(|(_, key)| key);
            if let Some(key) = own.or(of_world) {
                // The error names the key as it stands in the class.
                let shown = Key { path, ..key.clone() };
                if let Some(checked) = self.checked(source, &shown, value) {
                    class.values.insert(key.path.clone(), checked);
                    class.origins.insert(inner, source.origin(name.span().start));
                }
            } else if let DeValue::Table(table) = value.get_ref()
                && keys_of_worlds().any(|(known, _)| known.starts_with(&format!("{inner}.")))
            {
                self.apply_class(source, &format!("{inner}."), table, class);
            } else {
                self.problems.push(unknown_class_key(source, &inner, name));
            }
        }
    }

    fn apply_section(&mut self, source: &Source<'_>, path: &str, value: &Spanned<DeValue<'_>>) {
        if let DeValue::Table(inner) = value.get_ref() {
            return self.apply_table(source, path, inner);
        }
        let message = format!("`{path}` is a section, not a value");
        let problem = source.problem(ProblemKind::BadValue, value.span(), message);
        self.problems
            .push(problem.note(format!("write [{path}] on a line of its own and its keys below it")));
    }
}

/// True if `path` is a documented section or leads to one.
fn is_section(path: &str) -> bool {
    SECTIONS.iter().any(|section| {
        section.path == path || section.path.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'))
    })
}

fn unknown_key(
    source: &Source<'_>,
    prefix: &str,
    path: &str,
    name: &Spanned<toml::de::DeString<'_>>,
) -> Problem {
    let what = if prefix.is_empty() { "key or section" } else { "key" };
    let problem = source.problem(ProblemKind::UnknownKey, name.span(), format!("unknown {what} `{path}`"));
    if let Some(way_out) = removed(path) {
        return problem.note(way_out);
    }
    let dot = if prefix.is_empty() { String::new() } else { format!("{prefix}.") };
    let mut here: Vec<&str> = KEYS
        .iter()
        .map(|key| key.path.as_str())
        .chain(SECTIONS.iter().map(|section| section.path))
        .filter_map(|known| known.strip_prefix(&dot))
        .map(|rest| rest.split('.').next().unwrap_or(rest))
        .collect();
    here.sort_unstable();
    here.dedup();
    let word = name.get_ref().as_ref();
    // The right word in the wrong section is as common a slip as a typing error.
    let elsewhere: Vec<&str> = KEYS
        .iter()
        .map(|key| key.path.as_str())
        .filter(|known| known.rsplit('.').next() == Some(word))
        .collect();
    let problem = match nearest(word, here.iter().copied()) {
        Some(near) => problem.note(format!("did you mean `{near}`?")),
        None if elsewhere.is_empty() => problem,
        None => problem.note(format!("the key exists as {}", quoted(&elsewhere))),
    };
    let place = if prefix.is_empty() { "at the top".to_owned() } else { format!("in [{prefix}]") };
    problem.note(format!("allowed {place}: {}", here.join(", ")))
}

fn unknown_class_key(source: &Source<'_>, inner: &str, name: &Spanned<toml::de::DeString<'_>>) -> Problem {
    let message = format!("unknown key `{CLASSES}.{inner}`");
    let problem = source.problem(ProblemKind::UnknownKey, name.span(), message);
    if inner == "limits.connections_max" {
        return problem.note("set `connections_max` of the class itself");
    }
    if key(&format!("gateway.{inner}")).is_some() {
        return problem.note(format!("`gateway.{inner}` is the same for all worlds of the process"));
    }
    let own = CLASS_KEYS.iter().filter_map(|key| key.path.rsplit('.').next());
    let known: Vec<&str> = own.chain(keys_of_worlds().map(|(name, _)| name)).collect();
    let problem = match nearest(inner, known.iter().copied()) {
        Some(near) => problem.note(format!("did you mean `{near}`?")),
        None => problem,
    };
    problem.note("`throng world class` lists the keys of a class")
}

/// Keys of earlier builds, with the way out.
const REMOVED: &[(&str, &str)] = &[
    (
        "matcher.shards",
        "a matcher is one state machine on one thread; remove the key, and for more than one core's work run one matcher for \
         each area (`matcher.area`)",
    ),
    (
        "matcher.nats_lease_s",
        "an area has one serving matcher, whose lease has fixed times; remove the key, and say with `matcher.takeover` what \
         happens when it is lost",
    ),
];

/// The way out, if `path` is a key of an earlier build.
fn removed(path: &str) -> Option<&'static str> {
    REMOVED.iter().find(|(known, _)| *known == path).map(|(_, way_out)| *way_out)
}

fn with_suggestion<'a>(problem: Problem, word: &str, candidates: impl Iterator<Item = &'a str>) -> Problem {
    if let Some(way_out) = removed(word) {
        return problem.note(way_out);
    }
    match nearest(word, candidates) {
        Some(near) => problem.note(format!("did you mean `{near}`?")),
        None => problem.note("`throng config default` lists every key"),
    }
}

fn bad_value(key: &Key, found: &str, origin: Origin) -> Problem {
    let unit = if key.unit.is_empty() { String::new() } else { format!(" ({})", key.unit) };
    Problem::new(ProblemKind::BadValue, origin, format!("bad value for `{}`: {found}", key.path))
        .note(format!("allowed: {}{unit}; default {}", key.kind.allowed(), key.default.to_toml()))
}

/// Shows the line of a problem that was found after reading.
fn with_line(problem: Problem, files: &[(String, String)]) -> Problem {
    let Origin::File { path, line, column } = &problem.origin else { return problem };
    let Some((_, text)) = files.iter().find(|(name, _)| name == path) else { return problem };
    let Some(source) = text.lines().nth(line - 1).map(|line| line.trim_end().to_owned()) else {
        return problem;
    };
    let key = |c: &char| c.is_alphanumeric() || "_-\"'".contains(*c);
    let width = source.chars().skip(column - 1).take_while(key).count();
    Problem { source_line: Some(source), width, ..problem }
}

fn unreadable(path: &Path, error: &std::io::Error) -> Problem {
    let origin = Origin::File { path: path.display().to_string(), line: 1, column: 1 };
    let problem =
        Problem::new(ProblemKind::Unreadable, origin, format!("cannot read the configuration: {error}"));
    match error.kind() {
        std::io::ErrorKind::NotFound => {
            problem.note("`throng config default > throng.toml` writes one to start from")
        }
        _ => problem,
    }
}

fn quoted(words: &[&str]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

/// A file under its name, to turn byte offsets into lines and columns.
struct Source<'a> {
    name: &'a str,
    text: &'a str,
}

impl Source<'_> {
    fn origin(&self, offset: usize) -> Origin {
        let (line, column) = self.position(offset);
        Origin::File { path: self.name.to_owned(), line, column }
    }

    fn position(&self, offset: usize) -> (usize, usize) {
        let mut end = offset.min(self.text.len());
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        let before = &self.text[..end];
        let line = before.matches('\n').count() + 1;
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        (line, before[start..].chars().count() + 1)
    }

    fn problem(&self, kind: ProblemKind, span: std::ops::Range<usize>, message: String) -> Problem {
        let (line, column) = self.position(span.start);
        let source_line = self.text.lines().nth(line - 1).map(|text| text.trim_end().to_owned());
        let rest = source_line.as_deref().map_or(0, |text| text.chars().count().saturating_sub(column - 1));
        let width = span.len().clamp(1, rest.max(1));
        Problem { source_line, width, ..Problem::new(kind, self.origin(span.start), message) }
    }
}
