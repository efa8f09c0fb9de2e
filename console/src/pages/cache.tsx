import { useState } from "preact/hooks";
import { post, session, usePoll, type Json } from "../api.ts";
import { bytes, count, percent } from "../format.ts";
import { Badge, Card, Empty, Facts, Stat, Table, Trouble } from "../ui.tsx";

const words = (name: string) => name.replaceAll("_", " ");
const figure = (name: string, value: Json) =>
  typeof value !== "number" ? String(value) : name.endsWith("bytes") ? bytes(value) : count(value);
const facts = (value: Json): [string, string][] => Object.entries<Json>(value).map(([name, each]) => [words(name), figure(name, each)]);

export function Cache() {
  const cache = usePoll("cache", 1500);
  const open = session.use();
  const [problem, setProblem] = useState("");
  const data = cache.data;
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
          </div>
          <div class="grid two">
            <Card title="Maintenance" side={data.caring ? <Badge tone="info">running</Badge> : undefined}>
              <Facts
                rows={[
                  ["garbage collections", count(data.collections.count)],
                  ["removed refs", count(data.collections.refs)],
                  ["removed blobs", `${count(data.collections.blobs)}, ${bytes(data.collections.blob_bytes)}`],
                  ["scrubbed", bytes(data.scrubbed_bytes)],
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
          <Card title="Namespaces">
            <Table caption="Namespaces" rows={(data.namespaces ?? []) as string[]} id={(row) => row} empty="The cache is empty" columns={[{ head: "Name", wide: true, cell: (row) => <code>{row}</code> }]} />
          </Card>
        </>
      )}
    </>
  );
}
