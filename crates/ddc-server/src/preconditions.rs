//! Preconditions of requests: RFC 9110, section 13.

use hyper::StatusCode;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use throng_ddc::IoHash;

use crate::answer::Problem;

/// Preconditions of a request on the present state of its resource. The default has none.
#[derive(Debug, Default)]
pub(crate) struct Preconditions {
    /// Entity tags of `If-Match`.
    matching: Option<Vec<String>>,
    /// Entity tags of `If-None-Match`.
    none_matching: Option<Vec<String>>,
    /// The tag of a ref is the hash of the blob that it names, as an entry of a build cache has it,
    /// not that of its object.
    pub(crate) names_blob: bool,
}

/// Decision about a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Decision {
    Proceed,
    /// `If-Match` names something else.
    Differs,
    /// `If-None-Match` names what is there.
    IsThere,
}

impl Preconditions {
    pub(crate) fn of(headers: &HeaderMap) -> Preconditions {
        let tags = |name: HeaderName| {
            let lines = headers.get_all(name);
            lines.iter().next()?;
            let tags = lines.iter().filter_map(|line| line.to_str().ok()).flat_map(|line| line.split(','));
            Some(tags.map(|tag| tag.trim().to_owned()).collect())
        };
        let (matching, none_matching) = (tags(header::IF_MATCH), tags(header::IF_NONE_MATCH));
        Preconditions { matching, none_matching, names_blob: false }
    }

    /// The same for an entry of a build cache.
    pub(crate) fn of_entry(self) -> Preconditions {
        Preconditions { names_blob: true, ..self }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.matching.is_none() && self.none_matching.is_none()
    }

    /// Decides about a request to something with this hash, or to something that is not there.
    fn decide(&self, hash: Option<&IoHash>) -> Decision {
        let tag = hash.map(tag_of);
        let names = |tags: &Option<Vec<String>>, is_weak: bool| {
            let is_tag = |each: &String, tag: &String| {
                each == "*" || each == tag || is_weak && each.strip_prefix("W/") == Some(tag)
            };
            let found = |tags: &Vec<String>| {
                tag.as_ref().is_some_and(|tag| tags.iter().any(|each| is_tag(each, tag)))
            };
            tags.as_ref().map(found)
        };
        match (names(&self.matching, false), names(&self.none_matching, true)) {
            (Some(false), _) => Decision::Differs,
            (_, Some(true)) => Decision::IsThere,
            _ => Decision::Proceed,
        }
    }

    /// Decides about a GET or HEAD of something that is there. Reports whether the client has it
    /// already.
    ///
    /// # Errors
    /// 412, if the client asks for something else.
    pub(crate) fn is_unmodified(&self, hash: &IoHash) -> Result<bool, Problem> {
        if self.is_empty() {
            return Ok(false);
        }
        match self.decide(Some(hash)) {
            Decision::Differs => Err(failed(Some(hash), "If-Match does not name")),
            decision => Ok(decision == Decision::IsThere),
        }
    }

    /// Decides about a change.
    ///
    /// # Errors
    /// 412, if the client does not want it.
    pub(crate) fn permit_change(&self, hash: Option<&IoHash>) -> Result<(), Problem> {
        match self.decide(hash) {
            Decision::Proceed => Ok(()),
            Decision::Differs => Err(failed(hash, "If-Match does not name")),
            Decision::IsThere => Err(failed(hash, "If-None-Match names")),
        }
    }
}

/// The entity tag of something with this hash.
pub(crate) fn tag_of(hash: &IoHash) -> String {
    format!("\"{hash}\"")
}

/// The same as a header.
pub(crate) fn tag_value(hash: &IoHash) -> HeaderValue {
    let mut text = [b'"'; 2 * IoHash::BYTES + 2];
    text[1..=2 * IoHash::BYTES].copy_from_slice(&hash.hex_lower());
    HeaderValue::from_bytes(&text).expect("digits in quotes are a header value")
}

fn failed(hash: Option<&IoHash>, what: &str) -> Problem {
    let title = match hash {
        Some(hash) => format!("what is stored has the entity tag {}, which {what}", tag_of(hash)),
        None => "nothing is stored under this name, and If-Match asks for something".to_owned(),
    };
    Problem::new(StatusCode::PRECONDITION_FAILED, title)
}
