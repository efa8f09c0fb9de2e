//! Gaps: damaged parts of the log that were found.
//!
//! A start may repair the place of a gap so that no later one finds it. So each is noted in a file,
//! a line of text for each: it is reported until a rebuild of the index acknowledges it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, IoSlice};

use throng_platform::Fs;

const FILE: &str = "gaps";
const FOUND: &str = "found";
const ACKNOWLEDGED: &str = "acknowledged";

/// Segment and offset of a gap.
pub(crate) type Gap = (u64, u64);

/// Gaps that were found, and those of them that were acknowledged.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gaps {
    found: BTreeSet<Gap>,
    acknowledged: BTreeSet<Gap>,
}

impl Gaps {
    /// Reads what was noted.
    pub(crate) fn read(fs: &dyn Fs) -> io::Result<Gaps> {
        let mut gaps = Gaps::default();
        let file = match fs.open(FILE, false) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(gaps),
            Err(error) => return Err(error),
        };
        let mut bytes = vec![0; file.len()? as usize];
        file.read_at(&mut bytes, 0)?;
        for line in String::from_utf8_lossy(&bytes).lines() {
            let mut words = line.split(' ');
            let state = words.next();
            let mut number = || words.next().and_then(|word| word.parse().ok());
            if let (Some(segment), Some(offset)) = (number(), number()) {
                match state {
                    Some(FOUND) => gaps.found.insert((segment, offset)),
                    Some(ACKNOWLEDGED) => gaps.acknowledged.insert((segment, offset)),
                    _ => false,
                };
            }
        }
        Ok(gaps)
    }

    /// Gaps that are not acknowledged, those of `also` among them.
    pub(crate) fn open(&self, also: &BTreeSet<Gap>) -> u64 {
        self.found.union(also).filter(|gap| !self.acknowledged.contains(gap)).count() as u64
    }

    /// Adds gaps. Gives how many of them are new.
    pub(crate) fn add(&mut self, fs: &dyn Fs, gaps: &BTreeSet<Gap>) -> u64 {
        let new: Vec<Gap> = gaps.difference(&self.found).copied().collect();
        self.found.extend(&new);
        note(fs, FOUND, &new);
        new.len() as u64
    }

    /// Acknowledges all gaps.
    pub(crate) fn acknowledge(&mut self, fs: &dyn Fs) {
        let new: Vec<Gap> = self.found.difference(&self.acknowledged).copied().collect();
        self.acknowledged.extend(&new);
        note(fs, ACKNOWLEDGED, &new);
    }
}

/// Adds lines to the file. A disk that is full keeps a store from noting its damage, not from
/// opening.
fn note(fs: &dyn Fs, state: &str, gaps: &[Gap]) {
    if gaps.is_empty() {
        return;
    }
    let mut lines = String::new();
    for (segment, offset) in gaps {
        let _ = writeln!(lines, "{state} {segment} {offset}");
    }
    let append = || -> io::Result<()> {
        let file = fs.open(FILE, true)?;
        file.write_at(&[IoSlice::new(lines.as_bytes())], file.len()?)?;
        file.sync()?;
        fs.sync_dir("")
    };
    if let Err(error) = append() {
        tracing::warn!(%error, "damage of the log could not be noted; the next start may not report it");
    }
}
