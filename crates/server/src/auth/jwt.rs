//! Logins with signed tokens (JWT): pinned algorithms, checked claims, keys from a file or a JWKS
//! address.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use jsonwebtoken::jwk::{JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, Validation};
use serde_json::Value;
use throng_gateway::{ConnKind, Verdict};

use super::fetch::Fetcher;
use super::{Authenticator, Judgement, Login, VerdictFuture};
use crate::config::Auth;

/// An unknown key id may be a rotation that the cache has missed, or a forgery: this is how often
/// it is looked up.
const REFETCH_MIN: Duration = Duration::from_secs(10);
/// Shared secrets below the output of SHA-256 can be guessed offline from one token.
const SECRET_BYTES_MIN: usize = 32;
/// Keys tried for a token that names none.
const KEYS_TRIED_MAX: usize = 16;

/// Verifies signed tokens.
///
/// A token passes when its algorithm is one of the configured ones *and* fits the key, its
/// signature is right, `exp` is there and ahead, `nbf` (if there) is past, and audience, issuer,
/// kind and player claim are as configured. Keys that a token brings along (`jwk`, `jku`, `x5u`,
/// `x5c`) are never looked at; critical extensions are refused.
pub struct Jwt {
    rules: Rules,
    keys: RwLock<Arc<Keys>>,
    keys_file: Option<String>,
    jwks: Option<Jwks>,
}

struct Rules {
    algorithms: Vec<Algorithm>,
    audience: Option<String>,
    issuer: Option<String>,
    player_claim: Option<String>,
    kind_claim: String,
    world_claim: Option<String>,
    leeway_s: u64,
}

/// The address of a JWKS, and how its last fetch went.
struct Jwks {
    fetcher: Fetcher,
    stale_after: Duration,
    /// Held while fetching, so that a flood of unknown key ids makes one request.
    fetches: tokio::sync::Mutex<Fetches>,
    problem: RwLock<Option<String>>,
}

/// Times of the last request for a JWKS and of its last arrival.
#[derive(Default)]
struct Fetches {
    tried: Option<Instant>,
    succeeded: Option<Instant>,
}

#[derive(Default)]
struct Keys {
    by_id: HashMap<String, Key>,
    without_id: Vec<Key>,
}

struct Key {
    decoding: DecodingKey,
    /// Purpose of the key in its key set.
    algorithm: Option<Algorithm>,
}

impl Jwt {
    /// Reads the key file, or begins to fetch the JWKS on `runtime`.
    ///
    /// # Errors
    /// A file without usable keys, or an unusable address.
    pub fn start(auth: &Auth, runtime: &tokio::runtime::Handle) -> Result<Arc<Jwt>, String> {
        let jwt = Arc::new(Jwt::new(auth)?);
        if jwt.jwks.is_some() {
            let every = Duration::from_secs(auth.jwt_jwks_refresh_s);
            let weak = Arc::downgrade(&jwt);
            runtime.spawn(async move {
                while let Some(jwt) = weak.upgrade() {
                    // A login may have been first.
                    jwt.fetch(every.min(REFETCH_MIN)).await;
                    drop(jwt);
                    tokio::time::sleep(every).await;
                }
            });
        }
        Ok(jwt)
    }

    fn new(auth: &Auth) -> Result<Jwt, String> {
        let some = |text: &String| (!text.is_empty()).then(|| text.clone());
        let algorithms = auth
            .jwt_algorithms
            .iter()
            .map(|name| name.parse().map_err(|_| format!("`{name}` is not a signature algorithm")))
            .collect::<Result<Vec<Algorithm>, String>>()?;
        let rules = Rules {
            algorithms,
            audience: some(&auth.jwt_audience),
            issuer: some(&auth.jwt_issuer),
            player_claim: some(&auth.jwt_player_claim),
            kind_claim: auth.jwt_kind_claim.clone(),
            world_claim: some(&auth.jwt_world_claim),
            leeway_s: auth.jwt_leeway_s,
        };
        let keys_file = some(&auth.jwt_keys_file);
        let keys = match &keys_file {
            Some(path) => Keys::read(Path::new(path), &rules.algorithms)?,
            None => Keys::default(),
        };
        let jwks = match auth.jwt_jwks_url.as_str() {
            "" => None,
            url => Some(Jwks {
                fetcher: Fetcher::new(url, &auth.https_ca_file, Duration::from_millis(auth.http_timeout_ms))?,
                stale_after: Duration::from_secs(auth.jwt_jwks_stale_s),
                fetches: tokio::sync::Mutex::default(),
                problem: RwLock::new(Some("not fetched yet".to_owned())),
            }),
        };
        Ok(Jwt { rules, keys: RwLock::new(Arc::new(keys)), keys_file, jwks })
    }

    async fn judgement(&self, login: &Login) -> Judgement {
        let claims = match self.claims(&login.token.0).await {
            Err(verdict) => return verdict.into(),
            Ok(claims) => claims,
        };
        if self.rules.kind(&claims) != Some(login.kind) {
            return Verdict::InvalidLt.into();
        }
        if !self.rules.names_player(&claims, &login.player.0) {
            return Verdict::InvalidPit.into();
        }
        match self.rules.world_claim.as_ref().and_then(|claim| claims.get(claim)) {
            None => Verdict::Success.into(),
            Some(Value::String(world)) => Judgement { verdict: Verdict::Success, world: Some(world.clone()) },
            Some(_) => Verdict::InvalidLt.into(),
        }
    }

    /// Claims of a token, if it is valid.
    ///
    /// # Errors
    /// [`Verdict::InvalidLt`] if it is not, [`Verdict::Error`] if that cannot be found out.
    pub(crate) async fn claims(&self, token: &str) -> Result<Value, Verdict> {
        let Some(algorithm_and_kid) = self.rules.header(token) else { return Err(Verdict::InvalidLt) };
        let (algorithm, kid) = algorithm_and_kid;
        let unknown = match &kid {
            Some(kid) => !self.keys().by_id.contains_key(kid),
            None => self.keys().is_empty(),
        };
        if unknown && self.jwks.is_some() {
            self.fetch(REFETCH_MIN).await;
        }
        let keys = self.keys();
        if keys.is_empty() {
            return Err(Verdict::Error("no keys to verify tokens with".to_owned()));
        }
        let validation = self.rules.validation(algorithm);
        keys.candidates(kid.as_deref(), algorithm)
            .find_map(|key| jsonwebtoken::decode::<Value>(token, &key.decoding, &validation).ok())
            .map(|token| token.claims)
            .ok_or(Verdict::InvalidLt)
    }

    fn keys(&self) -> Arc<Keys> {
        Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn set_keys(&self, keys: Keys) {
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
    }

    /// Fetches the JWKS unless that was done less than `age_min` ago.
    async fn fetch(&self, age_min: Duration) {
        let Some(jwks) = &self.jwks else { return };
        let mut fetches = jwks.fetches.lock().await;
        if fetches.tried.is_some_and(|tried| tried.elapsed() < age_min) {
            return;
        }
        let fetched = jwks.fetcher.get().await;
        fetches.tried = Some(Instant::now());
        let parsed = fetched
            .and_then(|bytes| Keys::parse_set(&String::from_utf8_lossy(&bytes), &self.rules.algorithms));
        let problem = match parsed {
            Ok(keys) => {
                fetches.succeeded = fetches.tried;
                self.set_keys(keys);
                None
            }
            Err(why) => {
                tracing::warn!(%why, "the JWKS could not be fetched; the current keys stay in use");
                let stale = fetches.succeeded.is_some_and(|last| last.elapsed() > jwks.stale_after);
                if stale && self.keys_file.is_none() {
                    self.set_keys(Keys::default());
                }
                Some(why)
            }
        };
        *jwks.problem.write().unwrap_or_else(PoisonError::into_inner) = problem;
    }
}

impl Authenticator for Jwt {
    fn judge<'a>(&'a self, login: &'a Login) -> VerdictFuture<'a> {
        Box::pin(self.judgement(login))
    }

    fn reload(&self) -> Result<(), String> {
        if let Some(path) = &self.keys_file {
            self.set_keys(Keys::read(Path::new(path), &self.rules.algorithms)?);
        }
        Ok(())
    }

    fn health(&self) -> (bool, String) {
        let problem = self
            .jwks
            .as_ref()
            .and_then(|jwks| jwks.problem.read().unwrap_or_else(PoisonError::into_inner).clone());
        let keys = self.keys();
        let count = keys.by_id.len() + keys.without_id.len();
        match problem {
            Some(why) => (count > 0, format!("{count} keys; {why}")),
            None => (count > 0, format!("{count} keys")),
        }
    }
}

impl fmt::Debug for Jwt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Jwt")
    }
}

impl Rules {
    /// Algorithm and key id of a token whose header is acceptable.
    fn header(&self, token: &str) -> Option<(Algorithm, Option<String>)> {
        // Two dots exactly: what has five parts is encrypted, and not for us.
        if token.bytes().filter(|byte| *byte == b'.').count() != 2 {
            return None;
        }
        let header = jsonwebtoken::decode_header(token).ok()?;
        let plain = header.crit.is_none() && header.enc.is_none() && header.zip.is_none();
        (plain && self.algorithms.contains(&header.alg)).then_some((header.alg, header.kid))
    }

    fn validation(&self, algorithm: Algorithm) -> Validation {
        let mut validation = Validation::new(algorithm);
        validation.leeway = self.leeway_s;
        validation.validate_nbf = true;
        validation.validate_aud = self.audience.is_some();
        let mut required = HashSet::from(["exp".to_owned()]);
        if let Some(audience) = &self.audience {
            validation.set_audience(&[audience]);
            required.insert("aud".to_owned());
        }
        if let Some(issuer) = &self.issuer {
            validation.set_issuer(&[issuer]);
            required.insert("iss".to_owned());
        }
        // Without this a token that lacks the claim would pass.
        validation.required_spec_claims = required;
        validation
    }

    /// Kind of connection that a token admits; `None` for a value that is not known.
    fn kind(&self, claims: &Value) -> Option<ConnKind> {
        match claims.get(&self.kind_claim).map(Value::as_str) {
            None | Some(Some("client")) => Some(ConnKind::Client),
            Some(Some("server")) => Some(ConnKind::Server),
            Some(_) => None,
        }
    }

    fn names_player(&self, claims: &Value, player: &str) -> bool {
        match &self.player_claim {
            None => true,
            Some(claim) => claims.get(claim).and_then(Value::as_str) == Some(player),
        }
    }
}

impl Keys {
    fn read(path: &Path, algorithms: &[Algorithm]) -> Result<Keys, String> {
        let shown = path.display();
        let bytes = std::fs::read(path).map_err(|error| format!("cannot read `{shown}`: {error}"))?;
        let text = String::from_utf8_lossy(&bytes);
        let shared =
            algorithms.iter().all(|algorithm| AlgorithmFamily::Hmac.algorithms().contains(algorithm));
        let keys = if text.trim_start().starts_with('{') {
            Keys::parse_set(&text, algorithms)
        } else if text.contains("-----BEGIN") {
            Keys::parse_pem(text.as_bytes(), shared)
        } else if shared {
            Keys::from_secret(bytes.trim_ascii())
        } else {
            Err("expected a JWKS (JSON) or a public key (PEM)".to_owned())
        };
        keys.map_err(|why| format!("`{shown}`: {why}"))
    }

    fn from_secret(secret: &[u8]) -> Result<Keys, String> {
        if secret.len() < SECRET_BYTES_MIN {
            return Err(format!(
                "the secret has {} bytes; at least {SECRET_BYTES_MIN} are needed",
                secret.len()
            ));
        }
        Ok(Keys::one(DecodingKey::from_secret(secret)))
    }

    fn parse_pem(pem: &[u8], shared: bool) -> Result<Keys, String> {
        if shared {
            // A public key is public: as a shared secret it would let everyone sign.
            return Err("a PEM key cannot be used with HS256, HS384 or HS512".to_owned());
        }
        if pem.windows(11).any(|window| window == b"PRIVATE KEY") {
            return Err("this is a private key; only the public one is needed here".to_owned());
        }
        DecodingKey::from_rsa_pem(pem)
            .or_else(|_| DecodingKey::from_ec_pem(pem))
            .or_else(|_| DecodingKey::from_ed_pem(pem))
            .map(Keys::one)
            .map_err(|_| "no RSA, EC or Ed25519 public key found".to_owned())
    }

    fn one(decoding: DecodingKey) -> Keys {
        Keys { by_id: HashMap::new(), without_id: vec![Key { decoding, algorithm: None }] }
    }

    /// Reads a JWKS. Keys of other kinds than the algorithms need, and keys for encryption, are
    /// left out.
    fn parse_set(text: &str, algorithms: &[Algorithm]) -> Result<Keys, String> {
        let set: JwkSet = serde_json::from_str(text).map_err(|error| format!("not a JWKS: {error}"))?;
        let mut keys = Keys::default();
        for jwk in &set.keys {
            let for_signing = matches!(jwk.common.public_key_use, None | Some(PublicKeyUse::Signature));
            let Ok(decoding) = DecodingKey::from_jwk(jwk) else { continue };
            let algorithm = jwk.common.key_algorithm.and_then(|name| name.to_string().parse().ok());
            let fits = algorithms.iter().any(|known| decoding.family().algorithms().contains(known));
            let named_fits = jwk.common.key_algorithm.is_none()
                || algorithm.is_some_and(|algorithm| algorithms.contains(&algorithm));
            if !(for_signing && fits && named_fits) {
                continue;
            }
            let key = Key { decoding, algorithm };
            match &jwk.common.key_id {
                Some(id) => drop(keys.by_id.insert(id.clone(), key)),
                None => keys.without_id.push(key),
            }
        }
        if keys.is_empty() {
            return Err("no key for the configured algorithms".to_owned());
        }
        Ok(keys)
    }

    fn is_empty(&self) -> bool {
        self.by_id.is_empty() && self.without_id.is_empty()
    }

    /// The keys that a token may be verified with: the one it names, or all that fit when it names
    /// none.
    fn candidates<'a>(
        &'a self,
        kid: Option<&'a str>,
        algorithm: Algorithm,
    ) -> impl Iterator<Item = &'a Key> + 'a {
        let named = kid.and_then(|kid| self.by_id.get(kid));
        // A key from a PEM file or a secret has no id, so whatever id a token names means that key.
        let all = (named.is_none() && (kid.is_none() || self.by_id.is_empty()))
            .then(|| self.without_id.iter().chain(self.by_id.values()));
        named
            .into_iter()
            .chain(all.into_iter().flatten())
            .filter(move |key| key.algorithm.is_none_or(|own| own == algorithm))
            .filter(move |key| key.decoding.family().algorithms().contains(&algorithm))
            .take(KEYS_TRIED_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jsonwebtoken::{EncodingKey, Header};
    use serde_json::json;

    use crate::auth::tests::login;
    use crate::config::Loader;

    #[test]
    fn a_token_admits_the_kind_that_it_names() {
        const SECRET: [u8; SECRET_BYTES_MIN] = [b'k'; SECRET_BYTES_MIN];
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), SECRET).unwrap();
        let loader = Loader::new()
            .flag("t", "gateway.auth.kind", "jwt")
            .flag("t", "gateway.auth.jwt_keys_file", file.path().to_str().unwrap())
            .flag("t", "gateway.auth.jwt_algorithms", "HS256");
        let jwt = Jwt::new(&loader.clone().load().unwrap().settings.auth).unwrap();
        let year_2100 = 4_102_444_800_u64;
        let sign = |claims: &Value| {
            jsonwebtoken::encode(&Header::default(), claims, &EncodingKey::from_secret(&SECRET)).unwrap()
        };
        let plain = json!({ "sub": "anna", "exp": year_2100 });
        let named = |kind: Value| {
            let mut claims = plain.clone();
            claims["throng_kind"] = kind;
            claims
        };
        let (success, refused) = (Verdict::Success, Verdict::InvalidLt);
        for (claims, as_client, as_server) in [
            (plain.clone(), &success, &refused),
            (named(json!("client")), &success, &refused),
            (named(json!("server")), &refused, &success),
            (named(json!("SERVER")), &refused, &refused),
            (named(json!(null)), &refused, &refused),
            (named(json!(["server", "client"])), &refused, &refused),
            (named(json!(true)), &refused, &refused),
        ] {
            for (kind, expected) in [(ConnKind::Client, as_client), (ConnKind::Server, as_server)] {
                let login = Login { kind, ..login("anna", &sign(&claims)) };
                let judged = runtime.block_on(jwt.judgement(&login));
                assert_eq!(judged.verdict, *expected, "{kind:?} with {claims}");
            }
        }
        let mut worldly = plain.clone();
        worldly["world"] = json!("hub");
        let guest = login("anna", &sign(&worldly));
        let world = |jwt: &Jwt| runtime.block_on(jwt.judgement(&guest)).world;
        assert_eq!(world(&jwt), None, "the claim is not configured");
        let loader = loader.flag("t", "gateway.auth.jwt_world_claim", "world");
        let of_worlds = Jwt::new(&loader.load().unwrap().settings.auth).unwrap();
        assert_eq!(world(&of_worlds).as_deref(), Some("hub"));
        worldly["world"] = json!(["hub"]);
        let judged = runtime.block_on(of_worlds.judgement(&login("anna", &sign(&worldly))));
        assert_eq!(judged, Verdict::InvalidLt.into());
        let stranger = Login { kind: ConnKind::Server, ..login("ben", &sign(&named(json!("server")))) };
        assert_eq!(runtime.block_on(jwt.judgement(&stranger)), Verdict::InvalidPit.into());
    }

    #[test]
    fn keys_are_dropped_when_the_jwks_has_been_unreachable_for_too_long() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [b'k'; SECRET_BYTES_MIN]).unwrap();
        // Nothing listens there: every fetch fails.
        let jwt = |keys_file: &str| {
            let loader = Loader::new()
                .flag("t", "gateway.auth.kind", "jwt")
                .flag("t", "gateway.auth.jwt_jwks_url", "http://127.0.0.1:1/keys")
                .flag("t", "gateway.auth.jwt_jwks_stale_s", "3600");
            let loader = match keys_file {
                "" => loader,
                path => loader.flag("t", "gateway.auth.jwt_keys_file", path).flag(
                    "t",
                    "gateway.auth.jwt_algorithms",
                    "HS256",
                ),
            };
            Jwt::new(&loader.load().unwrap().settings.auth).unwrap()
        };
        let fails_after = |jwt: &Jwt, age_s: u64| {
            let fetched = Instant::now().checked_sub(Duration::from_secs(age_s));
            runtime.block_on(async {
                jwt.jwks.as_ref().unwrap().fetches.lock().await.succeeded = fetched;
                jwt.fetch(Duration::ZERO).await;
            });
        };
        let without_file = jwt("");
        without_file.set_keys(Keys::from_secret(&[b'k'; SECRET_BYTES_MIN]).unwrap());
        fails_after(&without_file, 3_500);
        assert!(!without_file.keys().is_empty());
        assert!(without_file.health().0);
        fails_after(&without_file, 3_700);
        assert!(without_file.keys().is_empty());
        assert!(!without_file.health().0);
        // Those of a file are not the JWKS's.
        let with_file = jwt(file.path().to_str().unwrap());
        fails_after(&with_file, 3_700);
        assert!(!with_file.keys().is_empty());
    }
}
