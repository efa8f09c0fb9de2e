//! Lists of the admin API, page by page.

use serde_json::{Value, json};
use throng_admin::ApiRequest;

/// One page of rows, of those in which the text that is searched for occurs.
pub(crate) fn paged(
    name: &str,
    rows: impl Iterator<Item = Value>,
    request: &ApiRequest,
    text: impl Fn(&Value) -> String,
) -> Value {
    let (mut total, mut page) = (0_usize, Vec::new());
    for row in
        rows.filter(|row| request.search.is_empty() || text(row).to_lowercase().contains(&request.search))
    {
        if total >= request.page.offset && page.len() < request.page.limit {
            page.push(row);
        }
        total += 1;
    }
    json!({ "total": total, "offset": request.page.offset, "limit": request.page.limit, name: page })
}
