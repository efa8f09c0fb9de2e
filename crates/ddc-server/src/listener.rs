//! Kinds of listeners.

/// Namespaces that a listener serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener {
    /// Namespaces that are marked public.
    Public,
    /// Every namespace.
    Corporate,
    /// Every namespace, the replication log and administration.
    Internal,
}
