//! Requests about teams.

use throng_wire::fields;
use throng_wire::matcher::{Event, Status, write_bytes, write_nested, write_u64};

use super::{Team, TeamMember, strange_to_team, text_and_message, two_texts};
use crate::config::{Caller, Scope};
use crate::id::Id;
use crate::info::{
    DataMap, RoleRef, TEAM_DATA_FIELD, Text, bytes, check_growth, check_id, check_len, entry, text,
};
use crate::matcher::{Matcher, collapse_key, fan_out, write_about};
use crate::problem::{Outcome, Problem, forbidden, invalid, not_found, quote};
use crate::slab::NONE;
use crate::turn::Turn;

const PASSWORD_BYTES_MAX: usize = 4 << 10;

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
            password: Text::from_slice(password),
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
