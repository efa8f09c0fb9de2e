//! Certificates of the listeners: from files, or a self-signed one that is made once and kept in
//! the data folder.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use throng_net::{TlsAcceptor, development_certificate, tls_server_config};

use crate::config::Listener;

/// A kept development certificate is replaced after this time, well before the 390 days it is valid
/// for.
const DEVELOPMENT_AGE_MAX: Duration = Duration::from_secs(300 * 86_400);
const CERT_FILE: &str = "development-cert.pem";
const KEY_FILE: &str = "development-key.pem";

/// The TLS side of a section's encrypted listeners.
///
/// # Errors
/// A phrase that names the file and what is wrong with it.
pub(crate) fn acceptor(listener: &Listener, data: &Path) -> Result<TlsAcceptor, String> {
    server_config(listener, data).map(TlsAcceptor::new)
}

/// TLS from files alone; `None` without a certificate.
///
/// # Errors
/// A phrase that names the file and what is wrong with it.
pub(crate) fn acceptor_from(cert: &str, key: &str) -> Result<Option<TlsAcceptor>, String> {
    if cert.is_empty() {
        return Ok(None);
    }
    from_files(cert, key).map(|config| Some(TlsAcceptor::new(config)))
}

/// TLS for an HTTP listener on the side runtime, which offers HTTP/2; `None` without a certificate.
///
/// # Errors
/// A phrase that names the file and what is wrong with it.
pub(crate) fn http_acceptor(cert: &str, key: &str) -> Result<Option<tokio_rustls::TlsAcceptor>, String> {
    if cert.is_empty() {
        return Ok(None);
    }
    let mut config = rustls::ServerConfig::clone(&*from_files(cert, key)?);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Some(std::sync::Arc::new(config).into()))
}

/// Reads the certificate again and uses it for connections to come.
///
/// # Errors
/// As [`acceptor`]; the old certificate then stays.
pub(crate) fn reload(acceptor: &TlsAcceptor, listener: &Listener, data: &Path) -> Result<(), String> {
    acceptor.reload(server_config(listener, data)?);
    Ok(())
}

fn server_config(listener: &Listener, data: &Path) -> Result<std::sync::Arc<rustls::ServerConfig>, String> {
    if listener.tls_cert.is_empty() {
        let (cert, key) = development(data).map_err(|error| format!("{}: {error}", data.display()))?;
        return tls_server_config(&cert, &key).map_err(|error| error.to_string());
    }
    from_files(&listener.tls_cert, &listener.tls_key)
}

fn from_files(cert: &str, key: &str) -> Result<std::sync::Arc<rustls::ServerConfig>, String> {
    let read = |path: &str| fs::read(path).map_err(|error| format!("cannot read `{path}`: {error}"));
    tls_server_config(&read(cert)?, &read(key)?).map_err(|error| format!("`{cert}`, `{key}`: {error}"))
}

fn development(data: &Path) -> std::io::Result<(Vec<u8>, Vec<u8>)> {
    let (cert_path, key_path) = (data.join(CERT_FILE), data.join(KEY_FILE));
    let fresh = fs::metadata(&cert_path)
        .and_then(|metadata| metadata.modified())
        .is_ok_and(|made| made.elapsed().is_ok_and(|age| age < DEVELOPMENT_AGE_MAX));
    if fresh && let (Ok(cert), Ok(key)) = (fs::read(&cert_path), fs::read(&key_path)) {
        return Ok((cert, key));
    }
    let names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
    let unix_now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let made = development_certificate(&names, unix_now).map_err(std::io::Error::other)?;
    fs::create_dir_all(data)?;
    write_private(&key_path, made.key_pem.as_bytes())?;
    fs::write(&cert_path, &made.cert_pem)?;
    tracing::info!(file = %cert_path.display(), "created a self-signed certificate; clients must trust it");
    Ok((made.cert_pem.into_bytes(), made.key_pem.into_bytes()))
}

/// Writes a file that only its owner can read.
fn write_private(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    // An old file would keep its old permissions.
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn the_development_certificate_is_made_once_and_its_key_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let first = development(&data).unwrap();
        assert_eq!(development(&data).unwrap(), first);
        let mode = fs::metadata(data.join(KEY_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
