//! The teams, which only this file changes.

use smallvec::SmallVec;
use throng_wire::matcher::{Status, write_bytes, write_u64};

use crate::id::Id;
use crate::info::{DataMap, Info, TEAM_DATA_FIELD, Text, check_growth};
use crate::key::{Numbers, PlayerKey, TeamKey};
use crate::problem::{Outcome, Problem};
use crate::schema::v1;
use crate::slab::{NONE, Slab};

/// Wrong passwords of one server for one team before it has to wait.
const WRONG_TRIES_MAX: u32 = 10;
const WRONG_TRIES_MS: u64 = 60_000;
/// Servers whose wrong passwords are counted for one team; the one that was counted from first is
/// forgotten for a further one. Who may speak for any number of servers is held up by tokens, not
/// by this: it bounds memory and the time of a try.
const WRONG_SERVERS_MAX: usize = 1_000;

/// Every team.
#[derive(Clone, Debug, Default)]
pub(crate) struct Teams(Slab<TeamKey, Team>);

#[derive(Clone, Debug)]
pub(crate) struct Team {
    id: Id,
    password: Text,
    max_role: u64,
    data: DataMap,
    /// Longest-standing first; never empty.
    members: SmallVec<[TeamMember; 2]>,
    leader: PlayerKey,
    rev: u64,
    wrong: Vec<WrongTries>,
}

#[derive(Clone, Debug)]
pub(crate) struct TeamMember {
    pub(crate) player: PlayerKey,
    pub(crate) info: Info,
}

#[derive(Clone, Debug)]
struct WrongTries {
    server: Text,
    count: u32,
    until: u64,
}

impl std::ops::Index<TeamKey> for Teams {
    type Output = Team;

    fn index(&self, key: TeamKey) -> &Team {
        &self.0[key]
    }
}

impl Teams {
    pub(crate) fn load(saved: &v1::Places<v1::Team<'_>>) -> Option<Teams> {
        let teams = saved.objects.iter().map(|own| (own.id.place, Team::load(own)));
        Some(Teams(Slab::from_places(teams, saved.free.clone())?))
    }

    pub(crate) fn save(&self, numbers: &Numbers) -> v1::Places<v1::Team<'_>> {
        let objects = self.0.iter().map(|(_, team)| team.save(numbers)).collect();
        v1::Places { objects, free: self.0.free().to_vec() }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn get(&self, key: TeamKey) -> Option<&Team> {
        self.0.get(key)
    }

    pub(crate) fn find(&self, id: Id) -> Option<TeamKey> {
        let is_same = self.0.get(TeamKey::new(id.index)).is_some_and(|team| team.id == id);
        is_same.then_some(TeamKey::new(id.index))
    }

    /// The place of the next team that is made.
    pub(crate) fn next_key(&self) -> TeamKey {
        self.0.next_key()
    }

    /// Makes a team of its leader alone, at [`next_key`](Teams::next_key), which `id` names.
    pub(crate) fn make(
        &mut self,
        id: Id,
        password: &[u8],
        max_role: u64,
        data: DataMap,
        leader: TeamMember,
    ) -> TeamKey {
        let (password, player) = (Text::from_slice(password), leader.player);
        let members = smallvec::smallvec![leader];
        let team = Team { id, password, max_role, data, members, leader: player, rev: 1, wrong: Vec::new() };
        self.0.insert(team)
    }

    /// Refuses a wrong password, which it counts, and a team that is full.
    pub(crate) fn admit(&mut self, key: TeamKey, password: &[u8], server: &[u8], now: u64) -> Outcome {
        let team = &mut self.0[key];
        team.check_password(password, server, now)?;
        if team.members.len() as u64 >= team.max_role {
            return Err(Problem::new(Status::TeamFull, "team is already full"));
        }
        Ok(())
    }

    /// Adds a member that was admitted.
    pub(crate) fn join(&mut self, key: TeamKey, member: TeamMember) {
        let team = &mut self.0[key];
        team.members.push(member);
        team.rev += 1;
    }

    /// Counts the change that a member's leaving is, before the member is removed: it hears of it.
    pub(crate) fn begin_leave(&mut self, key: TeamKey) {
        self.0[key].rev += 1;
    }

    /// Removes a member, and with the last one the team.
    pub(crate) fn leave(&mut self, key: TeamKey, player: PlayerKey) {
        let team = &mut self.0[key];
        team.members.retain(|member| member.player != player);
        if team.members.is_empty() {
            self.0.remove(key);
        }
    }

    pub(crate) fn set_leader(&mut self, key: TeamKey, player: PlayerKey) {
        let team = &mut self.0[key];
        team.leader = player;
        team.rev += 1;
    }

    /// Sets a free-form value; an empty one removes it.
    pub(crate) fn set_data(&mut self, key: TeamKey, name: &[u8], value: &[u8]) -> Outcome {
        let team = &mut self.0[key];
        team.data.set_within(TEAM_DATA_FIELD, name, value, team.size())?;
        team.rev += 1;
        Ok(())
    }

    /// Checks each team, and that `is_in` holds for its members.
    pub(crate) fn check_invariants(
        &self,
        is_in: impl Fn(PlayerKey, TeamKey) -> bool,
    ) -> Result<(), &'static str> {
        for (key, team) in self.0.iter() {
            let has = |player: PlayerKey| team.members.iter().any(|own| own.player == player);
            let wrong = match () {
                () if team.id.index != key.index() => "the id of a team",
                () if !team.members.iter().all(|own| is_in(own.player, key)) => "a member of a team",
                () if !has(team.leader) => "the leader of a team",
                () => continue,
            };
            return Err(wrong);
        }
        Ok(())
    }
}

impl Team {
    fn save(&self, numbers: &Numbers) -> v1::Team<'_> {
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

    fn load(saved: &v1::Team<'_>) -> Team {
        let member = |member: &v1::Member<'_>| TeamMember {
            player: PlayerKey::new(member.player),
            info: Info::load(member.info),
        };
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
            leader: PlayerKey::new(saved.leader),
            rev: saved.rev,
            wrong: saved.wrong_tries.iter().map(tries).collect(),
        }
    }

    pub(crate) fn id(&self) -> Id {
        self.id
    }

    pub(crate) fn rev(&self) -> u64 {
        self.rev
    }

    pub(crate) fn leader(&self) -> PlayerKey {
        self.leader
    }

    /// Longest-standing first; never empty.
    pub(crate) fn members(&self) -> &[TeamMember] {
        &self.members
    }

    /// Refuses a member whose info would be too much for the team.
    pub(crate) fn check_room_for(&self, info: &Info) -> Outcome {
        check_growth(self.size(), self.size() + info.bytes().len())
    }

    /// Writes a `TeamInfo`; `leader` is the leader's role.
    pub(crate) fn write(&self, leader: &[u8], out: &mut Vec<u8>) {
        write_bytes(out, 1, &self.id.text());
        write_u64(out, 2, u64::from(!self.password.is_empty()));
        write_u64(out, 3, self.max_role << 1);
        out.extend_from_slice(self.data.bytes());
        for member in &self.members {
            write_bytes(out, 5, member.info.bytes());
        }
        write_bytes(out, 6, leader);
        write_u64(out, 7, self.rev);
    }

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
                self.wrong.push(WrongTries {
                    server: Text::from_slice(server),
                    count: 1,
                    until: now + WRONG_TRIES_MS,
                });
            }
        }
        Err(Problem::new(Status::WrongPassword, "wrong password"))
    }
}

/// Takes as long whatever the first difference is; hides neither length.
fn same_in_constant_time(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && std::hint::black_box(a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b))) == 0
}

impl WrongTries {
    fn save(&self) -> v1::WrongTries<'_> {
        v1::WrongTries { server: &self.server, count: self.count, until: self.until }
    }
}
