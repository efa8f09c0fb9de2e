//! The record of the area that this matcher saw or wrote last, in a file.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use throng_cluster::Record;

/// The file and its content.
pub(crate) struct Memory {
    file: Option<PathBuf>,
    /// The content, without the number that is another in every renewal.
    kept: Option<Record>,
}

impl Memory {
    /// Reads the file, if there is one.
    pub(crate) fn open(file: Option<PathBuf>) -> Memory {
        let kept = file.as_deref().and_then(read);
        Memory { file, kept }
    }

    /// The record.
    pub(crate) fn record(&self) -> Option<&Record> {
        self.kept.as_ref()
    }

    /// Writes a record that says something else than the one in the file.
    pub(crate) fn keep(&mut self, record: &Record) {
        let Some(file) = &self.file else { return };
        let record = Record { nonce: 0, ..record.clone() };
        if self.kept.as_ref() == Some(&record) {
            return;
        }
        if let Err(error) = replace(file, &record.to_bytes()) {
            tracing::warn!(file = %file.display(), %error, "the record of the area cannot be kept for a restart");
        }
        self.kept = Some(record);
    }
}

fn read(file: &Path) -> Option<Record> {
    let bytes = match std::fs::read(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        read => read.map_err(|error| error.to_string()),
    };
    let record = bytes.and_then(|bytes| Record::parse(&bytes));
    let complain = |error: &String| tracing::warn!(file = %file.display(), error, "the kept record of the area cannot be read");
    record.inspect_err(complain).ok()
}

/// Replaces a file. After a crash it has the old content or the new one.
fn replace(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let draft = file.with_extension("new");
    let mut written = File::create(&draft)?;
    written.write_all(bytes)?;
    written.sync_all()?;
    std::fs::rename(draft, file)?;
    match file.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use throng_cluster::State;

    use super::*;

    fn record(epoch: u64, nonce: u64) -> Record {
        let [incarnation, journal, machine] = ["i", "j", "m"].map(str::to_owned);
        Record { epoch, incarnation, journal, machine, addresses: Vec::new(), state: State::Serving, nonce }
    }

    #[test]
    fn the_file_has_the_latest_record_and_renewals_do_not_write_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("lease.json");
        let mut memory = Memory::open(Some(file.clone()));
        assert_eq!(memory.record(), None);
        memory.keep(&record(1, 7));
        memory.keep(&record(2, 8));
        assert_eq!(Memory::open(Some(file.clone())).record(), Some(&record(2, 0)));
        std::fs::remove_file(&file).unwrap();
        memory.keep(&record(2, 9));
        assert!(!file.exists(), "a renewal");
        memory.keep(&record(3, 9));
        assert!(file.exists());
    }

    #[test]
    fn a_file_that_cannot_be_read_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("lease.json");
        std::fs::write(&file, "{").unwrap();
        assert_eq!(Memory::open(Some(file)).record(), None);
        Memory::open(None).keep(&record(1, 1));
    }
}
