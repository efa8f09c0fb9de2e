import { useState } from "preact/hooks";
import { call, del, post, session, usePoll, type Json } from "../api.ts";
import { count } from "../format.ts";
import { Badge, Card, Facts, Stat, Table, Trouble } from "../ui.tsx";

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
                ...data.addresses.map((each: Json): [string, string] => [each.service === "matcherhttp" ? "matcher, JSON" : each.service, `${each.scheme}://${each.address}`]),
                ...data.parts.map((part: Json): [string, preact.ComponentChildren] => [part.name, <Badge tone={part.ok ? "good" : "bad"}>{part.detail}</Badge>]),
              ]}
            />
          )}
        </Card>
        <Card title="Session">
          {open ? (
            <>
              <p>This browser has a session. It expires after twelve hours.</p>
              <div class="row">
                <button onClick={() => post("session/tokens").then(({ token }) => setInvite(`${location.origin}/console/#token=${token}`))}>Link for another browser</button>
                <button onClick={() => del("session").then(() => session.set(false))}>End session</button>
              </div>
              {invite && <p class="hint">Valid for one use: <code class="hex">{invite}</code></p>}
            </>
          ) : (
            <form class="stack" onSubmit={enter}>
              <label>
                Token
                <input type="password" autocomplete="off" required value={token} onInput={(event) => setToken((event.target as HTMLInputElement).value)} placeholder="one-time token, or a token from http.tokens_file" />
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
            <Stat label="Random inputs" value={count(Object.values<number>(fuzz.executions).reduce((sum, n) => sum + n, 0))} hint={`${Object.keys(fuzz.executions).length} targets`} />
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
