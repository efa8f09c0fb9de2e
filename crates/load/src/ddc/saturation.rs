//! Closed loops: the maximum throughput of a server, beside other servers under the same load.

use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use throng_ddc::IoHash;

use super::data::Set;
use super::engine::{self, Pace, Plan, Seen};
use super::peer::{self, Certificate, Peer};
use super::{Bench, CONNECTIONS, OCTETS, What};
use crate::report::{Better, Row};
use crate::stats::Times;
use crate::suites::BenchError;

/// Others that serve the same requests.
struct Peers {
    nginx: Option<Peer>,
    s3: Option<Peer>,
}

impl Bench<'_> {
    pub(super) fn saturation(
        &mut self,
        peer: &Peer,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(), BenchError> {
        let peers = self.peers(progress)?;
        for case in CASES {
            progress(case.name);
            let seen = self.closed_loop(peer, case)?;
            self.report.threshold(
                format!("{} success = 100 %", case.name),
                seen.success(),
                seen.success() >= 1.0,
            );
            let mut row =
                Row::new(format!("{} rate", case.name), "requests/s", Better::Higher, seen.per_second());
            if let Some([floor, aim]) = case.rate {
                row = row.marks(floor, aim);
            }
            self.report.row(row);
            self.record(case.name, &seen);
            self.written(case, &seen);
            self.compare(case, &seen, &peers, progress)?;
        }
        self.fronts(peer, &peers, progress)?;
        progress("the disk alone");
        self.disk()
    }

    /// The same requests over HTTP/2 and TLS, as editors send them. A server that runs already is
    /// asked as its address says, over HTTP/2.
    fn fronts(
        &mut self,
        peer: &Peer,
        peers: &Peers,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(), BenchError> {
        let secure = if self.options.url.is_none() {
            let folder = self.folder.path("secure");
            let Certificate { cert, key } = Certificate::make(&folder)?;
            let settings = format!("tls_cert = \"{}\"\ntls_key = \"{}\"\n", cert.display(), key.display());
            let durability = &self.options.durability;
            let secure = Peer::throng_with(&self.options.program, &folder, durability, &settings)?;
            self.seed(&secure, &[Set::Small, Set::RawRefs], progress)?;
            Some(secure)
        } else {
            None
        };
        let nginx = peers.nginx.as_ref();
        for case in CASES.iter().filter(|case| FRONT_CASES.contains(&case.name)) {
            for (front, over_tls, http2) in FRONTS {
                let own = match &secure {
                    Some(secure) if *over_tls => secure,
                    None if *over_tls != peer.tls || !http2 => continue,
                    _ => peer,
                };
                let name = format!("{} over {front}", case.name);
                progress(&name);
                let seen = self.closed_loop_over(own, case, *http2)?;
                if secure.is_none() && seen.succeeded == 0 {
                    self.report.note(format!("{name}: the server does not speak it"));
                    continue;
                }
                let success = seen.success();
                self.report.threshold(format!("{name} success = 100 %"), success, success >= 1.0);
                let rate = Row::new(format!("{name} rate"), "requests/s", Better::Higher, seen.per_second());
                self.report.row(rate);
                self.record(&name, &seen);
                let Some(cpu) = seen.cpu_ms() else { continue };
                let mut row = Row::new(format!("{name} CPU per request"), "ms", Better::Lower, cpu);
                let other =
                    if *over_tls { nginx.and_then(Peer::over_tls) } else { nginx.map(Peer::over_http2) };
                if let (Some(other), Some([floor, aim])) = (other, case.cpu) {
                    progress(&format!("{name}, nginx"));
                    let limit = self.closed_loop_over(&other, case, *http2)?;
                    self.record(&format!("{name} nginx"), &limit);
                    if let Some(limit) = limit.cpu_ms().filter(|_| limit.success() >= 1.0) {
                        row = row.published(limit, "nginx, same run").marks(floor * limit, aim * limit);
                    }
                }
                self.report.row(row);
            }
        }
        Ok(())
    }

    /// Starts the other servers that are installed, with the same files.
    fn peers(&mut self, progress: &mut dyn FnMut(&str)) -> Result<Peers, BenchError> {
        let mut peers = Peers { nginx: None, s3: None };
        if self.options.without_peers {
            return Ok(peers);
        }
        match peer::find("nginx") {
            Some(program) => {
                let folder = self.folder.path("nginx");
                peers.nginx = Some(Peer::nginx(&program, &folder, &Certificate::make(&folder)?)?);
            }
            None => self.report.note(
                "nginx is not installed, so no figure is judged by it; on Debian: apt-get install nginx-light"
                    .to_owned(),
            ),
        }
        match peer::find("s3s-fs") {
            Some(program) => peers.s3 = Some(Peer::s3(&program, &self.folder.path("s3"))?),
            None => self.report.note(
                "no S3 server is installed for comparison: cargo install s3s-fs@0.14.1 --features binary"
                    .to_owned(),
            ),
        }
        for (name, peer) in [("nginx", &peers.nginx), ("s3s-fs", &peers.s3)] {
            if let Some(peer) = peer {
                progress(&format!("uploading the data, {name}"));
                self.seed_files(peer)?;
            }
        }
        Ok(peers)
    }

    /// Bytes that reached the disk for each that was stored.
    fn written(&mut self, case: &Case, seen: &Seen) {
        if let (Some(bytes), true) = (seen.disk_bytes, case.is_new && case.len > 0) {
            let written = bytes as f64 / (seen.count().max(1) as f64 * case.len as f64);
            let what = format!("{} disk writes per stored byte", case.name);
            let row = Row::new(what, "ratio", Better::Lower, written);
            self.report.row(if case.len <= 64 << 10 { row.marks(1.3, 1.1) } else { row });
        }
    }

    /// CPU per request, beside that of the others.
    fn compare(
        &mut self,
        case: &Case,
        seen: &Seen,
        peers: &Peers,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(), BenchError> {
        let Some(cpu) = seen.cpu_ms() else { return Ok(()) };
        let mut row = Row::new(format!("{} CPU per request", case.name), "ms", Better::Lower, cpu);
        if let (Some(nginx), Some([floor, aim])) = (&peers.nginx, case.cpu) {
            progress(&format!("{}, nginx", case.name));
            let limit = self.closed_loop(nginx, case)?;
            self.record(&format!("{} nginx", case.name), &limit);
            if let Some(limit) = limit.cpu_ms() {
                row = row.published(limit, "nginx, same run").marks(floor * limit, aim * limit);
            }
        }
        self.report.row(row);
        // It has no page of its own health.
        if let (Some(s3), Some(_), false) = (&peers.s3, case.cpu, matches!(case.what, What::Health(_))) {
            progress(&format!("{}, s3s-fs", case.name));
            let rival = self.closed_loop(s3, case)?;
            self.record(&format!("{} s3s-fs", case.name), &rival);
            if let Some(cpu) = rival.cpu_ms().filter(|_| rival.success() >= 1.0) {
                let what = format!("{} CPU per request, s3s-fs", case.name);
                self.report.row(Row::new(what, "ms", Better::Lower, cpu));
            }
        }
        Ok(())
    }

    /// The same files for a server of files, under the same paths.
    fn seed_files(&mut self, peer: &Peer) -> Result<(), BenchError> {
        for set in [Set::Small, Set::Large, Set::RawRefs] {
            let items = self.items(set);
            let heads: Vec<Vec<u8>> = items
                .iter()
                .map(|item| match set {
                    Set::RawRefs => {
                        self.head("PUT", &self.ref_path(&item.key(), ".raw"), OCTETS, Some(item.len))
                    }
                    _ => self.put_blob(&item.hash, item.len),
                })
                .collect();
            self.put_all(peer, items.len(), &mut |number, out| {
                out.set_head(&heads[number]);
                out.set_body(items[number].bytes().into());
            })?;
        }
        Ok(())
    }

    fn closed_loop(&mut self, peer: &Peer, case: &Case) -> Result<Seen, BenchError> {
        self.closed_loop_over(peer, case, false)
    }

    fn closed_loop_over(&mut self, peer: &Peer, case: &Case, http2: bool) -> Result<Seen, BenchError> {
        let usual = Duration::from_secs(if self.options.smoke { 1 } else { 5 });
        let window = self.options.duration.unwrap_or(usual);
        let plan = Plan {
            addr: peer.addr,
            tls: peer.tls,
            http2,
            pace: Pace::Closed { connections: CONNECTIONS },
            window,
            // Bounds what is written to the disk in one case.
            count: if case.is_new && case.len >= 1 << 20 { 300 } else { u64::MAX },
        };
        if !case.is_new {
            let targets = self.targets(case.what, case.set);
            let few = if case.len >= 1 << 20 { 8 } else { targets.len() };
            let bodies: Vec<Option<Arc<[u8]>>> = targets
                .iter()
                .take(few)
                .map(|(_, item)| item.as_ref().map(|item| item.bytes().into()))
                .collect();
            let used = if matches!(case.what, What::PutBlob) { bodies.len() } else { targets.len() };
            return Ok(engine::run(&plan, &peer.probe, &mut |number, out| {
                let index = usize::try_from(number).unwrap_or(usize::MAX) % used;
                out.set_head(&targets[index].0);
                if let Some(body) = bodies.get(index).and_then(Option::as_ref) {
                    out.set_body(Arc::clone(body));
                }
            })?);
        }
        if case.what == What::PutObject {
            let first = self.fresh;
            self.fresh += 1 << 30;
            let attachment = self.items(Set::Binary)[0].hash;
            return Ok(engine::run(&plan, &peer.probe, &mut |number, out| {
                let key = IoHash::of(&(first + number).to_le_bytes());
                out.set_head(&self.put_object(&key, &attachment));
            })?);
        }
        self.put_fresh(&plan, peer, case.len)
    }

    /// Time of the disk alone to make bytes durable: no upload that waits for it can be faster.
    fn disk(&mut self) -> Result<(), BenchError> {
        let path = self.folder.path("disk");
        for (what, len, count, in_place) in [
            ("4 KiB over old ones", 4 << 10, 200, true),
            ("64 KiB at the end of a file", 64 << 10, 100, false),
            ("20 MiB at the end of a file", 20 << 20, 5, false),
        ] {
            let mut file = std::fs::File::create(&path)?;
            if in_place {
                file.write_all(&vec![0; len * count])?;
                file.sync_all()?;
                file = std::fs::OpenOptions::new().write(true).open(&path)?;
            }
            let bytes = vec![0x5A; len];
            let mut times = Times::default();
            for _ in 0..count {
                let start = Instant::now();
                file.write_all(&bytes)?;
                file.sync_data()?;
                times.record(start.elapsed());
            }
            let row = format!("the disk alone: write and fdatasync {what}, p50");
            self.report.row(Row::new(row, "ms", Better::Lower, times.quantile_ms(0.5)));
            self.report.raw(&format!("disk {what}"), serde_json::json!(times.summary()));
        }
        std::fs::remove_file(path)?;
        Ok(())
    }
}

/// Cases that are played over other protocols as well.
const FRONT_CASES: &[&str] = &["GET 64 KiB", "GET 2 MiB ref.raw"];

/// Other protocols: their names, and whether they are over TLS and HTTP/2.
const FRONTS: &[(&str, bool, bool)] =
    &[("HTTP/2", false, true), ("TLS", true, false), ("HTTP/2 and TLS", true, true)];

/// One closed loop.
struct Case {
    name: &'static str,
    what: What,
    set: Option<Set>,
    /// Bytes of a body that is sent.
    len: usize,
    /// True if every request uploads new data.
    is_new: bool,
    /// Floor and aim in requests a second.
    rate: Option<[f64; 2]>,
    /// Floor and aim of the CPU time per request, as multiples of nginx's.
    cpu: Option<[f64; 2]>,
}

#[rustfmt::skip]
const CASES: &[Case] = &[
    Case { name: "health", what: What::Health("ready"), set: None, len: 0, is_new: false, rate: None, cpu: Some([3.0, 1.5]) },
    Case { name: "GET 64 KiB", what: What::GetBlob, set: Some(Set::Small), len: 0, is_new: false, rate: None, cpu: Some([2.5, 1.2]) },
    Case { name: "GET 2 MiB ref.raw", what: What::GetRef("raw"), set: Some(Set::RawRefs), len: 0, is_new: false, rate: None, cpu: Some([2.5, 1.2]) },
    Case { name: "GET 2 MiB ref.uecbpkg", what: What::GetRef("uecbpkg"), set: Some(Set::Binary), len: 0, is_new: false, rate: None, cpu: None },
    Case { name: "GET 20 MiB", what: What::GetBlob, set: Some(Set::Large), len: 0, is_new: false, rate: None, cpu: Some([2.5, 1.2]) },
    Case { name: "GET uecb", what: What::GetRef("uecb"), set: Some(Set::Binary), len: 0, is_new: false, rate: Some([60_000.0, 120_000.0]), cpu: None },
    Case { name: "PUT uecb new", what: What::PutObject, set: Some(Set::Binary), len: 0, is_new: true, rate: Some([25_000.0, 60_000.0]), cpu: None },
    Case { name: "PUT uecb repeated", what: What::PutObject, set: Some(Set::Binary), len: 0, is_new: false, rate: None, cpu: None },
    Case { name: "PUT 64 KiB new", what: What::PutBlob, set: None, len: 64 << 10, is_new: true, rate: None, cpu: Some([1.2, 0.7]) },
    Case { name: "PUT 64 KiB repeated", what: What::PutBlob, set: Some(Set::Small), len: 64 << 10, is_new: false, rate: None, cpu: None },
    Case { name: "PUT 20 MiB new", what: What::PutBlob, set: None, len: 20 << 20, is_new: true, rate: None, cpu: Some([1.2, 0.7]) },
    Case { name: "PUT 20 MiB repeated", what: What::PutBlob, set: Some(Set::Large), len: 20 << 20, is_new: false, rate: None, cpu: None },
];
