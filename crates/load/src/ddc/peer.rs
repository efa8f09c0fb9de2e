//! The servers that a bench measures: ours, one that runs already, nginx and an S3 server with the
//! same files.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::engine::{self, Pace, Plan};
use crate::child::{self, Owned, StartError, free_address};
use crate::probe::{self, Probe};

/// Time that a server has to become ready. Opening millions of entries takes a while.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server under load.
#[derive(Debug)]
pub(crate) struct Peer {
    /// Its address.
    pub(crate) addr: SocketAddr,
    /// It speaks TLS.
    pub(crate) tls: bool,
    /// Its folder.
    pub(crate) probe: Probe,
    /// From the start of the process to its first answer, if it was started here.
    pub(crate) start: Duration,
    /// Address at which it speaks HTTP/2 without TLS, if that is another one.
    http2: Option<SocketAddr>,
    /// Address at which it speaks TLS, if that is another one.
    secure: Option<SocketAddr>,
    child: Option<Owned>,
}

/// Certificate and key of servers that speak TLS: files in a folder.
#[derive(Debug)]
pub(crate) struct Certificate {
    /// PEM file of the certificate.
    pub(crate) cert: PathBuf,
    /// PEM file of its key.
    pub(crate) key: PathBuf,
}

impl Certificate {
    /// Makes one in `folder`.
    pub(crate) fn make(folder: &Path) -> io::Result<Self> {
        let names = vec!["localhost".to_owned()];
        let made = rcgen::generate_simple_self_signed(names).map_err(io::Error::other)?;
        std::fs::create_dir_all(folder)?;
        let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
        std::fs::write(&cert, made.cert.pem())?;
        std::fs::write(&key, made.signing_key.serialize_pem())?;
        Ok(Self { cert, key })
    }
}

impl Peer {
    /// A server that runs already.
    pub(crate) fn running(url: &str, pid: Option<u32>) -> io::Result<Self> {
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
        let (host, tls) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
            (Some(host), _) => (host, false),
            (None, Some(host)) => (host, true),
            (None, None) => {
                return Err(invalid(format!("`{url}` is not http://HOST:PORT or https://HOST:PORT")));
            }
        };
        let host = host.trim_end_matches('/');
        let port = if tls { 443 } else { 80 };
        let host = if host.contains(':') { host.to_owned() } else { format!("{host}:{port}") };
        let addr = host.to_socket_addrs()?.next();
        let addr = addr.ok_or_else(|| invalid(format!("`{host}` has no address")))?;
        let probe = Probe::new(pid, None)?;
        Ok(Self { addr, tls, probe, start: Duration::ZERO, http2: None, secure: None, child: None })
    }

    /// Starts `throng up --only ddc` with its data in `data`.
    pub(crate) fn throng(program: &Path, data: &Path, durability: &str) -> Result<Self, StartError> {
        Self::throng_with(program, data, durability, "")
    }

    /// The same with further settings of `[ddc]`, a line each.
    pub(crate) fn throng_with(
        program: &Path,
        data: &Path,
        durability: &str,
        settings: &str,
    ) -> Result<Self, StartError> {
        let name = program.display().to_string();
        let failed = |source| StartError::Io { program: name.clone(), source };
        let addr = free_address().map_err(failed)?;
        std::fs::create_dir_all(data).map_err(failed)?;
        let (config, log) = (data.join("throng.toml"), data.join("log.txt"));
        let text = format!("[ddc]\ndurability = \"{durability}\"\n{settings}[log]\nlevel = \"warn\"\n");
        std::fs::write(&config, text).map_err(failed)?;
        let log_file = std::fs::File::create(&log).map_err(failed)?;
        let mut command = Command::new(program);
        command.args(["up", "--only", "ddc", "--http", &addr.to_string()]);
        command.arg("--config").arg(&config).arg("--data").arg(data);
        command.stdin(Stdio::null()).stdout(log_file.try_clone().map_err(failed)?).stderr(log_file);
        Self::start(command, addr, settings.contains("tls_cert"), &name, &log)
    }

    /// Starts nginx to serve files below `folder`, and to take them by PUT, in one process.
    pub(crate) fn nginx(program: &str, folder: &Path, certificate: &Certificate) -> Result<Self, StartError> {
        let failed = |source| StartError::Io { program: program.to_owned(), source };
        let addr = free_address().map_err(failed)?;
        let (http2, secure) = (free_address().map_err(failed)?, free_address().map_err(failed)?);
        let at = |name: &str| folder.join(name).display().to_string();
        for name in ["files", "uploads"] {
            std::fs::create_dir_all(folder.join(name)).map_err(failed)?;
        }
        let unused: String = ["proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|module| format!("{module}_temp_path {};\n", at(module)))
            .collect();
        let text = format!(
            "daemon off; master_process off; pid {pid}; error_log {log};\n\
             events {{ worker_connections 2048; }}\n\
             http {{\n\
             access_log off; sendfile on; tcp_nodelay on; keepalive_timeout 600; keepalive_requests 1000000000;\n\
             client_max_body_size 0; client_body_temp_path {uploads};\n{unused}\
             server {{ listen {addr}; listen {http2} http2; listen {secure} ssl http2; root {files};\n\
             ssl_certificate {cert}; ssl_certificate_key {key};\n\
             location /health {{ return 200 'Healthy'; }}\n\
             location / {{ dav_methods PUT; create_full_put_path on; }} }} }}\n",
            pid = at("pid"),
            log = at("log"),
            uploads = at("uploads"),
            files = at("files"),
            cert = certificate.cert.display(),
            key = certificate.key.display(),
        );
        let (config, log) = (folder.join("nginx.conf"), folder.join("log"));
        std::fs::write(&config, text).map_err(failed)?;
        let mut command = Command::new(program);
        command.arg("-e").arg(&log).arg("-p").arg(folder).arg("-c").arg(&config);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let peer = Self::start(command, addr, false, program, &log)?;
        Ok(Self { http2: Some(http2), secure: Some(secure), ..peer })
    }

    /// Starts an S3 server of files below `folder` that requires no signatures. The first
    /// part of a path is a bucket.
    pub(crate) fn s3(program: &str, folder: &Path) -> Result<Self, StartError> {
        let failed = |source| StartError::Io { program: program.to_owned(), source };
        let addr = free_address().map_err(failed)?;
        let root = folder.join("root");
        // The bucket of what lies under `/api`, and one that is asked whether it is ready.
        for bucket in ["api", "health"] {
            std::fs::create_dir_all(root.join(bucket)).map_err(failed)?;
        }
        std::fs::write(root.join("health/ready"), "Healthy").map_err(failed)?;
        let log = folder.join("log");
        let log_file = std::fs::File::create(&log).map_err(failed)?;
        let mut command = Command::new(program);
        command.args(["--host", &addr.ip().to_string(), "--port", &addr.port().to_string()]).arg(&root);
        command.env("RUST_LOG", "off").stdin(Stdio::null());
        command.stdout(log_file.try_clone().map_err(failed)?).stderr(log_file);
        Self::start(command, addr, false, program, &log)
    }

    fn start(
        mut command: Command,
        addr: SocketAddr,
        tls: bool,
        name: &str,
        log: &Path,
    ) -> Result<Self, StartError> {
        let failed = |source| StartError::Io { program: name.to_owned(), source };
        let started = Instant::now();
        let mut own = Owned::spawn(&mut command).map_err(failed)?;
        let probe = Probe::new(Some(own.id()), None).map_err(failed)?;
        loop {
            if is_ready(addr, tls) {
                own.watch(name);
                let start = started.elapsed();
                return Ok(Self { addr, tls, probe, start, http2: None, secure: None, child: Some(own) });
            }
            let ended = own.try_wait().map_err(failed)?;
            if ended.is_some() || started.elapsed() > PATIENCE {
                let what = ended.map_or_else(
                    || format!("was not ready within {PATIENCE:?}"),
                    |status| format!("ended with {status}"),
                );
                let program = name.to_owned();
                return Err(StartError::NotReady { program, what, log: child::tail(log) });
            }
            std::thread::sleep(Duration::from_micros(500));
        }
    }

    /// The same server as it is reached over HTTP/2 without TLS.
    pub(crate) fn over_http2(&self) -> Self {
        self.at(self.http2.unwrap_or(self.addr), false)
    }

    /// The same server as it is reached over TLS, if it is.
    pub(crate) fn over_tls(&self) -> Option<Self> {
        Some(self.at(self.secure?, true))
    }

    fn at(&self, addr: SocketAddr, tls: bool) -> Self {
        let probe = self.probe.clone();
        Self { addr, tls, probe, start: self.start, http2: None, secure: None, child: None }
    }

    /// Files that it has open whose paths contain `part`.
    pub(crate) fn open_files(&self, part: &str) -> usize {
        let Some(child) = &self.child else { return 0 };
        let files = std::fs::read_dir(format!("/proc/{}/fd", child.id()));
        let paths = files.into_iter().flatten().flatten().filter_map(|file| file.path().read_link().ok());
        paths.filter(|path| path.to_string_lossy().contains(part)).count()
    }

    /// Ends a server that was started here as a power cut of the process would.
    pub(crate) fn kill(mut self) {
        if let Some(own) = &mut self.child {
            own.kill();
        }
    }
}

/// Reports whether a server answers.
fn is_ready(addr: SocketAddr, tls: bool) -> bool {
    if !tls {
        return probe::fetch(addr, "/health/ready").is_ok();
    }
    let pace = Pace::Closed { connections: 1 };
    let plan = Plan { addr, tls, http2: false, pace, window: Duration::from_secs(1), count: 1 };
    let asked = Probe::new(None, None).and_then(|probe| {
        engine::run(&plan, &probe, &mut |_, out| {
            out.set_head(b"GET /health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n");
        })
    });
    asked.is_ok_and(|seen| seen.succeeded == 1)
}

/// A program of this machine, if it has it.
pub(crate) fn find(name: &str) -> Option<String> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&paths).chain([PathBuf::from("/usr/sbin")]);
    let found = folders.map(|folder| folder.join(name)).find(|path| path.is_file())?;
    Some(found.display().to_string())
}
