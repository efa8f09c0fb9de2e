//! A folder of copies: what was used longest ago goes when there is too much.

use throng_ddc::{IoHash, Timestamp};

use crate::blob;
use crate::care::Collected;
use crate::commit::Change;
use crate::key::{self, Location};
use crate::log;
use crate::store::{Store, StoreError, lock};

/// Copies are removed when the folder has reached this part of what it may hold ...
const FULL_PERCENT: u64 = 95;
/// ... until the blobs are this part of it. Segments then hold a little more than the blobs in them.
const KEEP_PERCENT: u64 = 72;
/// Segments are emptied when less than this part of them is in use: 72 % of blobs in segments that are 85 % full make 85 %.
const LIVE_PERCENT_MIN: u64 = 85;

impl Store {
    /// Bytes of segments and large files, damaged ones and unused space included. The index is small beside them.
    ///
    /// # Errors
    /// As the system says.
    pub fn disk_bytes(&self) -> Result<u64, StoreError> {
        let mut total = 0;
        for segment in log::segments(&*self.fs)? {
            total += self.fs.open(&log::name(segment), false)?.len()?;
        }
        for name in self.fs.list(blob::FOLDER)? {
            // It may have been removed since it was listed.
            if let Ok(file) = self.fs.open(&format!("{}/{name}", blob::FOLDER), false) {
                total += file.len()?;
            }
        }
        Ok(total)
    }

    /// Removes the blobs that were used longest ago, if the folder holds more than 95 % of `bytes_max`, until it holds about
    /// 85 %. Only for folders whose blobs are elsewhere too: refs are not looked at.
    ///
    /// # Errors
    /// As the system says. What was removed by then stays removed.
    pub fn evict(
        &self,
        bytes_max: u64,
        last_use: &dyn Fn(&IoHash) -> Option<Timestamp>,
    ) -> Result<Collected, StoreError> {
        let mut done = Collected::default();
        if self.disk_bytes()? < bytes_max / 100 * FULL_PERCENT {
            return Ok(done);
        }
        let _one = lock(&self.care);
        let used_at = |hash: &IoHash, location: &Location| last_use(hash).max(Some(location.put));
        let mut uses = Vec::new();
        self.walk(b"b", &mut |index_key, stored| {
            if let (Some((_, hash)), Some(location)) = (key::read_blob(index_key), Location::read(stored)) {
                uses.push((used_at(&hash, &location), location.len));
            }
            Ok(())
        })?;
        uses.sort_unstable();
        let live: u64 = uses.iter().map(|(_, len)| len).sum();
        let mut surplus = live.saturating_sub(bytes_max / 100 * KEEP_PERCENT);
        let mut freed = 0;
        let newest_to_go = uses.iter().take_while(|(_, len)| {
            let goes = freed < surplus;
            freed += len;
            goes
        });
        let Some(limit) = newest_to_go.last().map(|(used, _)| *used) else {
            return self.give_back(&mut done, LIVE_PERCENT_MIN).map(|()| done);
        };
        let mut files = Vec::new();
        self.walk(b"b", &mut |index_key, stored| {
            let (Some((_, hash)), Some(location)) = (key::read_blob(index_key), Location::read(stored))
            else {
                return Ok(());
            };
            if surplus > 0 && used_at(&hash, &location) <= limit {
                surplus = surplus.saturating_sub(location.len);
                done.blobs += 1;
                done.blob_bytes += location.len;
                files.extend(location.large.then_some(location.file));
                self.queue_care(Change::Collect { key: index_key.to_vec(), value: stored.into() });
            }
            Ok(())
        })?;
        self.commit();
        for file in files {
            let _ = self.fs.remove(&blob::name(file));
        }
        self.give_back(&mut done, LIVE_PERCENT_MIN)?;
        Ok(done)
    }
}
