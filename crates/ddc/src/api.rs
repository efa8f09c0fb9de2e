//! The HTTP interface without HTTP: which route a request takes, which form its answer has, which
//! part of a blob it asks for.

use std::fmt;

use crate::{Bucket, IoHash, Key, Namespace};

/// A media type of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Media {
    /// Compact binary object.
    CompactBinary,
    /// Object with its attachments.
    Package,
    /// Compressed buffer.
    Compressed,
    /// Raw bytes.
    Octets,
    /// JSON.
    Json,
    /// The only attachment of a ref, as it is stored.
    Inline,
}

impl Media {
    /// The media type's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Media::CompactBinary => "application/x-ue-cb",
            Media::Package => "application/x-ue-cbpkg",
            Media::Compressed => "application/x-ue-comp",
            Media::Octets => "application/octet-stream",
            Media::Json => "application/json",
            Media::Inline => "application/x-jupiter-inline",
        }
    }

    /// The type that a header names; parameters and case are ignored.
    #[must_use]
    pub fn parse(text: &str) -> Option<Media> {
        let name = text.split(';').next().unwrap_or_default().trim();
        let all = [
            Media::CompactBinary,
            Media::Package,
            Media::Compressed,
            Media::Octets,
            Media::Json,
            Media::Inline,
        ];
        all.into_iter().find(|media| media.name().eq_ignore_ascii_case(name))
    }

    fn of_suffix(suffix: &str) -> Option<Media> {
        Some(match suffix {
            "uecb" => Media::CompactBinary,
            "uecbpkg" => Media::Package,
            "raw" => Media::Octets,
            "json" => Media::Json,
            "jpi" => Media::Inline,
            _ => return None,
        })
    }
}

/// The first of `accept`'s types that is offered; the first offer if anything is accepted. `None`:
/// nothing fits.
#[must_use]
pub fn negotiate(accept: Option<&str>, offers: &[Media]) -> Option<Media> {
    let Some(accept) = accept.filter(|accept| !accept.trim().is_empty()) else {
        return offers.first().copied();
    };
    accept.split(',').find_map(|part| {
        let name = part.split(';').next().unwrap_or_default().trim();
        match name {
            "*/*" | "application/*" => offers.first().copied(),
            _ => Media::parse(name).filter(|media| offers.contains(media)),
        }
    })
}

/// A method that some route has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// `GET`
    Get,
    /// `HEAD`
    Head,
    /// `PUT`
    Put,
    /// `POST`
    Post,
    /// `DELETE`
    Delete,
}

impl Method {
    /// The method of a request line.
    #[must_use]
    pub fn parse(text: &str) -> Option<Method> {
        Some(match text {
            "GET" => Method::Get,
            "HEAD" => Method::Head,
            "PUT" => Method::Put,
            "POST" => Method::Post,
            "DELETE" => Method::Delete,
            _ => return None,
        })
    }

    fn name(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Head => "HEAD",
            Method::Put => "PUT",
            Method::Post => "POST",
            Method::Delete => "DELETE",
        }
    }
}

/// Name of a ref.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RefName {
    /// Namespace that the ref belongs to.
    pub namespace: Namespace,
    /// Bucket within the namespace.
    pub bucket: Bucket,
    /// Key within the bucket.
    pub key: Key,
}

/// What kind of hash a route of the blob family names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Blobs by their own hash.
    Blobs,
    /// Compressed buffers by the hash of what they hold.
    Compressed,
    /// Objects by their own hash.
    Objects,
}

/// What a path names. Which methods it has, [`Route::methods`] says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// `/health/live`, `/health/ready`: without any work.
    Health,
    /// `/health/liveness`, `/health/readiness`: with a look at the store.
    HealthChecked,
    /// `/api/v1/status`
    Status,
    /// `/api/v1/status/peers`
    Peers,
    /// `/api/v1/auth/{ns}`
    Auth(Namespace),
    /// `/api/v1/auth/{ns}[/{bucket}]/actions`
    AuthActions(Namespace, Option<Bucket>),
    /// `/api/v1/refs`
    Namespaces,
    /// `/api/v1/refs/{ns}`: batches; deletion.
    RefNamespace(Namespace),
    /// `/api/v1/refs/{ns}/exists`
    RefsExist(Namespace),
    /// `/api/v1/refs/{ns}/{bucket}`
    Bucket(Namespace, Bucket),
    /// `/api/v1/refs/{ns}/{bucket}/{key}[.suffix]`
    Ref(RefName, Option<Media>),
    /// `.../finalize/{hash}[.suffix]`
    Finalise(RefName, IoHash, Option<Media>),
    /// `.../metadata`
    RefMetadata(RefName),
    /// `.../references`
    RefReferences(RefName),
    /// `.../replicationState`
    RefReplication(RefName),
    /// `.../blobs/{hash}`
    RefBlob(RefName, IoHash),
    /// `/api/v1/blobs`: batches.
    BlobBatch,
    /// `/api/v1/{family}/{ns}`
    Family(Family, Namespace),
    /// `/api/v1/{family}/{ns}/exists`: ids in the query.
    Exists(Family, Namespace),
    /// `/api/v1/{family}/{ns}/exist`: ids in the body.
    Exist(Family, Namespace),
    /// `/api/v1/{family}/{ns}/{hash}`
    Blob(Family, Namespace, IoHash),
    /// `/api/v1/objects/{ns}/{hash}/references`
    ObjectReferences(Namespace, IoHash),
    /// `/api/v1/content-id/{ns}/{cid}`
    ContentId(Namespace, IoHash),
    /// `/api/v1/content-id/{ns}/{cid}/update/{blob}/{weight}`
    ContentIdUpdate(Namespace, IoHash, IoHash, u64),
    /// `/api/v1/replication-log/incremental/{ns}`
    ReplicationLog(Namespace),
    /// `/api/v1/replication-log/snapshots/{ns}`
    Snapshots(Namespace),
    /// `/api/v1/replication-log/snapshots/{ns}/create`
    SnapshotCreate(Namespace),
    /// `/api/v1/admin/refCleanup`
    RefCleanup,
    /// `/api/v1/admin/startLastAccessRollup`
    LastAccessRollup,
    /// `/api/v1/admin/settings`
    Settings,
}

/// Why a request has no route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteError {
    /// No such path: 404.
    Unknown,
    /// The path exists, for other methods: 405.
    Method(&'static [Method]),
    /// A name, key or hash in the path is malformed: 400.
    Malformed(String),
}

/// The value of the `Allow` header.
pub struct Allow(pub &'static [Method]);

impl fmt::Display for Allow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, method) in self.0.iter().enumerate() {
            write!(f, "{}{}", if index > 0 { ", " } else { "" }, method.name())?;
        }
        Ok(())
    }
}

/// Segments of the longest path.
const SEGMENTS_MAX: usize = 8;

impl Route {
    /// The route of a path, without its query.
    ///
    /// # Errors
    /// As [`RouteError`] says.
    pub fn find(method: Method, path: &str) -> Result<Route, RouteError> {
        let route = Route::of_path(path)?;
        let methods = route.methods();
        if methods.contains(&method) { Ok(route) } else { Err(RouteError::Method(methods)) }
    }

    /// What may be done there.
    #[must_use]
    pub fn methods(&self) -> &'static [Method] {
        use Method::{Delete, Get, Head, Post, Put};
        match self {
            Route::Health | Route::HealthChecked => &[Get, Head],
            Route::Status | Route::Peers | Route::Auth(_) | Route::AuthActions(..) | Route::Namespaces => {
                &[Get]
            }
            Route::RefNamespace(_) => &[Post, Delete],
            Route::Bucket(..) => &[Delete],
            Route::Ref(..) => &[Get, Head, Put, Delete],
            Route::Finalise(..) | Route::BlobBatch | Route::SnapshotCreate(_) => &[Post],
            Route::RefsExist(_)
            | Route::RefMetadata(_)
            | Route::RefReferences(_)
            | Route::RefReplication(_)
            | Route::ObjectReferences(..)
            | Route::ContentId(..)
            | Route::ReplicationLog(_)
            | Route::Snapshots(_)
            | Route::Settings => &[Get],
            Route::RefBlob(..) => &[Get, Head, Put],
            // Only the family of plain blobs is deleted as a whole.
            Route::Family(Family::Blobs, _) => &[Post, Delete],
            Route::Family(..) => &[Post],
            Route::Exists(..) | Route::Exist(..) | Route::RefCleanup | Route::LastAccessRollup => &[Post],
            Route::Blob(..) => &[Get, Head, Put, Delete],
            Route::ContentIdUpdate(..) => &[Put],
        }
    }

    fn of_path(path: &str) -> Result<Route, RouteError> {
        // Nothing valid needs escapes, so nothing is decoded: there is one spelling of every name.
        let (mut parts, mut count) = ([""; SEGMENTS_MAX], 0);
        let (path, mut start) = (path.strip_prefix('/').ok_or(RouteError::Unknown)?, 0);
        // Parts are short: a search prepared for each of them would take twice as long.
        for at in (0..=path.len()).filter(|at| path.as_bytes().get(*at).is_none_or(|byte| *byte == b'/')) {
            *parts.get_mut(count).ok_or(RouteError::Unknown)? = &path[start..at];
            (start, count) = (at + 1, count + 1);
        }
        Ok(match parts[..count] {
            ["health", "live" | "ready"] => Route::Health,
            ["health", "liveness" | "readiness"] => Route::HealthChecked,
            ["api", "v1", ref rest @ ..] => match *rest {
                ["status"] => Route::Status,
                ["status", "peers"] => Route::Peers,
                ["auth", ns] => Route::Auth(name(ns)?),
                ["auth", ns, "actions"] => Route::AuthActions(name(ns)?, None),
                ["auth", ns, bucket, "actions"] => Route::AuthActions(name(ns)?, Some(name(bucket)?)),
                ["refs", ref rest @ ..] => refs(rest)?,
                ["blobs" | "s"] => Route::BlobBatch,
                ["blobs" | "s", ref rest @ ..] => family(Family::Blobs, rest)?,
                ["compressed-blobs", ref rest @ ..] => family(Family::Compressed, rest)?,
                ["objects", ref rest @ ..] => family(Family::Objects, rest)?,
                ["content-id", ns, cid] => Route::ContentId(name(ns)?, hash(cid)?),
                ["content-id", ns, cid, "update", blob, weight] => {
                    Route::ContentIdUpdate(name(ns)?, hash(cid)?, hash(blob)?, number(weight)?)
                }
                ["replication-log", "incremental", ns] => Route::ReplicationLog(name(ns)?),
                ["replication-log", "snapshots", ns] => Route::Snapshots(name(ns)?),
                ["replication-log", "snapshots", ns, "create"] => Route::SnapshotCreate(name(ns)?),
                ["admin", "refCleanup"] => Route::RefCleanup,
                ["admin", "startLastAccessRollup"] => Route::LastAccessRollup,
                ["admin", "settings"] => Route::Settings,
                _ => return Err(RouteError::Unknown),
            },
            _ => return Err(RouteError::Unknown),
        })
    }
}

fn refs(parts: &[&str]) -> Result<Route, RouteError> {
    Ok(match *parts {
        [] => Route::Namespaces,
        [ns] => Route::RefNamespace(name(ns)?),
        [ns, "exists"] => Route::RefsExist(name(ns)?),
        [ns, bucket] => Route::Bucket(name(ns)?, name(bucket)?),
        [ns, bucket, key] => {
            let (key, media) = suffixed(key)?;
            Route::Ref(ref_name(ns, bucket, key)?, media)
        }
        [ns, bucket, key, "finalize", object] => {
            let (object, media) = suffixed(object)?;
            Route::Finalise(ref_name(ns, bucket, key)?, hash(object)?, media)
        }
        [ns, bucket, key, "metadata"] => Route::RefMetadata(ref_name(ns, bucket, key)?),
        [ns, bucket, key, "references"] => Route::RefReferences(ref_name(ns, bucket, key)?),
        [ns, bucket, key, "replicationState"] => Route::RefReplication(ref_name(ns, bucket, key)?),
        [ns, bucket, key, "blobs", blob] => Route::RefBlob(ref_name(ns, bucket, key)?, hash(blob)?),
        _ => return Err(RouteError::Unknown),
    })
}

fn family(family: Family, parts: &[&str]) -> Result<Route, RouteError> {
    Ok(match *parts {
        [ns] if family != Family::Objects => Route::Family(family, name(ns)?),
        [ns, "exists"] => Route::Exists(family, name(ns)?),
        [ns, "exist"] => Route::Exist(family, name(ns)?),
        [ns, blob] => Route::Blob(family, name(ns)?, hash(blob)?),
        [ns, object, "references"] if family == Family::Objects => {
            Route::ObjectReferences(name(ns)?, hash(object)?)
        }
        _ => return Err(RouteError::Unknown),
    })
}

fn ref_name(namespace: &str, bucket: &str, key: &str) -> Result<RefName, RouteError> {
    let key = key.parse().map_err(malformed)?;
    Ok(RefName { namespace: name(namespace)?, bucket: name(bucket)?, key })
}

/// Splits at the first dot: keys and hashes have none.
fn suffixed(segment: &str) -> Result<(&str, Option<Media>), RouteError> {
    match segment.split_once('.') {
        None => Ok((segment, None)),
        Some((stem, suffix)) => match Media::of_suffix(suffix) {
            Some(media) => Ok((stem, Some(media))),
            None => {
                Err(RouteError::Malformed("no such format; uecb, uecbpkg, raw, json and jpi are".to_owned()))
            }
        },
    }
}

fn name<T: std::str::FromStr<Err = crate::IdentError>>(text: &str) -> Result<T, RouteError> {
    text.parse().map_err(malformed)
}

fn hash(text: &str) -> Result<IoHash, RouteError> {
    text.parse().map_err(malformed)
}

fn number(text: &str) -> Result<u64, RouteError> {
    text.parse().map_err(|_| RouteError::Malformed("a weight is a whole number".to_owned()))
}

fn malformed(error: impl fmt::Display) -> RouteError {
    RouteError::Malformed(error.to_string())
}

/// The values of a parameter of a query, decoded.
pub fn query_values<'q>(query: &'q str, wanted: &'q str) -> impl Iterator<Item = String> + 'q {
    query.split('&').filter_map(move |pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        name.eq_ignore_ascii_case(wanted).then(|| percent_decode(value))
    })
}

fn percent_decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let digits = bytes.get(at + 1..at + 3).and_then(|pair| std::str::from_utf8(pair).ok());
        match (bytes[at], digits.and_then(|pair| u8::from_str_radix(pair, 16).ok())) {
            (b'%', Some(byte)) => {
                out.push(byte);
                at += 2;
            }
            (b'+', _) => out.push(b' '),
            (byte, _) => out.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// What a `Range` header asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// Everything: there is no header, or it has a form that may be ignored (several ranges, other
    /// units).
    Whole,
    /// These bytes, which exist: 206.
    Part {
        /// First byte.
        start: u64,
        /// Byte after the last.
        end: u64,
    },
    /// Bytes that do not exist: 416.
    Unsatisfiable,
}

impl Range {
    /// Reads the header for a body of `len` bytes.
    #[must_use]
    pub fn read(header: Option<&str>, len: u64) -> Range {
        let Some(spec) = header.and_then(|header| header.trim().strip_prefix("bytes=")) else {
            return Range::Whole;
        };
        let Some((first, last)) = spec.split_once('-') else { return Range::Whole };
        let number = |text: &str| {
            let text = text.trim();
            (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()))
                .then(|| text.parse::<u64>().unwrap_or(u64::MAX))
        };
        match (number(first), number(last), first.trim().is_empty(), last.trim().is_empty()) {
            (Some(start), Some(last), ..) if start > last => Range::Whole,
            (Some(start), ..) if start >= len && (last.trim().is_empty() || number(last).is_some()) => {
                Range::Unsatisfiable
            }
            (Some(start), Some(last), ..) => Range::Part { start, end: last.saturating_add(1).min(len) },
            (Some(start), None, _, true) => Range::Part { start, end: len },
            (None, Some(0), true, _) => Range::Unsatisfiable,
            (None, Some(_), true, _) if len == 0 => Range::Unsatisfiable,
            (None, Some(count), true, _) => Range::Part { start: len.saturating_sub(count), end: len },
            _ => Range::Whole,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "00000000000000000000000000000000000000aa";

    #[test]
    fn paths_lead_to_routes() {
        let find = |method, path: &str| Route::find(method, path);
        let hash = IoHash::of(b"x");
        let name = |ns: &str| RefName {
            namespace: ns.parse().expect("a name"),
            bucket: "default".parse().expect("a name"),
            key: KEY.parse().expect("a key"),
        };
        assert_eq!(find(Method::Head, "/health/ready"), Ok(Route::Health));
        let with_dots = format!("/api/v1/refs/test.ns/Default/{}.uecbpkg", KEY.to_uppercase());
        assert_eq!(find(Method::Get, &with_dots), Ok(Route::Ref(name("test.ns"), Some(Media::Package))));
        let finalise = format!("/api/v1/refs/n/default/{KEY}/finalize/{hash:X}.uecb");
        let route = Route::Finalise(name("n"), hash, Some(Media::CompactBinary));
        assert_eq!(find(Method::Post, &finalise), Ok(route));
        assert_eq!(find(Method::Get, &finalise), Err(RouteError::Method(&[Method::Post])));
        let alias = find(Method::Put, &format!("/api/v1/s/n/{hash}"));
        assert_eq!(alias, Ok(Route::Blob(Family::Blobs, "n".parse().expect("a name"), hash)));
        for bad in
            ["/api/v1/refs/n%2e/default/", "/api/v1/refs/../x", "/api/v1/blobs/n/12", "/api/v1/blobs/n%00/x"]
        {
            assert!(matches!(find(Method::Get, bad), Err(RouteError::Malformed(_))), "{bad}");
        }
        let suffix = format!("/api/v1/refs/n/default/{KEY}.exe");
        assert!(matches!(find(Method::Get, &suffix), Err(RouteError::Malformed(_))));
        for unknown in ["", "/", "//", "/api/v2/refs", "/api/v1/refs/n/b/k/x/y/z", "/health"] {
            assert_eq!(find(Method::Get, unknown), Err(RouteError::Unknown), "{unknown}");
        }
    }

    #[test]
    fn only_the_family_of_plain_blobs_is_deleted_as_a_whole() {
        let delete = |path| Route::find(Method::Delete, path);
        assert_eq!(delete("/api/v1/blobs/n"), Ok(Route::Family(Family::Blobs, "n".parse().unwrap())));
        assert_eq!(delete("/api/v1/compressed-blobs/n"), Err(RouteError::Method(&[Method::Post])));
        assert_eq!(delete("/api/v1/objects/n"), Err(RouteError::Unknown));
    }

    #[test]
    fn the_first_acceptable_type_wins() {
        let offers = [Media::CompactBinary, Media::Json];
        let check = |accept, expected| assert_eq!(negotiate(accept, &offers), expected, "{accept:?}");
        check(None, Some(Media::CompactBinary));
        check(Some("*/*"), Some(Media::CompactBinary));
        check(Some("application/JSON;q=0.1, application/x-ue-cb"), Some(Media::Json));
        check(Some("text/html, application/json"), Some(Media::Json));
        check(Some("text/html"), None);
        check(Some(" "), Some(Media::CompactBinary));
    }

    #[test]
    fn ranges_are_read_as_the_standard_says() {
        let part = |start, end| Range::Part { start, end };
        for (header, expected) in [
            ("bytes=0-3", part(0, 4)),
            ("bytes=2-", part(2, 10)),
            ("bytes=-3", part(7, 10)),
            ("bytes=-30", part(0, 10)),
            ("bytes=5-99999999999999999999", part(5, 10)),
            ("bytes=10-", Range::Unsatisfiable),
            ("bytes=-0", Range::Unsatisfiable),
            ("bytes=5-2", Range::Whole),
            ("bytes=0-1,3-4", Range::Whole),
            ("bytes=x-", Range::Whole),
            ("bytes=-", Range::Whole),
            ("items=0-1", Range::Whole),
        ] {
            assert_eq!(Range::read(Some(header), 10), expected, "{header}");
        }
        assert_eq!(Range::read(None, 10), Range::Whole);
        assert_eq!(Range::read(Some("bytes=0-0"), 0), Range::Unsatisfiable);
        assert_eq!(Range::read(Some("bytes=-1"), 0), Range::Unsatisfiable);
    }

    #[test]
    fn queries_are_decoded() {
        let values: Vec<String> = query_values("id=a%2Eb&ID=c+d&other=e&id", "id").collect();
        assert_eq!(values, ["a.b", "c d", ""]);
    }
}
