//! What the admin listener shows: health, metrics and monitoring reports, gathered from the shards on demand.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use serde_json::{Value, json};
use throng_gateway::{ConnKind, Stats};
use throng_http::{Family, Health, Monitor, Page, Part, Report};
use throng_net::Clock;

use crate::auth::Logins;
use crate::config::{Config, Settings};
use crate::mailbox::{Mailbox, Post};
use crate::metrics::{self, Figures};
use crate::process::ProcessFigures;
use crate::report::ShardReport;
use crate::worker::Heartbeat;

/// Longest wait for a shard's report. A healthy shard answers within a round.
const REPORT_TIMEOUT: Duration = Duration::from_millis(500);

/// Watches the process from outside its shards.
pub(crate) struct Watch {
    clock: Clock,
    mailboxes: Arc<[Mailbox]>,
    heartbeats: Vec<Arc<Heartbeat>>,
    logins: Arc<Logins>,
    ready: AtomicBool,
    settings: RwLock<Settings>,
    /// The latest report of each shard, for one that does not answer now.
    latest: Mutex<Vec<Option<ShardReport>>>,
}

impl Watch {
    pub(crate) fn new(
        config: &Config,
        clock: Clock,
        mailboxes: Arc<[Mailbox]>,
        heartbeats: Vec<Arc<Heartbeat>>,
        logins: Arc<Logins>,
    ) -> Watch {
        let latest = Mutex::new(vec![None; mailboxes.len()]);
        let settings = RwLock::new(config.settings.clone());
        Watch { clock, mailboxes, heartbeats, logins, ready: AtomicBool::new(false), settings, latest }
    }

    pub(crate) fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Release);
    }

    pub(crate) fn reconfigure(&self, settings: &Settings) {
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = settings.clone();
    }

    fn settings(&self) -> Settings {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks every shard at once and waits for the answers.
    fn reports(&self, lists: bool) -> Vec<ShardReport> {
        let asked: Vec<_> = self
            .mailboxes
            .iter()
            .map(|mailbox| {
                let (reply, answer) = sync_channel(1);
                mailbox.post(Post::Report { lists, reply });
                answer
            })
            .collect();
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        for (answer, slot) in asked.into_iter().zip(latest.iter_mut()) {
            if let Ok(report) = answer.recv_timeout(REPORT_TIMEOUT) {
                *slot = Some(report);
            }
        }
        latest.iter().flatten().cloned().collect()
    }

    fn shard_parts(&self) -> Vec<Part> {
        let limit = Duration::from_millis(self.settings().server.watchdog_ms);
        let now = self.clock.now();
        let part = |(index, heartbeat): (usize, &Arc<Heartbeat>)| {
            let stuck = heartbeat.busy_for(now).filter(|busy| *busy > limit);
            let detail = match stuck {
                Some(busy) => format!("no progress for {:.1} s", busy.as_secs_f64()),
                None => "serving".to_owned(),
            };
            Part { name: format!("shard {index}"), ok: stuck.is_none(), detail }
        };
        self.heartbeats.iter().enumerate().map(part).collect()
    }

    fn server_report(&self) -> Value {
        let reports = self.reports(false);
        let total = metrics::total(&reports);
        let process = ProcessFigures::read();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "uptime_ms": self.clock.now().as_nanos() / 1_000_000,
            "ready": self.health().ready,
            "shards": self.mailboxes.len(),
            "connections": { "servers": total.kind(ConnKind::Server).connections,
                             "clients": total.kind(ConnKind::Client).connections },
            "channels": total.channels.values().sum::<u64>(),
            "subscriptions": total.subscriptions,
            "messages_in": kinds(&total, |kind| kind.messages_in),
            "messages_out": kinds(&total, |kind| kind.messages_out),
            "bytes_in": kinds(&total, |kind| kind.bytes_in),
            "bytes_out": kinds(&total, |kind| kind.bytes_out),
            "cpu_seconds": process.cpu_seconds,
            "resident_bytes": process.resident_bytes,
        })
    }

    fn connections_report(&self, page: Page) -> Value {
        let mut all: Vec<_> = self.reports(true).into_iter().flat_map(|report| report.connections).collect();
        all.sort_unstable_by_key(|conn| conn.view.id.0);
        paged("connections", &all, page, |conn| {
            let view = &conn.view;
            json!({
                "id": view.id.0, "kind": metrics::kind_name(view.kind), "shard": conn.shard,
                "address": view.addr, "state": view.state, "authenticated": view.authenticated,
                "open_ms": conn.open.as_millis() as u64, "packets_in": view.packets_in, "bytes_in": view.bytes_in,
                "bytes_out": conn.bytes_out, "queued_bytes": view.queued_bytes, "lagging_channels": view.lagging,
                "refused_messages": view.refusals, "buffer_bytes": view.heap_bytes,
            })
        })
    }

    fn channels_report(&self, page: Page) -> Value {
        let mut all: Vec<_> = self.reports(true).into_iter().flat_map(|report| report.channels).collect();
        all.sort_unstable_by_key(|channel| channel.view.id.0);
        paged("channels", &all, page, |channel| {
            let view = &channel.view;
            json!({
                "id": view.id.0, "type": metrics::type_name(view.channel_type), "shard": channel.shard,
                "metadata": view.metadata, "owner": view.owner.map(|owner| owner.0),
                "subscriptions": view.subscriptions, "lost": view.lost, "data_type": view.data_type,
                "data_bytes": view.data_bytes, "data_memory_bytes": view.data_heap_bytes,
                "backlog_updates": view.backlog.0, "backlog_bytes": view.backlog.1, "cohorts": view.cohorts,
            })
        })
    }

    fn limits_report(&self) -> Value {
        let reports = self.reports(false);
        let total = metrics::total(&reports);
        let process = ProcessFigures::read();
        let settings = self.settings();
        let connections = total.kind(ConnKind::Server).connections + total.kind(ConnKind::Client).connections;
        let mailbox = reports.iter().map(|report| report.mailbox_len).max().unwrap_or(0);
        let row = |key: &str, used: u64, limit: u64| json!({ "key": key, "used": used, "limit": limit });
        json!({ "limits": [
            row("gateway.limits.connections_max", connections, settings.limits.connections_max as u64),
            row("gateway.limits.channels_max", total.channels.values().sum(), settings.limits.channels_max as u64),
            row("gateway.auth.pending_max", self.logins.pending() as u64, settings.auth.pending_max as u64),
            row("server.mailbox_len_max", mailbox as u64, settings.server.mailbox_len_max as u64),
            row("open files (ulimit -n)", process.open_fds, process.max_fds),
        ] })
    }
}

impl Monitor for Watch {
    fn health(&self) -> Health {
        let mut parts = self.shard_parts();
        let live = parts.iter().all(|part| part.ok);
        if let Some(provider) = self.logins.provider() {
            let (ok, detail) = provider.health();
            parts.push(Part { name: "authentication".to_owned(), ok, detail });
        }
        let serving = self.ready.load(Ordering::Acquire);
        let detail = if serving { "open" } else { "starting or stopping" };
        parts.push(Part { name: "listeners".to_owned(), ok: serving, detail: detail.to_owned() });
        Health { live, ready: parts.iter().all(|part| part.ok), parts }
    }

    fn metrics(&self) -> Vec<Family> {
        let reports = self.reports(false);
        let figures = Figures {
            reports: &reports,
            process: ProcessFigures::read(),
            started_unix_s: self.clock.unix_start_ns() as f64 / 1e9,
            ready: self.health().ready,
            logins_pending: self.logins.pending(),
        };
        let mut families = metrics::families(&figures);
        if self.settings().metrics.compat == "channeld" {
            families.extend(metrics::reference_families(&figures));
        }
        families
    }

    fn report(&self, report: Report, page: Page) -> Value {
        match report {
            Report::Server => self.server_report(),
            Report::Connections => self.connections_report(page),
            Report::Channels => self.channels_report(page),
            Report::Limits => self.limits_report(),
        }
    }
}

fn kinds(total: &Stats, figure: impl Fn(&throng_gateway::KindStats) -> u64) -> Value {
    json!({ "servers": figure(total.kind(ConnKind::Server)), "clients": figure(total.kind(ConnKind::Client)) })
}

fn paged<T>(name: &str, all: &[T], page: Page, row: impl Fn(&T) -> Value) -> Value {
    let rows: Vec<Value> = all.iter().skip(page.offset).take(page.limit).map(row).collect();
    json!({ "total": all.len(), "offset": page.offset, "limit": page.limit, name: rows })
}
