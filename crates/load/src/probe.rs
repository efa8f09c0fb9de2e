//! Observation of a process from outside: CPU, memory, threads, and its metrics page.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde::Serialize;

use crate::clock::CpuClock;

/// Time limit of a metrics page. A slower server is busy, and the sample omits its metrics.
const METRICS_TIMEOUT: Duration = Duration::from_millis(500);
const METRICS_BYTES_MAX: u64 = 4 << 20;

/// Memory of a process, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Resident, all kinds.
    pub resident_bytes: u64,
    /// Resident and private to the process: heap and stacks, without the program file.
    pub anonymous_bytes: u64,
    /// Largest resident size so far.
    pub peak_bytes: u64,
}

/// A process under observation.
#[derive(Debug, Clone)]
pub struct Probe {
    pid: Option<u32>,
    clock: Option<CpuClock>,
    metrics: Option<SocketAddr>,
}

impl Probe {
    /// Observes process `pid` of this machine and the metrics page at `metrics`, each if given.
    ///
    /// # Errors
    /// When the process does not exist.
    pub fn new(pid: Option<u32>, metrics: Option<SocketAddr>) -> io::Result<Self> {
        let clock = pid.map(CpuClock::of_process).transpose()?;
        Ok(Self { pid, clock, metrics })
    }

    /// The same without the metrics page, for servers that should be left alone.
    #[must_use]
    pub fn without_metrics(self) -> Self {
        Self { metrics: None, ..self }
    }

    /// CPU time used so far; `None` when the process is not on this machine or has ended.
    #[must_use]
    pub fn cpu(&self) -> Option<Duration> {
        self.clock.and_then(|clock| clock.used().ok())
    }

    /// CPU time of each thread whose name begins with `prefix`, by name; empty as for
    /// [`Self::cpu`].
    #[must_use]
    pub fn threads(&self, prefix: &str) -> Vec<(String, Duration)> {
        let tasks = self.pid.and_then(|pid| std::fs::read_dir(format!("/proc/{pid}/task")).ok());
        let tasks = tasks.into_iter().flatten().flatten().map(|task| task.path());
        let mut threads: Vec<_> = tasks
            .filter_map(|task| {
                let name = std::fs::read_to_string(task.join("comm")).ok()?.trim_end().to_owned();
                let times = std::fs::read_to_string(task.join("schedstat")).ok()?;
                let on_cpu_ns = times.split_ascii_whitespace().next()?.parse().ok()?;
                name.starts_with(prefix).then_some((name, Duration::from_nanos(on_cpu_ns)))
            })
            .collect();
        threads.sort();
        threads
    }

    /// Memory in use; `None` as for [`Self::cpu`].
    #[must_use]
    pub fn memory(&self) -> Option<Memory> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid?)).ok()?;
        Some(parse_status(&status))
    }

    /// Bytes that the process has written so far, including those in the page cache; `None` as for
    /// [`Self::cpu`].
    #[must_use]
    pub fn disk_bytes(&self) -> Option<u64> {
        let io = std::fs::read_to_string(format!("/proc/{}/io", self.pid?)).ok()?;
        let line = io.lines().find_map(|line| line.strip_prefix("write_bytes: "));
        line?.trim().parse().ok()
    }

    /// The metrics page, if there is one and it answers in time.
    #[must_use]
    pub fn metrics(&self) -> Option<Metrics> {
        fetch(self.metrics?, "/metrics").ok().map(|page| Metrics::parse(&page))
    }
}

fn parse_status(status: &str) -> Memory {
    let bytes = |key: &str| {
        let line = status.lines().find(|line| line.starts_with(key));
        let kib =
            line.and_then(|line| line.split_ascii_whitespace().nth(1)).and_then(|value| value.parse().ok());
        kib.unwrap_or(0u64) * 1024
    };
    Memory {
        resident_bytes: bytes("VmRSS:"),
        anonymous_bytes: bytes("RssAnon:"),
        peak_bytes: bytes("VmHWM:"),
    }
}

/// GETs `path` and returns the body of a 200 answer.
pub(crate) fn fetch(from: SocketAddr, path: &str) -> io::Result<String> {
    request(from, "GET", path, METRICS_TIMEOUT)
}

/// Sends a request without a body and returns the body of a 200 answer. `patience` is the longest
/// pause of the answer.
pub(crate) fn request(from: SocketAddr, method: &str, path: &str, patience: Duration) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&from, METRICS_TIMEOUT)?;
    stream.set_read_timeout(Some(patience))?;
    let head =
        format!("{method} {path} HTTP/1.1\r\nHost: {from}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(METRICS_BYTES_MAX).read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.split(' ').nth(1) == Some("200") => Ok(body.to_owned()),
        _ => {
            let status = answer.lines().next().unwrap_or_default();
            Err(io::Error::other(format!("{method} {path} was answered with `{status}` instead of 200")))
        }
    }
}

/// Services of a process from its admin listener: pairs of a service's name and its URL.
#[must_use]
pub fn services(admin: SocketAddr) -> Vec<(String, String)> {
    let about = fetch(admin, "/api/v1/about").unwrap_or_default();
    let about: serde_json::Value = serde_json::from_str(&about).unwrap_or_default();
    let addresses = about["addresses"].as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |each: &serde_json::Value, key: &str| each[key].as_str().unwrap_or_default().to_owned();
    addresses
        .iter()
        .map(|each| (text(each, "service"), format!("{}://{}", text(each, "scheme"), text(each, "address"))))
        .collect()
}

/// The numbers of a metrics page in the Prometheus text format.
#[derive(Debug, Clone, Default)]
pub struct Metrics(Vec<(String, f64)>);

impl Metrics {
    fn parse(page: &str) -> Self {
        let samples = page.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
            let (name, value) = line.trim_end().rsplit_once(' ')?;
            Some((name.trim().to_owned(), value.parse().ok()?))
        });
        Self(samples.collect())
    }

    /// Sum over all label sets of the first of these names that the page has.
    #[must_use]
    pub fn sum(&self, names: &[&str]) -> Option<f64> {
        names.iter().find_map(|name| {
            let of_name = |sample: &&(String, f64)| {
                sample.0.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('{'))
            };
            let mut samples = self.0.iter().filter(of_name).peekable();
            samples.peek()?;
            Some(samples.map(|sample| sample.1).sum())
        })
    }

    /// The samples of one name by the value of one label, added up over other labels.
    pub(crate) fn by_label(&self, name: &str, label: &str) -> Vec<(String, f64)> {
        let mut found: Vec<(String, f64)> = Vec::new();
        for (sample, value) in &self.0 {
            let Some(labels) = sample.strip_prefix(name).and_then(|rest| rest.strip_prefix('{')) else {
                continue;
            };
            let Some((_, rest)) = labels.split_once(&format!("{label}=\"")) else { continue };
            let of = rest.split('"').next().unwrap_or_default();
            match found.iter_mut().find(|found| found.0 == of) {
                Some(found) => found.1 += value,
                None => found.push((of.to_owned(), *value)),
            }
        }
        found
    }

    /// The samples whose labels have this value for this one.
    pub(crate) fn only(&self, label: &str, value: &str) -> Self {
        let wanted = format!("{label}=\"{value}\"");
        Self(self.0.iter().filter(|(sample, _)| sample.contains(&wanted)).cloned().collect())
    }

    /// The upper bound of the highest bucket of a histogram that has grown since `before`.
    pub(crate) fn longest_since(&self, before: &Self, name: &str) -> Option<f64> {
        self.quantile_since(before, name, 1.0)
    }

    /// Upper bound of the bucket of the given quantile of the observations since `before`.
    pub(crate) fn quantile_since(&self, before: &Self, name: &str, share: f64) -> Option<f64> {
        let bounds = |page: &Self| -> Vec<(f64, f64)> {
            let mut bounds: Vec<(f64, f64)> = page
                .by_label(name, "le")
                .iter()
                .filter_map(|(bound, count)| Some((bound.replace("+Inf", "inf").parse().ok()?, *count)))
                .collect();
            bounds.sort_by(|a, b| a.0.total_cmp(&b.0));
            bounds
        };
        // Buckets are cumulative: the first that holds as much as is wanted. One that has not been
        // there before began at zero.
        let (now, before) = (bounds(self), bounds(before));
        let grown = |&(bound, now): &(f64, f64)| {
            let known = before.iter().find(|(known, _)| *known == bound).map_or(0.0, |(_, count)| *count);
            (bound, now - known)
        };
        let grown: Vec<(f64, f64)> = now.iter().map(grown).collect();
        let all = grown.last()?.1;
        grown.into_iter().find(|(_, count)| all > 0.0 && *count >= share * all).map(|(bound, _)| bound)
    }
}

/// CPU time of the whole machine since its start: busy and all, in clock ticks.
pub(crate) fn machine_ticks() -> Option<(u64, u64)> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let first = stat.lines().next()?;
    let ticks: Vec<u64> =
        first.split_ascii_whitespace().skip(1).filter_map(|tick| tick.parse().ok()).take(8).collect();
    let all = ticks.iter().sum::<u64>();
    // Fields 4 and 5 are idle and waiting for a disk.
    let idle = ticks.get(3)? + ticks.get(4)?;
    Some((all - idle, all))
}

/// The machine a figure was measured on.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Machine {
    /// Logical processors available to this process.
    pub cpus: usize,
    /// Processor model.
    pub model: String,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Operating system release.
    pub kernel: String,
    /// Load average of the last minute before the run: how busy the machine was with other things.
    pub load_1m: f64,
}

impl Machine {
    /// Describes this machine.
    #[must_use]
    pub fn observe() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let meminfo = read("/proc/meminfo");
        let memory =
            meminfo.lines().next().and_then(|line| line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok());
        let loadavg = read("/proc/loadavg");
        Self {
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            model: model.map(|(_, model)| model.trim().to_owned()).unwrap_or_default(),
            memory_bytes: memory.unwrap_or(0) * 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load_1m: loadavg.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_summed_by_name_over_labels() {
        let page = "# HELP a_total help\na_total{kind=\"x\"} 2\na_total{kind=\"y y\"} 3.5\na_total_other 100\nb 1e3\n";
        let metrics = Metrics::parse(page);
        assert_eq!(metrics.sum(&["none", "a_total"]), Some(5.5));
        assert_eq!(metrics.sum(&["b"]), Some(1_000.0));
        assert_eq!(metrics.sum(&["a"]), None);
    }

    #[test]
    fn histograms_tell_the_longest_since_a_look_before() {
        let page = |a: u32, b: u32, c: u32| {
            Metrics::parse(&format!(
                "h_bucket{{s=\"0\",le=\"0.1\"}} {a}\nh_bucket{{s=\"0\",le=\"0.5\"}} {b}\nh_bucket{{s=\"0\",le=\"+Inf\"}} {c}\n"
            ))
        };
        assert_eq!(page(5, 9, 10).longest_since(&page(4, 4, 5), "h_bucket"), Some(0.5));
        assert_eq!(page(9, 9, 10).longest_since(&page(4, 4, 5), "h_bucket"), Some(0.1));
        assert_eq!(page(1, 1, 1).longest_since(&page(1, 1, 1), "h_bucket"), None);
        assert_eq!(page(9, 10, 10).quantile_since(&page(0, 0, 0), "h_bucket", 0.9), Some(0.1));
        assert_eq!(page(9, 10, 10).quantile_since(&Metrics::default(), "h_bucket", 0.95), Some(0.5));
        assert_eq!(page(1, 2, 3).by_label("h_bucket", "le")[1], ("0.5".to_owned(), 2.0));
    }

    #[test]
    fn own_process_has_memory_and_cpu() {
        let probe = Probe::new(Some(std::process::id()), None).expect("own process");
        let memory = probe.memory().expect("alive");
        assert!(memory.resident_bytes >= memory.anonymous_bytes && memory.anonymous_bytes > 0);
        assert!(probe.cpu().is_some());
        let of_thread = std::thread::Builder::new().name("probed 1".into()).spawn(move || {
            // Looking takes processor time too, which the system counts in steps.
            loop {
                let threads = probe.threads("probed ");
                let [(name, cpu)] = &threads[..] else { panic!("{threads:?}") };
                assert_eq!(name, "probed 1");
                if !cpu.is_zero() {
                    break;
                }
            }
        });
        of_thread.expect("a thread").join().expect("it sees itself");
        assert!(Probe::new(Some(5_000_000), None).is_err(), "no such process");
    }
}
