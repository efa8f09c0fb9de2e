//! What a power cut or `kill -9` leaves of a matcher's folder.

use std::path::Path;

/// What a crash at this moment would leave: everything that was answered is in the files.
pub(crate) fn crashed(folder: &Path) -> tempfile::TempDir {
    fn copy(from: &Path, to: &Path) {
        for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
            let to = to.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                std::fs::create_dir(&to).unwrap();
                copy(&entry.path(), &to);
            } else {
                std::fs::copy(entry.path(), to).unwrap();
            }
        }
    }
    let copied = tempfile::tempdir().unwrap();
    copy(folder, copied.path());
    copied
}
