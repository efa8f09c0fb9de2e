//! From a method's number to what does it.

use throng_wire::fields;
use throng_wire::matcher::{Method, Status};

use crate::config::{Caller, Scope};
use crate::matcher::{Matcher, require};
use crate::notices::Notices;
use crate::problem::{Outcome, Problem};

impl Matcher {
    pub(crate) fn dispatch(
        &mut self,
        caller: Caller<'_>,
        number: u16,
        body: &[u8],
        answer: &mut Vec<u8>,
        notices: &mut Notices,
    ) -> Outcome {
        match number {
            Method::PING => Ok(()),
            Method::MY_RPC_TEST => {
                for field in fields(body) {
                    field?;
                }
                // The zero is written although proto3 would leave it out: callers see that a result came.
                answer.extend_from_slice(&[0x08, 0]);
                Ok(())
            }
            Method::LIST_MINE => self.list_mine(caller, body, answer),
            Method::GET_ROLE => self.get_role(caller, body, answer),
            10..30 => self.dispatch_team(caller, number, body, answer, notices),
            30..60 => self.dispatch_room(caller, number, body, answer, notices),
            60..80 => self.dispatch_ticket(caller, number, body, answer, notices),
            Method::PUT_QUEUE => self.put_queue_request(caller, body, answer, notices),
            Method::LIST_QUEUES => self.list_queues(answer),
            Method::TRY_QUEUE => self.try_queue(caller, body, answer),
            Method::DRAIN => {
                require(caller, Scope::Admin)?;
                self.draining = true;
                Ok(())
            }
            _ => Err(Problem::new(Status::UnknownMethod, "no such method")),
        }
    }

    /// Numbers 10 to 29.
    fn dispatch_team(
        &mut self,
        caller: Caller<'_>,
        number: u16,
        body: &[u8],
        answer: &mut Vec<u8>,
        notices: &mut Notices,
    ) -> Outcome {
        match number {
            Method::CREATE_TEAM => self.create_team(caller, body, answer, notices),
            Method::JOIN_TEAM => self.join_team(caller, body, answer, notices),
            Method::LEAVE_TEAM => self.leave_team(caller, body, notices),
            Method::CHANGE_TEAM_LEADER => self.change_team_leader(caller, body, notices),
            Method::SET_TEAM_DATA => self.set_team_data(caller, body, notices),
            Method::BROADCAST_TEAM => self.broadcast_team(caller, body, notices),
            Method::GET_TEAM_INFO => self.get_team_info(body, answer),
            Method::DELETE_TEAM => self.delete_team(caller, body, notices),
            _ => Err(Problem::new(Status::UnknownMethod, "no such method")),
        }
    }

    /// Numbers 30 to 59.
    fn dispatch_room(
        &mut self,
        caller: Caller<'_>,
        number: u16,
        body: &[u8],
        answer: &mut Vec<u8>,
        notices: &mut Notices,
    ) -> Outcome {
        match number {
            Method::ROLE_JOIN_RANDOM_ROOM => self.role_join_random_room(caller, body, answer, notices),
            Method::ROLE_CREATE_ROOM => self.role_create_room(caller, body, answer, notices),
            Method::ROLE_JOIN_ROOM => self.role_join_room(caller, body, answer, notices),
            Method::ROLE_LEAVE_ROOM => self.role_leave_room(caller, body, answer, notices),
            Method::TEAM_JOIN_RANDOM_ROOM => self.team_join_random_room(caller, body, answer, notices),
            Method::TEAM_CREATE_ROOM => self.team_create_room(caller, body, answer, notices),
            Method::TEAM_JOIN_ROOM => self.team_join_room(caller, body, answer, notices),
            Method::BROADCAST_ROOM => self.broadcast_room(caller, body, notices),
            Method::GET_ROOM_LIST => self.get_room_list(body, answer),
            Method::LIST_ROOMS => self.list_rooms(body, answer),
            Method::GET_ROOM_INFOS => self.get_room_infos(body, answer),
            Method::SET_ROOM_DATA => self.set_room_data(caller, body, notices),
            Method::UPDATE_ROOM_ROLE_DATA => self.update_room_role_data(caller, body, notices),
            Method::DELETE_ROOM => self.delete_room(caller, body, answer, notices),
            Method::GET_ROOM_INFO => self.get_room_info(body, answer),
            Method::CLAIM_SEAT => self.claim_seat(caller, body, answer, notices),
            Method::GET_ROOM_HISTORY => self.get_room_history(body, answer),
            Method::SET_ROOM_FLAGS => self.set_room_flags(caller, body, answer, notices),
            _ => Err(Problem::new(Status::UnknownMethod, "no such method")),
        }
    }

    /// Numbers 60 to 79: tickets, matches, backfills, ratings.
    fn dispatch_ticket(
        &mut self,
        caller: Caller<'_>,
        number: u16,
        body: &[u8],
        answer: &mut Vec<u8>,
        notices: &mut Notices,
    ) -> Outcome {
        match number {
            Method::CREATE_TICKET => self.create_ticket(caller, body, answer, notices),
            Method::CANCEL_TICKET => self.cancel_ticket(caller, body, answer, notices),
            Method::GET_TICKET => self.get_ticket(body, answer),
            Method::LIST_TICKETS => self.list_tickets(caller, body, answer),
            Method::ACCEPT_MATCH => self.accept_match(caller, body, notices),
            Method::GET_QUEUE_STATS => self.get_queue_stats(body, answer),
            Method::START_BACKFILL => self.start_backfill(caller, body, answer),
            Method::UPDATE_BACKFILL => self.update_backfill(caller, body, answer, notices),
            Method::ACK_BACKFILL => self.ack_backfill(caller, body, answer),
            Method::STOP_BACKFILL => self.stop_backfill(caller, body, answer, notices),
            Method::REPORT_RESULT => self.report_result(caller, body, answer),
            Method::GET_RATINGS => self.get_ratings(body, answer),
            Method::ASSIGN_MATCH => self.assign_match(caller, body, notices),
            Method::EXPLAIN_TICKET => self.explain_ticket(body, answer),
            _ => Err(Problem::new(Status::UnknownMethod, "no such method")),
        }
    }
}
