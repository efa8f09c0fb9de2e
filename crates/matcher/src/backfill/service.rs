//! Requests about backfills, and their places in queues.

use throng_wire::matcher::{Event, Status, write_bytes, write_nested, write_u64};

use super::BackfillRequest;
use crate::config::{Caller, Scope};
use crate::id::Id;
use crate::info::Text;
use crate::key::{BackfillKey, MatchKey, QueueKey, RoomKey, ServerKey, TicketKey};
use crate::matcher::Matcher;
use crate::problem::{Outcome, Problem, invalid, not_found};
use crate::queue::{Backfill, BackfillFacts, BackfillPriority, Facts, PlayerInput, role_hash};
use crate::timers::Timer;
use crate::turn::Turn;

impl Matcher {
    pub(crate) fn start_backfill(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        self.check_not_draining()?;
        let asked = BackfillRequest::parse(body)?;
        let room = self.find_room(asked.id)?;
        self.check_has_part_in(turn.caller, room)?;
        let queue = self.queues.find(asked.queue).ok_or_else(|| not_found("queue does not exist"))?;
        let compiled = self.queues[queue].rules();
        if compiled.set.backfill.is_none() {
            let reason = "the queue permits no backfills; its rule set needs `backfill`, which may be `{}`";
            return Err(Problem::new(Status::RuleInvalid, reason));
        }
        let entry = &self.rooms[room];
        if entry.deleting() || entry.sealed() {
            return Err(Problem::new(Status::RoomClosed, "the room accepts no more players"));
        }
        if entry.backfill().is_some() {
            return Err(invalid("the room has a backfill"));
        }
        if entry.matched().is_some_and(|found| self.room_that_waits(found).is_some()) {
            return Err(invalid("the room's match waits for its server; start a backfill once it has that"));
        }
        let open = asked.open_of(&compiled)?;
        self.check_has_places(room, &open)?;
        let owner = self.people.server_entry(turn.caller.srv.as_bytes());
        let index = self.insert_backfill(queue, room, owner, open, asked.attrs)?;
        self.rooms.set_backfill(room, Some(index));
        let sides = compiled.sides.iter().map(|(name, _)| (name.as_bytes(), []));
        self.rooms.begin_sides(room, sides, &mut Vec::new());
        self.queues.keep_alive(index, self.now);
        self.watch_backfill(index);
        self.wake_backfill(index);
        write_bytes(turn.answer, 1, &self.queues[index].id.text());
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
        let compiled = self.queues[queue].rules();
        let region = self.region_of_room(room);
        let region = region.and_then(|region| self.queues.region(queue, &region));
        let priority = compiled.set.backfill.as_ref().map_or(BackfillPriority::Normal, |rule| rule.priority);
        let is_there = self.people.hold_server(owner, 1);
        debug_assert!(is_there, "its entry was made by the caller");
        let id = self.new_id(self.queues.next_backfill().index());
        let names = (id, queue, self.rooms[room].id());
        let backfill = Backfill::new(names, owner, (open, attrs), region, priority as u8, self.now);
        let index = self.queues.insert_backfill(backfill);
        if let Err(problem) = self.refresh_backfill(index) {
            self.queues.remove_backfill(index);
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
        self.queues[found.queue()].regions.get(usize::from(found.region()?)).cloned()
    }

    /// Works out who is in the room now and in which part of the pool players are looked for.
    fn refresh_backfill(&mut self, index: BackfillKey) -> Outcome {
        let facts = self.backfill_facts(index, &self.queues[index].attrs)?;
        self.queues.place_backfill(index, facts);
        Ok(())
    }

    /// The same as it would be with other attributes.
    fn backfill_facts(&self, index: BackfillKey, attrs: &[(Text, Vec<u8>)]) -> Outcome<BackfillFacts> {
        let backfill = &self.queues[index];
        let compiled = self.queues[backfill.queue].rules();
        let rating = compiled.set.rating.as_ref();
        let attrs: Vec<(&[u8], &[u8])> =
            attrs.iter().map(|(key, value)| (key.as_slice(), value.as_slice())).collect();
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
        Ok(BackfillFacts { fixed, value, partition: compiled.partition_of(&alone) })
    }

    /// Lets a backfill look at the next tick.
    fn wake_backfill(&mut self, index: BackfillKey) {
        self.queues.wake_backfill(index);
        self.schedule(self.queues[index].queue);
    }

    /// A backfill that the caller may speak for.
    fn find_backfill(&self, caller: Caller<'_>, id: &[u8]) -> Outcome<BackfillKey> {
        let index = Id::parse(id)
            .and_then(|id| self.queues.find_backfill(id))
            .ok_or_else(|| not_found("backfill does not exist"))?;
        let owner = self.queues[index].owner;
        let own = self.people[owner].id().as_slice() == caller.srv.as_bytes();
        if !own {
            crate::matcher::require(caller, Scope::Trusted)?;
        }
        Ok(index)
    }

    pub(crate) fn update_backfill(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let asked = BackfillRequest::parse(body)?;
        let index = self.find_backfill(turn.caller, asked.id)?;
        let backfill = &self.queues[index];
        if asked.rev != backfill.rev {
            return Err(invalid("the backfill has changed since").with("Rev", backfill.rev.to_string()));
        }
        let open = asked.open_of(&self.queues[backfill.queue].rules())?;
        self.check_has_places(backfill.room_key(), &open)?;
        let facts = self.backfill_facts(index, &asked.attrs)?;
        self.queues.place_backfill(index, facts);
        self.queues.update_backfill(index, open, asked.attrs);
        let backfill = &self.queues[index];
        write_u64(turn.answer, 1, backfill.rev);
        if let Some(pending) = backfill.pending.filter(|found| !self.fits(*found, &backfill.open)) {
            self.break_match_of_backfill(turn, pending, "no_places");
        }
        self.queues.keep_alive(index, self.now);
        self.wake_backfill(index);
        Ok(())
    }

    pub(crate) fn ack_backfill(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let index = self.find_backfill(turn.caller, crate::team::two_texts(body)?.0)?;
        self.queues.keep_alive(index, self.now);
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
        let backfill = &self.queues[index];
        let compiled = self.queues[backfill.queue].rules();
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
        let backfill = &self.queues[index];
        let levels = &self.queues[backfill.queue].rules().levels;
        let mut grows = levels.iter().map(|level| backfill.created + level.after_ms);
        let next =
            grows.find(|at| *at > self.now).map_or(backfill.ack_until, |at| at.min(backfill.ack_until));
        self.timers.set(next, Timer::Backfill(backfill.id));
    }

    /// A backfill's limits may have grown, or no sign of life came.
    pub(crate) fn backfill_is_due(&mut self, turn: &mut Turn<'_>, id: Id) {
        let Some(index) = self.queues.find_backfill(id) else { return };
        if self.queues[index].ack_until > self.now {
            self.queues.forget_seen(index);
            self.watch_backfill(index);
            self.wake_backfill(index);
        } else {
            self.end_backfill(turn, index, "no_ack");
        }
    }

    /// Ends a backfill; tickets that were proposed to it search on.
    pub(crate) fn end_backfill(&mut self, turn: &mut Turn<'_>, index: BackfillKey, reason: &str) {
        self.tell_backfill(turn, index, reason, &[]);
        if let Some(pending) = self.queues[index].pending {
            self.break_match_of_backfill(turn, pending, reason);
        }
        let Some(backfill) = self.queues.remove_backfill(index) else { return };
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
        let (mut roles, mut seated) = (Vec::new(), vec![0; sides.len()]);
        for (tickets, seated) in sides.iter().zip(&mut seated) {
            for player in tickets.iter().flat_map(|ticket| &self.queues[*ticket].players) {
                roles.extend(player.player.map(|player| self.people[player].id().clone()));
                *seated += 1;
            }
        }
        self.queues.fill_backfill(index, seated.into_iter().enumerate());
        // Attributes that were taken once are taken again.
        debug_assert_eq!(self.queues[index].room, self.rooms[room].id());
        let _ = self.refresh_backfill(index);
        self.tell_backfill(turn, index, "matched", &roles);
        self.wake_backfill(index);
    }

    /// A match does not fit its backfill's room any more: its tickets search on, the backfill
    /// offers what there is.
    pub(crate) fn refuse_seats(&mut self, turn: &mut Turn<'_>, index: MatchKey, backfill: BackfillKey) {
        self.break_match_of_backfill(turn, index, "room_closed");
        let free =
            self.queues.get_backfill(backfill).map_or(0, |backfill| self.free_places(backfill.room_key()));
        self.queues.shrink_backfill(backfill, free);
    }

    fn tell_backfill(&mut self, turn: &mut Turn<'_>, index: BackfillKey, reason: &str, roles: &[Text]) {
        let backfill = &self.queues[index];
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
