//! One connection to a world, wherever it is: sends requests and waits for their answers.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use prost::Message as _;
use throng_wire::channeldpb as pb;
use throng_wire::frame::FrameReader;

use crate::protocol::{self, CHANNEL_TYPE_GLOBAL, Head, kind};
use crate::stream;

/// Nodes that a connection tries in search of its world, beside the first.
const MOVES_MAX: usize = 3;
/// Time in which a node of this machine accepts a connection.
const ACCEPT: Duration = Duration::from_secs(1);

/// A connection in a world.
#[derive(Debug)]
pub(crate) struct Visitor {
    pub(crate) stream: TcpStream,
    /// Bytes of a frame that has not arrived whole.
    pub(crate) reader: FrameReader,
    /// Its id in the world.
    pub(crate) conn: u32,
}

impl Visitor {
    /// Enters `world` (the default one if empty) through the listener `at`, or at the node that
    /// serves it. Every answer may take `patience`.
    pub(crate) fn enter(at: SocketAddr, world: &str, name: &str, patience: Duration) -> io::Result<Self> {
        let (mut to, mut world) = (vec![at], world.to_owned());
        for _ in 0..=MOVES_MAX {
            let stream = connect(&to)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(patience))?;
            let mut visitor = Self { stream, reader: FrameReader::default(), conn: 0 };
            let mut frame = Vec::new();
            protocol::enter(&mut frame, 1, name, "throng-load", &world);
            let answer = visitor.ask(&frame, kind::AUTH)?;
            let answer = pb::AuthResultMessage::decode(&answer[..]).map_err(io::Error::other)?;
            let Some(elsewhere) = answer.elsewhere else {
                visitor.conn = answer.conn_id;
                return match answer.result {
                    0 => Ok(visitor),
                    refused => Err(io::Error::other(format!("login refused: result {refused}"))),
                };
            };
            let addresses = elsewhere.addresses.iter();
            to = addresses.filter_map(|address| address.strip_prefix("tcp://")?.parse().ok()).collect();
            world = elsewhere.world;
        }
        Err(io::Error::other(format!("the nodes send `{world}` round")))
    }

    /// Claims GLOBAL, as the game server of a world does.
    pub(crate) fn claim(&mut self) -> io::Result<()> {
        let mut frame = Vec::new();
        protocol::create_channel(&mut frame, 2, CHANNEL_TYPE_GLOBAL, "", None);
        self.ask(&frame, kind::CREATE_CHANNEL).map(drop)
    }

    /// Asks for the channels of the world. The answer shows that the world is served.
    pub(crate) fn ping(&mut self) -> io::Result<()> {
        let mut frame = Vec::new();
        protocol::put_message(&mut frame, Head { stub: 3, kind: kind::LIST_CHANNEL, ..Head::default() }, &[]);
        self.ask(&frame, kind::LIST_CHANNEL).map(drop)
    }

    /// Sends frames. Returns the body of the next message of this kind.
    pub(crate) fn ask(&mut self, frames: &[u8], kind: u32) -> io::Result<Vec<u8>> {
        stream::ask(&mut self.stream, &mut self.reader, frames, kind)
    }
}

/// Connects to the first of these addresses that answers.
fn connect(to: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the node that serves the world has no address for this connection");
    for address in to {
        match TcpStream::connect_timeout(address, ACCEPT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}
