import { useEffect, useRef, useState } from "preact/hooks";
import { usePoll, useStream, type Json } from "../api.ts";
import { last } from "../live.ts";
import { count } from "../format.ts";
import { WorldMap, type Heat, type Picked } from "../map.ts";
import { Badge, Card, Empty, Facts, Table, theme } from "../ui.tsx";

export function MapPage({ connection }: { connection: number | null }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const map = useRef<WorldMap | null>(null);
  const [picked, setPicked] = useState<Picked | null>(null);
  const [heat, setHeat] = useState<Heat>("servers");
  const [dots, setDots] = useState(true);
  const [fps, setFps] = useState("");
  const wanted = picked?.client ?? connection;
  const world = useStream(`stream?topic=world&interval_ms=250&entities=10000${wanted === null ? "" : `&connection=${wanted}`}`);
  const mode = theme.use();
  useEffect(() => {
    const made = new WorldMap(canvas.current!);
    made.onPick = setPicked;
    map.current = made;
    (window as Json).throngMap = made;
    const timer = window.setInterval(() => setFps(`${made.fps} fps, ${count(made.drawn)} drawn`), 500);
    return () => {
      window.clearInterval(timer);
      made.destroy();
    };
  }, []);
  useEffect(() => {
    if (world.data === null || map.current === null) return;
    map.current.take(world.data);
    const own = world.data.interest?.entity?.channel ?? null;
    if (picked === null && connection !== null && own !== null) setPicked(map.current.describe(own));
    else if (picked !== null) setPicked(map.current.describe(picked.channel) ?? picked);
  }, [world.data]);
  useEffect(() => map.current?.restyle(), [mode]);
  if (map.current !== null) {
    map.current.heat = heat;
    map.current.showEntities = dots;
    map.current.selected = picked?.channel ?? null;
  }
  const data = world.data;
  const nothing = data !== null && data.grid === null && data.entity_count === 0;
  const servers: Json[] = data?.grid ? summary(data) : [];
  return (
    <div class={`map-page ${world.stale ? "stale" : ""}`}>
      <Card class="map-card">
        <div class="toolbar">
          <div class="segmented" role="group" aria-label="Colour of cells">
            {(["servers", "entities", "subscribers", "backlog"] as Heat[]).map((each) => (
              <button key={each} aria-pressed={heat === each} onClick={() => setHeat(each)}>
                {each}
              </button>
            ))}
          </div>
          <label class="check">
            <input type="checkbox" checked={dots} onChange={(event) => setDots((event.target as HTMLInputElement).checked)} /> entities
          </label>
          <span class="grow" />
          <span class="hint num">{fps}</span>
          <button onClick={() => map.current?.zoom(1.4)} aria-label="Zoom in">+</button>
          <button onClick={() => map.current?.zoom(1 / 1.4)} aria-label="Zoom out">−</button>
          <button onClick={() => map.current?.fit()}>Fit</button>
        </div>
        <div class="map-box">
          <canvas ref={canvas} tabIndex={0} aria-label="Map of the world: arrow keys move, plus and minus zoom, 0 fits the whole world" />
          {world.problem && <div class="over"><Empty title="No map">{world.problem}</Empty></div>}
          {nothing && (
            <div class="over">
              <Empty title="No world yet">
                No grid is configured and no entity has a position. Try <code>throng demo --spatial</code>.
              </Empty>
            </div>
          )}
        </div>
      </Card>
      <aside>
        <Card title="World">
          <Facts
            rows={[
              ["Entities", data ? count(data.entity_count) : "–"],
              ...(data?.entities_without_position > 0
                ? [["Without position", <Badge tone="warn">{count(data.entities_without_position)}: {data.types_without_position.join(", ")}</Badge>] as [string, Json]]
                : []),
              ["Cells", data ? count(data.cells.length) : "–"],
              ["Handovers", last("handovers") === null ? "–" : `${count(last("handovers"))}/s`],
              ["Between servers", data ? count(data.handovers_across_servers) : "–"],
              ["Cells moved by the balancer", data ? count(data.cells_moved) : "–"],
            ]}
          />
        </Card>
        <Card title="Selected" side={picked && <button onClick={() => setPicked(null)}>Clear</button>}>
          {picked === null ? (
            <p class="hint">Click an entity to see its client's area of interest and update rates.</p>
          ) : (
            <>
              <Facts
                rows={[
                  ["Entity", <a href={`#/channels/${picked.channel}`}>{picked.channel}</a>],
                  ["Client", picked.client === null ? "none" : <a href={`#/connections/${picked.client}`}>{picked.client}</a>],
                  ["Position", `${picked.x.toFixed(1)}, ${picked.z.toFixed(1)}`],
                  ["Cell", picked.cell ?? "–"],
                  ["Handovers", count(picked.version)],
                  ["Cells of interest", data?.interest ? count(data.interest.cells.length) : "–"],
                ]}
              />
              {picked.client !== null && <Rates connection={picked.client} />}
            </>
          )}
        </Card>
        {servers.length > 0 && (
          <Card title="Servers">
            <Table
              caption="Servers"
              rows={servers}
              id={(row) => row.server}
              columns={[
                { head: "Server", cell: (row) => (row.owner === null ? <Badge tone="bad">{row.server}: none</Badge> : <a href={`#/connections/${row.owner}`}>{row.server}</a>) },
                { head: "Cells", num: true, cell: (row) => row.cells },
                { head: "Entities", num: true, cell: (row) => count(row.entities) },
                { head: "Subs", num: true, cell: (row) => count(row.subscribers) },
              ]}
            />
          </Card>
        )}
      </aside>
    </div>
  );
}

/** A client's subscriptions by update rate: its level of detail in figures. */
function Rates({ connection }: { connection: number }) {
  const one = usePoll(`connections/${connection}`, 1500);
  const rates = new Map<number, number>();
  for (const each of one.data?.subscriptions ?? []) {
    if (each.type === "ENTITY") rates.set(each.interval_ms, (rates.get(each.interval_ms) ?? 0) + 1);
  }
  if (rates.size === 0) return null;
  const most = Math.max(...rates.values());
  return (
    <div class="bars" aria-label="Entities by update interval">
      {[...rates].sort((a, b) => a[0] - b[0]).map(([interval, n]) => (
        <div key={interval}>
          <span>{interval} ms</span>
          <meter min={0} max={most} value={n} />
          <span class="num">{n}</span>
        </div>
      ))}
    </div>
  );
}

function summary(world: Json): Json[] {
  const servers = new Map<number, Json>();
  for (const [server, owner, entities, subscribers] of world.cells) {
    const row = servers.get(server) ?? { server, owner: null, cells: 0, entities: 0, subscribers: 0 };
    row.owner ??= owner;
    row.cells += 1;
    row.entities += entities;
    row.subscribers += subscribers;
    servers.set(server, row);
  }
  return [...servers.values()];
}
