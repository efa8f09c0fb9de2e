import { last, live } from "../live.ts";
import { Chart, Spark } from "../chart.tsx";
import { Badge, Card, Empty, Stat, Table } from "../ui.tsx";
import { bytes, count, duration, percent } from "../format.ts";
import { chooseWorld, usePoll, type Json } from "../api.ts";

const perSecond = (value: number | null) => (value === null ? "–" : `${count(value)}/s`);

export function Overview() {
  const state = live.use();
  const closures = usePoll("closures?limit=6", 2000);
  const now = state.now;
  if (now === null) {
    return state.lostSince === null ? (
      <div class="loading" aria-busy="true">Loading…</div>
    ) : (
      <Empty title="The gateway does not answer">Retrying. This page loads as soon as it does.</Empty>
    );
  }
  const shards: Json[] = now.shards;
  return (
    <div class={state.lostSince ? "stale" : ""}>
      <div class="stats">
        <Stat label="Players" value={count(now.clients.connections)}>
          <Spark of="clients.connections" />
        </Stat>
        <Stat label="Game servers" value={count(now.servers.connections)}>
          <Spark of="servers.connections" color="--violet" />
        </Stat>
        <Stat label="Messages in" value={perSecond(last("messages_in"))}>
          <Spark of="messages_in" color="--green" />
        </Stat>
        <Stat label="Messages out" value={perSecond(last("messages_out"))}>
          <Spark of="messages_out" color="--amber" />
        </Stat>
        <Stat label="CPU" value={last("cpu") === null ? "–" : `${last("cpu")!.toFixed(2)} cores`}>
          <Spark of="cpu" color="--rose" />
        </Stat>
        <Stat label="Memory" value={bytes(now.resident_bytes)}>
          <Spark of="memory" color="--violet" />
        </Stat>
      </div>
      <div class="grid two">
        <Card title="Messages" side="per second">
          <Chart
            name="Messages per second"
            format={(v) => (v === null ? "–" : count(v))}
            lines={[
              { label: "in", of: "messages_in", color: "--green" },
              { label: "out", of: "messages_out", color: "--amber" },
            ]}
          />
        </Card>
        <Card title="Traffic" side="bytes per second">
          <Chart
            name="Bytes per second"
            format={(v) => (v === null ? "–" : bytes(v))}
            lines={[
              { label: "in", of: "bytes_in", color: "--green" },
              { label: "out", of: "bytes_out", color: "--amber" },
            ]}
          />
        </Card>
        <Card title="Fan-out" side="messages and merged updates per second">
          <Chart
            name="Fan-out per second"
            format={(v) => (v === null ? "–" : count(v))}
            lines={[
              { label: "messages", of: "fan_out", color: "--accent" },
              { label: "updates", of: "updates", color: "--violet" },
            ]}
          />
        </Card>
        <Card title="Fan-out lateness" side="mean delay after the tick">
          <Chart
            name="Mean lateness of fan-out in milliseconds"
            format={(v) => (v === null ? "–" : `${v.toFixed(v < 1 ? 2 : 1)} ms`)}
            lines={shards.slice(0, 8).map((shard) => ({
              label: `shard ${shard.shard}`,
              of: `shard.${shard.shard}.late`,
              color: ["--accent", "--violet", "--green", "--amber", "--rose"][shard.shard % 5],
            }))}
          />
        </Card>
      </div>
      <Worlds />
      <div class="grid two">
        <Card title="Shards" side="last minute">
          <div class="heats">
            {shards.map((shard) => (
              <ShardHeat key={shard.shard} shard={shard} />
            ))}
          </div>
        </Card>
        <Card title="Recently closed" side={<a href="#/connections?closed">all</a>}>
          <Table
            caption="Recently closed connections"
            rows={closures.data?.closures ?? []}
            id={(row: Json) => `${row.id}-${row.ago_ms}`}
            empty="No closed connections yet"
            columns={[
              { head: "Connection", cell: (row) => <a href={`#/connections/${row.id}`}>{row.id}</a> },
              { head: "Kind", cell: (row) => row.kind },
              { head: "Reason", cell: (row) => <Badge tone={tone(row.reason)}>{row.reason}</Badge> },
              { head: "Ago", num: true, cell: (row) => duration(row.ago_ms) },
            ]}
          />
        </Card>
      </div>
    </div>
  );
}

/** The worlds of the process, where there are several; the fullest first. */
function Worlds() {
  const worlds = usePoll("worlds", 2000);
  const rows: Json[] = [...(worlds.data?.worlds ?? [])].sort((one, other) => other.clients - one.clients);
  if (rows.length < 2) return null;
  const shown = rows.slice(0, 50);
  return (
    <Card title="Worlds" side={rows.length > shown.length ? `the ${shown.length} with the most players of ${count(rows.length)}` : count(rows.length)}>
      <Table
        caption="Worlds"
        rows={shown}
        id={(row: Json) => row.number}
        empty="No worlds"
        columns={[
          { head: "World", cell: (row) => <a href="#/connections" onClick={() => chooseWorld(row.number === 0 ? "" : row.name)}>{row.name}</a> },
          { head: "Class", cell: (row) => row.class ?? "–" },
          { head: "Shard", num: true, cell: (row) => (row.number === 0 ? "all" : row.worker) },
          { head: "Players", num: true, cell: (row) => count(row.clients) },
          { head: "Game servers", num: true, cell: (row) => count(row.servers) },
          { head: "Channels", num: true, cell: (row) => count(row.channels) },
          { head: "In", num: true, cell: (row) => bytes(row.bytes_in) },
          { head: "Out", num: true, cell: (row) => bytes(row.bytes_out) },
        ]}
      />
    </Card>
  );
}

export const tone = (reason: string) =>
  reason === "end_of_stream" || reason === "disconnected" || reason === "shutdown" ? "plain" : reason === "internal" ? "bad" : "warn";

function ShardHeat({ shard }: { shard: Json }) {
  const series = live.value.series;
  const row = (name: string, max: number) => {
    const values = (series[`shard.${shard.shard}.${name}`] ?? []).slice(-60);
    return Array.from({ length: 60 }, (_, i) => {
      const value = values[i - 60 + values.length];
      return value === undefined || value === null ? null : Math.min(1, value / max);
    });
  };
  const strip = (label: string, values: (number | null)[], text: string) => (
    <div class="heat">
      <span class="label">{label}</span>
      <div class="cells" role="img" aria-label={`${label} of shard ${shard.shard}: ${text}`}>
        {values.map((value, i) => (
          <i key={i} data-heat={value === null ? "none" : Math.ceil(value * 6)} />
        ))}
      </div>
      <span class="num">{text}</span>
    </div>
  );
  const busy = last(`shard.${shard.shard}.busy`);
  return (
    <div class="shard">
      <h3>
        Shard {shard.shard}
        {!shard.answers && <Badge tone="bad">does not answer</Badge>}
        <span class="hint">{count(shard.connections)} connections</span>
      </h3>
      {strip("busy", row("busy", 1), percent(busy))}
      {strip("queue", row("mailbox", 1000), `${count(shard.mailbox)} waiting`)}
      {strip("late", row("late", 10), last(`shard.${shard.shard}.late`) === null ? "–" : `${last(`shard.${shard.shard}.late`)!.toFixed(2)} ms`)}
    </div>
  );
}
