//! The tests as sequences of requests.

use throng_wire::matcher::{
    HEADER_BYTES, Header, Kind, Method, Reader, Status, write_bytes, write_f64, write_nested, write_u64,
};

use super::RunError;

/// A test.
#[derive(Debug)]
pub(crate) struct Test {
    pub(crate) name: &'static str,
    /// Requests of one transaction, setup aside.
    pub(crate) requests: u64,
    setup: &'static [Step],
    /// Steps by iteration modulo their number.
    cycle: &'static [&'static [Step]],
    /// Iteration 0 ends after the setup.
    setup_only: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Ping,
    Rpc,
    List,
    JoinRandom,
    CreateRoom(&'static str),
    /// Joins the remembered room as a role with this suffix.
    Join(&'static str),
    Leave(&'static str),
    Delete,
    BroadcastRoom,
    Info,
    SetRoomData,
    Float,
    Text,
    AddTag,
    DelTag,
    CreateTeam,
    JoinTeam(Who),
    LeaveTeam(Who),
    Leader(Who),
    SetTeamData,
    BroadcastTeam,
    TeamCreateRoom,
    TeamJoinRandom,
    TeamJoinRoom,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    /// Of this iteration.
    Own,
    /// id(w, n).
    Number(u64),
}

use Step::{
    AddTag, BroadcastRoom, BroadcastTeam, CreateRoom, CreateTeam, DelTag, Delete, Float, Info, Join,
    JoinRandom, JoinTeam, Leader, Leave, LeaveTeam, List, Ping, Rpc, SetRoomData, SetTeamData,
    TeamCreateRoom, TeamJoinRandom, TeamJoinRoom, Text,
};

const fn test(
    name: &'static str,
    requests: u64,
    setup: &'static [Step],
    cycle: &'static [&'static [Step]],
) -> Test {
    Test { name, requests, setup, cycle, setup_only: false }
}

/// Every test, in byte order of the names.
const ALL: &[Test] = &[
    test("BroadcastRoom", 1, &[CreateRoom("2v2"), Join("_join1"), Join("_join2")], &[&[BroadcastRoom]]),
    test(
        "BroadcastTeam",
        1,
        &[CreateTeam, JoinTeam(Who::Number(10)), JoinTeam(Who::Number(11))],
        &[&[BroadcastTeam]],
    ),
    test(
        "ChangeTeamLeader",
        1,
        &[CreateTeam, JoinTeam(Who::Number(10)), JoinTeam(Who::Number(11))],
        &[&[Leader(Who::Number(10))], &[Leader(Who::Number(11))]],
    ),
    test("CreateLeaveTeam", 2, &[], &[&[CreateTeam, LeaveTeam(Who::Own)]]),
    test("GetRoomInfo", 1, &[CreateRoom("2v2")], &[&[Info]]),
    test("GetRoomList", 1, &[], &[&[List]]),
    Test {
        name: "JoinLeaveTeam",
        requests: 2,
        setup: &[CreateTeam],
        cycle: &[&[JoinTeam(Who::Own), LeaveTeam(Who::Own)]],
        setup_only: true,
    },
    test("MyRPCTest", 1, &[], &[&[Rpc]]),
    test("Ping", 1, &[], &[&[Ping]]),
    test("RoleCreateDeleteRoom", 2, &[], &[&[CreateRoom("1v1"), Delete]]),
    test("RoleJoinLeaveRoom", 2, &[CreateRoom("2v2"), Join("_joined")], &[&[Join("_x"), Leave("_x")]]),
    test("RoleJoinRandomRoom", 1, &[], &[&[JoinRandom]]),
    test("RoleJoinRoom", 1, &[], &[&[CreateRoom("2v2")], &[Join("")], &[Join("")], &[Join("")]]),
    test("SetRoomData", 1, &[CreateRoom("2v2")], &[&[SetRoomData]]),
    test("SetRoomRoleData", 1, &[CreateRoom("2v2")], &[&[Float], &[Text], &[AddTag], &[DelTag]]),
    test(
        "SetTeamData",
        1,
        &[CreateTeam, JoinTeam(Who::Number(10)), JoinTeam(Who::Number(11))],
        &[&[SetTeamData]],
    ),
    test("TeamCreateDeleteRoom", 2, &[CreateTeam], &[&[TeamCreateRoom, Delete]]),
    test("TeamJoinRandomRoom", 2, &[CreateTeam], &[&[TeamJoinRandom, Delete]]),
    test("TeamJoinRoom", 3, &[CreateTeam], &[&[CreateRoom("2v2"), TeamJoinRoom, Delete]]),
];

/// Names of the tests, in byte order.
pub const TESTS: &[&str] = &{
    let mut names = [""; ALL.len()];
    let mut index = 0;
    while index < ALL.len() {
        names[index] = ALL[index].name;
        index += 1;
    }
    names
};

pub(crate) fn find(name: &str) -> Option<&'static Test> {
    ALL.iter().find(|test| test.name == name)
}

/// A closed loop.
#[derive(Debug)]
pub(crate) struct Worker {
    prefix: String,
    iteration: u64,
    /// Steps done of this iteration, setup included.
    step: usize,
    room: Vec<u8>,
    team: Vec<u8>,
    id: String,
    id_of: u64,
}

impl Worker {
    pub(crate) fn new(prefix: &str, number: usize) -> Worker {
        let prefix = format!("{prefix}_{number}_");
        let id = format!("{prefix}0");
        Worker { prefix, iteration: 0, step: 0, room: Vec::new(), team: Vec::new(), id, id_of: 0 }
    }

    fn current(&self, test: &Test) -> Step {
        let setup = if self.iteration == 0 { test.setup } else { &[] };
        if let Some(step) = setup.get(self.step) {
            return *step;
        }
        self.cycle(test)[self.step - setup.len()]
    }

    fn cycle(&self, test: &Test) -> &'static [Step] {
        test.cycle[(self.iteration % test.cycle.len() as u64) as usize]
    }

    pub(crate) fn step_name(&self, test: &Test) -> String {
        format!("{:?} of iteration {}", self.current(test), self.iteration)
    }

    /// True if the test tolerates this refusal: a room that is to be deleted may be gone.
    pub(crate) fn tolerates(&self, test: &Test, status: Status) -> bool {
        self.current(test) == Delete && status == Status::NotFound
    }

    /// Takes the answer of the current step. Returns whether the transaction is complete.
    pub(crate) fn answered(&mut self, test: &Test, status: Status, body: &[u8]) -> Result<bool, RunError> {
        let step = self.current(test);
        if status == Status::Ok {
            let keep = match step {
                CreateRoom(_) | TeamCreateRoom | TeamJoinRandom => Some(&mut self.room),
                CreateTeam => Some(&mut self.team),
                _ => None,
            };
            if let Some(keep) = keep {
                let bad = |error: throng_wire::WireError| RunError::BadFrame(error.to_string());
                let id = Reader::new(body).map_err(bad)?.nested(1).map_err(bad)?.bytes(1);
                keep.clear();
                keep.extend_from_slice(id);
            }
        }
        self.step += 1;
        let setup = if self.iteration == 0 { test.setup.len() } else { 0 };
        let len = if self.iteration == 0 && test.setup_only { setup } else { setup + self.cycle(test).len() };
        if self.step < len {
            return Ok(false);
        }
        self.step = 0;
        self.iteration += 1;
        Ok(true)
    }

    /// Appends the request of the current step.
    pub(crate) fn write_request(&mut self, test: &Test, id: u64, srv: &str, out: &mut Vec<u8>) {
        if self.id_of != self.iteration {
            self.id_of = self.iteration;
            self.id.truncate(self.prefix.len());
            let mut digits = itoa(self.iteration);
            self.id.extend(digits.by_ref());
        }
        let start = out.len();
        out.extend_from_slice(&[0; HEADER_BYTES]);
        let step = self.current(test);
        let method = self.write_body(step, srv, out);
        let header = Header { kind: Kind::Request, code: method, id, ..Header::default() };
        let len = out.len() - start - HEADER_BYTES;
        out[start..start + HEADER_BYTES].copy_from_slice(&header.bytes(len));
    }

    fn write_body(&self, step: Step, srv: &str, out: &mut Vec<u8>) -> u16 {
        let role = |out: &mut Vec<u8>, suffix: &str| {
            write_nested(out, 1, |out| {
                write_nested(out, 1, |out| {
                    out.extend_from_slice(self.id.as_bytes());
                    out.extend_from_slice(suffix.as_bytes());
                });
                write_bytes(out, 2, srv.as_bytes());
            });
        };
        let create =
            |out: &mut Vec<u8>, mode: &str| write_nested(out, 2, |out| write_bytes(out, 1, mode.as_bytes()));
        match step {
            Ping => Method::PING,
            Rpc => {
                write_bytes(out, 1, b"test");
                Method::MY_RPC_TEST
            }
            List => {
                write_bytes(out, 1, b"no_such_match_mode");
                Method::GET_ROOM_LIST
            }
            JoinRandom => {
                role(out, "");
                create(out, "2v2");
                Method::ROLE_JOIN_RANDOM_ROOM
            }
            CreateRoom(mode) => {
                role(out, "");
                create(out, mode);
                Method::ROLE_CREATE_ROOM
            }
            Join(suffix) => {
                role(out, suffix);
                write_bytes(out, 2, &self.room);
                Method::ROLE_JOIN_ROOM
            }
            Leave(suffix) => {
                write_nested(out, 1, |out| {
                    out.extend_from_slice(self.id.as_bytes());
                    out.extend_from_slice(suffix.as_bytes());
                });
                write_bytes(out, 2, &self.room);
                Method::ROLE_LEAVE_ROOM
            }
            Delete => {
                write_bytes(out, 1, &self.room);
                Method::DELETE_ROOM
            }
            BroadcastRoom => {
                write_bytes(out, 1, &self.room);
                write_bytes(out, 2, b"\"test msg\"");
                Method::BROADCAST_ROOM
            }
            Info => {
                write_bytes(out, 1, &self.room);
                Method::GET_ROOM_INFO
            }
            SetRoomData => {
                write_bytes(out, 1, &self.room);
                write_bytes(out, 2, b"testKey");
                write_bytes(out, 3, b"\"testData\"");
                Method::SET_ROOM_DATA
            }
            Float | Text | AddTag | DelTag => {
                write_nested(out, 1, |out| self.write_update(step, out));
                Method::UPDATE_ROOM_ROLE_DATA
            }
            CreateTeam => {
                role(out, "");
                // MaxRole is a signed number: 10,000 as zigzag.
                write_nested(out, 2, |out| write_u64(out, 3, 20_000));
                Method::CREATE_TEAM
            }
            JoinTeam(who) => {
                write_nested(out, 1, |out| {
                    write_nested(out, 1, |out| self.write_id(who, out));
                    write_bytes(out, 2, srv.as_bytes());
                });
                write_bytes(out, 2, &self.team);
                Method::JOIN_TEAM
            }
            LeaveTeam(who) => {
                write_nested(out, 1, |out| self.write_id(who, out));
                write_bytes(out, 2, &self.team);
                Method::LEAVE_TEAM
            }
            Leader(who) => {
                write_bytes(out, 1, &self.team);
                write_nested(out, 2, |out| self.write_id(who, out));
                Method::CHANGE_TEAM_LEADER
            }
            SetTeamData => {
                write_bytes(out, 1, &self.team);
                write_bytes(out, 2, b"testKey");
                write_bytes(out, 3, b"\"testData\"");
                Method::SET_TEAM_DATA
            }
            BroadcastTeam => {
                write_bytes(out, 1, &self.team);
                write_bytes(out, 2, b"\"testmsg\"");
                Method::BROADCAST_TEAM
            }
            TeamCreateRoom => {
                write_bytes(out, 1, &self.team);
                create(out, "2v2");
                Method::TEAM_CREATE_ROOM
            }
            TeamJoinRandom => {
                write_bytes(out, 1, &self.team);
                create(out, "2v2");
                Method::TEAM_JOIN_RANDOM_ROOM
            }
            TeamJoinRoom => {
                write_bytes(out, 1, &self.team);
                write_bytes(out, 2, &self.room);
                Method::TEAM_JOIN_ROOM
            }
        }
    }

    fn write_update(&self, step: Step, out: &mut Vec<u8>) {
        write_bytes(out, 1, &self.room);
        // The room's one member is its creator, of iteration 0.
        write_nested(out, 2, |out| self.write_id(Who::Number(0), out));
        match step {
            Float => write_nested(out, 3, |out| {
                write_bytes(out, 1, b"testFloatKey");
                write_f64(out, 2, 1.234);
            }),
            Text => write_nested(out, 4, |out| {
                write_bytes(out, 1, b"testStringKey");
                write_bytes(out, 2, b"test");
            }),
            AddTag => write_bytes(out, 5, b"testTag"),
            _ => write_bytes(out, 6, b"testTag"),
        }
    }

    fn write_id(&self, who: Who, out: &mut Vec<u8>) {
        match who {
            Who::Own => out.extend_from_slice(self.id.as_bytes()),
            Who::Number(number) => {
                out.extend_from_slice(self.prefix.as_bytes());
                out.extend(itoa(number).map(|digit| digit as u8));
            }
        }
    }
}

/// Decimal digits.
fn itoa(value: u64) -> impl Iterator<Item = char> {
    let mut digits = [0_u8; 20];
    let (mut at, mut rest) = (20, value);
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    digits.into_iter().skip(at).map(char::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_byte_order_and_have_published_figures() {
        assert!(TESTS.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(TESTS.len(), 19);
        for (name, published) in TESTS.iter().zip(super::super::PUBLISHED) {
            assert_eq!(*name, published.test);
        }
    }

    #[test]
    fn a_worker_counts_its_setup_into_the_first_transaction() {
        let test = find("JoinLeaveTeam").unwrap();
        let mut worker = Worker::new("p", 3);
        let mut out = Vec::new();
        worker.write_request(test, 0, "s", &mut out);
        assert!(worker.answered(test, Status::Internal, b"").unwrap(), "iteration 0 ends with the setup");
        assert!(!worker.answered(test, Status::Ok, b"").unwrap());
        assert!(worker.answered(test, Status::Ok, b"").unwrap());
        worker.write_request(test, 0, "s", &mut out);
        assert_eq!(worker.id, "p_3_2");
    }
}
