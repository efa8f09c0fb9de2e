//! Files that a configuration names: certificates, keys, tokens, schemas, settings.
//!
//! A start, `throng config check` and `throng doctor` load them by this one module, so that none of
//! them accepts what another refuses.

use throng_gateway::data::Schemas;

use crate::config::{Config, Listener, Problem, ProblemKind, Problems, Settings};
use crate::{
    auth, cluster, ddc, gateway_config, listen, matcher, matchmaking, schemas, services, start, tls,
};

/// Loads every file that the selected services need at their start, and keeps nothing of it.
///
/// # Errors
/// Every file that cannot be used, with the key that names it.
pub fn check_files(config: &Config) -> Result<(), Problems> {
    load(config).map(drop)
}

/// As [`check_files`], and returns the compiled schemas: they take longer than all other files
/// together, so that a start compiles them once.
pub(crate) fn load(config: &Config) -> Result<Schemas, Problems> {
    // Providers of keys begin to fetch them on a runtime; on this one, nothing ever runs.
    let side = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let side = match side {
        Ok(side) => side,
        Err(error) => {
            let problem = problem(config, "server.data", format!("cannot start a runtime: {error}"));
            return Err(Problems(vec![problem]));
        }
    };
    let schemas = schemas::load(&config.settings);
    let found = [
        of_gateway(&config.settings, schemas.as_ref(), side.handle()),
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
    // A drop waits, which tasks that start a server must not.
    side.shutdown_background();
    let wrong = found.into_iter().flatten().filter_map(|(key, checked)| Some((key, checked.err()?)));
    let problems: Vec<Problem> = wrong.map(|(key, why)| problem(config, &key, why)).collect();
    match schemas {
        Ok(schemas) if problems.is_empty() => Ok(schemas),
        _ => Err(Problems(problems)),
    }
}

/// Keys with the result of loading the files that they name.
type Checked = Vec<(String, Result<(), String>)>;

fn problem(config: &Config, key: &str, why: String) -> Problem {
    // Some texts name their key.
    let message =
        if why.starts_with('`') && why[1..].starts_with(key) { why } else { format!("`{key}`: {why}") };
    Problem::new(ProblemKind::BadReference, config.origin(key).clone(), message)
}

fn of_gateway(
    settings: &Settings,
    schemas: Result<&Schemas, &String>,
    side: &tokio::runtime::Handle,
) -> Checked {
    let mut found = Checked::new();
    match schemas {
        Ok(schemas) => {
            for settings in
                std::iter::once(settings).chain(settings.classes.iter().map(|class| &class.settings))
            {
                let unknown = gateway_config::unknown_positions(settings, schemas);
                let checked = if unknown.is_empty() { Ok(()) } else { Err(unknown.join("; ")) };
                found.push(("gateway.spatial.positions".to_owned(), checked));
            }
        }
        Err(why) => found.push(("gateway.schemas".to_owned(), Err(why.clone()))),
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
