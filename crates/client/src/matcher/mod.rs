//! The matcher's client: [`Matcher`] on tokio, and [`MatcherSession`] for a loop of your own.

mod driver;
mod player;
mod session;
mod types;

pub use driver::{Matcher, MatcherConnectError, NOTICES_WAITING_MAX, Notices, Notification};
pub use player::{MATCHMAKING, MatchmakingEvent, MatchmakingRequest};
pub use session::{CallError, CallId, MatcherConfig, MatcherEvent, MatcherSession, Notice};
pub use types::{MatchWorld, Mine, Role, Room, Team};
