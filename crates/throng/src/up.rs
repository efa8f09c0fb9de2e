//! `throng up`: start, say where, run until stopped.

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::ArgMatches;
use throng_load::cluster::TrialBus;
use throng_server::cluster::tool;
use throng_server::config::{Config, Loader, Value};
use throng_server::doctor::{Severity, examine};
use throng_server::{Address, CpuProfile, End, Running, Service, Signals, StartError, from_here};

use crate::keys;
use crate::output::{complain, print, program};

/// Default address of the matcher's framed RPC.
const MATCHER_ADDR: &str = "127.0.0.1:11290";
/// Default address of the matcher's JSON over HTTP.
const MATCHER_HTTP_ADDR: &str = "127.0.0.1:11291";
/// Default address of the cache.
const CACHE_ADDR: &str = "127.0.0.1:8558";
/// Default listener for players over ENet, beside the one for TCP.
const ENET_URL: &str = "enet://127.0.0.1:12110";
/// Exit code for wrong input and failed starts.
const WRONG: u8 = 2;

pub(crate) fn run(matches: &ArgMatches) -> ExitCode {
    let trial = match Trial::of(matches) {
        Ok(trial) => trial,
        Err(why) => return failed(&why),
    };
    match config_of(matches, trial.as_ref()) {
        Ok(config) => {
            if let Some(Err(why)) = trial.as_ref().map(|trial| trial.introduce(&config)) {
                return failed(&why);
            }
            let invite = matches.get_flag("console-token");
            serve(config, matches.get_one::<Duration>("for").copied(), None, invite)
        }
        Err(code) => code,
    }
}

/// A trial cluster on this machine.
struct Trial {
    /// The NATS server, in the process that has started it.
    bus: Option<TrialBus>,
    folder: PathBuf,
    url: String,
    node: String,
}

impl Trial {
    /// The trial cluster that the flags ask for. Starts its NATS server, if that is to be done.
    fn of(matches: &ArgMatches) -> Result<Option<Trial>, String> {
        let Some(folder) = matches.get_one::<String>("cluster-dev") else { return Ok(None) };
        let node = matches.get_one::<String>("node");
        let bus = match folder.as_str() {
            "" => Some(TrialBus::start().map_err(|error| error.to_string())?),
            _ if node.is_none() => {
                return Err("a further node of a trial cluster needs a name: --node NAME".to_owned());
            }
            _ => None,
        };
        let folder = bus.as_ref().map_or_else(|| PathBuf::from(folder), TrialBus::folder);
        let url = std::fs::read_to_string(folder.join("url")).map_err(|error| {
            format!("--cluster-dev: `{}` is no folder of a trial cluster: {error}", folder.display())
        })?;
        Ok(Some(Trial { bus, folder, url, node: node.cloned().unwrap_or_else(|| "n1".to_owned()) }))
    }

    fn configure(&self, mut loader: Loader) -> Loader {
        let path = |name: &str| self.folder.join(name).display().to_string();
        let keys = [
            ("cluster.name", "dev".to_owned()),
            ("cluster.node", self.node.clone()),
            ("cluster.nats_url", self.url.clone()),
            ("cluster.replicas", "1".to_owned()),
            ("cluster.secret_file", path("secret")),
        ];
        for (key, value) in keys {
            loader = loader.flag("--cluster-dev", key, value);
        }
        if self.bus.is_some() {
            return loader;
        }
        // The default ports and the default folder are those of the first node.
        for key in ["gateway.clients.addr", "gateway.servers.addr", "http.addr"] {
            loader = loader.command_default("up --cluster-dev", key, Value::Text("127.0.0.1:0".to_owned()));
        }
        loader.command_default("up --cluster-dev", "server.data", Value::Text(path(&self.node)))
    }

    /// Makes the directory of the cluster, and says how another node joins it.
    fn introduce(&self, config: &Config) -> Result<(), String> {
        if self.bus.is_some() {
            tool::init(&config.settings)?;
            let folder = self.folder.display();
            print(&format!("another node: {} up --cluster-dev {folder} --node n2\n\n", program()));
        }
        Ok(())
    }
}

/// The configuration that the flags of `up` ask for; problems are printed.
pub(crate) fn config(matches: &ArgMatches) -> Result<Config, ExitCode> {
    config_of(matches, None)
}

fn config_of(matches: &ArgMatches, trial: Option<&Trial>) -> Result<Config, ExitCode> {
    let mut loader = Loader::new();
    if let Some(trial) = trial {
        loader = trial.configure(loader);
    }
    let text = |name: &str| matches.get_one::<String>(name);
    if matches.get_flag("dev") {
        loader = loader.flag("--dev", "gateway.dev", "true");
    }
    let only: Vec<&str> =
        matches.get_many::<String>("only").into_iter().flatten().map(String::as_str).collect();
    let cache_only = only == ["ddc"];
    if cache_only {
        // One listener for everything, which `--http` and `--ddc.addr` name; with both, two.
        loader = loader.command_default("up --only ddc", "http.addr", Value::Text(String::new()));
        if let Some(addr) = text("http") {
            let key = if text("ddc.addr").is_some() { "http.addr" } else { "ddc.addr" };
            loader = loader.flag("--http", key, addr.as_str());
        }
    }
    if only.contains(&"ddc") {
        loader = loader.command_default("up --only ddc", "ddc.addr", Value::Text(CACHE_ADDR.to_owned()));
    }
    if only.contains(&"matcher") {
        loader =
            loader.command_default("up --only matcher", "matcher.addr", Value::Text(MATCHER_ADDR.to_owned()));
    }
    let is_joining = trial.is_some_and(|trial| trial.bus.is_none());
    if only.is_empty() && keys::file(matches).is_none() && !is_joining {
        loader = everything(loader);
    }
    for (flag, key) in [("data", "server.data"), ("http", "http.addr")] {
        if cache_only && flag == "http" {
            continue;
        }
        if let Some(value) = text(flag) {
            loader = loader.flag(format!("--{flag}"), key, value.as_str());
        }
    }
    if let Some(names) = matches.get_many::<String>("only") {
        let names: Vec<&str> = names.map(String::as_str).collect();
        loader = loader.flag("--only", "server.only", names.join(","));
    }
    if let Some(files) = matches.get_many::<String>("schema") {
        let files: Vec<&str> = files.map(String::as_str).collect();
        loader = loader.flag("--schema", "gateway.schemas", files.join(","));
    }
    keys::load(matches, loader).map_err(|problems| {
        complain(&problems.to_string());
        ExitCode::from(WRONG)
    })
}

/// Defaults with which every service listens on loopback. They apply without a configuration file
/// only, because a file selects its services itself.
pub(crate) fn everything(loader: Loader) -> Loader {
    let text = |text: &str| Value::Text(text.to_owned());
    [
        ("gateway.clients.extra", Value::List(vec![ENET_URL.to_owned()])),
        ("ddc.addr", text(CACHE_ADDR)),
        ("matcher.addr", text(MATCHER_ADDR)),
        ("matcher.http_addr", text(MATCHER_HTTP_ADDR)),
    ]
    .into_iter()
    .fold(loader, |loader, (key, value)| loader.command_default("up", key, value))
}

/// Starts `config`, prints where it listens and runs until it is stopped. `profile` is a file for a
/// CPU profile of the whole run. With `invite`, a token for the console is printed even if that
/// goes to no terminal: output that is kept is no place for a credential, unless the reader is a
/// program that wants it.
pub(crate) fn serve(
    config: Config,
    run_for: Option<Duration>,
    profile: Option<&Path>,
    invite: bool,
) -> ExitCode {
    let began = Instant::now();
    let sampling = match profile.map(|file| begin_profile(file).map(|sampling| (file, sampling))).transpose()
    {
        Ok(sampling) => sampling,
        Err(why) => return failed(&why),
    };
    let log = match throng_server::log::start(&config.settings.log) {
        Ok(log) => log,
        Err(why) => return failed(&why),
    };
    let data = config.settings.server.data.clone();
    let listeners = config.clone();
    let running = match throng_server::start(config) {
        Ok(running) => running,
        Err(error) => {
            log.flush();
            let others = other_taken_addresses(&error, &listeners);
            complain(&match &error {
                StartError::Files(problems) => problems.to_string(),
                _ => format!("error[{}]: {error}{others}", error.code()),
            });
            return ExitCode::from(WRONG);
        }
    };
    if let Ok(program) = std::env::current_exe() {
        let tests = throng_load::suites::TESTS.iter().map(|test| test.name.to_owned());
        let matcher = ["all", "tickets"].iter().chain(throng_load::matcher::TESTS.iter());
        let tests = tests.chain(matcher.map(|test| format!("matcher {test}")));
        running.offer_runs(program, tests.collect());
    }
    let signals = match Signals::install(&running) {
        Ok(signals) => signals,
        Err(error) => return failed(&format!("cannot receive signals: {error}")),
    };
    let invite = invite || std::io::stdout().is_terminal();
    if !invite && running.address(Service::Admin).is_some() && running.settings().http.tokens_file.is_empty()
    {
        tracing::info!(
            "stdout is not a terminal: no one-time console token was created; set `http.tokens_file` to log in"
        );
    }
    print(&ready_block(&running, began.elapsed(), &data, invite));
    let end = signals.run_until_stopped(running, run_for, Some(&log));
    if let Some((file, sampling)) = sampling
        && let Err(why) = end_profile(file, sampling)
    {
        return failed(&why);
    }
    match end {
        End::Clean => ExitCode::SUCCESS,
        End::Forced | End::Failed => ExitCode::FAILURE,
    }
}

/// A start ends at the first address that it cannot have; the others that are taken as well are
/// named with it.
fn other_taken_addresses(error: &StartError, config: &Config) -> String {
    let StartError::Bind { key, .. } = error else { return String::new() };
    let blamed = format!("`{key}`");
    let findings = examine(config).into_iter();
    let others = findings.filter(|finding| {
        finding.subject == "address" && finding.severity == Severity::Bad && !finding.found.contains(&blamed)
    });
    others.map(|finding| format!("\n  also {}", finding.found)).collect()
}

/// Makes sure that the file can be written before anything is sampled for it.
fn begin_profile(file: &Path) -> Result<CpuProfile, String> {
    let folder = file.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(file, []))
        .map_err(|error| format!("the CPU profile cannot be written to `{}`: {error}", file.display()))?;
    CpuProfile::start().map_err(|error| error.to_string())
}

fn end_profile(file: &Path, sampling: CpuProfile) -> Result<(), String> {
    let bytes = sampling.finish().map_err(|error| error.to_string())?;
    std::fs::write(file, bytes).map_err(|error| format!("cannot write `{}`: {error}", file.display()))
}

fn failed(why: &str) -> ExitCode {
    complain(&format!("error: {why}"));
    ExitCode::from(WRONG)
}

/// The first plain TCP address of a service; load is easiest over that.
fn tcp(running: &Running, service: Service) -> Option<SocketAddr> {
    let found =
        running.addresses().iter().find(|address| address.service == service && address.scheme == "tcp");
    found.map(|address| address.addr)
}

/// One aligned block with every address, for people.
fn ready_block(running: &Running, took: Duration, data: &str, invite: bool) -> String {
    let line = |what: &str, value: &str| format!("  {what:<15} {value}\n");
    let of = |service: Service| -> String {
        let all = running.addresses().iter().filter(|address| address.service == service);
        all.map(Address::to_string).collect::<Vec<_>>().join("   ")
    };
    let mut out = format!(
        "throng {} is ready after {:.0} ms, {} shard{}\n\n",
        env!("CARGO_PKG_VERSION"),
        took.as_secs_f64() * 1e3,
        running.shards(),
        if running.shards() == 1 { "" } else { "s" },
    );
    let listeners = [
        ("game servers", of(Service::Servers)),
        ("players", of(Service::Clients)),
        ("admin", of(Service::Admin)),
        ("cache", of(Service::Cache)),
        ("cache, internal", of(Service::CacheInternal)),
        ("matcher", of(Service::Matcher)),
        ("matcher, JSON", of(Service::MatcherHttp)),
    ];
    for (what, addresses) in listeners.iter().filter(|(_, addresses)| !addresses.is_empty()) {
        out.push_str(&line(what, addresses));
    }
    out.push_str(&line("data", data));
    out.push('\n');
    if let Some(admin) = running.addresses().iter().find(|address| address.service == Service::Admin) {
        let url = format!("{}://{}", admin.scheme, from_here(admin.addr));
        if let Some(token) = invite.then(|| running.invite()).flatten() {
            // Behind the #, so that no server, log or proxy ever sees it.
            out.push_str(&line("console", &format!("{url}/console/#token={token}")));
        }
        out.push_str(&line("look", &format!("curl {url}/api/v1/server")));
    }
    if let (Some(servers), Some(clients)) = (tcp(running, Service::Servers), tcp(running, Service::Clients)) {
        out.push_str(&line(
            "try",
            &format!(
                "{} swarm --players 100 --addr {} --servers {}",
                program(),
                from_here(clients),
                from_here(servers)
            ),
        ));
    }
    // The text for editors is long; beside a gateway the line above is enough.
    let cache = running.addresses().iter().find(|address| address.service == Service::Cache);
    if let (Some(address), None) = (cache, running.address(Service::Clients)) {
        out.push_str(&cache_block(address, &running.settings().ddc.tokens_file));
    }
    out.push_str(&line("stop", "Ctrl-C (again to force)"));
    out
}

/// Settings with which an Unreal project uses the cache, and a command that tests it.
fn cache_block(address: &Address, tokens_file: &str) -> String {
    let (token, header) = match tokens_file {
        "" => ("", ""),
        _ => (
            ", AuthScheme=\"ServiceAccount\", OAuthAccess=\"TOKEN\"",
            " -H 'Authorization: ServiceAccount TOKEN'",
        ),
    };
    let key = "00000000000000000000000000000000000000aa";
    let hash = "4878CA0425C739FA427F7EDA20FE845F6B2E46BA";
    format!(
        "\n  add to Config/DefaultEngine.ini of the Unreal project:\n\n\
         [StorageServers]\n\
         Cloud=(Host=\"{address}\", Namespace=\"my.project\"{token})\n\n  \
         test it (stores the word test and reads it back):\n\n\
         curl -fsS -X PUT {address}/api/v1/refs/my.project/default/{key} --data-binary test \\\n  \
         -H 'Content-Type: application/octet-stream' -H 'X-Jupiter-IoHash: {hash}'{header} &&\n\
         curl -fsS {address}/api/v1/refs/my.project/default/{key}.json{header}\n\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_on_every_address_are_reached_over_loopback() {
        for (bound, reached) in [
            ("0.0.0.0:1", "127.0.0.1:1"),
            ("[::]:2", "127.0.0.1:2"),
            ("[::1]:3", "[::1]:3"),
            ("192.0.2.1:4", "192.0.2.1:4"),
        ] {
            assert_eq!(from_here(bound.parse().unwrap()).to_string(), reached);
        }
    }
}
