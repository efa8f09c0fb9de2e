//! The cryptography of DTLS, by ring and by the parts of rustls that are made with it.
//!
//! The server never asks for a client's certificate, and speaks DTLS 1.2 only. The verification of
//! signatures and the cipher suite of DTLS 1.3 are here because dimpl tests them at start.

use std::cell::Cell;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use dimpl::crypto::{
    Aad, ActiveKeyExchange, Buf, Cipher, CryptoProvider, Dtls12CipherSuite, Dtls13CipherSuite, HashAlgorithm,
    HashContext, HashProvider, HmacProvider, KeyProvider, NamedGroup, Nonce, SecureRandom,
    SignatureAlgorithm, SignatureVerifier, SigningKey, SupportedDtls12CipherSuite,
    SupportedDtls13CipherSuite, SupportedKxGroup, TmpBuf,
};
use dimpl::{CryptoError, CryptoOperation};
use ring::rand::SecureRandom as _;
use ring::{aead, digest, hmac, signature};
use rustls::SignatureScheme;
use rustls::crypto::ring::kx_group;
use rustls::pki_types::PrivateKeyDer;

/// Bytes of a cookie, and of the random number by which a handshake is known.
pub(super) const COOKIE_BYTES: usize = 32;

pub(super) fn provider() -> CryptoProvider {
    CryptoProvider {
        kx_groups: &[
            &Group(NamedGroup::X25519),
            &Group(NamedGroup::Secp256r1),
            &Group(NamedGroup::Secp384r1),
        ],
        signature_verification: &Verifier,
        key_provider: &Keys,
        secure_random: &Random,
        hash_provider: &Hashes,
        hmac_provider: &Hmac,
        cipher_suites: &[
            &Suite(Dtls12CipherSuite::ECDHE_ECDSA_AES128_GCM_SHA256),
            &Suite(Dtls12CipherSuite::ECDHE_ECDSA_AES256_GCM_SHA384),
            &Suite(Dtls12CipherSuite::ECDHE_ECDSA_CHACHA20_POLY1305_SHA256),
        ],
        dtls13_cipher_suites: &[&ChaCha13],
    }
}

thread_local! {
    /// Random number of a client, and the cookie that it has returned.
    static VOUCHED: Cell<Option<([u8; COOKIE_BYTES], [u8; COOKIE_BYTES])>> = const { Cell::new(None) };
}

/// Runs `begin` with a provider that computes `cookie` for the client with this random number.
///
/// dimpl draws a key for cookies per association, so an association would have to exist before its
/// client has proven an address. [`Cookies`](super::hello::Cookies) checks the cookie without one;
/// dimpl must then accept the same cookie, because the hash of the handshake includes it.
pub(super) fn vouch<T>(
    random: [u8; COOKIE_BYTES],
    cookie: [u8; COOKIE_BYTES],
    begin: impl FnOnce() -> T,
) -> T {
    VOUCHED.set(Some((random, cookie)));
    // Also after a panic: the next association on this thread must not inherit the cookie.
    let _end = End;
    begin()
}

struct End;

impl Drop for End {
    fn drop(&mut self) {
        VOUCHED.set(None);
    }
}

#[derive(Debug)]
struct Hmac;

impl HmacProvider for Hmac {
    // dimpl computes nothing but cookies with this function.
    fn hmac_sha256(&self, key: &[u8], data: &[u8]) -> Result<[u8; 32], CryptoError> {
        if let Some((random, cookie)) = VOUCHED.get()
            && data == random
        {
            return Ok(cookie);
        }
        let mut out = [0; 32];
        self.hmac(HashAlgorithm::SHA256, key, data, &mut out)?;
        Ok(out)
    }

    fn hmac(
        &self,
        hash: HashAlgorithm,
        key: &[u8],
        data: &[u8],
        out: &mut [u8],
    ) -> Result<usize, CryptoError> {
        let algorithm = match hash {
            HashAlgorithm::SHA256 => hmac::HMAC_SHA256,
            HashAlgorithm::SHA384 => hmac::HMAC_SHA384,
            other => return Err(CryptoError::UnsupportedHmacHash(other)),
        };
        let tag = hmac::sign(&hmac::Key::new(algorithm, key), data);
        let tag = tag.as_ref();
        out.get_mut(..tag.len()).ok_or(CryptoError::UnsupportedHmacHash(hash))?.copy_from_slice(tag);
        Ok(tag.len())
    }
}

#[derive(Debug)]
struct Hashes;

struct Hash(digest::Context);

impl HashProvider for Hashes {
    fn create_hash(&self, algorithm: HashAlgorithm) -> Box<dyn HashContext> {
        // The hashes of the suites above.
        let algorithm = if algorithm == HashAlgorithm::SHA384 { &digest::SHA384 } else { &digest::SHA256 };
        Box::new(Hash(digest::Context::new(algorithm)))
    }
}

impl HashContext for Hash {
    fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn clone_and_finalize(&self, out: &mut Buf) {
        out.extend_from_slice(self.0.clone().finish().as_ref());
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Hash")
    }
}

#[derive(Debug)]
struct Random;

impl SecureRandom for Random {
    fn fill(&self, buf: &mut [u8]) -> Result<(), CryptoError> {
        ring::rand::SystemRandom::new().fill(buf).map_err(|_| failed(CryptoOperation::FillRandom))
    }
}

#[derive(Debug)]
struct Suite(Dtls12CipherSuite);

impl Suite {
    fn algorithm(&self) -> &'static aead::Algorithm {
        match self.0 {
            Dtls12CipherSuite::ECDHE_ECDSA_AES128_GCM_SHA256 => &aead::AES_128_GCM,
            Dtls12CipherSuite::ECDHE_ECDSA_AES256_GCM_SHA384 => &aead::AES_256_GCM,
            _ => &aead::CHACHA20_POLY1305,
        }
    }

    fn is_gcm(&self) -> bool {
        self.algorithm() != &aead::CHACHA20_POLY1305
    }
}

impl SupportedDtls12CipherSuite for Suite {
    fn suite(&self) -> Dtls12CipherSuite {
        self.0
    }

    fn hash_algorithm(&self) -> HashAlgorithm {
        self.0.hash_algorithm()
    }

    fn key_lengths(&self) -> (usize, usize, usize) {
        (0, self.algorithm().key_len(), if self.is_gcm() { 4 } else { 12 })
    }

    fn explicit_nonce_len(&self) -> usize {
        if self.is_gcm() { 8 } else { 0 }
    }

    fn tag_len(&self) -> usize {
        self.algorithm().tag_len()
    }

    fn create_cipher(&self, key: &[u8]) -> Result<Box<dyn Cipher>, CryptoError> {
        Sealing::boxed(self.algorithm(), key)
    }
}

#[derive(Debug)]
struct Sealing(aead::LessSafeKey);

impl Sealing {
    fn boxed(algorithm: &'static aead::Algorithm, key: &[u8]) -> Result<Box<dyn Cipher>, CryptoError> {
        let key = aead::UnboundKey::new(algorithm, key).map_err(|_| failed(CryptoOperation::CreateCipher))?;
        Ok(Box::new(Self(aead::LessSafeKey::new(key))))
    }
}

impl Cipher for Sealing {
    fn encrypt(&mut self, plaintext: &mut Buf, aad: Aad, nonce: Nonce) -> Result<(), CryptoError> {
        let nonce = aead::Nonce::assume_unique_for_key(nonce.0);
        let sealed = self.0.seal_in_place_append_tag(nonce, aead::Aad::from(&*aad), plaintext);
        sealed.map_err(|_| failed(CryptoOperation::Encrypt))
    }

    fn decrypt(&mut self, ciphertext: &mut TmpBuf, aad: Aad, nonce: Nonce) -> Result<(), CryptoError> {
        let nonce = aead::Nonce::assume_unique_for_key(nonce.0);
        let opened = self.0.open_in_place(nonce, aead::Aad::from(&*aad), ciphertext.as_mut());
        let len = opened.map_err(|_| failed(CryptoOperation::Decrypt))?.len();
        ciphertext.truncate(len);
        Ok(())
    }
}

#[derive(Debug)]
struct ChaCha13;

impl SupportedDtls13CipherSuite for ChaCha13 {
    fn suite(&self) -> Dtls13CipherSuite {
        Dtls13CipherSuite::CHACHA20_POLY1305_SHA256
    }

    fn hash_algorithm(&self) -> HashAlgorithm {
        HashAlgorithm::SHA256
    }

    fn key_len(&self) -> usize {
        aead::CHACHA20_POLY1305.key_len()
    }

    fn iv_len(&self) -> usize {
        aead::NONCE_LEN
    }

    fn tag_len(&self) -> usize {
        aead::CHACHA20_POLY1305.tag_len()
    }

    fn create_cipher(&self, key: &[u8]) -> Result<Box<dyn Cipher>, CryptoError> {
        Sealing::boxed(&aead::CHACHA20_POLY1305, key)
    }

    fn encrypt_sn(&self, sn_key: &[u8], sample: &[u8; 16]) -> [u8; 16] {
        let key = aead::quic::HeaderProtectionKey::new(&aead::quic::CHACHA20, sn_key);
        let mask = key.and_then(|key| key.new_mask(sample)).unwrap_or_default();
        let mut out = [0; 16];
        out[..mask.len()].copy_from_slice(&mask);
        out
    }
}

#[derive(Debug)]
struct Group(NamedGroup);

/// A key exchange of rustls, with what dimpl wants of every part.
struct Exchange(AssertUnwindSafe<Box<dyn rustls::crypto::ActiveKeyExchange>>, NamedGroup);

impl SupportedKxGroup for Group {
    fn name(&self) -> NamedGroup {
        self.0
    }

    fn start_exchange(&self, _: Buf) -> Result<Box<dyn ActiveKeyExchange>, CryptoError> {
        let group = match self.0 {
            NamedGroup::X25519 => kx_group::X25519,
            NamedGroup::Secp256r1 => kx_group::SECP256R1,
            _ => kx_group::SECP384R1,
        };
        let exchange = group.start().map_err(|_| CryptoError::UnsupportedKeyExchangeGroup(self.0))?;
        Ok(Box::new(Exchange(AssertUnwindSafe(exchange), self.0)))
    }
}

impl ActiveKeyExchange for Exchange {
    fn pub_key(&self) -> &[u8] {
        self.0.0.pub_key()
    }

    fn complete(self: Box<Self>, peer_pub: &[u8], out: &mut Buf) -> Result<(), CryptoError> {
        let Self(exchange, group) = *self;
        let secret = exchange.0.complete(peer_pub).map_err(|_| CryptoError::InvalidPublicKey(group))?;
        out.clear();
        out.extend_from_slice(secret.secret_bytes());
        Ok(())
    }

    fn group(&self) -> NamedGroup {
        self.1
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Exchange").field(&self.1).finish()
    }
}

#[derive(Debug)]
struct Keys;

/// A private key on a curve that has just one hash in TLS 1.2 as rustls signs.
struct Key {
    key: AssertUnwindSafe<Arc<dyn rustls::sign::SigningKey>>,
    scheme: SignatureScheme,
    hash: [HashAlgorithm; 1],
}

impl KeyProvider for Keys {
    fn load_private_key(&self, der: &[u8]) -> Result<Box<dyn SigningKey>, CryptoError> {
        let der = PrivateKeyDer::try_from(der).map_err(|_| CryptoError::InvalidPrivateKey)?;
        let key =
            rustls::crypto::ring::sign::any_ecdsa_type(&der).map_err(|_| CryptoError::InvalidPrivateKey)?;
        let curves = [
            (SignatureScheme::ECDSA_NISTP256_SHA256, HashAlgorithm::SHA256),
            (SignatureScheme::ECDSA_NISTP384_SHA384, HashAlgorithm::SHA384),
        ];
        let (scheme, hash) = curves
            .into_iter()
            .find(|(scheme, _)| key.choose_scheme(&[*scheme]).is_some())
            .ok_or(CryptoError::UnsupportedEcCurve)?;
        Ok(Box::new(Key { key: AssertUnwindSafe(key), scheme, hash: [hash] }))
    }
}

impl SigningKey for Key {
    fn sign(&mut self, data: &[u8], hash: HashAlgorithm, out: &mut Buf) -> Result<(), CryptoError> {
        if hash != self.hash[0] {
            return Err(CryptoError::SigningKeyHashMismatch { key_hash: self.hash[0], requested: hash });
        }
        let signer = self.key.choose_scheme(&[self.scheme]).ok_or(CryptoError::InvalidPrivateKey)?;
        let signature = signer.sign(data).map_err(|_| failed(CryptoOperation::Sign))?;
        out.extend_from_slice(&signature);
        Ok(())
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ECDSA
    }

    fn hash_algorithm(&self) -> HashAlgorithm {
        self.hash[0]
    }

    fn supported_hash_algorithms(&self) -> &[HashAlgorithm] {
        &self.hash
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Key").field("scheme", &self.scheme).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Verifier;

/// A curve's identifier, the bit string after it, and the length of an uncompressed point in that.
const P256: (&[u8], usize) = (b"\x06\x08\x2A\x86\x48\xCE\x3D\x03\x01\x07\x03\x42\x00", 65);
const P384: (&[u8], usize) = (b"\x06\x05\x2B\x81\x04\x00\x22\x03\x62\x00", 97);

impl SignatureVerifier for Verifier {
    fn verify_signature(
        &self,
        certificate: &[u8],
        data: &[u8],
        signed: &[u8],
        hash: HashAlgorithm,
        algorithm: SignatureAlgorithm,
    ) -> Result<(), CryptoError> {
        let point = |(head, len): (&[u8], usize)| {
            let at = certificate.windows(head.len()).position(|window| window == head)? + head.len();
            certificate.get(at..at + len)
        };
        let (point, group) = match (point(P256), point(P384)) {
            (Some(point), _) => (point, NamedGroup::Secp256r1),
            (_, Some(point)) => (point, NamedGroup::Secp384r1),
            _ => return Err(CryptoError::UnsupportedEcCurve),
        };
        dimpl::crypto::check_verify_scheme(algorithm, hash, group)?;
        let algorithm_of_ring: &dyn signature::VerificationAlgorithm = match (group, hash) {
            (NamedGroup::Secp256r1, HashAlgorithm::SHA256) => &signature::ECDSA_P256_SHA256_ASN1,
            (NamedGroup::Secp256r1, _) => &signature::ECDSA_P256_SHA384_ASN1,
            (_, HashAlgorithm::SHA256) => &signature::ECDSA_P384_SHA256_ASN1,
            _ => &signature::ECDSA_P384_SHA384_ASN1,
        };
        signature::UnparsedPublicKey::new(algorithm_of_ring, point)
            .verify(data, signed)
            .map_err(|_| CryptoError::SignatureVerificationFailed { signature: algorithm, hash, group })
    }
}

fn failed(operation: CryptoOperation) -> CryptoError {
    CryptoError::OperationFailed(operation)
}
