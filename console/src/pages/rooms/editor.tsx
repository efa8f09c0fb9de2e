// Editor of a rule set: tries it on a copy of the queue's tickets, then applies it.
import { useState } from "preact/hooks";
import type { Json } from "../../api.ts";
import { count } from "../../format.ts";
import { Badge, Card, Table } from "../../ui.tsx";
import { at, call, milliseconds } from "./ask.ts";

const FRESH = { name: "ranked", sides: [{ name: "side", count: 2, min: 5, max: 5 }], attributes: { skill: { type: "number", default: 0 } }, rules: [{ name: "near", type: "near", key: "skill", max: 100 }] };

type Trial = { text: string; answer: Json };

export function Editor({ queue, rules, done }: { queue: string | null; rules: Json; done: () => void }) {
  const [text, setText] = useState(() => JSON.stringify(rules ?? FRESH, null, 2));
  const [seconds, setSeconds] = useState(60);
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState("");
  const [said, say] = useState("");
  const [tried, setTried] = useState<Trial | null>(null);
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
      say("The rules are active.");
      setTried(null);
      done();
    });
  const fresh = tried?.text === text ? tried.answer : null;
  return (
    <Card title={queue === null ? "New queue" : `Rules of ${queue}`} side={<a href={at({ queue })}>close</a>}>
      <textarea class="code" aria-label="Rule set as JSON" spellcheck={false} rows={Math.min(20, Math.max(12, text.split("\n").length + 1))} value={text} onInput={(event) => setText((event.target as HTMLTextAreaElement).value)} />
      <div class="row">
        <label>
          Trial length, s{" "}
          <input type="number" min={1} max={3600} value={seconds} onInput={(event) => setSeconds(Number((event.target as HTMLInputElement).value))} />
        </label>
        <button class="primary" disabled={busy} onClick={() => send("TryQueue", (answer) => setTried({ text, answer }))}>{busy ? "Working…" : "Try"}</button>
        {sure ? (
          <>
            <strong>{fresh?.Live ? `Replace the rules of ${fresh.Queue}?` : `Create the queue ${fresh?.Queue}?`}</strong>
            <button onClick={put} disabled={busy}>Yes, apply</button>
            <button onClick={() => setSure(false)}>No</button>
          </>
        ) : (
          <button disabled={busy || fresh === null} title="Try the rules first" onClick={() => setSure(true)}>Apply</button>
        )}
        {said && <Badge tone="good">{said}</Badge>}
      </div>
      {problem && <Wrong what={problem} />}
      {fresh && <Columns of={fresh} />}
      {tried && !fresh && <p class="hint">The rules have changed since the trial.</p>}
      <p class="hint">A trial changes nothing: it runs both rule sets on a copy of the waiting tickets. No player joins or leaves, every player accepts, and backfills are ignored.</p>
    </Card>
  );
}

/** A refusal begins with the path of the error in the document. */
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
  ["cannot match", "Failed", count, -1],
  ["wait time p50", "WaitP50Ms", milliseconds, -1],
  ["wait time p90", "WaitP90Ms", milliseconds, -1],
  ["quality p50", "QualityP50", (v) => v?.toFixed(2) ?? "–", 1],
  ["quality p10", "QualityP10", (v) => v?.toFixed(2) ?? "–", 1],
  ["spread in a match, p50", "SpreadP50", (v) => v?.toFixed(1) ?? "–", -1],
  ["spread in a match, max", "SpreadMax", (v) => v?.toFixed(1) ?? "–", -1],
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
        {live ? <>Trial with {count(of.Copied)} of {count(of.PoolSize)} waiting tickets over {count(of.Seconds)} s.</> : <>The queue does not exist yet, so the trial had no tickets.</>}
        {cut && <> <Badge tone="warn">ended early: too much work</Badge></>}
      </p>
      <Table
        caption="Results of the trial"
        rows={ROWS}
        id={(row) => row[1]}
        columns={[
          { head: "", wide: true, cell: (row) => row[0] },
          { head: "Active", num: true, cell: (row) => (live ? row[2](live[row[1]]) : "–") },
          { head: "Draft", num: true, cell: (row) => row[2](draft[row[1]]) },
          { head: "Difference", num: true, cell: change },
        ]}
      />
      {(draft.Reasons as Json[]).map((reason) => <p key={reason.Why} class="hint">{count(reason.Tickets)} cannot match: {reason.Why}</p>)}
    </>
  );
}
