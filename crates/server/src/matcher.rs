//! The matcher within a process: its settings, its rules, its folder.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use throng_matcher::{ModeRules, QueueRules};
use throng_matching::{Durability, Options, Service as Matching, Tokens};
use throng_net::{TlsAcceptor, tls_server_config};
use throng_store::{Folder, Fs};

use crate::config::{Settings, resolve_addr};
use crate::services;
use crate::start::{Address, Service, StartError};

/// Folder below the data folder.
const FOLDER: &str = "matcher";

/// A file of match modes and queues.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Rules {
    modes: BTreeMap<String, ModeRules>,
    queues: Vec<QueueRules>,
}

/// Starts the matcher if the settings give it an address.
///
/// # Errors
/// An address that cannot be listened on, a folder that cannot be used, files that do not fit.
pub(crate) fn start(settings: &Settings, secret: [u8; 32]) -> Result<Option<Matching>, StartError> {
    let matcher = &settings.matcher;
    if !services::is_selected(&settings.server.only, services::MATCHER) || matcher.addr.is_empty() {
        return Ok(None);
    }
    let addr = resolve_addr(&matcher.addr).map_err(StartError::File)?;
    let rules = rules(&matcher.rules)?;
    let durability = match matcher.durability.as_str() {
        "none" => Durability::None,
        "sync" => Durability::Sync,
        _ => Durability::Async,
    };
    let fs: Option<Arc<dyn Fs>> = if durability == Durability::None {
        None
    } else {
        let folder = Path::new(&settings.server.data).join(FOLDER);
        let opened = Folder::new(&folder);
        Some(Arc::new(opened.map_err(|error| StartError::File(format!("`{}`: {error}", folder.display())))?))
    };
    let config = throng_matcher::Config {
        modes: rules.modes,
        queues: rules.queues,
        presence_grace_ms: matcher.presence_grace_ms,
        ..throng_matcher::Config::default()
    };
    let tokens = read(&matcher.tokens_file)?;
    let tokens = Tokens::parse(&tokens)
        .map_err(|error| StartError::File(format!("`{}`: {error}", matcher.tokens_file)))?;
    let options = Options {
        addr: Some(addr),
        tls: tls(&matcher.tls_cert, &matcher.tls_key)?,
        config,
        durability,
        fs,
        tokens,
        area: matcher.area.clone(),
        secret,
        salvage: matcher.salvage,
    };
    throng_matching::start(options)
        .map(Some)
        .map_err(|error| StartError::File(format!("the matcher: {error}")))
}

/// Where it listens.
pub(crate) fn address(settings: &Settings, service: &Matching) -> Option<Address> {
    let scheme = if settings.matcher.tls_cert.is_empty() { "tcp" } else { "tls" };
    Some(Address { service: Service::Matcher, scheme, addr: service.addr()? })
}

fn rules(file: &str) -> Result<Rules, StartError> {
    toml::from_str(&read(file)?).map_err(|error| StartError::File(format!("`{file}`: {error}")))
}

fn tls(cert: &str, key: &str) -> Result<Option<TlsAcceptor>, StartError> {
    if cert.is_empty() {
        return Ok(None);
    }
    let config = tls_server_config(read(cert)?.as_bytes(), read(key)?.as_bytes());
    config
        .map(|config| Some(TlsAcceptor::new(config)))
        .map_err(|error| StartError::File(format!("`{cert}`: {error}")))
}

/// A file's text; an empty name is an empty file.
fn read(file: &str) -> Result<String, StartError> {
    if file.is_empty() {
        return Ok(String::new());
    }
    std::fs::read_to_string(file).map_err(|error| StartError::File(format!("`{file}`: {error}")))
}
