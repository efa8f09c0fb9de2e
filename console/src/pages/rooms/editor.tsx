// A rule set being written: tried on a copy of the queue's tickets, then put.
import { useState } from "preact/hooks";
import type { Json } from "../../api.ts";
import { count } from "../../format.ts";
import { Badge, Card, Table } from "../../ui.tsx";
import { at, call, milliseconds } from "./ask.ts";

const FRESH = { name: "ranked", sides: [{ name: "side", count: 2, min: 5, max: 5 }], attributes: { skill: { type: "number", default: 0 } }, rules: [{ name: "near", type: "near", key: "skill", max: 100 }] };

type Outcome = { text: string; answer: Json };

export function Editor({ queue, rules, done }: { queue: string | null; rules: Json; done: () => void }) {
  const [text, setText] = useState(() => JSON.stringify(rules ?? FRESH, null, 2));
  const [seconds, setSeconds] = useState(60);
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState("");
  const [said, say] = useState("");
  const [tried, setTried] = useState<Outcome | null>(null);
  const [sure, setSure] = useState(false);
  const send = async (method: string, then: (answer: Json) => void) => {
    setProblem("");
    say("");
    setSure(false);
    let set: Json;
    try {
      set = JSON.parse(text);
    } catch (error) {
      return setProblem(`not JSON: ${(error as Error).message}`);
    }
    setBusy(true);
    try {
      then(await call(method, method === "TryQueue" ? { RuleSet: set, Seconds: seconds } : { RuleSet: set }));
    } catch (error) {
      setTried(null);
      setProblem((error as Error).message);
    }
    setBusy(false);
  };
  const put = () =>
    send("PutQueue", () => {
      say("The rules are in force.");
      setTried(null);
      done();
    });
  const fresh = tried?.text === text ? tried.answer : null;
  return (
    <Card title={queue === null ? "A new queue" : `Rules of ${queue}`} side={<a href={at({ queue })}>close</a>}>
      <textarea class="code" aria-label="Rule set as JSON" spellcheck={false} rows={Math.min(20, Math.max(12, text.split("\n").length + 1))} value={text} onInput={(event) => setText((event.target as HTMLTextAreaElement).value)} />
      <div class="row">
        <label>
          Look ahead, s{" "}
          <input type="number" min={1} max={3600} value={seconds} onInput={(event) => setSeconds(Number((event.target as HTMLInputElement).value))} />
        </label>
        <button class="primary" disabled={busy} onClick={() => send("TryQueue", (answer) => setTried({ text, answer }))}>{busy ? "Working…" : "Try"}</button>
        {sure ? (
          <>
            <strong>{fresh?.Live ? `Replace the rules of ${fresh.Queue}?` : `Make the queue ${fresh?.Queue}?`}</strong>
            <button onClick={put} disabled={busy}>Yes, put them</button>
            <button onClick={() => setSure(false)}>No</button>
          </>
        ) : (
          <button disabled={busy || fresh === null} title="Try them first" onClick={() => setSure(true)}>Put</button>
        )}
        {said && <Badge tone="good">{said}</Badge>}
      </div>
      {problem && <Wrong what={problem} />}
      {fresh && <Columns of={fresh} />}
      {tried && !fresh && <p class="hint">The rules have changed since they were tried.</p>}
      <p class="hint">A trial changes nothing: it plays both rule sets on a copy of the tickets that wait now. Nobody comes or leaves, everybody accepts, and backfills are left out.</p>
    </Card>
  );
}

/** A refusal begins with the place in the document. */
function Wrong({ what }: { what: string }) {
  const [, path, why] = /^([\w.[\]]+): (.*)$/s.exec(what) ?? [];
  return <p class="problem" role="alert">{path ? <><code>{path}</code> {why}</> : what}</p>;
}

type Row = [name: string, member: string, text: (value: Json) => string, better: number];

const ROWS: Row[] = [
  ["matches", "Matches", count, 1],
  ["players matched", "Players", count, 1],
  ["tickets left searching", "Left", count, -1],
  ["timed out", "TimedOut", count, -1],
  ["can never match", "Failed", count, -1],
  ["wait, half", "WaitP50Ms", milliseconds, -1],
  ["wait, nine of ten", "WaitP90Ms", milliseconds, -1],
  ["quality, median", "QualityP50", (v) => v?.toFixed(2) ?? "–", 1],
  ["quality, worst tenth", "QualityP10", (v) => v?.toFixed(2) ?? "–", 1],
  ["spread in a match, median", "SpreadP50", (v) => v?.toFixed(1) ?? "–", -1],
  ["spread in a match, worst", "SpreadMax", (v) => v?.toFixed(1) ?? "–", -1],
];

function Columns({ of }: { of: Json }) {
  const { Live: live, Draft: draft } = of;
  const change = ([, member, text, better]: Row) => {
    const [before, after] = [live?.[member], draft[member]];
    if (typeof before !== "number" || typeof after !== "number" || before === after) return null;
    const by = after - before;
    return <Badge tone={Math.sign(by) === better ? "good" : "warn"}>{by > 0 ? "+" : "−"}{text(Math.abs(by))}</Badge>;
  };
  const cut = [draft, live].some((side) => side?.Cut);
  return (
    <>
      <p>
        {live ? <>On {count(of.Copied)} of {count(of.PoolSize)} tickets that wait, over {count(of.Seconds)} s.</> : <>There is no queue of this name yet, so there was nobody to try the rules on.</>}
        {cut && <> <Badge tone="warn">ended early: too much to work out</Badge></>}
      </p>
      <Table
        caption="What the rules do"
        rows={ROWS}
        id={(row) => row[1]}
        columns={[
          { head: "", wide: true, cell: (row) => row[0] },
          { head: "In force", num: true, cell: (row) => (live ? row[2](live[row[1]]) : "–") },
          { head: "Draft", num: true, cell: (row) => row[2](draft[row[1]]) },
          { head: "Difference", num: true, cell: change },
        ]}
      />
      {(draft.Reasons as Json[]).map((reason) => <p key={reason.Why} class="hint">{count(reason.Tickets)} can never match: {reason.Why}</p>)}
    </>
  );
}
