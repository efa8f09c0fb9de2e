//! Requests about teams.

use throng_wire::fields;
use throng_wire::matcher::{Event, Status, write_bytes, write_nested};

use super::{Departure, TeamMember, strange_to_team, text_and_message, two_texts};
use crate::config::{Caller, Scope};
use crate::id::Id;
use crate::info::{DataMap, RoleRef, TEAM_DATA_FIELD, bytes, check_growth, check_id, check_len, entry, text};
use crate::key::{PlayerKey, TeamKey};
use crate::matcher::{Matcher, collapse_key, fan_out, write_about};
use crate::problem::{Outcome, Problem, forbidden, invalid, not_found, quote};
use crate::turn::Turn;

const PASSWORD_BYTES_MAX: usize = 4 << 10;

impl Matcher {
    pub(crate) fn find_team(&self, id: &[u8]) -> Outcome<TeamKey> {
        let found = Id::parse(id).and_then(|id| self.teams.find(id));
        found.ok_or_else(|| not_found("team does not exist"))
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

        let index = self.teams.next_key();
        let id = self.new_id(index.index());
        let info = creator.info(srv, &id.text());
        check_growth(0, data.bytes().len() + info.bytes().len())?;
        let server = self.people.server_entry(srv);
        let player = self.people.player_entry(creator.id, server);
        self.people.set_team(player, Some(index));
        self.teams.make(id, password, max_role, data, TeamMember { player, info });
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
        if self.people.player(role.id).is_some_and(|player| self.people[player].team() == Some(index)) {
            self.move_member(turn.caller, &role)?;
            write_nested(turn.answer, 1, |out| self.write_team(index, out));
            return Ok(());
        }
        self.check_in_no_team(role.id)?;
        self.teams.admit(index, password, srv, self.now)?;
        let team = &self.teams[index];
        let info = role.info(srv, &team.id().text());
        team.check_room_for(&info)?;
        let at = team.members().len();
        let server = self.people.server_entry(srv);
        let player = self.people.player_entry(role.id, server);
        self.people.set_team(player, Some(index));
        self.teams.join(index, TeamMember { player, info });
        self.announce_join(turn, index, at);
        write_nested(turn.answer, 1, |out| self.write_team(index, out));
        Ok(())
    }

    pub(crate) fn leave_team(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let departure = Departure::parse(body)?;
        let Departure { role: member, place: team, actor, .. } = departure;
        check_id(member, "MemberID")?;
        let index = self.find_team(team)?;
        let player = self.member_of_team(index, member)?;
        let is_actor = actor.is_empty() || actor == member;
        let own = self.people.server_of(player) == turn.caller.srv.as_bytes();
        departure.check_loss(own)?;
        let leader = self.teams[index].leader();
        let leads = self.people.server_of(leader) == turn.caller.srv.as_bytes()
            && (actor.is_empty() || self.people[leader].id().as_slice() == actor);
        let allowed = turn.caller.scope > Scope::Server || is_actor && own || leads;
        if !allowed {
            return Err(forbidden("only the leader or a trusted server may kick"));
        }
        let is_kick = !is_actor || !own && turn.caller.scope == Scope::Server;
        self.remove_from_team(turn, index, player, departure.reason(is_kick));
        Ok(())
    }

    pub(crate) fn change_team_leader(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let (team, leader) = two_texts(body)?;
        let index = self.find_team(team)?;
        if self.people[self.teams[index].leader()].id().as_slice() == leader {
            return Err(Problem::new(Status::AlreadyLeader, "already leader"));
        }
        let player = self.member_of_team(index, leader).map_err(|mut problem| {
            problem.message = "new leader is not a member".into();
            problem
        })?;
        self.check_acts_for(turn.caller, self.teams[index].leader())?;
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
        self.teams.set_data(index, key, value)?;
        let (id, rev) = self.team_state(index);
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
        let (id, rev) = self.team_state(index);
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
        self.check_acts_for(turn.caller, self.teams[index].leader())?;
        // From the youngest on: nobody becomes leader of a team that is being dissolved but its
        // longest-standing member.
        while let Some(member) = self.teams.get(index).and_then(|team| team.members().last()) {
            let player = member.player;
            self.remove_from_team(turn, index, player, "deleted");
        }
        Ok(())
    }

    /// Takes a member out: a new leader first, then the removal, then the event to those who stay
    /// and the leaver.
    pub(crate) fn remove_from_team(
        &mut self,
        turn: &mut Turn<'_>,
        index: TeamKey,
        player: PlayerKey,
        reason: &str,
    ) {
        let team = &self.teams[index];
        if team.leader() == player {
            let mut others = team.members().iter().map(|member| member.player);
            let next = others.find(|member| *member != player);
            if let Some(next) = next {
                self.set_leader(turn, index, next);
            }
        }
        self.teams.begin_leave(index);
        let (id, rev) = self.team_state(index);
        let role = self.people[player].id().clone();
        self.event(Event::LEAVE_TEAM, |out| {
            write_bytes(out, 1, &role);
            write_about(out, id, rev, reason);
        });
        self.tell_team(turn, index, 0);
        self.teams.leave(index, player);
        self.people.set_team(player, None);
        self.people.release(player);
    }

    pub(crate) fn write_team(&self, index: TeamKey, out: &mut Vec<u8>) {
        let team = &self.teams[index];
        team.write(self.people[team.leader()].id(), out);
    }

    /// Id and revision of a team.
    fn team_state(&self, index: TeamKey) -> (Id, u64) {
        (self.teams[index].id(), self.teams[index].rev())
    }

    fn set_leader(&mut self, turn: &mut Turn<'_>, index: TeamKey, player: PlayerKey) {
        self.teams.set_leader(index, player);
        let (id, rev) = self.team_state(index);
        let role = self.people[player].id().clone();
        self.event(Event::CHANGE_TEAM_LEADER, |out| {
            write_bytes(out, 1, &role);
            write_about(out, id, rev, "");
        });
        self.tell_team(turn, index, 0);
    }

    fn announce_join(&mut self, turn: &mut Turn<'_>, index: TeamKey, member: usize) {
        let mut event = std::mem::take(&mut self.scratch.event);
        let team = &self.teams[index];
        event.clear();
        write_nested(&mut event, Event::JOIN_TEAM, |out| {
            write_bytes(out, 1, team.members()[member].info.bytes());
            write_about(out, team.id(), team.rev(), "");
        });
        self.scratch.event = event;
        self.tell_team(turn, index, 0);
    }

    fn tell_team(&self, turn: &mut Turn<'_>, index: TeamKey, collapse: u64) {
        let members = self.teams[index].members();
        let players = members.iter().map(|member| member.player);
        fan_out(&self.people, players, &self.scratch.event, collapse, turn.notices);
    }

    /// Writes the event that the next `tell_*` sends.
    pub(crate) fn event(&mut self, number: u32, write: impl FnOnce(&mut Vec<u8>)) {
        self.scratch.event.clear();
        write_nested(&mut self.scratch.event, number, write);
    }

    fn check_in_no_team(&self, role: &[u8]) -> Outcome {
        let team = self.people.player(role).and_then(|player| self.people[player].team());
        let Some(team) = team else { return Ok(()) };
        let id = self.teams[team].id().text();
        Err(Problem::new(Status::AlreadyInTeam, "the role is in another team").with("TeamID", quote(&id)))
    }

    fn member_of_team(&self, index: TeamKey, role: &[u8]) -> Outcome<PlayerKey> {
        self.people
            .player(role)
            .filter(|player| self.people[*player].team() == Some(index))
            .ok_or_else(|| Problem::new(Status::NotAMember, "the role is not in the team"))
    }

    /// Refuses servers that have nothing to do with a team.
    fn check_hosts_member(&self, caller: Caller<'_>, index: TeamKey) -> Outcome {
        let own = |member: &TeamMember| self.people.server_of(member.player) == caller.srv.as_bytes();
        if caller.scope > Scope::Server || self.teams[index].members().iter().any(own) {
            return Ok(());
        }
        Err(strange_to_team())
    }
}
