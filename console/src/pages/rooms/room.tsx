// Rooms: the list of a mode, and one room with its members, seats, data and history.
import { useState } from "preact/hooks";
import { usePoll, type Json } from "../../api.ts";
import { count } from "../../format.ts";
import { Badge, Card, Empty, Facts, Fields, Table, Trouble } from "../../ui.tsx";
import { ask, at } from "./ask.ts";

export const clock = (time: string) => new Date(time).toLocaleTimeString("en-GB");

const names = (roles: string[]) => roles.map((role) => <span key={role}><a href={at({ role })}>{role}</a> </span>);

export function Room({ id }: { id: string }) {
  const answer = usePoll(ask("GetRoomInfo", { RoomID: id }), 2000);
  const past = usePoll(ask("GetRoomHistory", { RoomID: id }), 2000);
  const room = answer.data?.RoomInfo;
  const gone = (answer.error as { status?: number } | null)?.status === 404;
  const seats: [string, string][] = Object.entries(room?.Reserved ?? {});
  return (
    <Card title={<>Room <code>{id}</code></>} side={<a href={at({})}>close</a>}>
      {gone ? <Empty title="The room has ended" /> : <Trouble of={answer} />}
      {room && (
        <div class={gone ? "stale" : ""}>
          <Facts
            rows={[
              ["mode", <>{room.MatchMode} <Flags of={room} /></>],
              ["created", `${clock(room.CreateTime)}, revision ${count(room.Rev)}`],
              ["members", room.Members === 0 ? "none" : names(Object.keys(room.Roles))],
              ...(room.Sides as Json[]).map((side): [string, preact.ComponentChildren] => [`side ${side.Name}`, names(side.RoleIDs)]),
              ...(seats.length > 0 ? [["reserved seats", seats.map(([role, until]) => <div key={role}><a href={at({ role })}>{role}</a> until {clock(until)}</div>)] as [string, preact.ComponentChildren]] : []),
              ["data", Object.keys(room.Data ?? {}).length === 0 ? "none" : <div class="fields"><Fields name="Data" value={room.Data} /></div>],
            ]}
          />
        </div>
      )}
      {past.data && (
        <Table
          caption="History"
          rows={(past.data.Changes as Json[]).slice().reverse()}
          id={(row) => `${row.Rev} ${row.Kind}`}
          empty="No changes yet"
          columns={[
            { head: "Time", cell: (row) => clock(row.At) },
            { head: "Rev", num: true, cell: (row) => count(row.Rev) },
            { head: "Change", cell: (row) => <Badge tone={tones[row.Kind] ?? "plain"}>{row.Kind.replace("_", " ")}</Badge> },
            { head: "Players", wide: true, cell: (row) => <>{names(row.RoleIDs)}{row.Players > row.RoleIDs.length && `and ${row.Players - row.RoleIDs.length} more`}</> },
            { head: "Details", cell: (row) => (row.Key ? <code>{row.Key}</code> : row.Reason) },
          ]}
        />
      )}
    </Card>
  );
}

const tones: Record<string, "good" | "warn" | "bad" | "info"> = { joined: "good", seat_claimed: "good", seats_made: "info", assigned: "info", left: "warn", seat_expired: "warn", deleting: "bad" };

const Flags = ({ of }: { of: Json }) =>
  of.IsDeleting ? <Badge tone="bad">ending</Badge> : (
    <>
      {of.IsFull ? <Badge>full</Badge> : Object.keys(of.Reserved ?? {}).length > 0 ? <Badge tone="info">reserved seats</Badge> : <Badge tone="good">open</Badge>}
      {of.IsHidden && <> <Badge>hidden</Badge></>}
    </>
  );

export function RoomList({ modes }: { modes: Json }) {
  const all = Object.keys(modes ?? {});
  const [mode, setMode] = useState<string | null>(null);
  const chosen = mode ?? all[0] ?? null;
  const answer = usePoll(chosen === null ? null : ask("ListRooms", { MatchModes: [chosen], Limit: 100 }), 2000);
  const rooms: Json[] = answer.data?.Rooms?.[chosen ?? ""]?.Rooms ?? [];
  return (
    <Card
      title="Rooms"
      side={
        all.length > 0 && (
          <label>
            Mode{" "}
            <select value={chosen ?? ""} onChange={(event) => setMode((event.target as HTMLSelectElement).value)}>
              {all.map((name) => <option key={name} value={name}>{name}: {count(modes[name])}</option>)}
            </select>
          </label>
        )
      }
    >
      {chosen === null ? <Empty title="No rooms" /> : <Trouble of={answer} />}
      {answer.data && (
        <Table
          caption="Rooms"
          rows={rooms}
          id={(row) => row.RoomID}
          empty="No visible rooms of this mode; rooms of a queue's matches are hidden, search for one of their roles instead"
          columns={[
            { head: "Room", cell: (row) => <a href={at({ room: row.RoomID })}><code>{row.RoomID}</code></a> },
            { head: "Players", num: true, cell: (row) => count(row.Members) },
            { head: "Members", wide: true, cell: (row) => names(Object.keys(row.Roles).slice(0, 12)) },
            { head: "", cell: (row) => <Flags of={row} /> },
          ]}
        />
      )}
    </Card>
  );
}
