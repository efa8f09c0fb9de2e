//! Facts about the process that the system knows: memory, CPU time, descriptors, threads.

use std::path::Path;

/// A reading of the process' own figures. Zero where unknown: the system does not report it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProcessFigures {
    pub(crate) cpu_seconds: f64,
    pub(crate) resident_bytes: u64,
    pub(crate) virtual_bytes: u64,
    pub(crate) open_fds: u64,
    pub(crate) max_fds: u64,
    pub(crate) threads: u64,
}

impl ProcessFigures {
    /// Reads `/proc/self`; about 30 us.
    pub(crate) fn read() -> ProcessFigures {
        let mut figures = ProcessFigures {
            cpu_seconds: cpu_seconds(),
            max_fds: throng_net::descriptor_limit(),
            ..Default::default()
        };
        if let Ok(status) = std::fs::read_to_string("/proc/self/status") {
            let field = |name: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(name))?;
                line.split_whitespace().nth(0)?.parse::<u64>().ok()
            };
            figures.resident_bytes = field("VmRSS:").unwrap_or(0) * 1024;
            figures.virtual_bytes = field("VmSize:").unwrap_or(0) * 1024;
            figures.threads = field("Threads:").unwrap_or(0);
        }
        if let Ok(entries) = std::fs::read_dir("/proc/self/fd") {
            figures.open_fds = entries.count() as u64;
        }
        figures
    }
}

/// Bytes of memory that this process may use: those of the machine, or fewer if a limit of its
/// control group, or of one above it, is lower. `u64::MAX` if nothing is known.
pub(crate) fn memory_limit() -> u64 {
    memory_limit_below(Path::new("/"))
}

fn memory_limit_below(root: &Path) -> u64 {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
    let meminfo = read("proc/meminfo");
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.strip_suffix("kB"));
    let total = total.and_then(|kib| kib.trim().parse::<u64>().ok()).map_or(u64::MAX, |kib| kib * 1024);
    let groups = read("proc/self/cgroup");
    let limits = groups.lines().flat_map(|line| {
        // `0::/path` in version 2; `9:memory:/path` in version 1, where each controller has a tree.
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
        let (tree, file) = match controllers.split(',').any(|name| name == "memory") {
            true => ("sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            false if controllers.is_empty() => ("sys/fs/cgroup", "memory.max"),
            false => return Vec::new(),
        };
        // In a container the path may be that of the host, while the tree begins at the container.
        let above = Path::new(path.trim_start_matches('/')).ancestors();
        above
            .filter_map(|group| read(Path::new(tree).join(group).join(file).to_str()?).trim().parse().ok())
            .collect()
    });
    limits.chain([total]).min().unwrap_or(total)
}

fn cpu_seconds() -> f64 {
    // SAFETY: an all-zero rusage is a valid value of the plain C struct.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a valid, writable rusage for the duration of the call.
    if unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) } != 0 {
        return 0.0;
    }
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_limit_of_memory_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let limit = || memory_limit_below(root.path());
        assert_eq!(limit(), u64::MAX);
        write("proc/meminfo", "MemTotal:        1000 kB\nMemFree: 1 kB\n");
        assert_eq!(limit(), 1_024_000);
        write("proc/self/cgroup", "9:cpu:/\n4:memory:/a/b\n0::/c/d\n");
        assert_eq!(limit(), 1_024_000);
        write("sys/fs/cgroup/memory/memory.limit_in_bytes", "900000\n");
        assert_eq!(limit(), 900_000, "of version 1, seen from within a container");
        write("sys/fs/cgroup/c/d/memory.max", "max\n");
        assert_eq!(limit(), 900_000);
        write("sys/fs/cgroup/c/memory.max", "800000\n");
        assert_eq!(limit(), 800_000, "of version 2, of the group above");
        assert!(memory_limit() > 0);
    }

    #[test]
    fn the_process_knows_itself() {
        assert!(throng_net::raise_descriptor_limit() > 0);
        let figures = ProcessFigures::read();
        assert!(figures.resident_bytes > 0 && figures.open_fds > 0 && figures.threads > 0, "{figures:?}");
    }
}
