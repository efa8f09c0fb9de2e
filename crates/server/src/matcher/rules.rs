//! Reader of the file of match modes and queues, with descriptions of its defects.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::Deserialize;
use serde_json::Value;
use throng_matcher::{Config, ModeRules, QueueRules, RuleProblem};
use toml::Spanned;

use crate::config::{Origin, Problem, ProblemKind};

/// Longest time for a policy's verdict: a request is given up after 3 s anyway.
const POLICY_TIMEOUT_MS_MAX: u64 = 3_000;
/// Characters of a value that are shown.
const FOUND_CHARS_MAX: usize = 80;

/// A file of match modes and queues.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    modes: BTreeMap<String, Spanned<ModeRules>>,
    queues: Vec<Spanned<Value>>,
    /// Longest time for the verdict of a mode's policy; 200 ms by default.
    policy_timeout_ms: Option<Spanned<u64>>,
    /// Certificates to trust at policies behind `https`, as PEM; whom the system trusts, if it does
    /// not say.
    policy_ca_file: String,
}

/// Checked contents of a file.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(super) config: Config,
    pub(super) policy_ca_file: String,
}

/// Reads the file; an empty name is an empty file.
///
/// # Errors
/// The first thing that is wrong, with its place, what was found there and what would be right.
pub(crate) fn load(file: &str) -> Result<Rules, Box<Problem>> {
    if file.is_empty() {
        return parse(file, "");
    }
    let text = std::fs::read_to_string(file).map_err(|error| {
        let origin = Origin::File { path: file.to_owned(), line: 1, column: 1 };
        Box::new(Problem::new(ProblemKind::BadReference, origin, format!("`{file}` cannot be read: {error}")))
    })?;
    parse(file, &text)
}

fn parse(file: &str, text: &str) -> Result<Rules, Box<Problem>> {
    let wrong = |span: Range<usize>, message: String| problem(file, text, span, message);
    let read: File = toml::from_str(text).map_err(|error| {
        let span = error.span().unwrap_or(0..0);
        let is_queue = text.get(span.clone()).is_some_and(|found| found.starts_with("queues"));
        let problem = wrong(span, error.message().trim_end().to_owned());
        let note = "queues are a list: write `[[queues]]`, and the name of each as `name = \"NAME\"`";
        if is_queue { problem.note(note) } else { problem }
    })?;
    let mut config = Config::default();
    for (name, mode) in read.modes {
        let (span, rules) = (mode.span(), mode.into_inner());
        rules.check().map_err(|why| wrong(span, format!("modes.{name}.{why}")))?;
        config.modes.insert(name, rules);
    }
    if let Some(limit) = read.policy_timeout_ms {
        let found = *limit.get_ref();
        if !(1..=POLICY_TIMEOUT_MS_MAX).contains(&found) {
            let message = format!("bad value for `policy_timeout_ms`: found {found}");
            let allowed = format!(
                "allowed: from 1 to {POLICY_TIMEOUT_MS_MAX} ms, default {}",
                config.policy_timeout_ms
            );
            return Err(Box::new(wrong(limit.span(), message).note(allowed)));
        }
        config.policy_timeout_ms = found;
    }
    for (at, queue) in read.queues.into_iter().enumerate() {
        let (span, value) = (queue.span(), queue.into_inner());
        let told = |why: &RuleProblem| Box::new(wrong(span.clone(), tell(at, &value, why)));
        let rules = QueueRules::parse(value.to_string().as_bytes()).map_err(|why| told(&why))?;
        if config.queues.iter().any(|other| other.name() == rules.name()) {
            let why =
                RuleProblem { path: "name".to_owned(), reason: "another queue has the same name".to_owned() };
            return Err(told(&why));
        }
        config.queues.push(rules);
        config.check().map_err(|why| told(&why))?;
    }
    Ok(Rules { config, policy_ca_file: read.policy_ca_file })
}

/// Error in a queue: path, value and reason.
fn tell(at: usize, queue: &Value, why: &RuleProblem) -> String {
    let name = queue.get("name").and_then(Value::as_str).unwrap_or_default();
    let whose = if name.is_empty() { format!("queues[{at}]") } else { format!("queue `{name}`") };
    let found = match value_at(queue, &why.path) {
        Some(found) => {
            let shown = found.to_string();
            let cut: String = shown.chars().take(FOUND_CHARS_MAX).collect();
            format!("found {cut}{}", if cut.len() < shown.len() { "..." } else { "" })
        }
        None => "it is not there".to_owned(),
    };
    format!("{whose}: `{}`: {}; {found}", why.path, why.reason)
}

/// The value at a path such as `rules[2].max`.
fn value_at<'a>(document: &'a Value, path: &str) -> Option<&'a Value> {
    let mut at = document;
    for step in path.split(['.', '[']).filter(|step| !step.is_empty()) {
        at = match step.strip_suffix(']') {
            Some(index) => at.get(index.parse::<usize>().ok()?)?,
            None => at.get(step)?,
        };
    }
    Some(at)
}

fn problem(file: &str, text: &str, span: Range<usize>, message: String) -> Problem {
    let start = span.start.min(text.len());
    let before = text.get(..start).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    let origin = Origin::File { path: file.to_owned(), line, column };
    let mut problem = Problem::new(ProblemKind::BadRules, origin, message);
    problem.source_line = text.lines().nth(line - 1).map(str::to_owned);
    let shown = text.get(span).unwrap_or_default().lines().next().unwrap_or_default();
    problem.width = shown.chars().count().max(1);
    problem
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIDES: &str = "sides = [{ name = 'red', min = 1, max = 1 }, { name = 'blue', min = 1, max = 1 }]\n";

    #[test]
    fn what_is_wrong_is_told_with_its_place_and_what_was_found() {
        let queue = |more: &str| format!("[[queues]]\nname = 'duel'\n{SIDES}{more}\n");
        // text, line, words that must stand in the rendered problem
        let table: Vec<(String, usize, &[&str])> = vec![
            ("[modes.m]\ncapacty = 4\n".to_owned(), 2, &["unknown field `capacty`", "capacity"]),
            ("[queues.duel]\nsides = []\n".to_owned(), 1, &["expected a sequence", "[[queues]]", "`name ="]),
            ("[modes.m\n".to_owned(), 1, &["rules.toml:1:"]),
            ("[modes.m]\ncapacity = 10001\n".to_owned(), 1, &["modes.m.capacity", "at most 10000"]),
            ("[modes.m]\nlinger_ms = 86400001\n".to_owned(), 1, &["modes.m.linger_ms", "a day"]),
            (
                "[modes.m]\nlimits = [{ key = 'a', max = nan }]\n".to_owned(),
                1,
                &["modes.m.limits[0]", "finite"],
            ),
            ("policy_timeout_ms = 5000\n".to_owned(), 1, &["found 5000", "from 1 to 3000 ms", "default 200"]),
            (queue("tick_ms = 7"), 1, &["queue `duel`", "`tick_ms`", "between 50 and 10000", "found 7"]),
            (queue("timeout_s = 'long'"), 1, &["`timeout_s`", "found \"long\""]),
            (
                queue(
                    "rules = [{ name = 'near', type = 'near', key = 'skill', max = -1 }]\nattributes = { skill = { type = 'number' } }",
                ),
                1,
                &["`rules[0]`", "cannot be below 0", "\"max\":-1"],
            ),
            (
                queue("rules = [{ type = 'spread', key = 'level', max = 1 }]"),
                1,
                &["`level` is not declared", "found \"level\""],
            ),
            (queue("assign = 'policy'"), 1, &["`assign`", "modes.duel.policy", "found \"policy\""]),
            (
                format!("{}{}", queue(""), queue("")),
                5,
                &["another queue has the same name", "found \"duel\""],
            ),
            ("[[queues]]\nname = 'x'\n".to_owned(), 1, &["queue `x`", "sides"]),
        ];
        for (text, line, words) in table {
            let problem = parse("rules.toml", &text).expect_err(&text);
            let Origin::File { line: found, .. } = problem.origin else { panic!("{problem}") };
            assert_eq!(found, line, "{problem}");
            let shown = problem.to_string();
            assert!(shown.starts_with("error[THR-0108]"), "{shown}");
            for word in words {
                assert!(shown.contains(word), "{word}: {shown}");
            }
        }
    }

    #[test]
    fn a_file_that_is_right_gives_its_modes_and_queues() {
        let text =
            format!("policy_timeout_ms = 100\n[modes.m]\ncapacity = 4\n[[queues]]\nname = 'duel'\n{SIDES}");
        let rules = parse("rules.toml", &text).unwrap();
        assert_eq!((rules.config.modes["m"].capacity, rules.config.queues[0].name()), (4, "duel"));
        assert_eq!(rules.config.policy_timeout_ms, 100);
        assert!(load("").unwrap().config.queues.is_empty());
        assert_eq!(load("/nowhere/at/all").unwrap_err().kind, ProblemKind::BadReference);
    }
}
