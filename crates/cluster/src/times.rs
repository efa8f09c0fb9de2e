//! Times of all leases. They are constants, because other ratios broke promises in the model.

use std::time::Duration;

/// Time between two renewals, or between two reads of another process's record.
pub(crate) const RENEWAL: Duration = Duration::from_secs(1);
/// Time after which a holder stops serving, from the sending of its last successful renewal. It
/// outlasts an election of NATS, which took up to 5.9 s when its leader was killed, and takes 9 s
/// by its defaults.
pub const FREEZE: Duration = Duration::from_secs(11);
/// Time after which an unchanged record has lost its holder.
pub const LOSS: Duration = Duration::from_secs(15);
/// An observer's time counts only if its latest answered request was sent less than this ago.
pub(crate) const ANSWERED: Duration = Duration::from_secs(5);
const _: () = assert!(LOSS.as_millis() * 100 > FREEZE.as_millis() * 136, "clocks may differ by 36%");
/// Age at which any node may repeat an assignment that its node has not accepted.
pub(crate) const LAPSE: Duration = Duration::from_secs(5);
/// Pause before a request with an unknown result is sent again.
pub(crate) const AGAIN: Duration = Duration::from_millis(250);
