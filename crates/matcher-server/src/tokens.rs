//! Access tokens.

use throng_matcher::Scope;

/// Tokens and what they allow; without any everybody is an admin.
#[derive(Clone, Debug, Default)]
pub struct Tokens(Vec<Token>);

#[derive(Clone, Debug)]
struct Token {
    secret: String,
    scope: Scope,
    /// The server it is for; empty: any.
    srv: String,
}

/// A line of a file of tokens that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: a line is `TOKEN server|trusted|admin [SRV_ID]`")]
pub struct TokensError {
    /// Its number, from 1.
    pub line: usize,
}

impl Tokens {
    /// Reads a file's content: a token, its scope and, if it is for one server only, that server's
    /// id in a line. `#` starts a comment.
    ///
    /// # Errors
    /// The first line that is none of this.
    pub fn parse(text: &str) -> Result<Tokens, TokensError> {
        let mut tokens = Vec::new();
        for (line, content) in text.lines().enumerate() {
            let content = content.split('#').next().unwrap_or_default();
            let words: Vec<&str> = content.split_whitespace().collect();
            let (secret, scope, srv) = match words[..] {
                [] => continue,
                [secret, scope] => (secret, scope, ""),
                [secret, scope, srv] => (secret, scope, srv),
                _ => return Err(TokensError { line: line + 1 }),
            };
            let scope = match scope {
                "server" => Scope::Server,
                "trusted" => Scope::Trusted,
                "admin" => Scope::Admin,
                _ => return Err(TokensError { line: line + 1 }),
            };
            tokens.push(Token { secret: secret.to_owned(), scope, srv: srv.to_owned() });
        }
        Ok(Tokens(tokens))
    }

    /// Returns whether everybody is let in.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0.is_empty()
    }

    /// Scope of a caller with `secret` as `srv`; `None` if it may not even connect. Takes as long
    /// whichever token it is.
    #[must_use]
    pub fn scope(&self, secret: &str, srv: &str) -> Option<Scope> {
        if self.is_open() {
            return Some(Scope::Admin);
        }
        let own = self.with(secret).filter(|token| token.srv.is_empty() || token.srv == srv);
        own.last().map(|token| token.scope)
    }

    /// Returns whether a caller with `secret` may do anything as some server.
    #[must_use]
    pub fn knows(&self, secret: &str) -> bool {
        self.is_open() || self.with(secret).last().is_some()
    }

    fn with(&self, secret: &str) -> impl Iterator<Item = &Token> {
        self.0.iter().filter(move |token| {
            token.secret.len() == secret.len()
                && token.secret.bytes().zip(secret.bytes()).fold(0, |all, (a, b)| all | (a ^ b)) == 0
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_a_scope_and_maybe_a_server() {
        let tokens = Tokens::parse("# servers\nabc server game_1_1\n\nxyz admin # us\n").unwrap();
        assert_eq!(tokens.scope("abc", "game_1_1"), Some(Scope::Server));
        assert_eq!(tokens.scope("abc", "game_1_2"), None);
        assert_eq!(tokens.scope("xyz", "anything"), Some(Scope::Admin));
        assert_eq!(tokens.scope("", ""), None);
        assert!(tokens.knows("abc") && !tokens.knows("ab") && Tokens::default().knows(""));
        assert_eq!(Tokens::default().scope("", ""), Some(Scope::Admin));
        assert_eq!(Tokens::parse("abc king").unwrap_err(), TokensError { line: 1 });
    }
}
