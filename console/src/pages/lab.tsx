import { useState } from "preact/hooks";
import { del, post, usePoll, type Json } from "../api.ts";
import { live } from "../live.ts";
import { Chart } from "../chart.tsx";
import { bytes, count, percent } from "../format.ts";
import { Badge, Card, Empty, Guarded, Stat, Table, Trouble } from "../ui.tsx";

export const Lab = () => <Guarded><LabInner /></Guarded>;

function LabInner() {
  const runs = usePoll("runs", 1000);
  const [kind, setKind] = useState("swarm");
  const [players, setPlayers] = useState(200);
  const [seconds, setSeconds] = useState(30);
  const [join, setJoin] = useState((live.value.now?.servers.connections ?? 0) > 0);
  const [test, setTest] = useState("channel single");
  const [problem, setProblem] = useState("");
  const [shown, show] = useState<number | null>(null);
  const report = usePoll(shown === null ? null : `runs/${shown}`, 2000);
  const begin = async (event: Event) => {
    event.preventDefault();
    setProblem("");
    try {
      const body = kind === "swarm" ? { kind, players, seconds, join } : { kind, test };
      show((await post("runs", body)).id);
      runs.again();
    } catch (error) {
      setProblem((error as Error).message);
    }
  };
  const number = (label: string, value: number, set: (value: number) => void, max: number) => (
    <label>
      {label}
      <input type="number" min={1} max={max} value={value} onInput={(event) => set(Number((event.target as HTMLInputElement).value))} />
    </label>
  );
  return (
    <>
      <Trouble of={runs} />
      <div class="grid two">
        <Card title="Start">
          <form class="stack" onSubmit={begin}>
            <div class="segmented" role="group" aria-label="Kind of run">
              <button type="button" aria-pressed={kind === "swarm"} onClick={() => setKind("swarm")}>Swarm on this gateway</button>
              <button type="button" aria-pressed={kind === "bench"} onClick={() => setKind("bench")}>Quick benchmark</button>
            </div>
            {kind === "swarm" ? (
              <div class="row">
                {number("Players", players, setPlayers, 20000)}
                {number("Seconds", seconds, setSeconds, 600)}
                <label class="check">
                  <input type="checkbox" checked={join} onChange={(event) => setJoin((event.target as HTMLInputElement).checked)} /> join the running world
                </label>
              </div>
            ) : (
              <label>
                Test
                <input list="tests" value={test} onInput={(event) => setTest((event.target as HTMLInputElement).value)} />
                <datalist id="tests">
                  {((runs.data?.tests ?? []) as string[]).map((each) => <option key={each} value={each} />)}
                </datalist>
              </label>
            )}
            <div class="row">
              <button class="primary" disabled={runs.data?.offered === false}>Start</button>
              {problem && <span class="problem" role="alert">{problem}</span>}
            </div>
            <p class="hint">Players run in a separate process on this machine and share its cores with the gateway.</p>
          </form>
        </Card>
        <Card title="Now" side="players and messages out per second">
          <Chart name="Players now" height={190} format={(v) => (v === null ? "–" : count(v))} lines={[{ label: "players", of: "clients.connections", color: "--accent" }, { label: "messages out", of: "messages_out", color: "--amber" }]} />
        </Card>
      </div>
      <Card title="Runs">
        <Table
          caption="Runs"
          rows={(runs.data?.runs ?? []) as Json[]}
          id={(row) => row.id}
          selected={shown}
          empty="No runs yet"
          columns={[
            { head: "Run", wide: true, cell: (row) => <button class="link" onClick={() => show(row.id)}>{row.title}</button> },
            { head: "Started", cell: (row) => new Date(row.began_unix_s * 1000).toLocaleTimeString("en-GB") },
            { head: "Result", cell: (row) => <Badge tone={row.running ? "info" : row.outcome === "done" ? "good" : "warn"}>{row.outcome}</Badge> },
            { head: "", cell: (row) => (row.running ? <button onClick={() => del(`runs/${row.id}`).then(runs.again)}>Stop</button> : null) },
          ]}
        />
      </Card>
      {report.data?.report && <Report title={report.data.title} report={report.data.report} />}
      {report.data && !report.data.report && <Card title={report.data.title}><Empty title={report.data.running ? "The report appears when the run has ended" : "This run has no report"} /></Card>}
    </>
  );
}

function Report({ title, report }: { title: string; report: Json }) {
  const run = report.runs?.[0];
  const samples: Json[] = run?.samples ?? [];
  const series = (pick: (sample: Json) => number | null) => samples.map(pick);
  return (
    <Card title={title} side={<Badge tone={report.verdict === "passed" ? "good" : report.verdict === "missed" ? "warn" : undefined}>{report.verdict}</Badge>}>
      {run && (
        <div class="stats">
          <Stat label="Players" value={count(run.players)} />
          <Stat label="Delivered" value={run.expected > 0 ? percent(run.delivered_share) : "–"} hint={`${count(run.delivered)} of ${count(run.expected)}`} />
          <Stat label="State p50" value={`${run.state.p50_ms.toFixed(1)} ms`} />
          <Stat label="State p99" value={`${run.state.p99_ms.toFixed(1)} ms`} />
          <Stat label="Received" value={`${bytes(run.bytes_per_s)}/s`} />
          <Stat label="Lost" value={count(run.lost)} />
        </div>
      )}
      {samples.length > 1 && samples[0].at_s !== undefined && (
        <Chart name="Latency over the run" clock={false} time={series((sample) => sample.at_s) as number[]} format={(v) => (v === null ? "–" : `${v.toFixed(1)} ms`)} lines={[{ label: "p50", of: series((sample) => sample.p50_ms ?? null), color: "--accent" }, { label: "p99", of: series((sample) => sample.p99_ms ?? null), color: "--amber" }]} />
      )}
      {report.rows?.length > 0 && (
        <Table
          caption="Figures"
          rows={report.rows as Json[]}
          id={(row) => row.what}
          columns={[
            { head: "Figure", wide: true, cell: (row) => row.what },
            { head: "Unit", cell: (row) => row.unit },
            { head: "Published", num: true, cell: (row) => count(row.published) },
            { head: "Measured", num: true, cell: (row) => count(row.measured) },
            { head: "Ratio", num: true, cell: (row) => (row.ratio === null ? "–" : `${row.ratio.toFixed(2)}×`) },
          ]}
        />
      )}
      {(report.notes ?? []).map((note: string) => <p class="hint" key={note}>{note}</p>)}
    </Card>
  );
}
