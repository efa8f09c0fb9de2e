//! The stock state machines and channel settings, built in, so that a start needs no files.

/// Source of a preset's text, and the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preset {
    /// A file, or the name of the built-in preset.
    pub name: String,
    /// JSON in the reference's form.
    pub text: String,
}

const STATE_MACHINES: &[(&str, &str)] = &[
    ("server_authoratative", include_str!("../presets/server_authoratative_fsm.json")),
    ("client_authoratative", include_str!("../presets/client_authoratative_fsm.json")),
    ("client_non_authoratative", include_str!("../presets/client_non_authoratative_fsm.json")),
];

const CHANNEL_SETTINGS: &[(&str, &str)] = &[
    ("hifi", include_str!("../presets/channels_hifi.json")),
    ("lofi", include_str!("../presets/channels_lofi.json")),
    ("tps", include_str!("../presets/channels_tps.json")),
    ("ue", include_str!("../presets/channels_ue.json")),
];

const CONTROLLERS: &[(&str, &str)] = &[
    ("2x2", include_str!("../presets/spatial_2x2.json")),
    ("4x1", include_str!("../presets/spatial_4x1.json")),
    ("benchmark", include_str!("../presets/spatial_benchmark.json")),
    ("tanks_big", include_str!("../presets/spatial_tanks_big.json")),
    ("tanks_small", include_str!("../presets/spatial_tanks_small.json")),
];

/// The state machine that `name` means: a built-in one or a file.
///
/// # Errors
/// A phrase that lists the built-in names when `name` is neither.
pub fn state_machine(name: &str) -> Result<Preset, String> {
    find(name, STATE_MACHINES, |name| format!("{name}_fsm.json"))
}

/// The channel settings that `name` means: a built-in preset or a file.
///
/// # Errors
/// As [`state_machine`].
pub fn channel_settings(name: &str) -> Result<Preset, String> {
    find(name, CHANNEL_SETTINGS, |name| format!("channel_settings_{name}.json"))
}

/// The spatial controller that `name` means: a built-in grid or a file.
///
/// # Errors
/// As [`state_machine`].
pub fn spatial_controller(name: &str) -> Result<Preset, String> {
    find(name, CONTROLLERS, |name| format!("spatial_static_{name}.json"))
}

/// A file wins over a preset; the reference's stock file names mean the presets when there is no
/// such file, so that its command lines work in an empty folder.
fn find(name: &str, presets: &[(&str, &str)], stock_file: fn(&str) -> String) -> Result<Preset, String> {
    match std::fs::read_to_string(name) {
        Ok(text) => return Ok(Preset { name: name.to_owned(), text }),
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(format!("`{name}` cannot be read: {error}"));
        }
        Err(_) => {}
    }
    let stock = name.strip_prefix("config/").unwrap_or(name);
    let preset = presets.iter().find(|(known, _)| *known == name || stock_file(known) == stock);
    let Some((known, text)) = preset else {
        let names: Vec<&str> = presets.iter().map(|(known, _)| *known).collect();
        let near = crate::config::nearest(name, names.iter().copied());
        let hint = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
        return Err(format!("`{name}` is neither a file nor a built-in preset ({}){hint}", names.join(", ")));
    };
    Ok(Preset { name: format!("built-in {known}"), text: (*text).to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stock_file_names_mean_the_presets() {
        let by_name = state_machine("client_non_authoratative").unwrap();
        assert_eq!(state_machine("config/client_non_authoratative_fsm.json"), Ok(by_name));
        let hifi = channel_settings("hifi").unwrap();
        assert_eq!(channel_settings("config/channel_settings_hifi.json"), Ok(hifi));
    }

    #[test]
    fn presets_are_json() {
        for (_, text) in STATE_MACHINES.iter().chain(CHANNEL_SETTINGS).chain(CONTROLLERS) {
            serde_json::from_str::<serde_json::Value>(text).unwrap();
        }
    }

    #[test]
    fn unknown_names_get_a_suggestion() {
        assert!(channel_settings("hifl").unwrap_err().contains("did you mean `hifi`"));
    }
}
