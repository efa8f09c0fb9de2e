//! Requests about backfills, and their places in queues.

use throng_wire::matcher::{Event, Status, write_bytes, write_nested, write_u64};

use super::{Backfill, BackfillRequest, region_number};
use crate::config::{Caller, Scope};
use crate::id::Id;
use crate::info::Text;
use crate::key::{BackfillKey, MatchKey, PartitionKey, QueueKey, RoomKey, ServerKey, TicketKey};
use crate::matcher::Matcher;
use crate::problem::{Outcome, Problem, invalid, not_found};
use crate::queue::{BackfillPriority, Facts, PlayerInput, role_hash};
use crate::timers::Timer;
use crate::turn::Turn;

impl Matcher {
    pub(crate) fn start_backfill(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        self.check_not_draining()?;
        let asked = BackfillRequest::parse(body)?;
        let room = self.find_room(asked.id)?;
        self.check_has_part_in(turn.caller, room)?;
        let queue = self.queues.find(asked.queue).ok_or_else(|| not_found("queue does not exist"))?;
        let compiled = self.queues.list[queue].rules();
        let entry = &self.rooms[room];
        if entry.deleting() || entry.sealed() {
            return Err(Problem::new(Status::RoomClosed, "the room accepts no more players"));
        }
        if entry.backfill().is_some() {
            return Err(invalid("the room has a backfill"));
        }
        let open = asked.open_of(&compiled)?;
        self.check_has_places(room, &open)?;
        let owner = self.people.server_entry(turn.caller.srv.as_bytes());
        let index = self.insert_backfill(queue, room, owner, open, asked.attrs)?;
        self.queues.list[queue].backfills.insert(index);
        self.rooms.set_backfill(room, Some(index));
        let sides = compiled.sides.iter().map(|(name, _)| (name.as_bytes(), []));
        self.rooms.begin_sides(room, sides, &mut Vec::new());
        self.keep_alive(index);
        self.watch_backfill(index);
        self.wake_backfill(index);
        write_bytes(turn.answer, 1, &self.backfills[index].id.text());
        write_u64(turn.answer, 2, 1);
        Ok(())
    }

    /// Makes a backfill of a room, as far as the room's members fit the rules.
    fn insert_backfill(
        &mut self,
        queue: QueueKey,
        room: RoomKey,
        owner: ServerKey,
        open: Vec<u32>,
        attrs: Vec<(Text, Vec<u8>)>,
    ) -> Outcome<BackfillKey> {
        let compiled = self.queues.list[queue].rules();
        let region = self.region_of_room(room);
        let region = region.and_then(|region| region_number(&mut self.queues.list[queue].regions, &region));
        let priority = compiled.set.backfill.as_ref().map_or(BackfillPriority::Normal, |rule| rule.priority);
        let is_there = self.people.hold_server(owner, 1);
        debug_assert!(is_there, "its entry was made by the caller");
        let id = self.new_id(self.backfills.next_key().index());
        let backfill = Backfill {
            id,
            queue,
            room: self.rooms[room].id(),
            owner,
            rev: 1,
            open,
            attrs,
            created: self.now,
            ack_until: self.now,
            fixed: Vec::new(),
            value: 0.0,
            region,
            class: priority as u8,
            partition: PartitionKey::LAST,
            seen: None,
            pending: None,
        };
        let index = self.backfills.insert(backfill);
        if let Err(problem) = self.refresh_backfill(index) {
            self.backfills.remove(index);
            self.people.let_go_of_server(owner);
            return Err(problem);
        }
        Ok(index)
    }

    fn free_places(&self, room: RoomKey) -> u32 {
        self.rooms[room].free(self.rooms.rules_of(room).capacity)
    }

    fn check_has_places(&self, room: RoomKey, open: &[u32]) -> Outcome {
        if open.iter().sum::<u32>() > self.free_places(room) {
            return Err(Problem::new(Status::RoomFull, "the room has fewer places"));
        }
        Ok(())
    }

    /// Place where the match of a room is played.
    fn region_of_room(&self, room: RoomKey) -> Option<Text> {
        let found = &self.matches[self.match_of(self.rooms[room].matched()?)?];
        self.queues.list[found.queue()].regions.get(usize::from(found.region()?)).cloned()
    }

    /// Works out who is in the room now and in which part of the pool players are looked for.
    fn refresh_backfill(&mut self, index: BackfillKey) -> Outcome {
        let backfill = &self.backfills[index];
        let queue = backfill.queue;
        let compiled = self.queues.list[queue].rules();
        let rating = compiled.set.rating.as_ref();
        let attrs: Vec<(&[u8], &[u8])> =
            backfill.attrs.iter().map(|(key, value)| (key.as_slice(), value.as_slice())).collect();
        let cast = self.cast_of(backfill.room);
        let plays = |role: &[u8]| {
            let hash = role_hash(role);
            let name = cast.iter().rev().find(|(known, _)| *known == hash).map(|(_, name)| &name[..]);
            name.filter(|name| compiled.set.positions.iter().any(|known| known.name.as_bytes() == *name))
        };
        let input = |role| PlayerInput {
            role,
            attrs: attrs.clone(),
            wants: plays(role).into_iter().collect(),
            skill: rating.map(|rule| self.ratings.skill(&rule.pool, rule.system, role)),
            ..PlayerInput::default()
        };
        let refused = |why: String| Problem::new(Status::RuleInvalid, why);
        let mut fixed = Vec::with_capacity(compiled.sides.len());
        let mut no_regions = Vec::new();
        let sides = self.rooms[backfill.room_key()].sides().list();
        for side in 0..compiled.sides.len() {
            let names = sides.get(side).map_or(&[][..], |side| &side.players);
            let party: Vec<PlayerInput<'_>> = names.iter().map(|name| input(name)).collect();
            let mut facts = compiled.facts(&party, &mut no_regions).map_err(refused)?;
            facts.plays_in(backfill.region);
            fixed.push(facts);
        }
        // An empty room is where its attributes say.
        let alone = compiled.facts(&[input(&[])], &mut no_regions).map_err(refused)?;
        let there: Vec<&Facts> = fixed.iter().filter(|facts| facts.size > 0).collect();
        let value = if there.is_empty() {
            compiled.main_value(&alone)
        } else {
            there.iter().map(|facts| compiled.main_value(facts)).sum::<f64>() / there.len() as f64
        };
        let partition_key = compiled.partition_of(&alone);
        let pool = &mut self.queues.list[queue].pool;
        let partition = pool.partition(partition_key);
        let old = self.backfills[index].partition;
        if old != partition {
            pool.partitions[partition].backfills += 1;
            if old != PartitionKey::LAST {
                pool.partitions[old].backfills -= 1;
                pool.release(old);
            }
        }
        let backfill = &mut self.backfills[index];
        (backfill.fixed, backfill.value, backfill.partition, backfill.seen) = (fixed, value, partition, None);
        Ok(())
    }

    /// Lets a backfill look at the next tick.
    fn wake_backfill(&mut self, index: BackfillKey) {
        let backfill = &self.backfills[index];
        let queue = backfill.queue;
        let pool = &mut self.queues.list[queue].pool;
        if let Some(anchor) = backfill.anchor(index, pool) {
            pool.dirty.insert(anchor);
        }
        self.schedule(queue);
    }

    fn keep_alive(&mut self, index: BackfillKey) {
        let backfill = &mut self.backfills[index];
        let rules = self.queues.list[backfill.queue].rules();
        backfill.ack_until = self.now + rules.set.backfill.clone().unwrap_or_default().ack_s * 1_000;
    }

    fn backfill_of(&self, id: Id) -> Option<BackfillKey> {
        let index = BackfillKey::new(id.index);
        self.backfills.get(index).is_some_and(|backfill| backfill.id == id).then_some(index)
    }

    /// A backfill that the caller may speak for.
    fn find_backfill(&self, caller: Caller<'_>, id: &[u8]) -> Outcome<BackfillKey> {
        let index = Id::parse(id)
            .and_then(|id| self.backfill_of(id))
            .ok_or_else(|| not_found("backfill does not exist"))?;
        let owner = self.backfills[index].owner;
        let own = self.people[owner].id().as_slice() == caller.srv.as_bytes();
        if !own {
            crate::matcher::require(caller, Scope::Trusted)?;
        }
        Ok(index)
    }

    pub(crate) fn update_backfill(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let asked = BackfillRequest::parse(body)?;
        let index = self.find_backfill(turn.caller, asked.id)?;
        if asked.rev != self.backfills[index].rev {
            return Err(
                invalid("the backfill has changed since").with("Rev", self.backfills[index].rev.to_string())
            );
        }
        let compiled = self.queues.list[self.backfills[index].queue].rules();
        let open = asked.open_of(&compiled)?;
        self.check_has_places(self.backfills[index].room_key(), &open)?;
        let old = std::mem::replace(&mut self.backfills[index].attrs, asked.attrs);
        if let Err(problem) = self.refresh_backfill(index) {
            self.backfills[index].attrs = old;
            return Err(problem);
        }
        let backfill = &mut self.backfills[index];
        backfill.open = open;
        backfill.rev += 1;
        write_u64(turn.answer, 1, backfill.rev);
        let pending = backfill.pending;
        if let Some(pending) = pending.filter(|found| !self.fits(*found, &self.backfills[index].open)) {
            self.break_match_of_backfill(turn, pending, "no_places");
        }
        self.keep_alive(index);
        self.wake_backfill(index);
        Ok(())
    }

    pub(crate) fn ack_backfill(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let index = self.find_backfill(turn.caller, crate::team::two_texts(body)?.0)?;
        self.keep_alive(index);
        self.refresh_backfill(index)?;
        self.wake_backfill(index);
        self.write_backfill(index, turn.answer);
        Ok(())
    }

    pub(crate) fn stop_backfill(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let index = self.find_backfill(turn.caller, crate::team::two_texts(body)?.0)?;
        self.write_backfill(index, turn.answer);
        self.end_backfill(turn, index, "stopped");
        Ok(())
    }

    fn write_backfill(&self, index: BackfillKey, answer: &mut Vec<u8>) {
        let backfill = &self.backfills[index];
        let compiled = self.queues.list[backfill.queue].rules();
        write_nested(answer, 1, |out| {
            write_u64(out, 1, backfill.rev);
            for ((name, _), open) in compiled.sides.iter().zip(&backfill.open) {
                write_nested(out, 2, |out| {
                    write_bytes(out, 1, name.as_bytes());
                    write_u64(out, 2, u64::from(*open));
                });
            }
            for seat in self.rooms[backfill.room_key()].seats() {
                write_bytes(out, 3, self.people[seat.player].id());
            }
        });
    }

    /// Sees to a backfill again when its limits grow, or it may be lost.
    fn watch_backfill(&mut self, index: BackfillKey) {
        let backfill = &self.backfills[index];
        let levels = &self.queues.list[backfill.queue].rules().levels;
        let mut grows = levels.iter().map(|level| backfill.created + level.after_ms);
        let next =
            grows.find(|at| *at > self.now).map_or(backfill.ack_until, |at| at.min(backfill.ack_until));
        self.timers.set(next, Timer::Backfill(backfill.id));
    }

    /// A backfill's limits may have grown, or no sign of life came.
    pub(crate) fn backfill_is_due(&mut self, turn: &mut Turn<'_>, id: Id) {
        let Some(index) = self.backfill_of(id) else { return };
        if self.backfills[index].ack_until > self.now {
            self.backfills[index].seen = None;
            self.watch_backfill(index);
            self.wake_backfill(index);
        } else {
            self.end_backfill(turn, index, "no_ack");
        }
    }

    /// Ends a backfill; tickets that were proposed to it search on.
    pub(crate) fn end_backfill(&mut self, turn: &mut Turn<'_>, index: BackfillKey, reason: &str) {
        self.tell_backfill(turn, index, reason, &[]);
        if let Some(pending) = self.backfills[index].pending {
            self.break_match_of_backfill(turn, pending, reason);
        }
        let Some(backfill) = self.backfills.remove(index) else { return };
        let queue = &mut self.queues.list[backfill.queue];
        queue.backfills.remove(&index);
        queue.pool.partitions[backfill.partition].backfills -= 1;
        queue.pool.release(backfill.partition);
        self.rooms.set_backfill(backfill.room_key(), None);
        self.people.let_go_of_server(backfill.owner);
    }

    /// Seats were made in a backfill's room.
    pub(crate) fn backfill_placed(
        &mut self,
        turn: &mut Turn<'_>,
        index: BackfillKey,
        room: RoomKey,
        sides: &[Vec<TicketKey>],
    ) {
        let mut roles = Vec::new();
        for (side, tickets) in sides.iter().enumerate() {
            for player in tickets.iter().flat_map(|ticket| &self.tickets[*ticket].players) {
                roles.extend(player.player.map(|player| self.people[player].id().clone()));
                let open = &mut self.backfills[index].open[side];
                *open = open.saturating_sub(1);
            }
        }
        let backfill = &mut self.backfills[index];
        backfill.pending = None;
        backfill.rev += 1;
        // Attributes that were taken once are taken again.
        debug_assert_eq!(self.backfills[index].room, self.rooms[room].id());
        let _ = self.refresh_backfill(index);
        self.tell_backfill(turn, index, "matched", &roles);
        self.wake_backfill(index);
    }

    /// The room has fewer places than the backfill offers: it offers what there is.
    fn shrink_backfill(&mut self, index: BackfillKey, mut free: u32) {
        let Some(backfill) = self.backfills.get_mut(index) else { return };
        for open in &mut backfill.open {
            *open = (*open).min(free);
            free -= *open;
        }
        backfill.rev += 1;
    }

    /// A match does not fit its backfill's room any more: its tickets search on, the backfill
    /// offers what there is.
    pub(crate) fn refuse_seats(&mut self, turn: &mut Turn<'_>, index: MatchKey, backfill: BackfillKey) {
        self.break_match_of_backfill(turn, index, "room_closed");
        let free = self.backfills.get(backfill).map_or(0, |backfill| self.free_places(backfill.room_key()));
        self.shrink_backfill(backfill, free);
    }

    fn tell_backfill(&mut self, turn: &mut Turn<'_>, index: BackfillKey, reason: &str, roles: &[Text]) {
        let backfill = &self.backfills[index];
        let (id, room, rev, owner) = (backfill.id, backfill.room, backfill.rev, backfill.owner);
        self.event(Event::BACKFILL_UPDATE, |out| {
            write_bytes(out, 1, &id.text());
            write_bytes(out, 2, reason.as_bytes());
            for role in roles {
                write_bytes(out, 3, role);
            }
            write_bytes(out, 20, &room.text());
            write_u64(out, 21, rev);
        });
        turn.notices.push(self.people.number(owner), std::iter::empty(), &self.scratch.event, 0);
    }
}
