//! The matcher's client: [`Matcher`] for most, [`MatcherSession`] for those with a loop of their
//! own.

mod driver;
mod player;
mod session;
mod types;

pub use driver::{Matcher, MatcherConnectError, NOTICES_WAITING_MAX, Notices, Notification};
pub use player::{MATCHMAKING, MatchmakingEvent, MatchmakingRequest};
pub use session::{CallError, CallId, MatcherConfig, MatcherEvent, MatcherSession, Notice};
pub use types::{Mine, Role, Room, Team};
