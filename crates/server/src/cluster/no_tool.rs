//! `throng cluster` of a build without the feature `nats`: every command is refused.

use std::time::Duration;

use serde_json::Value;

use crate::config::Settings;

const MISSING: &str = "this program was built without the feature `nats`";

macro_rules! refused {
    ($($name:ident($($of:ident: $ty:ty),*) -> $answer:ty;)*) => {
        $(
            /// Refuses.
            ///
            /// # Errors
            /// Always.
            pub fn $name(_: &Settings, $($of: $ty),*) -> Result<$answer, String> {
                $(let _ = $of;)*
                Err(MISSING.to_owned())
            }
        )*
    };
}

refused! {
    init() -> String;
    permissions() -> String;
    check() -> String;
    read() -> Value;
    drain(node: &str, wait: Option<Duration>) -> String;
    undrain(node: &str) -> String;
    close(world: &str) -> String;
}
