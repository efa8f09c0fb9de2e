import { session, usePoll, type Json } from "../api.ts";
import { count } from "../format.ts";
import { Card, Empty, Locked, Stat, Table, Trouble } from "../ui.tsx";
import { ask, at } from "./rooms/ask.ts";
import { Editor } from "./rooms/editor.tsx";
import { Queue, Ticket } from "./rooms/queue.tsx";
import { Find, Role } from "./rooms/role.tsx";
import { Room, RoomList } from "./rooms/room.tsx";

export function Rooms({ query }: { query: URLSearchParams }) {
  const rooms = usePoll("rooms", 1500);
  const open = session.use();
  const data = rooms.data;
  if (data && !data.running) {
    return (
      <Card title="Rooms and queues">
        <Empty title="The matcher is not running">
          Start it with <code>--matcher.addr 127.0.0.1:11290</code>, or alone with <code>throng up --only matcher</code>.
        </Empty>
      </Card>
    );
  }
  return (
    <>
      <Trouble of={rooms} />
      {data && (
        <div class="stats">
          <Stat label="Rooms" value={count(data.rooms)} />
          <Stat label="Players" value={count(data.roles)} hint={`${count(data.teams)} teams`} />
          <Stat label="Tickets" value={count(data.tickets)} hint={`${count(data.matches)} matches`} />
          <Stat label="Servers" value={count(data.servers)} hint={`${count(data.sessions)} sessions`} />
          <Stat label="Notifications queued" value={count(data.notices.queued)} hint={`${count(data.notices.collapsed)} merged`} />
        </div>
      )}
      {data && (open ? <Inside query={query} modes={data.modes} /> : <Card><Locked /></Card>)}
      {data && (
        <div class="grid two">
          <Counts title="Requests" of={data.requests} />
          <Counts title="Refusals" of={data.refusals} />
        </div>
      )}
    </>
  );
}

function Counts({ title, of }: { title: string; of: Json }) {
  const rows = Object.entries<number>(of).filter(([, value]) => value > 0);
  return (
    <Card title={title} side="since the start">
      <Table
        caption={title}
        rows={rows}
        id={(row) => row[0]}
        empty="None"
        columns={[
          { head: "Name", wide: true, cell: (row) => <code>{row[0]}</code> },
          { head: "Count", num: true, cell: (row) => count(row[1]) },
        ]}
      />
    </Card>
  );
}

/** Names and data of players, for sessions only. */
function Inside({ query, modes }: { query: URLSearchParams; modes: Json }) {
  const [queue, ticket, room, role] = ["queue", "ticket", "room", "role"].map((name) => query.get(name));
  const queues = usePoll(ask("ListQueues", {}), 2000);
  const rows = Object.entries<Json>(queues.data?.Queues ?? {});
  const chosen = queue || (rows[0]?.[0] ?? null);
  const edits = query.get("edit");
  const subject = edits === "new" ? null : chosen;
  return (
    <>
      <Find key={role} role={role ?? null} />
      {role && <Role key={role} id={role} />}
      {room && <Room key={room} id={room} />}
      {ticket && <Ticket key={ticket} id={ticket} />}
      {edits && queues.data && <Editor key={subject} queue={subject} rules={subject === null ? null : queues.data.Queues[subject]?.RuleSet} done={queues.again} />}
      <Card title="Queues" side={<a href={at({ edit: "new" })}>new queue</a>}>
        <Trouble of={queues} />
        {queues.data && (
          <Table
            caption="Queues"
            rows={rows}
            id={(row) => row[0]}
            selected={chosen}
            empty="No queues; Documents describe how to set up a ranked queue"
            columns={[
              { head: "Queue", wide: true, cell: ([name]) => <a href={at({ queue: name })}>{name}</a> },
              { head: "Rule set", cell: ([name, row]) => <a href={at({ queue: name, edit: "1" })}>{row.Version || "no version"}</a> },
              { head: "Searching", num: true, cell: ([, row]) => count(row.PoolSize) },
            ]}
          />
        )}
      </Card>
      {chosen !== null && <Queue key={chosen} name={chosen} />}
      <RoomList modes={modes} />
    </>
  );
}
