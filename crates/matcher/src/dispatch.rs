//! The table from a method's number to the operation that executes it.

use throng_wire::fields;
use throng_wire::matcher::{Method, Status};

use crate::config::Scope;
use crate::matcher::{Matcher, require};
use crate::problem::{Outcome, Problem};
use crate::turn::Turn;

/// Executes a request whose body it is given.
type Operation = fn(&mut Matcher, &mut Turn<'_>, &[u8]) -> Outcome;

/// Every operation, by method.
const OPERATIONS: &[(u16, Operation)] = &[
    (Method::PING, Matcher::ping),
    (Method::MY_RPC_TEST, Matcher::test_rpc),
    (Method::LIST_MINE, Matcher::list_mine),
    (Method::GET_ROLE, Matcher::get_role),
    (Method::CREATE_TEAM, Matcher::create_team),
    (Method::JOIN_TEAM, Matcher::join_team),
    (Method::LEAVE_TEAM, Matcher::leave_team),
    (Method::CHANGE_TEAM_LEADER, Matcher::change_team_leader),
    (Method::SET_TEAM_DATA, Matcher::set_team_data),
    (Method::BROADCAST_TEAM, Matcher::broadcast_team),
    (Method::GET_TEAM_INFO, Matcher::get_team_info),
    (Method::DELETE_TEAM, Matcher::delete_team),
    (Method::ROLE_JOIN_RANDOM_ROOM, Matcher::role_join_random_room),
    (Method::ROLE_CREATE_ROOM, Matcher::role_create_room),
    (Method::ROLE_JOIN_ROOM, Matcher::role_join_room),
    (Method::ROLE_LEAVE_ROOM, Matcher::role_leave_room),
    (Method::TEAM_JOIN_RANDOM_ROOM, Matcher::team_join_random_room),
    (Method::TEAM_CREATE_ROOM, Matcher::team_create_room),
    (Method::TEAM_JOIN_ROOM, Matcher::team_join_room),
    (Method::BROADCAST_ROOM, Matcher::broadcast_room),
    (Method::GET_ROOM_LIST, Matcher::get_room_list),
    (Method::LIST_ROOMS, Matcher::list_rooms),
    (Method::GET_ROOM_INFOS, Matcher::get_room_infos),
    (Method::SET_ROOM_DATA, Matcher::set_room_data),
    (Method::UPDATE_ROOM_ROLE_DATA, Matcher::update_room_role_data),
    (Method::DELETE_ROOM, Matcher::delete_room),
    (Method::GET_ROOM_INFO, Matcher::get_room_info),
    (Method::CLAIM_SEAT, Matcher::claim_seat),
    (Method::GET_ROOM_HISTORY, Matcher::get_room_history),
    (Method::SET_ROOM_FLAGS, Matcher::set_room_flags),
    (Method::CREATE_TICKET, Matcher::create_ticket),
    (Method::CANCEL_TICKET, Matcher::cancel_ticket),
    (Method::GET_TICKET, Matcher::get_ticket),
    (Method::LIST_TICKETS, Matcher::list_tickets),
    (Method::ACCEPT_MATCH, Matcher::accept_match),
    (Method::GET_QUEUE_STATS, Matcher::get_queue_stats),
    (Method::START_BACKFILL, Matcher::start_backfill),
    (Method::UPDATE_BACKFILL, Matcher::update_backfill),
    (Method::ACK_BACKFILL, Matcher::ack_backfill),
    (Method::STOP_BACKFILL, Matcher::stop_backfill),
    (Method::REPORT_RESULT, Matcher::report_result),
    (Method::GET_RATINGS, Matcher::get_ratings),
    (Method::ASSIGN_MATCH, Matcher::assign_match),
    (Method::EXPLAIN_TICKET, Matcher::explain_ticket),
    (Method::PUT_QUEUE, Matcher::put_queue_request),
    (Method::LIST_QUEUES, Matcher::list_queues),
    (Method::TRY_QUEUE, Matcher::try_queue),
    (Method::DRAIN, Matcher::drain),
];

/// Numbers of methods are below this.
const NUMBERS: usize = 128;

/// The same by number, so that a request costs one load.
static BY_NUMBER: [Option<Operation>; NUMBERS] = {
    let mut all: [Option<Operation>; NUMBERS] = [None; NUMBERS];
    let mut at = 0;
    while at < OPERATIONS.len() {
        let (number, operation) = OPERATIONS[at];
        assert!(all[number as usize].is_none(), "a method has one operation");
        all[number as usize] = Some(operation);
        at += 1;
    }
    all
};

impl Matcher {
    pub(crate) fn dispatch(&mut self, turn: &mut Turn<'_>, number: u16, body: &[u8]) -> Outcome {
        match BY_NUMBER.get(usize::from(number)).copied().flatten() {
            Some(operation) => operation(self, turn, body),
            None => Err(Problem::new(Status::UnknownMethod, "no such method")),
        }
    }

    fn ping(&mut self, _: &mut Turn<'_>, _: &[u8]) -> Outcome {
        Ok(())
    }

    fn test_rpc(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        for field in fields(body) {
            field?;
        }
        // The zero is written although proto3 would leave it out: callers see that a result came.
        turn.answer.extend_from_slice(&[0x08, 0]);
        Ok(())
    }

    fn drain(&mut self, turn: &mut Turn<'_>, _: &[u8]) -> Outcome {
        require(turn.caller, Scope::Admin)?;
        self.draining = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use throng_wire::matcher::METHODS;

    use super::*;

    #[test]
    fn every_method_of_the_catalogue_has_an_operation() {
        for method in METHODS {
            assert!(BY_NUMBER[usize::from(method.number)].is_some(), "{}", method.name);
        }
        assert_eq!(METHODS.len(), OPERATIONS.len());
    }
}
