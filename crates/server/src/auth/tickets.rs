//! Tickets: signed tokens that this process and the other nodes of its cluster make, each for one
//! player or game server and one world.
//!
//! They are JWTs signed with Ed25519. The key is derived from the secret of the cluster, so every
//! node makes and accepts them; without a cluster it is one of the process.

use std::collections::HashSet;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize};
use throng_gateway::{ConnKind, Verdict};

use super::{Judgement, Login};

/// Key id of every ticket, which other tokens do not have.
const KEY_ID: &str = "throng-ticket";
/// Time for which a ticket is good.
const LIFETIME: Duration = Duration::from_secs(6 * 3_600);
/// Form of an Ed25519 private key (PKCS #8) before its 32 bytes.
const PRIVATE_KEY: [u8; 16] = [0x30, 0x2E, 2, 1, 0, 0x30, 5, 6, 3, 0x2B, 0x65, 0x70, 4, 0x22, 4, 0x20];

/// Content of a ticket.
#[derive(Debug, Serialize, Deserialize)]
struct TokenClaims {
    /// Player identifier of its owner.
    sub: String,
    world: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    room: String,
    /// `client` or `server`.
    kind: String,
    exp: u64,
}

/// Makes and checks tickets.
pub(crate) struct Tickets {
    signing: EncodingKey,
    checking: DecodingKey,
}

impl Tickets {
    /// Tickets of everyone who has this secret.
    ///
    /// # Errors
    /// The key cannot be used.
    pub(crate) fn new(secret: &[u8]) -> Result<Tickets, String> {
        let seed = blake3::derive_key("throng 2026 cluster ticket key", secret);
        let signing = EncodingKey::from_ed_der(&[&PRIVATE_KEY[..], &seed].concat());
        let checking = Jwk::from_encoding_key(&signing, Algorithm::EdDSA)
            .and_then(|key| DecodingKey::from_jwk(&key))
            .map_err(|error| format!("the key of tickets: {error}"))?;
        Ok(Tickets { signing, checking })
    }

    /// A ticket for a world.
    ///
    /// # Errors
    /// It cannot be signed.
    pub(crate) fn issue(&self, sub: &str, kind: ConnKind, world: &str, room: &str) -> Result<String, String> {
        self.issue_until(unix_s() + LIFETIME.as_secs(), sub, kind, world, room)
    }

    fn issue_until(
        &self,
        exp: u64,
        sub: &str,
        kind: ConnKind,
        world: &str,
        room: &str,
    ) -> Result<String, String> {
        let (sub, world, room) = (sub.to_owned(), world.to_owned(), room.to_owned());
        let claims = TokenClaims { sub, world, room, kind: name(kind).to_owned(), exp };
        let header = Header { kid: Some(KEY_ID.to_owned()), ..Header::new(Algorithm::EdDSA) };
        jsonwebtoken::encode(&header, &claims, &self.signing).map_err(|error| error.to_string())
    }

    /// Returns whether a login token says that it is a ticket.
    pub(crate) fn is_one(&self, token: &str) -> bool {
        // JSON in Base64 begins like this.
        token.starts_with("ey")
            && jsonwebtoken::decode_header(token).is_ok_and(|header| header.kid.as_deref() == Some(KEY_ID))
    }

    /// The judgement about a login with a ticket.
    pub(crate) fn judge(&self, login: &Login) -> Judgement {
        let mut validation = Validation::new(Algorithm::EdDSA);
        validation.validate_aud = false;
        validation.required_spec_claims = HashSet::from(["exp".to_owned()]);
        validation.leeway = 0;
        let Ok(ticket) = jsonwebtoken::decode::<TokenClaims>(&login.token.0, &self.checking, &validation)
        else {
            return Verdict::InvalidLt.into();
        };
        let TokenClaims { sub, world, kind, .. } = ticket.claims;
        match (kind == name(login.kind), sub == login.player.0) {
            (false, _) => Verdict::InvalidLt.into(),
            (true, false) => Verdict::InvalidPit.into(),
            (true, true) => Judgement { verdict: Verdict::Success, world: Some(world) },
        }
    }
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tickets")
    }
}

fn name(kind: ConnKind) -> &'static str {
    match kind {
        ConnKind::Client => "client",
        ConnKind::Server => "server",
    }
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::tests::login;

    #[test]
    fn a_ticket_admits_its_owner_to_its_world_at_every_holder_of_the_secret() {
        let (one, other) = (Tickets::new(b"a secret").unwrap(), Tickets::new(b"a secret").unwrap());
        let ticket = one.issue("ann", ConnKind::Client, "duel-0123", "r1").unwrap();
        let judged = |player: &str, token: &str| other.judge(&login(player, token));
        let admitted = Judgement { verdict: Verdict::Success, world: Some("duel-0123".to_owned()) };
        assert!(other.is_one(&ticket));
        assert_eq!(judged("ann", &ticket), admitted);
        assert_eq!(judged("ann", &ticket), admitted, "again");
        assert_eq!(judged("bob", &ticket), Verdict::InvalidPit.into());
        let server = one.issue("ann", ConnKind::Server, "duel-0123", "").unwrap();
        assert_eq!(judged("ann", &server), Verdict::InvalidLt.into(), "of another kind");
        let at_server = Login { kind: ConnKind::Server, ..login("ann", &server) };
        assert_eq!(other.judge(&at_server).verdict, Verdict::Success);
        let late = one.issue_until(unix_s() - 1, "ann", ConnKind::Client, "duel-0123", "").unwrap();
        assert_eq!(judged("ann", &late), Verdict::InvalidLt.into());
        let foreign = Tickets::new(b"another secret").unwrap();
        let foreign = foreign.issue("ann", ConnKind::Client, "duel-0123", "").unwrap();
        assert_eq!(judged("ann", &foreign), Verdict::InvalidLt.into());
        let mut changed = ticket.into_bytes();
        let middle = changed.len() / 2;
        changed[middle] ^= 1;
        assert_eq!(judged("ann", &String::from_utf8(changed).unwrap()), Verdict::InvalidLt.into());
    }

    #[test]
    fn other_tokens_are_left_to_the_provider() {
        let tickets = Tickets::new(b"a secret").unwrap();
        let header = Header { kid: Some("k1".to_owned()), ..Header::new(Algorithm::HS256) };
        let claims = serde_json::json!({ "sub": "ann", "exp": unix_s() + 60 });
        let other = jsonwebtoken::encode(&header, &claims, &EncodingKey::from_secret(&[7; 32])).unwrap();
        for token in ["", "lt", "ey", "ey.ey.ey", &other] {
            assert!(!tickets.is_one(token), "{token}");
        }
    }
}
