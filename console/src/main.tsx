import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import "uplot/dist/uPlot.min.css";
import "./style.css";
import { call, chooseWorld, chosenWorld, get, session, usePoll, type Json } from "./api.ts";
import { live, startLive } from "./live.ts";
import { duration } from "./format.ts";
import { Empty, flipTheme, theme } from "./ui.tsx";
import { Overview } from "./pages/overview.tsx";
import { Connection, Connections } from "./pages/connections.tsx";
import { Channel, Channels } from "./pages/channels.tsx";
import { MapPage } from "./pages/map.tsx";
import { About } from "./pages/about.tsx";
import { Cache } from "./pages/cache.tsx";
import { Config } from "./pages/config.tsx";
import { Docs } from "./pages/docs.tsx";
import { Lab } from "./pages/lab.tsx";
import { Packets } from "./pages/packets.tsx";
import { Rooms } from "./pages/rooms.tsx";

const PAGES: [path: string, title: string, icon: string][] = [
  ["overview", "Overview", "M3 12h4l3-8 4 16 3-8h4"],
  ["connections", "Connections", "M8 12a4 4 0 1 1 0-8 4 4 0 0 1 0 8Zm-6 8c0-4 3-6 6-6s6 2 6 6M16 6a3 3 0 1 1 0 6m2 2c2 .6 4 2.6 4 6"],
  ["channels", "Channels", "M4 6h16M4 12h10M4 18h6M17 15v6m-3-3h6"],
  ["map", "Live map", "M9 4 3 6.5v14L9 18l6 2.5 6-2.5V4l-6 2.5L9 4Zm0 0v14m6-11.5v14"],
  ["rooms", "Rooms and queues", "M4 4h7v7H4zm9 0h7v7h-7zM4 13h7v7H4zm12.500 0v7m-3.500-3.500h7"],
  ["cache", "Cache", "M4 6c0-1.700 3.600-3 8-3s8 1.300 8 3-3.600 3-8 3-8-1.300-8-3Zm0 0v12c0 1.700 3.600 3 8 3s8-1.300 8-3V6M4 12c0 1.700 3.600 3 8 3s8-1.300 8-3"],
  ["lab", "Load lab", "M9 3h6m-5 0v6L4.500 18.500A2 2 0 0 0 6.300 21h11.400a2 2 0 0 0 1.800-2.500L14 9V3M7.500 15h9"],
  ["packets", "Packet inspector", "M4 5h16M4 10h9M4 15h6m6.500 4a4 4 0 1 0 0-8 4 4 0 0 0 0 8Zm3-1 2.500 3"],
  ["config", "Configuration", "M4 7h9m5 0h2M4 17h2m5 0h9M15.500 9.500a2.500 2.500 0 1 0 0-5 2.500 2.500 0 0 0 0 5Zm-7 10a2.500 2.500 0 1 0 0-5 2.500 2.500 0 0 0 0 5Z"],
  ["docs", "Documents", "M6 3h9l4 4v14H6zM9 12h7m-7 4h7M14 3v5h5"],
  ["about", "About", "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18Zm0-10v5m0-8.500v.01"],
];

interface Route {
  page: string;
  rest: string[];
  query: URLSearchParams;
}

function here(): Route {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [page, ...rest] = path.split("/").map(decodeURIComponent);
  return { page: page || "overview", rest, query: new URLSearchParams(query ?? "") };
}

function Page({ place: { page, rest, query } }: { place: Route }) {
  const id = /^\d+$/.test(rest[0] ?? "") ? Number(rest[0]) : null;
  switch (page) {
    case "overview":
      return <Overview />;
    case "connections":
      return id === null ? <Connections closed={query.has("closed")} /> : <Connection key={id} id={id} why={query.has("why") ? Number(query.get("why")) : null} />;
    case "channels":
      return id === null ? <Channels key={query.get("type")} type={query.get("type")} /> : <Channel key={id} id={id} />;
    case "map":
      return <MapPage connection={query.has("connection") ? Number(query.get("connection")) : null} />;
    case "rooms":
      return <Rooms query={query} />;
    case "cache":
      return <Cache />;
    case "lab":
      return <Lab />;
    case "packets":
      return <Packets />;
    case "config":
      return <Config />;
    case "docs":
      return <Docs path={rest.length > 0 ? rest.join("/") : null} />;
    case "about":
      return <About />;
    default:
      return <Empty title="Page not found">Choose a page on the left.</Empty>;
  }
}

function App() {
  const [place, setPlace] = useState(here());
  const [palette, setPalette] = useState(false);
  const main = useRef<HTMLElement>(null);
  const state = live.use();
  const mode = theme.use();
  const open = session.use();
  useEffect(() => {
    const moved = () => {
      setPlace(here());
      main.current?.scrollTo(0, 0);
    };
    const key = (event: KeyboardEvent) => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        setPalette((shown) => !shown);
      } else if (event.key === "Escape") setPalette(false);
    };
    addEventListener("hashchange", moved);
    addEventListener("keydown", key);
    return () => {
      removeEventListener("hashchange", moved);
      removeEventListener("keydown", key);
    };
  }, []);
  const title = PAGES.find(([path]) => path === place.page)?.[1] ?? "Throng";
  useEffect(() => {
    document.title = `${title} · Throng`;
  }, [title]);
  const lost = state.lostSince !== null;
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); main.current?.focus(); }}>Skip to content</a>
      <nav class="side" aria-label="Pages">
        <a class="brand" href="#/overview">
          <img src="./icon.svg" alt="" width="28" height="28" /> <span>throng</span>
        </a>
        {PAGES.map(([path, name, icon]) => (
          <a key={path} href={`#/${path}`} aria-current={path === place.page ? "page" : undefined} title={name}>
            <svg viewBox="0 0 24 24" aria-hidden="true"><path d={icon} /></svg>
            <span>{name}</span>
          </a>
        ))}
      </nav>
      <div class="body">
        <header class="top">
          <h1>{title}</h1>
          <WorldChoice />
          <span class="grow" />
          <button class="find" onClick={() => setPalette(true)}>Go to… <kbd>Ctrl K</kbd></button>
          {!open && <a class="badge warn" href="#/about">no session</a>}
          <span class={`status ${lost ? "bad" : state.now === null ? "" : state.now.ready ? "good" : "warn"}`} role="status">
            <i />
            {lost ? `no answer for ${duration(Date.now() - state.lostSince!)}` : state.now === null ? "connecting" : state.now.ready ? `live, up ${duration(state.now.uptime_ms)}` : "not ready"}
          </span>
          <button class="icon" onClick={flipTheme} aria-label={mode === "dark" ? "Light colours" : "Dark colours"}>
            <svg viewBox="0 0 24 24" aria-hidden="true"><path d={mode === "dark" ? "M12 4V2m0 20v-2m8-8h2M2 12h2m13.700-5.700 1.400-1.400M4.900 19.100l1.400-1.400m0-11.400L4.900 4.900m14.200 14.200-1.400-1.400M12 17a5 5 0 1 0 0-10 5 5 0 0 0 0 10Z" : "M20 14.500A8.500 8.500 0 0 1 9.500 4 8.500 8.500 0 1 0 20 14.500Z"} /></svg>
          </button>
        </header>
        {lost && (
          <div class="trouble banner" role="alert">
            <strong>The gateway does not answer.</strong> The latest figures are shown; retrying every second.
          </div>
        )}
        <main id="main" ref={main} tabIndex={-1}>
          <Page place={place} />
        </main>
      </div>
      {palette && <Palette close={() => setPalette(false)} />}
    </>
  );
}

/** Which world the pages show, where there are several. */
function WorldChoice() {
  const worlds = usePoll("worlds", 2000);
  const chosen = chosenWorld.use();
  const rows: Json[] = worlds.data?.worlds ?? [];
  const gone = rows.length > 0 && chosen !== "" && rows.every((row) => row.name !== chosen);
  useEffect(() => {
    if (gone) chooseWorld("");
  }, [gone]);
  if (rows.length < 2) return null;
  return (
    <select aria-label="World" value={chosen} onChange={(event) => chooseWorld((event.target as HTMLSelectElement).value)}>
      {rows.map((row) => (
        <option key={row.name} value={row.number === 0 ? "" : row.name}>{row.name}</option>
      ))}
    </select>
  );
}

function Palette({ close }: { close: () => void }) {
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const box = useRef<HTMLInputElement>(null);
  useEffect(() => box.current?.focus(), []);
  const found: [string, string][] = PAGES.filter(([, name]) => name.toLowerCase().includes(text.toLowerCase())).map(([path, name]) => [`#/${path}`, name]);
  if (/^\d+$/.test(text)) {
    found.unshift([`#/connections/${text}`, `Connection ${text}`], [`#/channels/${text}`, `Channel ${text}`]);
  }
  const go = (target: string) => {
    location.hash = target;
    close();
  };
  return (
    <div class="veil" onClick={close}>
      <div class="palette" role="dialog" aria-label="Go to" onClick={(event) => event.stopPropagation()}>
        <input
          ref={box}
          placeholder="Page, or id of a connection or channel"
          aria-label="Go to"
          value={text}
          onInput={(event) => {
            setText((event.target as HTMLInputElement).value);
            setAt(0);
          }}
          onKeyDown={(event) => {
            if (event.key === "ArrowDown") setAt(Math.min(found.length - 1, at + 1));
            else if (event.key === "ArrowUp") setAt(Math.max(0, at - 1));
            else if (event.key === "Enter" && found[at]) go(found[at][0]);
            else return;
            event.preventDefault();
          }}
        />
        <ul role="listbox">
          {found.map(([target, name], index) => (
            <li key={target} role="option" aria-selected={index === at} onClick={() => go(target)}>{name}</li>
          ))}
        </ul>
      </div>
    </div>
  );
}

/** Opens a session with the token behind the #, which no server has seen on the way here. */
async function enter() {
  const token = /^#token=([0-9a-f]+)/.exec(location.hash)?.[1];
  if (token !== undefined) {
    history.replaceState(null, "", "./");
    await call("POST", "session", { token }).catch(() => {});
  }
  await get("session").then((answer) => session.set(answer.session), () => {});
}

await enter();
startLive();
render(<App />, document.getElementById("app")!);
