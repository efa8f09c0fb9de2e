import { useState } from "preact/hooks";
import { chosenWorld, post, session, usePoll, type Json } from "../api.ts";
import { bytes, count, duration } from "../format.ts";
import { Badge, Card, Facts, Stale, Table, Trouble, usePaging } from "../ui.tsx";
import { tone } from "./overview.tsx";

export function Connections({ closed }: { closed: boolean }) {
  return (
    <>
      <div class="tabs" role="tablist">
        <a role="tab" aria-selected={!closed} href="#/connections">Live</a>
        <a role="tab" aria-selected={closed} href="#/connections?closed">Recently closed</a>
      </div>
      {closed ? <Closed /> : <Live />}
    </>
  );
}

function Live() {
  const paging = usePaging();
  const list = usePoll(`connections?${paging.query}`, 1500);
  return (
    <Card title="Live connections" side={<>{paging.find}{paging.pager(list.data?.total)}</>}>
      <Trouble of={list} />
      {list.data && (
        <Stale of={list}>
          <Table
            caption="Live connections"
            rows={list.data.connections}
            id={(row: Json) => row.id}
            empty="No connection matches"
            columns={[
              { head: "Id", cell: (row) => <a href={`#/connections/${row.id}`}>{row.id}</a> },
              { head: "Kind", cell: (row) => <Badge tone={row.kind === "server" ? "info" : "plain"}>{row.kind}</Badge> },
              { head: "Address", cell: (row) => <code>{row.address}</code> },
              { head: "State", cell: (row) => (row.authenticated ? row.state : <Badge tone="warn">{row.state}</Badge>) },
              { head: "Shard", num: true, cell: (row) => row.shard },
              { head: "Open", num: true, cell: (row) => duration(row.open_ms) },
              { head: "In", num: true, cell: (row) => bytes(row.bytes_in) },
              { head: "Out", num: true, cell: (row) => bytes(row.bytes_out) },
              { head: "Queue", num: true, cell: (row) => (row.queued_bytes > 65536 ? <Badge tone="warn">{bytes(row.queued_bytes)}</Badge> : bytes(row.queued_bytes)) },
              { head: "Lagging", num: true, cell: (row) => count(row.lagging_channels) },
              { head: "Refused", num: true, cell: (row) => count(row.refused_messages) },
            ]}
          />
        </Stale>
      )}
    </Card>
  );
}

function Closed() {
  const paging = usePaging();
  const list = usePoll(`closures?${paging.query}`, 2000);
  return (
    <Card title="Recently closed" side={<>{paging.find}{paging.pager(list.data?.total)}</>}>
      <Trouble of={list} />
      {list.data && (
        <Stale of={list}>
          <Table
            caption="Closed connections"
            rows={list.data.closures}
            id={(row: Json) => `${row.id}-${row.open_ms}-${row.bytes_in}`}
            empty="No closed connections yet"
            columns={[
              { head: "Id", cell: (row) => <a href={`#/connections/${row.id}`}>{row.id}</a> },
              { head: "Kind", cell: (row) => row.kind },
              { head: "Address", cell: (row) => <code>{row.address}</code> },
              { head: "Reason", cell: (row) => <Badge tone={tone(row.reason)}>{row.reason}</Badge> },
              { head: "Meaning", wide: true, cell: (row) => row.about },
              { head: "Ago", num: true, cell: (row) => duration(row.ago_ms) },
              { head: "Was open", num: true, cell: (row) => duration(row.open_ms) },
              { head: "In", num: true, cell: (row) => bytes(row.bytes_in) },
            ]}
          />
        </Stale>
      )}
    </Card>
  );
}

export function Connection({ id, why }: { id: number; why: number | null }) {
  const one = usePoll(`connections/${id}`, 1000);
  const may = session.use();
  const [problem, setProblem] = useState("");
  const data = one.data;
  const inspect = async () => {
    try {
      await post("capture", { connection: id, seconds: 120, world: chosenWorld.value });
      location.hash = "#/packets";
    } catch (error) {
      setProblem((error as Error).message);
    }
  };
  return (
    <>
      <p class="crumbs">
        <a href="#/connections">Connections</a> / {id}
      </p>
      <Trouble of={one} />
      {problem && <div class="trouble slim" role="alert">{problem}</div>}
      {data && !data.live && (
        <Card title={`Connection ${id} is closed`}>
          <Facts
            rows={[
              ["Reason", <Badge tone={tone(data.closed.reason)}>{data.closed.reason}</Badge>],
              ["Meaning", data.closed.about],
              ["Closed", `${duration(data.closed.ago_ms)} ago, after ${duration(data.closed.open_ms)}`],
              ["Address", <code>{data.closed.address}</code>],
              ["Received", `${bytes(data.closed.bytes_in)} in ${count(data.closed.packets_in)} packets`],
              ["Queue at close", bytes(data.closed.queued_bytes)],
            ]}
          />
        </Card>
      )}
      {data?.live && (
        <Stale of={one}>
          <div class="grid two">
            <Card
              title={`${data.connection.kind === "server" ? "Game server" : "Player"} ${id}`}
              side={<button class="primary" disabled={!may} title={may ? "" : "requires a session"} onClick={inspect}>Inspect packets</button>}
            >
              <Facts
                rows={[
                  ["Address", <code>{data.connection.address}</code>],
                  ["State", `${data.connection.state}${data.connection.authenticated ? ", authenticated" : ""}`],
                  ["Shard", data.connection.shard],
                  ["Open for", duration(data.connection.open_ms)],
                  ["Silent for", duration(data.silent_ms)],
                  ["Received", `${bytes(data.connection.bytes_in)} in ${count(data.connection.packets_in)} packets`],
                  ["Sent", bytes(data.connection.bytes_out)],
                ]}
              />
            </Card>
            <Card title="Queue and health">
              <Facts
                rows={[
                  ["Output queue", bytes(data.connection.queued_bytes)],
                  ["Lagging channels", count(data.connection.lagging_channels)],
                  ["Messages refused", count(data.connection.refused_messages)],
                  ["Buffers", bytes(data.connection.buffer_bytes)],
                  ["Cells of interest", data.interest ? count(data.interest.cells.length) : "–"],
                  [
                    "Own entity",
                    data.interest?.entity ? (
                      <a href={`#/map?connection=${id}`}>{data.interest.entity.channel} on the map</a>
                    ) : (
                      "none"
                    ),
                  ],
                ]}
              />
            </Card>
          </div>
          <Why key={why} id={id} channel={why} />
          <Card title="Subscriptions" side={`${count(data.subscription_count)} in total`}>
            <SubscriptionTable rows={data.subscriptions} of="channel" />
          </Card>
        </Stale>
      )}
    </>
  );
}

/** The steps of a channel update to a connection, and the step that stops it. */
function Why({ id, channel }: { id: number; channel: number | null }) {
  const answer = usePoll(channel === null ? null : `connections/${id}/why?channel=${channel}`, 1000);
  const [typed, setTyped] = useState(channel === null ? "" : String(channel));
  const ask = (event: Event) => {
    event.preventDefault();
    location.hash = `#/connections/${id}?why=${typed.trim()}`;
  };
  const data = answer.data;
  return (
    <Card
      title="Why are updates missing?"
      side={
        <form class="row" onSubmit={ask}>
          <input type="search" inputMode="numeric" pattern="[0-9]{1,10}" required placeholder="channel or entity" aria-label="Channel or entity" value={typed} onInput={(event) => setTyped((event.target as HTMLInputElement).value)} />
          <button>Explain</button>
        </form>
      }
    >
      {channel === null ? <p class="hint">Enter a channel or an entity, or choose “why?” in a row below.</p> : <Trouble of={answer} />}
      {channel !== null && data && (
        <Stale of={answer}>
          <p>
            <a href={`#/channels/${data.channel}`}>Channel {data.channel}</a>: <strong>{data.verdict}</strong>
          </p>
          <div class="steps">
            <Table
              caption="Steps of an update"
              rows={data.steps as Json[]}
              id={(row) => row.step}
              empty=""
              columns={[
                { head: "Step", cell: (row) => row.step },
                { head: "Passes", cell: (row) => <Badge tone={row.passes ? "good" : "warn"}>{row.passes ? "yes" : "no"}</Badge> },
                { head: "Details", wide: true, cell: (row) => row.what },
              ]}
            />
          </div>
        </Stale>
      )}
    </Card>
  );
}

export function SubscriptionTable({ rows, of }: { rows: Json[]; of: "channel" | "connection" }) {
  return (
    <Table
      caption="Subscriptions"
      rows={rows}
      id={(row: Json) => row[of]}
      empty="No subscriptions"
      columns={[
        of === "channel"
          ? { head: "Channel", cell: (row) => <a href={`#/channels/${row.channel}`}>{row.channel}</a> }
          : { head: "Connection", cell: (row) => <a href={`#/connections/${row.connection}`}>{row.connection}</a> },
        { head: of === "channel" ? "Type" : "Kind", cell: (row) => (of === "channel" ? row.type : row.kind) },
        { head: "Access", cell: (row) => <Badge tone={row.access === "write" ? "info" : "plain"}>{row.owner ? "owner" : row.access}</Badge> },
        { head: "Interval", num: true, cell: (row) => `${row.interval_ms} ms` },
        { head: "Fan-out", cell: (row) => <Badge tone={row.place === "in step" ? "good" : row.place === "none" ? "plain" : "warn"}>{row.place}</Badge> },
        { head: "Fields", wide: true, cell: (row) => (row.masks.length === 0 ? "all" : row.masks.join(", ")) },
        { head: "Since", num: true, cell: (row) => duration(row.since_ms) },
        { head: "", cell: (row) => <a href={`#/connections/${row.connection}?why=${row.channel}`}>why?</a> },
      ]}
    />
  );
}
