//! Counters of an event loop.

/// Counts of a loop since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoopStats {
    /// Waits for events.
    pub polls: u64,
    /// Connections taken off listeners' queues.
    pub accepted: u64,
    /// Of those, closed at once because a limit of the listener was reached.
    pub refused_by_limits: u64,
    /// Of those, closed at once because the handler did not admit or accept them.
    pub refused_by_handler: u64,
    /// Connections closed at once because descriptors ran out.
    pub shed: u64,
    /// Connections without a login that were closed for newcomers, because descriptors ran short.
    pub gave_way: u64,
    /// Connections to listeners for proxies that come from no trusted one, or whose header is
    /// wrong.
    pub proxy_errors: u64,
    /// Failed attempts to take a connection off a queue.
    pub accept_errors: u64,
    /// Handshakes that failed or took too long.
    pub handshakes_failed: u64,
    /// Read calls.
    pub reads: u64,
    /// Write calls.
    pub writes: u64,
    /// UDP datagrams received.
    pub datagrams_in: u64,
    /// UDP datagrams sent.
    pub datagrams_out: u64,
    /// Datagrams that were not KCP, or of no session.
    pub bad_datagrams: u64,
    /// Bytes read from sockets.
    pub bytes_in: u64,
    /// Bytes written to sockets.
    pub bytes_out: u64,
}
