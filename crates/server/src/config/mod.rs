//! The configuration: one definition of every key, layered values with their origin, and the texts
//! made from it.
//!
//! Layers in rising weight: built-in default, default of the subcommand, file, environment, flag.
//! Start at [`Loader`]; the typed result is [`Settings`]. The definition itself is in `keys.rs`.

mod check;
mod keys;
mod load;
mod problem;
mod reference;
mod value;

use std::collections::BTreeMap;
use std::path::PathBuf;

pub use keys::{
    Auth, CLASS_KEYS, CLASSES, Class, ClassKeys, Ddc, DdcTier, DdcUpstream, Gateway, Http, KEYS, Key, Limits,
    Listener, Log, Metrics, Recordings, Recovery, SECTIONS, Section, Server, Settings, Spatial, key,
    keys_of_worlds,
};
pub use load::Loader;
pub use problem::{Origin, Problem, ProblemKind, Problems};
pub use reference::{default_toml, markdown, schema};

pub(crate) use check::is_area;
pub(crate) use keys::Values;
pub use value::{Kind, Value, nearest, resolve_addr, split_addr};

/// A checked configuration that knows where each value came from.
#[derive(Clone, Debug)]
pub struct Config {
    /// The typed values.
    pub settings: Settings,
    /// Remarks that do not stop a start.
    pub warnings: Vec<String>,
    values: keys::Values,
    origins: BTreeMap<String, Origin>,
    classes: Vec<load::ClassLayer>,
    file: Option<PathBuf>,
    loader: Loader,
}

/// Changes found by a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Keys whose new value applies at once.
    pub applied: Vec<String>,
    /// Keys whose new value waits for a restart.
    pub need_restart: Vec<String>,
}

impl Config {
    /// Origin of the value of a key.
    #[must_use]
    pub fn origin(&self, path: &str) -> &Origin {
        self.origins.get(path).unwrap_or(&Origin::Default)
    }

    /// Origin of a key of the class at `index`, or of the class if it does not set the key.
    pub(crate) fn class_origin(&self, index: usize, key: &str) -> &Origin {
        let origins = self.classes.get(index).map(|class| &class.origins);
        origins.and_then(|known| known.get(key).or_else(|| known.get(""))).unwrap_or(&Origin::Default)
    }

    /// The keys that each class sets, in the order of `settings.classes`.
    pub(crate) fn class_values(&self) -> impl Iterator<Item = &keys::Values> {
        self.classes.iter().map(|class| &class.values)
    }

    /// The value of a key.
    #[must_use]
    pub fn value(&self, path: &str) -> Option<&Value> {
        self.values.get(path)
    }

    /// The file that was read, if any.
    #[must_use]
    pub fn file(&self) -> Option<&PathBuf> {
        self.file.as_ref()
    }

    /// All keys with value and origin, in documentation order.
    pub fn entries(&self) -> impl Iterator<Item = (&'static Key, &Value, &Origin)> {
        KEYS.iter().map(|key| (key, &self.values[&key.path], self.origin(&key.path)))
    }

    /// The keys of each class by their names in it: its own, and those of its worlds that it sets.
    /// Its worlds have the other ones from [`entries`](Self::entries).
    pub fn class_entries(&self) -> impl Iterator<Item = Vec<(&'static str, &Value, &Origin)>> {
        self.classes.iter().map(|class| {
            let own = keys::CLASS_KEYS.iter().map(|key| {
                let name = key.path.rsplit_once('.').map_or(key.path.as_str(), |(_, name)| name);
                (name, class.values.get(&key.path).unwrap_or(&key.default))
            });
            let of_worlds = keys::keys_of_worlds();
            let set = of_worlds.filter_map(|(name, key)| Some((name, class.values.get(&key.path)?)));
            let origin = |name| class.origins.get(name).unwrap_or(&Origin::Default);
            own.chain(set).map(|(name, value)| (name, value, origin(name))).collect()
        })
    }

    /// Reads the same layers again, as SIGHUP asks for.
    ///
    /// # Errors
    /// Every problem; the running configuration then stays as it is.
    pub fn reload(&self) -> Result<Config, Problems> {
        self.loader.clone().load()
    }

    /// The configuration after a reload of `next`, with its differences from `self`, which runs.
    /// Keys that wait for a restart keep their running values, so that later reloads report them
    /// until the file agrees with the process again.
    #[must_use]
    pub fn replaced_by(&self, mut next: Config) -> (Config, Changes) {
        let mut changes = Changes::default();
        let set = |config: &Config| -> Vec<keys::Values> {
            config.classes.iter().map(|class| class.values.clone()).collect()
        };
        if set(self) != set(&next) {
            // For worlds that open from now on.
            changes.applied.push(keys::CLASSES.to_owned());
        }
        for key in KEYS.iter() {
            let path = &key.path;
            if self.values[path] == next.values[path] {
                continue;
            }
            if key.reload {
                changes.applied.push(path.clone());
                continue;
            }
            changes.need_restart.push(path.clone());
            next.values.insert(path.clone(), self.values[path].clone());
            match self.origins.get(path) {
                Some(origin) => next.origins.insert(path.clone(), origin.clone()),
                None => next.origins.remove(path),
            };
        }
        (next, changes)
    }
}
