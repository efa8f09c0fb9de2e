//! Turns settings into the configuration of the gateway core, reading the files that they name.

use std::sync::Arc;
use std::time::Duration;

use throng_gateway as core;
use throng_gateway::{ChannelSettings, Permissions, StateMachine};

use throng_gateway::data::Schemas;

use crate::auth::Lobby;
use crate::config::{Class, ClassKeys, Gateway, Settings, nearest};
use crate::presets;

/// The state machine that a key names.
///
/// # Errors
/// A phrase that names the file and what is wrong with it.
pub(crate) fn state_machine(name: &str) -> Result<StateMachine, String> {
    let preset = presets::state_machine(name)?;
    StateMachine::parse(&preset.text).map_err(|error| format!("{}: {error}", preset.name))
}

/// The channel settings that a key names.
///
/// # Errors
/// As [`state_machine`].
pub(crate) fn channel_settings(name: &str) -> Result<ChannelSettings, String> {
    let preset = presets::channel_settings(name)?;
    ChannelSettings::parse(&preset.text)
        .map_err(|error| format!("{}: {}", preset.name, error.problems.join("; ")))
}

/// Spatial settings, checked against the ids that the gateway has for cells.
///
/// # Errors
/// The key within `gateway.spatial` and a phrase that says what is wrong.
pub(crate) fn spatial(settings: &Settings) -> Result<core::Spatial, (&'static str, String)> {
    let keys = &settings.spatial;
    let grid = match keys.controller.as_str() {
        "" => None,
        name => {
            let wrong = |why| ("controller", why);
            let preset = presets::spatial_controller(name).map_err(wrong)?;
            let grid = core::parse_controller(&preset.text)
                .map_err(|problems| wrong(format!("{}: {}", preset.name, problems.join("; "))))?;
            let gateway = &settings.gateway;
            let room = gateway.entity_channel_id_first.saturating_sub(gateway.spatial_channel_id_first);
            if grid.cell_count() > room {
                let cells = grid.cell_count();
                return Err(wrong(format!(
                    "{}: {cells} cells exceed the {room} ids from `gateway.spatial_channel_id_first`",
                    preset.name
                )));
            }
            Some(grid)
        }
    };
    let coverage = match keys.aoi.as_str() {
        "sampled" => core::spatial::Coverage::Sampled,
        _ => core::spatial::Coverage::Exact,
    };
    let mut damping = Vec::new();
    for text in &keys.damping {
        let step = damping_step(text)
            .ok_or_else(|| ("damping", format!("`{text}` is not `distance:interval_ms`")))?;
        damping.push(step);
    }
    if damping.is_empty() || !damping.is_sorted_by(|a: &core::DampingStep, b| a.distance < b.distance) {
        return Err(("damping", "distances must increase".to_owned()));
    }
    let mut bands = Vec::new();
    let is_published = keys.lod == ["published"];
    if is_published {
        bands = core::Lod::published(UNREAL_UNITS_PER_METRE).bands;
    }
    for text in keys.lod.iter().filter(|_| !is_published) {
        let band = text.split_once(':').and_then(|(within, interval)| {
            let within =
                within.trim().parse::<f64>().ok().filter(|within| within.is_finite() && *within > 0.0)?;
            Some(core::LodBand { within, interval_ms: interval.trim().parse().ok()? })
        });
        let wrong =
            || ("lod", format!("`{text}` is neither `distance:interval_ms` nor the single word `published`"));
        bands.push(band.ok_or_else(wrong)?);
    }
    if !bands.is_sorted_by(|a: &core::LodBand, b| a.within < b.within) {
        return Err(("lod", "distances must increase".to_owned()));
    }
    Ok(core::Spatial {
        grid,
        coverage,
        damping,
        positions: positions(keys),
        place_entities: keys.place_entities,
        lod: (!bands.is_empty()).then(|| core::Lod {
            bands,
            beyond_interval_ms: keys.lod_beyond_ms,
            hysteresis: f64::from(keys.lod_hysteresis),
        }),
        follow_radius: f64::from(keys.follow_radius),
        balance: keys.balance.then(core::Balance::default),
        balance_frozen: keys.balance_frozen,
    })
}

fn positions(keys: &crate::config::Spatial) -> Vec<core::PositionPath> {
    let paths = keys.positions.iter().map(|text| match text.strip_suffix(":z-up") {
        Some(path) => core::PositionPath { path: path.to_owned(), z_up: true },
        None => core::PositionPath { path: text.clone(), z_up: false },
    });
    paths.collect()
}

/// Paths of positions that were configured and that no type of the schemas has, each with what may
/// have been meant.
pub(crate) fn unknown_positions(settings: &Settings, schemas: &Schemas) -> Vec<String> {
    let keys = &settings.spatial;
    // The defaults name what one of many engines calls it.
    let paths = positions(keys);
    if keys.controller.is_empty() || paths == core::Spatial::default().positions {
        return Vec::new();
    }
    let unknown = paths.iter().map(|path| path.path.as_str()).filter(|path| !schemas.has_position(path));
    let known = schemas.position_paths();
    let known = || known.iter().map(String::as_str);
    unknown
        .map(|path| {
            let near: Vec<&str> = match nearest(path, known()) {
                Some(near) => vec![near],
                None => known().take(5).collect(),
            };
            format!(
                "no type of `gateway.schemas` has a vector (x, y, z) at `{path}`; {}",
                match near.is_empty() {
                    true => "none has any".to_owned(),
                    false => format!("there is one at `{}`", near.join("`, `")),
                }
            )
        })
        .collect()
}

/// Unreal counts in centimetres.
const UNREAL_UNITS_PER_METRE: f64 = 100.0;

/// `distance:interval_ms`, then masks after a `+` each.
fn damping_step(text: &str) -> Option<core::DampingStep> {
    let mut parts = text.split('+');
    let (distance, interval_ms) = parts.next()?.split_once(':')?;
    let masks = parts.map(str::to_owned).collect();
    Some(core::DampingStep {
        distance: distance.trim().parse().ok()?,
        interval_ms: interval_ms.trim().parse().ok()?,
        masks,
    })
}

/// The core's configuration, and remarks about the files that it was read from. `link` is the
/// player identifier of the process's own connection to its main world, if it has one.
///
/// # Errors
/// A phrase when a file is wrong, which `config check` has reported before unless it has changed
/// since.
pub(crate) fn build(
    settings: &Settings,
    secret: [u8; 32],
    link: Option<Arc<str>>,
) -> Result<(core::Config, Vec<String>), String> {
    let servers = state_machine(&settings.servers.state_machine)?;
    let clients = state_machine(&settings.clients.state_machine)?;
    let channels = channel_settings(&settings.gateway.channels)?;
    let mut remarks = Vec::new();
    for (name, warnings) in [
        (&settings.servers.state_machine, servers.warnings()),
        (&settings.clients.state_machine, clients.warnings()),
        (&settings.gateway.channels, channels.warnings()),
    ] {
        remarks.extend(warnings.iter().map(|warning| format!("{name}: {warning}")));
    }
    let (gateway, limits, auth) = (&settings.gateway, &settings.limits, &settings.auth);
    let channeld = gateway.permissions == "channeld";
    let base = if channeld { core::Limits::generous() } else { core::Limits::default() };
    let config = core::Config {
        world: Arc::default(),
        supersedes: false,
        development: gateway.dev,
        // "none" is a provider too: one that says yes. Without any, the core refuses clients.
        auth_provider: auth.kind != "refuse",
        matchmaking: !settings.matchmaking.matcher.is_empty(),
        link,
        servers_bypass_auth: auth.servers_bypass,
        offer_snappy: gateway.compression == "snappy",
        ignore_unknown_compression: channeld,
        legacy_packet_bytes_max: limits.legacy_frame_bytes_max,
        conn_id_bits: gateway.connection_id_bits,
        server_state_machine: Arc::new(servers),
        client_state_machine: Arc::new(clients),
        channel_settings: channels,
        spatial_channel_start: gateway.spatial_channel_id_first,
        entity_channel_start: gateway.entity_channel_id_first,
        recovery: core::Recovery {
            servers: settings.recovery.servers,
            server_timeout: millis(settings.recovery.servers_timeout_ms),
            client_window: match settings.recovery.clients {
                true => Duration::from_millis(settings.recovery.clients_timeout_ms),
                false => Duration::ZERO,
            },
            lost_max: settings.recovery.lost_max,
            ..core::Recovery::default()
        },
        abuse: core::Abuse {
            auth_timeout: millis(limits.auth_timeout_ms),
            auth_failures_max: limits.failed_auth_max,
            refusals_max: limits.refused_messages_max,
            failure_memory: Duration::from_secs(limits.failure_memory_s),
            ban_duration: Duration::from_secs(limits.ban_s),
            ..core::Abuse::default()
        },
        permissions: if channeld { Permissions::permissive() } else { Permissions::safe() },
        limits: core::Limits {
            connections: limits.connections_max,
            client_connections_per_address: limits.clients_per_address_max,
            unlimited_addresses: proxies(gateway)?,
            channels: limits.channels_max,
            channels_per_client: limits.channels_per_client_max,
            subscriptions_per_client: limits.subscriptions_per_client_max,
            metadata_bytes: limits.metadata_bytes_max,
            channel_backlog_bytes: limits.channel_backlog_bytes_max,
            client_messages_per_second: limits.client_messages_per_s_max,
            client_bytes_per_second: limits.client_bytes_per_s_max,
            // The edge closes silent connections, whatever they speak.
            idle_timeout: [None, None],
            recording_bytes: settings.recordings.bytes_max,
            ..base
        },
        outbox: core::OutboxBounds {
            soft_bytes: limits.outbox_soft_bytes,
            low_water_bytes: limits.outbox_soft_bytes / 4,
            hard_bytes: [limits.outbox_server_hard_bytes, limits.outbox_hard_bytes],
            stall_timeout: Duration::from_millis(limits.stall_timeout_ms),
            repair_interval: Duration::from_millis(limits.enet_repair_ms),
        },
        recording: settings.recordings.enabled,
        unreal_objects: match settings.spatial.unreal.as_str() {
            "on" => true,
            "off" => false,
            _ => channeld || gateway.channels == "ue",
        },
        spatial: spatial(settings).map_err(|(key, why)| format!("`gateway.spatial.{key}`: {why}"))?,
        secret,
    };
    Ok((config, remarks))
}

/// The classes with the configuration of their worlds.
///
/// # Errors
/// As [`build`], with the name of the class.
pub(crate) fn classes(
    settings: &Settings,
    secret: [u8; 32],
) -> Result<Vec<(ClassKeys, core::Config)>, String> {
    let class = |class: &Class| match build(&class.settings, secret, None) {
        Ok((core, _)) => Ok((class.keys.clone(), core)),
        Err(why) => Err(format!("the class `{}`: {why}", class.keys.name)),
    };
    settings.classes.iter().map(class).collect()
}

/// The ranges of `gateway.trusted_proxies`.
///
/// # Errors
/// The entry that is not an address range, with its reason.
pub(crate) fn proxies(gateway: &Gateway) -> Result<Vec<core::AddressRange>, String> {
    ranges("gateway.trusted_proxies", &gateway.trusted_proxies)
}

/// The ranges of a key.
///
/// # Errors
/// The entry that is not an address range, with its reason.
pub(crate) fn ranges(key: &str, texts: &[String]) -> Result<Vec<core::AddressRange>, String> {
    let ranges: Result<_, String> = texts.iter().map(|text| text.parse()).collect();
    ranges.map_err(|why| format!("`{key}`: {why}"))
}

/// 0 means "no limit" in the settings.
pub(crate) fn millis(ms: u64) -> Option<Duration> {
    (ms > 0).then(|| Duration::from_millis(ms))
}

/// The configuration of a node's lobby: every login is judged, for it leads to another world.
pub(crate) fn of_lobby(settings: &Settings, core: core::Config) -> core::Config {
    let mut abuse = core.abuse;
    if !settings.cluster.name.is_empty() {
        // The provider has the time of any login, then the node has its patience.
        let patience = Duration::from_millis(settings.cluster.patience_ms);
        abuse.verdict_timeout = abuse.auth_timeout.unwrap_or_default() + patience;
    }
    core::Config { auth_provider: true, servers_bypass_auth: false, development: false, abuse, ..core }
}

/// The configuration of worlds besides the main one, and of those of classes. Where there are
/// tickets, a login by a listener of such a world may have one, so that each is judged. The worlds
/// of a node get connections from its lobby, which has judged them.
pub(crate) fn of_named_worlds(
    settings: &Settings,
    has_lobby: bool,
    core: &core::Config,
    classes: Vec<(ClassKeys, core::Config)>,
) -> (core::Config, Vec<(ClassKeys, core::Config)>) {
    if !has_lobby || !settings.cluster.name.is_empty() {
        return (core.clone(), classes);
    }
    let judged =
        |core: core::Config| core::Config { auth_provider: true, servers_bypass_auth: false, ..core };
    (judged(core.clone()), classes.into_iter().map(|(keys, core)| (keys, judged(core))).collect())
}

/// The verdicts about logins in a lobby that need no provider.
pub(crate) fn lobby(settings: &Settings) -> Lobby {
    Lobby {
        is_node: !settings.cluster.name.is_empty(),
        servers_bypass: settings.auth.servers_bypass,
        is_closed: settings.auth.kind == "refuse" && !settings.gateway.dev,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Loader;

    #[test]
    fn defaults_of_the_settings_are_the_defaults_of_the_core() {
        let settings = Loader::new().load().unwrap().settings;
        let (config, remarks) = build(&settings, [0; 32], None).unwrap();
        let expected = core::Config { auth_provider: true, ..core::Config::default() };
        // Only the channel settings differ: the built-in file also names the data type of entities.
        let strip = |config: &core::Config| {
            let stripped = core::Config { channel_settings: ChannelSettings::default(), ..config.clone() };
            format!("{stripped:#?}")
        };
        assert_eq!(strip(&config), strip(&expected));
        assert!(remarks.is_empty(), "{remarks:?}");
    }

    #[test]
    fn the_preset_of_rates_by_distance_is_the_published_table() {
        let mut settings = Loader::new().load().unwrap().settings;
        settings.spatial.lod = vec!["published".to_owned()];
        let (config, _) = build(&settings, [0; 32], None).unwrap();
        assert_eq!(config.spatial.lod, Some(core::Lod::published(100.0)));
    }
}
