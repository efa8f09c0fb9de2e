import { useEffect, useState } from "preact/hooks";
import { get, session, usePoll, type Json } from "../api.ts";
import { live } from "../live.ts";
import { bytes, count } from "../format.ts";
import { Badge, Card, Empty, Facts, Fields, Locked, Stale, Table, Trouble, usePaging } from "../ui.tsx";
import { SubscriptionTable } from "./connections.tsx";

export function Channels({ type }: { type: string | null }) {
  const paging = usePaging();
  const filter = type === null ? "" : `&type=${encodeURIComponent(type)}`;
  const list = usePoll(`channels?${paging.query}${filter}`, 1500);
  const types = Object.entries<number>(live.use().now?.channels ?? {});
  return (
    <div class="with-tree">
      <Card title="Types" class="tree">
        <ul>
          <li>
            <a aria-current={type === null ? "true" : undefined} href="#/channels">
              All <span>{count(types.reduce((sum, [, n]) => sum + n, 0))}</span>
            </a>
            <ul>
              {types.map(([name, n]) => (
                <li key={name}>
                  <a aria-current={type === name ? "true" : undefined} href={`#/channels?type=${encodeURIComponent(name)}`}>
                    {name} <span>{count(n)}</span>
                  </a>
                </li>
              ))}
            </ul>
          </li>
        </ul>
      </Card>
      <Card title={type ?? "Channels"} side={<>{paging.find}{paging.pager(list.data?.total)}</>}>
        <Trouble of={list} />
        {list.data && (
          <Stale of={list}>
            <Table
              caption="Channels"
              rows={list.data.channels}
              id={(row: Json) => row.id}
              empty="No channel matches"
              columns={[
                { head: "Id", cell: (row) => <a href={`#/channels/${row.id}`}>{row.id}</a> },
                { head: "Type", cell: (row) => row.type },
                { head: "Metadata", wide: true, cell: (row) => row.metadata || "–" },
                { head: "Owner", num: true, cell: (row) => (row.owner === null ? "–" : <a href={`#/connections/${row.owner}`}>{row.owner}</a>) },
                { head: "Subscribers", num: true, cell: (row) => count(row.subscriptions) },
                { head: "Cohorts", num: true, cell: (row) => count(row.cohorts) },
                { head: "Data", num: true, cell: (row) => bytes(row.data_bytes) },
                { head: "Backlog", num: true, cell: (row) => count(row.backlog_updates) },
              ]}
            />
          </Stale>
        )}
      </Card>
    </div>
  );
}

export function Channel({ id }: { id: number }) {
  const paging = usePaging(50);
  const one = usePoll(`channels/${id}?${paging.query}`, 1000);
  const data = one.data;
  return (
    <>
      <p class="crumbs">
        <a href="#/channels">Channels</a> / {id}
      </p>
      <Trouble of={one} />
      {data && (
        <Stale of={one}>
          <div class="grid two">
            <Card title={`${data.channel.type} ${id}`}>
              <Facts
                rows={[
                  ["Metadata", data.channel.metadata || "–"],
                  ["Owner", data.channel.owner === null ? "none" : <a href={`#/connections/${data.channel.owner}`}>{data.channel.owner}</a>],
                  ["Shard", data.channel.shard],
                  ["Subscribers", count(data.channel.subscriptions)],
                  ["Lost subscribers", count(data.channel.lost)],
                  ["Data type", data.channel.data_type ? <code>{data.channel.data_type}</code> : "no data"],
                  ["Data", `${bytes(data.channel.data_bytes)} encoded, ${bytes(data.channel.data_memory_bytes)} in memory`],
                  ["Backlog", `${count(data.channel.backlog_updates)} updates, ${bytes(data.channel.backlog_bytes)}`],
                ]}
              />
            </Card>
            <Card title="Cohorts" side="subscribers that share one encoding">
              <Table
                caption="Cohorts"
                rows={data.cohorts as Json[]}
                id={(row) => `${row.interval_ms}/${row.phase_ms}/${row.masked}/${row.members}`}
                empty="No fan-out yet"
                columns={[
                  { head: "Interval", num: true, cell: (row) => `${row.interval_ms} ms` },
                  { head: "Phase", num: true, cell: (row) => `${row.phase_ms} ms` },
                  { head: "Members", num: true, cell: (row) => count(row.members) },
                  { head: "Catching up", num: true, cell: (row) => count(row.catching_up) },
                  { head: "Pending", num: true, cell: (row) => count(row.pending_updates) },
                  { head: "Fields", cell: (row) => (row.masked ? <Badge tone="info">masked</Badge> : "all") },
                ]}
              />
            </Card>
          </div>
          <Data id={id} />
          <Card title="Subscribers" side={paging.pager(data.total)}>
            <SubscriptionTable rows={data.subscriptions} of="connection" />
          </Card>
        </Stale>
      )}
    </>
  );
}

function Data({ id }: { id: number }) {
  const may = session.use();
  const [state, set] = useState<{ data: Json; error: Error | null } | null>(null);
  const load = () => get(`channels/${id}/data`).then((data) => set({ data, error: null }), (error) => set({ data: null, error }));
  useEffect(() => {
    set(null);
    if (may) void load();
  }, [id, may]);
  return (
    <Card title="Data" side={<button disabled={!may} onClick={load}>Reload</button>}>
      {!may && <Locked />}
      {state?.error && <Empty title="No data to show">{state.error.message}</Empty>}
      {state?.data &&
        (state.data.fields === null ? (
          <Empty title="No schema for this type">
            {state.data.type}, {bytes(state.data.bytes)}. Add its .proto with <code>--schema</code>.
          </Empty>
        ) : (
          <div class="fields">
            <Fields name={state.data.type} value={state.data.fields} />
          </div>
        ))}
    </Card>
  );
}
