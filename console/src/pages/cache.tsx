import { useEffect, useState } from "preact/hooks";
import { post, session, usePoll, type Json } from "../api.ts";
import { Chart } from "../chart.tsx";
import { bytes, count, duration, percent } from "../format.ts";
import { Badge, Card, Empty, Facts, Stat, Table, Trouble } from "../ui.tsx";

const words = (name: string) => name.replaceAll("_", " ");
const figure = (name: string, value: Json) =>
  typeof value !== "number" ? String(value) : name.endsWith("bytes") ? bytes(value) : count(value);
const facts = (value: Json): [string, string][] => Object.entries<Json>(value).map(([name, each]) => [words(name), figure(name, each)]);

/** Points that are kept while the page is open: half an hour. */
const POINTS_MAX = 1200;

/** Counters of refs and bytes on the disk, a point per poll. */
function useSeries(data: Json): Json[] {
  const [points, set] = useState<Json[]>([]);
  useEffect(() => {
    if (data?.running) set((old) => [...old, { ...data.refs, bytes: data.disk.used_bytes, at: Date.now() / 1000 }].slice(-POINTS_MAX));
  }, [data]);
  return points;
}

function Charts({ points }: { points: Json[] }) {
  const time = points.map((point) => point.at);
  const rates = points.map((point, index) => {
    const before = points[index - 1] ?? point;
    const [hits, misses] = [point.hits - before.hits, point.misses - before.misses];
    return hits + misses > 0 ? hits / (hits + misses) : null;
  });
  return (
    <div class="grid two">
      <Card title="Hit rate of refs">
        <Chart name="Hit rate of refs" height={150} time={time} format={percent} lines={[{ label: "hit rate", of: rates, color: "--accent" }]} />
      </Card>
      <Card title="Size">
        <Chart name="Size" height={150} time={time} format={bytes} lines={[{ label: "on the disk", of: points.map((point) => point.bytes), color: "--accent" }]} />
      </Card>
    </div>
  );
}

export function Cache() {
  const cache = usePoll("cache", 1500);
  const open = session.use();
  const [problem, setProblem] = useState("");
  const data = cache.data;
  const points = useSeries(data);
  const begin = (what: string) => async () => {
    setProblem("");
    try {
      await post(`cache/${what}`);
    } catch (error) {
      setProblem((error as Error).message);
    }
    cache.again();
  };
  return (
    <>
      <Trouble of={cache} />
      {data && !data.running && (
        <Card title="Derived-data cache">
          <Empty title="The cache is not running">
            Start it with <code>--ddc.addr 127.0.0.1:8558</code>, or alone with <code>throng up --only ddc</code>, which prints
            the lines for the Unreal project.
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
            <Stat label="On the disk" value={bytes(data.disk.used_bytes)} hint={`${bytes(data.disk.free_bytes)} free, at most ${bytes(data.disk.bytes_max)}`} />
          </div>
          {data.disk.full && <p class="problem" role="alert">The disk is nearly full: uploads are refused.</p>}
          {data.disk.index_damaged && <p class="problem" role="alert">The index is damaged: a restart rebuilds it.</p>}
          {points.length > 1 && <Charts points={points} />}
          <div class="grid two">
            <Card title="Maintenance" side={data.caring ? <Badge tone="info">running</Badge> : undefined}>
              <Facts
                rows={[
                  ["garbage collections", count(data.collections.count)],
                  ["removed refs", count(data.collections.refs)],
                  ["removed blobs", `${count(data.collections.blobs)}, ${bytes(data.collections.blob_bytes)}`],
                  ["scrubbed", bytes(data.scrubbed_bytes)],
                  ["failed runs", data.upkeep_failures > 0 ? <Badge tone="bad">{count(data.upkeep_failures)}</Badge> : "none"],
                  ["damaged blobs", data.damaged > 0 ? <Badge tone="bad">{count(data.damaged)}</Badge> : "none"],
                ]}
              />
              <div class="row">
                <button disabled={!open || data.caring} onClick={begin("collect")}>Collect garbage now</button>
                <button disabled={!open || data.caring} onClick={begin("scrub")}>Scrub now</button>
                {problem && <span class="problem" role="alert">{problem}</span>}
              </div>
              {!open && <p class="hint">Starting one requires a console session.</p>}
            </Card>
            <Card title="Store"><Facts rows={facts(data.store)} /></Card>
          </div>
          <Card title="Evicted next" side={<span class="hint">from {bytes(data.eviction.begins_at_bytes)} on the disk</span>}>
            <Table
              caption="Evicted next"
              rows={data.eviction.next as Json[]}
              id={(row) => `${row.namespace}/${row.kind}/${row.name}`}
              empty={data.sizes.length > 0 ? "Nothing can be evicted" : "Not counted yet"}
              columns={[
                { head: "Namespace", cell: (row) => <code>{row.namespace}</code> },
                { head: "Kind", cell: (row) => row.kind },
                { head: "Name", wide: true, cell: (row) => <code>{row.name}</code> },
                { head: "Unused for", num: true, cell: (row) => duration(Math.max(0, Date.now() - row.used_unix_s * 1000)) },
              ]}
            />
          </Card>
          <Card title="Namespaces">
            <Table
              caption="Namespaces"
              rows={((data.namespaces ?? []) as string[]).map((namespace) => data.sizes.find((row: Json) => row.namespace === namespace) ?? { namespace })}
              id={(row) => row.namespace}
              empty="The cache is empty"
              columns={[
                { head: "Name", wide: true, cell: (row) => <code>{row.namespace}</code> },
                { head: "Refs", num: true, cell: (row) => count(row.refs) },
                { head: "Blobs", num: true, cell: (row) => count(row.blobs) },
                { head: "Size", num: true, cell: (row) => bytes(row.blob_bytes) },
              ]}
            />
          </Card>
        </>
      )}
    </>
  );
}
