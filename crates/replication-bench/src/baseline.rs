//! The methods that the library is compared with (spec §21.1 and §21.2): `legacy` decides, compares
//! and serialises for each pair of connection and object; `graph` does the same for objects from a
//! grid.
//!
//! Both use the library's quantisers, records, packets and receiver, and the push model: an object
//! that nobody marked is not compared. What they do not share between connections is what the
//! comparison is about.

use std::collections::VecDeque;

use throng_replication::bits::{BitWriter, write_varint};
use throng_replication::wire::{AckState, HEADER_BYTES, Header, kind, write_mask, write_record};
use throng_replication::{ClassId, Classes};

use crate::clock::thread_cpu_ns;
use crate::shared::{classes, sphere, store};
use crate::workload::{BenchObject, CULL_DISTANCE};

const PACKET_BYTES_MAX: usize = 1200;
/// Words of a live block of the workload's classes.
const LIVE: usize = 29;
/// Properties of the workload's classes.
const COUNT: usize = 13;

/// State of one pair of connection and object.
#[derive(Clone, Debug)]
struct Pair {
    state: State,
    /// Frame of the last send, for priority and for marks since then.
    sent: u32,
    /// Properties that a lost packet contained.
    lost: u16,
    /// Values that were sent last: compared before anything is serialised.
    shadow: [u32; LIVE],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Absent,
    Creating,
    Live,
    Destroying,
}

#[derive(Clone, Copy, Debug)]
enum Item {
    Update(u32, u16),
    Create(u32),
    Destroy(u32),
}

#[derive(Debug, Default)]
struct Conn {
    view: [f32; 3],
    pairs: Vec<Pair>,
    /// Packets in flight: number and count of items, oldest first.
    packets: VecDeque<(u16, u32)>,
    items: VecDeque<Item>,
    known: Vec<u32>,
    next_seq: u16,
    acks: AckState,
}

#[derive(Clone, Debug, Default)]
struct Cell {
    objects: Vec<u32>,
}

/// The naive method, with or without a grid.
#[derive(Debug)]
pub struct Baseline {
    graph: bool,
    classes: Classes,
    conns: Vec<Conn>,
    /// Live values, positions and marks by object.
    live: Vec<[u32; LIVE]>,
    positions: Vec<[f32; 3]>,
    /// Frame in which each property was marked last, and the newest of them.
    marks: Vec<([u32; COUNT], u32, u16)>,
    class: Vec<u16>,
    cells: Vec<Cell>,
    cell_of: Vec<u32>,
    columns: i32,
    budget: usize,
    relevant: Vec<(f32, u32)>,
    gathered: Vec<u32>,
    record: Vec<u8>,
    buf: Vec<u8>,
}

impl Baseline {
    /// The method for `connections` connections.
    #[must_use]
    pub fn new(graph: bool, connections: usize, budget: Option<usize>, half_side: f32) -> Self {
        let columns = (2.0 * half_side.max(500.0) / CULL_DISTANCE).ceil() as i32;
        Self {
            graph,
            classes: classes(false),
            conns: (0..connections).map(|_| Conn::default()).collect(),
            live: Vec::new(),
            positions: Vec::new(),
            marks: Vec::new(),
            class: Vec::new(),
            cells: vec![Cell::default(); (columns * columns) as usize],
            cell_of: Vec::new(),
            columns,
            budget: budget.unwrap_or(usize::MAX),
            relevant: Vec::new(),
            gathered: Vec::new(),
            record: Vec::new(),
            buf: Vec::new(),
        }
    }

    /// Class definitions, for receivers.
    #[must_use]
    pub fn classes(&self) -> &Classes {
        &self.classes
    }

    /// Hands over what the last step set, as the game would to its objects.
    pub fn apply(&mut self, frame: u32, things: &[BenchObject]) {
        for thing in things.iter().skip(self.live.len()) {
            let mut live = [0; LIVE];
            store(thing, 0x1fff, &mut live);
            self.live.push(live);
            self.positions.push(thing.position);
            self.marks.push(([frame; COUNT], frame, 0x1fff));
            self.class.push(u16::from(!thing.is_character));
            self.cell_of.push(u32::MAX);
            let fresh = Pair { state: State::Absent, sent: 0, lost: 0, shadow: [0; LIVE] };
            for conn in &mut self.conns {
                conn.pairs.push(fresh.clone());
            }
        }
        for (at, thing) in things.iter().enumerate() {
            if thing.marked != 0 {
                store(thing, thing.marked, &mut self.live[at]);
                self.positions[at] = thing.position;
                let (stamps, newest, marked) = &mut self.marks[at];
                for (property, stamp) in stamps.iter_mut().enumerate() {
                    if thing.marked >> property & 1 != 0 {
                        *stamp = frame;
                    }
                }
                (*newest, *marked) = (frame, thing.marked);
            }
        }
        for (conn, thing) in self.conns.iter_mut().zip(things) {
            conn.view = thing.position;
        }
    }

    /// An acknowledgement of a connection's receiver.
    pub fn acknowledge(&mut self, connection: usize, ack: u16, bits: u64) {
        let conn = &mut self.conns[connection];
        while let Some((seq, count)) = conn.packets.front().copied() {
            let age = ack.wrapping_sub(seq);
            if age >= 0x8000 {
                break;
            }
            let delivered = age == 0 || age <= 64 && bits >> (age - 1) & 1 != 0;
            conn.packets.pop_front();
            for item in conn.items.drain(..count as usize) {
                match item {
                    Item::Update(object, mask) if !delivered => conn.pairs[object as usize].lost |= mask,
                    Item::Update(..) => {}
                    Item::Create(object) => {
                        let pair = &mut conn.pairs[object as usize];
                        if pair.state == State::Creating {
                            pair.state = if delivered { State::Live } else { State::Absent };
                        }
                    }
                    Item::Destroy(object) => {
                        let pair = &mut conn.pairs[object as usize];
                        if pair.state == State::Destroying {
                            pair.state = if delivered { State::Absent } else { State::Live };
                            if !delivered {
                                conn.known.push(object);
                            }
                        }
                    }
                }
            }
        }
    }

    /// A frame: packets go to `sink`. Returns nanoseconds of thread CPU time spent on what is not
    /// per connection, and on connections.
    pub fn frame(&mut self, frame: u32, sink: &mut dyn FnMut(usize, &[u8])) -> (u64, u64) {
        let start = thread_cpu_ns();
        if self.graph {
            self.register();
        }
        let begun = thread_cpu_ns();
        for connection in 0..self.conns.len() {
            self.connection(connection, frame, sink);
        }
        (begun - start, thread_cpu_ns() - begun)
    }

    /// Keeps moving objects in the cell that they are in.
    fn register(&mut self) {
        for object in 0..self.positions.len() {
            // Static ones are placed once.
            if self.cell_of[object] != u32::MAX && self.class[object] == 1 {
                continue;
            }
            let cell = self.cell(self.positions[object]);
            let old = self.cell_of[object];
            if old == cell {
                continue;
            }
            if old != u32::MAX {
                self.cells[old as usize].objects.retain(|other| *other != object as u32);
            }
            self.cells[cell as usize].objects.push(object as u32);
            self.cell_of[object] = cell;
        }
    }

    fn cell(&self, position: [f32; 3]) -> u32 {
        let half = self.columns as f32 * CULL_DISTANCE / 2.0;
        let place = |x: f32| (((x + half) / CULL_DISTANCE) as i32).clamp(0, self.columns - 1);
        (place(position[1]) * self.columns + place(position[0])) as u32
    }

    fn connection(&mut self, connection: usize, frame: u32, sink: &mut dyn FnMut(usize, &[u8])) {
        // Steps 1 and 2: what is relevant, and how much.
        let view = self.conns[connection].view;
        self.gathered.clear();
        if self.graph {
            let cell = self.cell(view) as i32;
            let (row, column) = (cell / self.columns, cell % self.columns);
            for row in (row - 1).max(0)..=(row + 1).min(self.columns - 1) {
                for column in (column - 1).max(0)..=(column + 1).min(self.columns - 1) {
                    let objects = &self.cells[(row * self.columns + column) as usize].objects;
                    self.gathered.extend_from_slice(objects);
                }
            }
        } else {
            self.gathered.extend(0..self.positions.len() as u32);
        }
        let sphere = sphere();
        let slope = (sphere.p_out - sphere.p_in) / (sphere.r_out - sphere.r_in);
        let conn = &mut self.conns[connection];
        self.relevant.clear();
        for object in &self.gathered {
            let to: [f32; 3] = core::array::from_fn(|i| self.positions[*object as usize][i] - view[i]);
            let square = to[0] * to[0] + to[1] * to[1] + to[2] * to[2];
            if square <= CULL_DISTANCE * CULL_DISTANCE || *object as usize == connection {
                let distance = square.sqrt();
                let p = if distance > sphere.r_out {
                    sphere.p_outside
                } else {
                    sphere.p_in + (distance - sphere.r_in).max(0.0) * slope
                };
                let waited = frame.wrapping_sub(conn.pairs[*object as usize].sent);
                self.relevant.push((p * waited as f32, *object));
            }
        }
        // Step 3.
        self.relevant.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        // Step 4, and the ends of what is relevant no more.
        self.buf.clear();
        let mut out = Out {
            buf: &mut self.buf,
            connection,
            frame,
            budget: self.budget,
            sink,
            section: 0,
            count_at: 0,
            count: 0,
            items: 0,
            spent: 0,
        };
        conn.known.retain(|object| {
            let at = *object as usize;
            let to: [f32; 3] = core::array::from_fn(|i| self.positions[at][i] - view[i]);
            let square = to[0] * to[0] + to[1] * to[1] + to[2] * to[2];
            if square <= CULL_DISTANCE * CULL_DISTANCE || at == connection {
                return true;
            }
            // One that was never confirmed is ended when it is.
            if conn.pairs[at].state != State::Live {
                return conn.pairs[at].state == State::Creating;
            }
            self.record.clear();
            write_varint(&mut self.record, u64::from(*object) + 1);
            self.record.push(1);
            let flight = (&mut conn.packets, &mut conn.next_seq, &conn.acks);
            if !out.put(flight, kind::DESTROY, &self.record) {
                return true;
            }
            conn.items.push_back(Item::Destroy(*object));
            conn.pairs[at].state = State::Destroying;
            false
        });
        for (_, object) in &self.relevant {
            let at = *object as usize;
            let pair = &mut conn.pairs[at];
            let live = &self.live[at];
            let Some(class) = self.classes.get(ClassId(self.class[at])) else { continue };
            let (mask, section) = match pair.state {
                State::Absent => (0x1fff, kind::CREATE),
                State::Destroying => continue,
                state => {
                    let (stamps, newest, marked) = &self.marks[at];
                    let mut dirty = pair.lost;
                    if *newest > pair.sent {
                        if pair.sent + 1 == *newest {
                            dirty |= marked;
                        } else {
                            for (property, stamp) in stamps.iter().enumerate() {
                                dirty |= u16::from(*stamp > pair.sent) << property;
                            }
                        }
                    }
                    if self.class[at] == 1 {
                        dirty &= 0x1ff8;
                    }
                    // Compare: what differs from what was sent, or was lost.
                    let mut mask = pair.lost & dirty;
                    for property in 0..COUNT {
                        if dirty >> property & 1 != 0 {
                            let (codec, _, from) = class.layout(property);
                            let range = from..from + codec.live_words();
                            mask |= u16::from(live[range.clone()] != pair.shadow[range]) << property;
                        }
                    }
                    if mask == 0 {
                        continue;
                    }
                    (mask, if state == State::Live { kind::UPDATE } else { kind::SIZED_UPDATE })
                }
            };
            // Serialise.
            let mut quantised = [0; COUNT];
            for property in 0..COUNT {
                if mask >> property & 1 != 0 {
                    let (codec, word, from) = class.layout(property);
                    codec.quantise(&live[from..], &mut quantised[word..]);
                }
            }
            self.record.clear();
            let index = object + 1;
            if section == kind::CREATE {
                write_varint(&mut self.record, u64::from(index));
                self.record.extend_from_slice(&[0; 4]);
                write_varint(&mut self.record, u64::from(self.class[at]));
                self.record.push(0);
                let mut writer = BitWriter::new(&mut self.record);
                write_mask(&mut writer, u64::from(mask), COUNT as u32);
                for (property, word) in quantised.iter().enumerate() {
                    class.layout(property).0.write(&[*word], &mut writer);
                }
                writer.finish();
            } else {
                if section == kind::SIZED_UPDATE {
                    self.record.extend_from_slice(&[0; 2]);
                }
                write_record(&mut self.record, index, class, u64::from(mask), &quantised, &[]);
                if section == kind::SIZED_UPDATE {
                    let len = self.record.len() as u16 - 2;
                    self.record[..2].copy_from_slice(&len.to_le_bytes());
                }
            }
            // Send.
            let flight = (&mut conn.packets, &mut conn.next_seq, &conn.acks);
            if !out.put(flight, section, &self.record) {
                break;
            }
            for property in 0..COUNT {
                if mask >> property & 1 != 0 {
                    let (codec, _, from) = class.layout(property);
                    let range = from..from + codec.live_words();
                    pair.shadow[range.clone()].copy_from_slice(&live[range]);
                }
            }
            (pair.sent, pair.lost) = (frame, 0);
            if section == kind::CREATE {
                pair.state = State::Creating;
                if !conn.known.contains(object) {
                    conn.known.push(*object);
                }
                conn.items.push_back(Item::Create(*object));
            } else {
                conn.items.push_back(Item::Update(*object, mask));
            }
        }
        // An empty packet asks what became of the last ones when there is nothing to send.
        if out.is_unused() && conn.packets.iter().any(|(_, count)| *count > 0) {
            out.open((&mut conn.packets, &mut conn.next_seq, &conn.acks));
        }
        out.close((&mut conn.packets, &mut conn.next_seq, &conn.acks));
    }
}

type Flight<'a> = (&'a mut VecDeque<(u16, u32)>, &'a mut u16, &'a AckState);

/// Packets of one connection and frame: the same layout as the library's.
struct Out<'a> {
    buf: &'a mut Vec<u8>,
    connection: usize,
    frame: u32,
    budget: usize,
    sink: &'a mut dyn FnMut(usize, &[u8]),
    section: u8,
    count_at: usize,
    count: u8,
    items: u32,
    spent: usize,
}

impl Out<'_> {
    /// False when the budget is spent.
    fn put(&mut self, flight: Flight<'_>, section: u8, item: &[u8]) -> bool {
        let (packets, next_seq, acks) = flight;
        let joins = self.section == section && self.count < 127;
        let need = item.len() + if joins { 0 } else { 2 };
        if !self.buf.is_empty() && self.buf.len() + need > PACKET_BYTES_MAX {
            self.close((packets, next_seq, acks));
        }
        let head = if self.buf.is_empty() { HEADER_BYTES + 2 } else { 0 };
        if self.spent + self.buf.len() + head + need > self.budget {
            return false;
        }
        if self.buf.is_empty() {
            self.open((packets, next_seq, acks));
        }
        if self.section != section || self.count == 127 {
            self.section = section;
            self.buf.extend_from_slice(&[section, 0]);
            self.count_at = self.buf.len() - 1;
            self.count = 0;
        }
        self.buf.extend_from_slice(item);
        self.count += 1;
        self.buf[self.count_at] = self.count;
        self.items += 1;
        true
    }

    fn open(&mut self, (_, next_seq, acks): Flight<'_>) {
        let (ack, ack_bits) = acks.fields();
        let header = Header { seq: *next_seq, ack, ack_bits, frame: self.frame };
        self.buf.extend_from_slice(&header.to_bytes());
        self.section = 0;
    }

    fn is_unused(&self) -> bool {
        self.buf.is_empty() && self.spent == 0
    }

    fn close(&mut self, (packets, next_seq, _): Flight<'_>) {
        if self.buf.is_empty() {
            return;
        }
        (self.sink)(self.connection, self.buf);
        packets.push_back((*next_seq, self.items));
        *next_seq = next_seq.wrapping_add(1);
        self.spent += self.buf.len();
        self.buf.clear();
        (self.items, self.section, self.count) = (0, 0, 0);
    }
}
