//! Targets for the JSON files of the reference: state machines and channel settings.

use throng_gateway::{ChannelSettings, ChannelType, StateMachine};

/// A state machine file.
///
/// Asserts that a machine that was accepted has a state to start in.
pub fn state_machine(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match StateMachine::parse(text) {
        Ok(machine) => assert!(machine.state_names().next().is_some()),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A channel settings file.
///
/// Asserts that no accepted setting makes a channel spin.
pub fn channel_settings(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match ChannelSettings::parse(text) {
        Ok(settings) => {
            for channel_type in settings.iter().map(|(channel_type, _)| channel_type).chain([ChannelType(77)])
            {
                assert!(
                    !settings.get(channel_type).tick_interval.is_zero(),
                    "a channel of this type would spin"
                );
            }
        }
        Err(error) => assert!(!error.problems.is_empty()),
    }
}
