//! The settings of a link: the matcher, the place of the main world, and the credentials.

use std::sync::Arc;

use throng_client::{Endpoint, MatcherConfig};
use throng_matcher_server::Tokens;

use super::area::Local;
use crate::config::Settings;
use crate::services;
use crate::start::{Address, Service, StartError, from_here};

/// Options of a link.
pub(crate) struct Plan {
    /// Place where the main world takes game servers, and the player identifier by which it knows
    /// the link. A node of a cluster has no main world.
    pub(super) gateway: Option<(Endpoint, Arc<str>)>,
    /// The matcher.
    pub(super) matcher: Target,
    /// `SrvID` of this gateway there.
    pub(super) srv: String,
    /// Type of the data of a match's channel; empty for none.
    pub(super) data_type: Arc<str>,
}

/// The matcher that players ask.
pub(super) enum Target {
    /// The one of this process.
    Own(Local),
    /// The one of an area that serves, which is reached by framed RPC at one of these places, with
    /// the credentials for it.
    Remote(Vec<Endpoint>, MatcherConfig),
}

/// Places where the configured matchers of the area are; none if no matcher is configured or it is
/// the one of this process.
///
/// # Errors
/// Why they cannot be used.
pub(crate) fn matcher_endpoints(settings: &Settings) -> Result<Vec<Endpoint>, String> {
    match settings.matchmaking.matcher.as_str() {
        "" => Ok(Vec::new()),
        "own" if !crate::matcher::is_wanted(settings) => {
            Err("this process has no matcher; set `matcher.addr`, or another of its addresses".to_owned())
        }
        "own" => Ok(Vec::new()),
        others => {
            let endpoint = |text: &str| match text.trim().parse::<Endpoint>() {
                _ if text.trim() == "own" => {
                    Err("`own` stands alone; a list has the addresses of other matchers only".to_owned())
                }
                Ok(endpoint) if endpoint.is_encrypted() => {
                    Err("TLS connections to the matcher are not supported".to_owned())
                }
                parsed => parsed.map_err(|error| error.to_string()),
            };
            others.split(',').map(endpoint).collect()
        }
    }
}

const UNKNOWN_TOKEN: &str = "the matcher does not know the token; see `gateway.matchmaking.token_file`";

/// `SrvID` of this gateway at the matcher.
fn srv(settings: &Settings) -> String {
    let node = || {
        let is_node = !settings.cluster.name.is_empty();
        is_node.then(|| crate::cluster::plan::node_name(settings).ok()).flatten()
    };
    match settings.matchmaking.srv.as_str() {
        "" => node().map_or_else(|| "gateway".to_owned(), |node| node.to_string()),
        srv => srv.to_owned(),
    }
}

/// Returns whether players of this process reach a matcher through it.
pub(crate) fn is_wanted(settings: &Settings) -> bool {
    let gateway = services::is_selected(&settings.server.only, services::GATEWAY);
    gateway && !settings.matchmaking.matcher.is_empty()
}

/// The token for the matcher; empty without a file.
fn read_token(settings: &Settings) -> Result<String, String> {
    match settings.matchmaking.token_file.as_str() {
        "" => Ok(String::new()),
        file => std::fs::read_to_string(file).map_err(|error| format!("`{file}`: {error}")),
    }
}

/// Checks that the token can be read, and that a matcher of this process knows it.
///
/// # Errors
/// A phrase with the reason.
pub(crate) fn check_files(settings: &Settings) -> Result<(), String> {
    if !is_wanted(settings) {
        return Ok(());
    }
    let token = read_token(settings)?;
    let is_own = matcher_endpoints(settings)?.is_empty() && crate::matcher::is_wanted(settings);
    match crate::matcher::tokens(settings) {
        // The matcher's file has a problem of its own.
        Ok(tokens) if is_own && tokens.scope(token.trim(), &srv(settings)).is_none() => {
            Err(UNKNOWN_TOKEN.to_owned())
        }
        _ => Ok(()),
    }
}

/// The link that the settings ask for. `addresses` are those of the process, `own` is its matcher.
///
/// # Errors
/// A file or an address that cannot be used.
pub(crate) fn plan(
    settings: &Settings,
    name: Option<Arc<str>>,
    addresses: &[Address],
    own: Option<(&throng_matcher_server::Handle, &Tokens)>,
) -> Result<Option<Plan>, StartError> {
    let matching = &settings.matchmaking;
    if !is_wanted(settings) {
        return Ok(None);
    }
    let key = "gateway.matchmaking.matcher";
    let wrong = |why: &str| StartError::File(format!("`{key}`: {why}"));
    let listens = |service| {
        let found = addresses.iter().find(|each| each.service == service && each.scheme == "tcp");
        found.map(|each| Endpoint::tcp(from_here(each.addr)))
    };
    let no_listener = || wrong("the gateway has no plain TCP listener for game servers");
    let reach = |name| Ok::<_, StartError>((listens(Service::Servers).ok_or_else(no_listener)?, name));
    let gateway = name.map(reach).transpose()?;
    let token = read_token(settings).map_err(StartError::File)?;
    let (token, srv) = (token.trim(), srv(settings));
    let endpoints = matcher_endpoints(settings).map_err(|why| wrong(&why))?;
    let matcher = if endpoints.is_empty() {
        let (handle, tokens) = own.ok_or_else(|| wrong("this process has no matcher"))?;
        let scope = tokens.scope(token, &srv).ok_or_else(|| wrong(UNKNOWN_TOKEN))?;
        Target::Own(Local::new(handle.clone(), &srv, scope))
    } else {
        Target::Remote(endpoints, MatcherConfig::new(&srv).token(token))
    };
    let data_type = matching.data_type.as_str().into();
    Ok(Some(Plan { gateway, matcher, srv, data_type }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_stands_alone_in_the_list_of_matchers() {
        for list in ["own,10.0.0.2:11290", "10.0.0.1:11290, own"] {
            let mut settings = crate::config::Loader::new().load().expect("the defaults").settings;
            settings.matchmaking.matcher = list.to_owned();
            let why = matcher_endpoints(&settings).err();
            assert!(why.as_ref().is_some_and(|why| why.contains("`own` stands alone")), "{list}: {why:?}");
        }
    }

    #[test]
    fn every_node_of_a_cluster_has_a_name_of_its_own_at_the_matcher() {
        let mut settings = crate::config::Loader::new().load().expect("the defaults").settings;
        assert_eq!(srv(&settings), "gateway");
        settings.cluster.node = "n1".to_owned();
        assert_eq!(srv(&settings), "gateway", "not a node");
        settings.cluster.name = "game".to_owned();
        assert_eq!(srv(&settings), "n1");
        settings.matchmaking.srv = "lobby".to_owned();
        assert_eq!(srv(&settings), "lobby");
    }
}
