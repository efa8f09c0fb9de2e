//! Light traffic for a demo's cache and matcher: players who look for an opponent, and a build that
//! reads and stores derived data. It is a demonstration, not a load: a few requests a second over
//! JSON and HTTP/1.1.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use throng_ddc::IoHash;
use throng_stdx::Rng;

/// The queue that the visitors use, for `matcher.rules`: equals quickly, anybody after a while.
pub(crate) const QUEUE: &str = r#"[[queues]]
name = "duel"
sides = [{ name = "red", min = 1, max = 1 }, { name = "blue", min = 1, max = 1 }]
rating = { pool = "duel" }
rules = [{ name = "skill", type = "near", key = "skill", max = 1 }]
expand = [{ target = "rules.skill.max", steps = [{ after_s = 8, value = 3 }, { after_s = 20, value = 50 }] }]
"#;

/// Time between two turns.
const TURN: Duration = Duration::from_millis(500);
/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Number of distinct players. A player who has left returns later, so that ratings converge.
const PLAYERS: u64 = 200;
/// Maximum number of players who look for a match or play at a time.
const PRESENT_MAX: usize = 40;
const ANSWER_BYTES_MAX: u64 = 1 << 20;
const NAMESPACE: &str = "demo";

/// The visitors, until dropped.
#[derive(Debug)]
pub struct DemoPlayers {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl DemoPlayers {
    /// Lets them in. `matcher` is its HTTP listener.
    ///
    /// # Errors
    /// When there is no thread for them.
    pub fn start(matcher: SocketAddr, cache: SocketAddr, seed: u64) -> std::io::Result<Self> {
        let (end, ended) = channel();
        let thread = std::thread::Builder::new().name("visitors".to_owned()).spawn(move || {
            let mut crowd = Crowd { matcher, cache, rng: Rng::new(seed), present: Vec::new(), stored: 0 };
            while ended.recv_timeout(TURN) == Err(RecvTimeoutError::Timeout) {
                crowd.look_for_matches();
                crowd.play();
                crowd.build();
            }
        })?;
        Ok(Self { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for DemoPlayers {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            // Its result is no longer needed, even if it panicked.
            let _ = thread.join();
        }
    }
}

/// A player who looks for a match or plays one.
#[derive(Debug)]
struct Visitor {
    role: String,
    ticket: String,
    /// Match and room, once assigned.
    place: Option<(String, String)>,
    turns_left: u64,
}

struct Crowd {
    matcher: SocketAddr,
    cache: SocketAddr,
    rng: Rng,
    present: Vec<Visitor>,
    /// Values stored so far.
    stored: u64,
}

impl Crowd {
    fn ask(&self, method: &str, body: &Value) -> Option<Value> {
        let head = "Content-Type: application/json\r\nX-Server-Id: demo\r\n";
        let path = format!("/matcher/v1/{method}");
        let (status, answer) =
            request(self.matcher, "POST", &path, head, body.to_string().as_bytes()).ok()?;
        (status == 200).then(|| serde_json::from_slice(&answer).ok())?
    }

    fn look_for_matches(&mut self) {
        let role = format!("visitor-{}", self.rng.below(PLAYERS));
        let is_here = self.present.iter().any(|visitor| visitor.role == role);
        if self.present.len() < PRESENT_MAX && !is_here {
            let party = json!({ "Queue": "duel", "Players": [{ "RoleID": role, "SrvID": "demo" }] });
            if let Some(answer) = self.ask("CreateTicket", &party) {
                let ticket = answer["Ticket"]["TicketID"].as_str().unwrap_or_default().to_owned();
                let turns_left = 20 + self.rng.below(40);
                self.present.push(Visitor { role, ticket, place: None, turns_left });
            }
        }
        for index in 0..self.present.len() {
            let visitor = &self.present[index];
            if visitor.place.is_some() {
                continue;
            }
            let answer = self.ask("GetTicket", &json!({ "TicketID": visitor.ticket })).unwrap_or_default();
            let text = |key: &str| answer["Ticket"][key].as_str().unwrap_or_default().to_owned();
            match text("Status").as_str() {
                "matched" => {
                    let (room, role) = (text("RoomID"), visitor.role.clone());
                    self.ask("ClaimSeat", &json!({ "RoomID": room, "RoleID": role }));
                    self.present[index].place = Some((text("MatchID"), room));
                }
                "searching" | "proposed" | "placing" => {}
                // Ended otherwise, or unknown to a matcher that has started anew.
                _ => self.present[index].turns_left = 0,
            }
        }
    }

    /// Ends matches after a random time; the player who ends one loses.
    fn play(&mut self) {
        for visitor in self.present.iter_mut().filter(|visitor| visitor.place.is_some()) {
            visitor.turns_left = visitor.turns_left.saturating_sub(1);
        }
        let Some(loser) = self.present.iter().position(|visitor| visitor.turns_left == 0) else { return };
        let loser = self.present.swap_remove(loser);
        let Some((game, room)) = loser.place else { return };
        let other = self
            .present
            .iter()
            .position(|visitor| visitor.place.as_ref().is_some_and(|(same, _)| *same == game));
        let leave = |role: &str| json!({ "RoomID": room, "RoleID": role });
        if let Some(winner) = other.map(|index| self.present.swap_remove(index)) {
            let sides =
                json!([{ "RoleIDs": [winner.role], "Rank": 1 }, { "RoleIDs": [loser.role], "Rank": 2 }]);
            self.ask("ReportResult", &json!({ "MatchID": game, "Sides": sides }));
            self.ask("RoleLeaveRoom", &leave(&winner.role));
        }
        self.ask("RoleLeaveRoom", &leave(&loser.role));
    }

    /// Reads values, of which some are not there yet, and stores one.
    fn build(&mut self) {
        for _ in 0..4 {
            let number = self.rng.below(self.stored + 2);
            let path = format!("/api/v1/refs/{NAMESPACE}/textures/{}.raw", key(number));
            // A miss is as good as a hit here, and nobody at all would be noticed elsewhere.
            let _ = request(self.cache, "GET", &path, "", &[]);
        }
        let mut value = vec![0; 1_024 << self.rng.below(7)];
        self.rng.fill(&mut value);
        let path = format!("/api/v1/refs/{NAMESPACE}/textures/{}", key(self.stored));
        let hash = IoHash::of(&value);
        let head = format!("Content-Type: application/octet-stream\r\nX-Jupiter-IoHash: {hash}\r\n");
        if request(self.cache, "PUT", &path, &head, &value).is_ok_and(|(status, _)| status == 200) {
            self.stored += 1;
        }
    }
}

fn key(number: u64) -> IoHash {
    IoHash::of(&number.to_le_bytes())
}

/// One request on a connection of its own: the status and the body of the answer.
fn request(
    to: SocketAddr,
    method: &str,
    path: &str,
    head: &str,
    body: &[u8],
) -> std::io::Result<(u16, Vec<u8>)> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n{head}Content-Length: {length}\r\n\r\n"
    );
    stream.write_all(&[head.as_bytes(), body].concat())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    let status =
        std::str::from_utf8(answer.get(9..12).unwrap_or_default()).ok().and_then(|text| text.parse().ok());
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n");
    match (status, end) {
        (Some(status), Some(end)) => Ok((status, answer.split_off(end + 4))),
        _ => Err(std::io::Error::other("no HTTP answer")),
    }
}
