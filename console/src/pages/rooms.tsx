import { useState } from "preact/hooks";
import { session, usePoll, type Json } from "../api.ts";
import { count, duration } from "../format.ts";
import { Badge, Card, Empty, Facts, Locked, Stat, Table, Trouble } from "../ui.tsx";

/** A read method of the matcher's own interface; the request and the answer are the ones of its reference page. */
const ask = (method: string, request: Json) => `matcher?method=${method}&request=${encodeURIComponent(JSON.stringify(request))}`;

export function Rooms({ queue, ticket }: { queue: string | null; ticket: string | null }) {
  const rooms = usePoll("rooms", 1500);
  const open = session.use();
  const data = rooms.data;
  if (data && !data.running) {
    return (
      <Card title="Rooms and queues">
        <Empty title="The matcher is not running">
          Start it beside the gateway with <code>throng up --matcher.addr 127.0.0.1:12110</code>, or alone with{" "}
          <code>throng up --only matcher</code>.
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
          <Stat label="Notices queued" value={count(data.notices.queued)} hint={`${count(data.notices.collapsed)} merged`} />
        </div>
      )}
      {data && (open ? <Inside queue={queue} ticket={ticket} modes={data.modes} /> : <Card><Locked /></Card>)}
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

/** Names and data of players: for sessions only. */
function Inside({ queue, ticket, modes }: { queue: string | null; ticket: string | null; modes: Json }) {
  const queues = usePoll(ask("ListQueues", {}), 2000);
  const rows = Object.entries<Json>(queues.data?.Queues ?? {});
  const chosen = queue ?? rows[0]?.[0] ?? null;
  return (
    <>
      {ticket !== null && <Ticket id={ticket} />}
      <Card title="Queues">
        <Trouble of={queues} />
        {queues.data && (
          <Table
            caption="Queues"
            rows={rows}
            id={(row) => row[0]}
            selected={chosen}
            empty="No queues: see how to run a ranked queue under Documents"
            columns={[
              { head: "Queue", wide: true, cell: ([name]) => <a href={`#/rooms?queue=${encodeURIComponent(name)}`}>{name}</a> },
              { head: "Rule set", cell: ([, row]) => (row.Version ? <code>{row.Version}</code> : "no version") },
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

const milliseconds = (value: Json) => (typeof value === "number" ? duration(value) : "–");

function Queue({ name }: { name: string }) {
  const stats = usePoll(ask("GetQueueStats", { Queue: name }), 2000);
  const tickets = usePoll(ask("ListTickets", { Queue: name }), 2000);
  const data = stats.data;
  return (
    <Card title={`Queue ${name}`} side={data && `${count(data.Matches)} matches, ${data.MatchesPerMinute.toFixed(1)} a minute`}>
      <Trouble of={stats} />
      {data && (
        <Facts
          rows={[
            ["wait, half and nine of ten", `${milliseconds(data.WaitP50Ms)}, ${milliseconds(data.WaitP90Ms)}`],
            ["quality, worst tenth and median", `${data.QualityP10.toFixed(2)}, ${data.QualityP50.toFixed(2)}`],
            ["timed out, cancelled, declined", [data.TimedOut, data.Cancelled, data.Declined].map(count).join(", ")],
          ]}
        />
      )}
      <Trouble of={tickets} />
      {tickets.data && (
        <Table
          caption="Tickets"
          rows={tickets.data.Tickets as Json[]}
          id={(row) => row.TicketID}
          empty="Nobody waits"
          columns={[
            { head: "Players", wide: true, cell: (row) => (row.Players as Json[]).map((player) => player.RoleID).join(", ") },
            { head: "Status", cell: (row) => <Badge tone={row.Status === "searching" ? "info" : row.Status === "matched" ? "good" : "plain"}>{row.Status}</Badge> },
            { head: "Waited", num: true, cell: (row) => milliseconds(row.WaitedMs) },
            { head: "Place", num: true, cell: (row) => count(row.Position + 1) },
            { head: "", cell: (row) => <a href={`#/rooms?queue=${encodeURIComponent(name)}&ticket=${encodeURIComponent(row.TicketID)}`}>why not matched?</a> },
          ]}
        />
      )}
    </Card>
  );
}

function Ticket({ id }: { id: string }) {
  const answer = usePoll(ask("ExplainTicket", { TicketID: id }), 2000);
  const data = answer.data;
  const searches = data?.Ticket.Status === "searching";
  const fails = (list: Json) =>
    (list as Json[]).length === 0 ? <Badge tone="good">can meet</Badge> : (list as Json[]).map((each) => <div key={each.Rule}><code>{each.Rule}</code> {each.Why}</div>);
  return (
    <Card title="Why not matched?" side={<a href="#/rooms">close</a>}>
      <Trouble of={answer} />
      {data && (
        <>
          <p><strong>{searches ? data.Summary : `it does not search: it is ${data.Ticket.Status}`}</strong></p>
          <Facts
            rows={[
              ["ticket", <code>{id}</code>],
              ["status", data.Ticket.Status],
              ["waited", `${milliseconds(data.Ticket.WaitedMs)}, expansion level ${data.Level}`],
              ...(searches ? [["players who fit", `${count(data.Fits)} of ${count(data.Needs)} needed`] as [string, string]] : []),
              ...((data.Fails as Json[]).length > 0 ? [["the best match would violate", fails(data.Fails)] as [string, preact.ComponentChildren]] : []),
            ]}
          />
          {searches && <Table
            caption="Nearest tickets"
            rows={data.Candidates as Json[]}
            id={(row) => row.TicketID}
            empty="There is nobody else"
            columns={[
              { head: "Nearest", cell: (row) => <code>{row.TicketID.slice(-8)}</code> },
              { head: "Players", num: true, cell: (row) => count(row.Players) },
              { head: "Distance", num: true, cell: (row) => row.Distance.toFixed(1) },
              { head: "Waited", num: true, cell: (row) => milliseconds(row.WaitedMs) },
              { head: "In the way", wide: true, cell: (row) => fails(row.Fails) },
            ]}
          />}
        </>
      )}
    </Card>
  );
}

function RoomList({ modes }: { modes: Json }) {
  const names = Object.keys(modes ?? {});
  const [mode, setMode] = useState<string | null>(null);
  const chosen = mode ?? names[0] ?? null;
  const answer = usePoll(chosen === null ? null : ask("ListRooms", { MatchModes: [chosen], Limit: 100 }), 2000);
  const rooms: Json[] = answer.data?.Rooms?.[chosen ?? ""]?.Rooms ?? [];
  return (
    <Card
      title="Rooms"
      side={
        names.length > 0 && (
          <label>
            Mode{" "}
            <select value={chosen ?? ""} onChange={(event) => setMode((event.target as HTMLSelectElement).value)}>
              {names.map((name) => <option key={name} value={name}>{name}: {count(modes[name])}</option>)}
            </select>
          </label>
        )
      }
    >
      {chosen === null ? <Empty title="There are no rooms" /> : <Trouble of={answer} />}
      {answer.data && (
        <Table
          caption="Rooms"
          rows={rooms}
          id={(row) => row.RoomID}
          empty="No visible rooms of this mode"
          columns={[
            { head: "Room", cell: (row) => <code>{row.RoomID}</code> },
            { head: "Players", num: true, cell: (row) => count(row.Members) },
            { head: "Who", wide: true, cell: (row) => Object.keys(row.Roles).slice(0, 12).join(", ") },
            { head: "", cell: (row) => (row.IsFull ? <Badge>full</Badge> : Object.keys(row.Reserved).length > 0 ? <Badge tone="info">seats held</Badge> : <Badge tone="good">open</Badge>) },
          ]}
        />
      )}
    </Card>
  );
}
