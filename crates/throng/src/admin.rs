//! Requests to the admin listener of a running process.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::Value;
use throng_platform::{Full, Request, exchange_blocking};

/// Timeout of a whole response.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest body: five thousand connections are two megabytes.
const RESPONSE_BYTES_MAX: usize = 16 << 20;

/// Admin address of a process, and the credential for it.
#[derive(Debug, Args)]
pub(crate) struct AdminArgs {
    /// Its admin address
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:11280")]
    pub(crate) http: String,
    /// File whose first line is a token from its http.tokens_file; required from other machines,
    /// and for `throng why --ticket`
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

/// Advice when no process answers.
pub(crate) fn advice(why: &str) -> &'static str {
    match why.starts_with("cannot connect") {
        true => {
            "\n  is it running? start one with: throng up; `throng up --only ddc` answers at --http 127.0.0.1:8558"
        }
        false => "",
    }
}

impl AdminArgs {
    /// The value at a path of `/api/v1/`.
    ///
    /// # Errors
    /// The answer of the process if it is not a success, or the reason why it could not be reached.
    pub(crate) fn get(&self, path: &str) -> Result<Value, String> {
        self.call("GET", path, "")
    }

    /// Has the process do something: the request's fields are an object of JSON.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub(crate) fn post(&self, path: &str, fields: &Value) -> Result<Value, String> {
        self.call("POST", path, &fields.to_string())
    }

    fn call(&self, method: &str, path: &str, body: &str) -> Result<Value, String> {
        let token = self.token_file.as_deref().map(first_line).transpose()?;
        let (status, body) = exchange(&self.http, method, &format!("/api/v1/{path}"), token.as_deref(), body)
            .map_err(|why| format!("{}: {why}{}", self.http, advice(&why)))?;
        let value: Value = serde_json::from_str(&body)
            .map_err(|_| format!("{}: the answer is not from throng", self.http))?;
        if status == 200 {
            return Ok(value);
        }
        let why = value["error"].as_str().unwrap_or("no reason given");
        Err(format!("{}: {why}", self.http))
    }
}

fn first_line(file: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let line = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
    line.map(str::to_owned).ok_or_else(|| format!("{} contains no token", file.display()))
}

/// Sends one GET and returns status and body.
pub(crate) fn ask(addr: &str, path: &str, token: Option<&str>) -> Result<(u16, String), String> {
    exchange(addr, "GET", path, token, "")
}

fn exchange(
    addr: &str,
    method: &str,
    path: &str,
    token: Option<&str>,
    body: &str,
) -> Result<(u16, String), String> {
    let bare = addr.trim_start_matches("http://").trim_end_matches('/');
    // `:8080` is how an address on all interfaces is written; from here it is reached over
    // loopback.
    let full = if bare.starts_with(':') { format!("127.0.0.1{bare}") } else { bare.to_owned() };
    // The last part is a port, also behind the brackets of an IPv6 address.
    if full.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
        return Err("expected an address as HOST:PORT".to_owned());
    }
    let mut request = Request::builder().method(method).uri(format!("http://{full}{path}"));
    if !body.is_empty() {
        request = request.header("content-type", "application/json");
    }
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let request = request.body(Full::from(body.to_owned())).map_err(|error| error.to_string())?;
    let answer = exchange_blocking(request, TIMEOUT, RESPONSE_BYTES_MAX);
    let (status, body) = answer.map_err(|why| match why.contains("closed before message completed") {
        true => "no HTTP answer; `http.addr` is the admin address".to_owned(),
        false => why,
    })?;
    Ok((status.as_u16(), String::from_utf8_lossy(&body).trim().to_owned()))
}
