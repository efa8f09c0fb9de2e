//! Deliberate defects, by which the tests prove that the simulation finds them.

/// A rule that a [`Node`](crate::Node) breaks on purpose. In builds without debug assertions it
/// breaks none.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// Claims worlds of a silent node without marking it.
    ClaimWithoutMark,
    /// Marks a silent node after the time of freezing.
    MarkEarly,
    /// Counts its lease from the answer to a renewal.
    FreezeFromAnswer,
    /// Does not compare its lease with the clock before it serves.
    BlindAfterStandstill,
    /// Counts others' silence while its own renewals fail.
    CountWhileCutOff,
    /// Thaws without reading the records of its worlds.
    ThawUnread,
    /// Takes a write without an answer for one that was not applied.
    TimeoutIsFailure,
    /// Takes a write without an answer for one that was applied.
    TimeoutIsSuccess,
    /// Serves before the record says so.
    ServeEarly,
    /// Serves while a record that names another home, or that it has left, is in flight.
    ServeOn,
    /// Sends a write without an answer again as another write.
    FreshNonce,
    /// Believes a record that is older than one seen.
    BelieveOlder,
    /// Keeps a world whose record names a later epoch or another home.
    KeepLostWorld,
    /// Takes its name although another process holds it.
    TakeHeldName,
    /// Begins with epoch 1 where a world has no record.
    EpochFromOne,
    /// Opens worlds of a class with a limit without a permit.
    OpenWithoutPermit,
    /// Takes permits of worlds that may still be opened with them.
    TakePermitEarly,
}
