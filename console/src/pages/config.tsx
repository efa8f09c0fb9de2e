import { useState } from "preact/hooks";
import { usePoll, type Json } from "../api.ts";
import { bytes, count } from "../format.ts";
import { Badge, Card, Guarded, Table, Trouble, usePaging } from "../ui.tsx";

const amount = (row: Json, value: number) => (/bytes/.test(row.key) ? bytes(value) : count(value));

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
      <Card title="Limits" side="current usage">
        <Trouble of={limits} />
        <div class="bars wide">
          {((limits.data?.limits ?? []) as Json[]).map((row) => (
            <div key={row.key}>
              <code>{row.key}</code>
              <meter min={0} max={row.limit} high={row.limit * 0.8} optimum={0} value={row.used} />
              <span class="num">{amount(row, row.used)} of {amount(row, row.limit)}</span>
            </div>
          ))}
        </div>
      </Card>
      <Card
        title="Configuration"
        side={
          <>
            <label class="check"><input type="checkbox" checked={changed} onChange={(event) => setChanged((event.target as HTMLInputElement).checked)} /> changed keys only</label>
            <input type="search" aria-label="Search keys" placeholder="Search" value={search} onInput={(event) => setSearch((event.target as HTMLInputElement).value)} />
          </>
        }
      >
        <Trouble of={config} />
        {config.data && (
          <>
            <p class="hint">File: <code>{config.data.file ?? "none"}</code>. Flags override the environment, the environment overrides the file.</p>
            <Table
              caption="Configuration"
              rows={rows}
              id={(row) => row.key}
              empty="No key matches"
              columns={[
                { head: "Key", cell: (row) => <span title={row.about}><code>{row.key}</code></span> },
                { head: "Value", wide: true, cell: (row) => <code>{row.value}{row.unit && ` ${row.unit}`}</code> },
                { head: "Origin", cell: (row) => <Badge tone={row.origin === "default" ? "plain" : "info"}>{row.origin}</Badge> },
                { head: "Reload", cell: (row) => (row.reload ? "live" : "restart") },
              ]}
            />
          </>
        )}
      </Card>
      <Audit />
    </>
  );
}

/** The audit log of the admin API. */
function Audit() {
  const paging = usePaging(20);
  const log = usePoll(`audit?${paging.query}`, 3000);
  const parameters = (row: Json) => (row.parameters === null || Object.keys(row.parameters).length === 0 ? "" : JSON.stringify(row.parameters));
  return (
    <Card title="Audit log" side={<>{paging.find}{paging.pager(log.data?.total)}</>}>
      <Trouble of={log} />
      {log.data && (
        <Table
          caption="Audit log"
          rows={log.data.acts as Json[]}
          id={(row) => `${row.time} ${row.from} ${row.what}`}
          empty="No changes yet"
          columns={[
            { head: "Time", cell: (row) => new Date(row.time).toLocaleString("en-GB") },
            { head: "User", cell: (row) => row.who },
            { head: "From", cell: (row) => <code>{row.from ?? "–"}</code> },
            { head: "Action", cell: (row) => <code>{row.what}</code> },
            { head: "Parameters", wide: true, cell: (row) => <code>{parameters(row)}</code> },
            { head: "Result", cell: (row) => <Badge tone={row.status < 300 ? "good" : "warn"}>{row.status < 300 ? "done" : row.status}</Badge> },
          ]}
        />
      )}
    </Card>
  );
}
