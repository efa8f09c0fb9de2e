//! Which players of this gateway are in which match, and the channel of each.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use throng_client::{ChannelId, ChannelType, CreateChannel, SubscribeOptions};
use tokio::time::Instant;

/// A match whose players have not come by then has none here any more: longer than any seat is
/// kept.
const DESERTED: Duration = Duration::from_secs(3_600);

/// Time for which a player who is not here keeps its team after its match with a world of its own.
const RETURN: Duration = Duration::from_secs(300);

/// The matches that players of this gateway are in, and the rooms that may become some.
#[derive(Default)]
pub(crate) struct Matches {
    rooms: BTreeMap<String, Match>,
    /// The open ones by channel.
    channels: BTreeMap<ChannelId, String>,
    /// Time when matches are given up whose players have not come.
    deadlines: BTreeSet<(Instant, String)>,
    /// Players who were not here when their match with a world of its own ended, and when their
    /// teams are looked at.
    away: VecDeque<(Instant, String)>,
}

#[derive(Default)]
struct Match {
    state: State,
    /// It has been full, or a ticket led to it.
    is_complete: bool,
    /// The matcher has removed the room.
    is_closed: bool,
    /// The matcher wants to know its channel before anybody comes.
    is_awaited: bool,
    /// The world of its own that it has in place of a channel.
    world: Option<String>,
    /// Time when it is given up, if the matcher knows its channel and nobody has come.
    until: Option<Instant>,
    members: BTreeSet<String>,
    /// Members that were subscribed to the channel.
    inside: BTreeSet<String>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Gathering,
    Opening,
    Open(ChannelId),
}

/// Initial values of a match's channel: its metadata leads back to the room. It has data when a
/// type is given.
pub(crate) fn channel(room: &str, data_type: &str) -> CreateChannel {
    let channel = CreateChannel::new(ChannelType::SUBWORLD).metadata(format!("match:{room}"));
    if data_type.is_empty() { channel } else { channel.data(data_type, Vec::new()) }
}

/// Players write to the channel of their match as well.
pub(crate) fn options() -> SubscribeOptions {
    SubscribeOptions::write()
}

impl Matches {
    /// Players have joined a room.
    pub(crate) fn join(&mut self, room: &str, players: impl IntoIterator<Item = String>, is_complete: bool) {
        let found = self.rooms.entry(room.to_owned()).or_default();
        found.members.extend(players);
        found.is_complete |= is_complete;
        if found.members.is_empty() && !found.is_complete {
            self.rooms.remove(room);
        } else if !found.members.is_empty() {
            // From now on it lasts until the last player is gone.
            self.end_wait(room);
        }
    }

    /// Players are in a match with a world of its own. Returns whether that is news.
    pub(crate) fn join_world(
        &mut self,
        room: &str,
        world: &str,
        players: impl IntoIterator<Item = String>,
    ) -> bool {
        let found = self.rooms.entry(room.to_owned()).or_default();
        found.members.extend(players);
        found.is_complete = true;
        found.world.replace(world.to_owned()).is_none()
    }

    /// Returns whether a match has a world of its own.
    pub(crate) fn has_world(&self, room: &str) -> bool {
        self.rooms.get(room).is_some_and(|found| found.world.is_some())
    }

    /// Returns whether a player is in a match with a world of its own.
    pub(crate) fn is_in_world(&self, player: &str) -> bool {
        self.rooms.values().any(|found| found.world.is_some() && found.members.contains(player))
    }

    /// The members here of a room.
    pub(crate) fn members(&self, room: &str) -> Vec<String> {
        let found = self.rooms.get(room).into_iter();
        found.flat_map(|found| &found.members).cloned().collect()
    }

    /// Returns whether a player is in a room, as far as is known here.
    pub(crate) fn is_member(&self, room: &str, player: &str) -> bool {
        self.rooms.get(room).is_some_and(|found| !found.is_closed && found.members.contains(player))
    }

    /// The rooms that the matcher has, as far as is known here, with their members here.
    pub(crate) fn joined(&self) -> impl Iterator<Item = (&String, &BTreeSet<String>)> {
        let joined = self.rooms.iter().filter(|(_, found)| !found.is_closed);
        joined.map(|(room, found)| (room, &found.members))
    }

    /// Players who are not here have left a match with a world of its own, and may come back from
    /// it.
    pub(crate) fn await_return(&mut self, players: Vec<String>, now: Instant) {
        self.away.extend(players.into_iter().map(|player| (now + RETURN, player)));
    }

    /// Players who may come back.
    pub(crate) fn away(&self) -> impl Iterator<Item = &str> {
        self.away.iter().map(|(_, player)| &**player)
    }

    /// Time when the next player should have come back.
    pub(crate) fn next_return(&self) -> Option<Instant> {
        self.away.front().map(|(until, _)| *until)
    }

    /// Takes the players who should have come back by now, except those who are in another match
    /// with a world of its own.
    pub(crate) fn take_away(&mut self, now: Instant) -> Vec<String> {
        let due = self.away.iter().take_while(|(until, _)| *until <= now).count();
        let due: Vec<String> = self.away.drain(..due).map(|(_, player)| player).collect();
        due.into_iter().filter(|player| !self.is_in_world(player)).collect()
    }

    /// The world of all channels has ended. Matches with worlds of their own go on.
    pub(crate) fn lose_channels(&mut self) {
        self.rooms.retain(|_, found| found.world.is_some());
        self.channels.clear();
        self.deadlines.clear();
    }

    /// A match of which the matcher wants to know where it is played; its players come later.
    pub(crate) fn await_players(&mut self, room: &str) {
        let found = self.rooms.entry(room.to_owned()).or_default();
        (found.is_complete, found.is_awaited) = (true, true);
    }

    /// Returns whether the matcher waits for the channel of a match.
    pub(crate) fn is_awaited(&self, room: &str) -> bool {
        self.rooms.get(room).is_some_and(|found| found.is_awaited)
    }

    /// The matcher knows where a match is played, and its players have heard of it.
    pub(crate) fn assigned(&mut self, room: &str, now: Instant) {
        if let Some(found) = self.rooms.get_mut(room).filter(|found| found.is_awaited) {
            let until = now + DESERTED;
            found.until = Some(until);
            self.deadlines.insert((until, room.to_owned()));
        }
    }

    /// Nobody else comes to a match that was awaited.
    pub(crate) fn end_wait(&mut self, room: &str) {
        let Some(found) = self.rooms.get_mut(room) else { return };
        found.is_awaited = false;
        if let Some(until) = found.until.take() {
            self.deadlines.remove(&(until, room.to_owned()));
        }
    }

    /// Time when the next match is given up to which nobody has come.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(until, _)| *until)
    }

    /// Gives up the matches to which nobody has come in time.
    pub(crate) fn end_waits(&mut self, now: Instant) {
        while let Some((_, room)) = self.deadlines.first().filter(|(until, _)| *until <= now) {
            let room = room.clone();
            self.end_wait(&room);
        }
    }

    /// Returns whether a match has no channel yet; the caller makes one then.
    pub(crate) fn wants_channel(&mut self, room: &str) -> bool {
        let Some(found) = self.rooms.get_mut(room) else { return false };
        let is_wanted = found.is_awaited || !found.members.is_empty();
        let wants =
            found.is_complete && is_wanted && found.world.is_none() && found.state == State::Gathering;
        if wants {
            found.state = State::Opening;
        }
        wants
    }

    /// A channel was made, or could not be.
    pub(crate) fn opened(&mut self, room: &str, channel: Option<ChannelId>) {
        let Some(found) = self.rooms.get_mut(room) else { return };
        match channel {
            Some(channel) => {
                found.state = State::Open(channel);
                self.channels.insert(channel, room.to_owned());
            }
            None => {
                tracing::warn!(room, "cannot create a channel for a match");
                self.rooms.remove(room);
            }
        }
    }

    /// The channel of a match, once it has one.
    pub(crate) fn channel(&self, room: &str) -> Option<ChannelId> {
        match self.rooms.get(room)?.state {
            State::Open(channel) => Some(channel),
            State::Gathering | State::Opening => None,
        }
    }

    /// Returns whether a channel is that of a match.
    pub(crate) fn is_one(&self, channel: ChannelId) -> bool {
        self.channels.contains_key(&channel)
    }

    /// Members that are not subscribed yet; the caller subscribes them.
    pub(crate) fn let_in(&mut self, room: &str) -> Vec<String> {
        let Some(found) = self.rooms.get_mut(room) else { return Vec::new() };
        let waiting: Vec<String> = found.members.difference(&found.inside).cloned().collect();
        found.inside.extend(waiting.iter().cloned());
        waiting
    }

    /// The open matches that a player is in.
    pub(crate) fn entered_by(&self, player: &str) -> Vec<(String, ChannelId)> {
        let entered = self.rooms.iter().filter(|(_, found)| found.inside.contains(player));
        let open = entered.filter_map(|(room, found)| match found.state {
            State::Open(channel) => Some((room.clone(), channel)),
            State::Gathering | State::Opening => None,
        });
        open.collect()
    }

    /// A player has left a room. The channel that it was in.
    pub(crate) fn leave(&mut self, room: &str, player: &str) -> Option<ChannelId> {
        let channel = self.channel(room);
        let found = self.rooms.get_mut(room)?;
        found.members.remove(player);
        channel.filter(|_| found.inside.remove(player))
    }

    /// A player is gone. The rooms that it was in and that still are. It stays in matches with a
    /// world of their own: there it may be.
    pub(crate) fn forget(&mut self, player: &str) -> Vec<String> {
        let mut rooms = Vec::new();
        for (room, found) in self.rooms.iter_mut().filter(|(_, found)| found.world.is_none()) {
            found.inside.remove(player);
            if found.members.remove(player) && !found.is_closed {
                rooms.push(room.clone());
            }
        }
        rooms
    }

    /// The matcher has removed a room; a match that has begun goes on until the last player is
    /// gone. One with a world of its own is over, and its world is returned.
    pub(crate) fn close_room(&mut self, room: &str) -> Option<String> {
        let found = self.rooms.get_mut(room)?;
        found.is_closed = true;
        let world = found.world.take();
        if !found.is_complete || world.is_some() {
            self.rooms.remove(room);
        }
        world
    }

    /// Forgets rooms without players. The channels that they leave behind.
    pub(crate) fn take_empty(&mut self) -> Vec<ChannelId> {
        // One whose channel is being made is looked at again when that is done.
        let is_empty =
            |found: &Match| found.members.is_empty() && !found.is_awaited && found.state != State::Opening;
        let empty = self.rooms.extract_if(.., |_, found| is_empty(found));
        let channels = empty.filter_map(|(_, found)| match found.state {
            State::Open(channel) => Some(channel),
            State::Gathering | State::Opening => None,
        });
        let channels: Vec<ChannelId> = channels.collect();
        for channel in &channels {
            self.channels.remove(channel);
        }
        channels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_room_becomes_a_match_when_it_is_full_and_lasts_until_it_is_empty() {
        let mut matches = Matches::default();
        matches.join("r", names(&["a"]), false);
        assert!(!matches.wants_channel("r"));
        matches.join("r", names(&["b"]), true);
        assert!(matches.wants_channel("r"));
        assert!(!matches.wants_channel("r"), "one is being made");
        matches.opened("r", Some(ChannelId(5)));
        assert_eq!((matches.let_in("r"), matches.let_in("r")), (names(&["a", "b"]), Vec::new()));
        matches.close_room("r");
        assert_eq!(matches.leave("r", "a"), Some(ChannelId(5)));
        assert!(matches.take_empty().is_empty() && matches.is_one(ChannelId(5)));
        assert!(matches.forget("b").is_empty(), "the matcher's room is gone already");
        assert_eq!(matches.take_empty(), [ChannelId(5)]);
        assert!(!matches.is_one(ChannelId(5)));
    }

    #[test]
    fn a_match_that_is_awaited_has_its_channel_before_its_players() {
        let mut matches = Matches::default();
        matches.await_players("r");
        assert!(matches.wants_channel("r") && matches.is_awaited("r"));
        matches.opened("r", Some(ChannelId(5)));
        assert!(matches.take_empty().is_empty(), "its players are on their way");
        matches.join("r", names(&["a"]), true);
        assert!(!matches.wants_channel("r"));
        assert_eq!(matches.let_in("r"), names(&["a"]));
        matches.leave("r", "a");
        assert_eq!(matches.take_empty(), [ChannelId(5)]);
        matches.await_players("q");
        matches.end_wait("q");
        assert!(matches.take_empty().is_empty() && matches.rooms.is_empty(), "nobody came");
    }

    #[test]
    fn a_match_to_which_nobody_comes_is_given_up_after_an_hour() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut matches = Matches::default();
        for (room, channel, assigned) in [("r", 5, 0), ("s", 6, 10), ("t", 7, 20)] {
            matches.await_players(room);
            assert!(matches.wants_channel(room));
            matches.opened(room, Some(ChannelId(channel)));
            matches.assigned(room, at(assigned));
        }
        matches.join("s", names(&["a"]), true);
        assert_eq!(matches.next_deadline(), Some(at(3_600)));
        matches.end_waits(at(3_599));
        assert!(matches.take_empty().is_empty());
        matches.end_waits(at(3_600));
        assert_eq!(matches.take_empty(), [ChannelId(5)]);
        assert_eq!(matches.next_deadline(), Some(at(3_620)), "one is played, one waits");
        matches.end_wait("t");
        assert_eq!((matches.take_empty(), matches.next_deadline()), (vec![ChannelId(7)], None));
        matches.assigned("gone", at(0));
        assert_eq!(matches.next_deadline(), None);
    }

    #[test]
    fn a_match_with_a_world_of_its_own_keeps_its_players_until_that_ends() {
        let mut matches = Matches::default();
        assert!(matches.join_world("r", "duel-1", names(&["a", "b"])));
        assert!(!matches.join_world("r", "duel-1", names(&["a"])), "known");
        matches.join("r", names(&["a"]), true);
        assert!(!matches.wants_channel("r"));
        assert!(matches.forget("a").is_empty() && matches.take_empty().is_empty());
        matches.lose_channels();
        assert_eq!(matches.leave("r", "b"), None);
        assert_eq!(matches.members("r"), names(&["a"]));
        assert!(matches.is_in_world("a") && !matches.is_in_world("b"));
        assert!(matches.is_member("r", "a") && !matches.is_member("r", "b"));
        matches.leave("r", "a");
        assert!(matches.take_empty().is_empty() && matches.rooms.is_empty());
        matches.join_world("q", "duel-2", names(&["a"]));
        assert_eq!((matches.close_room("q"), matches.close_room("q")), (Some("duel-2".to_owned()), None));
    }

    #[test]
    fn players_who_do_not_come_back_from_the_world_of_a_match_are_given_up_after_five_minutes() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut matches = Matches::default();
        matches.await_return(names(&["a", "b"]), at(0));
        matches.await_return(names(&["c"]), at(10));
        assert_eq!((matches.take_away(at(299)), matches.next_return()), (Vec::new(), Some(at(300))));
        matches.join_world("r", "duel-1", names(&["b"]));
        assert_eq!((matches.take_away(at(300)), matches.next_return()), (names(&["a"]), Some(at(310))));
        assert_eq!((matches.take_away(at(400)), matches.next_return()), (names(&["c"]), None));
    }

    #[test]
    fn who_leaves_while_the_channel_is_made_leaves_nothing_behind() {
        let mut matches = Matches::default();
        matches.join("r", names(&["a"]), true);
        assert!(matches.wants_channel("r"));
        assert_eq!(matches.forget("a"), ["r"]);
        assert!(matches.take_empty().is_empty());
        matches.opened("r", Some(ChannelId(5)));
        assert_eq!(matches.take_empty(), [ChannelId(5)]);
        matches.join("q", names(&["b"]), false);
        matches.close_room("q");
        assert!(matches.forget("b").is_empty() && matches.rooms.is_empty());
    }
}
