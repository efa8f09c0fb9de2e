//! Checks of a machine against a configuration: problems that would prevent a start, make it slow
//! or unsafe.
//!
//! Nothing is changed. Addresses are bound for a moment to see whether they are free. A process
//! that already runs at the admin address reports on its world ([`positions_in`]).

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::Path;

use serde_json::Value;

use crate::config::{Config, Settings, resolve_addr};
use crate::{gateway_config, listen, schemas, services};

/// Descriptors that a process needs besides its connections: loops, files, the admin listener.
const DESCRIPTORS_BESIDES: u64 = 64;
/// Datagrams of a busy UDP listener wait here while its thread does something else: 1 MiB is 5 ms
/// at 200 MB/s.
const UDP_BUFFER_BYTES: u64 = 1 << 20;
/// Connections that may wait to be accepted: everyone at once after a restart.
const BACKLOG: u64 = 1_024;
/// A data folder with less free space is worth a warning: a day of a busy journal.
const FREE_BYTES_MIN: u64 = 1 << 30;
/// Before this (2024), a clock has never been set.
const UNIX_SECONDS_MIN: u64 = 1_704_067_200;

const POSITIONS: &str = "positions";

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// As it should be.
    Good,
    /// Works, with a limit that may hurt.
    Warning,
    /// A start fails, or should not happen.
    Bad,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Subject, in a word or two.
    pub subject: &'static str,
    /// Severity.
    pub severity: Severity,
    /// Description of the finding.
    pub found: String,
    /// Advice; empty when nothing needs to be done.
    pub remedy: String,
}

impl Finding {
    fn good(subject: &'static str, found: impl Into<String>) -> Finding {
        Finding { subject, severity: Severity::Good, found: found.into(), remedy: String::new() }
    }

    fn warning(subject: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { subject, severity: Severity::Warning, found: found.into(), remedy: remedy.into() }
    }

    fn bad(subject: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { subject, severity: Severity::Bad, found: found.into(), remedy: remedy.into() }
    }
}

/// Examines this machine for a process with this configuration.
#[must_use]
pub fn examine(config: &Config) -> Vec<Finding> {
    let settings = &config.settings;
    let mut findings = vec![descriptors(settings.limits.connections_max as u64)];
    let mut udp = false;
    let runs = |service| services::is_selected(&settings.server.only, service);
    let sections = [("gateway.servers", &settings.servers), ("gateway.clients", &settings.clients)];
    for (section, listener) in sections.into_iter().filter(|_| runs(services::GATEWAY)) {
        for plan in listen::plan(listener).unwrap_or_default() {
            let stream = matches!(plan.scheme(), "tcp" | "tls" | "ws" | "wss");
            udp |= !stream;
            findings.push(address(&format!("{section}.{}", plan.key), plan.addr, stream));
            findings.extend(reach(config, section, plan.addr, plan.tls));
        }
    }
    let others = [
        ("http.addr", &settings.http.addr, true),
        ("ddc.addr", &settings.ddc.addr, runs(services::DDC)),
        ("ddc.internal_addr", &settings.ddc.internal_addr, runs(services::DDC)),
        ("matcher.addr", &settings.matcher.addr, runs(services::MATCHER)),
        ("matcher.http_addr", &settings.matcher.http_addr, runs(services::MATCHER)),
    ];
    for (key, text, _) in others.into_iter().filter(|(_, text, runs)| *runs && !text.is_empty()) {
        findings.extend(resolve_addr(text).ok().map(|addr| address(key, addr, true)));
    }
    findings.push(backlog(sysctl("net/core/somaxconn")));
    if udp {
        findings.push(udp_buffers(sysctl("net/core/rmem_max")));
    }
    findings.push(clock());
    findings.push(folder(Path::new(&settings.server.data)));
    findings.extend(runs(services::GATEWAY).then(|| positions(settings)).flatten());
    findings
}

/// Checks that the schemas have the configured positions of entities; nothing without a grid or
/// schemas.
fn positions(settings: &Settings) -> Option<Finding> {
    if settings.spatial.controller.is_empty() || settings.gateway.schemas.is_empty() {
        return None;
    }
    // Schemas that cannot be loaded, or lack a configured position, are a matter of the files.
    let schemas = schemas::load(settings).ok()?;
    if !gateway_config::unknown_positions(settings, &schemas).is_empty() {
        return None;
    }
    let paths = settings.spatial.positions.iter().map(|path| path.trim_end_matches(":z-up"));
    let found: Vec<_> = paths.filter(|path| schemas.has_position(path)).collect();
    Some(match found.is_empty() {
        true => Finding::warning(
            POSITIONS,
            "no type of `gateway.schemas` has a position that can be read: entities never change their cell",
            "set `gateway.spatial.positions` to the paths of your types",
        ),
        false => {
            Finding::good(POSITIONS, format!("types of `gateway.schemas` have `{}`", found.join("`, `")))
        }
    })
}

/// Positions of the entities of a running process, by its answer to `/api/v1/world`. Nothing
/// without a grid.
#[must_use]
pub fn positions_in(world: &Value) -> Option<Finding> {
    let without = world["entities_without_position"].as_u64().filter(|_| world["grid"].is_object())?;
    let known = world["entity_count"].as_u64().unwrap_or_default();
    let types: Vec<_> =
        world["types_without_position"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    Some(match without {
        0 => Finding::good(POSITIONS, format!("the running process reads those of {known} entities")),
        _ => Finding::warning(
            POSITIONS,
            format!(
                "{without} entities of the running process have none that can be read, so they never change \
                 their cell; types: `{}`",
                types.join("`, `")
            ),
            "set `gateway.spatial.positions` to the paths of these types",
        ),
    })
}

fn descriptors(connections_max: u64) -> Finding {
    let (limit, needed) = (throng_net::raise_descriptor_limit(), connections_max + DESCRIPTORS_BESIDES);
    let found = format!("{limit} may be open, `gateway.limits.connections_max` is {connections_max}");
    match limit >= needed {
        true => Finding::good("open files", found),
        false => Finding::warning(
            "open files",
            found,
            format!(
                "`ulimit -Hn {needed}`, or LimitNOFILE={needed} in the systemd unit; or a lower connections_max"
            ),
        ),
    }
}

fn address(key: &str, addr: SocketAddr, stream: bool) -> Finding {
    let bound = if stream { TcpListener::bind(addr).map(drop) } else { UdpSocket::bind(addr).map(drop) };
    let protocol = if stream { "TCP" } else { "UDP" };
    match bound {
        Ok(()) => Finding::good("address", format!("{addr} ({protocol}, `{key}`) is free")),
        Err(error) => Finding::bad(
            "address",
            format!("{addr} ({protocol}, `{key}`): {error}"),
            format!("stop what uses it (`ss -lnp`), or set `{key}` to another; port 0 takes a free one"),
        ),
    }
}

fn reach(config: &Config, section: &str, addr: SocketAddr, tls: bool) -> Option<Finding> {
    let settings = &config.settings;
    if addr.ip().is_loopback() {
        return None;
    }
    let open = settings.gateway.dev
        || settings.auth.kind == "none"
        || section == "gateway.servers" && settings.auth.servers_bypass;
    if open {
        return Some(Finding::warning(
            "reach",
            format!("{addr} is reachable from other machines and `{section}` has no authentication"),
            "set `gateway.auth.kind` (and `servers_bypass = false`), or restrict access with a firewall",
        ));
    }
    (!tls).then(|| {
        Finding::warning(
            "reach",
            format!("logins to {addr} are sent in clear text"),
            format!(
                "set `{section}.tls = true` with a certificate, or terminate TLS in front of the gateway"
            ),
        )
    })
}

fn backlog(limit: Option<u64>) -> Finding {
    match limit {
        Some(limit) if limit < BACKLOG => Finding::warning(
            "accept queue",
            format!(
                "net.core.somaxconn is {limit}: some connections are refused if many players connect at once"
            ),
            format!("`sysctl -w net.core.somaxconn={BACKLOG}`"),
        ),
        Some(limit) => Finding::good("accept queue", format!("{limit} connections may wait")),
        None => Finding::good("accept queue", "unknown: the system does not report it"),
    }
}

fn udp_buffers(limit: Option<u64>) -> Finding {
    match limit {
        Some(limit) if limit < UDP_BUFFER_BYTES => Finding::warning(
            "UDP buffers",
            format!("net.core.rmem_max is {limit} bytes: bursts of datagrams are dropped"),
            format!("`sysctl -w net.core.rmem_max={UDP_BUFFER_BYTES}`"),
        ),
        Some(limit) => Finding::good("UDP buffers", format!("up to {limit} bytes")),
        None => Finding::good("UDP buffers", "unknown: the system does not report it"),
    }
}

fn clock() -> Finding {
    let unix =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
    if unix < UNIX_SECONDS_MIN {
        let found =
            format!("the clock shows {unix} s after 1970: signed tokens and certificates seem not yet valid");
        return Finding::bad("clock", found, "set the clock and synchronise it with NTP");
    }
    let source = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let source = source.unwrap_or_default();
    match source.trim() {
        slow @ ("hpet" | "acpi_pm" | "jiffies") => Finding::warning(
            "clock",
            format!("the system reads the time from `{slow}`, which takes a microsecond or more per read"),
            "use `tsc` or the clock of the hypervisor (kernel parameter `clocksource=`)",
        ),
        "" => Finding::good("clock", "set"),
        source => Finding::good("clock", format!("set; time comes from `{source}`")),
    }
}

/// Checks that the data folder, or its future parent, can be written to.
fn folder(data: &Path) -> Finding {
    let shown = data.display();
    let free = free_bytes(data).unwrap_or(u64::MAX);
    match write_probe(data) {
        Ok(()) if free < FREE_BYTES_MIN => Finding::warning(
            "data folder",
            format!("`{shown}` has {} MiB of free space, less than {}", free >> 20, FREE_BYTES_MIN >> 20),
            "free disk space: on a full disk the matcher ends and the cache refuses writes",
        ),
        Ok(()) if data.is_dir() => Finding::good("data folder", format!("`{shown}` is writable")),
        Ok(()) => Finding::good("data folder", format!("`{shown}` can be created")),
        Err(error) => Finding::bad(
            "data folder",
            format!("`{shown}`: {error}"),
            "free disk space, grant write access, or set another folder in `server.data`",
        ),
    }
}

/// Free space on the disk of a folder, or of the nearest one above it that exists.
fn free_bytes(folder: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(nearest_folder(folder)).ok()?;
    Some(found.f_bavail * found.f_frsize)
}

fn nearest_folder(folder: &Path) -> &Path {
    folder.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("."))
}

/// Writes a file into a folder, or into the nearest one above it that exists, and removes it again.
pub(crate) fn write_probe(folder: &Path) -> std::io::Result<()> {
    let existing = nearest_folder(folder);
    // Several threads may look at once, as tests do.
    let thread = std::thread::current().id();
    let probe = existing.join(format!(".throng-probe-{}-{thread:?}", std::process::id()));
    let written = std::fs::write(&probe, [0; 4096]);
    // A full disk takes the file and not its bytes.
    let removed = std::fs::remove_file(&probe);
    written.and(removed)
}

fn sysctl(name: &str) -> Option<u64> {
    std::fs::read_to_string(format!("/proc/sys/{name}")).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Loader;

    fn examine_with(keys: &[(&str, &str)]) -> Vec<Finding> {
        let mut loader = Loader::new();
        for key in ["gateway.servers.addr", "gateway.clients.addr", "http.addr"] {
            loader = loader.flag("test", key, "127.0.0.1:0");
        }
        // Its own: examining makes a missing folder and removes it again, which another test could
        // notice.
        let folder = tempfile::tempdir().unwrap();
        loader = loader.flag("test", "server.data", folder.path().display().to_string());
        for (key, value) in keys {
            loader = loader.flag("test", *key, *value);
        }
        examine(&loader.load().unwrap())
    }

    fn find<'a>(findings: &'a [Finding], subject: &str, part: &str) -> &'a Finding {
        let fits = |finding: &&Finding| finding.subject == subject && finding.found.contains(part);
        findings.iter().find(fits).unwrap_or_else(|| panic!("{subject}, {part}: {findings:#?}"))
    }

    #[test]
    fn defaults_on_free_ports_start() {
        let findings = examine_with(&[("gateway.limits.connections_max", "1")]);
        assert!(findings.iter().all(|finding| finding.severity < Severity::Bad), "{findings:#?}");
        assert_eq!(find(&findings, "open files", "1").severity, Severity::Good);
    }

    #[test]
    fn a_busy_address_is_bad_and_named() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = taken.local_addr().unwrap().to_string();
        let findings = examine_with(&[("gateway.clients.addr", &addr)]);
        let finding = find(&findings, "address", &addr);
        assert_eq!(finding.severity, Severity::Bad);
        assert!(finding.remedy.contains("gateway.clients.addr"), "{finding:?}");
    }

    #[test]
    fn strangers_and_clear_text_are_pointed_out() {
        let findings =
            examine_with(&[("gateway.clients.addr", "0.0.0.0:0"), ("gateway.clients.unsafe_binds", "true")]);
        assert_eq!(find(&findings, "reach", "has no authentication").severity, Severity::Warning);
        let findings =
            examine_with(&[("gateway.clients.addr", "0.0.0.0:0"), ("gateway.auth.kind", "refuse")]);
        assert_eq!(find(&findings, "reach", "clear text").severity, Severity::Warning);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_bad() {
        // Refused for root too.
        assert_eq!(folder(Path::new("/proc/throng")).severity, Severity::Bad);
    }

    #[test]
    fn limits_of_the_system_are_compared() {
        assert_eq!(backlog(Some(128)).severity, Severity::Warning);
        assert_eq!(backlog(Some(4_096)).severity, Severity::Good);
        assert_eq!(udp_buffers(Some(212_992)).severity, Severity::Warning);
        assert_eq!(udp_buffers(None).severity, Severity::Good);
        assert_eq!(descriptors(u64::MAX / 2).severity, Severity::Warning);
    }
}
