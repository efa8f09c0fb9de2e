//! Maintenance for the folder of a derived-data cache that does not run, for `throng ddc`.

use std::fs::File;
use std::io::{BufReader, BufWriter, Seek as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Map, Value, json};
use throng_ddc::gc::RefPolicy;
use throng_ddc::{Bucket, IoHash, Namespace, Style, Timestamp, Value as CbValue};
use throng_ddc_server::{NamespaceRules, Node, Rules, Transferred};
use throng_ddc_store::{Durability, Options, PutRef, RefValue, Store, Tier};
use throng_platform::{Folder, ReadOnlyFolder};

use crate::config::Settings;
use crate::ddc::{self, FOLDER};

/// Entries that are made before they are written.
const FILL_STEP: usize = 8192;
/// Time at which they were put: before any collection that could spare them as new.
const FILL_TIME_MS: u64 = 1_700_000_000_000;
/// Time between two of them: evictions tell uses apart by a few seconds.
const FILL_INTERVAL_MS: u64 = 40;

/// Operation on the folder.
#[derive(Clone, Debug)]
pub enum Work {
    /// Count what each namespace holds.
    Stats,
    /// Read log, index and every blob, and follow every ref; change nothing.
    Verify,
    /// Build the index again from the log.
    Reindex,
    /// Read every blob and put damaged ones aside.
    Scrub,
    /// Remove refs that nobody used for so many days (0: none), and blobs that no ref reaches.
    Collect {
        /// Days.
        unused_days: u32,
    },
    /// Put made-up blobs and refs, for measurements of a large store.
    Fill {
        /// Number of them.
        entries: u64,
        /// Bytes of a blob, 8 or more.
        blob_bytes: usize,
    },
    /// Write everything, or one namespace, to a file: what is in the folder, or in the bucket of
    /// which it holds copies.
    Export {
        /// The file.
        file: PathBuf,
        /// The namespace.
        namespace: Option<String>,
        /// Settings that may name the bucket.
        settings: Option<Box<Settings>>,
    },
    /// Read what an export wrote.
    Import {
        /// The file.
        file: PathBuf,
    },
}

/// Does it, with the cache in the data folder `data`. Gives what came out, and whether all is well.
///
/// # Errors
/// A folder that is missing, in use or damaged; a file that cannot be read or written.
pub fn run(data: &Path, work: &Work) -> Result<(Value, bool), String> {
    let folder = data.join(FOLDER);
    let bucket = match work {
        Work::Export { settings: Some(settings), .. } => ddc::bucket(settings)?,
        _ => None,
    };
    let needs_folder = bucket.is_none() && !matches!(work, Work::Import { .. } | Work::Fill { .. });
    if needs_folder && !folder.is_dir() {
        return Err(format!("`{}` holds no cache: it has no folder `{FOLDER}`", data.display()));
    }
    let refs = match work {
        Work::Collect { unused_days: days @ 1.. } => {
            RefPolicy::LastAccess(std::time::Duration::from_secs(24 * 3600) * *days)
        }
        _ => RefPolicy::Keep,
    };
    let rules = Rules { default: NamespaceRules { refs, ..NamespaceRules::default() }, ..Rules::default() };
    let name = |error: &dyn std::fmt::Display| format!("`{}`: {error}", folder.display());
    let read_only = || {
        let fs = ReadOnlyFolder::open(&folder).map_err(|error| name(&error))?;
        Store::open_read_only(Arc::new(fs), Options::default()).map_err(|error| name(&error))
    };
    match work {
        Work::Stats | Work::Verify => {
            let store = read_only()?;
            look(&store, work)
        }
        Work::Export { file, namespace, .. } => {
            let store = folder.is_dir().then(read_only).transpose()?;
            // A folder that never was a part of a bucket is exported whatever the settings name.
            let source = match (&store, &bucket) {
                (Some(store), _) if !store.has_copies() => Source::Folder(store),
                (copies, Some(tier)) => Source::Bucket { tier, copies: copies.as_deref() },
                _ => {
                    let why = "holds copies of a part of a bucket; name the configuration with \
                               `ddc.tier.url` to export the bucket: --config FILE";
                    return Err(format!("`{}` {why}", folder.display()));
                }
            };
            source.export(namespace.as_deref(), file)
        }
        Work::Reindex => {
            let fs = Folder::new(&folder).map_err(|error| name(&error))?;
            let store = Store::reindex(Arc::new(fs), Options::default()).map_err(|error| name(&error))?;
            store.merge().map_err(|error| name(&error))?;
            let damaged = store.stats().damaged;
            Ok((json!({ "log_gaps": damaged, "index_bytes": store.index_bytes() }), damaged == 0))
        }
        Work::Fill { entries, blob_bytes } => {
            fill(&folder, *entries, *blob_bytes).map_err(|error| name(&error))
        }
        Work::Scrub | Work::Collect { .. } | Work::Import { .. } => {
            // Of the folders that this makes, the outermost.
            let made = folder.ancestors().filter(|folder| !folder.as_os_str().is_empty());
            let made = made.take_while(|folder| !folder.exists()).last();
            let node = Node::open(&folder, Options::default(), rules).map_err(|error| name(&error))?;
            let done = work_on(&node, work);
            drop(node);
            // A part of a cache looks like a whole one. In a folder that was there before, what an
            // import brought stays.
            if let (Err(_), Some(made)) = (&done, made) {
                std::fs::remove_dir_all(made).map_err(|error| name(&error))?;
            }
            done
        }
    }
}

/// Puts two blobs for each ref that attaches one of them.
fn fill(folder: &Path, entries: u64, blob_bytes: usize) -> Result<(Value, bool), Box<dyn std::error::Error>> {
    let options = Options {
        durability: Durability::Cache,
        // Fewer runs to merge on the way.
        checkpoint_bytes: 256 << 20,
        ..Options::default()
    };
    let store = Store::open(Arc::new(Folder::new(folder)?), options)?;
    let (namespace, bucket): (Namespace, Bucket) = ("test.benchmark".parse()?, "default".parse()?);
    if blob_bytes > size_of::<u64>() {
        // The last scrub was long ago: a server that has something to scrub begins at once.
        store.note_scrub(Timestamp::from_unix_ms(FILL_TIME_MS));
    }
    let blob = |number: u64| {
        let mut bytes = number.to_le_bytes().to_vec();
        // Noise that costs nothing: compression of the disk must not make it smaller.
        let words =
            (1..).map(|at: u64| (number ^ (at << 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
        bytes.extend(words.flatten().take(blob_bytes.saturating_sub(bytes.len())));
        Bytes::from(bytes)
    };
    for first in (0..entries).step_by(FILL_STEP) {
        for number in first..entries.min(first + FILL_STEP as u64) {
            let now = Timestamp::from_unix_ms(FILL_TIME_MS + number * FILL_INTERVAL_MS);
            let bytes = blob(number);
            let hash = IoHash::of(&bytes);
            if number % 3 < 2 {
                store.put_blob(&namespace, hash, bytes, now, Box::new(|_| {}));
                continue;
            }
            let attached = IoHash::of(&blob(number - 1));
            let object = CbValue::object([("data", CbValue::BinaryAttachment(attached))]);
            let object = Bytes::from(object.encode(Style::Plain));
            let value = RefValue {
                object: IoHash::of(&object),
                finalised: true,
                put: now,
                inline: Some(object),
                adopted: false,
            };
            let key = format!("{hash}").parse()?;
            let relies_on = vec![attached];
            let (namespace, bucket) = (namespace.clone(), bucket.clone());
            let put = PutRef { namespace, bucket, key, value, overwrite: true, relies_on };
            store.put_ref(put, Box::new(|_| {}));
        }
        store.commit();
        store.checkpoint_if_due()?;
    }
    store.checkpoint()?;
    store.merge()?;
    let failures = store.stats().failures;
    Ok((json!({ "entries": entries, "failures": failures, "bytes": store.disk_bytes() }), failures == 0))
}

/// Data of an export.
enum Source<'s> {
    Folder(&'s Store),
    Bucket { tier: &'s Tier, copies: Option<&'s Store> },
}

impl Source<'_> {
    fn export(&self, only: Option<&str>, file: &Path) -> Result<(Value, bool), String> {
        let failed = |error: &dyn std::fmt::Display| error.to_string();
        let name = |error: std::io::Error| format!("`{}`: {error}", file.display());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| failed(&error))?;
        let only = only.map(str::parse::<Namespace>).transpose().map_err(|error| failed(&error))?;
        if let Some(wanted) = &only {
            let known = match self {
                Source::Folder(store) => store.namespaces().map_err(|error| failed(&error))?,
                Source::Bucket { tier, .. } => {
                    runtime.block_on(tier.namespaces()).map_err(|error| failed(&error))?
                }
            };
            if !known.contains(wanted) {
                let known: Vec<String> = known.iter().map(ToString::to_string).collect();
                return Err(format!("there is no namespace `{wanted}`; found: {}", known.join(", ")));
            }
        }
        // Until the export is complete, an earlier one stays. A pipe or device is written to as it
        // is.
        let is_special = std::fs::metadata(file).is_ok_and(|found| !found.is_file());
        let mut partial = file.as_os_str().to_owned();
        partial.push(".partial");
        let target = if is_special { file } else { Path::new(&partial) };
        let written = self.write(&runtime, only.as_ref(), target);
        if is_special {
            return written;
        }
        if written.is_err() {
            let _ = std::fs::remove_file(target);
        }
        let written = written?;
        std::fs::rename(target, file).map_err(name)?;
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all()).map_err(name)?;
        Ok(written)
    }

    fn write(
        &self,
        runtime: &tokio::runtime::Runtime,
        only: Option<&Namespace>,
        file: &Path,
    ) -> Result<(Value, bool), String> {
        let failed = |error: &dyn std::fmt::Display| error.to_string();
        let name = |error: std::io::Error| format!("`{}`: {error}", file.display());
        let mut out = BufWriter::new(File::create(file).map_err(name)?);
        let done = match self {
            Source::Folder(store) => Node::export(store, only, &mut out),
            Source::Bucket { tier, copies } => {
                runtime.block_on(Node::export_bucket(tier, *copies, only, &mut out))
            }
        };
        let done = done.map_err(|error| failed(&error))?;
        let end = out.stream_position().map_err(name)?;
        let file = out.get_ref();
        file.set_len(end).and_then(|()| file.sync_all()).map_err(name)?;
        let mut counts = transferred(&done);
        counts["unreadable"] = done.unreadable.into();
        if done.unreadable > 0 {
            counts["unreadable_names"] = done.unreadable_names.into();
        }
        // Blobs and refs that a gap held are not in it.
        let gaps = match self {
            Source::Folder(store) => store.opening().log_gaps,
            Source::Bucket { .. } => 0,
        };
        counts["log_gaps"] = gaps.into();
        Ok((counts, done.unreadable + gaps == 0))
    }
}

/// Work that changes nothing.
fn look(store: &Store, work: &Work) -> Result<(Value, bool), String> {
    let failed = |error: throng_ddc_store::StoreError| error.to_string();
    Ok(match work {
        Work::Stats => {
            let mut namespaces = Map::new();
            for namespace in store.namespaces().map_err(failed)? {
                let usage = store.usage(&namespace).map_err(failed)?;
                let counts = json!({
                    "refs": usage.refs, "unfinalised_refs": usage.unfinalised, "blobs": usage.blobs,
                    "blob_bytes": usage.blob_bytes, "content_ids": usage.contents,
                });
                namespaces.insert(namespace.as_str().to_owned(), counts);
            }
            (json!({ "namespaces": namespaces }), true)
        }
        _ => {
            let found = store.verify().map_err(failed)?;
            let counts = json!({
                "blobs": found.blobs, "bytes": found.bytes, "damaged": found.damaged,
                "log_gaps": found.log_gaps, "index_damaged": found.index_damaged, "refs": found.refs,
                "incomplete_refs": found.incomplete,
            });
            (counts, found.damaged + found.log_gaps == 0 && !found.index_damaged)
        }
    })
}

/// Work that changes the store.
fn work_on(node: &Node, work: &Work) -> Result<(Value, bool), String> {
    let service = node.service();
    let failed = |error: throng_ddc_store::StoreError| error.to_string();
    let name = |file: &Path, error: std::io::Error| format!("`{}`: {error}", file.display());
    Ok(match work {
        Work::Scrub => {
            let found = service.scrub(u64::MAX).map_err(failed)?;
            let gaps = service.store().opening().log_gaps;
            let counts = json!({
                "blobs": found.blobs, "bytes": found.bytes, "damaged": found.damaged, "lost": found.lost,
                "log_gaps": gaps,
            });
            (counts, found.damaged + found.lost + gaps == 0)
        }
        Work::Collect { .. } => {
            let done = service.collect().map_err(failed)?;
            let counts = json!({
                "refs": done.refs, "blobs": done.blobs, "blob_bytes": done.blob_bytes,
                "moved_blobs": done.moved, "removed_segments": done.segments,
            });
            (counts, true)
        }
        Work::Import { file } => {
            let mut input = BufReader::new(File::open(file).map_err(|error| name(file, error))?);
            let done = node.import(&mut input);
            let done = done.map_err(|error| format!("`{}`: {error}", file.display()))?;
            let mut counts = transferred(&done);
            counts["newer"] = done.newer.into();
            if done.newer > 0 {
                counts["newer_names"] = done.newer_names.into();
            }
            (counts, true)
        }
        _ => return look(service.store(), work),
    })
}

fn transferred(done: &Transferred) -> Value {
    json!({ "blobs": done.blobs, "bytes": done.bytes, "content_ids": done.contents, "refs": done.refs })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_skips_a_damaged_blob_and_names_it() {
        let base = tempfile::tempdir().expect("a temporary folder");
        let data = base.path().join("data");
        run(&data, &Work::Fill { entries: 30, blob_bytes: 5_000 }).expect("writable");
        let file = base.path().join("export");
        let export = Work::Export { file: file.clone(), namespace: None, settings: None };
        let (whole, is_well) = run(&data, &export).expect("readable");
        assert!(is_well && whole["unreadable"] == 0, "{whole}");
        let segments = data.join(FOLDER).join("segments");
        let largest =
            std::fs::read_dir(segments).expect("readable").map(|entry| entry.expect("readable").path());
        let largest = largest.max_by_key(|path| path.metadata().expect("readable").len()).expect("a segment");
        let mut bytes = std::fs::read(&largest).expect("readable");
        // In the payload of some blob.
        bytes[50_000] ^= 1;
        std::fs::write(&largest, bytes).expect("writable");
        let (counts, is_well) = run(&data, &export).expect("the rest is readable");
        assert!(!is_well && counts["unreadable"] == 1, "{counts}");
        let name = counts["unreadable_names"][0].as_str().expect("a name").to_owned();
        assert!(name.starts_with("blob test.benchmark/"), "{name}");
        assert_eq!(counts["blobs"].as_u64().map(|blobs| blobs + 1), whole["blobs"].as_u64());
        run(&base.path().join("other"), &Work::Import { file }).expect("an export");
    }

    #[test]
    fn an_export_that_fails_leaves_the_file_of_an_earlier_one() {
        let base = tempfile::tempdir().expect("a temporary folder");
        let data = base.path().join("data");
        run(&data, &Work::Fill { entries: 3, blob_bytes: 8 }).expect("writable");
        let file = base.path().join("export");
        std::fs::write(&file, "an earlier one").expect("writable");
        // Nothing can be written beside it.
        std::fs::create_dir(base.path().join("export.partial")).expect("writable");
        let export = Work::Export { file: file.clone(), namespace: None, settings: None };
        run(&data, &export).expect_err("nowhere to write to");
        assert_eq!(std::fs::read(&file).expect("readable"), b"an earlier one");
        std::fs::remove_dir(base.path().join("export.partial")).expect("empty");
        run(&data, &export).expect("writable");
        assert!(!base.path().join("export.partial").exists());
        assert_ne!(std::fs::read(&file).expect("readable"), b"an earlier one");
    }

    #[test]
    fn a_refused_import_leaves_nothing_behind() {
        let base = tempfile::tempdir().expect("a temporary folder");
        let import = |data: &str, file: &str| {
            let file = base.path().join(file);
            run(&base.path().join(data), &Work::Import { file })
        };
        std::fs::write(base.path().join("other"), "something else").expect("writable");
        std::fs::create_dir(base.path().join("old")).expect("writable");
        for file in ["absent", "other"] {
            import("new/data", file).expect_err("no export");
            import("old", file).expect_err("no export");
            assert!(!base.path().join("new").exists(), "{file}");
            assert_eq!(std::fs::read_dir(base.path().join("old")).expect("readable").count(), 0, "{file}");
        }
        // A cache that was there before stays.
        run(&base.path().join("full"), &Work::Fill { entries: 3, blob_bytes: 8 }).expect("writable");
        import("full", "other").expect_err("no export");
        let export = base.path().join("export");
        let export = Work::Export { file: export, namespace: None, settings: None };
        let (counts, _) = run(&base.path().join("full"), &export).expect("whole");
        assert_eq!(counts["refs"], 1);
        // An export that was cut short, wherever.
        let whole = std::fs::read(base.path().join("export")).expect("readable");
        for len in (1..10).map(|part| whole.len() * part / 10).chain([whole.len() - 3]) {
            std::fs::write(base.path().join("cut"), &whole[..len]).expect("writable");
            import("new/data", "cut").expect_err("it has no end");
            assert!(!base.path().join("new").exists(), "{len} of {} bytes", whole.len());
            import("old", "cut").expect_err("it has no end");
            assert_eq!(
                std::fs::read_dir(base.path().join("old")).expect("readable").count(),
                0,
                "{len} bytes"
            );
        }
        import("new/data", "export").expect("an export");
        assert!(base.path().join("new/data").join(FOLDER).is_dir());
    }

    /// Every file below a folder, with its content.
    fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(folder).expect("readable") {
            let path = entry.expect("readable").path();
            match path.is_dir() {
                true => found.extend(files(&path)),
                false => found.push((path.clone(), std::fs::read(path).expect("readable"))),
            }
        }
        found.sort();
        found
    }

    #[test]
    fn commands_that_look_change_nothing_and_refuse_beside_a_server() {
        let base = tempfile::tempdir().expect("a temporary folder");
        let data = base.path().join("data");
        run(&data, &Work::Fill { entries: 300, blob_bytes: 2_000 }).expect("writable");
        // A blob in the log is damaged, and the log's end is torn.
        let segments = data.join(FOLDER).join("segments");
        let first = files(&segments).remove(0).0;
        let mut log = std::fs::read(&first).expect("readable");
        log[100_000] ^= 4;
        log.truncate(log.len() - 10);
        std::fs::write(&first, log).expect("writable");
        let before = files(&data);
        let export = Work::Export { file: base.path().join("export"), namespace: None, settings: None };
        let looks = [Work::Stats, Work::Verify, export];
        let (found, is_well) = run(&data, &Work::Verify).expect("it can be read");
        assert!(!is_well, "{found}");
        for work in &looks {
            // An export ends at what is damaged.
            let _ = run(&data, work);
            assert!(files(&data) == before, "{work:?}");
        }
        let node = Node::open(&data.join(FOLDER), Options::default(), Rules::default()).expect("it opens");
        for work in &looks {
            let refused = run(&data, work).expect_err("a server has the folder");
            assert!(refused.contains("a server uses this folder; stop it first"), "{refused}");
        }
        drop(node);
    }

    #[test]
    fn a_folder_of_copies_is_not_exported_as_if_it_held_everything() {
        let base = tempfile::tempdir().expect("a temporary folder");
        let data = base.path().join("data");
        run(&data, &Work::Fill { entries: 3, blob_bytes: 8 }).expect("writable");
        let fs = Arc::new(Folder::new(data.join(FOLDER)).expect("the folder opens"));
        let store = Store::open(fs, Options::default()).expect("it opens");
        store.set_has_copies(true).expect("writable");
        drop(store);
        let file = base.path().join("export");
        let export = Work::Export { file: file.clone(), namespace: None, settings: None };
        // Other commands do not make it a folder of its own.
        for work in [Work::Verify, Work::Scrub, Work::Reindex, Work::Collect { unused_days: 0 }] {
            run(&data, &work).expect("nothing is damaged");
            let refused = run(&data, &export).expect_err("a bucket has the rest");
            assert!(refused.contains("--config FILE"), "{refused}");
            assert!(!file.exists());
        }
    }
}
