//! Assignment of positions: a bipartite matching of a side's players and positions.

use super::facts::PlayerFacts;
use super::ruleset::Position;

/// A position for each player, by number, so that nobody gets one they do not want, none is taken
/// too often, and `open` further players could fill what is still needed. `None` when there is no
/// such assignment.
///
/// First as many needed places as possible are matched, then everybody else gets any place:
/// augmenting paths never give up a place that is taken, so the needed ones stay filled (Mendelsohn
/// and Dulmage).
pub(crate) fn assign(positions: &[Position], players: &[&PlayerFacts], open: u32) -> Option<Vec<u8>> {
    let mut places: Vec<u8> = Vec::new();
    for (number, position) in positions.iter().enumerate() {
        places.extend(std::iter::repeat_n(number as u8, position.per_side_min as usize));
    }
    let needed = places.len();
    let mut taken: Vec<Option<usize>> = vec![None; needed];
    for player in 0..players.len() {
        let mut seen = vec![false; places.len()];
        seat(players, &places, player, &mut taken, &mut seen);
    }
    for (number, position) in positions.iter().enumerate() {
        let more = (position.per_side_max - position.per_side_min) as usize;
        places.extend(std::iter::repeat_n(number as u8, more.min(players.len())));
    }
    taken.resize(places.len(), None);
    for player in 0..players.len() {
        if !taken.contains(&Some(player)) {
            let mut seen = vec![false; places.len()];
            if !seat(players, &places, player, &mut taken, &mut seen) {
                return None;
            }
        }
    }
    let unfilled = taken[..needed].iter().filter(|player| player.is_none()).count();
    if unfilled > open as usize {
        return None;
    }
    let mut result = vec![0; players.len()];
    for (place, player) in taken.iter().enumerate() {
        if let Some(player) = player {
            result[*player] = places[place];
        }
    }
    Some(result)
}

/// Finds a place for a player, moving others if need be.
fn seat(
    players: &[&PlayerFacts],
    places: &[u8],
    player: usize,
    taken: &mut [Option<usize>],
    seen: &mut [bool],
) -> bool {
    let wants = &players[player].wants;
    let wish = |place: u8| wants.is_empty() || wants.contains(&place);
    let mut order: Vec<usize> = (0..places.len()).filter(|place| wish(places[*place])).collect();
    // The most wanted first.
    order.sort_by_key(|place| wants.iter().position(|want| *want == places[*place]));
    for place in order {
        if seen[place] {
            continue;
        }
        seen[place] = true;
        let free = match taken[place] {
            None => true,
            Some(other) => seat(players, places, other, taken, seen),
        };
        if free {
            taken[place] = Some(player);
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(wants: &[&[u8]], open: u32, found: bool) {
        let positions = [("tank", 1, 2), ("healer", 1, 1), ("damage", 0, 3)]
            .map(|(name, min, max)| Position { name: name.to_owned(), per_side_min: min, per_side_max: max });
        let players: Vec<PlayerFacts> = wants
            .iter()
            .map(|wants| PlayerFacts { wants: wants.iter().copied().collect(), ..PlayerFacts::default() })
            .collect();
        let players: Vec<&PlayerFacts> = players.iter().collect();
        let assigned = assign(&positions, &players, open);
        assert_eq!(assigned.is_some(), found, "{wants:?} with {open} open: {assigned:?}");
        if let Some(assigned) = assigned {
            for (number, position) in positions.iter().enumerate() {
                let count = assigned.iter().filter(|at| usize::from(**at) == number).count() as u32;
                assert!(count <= position.per_side_max);
            }
        }
    }

    #[test]
    fn a_side_is_assigned_if_it_can_be() {
        check(&[&[0], &[1], &[2], &[2], &[2]], 0, true);
        check(&[&[0, 1], &[0], &[2], &[2], &[2]], 0, true);
        check(&[&[0], &[0], &[2], &[2], &[2]], 0, false);
        check(&[&[0], &[0], &[2], &[2]], 1, true);
        check(&[&[1], &[1]], 3, false);
        check(&[&[], &[], &[], &[], &[]], 0, true);
        check(&[&[2], &[2], &[2], &[2]], 2, false);
    }
}
