//! Logins from a file of fixed pairs.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use throng_gateway::{ConnKind, Verdict};

use super::{Authenticator, Login, VerdictFuture, same_secret};

/// Tokens by the kind of their holder and by name.
type Names = HashMap<(ConnKind, String), Vec<String>>;

/// Checks a login against lines of `PLAYER TOKEN`, or `NAME TOKEN server` for game servers; `*` as
/// the name fits everyone of the kind. `#` begins a comment.
pub struct Tokens {
    path: PathBuf,
    names: RwLock<Arc<Names>>,
}

impl Tokens {
    /// Reads the file.
    ///
    /// # Errors
    /// The file cannot be read, or a line is not a pair.
    pub fn open(path: impl Into<PathBuf>) -> Result<Tokens, String> {
        let path = path.into();
        let names = RwLock::new(Arc::new(read(&path)?));
        Ok(Tokens { path, names })
    }

    fn verdict(&self, login: &Login) -> Verdict {
        let names = Arc::clone(&self.names.read().unwrap_or_else(PoisonError::into_inner));
        let known = [login.player.0.as_str(), "*"].into_iter();
        let known = known.filter_map(|name| names.get(&(login.kind, name.to_owned())));
        let mut any = false;
        for token in known.flatten() {
            any = true;
            if same_secret(token, &login.token.0) {
                return Verdict::Success;
            }
        }
        if any { Verdict::InvalidLt } else { Verdict::InvalidPit }
    }
}

impl Authenticator for Tokens {
    fn judge<'a>(&'a self, login: &'a Login) -> VerdictFuture<'a> {
        Box::pin(std::future::ready(self.verdict(login)))
    }

    fn reload(&self) -> Result<(), String> {
        let names = Arc::new(read(&self.path)?);
        *self.names.write().unwrap_or_else(PoisonError::into_inner) = names;
        Ok(())
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tokens({})", self.path.display())
    }
}

fn read(path: &PathBuf) -> Result<Names, String> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read `{shown}`: {error}"))?;
    let mut names = Names::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mut words = line.split_whitespace();
        // The line itself is not shown: it holds a secret.
        let words = (words.next(), words.next(), words.next(), words.next());
        let (name, token, kind) = match words {
            (Some(name), Some(token), None, None) => (name, token, ConnKind::Client),
            (Some(name), Some(token), Some("server"), None) => (name, token, ConnKind::Server),
            _ => return Err(format!("{shown}:{}: expected PLAYER TOKEN or NAME TOKEN server", index + 1)),
        };
        names.entry((kind, name.to_owned())).or_default().push(token.to_owned());
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::tests::login;

    #[test]
    fn pairs_wildcards_and_reload() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "# players\nanna a-secret\nanna other\n\n* open-house\n").unwrap();
        let tokens = Tokens::open(file.path()).unwrap();
        let table = [
            ("anna", "a-secret", Verdict::Success),
            ("anna", "other", Verdict::Success),
            ("anna", "open-house", Verdict::Success),
            ("ben", "open-house", Verdict::Success),
            ("ben", "a-secret", Verdict::InvalidLt),
            ("anna", "a-secre", Verdict::InvalidLt),
            ("anna", "a-secrets", Verdict::InvalidLt),
            ("anna", "", Verdict::InvalidLt),
            ("*", "open-house", Verdict::Success),
        ];
        for (player, token, expected) in table {
            assert_eq!(tokens.verdict(&login(player, token)), expected, "{player} {token}");
        }
        // A player's token admits no game server, and the other way round.
        std::fs::write(file.path(), "anna a-secret\nmaster of-servers server\n").unwrap();
        tokens.reload().unwrap();
        let as_server = |name, token| Login { kind: ConnKind::Server, ..login(name, token) };
        assert_eq!(tokens.verdict(&as_server("anna", "a-secret")), Verdict::InvalidPit);
        assert_eq!(tokens.verdict(&as_server("master", "of-servers")), Verdict::Success);
        assert_eq!(tokens.verdict(&login("master", "of-servers")), Verdict::InvalidPit);
        std::fs::write(file.path(), "anna new\n").unwrap();
        tokens.reload().unwrap();
        assert_eq!(tokens.verdict(&login("anna", "new")), Verdict::Success);
        assert_eq!(tokens.verdict(&login("ben", "open-house")), Verdict::InvalidPit);
        std::fs::write(file.path(), "one two three\n").unwrap();
        let problem = tokens.reload().unwrap_err();
        assert!(problem.contains(":1: expected") && !problem.contains("two"), "{problem}");
        assert_eq!(tokens.verdict(&login("anna", "new")), Verdict::Success, "the old content stays");
    }
}
