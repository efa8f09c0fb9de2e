//! Connect tokens, which a backend issues to clients for admission.

use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use chacha20poly1305::XChaCha20Poly1305;
use chacha20poly1305::aead::{AeadInPlace, KeyInit};

use super::seal::{KEY, TAG};

/// The secret that backend and gates share. Who has it can let anybody in.
#[derive(Clone)]
pub struct TokenKey([u8; KEY]);

/// Claims of a token about its bearer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenClaims {
    /// Number of the game or its version: only gates with the same one accept the token.
    pub protocol: u64,
    /// Identifier of the user.
    pub user_id: u64,
    /// Anything else the server shall know. It is encrypted: the client cannot read it.
    pub user_data: [u8; USER_DATA_BYTES],
    /// From this second on the token lets nobody in any more; who is in stays. Half a minute is
    /// enough for a client that is about to connect.
    pub expires_unix_s: u64,
    /// Servers for which the token is valid, one to four addresses.
    pub servers: Vec<SocketAddr>,
}

impl Default for TokenClaims {
    /// Nobody, never, nowhere.
    fn default() -> Self {
        Self {
            protocol: 0,
            user_id: 0,
            user_data: [0; USER_DATA_BYTES],
            expires_unix_s: 0,
            servers: Vec::new(),
        }
    }
}

/// Credentials with which a client is admitted. To be kept from others like a password: who has it
/// before the client has used it can come in its place.
#[derive(Clone, PartialEq, Eq)]
pub struct ConnectToken {
    pub(super) protocol: u64,
    pub(super) expires_unix_s: u64,
    pub(super) nonce: [u8; NONCE],
    pub(super) sealed: [u8; SEALED],
    pub(super) client_key: [u8; KEY],
    pub(super) server_key: [u8; KEY],
    servers: Vec<SocketAddr>,
}

/// A token cannot be made or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// No server or too many.
    #[error("a token names one to four servers, not {0}")]
    Servers(usize),
    /// The bytes are not a token of this version.
    #[error("the bytes are not a connect token")]
    Malformed,
}

/// The part that only backend and gate can read.
pub(super) struct Private {
    pub(super) user_id: u64,
    pub(super) client_key: [u8; KEY],
    pub(super) server_key: [u8; KEY],
    pub(super) servers: Vec<SocketAddr>,
    pub(super) user_data: [u8; USER_DATA_BYTES],
}

impl TokenKey {
    /// 32 secret bytes, drawn by the operating system once and given to backend and gates.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Issues a token. `entropy`: bytes drawn by the operating system for this token alone; two
    /// tokens with the same ones give each other away.
    ///
    /// # Errors
    /// When the claims name no server, or more than four.
    pub fn issue(&self, claims: &TokenClaims, entropy: [u8; 88]) -> Result<ConnectToken, TokenError> {
        if !(1..=SERVERS_MAX).contains(&claims.servers.len()) {
            return Err(TokenError::Servers(claims.servers.len()));
        }
        let mut reader = Reader(&entropy);
        let read = "88 bytes are enough";
        let nonce: [u8; NONCE] = reader.array().expect(read);
        let client_key: [u8; KEY] = reader.array().expect(read);
        let server_key: [u8; KEY] = reader.array().expect(read);
        let mut text = Vec::with_capacity(SEALED);
        text.extend_from_slice(&claims.user_id.to_be_bytes());
        text.extend_from_slice(&client_key);
        text.extend_from_slice(&server_key);
        text.extend_from_slice(&claims.user_data);
        write_servers(&mut text, &claims.servers);
        text.resize(SEALED - TAG, 0);
        let aad = associated(claims.protocol, claims.expires_unix_s);
        let tag =
            XChaCha20Poly1305::new(&self.0.into()).encrypt_in_place_detached(&nonce.into(), &aad, &mut text);
        text.extend_from_slice(&tag.expect("a token is not too long"));
        Ok(ConnectToken {
            protocol: claims.protocol,
            expires_unix_s: claims.expires_unix_s,
            nonce,
            sealed: text.try_into().expect("the length is fixed"),
            client_key,
            server_key,
            servers: claims.servers.clone(),
        })
    }

    /// Reads the private part of a genuine token.
    pub(super) fn open(
        &self,
        protocol: u64,
        expires_unix_s: u64,
        nonce: &[u8; NONCE],
        sealed: &[u8; SEALED],
    ) -> Option<Private> {
        let mut text = *sealed;
        let (body, tag) = text.split_at_mut(SEALED - TAG);
        let tag: [u8; TAG] = (*tag).try_into().ok()?;
        let aad = associated(protocol, expires_unix_s);
        let cipher = XChaCha20Poly1305::new(&self.0.into());
        cipher.decrypt_in_place_detached(nonce.into(), &aad, body, &tag.into()).ok()?;
        let mut reader = Reader(body);
        let private = Private {
            user_id: u64::from_be_bytes(reader.array()?),
            client_key: reader.array()?,
            server_key: reader.array()?,
            user_data: reader.array()?,
            servers: reader.servers()?,
        };
        Some(private)
    }
}

impl ConnectToken {
    /// Servers to try, in this order.
    #[must_use]
    pub fn servers(&self) -> &[SocketAddr] {
        &self.servers
    }

    /// The second from which on the token is worth nothing.
    #[must_use]
    pub fn expires_unix_s(&self) -> u64 {
        self.expires_unix_s
    }

    /// The token as bytes, for the way to the client: about 340 of them.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.push(VERSION);
        out.extend_from_slice(&self.protocol.to_be_bytes());
        out.extend_from_slice(&self.expires_unix_s.to_be_bytes());
        out.extend_from_slice(&self.nonce);
        out.extend_from_slice(&self.sealed);
        out.extend_from_slice(&self.client_key);
        out.extend_from_slice(&self.server_key);
        write_servers(&mut out, &self.servers);
        out
    }

    /// Reads what [`encode`](Self::encode) made.
    ///
    /// # Errors
    /// When the bytes are not a token. Whether it is genuine only the gate can tell.
    pub fn decode(bytes: &[u8]) -> Result<Self, TokenError> {
        Self::read(bytes).ok_or(TokenError::Malformed)
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        if reader.array()? != [VERSION] {
            return None;
        }
        let token = Self {
            protocol: u64::from_be_bytes(reader.array()?),
            expires_unix_s: u64::from_be_bytes(reader.array()?),
            nonce: reader.array()?,
            sealed: reader.array()?,
            client_key: reader.array()?,
            server_key: reader.array()?,
            servers: reader.servers()?,
        };
        (reader.0.is_empty() && !token.servers.is_empty()).then_some(token)
    }
}

impl fmt::Debug for TokenKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("TokenKey(..)")
    }
}

impl fmt::Debug for ConnectToken {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ConnectToken")
            .field("protocol", &self.protocol)
            .field("expires_unix_s", &self.expires_unix_s)
            .field("servers", &self.servers)
            .finish_non_exhaustive()
    }
}

/// Bytes from the front of a slice.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    fn servers(&mut self) -> Option<Vec<SocketAddr>> {
        let [count] = self.array()?;
        if usize::from(count) > SERVERS_MAX {
            return None;
        }
        (0..count).map(|_| self.address()).collect()
    }

    pub(super) fn address(&mut self) -> Option<SocketAddr> {
        let ip = Ipv6Addr::from(self.array::<16>()?);
        Some(SocketAddr::new(IpAddr::V6(ip).to_canonical(), u16::from_be_bytes(self.array()?)))
    }
}

fn write_servers(out: &mut Vec<u8>, servers: &[SocketAddr]) {
    out.push(servers.len() as u8);
    for &server in servers {
        write_address(out, server);
    }
}

/// Eighteen bytes; an IPv4 address as the IPv6 address that stands for it.
pub(super) fn write_address(out: &mut Vec<u8>, address: SocketAddr) {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    out.extend_from_slice(&ip.octets());
    out.extend_from_slice(&address.port().to_be_bytes());
}

/// Additional data under a token's seal.
fn associated(protocol: u64, expires_unix_s: u64) -> [u8; 33] {
    let mut out = [0; 33];
    out[..16].copy_from_slice(b"throng enet key ");
    out[16] = VERSION;
    out[17..25].copy_from_slice(&protocol.to_be_bytes());
    out[25..].copy_from_slice(&expires_unix_s.to_be_bytes());
    out
}

/// Bytes of a token that are the application's own.
pub const USER_DATA_BYTES: usize = 64;
pub(super) const NONCE: usize = 24;
pub(super) const SEALED: usize = 8 + 2 * KEY + USER_DATA_BYTES + 1 + SERVERS_MAX * 18 + TAG;
const SERVERS_MAX: usize = 4;
const VERSION: u8 = 1;
