//! Tuning profiles of a KCP session.

use std::time::Duration;

/// Tuning of one end of a KCP session. The ends need not agree, except that a peer never sends more
/// than the window that the other end announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Faster retransmission: minimum timeout 30 ms instead of 100 ms, back-off by half instead of
    /// doubling.
    pub no_delay: bool,
    /// Grid of the acknowledgements and retransmissions, 10 ms to 5 s.
    pub interval: Duration,
    /// Retransmit a segment at once after this many later ones were acknowledged; 0 turns it off.
    pub fast_resend: u32,
    /// Limit what is in flight by a congestion window as TCP does.
    pub congestion_window: bool,
    /// Segments in flight, and segments held for the application, at most; 1 to 65535.
    pub window: u16,
}

impl Profile {
    /// Profile of the reference gateway (Spec: gateway-protocol §2.7): slow, and gentle on the
    /// network.
    pub const REFERENCE: Self = Self {
        no_delay: false,
        interval: Duration::from_millis(100),
        fast_resend: 0,
        congestion_window: true,
        window: 32,
    };
    /// For games: latency first.
    pub const GAME: Self = Self {
        no_delay: true,
        interval: Duration::from_millis(10),
        fast_resend: 2,
        congestion_window: false,
        window: 256,
    };
}
