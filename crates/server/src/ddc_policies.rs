//! Access policies of the cache, from the configuration and a file in the form of Cloud DDC.

use serde::Deserialize;
use throng_ddc::Namespace;
use throng_ddc::policy::{Acl, Action, Pattern, Policies, Policy, Scope};

use crate::config::Ddc;

/// The policies of `ddc.grants` and of `ddc.policies_file`.
///
/// # Errors
/// Which of them is wrong, and what it should be.
pub(crate) fn read(ddc: &Ddc) -> Result<Policies, String> {
    let mut policies = read_grants(ddc).map_err(|wrong| wrong.join("; "))?;
    policies.append(&mut read_file(ddc)?);
    Ok(Policies(policies))
}

/// The policies of `ddc.grants`.
///
/// # Errors
/// Which of them is wrong, and what it should be.
pub(crate) fn read_grants(ddc: &Ddc) -> Result<Vec<Policy>, Vec<String>> {
    let (mut policies, mut wrong) = (Vec::new(), Vec::new());
    for (name, grant) in &ddc.grants {
        match read_grant(name, grant) {
            Ok(policy) => policies.push(policy),
            Err(why) => wrong.push(why),
        }
    }
    if wrong.is_empty() { Ok(policies) } else { Err(wrong) }
}

/// The policies of `ddc.policies_file`.
///
/// # Errors
/// Where in the file something is wrong, and what it should be.
pub(crate) fn read_file(ddc: &Ddc) -> Result<Vec<Policy>, String> {
    let path = &ddc.policies_file;
    if path.is_empty() {
        return Ok(Vec::new());
    }
    let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read `{path}`: {error}"))?;
    read_policies(&text).map_err(|why| format!("`{path}`: {why}"))
}

/// Reads `CLAIMS ACTIONS NAMESPACES [BUCKETS]`.
fn read_grant(name: &str, text: &str) -> Result<Policy, String> {
    let parts: Vec<&str> = text.split_whitespace().collect();
    let (claims, actions, namespaces, buckets) = match parts[..] {
        [claims, actions, namespaces] => (claims, actions, namespaces, None),
        [claims, actions, namespaces, buckets] => (claims, actions, namespaces, Some(buckets)),
        _ => {
            return Err(format!("`{name}` is written CLAIMS ACTIONS NAMESPACES [BUCKETS], found \"{text}\""));
        }
    };
    let actions = read_actions(actions.split(',')).map_err(|error| format!("`{name}`: {error}"))?;
    for namespace in namespaces.split(',').filter(|namespace| *namespace != "*") {
        namespace.parse::<Namespace>().map_err(|error| format!("`{name}`: `{namespace}`: {error}"))?;
    }
    Ok(Policy {
        name: name.to_owned(),
        acl: Acl { claims: claims.split(',').map(str::to_owned).collect(), actions },
        namespaces: vec![Scope::of(namespaces.split(','))],
        buckets: buckets.map(|buckets| Scope::of(buckets.split(','))).into_iter().collect(),
    })
}

fn read_actions<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Vec<Action>, String> {
    let mut actions = Vec::new();
    for name in names {
        match name {
            "*" => actions.extend(Action::ALL),
            name => actions.push(name.parse().map_err(|error| {
                let known: Vec<&str> = Action::ALL.iter().map(|action| action.name()).collect();
                format!("{error}; expected `*` or one of {}", known.join(", "))
            })?),
        }
    }
    Ok(actions)
}

/// A policy as Cloud DDC writes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: String,
    claims: Vec<String>,
    actions: Vec<String>,
    scope: WrittenScopes,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenScopes {
    namespaces: Vec<WrittenScope>,
    #[serde(default)]
    buckets: Vec<WrittenScope>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenScope {
    values: Vec<String>,
    #[serde(default, rename = "match")]
    pattern: Option<String>,
    #[serde(default)]
    not: bool,
}

impl WrittenScope {
    fn read(self) -> Result<Scope, String> {
        let pattern = self.pattern.filter(|text| !text.is_empty());
        let pattern = pattern
            .map(|text| text.parse::<Pattern>().map_err(|error| format!("bad `match` \"{text}\": {error}")));
        Ok(Scope { pattern: pattern.transpose()?, not: self.not, ..Scope::of(self.values) })
    }
}

/// Reads a list of `{name, claims, actions, scope: {namespaces: [{values, match, not}], buckets:
/// [...]}}`.
fn read_policies(text: &str) -> Result<Vec<Policy>, String> {
    let written: Vec<Written> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let read = |policy: Written| {
        let scopes =
            |scopes: Vec<WrittenScope>| scopes.into_iter().map(WrittenScope::read).collect::<Result<_, _>>();
        Ok(Policy {
            acl: Acl {
                actions: read_actions(policy.actions.iter().map(String::as_str))?,
                claims: policy.claims,
            },
            namespaces: scopes(policy.scope.namespaces)?,
            buckets: scopes(policy.scope.buckets)?,
            name: policy.name,
        })
    };
    let named = |policy: Written| {
        let name = policy.name.clone();
        read(policy).map_err(|why: String| format!("policy `{name}`: {why}"))
    };
    written.into_iter().map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use throng_ddc::policy::TokenClaims;

    #[test]
    fn grants_are_read() {
        let policy =
            read_grant("artists", "group=artists,team ReadObject,writeobject game,test").expect("valid");
        assert_eq!(policy.acl.claims, ["group=artists", "team"]);
        assert_eq!(policy.acl.actions, [Action::ReadObject, Action::WriteObject]);
        assert_eq!(policy.namespaces, [Scope::of(["game", "test"])]);
        assert_eq!(policy.buckets, []);
        let narrow = read_grant("shaders", "* ReadObject game shaders,ddc").expect("valid");
        assert_eq!(narrow.buckets, [Scope::of(["shaders", "ddc"])]);
        assert_eq!(read_grant("all", "* * *").expect("valid").acl.actions.len(), Action::ALL.len());
        for bad in ["", "* *", "* Fly *", "* * a/b", "* * * * *"] {
            assert!(read_grant("x", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_file_of_policies_is_read() {
        let text = r#"[{
            "name": "builders of a game",
            "claims": ["groups=build"],
            "actions": ["ReadObject", "WriteObject"],
            "scope": {
                "namespaces": [{"values": ["tag"], "match": "^([a-z]+)-.*$"}],
                "buckets": [{"values": ["secret"], "not": true}]
            }
        }]"#;
        let policies = Policies(read_policies(text).expect("valid"));
        let may = |group: &str, namespace: &str, bucket: &str| {
            let claims = TokenClaims::new([("groups", group)]);
            let (namespace, bucket) = (namespace.parse().expect("a name"), bucket.parse().expect("a name"));
            policies.permit(&claims, Action::WriteObject, &namespace, Some(&bucket))
        };
        assert!(may("build", "tag-main", "shaders"));
        assert!(!may("play", "tag-main", "shaders"));
        assert!(!may("build", "chess-main", "shaders"));
        assert!(!may("build", "tag-main", "secret"));
    }

    #[test]
    fn what_is_wrong_with_a_file_of_policies_is_said() {
        let policy = |actions: &str, scope: &str| {
            format!(r#"[{{"name": "a", "claims": ["*"], "actions": [{actions}], "scope": {scope}}}]"#)
        };
        let all = r#"{"namespaces": [{"values": ["*"]}]}"#;
        assert_eq!(read_policies(&policy("\"*\"", all)).expect("valid").len(), 1);
        let pattern = r#"{"namespaces": [{"values": ["*"], "match": "game"}]}"#;
        for (text, why) in [
            ("{}".to_owned(), "expected a sequence"),
            (policy("\"Fly\"", all), "policy `a`: `Fly` is not an action; expected `*` or one of ReadObject"),
            (policy("\"*\"", "{}"), "missing field `namespaces`"),
            (
                policy("\"*\"", r#"{"namespace": []}"#),
                "unknown field `namespace`, expected `namespaces` or `buckets`",
            ),
            (policy("\"*\"", pattern), "policy `a`: bad `match` \"game\": it has 0 capture groups"),
        ] {
            let error = read_policies(&text).expect_err("wrong");
            assert!(error.contains(why), "{error}");
        }
    }
}
