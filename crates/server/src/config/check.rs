//! Checks that involve several keys or the disk.

use std::net::SocketAddr;
use std::path::Path;
use throng_gateway::data::FieldRule;

use super::Config;
use super::keys::{Class, Listener};
use super::problem::{Origin, Problem, ProblemKind};
use super::value::{nearest, resolve_addr};
use crate::cluster::plan;
use crate::listen::{self, ListenerPlan, Transport};
use crate::{services, worlds};

/// Signature algorithms that tokens may use. Two families: with shared secrets (HS) and with key
/// pairs.
pub(crate) const JWT_ALGORITHMS: &[&str] = &[
    "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384",
    "EdDSA",
];
const PROFILES: &[&str] = &["reflect", "removable", "unreal"];

/// Every problem of `config` beyond single values.
pub(super) fn check(config: &Config) -> Vec<Problem> {
    let mut problems = Vec::new();
    let settings = &config.settings;
    check_features(config, is_built, &mut problems);
    check_services(config, &mut problems);
    check_addresses(config, &mut problems);
    check_listener(config, "gateway.servers", &settings.servers, &mut problems);
    check_listener(config, "gateway.clients", &settings.clients, &mut problems);
    check_http(config, &mut problems);
    check_ddc(config, &mut problems);
    check_matcher(config, &mut problems);
    check_cluster(config, &mut problems);
    check_matchmaking(config, &mut problems);
    check_auth(config, &mut problems);
    check_gateway(config, &mut problems);
    check_worlds(config, &mut problems);
    check_log_level(config, &mut problems);
    check_proxies(config, "gateway.trusted_proxies", &settings.gateway.trusted_proxies, &mut problems);
    problems
}

/// A filter that is one word would otherwise name a module, whose level then silences all others.
fn check_log_level(config: &Config, problems: &mut Vec<Problem>) {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let level = &config.settings.log.level;
    let is_level = |part: &str| LEVELS.iter().any(|known| known.eq_ignore_ascii_case(part));
    let wrong = level
        .split(',')
        .map(|part| part.rsplit('=').next().unwrap_or(part).trim())
        .find(|part| !is_level(part))
        .map(|part| format!("\"{part}\" is not a level"));
    let wrong =
        wrong.or_else(|| level.parse::<tracing_subscriber::EnvFilter>().err().map(|why| why.to_string()));
    if let Some(why) = wrong {
        let message = format!("bad value for `log.level`: {why}");
        problems.push(
            at(config, ProblemKind::BadValue, "log.level", message).note(
                "allowed: error, warn, info, debug, trace, off, or parts as in info,throng_gateway=debug",
            ),
        );
    }
}

fn check_proxies(config: &Config, key: &str, texts: &[String], problems: &mut Vec<Problem>) {
    let wrong = texts.iter().filter_map(|text| text.parse::<throng_gateway::AddressRange>().err());
    problems.extend(wrong.map(|why| bad_value(config, key, &why)));
}

fn bad_value(config: &Config, key: &str, why: &str) -> Problem {
    at(config, ProblemKind::BadValue, key, format!("bad value for `{key}`: {why}"))
}

fn at(config: &Config, kind: ProblemKind, key: &str, message: impl Into<String>) -> Problem {
    Problem::new(kind, config.origin(key).clone(), message)
}

/// Features that this program was built with, of those that a key may need.
fn is_built(feature: &str) -> bool {
    match feature {
        "jwt" => cfg!(feature = "jwt"),
        "nats" => cfg!(feature = "nats"),
        _ => cfg!(feature = "object-storage"),
    }
}

/// Refuses keys that need a feature which is not built.
fn check_features(config: &Config, is_built: impl Fn(&str) -> bool, problems: &mut Vec<Problem>) {
    let settings = &config.settings;
    for (key, is_set, feature) in [
        ("gateway.auth.kind", settings.auth.kind == "jwt", "jwt"),
        ("ddc.jwt_keys_file", !settings.ddc.jwt_keys_file.is_empty(), "jwt"),
        ("ddc.jwt_jwks_url", !settings.ddc.jwt_jwks_url.is_empty(), "jwt"),
        ("ddc.tier.url", !settings.ddc_tier.url.is_empty(), "object-storage"),
        ("matcher.nats_url", !settings.matcher.nats_url.is_empty(), "nats"),
        ("cluster.name", !settings.cluster.name.is_empty(), "nats"),
    ] {
        if is_set && !is_built(feature) {
            let message =
                format!("`{key}` needs the feature `{feature}`, which this program was built without");
            problems.push(
                at(config, ProblemKind::Conflict, key, message)
                    .note(format!("build it with `--features {feature}`; the default features include it")),
            );
        }
    }
}

fn check_services(config: &Config, problems: &mut Vec<Problem>) {
    for name in
        config.settings.server.only.iter().filter(|name| services::names().all(|known| known != **name))
    {
        let message = format!("bad value for `server.only`: there is no service \"{name}\"");
        let problem = at(config, ProblemKind::BadValue, "server.only", message)
            .note(format!("allowed: {}", services::names().collect::<Vec<_>>().join(", ")));
        problems.push(match nearest(name, services::names()) {
            Some(near) => problem.note(format!("did you mean \"{near}\"?")),
            None => problem,
        });
    }
}

/// Refuses an address that two listeners want, and a selected service that listens nowhere.
fn check_addresses(config: &Config, problems: &mut Vec<Problem>) {
    let settings = &config.settings;
    let only = &settings.server.only;
    let (ddc, matcher) = (&settings.ddc, &settings.matcher);
    let mut addresses: Vec<(String, SocketAddr, bool)> = Vec::new();
    if services::is_selected(only, services::GATEWAY) {
        for (section, listener) in
            [("gateway.servers", &settings.servers), ("gateway.clients", &settings.clients)]
        {
            for plan in listen::plan(listener).unwrap_or_default() {
                let is_udp = matches!(plan.transport, Transport::Kcp | Transport::Enet);
                addresses.push((format!("{section}.{}", plan.key), plan.addr, is_udp));
            }
        }
    }
    for (service, key, addr) in [
        (None, "http.addr", &settings.http.addr),
        (Some(services::DDC), "ddc.addr", &ddc.addr),
        (Some(services::DDC), "ddc.internal_addr", &ddc.internal_addr),
        (Some(services::MATCHER), "matcher.addr", &matcher.addr),
        (Some(services::MATCHER), "matcher.http_addr", &matcher.http_addr),
    ] {
        if service.is_none_or(|service| services::is_selected(only, service))
            && let Ok(addr) = resolve_addr(addr)
        {
            addresses.push((key.to_owned(), addr, false));
        }
    }
    for (index, (key, addr, is_udp)) in addresses.iter().enumerate() {
        let same = |(_, other, udp): &&(String, SocketAddr, bool)| other == addr && udp == is_udp;
        if addr.port() != 0
            && let Some((first, ..)) = addresses[..index].iter().find(same)
        {
            // The cache serves the pages of the admin listener as well.
            if first == "http.addr" && key == "ddc.addr" && crate::ddc::has_pages(settings) {
                continue;
            }
            let message = format!("`{first}` and `{key}` are the same address, {addr}");
            // A default is not to blame for what the user chose.
            let is_default = matches!(config.origin(key), Origin::Default | Origin::Command(_));
            let blamed = if is_default { first } else { key };
            problems.push(
                at(config, ProblemKind::Conflict, blamed, message)
                    .note("give each listener a port of its own"),
            );
        }
    }
    let listens = |keys: &[&String]| keys.iter().any(|value| !value.is_empty());
    let gateway = [&settings.servers, &settings.clients];
    for (service, is_served, key) in [
        (
            services::GATEWAY,
            gateway.iter().any(|listener| !listener.addr.is_empty() || !listener.extra.is_empty()),
            "gateway.clients.addr",
        ),
        (services::DDC, listens(&[&ddc.addr]), "ddc.addr"),
        (
            services::MATCHER,
            listens(&[&matcher.addr, &matcher.unix_path, &matcher.http_addr, &matcher.nats_url]),
            "matcher.addr",
        ),
    ] {
        if !is_served && only.iter().any(|name| name == service) {
            let message = format!("`server.only` selects `{service}`, which has no address");
            problems
                .push(at(config, ProblemKind::Conflict, "server.only", message).note(format!("set `{key}`")));
        }
    }
}

fn check_listener(config: &Config, section: &str, listener: &Listener, problems: &mut Vec<Problem>) {
    let path = |name: &str| format!("{section}.{name}");
    let plans = match listen::plan(listener) {
        Ok(plans) => plans,
        Err(wrong) => {
            return problems
                .extend(wrong.into_iter().map(|(name, why)| bad_value(config, &path(name), &why)));
        }
    };
    for plan in &plans {
        check_reach(config, section, plan, problems);
        let gateway = &config.settings.gateway;
        let worlds = || gateway.worlds.iter().map(|entry| worlds::name_and_class(entry).0);
        let known = || worlds().chain([gateway.default_world.as_str()]);
        if !plan.world.is_empty() && !known().any(|known| known == plan.world) {
            let key = path(if plan.key == "addr" { "world" } else { "extra" });
            let message = format!("`{key}` names the world `{}`, which does not open", plan.world);
            let problem = at(config, ProblemKind::BadReference, &key, message);
            problems.push(match nearest(&plan.world, known()) {
                Some(near) => problem.note(format!("did you mean `{near}`?")),
                None => problem.note("name it in `gateway.worlds` as well"),
            });
        }
    }
    if listener.proxy_protocol {
        let key = path("proxy_protocol");
        let udp = |plan: &ListenerPlan| matches!(plan.transport, Transport::Kcp | Transport::Enet);
        if let Some(plan) = plans.iter().find(|plan| udp(plan)) {
            let message = format!("`{key}` does not work with {}, which is UDP", plan.scheme());
            problems.push(at(config, ProblemKind::Conflict, &key, message));
        }
        if config.settings.gateway.trusted_proxies.is_empty() {
            let message = format!("`{key}` admits only `gateway.trusted_proxies`, and there are none");
            problems.push(at(config, ProblemKind::Conflict, &key, message));
        }
    }
    let (cert, key) = (&listener.tls_cert, &listener.tls_key);
    if cert.is_empty() != key.is_empty() {
        let (given, missing) = if key.is_empty() { ("tls_cert", "tls_key") } else { ("tls_key", "tls_cert") };
        let message = format!("`{}` is set without `{}`", path(given), path(missing));
        problems.push(at(config, ProblemKind::Conflict, &path(given), message).note("TLS needs both"));
    }
    for name in ["tls_cert", "tls_key"] {
        check_file(config, &path(name), problems);
    }
    for origin in listener.origins.iter().filter(|origin| *origin != "*" && !origin.contains("://")) {
        let message = format!("bad value for `{}`: found \"{origin}\"", path("origins"));
        problems.push(
            at(config, ProblemKind::BadValue, &path("origins"), message).note(
                "allowed: origins as browsers send them (\"https://play.example.com\"), or \"*\" for any",
            ),
        );
    }
    check_enet(config, section, listener, &plans, problems);
    let encryption = [crate::enet_gate::gate(listener).err(), crate::enet_gate::dtls(listener).err()];
    for (name, why) in encryption.into_iter().flatten() {
        let key = path(name);
        problems.push(at(config, ProblemKind::BadReference, &key, format!("`{key}`: {why}")));
    }
    if let Err(why) = crate::gateway_config::state_machine(&listener.state_machine) {
        let key = path("state_machine");
        problems.push(at(config, ProblemKind::BadReference, &key, format!("`{key}`: {why}")));
    }
}

/// Refuses keys of ENet's encryption that do nothing: who sets one expects it to protect.
fn check_enet(
    config: &Config,
    section: &str,
    listener: &Listener,
    plans: &[ListenerPlan],
    problems: &mut Vec<Problem>,
) {
    let has_enet = plans.iter().any(|plan| plan.transport == Transport::Enet);
    let has_gate = !listener.enet_key_file.is_empty();
    let has_dtls = !listener.enet_dtls_cert.is_empty() || !listener.enet_dtls_key.is_empty();
    let needs_gate = "without `enet_key_file`";
    for (name, is_set, is_used, why) in [
        ("enet_key_file", has_gate, true, ""),
        ("enet_dtls_cert", !listener.enet_dtls_cert.is_empty(), true, ""),
        ("enet_dtls_key", !listener.enet_dtls_key.is_empty(), true, ""),
        (
            "enet_plain",
            listener.enet_plain,
            has_gate || has_dtls,
            "without `enet_key_file` or `enet_dtls_cert`",
        ),
        ("enet_servers", !listener.enet_servers.is_empty(), has_gate, needs_gate),
        ("enet_protocol", listener.enet_protocol != 0, has_gate, needs_gate),
    ] {
        let why = if has_enet { why } else { "without a listener of ENet in this section" };
        if is_set && !(has_enet && is_used) {
            let key = format!("{section}.{name}");
            let message = format!("`{key}` does nothing {why}");
            problems.push(at(config, ProblemKind::Conflict, &key, message));
        }
    }
}

/// Refuses what would let strangers in by accident.
fn check_reach(config: &Config, section: &str, plan: &ListenerPlan, problems: &mut Vec<Problem>) {
    if plan.addr.ip().is_loopback() {
        return;
    }
    let settings = &config.settings;
    let key = format!("{section}.{}", plan.key);
    let shown = plan.addr;
    if plan.tls && settings_cert_is_missing(config, section) {
        let message = format!("{shown} is reachable from other machines and has no certificate");
        problems.push(
            at(config, ProblemKind::UnsafeBind, &key, message)
                .note(format!("set `{section}.tls_cert` and `{section}.tls_key`, or listen on 127.0.0.1")),
        );
    }
    let listener = if section == "gateway.servers" { &settings.servers } else { &settings.clients };
    if listener.unsafe_binds {
        return;
    }
    let open_to_all = if settings.gateway.dev {
        Some("development mode has no authentication (`gateway.dev`)")
    } else if section == "gateway.servers" && settings.auth.servers_bypass {
        Some("game servers log in without authentication (`gateway.auth.servers_bypass`)")
    } else if settings.auth.kind == "none" {
        Some("authentication is off (`gateway.auth.kind` is \"none\")")
    } else {
        None
    };
    if let Some(why) = open_to_all {
        let message = format!("{shown} is reachable from other machines and {why}");
        let way_out = match section {
            "gateway.servers" => {
                "set `gateway.auth.servers_bypass = false` and choose an authentication in `gateway.auth.kind`"
            }
            _ => "choose an authentication in `gateway.auth.kind`",
        };
        problems.push(
            at(config, ProblemKind::UnsafeBind, &key, message)
                .note(format!("{way_out}; or listen on 127.0.0.1"))
                .note(format!("or, on a private network, set `{section}.unsafe_binds = true`")),
        );
    }
}

fn settings_cert_is_missing(config: &Config, section: &str) -> bool {
    let settings = &config.settings;
    let listener = if section == "gateway.servers" { &settings.servers } else { &settings.clients };
    listener.tls_cert.is_empty()
}

fn check_http(config: &Config, problems: &mut Vec<Problem>) {
    let http = &config.settings.http;
    check_file(config, "http.tokens_file", problems);
    if http.addr.is_empty() {
        return;
    }
    match resolve_addr(&http.addr) {
        Err(why) => {
            let message = format!("bad value for `http.addr`: {why}");
            problems.push(at(config, ProblemKind::BadValue, "http.addr", message));
        }
        Ok(addr) if !addr.ip().is_loopback() && http.tokens_file.is_empty() => {
            // `metrics.open` is the reference's shape: metrics for everyone, nothing else served.
            if !config.settings.metrics.open {
                problems.push(unsafe_http(config, addr));
            }
        }
        Ok(_) => {}
    }
}

fn check_matchmaking(config: &Config, problems: &mut Vec<Problem>) {
    let key = "gateway.matchmaking.matcher";
    check_file(config, "gateway.matchmaking.token_file", problems);
    let settings = &config.settings;
    let served = crate::matchmaking::matcher_endpoints(settings);
    if let Err(why) = served {
        problems.push(at(config, ProblemKind::BadReference, key, format!("`{key}`: {why}")));
    } else if !settings.matchmaking.matcher.is_empty()
        && settings.cluster.name.is_empty()
        && settings.servers.addr.is_empty()
    {
        let message =
            format!("`{key}` needs a plain TCP listener for game servers in `gateway.servers.addr`");
        problems.push(at(config, ProblemKind::Conflict, key, message));
    }
}

fn check_matcher(config: &Config, problems: &mut Vec<Problem>) {
    let matcher = &config.settings.matcher;
    for name in ["tls_cert", "tls_key", "tokens_file", "rules", "nats_token_file"] {
        check_file(config, &format!("matcher.{name}"), problems);
    }
    if Path::new(&matcher.rules).is_file()
        && let Err(problem) = crate::matcher::rules::load(&matcher.rules)
    {
        problems.push(problem.note("named by `matcher.rules`; see `throng explain THR-0108`"));
    }
    if !matcher.nats_url.is_empty() && !is_area(&matcher.area) {
        let message = "`matcher.nats_url` needs `matcher.area`, of letters, digits, `-` and `_`: it is part of the subjects";
        problems.push(at(config, ProblemKind::Conflict, "matcher.nats_url", message));
    }
    if matcher.tls_cert.is_empty() != matcher.tls_key.is_empty() {
        let message = "`matcher.tls_cert` and `matcher.tls_key` must be set together";
        problems.push(at(config, ProblemKind::Conflict, "matcher.tls_cert", message));
    }
    let open = matcher.tokens_file.is_empty() && !matcher.unsafe_binds;
    for (key, addr) in [("matcher.addr", &matcher.addr), ("matcher.http_addr", &matcher.http_addr)] {
        if let Ok(bound) = resolve_addr(addr)
            && open
            && !bound.ip().is_loopback()
        {
            let message = format!("`{key}` is reachable from other machines and has no authentication");
            problems.push(
                at(config, ProblemKind::Conflict, key, message)
                    .note("name a file with tokens in `matcher.tokens_file`")
                    .note("or, on a private network, set `matcher.unsafe_binds = true`"),
            );
        }
    }
}

/// Returns whether an area may have this name, which is part of subjects.
pub(crate) fn is_area(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
}

fn check_cluster(config: &Config, problems: &mut Vec<Problem>) {
    let cluster = &config.settings.cluster;
    for name in
        ["nats_credentials_file", "nats_token_file", "nats_ca_file", "nats_cert", "nats_key", "secret_file"]
    {
        check_file(config, &format!("cluster.{name}"), problems);
    }
    let conflict = |key: &str, message: String| at(config, ProblemKind::Conflict, key, message);
    if let Err(why) = plan::labels(&cluster.labels) {
        problems.push(bad_value(config, "cluster.labels", &why));
    }
    let wrong = cluster.advertise.iter().filter_map(|each| plan::parse_address(each).err());
    problems.extend(wrong.map(|why| at(config, ProblemKind::BadValue, "cluster.advertise", why)));
    if cluster.name.is_empty() {
        let keys = [("cluster.nats_url", &cluster.nats_url), ("cluster.secret_file", &cluster.secret_file)];
        for (key, _) in keys.iter().filter(|(_, value)| !value.is_empty()) {
            problems.push(conflict(key, format!("`{key}` does nothing without `cluster.name`")));
        }
        return;
    }
    for (key, name) in [("cluster.name", &cluster.name), ("cluster.node", &cluster.node)] {
        let wrong = worlds::check_name(name).err().filter(|_| !name.is_empty());
        problems.extend(wrong.map(|why| bad_value(config, key, &why)));
    }
    if cluster.node.is_empty()
        && let Err(why) = plan::node_name(&config.settings)
    {
        problems.push(at(config, ProblemKind::BadValue, "cluster.node", why));
    }
    for (key, value, way) in [
        ("cluster.nats_url", &cluster.nats_url, "name the NATS servers, as in nats://127.0.0.1:4222"),
        ("cluster.secret_file", &cluster.secret_file, "`openssl rand -hex 32` makes a secret, for all nodes"),
    ] {
        if value.is_empty() {
            problems.push(conflict(key, format!("`cluster.name` needs `{key}`")).note(way));
        }
    }
    if cluster.nats_cert.is_empty() != cluster.nats_key.is_empty() {
        let message = "`cluster.nats_cert` and `cluster.nats_key` must be set together";
        problems.push(conflict("cluster.nats_cert", message.to_owned()));
    }
    let ways = [&cluster.nats_credentials_file, &cluster.nats_token_file, &cluster.nats_cert];
    if ways.iter().filter(|way| !way.is_empty()).count() > 1 {
        let message = "`cluster.nats_credentials_file`, `cluster.nats_token_file` and `cluster.nats_cert` are alternatives";
        problems.push(conflict("cluster.nats_url", message.to_owned()));
    }
    if let Some(index) = config.settings.classes.iter().position(|class| class.keys.name == plan::CLASS) {
        let origin = config.class_origin(index, "name").clone();
        let message = format!("`{}` is the class of a cluster's worlds that name none", plan::CLASS);
        problems
            .push(Problem::new(ProblemKind::Conflict, origin, message).note("give the class another name"));
    }
    let open = cluster.nats_url.split(',').map(str::trim).find(|url| !url.is_empty() && !is_safe_bus(url));
    if let Some(url) = open.filter(|_| !cluster.unsafe_bus) {
        let message =
            format!("`cluster.nats_url`: {url} is not encrypted, and who reads it can control the cluster");
        problems.push(
            at(config, ProblemKind::UnsafeBind, "cluster.nats_url", message)
                .note("write tls://HOST:PORT and let the NATS servers use TLS")
                .note("or, on a private network, set `cluster.unsafe_bus = true`"),
        );
    }
    if !services::is_selected(&config.settings.server.only, services::GATEWAY) {
        let message = "`cluster.name` makes the gateway a node, and `server.only` does not start it";
        problems.push(conflict("cluster.name", message.to_owned()));
    }
}

/// Returns whether a connection to this NATS server is encrypted or stays on this machine.
fn is_safe_bus(url: &str) -> bool {
    let (scheme, rest) = url.split_once("://").unwrap_or(("nats", url));
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
    let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    matches!(scheme, "tls" | "wss") || host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
}

fn check_ddc(config: &Config, problems: &mut Vec<Problem>) {
    let ddc = &config.settings.ddc;
    for name in ["tokens_file", "policies_file", "jwt_keys_file", "tls_cert", "tls_key"] {
        check_file(config, &format!("ddc.{name}"), problems);
    }
    if ddc.tls_cert.is_empty() != ddc.tls_key.is_empty() {
        let message = "`ddc.tls_cert` and `ddc.tls_key` must be set together";
        problems.push(at(config, ProblemKind::Conflict, "ddc.tls_cert", message));
    }
    let open = ddc.tokens_file.is_empty() && ddc.jwt_keys_file.is_empty() && ddc.jwt_jwks_url.is_empty();
    for (key, addr) in [("ddc.addr", &ddc.addr), ("ddc.internal_addr", &ddc.internal_addr)] {
        if addr.is_empty() {
            continue;
        }
        match resolve_addr(addr) {
            Err(why) => {
                problems.push(at(
                    config,
                    ProblemKind::BadValue,
                    key,
                    format!("bad value for `{key}`: {why}"),
                ));
            }
            Ok(bound) if open && !ddc.unsafe_binds && !bound.ip().is_loopback() => {
                let message = format!("{bound} is reachable from other machines and has no authentication");
                problems.push(
                    at(config, ProblemKind::UnsafeBind, key, message)
                        .note("name a file with tokens in `ddc.tokens_file` and their permissions in `ddc.grants`")
                        .note("or, on a private network, set `ddc.unsafe_binds = true`"),
                );
            }
            Ok(_) => {}
        }
    }
    if ddc.bytes_max > 0 && ddc.bytes_max < crate::ddc::BYTES_MIN {
        let least = crate::ddc::BYTES_MIN;
        let why =
            format!("found {}; expected 0 or at least {least}, eight segments of the log", ddc.bytes_max);
        problems.push(bad_value(config, "ddc.bytes_max", &why));
    }
    check_proxies(config, "ddc.trusted_proxies", &ddc.trusted_proxies, problems);
    let quotas = crate::ddc::read_quotas(ddc).err().into_iter().flatten().map(|why| ("ddc.quotas", why));
    let namespaces = crate::ddc::read_namespaces(ddc, &throng_ddc_server::NamespaceRules::default());
    let grants = crate::ddc_policies::read_grants(ddc).err().into_iter().flatten();
    // A file that is not there is a problem already.
    let readable = !ddc.policies_file.is_empty() && std::path::Path::new(&ddc.policies_file).exists();
    let file = crate::ddc_policies::read_file(ddc).err().filter(|_| readable);
    let wrong = quotas
        .chain(namespaces.err().into_iter().flatten())
        .chain(grants.map(|why| ("ddc.grants", why)))
        .chain(file.map(|why| ("ddc.policies_file", why)));
    problems.extend(wrong.map(|(key, why)| bad_value(config, key, &why)));
    check_ddc_origin(config, problems);
}

fn check_ddc_origin(config: &Config, problems: &mut Vec<Problem>) {
    let (ddc, tier, upstream) =
        (&config.settings.ddc, &config.settings.ddc_tier, &config.settings.ddc_upstream);
    for key in ["tier.settings_file", "tier.ca_file", "upstream.authorization_file", "upstream.ca_file"] {
        check_file(config, &format!("ddc.{key}"), problems);
    }
    let mut wrong = |kind, key: &str, message: String| problems.push(at(config, kind, key, message));
    let bucket = tier.url.split_once("://").filter(|(scheme, _)| ["s3", "gs", "az"].contains(scheme));
    if !tier.url.is_empty() && bucket.is_none_or(|(_, rest)| rest.split('/').next() == Some("")) {
        let why = format!("found \"{}\"; expected s3://BUCKET/PREFIX, gs:// or az://", tier.url);
        wrong(ProblemKind::BadValue, "ddc.tier.url", format!("bad value for `ddc.tier.url`: {why}"));
    }
    for (key, url) in [("ddc.tier.endpoint", &tier.endpoint), ("ddc.upstream.url", &upstream.url)] {
        if let Err(why) = crate::auth::check_url(url) {
            wrong(ProblemKind::BadValue, key, format!("bad value for `{key}`: {why}"));
        }
    }
    if !tier.url.is_empty() && !upstream.url.is_empty() {
        let message = "`ddc.tier.url` and `ddc.upstream.url` cannot be combined";
        wrong(ProblemKind::Conflict, "ddc.upstream.url", message.to_owned());
    }
    if !tier.url.is_empty() && (ddc.namespace_bytes_max > 0 || !ddc.quotas.is_empty()) {
        let message = "quotas do not work with `ddc.tier.url`; set a quota on the bucket";
        wrong(ProblemKind::Conflict, "ddc.quotas", message.to_owned());
    }
    if tier.url.is_empty() && !tier.endpoint.is_empty() {
        let message = "`ddc.tier.endpoint` needs a bucket: set `ddc.tier.url`";
        wrong(ProblemKind::Conflict, "ddc.tier.endpoint", message.to_owned());
    }
}

fn unsafe_http(config: &Config, addr: SocketAddr) -> Problem {
    at(
        config,
        ProblemKind::UnsafeBind,
        "http.addr",
        format!("{addr} is reachable from other machines and `http.tokens_file` is not set"),
    )
    .note("put a token into a file and name it in `http.tokens_file`, or listen on 127.0.0.1")
    .note("or set `metrics.open = true`: the address then serves health and metrics only")
}

fn check_auth(config: &Config, problems: &mut Vec<Problem>) {
    let auth = &config.settings.auth;
    for name in ["tokens_file", "jwt_keys_file", "http_authorization_file", "https_ca_file"] {
        check_file(config, &format!("gateway.auth.{name}"), problems);
    }
    for algorithm in &auth.jwt_algorithms {
        if !JWT_ALGORITHMS.contains(&algorithm.as_str()) {
            let message = format!("bad value for `gateway.auth.jwt_algorithms`: found \"{algorithm}\"");
            let mut problem = at(config, ProblemKind::BadValue, "gateway.auth.jwt_algorithms", message);
            if let Some(near) = nearest(algorithm, JWT_ALGORITHMS.iter().copied()) {
                problem = problem.note(format!("did you mean \"{near}\"?"));
            }
            problems.push(problem.note(format!("allowed: {}", JWT_ALGORITHMS.join(", "))));
        }
    }
    for (name, url) in [("jwt_jwks_url", &auth.jwt_jwks_url), ("http_url", &auth.http_url)] {
        if let Err(why) = crate::auth::check_url(url) {
            let key = format!("gateway.auth.{name}");
            problems.push(at(config, ProblemKind::BadValue, &key, format!("bad value for `{key}`: {why}")));
        }
    }
    match auth.kind.as_str() {
        "tokens" if auth.tokens_file.is_empty() => problems.push(missing(config, "tokens", "tokens_file")),
        "http" if auth.http_url.is_empty() => problems.push(missing(config, "http", "http_url")),
        "jwt" => check_jwt(config, problems),
        _ => {}
    }
}

fn check_jwt(config: &Config, problems: &mut Vec<Problem>) {
    let auth = &config.settings.auth;
    if auth.jwt_keys_file.is_empty() && auth.jwt_jwks_url.is_empty() {
        problems.push(missing(config, "jwt", "jwt_keys_file` or `gateway.auth.jwt_jwks_url"));
    }
    let shared = auth.jwt_algorithms.iter().filter(|name| name.starts_with("HS")).count();
    if auth.jwt_algorithms.is_empty() || (shared > 0 && shared < auth.jwt_algorithms.len()) {
        // Accepting both families for one key is the classic confusion: a public key used as a
        // shared secret.
        let message = "`gateway.auth.jwt_algorithms` must be of one family";
        problems.push(
            at(config, ProblemKind::Conflict, "gateway.auth.jwt_algorithms", message)
                .note("either shared secrets (HS256, HS384, HS512) or key pairs (all others)"),
        );
    } else if auth.jwt_keys_file.is_empty() && shared > 0 {
        let message =
            "shared secrets (HS...) come from `gateway.auth.jwt_keys_file`, not from a JWKS address";
        problems.push(at(config, ProblemKind::Conflict, "gateway.auth.jwt_algorithms", message));
    }
}

fn missing(config: &Config, kind: &str, name: &str) -> Problem {
    let message = format!("`gateway.auth.kind` is \"{kind}\", which needs `gateway.auth.{name}`");
    at(config, ProblemKind::Conflict, "gateway.auth.kind", message)
}

fn check_worlds(config: &Config, problems: &mut Vec<Problem>) {
    let gateway = &config.settings.gateway;
    if let Err(why) = worlds::check_name(&gateway.default_world) {
        problems.push(bad_value(config, "gateway.default_world", &why));
    }
    let classes = &config.settings.classes;
    let entries: Vec<_> = gateway.worlds.iter().map(|entry| worlds::name_and_class(entry)).collect();
    for (index, (name, class)) in entries.iter().enumerate() {
        let twice = *name == gateway.default_world || entries[..index].iter().any(|(other, _)| other == name);
        let wrong = worlds::check_name(name).err();
        let wrong =
            wrong.or_else(|| twice.then(|| format!("`{name}` is listed twice, or is the default world")));
        problems.extend(wrong.map(|why| bad_value(config, "gateway.worlds", &why)));
        let known = || classes.iter().map(|class| class.keys.name.as_str());
        if let Some(class) = class.filter(|class| known().all(|known| known != *class)) {
            let message = format!("`gateway.worlds` names the class `{class}`, which does not exist");
            let problem = at(config, ProblemKind::BadReference, "gateway.worlds", message);
            problems.push(match nearest(class, known()) {
                Some(near) => problem.note(format!("did you mean `{near}`?")),
                None => problem.note(format!("add [[gateway.classes]] with name = \"{class}\"")),
            });
        }
    }
    for (index, class) in classes.iter().enumerate() {
        let used = entries.iter().filter(|(_, of)| *of == Some(class.keys.name.as_str())).count();
        check_class(config, index, class, used, problems);
    }
}

/// Problems of one class, of which `gateway.worlds` opens `used` worlds.
fn check_class(config: &Config, index: usize, class: &Class, used: usize, problems: &mut Vec<Problem>) {
    let (keys, limits) = (&class.keys, &config.settings.limits);
    let name = &keys.name;
    let mut tell = |kind, key: &str, message: String, way_out: &str| {
        let problem = Problem::new(kind, config.class_origin(index, key).clone(), message);
        problems.push(if way_out.is_empty() { problem } else { problem.note(way_out) });
    };
    if let Err(why) = worlds::check_class_name(name) {
        let message = format!("bad value for `gateway.classes.name`: {why}");
        return tell(ProblemKind::BadValue, "name", message, "");
    }
    if config.settings.classes[..index].iter().any(|other| other.keys.name == *name) {
        let message = format!("two classes have the name `{name}`");
        tell(ProblemKind::Conflict, "name", message, "give each class a name of its own");
    }
    if let Err(why) = plan::labels(&keys.labels) {
        let message = format!("bad value for `labels` of the class `{name}`: {why}");
        tell(ProblemKind::BadValue, "labels", message, "");
    }
    if keys.create {
        for (missing, what, way_out) in [
            (!keys.open, "may not be entered by those who open its worlds", "set `open = true`"),
            (
                keys.connections_max == 0,
                "has no limit of connections",
                "set `connections_max` to the players and game servers of one world",
            ),
            (
                keys.world_idle_s == 0,
                "keeps empty worlds for ever (`world_idle_s` is 0)",
                "set `world_idle_s` to the seconds after which an empty world closes",
            ),
        ] {
            if missing {
                let message = format!("clients open worlds of the class `{name}` (`create`), and it {what}");
                tell(ProblemKind::Conflict, "create", message, way_out);
            }
        }
    }
    if keys.connections_max > limits.connections_max {
        let message = format!(
            "`connections_max` of the class `{name}` is {}, and all worlds together have {} \
             (`gateway.limits.connections_max`)",
            keys.connections_max, limits.connections_max
        );
        let way_out = "lower the one or raise the other";
        tell(ProblemKind::Conflict, "connections_max", message, way_out);
    }
    if used > keys.worlds_max {
        let message = format!(
            "`gateway.worlds` opens {used} worlds of the class `{name}`, whose `worlds_max` is {}",
            keys.worlds_max
        );
        tell(ProblemKind::Conflict, "worlds_max", message, "raise `worlds_max`");
    }
    if class.settings.recordings.enabled && !config.settings.recordings.enabled {
        let message = format!("the class `{name}` records its clients, and the process keeps no recordings");
        tell(ProblemKind::Conflict, "recordings.enabled", message, "set `gateway.recordings.enabled = true`");
    }
    let (spatial, entity) =
        (class.settings.gateway.spatial_channel_id_first, class.settings.gateway.entity_channel_id_first);
    let gateway = &config.settings.gateway;
    let inherited = (gateway.spatial_channel_id_first, gateway.entity_channel_id_first);
    if spatial >= entity && (spatial, entity) != inherited {
        let message = format!(
            "`spatial_channel_id_first` of the class `{name}` ({spatial}) must be below its \
             `entity_channel_id_first` ({entity})"
        );
        tell(ProblemKind::Conflict, "spatial_channel_id_first", message, "");
    }
    // Without keys of its own for its worlds, the process's problem would be told twice.
    if let Err(why) = crate::gateway_config::build(&class.settings, [0; 32], None)
        && crate::gateway_config::build(&config.settings, [0; 32], None).is_ok()
    {
        tell(ProblemKind::BadReference, "name", format!("the class `{name}`: {why}"), "");
    }
}

fn check_gateway(config: &Config, problems: &mut Vec<Problem>) {
    let gateway = &config.settings.gateway;
    if gateway.spatial_channel_id_first >= gateway.entity_channel_id_first {
        let key = "gateway.spatial_channel_id_first";
        let message = format!(
            "`{key}` ({}) must be below `gateway.entity_channel_id_first` ({})",
            gateway.spatial_channel_id_first, gateway.entity_channel_id_first
        );
        problems.push(at(config, ProblemKind::Conflict, key, message));
    }
    for (name, profile) in &gateway.profiles {
        if !PROFILES.contains(&profile.as_str()) {
            let message = format!("bad value for `gateway.profiles`: `{name}` is \"{profile}\"");
            problems.push(
                at(config, ProblemKind::BadValue, "gateway.profiles", message)
                    .note(format!("allowed: {}", PROFILES.join(", "))),
            );
        }
    }
    for (field, rule) in &gateway.merge_rules {
        if let Err(why) = rule.parse::<FieldRule>() {
            let message = format!("bad value for `gateway.merge_rules`: `{field}`: {why}");
            problems.push(at(config, ProblemKind::BadValue, "gateway.merge_rules", message));
        }
    }
    if let Err(why) = crate::gateway_config::channel_settings(&gateway.channels) {
        let message = format!("`gateway.channels`: {why}");
        problems.push(at(config, ProblemKind::BadReference, "gateway.channels", message));
    }
    if let Err((name, why)) = crate::gateway_config::spatial(&config.settings) {
        let key = format!("gateway.spatial.{name}");
        let message = format!("`{key}`: {why}");
        problems.push(at(config, ProblemKind::BadReference, &key, message));
    }
    for file in &gateway.schemas {
        check_exists(config, "gateway.schemas", file, problems);
    }
    for folder in &gateway.schema_includes {
        check_exists(config, "gateway.schema_includes", folder, problems);
    }
    let limits = &config.settings.limits;
    let hard_bounds = [
        ("outbox_hard_bytes", limits.outbox_hard_bytes),
        ("outbox_server_hard_bytes", limits.outbox_server_hard_bytes),
    ];
    for (name, hard) in hard_bounds.into_iter().filter(|(_, hard)| limits.outbox_soft_bytes >= *hard) {
        let key = "gateway.limits.outbox_soft_bytes";
        let soft = limits.outbox_soft_bytes;
        let message = format!("`{key}` ({soft}) must be below `gateway.limits.{name}` ({hard})");
        problems.push(at(config, ProblemKind::Conflict, key, message));
    }
}

fn check_file(config: &Config, key: &str, problems: &mut Vec<Problem>) {
    if let Some(super::Value::Text(path)) = config.value(key)
        && !path.is_empty()
    {
        check_exists(config, key, path, problems);
    }
}

fn check_exists(config: &Config, key: &str, path: &str, problems: &mut Vec<Problem>) {
    if let Err(error) = Path::new(path).metadata() {
        let message = format!("`{key}` names `{path}`, which cannot be read: {error}");
        let mut problem = at(config, ProblemKind::BadReference, key, message);
        if matches!(config.origin(key), Origin::File { .. }) && Path::new(path).is_relative() {
            problem = problem.note("relative paths count from the working directory, not from the file");
        }
        problems.push(problem);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Loader;

    #[test]
    fn a_key_whose_feature_is_missing_is_refused_by_name() {
        let keys = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(keys.path(), "0123456789abcdef0123456789abcdef").unwrap();
        let mut loader = Loader::new();
        for (key, value) in [
            ("gateway.auth.kind", "jwt"),
            ("gateway.auth.jwt_jwks_url", "http://127.0.0.1:1/keys"),
            ("ddc.jwt_keys_file", keys.path().to_str().unwrap()),
            ("ddc.jwt_algorithms", "HS256"),
            ("ddc.tier.url", "s3://bucket"),
            ("matcher.nats_url", "nats://127.0.0.1"),
            ("matcher.area", "1"),
            ("cluster.name", "prod"),
            ("cluster.node", "n1"),
            ("cluster.nats_url", "nats://127.0.0.1"),
            ("cluster.secret_file", keys.path().to_str().unwrap()),
        ] {
            loader = loader.flag("a flag", key, value);
        }
        let config = loader.load().unwrap();
        let mut problems = Vec::new();
        check_features(&config, |_| true, &mut problems);
        assert!(problems.is_empty());
        check_features(&config, |_| false, &mut problems);
        let found: Vec<&str> = problems.iter().map(|problem| problem.message.as_str()).collect();
        let wanted = [
            ("gateway.auth.kind", "jwt"),
            ("ddc.jwt_keys_file", "jwt"),
            ("ddc.tier.url", "object-storage"),
            ("matcher.nats_url", "nats"),
            ("cluster.name", "nats"),
        ];
        assert_eq!(found.len(), wanted.len(), "{found:?}");
        for (message, (key, feature)) in found.iter().zip(wanted) {
            assert!(message.contains(key) && message.contains(feature), "{message}");
        }
    }
}
