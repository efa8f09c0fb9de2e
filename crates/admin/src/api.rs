//! The API: routes of the catalogue, their parameters, sessions, events.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::extract::{Query, Request, State};
use axum::http::header;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use futures_util::stream;
use serde_json::{Value, json};

use crate::access::{Guard, cookie_name};
use crate::app::{App, allowed, off_thread};
use crate::audit::{Act, From};
use crate::catalogue::{Endpoint, Method, ROUTES, Route};
use crate::monitor::{ApiRequest, PAGE_DEFAULT, Page, Problem};
use crate::response::private;

/// Streams of events at a time.
pub(crate) const STREAMS_MAX: usize = 32;
/// Most entries of one answer: about a megabyte of JSON.
const PAGE_MAX: usize = 5_000;
/// Longest text to search for.
const SEARCH_BYTES_MAX: usize = 100;
/// Bytes of a request body.
const BODY_BYTES_MAX: usize = 64 << 10;
/// Bytes of a field in a record of who changed what; of a longer one it says how long it was.
const RECORDED_BYTES_MAX: usize = 4_096;
/// Delay of the answer to a wrong token, against guessing in bulk.
const WRONG_TOKEN_DELAY: Duration = Duration::from_millis(250);
const INTERVAL_DEFAULT_MS: u64 = 1_000;
const INTERVAL_MS: std::ops::RangeInclusive<u64> = 50..=60_000;

pub(crate) fn router() -> Router<App> {
    ROUTES.iter().fold(Router::new(), |router, route| {
        let handler = move |State(app): State<App>, request: Request| answer(app, route, request);
        let method = match route.method {
            Method::Get => get(handler),
            Method::Post => post(handler),
            Method::Delete => delete(handler),
        };
        router.route(route.path, method)
    })
}

async fn answer(app: App, route: &'static Route, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let costly = route.endpoint == Endpoint::Stream;
    if let Err(refusal) = allowed(&app, route.guard, &parts, costly).await {
        return *refusal;
    }
    let text = |name| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let (authorization, cookie) = (text(header::AUTHORIZATION), text(header::COOKIE));
    // A caller that ends its session has a name only before that.
    let who = app.access.name_of(app.listener, authorization, cookie);
    let (response, parameters) = match read(route, &parts, body).await {
        Ok(request) => {
            let parameters = if route.guard == Guard::Open { Value::Null } else { recorded(&request.body) };
            (respond(&app, route, request, cookie).await, parameters)
        }
        Err(problem) => (problem.into_response(), Value::Null),
    };
    if route.method != Method::Get {
        // A login says who it is by its answer. Without a credential nothing changes, and strangers
        // cannot fill the record.
        let session = response.headers().get(header::SET_COOKIE).and_then(|value| value.to_str().ok());
        if let Some(who) = who.or_else(|| app.access.name_of(app.listener, None, session)) {
            let from = parts.extensions.get::<From>().and_then(|from| from.0);
            let what = format!("{} {}", route.method.name(), parts.uri.path());
            let act = Act { who, from, what, parameters, status: response.status().as_u16() };
            let monitor = app.monitor.clone();
            off_thread(move || monitor.record(&act)).await;
        }
    }
    private(response)
}

/// The fields of a body as they are recorded.
fn recorded(body: &Value) -> Value {
    let Some(fields) = body.as_object() else { return body.clone() };
    let short = |value: &Value| {
        let length = value.to_string().len();
        if length > RECORDED_BYTES_MAX { format!("{length} bytes").into() } else { value.clone() }
    };
    fields.iter().map(|(name, value)| (name.clone(), short(value))).collect()
}

async fn respond(app: &App, route: &Route, request: ApiRequest, cookie: Option<&str>) -> Response {
    match route.endpoint {
        Endpoint::Index => axum::Json(index()).into_response(),
        Endpoint::Session => {
            axum::Json(json!({ "session": app.access.has_session(app.listener, cookie) })).into_response()
        }
        Endpoint::SessionOpen => open_session(app, &request).await,
        Endpoint::SessionClose => {
            app.access.close_session(app.listener, cookie);
            let expired = format!("{}=; Path=/; Max-Age=0", cookie_name(app.listener));
            ([(header::SET_COOKIE, expired)], axum::Json(json!({ "session": false }))).into_response()
        }
        Endpoint::Invite => match app.access.invite() {
            Some(token) => axum::Json(json!({ "token": token })).into_response(),
            None => Problem::new(503, "the system provides no random bytes").into_response(),
        },
        Endpoint::Stream => events(app.clone(), request),
        _ => {
            let monitor = app.monitor.clone();
            match off_thread(move || Some(monitor.answer(&request))).await {
                Some(Ok(value)) => axum::Json(value).into_response(),
                Some(Err(problem)) => problem.into_response(),
                None => Problem::new(500, "the report failed; the log says why").into_response(),
            }
        }
    }
}

async fn open_session(app: &App, request: &ApiRequest) -> Response {
    let token = request.body.get("token").and_then(Value::as_str).unwrap_or_default();
    let Some(session) = app.access.open_session(token) else {
        tokio::time::sleep(WRONG_TOKEN_DELAY).await;
        return Problem::new(401, "this token is invalid or was used already").into_response();
    };
    let name = cookie_name(app.listener);
    let cookie = format!("{name}={session}; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict");
    ([(header::SET_COOKIE, cookie)], axum::Json(json!({ "session": true }))).into_response()
}

async fn read(
    route: &Route,
    parts: &axum::http::request::Parts,
    body: axum::body::Body,
) -> Result<ApiRequest, Problem> {
    let bad = |what: &str| Problem::new(400, what);
    let Ok(Query(mut query)) = Query::<BTreeMap<String, String>>::try_from_uri(&parts.uri) else {
        return Err(bad("the query string cannot be parsed"));
    };
    let in_path = |what| {
        let place = route.path.split('/').position(|part| part == what)?;
        Some(parts.uri.path().split('/').nth(place).unwrap_or_default())
    };
    let id = in_path("{id}").map(str::parse::<u32>).transpose();
    let id = id.map_err(|_| bad("the id in the path must be an integer"))?;
    if let Some(name) = in_path("{name}") {
        query.insert("name".to_owned(), name.to_owned());
    }
    let mut number = |name: &str| query.remove(name).map(|text| text.parse::<usize>()).transpose();
    let (Ok(limit), Ok(offset)) = (number("limit"), number("offset")) else {
        return Err(bad("limit and offset must be integers"));
    };
    let page = Page { offset: offset.unwrap_or(0), limit: limit.unwrap_or(PAGE_DEFAULT).min(PAGE_MAX) };
    let search = query.remove("search").unwrap_or_default().to_lowercase();
    if search.len() > SEARCH_BYTES_MAX {
        return Err(bad("search must be at most 100 bytes"));
    }
    let body = match route.method {
        Method::Post if !route.parameters.is_empty() => body_of(parts, body).await?,
        _ => Value::Null,
    };
    Ok(ApiRequest { id, page, search, query, body, ..ApiRequest::new(route.endpoint) })
}

async fn body_of(parts: &axum::http::request::Parts, body: axum::body::Body) -> Result<Value, Problem> {
    let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    // A form of another site cannot say this without asking first.
    if kind.is_none_or(|kind| kind.split(';').next().unwrap_or_default().trim() != "application/json") {
        return Err(Problem::new(415, "the body must be application/json"));
    }
    let bytes = axum::body::to_bytes(body, BODY_BYTES_MAX)
        .await
        .map_err(|_| Problem::new(413, "the body must be at most 64 KiB"))?;
    match serde_json::from_slice(&bytes) {
        Ok(value @ Value::Object(_)) => Ok(value),
        _ => Err(Problem::new(400, "the body must be a JSON object")),
    }
}

fn events(app: App, mut request: ApiRequest) -> Response {
    request.endpoint = match request.query.get("topic").map(String::as_str) {
        Some("overview") => Endpoint::Overview,
        Some("world") => Endpoint::World,
        _ => return Problem::new(400, "topic must be overview or world").into_response(),
    };
    let interval = match request.number("interval_ms") {
        Ok(interval) => interval.unwrap_or(INTERVAL_DEFAULT_MS),
        Err(problem) => return problem.into_response(),
    };
    if !INTERVAL_MS.contains(&interval) {
        return Problem::new(400, "interval_ms must be an integer from 50 to 60000").into_response();
    }
    let Ok(slot) = app.streams.clone().try_acquire_owned() else {
        return Problem::new(503, "the limit of concurrent event streams is reached; close one")
            .into_response();
    };
    let mut ticks = tokio::time::interval(Duration::from_millis(interval));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let stream = stream::unfold((app, request, ticks, slot), |(app, request, mut ticks, slot)| async move {
        ticks.tick().await;
        let (monitor, question) = (app.monitor.clone(), request.clone());
        let event = match off_thread(move || Some(monitor.answer(&question))).await {
            Some(Ok(value)) => Event::default().data(value.to_string()),
            Some(Err(problem)) => Event::default().event("problem").data(json!(problem.what).to_string()),
            None => return None,
        };
        Some((Ok::<_, Infallible>(event), (app, request, ticks, slot)))
    });
    Sse::new(stream).into_response()
}

fn index() -> Value {
    let route = |route: &Route| {
        let parameters: BTreeMap<_, _> = route.parameters.iter().copied().collect();
        json!({
            "method": route.method.name(), "path": route.path, "guard": format!("{:?}", route.guard).to_lowercase(),
            "about": route.about, "parameters": parameters,
        })
    };
    json!({ "routes": ROUTES.iter().map(route).collect::<Vec<_>>() })
}
