//! The side that claims: requests and matches of this shard.

use smallvec::smallvec;
use throng_wire::matcher::Status;

use super::limits::limit_of;
use super::{
    CLAIM_MS, End, Facts, JOBS_MAX, Job, Key, Known, Letter, Limit, MemberCopy, Owner, TeamCopy, touched,
};
use crate::config::Caller;
use crate::id::Id;
use crate::info::Text;
use crate::matcher::Matcher;
use crate::notices::Notices;
use crate::policy::{Asked, Handled};
use crate::problem::{Outcome, Problem, not_found, quote};
use crate::room::{Newcomer, Newcomers};
use crate::timers::Timer;

impl Matcher {
    /// Before a request is executed: if it is to claim something first, it is kept until it has.
    pub(crate) fn claim(
        &mut self,
        caller: Caller<'_>,
        asked: &mut Asked<'_>,
        answer: &mut Vec<u8>,
    ) -> Option<Handled> {
        if self.shard.is_alone() || self.claims.current.is_some() || !asked.method.mutates {
            return None;
        }
        let mut keys = touched(asked.method.number, asked.body, caller.srv);
        keys.extend(self.room_to_claim(asked.method.number, asked.body));
        let rate = self.rating_wanted(caller, asked);
        let lacks = limit_of(asked.method.number).filter(|limit| !self.has_left(*limit));
        if keys.is_empty() && rate.is_none() && lacks.is_none() {
            return None;
        }
        if self.claims.jobs.len() >= JOBS_MAX {
            let problem = Problem::new(Status::Overloaded, "too many requests wait for players; try again");
            problem.write(answer);
            return Some(Handled::Done(problem.status));
        }
        let kept = self.keep_request(caller, asked);
        let number = kept.number;
        let job = self.begin_job(Owner::Request(Some(kept)), keys);
        self.claims.by_request.insert(number, job);
        self.ask_next(job);
        Some(Handled::Waits(number))
    }

    pub(super) fn begin_job(&mut self, owner: Owner, keys: Vec<Key>) -> u64 {
        self.claims.last += 1;
        let (id, until) = (self.claims.last, self.now + CLAIM_MS);
        let (known, result) = (Vec::new(), None);
        let job = Job { owner, keys, known, result, lenders: 0, asks: false, acts: false, until };
        self.claims.jobs.insert(id, job);
        self.timers.set(until, Timer::Claim(id));
        id
    }

    /// Asks for what a job needs next. Whether there was something.
    pub(super) fn ask_next(&mut self, id: u64) -> bool {
        let Some(job) = self.claims.jobs.get(&id) else { return false };
        if let Some(key) = job.keys.get(job.known.len()).cloned() {
            let home = self.home_of_key(&key);
            self.send(home, Letter::Claim { job: id, key });
            return true;
        }
        let kept = match &job.owner {
            Owner::Request(Some(kept)) => Some(kept),
            Owner::Server(_) => None,
            Owner::Request(None) | Owner::Match(_) => return false,
        };
        if self.claims.is_answered(id) {
            return false;
        }
        let limit =
            if job.asks { Some(Limit::Questions) } else { kept.and_then(|kept| limit_of(kept.method)) };
        if let Some(limit) = limit.filter(|limit| !self.has_left(*limit))
            && job.lenders + 1 < self.shard.count
        {
            self.borrow(id, limit);
            return true;
        }
        let Some(kept) = kept else { return false };
        if job.result.is_some() {
            return false;
        }
        let Some(asked) = self.rating_of(kept) else { return false };
        if let Some(job) = self.claims.jobs.get_mut(&id) {
            job.acts = true;
        }
        self.send(self.shard.of_name(asked.pool.as_bytes()), Letter::Rate { job: id, asked });
        true
    }

    fn home_of_key(&self, key: &Key) -> u16 {
        match key {
            Key::Request(srv, key) => self.shard.of_name(&[srv.as_slice(), &key.to_le_bytes()].concat()),
            // One that names no shard is unknown everywhere.
            Key::Team(id) | Key::Room(id) => self.shard.of_id(*id).unwrap_or(self.shard.index),
            Key::Role(role) => self.shard.of_name(role),
        }
    }

    /// A claim was granted. Without its job it came too late: its end is on its way.
    pub(super) fn granted(&mut self, id: u64, known: Known, notices: &mut Notices) {
        let Some(job) = self.claims.jobs.get_mut(&id) else { return };
        if let Known::Team(Some(team)) = &known {
            // Its members are claimed with it only where they are put into something.
            if let Owner::Request(Some(kept)) = &job.owner
                && moves_team(kept.method)
                && !job.keys.iter().any(|key| matches!(key, Key::Role(_)))
            {
                let mut roles: Vec<Key> =
                    team.members.iter().map(|member| Key::Role(member.role.clone())).collect();
                roles.sort_unstable();
                job.keys.extend(roles);
            }
        }
        if matches!(known, Known::Request(Some(_))) {
            // It was answered: nothing else is needed.
            job.keys.truncate(job.known.len() + 1);
        }
        job.known.push(known);
        self.go_on(id, notices);
    }

    /// Something that a job waited for is there.
    pub(super) fn go_on(&mut self, id: u64, notices: &mut Notices) {
        if !self.ask_next(id) {
            self.claims_are_complete(id, notices);
        }
    }

    fn claims_are_complete(&mut self, id: u64, notices: &mut Notices) {
        let now = self.now;
        let Some(job) = self.claims.jobs.get_mut(&id) else { return };
        if now >= job.until && !job.acts {
            // Its timer may still wait behind others.
            return self.expire_claims(id, notices);
        }
        match &mut job.owner {
            Owner::Request(kept) => {
                let acts = job.acts;
                if let Some(mut kept) = kept.take() {
                    if acts {
                        // It was done.
                        kept.until = u64::MAX;
                    }
                    self.resume(kept, notices);
                }
            }
            Owner::Match(found) => {
                let found = *found;
                if self.seat_elsewhere(id, found) {
                    return;
                }
                // From here on the match ends without them.
                self.claims.by_match.remove(&found);
                let placed = self.place_claimed(found, notices);
                self.settle(id, placed, None);
            }
            Owner::Server(found) => {
                let found = *found;
                self.settle(id, false, None);
                self.ask_for_server_at_last(found);
            }
        }
    }

    /// The time of claims is over: everything is given back, and nothing was done.
    pub(crate) fn expire_claims(&mut self, id: u64, notices: &mut Notices) {
        let Some(job) = self.claims.jobs.get_mut(&id).filter(|job| !job.acts) else { return };
        self.stats.claims_expired += 1;
        match &mut job.owner {
            Owner::Request(kept) => {
                let kept = kept.take();
                self.settle(id, false, None);
                // One that waits for a policy learns of it when it goes on.
                if let Some(kept) = kept {
                    self.give_up(
                        &kept,
                        Status::Timeout,
                        "the players were not free in time; nothing was done",
                    );
                }
            }
            Owner::Match(found) => {
                let found = *found;
                self.settle(id, false, None);
                self.unplace(found, notices);
            }
            Owner::Server(found) => {
                let found = *found;
                self.settle(id, false, None);
                self.ask_for_server_at_last(found);
            }
        }
    }

    /// Ends claims, granted or not. `drops`: the players' tickets on other shards are over; `also`: another shard has the
    /// players now.
    pub(super) fn settle(&mut self, id: u64, drops: bool, also: Option<u16>) {
        let Some(job) = self.claims.jobs.remove(&id) else { return };
        if let Owner::Match(found) = job.owner {
            self.claims.by_match.remove(&found);
        }
        let asked = job.known.len() + 1;
        for key in job.keys.into_iter().take(asked) {
            let server = match &key {
                Key::Team(_) | Key::Room(_) => None,
                Key::Request(..) => self.part_of(&key).map(|_| Text::new()),
                Key::Role(role) => {
                    self.people.player(role).map(|player| Text::from_slice(self.people.server_of(player)))
                }
            };
            let home = self.home_of_key(&key);
            self.send(home, Letter::Settled { job: id, key, end: End { server, drops, also } });
        }
    }

    /// What the request under way claimed counts from now on.
    pub(crate) fn use_claims(&mut self, number: Option<u64>) {
        self.claims.current = number.and_then(|number| self.claims.by_request.get(&number).copied());
    }

    /// The request under way stopped or ended.
    pub(crate) fn put_claims_away(&mut self) {
        self.claims.current = None;
    }

    /// Whether what a request has claimed is still its own.
    pub(crate) fn holds_claims(&self, number: u64) -> bool {
        let job = self.claims.by_request.get(&number);
        job.is_none_or(|job| self.claims.jobs.contains_key(job))
    }

    /// A request is over.
    pub(crate) fn finish_claims(&mut self, number: u64) {
        if let Some(job) = self.claims.by_request.remove(&number) {
            self.settle(job, false, None);
        }
    }

    /// After a restart nobody waits for anything any more.
    pub(crate) fn forget_claims(&mut self) {
        for job in self.claims.jobs.keys().copied().collect::<Vec<u64>>() {
            self.settle(job, false, None);
        }
        self.claims.by_request.clear();
    }

    /// Claims the players of a match that is to be placed, and the room that it is to fill.
    pub(crate) fn claim_match(&mut self, found: Id, roles: impl Iterator<Item = Text>, room: Option<Id>) {
        let mut keys: Vec<Key> = roles.map(Key::Role).chain(room.map(Key::Room)).collect();
        keys.sort_unstable();
        let job = self.begin_job(Owner::Match(found), keys);
        self.claims.by_match.insert(found, job);
        self.ask_next(job);
    }

    /// A match that waits for its players is off.
    pub(crate) fn unclaim_match(&mut self, found: Id) {
        if let Some(job) = self.claims.by_match.get(&found) {
            self.settle(*job, false, None);
        }
    }

    /// What other shards have of a role that the request under way has claimed.
    pub(crate) fn elsewhere(&self, role: &[u8]) -> Option<&Facts> {
        let is_it = |key: &Key| matches!(key, Key::Role(other) if other.as_slice() == role);
        match self.claims.known_of(is_it)? {
            Known::Role(facts) if facts.is_known => Some(facts),
            _ => None,
        }
    }

    /// The live exclusive room of another shard that a role is in.
    pub(crate) fn room_elsewhere(&self, role: &[u8]) -> Option<Id> {
        self.elsewhere(role)?.room
    }

    /// Refuses a role that is in a live exclusive room of another shard.
    pub(crate) fn check_not_elsewhere(&self, role: &[u8]) -> Outcome {
        match self.room_elsewhere(role) {
            Some(room) => Err(already_in(room)),
            None => Ok(()),
        }
    }

    /// A team of whatever shard, as it is.
    pub(crate) fn view_team(&self, id: &[u8]) -> Outcome<TeamCopy> {
        let missing = || not_found("team does not exist");
        let parsed = Id::parse(id).ok_or_else(missing)?;
        if self.shard.of_id(parsed).is_none_or(|home| home == self.shard.index) {
            return self.find_team(id).map(|team| self.copy_team(team));
        }
        self.copied_team(parsed).cloned().ok_or_else(missing)
    }

    fn copied_team(&self, id: Id) -> Option<&TeamCopy> {
        match self.claims.known_of(|key| *key == Key::Team(id))? {
            Known::Team(team) => team.as_ref(),
            _ => None,
        }
    }

    pub(super) fn copy_team(&self, team: u32) -> TeamCopy {
        let team = &self.teams[team];
        let copy = |player: u32| {
            let role = self.people.players[player].id.clone();
            (role, Text::from_slice(self.people.server_of(player)))
        };
        let (leader, server) = copy(team.leader);
        let members = team.members.iter().map(|member| {
            let (role, server) = copy(member.player);
            MemberCopy { role, server, info: member.info.clone() }
        });
        TeamCopy { leader, server, members: members.collect() }
    }

    /// The members of a team of another shard as newcomers; they are given entries here.
    pub(crate) fn newcomers_from_elsewhere(&mut self, id: Id) -> Outcome<Newcomers> {
        let team = self.copied_team(id).cloned().ok_or_else(|| not_found("can not find team"))?;
        let mut newcomers: Newcomers = smallvec![];
        for member in team.members {
            let server = self.people.server_entry(&member.server);
            let player = self.people.player_entry(&member.role, server);
            newcomers.push(Newcomer { player, info: member.info, moves: false });
        }
        Ok(newcomers)
    }
}

/// Whether a request puts the members of a team into something.
fn moves_team(method: u16) -> bool {
    use throng_wire::matcher::Method;
    matches!(
        method,
        Method::TEAM_JOIN_RANDOM_ROOM
            | Method::TEAM_CREATE_ROOM
            | Method::TEAM_JOIN_ROOM
            | Method::CREATE_TICKET
    )
}

/// The refusal of a role that is in another live room.
pub(crate) fn already_in(room: Id) -> Problem {
    Problem::new(Status::AlreadyInRoom, "the role is in another room").with("RoomID", quote(&room.text()))
}
