//! Headers of the interface.

use hyper::header::HeaderName;

pub(crate) const IO_HASH: HeaderName = HeaderName::from_static("x-jupiter-iohash");
pub(crate) const INLINE_HASH: HeaderName = HeaderName::from_static("x-jupiter-inlinepayloadhash");
pub(crate) const LAST_ACCESS: HeaderName = HeaderName::from_static("x-jupiter-lastaccess");
pub(crate) const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
pub(crate) const ALLOW_OVERWRITE: HeaderName = HeaderName::from_static("x-jupiter-allow-overwrite");
