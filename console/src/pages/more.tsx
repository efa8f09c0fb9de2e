import { useEffect, useRef, useState } from "preact/hooks";
import { call, del, get, post, session, usePoll, type Json } from "../api.ts";
import { live } from "../live.ts";
import { Chart } from "../chart.tsx";
import { bytes, count, duration, percent } from "../format.ts";
import { Badge, Card, Empty, Facts, Fields, Guarded, Stat, Table, Trouble } from "../ui.tsx";
import { markdown } from "../markdown.tsx";

export function Rooms() {
  const rooms = usePoll("rooms", 1500);
  const data = rooms.data;
  return (
    <>
      <Trouble of={rooms} />
      {data && !data.running && (
        <Card title="Rooms and queues">
          <Empty title="The matcher is not running">
            No matcher is part of this process. Rooms, queues and tickets appear here when one is.
          </Empty>
        </Card>
      )}
      {data?.running && (
        <>
          <div class="stats">
            {Object.entries<Json>(data)
              .filter(([, value]) => typeof value === "number")
              .map(([name, value]) => <Stat key={name} label={name.replaceAll("_", " ")} value={count(value)} />)}
          </div>
          <Card title="State">
            <div class="fields"><Fields value={data} name="matcher" /></div>
          </Card>
        </>
      )}
    </>
  );
}

export function Cache() {
  const cache = usePoll("cache", 1500);
  const data = cache.data;
  return (
    <>
      <Trouble of={cache} />
      {data && !data.running && (
        <Card title="Derived-data cache">
          <Empty title="The cache is not running">
            Start it beside the gateway with <code>throng up --ddc.addr 127.0.0.1:8558</code>, or alone with{" "}
            <code>throng up --only ddc</code>; the printed block has the line for the Unreal project.
          </Empty>
        </Card>
      )}
      {data?.running && (
        <>
          <div class="stats">
            <Stat label="Hit rate of refs" value={percent(data.refs.hit_ratio)} hint={`${count(data.refs.hits)} of ${count(data.refs.hits + data.refs.misses)}`} />
            <Stat label="Hit rate of blobs" value={percent(data.blobs.hit_ratio)} hint={`${count(data.blobs.hits)} of ${count(data.blobs.hits + data.blobs.misses)}`} />
            <Stat label="Requests" value={count(data.requests)} hint={`${count(data.failures)} failed`} />
            <Stat label="Received" value={bytes(data.bytes_in)} />
            <Stat label="Sent" value={bytes(data.bytes_out)} />
          </div>
          <div class="grid two">
            <Card title="Namespaces">
              <Table caption="Namespaces" rows={(data.namespaces ?? []) as string[]} id={(row) => row} empty="Nothing is stored yet" columns={[{ head: "Name", wide: true, cell: (row) => <code>{row}</code> }]} />
            </Card>
            <Card title="Store">
              <Facts
                rows={Object.entries<Json>(data.store).map(([name, value]) => [
                  name.replaceAll("_", " "),
                  typeof value === "number" ? (name.endsWith("bytes") ? bytes(value) : count(value)) : String(value),
                ])}
              />
            </Card>
          </div>
        </>
      )}
    </>
  );
}

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
            <div class="segmented" role="group" aria-label="What to start">
              <button type="button" aria-pressed={kind === "swarm"} onClick={() => setKind("swarm")}>Swarm on this gateway</button>
              <button type="button" aria-pressed={kind === "bench"} onClick={() => setKind("bench")}>Quick benchmark</button>
            </div>
            {kind === "swarm" ? (
              <div class="row">
                {number("Players", players, setPlayers, 20000)}
                {number("Seconds", seconds, setSeconds, 600)}
                <label class="check">
                  <input type="checkbox" checked={join} onChange={(event) => setJoin((event.target as HTMLInputElement).checked)} /> join the world that is there
                </label>
              </div>
            ) : (
              <label>
                Test
                <input list="tests" value={test} onInput={(event) => setTest((event.target as HTMLInputElement).value)} />
                <datalist id="tests">
                  {["channel single", "channel spatial", "channel entity-lod", "channel idle", "gateway rpc"].map((each) => <option key={each} value={each} />)}
                </datalist>
              </label>
            )}
            <div class="row">
              <button class="primary" disabled={runs.data?.offered === false}>Start</button>
              {problem && <span class="problem" role="alert">{problem}</span>}
            </div>
            <p class="hint">Players run in a process of their own on this machine, so both share its cores.</p>
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
            { head: "Began", cell: (row) => new Date(row.began_unix_s * 1000).toLocaleTimeString("en-GB") },
            { head: "Outcome", cell: (row) => <Badge tone={row.running ? "info" : row.outcome === "done" ? "good" : "warn"}>{row.outcome}</Badge> },
            { head: "", cell: (row) => (row.running ? <button onClick={() => del(`runs/${row.id}`).then(runs.again)}>Stop</button> : null) },
          ]}
        />
      </Card>
      {report.data?.report && <Report title={report.data.title} report={report.data.report} />}
      {report.data && !report.data.report && <Card title={report.data.title}><Empty title={report.data.running ? "The report comes when the run has ended" : "This run left no report"} /></Card>}
    </>
  );
}

function Report({ title, report }: { title: string; report: Json }) {
  const run = report.runs?.[0];
  const samples: Json[] = run?.samples ?? [];
  const series = (pick: (sample: Json) => number | null) => samples.map(pick);
  return (
    <Card title={title} side={report.passed ? <Badge tone="good">passed</Badge> : <Badge tone="warn">not passed</Badge>}>
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

export const Packets = () => <Guarded><PacketsInner /></Guarded>;

function PacketsInner() {
  const [rows, setRows] = useState<Json[]>([]);
  const [state, setState] = useState<Json>(null);
  const [error, setError] = useState<Error | null>(null);
  const [conn, setConn] = useState("");
  const [open, setOpen] = useState<number | null>(null);
  const [paused, setPaused] = useState(false);
  const [only, setOnly] = useState("");
  const after = useRef(0);
  useEffect(() => {
    if (paused) return;
    let timer = 0;
    let over = false;
    const turn = async () => {
      try {
        const answer = await get(`capture?after=${after.current}`);
        if (over) return;
        if (answer.total < after.current) {
          after.current = 0;
          setRows([]);
        }
        setState(answer);
        setError(null);
        if (answer.messages.length > 0) {
          after.current = answer.messages.at(-1).number;
          setRows((old) => [...answer.messages.reverse(), ...old].slice(0, 512));
        }
      } catch (failure) {
        setError(failure as Error);
      }
      if (!over) timer = window.setTimeout(turn, 400);
    };
    void turn();
    return () => {
      over = true;
      window.clearTimeout(timer);
    };
  }, [paused]);
  const begin = async (event: Event) => {
    event.preventDefault();
    try {
      await post("capture", { connection: Number(conn), seconds: 120 });
      after.current = 0;
      setRows([]);
      setError(null);
    } catch (failure) {
      setError(failure as Error);
    }
  };
  const shown = rows.filter((row) => only === "" || `${row.name} ${row.channel}`.toLowerCase().includes(only.toLowerCase()));
  return (
    <>
      <Card
        title="Capture"
        side={state?.connection !== undefined && (
          <>
            <Badge tone={state.capturing ? "good" : "plain"}>{state.capturing ? `connection ${state.connection}, ${duration(state.left_ms)} left` : `ended: ${state.ended}`}</Badge>
            <button onClick={() => setPaused(!paused)}>{paused ? "Go on" : "Pause"}</button>
            <button onClick={() => del("capture").then(() => { setRows([]); after.current = 0; })}>Forget</button>
          </>
        )}
      >
        <form class="row" onSubmit={begin}>
          <label>
            Connection
            <input inputMode="numeric" pattern="[0-9]+" required value={conn} onInput={(event) => setConn((event.target as HTMLInputElement).value)} placeholder="id" />
          </label>
          <button class="primary">Capture for two minutes</button>
          <label>
            Only
            <input type="search" placeholder="type or channel" value={only} onInput={(event) => setOnly((event.target as HTMLInputElement).value)} />
          </label>
        </form>
        <p class="hint">At most 512 messages are kept. Logins are left out. The connection itself is not touched.</p>
        {error && <div class="trouble slim" role="alert">{error.message}</div>}
      </Card>
      <Card title="Messages" side={state ? `${count(state.total)} so far` : ""}>
        {shown.length === 0 ? (
          <Empty title="No messages">{state?.connection === undefined ? "Choose a connection, here or on its page." : "None have crossed since the capture began."}</Empty>
        ) : (
          <ol class="packets">
            {shown.map((row) => (
              <li key={row.number}>
                <button aria-expanded={open === row.number} onClick={() => setOpen(open === row.number ? null : row.number)}>
                  <span class="num">{(row.at_ms / 1000).toFixed(3)}</span>
                  <span class={row.in ? "in" : "out"}>{row.in ? "→ in" : "← out"}</span>
                  <span class="name">{row.name}</span>
                  <span>channel {row.channel}</span>
                  <span class="num">{bytes(row.bytes)}</span>
                </button>
                {open === row.number && (
                  <div class="fields">
                    {row.fields === null ? <code class="hex">{row.hex === "" ? "not kept" : row.hex.replace(/(..)/g, "$1 ")}</code> : <Fields name={row.name} value={row.fields} />}
                  </div>
                )}
              </li>
            ))}
          </ol>
        )}
      </Card>
    </>
  );
}

export const Config = () => <Guarded><ConfigInner /></Guarded>;

function ConfigInner() {
  const config = usePoll("config", 10_000);
  const limits = usePoll("limits", 2000);
  const [search, setSearch] = useState("");
  const [changed, setChanged] = useState(false);
  const rows = ((config.data?.keys ?? []) as Json[]).filter(
    (row) => (!changed || row.origin !== "default") && `${row.key} ${row.about} ${row.value}`.toLowerCase().includes(search.toLowerCase()),
  );
  return (
    <>
      <Card title="Limits" side="in use now">
        <Trouble of={limits} />
        <div class="bars wide">
          {((limits.data?.limits ?? []) as Json[]).map((row) => (
            <div key={row.key}>
              <code>{row.key}</code>
              <meter min={0} max={row.limit} high={row.limit * 0.8} optimum={0} value={row.used} />
              <span class="num">{count(row.used)} of {count(row.limit)}</span>
            </div>
          ))}
        </div>
      </Card>
      <Card
        title="Configuration"
        side={
          <>
            <label class="check"><input type="checkbox" checked={changed} onChange={(event) => setChanged((event.target as HTMLInputElement).checked)} /> only what was set</label>
            <input type="search" aria-label="Search keys" placeholder="Search" value={search} onInput={(event) => setSearch((event.target as HTMLInputElement).value)} />
          </>
        }
      >
        <Trouble of={config} />
        {config.data && (
          <>
            <p class="hint">File: <code>{config.data.file ?? "none"}</code>. A flag outweighs the environment, that the file, that the default.</p>
            <Table
              caption="Configuration"
              rows={rows}
              id={(row) => row.key}
              empty="No key matches"
              columns={[
                { head: "Key", cell: (row) => <span title={row.about}><code>{row.key}</code></span> },
                { head: "Value", wide: true, cell: (row) => <code>{row.value}{row.unit && ` ${row.unit}`}</code> },
                { head: "Origin", cell: (row) => <Badge tone={row.origin === "default" ? "plain" : "info"}>{row.origin}</Badge> },
                { head: "Reload", cell: (row) => (row.reload ? "at once" : "restart") },
              ]}
            />
          </>
        )}
      </Card>
    </>
  );
}

export function About() {
  const about = usePoll("about", 5000);
  const open = session.use();
  const [token, setToken] = useState("");
  const [invite, setInvite] = useState("");
  const [problem, setProblem] = useState("");
  const data = about.data;
  const enter = async (event: Event) => {
    event.preventDefault();
    try {
      await call("POST", "session", { token: token.replace(/^.*#token=/, "") });
      session.set(true);
      setProblem("");
    } catch (error) {
      setProblem((error as Error).message);
    }
    setToken("");
  };
  const fuzz = data?.reliability?.fuzz;
  return (
    <>
      <Trouble of={about} />
      <div class="grid two">
        <Card title="This process">
          {data && (
            <Facts
              rows={[
                ["Version", `${data.version}${data.debug ? " (unoptimised)" : ""}`],
                ["Target", data.target],
                ["Started", new Date(data.started_unix_ms).toLocaleString("en-GB")],
                ["Shards", data.shards],
                ...data.addresses.map((each: Json): [string, string] => [each.service, `${each.scheme}://${each.address}`]),
                ...data.parts.map((part: Json): [string, preact.ComponentChildren] => [part.name, <Badge tone={part.ok ? "good" : "bad"}>{part.detail}</Badge>]),
              ]}
            />
          )}
        </Card>
        <Card title="Session">
          {open ? (
            <>
              <p>This browser has a session. It ends after twelve hours.</p>
              <div class="row">
                <button onClick={() => post("session/tokens").then(({ token }) => setInvite(`${location.origin}/console/#token=${token}`))}>Address for another browser</button>
                <button onClick={() => del("session").then(() => session.set(false))}>End session</button>
              </div>
              {invite && <p class="hint">Good for one use: <code class="hex">{invite}</code></p>}
            </>
          ) : (
            <form class="stack" onSubmit={enter}>
              <label>
                Token
                <input type="password" autocomplete="off" required value={token} onInput={(event) => setToken((event.target as HTMLInputElement).value)} placeholder="one-time token, or one of http.tokens_file" />
              </label>
              <div class="row">
                <button class="primary">Open a session</button>
                {problem && <span class="problem" role="alert">{problem}</span>}
              </div>
            </form>
          )}
        </Card>
      </div>
      {fuzz && (
        <Card title="Reliability ledger" side={`${fuzz.date}, ${fuzz.commit}`}>
          <div class="stats">
            <Stat label="Inputs tried at random" value={count(Object.values<number>(fuzz.executions).reduce((sum, n) => sum + n, 0))} hint={`${Object.keys(fuzz.executions).length} targets`} />
            <Stat label="Open crashes" value={count(fuzz.open_crashes)} />
          </div>
          <Table caption="Targets" rows={Object.entries<number>(fuzz.executions)} id={(row) => row[0]} columns={[{ head: "Target", wide: true, cell: (row) => row[0] }, { head: "Inputs", num: true, cell: (row) => count(row[1]) }]} />
          <h3>Found and fixed</h3>
          <ul class="prose">{fuzz.found.map((each: string) => <li key={each}>{each}</li>)}</ul>
        </Card>
      )}
    </>
  );
}

export function Docs({ path }: { path: string | null }) {
  const [list, setList] = useState<[string, string][]>([]);
  const [text, setText] = useState("");
  const current = path ?? "tutorial/first-gateway.md";
  useEffect(() => void fetch("./docs").then((response) => response.json()).then(setList, () => {}), []);
  useEffect(() => {
    setText("");
    void fetch(`./docs/${current}`).then(async (response) => setText(response.ok ? await response.text() : "# No such page"), () => setText("# The gateway does not answer"));
  }, [current]);
  const groups = new Map<string, [string, string][]>();
  for (const entry of list) {
    const group = entry[0].includes("/") ? entry[0].split("/")[0] : "explanation";
    groups.set(group, [...(groups.get(group) ?? []), entry]);
  }
  return (
    <div class="with-tree">
      <Card title="Documents" class="tree">
        {[...groups].map(([group, entries]) => (
          <div key={group}>
            <h3>{group}</h3>
            <ul>{entries.map(([each, title]) => <li key={each}><a aria-current={each === current ? "true" : undefined} href={`#/docs/${each}`}>{title}</a></li>)}</ul>
          </div>
        ))}
      </Card>
      <Card class="prose">{markdown(text, current)}</Card>
    </div>
  );
}
