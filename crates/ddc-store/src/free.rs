//! Space of files that have lost their names.

use std::sync::atomic::{AtomicBool, Ordering};

use throng_platform::File;

/// Bytes that are freed at a time, and what their ends are multiples of: the largest unit of the
/// page cache (a huge page of x86-64). `sendfile` puts the cache's pages into sockets. A cut inside
/// a unit would overwrite a part of it with zeros, which a slow receiver would be sent, long after
/// the last read; a cut between units drops whole pages, which sockets keep as they were.
const STEP_BYTES: u64 = 2 << 20;

/// Makes a file empty, a part at a time, until `stopped`. `pause` is called after each part. The
/// last close of a file that is not empty frees all of it at once, which takes a file system 60 ms
/// for 256 MiB, and the log's syncs wait meanwhile. Does nothing where the largest unit of the page
/// cache is another.
pub(crate) fn free_in_parts(file: &dyn File, stopped: &AtomicBool, pause: &mut dyn FnMut()) {
    if !cfg!(target_arch = "x86_64") {
        return;
    }
    let mut left = file.len().unwrap_or(0);
    while left > 0 && !stopped.load(Ordering::Relaxed) {
        left = (left - 1) / STEP_BYTES * STEP_BYTES;
        if file.set_len(left).is_err() {
            return;
        }
        pause();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, Read};
    use std::net::{TcpListener, TcpStream};

    use throng_platform::{Folder, Fs};

    use super::*;

    /// Needs a file system that caches in units of several pages, as ext4 does.
    #[test]
    fn a_receiver_that_pauses_gets_what_was_sent_before_the_space_was_freed() {
        let folder = tempfile::tempdir().expect("a folder");
        let fs = Folder::new(folder.path()).expect("a folder");
        let content: Vec<u8> = (0..5_500_000_u32).map(|at| (at / 4096 % 251 + 1) as u8).collect();
        for round in 0..4_u64 {
            let file = fs.open("file", true).expect("a file");
            file.write_at(&[IoSlice::new(&content[..content.len() - 300_000 * round as usize])], 0)
                .expect("written");
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let mut receiver = TcpStream::connect(listener.local_addr().expect("an address")).expect("open");
            let (sender, _) = listener.accept().expect("a connection");
            sender.set_nonblocking(true).expect("set");
            let sent = file.as_std().expect("a real file");
            while rustix::fs::sendfile(&sender, sent, None, content.len()).is_ok_and(|count| count > 0) {}
            drop(sender);
            fs.remove("file").expect("removed");
            free_in_parts(&*file, &AtomicBool::new(false), &mut || {});
            assert_eq!(file.len().expect("a length"), 0);
            let mut received = Vec::new();
            receiver.read_to_end(&mut received).expect("received");
            assert!(received.len() > 100_000, "{} bytes", received.len());
            assert!(content.starts_with(&received), "other bytes than were sent");
        }
    }
}
