//! The replication benchmark: deterministic workloads with checksums (groups 1 to 5), the methods
//! that are compared on them, and their measurement by thread CPU time.

pub mod baseline;
pub mod case;
pub mod clock;
pub mod scaling;
pub mod shared;
pub mod socket;
pub mod workload;
