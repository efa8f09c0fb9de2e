//! Status codes: one table for responses, problem bodies and the reference page.

macro_rules! statuses {
    ($($code:literal $name:ident $text:literal $http:literal $doc:literal)*) => {
        /// Status of a request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u16)]
        pub enum Status {
            $(#[doc = $doc] $name = $code,)*
        }

        /// Every status: code, name, HTTP status, meaning.
        pub const STATUSES: &[(Status, &str, u16, &str)] = &[$((Status::$name, $text, $http, $doc),)*];

        impl Status {
            /// The status of a code; `None` for codes of later versions.
            #[must_use]
            pub fn from_code(code: u16) -> Option<Status> {
                Some(match code { $($code => Status::$name,)* _ => return None })
            }

            /// Its name on the wire of JSON.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Status::$name => $text,)* }
            }

            /// Its HTTP status.
            #[must_use]
            pub fn http(self) -> u16 {
                match self { $(Status::$name => $http,)* }
            }
        }
    };
}

statuses! {
    0 Ok "OK" 200 "success"
    1 Invalid "INVALID" 400 "malformed or out of limits"
    2 NotFound "NOT_FOUND" 404 "no such room, team, role, ticket or queue"
    3 Timeout "TIMEOUT" 504 "the deadline passed before execution; the request had no effect"
    4 Unauthenticated "UNAUTHENTICATED" 401 "no valid token"
    5 Forbidden "FORBIDDEN" 403 "the token's scope does not permit the request"
    6 TooLarge "TOO_LARGE" 413 "a value exceeds its limit"
    7 RateLimited "RATE_LIMITED" 429 "too many wrong passwords; retry later"
    8 Overloaded "OVERLOADED" 503 "a queue is full; the request had no effect; retry"
    9 UnknownMethod "UNKNOWN_METHOD" 404 "no such method"
    10 Internal "INTERNAL" 500 "a defect of the matcher; nothing else is affected"
    11 Draining "DRAINING" 503 "new rooms, teams and tickets are not accepted"
    12 Unavailable "UNAVAILABLE" 503 "this matcher does not serve the area now; the request had no effect, unless the message says that this is unknown; retry with the same idempotency key"
    20 TeamFull "TEAM_FULL" 409 "the team is full"
    21 WrongPassword "WRONG_PASSWORD" 403 "the team's password is different"
    22 AlreadyInTeam "ALREADY_IN_TEAM" 409 "the role is in another team"
    23 AlreadyLeader "ALREADY_LEADER" 409 "the role is already the leader"
    24 NotAMember "NOT_A_MEMBER" 409 "the role is not a member"
    25 TeamEmpty "TEAM_EMPTY" 409 "the team has no members"
    26 TeamTooLarge "TEAM_TOO_LARGE" 409 "the team exceeds the mode's capacity"
    30 RoomFull "ROOM_FULL" 409 "the room is full"
    31 RoomClosed "ROOM_CLOSED" 409 "the room is deleting or sealed"
    32 Refused "REFUSED" 409 "the mode's policy refuses"
    33 AlreadyInRoom "ALREADY_IN_ROOM" 409 "the role is in another room: detail.RoomID"
    34 UnknownMode "UNKNOWN_MODE" 404 "no such match mode"
    35 PolicyUnavailable "POLICY_UNAVAILABLE" 503 "a remote policy did not answer; the request had no effect"
    36 SeatExpired "SEAT_EXPIRED" 409 "the seat was not claimed in time"
    40 AlreadyInQueue "ALREADY_IN_QUEUE" 409 "the player has live tickets: detail.TicketIDs"
    41 TicketClosed "TICKET_CLOSED" 409 "the ticket is placing or ended"
    42 RuleInvalid "RULE_INVALID" 400 "a rule set or a ticket's attributes contradict the rules"
    43 NotProposed "NOT_PROPOSED" 409 "the match is not waiting for this answer"
    44 Cooldown "COOLDOWN" 409 "the player declined a match recently: detail.Until"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_lead_back_to_their_status() {
        for (status, name, http, _) in STATUSES {
            assert_eq!(Status::from_code(*status as u16), Some(*status));
            assert_eq!((status.name(), status.http()), (*name, *http));
        }
        assert_eq!(Status::from_code(999), None);
    }
}
