//! Copies of a queue's tickets, and a queue that begins with them, as trials need them.

use std::collections::BTreeMap;

use super::ticket::{PoolPosition, Standing, Ticket, next_due};
use super::{Anchor, Key, Queues, Scan};
use crate::info::Text;
use crate::key::{PlayerKey, QueueKey, TicketKey};

/// A ticket as it is.
#[derive(Debug)]
pub(crate) struct Copied {
    pub(crate) ticket: Ticket,
    /// Its place in the matcher.
    number: TicketKey,
    /// It found nothing, and whether its search was cut.
    idle: Option<bool>,
    /// Its search goes on in a later tick.
    scan: Option<Scan>,
}

/// Places in the order of the copied tickets.
fn places() -> impl Iterator<Item = TicketKey> {
    (0..).map(TicketKey::new)
}

impl Queues {
    pub(crate) fn copy_ticket(&self, key: TicketKey) -> Copied {
        let ticket = self.tickets[key].clone();
        let pool = &self.list[ticket.queue].pool;
        let hot =
            ticket.place().and_then(|place| pool.partitions[place.partition].order.get(place.key).copied());
        let scan = pool.scans.get(&key).cloned();
        Copied { number: key, idle: hot.filter(|hot| hot.idle).map(|hot| hot.cut), scan, ticket }
    }

    /// Begins an empty queue with copied tickets, whose players `meet` names. They have places in
    /// their order, from 0 on: among equals, the place decides.
    pub(crate) fn begin_with(
        &mut self,
        queue: QueueKey,
        regions: &[Text],
        all: &[Copied],
        mut meet: impl FnMut(&Ticket, TicketKey) -> Vec<PlayerKey>,
    ) {
        self.list[queue].regions = regions.to_vec();
        for copied in all {
            let mut ticket = Ticket { queue, ..copied.ticket.clone() };
            let players = meet(&ticket, self.next_ticket());
            for (member, player) in ticket.players.iter_mut().zip(players) {
                member.player = Some(player);
            }
            let key = self.insert_ticket(ticket);
            self.wait_as_copied(queue, key);
        }
        // Those that had found nothing are not tried again before something near them changes.
        let pool = &mut self.list[queue].pool;
        let is_to_try = |copied: &Copied| copied.idle.is_none() && copied.scan.is_none();
        let copied = |anchor: &Anchor| all.get(anchor.ticket()?.index() as usize);
        pool.dirty.retain(|anchor| copied(anchor).is_none_or(is_to_try));
        for (key, copied) in places().zip(all) {
            if let (Some(cut), Some(place)) = (copied.idle, self.tickets[key].place()) {
                pool.rest(place.partition, place.key, cut);
            }
        }
        self.go_on_copied(queue, all);
    }

    fn wait_as_copied(&mut self, queue_key: QueueKey, key: TicketKey) {
        let (queue, ticket) = (&mut self.list[queue_key], &mut self.tickets[key]);
        let Some(value) = ticket.place().map(|place| (place.key.0, key)) else { return };
        let compiled = queue.rules();
        let partition = queue.pool.partition(compiled.partition_of(&ticket.facts));
        ticket.standing = Standing::InPool(PoolPosition { partition, key: value });
        let (due, hot) = (next_due(&compiled, ticket), compiled.hot(&ticket.facts, ticket.level));
        let anchor = ticket.anchor(key);
        queue.due.enter(&mut self.waiting, queue_key, key, due);
        let tickets = &self.tickets;
        queue.pool.insert(&compiled, partition, value, hot, anchor, |other| tickets[other].anchor(other));
    }

    /// Searches that were to go on in a later tick do so here.
    fn go_on_copied(&mut self, queue: QueueKey, all: &[Copied]) {
        let numbers: BTreeMap<TicketKey, TicketKey> =
            all.iter().map(|copied| copied.number).zip(places()).collect();
        let mut scans: Vec<(TicketKey, &Scan)> =
            places().zip(all).filter_map(|(key, copied)| Some((key, copied.scan.as_ref()?))).collect();
        scans.sort_by_key(|(_, scan)| scan.turn);
        for (key, scan) in scans {
            let number = |key: Key| Some((key.0, *numbers.get(&key.1)?));
            // One that was not copied, as it has left, is as far as the last of its value, or the
            // first.
            let scan = Scan {
                turn: 0,
                left: number(scan.left).unwrap_or((scan.left.0, TicketKey::new(0))),
                right: number(scan.right).unwrap_or((scan.right.0, TicketKey::LAST)),
                found: scan.found.iter().filter_map(|key| number(*key)).collect(),
            };
            let anchor = self.tickets[key].anchor(key);
            self.list[queue].pool.go_on_later(key, anchor, scan, None);
        }
    }

    /// A queue's tick is under way since `searches`, or begins at `tick_at`.
    pub(crate) fn begin_at(&mut self, queue: QueueKey, searches: Option<u64>, tick_at: u64) {
        let entry = &mut self.list[queue];
        match searches {
            Some(tick_now) => {
                (entry.searching, entry.tick_now) = (true, tick_now);
                self.searching.insert(queue);
            }
            None => entry.tick_at = tick_at,
        }
    }
}
