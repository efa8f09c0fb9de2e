//! Teams that join or make rooms together.

use smallvec::SmallVec;
use throng_wire::matcher::{Status, write_bytes};

use super::id_and_bytes;
use crate::config::{Caller, Scope};
use crate::id::Id;
use crate::info::RoleRef;
use crate::key::{PlayerKey, RoomKey};
use crate::matcher::Matcher;
use crate::problem::{Outcome, Problem, not_found, quote, quote_all};
use crate::room::{CreateInfo, Newcomer, Newcomers};
use crate::team::{TeamMember, strange_to_team, two_texts};
use crate::turn::Turn;

impl Matcher {
    pub(crate) fn team_join_random_room(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let (team, create) = id_and_bytes(body)?;
        let create = CreateInfo::parse(create)?;
        self.move_team(turn.caller, team, |matcher, newcomers| {
            let mode = matcher.rooms.modes_mut().resolve(create.mode)?;
            let same = matcher.room_of_whole_team(&newcomers);
            if let Some(room) = same.filter(|room| matcher.rooms[*room].mode() == mode) {
                return matcher.answer_join(room, false, true, turn.answer);
            }
            matcher.check_team(&newcomers, mode)?;
            matcher.join_any(turn, mode, &create, newcomers)
        })
    }

    pub(crate) fn team_create_room(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let (team, create) = id_and_bytes(body)?;
        let create = CreateInfo::parse(create)?;
        self.move_team(turn.caller, team, |matcher, newcomers| {
            let mode = matcher.rooms.modes_mut().resolve(create.mode)?;
            matcher.check_team(&newcomers, mode)?;
            matcher.make_room(turn, mode, &create, newcomers)?;
            write_bytes(turn.answer, 1, &matcher.scratch.room);
            Ok(())
        })
    }

    pub(crate) fn team_join_room(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let (team, room) = two_texts(body)?;
        self.move_team(turn.caller, team, |matcher, newcomers| {
            let room = matcher.find_room(room)?;
            if matcher.room_of_whole_team(&newcomers) == Some(room) || matcher.are_all_in(room, &newcomers) {
                return matcher.answer_join(room, false, true, turn.answer);
            }
            matcher.check_team(&newcomers, matcher.rooms[room].mode())?;
            let seated = newcomers.iter().filter(|newcomer| matcher.rooms[room].has_seat(newcomer.player));
            matcher.check_joinable(room, newcomers.len() - seated.count())?;
            matcher.check_fits(room, &newcomers)?;
            let changes = matcher.ask_to_admit(room, &newcomers)?;
            matcher.admit(turn, room, newcomers, &changes);
            matcher.answer_encoded(false, turn.answer)
        })
    }

    /// Does something with the members of a team for a server that hosts one of them or is trusted.
    fn move_team(
        &mut self,
        caller: Caller<'_>,
        id: &[u8],
        go: impl FnOnce(&mut Matcher, Newcomers) -> Outcome,
    ) -> Outcome {
        let newcomers = self.team_newcomers(id)?;
        let players: SmallVec<[PlayerKey; 4]> = newcomers.iter().map(|newcomer| newcomer.player).collect();
        let hosts = |player: &PlayerKey| self.people.server_of(*player) == caller.srv.as_bytes();
        let moved = if caller.scope > Scope::Server || players.iter().any(hosts) {
            go(self, newcomers)
        } else {
            Err(strange_to_team())
        };
        if moved.is_err() {
            for player in players {
                self.people.release(player);
            }
        }
        moved
    }

    /// All members of a team as newcomers.
    fn team_newcomers(&mut self, id: &[u8]) -> Outcome<Newcomers> {
        let missing = || not_found("can not find team");
        let team = self.find_team(id).map_err(|_| missing())?;
        let members = self.teams[team].members();
        if members.is_empty() {
            return Err(Problem::new(Status::TeamEmpty, "team is empty"));
        }
        let newcomer =
            |member: &TeamMember| Newcomer { player: member.player, info: member.info.clone(), moves: false };
        Ok(members.iter().map(newcomer).collect())
    }

    fn room_of_whole_team(&self, members: &[Newcomer]) -> Option<RoomKey> {
        let mut rooms = members.iter().map(|member| self.people[member.player].room());
        let first = rooms.next()??;
        rooms.all(|room| room == Some(first)).then_some(first)
    }

    /// Returns whether a team is in a live room whose members may be in others too.
    fn are_all_in(&self, room: RoomKey, members: &[Newcomer]) -> bool {
        let room = &self.rooms[room];
        !room.deleting() && members.iter().all(|member| room.has_member(member.player))
    }

    /// Returns whether a team may be in a room of a mode: all members or nobody.
    fn check_team(&self, members: &[Newcomer], mode: u16) -> Outcome {
        self.check_open_to(mode, members.len())?;
        let rules = self.rooms.mode(mode).rules();
        if rules.exclusive {
            let rooms = members.iter().map(|member| {
                let player = &self.people[member.player];
                (player.id().as_slice(), player.room().map(|room| self.rooms[room].id()))
            });
            let busy: SmallVec<[(&[u8], Id); 4]> =
                rooms.filter_map(|(role, room)| Some((role, room?))).collect();
            if let Some((_, first)) = busy.first() {
                let roles = quote_all(busy.iter().map(|(role, _)| *role));
                let problem = Problem::new(
                    Status::AlreadyInRoom,
                    "members of the team are in other rooms; here of the first",
                );
                return Err(problem.with("RoomID", quote(&first.text())).with("RoleIDs", roles));
            }
        }
        members.iter().try_for_each(|member| rules.check_limits(&RoleRef::parse(member.info.bytes())?))
    }
}
