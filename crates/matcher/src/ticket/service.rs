//! Requests about tickets: create, cancel, get, list.

use smallvec::SmallVec;
use throng_wire::matcher::{Status, write_bytes, write_nested};
use throng_wire::{WireType, fields};

use crate::config::{Caller, Scope};
use crate::info::{RoleRef, bytes, entry, text};
use crate::key::{PlayerKey, QueueKey, TicketKey};
use crate::listing::{page_start, write_page};
use crate::matcher::{Matcher, require};
use crate::problem::{Outcome, Problem, invalid, lives_elsewhere, not_found, quote, quote_all, too_large};
use crate::queue::{
    Compiled, Facts, PLAYERS_MAX, PRIORITIES, PlayerInput, State, Ticket, TicketPlayer, parse_players,
};
use crate::turn::Turn;

/// Bytes of a ticket's players as encoded.
const TICKET_BYTES_MAX: usize = 4 << 10;

impl Matcher {
    pub(crate) fn create_ticket(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        self.check_not_draining()?;
        let mut asked = TicketRequest::parse(body)?;
        let queue = self.queues.find(asked.queue).ok_or_else(|| not_found("queue does not exist"))?;
        if let Some(why) = &self.queues[queue].paused {
            return Err(Problem::new(Status::RuleInvalid, format!("the queue is paused: {why}")));
        }
        if asked.priority != 0 {
            require(turn.caller, Scope::Trusted)?;
        }
        if self.queues.live() >= self.config.tickets_max {
            return Err(Problem::new(Status::Overloaded, "as many tickets wait as this matcher takes"));
        }
        let compiled = self.queues[queue].rules();
        let from_team: Vec<Vec<u8>>;
        let bodies = if asked.team.is_empty() {
            std::mem::take(&mut asked.players)
        } else {
            from_team = self.team_as_players(turn.caller, &asked, &compiled)?;
            from_team.iter().map(Vec::as_slice).collect()
        };
        check_size(&bodies)?;
        let mut inputs = parse_players(&bodies)?;
        let servers = self.check_players(turn.caller, queue, &compiled, &inputs, !asked.team.is_empty())?;
        self.fill_in_ratings(&compiled, inputs.iter_mut().map(|(input, _)| input));
        let party: Vec<PlayerInput<'_>> = inputs.into_iter().map(|(input, _)| input).collect();
        let refused = |why: String| Problem::new(Status::RuleInvalid, why);
        let facts = self.queues.facts(queue, &party).map_err(refused)?;
        if let Some(why) = compiled.never(&facts) {
            return Err(refused(why));
        }
        let mut players = SmallVec::with_capacity(party.len());
        for ((input, server), body) in party.iter().zip(&servers).zip(&bodies) {
            let entry = self.people.server_entry(server);
            let player = self.people.player_entry(input.role, entry);
            self.people.add_ticket(player, self.queues.next_ticket());
            players.push(TicketPlayer { player: Some(player), body: TicketPlayer::body(body, server) });
        }
        let index = self.insert_ticket(queue, &asked, facts, players);
        self.enter_pool(index);
        write_nested(turn.answer, 1, |out| self.write_ticket(index, out));
        Ok(())
    }

    fn insert_ticket(
        &mut self,
        queue: QueueKey,
        asked: &TicketRequest<'_>,
        facts: Facts,
        players: SmallVec<[TicketPlayer; 1]>,
    ) -> TicketKey {
        let timeout = self.queues[queue].rules().set.timeout_s * 1_000;
        let expires = self.now + if asked.expires_ms == 0 { timeout } else { asked.expires_ms.min(timeout) };
        let id = self.new_id(self.queues.next_ticket().index());
        self.queues.insert_ticket(Ticket {
            id,
            queue,
            created: self.now,
            expires,
            priority: asked.priority,
            state: State::Searching,
            rev: 1,
            reason: Box::default(),
            team: Box::from(asked.team),
            players,
            facts,
            level: 0,
            standing: Default::default(),
            matched: None,
            room: None,
            region: None,
            position: 0,
            refusals: 0,
        })
    }

    /// Refuses players that may not wait here; gives their servers.
    fn check_players<'a>(
        &self,
        caller: Caller<'a>,
        queue: QueueKey,
        compiled: &Compiled,
        inputs: &[(PlayerInput<'a>, &'a [u8])],
        from_team: bool,
    ) -> Outcome<Vec<Vec<u8>>> {
        let mut servers = Vec::with_capacity(inputs.len());
        for (at, (input, srv)) in inputs.iter().enumerate() {
            if inputs[..at].iter().any(|(other, _)| other.role == input.role) {
                return Err(invalid("a player is in the party twice"));
            }
            let role = RoleRef::bare(input.role).on(srv);
            // A team's members live where they joined it from.
            let server = if from_team { srv } else { self.home_of(caller, &role)? };
            servers.push(server.to_vec());
            if !from_team && let Some(player) = self.people.player(input.role) {
                self.check_acts_for(caller, player)?;
            }
            self.check_may_wait(queue, compiled, input.role)?;
        }
        Ok(servers)
    }

    /// Refuses a player who may not have one more ticket.
    fn check_may_wait(&self, queue: QueueKey, compiled: &Compiled, role: &[u8]) -> Outcome {
        let Some(player) = self.people.player(role) else { return Ok(()) };
        let player = &self.people[player];
        if player.cooldown_until() > self.now {
            let message = "the player declined a match recently";
            let until = player.cooldown_until().to_string();
            return Err(Problem::new(Status::Cooldown, message).with("Until", until));
        }
        let is_here = player.tickets().iter().any(|ticket| self.queues[*ticket].queue == queue);
        if is_here || player.tickets().len() >= self.config.tickets_per_player {
            let ids: Vec<[u8; 32]> =
                player.tickets().iter().map(|ticket| self.queues[*ticket].text()).collect();
            let detail = quote_all(ids.iter().map(<[u8; 32]>::as_slice));
            let message = "the player has live tickets";
            return Err(Problem::new(Status::AlreadyInQueue, message).with("TicketIDs", detail));
        }
        if let Some(room) = player.room().filter(|_| !compiled.set.allow_in_room) {
            return Err(self.already_in(room));
        }
        Ok(())
    }

    /// The members of a team as players: numbers and texts of their infos are attributes where the
    /// queue declares them.
    fn team_as_players(
        &self,
        caller: Caller<'_>,
        asked: &TicketRequest<'_>,
        compiled: &Compiled,
    ) -> Outcome<Vec<Vec<u8>>> {
        let team = &self.teams[self.find_team(asked.team)?];
        self.check_acts_for(caller, team.leader())?;
        let leader = self.people[team.leader()].id();
        if parse_players(&asked.players)?.iter().any(|(player, _)| player.role != &**leader) {
            return Err(Problem::new(Status::Forbidden, "only the leader of a team may queue it"));
        }
        let declared = |key: &[u8]| compiled.set.attributes.keys().any(|known| known.as_bytes() == key);
        let mut players = Vec::with_capacity(team.members().len());
        for member in team.members() {
            let mut body = Vec::new();
            write_bytes(&mut body, 1, self.people[member.player].id());
            write_bytes(&mut body, 2, self.people.server_of(member.player));
            for field in fields(member.info.bytes()).map_while(Result::ok) {
                if !matches!(field.number, 4 | 5) {
                    continue;
                }
                let (key, value) = entry(&field)?;
                if !declared(key) {
                    continue;
                }
                let json = match value {
                    Some(value) if value.wire_type == WireType::Fixed64 => {
                        f64::from_bits(value.scalar).to_string()
                    }
                    Some(value) => quote(value.value),
                    None => quote(b""),
                };
                write_nested(&mut body, 3, |out| {
                    write_bytes(out, 1, key);
                    write_bytes(out, 2, json.as_bytes());
                });
            }
            players.push(body);
        }
        Ok(players)
    }

    pub(crate) fn cancel_ticket(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let (id, lost) = crate::team::two_texts(body)?;
        let mut role = &[][..];
        for field in fields(body) {
            let field = field?;
            if field.number == 3 {
                role = text(&field)?;
            }
        }
        let index = self.queues.find_ticket(id)?;
        self.check_owns_ticket(turn.caller, index)?;
        for named in [role, lost] {
            if !named.is_empty() && !self.queues[index].has_role(named) {
                return Err(not_in_ticket());
            }
        }
        let closed = |message| Err(Problem::new(Status::TicketClosed, message));
        match self.queues[index].state {
            State::Cancelled => {}
            State::Matched | State::TimedOut | State::Failed if !lost.is_empty() => {
                return closed("the ticket has ended; `RoleLeaveRoom` gives up a seat");
            }
            _ if !lost.is_empty() => {
                let player = self.player_of(index, lost)?;
                // Also refused to trusted servers: the player may be connected to its own one.
                if self.people.server_of(player) != turn.caller.srv.as_bytes() {
                    return Err(lives_elsewhere());
                }
                self.drop_from_ticket(turn, index, player, "disconnected");
            }
            State::Searching => {
                self.queues.count(self.queues[index].queue, |figures| &mut figures.cancelled);
                self.end_ticket(turn, index, State::Cancelled, "cancelled");
            }
            State::Proposed => self.decline(turn, index),
            State::Placing | State::Matched | State::TimedOut | State::Failed => {
                return closed("the ticket is placing or ended");
            }
        }
        write_nested(turn.answer, 1, |out| self.write_ticket(index, out));
        Ok(())
    }

    /// The player of a role in a ticket.
    ///
    /// # Errors
    /// The role is not in the ticket.
    pub(crate) fn player_of(&self, ticket: TicketKey, role: &[u8]) -> Outcome<PlayerKey> {
        let player = self.people.player(role);
        let is_in = |player: &PlayerKey| {
            self.queues[ticket].players.iter().any(|member| member.player == Some(*player))
        };
        player.filter(is_in).ok_or_else(not_in_ticket)
    }

    /// Whoever hosts a player of a ticket may act for it.
    pub(crate) fn check_owns_ticket(&self, caller: Caller<'_>, index: TicketKey) -> Outcome {
        let ticket = &self.queues[index];
        let hosts = |player: &TicketPlayer| {
            player.player.is_none_or(|player| self.people.server_of(player) == caller.srv.as_bytes())
        };
        if caller.scope == Scope::Server && !ticket.players.iter().any(hosts) {
            return Err(crate::problem::forbidden("no player of the ticket lives on this server"));
        }
        Ok(())
    }

    pub(crate) fn get_ticket(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let index = self.queues.find_ticket(crate::team::two_texts(body)?.0)?;
        write_nested(turn.answer, 1, |out| self.write_ticket(index, out));
        Ok(())
    }

    pub(crate) fn list_tickets(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let (mut role, mut queue, mut from) = (&[][..], &[][..], &[][..]);
        for field in fields(body) {
            let field = field?;
            match field.number {
                1 => role = text(&field)?,
                2 => queue = text(&field)?,
                3 => from = text(&field)?,
                _ => {}
            }
        }
        let from = TicketKey::new(page_start(from)?);
        let write = |ticket, out: &mut Vec<u8>| write_nested(out, 1, |out| self.write_ticket(ticket, out));
        let token = |ticket: TicketKey| ticket.index().to_string();
        if !role.is_empty() {
            if let Some(player) = self.people.player(role) {
                self.check_acts_for(turn.caller, player)?;
                let mut own: Vec<TicketKey> =
                    self.tickets_of(player).filter(|ticket| *ticket >= from).collect();
                own.sort_unstable();
                write_page(turn.answer, 2, own, token, write);
            }
            return Ok(());
        }
        require(turn.caller, Scope::Trusted)?;
        let queue = self.queues.find(queue).ok_or_else(|| not_found("queue does not exist"))?;
        let live = self.queues[queue].live as usize;
        let all = self.queues.tickets_from(from);
        let own = all.filter(|(_, ticket)| ticket.queue == queue && ticket.state.is_live());
        write_page(turn.answer, 2, own.map(|(key, _)| key).take(live), token, write);
        Ok(())
    }
}

/// A request for a ticket.
#[derive(Default)]
struct TicketRequest<'a> {
    queue: &'a [u8],
    players: Vec<&'a [u8]>,
    team: &'a [u8],
    expires_ms: u64,
    priority: i8,
}

impl<'a> TicketRequest<'a> {
    fn parse(body: &'a [u8]) -> Outcome<TicketRequest<'a>> {
        let mut asked = TicketRequest::default();
        for field in fields(body) {
            let field = field?;
            match field.number {
                1 => asked.queue = text(&field)?,
                2 => asked.players.push(bytes(&field)?),
                3 => asked.team = text(&field)?,
                4 => asked.expires_ms = field.scalar,
                5 => {
                    let priority = (field.scalar >> 1) as i64 ^ -((field.scalar & 1) as i64);
                    asked.priority = i8::try_from(priority)
                        .ok()
                        .filter(|priority| PRIORITIES.contains(priority))
                        .ok_or_else(|| invalid("Priority is -10 to 10"))?;
                }
                _ => {}
            }
        }
        if asked.players.is_empty() && asked.team.is_empty() {
            return Err(invalid("a ticket has Players or a TeamID"));
        }
        Ok(asked)
    }
}

/// Refuses more players, or more of them in bytes, than a ticket has.
fn check_size(players: &[&[u8]]) -> Outcome {
    if players.len() > PLAYERS_MAX {
        return Err(too_large(format!("a ticket has at most {PLAYERS_MAX} players")));
    }
    let size: usize = players.iter().map(|player| player.len()).sum();
    if size > TICKET_BYTES_MAX {
        return Err(too_large(format!("a ticket of {size} bytes exceeds the limit of {TICKET_BYTES_MAX}")));
    }
    Ok(())
}

fn not_in_ticket() -> Problem {
    Problem::new(Status::NotAMember, "the role is not in the ticket")
}
