//! Contents of every request, response and event.

/// Number of the field that carries a request key (16 bytes) in any request.
pub const REQUEST_KEY_FIELD: u32 = 100;

/// Type of a field, on both wires.
#[derive(Clone, Copy, Debug)]
pub enum Type {
    /// Text.
    Str,
    /// Any JSON value, as text in `bytes`.
    Json,
    /// `true` or `false`.
    Bool,
    /// An unsigned number.
    U64,
    /// A signed number (zigzag).
    I64,
    /// A double.
    F64,
    /// Milliseconds since the epoch; RFC 3339 text in JSON.
    Time,
    /// A message.
    Msg(&'static Message),
    /// Repeated values.
    List(&'static Type),
    /// Repeated entries {1: key, 2: value}; an object in JSON.
    Map(&'static Type),
    /// Repeated messages; in JSON an object keyed by the named member of each.
    Keyed(&'static Message, &'static str),
    /// Repeated text; in JSON an object whose keys are the values and whose values are `{}`.
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
    /// Type of the value.
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
    /// Scope `server` for what roles of its own server are in; beyond that `trusted`.
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
    /// True if it may change state; such requests are logged and may carry a request key.
    pub mutates: bool,
    /// Scope that a caller needs.
    pub access: Access,
    /// Body of a request.
    pub request: &'static Message,
    /// Body of an answer.
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
    3 TeamID Str, "empty when the role did not come with a team";
    4 FloatData Map(&F64), "values for matching: level, score";
    5 StringData Map(&Str), "name, picture, packed extras";
    6 Tags Set, "tags";
});
message!(TeamInfo {
    1 TeamID Str, "assigned by the matcher";
    2 HasPasswd Bool, "whether a password is needed";
    3 MaxRole I64, "capacity, over 0";
    4 Data Map(&Json), "free-form";
    5 Roles Keyed(&RoleInfo, "RoleID"), "members, longest-standing first";
    6 LeaderID Str, "the leader; at first the creator";
    7 Rev U64, "grows by one with every change";
    8 Passwd Str, "in requests only: empty = no password";
});
message!(Side {
    1 Name Str, "name in the rule set";
    2 RoleIDs List(&Str), "players";
});
message!(RoomInfo {
    1 RoomID Str, "assigned by the matcher";
    2 CreateTime Time, "when it was made";
    3 MatchMode Str, "its mode";
    4 Roles Keyed(&RoleInfo, "RoleID"), "members in the order of joining";
    5 IsHidden Bool, "not listed";
    6 IsFull Bool, "accepts no more players";
    7 IsDeleting Bool, "being removed";
    8 Data Map(&Json), "free-form";
    9 Rev U64, "grows by one with every change";
    10 Sides List(&Msg(&Side)), "sides of a match";
    11 Reserved Map(&Time), "reserved seats and when they expire";
    12 Members U64, "number of members, also where not all are listed";
    13 IsPartial Bool, "only what changed is listed: the room has more members than a snapshot takes";
});
message!(CreateInfo {
    1 MatchMode Str, "the mode";
    2 IsHidden Bool, "not listed";
    3 Data Map(&Json), "initial values";
});
message!(RoleUpdate {
    1 RoomID Str, "the room";
    2 RoleID Str, "the role";
    3 FloatData Map(&F64), "numbers to set";
    4 StringData Map(&Str), "texts to set";
    5 AddTags List(&Str), "tags to add";
    6 DelTags List(&Str), "tags to remove, after the additions";
});
message!(MyRpcTestRequest { 1 Arg Str, "anything"; });
message!(MyRpcTestResponse { 1 Result U64, "0"; });
message!(CreateTeamRequest { 1 CreatorInfo Msg(&RoleInfo), "the creator, who becomes leader"; 2 TeamInfo Msg(&TeamInfo), "capacity, password, data"; });
message!(TeamResponse { 1 TeamInfo Msg(&TeamInfo), "the team"; });
message!(JoinTeamRequest { 1 RoleInfo Msg(&RoleInfo), "who joins"; 2 TeamID Str, "the team"; 3 Password Str, "its password"; });
message!(LeaveTeamRequest { 1 MemberID Str, "who leaves"; 2 TeamID Str, "the team"; 3 ActorID Str, "who asks, if it is not the member: a kick"; });
message!(ChangeTeamLeaderRequest { 1 TeamID Str, "the team"; 2 NewLeader Str, "a member"; });
message!(SetTeamDataRequest { 1 TeamID Str, "the team"; 2 Key Str, "the key"; 3 Data Json, "the value; null deletes"; });
message!(BroadcastTeamRequest { 1 TeamID Str, "the team"; 2 Msg Json, "the message"; });
message!(TeamIdRequest { 1 TeamID Str, "the team"; });
message!(RoleJoinRandomRoomRequest { 1 RoleInfo Msg(&RoleInfo), "who joins"; 2 CreateInfo Msg(&CreateInfo), "mode, and what a new room begins with"; 3 Reserve U64, "seconds: reserve a seat instead of joining"; });
message!(RoleCreateRoomRequest { 1 CreatorInfo Msg(&RoleInfo), "the first member"; 2 CreateInfo Msg(&CreateInfo), "what the room begins with"; });
message!(RoleJoinRoomRequest { 1 RoleInfo Msg(&RoleInfo), "who joins"; 2 RoomID Str, "the room"; });
message!(RoleLeaveRoomRequest { 1 RoleID Str, "who leaves"; 2 RoomID Str, "the room"; 3 ActorID Str, "who asks, if it is not the role"; });
message!(TeamJoinRandomRoomRequest { 1 TeamID Str, "the team"; 2 CreateInfo Msg(&CreateInfo), "mode, and what a new room begins with"; });
message!(TeamCreateRoomRequest { 1 CreatorTeamID Str, "the team"; 2 CreateInfo Msg(&CreateInfo), "what the room begins with"; });
message!(TeamJoinRoomRequest { 1 TeamID Str, "the team"; 2 RoomID Str, "the room"; });
message!(JoinResponse { 1 RoomInfo Msg(&RoomInfo), "the room"; 2 Created Bool, "it was made for this"; 3 Already Bool, "the role was a member before"; });
message!(RoomResponse { 1 RoomInfo Msg(&RoomInfo), "the room"; });
message!(BroadcastRoomRequest { 1 RoomID Str, "the room"; 2 Msg Json, "the message"; });
message!(GetRoomListRequest { 1 MatchMode Str, "the mode"; });
message!(GetRoomListResponse { 1 RoomIDs List(&Str), "visible rooms, oldest first, at most 1,000"; });
message!(Filter { 1 field Str, "`Data.<key>`, `FreeSlots`, `Members` or `CreateTime`"; 2 op Str, "`=`, `!=`, `<`, `<=`, `>`, `>=` or `has`"; 3 value Json, "what to compare with"; });
message!(ListRoomsRequest { 1 MatchModes List(&Str), "the modes"; 2 Filters List(&Msg(&Filter)), "all must hold"; 3 Sort Str, "a field; `-` in front: descending"; 4 Limit U64, "rooms per mode, at most 100"; 5 Token Str, "`Next` of the call before"; });
message!(ModeRooms { 1 MatchMode Str, "the mode"; 2 Rooms List(&Msg(&RoomInfo)), "its rooms"; });
message!(ListRoomsResponse { 1 Rooms Keyed(&ModeRooms, "MatchMode"), "rooms by mode"; 2 Next Str, "where to go on; empty: nothing is left"; });
message!(GetRoomInfosRequest { 1 RoomIDs List(&Str), "the rooms"; });
message!(GetRoomInfosResponse { 1 RoomInfos Keyed(&RoomInfo, "RoomID"), "those that exist"; });
message!(RoomIdRequest { 1 RoomID Str, "the room"; });
message!(RoomChange {
    1 At Time, "when";
    2 Rev U64, "the room's revision after it";
    3 Kind Str, "joined, left, data, role_data, flags, seats_made, seat_claimed, seat_expired, assigned or deleting";
    4 RoleIDs List(&Str), "whom it concerns, at most 16 of them";
    5 Key Str, "which value of the data was set";
    6 Reason Str, "why the player left: left, kicked or disconnected; how the flags are now";
    7 Players U64, "how many it concerns, if more than one";
});
message!(GetRoomHistoryResponse { 1 Changes List(&Msg(&RoomChange)), "oldest first, at most 100; fewer where names are long"; });
message!(SetRoomDataRequest { 1 RoomID Str, "the room"; 2 Key Str, "the key"; 3 Data Json, "the value; null deletes"; });
message!(UpdateRoomRoleDataRequest { 1 Update Msg(&RoleUpdate), "the change"; });
message!(DeleteRoomResponse { 1 Deleted Bool, "whether there was one"; });
message!(SetRoomFlagsRequest { 1 RoomID Str, "the room"; } { 2 IsHidden Bool, "not listed"; 3 IsFull Bool, "accepts no more players"; });
message!(ClaimSeatRequest { 1 RoomID Str, "the room"; 2 RoleID Str, "whose seat"; 3 RoleInfo Msg(&RoleInfo), "what to store, if more than the ids"; });
message!(ListMineRequest { 1 SrvID Str, "the server; the caller's own when empty"; 2 Token Str, "`Next` of the call before"; });
message!(ListMineResponse { 1 RoomInfos Keyed(&RoomInfo, "RoomID"), "rooms of its roles, and those that keep a seat for one"; 2 TeamInfos Keyed(&TeamInfo, "TeamID"), "teams of its roles"; 3 Tickets List(&Msg(&Ticket)), "live tickets of its roles, and matched ones whose seats are open"; 4 Matches List(&Msg(&MatchInfo)), "matches whose server it gives or gave, as the allocator of their queue"; 5 Next Str, "where to go on; empty: nothing is left"; });
message!(MatchInfo {
    1 MatchID Str, "the match";
    2 RoomID Str, "its room";
    3 Queue Str, "its queue";
    4 Status Str, "assigning (it waits for a server) or assigned";
    5 Region Str, "best region";
    6 Connection Str, "where to connect";
    7 Deadline U64, "until when it waits for a server, ms since the epoch";
    8 Players List(&Msg(&Player)), "its players as their tickets say, while it waits";
});
message!(GetRoleRequest { 1 RoleID Str, "the role"; });

message!(Player {
    1 RoleID Str, "who";
    2 SrvID Str, "server of the role";
    3 Attr Map(&Json), "attributes: number, string or list of strings";
    4 Latency Map(&F64), "region to milliseconds";
    5 Roles List(&Str), "wanted positions, best first";
    6 Avoid List(&Str), "roles not to meet";
});
message!(Ticket {
    1 TicketID Str, "time-ordered and unguessable";
    2 Queue Str, "the queue";
    3 Players List(&Msg(&Player)), "the party";
    4 TeamID Str, "when made from a team";
    5 Created U64, "ms since the epoch";
    6 Expires U64, "ms since the epoch";
    7 Priority I64, "-10 to 10";
    8 Status Str, "searching, proposed, placing, matched, cancelled, timed_out or failed";
    9 Rev U64, "grows by one with every change";
    10 Reason Str, "why it ended or went back";
    11 MatchID Str, "proposal or match";
    12 RoomID Str, "the room of the match";
    13 WaitedMs U64, "time in the queue";
    16 PoolSize U64, "tickets in the queue";
    17 Position U64, "tickets ahead in fairness order, in the same partition";
    18 Region Str, "best region of the match";
} {
    14 EtaP50Ms U64, "half of tickets like this waited less";
    15 EtaP90Ms U64, "p90 of the wait";
});
message!(CreateTicketRequest { 1 Queue Str, "the queue"; 2 Players List(&Msg(&Player)), "the party"; 3 TeamID Str, "or a team, whose members form the party"; 4 ExpiresMs U64, "earlier end than the queue's timeout, in ms from now"; 5 Priority I64, "-10 to 10; trusted callers"; });
message!(TicketResponse { 1 Ticket Msg(&Ticket), "the ticket"; });
message!(TicketIdRequest { 1 TicketID Str, "the ticket"; });
message!(GetRoleResponse { 1 RoleID Str, "the role"; 2 SrvID Str, "its server"; 3 RoomInfos Keyed(&RoomInfo, "RoomID"), "rooms that list it as a member, ending ones too, or keep a seat for it"; 5 Tickets List(&Msg(&Ticket)), "its live tickets, and matched ones whose seats are open"; } { 4 TeamInfo Msg(&TeamInfo), "its team"; });
message!(ListTicketsRequest { 1 RoleID Str, "of a player"; 2 Queue Str, "or of a queue"; });
message!(ListTicketsResponse { 1 Tickets List(&Msg(&Ticket)), "the tickets, at most 1,000"; });
message!(AcceptMatchRequest { 1 MatchID Str, "the proposal"; 2 TicketID Str, "the ticket"; 3 RoleID Str, "who answers"; 4 Accept Bool, "yes or no"; });
message!(AssignMatchRequest { 1 RoomID Str, "the match"; 2 Connection Str, "where to connect"; 3 Data Map(&Json), "for the room"; });
message!(StartBackfillRequest { 1 RoomID Str, "the room"; 2 Queue Str, "the queue"; 3 Open Map(&U64), "side to free places"; 4 Attr Map(&Json), "attributes that members are taken to have"; });
message!(StartBackfillResponse { 1 BackfillID Str, "the backfill"; 2 Rev U64, "its revision"; });
message!(UpdateBackfillRequest { 1 BackfillID Str, "the backfill"; 2 Rev U64, "the revision that was seen"; 3 Open Map(&U64), "side to free places"; 4 Attr Map(&Json), "attributes"; });
message!(RevResponse { 1 Rev U64, "the revision"; });
message!(BackfillIdRequest { 1 BackfillID Str, "the backfill"; });
message!(BackfillState { 1 Rev U64, "the revision"; 2 Open Map(&U64), "side to free places"; 3 Seats List(&Str), "roles with a seat"; });
message!(BackfillResponse { 1 State Msg(&BackfillState), "where it stands"; });
message!(QueueRequest { 1 Queue Str, "the queue"; });
message!(QueueBucket { 1 Players U64, "party size"; 2 From F64, "least value of the main number"; 3 Tickets U64, "tickets searching"; });
message!(QueueStats {
    1 Queue Str, "the queue";
    2 PoolSize U64, "tickets searching";
    3 MatchesPerMinute F64, "over the last 5 minutes";
    4 Matches U64, "since the start";
    5 TimedOut U64, "tickets that timed out";
    6 Cancelled U64, "tickets cancelled";
    7 Declined U64, "proposals declined";
    11 QualityP10 F64, "a tenth of matches were worse";
    12 QualityP50 F64, "the median match";
    13 Partitions U64, "partitions with tickets";
    14 Scans U64, "neighbours looked at since the start";
    15 Buckets List(&Msg(&QueueBucket)), "tickets searching, by party size and value of the main number";
    16 Expansions List(&U64), "matches made, by the expansion level that they needed";
} {
    8 WaitP50Ms U64, "half waited less";
    9 WaitP90Ms U64, "p90 of the wait";
    10 WaitP99Ms U64, "99 of 100 waited less";
    17 TickP50Us U64, "half of the searches took less, since the start of the process";
    18 TickP99Us U64, "99 of 100 searches took less";
});
message!(ResultSide { 1 RoleIDs List(&Str), "players"; 2 Rank U64, "1 is best; equal is a tie"; });
message!(ReportResultRequest { 1 MatchID Str, "the match"; 2 RoomID Str, "or the room"; 3 Sides List(&Msg(&ResultSide)), "how it ended"; 4 Weights Map(&F64), "share of the match played, over 0 to 1"; 5 Amend Bool, "replaces an earlier report"; 6 Pool Str, "rating pool, where the room has no queue; a room is rated in each by itself"; });
message!(Rating { 1 RoleID Str, "who"; 2 Shown F64, "what players see"; 3 Games U64, "games rated"; } { 4 Mu F64, "Weng-Lin mean"; 5 Sigma F64, "Weng-Lin deviation"; 6 Rating F64, "Glicko-2"; 7 Deviation F64, "Glicko-2"; 8 Volatility F64, "Glicko-2"; });
message!(RatingsResponse { 1 Ratings Keyed(&Rating, "RoleID"), "by player"; });
message!(GetRatingsRequest { 1 Pool Str, "the rating pool"; 2 RoleIDs List(&Str), "the players"; });
message!(PutQueueRequest { 1 RuleSet Json, "the rule set"; });
message!(TryQueueRequest { 1 RuleSet Json, "the draft"; 2 Seconds U64, "how far ahead to look, 60 if it does not say; at most the longer timeout of the two rule sets, and an hour"; });
message!(TrialReason { 1 Why Str, "why tickets can never match"; 2 Tickets U64, "how many"; });
message!(TrialFigures {
    1 Matches U64, "matches made";
    2 Tickets U64, "tickets matched";
    3 Players U64, "players matched";
    4 Left U64, "tickets that still search at the end";
    5 TimedOut U64, "tickets that waited too long";
    6 Failed U64, "tickets that can never match under these rules";
    7 Reasons List(&Msg(&TrialReason)), "why, the most frequent first, at most 10";
    8 Expansions List(&U64), "matches by the expansion step they needed";
    9 Cut Bool, "the trial had used up its work and ended early";
    10 ReachedMs U64, "the time that it looked ahead";
} {
    11 WaitP50Ms U64, "half of the matched waited less, from their creation";
    12 WaitP90Ms U64, "p90 of the wait";
    13 QualityP10 F64, "p10 of the quality: nine in ten matches are better";
    14 QualityP50 F64, "median quality";
    15 SpreadP50 F64, "difference in the main number within a match, median";
    16 SpreadMax F64, "the greatest";
});
message!(TryQueueResponse {
    1 Queue Str, "name of the queue";
    2 PoolSize U64, "tickets searching";
    3 Copied U64, "tickets that were copied: at most 20,000, the first in the order of fairness";
    4 Seconds U64, "how far ahead was looked";
    5 Draft Msg(&TrialFigures), "under the draft";
} {
    6 Live Msg(&TrialFigures), "under the rules in force; absent when there is no such queue";
});
message!(QueueInfo { 1 Queue Str, "name"; 2 Version Str, "version of the rule set"; 3 RuleSet Json, "the rule set"; 4 PoolSize U64, "tickets searching"; });
message!(QueuesResponse { 1 Queues Keyed(&QueueInfo, "Queue"), "by name"; });
message!(FailedRule { 1 Rule Str, "name of the rule, or what else stands in the way"; 2 Why Str, "the values that collide"; });
message!(PolicyQuestion {
    1 Point Str, "OnCreate, OnAddingRoles, OnAddedRoles, OnDeletingRole or OnDestroy";
    2 MatchMode Str, "the mode";
    3 RoomInfo Msg(&RoomInfo), "the room, with the newcomers at OnAddedRoles; without RoomID while it is to be made";
    4 Roles List(&Msg(&RoleInfo)), "who comes or leaves";
});
message!(PolicyVerdict {
    1 Refuse Bool, "vetoes, at OnCreate and OnAddingRoles";
    2 Reason Str, "why, for the caller";
    3 IsDeleting Bool, "asks for the room's removal";
    4 Data Map(&Json), "values of the room to set; null removes";
} {
    5 IsHidden Bool, "hides or shows the room";
    6 IsFull Bool, "closes or opens the room";
});
message!(Candidate { 1 TicketID Str, "the other ticket"; 2 Players U64, "its party's size"; 3 Distance F64, "difference in the main number"; 4 Fails List(&Msg(&FailedRule)), "why the two cannot meet; empty: they can"; 5 WaitedMs U64, "time in the queue"; });
message!(ExplainTicketResponse {
    1 Ticket Msg(&Ticket), "the ticket";
    2 Summary Str, "the reason in a sentence";
    3 Level U64, "expansion steps that its waiting time has reached";
    4 Candidates List(&Msg(&Candidate)), "nearest tickets first, at most 32";
    5 Fits U64, "players among them who could play with this ticket";
    6 Needs U64, "players that a match needs at least, this ticket's included";
    7 Fails List(&Msg(&FailedRule)), "what the best filling of the sides violates";
});

message!(JoinTeamEvent { 1 RoleInfo Msg(&RoleInfo), "who joined"; 20 TeamID Str, "the team"; 21 Rev U64, "its revision"; });
message!(LeaveTeamEvent { 1 RoleID Str, "who left"; 20 TeamID Str, "the team"; 21 Rev U64, "its revision"; 22 Reason Str, "left, kicked, disconnected or deleted"; });
message!(ChangeTeamLeaderEvent { 1 NewLeaderID Str, "the leader"; 20 TeamID Str, "the team"; 21 Rev U64, "its revision"; });
message!(SetTeamDataEvent { 20 TeamID Str, "the team"; 2 Key Str, "the key"; 3 Data Json, "the value"; 21 Rev U64, "its revision"; });
message!(BroadcastTeamEvent { 1 Msg Json, "the message"; 20 TeamID Str, "the team"; 21 Rev U64, "its revision"; });
message!(RolesJoinRoomEvent { 1 RoomInfo Msg(&RoomInfo), "the room"; 2 JoinedRoleIDs List(&Str), "who joined"; 20 RoomID Str, "the room"; 21 Rev U64, "its revision"; });
message!(RoleLeaveRoomEvent { 1 RoomInfo Msg(&RoomInfo), "the room before"; 2 LeavingRoleID Str, "who left"; 20 RoomID Str, "the room"; 21 Rev U64, "its revision"; 22 Reason Str, "left, kicked, disconnected or room_deleted"; });
message!(BroadcastRoomEvent { 1 Msg Json, "the message"; 20 RoomID Str, "the room"; 21 Rev U64, "its revision"; });
message!(SetRoomDataEvent { 2 Key Str, "the key"; 3 Data Json, "the value"; 20 RoomID Str, "the room"; 21 Rev U64, "its revision"; });
message!(UpdateRoomRoleDataEvent { 1 Update Msg(&RoleUpdate), "the change"; 20 RoomID Str, "the room"; 21 Rev U64, "its revision"; });
message!(RoomFlagsEvent { 1 IsHidden Bool, "not listed"; 2 IsFull Bool, "accepts no more players"; 20 RoomID Str, "the room"; 21 Rev U64, "its revision"; });
message!(TicketUpdateEvent { 1 Ticket Msg(&Ticket), "the ticket"; });
message!(MatchProposedEvent { 1 MatchID Str, "the proposal"; 2 Deadline U64, "ms since the epoch"; 3 Players U64, "number of players"; 4 TicketIDs List(&Str), "tickets of the roles named"; 5 RoleIDs List(&Str), "everybody, where the queue reveals it"; });
message!(Shared { 1 Rule Str, "name of the rule, its key without one"; 2 Entries List(&Str), "what every player's list has"; });
message!(MatchReadyEvent { 1 MatchID Str, "the match"; 20 RoomID Str, "its room"; 2 Positions Map(&Str), "role to position, where the queue has positions"; 3 Side Str, "side of the roles named"; 4 Connection Str, "where to connect"; 5 Region Str, "best region"; 6 SeatDeadline U64, "ms since the epoch"; 7 Queue Str, "the queue"; 8 Shared Keyed(&Shared, "Rule"), "what all players have in common, by `overlap` rule"; 9 Players List(&Msg(&Player)), "to the allocator: the players with their attributes"; 10 Sides List(&Msg(&Side)), "to the allocator: who is on which side"; });
message!(MatchCancelledEvent { 1 MatchID Str, "the match"; 2 Reason Str, "declined, no_answer, disconnected, matched_elsewhere, players_not_free, no_server, policy_unavailable, rules_changed or restarted; of a match for a backfill also no_places, room_closed, stopped or no_ack"; 20 RoomID Str, "its room, if it had one"; });
message!(BackfillUpdateEvent { 1 BackfillID Str, "the backfill"; 2 Reason Str, "matched, no_ack, stopped or room_closed"; 3 RoleIDs List(&Str), "new seats"; 20 RoomID Str, "the room"; 21 Rev U64, "revision of the backfill"; });
message!(SeatExpiredEvent { 1 RoleID Str, "whose seat"; 20 RoomID Str, "the room"; 21 Rev U64, "its revision"; });

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
    1 PING "Ping" read any Empty Empty "Nothing in, nothing out."
    2 MY_RPC_TEST "MyRPCTest" read any MyRpcTestRequest MyRpcTestResponse "Takes a string, returns zero."
    3 LIST_MINE "ListMine" read own ListMineRequest ListMineResponse "Rooms, teams and tickets of a server's roles: what to fetch after a gap."
    4 GET_ROLE "GetRole" read own GetRoleRequest GetRoleResponse "Rooms, team and tickets of one role, which lives on the caller's server unless it is trusted."
    10 CREATE_TEAM "CreateTeam" write own CreateTeamRequest TeamResponse "Makes a team; the creator leads it."
    11 JOIN_TEAM "JoinTeam" write own JoinTeamRequest TeamResponse "Joins a team."
    12 LEAVE_TEAM "LeaveTeam" write own LeaveTeamRequest Empty "Leaves a team, or kicks a member."
    13 CHANGE_TEAM_LEADER "ChangeTeamLeader" write own ChangeTeamLeaderRequest Empty "Makes a member the leader."
    14 SET_TEAM_DATA "SetTeamData" write own SetTeamDataRequest Empty "Sets one value of a team."
    15 BROADCAST_TEAM "BroadcastTeam" write own BroadcastTeamRequest Empty "Sends a message to all members."
    16 GET_TEAM_INFO "GetTeamInfo" read any TeamIdRequest TeamResponse "Shows a team."
    17 DELETE_TEAM "DeleteTeam" write own TeamIdRequest Empty "Dissolves a team; every member leaves."
    30 ROLE_JOIN_RANDOM_ROOM "RoleJoinRandomRoom" write own RoleJoinRandomRoomRequest JoinResponse "Joins an open room of a mode, or makes one."
    31 ROLE_CREATE_ROOM "RoleCreateRoom" write own RoleCreateRoomRequest RoomResponse "Makes a room with its first member."
    32 ROLE_JOIN_ROOM "RoleJoinRoom" write own RoleJoinRoomRequest JoinResponse "Joins a room; takes a reserved seat."
    33 ROLE_LEAVE_ROOM "RoleLeaveRoom" write own RoleLeaveRoomRequest RoomResponse "Leaves a room, or kicks a member."
    34 TEAM_JOIN_RANDOM_ROOM "TeamJoinRandomRoom" write own TeamJoinRandomRoomRequest JoinResponse "All members of a team join an open room, or one is made."
    35 TEAM_CREATE_ROOM "TeamCreateRoom" write own TeamCreateRoomRequest RoomResponse "Makes a room with a team in it."
    36 TEAM_JOIN_ROOM "TeamJoinRoom" write own TeamJoinRoomRequest JoinResponse "All members of a team join a room."
    37 BROADCAST_ROOM "BroadcastRoom" write own BroadcastRoomRequest Empty "Sends a message to all members."
    38 GET_ROOM_LIST "GetRoomList" read any GetRoomListRequest GetRoomListResponse "Ids of the visible rooms of a mode."
    39 LIST_ROOMS "ListRooms" read any ListRoomsRequest ListRoomsResponse "Visible rooms of modes, filtered and sorted, in pages."
    40 GET_ROOM_INFOS "GetRoomInfos" read any GetRoomInfosRequest GetRoomInfosResponse "Rooms by id, hidden ones too."
    41 SET_ROOM_DATA "SetRoomData" write own SetRoomDataRequest Empty "Sets one value of a room."
    42 UPDATE_ROOM_ROLE_DATA "UpdateRoomRoleData" write own UpdateRoomRoleDataRequest Empty "Changes a member's data."
    43 DELETE_ROOM "DeleteRoom" write own RoomIdRequest DeleteRoomResponse "Removes a room; fine when it is gone already."
    44 GET_ROOM_INFO "GetRoomInfo" read any RoomIdRequest RoomResponse "One room by id."
    45 CLAIM_SEAT "ClaimSeat" write own ClaimSeatRequest RoomResponse "Turns a reserved seat into membership."
    46 SET_ROOM_FLAGS "SetRoomFlags" write own SetRoomFlagsRequest RoomResponse "Hides, shows, fills or opens a room from outside."
    47 GET_ROOM_HISTORY "GetRoomHistory" read any RoomIdRequest GetRoomHistoryResponse "The last changes of a room."
    60 CREATE_TICKET "CreateTicket" write own CreateTicketRequest TicketResponse "A party asks for a match."
    61 CANCEL_TICKET "CancelTicket" write own TicketIdRequest TicketResponse "Takes a ticket back; declines an open proposal."
    62 GET_TICKET "GetTicket" read any TicketIdRequest TicketResponse "Shows a ticket; ended ones for 60 s."
    63 LIST_TICKETS "ListTickets" read own ListTicketsRequest ListTicketsResponse "Tickets of a player, or of a queue, which needs a trusted caller."
    64 ACCEPT_MATCH "AcceptMatch" write own AcceptMatchRequest Empty "Answers a proposal."
    65 GET_QUEUE_STATS "GetQueueStats" read any QueueRequest QueueStats "Pool, waits and quality of a queue."
    66 START_BACKFILL "StartBackfill" write own StartBackfillRequest StartBackfillResponse "Asks for players for a running match."
    67 UPDATE_BACKFILL "UpdateBackfill" write own UpdateBackfillRequest RevResponse "Replaces the free places of a backfill."
    68 ACK_BACKFILL "AckBackfill" write own BackfillIdRequest BackfillResponse "Keeps a backfill alive and shows it."
    69 STOP_BACKFILL "StopBackfill" write own BackfillIdRequest BackfillResponse "Ends a backfill."
    70 REPORT_RESULT "ReportResult" write trusted ReportResultRequest RatingsResponse "Rates the players of a match, once."
    71 GET_RATINGS "GetRatings" read any GetRatingsRequest RatingsResponse "Ratings of players."
    72 ASSIGN_MATCH "AssignMatch" write own AssignMatchRequest Empty "Gives a match its server: by the queue's allocator or a trusted caller."
    73 EXPLAIN_TICKET "ExplainTicket" read any TicketIdRequest ExplainTicketResponse "Why a ticket is not matched: its nearest candidates and the rules between them."
    80 PUT_QUEUE "PutQueue" write admin PutQueueRequest QueuesResponse "Makes or replaces a queue."
    81 LIST_QUEUES "ListQueues" read any Empty QueuesResponse "Queues and their rule sets."
    82 TRY_QUEUE "TryQueue" read admin TryQueueRequest TryQueueResponse "What a draft of a rule set would do with a copy of its queue's tickets, beside the rules in force; changes nothing."
    90 DRAIN "Drain" write admin Empty Empty "Planned stop: no new rooms, teams, tickets."
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
        /// Every kind of notification, by number. An entry holds the roles it is for in field 1 and
        /// one of these.
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

/// Every message that methods and events reach, each once, those used by others first.
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
