//! Authorisation: claims of a caller against the access lists of a namespace.

use std::str::FromStr;

use regex::{Regex, RegexBuilder};

use crate::{Bucket, Namespace};

macro_rules! actions {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Something that a caller may be permitted to do.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Action {
            $($(#[$doc])* $name),*
        }

        impl Action {
            /// Every action.
            pub const ALL: &'static [Action] = &[$(Action::$name),*];

            /// The name in configuration and answers.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Action::$name => stringify!($name)),*
                }
            }
        }
    };
}

actions! {
    /// Reads refs, objects and blobs.
    ReadObject,
    /// Writes refs, objects and blobs.
    WriteObject,
    /// Deletes refs, objects and blobs.
    DeleteObject,
    /// Deletes a bucket.
    DeleteBucket,
    /// Deletes a namespace.
    DeleteNamespace,
    /// Reads the replication log.
    ReadTransactionLog,
    /// Writes the replication log.
    WriteTransactionLog,
    /// Administers the service.
    AdminAction,
    /// Lists the refs of a bucket.
    EnumerateBucket,
    /// Reads parts of builds.
    ReadBuildPart,
    /// Writes parts of builds.
    WriteBuildPart,
}

/// A name that is no action.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an action")]
pub struct UnknownAction(String);

impl FromStr for Action {
    type Err = UnknownAction;

    fn from_str(text: &str) -> Result<Action, UnknownAction> {
        let found = Action::ALL.iter().find(|action| action.name().eq_ignore_ascii_case(text));
        found.copied().ok_or_else(|| UnknownAction(text.to_owned()))
    }
}

/// What is known about a caller: names with values, as a token states them. A name may have several
/// values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenClaims(Vec<(String, String)>);

impl TokenClaims {
    /// These names and values.
    pub fn new<N: Into<String>, V: Into<String>>(claims: impl IntoIterator<Item = (N, V)>) -> TokenClaims {
        TokenClaims(claims.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }

    /// Adds one.
    pub fn push(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.push((name.into(), value.into()));
    }

    /// Reports whether `wanted` holds: `*` always, `name=value` if that value is there, `name` if
    /// any value is. Case is ignored.
    #[must_use]
    pub fn satisfy(&self, wanted: &str) -> bool {
        if wanted == "*" {
            return true;
        }
        let same = |a: &str, b: &str| a.eq_ignore_ascii_case(b);
        match wanted.split_once('=') {
            Some((name, value)) => self.0.iter().any(|(n, v)| same(n, name) && same(v, value)),
            None => self.0.iter().any(|(n, _)| same(n, wanted)),
        }
    }
}

/// One entry of an access list: who has all these claims may do these things.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acl {
    /// All must hold. An entry without claims matches nobody.
    pub claims: Vec<String>,
    /// What is permitted then.
    pub actions: Vec<Action>,
}

impl Acl {
    /// Reports whether the caller has all claims.
    #[must_use]
    pub fn matches(&self, caller: &TokenClaims) -> bool {
        !self.claims.is_empty() && self.claims.iter().all(|wanted| caller.satisfy(wanted))
    }
}

/// A part of a name: what the one capture group of a regular expression takes of it.
#[derive(Clone, Debug)]
pub struct Pattern(Regex);

/// An expression that names no part of a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// It cannot be read.
    #[error("{0}")]
    Syntax(String),
    /// It has this many capture groups.
    #[error("it has {0} capture groups; write one, as in `^([a-z]+)-.*$`")]
    Groups(usize),
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Pattern, PatternError> {
        // Names are compared without case everywhere. Matching takes time in proportion to the
        // name, whatever is written.
        let built = RegexBuilder::new(text).case_insensitive(true).size_limit(1 << 20).build();
        let regex = built.map_err(|error| PatternError::Syntax(error.to_string()))?;
        match regex.captures_len() - 1 {
            1 => Ok(Pattern(regex)),
            groups => Err(PatternError::Groups(groups)),
        }
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Eq for Pattern {}

/// Names that a policy covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// Names, or `*` for all.
    pub values: Vec<String>,
    /// Compares this part of a name with `values` instead of all of it; a name without such a part
    /// is none of them.
    pub pattern: Option<Pattern>,
    /// Covers everything but `values`.
    pub not: bool,
}

impl Scope {
    /// These names.
    pub fn of<N: Into<String>>(values: impl IntoIterator<Item = N>) -> Scope {
        Scope { values: values.into_iter().map(Into::into).collect(), pattern: None, not: false }
    }

    /// Everything.
    #[must_use]
    pub fn all() -> Scope {
        Scope::of(["*"])
    }

    /// Reports whether `name` is covered.
    #[must_use]
    pub fn covers(&self, name: &str) -> bool {
        let compared = match &self.pattern {
            None => Some(name),
            Some(Pattern(regex)) => {
                regex.captures(name).and_then(|found| found.get(1)).map(|part| part.as_str())
            }
        };
        let named = compared.is_some_and(|name| {
            self.values.iter().any(|value| value == "*" || value.eq_ignore_ascii_case(name))
        });
        named != self.not
    }
}

/// An access list entry with a name, for some namespaces and buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Reported when it matches.
    pub name: String,
    /// Who and what.
    pub acl: Acl,
    /// Any must cover the namespace.
    pub namespaces: Vec<Scope>,
    /// Any must cover the bucket, if the request has one. Empty covers all.
    pub buckets: Vec<Scope>,
}

impl Policy {
    /// Reports whether this entry applies to the caller there.
    #[must_use]
    pub fn matches(&self, caller: &TokenClaims, namespace: &Namespace, bucket: Option<&Bucket>) -> bool {
        let in_bucket = match bucket {
            Some(bucket) if !self.buckets.is_empty() => {
                self.buckets.iter().any(|scope| scope.covers(bucket.as_str()))
            }
            _ => true,
        };
        in_bucket
            && self.namespaces.iter().any(|scope| scope.covers(namespace.as_str()))
            && self.acl.matches(caller)
    }
}

/// All policies of a service. Without one that matches, nothing is permitted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policies(pub Vec<Policy>);

impl Policies {
    /// The policies that apply to the caller there.
    pub fn matching<'p>(
        &'p self,
        caller: &'p TokenClaims,
        namespace: &'p Namespace,
        bucket: Option<&'p Bucket>,
    ) -> impl Iterator<Item = &'p Policy> {
        self.0.iter().filter(move |policy| policy.matches(caller, namespace, bucket))
    }

    /// Reports whether the caller may do `action` there.
    #[must_use]
    pub fn permit(
        &self,
        caller: &TokenClaims,
        action: Action,
        namespace: &Namespace,
        bucket: Option<&Bucket>,
    ) -> bool {
        self.matching(caller, namespace, bucket).any(|policy| policy.acl.actions.contains(&action))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(claims: &[&str], actions: &[Action], namespaces: &[&str], not: bool) -> Policy {
        let own = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Policy {
            name: "test".to_owned(),
            acl: Acl { claims: own(claims), actions: actions.to_vec() },
            namespaces: vec![Scope { not, ..Scope::of(own(namespaces)) }],
            buckets: Vec::new(),
        }
    }

    #[test]
    fn claims_are_anded_and_policies_ored() {
        let policies = Policies(vec![
            policy(
                &["groups=Dev", "team"],
                &[Action::ReadObject, Action::WriteObject],
                &["game.*", "game"],
                false,
            ),
            policy(&["*"], &[Action::ReadObject], &["open"], false),
            policy(&["role=admin"], &[Action::AdminAction], &["game"], true),
            policy(&[], &[Action::DeleteNamespace], &["*"], false),
        ]);
        let [game, open, other]: [Namespace; 3] =
            ["game", "open", "other"].map(|name| name.parse().expect("a name"));
        let dev = TokenClaims::new([("Groups", "artist"), ("groups", "dev"), ("team", "x")]);
        let half = TokenClaims::new([("groups", "dev")]);
        let admin = TokenClaims::new([("role", "admin")]);
        let may = |caller: &TokenClaims, action, namespace| policies.permit(caller, action, namespace, None);
        assert!(may(&dev, Action::WriteObject, &game));
        assert!(!may(&half, Action::WriteObject, &game), "a claim is missing");
        assert!(!may(&dev, Action::WriteObject, &open));
        assert!(may(&TokenClaims::default(), Action::ReadObject, &open));
        assert!(may(&admin, Action::AdminAction, &other) && !may(&admin, Action::AdminAction, &game));
        for caller in [&dev, &half, &admin] {
            assert!(!may(caller, Action::DeleteNamespace, &other), "no claims match nobody");
        }
    }

    #[test]
    fn buckets_narrow_a_policy() {
        let mut only = policy(&["*"], &[Action::ReadObject], &["*"], false);
        only.buckets = vec![Scope::of(["shaders"])];
        let policies = Policies(vec![only]);
        let namespace = "n".parse().expect("a name");
        let permit = |bucket: Option<&str>| {
            let bucket: Option<Bucket> = bucket.map(|name| name.parse().expect("a name"));
            policies.permit(&TokenClaims::default(), Action::ReadObject, &namespace, bucket.as_ref())
        };
        assert!(permit(Some("Shaders")) && !permit(Some("textures")) && permit(None));
    }

    #[test]
    fn a_pattern_compares_a_part_of_the_name() {
        let scope = |pattern: &str, values: &[&str], not| Scope {
            pattern: Some(pattern.parse().expect("a pattern")),
            not,
            ..Scope::of(values.iter().copied())
        };
        let games = scope("^([a-z]+)-(?:main|release)$", &["Tag", "chess"], false);
        assert!(games.covers("tag-main") && games.covers("Chess-Release"));
        assert!(!games.covers("tag-next") && !games.covers("go-main") && !games.covers("tag"));
        let others = scope("^([a-z]+)-", &["tag"], true);
        assert!(others.covers("go-main") && others.covers("tag") && !others.covers("tag-main"));
        assert!(scope("^(.*)$", &["*"], false).covers("anything"));
        for (bad, why) in
            [("a(b", "unclosed group"), ("ab", "0 capture groups"), ("(a)(b)", "2 capture groups")]
        {
            let error = bad.parse::<Pattern>().expect_err("no pattern").to_string();
            assert!(error.contains(why), "{error}");
        }
        // What other engines take exponential time for.
        assert!(!scope("^((?:a|aa)+)$", &["x"], false).covers(&("a".repeat(60) + "b")));
    }

    #[test]
    fn actions_have_names() {
        for action in Action::ALL {
            assert_eq!(action.name().parse(), Ok(*action));
        }
        assert!("Read".parse::<Action>().is_err());
    }
}
