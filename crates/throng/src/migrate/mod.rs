//! `throng migrate check`: compatibility of the files and flags of a channeld deployment.

mod compose;

use std::fmt::Write as _;
use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use throng_server::config::{Config, SECTIONS};
use throng_server::migrate::{FileKind, Finding, Weight, data_types, inspect};
use throng_server::presets;

use crate::channeld::{self, ALL_FLAGS, FILE_FLAGS};
use crate::output::{complain, print};

/// Translate the files and flags of channeld
#[derive(Debug, Args)]
pub(crate) struct MigrateArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Check(CheckArgs),
}

/// Report which parts of a channeld deployment work unchanged, which differ and which are refused
///
/// Reads state machines, channel settings and spatial controllers (JSON), compose files and
/// manifests (YAML: the flags behind `command:` or `args:`), folders of those, and flags after
/// `--`. Exit code 0 if everything works unchanged, 1 if something differs, 2 if something is
/// refused or nothing is found.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  throng migrate check docker-compose.yml config/
  throng migrate check -- -dev -cfsm=config/client_authoratative_fsm.json -scc=config/spatial_static_2x2.json
  throng migrate check docker-compose.yml --toml throng.toml      the same as a configuration file")]
struct CheckArgs {
    /// Files and folders
    #[arg(value_name = "FILE", required_unless_present = "flags")]
    files: Vec<PathBuf>,
    /// Flags of channeld
    #[arg(last = true, value_name = "FLAG", allow_hyphen_values = true)]
    flags: Vec<String>,
    /// Write an equivalent configuration for `throng up` into a new file
    #[arg(long, value_name = "FILE")]
    toml: Option<PathBuf>,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

/// A file or a command line, with its findings.
struct Subject {
    name: String,
    kind: &'static str,
    findings: Vec<Finding>,
}

/// A command line that starts a gateway.
struct Start {
    words: Vec<String>,
    config: Option<Config>,
}

/// Everything that was looked at.
#[derive(Default)]
struct Checked {
    subjects: Vec<Subject>,
    starts: Vec<Start>,
    /// Files that were examined, with the data types that they name.
    seen: Vec<(PathBuf, Vec<String>)>,
}

pub(crate) fn run(args: MigrateArgs) -> ExitCode {
    let What::Check(args) = args.what;
    let mut checked = Checked::default();
    for path in &args.files {
        if let Err(why) = checked.look_at(path) {
            complain(&format!("error: {}: {why}", path.display()));
            return ExitCode::from(2);
        }
    }
    if !args.flags.is_empty() {
        checked.command("the flags given", Path::new(""), &args.flags);
    }
    if checked.subjects.is_empty() {
        complain(
            "error: found no files or flags of channeld\n  it reads state machines, channel settings and spatial \
             controllers (JSON), and YAML files with its flags behind `command:` or `args:`",
        );
        return ExitCode::from(2);
    }
    if let Some(file) = &args.toml
        && let Err(why) = checked.write_toml(file)
    {
        complain(&format!("error: {why}"));
        return ExitCode::from(2);
    }
    print(&if args.json { format!("{:#}\n", checked.json()) } else { checked.text(args.toml.is_none()) });
    ExitCode::from(match checked.worst() {
        Weight::Same => 0,
        Weight::Differs => 1,
        Weight::Refused => 2,
    })
}

impl Checked {
    fn look_at(&mut self, path: &Path) -> Result<(), String> {
        if path.is_dir() {
            let entries = std::fs::read_dir(path).map_err(|error| error.to_string())?;
            let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
            paths.sort();
            // Of a folder only what is known is of interest, and its folders are not gone into.
            for path in paths.iter().filter(|path| is_json(path) || is_yaml(path)) {
                let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
                if is_yaml(path) {
                    self.compose(path, &text);
                } else if let Some(kind) = FileKind::of(&text) {
                    self.file(path, kind, &text);
                }
            }
            return Ok(());
        }
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
        if is_yaml(path) {
            self.compose(path, &text);
            return Ok(());
        }
        let kind = FileKind::of(&text)
            .ok_or("neither a state machine nor channel settings nor a spatial controller nor YAML")?;
        self.file(path, kind, &text);
        Ok(())
    }

    fn file(&mut self, path: &Path, kind: FileKind, text: &str) {
        if self.seen.iter().any(|(seen, _)| seen == path) {
            return;
        }
        let types = if kind == FileKind::ChannelSettings { data_types(text) } else { Vec::new() };
        self.seen.push((path.to_owned(), types));
        let (name, findings) = (path.display().to_string(), inspect(kind, text));
        self.subjects.push(Subject { name, kind: kind.name(), findings });
    }

    fn compose(&mut self, path: &Path, text: &str) {
        for found in compose::commands(text) {
            // The program's own name, and what is before it, is no flag.
            let flags: Vec<String> =
                found.words.into_iter().skip_while(|word| !word.starts_with('-')).collect();
            if flags.iter().any(|word| channeld::is_flag(word)) {
                let name = format!("{}:{}, `{}`", path.display(), found.line, found.service);
                self.command(&name, path.parent().unwrap_or(Path::new("")), &flags);
            }
        }
    }

    /// A command line, and the files that it names as seen from a folder.
    fn command(&mut self, name: &str, folder: &Path, flags: &[String]) {
        let words: Vec<&str> = flags.iter().map(String::as_str).collect();
        let mut replaced = flags.to_vec();
        let (mut types, mut missing) = (Vec::new(), Vec::new());
        for (flag, value) in &channeld::review(&words).files {
            let Some((_, kind)) = FILE_FLAGS.iter().find(|(name, _)| name == flag) else { continue };
            match self.find(folder, value, *kind) {
                Ok(Some(path)) => {
                    types.extend(
                        self.seen
                            .iter()
                            .filter(|(seen, _)| *seen == path)
                            .flat_map(|(_, types)| types.clone()),
                    );
                    let shown = path.display().to_string();
                    for word in &mut replaced {
                        if word == value {
                            word.clone_from(&shown);
                        } else if word.split_once('=').is_some_and(|(_, given)| given == value) {
                            *word = format!("-{flag}={shown}");
                        }
                    }
                }
                Ok(None) => {}
                Err(why) => missing.push((value.clone(), why)),
            }
        }
        // The files as they were found, so that what is printed works from here.
        let words: Vec<&str> = replaced.iter().map(String::as_str).collect();
        let mut reviewed = channeld::review(&words);
        for (value, why) in &missing {
            // The flag means the same; its file is not there. What the configuration says of that
            // is said by this.
            let named =
                |finding: &&mut Finding| finding.weight == Weight::Same && finding.path.ends_with(value);
            if let Some(finding) = reviewed.findings.iter_mut().find(named) {
                (finding.weight, finding.what) = (Weight::Refused, why.clone());
            }
        }
        if !missing.is_empty() {
            reviewed.findings.retain(|finding| finding.path != ALL_FLAGS);
        }
        if !types.is_empty() && !reviewed.has_schema {
            let what = format!(
                "the channel data {} is compiled into channeld; describe it with --schema FILE (.proto)",
                types.join(", ")
            );
            reviewed.findings.push(Finding::new(Weight::Differs, "no --schema", what));
        }
        self.subjects.push(Subject { name: name.to_owned(), kind: "flags", findings: reviewed.findings });
        self.starts.push(Start { words: replaced, config: reviewed.config });
    }

    /// The file that a flag means: as written, as seen from the folder, or one of that name that
    /// was given. `None` for one that is built in.
    fn find(&mut self, folder: &Path, value: &str, kind: FileKind) -> Result<Option<PathBuf>, String> {
        if value.is_empty() {
            return Ok(None);
        }
        let given = self
            .seen
            .iter()
            .map(|(path, _)| path.clone())
            .find(|path| path.file_name() == Path::new(value).file_name());
        let places = [Some(folder.join(value)), Some(PathBuf::from(value)), given];
        for path in places.into_iter().flatten() {
            if let Ok(text) = std::fs::read_to_string(&path) {
                self.file(&path, kind, &text);
                return Ok(Some(path));
            }
        }
        match kind {
            FileKind::StateMachine => presets::state_machine(value),
            FileKind::ChannelSettings => presets::channel_settings(value),
            FileKind::SpatialController => presets::spatial_controller(value),
        }
        .map(|_| None)
    }

    fn worst(&self) -> Weight {
        let weights =
            self.subjects.iter().flat_map(|subject| &subject.findings).map(|finding| finding.weight);
        weights.max().unwrap_or(Weight::Same)
    }

    /// The findings for people, with a hint at `--toml` if it was not given.
    fn text(&self, with_hint: bool) -> String {
        let mut text = String::new();
        for Subject { name, kind, findings } in &self.subjects {
            let _ = writeln!(text, "{name}: {kind}");
            for Finding { weight, path, what } in findings {
                let path = if path.is_empty() { String::new() } else { format!("{path}: ") };
                let _ = writeln!(text, "  {:<8} {path}{what}", weight_name(*weight));
            }
        }
        let count = |wanted| {
            let findings = self.subjects.iter().flat_map(|subject| &subject.findings);
            findings.filter(|finding| finding.weight == wanted).count()
        };
        let _ = writeln!(
            text,
            "\n{} unchanged, {} differ, {} refused",
            count(Weight::Same),
            count(Weight::Differs),
            count(Weight::Refused)
        );
        for start in self.starts.iter().filter(|start| start.config.is_some()) {
            let _ = writeln!(text, "\nstart it with\n  {}", line(&start.words));
        }
        if with_hint && self.starts.iter().any(|start| start.config.is_some()) {
            text.push_str("an equivalent configuration file: --toml FILE\n");
        }
        text
    }

    fn json(&self) -> Value {
        let finding = |Finding { weight, path, what }: &Finding| json!({ "weight": weight_name(*weight), "path": path, "what": what });
        let subject = |Subject { name, kind, findings }: &Subject| json!({ "name": name, "kind": kind, "findings": findings.iter().map(finding).collect::<Vec<_>>() });
        let starts =
            self.starts.iter().filter(|start| start.config.is_some()).map(|start| line(&start.words));
        json!({
            "subjects": self.subjects.iter().map(subject).collect::<Vec<_>>(),
            "start": starts.collect::<Vec<_>>(), "worst": weight_name(self.worst()),
        })
    }

    fn write_toml(&self, file: &Path) -> Result<(), String> {
        let mut configs = self.starts.iter().filter_map(|start| start.config.as_ref());
        let config = configs.next().ok_or("--toml needs valid flags: a compose file, or flags after --")?;
        if configs.next().is_some() {
            return Err("found several command lines; give a single one for --toml".to_owned());
        }
        let written = File::create_new(file).and_then(|mut new| new.write_all(toml(config).as_bytes()));
        written.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => format!("{} exists; --toml does not overwrite files", file.display()),
            _ => format!("{}: {error}", file.display()),
        })
    }
}

fn weight_name(weight: Weight) -> &'static str {
    match weight {
        Weight::Same => "same",
        Weight::Differs => "differs",
        Weight::Refused => "refused",
    }
}

fn is_json(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json")
}

fn is_yaml(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "yml" || extension == "yaml")
}

/// A command line for a shell.
fn line(words: &[String]) -> String {
    let plain = |sign: char| sign.is_ascii_alphanumeric() || "-_=./:,@+".contains(sign);
    let quoted = words.iter().map(|word| match word.chars().all(plain) && !word.is_empty() {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    });
    std::iter::once("throng channeld".to_owned()).chain(quoted).collect::<Vec<_>>().join(" ")
}

/// A file with which `throng up` does the same: every key that is not as by default.
fn toml(config: &Config) -> String {
    let mut out = String::from("# Equivalent of a channeld command line, for `throng up -c`.\n");
    for section in SECTIONS {
        let mut lines = String::new();
        for (key, value, _) in config.entries().filter(|(key, value, _)| key.default != **value) {
            if let Some((parent, name)) = key.path.rsplit_once('.')
                && parent == section.path
            {
                let _ = writeln!(lines, "{name} = {}", value.to_toml());
            }
        }
        if !lines.is_empty() {
            let _ = write!(out, "\n[{}]\n{lines}", section.path);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use throng_server::config::Loader;

    use super::*;

    fn fixtures() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/gateway/config")
    }

    #[test]
    fn the_stock_folder_is_taken_as_it_is() {
        let mut checked = Checked::default();
        checked.look_at(&fixtures()).unwrap();
        assert_eq!((checked.subjects.len(), checked.worst()), (13, Weight::Same), "{}", checked.text(true));
    }

    #[test]
    fn the_configuration_file_does_what_the_flags_do() {
        let folder = tempfile::tempdir().unwrap();
        let stock = fixtures().join("client_authoratative_fsm.json").display().to_string();
        let compose = format!(
            "services:\n  gateway:\n    image: channeld\n    command: -dev -ct=1 -mcb=13 -cfsm={stock} -srb=1 -sa :9000\n"
        );
        std::fs::write(folder.path().join("compose.yml"), compose).unwrap();
        let mut checked = Checked::default();
        checked.look_at(&folder.path().join("compose.yml")).unwrap();
        assert_eq!(checked.worst(), Weight::Differs, "{}", checked.text(true));
        let text = checked.text(true);
        assert!(
            text.contains("differs  -srb=1: no effect")
                && text.contains("client_authoratative_fsm.json: state machine"),
            "{text}"
        );
        let file = folder.path().join("throng.toml");
        checked.write_toml(&file).unwrap();
        let again = Loader::new().file(&file).load().unwrap();
        let config = checked.starts[0].config.as_ref().unwrap();
        for ((key, value, _), (_, other, _)) in config.entries().zip(again.entries()) {
            assert_eq!(value, other, "{}", key.path);
        }
        let why = checked.write_toml(&file).expect_err("the file exists");
        assert!(why.ends_with("exists; --toml does not overwrite files"), "{why}");
        assert!(checked.text(true).contains("--toml") && !checked.text(false).contains("--toml"));
    }

    #[test]
    fn every_wrong_flag_and_file_is_named_at_once() {
        let mut checked = Checked::default();
        let flags = ["-devv", "-ct=7", "-chs=nowhere.json", "-crb", "5"].map(str::to_owned);
        checked.command("flags", Path::new(""), &flags);
        let refused = |part: &str| {
            let findings = &checked.subjects[0].findings;
            assert!(
                findings.iter().any(|each| each.weight == Weight::Refused && each.what.contains(part)),
                "{part}"
            );
        };
        for part in ["did you mean `-dev`", "expected 0 or 1", "neither a file nor a built-in preset"] {
            refused(part);
        }
        assert_eq!(checked.worst(), Weight::Refused);
    }

    #[test]
    fn a_file_that_is_not_there_is_refused_once() {
        let mut checked = Checked::default();
        checked.command("flags", Path::new(""), &["-dev", "-scc=nowhere.json"].map(str::to_owned));
        let found: Vec<(Weight, &str)> =
            checked.subjects[0].findings.iter().map(|each| (each.weight, each.path.as_str())).collect();
        assert_eq!(found, [(Weight::Same, "-dev"), (Weight::Refused, "-scc=nowhere.json")]);
        assert!(!checked.text(true).contains("--toml"), "{}", checked.text(true));
    }

    #[test]
    fn types_of_the_game_ask_for_a_schema() {
        let folder = tempfile::tempdir().unwrap();
        let settings = r#"{"1": {"TickIntervalMs": 10, "DataMsgFullName": "chatpb.ChatChannelData"}}"#;
        std::fs::write(folder.path().join("chs.json"), settings).unwrap();
        let flags = |more: &[&str]| {
            ["-dev", "-chs=chs.json"].iter().chain(more).map(|word| (*word).to_owned()).collect::<Vec<_>>()
        };
        let mut checked = Checked::default();
        checked.command("a", folder.path(), &flags(&[]));
        assert!(checked.text(true).contains("chatpb.ChatChannelData"), "{}", checked.text(true));
        assert_eq!(checked.worst(), Weight::Differs);
        let mut checked = Checked::default();
        let schema = fixtures().join("../../proto/chat.proto").display().to_string();
        checked.command("b", folder.path(), &flags(&["--schema", &schema]));
        assert_eq!(checked.worst(), Weight::Same, "{}", checked.text(true));
    }

    #[test]
    fn a_line_can_be_pasted() {
        let words = ["-dev", "-scc=a b.json", "--schema=it's"].map(str::to_owned);
        assert_eq!(line(&words), r"throng channeld -dev '-scc=a b.json' '--schema=it'\''s'");
    }
}
