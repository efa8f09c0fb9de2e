//! The encryption of ENet listeners, from the configuration: the sealed layer, and DTLS.

use std::fs;
use std::net::SocketAddr;

use throng_net::enet::DtlsConfig;
use throng_net::enet::secure::{GateConfig, TokenKey};

use crate::config::Listener;

const KEY_BYTES: usize = 32;

/// Gate in front of the ENet peers of a section: `None` when no key is configured.
///
/// # Errors
/// The key at fault and a phrase with the reason.
pub(crate) fn gate(listener: &Listener) -> Result<Option<GateConfig>, (&'static str, String)> {
    if listener.enet_key_file.is_empty() {
        return Ok(None);
    }
    let file = &listener.enet_key_file;
    let at_file = |why: String| ("enet_key_file", why);
    let text = fs::read_to_string(file).map_err(|error| at_file(format!("cannot read `{file}`: {error}")))?;
    let key = parse_key(text.trim())
        .ok_or_else(|| at_file(format!("`{file}` must contain exactly 64 hexadecimal digits")))?;
    if key == [0; KEY_BYTES] {
        return Err(at_file(format!(
            "`{file}` has the key 0, which everyone knows; make one: openssl rand -hex 32"
        )));
    }
    let servers = listener.enet_servers.iter().map(|text| {
        let bad = |_| ("enet_servers", format!("`{text}` is not an address; expected IP:PORT"));
        text.parse::<SocketAddr>().map_err(bad)
    });
    let seed = throng_net::enet::entropy().map_err(|error| at_file(format!("no randomness: {error}")))?;
    Ok(Some(GateConfig {
        protocol: listener.enet_protocol,
        servers: servers.collect::<Result<_, _>>()?,
        plain: listener.enet_plain,
        ..GateConfig::new(TokenKey::new(key), seed)
    }))
}

/// DTLS of the ENet peers of a section: `None` when no certificate is configured.
///
/// # Errors
/// The key at fault and a phrase with the reason.
pub(crate) fn dtls(listener: &Listener) -> Result<Option<DtlsConfig>, (&'static str, String)> {
    let (cert, key) = (&listener.enet_dtls_cert, &listener.enet_dtls_key);
    match (cert.is_empty(), key.is_empty()) {
        (true, true) => return Ok(None),
        (false, true) => return Err(("enet_dtls_cert", "set `enet_dtls_key` as well".to_owned())),
        (true, false) => return Err(("enet_dtls_key", "set `enet_dtls_cert` as well".to_owned())),
        (false, false) => {}
    }
    let read =
        |name, path: &str| fs::read(path).map_err(|error| (name, format!("cannot read `{path}`: {error}")));
    let (cert, key) = (read("enet_dtls_cert", cert)?, read("enet_dtls_key", key)?);
    let mut config =
        DtlsConfig::from_pem(&cert, &key).map_err(|error| ("enet_dtls_cert", error.to_string()))?;
    // A gate has its own rule for plain clients.
    config.plain = listener.enet_plain || !listener.enet_key_file.is_empty();
    Ok(Some(config))
}

fn parse_key(text: &str) -> Option<[u8; KEY_BYTES]> {
    let mut key = [0; KEY_BYTES];
    let pairs = text.as_bytes().chunks(2);
    if text.len() != 2 * KEY_BYTES {
        return None;
    }
    for (byte, pair) in key.iter_mut().zip(pairs) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16);
        *byte = (digit(0)? << 4 | digit(1)?) as u8;
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_sixty_four_digits() {
        let text = "000102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F";
        let expected: Vec<u8> = (0..32).collect();
        assert_eq!(parse_key(text).as_ref().map(|key| &key[..]), Some(&expected[..]));
        assert_eq!(parse_key(&text[1..]), None);
        assert_eq!(parse_key(&text.replace('a', "g")), None);
        assert_eq!(parse_key(&text.replace("0a", "ä")), None);
    }

    #[test]
    fn a_key_of_zeros_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let settings = crate::config::Loader::new().load().unwrap().settings;
        let with = |key: &str| {
            let path = folder.path().join("enet.key");
            fs::write(&path, key).unwrap();
            gate(&Listener { enet_key_file: path.to_str().unwrap().to_owned(), ..settings.clients.clone() })
        };
        assert!(with(&"07".repeat(32)).unwrap().is_some());
        let (key, why) = with(&"00".repeat(32)).unwrap_err();
        assert!(key == "enet_key_file" && why.contains("openssl rand -hex 32"), "{key}: {why}");
    }

    #[test]
    fn dtls_needs_a_certificate_and_its_key() {
        let folder = tempfile::tempdir().unwrap();
        let made =
            throng_net::development_certificate(&["localhost".to_owned()], Default::default()).unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let (cert, key) = (file("a.crt", &made.cert_pem), file("a.key", &made.key_pem));
        let config = crate::config::Loader::new().load().unwrap();
        let with = |cert: &str, key: &str| Listener {
            enet_dtls_cert: cert.to_owned(),
            enet_dtls_key: key.to_owned(),
            ..config.settings.clients.clone()
        };
        assert!(dtls(&with("", "")).unwrap().is_none());
        assert_eq!(dtls(&with(&cert, "")).unwrap_err().0, "enet_dtls_cert");
        assert_eq!(dtls(&with("", &key)).unwrap_err().0, "enet_dtls_key");
        assert_eq!(dtls(&with(&cert, "/none")).unwrap_err().0, "enet_dtls_key");
        assert_eq!(dtls(&with(&key, &cert)).unwrap_err().0, "enet_dtls_cert");
        // Plain clients need a key of their own; beside a gate, the gate decides.
        let plain = |listener: &Listener| dtls(listener).unwrap().unwrap().plain;
        assert!(!plain(&with(&cert, &key)));
        assert!(plain(&Listener { enet_plain: true, ..with(&cert, &key) }));
        assert!(plain(&Listener { enet_key_file: "some".to_owned(), ..with(&cert, &key) }));
    }
}
