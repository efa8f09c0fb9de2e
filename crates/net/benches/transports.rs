//! Cost of the transports: WebSocket frames, KCP segments, and a round trip through two loops.
//!
//! `cargo bench -p throng-net`; `cargo test -p throng-net --benches` runs each once.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::ops::ControlFlow;

use divan::{Bencher, black_box, counter::BytesCount, counter::ItemsCount};
use throng_net::kcp::{Kcp, Profile, Side};
use throng_net::ws::{Borders, Decoder, Event, Role, write_message};
use throng_net::*;
use throng_stdx::Instant;

fn main() {
    divan::main();
}

/// A client's binary message.
fn message(size: usize) -> Vec<u8> {
    let mut wire = Vec::new();
    write_message(&mut wire, &vec![7; size], Some([1, 2, 3, 4]));
    wire
}

/// Decoding, with unmasking in place.
#[divan::bench(args = [64, 1024, 65_530])]
fn decode_message(bencher: Bencher<'_, '_>, size: usize) {
    let mut wire = message(size);
    let mut decoder = Decoder::new(Role::Server, u64::MAX);
    bencher.counter(BytesCount::new(size)).bench_local(|| {
        let mut sum = 0;
        let used = decoder.feed(black_box(&mut wire), &mut |event| {
            if let Event::Data(bytes) = event {
                sum += bytes.len();
            }
            ControlFlow::Continue(())
        });
        (used, sum)
    });
}

/// Cost that following the outgoing stream adds to each write.
#[divan::bench]
fn follow_borders(bencher: Bencher<'_, '_>) {
    let mut wire = Vec::new();
    write_message(&mut wire, &[7; 600], None);
    let mut borders = Borders::default();
    bencher.bench_local(|| {
        borders.advance(black_box(&wire));
        borders.at_border()
    });
}

/// Sixteen full segments from one end to the other, with their acknowledgements.
#[divan::bench]
fn kcp_exchange(bencher: Bencher<'_, '_>) {
    let mut now = Instant::ZERO;
    let mut a = Kcp::new(1, Profile::GAME, Side::Connects, 1, now);
    let mut b = Kcp::new(1, Profile::GAME, Side::Connects, 2, now);
    let bytes = vec![7; 16 * kcp::MSS];
    let mut datagram = Vec::new();
    bencher.counter(ItemsCount::new(16u32)).bench_local(|| {
        a.send(&bytes);
        now += std::time::Duration::from_millis(10);
        while a.poll_transmit(now, &mut datagram) {
            b.handle_datagram(now, &datagram).expect("a segment of the session");
        }
        let mut sum = 0;
        while let Some(piece) = b.poll_received() {
            sum += piece.bytes.len();
        }
        now += std::time::Duration::from_millis(10);
        b.handle_timeout(now);
        while b.poll_transmit(now, &mut datagram) {
            a.handle_datagram(now, &datagram).expect("a segment of the session");
        }
        assert!(a.is_flushed());
        sum
    });
}

/// Counts the bytes that arrive.
#[derive(Default)]
struct Counter {
    accepted: Vec<ConnKey>,
    received: usize,
}

impl Handler for Counter {
    fn accepted(&mut self, _: ListenerKey, key: ConnKey, _: SocketAddr) -> Accept {
        self.accepted.push(key);
        Accept::Keep
    }
    fn data(&mut self, _: ConnKey, bytes: &[u8]) -> Flow {
        self.received += bytes.len();
        Flow::Continue
    }
    fn writable(&mut self, _: ConnKey) {}
    fn closed(&mut self, _: ConnKey, _: CloseCause) {}
    fn woken(&mut self) {}
}

/// 600 bytes there and back over loopback, both loops on one thread: two writes, two reads, at
/// least two waits.
#[divan::bench]
fn tcp_round_trip(bencher: Bencher<'_, '_>) {
    let clock = Clock::start();
    let mut loops = [EventLoop::new().expect("descriptors"), EventLoop::new().expect("descriptors")];
    let mut ends = [Counter::default(), Counter::default()];
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let (_, addr) = loops[0].listen(ListenerSpec::new(any, Transport::Tcp)).expect("a port");
    let client = loops[1].connect(ConnectSpec::new(addr, Transport::Tcp)).expect("a socket");
    while ends[0].accepted.is_empty() {
        for (end, it) in ends.iter_mut().zip(&mut loops) {
            it.poll(&clock, Some(Instant::ZERO), end).expect("a working system");
        }
    }
    let keys = [ends[0].accepted[0], client];
    bencher.bench_local(|| {
        for from in [1, 0] {
            let to = 1 - from;
            let outcome = loops[from].write(keys[from], &[IoSlice::new(&[7; 600])]);
            assert_eq!(outcome.taken, 600);
            ends[to].received = 0;
            while ends[to].received < 600 {
                loops[to].poll(&clock, Some(Instant::ZERO), &mut ends[to]).expect("a working system");
            }
        }
    });
}
