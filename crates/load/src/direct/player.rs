//! A simulated player: moves at once, and is corrected if the server disagrees. No sockets and no
//! clock.

use throng_replication::{Classes, Client, ClientConfig, ClientEvent, Prediction, Replica, Replicate as _};
use throng_stdx::Rng;

use super::character::{Character, HZ, stepped, write_input};

/// A prediction is wrong beyond this many metres; rounding alone stays below.
const TOLERANCE: f32 = 0.05;
/// Inputs that each packet repeats: only a loss of so many packets in a row loses one.
const REPEATED: usize = 3;

pub(super) struct Player {
    pub(super) client: Client,
    pub(super) connected: bool,
    /// Its own character, once it is there.
    own: Option<u32>,
    prediction: Prediction<[f32; 3], f32>,
    heading: f32,
}

impl Player {
    pub(super) fn new(classes: &Classes) -> Self {
        Self {
            client: Client::new(ClientConfig::default(), classes),
            connected: false,
            own: None,
            // Beyond a second nothing is predicted any more.
            prediction: Prediction::new([0.0; 3], HZ as usize),
            heading: 0.0,
        }
    }

    /// Processes the changes; returns true if the server disagreed with the prediction.
    pub(super) fn reconcile(&mut self) -> bool {
        let mut changed = false;
        while let Some(event) = self.client.poll_event() {
            let object = match event {
                ClientEvent::Created(handle) => handle.index(),
                ClientEvent::Updated { handle, .. } => handle.index(),
                ClientEvent::Destroyed { handle, .. } => {
                    self.own = self.own.filter(|own| *own != handle.index());
                    continue;
                }
                _ => continue,
            };
            if self.client.replica(object).is_some_and(Replica::is_owner) {
                self.own = Some(object);
                changed = true;
            }
        }
        let own = self.own.filter(|_| changed).and_then(|own| self.client.replica(own));
        let Some(body) = own.and_then(Character::read) else { return false };
        let first = self.prediction.number() == 0;
        let before = self.prediction.reconcile(body.input, body.position, |position, heading| {
            *position = stepped(*position, *heading)
        });
        let after = self.prediction.state();
        !first && (0..2).any(|axis| (after[axis] - before[axis]).abs() > TOLERANCE)
    }

    /// One frame: choose a way, move at once, tell the server.
    pub(super) fn act(&mut self, rng: &mut Rng) {
        self.heading += (rng.f64() as f32 - 0.5) * 0.3;
        self.walk(self.heading);
    }

    pub(super) fn walk(&mut self, heading: f32) {
        if self.own.is_none() {
            return;
        }
        self.prediction.act(heading, |position, heading| *position = stepped(*position, *heading));
        let mut bytes = Vec::new();
        let open = self.prediction.open();
        let skipped = open.len().saturating_sub(REPEATED);
        for (number, heading) in open.skip(skipped) {
            write_input(&mut bytes, number, *heading);
        }
        // Ten bytes for each repeated input fit every packet.
        let sent = self.client.send_input(&bytes);
        debug_assert!(sent.is_ok(), "{sent:?}");
    }

    #[cfg(test)]
    pub(super) fn predicted(&self) -> [f32; 3] {
        *self.prediction.state()
    }
}
