//! Load runs that the console starts: this same program as a child, its report kept in the data
//! folder.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use throng_admin::Problem;

/// Runs that are remembered; the oldest is forgotten with its report.
const RUNS_MAX: usize = 32;
const PLAYERS_MAX: u64 = 20_000;
const SECONDS_MAX: u64 = 600;

/// The load lab of a process. Empty until a program offers itself.
#[derive(Default)]
pub(crate) struct Runs {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    offer: Option<Offer>,
    runs: VecDeque<Run>,
    last_id: u32,
}

/// Parameters of a run.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    pub(crate) program: PathBuf,
    pub(crate) folder: PathBuf,
    /// Listeners for players and for game servers that a swarm can use.
    pub(crate) swarm: Option<(SocketAddr, SocketAddr)>,
    /// Benchmarks that the program knows.
    pub(crate) tests: Vec<String>,
}

struct Run {
    id: u32,
    title: String,
    began_unix_s: u64,
    report: PathBuf,
    /// `None` once it has ended.
    child: Option<Child>,
    outcome: &'static str,
}

impl Runs {
    pub(crate) fn offer(&self, offer: Offer) {
        self.lock().offer = Some(offer);
    }

    /// Starts what a request's body describes.
    pub(crate) fn begin(&self, body: &Value) -> Result<Value, Problem> {
        let mut state = self.lock();
        state.reap();
        let Some(offer) = state.offer.clone() else {
            return Err(Problem::new(
                409,
                "this process does not start load runs; use `throng up` or `throng demo`",
            ));
        };
        if state.runs.iter().any(|run| run.child.is_some()) {
            return Err(Problem::new(409, "another run is in progress; stop it or wait for it to finish"));
        }
        let (title, arguments) = arguments(body, &offer)?;
        state.last_id += 1;
        let id = state.last_id;
        let failed = |what: &str, error: std::io::Error| Problem::new(500, format!("{what}: {error}"));
        std::fs::create_dir_all(&offer.folder)
            .map_err(|error| failed("cannot create the folder of runs", error))?;
        let report = offer.folder.join(format!("{id}.json"));
        let file = std::fs::File::create(&report).map_err(|error| failed("cannot write a report", error))?;
        let child = Command::new(&offer.program)
            .args(&arguments)
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| failed("cannot start the run", error))?;
        let began_unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        if state.runs.len() == RUNS_MAX
            && let Some(old) = state.runs.pop_front()
        {
            // A report that is gone already is as good as removed.
            let _ = std::fs::remove_file(old.report);
        }
        state.runs.push_back(Run { id, title, began_unix_s, report, child: Some(child), outcome: "running" });
        Ok(json!({ "id": id }))
    }

    pub(crate) fn list(&self) -> Value {
        let mut state = self.lock();
        state.reap();
        let rows: Vec<Value> = state.runs.iter().rev().map(Run::row).collect();
        json!({ "offered": state.offer.is_some(), "swarm": state.offer.as_ref().is_some_and(|offer| offer.swarm.is_some()),
                "tests": state.offer.as_ref().map_or(&[][..], |offer| &offer.tests), "runs": rows })
    }

    pub(crate) fn one(&self, id: u32) -> Result<Value, Problem> {
        let mut state = self.lock();
        state.reap();
        let run = state.runs.iter().find(|run| run.id == id).ok_or_else(unknown)?;
        let mut row = run.row();
        let text = std::fs::read_to_string(&run.report).unwrap_or_default();
        row["report"] = serde_json::from_str(&text).unwrap_or(Value::Null);
        Ok(row)
    }

    pub(crate) fn stop(&self, id: u32) -> Result<Value, Problem> {
        let mut state = self.lock();
        state.reap();
        let run = state.runs.iter_mut().find(|run| run.id == id).ok_or_else(unknown)?;
        if let Some(child) = &run.child {
            run.outcome = "stopped";
            // SAFETY: the process is our child and has not been waited for, so its id cannot belong
            // to anyone else.
            unsafe { libc::kill(child.id().cast_signed(), libc::SIGINT) };
        }
        Ok(run.row())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        for run in &mut self.lock().runs {
            if let Some(child) = &mut run.child {
                // It may have ended by itself.
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

impl State {
    /// Notices what has ended.
    fn reap(&mut self) {
        for run in &mut self.runs {
            let Some(child) = &mut run.child else { continue };
            let Ok(Some(status)) = child.try_wait() else { continue };
            run.child = None;
            if run.outcome == "running" {
                run.outcome = match status.code() {
                    Some(0) => "done",
                    Some(99) => "a threshold was missed",
                    _ => "failed",
                };
            }
        }
    }
}

impl Run {
    fn row(&self) -> Value {
        json!({ "id": self.id, "title": self.title, "began_unix_s": self.began_unix_s,
                "running": self.child.is_some(), "outcome": self.outcome })
    }
}

fn unknown() -> Problem {
    Problem::new(404, "no such run")
}

/// The title and the arguments of a run. Whatever reaches the command line is a number or the name
/// of a known test.
fn arguments(body: &Value, offer: &Offer) -> Result<(String, Vec<String>), Problem> {
    let number = |name: &str, max: u64| {
        let value = body.get(name).and_then(Value::as_u64).filter(|value| (1..=max).contains(value));
        value.ok_or_else(|| Problem::new(400, format!("`{name}` must be an integer from 1 to {max}")))
    };
    match body.get("kind").and_then(Value::as_str) {
        Some("swarm") => {
            let (players, seconds) = (number("players", PLAYERS_MAX)?, number("seconds", SECONDS_MAX)?);
            let Some((clients, servers)) = offer.swarm else {
                return Err(Problem::new(
                    409,
                    "a swarm needs plain TCP listeners for players and game servers",
                ));
            };
            let arguments = format!(
                "swarm --json --players {players} --for {seconds}s --addr {clients} --servers {servers}"
            );
            let mut arguments: Vec<String> = arguments.split(' ').map(str::to_owned).collect();
            // A world that somebody runs already is joined; GLOBAL has one owner.
            if body.get("join").and_then(Value::as_bool) == Some(true) {
                arguments.push("--join".to_owned());
            }
            Ok((format!("swarm of {players} for {seconds} s"), arguments))
        }
        Some("bench") => {
            let test = body.get("test").and_then(Value::as_str).unwrap_or_default();
            if !offer.tests.iter().any(|known| known == test) {
                let known = offer.tests.join(", ");
                return Err(Problem::new(400, format!("no such test; tests: {known}")));
            }
            let mut arguments = vec!["bench"];
            match test.strip_prefix("matcher ") {
                None => {
                    arguments.extend(test.split(' '));
                    arguments.extend(["--smoke", "--json"]);
                }
                Some(test) => {
                    arguments.extend(["matcher", "--report"]);
                    match test {
                        "all" => arguments.extend(["--all", "-g", "64", "-m", "500ms"]),
                        "tickets" => arguments.extend(["--tickets", "--waiting", "20000", "-m", "2s"]),
                        test => arguments.extend(["-t", test, "-g", "64", "-m", "2s"]),
                    }
                }
            }
            let arguments: Vec<String> = arguments.into_iter().map(str::to_owned).collect();
            Ok((format!("bench {test}"), arguments))
        }
        _ => Err(Problem::new(400, "`kind` must be `swarm` or `bench`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(program: &str, folder: PathBuf) -> Offer {
        let swarm = Some(("127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap()));
        Offer {
            program: program.into(),
            folder,
            swarm,
            tests: vec!["channel single".to_owned(), "matcher Ping".to_owned()],
        }
    }

    #[test]
    fn only_numbers_and_known_tests_reach_a_command_line() {
        let offer = offer("/bin/false", PathBuf::new());
        let good = json!({ "kind": "bench", "test": "channel single" });
        assert_eq!(arguments(&good, &offer).unwrap().1, ["bench", "channel", "single", "--smoke", "--json"]);
        let matcher = arguments(&json!({ "kind": "bench", "test": "matcher Ping" }), &offer).unwrap().1;
        assert_eq!(matcher.join(" "), "bench matcher --report -t Ping -g 64 -m 2s");
        for bad in
            ["", "x", "channel single --out /etc", "channel --out", "Channel single", "channel single\n"]
        {
            let refusal = arguments(&json!({ "kind": "bench", "test": bad }), &offer).unwrap_err();
            assert!(refusal.status == 400 && refusal.what.contains("channel single"), "{bad:?}");
        }
        for (players, seconds, fine) in [(1, 1, true), (0, 1, false), (20_001, 1, false), (1, 601, false)] {
            let body = json!({ "kind": "swarm", "players": players, "seconds": seconds });
            assert_eq!(arguments(&body, &offer).is_ok(), fine, "{players} {seconds}");
        }
        let text = json!({ "kind": "swarm", "players": "1; rm", "seconds": 1 });
        assert!(arguments(&text, &offer).is_err() && arguments(&Value::Null, &offer).is_err());
    }

    #[test]
    fn a_run_ends_with_its_outcome_and_only_one_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let runs = Runs::default();
        let body = json!({ "kind": "bench", "test": "channel single" });
        assert_eq!(runs.begin(&body).unwrap_err().status, 409, "nothing is offered");
        // `false` ends at once whatever its arguments are.
        runs.offer(offer("/bin/false", folder.path().to_owned()));
        assert_eq!(runs.list()["tests"], json!(["channel single", "matcher Ping"]));
        assert_eq!(runs.begin(&body).unwrap()["id"], 1);
        let ended =
            std::iter::repeat_with(|| runs.one(1).unwrap()).find(|run| run["running"] == false).unwrap();
        assert_eq!((&ended["outcome"], &ended["report"]), (&json!("failed"), &Value::Null));
        assert_eq!(runs.one(2).unwrap_err().status, 404);
        assert_eq!(runs.stop(1).unwrap()["running"], false);
    }
}
