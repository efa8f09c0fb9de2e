//! The team service.

use smallvec::SmallVec;
use throng_wire::fields;
use throng_wire::matcher::{Event, Status, write_bytes, write_nested, write_u64};

use crate::config::{Caller, Scope};
use crate::id::Id;
use crate::info::{
    DataMap, ID_BYTES_MAX, Info, MESSAGE_BYTES_MAX, RoleRef, TEAM_DATA_FIELD, Text, bytes, check_growth,
    check_id, check_json, check_len, entry, text,
};
use crate::matcher::{Matcher, collapse_key, fan_out, stored, write_about};
use crate::people::Numbers;
use crate::problem::{Outcome, Problem, forbidden, invalid, not_found, quote};
use crate::schema::v1;
use crate::slab::NONE;
use crate::turn::Turn;

/// Wrong passwords of one server for one team before it has to wait.
const WRONG_TRIES_MAX: u32 = 10;
const WRONG_TRIES_MS: u64 = 60_000;
/// Servers whose wrong passwords are counted for one team; the one that was counted from first is
/// forgotten for a further one. Who may speak for any number of servers is held up by tokens, not
/// by this: it bounds memory and the time of a try.
const WRONG_SERVERS_MAX: usize = 1_000;
const PASSWORD_BYTES_MAX: usize = 4 << 10;

#[derive(Clone, Debug)]
pub(crate) struct Team {
    pub(crate) id: Id,
    password: Text,
    max_role: u64,
    data: DataMap,
    /// Longest-standing first.
    pub(crate) members: SmallVec<[TeamMember; 2]>,
    pub(crate) leader: u32,
    rev: u64,
    wrong: Vec<WrongTries>,
}

#[derive(Clone, Debug)]
pub(crate) struct TeamMember {
    pub(crate) player: u32,
    pub(crate) info: Info,
}

#[derive(Clone, Debug)]
struct WrongTries {
    server: Text,
    count: u32,
    until: u64,
}

impl Team {
    pub(crate) fn save(&self, numbers: &Numbers) -> v1::Team<'_> {
        let member = |member: &'_ TeamMember| numbers.player(member.player).unwrap_or(NONE);
        v1::Team {
            id: self.id.into(),
            password: &self.password,
            max_role: self.max_role,
            data: self.data.bytes(),
            members: self
                .members
                .iter()
                .map(|own| v1::Member { player: member(own), info: own.info.bytes() })
                .collect(),
            leader: numbers.player(self.leader).unwrap_or(NONE),
            rev: self.rev,
            wrong_tries: self.wrong.iter().map(WrongTries::save).collect(),
        }
    }

    pub(crate) fn load(saved: &v1::Team<'_>) -> Team {
        let member =
            |member: &v1::Member<'_>| TeamMember { player: member.player, info: Info::load(member.info) };
        let tries = |tries: &v1::WrongTries<'_>| WrongTries {
            server: Text::from_slice(tries.server),
            count: tries.count,
            until: tries.until,
        };
        Team {
            id: saved.id.into(),
            password: Text::from_slice(saved.password),
            max_role: saved.max_role,
            data: DataMap::load(saved.data),
            members: saved.members.iter().map(member).collect(),
            leader: saved.leader,
            rev: saved.rev,
            wrong: saved.wrong_tries.iter().map(tries).collect(),
        }
    }
}

impl WrongTries {
    fn save(&self) -> v1::WrongTries<'_> {
        v1::WrongTries { server: &self.server, count: self.count, until: self.until }
    }
}

impl Matcher {
    pub(crate) fn find_team(&self, id: &[u8]) -> Outcome<u32> {
        Id::parse(id)
            .filter(|id| self.teams.get(id.index).is_some_and(|team| team.id == *id))
            .map(|id| id.index)
            .ok_or_else(|| not_found("team does not exist"))
    }

    pub(crate) fn create_team(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        self.check_not_draining()?;
        let (mut creator, mut info) = (None, &[][..]);
        for field in fields(body) {
            let field = field?;
            match field.number {
                1 => creator = Some(RoleRef::parse(bytes(&field)?)?),
                2 => info = bytes(&field)?,
                _ => {}
            }
        }
        let creator = creator.ok_or_else(|| invalid("CreatorInfo is missing"))?;
        let (mut max_role, mut password, mut data) = (0_i64, &[][..], DataMap::default());
        for field in fields(info) {
            let field = field?;
            match field.number {
                3 => max_role = (field.scalar >> 1) as i64 ^ -((field.scalar & 1) as i64),
                4 => {
                    let (key, value) = entry(&field)?;
                    data.set(TEAM_DATA_FIELD, key, value.map_or(&[][..], |value| value.value))?;
                }
                8 => password = text(&field)?,
                _ => {}
            }
        }
        let max_role = u64::try_from(max_role)
            .ok()
            .filter(|max| *max > 0)
            .ok_or_else(|| invalid("MaxRole must be over 0"))?;
        check_len(password, PASSWORD_BYTES_MAX, "Passwd")?;
        let srv = self.home_of(turn.caller, &creator)?;
        self.check_in_no_team(creator.id)?;

        let index = self.teams.next_index();
        let id = self.new_id(index);
        let info = creator.info(srv, &id.text());
        check_growth(0, data.bytes().len() + info.bytes().len())?;
        let server = self.people.server_entry(srv);
        let player = self.people.player_entry(creator.id, server);
        self.people.players[player].team = index;
        let member = TeamMember { player, info };
        self.teams.insert(Team {
            id,
            password: stored(password),
            max_role,
            data,
            members: smallvec::smallvec![member],
            leader: player,
            rev: 1,
            wrong: Vec::new(),
        });
        self.announce_join(turn, index, 0);
        write_nested(turn.answer, 1, |out| self.write_team(index, out));
        Ok(())
    }

    pub(crate) fn join_team(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let (mut role, mut team, mut password) = (None, &[][..], &[][..]);
        for field in fields(body) {
            let field = field?;
            match field.number {
                1 => role = Some(RoleRef::parse(bytes(&field)?)?),
                2 => team = text(&field)?,
                3 => password = text(&field)?,
                _ => {}
            }
        }
        let role = role.ok_or_else(|| invalid("RoleInfo is missing"))?;
        let srv = self.home_of(turn.caller, &role)?;
        let index = self.find_team(team)?;
        if self.people.player(role.id).is_some_and(|player| self.people.players[player].team == index) {
            write_nested(turn.answer, 1, |out| self.write_team(index, out));
            return Ok(());
        }
        self.check_in_no_team(role.id)?;
        let now = self.now;
        let team = &mut self.teams[index];
        team.check_password(password, srv, now)?;
        if team.members.len() as u64 >= team.max_role {
            return Err(Problem::new(Status::TeamFull, "team is already full"));
        }
        let info = role.info(srv, &team.id.text());
        check_growth(team.size(), team.size() + info.bytes().len())?;
        let server = self.people.server_entry(srv);
        let player = self.people.player_entry(role.id, server);
        self.people.players[player].team = index;
        let team = &mut self.teams[index];
        team.members.push(TeamMember { player, info });
        team.rev += 1;
        let at = team.members.len() - 1;
        self.announce_join(turn, index, at);
        write_nested(turn.answer, 1, |out| self.write_team(index, out));
        Ok(())
    }

    pub(crate) fn leave_team(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let (mut member, mut team, mut actor) = (&[][..], &[][..], &[][..]);
        for field in fields(body) {
            let field = field?;
            match field.number {
                1 => member = text(&field)?,
                2 => team = text(&field)?,
                3 => actor = text(&field)?,
                _ => {}
            }
        }
        check_id(member, "MemberID")?;
        let index = self.find_team(team)?;
        let player = self.member_of_team(index, member)?;
        let is_actor = actor.is_empty() || actor == member;
        let own = self.people.server_of(player) == turn.caller.srv.as_bytes();
        let leader = self.teams[index].leader;
        let leads = self.people.server_of(leader) == turn.caller.srv.as_bytes()
            && (actor.is_empty() || self.people.players[leader].id.as_slice() == actor);
        let allowed = turn.caller.scope > Scope::Server || is_actor && own || leads;
        if !allowed {
            return Err(forbidden("only the leader or a trusted server may kick"));
        }
        let reason = if is_actor && (own || turn.caller.scope > Scope::Server) { "left" } else { "kicked" };
        self.remove_from_team(turn, index, player, reason);
        Ok(())
    }

    pub(crate) fn change_team_leader(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let (team, leader) = two_texts(body)?;
        let index = self.find_team(team)?;
        if self.people.players[self.teams[index].leader].id.as_slice() == leader {
            return Err(Problem::new(Status::AlreadyLeader, "already leader"));
        }
        let player = self.member_of_team(index, leader).map_err(|mut problem| {
            problem.message = "new leader is not a member".into();
            problem
        })?;
        self.check_acts_for(turn.caller, self.teams[index].leader)?;
        self.set_leader(turn, index, player);
        Ok(())
    }

    pub(crate) fn set_team_data(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let (mut team, mut key, mut value) = (&[][..], &[][..], &[][..]);
        for field in fields(body) {
            let field = field?;
            match field.number {
                1 => team = text(&field)?,
                2 => key = text(&field)?,
                3 => value = bytes(&field)?,
                _ => {}
            }
        }
        let index = self.find_team(team)?;
        self.check_hosts_member(turn.caller, index)?;
        let team = &mut self.teams[index];
        team.data.set_within(TEAM_DATA_FIELD, key, value, team.size())?;
        team.rev += 1;
        let (id, rev) = (team.id, team.rev);
        self.event(Event::SET_TEAM_DATA, |out| {
            write_bytes(out, 2, key);
            write_bytes(out, 3, if value.is_empty() { b"null" } else { value });
            write_about(out, id, rev, "");
        });
        self.tell_team(turn, index, collapse_key(false, id, Event::SET_TEAM_DATA, key));
        Ok(())
    }

    pub(crate) fn broadcast_team(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let (team, message) = text_and_message(body)?;
        let index = self.find_team(team)?;
        self.check_hosts_member(turn.caller, index)?;
        let team = &self.teams[index];
        let (id, rev) = (team.id, team.rev);
        self.event(Event::BROADCAST_TEAM, |out| {
            write_bytes(out, 1, message);
            write_about(out, id, rev, "");
        });
        self.tell_team(turn, index, 0);
        Ok(())
    }

    pub(crate) fn get_team_info(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let index = self.find_team(two_texts(body)?.0)?;
        write_nested(turn.answer, 1, |out| self.write_team(index, out));
        Ok(())
    }

    pub(crate) fn delete_team(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let index = self.find_team(two_texts(body)?.0)?;
        self.check_acts_for(turn.caller, self.teams[index].leader)?;
        // From the youngest on: nobody becomes leader of a team that is being dissolved but its
        // longest-standing member.
        while let Some(member) = self.teams.get(index).and_then(|team| team.members.last()) {
            let player = member.player;
            self.remove_from_team(turn, index, player, "deleted");
        }
        Ok(())
    }

    /// Takes a member out: a new leader first, then the removal, then the event to those who stay
    /// and the leaver.
    pub(crate) fn remove_from_team(&mut self, turn: &mut Turn<'_>, index: u32, player: u32, reason: &str) {
        let team = &self.teams[index];
        if team.leader == player && team.members.len() > 1 {
            let next = team.members.iter().map(|member| member.player).find(|member| *member != player);
            if let Some(next) = next {
                self.set_leader(turn, index, next);
            }
        }
        let team = &mut self.teams[index];
        team.rev += 1;
        let (id, rev) = (team.id, team.rev);
        let role = self.people.players[player].id.clone();
        self.event(Event::LEAVE_TEAM, |out| {
            write_bytes(out, 1, &role);
            write_about(out, id, rev, reason);
        });
        self.tell_team(turn, index, 0);
        let team = &mut self.teams[index];
        team.members.retain(|member| member.player != player);
        if team.members.is_empty() {
            self.teams.remove(index);
        }
        self.people.players[player].team = NONE;
        self.people.release(player);
    }

    pub(crate) fn write_team(&self, index: u32, out: &mut Vec<u8>) {
        let team = &self.teams[index];
        write_bytes(out, 1, &team.id.text());
        write_u64(out, 2, u64::from(!team.password.is_empty()));
        write_u64(out, 3, team.max_role << 1);
        out.extend_from_slice(team.data.bytes());
        for member in &team.members {
            write_bytes(out, 5, member.info.bytes());
        }
        write_bytes(out, 6, &self.people.players[team.leader].id);
        write_u64(out, 7, team.rev);
    }

    fn set_leader(&mut self, turn: &mut Turn<'_>, index: u32, player: u32) {
        let team = &mut self.teams[index];
        team.leader = player;
        team.rev += 1;
        let (id, rev) = (team.id, team.rev);
        let role = self.people.players[player].id.clone();
        self.event(Event::CHANGE_TEAM_LEADER, |out| {
            write_bytes(out, 1, &role);
            write_about(out, id, rev, "");
        });
        self.tell_team(turn, index, 0);
    }

    fn announce_join(&mut self, turn: &mut Turn<'_>, index: u32, member: usize) {
        let mut event = std::mem::take(&mut self.scratch.event);
        let team = &self.teams[index];
        event.clear();
        write_nested(&mut event, Event::JOIN_TEAM, |out| {
            write_bytes(out, 1, team.members[member].info.bytes());
            write_about(out, team.id, team.rev, "");
        });
        self.scratch.event = event;
        self.tell_team(turn, index, 0);
    }

    fn tell_team(&self, turn: &mut Turn<'_>, index: u32, collapse: u64) {
        let members = &self.teams[index].members;
        let players = members.iter().map(|member| member.player);
        fan_out(&self.people, players, &self.scratch.event, collapse, turn.notices);
    }

    /// Writes the event that the next `tell_*` sends.
    pub(crate) fn event(&mut self, number: u32, write: impl FnOnce(&mut Vec<u8>)) {
        self.scratch.event.clear();
        write_nested(&mut self.scratch.event, number, write);
    }

    fn check_in_no_team(&self, role: &[u8]) -> Outcome {
        let team = self.people.player(role).map_or(NONE, |player| self.people.players[player].team);
        let Some(team) = self.teams.get(team) else { return Ok(()) };
        let id = team.id.text();
        Err(Problem::new(Status::AlreadyInTeam, "the role is in another team").with("TeamID", quote(&id)))
    }

    fn member_of_team(&self, index: u32, role: &[u8]) -> Outcome<u32> {
        self.people
            .player(role)
            .filter(|player| self.people.players[*player].team == index)
            .ok_or_else(|| Problem::new(Status::NotAMember, "the role is not in the team"))
    }

    /// Refuses servers that have nothing to do with a team.
    fn check_hosts_member(&self, caller: Caller<'_>, index: u32) -> Outcome {
        let own = |member: &TeamMember| self.people.server_of(member.player) == caller.srv.as_bytes();
        if caller.scope > Scope::Server || self.teams[index].members.iter().any(own) {
            return Ok(());
        }
        Err(strange_to_team())
    }
}

pub(crate) fn strange_to_team() -> Problem {
    forbidden("no member of the team lives on this server")
}

impl Team {
    /// Bytes of data and members, which are nearly all of its info. Cost: O(members).
    fn size(&self) -> usize {
        let members: usize = self.members.iter().map(|member| member.info.bytes().len()).sum();
        self.data.bytes().len() + members
    }

    fn check_password(&mut self, password: &[u8], server: &[u8], now: u64) -> Outcome {
        if self.password.is_empty() {
            return Ok(());
        }
        self.wrong.retain(|tries| tries.until > now);
        let tries = self.wrong.iter_mut().find(|tries| tries.server.as_slice() == server);
        if tries.as_ref().is_some_and(|tries| tries.count >= WRONG_TRIES_MAX) {
            return Err(Problem::new(Status::RateLimited, "too many wrong passwords; wait a minute"));
        }
        if same_in_constant_time(password, &self.password) {
            return Ok(());
        }
        match tries {
            Some(tries) => tries.count += 1,
            None => {
                if self.wrong.len() >= WRONG_SERVERS_MAX {
                    self.wrong.remove(0);
                }
                self.wrong.push(WrongTries { server: stored(server), count: 1, until: now + WRONG_TRIES_MS });
            }
        }
        Err(Problem::new(Status::WrongPassword, "wrong password"))
    }
}

/// Takes as long whatever the first difference is; hides neither length.
fn same_in_constant_time(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && std::hint::black_box(a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b))) == 0
}

/// Fields 1 and 2 of a body, as texts.
pub(crate) fn two_texts(body: &[u8]) -> Outcome<(&[u8], &[u8])> {
    let (mut first, mut second) = (&[][..], &[][..]);
    for field in fields(body) {
        let field = field?;
        match field.number {
            1 => first = text(&field)?,
            2 => second = text(&field)?,
            _ => {}
        }
    }
    check_len(first, ID_BYTES_MAX, "an id")?;
    Ok((first, second))
}

/// An id and the message of a broadcast.
pub(crate) fn text_and_message(body: &[u8]) -> Outcome<(&[u8], &[u8])> {
    let (mut id, mut message) = (&[][..], &[][..]);
    for field in fields(body) {
        let field = field?;
        match field.number {
            1 => id = text(&field)?,
            2 => message = bytes(&field)?,
            _ => {}
        }
    }
    check_len(message, MESSAGE_BYTES_MAX, "Msg")?;
    check_json(message)?;
    Ok((id, message))
}
