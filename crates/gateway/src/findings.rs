//! Invariants that are found broken.

use crate::ids::ChannelId;

/// Something that must hold between inputs and does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broken {
    /// The channel that it is about, if one is.
    pub channel: Option<ChannelId>,
    /// The statement that does not hold.
    pub what: &'static str,
}

/// Notes what is broken.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    channel: Option<ChannelId>,
    pub(crate) broken: Vec<Broken>,
}

impl Findings {
    pub(crate) fn about(&mut self, channel: Option<ChannelId>) {
        self.channel = channel;
    }

    /// Notes `what` unless it holds.
    pub(crate) fn expect(&mut self, holds: bool, what: &'static str) {
        // One line each is enough to know, however many members of a thousand are wrong.
        if !holds && !self.broken.iter().any(|known| known.channel == self.channel && known.what == what) {
            self.broken.push(Broken { channel: self.channel, what });
        }
    }
}
