//! Requests of players to the matcher, with their names put in.

use throng_client::MatchmakingRequest;
use throng_wire::WireType;
use throng_wire::matcher::{Method, Reader, Writer, method};

/// Place where a request says which player it is about.
#[derive(Clone, Copy)]
enum Role {
    /// Nowhere: everybody may ask this.
    Nowhere,
    /// In a field.
    Id(u32),
    /// In the `RoleInfo` of a field.
    Info(u32),
    /// In the `Player` of a field; the only one, or the first.
    Player(u32),
}

/// Methods for players, where their names stand, and fields that are not theirs to fill.
const ALLOWED: &[(u16, Role, &[u32])] = &[
    (Method::PING, Role::Nowhere, &[]),
    (Method::CREATE_TEAM, Role::Info(1), &[]),
    (Method::JOIN_TEAM, Role::Info(1), &[]),
    // Not for another: no kicks, and the player is not lost.
    (Method::LEAVE_TEAM, Role::Id(1), &[3, 4]),
    (Method::ROLE_JOIN_RANDOM_ROOM, Role::Info(1), &[]),
    (Method::ROLE_CREATE_ROOM, Role::Info(1), &[]),
    (Method::ROLE_JOIN_ROOM, Role::Info(1), &[]),
    (Method::ROLE_LEAVE_ROOM, Role::Id(1), &[3, 4]),
    (Method::GET_ROOM_LIST, Role::Nowhere, &[]),
    (Method::LIST_ROOMS, Role::Nowhere, &[]),
    // Without a priority. A team is queued only if the player leads it.
    (Method::CREATE_TICKET, Role::Player(2), &[5]),
    // A player cancels a whole ticket, and cannot report another player as lost.
    (Method::CANCEL_TICKET, Role::Id(3), &[2]),
    (Method::GET_TICKET, Role::Nowhere, &[]),
    (Method::ACCEPT_MATCH, Role::Id(3), &[]),
    (Method::GET_QUEUE_STATS, Role::Nowhere, &[]),
];

/// The request as the matcher is to see it, in the name of `player`. `None` for what players may
/// not ask, and for bodies that cannot be read.
pub(crate) fn in_the_name_of(player: &str, request: &MatchmakingRequest) -> Option<Writer> {
    let (number, role, dropped) = ALLOWED.iter().find(|(number, ..)| *number == request.method)?;
    let known = method(*number)?.request;
    let body = Reader::new(&request.body).ok()?;
    let own = match role {
        Role::Nowhere => 0,
        Role::Id(number) | Role::Info(number) | Role::Player(number) => *number,
    };
    let kept = |number: u32| known.field(number).is_some() && number != own && !dropped.contains(&number);
    let copy = copied(&body, kept);
    Some(match role {
        Role::Nowhere => copy,
        Role::Id(_) => copy.str(own, player),
        Role::Info(_) | Role::Player(_) => {
            let first = Reader::new(body.all(own).next().unwrap_or_default()).ok()?;
            // RoleID and SrvID are 1 and 2 in both; a TeamID is 3 in the one, attributes are in the
            // other.
            let is_info = matches!(role, Role::Info(_));
            let about = copied(&first, |number| number > 2 && !(is_info && number == 3));
            copy.nested(own, about.str(1, player))
        }
    })
}

fn copied(body: &Reader<'_>, kept: impl Fn(u32) -> bool) -> Writer {
    body.fields().filter(|field| kept(field.number)).fold(Writer::new(), |copy, field| {
        match field.wire_type {
            WireType::Len => copy.bytes(field.number, field.value),
            WireType::Varint => copy.u64(field.number, field.scalar),
            WireType::Fixed64 => copy.f64(field.number, f64::from_bits(field.scalar)),
            // The catalogue has none.
            _ => copy,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(method: u16, body: Writer) -> Option<Vec<u8>> {
        in_the_name_of("me", &MatchmakingRequest::new(method, body)).map(Writer::into_bytes)
    }

    #[test]
    fn players_ask_for_themselves_only() {
        let role = |id: &str, srv: &str, team: &str| {
            let role = Writer::new().str(1, id).str(2, srv).str(3, team);
            role.nested(4, Writer::new().str(1, "level").f64(2, 5.0))
        };
        let body =
            Writer::new().nested(1, role("other", "theirs", "team")).nested(2, Writer::new().str(1, "2v2"));
        let bytes = asked(Method::ROLE_JOIN_RANDOM_ROOM, body).unwrap();
        let body = Reader::new(&bytes).unwrap();
        let role = body.nested(1).unwrap();
        assert_eq!((role.str(1).unwrap(), role.str(2).unwrap(), role.str(3).unwrap()), ("me", "", ""));
        assert_eq!(f64::from_bits(role.nested(4).unwrap().u64(2)), 5.0);
        assert_eq!(body.nested(2).unwrap().str(1).unwrap(), "2v2");

        let kick = Writer::new().str(1, "other").str(2, "room").str(3, "actor").u64(4, 1);
        let kick = kick.str(100, "a key of another");
        let leave = asked(Method::ROLE_LEAVE_ROOM, kick).unwrap();
        assert_eq!(leave, Writer::new().str(2, "room").str(1, "me").into_bytes());

        let cancel = asked(Method::CANCEL_TICKET, Writer::new().str(1, "ticket").str(2, "other")).unwrap();
        assert_eq!(cancel, Writer::new().str(1, "ticket").str(3, "me").into_bytes());

        let players = [Writer::new().str(1, "a").str(5, "tank"), Writer::new().str(1, "b")];
        let ticket =
            players.into_iter().fold(Writer::new().str(1, "ranked5"), |body, player| body.nested(2, player));
        let bytes = asked(Method::CREATE_TICKET, ticket.str(3, "team").u64(5, 20)).unwrap();
        let me = Writer::new().str(5, "tank").str(1, "me");
        assert_eq!(bytes, Writer::new().str(1, "ranked5").str(3, "team").nested(2, me).into_bytes());
    }

    #[test]
    fn the_documentation_lists_the_methods_for_players() {
        let page = include_str!("../../../../docs/how-to/gather-players-in-rooms.md");
        let sentence = page.split("Players may call ").nth(1).and_then(|rest| rest.split('.').next());
        let listed: Vec<&str> = sentence.unwrap_or_default().split('`').skip(1).step_by(2).collect();
        let allowed: Vec<&str> =
            ALLOWED.iter().filter_map(|(number, ..)| Some(method(*number)?.name)).collect();
        assert_eq!(listed, allowed);
    }

    #[test]
    fn what_is_not_for_players_is_not_asked() {
        for method in [Method::DELETE_ROOM, Method::DRAIN, Method::SET_ROOM_DATA, Method::REPORT_RESULT, 999]
        {
            assert_eq!(asked(method, Writer::new()), None, "{method}");
        }
        let broken = MatchmakingRequest { method: Method::PING, body: bytes::Bytes::from_static(b"\xFF") };
        assert!(in_the_name_of("me", &broken).is_none());
    }
}
