//! Values of configuration keys: their kinds, parsing from TOML and from strings, and printing.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::LazyLock;

use toml::de::DeValue;

/// Type of a key's value: how it is read, and which values are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`.
    Bool,
    /// A whole number within both bounds (inclusive).
    Int {
        /// Smallest allowed value.
        min: i64,
        /// Largest allowed value.
        max: i64,
    },
    /// Any text.
    Text,
    /// One of the listed words.
    Choice(&'static [&'static str]),
    /// `host:port` or `:port` (all interfaces); empty = not used.
    Addr,
    /// A file or folder; empty = not used. Relative paths count from the working directory.
    Path,
    /// A folder that must be named. Relative paths count from the working directory.
    Folder,
    /// A list of strings.
    List,
    /// A table from text to text.
    Map,
}

/// The value of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Of [`Kind::Bool`].
    Bool(bool),
    /// Of [`Kind::Int`].
    Int(i64),
    /// Of every kind that is written as one text.
    Text(String),
    /// Of [`Kind::List`].
    List(Vec<String>),
    /// Of [`Kind::Map`].
    Map(BTreeMap<String, String>),
}

impl Kind {
    /// Reads a value from a parsed TOML file.
    ///
    /// # Errors
    /// A sentence that names what was found, when the type or the value is not allowed.
    pub fn from_toml(self, value: &DeValue<'_>) -> Result<Value, String> {
        let found = || format!("found {}", describe(value));
        let parsed = match (self, value) {
            (Kind::Bool, DeValue::Boolean(flag)) => Value::Bool(*flag),
            (Kind::Int { .. }, DeValue::Integer(number)) => {
                let digits = number.as_str();
                Value::Int(i64::from_str_radix(digits, number.radix()).map_err(|_| found())?)
            }
            (
                Kind::Text | Kind::Choice(_) | Kind::Addr | Kind::Path | Kind::Folder,
                DeValue::String(text),
            ) => Value::Text(text.to_string()),
            // One that is a number may be written as one.
            (Kind::Choice(words), DeValue::Integer(number))
                if words.iter().any(|word| *word == number.as_str()) =>
            {
                Value::Text(number.as_str().to_owned())
            }
            (Kind::List, DeValue::Array(items)) => Value::List(
                items
                    .iter()
                    .map(|item| match item.get_ref() {
                        DeValue::String(text) => Ok(text.to_string()),
                        other => Err(format!("found {} in the list", describe(other))),
                    })
                    .collect::<Result<_, _>>()?,
            ),
            (Kind::List, DeValue::String(text)) => {
                return Err(format!("found the string {text:?}; write [{text:?}]"));
            }
            (Kind::Map, DeValue::Table(table)) => Value::Map(
                table
                    .iter()
                    .map(|(key, item)| match item.get_ref() {
                        DeValue::String(text) => Ok((key.get_ref().to_string(), text.to_string())),
                        other => Err(format!("found {} for `{}`", describe(other), key.get_ref())),
                    })
                    .collect::<Result<_, _>>()?,
            ),
            _ => return Err(found()),
        };
        self.check(parsed)
    }

    /// Reads a value from the text of an environment variable or a flag.
    ///
    /// Lists are separated by commas, tables are `name=value` pairs separated by commas.
    ///
    /// # Errors
    /// As [`Kind::from_toml`].
    pub fn from_text(self, text: &str) -> Result<Value, String> {
        let trimmed = text.trim();
        let found = || format!("found `{trimmed}`");
        let items = || trimmed.split(',').map(str::trim).filter(|item| !item.is_empty());
        let parsed = match self {
            Kind::Bool => Value::Bool(match trimmed.to_ascii_lowercase().as_str() {
                "true" | "1" | "yes" | "on" => true,
                "false" | "0" | "no" | "off" => false,
                _ => return Err(found()),
            }),
            Kind::Int { .. } => Value::Int(parse_int(trimmed).ok_or_else(found)?),
            Kind::Text | Kind::Choice(_) | Kind::Addr | Kind::Path | Kind::Folder => {
                Value::Text(trimmed.to_owned())
            }
            Kind::List => Value::List(items().map(str::to_owned).collect()),
            Kind::Map => Value::Map(
                items()
                    .map(|item| match item.split_once('=') {
                        Some((name, value)) => Ok((name.trim().to_owned(), value.trim().to_owned())),
                        None => Err(format!("found `{item}` without `=`")),
                    })
                    .collect::<Result<_, _>>()?,
            ),
        };
        self.check(parsed)
    }

    /// Allowed values, as a phrase for messages and the reference page.
    #[must_use]
    pub fn allowed(self) -> String {
        match self {
            Kind::Bool => "true or false".to_owned(),
            Kind::Int { min, max } if min == max => min.to_string(),
            Kind::Int { min, max: i64::MAX } => format!("integer from {min}"),
            Kind::Int { min, max } => format!("integer from {min} to {max}"),
            Kind::Text => "string".to_owned(),
            Kind::Choice(words) => {
                let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
                format!("one of {}", quoted.join(", "))
            }
            Kind::Addr => "\"host:port\", \":port\" (all interfaces) or \"\" (none)".to_owned(),
            Kind::Path => "path, or \"\" (none)".to_owned(),
            Kind::Folder => "path".to_owned(),
            Kind::List => "list of strings".to_owned(),
            Kind::Map => "table of strings".to_owned(),
        }
    }

    /// The placeholder shown in help texts.
    #[must_use]
    pub fn placeholder(self) -> &'static str {
        match self {
            Kind::Bool => "BOOL",
            Kind::Int { .. } => "N",
            Kind::Text => "TEXT",
            Kind::Choice(_) => "WORD",
            Kind::Addr => "ADDR",
            Kind::Path | Kind::Folder => "PATH",
            Kind::List => "A,B,...",
            Kind::Map => "K=V,...",
        }
    }

    fn check(self, value: Value) -> Result<Value, String> {
        match (self, &value) {
            (Kind::Int { min, max }, Value::Int(number)) if !(min..=max).contains(number) => {
                Err(format!("found {number}"))
            }
            (Kind::Folder, Value::Text(text)) if text.is_empty() => Err("found \"\"".to_owned()),
            (Kind::Choice(words), Value::Text(text)) if !words.contains(&text.as_str()) => {
                let near = nearest(text, words.iter().copied());
                let hint = near.map(|word| format!("; did you mean \"{word}\"?")).unwrap_or_default();
                Err(format!("found \"{text}\"{hint}"))
            }
            (Kind::Addr, Value::Text(text)) if !text.is_empty() => {
                split_addr(text).map(|_| value.clone()).map_err(|why| format!("found \"{text}\": {why}"))
            }
            _ => Ok(value),
        }
    }
}

impl Value {
    /// The value as a TOML literal.
    #[must_use]
    pub fn to_toml(&self) -> String {
        match self {
            Value::Bool(flag) => flag.to_string(),
            Value::Int(number) => number.to_string(),
            Value::Text(text) => quote(text),
            Value::List(items) => {
                format!("[{}]", items.iter().map(|item| quote(item)).collect::<Vec<_>>().join(", "))
            }
            Value::Map(map) if map.is_empty() => "{}".to_owned(),
            Value::Map(map) => {
                let pairs: Vec<String> =
                    map.iter().map(|(name, value)| format!("{} = {}", quote(name), quote(value))).collect();
                format!("{{ {} }}", pairs.join(", "))
            }
        }
    }

    /// The value as JSON.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        match self {
            Value::Bool(flag) => (*flag).into(),
            Value::Int(number) => (*number).into(),
            Value::Text(text) => text.as_str().into(),
            Value::List(items) => items.as_slice().into(),
            Value::Map(map) => map
                .iter()
                .map(|(name, value)| (name.clone(), serde_json::Value::from(value.as_str())))
                .collect(),
        }
    }
}

fn quote(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

fn describe(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("the string \"{text}\""),
        DeValue::Integer(number) => format!("the number {number}"),
        DeValue::Float(number) => format!("the float {number}"),
        DeValue::Boolean(flag) => format!("{flag}"),
        DeValue::Datetime(_) => "a date".to_owned(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

fn parse_int(text: &str) -> Option<i64> {
    let digits = text.replace('_', "");
    match digits.strip_prefix("0x") {
        Some(hex) => i64::from_str_radix(hex, 16).ok(),
        None => digits.parse().ok(),
    }
}

/// Splits `host:port` or `:port`; an empty host means all interfaces.
///
/// # Errors
/// A phrase that says what is missing.
pub fn split_addr(text: &str) -> Result<(&str, u16), String> {
    let (host, port) = text.rsplit_once(':').ok_or("the port is missing")?;
    let port: u16 = port.parse().map_err(|_| format!("`{port}` is not a port (0 to 65535)"))?;
    if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
        return Err("an IPv6 host needs brackets, as in [::1]:80".to_owned());
    }
    Ok((host, port))
}

/// The address that means all interfaces: both families where the system has IPv6.
fn everywhere() -> IpAddr {
    static BOTH: LazyLock<bool> = LazyLock::new(|| UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok());
    if *BOTH { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
}

/// Turns `host:port` into the address to bind; `:port` is every interface.
///
/// # Errors
/// A phrase with the reason, when the text is no address or the host name has none.
pub fn resolve_addr(text: &str) -> Result<SocketAddr, String> {
    let (host, port) = split_addr(text)?;
    if host.is_empty() || host == "*" {
        return Ok((everywhere(), port).into());
    }
    if let Ok(addr) = text.parse() {
        return Ok(addr);
    }
    (host, port)
        .to_socket_addrs()
        .map_err(|error| format!("cannot resolve host `{host}`: {error}"))?
        .next()
        .ok_or_else(|| format!("host `{host}` has no address"))
}

/// The candidate that a person most likely meant, if one is close enough.
#[must_use]
pub fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // A third of the letters wrong is the point where suggestions start to look random.
    let letters = word.chars().count();
    let limit = (letters / 3).max(2);
    candidates
        .map(|candidate| (distance(word, candidate), candidate))
        // In a short word two wrong letters are most of it: `udp` is no misspelt `tcp`.
        .filter(|(distance, candidate)| {
            let is_alike = *distance <= letters / 3 || candidate.chars().next() == word.chars().next();
            *distance <= limit && is_alike
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Edit distance that counts a swap of neighbours as one edit.
fn distance(left: &str, right: &str) -> usize {
    let (left, right): (Vec<char>, Vec<char>) = (left.chars().collect(), right.chars().collect());
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=right.len()).collect();
    for row in 1..=left.len() {
        let mut current = vec![row; right.len() + 1];
        for column in 1..=right.len() {
            let same = left[row - 1] == right[column - 1];
            let mut best =
                (last[column] + 1).min(current[column - 1] + 1).min(last[column - 1] + usize::from(!same));
            let swapped = row > 1
                && column > 1
                && left[row - 1] == right[column - 2]
                && left[row - 2] == right[column - 1];
            if swapped {
                best = best.min(before_last[column - 2] + 1);
            }
            current[column] = best;
        }
        before_last = std::mem::replace(&mut last, current);
    }
    last[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_edits_and_swaps() {
        assert_eq!(distance("gateway", "gateway"), 0);
        assert_eq!(distance("gatway", "gateway"), 1);
        assert_eq!(distance("gaetway", "gateway"), 1);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(nearest("shrads", ["shards", "data"].into_iter()), Some("shards"));
        assert_eq!(nearest("zzzzzz", ["shards", "data"].into_iter()), None);
    }

    #[test]
    fn addresses_are_split_and_resolved() {
        assert!(resolve_addr(":80").unwrap().ip().is_unspecified());
        assert_eq!(resolve_addr("127.0.0.1:0"), Ok("127.0.0.1:0".parse().unwrap()));
        assert_eq!(resolve_addr("[::1]:5"), Ok("[::1]:5".parse().unwrap()));
        assert!(split_addr("::1:5").is_err());
        assert!(split_addr("host").is_err());
        assert!(split_addr("host:99999").is_err());
    }

    #[test]
    fn a_string_for_a_list_is_refused_with_the_list_to_write() {
        let refused = Kind::List.from_toml(&DeValue::String("gateway".into()));
        assert_eq!(refused, Err("found the string \"gateway\"; write [\"gateway\"]".to_owned()));
    }

    #[test]
    fn texts_are_read_by_kind() {
        let int = Kind::Int { min: 1, max: 300_000 };
        assert_eq!(int.from_text("0x10"), Ok(Value::Int(16)));
        assert_eq!(int.from_text("65_536"), Ok(Value::Int(65_536)));
        assert!(int.from_text("0").is_err());
        assert_eq!(Kind::Bool.from_text("On"), Ok(Value::Bool(true)));
        assert_eq!(Kind::List.from_text("a, b,"), Ok(Value::List(vec!["a".into(), "b".into()])));
        assert_eq!(Kind::Map.from_text("a=b").unwrap().to_toml(), r#"{ "a" = "b" }"#);
        assert!(Kind::Choice(&["tcp", "ws"]).from_text("tpc").unwrap_err().contains("tcp"));
    }

    #[test]
    fn literals_print_as_toml() {
        assert_eq!(Value::Text("a\"b".into()).to_toml(), r#"'a"b'"#);
        assert_eq!(Value::List(vec!["a".into()]).to_toml(), r#"["a"]"#);
    }
}
