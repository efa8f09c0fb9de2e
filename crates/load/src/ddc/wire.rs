//! A connection of the bench, with TLS or without.

use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme};

use crate::socket::{Stream, Taken};

/// Bytes that are decrypted and dropped at a time.
const DISCARD_BYTES: usize = 64 << 10;

/// A connection.
pub(crate) enum Wire {
    Plain(Stream),
    Tls { stream: Stream, session: Box<ClientConnection> },
}

/// A configuration that accepts any certificate: a bench sends only data of its own making.
pub(crate) fn tls_config(http2: bool) -> io::Result<Arc<ClientConfig>> {
    let provider = Arc::new(ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        .with_no_client_auth();
    if http2 {
        config.alpn_protocols = vec![b"h2".to_vec()];
    }
    Ok(Arc::new(config))
}

impl Wire {
    /// Starts connecting. The first request of a connection carries its handshake.
    pub(crate) fn connect(to: SocketAddr, tls: Option<&Arc<ClientConfig>>) -> io::Result<Wire> {
        let stream = Stream::connect(to, None, None)?;
        let Some(config) = tls else { return Ok(Wire::Plain(stream)) };
        let session = ClientConnection::new(Arc::clone(config), ServerName::from(to.ip()));
        Ok(Wire::Tls { stream, session: Box::new(session.map_err(io::Error::other)?) })
    }

    pub(crate) fn raw(&self) -> RawFd {
        match self {
            Wire::Plain(stream) | Wire::Tls { stream, .. } => stream.raw(),
        }
    }

    /// Writes a part of `bytes`; 0 when there is no room.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Wire::Plain(stream) => match stream.write(bytes) {
                // Still connecting: room comes with the connection.
                Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(0),
                other => other,
            },
            Wire::Tls { session, .. } => {
                let taken = session.writer().write(bytes)?;
                self.flush()?;
                Ok(taken)
            }
        }
    }

    /// Sends what was encrypted; true if some of that found no room.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        let Wire::Tls { stream, session } = self else { return Ok(false) };
        while session.wants_write() {
            match session.write_tls(&mut Raw(stream)) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Reports whether bytes wait only for what the server has to say first.
    pub(crate) fn is_shaking_hands(&self) -> bool {
        matches!(self, Wire::Tls { session, .. } if session.is_handshaking())
    }

    pub(crate) fn read(&mut self, buf: &mut [u8]) -> io::Result<Taken> {
        let (stream, session) = match self {
            Wire::Plain(stream) => return stream.read(buf),
            Wire::Tls { stream, session } => (stream, session),
        };
        loop {
            match session.reader().read(buf) {
                Ok(0) => return Ok(Taken::End),
                Ok(count) => return Ok(Taken::Bytes(count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            match session.read_tls(&mut Raw(stream)) {
                Ok(0) => return Ok(Taken::End),
                Ok(_) => {
                    session.process_new_packets().map_err(io::Error::other)?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Taken::Empty),
                Err(error) => return Err(error),
            }
        }
    }

    /// Drops up to `bytes` received bytes.
    pub(crate) fn discard(&mut self, bytes: usize) -> io::Result<Taken> {
        match self {
            Wire::Plain(stream) => stream.discard(bytes),
            Wire::Tls { .. } => {
                let mut buf = [0; DISCARD_BYTES];
                self.read(&mut buf[..bytes.min(DISCARD_BYTES)])
            }
        }
    }
}

/// The socket as a session sees it.
struct Raw<'s>(&'s Stream);

impl io::Read for Raw<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self.0.read(buf)? {
            Taken::Bytes(count) => Ok(count),
            Taken::Empty => Err(io::ErrorKind::WouldBlock.into()),
            Taken::End => Ok(0),
        }
    }
}

impl io::Write for Raw<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.write(bytes) {
            Ok(0) => Err(io::ErrorKind::WouldBlock.into()),
            Err(error) if error.kind() == io::ErrorKind::NotConnected => {
                Err(io::ErrorKind::WouldBlock.into())
            }
            other => other,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Takes any certificate whose key signs the handshake.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

/// Verifies a handshake's signature with the function of the same name.
macro_rules! handshake_signature {
    ($name:ident) => {
        fn $name(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            $name(message, cert, signed, &self.0.signature_verification_algorithms)
        }
    };
}

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    handshake_signature!(verify_tls12_signature);
    handshake_signature!(verify_tls13_signature);

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
