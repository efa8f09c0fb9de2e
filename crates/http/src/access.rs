//! Who may read what.

use std::net::SocketAddr;
use std::sync::RwLock;

/// The access rules of one listener; tokens can be replaced while it runs.
#[derive(Debug, Default)]
pub struct Access {
    tokens: RwLock<Vec<String>>,
    /// Serves `/metrics` to everyone.
    metrics_open: bool,
}

/// The answer of [`Access::check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Allow,
    /// A token is needed and missing or wrong.
    Unauthorized,
    /// Nothing would help: no tokens are configured and the request is not local.
    Forbidden,
}

impl Access {
    /// Rules with these tokens; none means loopback only.
    #[must_use]
    pub fn new(tokens: Vec<String>, metrics_open: bool) -> Access {
        Access { tokens: RwLock::new(tokens), metrics_open }
    }

    /// Replaces the tokens, for a reload.
    pub fn set_tokens(&self, tokens: Vec<String>) {
        *self.tokens.write().unwrap_or_else(std::sync::PoisonError::into_inner) = tokens;
    }

    pub(crate) fn check(
        &self,
        path: &str,
        listener: SocketAddr,
        host: Option<&str>,
        authorization: Option<&str>,
    ) -> Decision {
        if path == "/metrics" && self.metrics_open {
            return Decision::Allow;
        }
        let tokens = self.tokens.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        if tokens.is_empty() {
            let local = listener.ip().is_loopback() && host.is_none_or(is_loopback_name);
            return if local { Decision::Allow } else { Decision::Forbidden };
        }
        let given = authorization
            .and_then(|value| value.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, token)| token.trim());
        match given {
            // Every token is compared, so that the time taken does not tell which one was nearly right.
            Some(given) if tokens.iter().fold(false, |found, token| found | same(token, given)) => {
                Decision::Allow
            }
            _ => Decision::Unauthorized,
        }
    }
}

/// Compares in a time that depends on the length of `given` only.
fn same(token: &str, given: &str) -> bool {
    let (token, given) = (token.as_bytes(), given.as_bytes());
    let mut difference = u8::from(token.len() != given.len());
    for (index, byte) in given.iter().enumerate() {
        difference |= byte ^ token.get(index).copied().unwrap_or(!byte);
    }
    std::hint::black_box(difference) == 0
}

fn is_loopback_name(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or(v6),
        None => host.split(':').next().unwrap_or(host),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_read_what() {
        use Decision::{Allow, Forbidden, Unauthorized};
        let local: SocketAddr = "127.0.0.1:1".parse().unwrap();
        let public: SocketAddr = "0.0.0.0:1".parse().unwrap();
        let none = Access::new(Vec::new(), false);
        let tokens = Access::new(vec!["first".into(), "second".into()], false);
        let open = Access::new(Vec::new(), true);
        let without_tokens = [
            (local, Some("localhost:80"), Allow),
            (local, Some("[::1]:80"), Allow),
            (local, None, Allow),
            (local, Some("evil.example"), Forbidden),
            (local, Some("127.0.0.1.evil.example"), Forbidden),
            (public, Some("localhost"), Forbidden),
        ];
        for (listener, host, expected) in without_tokens {
            assert_eq!(none.check("/metrics", listener, host, None), expected, "{listener} {host:?}");
        }
        let tries = [
            (None, Unauthorized),
            (Some("Bearer first"), Allow),
            (Some("bearer second "), Allow),
            (Some("Bearer"), Unauthorized),
            (Some("Bearer "), Unauthorized),
            (Some("Bearer firs"), Unauthorized),
            (Some("Bearer firstt"), Unauthorized),
            (Some("Basic first"), Unauthorized),
            (Some("first"), Unauthorized),
        ];
        for (authorization, expected) in tries {
            assert_eq!(tokens.check("/metrics", public, None, authorization), expected, "{authorization:?}");
        }
        assert_eq!(open.check("/metrics", public, None, None), Allow);
        assert_eq!(open.check("/api/v1/server", public, None, None), Forbidden);
    }
}
