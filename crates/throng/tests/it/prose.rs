//! Rules about English: comments open with the subject, terms are the glossary's
//! (`docs/glossary.md`), comment lines end at 100 columns. Each failure names the place and the way
//! out.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Words that open a free relative clause. A comment names its subject instead.
const OPENERS: &[&str] = &["What", "Who", "Where", "When", "How", "Whether", "Whoever", "Whatever", "Whose"];

/// Share of comment blocks that may open with one of [`OPENERS`]: quinn has 3.6 %, nats-server 0.4
/// %.
const OPENERS_PERCENT_MAX: usize = 4;

/// Comment blocks with such openers by crate. The numbers only go down: lower one here when a
/// change removes more than [`OPENERS_SLACK`].
const OPENERS_BY_CRATE: &[(&str, usize)] = &[
    ("ddc", 29),
    ("ddc-server", 61),
    ("ddc-store", 17),
    ("fuzz-targets", 15),
    ("gateway", 222),
    ("matcher", 30),
    ("matcher-server", 7),
    ("net", 3),
    ("platform", 1),
    ("replication", 19),
    ("replication-bench", 2),
    ("server", 1),
];

/// Openers that a crate may have fewer than its row says. Two branches that each remove one and
/// lower the row merge without a conflict, and the merge would fail without it.
const OPENERS_SLACK: usize = 3;

/// Columns of a comment line.
const COMMENT_COLUMNS_MAX: usize = 100;

/// Phrases that a reader has to decode, with their replacements. Whole words, any case.
const BANNED_PHRASES: &[(&str, &str)] = &[
    ("somebody", "name the role: a player, a client, an operator"),
    ("nobody", "no client, no player, or the passive of the verb"),
    ("whoever", "name the role"),
    ("is told of", "name who notifies it"),
    ("are told of", "name who notifies them"),
    ("it is said", "name who says it"),
    ("mend", "fix"),
    ("mended", "fixed"),
    ("nine of ten", "p90"),
    ("a text", "a string"),
    ("list of texts", "list of strings"),
    ("now or lately", "state the period"),
    ("lately", "recently, or the period"),
    ("it begins otherwise", "name the field and the expected value"),
    ("everybody", "all players, all connections, every user"),
    ("whatever", "regardless of, every, or the noun"),
    ("is told", "name who notifies it"),
    ("was told", "name who notified it"),
    ("been told", "name who notified it"),
    ("comes in", "joins, arrives"),
    ("come in", "join, arrive"),
    ("gets in", "is admitted, joins"),
    ("get in", "be admitted, join"),
    ("goes on", "continues, resumes"),
    ("turned away", "refused"),
    ("put aside", "quarantined"),
    ("made good", "repaired"),
    ("under way", "in flight, in progress"),
    ("free place", "free seat"),
    ("free places", "free seats"),
    ("has no place", "is full"),
    ("request key", "idempotency key"),
    ("rules in force", "active rules"),
    ("half waited less", "p50"),
    ("as it came", "unchanged, unedited"),
    ("by the way", "name the relation, or leave it out"),
    ("what is not there", "limits, not supported"),
    ("anew", "again, or the verb with re-"),
];

/// Identifiers that the glossary replaces, as file names and as types.
const BANNED_FILES: &[(&str, &str)] = &[
    ("books", "index"),
    ("looking", "introspection"),
    ("care", "maintenance"),
    ("coming", "streaming"),
    ("elsewhere", "fallback"),
    ("figures", "stats"),
    ("lists", "listing"),
    ("things", "types"),
    ("asked", "requests"),
];
const BANNED_TYPES: &[(&str, &str)] = &[
    ("Ask", "Request, with its kind in front"),
    ("Asked", "Request, with its kind in front"),
    ("Question", "Request, with its kind in front"),
    ("Place", "Location, Slot or Position, with its kind in front"),
    ("Outcome", "Result or Report, with its kind in front"),
    ("Claims", "Credentials, TokenClaims or Locks"),
    ("Figures", "Stats, or Report"),
    ("Thing", "its noun"),
];

#[test]
fn comments_open_with_their_subject() {
    let mut blocks = 0;
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, text) in rust_sources() {
        let mut in_block = false;
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.starts_with("//") && !in_block {
                blocks += 1;
                if OPENERS.contains(&first_word(line)) {
                    found.entry(crate_of(&path)).or_default().push(format!(
                        "{}:{}: {line}",
                        path.display(),
                        number + 1
                    ));
                }
            }
            in_block = line.starts_with("//");
        }
    }
    assert!(blocks > 10_000, "only {blocks} comment blocks found: the test looks in the wrong place");
    let count: usize = found.values().map(Vec::len).sum();
    assert!(
        count * 100 <= blocks * OPENERS_PERCENT_MAX,
        "{count} of {blocks} comment blocks open with {OPENERS:?}; at most {OPENERS_PERCENT_MAX} % may. Begin with the subject."
    );
    let mut wrong = String::new();
    for (name, places) in &found {
        let allowed = OPENERS_BY_CRATE.iter().find(|row| row.0 == name).map_or(0, |row| row.1);
        if places.len() > allowed {
            let _ = writeln!(
                wrong,
                "{name}: {} such openers, {allowed} allowed:\n  {}",
                places.len(),
                places.join("\n  ")
            );
        }
    }
    assert!(wrong.is_empty(), "comments open with a free relative clause; begin with the subject:\n{wrong}");
    let fewer: Vec<String> = OPENERS_BY_CRATE
        .iter()
        .map(|(name, allowed)| (name, allowed, found.get(*name).map_or(0, Vec::len)))
        .filter(|(_, allowed, now)| now + OPENERS_SLACK < **allowed)
        .map(|(name, allowed, now)| format!("{name}: {now} such openers, {allowed} in OPENERS_BY_CRATE"))
        .collect();
    assert!(fewer.is_empty(), "lower the counts of these crates: {fewer:#?}");
}

#[test]
fn doc_comments_are_more_than_one_relative_word() {
    let mut wrong = String::new();
    for (path, text) in rust_sources() {
        for (number, line) in text.lines().enumerate() {
            let bare = line.trim().strip_prefix("///").map(|rest| rest.trim().trim_end_matches('.'));
            if bare.is_some_and(|word| OPENERS.contains(&word)) {
                let _ = writeln!(wrong, "{}:{}: {}", path.display(), number + 1, line.trim());
            }
        }
    }
    assert!(wrong.is_empty(), "say what the field means, its unit and its invariant:\n{wrong}");
}

#[test]
fn comment_lines_end_at_100_columns() {
    let mut wrong = String::new();
    for (path, text) in rust_sources() {
        let mut in_code = false;
        for (number, line) in text.lines().enumerate() {
            let Some(comment) = line.trim_start().strip_prefix("//") else {
                in_code = false;
                continue;
            };
            let comment = comment.trim_start_matches(['/', '!']);
            in_code ^= comment.trim_start().starts_with("```");
            // Code, links, rows of tables, diagrams and layouts in columns cannot be broken.
            let is_whole =
                ["http", "|", "cargo ", "`", "  ", "─"].iter().any(|piece| comment.contains(piece));
            let width = line.chars().count();
            if width > COMMENT_COLUMNS_MAX && !in_code && !is_whole {
                let _ = writeln!(wrong, "{}:{}: {width} columns", path.display(), number + 1);
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "break these comment lines at {COMMENT_COLUMNS_MAX} columns (scripts/reflow):\n{wrong}"
    );
}

#[test]
fn documents_help_errors_and_console_use_the_terms_of_the_glossary() {
    let mut wrong = String::new();
    let mut check = |path: &Path, number: usize, text: &str| {
        let lower = text.to_lowercase();
        for (phrase, instead) in BANNED_PHRASES {
            if contains_words(&lower, phrase) {
                let _ = writeln!(
                    wrong,
                    "{}:{number}: \"{phrase}\"; instead: {instead}\n    {}",
                    path.display(),
                    text.trim()
                );
            }
        }
    };
    for (path, text) in files("md") {
        let name = path.to_string_lossy().into_owned();
        if name.ends_with("glossary.md") || name.contains("bench/runs") || name.contains("renames.md") {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            // Rows of kept runs are named as they were measured.
            if !(path.ends_with("docs/benchmarks.md") && line.starts_with('|')) {
                check(&path, number + 1, line);
            }
        }
    }
    for (path, text) in rust_sources() {
        let is_test = |part: &str| {
            matches!(part, "tests" | "benches" | "examples" | "conformance" | "fuzz-targets" | "sim")
        };
        if path.components().any(|part| part.as_os_str().to_str().is_some_and(is_test)) {
            continue;
        }
        // The descriptions of keys and commands are doc comments there.
        let is_help = path.ends_with("config/keys.rs") || crate_of(&path) == "throng";
        let mut in_tests = false;
        for (number, line) in text.lines().enumerate() {
            in_tests |= line.starts_with("mod tests") || line.starts_with("#[cfg(test)]");
            if in_tests {
                continue;
            }
            if is_help && line.trim_start().starts_with("///") {
                check(&path, number + 1, line);
            } else if !line.trim_start().starts_with("//") {
                for literal in line.split('"').skip(1).step_by(2) {
                    check(&path, number + 1, literal);
                }
            }
        }
    }
    for (path, text) in files("ts").chain(files("tsx")) {
        if path.starts_with("console/src") {
            for (number, line) in text.lines().enumerate() {
                check(&path, number + 1, line);
            }
        }
    }
    assert!(wrong.is_empty(), "phrases that readers have to decode (docs/glossary.md):\n{wrong}");
}

#[test]
fn files_and_types_have_the_names_of_the_glossary() {
    let mut wrong = String::new();
    for (path, text) in rust_sources() {
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        if let Some((_, instead)) = BANNED_FILES.iter().find(|row| row.0 == stem) {
            let _ = writeln!(wrong, "{}: name it {instead}", path.display());
        }
        for (number, line) in text.lines().enumerate() {
            let mut words =
                line.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty());
            if words.any(|word| matches!(word, "struct" | "enum" | "trait"))
                && let Some(name) = words.next()
                && let Some((_, instead)) = BANNED_TYPES.iter().find(|row| row.0 == name)
                && !line.trim_start().starts_with("//")
            {
                let _ = writeln!(wrong, "{}:{}: {name}; instead: {instead}", path.display(), number + 1);
            }
        }
    }
    assert!(wrong.is_empty(), "names that the glossary replaces (docs/glossary.md):\n{wrong}");
}

fn first_word(comment: &str) -> &str {
    let text = comment.trim_start_matches('/').trim_start_matches('!').trim_start();
    text.split(' ').next().unwrap_or_default().trim_end_matches(['.', ',', ':', ';'])
}

/// True if `text` contains `words` with no letter on either side.
fn contains_words(text: &str, words: &str) -> bool {
    text.match_indices(words).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + words.len()..].chars().next();
        ![before, after].into_iter().flatten().any(|c| c.is_alphanumeric() || c == '_')
    })
}

fn crate_of(path: &Path) -> String {
    path.components().nth(1).map(|part| part.as_os_str().to_string_lossy().into_owned()).unwrap_or_default()
}

fn rust_sources() -> impl Iterator<Item = (PathBuf, String)> {
    files("rs").filter(|(path, _)| {
        path.starts_with("crates") && !path.components().any(|part| part.as_os_str() == "generated")
    })
}

/// Files of the repository with an extension: their paths from its root, and their texts.
fn files(extension: &'static str) -> impl Iterator<Item = (PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut folders = vec![root.clone()];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of the repository") {
            let path = entry.expect("an entry of it").path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if path.is_dir() {
                if !["target", "node_modules", "dist", "corpus"].contains(&name) && !name.starts_with('.') {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found.into_iter().map(move |path| {
        let text =
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (path.strip_prefix(&root).expect("below the root").to_path_buf(), text)
    })
}
