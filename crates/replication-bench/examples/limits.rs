//! Two figures in half a minute: what sending group 1 over UDP adds, and a frame of 2,000 connections that see 2,000
//! characters in a square kilometre at the reference levels of detail: `cargo run --release --example limits`.
#![allow(clippy::print_stdout, reason = "an example prints")]

use throng_replication_bench::case::{Case, Mode, run, run_over};
use throng_replication_bench::socket::Sockets;
use throng_replication_bench::workload::Group;

fn main() -> std::io::Result<()> {
    let group = Group::new(1).expect("five groups");
    let mut sockets = Sockets::open(group.connections)?;
    let outcome = run_over(&Case::new(group, Mode::Shared), Some(&mut sockets));
    let sending = outcome.socket_us.unwrap_or_default();
    let bare = outcome.socket_bare_us.unwrap_or_default();
    println!(
        "group 1: net {:.1} us, sending {:.1} us (p99 {:.1}), bare sendmmsg {:.1} us: ratio {:.2}",
        outcome.net_us.mean,
        sending.mean,
        sending.p99,
        bare.mean,
        sending.mean / bare.mean
    );
    let crowd = Group::scaled(2000, 0, 1000.0);
    let outcome = run(&Case { frames: 60, warmup: 60, lod: true, ..Case::new(crowd, Mode::Shared) });
    println!(
        "2,000 characters: net {:.0} us (p99 {:.0}, max {:.0}), {:.0} bytes each",
        outcome.net_us.mean, outcome.net_us.p99, outcome.net_us.max, outcome.bytes_per_client_frame
    );
    Ok(())
}
