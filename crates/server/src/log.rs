//! Logs: text on a terminal, JSON otherwise, written by a thread so that a stuck pipe never holds
//! up a shard.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Filter, SubscriberExt as _};
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

use crate::config::Log;

/// Lines that may wait for a slow terminal or disk; further ones are dropped and counted.
const LINES_WAITING_MAX: usize = 8_192;
/// Target of the security log.
pub(crate) const SECURITY: &str = "security";

type BoxedLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// Keeps the log going; dropping it writes what waits.
#[derive(Debug)]
pub struct LogGuard {
    level: reload::Handle<EnvFilter, Registry>,
    rate: Arc<AtomicU64>,
    writers: Vec<LineWriter>,
}

impl LogGuard {
    /// Applies a new level and rate.
    pub fn reload(&self, log: &Log) {
        self.rate.store(u64::from(log.repeats_per_s), Ordering::Relaxed);
        if let Ok(filter) = log.level.parse::<EnvFilter>()
            && let Err(error) = self.level.reload(filter)
        {
            tracing::warn!(%error, "the log level could not be changed");
        }
    }

    /// Waits until everything logged so far is written.
    pub fn flush(&self) {
        self.flusher()();
    }

    /// As [`LogGuard::flush`], for someone who cannot hold on to the guard.
    pub(crate) fn flusher(&self) -> impl Fn() + Send + 'static {
        let writers = self.writers.clone();
        move || writers.iter().for_each(LineWriter::flush)
    }
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Starts logging for the process.
///
/// # Errors
/// A log file cannot be opened, or logging was started before.
pub fn start(log: &Log) -> Result<LogGuard, String> {
    let rate = Arc::new(AtomicU64::new(u64::from(log.repeats_per_s)));
    let filter: EnvFilter = log.level.parse().map_err(|error| format!("log.level: {error}"))?;
    let (level, handle) = reload::Layer::new(filter);
    let terminal = io::stderr().is_terminal();
    let json = match log.format.as_str() {
        "text" => false,
        "json" => true,
        _ => !terminal,
    };
    let mut writers = Vec::new();
    let mut layers: Vec<BoxedLayer> = vec![Box::new(level)];
    let apart = !log.security_file.is_empty();
    let general = |writer: LineWriter, json, color| {
        let repeats = Repeats::new(Arc::clone(&rate), writer.clone(), json);
        let kind = tracing_subscriber::filter::filter_fn(move |metadata: &Metadata<'_>| {
            !(apart && metadata.target() == SECURITY)
        });
        format_layer(writer, json, color).with_filter(repeats).with_filter(kind).boxed()
    };
    let stderr = LineWriter::start("log", Box::new(io::stderr())).map_err(|error| error.to_string())?;
    let color = terminal && !json && std::env::var_os("NO_COLOR").is_none();
    layers.push(general(stderr.clone(), json, color));
    writers.push(stderr);
    if !log.file.is_empty() {
        let writer = LineWriter::file("log file", &expand_time(&log.file))?;
        layers.push(general(writer.clone(), true, false));
        writers.push(writer);
    }
    if apart {
        let writer = LineWriter::file("security log", &expand_time(&log.security_file))?;
        let only =
            tracing_subscriber::filter::filter_fn(|metadata: &Metadata<'_>| metadata.target() == SECURITY);
        let repeats = Repeats::new(Arc::clone(&rate), writer.clone(), true);
        layers.push(format_layer(writer.clone(), true, false).with_filter(repeats).with_filter(only).boxed());
        writers.push(writer);
    }
    let subscriber = Registry::default().with(layers);
    tracing::subscriber::set_global_default(subscriber).map_err(|error| error.to_string())?;
    // Panics are contained where they happen; the log must tell of them in its own format and rate.
    std::panic::set_hook(Box::new(|panic| {
        let at = panic.location().map(ToString::to_string);
        let message = panic.payload_as_str().unwrap_or("(no text)");
        tracing::error!(at, message, "panic");
    }));
    Ok(LogGuard { level: handle, rate, writers })
}

fn format_layer(writer: LineWriter, json: bool, color: bool) -> BoxedLayer {
    let make = move || writer.clone();
    let layer = tracing_subscriber::fmt::layer().with_writer(make).with_ansi(color);
    if json { layer.json().flatten_event(true).boxed() } else { layer.compact().boxed() }
}

/// `{time}` becomes the UTC start time as yyyymmddHHMMSS, as in the reference.
fn expand_time(path: &str) -> String {
    if !path.contains("{time}") {
        return path.to_owned();
    }
    let unix =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
    path.replace("{time}", &compact_utc(unix))
}

fn compact_utc(unix_s: u64) -> String {
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    // Civil date from days since 1970, counting years from March so that leap days come last.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}{month:02}{day:02}{:02}{:02}{:02}", second / 3_600, second / 60 % 60, second % 60)
}

/// Lets a few lines of every call site through per second, counts the others and says how many
/// there were.
struct Repeats {
    rate: Arc<AtomicU64>,
    sites: Mutex<HashMap<Identifier, Site>>,
    writer: LineWriter,
    json: bool,
}

struct Site {
    window: Instant,
    written: u64,
    suppressed: u64,
}

impl Repeats {
    fn new(rate: Arc<AtomicU64>, writer: LineWriter, json: bool) -> Repeats {
        Repeats { rate, sites: Mutex::default(), writer, json }
    }

    fn admit(&self, site: Identifier, name: &str, now: Instant) -> bool {
        let rate = self.rate.load(Ordering::Relaxed);
        let mut sites = self.sites.lock().unwrap_or_else(PoisonError::into_inner);
        let site = sites.entry(site).or_insert(Site { window: now, written: 0, suppressed: 0 });
        if now.duration_since(site.window) >= Duration::from_secs(1) {
            if site.suppressed > 0 {
                self.report(name, site.suppressed);
            }
            *site = Site { window: now, written: 0, suppressed: 0 };
        }
        if site.written < rate {
            site.written += 1;
            return true;
        }
        site.suppressed += 1;
        false
    }

    /// Written past the subscriber, which must not be entered from within a filter.
    fn report(&self, name: &str, count: u64) {
        let line = if self.json {
            let line = serde_json::json!({ "level": "INFO", "message": "repeated lines omitted", "count": count,
                                           "callsite": name });
            format!("{line}\n")
        } else {
            format!("... {count} similar lines omitted ({name})\n")
        };
        self.writer.send(line.into_bytes());
    }
}

impl<S: Subscriber> Filter<S> for Repeats {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let metadata = event.metadata();
        self.admit(metadata.callsite(), metadata.name(), Instant::now())
    }
}

/// Hands lines to a thread that writes them.
#[derive(Clone, Debug)]
struct LineWriter {
    lines: SyncSender<Line>,
    dropped: Arc<AtomicU64>,
}

enum Line {
    Text(Vec<u8>),
    /// Answer when everything before is written.
    Flush(SyncSender<()>),
}

impl LineWriter {
    fn start(name: &str, out: Box<dyn Write + Send>) -> io::Result<LineWriter> {
        let (lines, waiting) = sync_channel(LINES_WAITING_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        let lost = Arc::clone(&dropped);
        std::thread::Builder::new().name(name.to_owned()).spawn(move || write_lines(out, &waiting, &lost))?;
        Ok(LineWriter { lines, dropped })
    }

    fn file(name: &str, path: &str) -> Result<LineWriter, String> {
        let open = || -> io::Result<File> { OpenOptions::new().create(true).append(true).open(path) };
        open()
            .and_then(|file| LineWriter::start(name, Box::new(file)))
            .map_err(|error| format!("cannot write `{path}`: {error}"))
    }

    fn send(&self, line: Vec<u8>) {
        if self.lines.try_send(Line::Text(line)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn flush(&self) {
        let (done, wait) = sync_channel(1);
        // A second is plenty for a disk, and a pipe that nobody reads must not hold up the end.
        if self.lines.try_send(Line::Flush(done)).is_ok() {
            let _ = wait.recv_timeout(Duration::from_secs(1));
        }
    }
}

impl Write for LineWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send(bytes.to_vec());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_lines(mut out: Box<dyn Write + Send>, lines: &Receiver<Line>, lost: &AtomicU64) {
    while let Ok(line) = lines.recv() {
        // A log that cannot be written has nowhere to say so.
        let _ = match line {
            Line::Text(text) => out.write_all(&text),
            Line::Flush(done) => {
                let flushed = out.flush();
                let _ = done.try_send(());
                flushed
            }
        };
        let dropped = lost.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            let _ = writeln!(out, "... {dropped} log lines lost: the log could not be written fast enough");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Waits until everything is written, however long that takes.
    fn written(writer: &LineWriter) {
        let (done, wait) = sync_channel(1);
        writer.lines.send(Line::Flush(done)).unwrap();
        wait.recv().unwrap();
    }

    fn logged(json: bool, per_s: u64, events: impl FnOnce()) -> String {
        let out = Shared::default();
        let writer = LineWriter::start("test log", Box::new(out.clone())).unwrap();
        let repeats = Repeats::new(Arc::new(AtomicU64::new(per_s)), writer.clone(), json);
        let layer = format_layer(writer.clone(), json, false).with_filter(repeats);
        tracing::subscriber::with_default(Registry::default().with(layer), events);
        written(&writer);
        let bytes = out.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn values_are_fields_in_both_formats() {
        let event = || tracing::info!(conn = 7, "hello");
        let text = logged(false, 10, event);
        assert!(text.contains("hello") && text.contains("conn=7"), "{text}");
        let json = logged(true, 10, event);
        let line: serde_json::Value = serde_json::from_str(json.trim()).unwrap();
        assert_eq!((line["message"].as_str(), line["conn"].as_u64()), (Some("hello"), Some(7)));
    }

    #[test]
    fn repeats_are_limited_per_call_site() {
        let text = loop {
            let start = Instant::now();
            let text = logged(false, 3, || {
                for turn in 0..100 {
                    tracing::warn!(turn, "again");
                }
                tracing::warn!("another site");
            });
            // The limit is one for each second.
            if start.elapsed() < Duration::from_secs(1) {
                break text;
            }
        };
        assert_eq!(text.matches("again").count(), 3, "{text}");
        assert_eq!(text.matches("another site").count(), 1, "{text}");
    }

    #[test]
    fn suppressed_lines_are_summed_up_in_the_next_window() {
        let out = Shared::default();
        let writer = LineWriter::start("test log", Box::new(out.clone())).unwrap();
        let repeats = Repeats::new(Arc::new(AtomicU64::new(1)), writer.clone(), true);
        let callsite = tracing::callsite::Identifier(tracing::callsite!(
            name: "here", kind: tracing::metadata::Kind::EVENT, target: "t", level: tracing::Level::INFO, fields: ));
        let start = Instant::now();
        let admitted: Vec<bool> = (0..5).map(|_| repeats.admit(callsite.clone(), "here", start)).collect();
        assert_eq!(admitted, [true, false, false, false, false]);
        assert!(repeats.admit(callsite, "here", start + Duration::from_secs(1)));
        written(&writer);
        let text = String::from_utf8(out.0.lock().unwrap().clone()).unwrap();
        assert!(text.contains("\"count\":4"), "{text}");
    }

    #[test]
    fn the_start_time_can_stand_in_a_file_name() {
        assert_eq!(compact_utc(0), "19700101000000");
        assert_eq!(compact_utc(951_827_696), "20000229123456");
        assert_eq!(compact_utc(1_735_689_599), "20241231235959");
        assert!(!expand_time("log-{time}.txt").contains('{'));
        assert_eq!(expand_time("log.txt"), "log.txt");
    }
}
