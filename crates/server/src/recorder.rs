//! Writes recordings on a thread of its own, so that a slow disk never holds up a shard.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

/// Parts that may wait for the disk. The core makes a part of some 64 KiB, so this is about 64 MiB.
const PARTS_WAITING_MAX: usize = 1_024;
/// Files kept open between parts.
const FILES_OPEN_MAX: usize = 64;

/// A handle that shards append through. Clones write to the same folder.
#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    parts: Option<SyncSender<(String, Vec<u8>)>>,
    dropped: Arc<AtomicU64>,
}

impl Recorder {
    /// Starts the writer. It ends when every handle is gone; join it then.
    pub(crate) fn start(dir: PathBuf) -> std::io::Result<(Recorder, JoinHandle<()>)> {
        std::fs::create_dir_all(&dir)?;
        let (sender, receiver) = sync_channel(PARTS_WAITING_MAX);
        let writer = std::thread::Builder::new()
            .name("recorder".to_owned())
            .spawn(move || write_parts(&dir, &receiver))?;
        Ok((Recorder { parts: Some(sender), dropped: Arc::default() }, writer))
    }

    /// A recorder for a gateway that does not record.
    pub(crate) fn none() -> Recorder {
        Recorder { parts: None, dropped: Arc::default() }
    }

    /// Appends to the recording of that name. Never waits: what the disk cannot follow is dropped
    /// and counted.
    pub(crate) fn append(&self, name: String, bytes: Vec<u8>) {
        let Some(parts) = &self.parts else { return };
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = parts.try_send((name, bytes)) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Parts lost because the disk was too slow.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

fn write_parts(dir: &std::path::Path, parts: &Receiver<(String, Vec<u8>)>) {
    let mut files: HashMap<String, File> = HashMap::new();
    while let Ok((name, bytes)) = parts.recv() {
        if files.len() >= FILES_OPEN_MAX {
            files.clear();
        }
        if let Err(error) = append(dir, &mut files, &name, &bytes) {
            tracing::error!(file = name, %error, "a recording could not be written");
        }
    }
}

fn append(
    dir: &std::path::Path,
    files: &mut HashMap<String, File>,
    name: &str,
    bytes: &[u8],
) -> std::io::Result<()> {
    if name.contains(['/', '\\', '\0']) || name.starts_with('.') {
        return Err(std::io::Error::other("a recording's name must be a plain file name"));
    }
    if !files.contains_key(name) {
        let file = OpenOptions::new().create(true).append(true).open(dir.join(name))?;
        files.insert(name.to_owned(), file);
    }
    match files.get_mut(name) {
        Some(file) => file.write_all(bytes),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_appended_and_names_stay_in_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        let (recorder, writer) = Recorder::start(dir.path().join("r")).unwrap();
        recorder.append("a.cpr".into(), b"one".to_vec());
        recorder.append("../b.cpr".into(), b"bad".to_vec());
        recorder.append("a.cpr".into(), b"two".to_vec());
        drop(recorder);
        writer.join().unwrap();
        assert_eq!(std::fs::read(dir.path().join("r/a.cpr")).unwrap(), b"onetwo");
        assert!(!dir.path().join("b.cpr").exists());
    }
}
