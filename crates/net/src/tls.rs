//! TLS set-up: certificates from PEM, a generated one for development, reload.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::pki_types::ServerName;

/// The TLS side of a listener. Clones share one configuration, which [`TlsAcceptor::reload`] replaces for the
/// connections that come after.
#[derive(Clone)]
pub struct TlsAcceptor {
    config: Arc<RwLock<Arc<rustls::ServerConfig>>>,
}

impl TlsAcceptor {
    /// Wraps a configuration made elsewhere.
    pub fn new(config: Arc<rustls::ServerConfig>) -> Self {
        Self { config: Arc::new(RwLock::new(config)) }
    }

    /// Uses `config` for all connections accepted from now on; open ones keep theirs.
    pub fn reload(&self, config: Arc<rustls::ServerConfig>) {
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
    }

    #[allow(dead_code)]
    pub(crate) fn current(&self) -> Arc<rustls::ServerConfig> {
        self.config.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl fmt::Debug for TlsAcceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsAcceptor")
    }
}

/// The TLS side of an outgoing connection.
#[derive(Clone, Debug)]
pub struct TlsConnector {
    /// What to trust and to offer.
    pub config: Arc<rustls::ClientConfig>,
    /// The name the certificate must be valid for.
    pub server_name: ServerName<'static>,
}
