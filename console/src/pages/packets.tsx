import { useEffect, useRef, useState } from "preact/hooks";
import { chosenWorld, del, get, post, type Json } from "../api.ts";
import { bytes, count, duration } from "../format.ts";
import { Badge, Card, Empty, Fields, Guarded } from "../ui.tsx";

export const Packets = () => <Guarded><PacketsInner /></Guarded>;

function PacketsInner() {
  const [rows, setRows] = useState<Json[]>([]);
  const [state, setState] = useState<Json>(null);
  const [error, setError] = useState<Error | null>(null);
  const [conn, setConn] = useState("");
  const [open, setOpen] = useState<number | null>(null);
  const [paused, setPaused] = useState(false);
  const [only, setOnly] = useState("");
  const after = useRef(0);
  useEffect(() => {
    if (paused) return;
    let timer = 0;
    let over = false;
    const turn = async () => {
      try {
        const answer = await get(`capture?after=${after.current}`);
        if (over) return;
        if (answer.total < after.current) {
          after.current = 0;
          setRows([]);
        }
        setState(answer);
        setError(null);
        if (answer.messages.length > 0) {
          after.current = answer.messages.at(-1).number;
          setRows((old) => [...answer.messages.reverse(), ...old].slice(0, 512));
        }
      } catch (failure) {
        setError(failure as Error);
      }
      if (!over) timer = window.setTimeout(turn, 400);
    };
    void turn();
    return () => {
      over = true;
      window.clearTimeout(timer);
    };
  }, [paused]);
  const begin = async (event: Event) => {
    event.preventDefault();
    try {
      await post("capture", { connection: Number(conn), seconds: 120, world: chosenWorld.value });
      after.current = 0;
      setRows([]);
      setError(null);
    } catch (failure) {
      setError(failure as Error);
    }
  };
  const shown = rows.filter((row) => only === "" || `${row.name} ${row.channel}`.toLowerCase().includes(only.toLowerCase()));
  return (
    <>
      <Card
        title="Capture"
        side={state?.connection !== undefined && (
          <>
            <Badge tone={state.capturing ? "good" : "plain"}>{state.capturing ? `connection ${state.connection}, ${duration(state.left_ms)} left` : `ended: ${state.ended}`}</Badge>
            <button onClick={() => setPaused(!paused)}>{paused ? "Resume" : "Pause"}</button>
            <button onClick={() => del("capture").then(() => { setRows([]); after.current = 0; })}>Discard</button>
          </>
        )}
      >
        <form class="row" onSubmit={begin}>
          <label>
            Connection
            <input inputMode="numeric" pattern="[0-9]+" required value={conn} onInput={(event) => setConn((event.target as HTMLInputElement).value)} placeholder="id" />
          </label>
          <button class="primary">Capture for two minutes</button>
          <label>
            Filter
            <input type="search" placeholder="type or channel" value={only} onInput={(event) => setOnly((event.target as HTMLInputElement).value)} />
          </label>
        </form>
        <p class="hint">At most 512 messages are kept. Logins are omitted. The connection is not affected.</p>
        {error && <div class="trouble slim" role="alert">{error.message}</div>}
      </Card>
      <Card title="Messages" side={state ? `${count(state.total)} so far` : ""}>
        {shown.length === 0 ? (
          <Empty title="No messages">{state?.connection === undefined ? "Choose a connection here or on its page." : "None since the capture began."}</Empty>
        ) : (
          <ol class="packets">
            {shown.map((row) => (
              <li key={row.number}>
                <button aria-expanded={open === row.number} onClick={() => setOpen(open === row.number ? null : row.number)}>
                  <span class="num">{(row.at_ms / 1000).toFixed(3)}</span>
                  <span class={row.in ? "in" : "out"}>{row.in ? "→ in" : "← out"}</span>
                  <span class="name">{row.name}</span>
                  <span>channel {row.channel}</span>
                  <span class="num">{bytes(row.bytes)}</span>
                </button>
                {open === row.number && (
                  <div class="fields">
                    {row.fields === null ? <code class="hex">{row.hex === "" ? "omitted" : row.hex.replace(/(..)/g, "$1 ")}</code> : <Fields name={row.name} value={row.fields} />}
                  </div>
                )}
              </li>
            ))}
          </ol>
        )}
      </Card>
    </>
  );
}
