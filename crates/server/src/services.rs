//! Services of a process, and the selection that runs.
//!
//! A new service needs a row in [`SERVICES`], and code in `start.rs` that opens its listeners.

/// Game servers and players, in the protocol of channeld.
pub(crate) const GATEWAY: &str = "gateway";

/// Derived data for editors.
pub(crate) const DDC: &str = "ddc";

/// Teams and rooms.
pub(crate) const MATCHER: &str = "matcher";

/// Name and purpose of every service.
pub const SERVICES: &[(&str, &str)] = &[
    (GATEWAY, "gateway for game servers and players, protocol of channeld"),
    (DDC, "derived-data cache for Unreal editors; with a configuration file it needs ddc.addr"),
    (MATCHER, "matcher: teams, rooms and tickets; with a configuration file it needs matcher.addr"),
];

/// True if the service `name` runs under the configured `only` (`server.only`).
pub(crate) fn is_selected(only: &[String], name: &str) -> bool {
    only.is_empty() || only.iter().any(|selected| selected == name)
}

/// True if `name` is the only service that runs.
pub(crate) fn is_alone(only: &[String], name: &str) -> bool {
    matches!(only, [selected] if selected == name)
}

/// The names of all services, for messages.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    SERVICES.iter().map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_selection_is_everything() {
        assert!(names().all(|name| is_selected(&[], name)));
        assert!(is_selected(&["gateway".to_owned()], GATEWAY));
        assert!(!is_selected(&["other".to_owned()], GATEWAY));
    }
}
