//! Logins from a file of fixed pairs.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use throng_gateway::{ConnKind, Verdict};

use super::{Authenticator, Judgement, Login, VerdictFuture, same_secret};
use crate::worlds::check_name;

/// Tokens by the kind of their holder and by name, each with the world that it is for.
type Names = HashMap<(ConnKind, String), Vec<(String, Option<String>)>>;

/// Checks a login against lines of `PLAYER TOKEN`, or `NAME TOKEN server` for game servers; `*` as
/// the name fits everyone of the kind. `world=NAME` at the end is the world of the login. `#`
/// begins a comment.
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

    fn judgement(&self, login: &Login) -> Judgement {
        let names = Arc::clone(&self.names.read().unwrap_or_else(PoisonError::into_inner));
        let known = [login.player.0.as_str(), "*"].into_iter();
        let known = known.filter_map(|name| names.get(&(login.kind, name.to_owned())));
        let mut any = false;
        for (token, world) in known.flatten() {
            any = true;
            if same_secret(token, &login.token.0) {
                return Judgement { verdict: Verdict::Success, world: world.clone() };
            }
        }
        if any { Verdict::InvalidLt.into() } else { Verdict::InvalidPit.into() }
    }
}

impl Authenticator for Tokens {
    fn judge<'a>(&'a self, login: &'a Login) -> VerdictFuture<'a> {
        Box::pin(std::future::ready(self.judgement(login)))
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
    let wrong = |index| format!("{shown}:{}: expected PLAYER TOKEN [server] [world=NAME]", index + 1);
    let mut names = Names::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mut words = line.split_whitespace();
        // The line itself is not shown: it holds a secret.
        let words = (words.next(), words.next(), words.collect::<Vec<_>>());
        let (Some(name), Some(token), rest) = words else { return Err(wrong(index)) };
        let (kind, rest) = match rest.split_first() {
            Some((&"server", rest)) => (ConnKind::Server, rest),
            _ => (ConnKind::Client, &rest[..]),
        };
        let world = match rest {
            [] => None,
            [word] => Some(word.strip_prefix("world=").ok_or_else(|| wrong(index))?),
            _ => return Err(wrong(index)),
        };
        if let Some(world) = world {
            check_name(world).map_err(|problem| format!("{shown}:{}: {problem}", index + 1))?;
        }
        let world = world.map(str::to_owned);
        names.entry((kind, name.to_owned())).or_default().push((token.to_owned(), world));
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
            assert_eq!(tokens.judgement(&login(player, token)), expected.into(), "{player} {token}");
        }
        // A player's token admits no game server, and the other way round.
        std::fs::write(file.path(), "anna a-secret\nmaster of-servers server\n").unwrap();
        tokens.reload().unwrap();
        let as_server = |name, token| Login { kind: ConnKind::Server, ..login(name, token) };
        assert_eq!(tokens.judgement(&as_server("anna", "a-secret")), Verdict::InvalidPit.into());
        assert_eq!(tokens.judgement(&as_server("master", "of-servers")), Verdict::Success.into());
        assert_eq!(tokens.judgement(&login("master", "of-servers")), Verdict::InvalidPit.into());
        std::fs::write(file.path(), "anna new\n").unwrap();
        tokens.reload().unwrap();
        assert_eq!(tokens.judgement(&login("anna", "new")), Verdict::Success.into());
        assert_eq!(tokens.judgement(&login("ben", "open-house")), Verdict::InvalidPit.into());
        std::fs::write(file.path(), "anna a world=hub\nmaster b server world=duel-1\n").unwrap();
        tokens.reload().unwrap();
        let of = |login: &Login| tokens.judgement(login).world;
        assert_eq!(of(&login("anna", "a")).as_deref(), Some("hub"));
        assert_eq!(of(&as_server("master", "b")).as_deref(), Some("duel-1"));
        std::fs::write(file.path(), "anna new\n").unwrap();
        tokens.reload().unwrap();
        for (text, expected) in [
            ("one two three", ":1: expected"),
            ("one two world=HUB", ":1: `HUB` is not a name"),
            ("# a comment\none two server world=", ":2: `` is not a name"),
        ] {
            std::fs::write(file.path(), text).unwrap();
            let problem = tokens.reload().unwrap_err();
            assert!(problem.contains(expected) && !problem.contains("two"), "{problem}");
        }
        assert_eq!(tokens.judgement(&login("anna", "new")), Verdict::Success.into(), "the old content stays");
    }
}
