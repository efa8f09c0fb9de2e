//! TLS of simulated players.

use std::io::{self, Read as _, Write as _};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use thiserror::Error;
use throng_net::TlsConfigError;

/// Name in the certificates of the suite's own servers.
pub(crate) const SERVER_NAME: &str = "localhost";

/// The certificate that players accept, and no other.
#[derive(Debug, Clone)]
pub struct Trust(Arc<ClientConfig>);

impl Trust {
    /// Trust in a server's own certificate, given as PEM text.
    ///
    /// # Errors
    /// The text holds no certificate.
    pub fn new(certificate_pem: &str) -> Result<Self, TlsConfigError> {
        throng_net::tls_client_config(certificate_pem.as_bytes()).map(Self)
    }
}

/// Why a session ended.
#[derive(Debug, Error)]
pub(crate) enum TlsError {
    #[error("TLS: {0}")]
    Session(#[from] rustls::Error),
    #[error("TLS: {0}")]
    Io(#[from] io::Error),
}

/// The player's end of a TLS session.
#[derive(Debug)]
pub(crate) struct Tls {
    session: ClientConnection,
    /// Allocation for records to be sent.
    records: Vec<u8>,
    /// Allocation for decrypted bytes.
    plain: Vec<u8>,
}

impl Tls {
    pub(crate) fn new(trust: &Trust) -> Result<Self, TlsError> {
        let name = ServerName::try_from(SERVER_NAME).map_err(io::Error::other)?;
        let mut session = ClientConnection::new(Arc::clone(&trust.0), name)?;
        // The link bounds what waits.
        session.set_buffer_limit(None);
        Ok(Self { session, records: Vec::new(), plain: Vec::new() })
    }

    /// The handshake is over, and the certificate verified.
    pub(crate) fn is_open(&self) -> bool {
        !self.session.is_handshaking()
    }

    /// Encrypts bytes; before the end of the handshake they wait for it.
    pub(crate) fn seal(&mut self, plain: &[u8]) -> Result<(), TlsError> {
        Ok(self.session.writer().write_all(plain)?)
    }

    /// Records that have to be sent. [`Self::reuse`] takes the buffer back.
    pub(crate) fn take_records(&mut self) -> Result<Vec<u8>, TlsError> {
        let mut records = std::mem::take(&mut self.records);
        while self.session.wants_write() {
            self.session.write_tls(&mut records)?;
        }
        Ok(records)
    }

    pub(crate) fn reuse(&mut self, mut records: Vec<u8>) {
        records.clear();
        self.records = records;
    }

    /// Decrypts bytes that have arrived. [`Self::reuse_plain`] takes the buffer back.
    pub(crate) fn open(&mut self, mut bytes: &[u8]) -> Result<Vec<u8>, TlsError> {
        let mut plain = std::mem::take(&mut self.plain);
        while !bytes.is_empty() {
            self.session.read_tls(&mut bytes)?;
            self.session.process_new_packets()?;
            match self.session.reader().read_to_end(&mut plain) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error.into()),
                _ => {}
            }
        }
        Ok(plain)
    }

    pub(crate) fn reuse_plain(&mut self, mut plain: Vec<u8>) {
        plain.clear();
        self.plain = plain;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::ServerConnection;
    use throng_net::{DevelopmentCertificate, development_certificate, tls_server_config};

    fn certificate(name: &str) -> DevelopmentCertificate {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock");
        development_certificate(&[name.to_owned()], now).expect("a certificate")
    }

    /// Carries records both ways until neither side has any; what the player received, and the
    /// error that ended its session.
    fn talk(player: &mut Tls, server: &mut ServerConnection) -> (Vec<u8>, Option<TlsError>) {
        let mut received = Vec::new();
        loop {
            let sent = player.take_records().expect("memory");
            let (mut rest, none) = (&sent[..], sent.is_empty());
            while !rest.is_empty() {
                server.read_tls(&mut rest).expect("memory");
                if server.process_new_packets().is_err() {
                    return (received, None);
                }
            }
            player.reuse(sent);
            let mut answer = Vec::new();
            while server.wants_write() {
                server.write_tls(&mut answer).expect("memory");
            }
            if none && answer.is_empty() {
                return (received, None);
            }
            match player.open(&answer) {
                Ok(plain) => {
                    received.extend_from_slice(&plain);
                    player.reuse_plain(plain);
                }
                Err(error) => return (received, Some(error)),
            }
        }
    }

    fn sides(trusted: &str, served: &DevelopmentCertificate) -> (Tls, ServerConnection) {
        let config = tls_server_config(served.cert_pem.as_bytes(), served.key_pem.as_bytes()).expect("fits");
        let trust = Trust::new(trusted).expect("a certificate");
        (Tls::new(&trust).expect("a session"), ServerConnection::new(config).expect("a session"))
    }

    #[test]
    fn bytes_pass_both_ways_once_the_certificate_is_verified() {
        let own = certificate(SERVER_NAME);
        let (mut player, mut server) = sides(&own.cert_pem, &own);
        player.seal(b"before the handshake").expect("it waits");
        assert!(!player.is_open());
        assert!(talk(&mut player, &mut server).1.is_none() && player.is_open());
        let mut heard = [0; 20];
        server.reader().read_exact(&mut heard).expect("it arrived");
        assert_eq!(&heard, b"before the handshake");
        // More than one record.
        server.writer().write_all(&[7; 50_000]).expect("memory");
        assert_eq!(talk(&mut player, &mut server).0, [7; 50_000]);
    }

    #[test]
    fn another_certificate_or_name_is_refused() {
        let (own, other) = (certificate(SERVER_NAME), certificate("example.net"));
        for (trusted, served) in [(&own, &other), (&other, &own), (&other, &other)] {
            let (mut player, mut server) = sides(&trusted.cert_pem, served);
            let (_, error) = talk(&mut player, &mut server);
            assert!(matches!(error, Some(TlsError::Session(_))), "{error:?}");
            assert!(!player.is_open());
        }
    }
}
