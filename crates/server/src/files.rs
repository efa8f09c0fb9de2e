//! Files that a configuration names: certificates, keys, tokens, schemas, settings.
//!
//! `throng up`, `throng config check` and `throng doctor` first load them by this one function, so
//! that none of them accepts what another refuses.

use crate::config::{Config, Listener, Problem, ProblemKind, Problems, Settings};
use crate::{
    auth, cluster, ddc, gateway_config, listen, matcher, matchmaking, schemas, services, start, tls,
};

/// Loads every file that the selected services need at their start, and keeps nothing of it.
///
/// # Errors
/// Every file that cannot be used, with the key that names it.
pub fn check_files(config: &Config) -> Result<(), Problems> {
    // Providers of keys begin to fetch them on a runtime; on this one, nothing ever runs.
    let side = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let side = match side {
        Ok(side) => side,
        Err(error) => {
            let problem = problem(config, "server.data", format!("cannot start a runtime: {error}"));
            return Err(Problems(vec![problem]));
        }
    };
    let found = [
        of_gateway(&config.settings, side.handle()),
        of_listener("gateway.servers", &config.settings, &config.settings.servers),
        of_listener("gateway.clients", &config.settings, &config.settings.clients),
        vec![(
            "http.tokens_file".to_owned(),
            start::read_tokens(&config.settings.http.tokens_file).map(drop),
        )],
        ddc::check_files(&config.settings, side.handle()),
        matcher::check_files(&config.settings, side.handle()),
        of_cluster(&config.settings),
    ];
    let wrong = found.into_iter().flatten().filter_map(|(key, checked)| Some((key, checked.err()?)));
    let problems: Vec<Problem> = wrong.map(|(key, why)| problem(config, &key, why)).collect();
    if problems.is_empty() { Ok(()) } else { Err(Problems(problems)) }
}

/// Keys with the result of loading the files that they name.
type Checked = Vec<(String, Result<(), String>)>;

fn problem(config: &Config, key: &str, why: String) -> Problem {
    // Some texts name their key.
    let message =
        if why.starts_with('`') && why[1..].starts_with(key) { why } else { format!("`{key}`: {why}") };
    Problem::new(ProblemKind::BadReference, config.origin(key).clone(), message)
}

fn of_gateway(settings: &Settings, side: &tokio::runtime::Handle) -> Checked {
    let mut found = Checked::new();
    match schemas::load(settings) {
        Ok(schemas) => {
            for settings in
                std::iter::once(settings).chain(settings.classes.iter().map(|class| &class.settings))
            {
                let unknown = gateway_config::unknown_positions(settings, &schemas);
                let checked = if unknown.is_empty() { Ok(()) } else { Err(unknown.join("; ")) };
                found.push(("gateway.spatial.positions".to_owned(), checked));
            }
        }
        Err(why) => found.push(("gateway.schemas".to_owned(), Err(why))),
    }
    let file = match settings.auth.kind.as_str() {
        "jwt" => "jwt_keys_file",
        "http" => "http_authorization_file",
        _ => "tokens_file",
    };
    let provider = auth::provider(&settings.auth, side).map(drop);
    found.push((format!("gateway.auth.{file}"), provider));
    found.push(("gateway.matchmaking.token_file".to_owned(), matchmaking::check_files(settings)));
    found
}

fn of_listener(section: &str, settings: &Settings, listener: &Listener) -> Checked {
    let plans = listen::plan(listener).unwrap_or_default();
    let is_tls = plans.iter().any(|plan| plan.tls) && !listener.tls_cert.is_empty();
    if !is_tls || !services::is_selected(&settings.server.only, services::GATEWAY) {
        return Checked::new();
    }
    let acceptor = tls::acceptor_from(&listener.tls_cert, &listener.tls_key).map(drop);
    vec![(format!("{section}.tls_cert"), acceptor)]
}

fn of_cluster(settings: &Settings) -> Checked {
    let cluster = &settings.cluster;
    if cluster.name.is_empty() {
        return Checked::new();
    }
    vec![("cluster.secret_file".to_owned(), cluster::plan::secret(&cluster.secret_file).map(drop))]
}
