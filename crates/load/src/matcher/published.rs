//! Figures that the reference published: its own machine, its own tool, 15 s a test.

/// A published figure.
#[derive(Debug, Clone, Copy)]
pub struct Published {
    /// The test.
    pub test: &'static str,
    /// Workers of the best run.
    pub workers: usize,
    /// Requests per second: transactions times requests per transaction.
    pub rps: u64,
}

/// Every test with its published figure, in name order.
pub const PUBLISHED: &[Published] = &[
    Published { test: "BroadcastRoom", workers: 1_200, rps: 7_587 },
    Published { test: "BroadcastTeam", workers: 1_000, rps: 6_286 },
    Published { test: "ChangeTeamLeader", workers: 1_300, rps: 7_232 },
    Published { test: "CreateLeaveTeam", workers: 3_000, rps: 7_600 },
    Published { test: "GetRoomInfo", workers: 3_000, rps: 6_300 },
    Published { test: "GetRoomList", workers: 3_000, rps: 9_000 },
    Published { test: "JoinLeaveTeam", workers: 3_000, rps: 7_200 },
    Published { test: "MyRPCTest", workers: 3_000, rps: 10_000 },
    Published { test: "Ping", workers: 3_000, rps: 11_000 },
    Published { test: "RoleCreateDeleteRoom", workers: 3_000, rps: 6_400 },
    Published { test: "RoleJoinLeaveRoom", workers: 2_200, rps: 4_694 },
    Published { test: "RoleJoinRandomRoom", workers: 3_000, rps: 4_334 },
    Published { test: "RoleJoinRoom", workers: 2_000, rps: 4_552 },
    Published { test: "SetRoomData", workers: 2_000, rps: 4_500 },
    Published { test: "SetRoomRoleData", workers: 2_000, rps: 5_917 },
    Published { test: "SetTeamData", workers: 2_500, rps: 6_406 },
    Published { test: "TeamCreateDeleteRoom", workers: 2_500, rps: 5_332 },
    Published { test: "TeamJoinRandomRoom", workers: 2_000, rps: 2_744 },
    Published { test: "TeamJoinRoom", workers: 3_500, rps: 5_451 },
];
