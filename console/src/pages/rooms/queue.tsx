// A queue: wait times and match quality over time, and its tickets.
import { useEffect, useState } from "preact/hooks";
import { usePoll, type Json } from "../../api.ts";
import { Chart } from "../../chart.tsx";
import { count, duration } from "../../format.ts";
import { Badge, Card, Facts, Table, Trouble } from "../../ui.tsx";
import { ask, at, milliseconds } from "./ask.ts";

/** Points that are kept while a page is open: half an hour. */
const POINTS_MAX = 900;

/** The history of a queue's figures, a point per poll. */
function useSeries(data: Json): Json[] {
  const [points, set] = useState<Json[]>([]);
  useEffect(() => {
    if (data) set((old) => [...old, { ...data, at: Date.now() / 1000 }].slice(-POINTS_MAX));
  }, [data]);
  return points;
}

export function Queue({ name }: { name: string }) {
  const stats = usePoll(ask("GetQueueStats", { Queue: name }), 2000);
  const tickets = usePoll(ask("ListTickets", { Queue: name }), 2000);
  const data = stats.data;
  const points = useSeries(data);
  return (
    <Card title={`Queue ${name}`} side={<a href={at({ queue: name, edit: "1" })}>edit rules</a>}>
      <Trouble of={stats} />
      {data && (
        <Facts
          rows={[
            ["matches", `${count(data.Matches)}, ${data.MatchesPerMinute.toFixed(1)} per minute`],
            ["wait time p50 / p90", `${milliseconds(data.WaitP50Ms)} / ${milliseconds(data.WaitP90Ms)}`],
            ["quality p10 / p50", `${data.QualityP10.toFixed(2)} / ${data.QualityP50.toFixed(2)}`],
            ["timed out, cancelled, declined", [data.TimedOut, data.Cancelled, data.Declined].map(count).join(", ")],
          ]}
        />
      )}
      {points.length > 1 && <Charts points={points} />}
      <Trouble of={tickets} />
      {tickets.data && (
        <Table
          caption="Tickets"
          rows={tickets.data.Tickets as Json[]}
          id={(row) => row.TicketID}
          empty="No tickets"
          columns={[
            { head: "Players", wide: true, cell: (row) => (row.Players as Json[]).map((player) => <span key={player.RoleID}><a href={at({ role: player.RoleID })}>{player.RoleID}</a> </span>) },
            { head: "Status", cell: (row) => <Badge tone={row.Status === "searching" ? "info" : row.Status === "matched" ? "good" : "plain"}>{row.Status}</Badge> },
            { head: "Waited", num: true, cell: (row) => milliseconds(row.WaitedMs) },
            { head: "Position", num: true, cell: (row) => count(row.Position + 1) },
            { head: "", cell: (row) => <a href={at({ queue: name, ticket: row.TicketID })}>why not matched?</a> },
          ]}
        />
      )}
    </Card>
  );
}

function Charts({ points }: { points: Json[] }) {
  const time = points.map((point) => point.at);
  const line = (label: string, member: string, color: string, scale = 1) => ({ label, color, of: points.map((point) => (point[member] === undefined ? null : point[member] * scale)) });
  const number = (value: number | null) => (value === null ? "–" : count(value));
  return (
    <div class="grid two">
      <Chart name="Wait time" height={150} time={time} format={(v) => (v === null ? "–" : duration(v))} lines={[line("wait time p50", "WaitP50Ms", "--accent"), line("wait time p90", "WaitP90Ms", "--amber")]} />
      <Chart name="Quality" height={150} time={time} format={(v) => (v === null ? "–" : v.toFixed(2))} lines={[line("quality p50", "QualityP50", "--accent"), line("quality p10", "QualityP10", "--amber")]} />
      <Chart name="Searching" height={150} time={time} format={number} lines={[line("tickets searching", "PoolSize", "--accent")]} />
      <Chart name="Matches per minute" height={150} time={time} format={(v) => (v === null ? "–" : v.toFixed(1))} lines={[line("matches per minute", "MatchesPerMinute", "--accent")]} />
    </div>
  );
}

export function Ticket({ id }: { id: string }) {
  const answer = usePoll(ask("ExplainTicket", { TicketID: id }), 2000);
  const data = answer.data;
  const searches = data?.Ticket.Status === "searching";
  const fails = (list: Json) =>
    (list as Json[]).length === 0 ? <Badge tone="good">can match</Badge> : (list as Json[]).map((each) => <div key={each.Rule}><code>{each.Rule}</code> {each.Why}</div>);
  return (
    <Card title="Why not matched?" side={<a href="#/rooms">close</a>}>
      <Trouble of={answer} />
      {data && (
        <>
          <p><strong>{searches ? data.Summary : `the ticket is not searching: it is ${data.Ticket.Status}`}</strong></p>
          <Facts
            rows={[
              ["ticket", <code>{id}</code>],
              ["status", data.Ticket.Status],
              ["waited", `${milliseconds(data.Ticket.WaitedMs)}, expansion level ${data.Level}`],
              ...(searches ? [["fitting players", `${count(data.Fits)} of ${count(data.Needs)} needed`] as [string, string]] : []),
              ...((data.Fails as Json[]).length > 0 ? [["violated by the best match", fails(data.Fails)] as [string, preact.ComponentChildren]] : []),
            ]}
          />
          {searches && <Table
            caption="Nearest tickets"
            rows={data.Candidates as Json[]}
            id={(row) => row.TicketID}
            empty="No other tickets"
            columns={[
              { head: "Nearest", cell: (row) => <code>{row.TicketID.slice(-8)}</code> },
              { head: "Players", num: true, cell: (row) => count(row.Players) },
              { head: "Distance", num: true, cell: (row) => row.Distance.toFixed(1) },
              { head: "Waited", num: true, cell: (row) => milliseconds(row.WaitedMs) },
              { head: "Obstacles", wide: true, cell: (row) => fails(row.Fails) },
            ]}
          />}
        </>
      )}
    </Card>
  );
}
