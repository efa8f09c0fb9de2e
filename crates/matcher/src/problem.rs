//! Why a request was refused.

use std::borrow::Cow;

use throng_wire::matcher::{Status, write_bytes, write_nested};

/// A refusal: nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) status: Status,
    pub(crate) message: Cow<'static, str>,
    /// Members of `detail`: names and JSON values.
    pub(crate) detail: Vec<(&'static str, String)>,
}

impl Problem {
    pub(crate) fn new(status: Status, message: impl Into<Cow<'static, str>>) -> Problem {
        Problem { status, message: message.into(), detail: Vec::new() }
    }

    #[must_use]
    pub(crate) fn with(mut self, name: &'static str, json: String) -> Problem {
        self.detail.push((name, json));
        self
    }

    /// The body of a response with an error status: {1: message, 2: detail as a map of JSON
    /// values}.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        write_bytes(out, 1, self.message.as_bytes());
        for (name, json) in &self.detail {
            write_nested(out, 2, |out| {
                write_bytes(out, 1, name.as_bytes());
                write_bytes(out, 2, json.as_bytes());
            });
        }
    }
}

pub(crate) type Outcome<T = ()> = Result<T, Problem>;

pub(crate) fn invalid(message: impl Into<Cow<'static, str>>) -> Problem {
    Problem::new(Status::Invalid, message)
}

pub(crate) fn not_found(what: &'static str) -> Problem {
    Problem::new(Status::NotFound, what)
}

pub(crate) fn too_large(message: impl Into<Cow<'static, str>>) -> Problem {
    Problem::new(Status::TooLarge, message)
}

pub(crate) fn forbidden(message: &'static str) -> Problem {
    Problem::new(Status::Forbidden, message)
}

pub(crate) fn lives_elsewhere() -> Problem {
    forbidden("the role lives on another server")
}

impl From<throng_wire::WireError> for Problem {
    fn from(error: throng_wire::WireError) -> Problem {
        invalid(format!("the body is not what the method takes: {error}"))
    }
}

/// Text as a JSON string.
pub(crate) fn quote(text: &[u8]) -> String {
    serde_json::Value::String(String::from_utf8_lossy(text).into_owned()).to_string()
}

/// Texts as a JSON list.
pub(crate) fn quote_all<'a>(texts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let list: Vec<String> = texts.into_iter().map(quote).collect();
    format!("[{}]", list.join(","))
}

/// Refuses state that is not in order: `what` is wrong unless it `holds`.
pub(crate) fn ensure(holds: bool, what: &'static str) -> Result<(), &'static str> {
    if holds { Ok(()) } else { Err(what) }
}
