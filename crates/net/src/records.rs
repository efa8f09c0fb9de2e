//! TLS 1.3 records with AES-128-GCM, sealed into one buffer of the thread.
//!
//! rustls seals each record into a vector of its own. A fan-out writes one frame to many
//! connections, so those vectors pass through the whole cache of the processor. During [`seal`] the
//! records are written one behind the other into a buffer that the next connection uses again, and
//! leave with one system call. Everything else is rustls's: keys and their renewal, sequence
//! numbers, the order of records and their content. It receives an empty record in the place of
//! each sealed one.
//!
//! ```text
//!   slices ─▶ rustls ─▶ Encrypter ─▶ SEALED.bytes    header │ ciphertext │ tag │ header │ ...
//!                ▲          │
//!                └──────────┘ empty records, 5 bytes each, which `seal` throws away
//! ```

use std::cell::RefCell;
use std::io::{self, IoSlice, Write as _};
use std::ops::Deref;
use std::sync::LazyLock;

use ring::aead::{self, LessSafeKey, UnboundKey};
use ring::error::Unspecified;
use rustls::crypto::cipher::{
    AeadKey, Iv, MessageDecrypter, MessageEncrypter, Nonce, OutboundChunks, OutboundOpaqueMessage,
    OutboundPlainMessage, PrefixedPayload, Tls13AeadAlgorithm, UnsupportedOperationError, make_tls13_aad,
};
use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::crypto::{CipherSuiteCommon, CryptoProvider};
use rustls::{
    Connection, ConnectionTrafficSecrets, ContentType, Error, ProtocolVersion, SupportedCipherSuite,
    Tls13CipherSuite,
};

/// Length of a record's header, and so of a record without content.
const HEADER_BYTES: usize = 5;
/// Bytes that are copied at once. glibc before 2.40 copies 4 KiB and more by `rep movsb`, which is 20
/// to 40 times slower on AMD's Zen 3 if the addresses are not aligned in the same way.
const PIECE_BYTES: usize = 2_048;

thread_local! {
    static SEALED: RefCell<Sealed> = RefCell::default();
}

/// Output of one [`seal`].
#[derive(Default)]
struct Sealed {
    /// False outside [`seal`]: records then go through rustls.
    active: bool,
    /// Records in `bytes`.
    records: usize,
    bytes: Vec<u8>,
    /// Output of rustls itself.
    queued: Vec<u8>,
}

/// The cryptography of ring, with the [`Encrypter`] of this module.
pub(crate) fn provider() -> CryptoProvider {
    let mut provider = rustls::crypto::ring::default_provider();
    for suite in &mut provider.cipher_suites {
        if *suite == TLS13_AES_128_GCM_SHA256 {
            *suite = SupportedCipherSuite::Tls13(&SUITE);
        }
    }
    provider
}

/// Records to be sent, with what rustls had to say before them. When dropped, their buffer returns
/// to the thread.
pub(crate) struct Records(Sealed);

impl Deref for Records {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        if self.0.queued.is_empty() { &self.0.bytes } else { &self.0.queued }
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        let Sealed { mut bytes, mut queued, .. } = std::mem::take(&mut self.0);
        bytes.clear();
        queued.clear();
        SEALED.set(Sealed { active: false, records: 0, bytes, queued });
    }
}

/// Encrypts `slices`, as far as the buffer limit of `tls` allows. Returns how many of their bytes
/// the records hold.
///
/// # Errors
/// The session has failed and takes nothing any more.
pub(crate) fn seal(tls: &mut Connection, slices: &[IoSlice<'_>]) -> io::Result<(usize, Records)> {
    debug_assert!(!tls.wants_write(), "what rustls holds comes before new records");
    SEALED.with_borrow_mut(|sealed| sealed.active = true);
    let taken = tls.writer().write_vectored(slices);
    let mut records = Records(SEALED.take());
    let Sealed { records: count, bytes, queued, .. } = &mut records.0;
    while tls.wants_write() {
        // Cannot fail: a vector takes everything.
        let _ = tls.write_tls(queued);
    }
    // The empty records are cut off. The rest is the answer to a renewal of the peer's keys, which
    // comes first, or everything if the session uses another cipher suite.
    queued.truncate(queued.len().saturating_sub(*count * HEADER_BYTES));
    if !queued.is_empty() {
        queued.extend_from_slice(bytes);
    }
    Ok((taken?, records))
}

static SUITE: LazyLock<Tls13CipherSuite> = LazyLock::new(|| {
    let SupportedCipherSuite::Tls13(of_ring) = TLS13_AES_128_GCM_SHA256 else {
        unreachable!("the suite is one of TLS 1.3")
    };
    let CipherSuiteCommon { suite, hash_provider, confidentiality_limit } = of_ring.common;
    Tls13CipherSuite {
        common: CipherSuiteCommon { suite, hash_provider, confidentiality_limit },
        hkdf_provider: of_ring.hkdf_provider,
        aead_alg: &Algorithm,
        quic: None,
    }
});

/// AES-128-GCM whose records [`seal`] collects.
struct Algorithm;

impl Algorithm {
    fn of_ring() -> &'static dyn Tls13AeadAlgorithm {
        match TLS13_AES_128_GCM_SHA256 {
            SupportedCipherSuite::Tls13(suite) => suite.aead_alg,
            SupportedCipherSuite::Tls12(_) => unreachable!("the suite is one of TLS 1.3"),
        }
    }
}

impl Tls13AeadAlgorithm for Algorithm {
    fn encrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageEncrypter> {
        let key = UnboundKey::new(&aead::AES_128_GCM, key.as_ref()).expect("rustls asks for its length");
        Box::new(Encrypter { key: LessSafeKey::new(key), iv })
    }

    fn decrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageDecrypter> {
        Self::of_ring().decrypter(key, iv)
    }

    fn key_len(&self) -> usize {
        aead::AES_128_GCM.key_len()
    }

    fn extract_keys(
        &self,
        key: AeadKey,
        iv: Iv,
    ) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
        Ok(ConnectionTrafficSecrets::Aes128Gcm { key, iv })
    }
}

struct Encrypter {
    key: LessSafeKey,
    iv: Iv,
}

impl MessageEncrypter for Encrypter {
    fn encrypt(&mut self, msg: OutboundPlainMessage<'_>, seq: u64) -> Result<OutboundOpaqueMessage, Error> {
        let length = self.encrypted_payload_len(msg.payload.len());
        let nonce = aead::Nonce::assume_unique_for_key(Nonce::new(&self.iv, seq).0);
        // RFC 8446 5.2: the additional data are the record's header.
        let header = make_tls13_aad(length);
        let sealed = SEALED.with_borrow_mut(|sealed| {
            if !sealed.active {
                let mut payload = PrefixedPayload::with_capacity(length);
                payload.extend_from_chunks(&msg.payload);
                payload.extend_from_slice(&msg.typ.to_array());
                self.key.seal_in_place_append_tag(nonce, aead::Aad::from(header), &mut payload)?;
                return Ok(payload);
            }
            let Sealed { records, bytes, .. } = sealed;
            bytes.reserve(HEADER_BYTES + length);
            bytes.extend_from_slice(&header);
            let start = bytes.len();
            append(bytes, &msg.payload);
            bytes.extend_from_slice(&msg.typ.to_array());
            let content = &mut bytes[start..];
            let tag = self.key.seal_in_place_separate_tag(nonce, aead::Aad::from(header), content)?;
            bytes.extend_from_slice(tag.as_ref());
            *records += 1;
            Ok(PrefixedPayload::with_capacity(0))
        });
        let payload = sealed.map_err(|_: Unspecified| Error::EncryptError)?;
        Ok(OutboundOpaqueMessage::new(ContentType::ApplicationData, ProtocolVersion::TLSv1_2, payload))
    }

    fn encrypted_payload_len(&self, payload_len: usize) -> usize {
        // The content's type stands behind it.
        payload_len + 1 + aead::AES_128_GCM.tag_len()
    }
}

fn append(bytes: &mut Vec<u8>, payload: &OutboundChunks<'_>) {
    let (chunks, start, end) = match payload {
        OutboundChunks::Single(chunk) => (std::slice::from_ref(chunk), 0, chunk.len()),
        OutboundChunks::Multiple { chunks, start, end } => (*chunks, *start, *end),
    };
    let mut before = 0;
    for chunk in chunks {
        let within = |place: usize| place.saturating_sub(before).min(chunk.len());
        for piece in chunk[within(start)..within(end)].chunks(PIECE_BYTES) {
            bytes.extend_from_slice(piece);
        }
        before += chunk.len();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::sync::Arc;
    use std::time::SystemTime;

    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConnection};

    use super::*;
    use crate::tls::{certificates, development_certificate, tls_server_config};

    /// A client with ring's own cipher suites and a server, after the handshake.
    fn pair(
        suite: SupportedCipherSuite,
        version: &'static rustls::SupportedProtocolVersion,
    ) -> [Connection; 2] {
        // The client compares the certificate's dates with the clock.
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap();
        let one = development_certificate(&["localhost".to_owned()], now).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificates(one.cert_pem.as_bytes()).unwrap().remove(0)).unwrap();
        let provider =
            CryptoProvider { cipher_suites: vec![suite], ..rustls::crypto::ring::default_provider() };
        let client = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        let server = tls_server_config(one.cert_pem.as_bytes(), one.key_pem.as_bytes()).unwrap();
        let mut client = Connection::from(ClientConnection::new(Arc::new(client), name).unwrap());
        let mut server = Connection::from(ServerConnection::new(server).unwrap());
        while client.is_handshaking() || server.is_handshaking() {
            pass(&mut client, &mut server);
            pass(&mut server, &mut client);
        }
        [client, server]
    }

    /// Takes what `from` has to say by itself to `to`.
    fn pass(from: &mut Connection, to: &mut Connection) {
        let mut wire = Vec::new();
        while from.wants_write() {
            from.write_tls(&mut wire).unwrap();
        }
        take(to, &wire);
    }

    /// Has `to` decrypt `wire`; returns the content.
    fn take(to: &mut Connection, mut wire: &[u8]) -> Vec<u8> {
        let mut content = Vec::new();
        while !wire.is_empty() {
            to.read_tls(&mut wire).unwrap();
            to.process_new_packets().unwrap();
            let mut part = [0; 65_536];
            while let Ok(count @ 1..) = to.reader().read(&mut part) {
                content.extend_from_slice(&part[..count]);
            }
        }
        content
    }

    fn write(tls: &mut Connection, slices: &[&[u8]]) -> (usize, Vec<u8>) {
        let slices: Vec<_> = slices.iter().map(|slice| IoSlice::new(slice)).collect();
        let (taken, records) = seal(tls, &slices).unwrap();
        (taken, records.to_vec())
    }

    #[test]
    fn rustls_reads_the_records() {
        use rustls::crypto::ring::cipher_suite as suites;
        use rustls::version::{TLS12, TLS13};
        let bytes: Vec<u8> = (0..60_000_u32).map(|i| (i % 251) as u8).collect();
        for (suite, version, expected) in [
            (suites::TLS13_AES_128_GCM_SHA256, &TLS13, 4),
            (suites::TLS13_AES_256_GCM_SHA384, &TLS13, 0),
            (suites::TLS13_CHACHA20_POLY1305_SHA256, &TLS13, 0),
            (suites::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, &TLS12, 0),
        ] {
            let [mut client, mut server] = pair(suite, version);
            for parts in [&[&bytes[..]][..], &[b"", b"header", &bytes[..16_384], b""], &[b"x"], &[]] {
                let (taken, wire) = write(&mut server, parts);
                assert_eq!(taken, parts.concat().len(), "{suite:?}");
                assert_eq!(take(&mut client, &wire), parts.concat(), "{suite:?}");
                assert!(!server.wants_write(), "an empty record is left: {suite:?}");
            }
            let slices = [IoSlice::new(&bytes)];
            SEALED.with_borrow(|sealed| assert!(!sealed.active && sealed.records == 0));
            let (_, records) = seal(&mut server, &slices).unwrap();
            assert_eq!(records.0.records, expected, "{suite:?}: records of 16 KiB that this module sealed");
            take(&mut client, &records);
            drop(records);
            // The other direction, and what rustls says by itself.
            client.writer().write_all(b"back").unwrap();
            let mut wire = Vec::new();
            client.write_tls(&mut wire).unwrap();
            assert_eq!(take(&mut server, &wire), b"back");
            server.send_close_notify();
            pass(&mut server, &mut client);
            assert!(client.reader().read(&mut [0; 8]).is_ok_and(|count| count == 0), "{suite:?}: closed");
        }
    }

    #[test]
    fn the_answer_to_new_keys_of_the_peer_comes_before_the_records() {
        let [mut client, mut server] = pair(TLS13_AES_128_GCM_SHA256, &rustls::version::TLS13);
        for round in 0..3_u8 {
            client.refresh_traffic_keys().unwrap();
            pass(&mut client, &mut server);
            let (_, first) = write(&mut server, &[&[round; 20_000]]);
            let (_, second) = write(&mut server, &[b"after"]);
            assert_eq!(take(&mut client, &first), [round; 20_000]);
            assert_eq!(take(&mut client, &second), b"after");
        }
        server.refresh_traffic_keys().unwrap();
        pass(&mut server, &mut client);
        let (_, records) = write(&mut server, &[b"under keys of its own choice"]);
        assert_eq!(take(&mut client, &records), b"under keys of its own choice");
    }

    #[test]
    fn one_write_takes_as_much_as_the_buffer_limit() {
        let [mut client, mut server] = pair(TLS13_AES_128_GCM_SHA256, &rustls::version::TLS13);
        server.set_buffer_limit(Some(100_000));
        let (taken, wire) = write(&mut server, &[&[7; 150_000]]);
        assert_eq!(taken, 100_000);
        assert_eq!(take(&mut client, &wire), [7; 100_000]);
    }
}
