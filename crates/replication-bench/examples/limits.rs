//! Figures in half a minute: what sending group 1 over UDP adds, a frame of 2,000 connections that
//! see 2,000 characters in a square kilometre at the reference levels of detail, one change in a
//! keyed array of 10,000 elements, 50,000 sleeping objects in view, 100 connections that join at
//! once, 10,000 objects of eight components: `cargo run --release --example limits`.
#![allow(clippy::print_stdout, reason = "an example prints")]

use throng_replication::wire::{AckState, Header};
use throng_replication::{
    Axis, Class, ClassId, Classes, Filter, Handle, Keyed, Property, Quantiser, Server, ServerConfig, Value,
    View,
};
use throng_replication_bench::case::{Case, Mode, Spread, run, run_over};
use throng_replication_bench::clock::thread_cpu_ns;
use throng_replication_bench::shared::Shared;
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
    keyed();
    for (what, sleepers) in [("none", 0), ("50,000", 50_000)] {
        let frames = in_view(sleepers, 0, 1, 64..200);
        println!("{what} sleeping objects in view: a frame {:.1} us (p99 {:.1})", frames.mean, frames.p99);
    }
    let frames = in_view(2100, 0, 100, 1..300);
    println!(
        "100 joiners, the whole map of 2,100: a frame {:.0} us (p99 {:.0}, max {:.0})",
        frames.mean, frames.p99, frames.max
    );
    let frames = in_view(10_000, 8, 1, 100..300);
    println!(
        "10,000 objects of 8 components each in view, one changes: a frame {:.1} us (p99 {:.1})",
        frames.mean, frames.p99
    );
    Ok(())
}

/// CPU time of frames for some connections that see everything: objects with `parts` components
/// each, asleep unless they have some, of whose parts one changes in every frame. Connections
/// acknowledge at once.
fn in_view(objects: u32, parts: u32, connections: usize, measured: std::ops::Range<u32>) -> Spread {
    let axis = Axis::new(-1024.0, 0.01, 18);
    let place = Property::new("position", Quantiser::Vec3([axis; 3])).world_position();
    let mut classes = Classes::new();
    let class = Class::builder("thing")
        .property(place)
        .property(Property::new("health", Quantiser::UInt(10)))
        .cull_distance(400.0);
    classes.register(class.build().expect("sound")).expect("the first");
    let part = Class::builder("component").property(Property::new("value", Quantiser::UInt(16)));
    classes.register(part.build().expect("sound")).expect("the second");
    let mut server = Server::new(ServerConfig { objects_max: 1 << 20, ..ServerConfig::default() }, &classes);
    let mut components = Vec::new();
    for at in 0..objects {
        let handle = server.create(ClassId(0)).expect("few");
        let angle = at as f32;
        let far = (at % 200) as f32;
        server.set(handle, 0, [angle.cos() * far, angle.sin() * far, 0.0]).expect("it exists");
        server.set(handle, 1, at % 1000 + 1).expect("it exists");
        for _ in 0..parts {
            components.push(server.create_part(handle, ClassId(1)).expect("few"));
        }
        if parts == 0 {
            server.set_dormant(handle, true).expect("it exists");
        }
    }
    server.tick(Shared::time(1), |_| {});
    let ids: Vec<_> = (0..connections).map(|_| server.connect().expect("few")).collect();
    for id in &ids {
        server.set_views(*id, &[View::default()]);
    }
    let mut acks = vec![AckState::default(); connections];
    let mut samples = Vec::new();
    for frame in 2..measured.end {
        if let Some(component) = components.get(frame as usize * 7 % components.len().max(1)) {
            server.set(*component, 0, frame).expect("it exists");
        }
        let start = thread_cpu_ns();
        for (id, acks) in ids.iter().zip(&acks) {
            let (ack, ack_bits) = acks.fields();
            let header = Header { seq: frame as u16, ack, ack_bits, frame };
            server.receive(*id, &header.to_bytes()).expect("what was sent");
        }
        server.tick(Shared::time(frame), |out| {
            let acks = &mut acks[out.connection.index() as usize];
            out.iter().for_each(|packet| acks.applied(u16::from_le_bytes([packet[0], packet[1]])));
        });
        if measured.contains(&frame) {
            samples.push(thread_cpu_ns() - start);
        }
    }
    Spread::of(samples)
}

/// A frame with one changed element among ten thousand, and a frame without: to one connection that
/// acknowledges at once.
fn keyed() {
    let mut classes = Classes::new();
    let bag =
        Keyed::new("bag", 20_000).field("item", Quantiser::UInt(16)).field("count", Quantiser::UInt(10));
    let class = Class::builder("chest").keyed(bag).build().expect("sound");
    classes.register(class).expect("the first");
    let mut server = Server::new(ServerConfig::default(), &classes);
    let id = server.connect().expect("the first");
    let chest = server.create(ClassId(0)).expect("the first");
    server.set_filter(chest, Filter::Always).expect("just created");
    let change = |server: &mut Server, chest: Handle, key: u32, count: u32| {
        let element = [Value::UInt(u64::from(key)), Value::UInt(u64::from(count % 1000))];
        server.set_element(chest, 0, key, &element).expect("it has an array");
    };
    (0..10_000).for_each(|key| change(&mut server, chest, key, 0));
    let (mut acks, mut seq) = (AckState::default(), 0_u16);
    let mut samples = [Vec::new(), Vec::new()];
    for frame in 1..=2200_u32 {
        let changes = frame % 2 == 0;
        let start = thread_cpu_ns();
        if changes && frame > 200 {
            change(&mut server, chest, frame * 7 % 10_000, frame);
        }
        server.tick(Shared::time(frame), |out| {
            out.iter().for_each(|packet| acks.applied(u16::from_le_bytes([packet[0], packet[1]])));
        });
        let spent = thread_cpu_ns() - start;
        if frame > 200 {
            samples[usize::from(changes)].push(spent);
        }
        let (ack, ack_bits) = acks.fields();
        server.receive(id, &Header { seq, ack, ack_bits, frame }.to_bytes()).expect("what was sent");
        seq = seq.wrapping_add(1);
    }
    let [without, with] = samples.map(Spread::of);
    println!(
        "keyed array of 10,000: a frame with one change {:.2} us (p99 {:.2}), without {:.2} us, clock included",
        with.mean, with.p99, without.mean
    );
}
