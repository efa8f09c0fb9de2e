//! Audit log of changes over the admin listener: JSON lines in the data folder.
//!
//! `audit.jsonl` is appended to; at its size limit it becomes `audit.1.jsonl`, which replaces the
//! previous one, so at least one full file is always kept. If a record cannot be written, the
//! process logs an error and executes the call anyway, because the operator of a full disk needs
//! the console.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use serde_json::Value;
use throng_admin::Act;
use throng_ddc::Timestamp;

/// Bytes of a file before the next one begins: some five thousand records.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Bytes at the end of the two files that the console shows.
const SHOWN_BYTES_MAX: u64 = 256 << 10;

/// The record of a process.
pub(crate) struct AuditLog {
    path: PathBuf,
    older: PathBuf,
    bytes_max: u64,
    /// One writer at a time.
    writing: Mutex<()>,
}

impl AuditLog {
    pub(crate) fn new(folder: &Path) -> AuditLog {
        AuditLog {
            path: folder.join("audit.jsonl"),
            older: folder.join("audit.1.jsonl"),
            bytes_max: FILE_BYTES_MAX,
            writing: Mutex::new(()),
        }
    }

    pub(crate) fn record(&self, act: &Act) {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now = Timestamp::from_unix_ms(u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX));
        if let Err(error) = self.append(act, now) {
            tracing::error!(%error, path = %self.path.display(), "an admin call is not in the audit log");
        }
    }

    fn append(&self, act: &Act, now: Timestamp) -> io::Result<()> {
        let mut row = serde_json::to_value(act)?;
        row["time"] = now.iso_8601().into();
        let line = format!("{row}\n");
        let _alone = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(folder) = self.path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let mut file = self.open()?;
        let len = file.metadata()?.len();
        if len > 0 && len + line.len() as u64 > self.bytes_max {
            std::fs::rename(&self.path, &self.older)?;
            file = self.open()?;
        }
        // One write: a line is there as a whole or not at all, whoever else appends.
        file.write_all(line.as_bytes())
    }

    fn open(&self) -> io::Result<File> {
        OpenOptions::new().append(true).create(true).mode(0o600).open(&self.path)
    }

    /// The latest records, newest first.
    pub(crate) fn latest(&self) -> io::Result<Vec<Value>> {
        let mut rows = rows(&self.path)?;
        rows.extend(self::rows(&self.older)?);
        Ok(rows)
    }
}

/// The records at the end of a file, newest first; none when there is no file.
fn rows(path: &Path) -> io::Result<Vec<Value>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(SHOWN_BYTES_MAX)))?;
    let mut bytes = Vec::new();
    file.take(SHOWN_BYTES_MAX).read_to_end(&mut bytes)?;
    // The first line may be the end of one, which is no JSON then.
    let lines = bytes.rsplit(|byte| *byte == b'\n');
    Ok(lines.filter_map(|line| serde_json::from_slice(line).ok()).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn act(number: u64) -> Act {
        Act {
            who: "session 1".to_owned(),
            from: Some("127.0.0.1:5".parse().unwrap()),
            what: format!("DELETE /api/v1/runs/{number}"),
            parameters: Value::Null,
            status: 200,
        }
    }

    #[test]
    fn records_are_lines_of_json_newest_first_and_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let log = AuditLog { bytes_max: 2_000, ..AuditLog::new(&folder.path().join("data")) };
        assert_eq!(log.latest().unwrap(), Vec::<Value>::new());
        let time = Timestamp::from_unix_ms(1_589_382_600_000);
        log.append(&act(0), time).unwrap();
        let wanted = json!({ "time": "2020-05-13T15:10:00.000Z", "who": "session 1", "from": "127.0.0.1:5",
                             "what": "DELETE /api/v1/runs/0", "parameters": null, "status": 200 });
        assert_eq!(log.latest().unwrap(), [wanted]);
        for number in 1..100 {
            log.append(&act(number), time).unwrap();
        }
        let sizes = [&log.path, &log.older].map(|path| std::fs::metadata(path).unwrap().len());
        assert!(sizes.iter().all(|size| *size <= 2_000), "{sizes:?}");
        let latest = log.latest().unwrap();
        assert!(latest.len() >= 10, "{}", latest.len());
        let numbers = latest.iter().map(|row| row["what"].as_str().unwrap().to_owned());
        let wanted = (0..100).rev().map(|number| format!("DELETE /api/v1/runs/{number}"));
        assert!(numbers.zip(wanted).all(|(found, wanted)| found == wanted), "newest first, without gaps");
    }

    #[test]
    fn a_line_that_was_cut_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let log = AuditLog::new(folder.path());
        std::fs::write(&log.path, "ho\":1}\n{\"who\":\"token 1\"}\n{\"who\":").unwrap();
        assert_eq!(log.latest().unwrap(), [json!({ "who": "token 1" })]);
    }
}
