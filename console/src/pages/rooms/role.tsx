// One role at the matcher: its rooms, team and tickets.
import { useState } from "preact/hooks";
import { usePoll, type Json } from "../../api.ts";
import { count } from "../../format.ts";
import { Badge, Card, Empty, Facts, Trouble } from "../../ui.tsx";
import { ask, at, milliseconds } from "./ask.ts";

export function Find({ role }: { role: string | null }) {
  const [name, setName] = useState(role ?? "");
  const find = (event: Event) => {
    event.preventDefault();
    location.hash = at({ role: name.trim() });
  };
  return (
    <form class="row" role="search" onSubmit={find}>
      <input type="search" placeholder="Find a role by its id" aria-label="Role" maxLength={128} value={name} onInput={(event) => setName((event.target as HTMLInputElement).value)} />
      <button class="primary" disabled={name.trim() === ""}>Find</button>
    </form>
  );
}

export function Role({ id }: { id: string }) {
  const answer = usePoll(ask("GetRole", { RoleID: id }), 2000);
  const data = answer.data;
  const rooms: [string, Json][] = Object.entries(data?.RoomInfos ?? {});
  const missing = (answer.error as { status?: number } | null)?.status === 404;
  return (
    <Card title={<>Role <code>{id}</code></>} side={<a href={at({})}>close</a>}>
      {missing ? <Empty title="Not in a room, team or queue" /> : <Trouble of={answer} />}
      {data && !missing && (
        <Facts
          rows={[
            ["server", <code>{data.SrvID}</code>],
            ["rooms", rooms.length === 0 ? "none" : rooms.map(([room, info]) => (
              <div key={room}>
                <a href={at({ room })}><code>{room}</code></a> {info.MatchMode}, {count(info.Members)} players {info.IsDeleting && <Badge tone="warn">ending</Badge>}
              </div>
            ))],
            ["team", data.TeamInfo ? <Team of={data.TeamInfo} /> : "none"],
            ["tickets", (data.Tickets as Json[]).length === 0 ? "none" : (data.Tickets as Json[]).map((ticket) => (
              <div key={ticket.TicketID}>
                {ticket.Queue}: {ticket.Status}, waited {milliseconds(ticket.WaitedMs)}{" "}
                <a href={at({ queue: ticket.Queue, ticket: ticket.TicketID })}>why not matched?</a>
              </div>
            ))],
          ]}
        />
      )}
    </Card>
  );
}

const Team = ({ of }: { of: Json }) => (
  <>
    <code>{of.TeamID}</code>, {Object.keys(of.Roles).length} of {of.MaxRole}{of.HasPasswd && ", with a password"}
    <div>
      {Object.keys(of.Roles).map((role) => (
        <span key={role}><a href={at({ role })}>{role}</a>{role === of.LeaderID && " (leader)"} </span>
      ))}
    </div>
  </>
);
