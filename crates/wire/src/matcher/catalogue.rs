//! Contents of every request, response and event.

/// Number of the field that carries an idempotency key (16 bytes) in any request.
pub const REQUEST_KEY_FIELD: u32 = 100;

/// Type of a field, on both wires.
#[derive(Clone, Copy, Debug)]
pub enum Type {
    /// A string.
    Str,
    /// Any JSON value, as JSON text in `bytes`.
    Json,
    /// `true` or `false`.
    Bool,
    /// An unsigned number.
    U64,
    /// A signed number (zigzag).
    I64,
    /// A double.
    F64,
    /// Milliseconds since the Unix epoch; an RFC 3339 string in JSON.
    Time,
    /// A message.
    Msg(&'static Message),
    /// Repeated values.
    List(&'static Type),
    /// Repeated entries {1: key, 2: value}; an object in JSON.
    Map(&'static Type),
    /// Repeated messages; in JSON an object keyed by the named member of each.
    Keyed(&'static Message, &'static str),
    /// Repeated strings; in JSON an object with these keys and the values `{}`.
    Set,
}

/// A field of a message.
#[derive(Clone, Copy, Debug)]
pub struct FieldDef {
    /// Field number.
    pub number: u32,
    /// Name in JSON; in lower_snake_case on the protobuf side.
    pub name: &'static str,
    /// Type.
    pub ty: Type,
    /// True if an absent value differs from the zero value.
    pub optional: bool,
    /// Meaning of the value, for the reference page.
    pub doc: &'static str,
}

/// A message.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// Name.
    pub name: &'static str,
    /// Fields by number.
    pub fields: &'static [FieldDef],
}

impl Message {
    /// The field of a number.
    #[must_use]
    pub fn field(&self, number: u32) -> Option<&'static FieldDef> {
        self.fields.iter().find(|field| field.number == number)
    }

    /// The field of a JSON name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&'static FieldDef> {
        self.fields.iter().find(|field| field.name == name)
    }
}

/// Scope that a token needs to call a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Every caller.
    Any,
    /// Scope `server` for objects of roles on the caller's own server, `trusted` for all others.
    Own,
    /// Scope `trusted`.
    Trusted,
    /// Scope `admin`.
    Admin,
}

/// A method.
#[derive(Clone, Copy, Debug)]
pub struct Method {
    /// Number in a request frame.
    pub number: u16,
    /// Name in routes and subjects.
    pub name: &'static str,
    /// True if it may change state; such requests are journaled and may carry an idempotency key.
    pub mutates: bool,
    /// Scope that a caller needs.
    pub access: Access,
    /// Body of a request.
    pub request: &'static Message,
    /// Body of a response.
    pub response: &'static Message,
    /// Its effect, in one sentence.
    pub doc: &'static str,
}

/// A kind of notification.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// Field number within an entry.
    pub number: u32,
    /// Name in JSON.
    pub name: &'static str,
    /// Content.
    pub message: &'static Message,
}

macro_rules! message {
    ($name:ident { $($number:literal $field:ident $ty:expr, $doc:literal;)* } $({ $($onumber:literal $ofield:ident $oty:expr, $odoc:literal;)* })?) => {
        #[allow(non_upper_case_globals)]
        pub(crate) static $name: Message = Message { name: stringify!($name), fields: &[
            $(FieldDef { number: $number, name: stringify!($field), ty: $ty, optional: false, doc: $doc },)*
            $($(FieldDef { number: $onumber, name: stringify!($ofield), ty: $oty, optional: true, doc: $odoc },)*)?
        ] };
    };
}

use Type::{Bool, F64, I64, Json, Keyed, List, Map, Msg, Set, Str, Time, U64};

message!(Empty {});
message!(RoleInfo {
    1 RoleID Str, "identity, chosen by the caller";
    2 SrvID Str, "server that receives events; filled in by the client library";
    3 TeamID Str, "the team that the role joined with; empty without one";
    4 FloatData Map(&F64), "numbers for matching: level, score";
    5 StringData Map(&Str), "strings: name, picture, packed extras";
    6 Tags Set, "tags";
});
message!(TeamInfo {
    1 TeamID Str, "assigned by the matcher";
    2 HasPasswd Bool, "whether joining requires a password";
    3 MaxRole I64, "capacity, above 0";
    4 Data Map(&Json), "free-form values";
    5 Roles Keyed(&RoleInfo, "RoleID"), "members in the order of joining";
    6 LeaderID Str, "the leader; initially the creator";
    7 Rev U64, "revision, incremented by every change";
    8 Passwd Str, "password, in requests only; empty: none";
});
message!(Side {
    1 Name Str, "name in the rule set";
    2 RoleIDs List(&Str), "players";
});
message!(RoomInfo {
    1 RoomID Str, "assigned by the matcher";
    2 CreateTime Time, "time of creation";
    3 MatchMode Str, "its match mode";
    4 Roles Keyed(&RoleInfo, "RoleID"), "members in the order of joining";
    5 IsHidden Bool, "hidden from listings";
    6 IsFull Bool, "accepts no more players";
    7 IsDeleting Bool, "is being removed";
    8 Data Map(&Json), "free-form values";
    9 Rev U64, "revision, incremented by every change";
    10 Sides List(&Msg(&Side)), "sides of a match";
    11 Reserved Map(&Time), "roles with a reserved seat, and the expiry of each";
    12 Members U64, "number of members, also if the room is partial";
    13 IsPartial Bool, "Roles contains only the members that the event concerns, because the room exceeds the size of a snapshot";
    14 World Str, "class of the world that its match gets when it is full, if its mode has one";
});
message!(CreateInfo {
    1 MatchMode Str, "the mode";
    3 Data Map(&Json), "initial data";
} {
    2 IsHidden Bool, "hidden from listings; absent: as the mode says";
});
message!(RoleUpdate {
    1 RoomID Str, "the room";
    2 RoleID Str, "the role";
    3 FloatData Map(&F64), "numbers to set";
    4 StringData Map(&Str), "strings to set";
    5 AddTags List(&Str), "tags to add";
    6 DelTags List(&Str), "tags to remove, after the additions";
});
message!(MyRpcTestRequest { 1 Arg Str, "any string"; });
message!(MyRpcTestResponse { 1 Result U64, "0"; });
message!(CreateTeamRequest { 1 CreatorInfo Msg(&RoleInfo), "the creator, who becomes leader"; 2 TeamInfo Msg(&TeamInfo), "capacity, password, data"; });
message!(TeamResponse { 1 TeamInfo Msg(&TeamInfo), "the team"; });
message!(JoinTeamRequest { 1 RoleInfo Msg(&RoleInfo), "role that joins"; 2 TeamID Str, "the team"; 3 Password Str, "password of the team"; });
message!(LeaveTeamRequest { 1 MemberID Str, "role that leaves"; 2 TeamID Str, "the team"; 3 ActorID Str, "role that kicks the member; empty if the member leaves"; 4 Lost Bool, "the player is gone: the other members receive the reason `disconnected` instead of `left`; FORBIDDEN unless the role lives on the caller's server"; });
message!(ChangeTeamLeaderRequest { 1 TeamID Str, "the team"; 2 NewLeader Str, "new leader, a member"; });
message!(SetTeamDataRequest { 1 TeamID Str, "the team"; 2 Key Str, "the key"; 3 Data Json, "value; null deletes the key"; });
message!(BroadcastTeamRequest { 1 TeamID Str, "the team"; 2 Msg Json, "the message"; });
message!(TeamIdRequest { 1 TeamID Str, "the team"; });
message!(RoleJoinRandomRoomRequest { 1 RoleInfo Msg(&RoleInfo), "role that joins"; 2 CreateInfo Msg(&CreateInfo), "mode, and initial data of a new room"; 3 Reserve U64, "duration of a seat reservation in seconds; 0: join at once"; });
message!(RoleCreateRoomRequest { 1 CreatorInfo Msg(&RoleInfo), "the first member"; 2 CreateInfo Msg(&CreateInfo), "mode and initial data of the room"; });
message!(RoleJoinRoomRequest { 1 RoleInfo Msg(&RoleInfo), "role that joins"; 2 RoomID Str, "the room"; });
message!(RoleLeaveRoomRequest { 1 RoleID Str, "role that leaves"; 2 RoomID Str, "the room"; 3 ActorID Str, "role that kicks the other; empty if the role leaves"; 4 Lost Bool, "the player is gone: the other members receive the reason `disconnected` instead of `left`; FORBIDDEN unless the role lives on the caller's server"; });
message!(TeamJoinRandomRoomRequest { 1 TeamID Str, "the team"; 2 CreateInfo Msg(&CreateInfo), "mode, and initial data of a new room"; });
message!(TeamCreateRoomRequest { 1 CreatorTeamID Str, "the team"; 2 CreateInfo Msg(&CreateInfo), "mode and initial data of the room"; });
message!(TeamJoinRoomRequest { 1 TeamID Str, "the team"; 2 RoomID Str, "the room"; });
message!(JoinResponse { 1 RoomInfo Msg(&RoomInfo), "the room"; 2 Created Bool, "the room was created by this request"; 3 Already Bool, "the role was a member already"; });
message!(RoomResponse { 1 RoomInfo Msg(&RoomInfo), "the room"; });
message!(BroadcastRoomRequest { 1 RoomID Str, "the room"; 2 Msg Json, "the message"; });
message!(GetRoomListRequest { 1 MatchMode Str, "the mode"; });
message!(GetRoomListResponse { 1 RoomIDs List(&Str), "visible rooms, oldest first, at most 1,000"; });
message!(Filter { 1 field Str, "`Data.<key>`, `FreeSlots`, `Members` or `CreateTime`"; 2 op Str, "`=`, `!=`, `<`, `<=`, `>`, `>=` or `has`"; 3 value Json, "value to compare with; of `CreateTime`, a time like 2020-04-26T10:11:08.337Z or ms since the epoch"; });
message!(ListRoomsRequest { 1 MatchModes List(&Str), "the modes"; 2 Filters List(&Msg(&Filter)), "conditions, all of which must be satisfied"; 3 Sort Str, "field to sort by, texts by their first 64 bytes; a leading `-` sorts in descending order; of a mode with more than 10,000 rooms, each 10,000 are sorted"; 4 Limit U64, "rooms per mode and page, at most 100"; 5 Token Str, "`Next` of the previous response; empty at first"; });
message!(ModeRooms { 1 MatchMode Str, "the mode"; 2 Rooms List(&Msg(&RoomInfo)), "its rooms"; });
message!(ListRoomsResponse { 1 Rooms Keyed(&ModeRooms, "MatchMode"), "rooms by mode"; 2 Next Str, "token of the next page; empty: no more pages"; });
message!(GetRoomInfosRequest { 1 RoomIDs List(&Str), "the rooms, at most 1,000"; 2 Token Str, "`Next` of the previous response; empty at first"; });
message!(GetRoomInfosResponse { 1 RoomInfos Keyed(&RoomInfo, "RoomID"), "the rooms that exist"; 2 Next Str, "token of the next page; empty: no more pages"; });
message!(RoomIdRequest { 1 RoomID Str, "the room"; });
message!(RoomChange {
    1 At Time, "time";
    2 Rev U64, "the room's revision after the change";
    3 Kind Str, "joined, left, data, role_data, flags, seats_made, seat_claimed, seat_expired, assigned or deleting";
    4 RoleIDs List(&Str), "roles that the change concerns, at most 16";
    5 Key Str, "key of the data that was set";
    6 Reason Str, "of a departure: left, kicked or disconnected; of flags: their new values";
    7 Players U64, "number of roles that it concerns, if more than one";
});
message!(GetRoomHistoryResponse { 1 Changes List(&Msg(&RoomChange)), "changes, oldest first, at most 100, or fewer if names are long"; });
message!(SetRoomDataRequest { 1 RoomID Str, "the room"; 2 Key Str, "the key"; 3 Data Json, "value; null deletes the key"; });
message!(UpdateRoomRoleDataRequest { 1 Update Msg(&RoleUpdate), "the change"; });
message!(DeleteRoomResponse { 1 Deleted Bool, "whether the room existed"; });
message!(SetRoomFlagsRequest { 1 RoomID Str, "the room"; } { 2 IsHidden Bool, "hidden from listings"; 3 IsFull Bool, "accepts no more players"; });
message!(ClaimSeatRequest { 1 RoomID Str, "the room"; 2 RoleID Str, "role with the seat"; 3 RoleInfo Msg(&RoleInfo), "data of the role to store"; });
message!(ListMineRequest { 1 SrvID Str, "the server; empty: the caller's own"; 2 Token Str, "`Next` of the previous response; empty at first"; });
message!(ListMineResponse { 1 RoomInfos Keyed(&RoomInfo, "RoomID"), "rooms with a member or a reserved seat of its roles"; 2 TeamInfos Keyed(&TeamInfo, "TeamID"), "teams of its roles"; 3 Tickets List(&Msg(&Ticket)), "live tickets of its roles, and matched ones with unclaimed seats"; 4 Matches List(&Msg(&MatchInfo)), "matches that it assigns or has assigned, as the allocator of their queue or mode"; 5 Next Str, "token of the next page; empty: no more pages"; });
message!(MatchInfo {
    1 MatchID Str, "the match; empty for a room of a mode";
    2 RoomID Str, "its room";
    3 Queue Str, "its queue; empty for a room of a mode";
    4 Status Str, "assigning (waits for a server) or assigned";
    5 Region Str, "best region";
    6 Connection Str, "address to connect to";
    7 Deadline U64, "deadline of the assignment, ms since the epoch";
    8 Players List(&Msg(&Player)), "players as in their tickets, while the match waits";
    9 World Str, "class of the world that it gets, if it gets one";
});
message!(GetRoleRequest { 1 RoleID Str, "the role"; 2 Token Str, "`Next` of the previous response; empty at first"; });

message!(Player {
    1 RoleID Str, "the role";
    2 SrvID Str, "server of the role";
    3 Attr Map(&Json), "attributes: number, string or list of strings";
    4 Latency Map(&F64), "latency by region, in ms";
    5 Roles List(&Str), "wanted positions, preferred first";
    6 Avoid List(&Str), "roles to avoid";
    7 Lost Bool, "the player was lost while its match was placed: without a server for the match, the ticket continues without this player; ignored in requests";
});
message!(Ticket {
    1 TicketID Str, "id, time-ordered and unguessable";
    2 Queue Str, "the queue";
    3 Players List(&Msg(&Player)), "the party";
    4 TeamID Str, "team of the party, if it queued as one";
    5 Created U64, "time, ms since the epoch";
    6 Expires U64, "time, ms since the epoch";
    7 Priority I64, "-10 to 10";
    8 Status Str, "searching, proposed, placing, matched, cancelled, timed_out or failed";
    9 Rev U64, "revision, incremented by every change";
    10 Reason Str, "reason why it ended or returned to the search";
    11 MatchID Str, "its proposal or match";
    12 RoomID Str, "the room of the match";
    13 WaitedMs U64, "time in the queue, ms";
    16 PoolSize U64, "tickets in the queue";
    17 Position U64, "tickets ahead in fairness order, in the same partition";
    18 Region Str, "best region of the match";
} {
    14 EtaP50Ms U64, "p50 of the waiting time of similar tickets";
    15 EtaP90Ms U64, "p90 of the waiting time";
});
message!(CreateTicketRequest { 1 Queue Str, "the queue"; 2 Players List(&Msg(&Player)), "the party"; 3 TeamID Str, "a team, whose members form the party; `Players`, if given, names the player who asks, which must be its leader"; 4 ExpiresMs U64, "timeout in ms, if shorter than the queue's"; 5 Priority I64, "-10 to 10; trusted callers only"; });
message!(TicketResponse { 1 Ticket Msg(&Ticket), "the ticket"; });
message!(TicketIdRequest { 1 TicketID Str, "the ticket"; });
message!(CancelTicketRequest { 1 TicketID Str, "the ticket"; 2 LostRoleID Str, "player of the ticket who is gone; the ticket is not cancelled then, but treated as `on_member_lost` says, and an open proposal is not declined; FORBIDDEN unless the role lives on the caller's server"; 3 RoleID Str, "player who asks, if one does: must be in the ticket"; });
message!(GetRoleResponse { 1 RoleID Str, "the role"; 2 SrvID Str, "its server"; 3 RoomInfos Keyed(&RoomInfo, "RoomID"), "rooms with it as a member (also those being removed), or with a seat reserved for it"; 5 Tickets List(&Msg(&Ticket)), "its live tickets, and matched ones with unclaimed seats"; 6 Next Str, "token of the next page; empty: no more pages"; } { 4 TeamInfo Msg(&TeamInfo), "its team"; });
message!(ListTicketsRequest { 1 RoleID Str, "tickets of this player"; 2 Queue Str, "or tickets of this queue"; 3 Token Str, "`Next` of the previous response; empty at first"; });
message!(ListTicketsResponse { 1 Tickets List(&Msg(&Ticket)), "the tickets"; 2 Next Str, "token of the next page; empty: no more pages"; });
message!(AcceptMatchRequest { 1 MatchID Str, "the proposal"; 2 TicketID Str, "the ticket"; 3 RoleID Str, "role that answers"; 4 Accept Bool, "true accepts, false declines"; });
message!(AssignMatchRequest { 1 RoomID Str, "the match"; 2 Connection Str, "address to connect to"; 3 Data Map(&Json), "data for the room"; });
message!(StartBackfillRequest { 1 RoomID Str, "the room"; 2 Queue Str, "the queue"; 3 Open Map(&U64), "free seats by side"; 4 Attr Map(&Json), "assumed attributes of the present members"; });
message!(StartBackfillResponse { 1 BackfillID Str, "the backfill"; 2 Rev U64, "its revision"; });
message!(UpdateBackfillRequest { 1 BackfillID Str, "the backfill"; 2 Rev U64, "revision that the caller last saw"; 3 Open Map(&U64), "free seats by side"; 4 Attr Map(&Json), "attributes"; });
message!(RevResponse { 1 Rev U64, "the revision"; });
message!(BackfillIdRequest { 1 BackfillID Str, "the backfill"; });
message!(BackfillState { 1 Rev U64, "the revision"; 2 Open Map(&U64), "free seats by side"; 3 Seats List(&Str), "roles with a seat"; });
message!(BackfillResponse { 1 State Msg(&BackfillState), "its state"; });
message!(QueueRequest { 1 Queue Str, "the queue"; });
message!(QueueBucket { 1 Players U64, "party size"; 2 From F64, "lower bound of the main number"; 3 Tickets U64, "tickets searching"; });
message!(QueueStats {
    1 Queue Str, "the queue";
    2 PoolSize U64, "tickets searching";
    3 MatchesPerMinute F64, "matches per minute over the last 5 minutes";
    4 Matches U64, "matches since the start";
    5 TimedOut U64, "tickets that timed out";
    6 Cancelled U64, "tickets cancelled";
    7 Declined U64, "proposals declined";
    11 QualityP10 F64, "p10 of the quality of matches";
    12 QualityP50 F64, "p50 of the quality of matches";
    13 Partitions U64, "partitions with tickets";
    14 Scans U64, "neighbours examined since the start";
    15 Buckets List(&Msg(&QueueBucket)), "tickets searching, by party size and value of the main number";
    16 Expansions List(&U64), "matches, by the expansion level that they needed";
} {
    8 WaitP50Ms U64, "p50 of the waiting time";
    9 WaitP90Ms U64, "p90 of the waiting time";
    10 WaitP99Ms U64, "p99 of the waiting time";
    17 TickP50Us U64, "p50 of the duration of searches since the start of the process";
    18 TickP99Us U64, "p99 of the duration of searches since the start of the process";
});
message!(ResultSide { 1 RoleIDs List(&Str), "players"; 2 Rank U64, "rank from 1, which is best; equal ranks are a tie"; });
message!(ReportResultRequest { 1 MatchID Str, "the match"; 2 RoomID Str, "or the room"; 3 Sides List(&Msg(&ResultSide)), "the sides with their ranks; of a match, only players who were in it"; 4 Weights Map(&F64), "share of the match played by role, above 0, at most 1"; 5 Amend Bool, "replaces an earlier report"; 6 Pool Str, "rating pool, if the room has no queue; a room can be rated once in each pool"; });
message!(Rating { 1 RoleID Str, "the role"; 2 Shown F64, "rating as shown to players"; 3 Games U64, "number of rated games"; } { 4 Mu F64, "Weng-Lin mean"; 5 Sigma F64, "Weng-Lin deviation"; 6 Rating F64, "Glicko-2"; 7 Deviation F64, "Glicko-2"; 8 Volatility F64, "Glicko-2"; });
message!(RatingsResponse { 1 Ratings Keyed(&Rating, "RoleID"), "by player"; });
message!(GetRatingsRequest { 1 Pool Str, "the rating pool"; 2 RoleIDs List(&Str), "the players, at most 1,000"; });
message!(PutQueueRequest { 1 RuleSet Json, "the rule set"; });
message!(TryQueueRequest { 1 RuleSet Json, "the draft"; 2 Seconds U64, "simulated time in seconds, default 60; at most the longer timeout of the two rule sets, and at most an hour"; });
message!(TrialReason { 1 Why Str, "reason why tickets can never match"; 2 Tickets U64, "number of tickets"; });
message!(TrialFigures {
    1 Matches U64, "matches made";
    2 Tickets U64, "tickets matched";
    3 Players U64, "players matched";
    4 Left U64, "tickets still searching at the end";
    5 TimedOut U64, "tickets that timed out";
    6 Failed U64, "tickets that can never match under these rules";
    7 Reasons List(&Msg(&TrialReason)), "reasons, most frequent first, at most 10";
    8 Expansions List(&U64), "matches by the expansion step they needed";
    9 Cut Bool, "the trial exhausted its budget and ended early";
    10 ReachedMs U64, "simulated time, ms";
} {
    11 WaitP50Ms U64, "p50 of the waiting time of matched tickets since their creation";
    12 WaitP90Ms U64, "p90 of the waiting time";
    13 QualityP10 F64, "p10 of the quality of matches";
    14 QualityP50 F64, "p50 of the quality of matches";
    15 SpreadP50 F64, "p50 of the difference in the main number within a match";
    16 SpreadMax F64, "maximum of the same";
});
message!(TryQueueResponse {
    1 Queue Str, "name of the queue";
    2 PoolSize U64, "tickets searching";
    3 Copied U64, "copied tickets, at most 20,000, in the order of fairness";
    4 Seconds U64, "simulated time in seconds";
    5 Draft Msg(&TrialFigures), "result under the draft";
} {
    6 Live Msg(&TrialFigures), "result under the active rules; absent if the queue does not exist";
});
message!(QueueInfo { 1 Queue Str, "name"; 2 Version Str, "version of the rule set"; 3 RuleSet Json, "the rule set"; 4 PoolSize U64, "tickets searching"; });
message!(QueuesResponse { 1 Queues Keyed(&QueueInfo, "Queue"), "queues by name"; });
message!(ListQueuesRequest { 1 Token Str, "`Next` of the previous response; empty at first"; });
message!(ListQueuesResponse { 1 Queues Keyed(&QueueInfo, "Queue"), "queues by name"; 2 Next Str, "token of the next page; empty: no more pages"; });
message!(FailedRule { 1 Rule Str, "name of the rule, or another obstacle"; 2 Why Str, "the conflicting values"; });
message!(PolicyQuestion {
    1 Point Str, "OnCreate, OnAddingRoles, OnAddedRoles, OnDeletingRole or OnDestroy";
    2 MatchMode Str, "the mode";
    3 RoomInfo Msg(&RoomInfo), "the room, including the new roles at OnAddedRoles; without RoomID before it is created";
    4 Roles List(&Msg(&RoleInfo)), "roles that join or leave";
});
message!(PolicyVerdict {
    1 Refuse Bool, "vetoes, at OnCreate and OnAddingRoles";
    2 Reason Str, "reason, for the caller";
    3 IsDeleting Bool, "requests the removal of the room";
    4 Data Map(&Json), "values of the room to set; null removes";
} {
    5 IsHidden Bool, "hides or shows the room";
    6 IsFull Bool, "closes or opens the room";
});
message!(Candidate { 1 TicketID Str, "the other ticket"; 2 Players U64, "its party's size"; 3 Distance F64, "difference in the main number"; 4 Fails List(&Msg(&FailedRule)), "rules that prevent the match; empty: none"; 5 WaitedMs U64, "time in the queue, ms"; });
message!(ExplainTicketResponse {
    1 Ticket Msg(&Ticket), "the ticket";
    2 Summary Str, "the reason, in one sentence";
    3 Level U64, "expansion steps that its waiting time has reached";
    4 Candidates List(&Msg(&Candidate)), "nearest tickets first, at most 32";
    5 Fits U64, "players among them who can match with this ticket";
    6 Needs U64, "minimum number of players of a match, including this ticket's";
    7 Fails List(&Msg(&FailedRule)), "rules without which a match is found; if none is found without any rule, sides that lack players";
});

message!(JoinTeamEvent { 1 RoleInfo Msg(&RoleInfo), "role that joined"; 20 TeamID Str, "the team"; 21 Rev U64, "its revision"; });
message!(LeaveTeamEvent { 1 RoleID Str, "role that left"; 20 TeamID Str, "the team"; 21 Rev U64, "its revision"; 22 Reason Str, "left, kicked, disconnected or deleted"; });
message!(ChangeTeamLeaderEvent { 1 NewLeaderID Str, "the leader"; 20 TeamID Str, "the team"; 21 Rev U64, "its revision"; });
message!(SetTeamDataEvent { 20 TeamID Str, "the team"; 2 Key Str, "the key"; 3 Data Json, "the value"; 21 Rev U64, "its revision"; });
message!(BroadcastTeamEvent { 1 Msg Json, "the message"; 20 TeamID Str, "the team"; 21 Rev U64, "its revision"; });
message!(RolesJoinRoomEvent { 1 RoomInfo Msg(&RoomInfo), "the room"; 2 JoinedRoleIDs List(&Str), "roles that joined"; 20 RoomID Str, "the room"; 21 Rev U64, "its revision"; });
message!(RoleLeaveRoomEvent { 1 RoomInfo Msg(&RoomInfo), "the room before the change"; 2 LeavingRoleID Str, "role that left"; 20 RoomID Str, "the room"; 21 Rev U64, "its revision"; 22 Reason Str, "left, kicked, disconnected or room_deleted"; });
message!(BroadcastRoomEvent { 1 Msg Json, "the message"; 20 RoomID Str, "the room"; 21 Rev U64, "its revision"; });
message!(SetRoomDataEvent { 2 Key Str, "the key"; 3 Data Json, "the value"; 20 RoomID Str, "the room"; 21 Rev U64, "its revision"; });
message!(UpdateRoomRoleDataEvent { 1 Update Msg(&RoleUpdate), "the change"; 20 RoomID Str, "the room"; 21 Rev U64, "its revision"; });
message!(RoomFlagsEvent { 1 IsHidden Bool, "hidden from listings"; 2 IsFull Bool, "accepts no more players"; 20 RoomID Str, "the room"; 21 Rev U64, "its revision"; });
message!(TicketUpdateEvent { 1 Ticket Msg(&Ticket), "the ticket"; });
message!(MatchProposedEvent { 1 MatchID Str, "the proposal"; 2 Deadline U64, "time, ms since the epoch"; 3 Players U64, "number of players"; 4 TicketIDs List(&Str), "tickets of the notified roles"; 5 RoleIDs List(&Str), "all players, if the queue reveals them"; });
message!(Shared { 1 Rule Str, "name of the rule, or its key"; 2 Entries List(&Str), "entries that all players' lists contain"; });
message!(MatchReadyEvent { 1 MatchID Str, "the match"; 20 RoomID Str, "its room"; 2 Positions Map(&Str), "position by role, if the queue has positions"; 3 Side Str, "side of the notified roles"; 4 Connection Str, "address to connect to"; 5 Region Str, "best region"; 6 SeatDeadline U64, "time, ms since the epoch"; 7 Queue Str, "the queue"; 8 Shared Keyed(&Shared, "Rule"), "values that all players have in common, by `overlap` rule"; 9 Players List(&Msg(&Player)), "to the allocator: the players with their attributes"; 10 Sides List(&Msg(&Side)), "to the allocator: the players of each side"; 11 Data Map(&Json), "of a match with a world of its own: `World`, `Addresses`, and to players of a gateway their `Ticket`"; 12 World Str, "to the allocator: class of the world to open for the match; without `MatchID`, for a room of a mode"; });
message!(MatchCancelledEvent { 1 MatchID Str, "the match"; 2 Reason Str, "declined, no_answer, disconnected, matched_elsewhere, players_not_free, no_server, refused, policy_unavailable, rules_changed or restarted; of a match for a backfill also no_places, room_closed, stopped or no_ack"; 20 RoomID Str, "its room, if it had one"; });
message!(BackfillUpdateEvent { 1 BackfillID Str, "the backfill"; 2 Reason Str, "matched, no_ack, stopped or room_closed"; 3 RoleIDs List(&Str), "roles with new seats"; 20 RoomID Str, "the room"; 21 Rev U64, "revision of the backfill"; });
message!(SeatExpiredEvent { 1 RoleID Str, "role that had the seat"; 20 RoomID Str, "the room"; 21 Rev U64, "its revision"; 22 Reason Str, "left, kicked or joined (another exclusive room); empty when its time was over"; });

macro_rules! methods {
    ($($number:literal $constant:ident $name:literal $kind:ident $access:ident $request:ident $response:ident $doc:literal)*) => {
        impl Method {
            $(#[doc = $doc] pub const $constant: u16 = $number;)*
        }
        /// Every method, by number.
        pub static METHODS: &[Method] = &[$(Method {
            number: $number, name: $name, mutates: methods!(@ $kind), access: methods!(@ $access), request: &$request, response: &$response, doc: $doc,
        },)*];
    };
    (@ read) => { false };
    (@ write) => { true };
    (@ any) => { Access::Any };
    (@ own) => { Access::Own };
    (@ trusted) => { Access::Trusted };
    (@ admin) => { Access::Admin };
}

methods! {
    1 PING "Ping" read any Empty Empty "Has an empty request and response."
    2 MY_RPC_TEST "MyRPCTest" read any MyRpcTestRequest MyRpcTestResponse "Takes a string and returns zero."
    3 LIST_MINE "ListMine" read own ListMineRequest ListMineResponse "Returns the rooms, teams and tickets of a server's roles; call it after a gap in notifications."
    4 GET_ROLE "GetRole" read own GetRoleRequest GetRoleResponse "Returns the rooms, team and tickets of one role. Unless the caller is trusted, the role must be on the caller's server."
    10 CREATE_TEAM "CreateTeam" write own CreateTeamRequest TeamResponse "Creates a team; the creator becomes its leader."
    11 JOIN_TEAM "JoinTeam" write own JoinTeamRequest TeamResponse "Joins a team."
    12 LEAVE_TEAM "LeaveTeam" write own LeaveTeamRequest Empty "Leaves a team, or kicks a member from it."
    13 CHANGE_TEAM_LEADER "ChangeTeamLeader" write own ChangeTeamLeaderRequest Empty "Makes another member the leader."
    14 SET_TEAM_DATA "SetTeamData" write own SetTeamDataRequest Empty "Sets one value of a team."
    15 BROADCAST_TEAM "BroadcastTeam" write own BroadcastTeamRequest Empty "Sends a message to all members."
    16 GET_TEAM_INFO "GetTeamInfo" read any TeamIdRequest TeamResponse "Returns a team."
    17 DELETE_TEAM "DeleteTeam" write own TeamIdRequest Empty "Dissolves a team; every member leaves."
    30 ROLE_JOIN_RANDOM_ROOM "RoleJoinRandomRoom" write own RoleJoinRandomRoomRequest JoinResponse "Joins an open room of a mode, or creates one."
    31 ROLE_CREATE_ROOM "RoleCreateRoom" write own RoleCreateRoomRequest RoomResponse "Creates a room with its first member."
    32 ROLE_JOIN_ROOM "RoleJoinRoom" write own RoleJoinRoomRequest JoinResponse "Joins a room; takes a reserved seat."
    33 ROLE_LEAVE_ROOM "RoleLeaveRoom" write own RoleLeaveRoomRequest RoomResponse "Leaves a room or gives up a seat in it, or kicks the role of either."
    34 TEAM_JOIN_RANDOM_ROOM "TeamJoinRandomRoom" write own TeamJoinRandomRoomRequest JoinResponse "Moves all members of a team into an open room, or into a new one."
    35 TEAM_CREATE_ROOM "TeamCreateRoom" write own TeamCreateRoomRequest RoomResponse "Creates a room with the members of a team."
    36 TEAM_JOIN_ROOM "TeamJoinRoom" write own TeamJoinRoomRequest JoinResponse "Moves all members of a team into a room."
    37 BROADCAST_ROOM "BroadcastRoom" write own BroadcastRoomRequest Empty "Sends a message to all members."
    38 GET_ROOM_LIST "GetRoomList" read any GetRoomListRequest GetRoomListResponse "Returns the ids of the visible rooms of a mode."
    39 LIST_ROOMS "ListRooms" read any ListRoomsRequest ListRoomsResponse "Returns the visible rooms of modes, filtered and sorted, in pages."
    40 GET_ROOM_INFOS "GetRoomInfos" read any GetRoomInfosRequest GetRoomInfosResponse "Returns rooms by id, including hidden ones."
    41 SET_ROOM_DATA "SetRoomData" write own SetRoomDataRequest Empty "Sets one value of a room."
    42 UPDATE_ROOM_ROLE_DATA "UpdateRoomRoleData" write own UpdateRoomRoleDataRequest Empty "Changes a member's data."
    43 DELETE_ROOM "DeleteRoom" write own RoomIdRequest DeleteRoomResponse "Removes a room; succeeds if it is already removed."
    44 GET_ROOM_INFO "GetRoomInfo" read any RoomIdRequest RoomResponse "Returns a room by id."
    45 CLAIM_SEAT "ClaimSeat" write own ClaimSeatRequest RoomResponse "Turns a reserved seat into membership. With `RoleInfo`, the role lives on the calling server from then on."
    46 SET_ROOM_FLAGS "SetRoomFlags" write own SetRoomFlagsRequest RoomResponse "Sets the flags of a room: hidden or listed, full or open."
    47 GET_ROOM_HISTORY "GetRoomHistory" read any RoomIdRequest GetRoomHistoryResponse "Returns the latest changes of a room."
    60 CREATE_TICKET "CreateTicket" write own CreateTicketRequest TicketResponse "Queues a party for a match."
    61 CANCEL_TICKET "CancelTicket" write own CancelTicketRequest TicketResponse "Cancels a ticket; declines an open proposal."
    62 GET_TICKET "GetTicket" read any TicketIdRequest TicketResponse "Returns a ticket, up to 60 s after its end."
    63 LIST_TICKETS "ListTickets" read own ListTicketsRequest ListTicketsResponse "Returns the tickets of a player, or of a queue (trusted callers only)."
    64 ACCEPT_MATCH "AcceptMatch" write own AcceptMatchRequest Empty "Accepts or declines a proposed match."
    65 GET_QUEUE_STATS "GetQueueStats" read any QueueRequest QueueStats "Returns the pool, waiting times and match quality of a queue."
    66 START_BACKFILL "StartBackfill" write own StartBackfillRequest StartBackfillResponse "Requests players for a running match."
    67 UPDATE_BACKFILL "UpdateBackfill" write own UpdateBackfillRequest RevResponse "Replaces the free seats of a backfill."
    68 ACK_BACKFILL "AckBackfill" write own BackfillIdRequest BackfillResponse "Keeps a backfill alive and returns its state."
    69 STOP_BACKFILL "StopBackfill" write own BackfillIdRequest BackfillResponse "Ends a backfill."
    70 REPORT_RESULT "ReportResult" write trusted ReportResultRequest RatingsResponse "Rates the players of a match, once."
    71 GET_RATINGS "GetRatings" read any GetRatingsRequest RatingsResponse "Returns ratings of players."
    72 ASSIGN_MATCH "AssignMatch" write own AssignMatchRequest Empty "Assigns a server to a match; for the allocator of its queue or mode and trusted callers. For a match whose `Data` names a `World` already, it changes the place, and the members are notified of each changed value."
    73 EXPLAIN_TICKET "ExplainTicket" read any TicketIdRequest ExplainTicketResponse "Explains why a ticket is not matched: its nearest candidates and the rules that prevent the match."
    80 PUT_QUEUE "PutQueue" write admin PutQueueRequest QueuesResponse "Creates or replaces a queue."
    81 LIST_QUEUES "ListQueues" read any ListQueuesRequest ListQueuesResponse "Returns the queues and their rule sets."
    82 TRY_QUEUE "TryQueue" read admin TryQueueRequest TryQueueResponse "Simulates a draft of a rule set and the active rules on a copy of the queue's tickets; changes nothing."
    90 DRAIN "Drain" write admin Empty Empty "Prepares a planned stop: no new rooms, teams or tickets are accepted."
}

/// Request to a remote policy.
pub static POLICY_QUESTION: &Message = &PolicyQuestion;
/// Response of a remote policy.
pub static POLICY_VERDICT: &Message = &PolicyVerdict;

macro_rules! events {
    ($($number:literal $constant:ident $name:literal $message:ident)*) => {
        impl Event {
            $(#[doc = concat!("`", $name, "`")] pub const $constant: u32 = $number;)*
        }
        /// Every kind of notification, by number. An entry contains the notified roles in field 1,
        /// and one of these.
        pub static EVENTS: &[Event] = &[$(Event { number: $number, name: $name, message: &$message },)*];
    };
}

events! {
    10 JOIN_TEAM "joinTeamMsg" JoinTeamEvent
    11 LEAVE_TEAM "leaveTeamMsg" LeaveTeamEvent
    12 CHANGE_TEAM_LEADER "changeTeamLeaderMsg" ChangeTeamLeaderEvent
    13 SET_TEAM_DATA "setTeamDataMsg" SetTeamDataEvent
    14 BROADCAST_TEAM "broadcastTeamMsg" BroadcastTeamEvent
    15 ROLES_JOIN_ROOM "rolesJoinRoomMsg" RolesJoinRoomEvent
    16 ROLE_LEAVE_ROOM "roleLeaveRoomMsg" RoleLeaveRoomEvent
    17 BROADCAST_ROOM "broadcastRoomMsg" BroadcastRoomEvent
    18 SET_ROOM_DATA "setRoomDataMsg" SetRoomDataEvent
    19 UPDATE_ROOM_ROLE_DATA "updateRoomRoleDataMsg" UpdateRoomRoleDataEvent
    20 ROOM_FLAGS "roomFlagsMsg" RoomFlagsEvent
    21 TICKET_UPDATE "ticketUpdateMsg" TicketUpdateEvent
    22 MATCH_PROPOSED "matchProposedMsg" MatchProposedEvent
    23 MATCH_READY "matchReadyMsg" MatchReadyEvent
    24 MATCH_CANCELLED "matchCancelledMsg" MatchCancelledEvent
    25 BACKFILL_UPDATE "backfillUpdateMsg" BackfillUpdateEvent
    26 SEAT_EXPIRED "seatExpiredMsg" SeatExpiredEvent
}

/// The method of a number.
#[must_use]
pub fn method(number: u16) -> Option<&'static Method> {
    METHODS.binary_search_by_key(&number, |method| method.number).ok().map(|index| &METHODS[index])
}

/// The method of a name, exactly as written in [`METHODS`].
#[must_use]
pub fn method_named(name: &str) -> Option<&'static Method> {
    METHODS.iter().find(|method| method.name == name)
}

/// The kind of notification of a field number.
#[must_use]
pub fn event(number: u32) -> Option<&'static Event> {
    EVENTS.iter().find(|event| event.number == number)
}

/// Every message of the methods and events, once each, in an order in which messages precede their
/// users.
#[must_use]
pub fn messages() -> Vec<&'static Message> {
    fn of(ty: &Type, seen: &mut Vec<&'static Message>) {
        match ty {
            Msg(message) | Keyed(message, _) => visit(message, seen),
            List(inner) | Map(inner) => of(inner, seen),
            Str | Json | Bool | U64 | I64 | F64 | Time | Set => {}
        }
    }
    fn visit(message: &'static Message, seen: &mut Vec<&'static Message>) {
        if seen.iter().any(|known| known.name == message.name) {
            return;
        }
        for field in message.fields {
            of(&field.ty, seen);
        }
        seen.push(message);
    }
    let mut seen = Vec::new();
    for method in METHODS {
        visit(method.request, &mut seen);
        visit(method.response, &mut seen);
    }
    for event in EVENTS {
        visit(event.message, &mut seen);
    }
    for hook in [&PolicyQuestion, &PolicyVerdict] {
        visit(hook, &mut seen);
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_in_order_and_used_once() {
        assert!(METHODS.windows(2).all(|pair| pair[0].number < pair[1].number));
        assert!(EVENTS.windows(2).all(|pair| pair[0].number < pair[1].number));
        for message in messages() {
            let mut numbers: Vec<u32> = message.fields.iter().map(|field| field.number).collect();
            numbers.sort_unstable();
            let count = numbers.len();
            numbers.dedup();
            assert_eq!(numbers.len(), count, "{} uses a number twice", message.name);
            assert!(!numbers.contains(&REQUEST_KEY_FIELD), "{} uses the key's number", message.name);
        }
    }
}
