import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";
import { ApiError, Watched, session, type Polled } from "./api.ts";

const stored = localStorage.getItem("throng.theme");
const system = matchMedia("(prefers-color-scheme: light)");
export const theme = new Watched(stored ?? (system.matches ? "light" : "dark"));
document.documentElement.dataset.theme = theme.value;
export function flipTheme() {
  const next = theme.value === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem("throng.theme", next);
  theme.set(next);
}

export function Card(props: { title?: ComponentChildren; side?: ComponentChildren; children?: ComponentChildren; class?: string }) {
  return (
    <section class={`card ${props.class ?? ""}`}>
      {props.title !== undefined && (
        <header>
          <h2>{props.title}</h2>
          <div class="side">{props.side}</div>
        </header>
      )}
      {props.children}
    </section>
  );
}

export function Stat(props: { label: string; value: ComponentChildren; hint?: ComponentChildren; children?: ComponentChildren }) {
  return (
    <div class="stat">
      <span class="label">{props.label}</span>
      <span class="value">{props.value}</span>
      {props.hint !== undefined && <span class="hint">{props.hint}</span>}
      {props.children}
    </div>
  );
}

export const Badge = (props: { tone?: "good" | "warn" | "bad" | "info" | "plain"; children: ComponentChildren }) => (
  <span class={`badge ${props.tone ?? "plain"}`}>{props.children}</span>
);

export const Facts = ({ rows }: { rows: [string, ComponentChildren][] }) => (
  <dl class="facts">
    {rows.map(([name, value]) => (
      <div key={name}>
        <dt>{name}</dt>
        <dd>{value}</dd>
      </div>
    ))}
  </dl>
);

export function Empty(props: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <strong>{props.title}</strong>
      {props.children && <p>{props.children}</p>}
    </div>
  );
}

/** The message shown instead of missing figures: never a zero. */
export function Trouble({ of }: { of: { error: Error | null; data: unknown } }) {
  if (of.error === null) return of.data === null ? <div class="loading" aria-busy="true">Loading…</div> : null;
  if (of.error instanceof ApiError && of.error.status === 401) return <Locked />;
  const gone = !(of.error instanceof ApiError);
  return (
    <div class={`trouble ${of.data === null ? "" : "slim"}`} role="alert">
      <strong>{gone ? "The gateway does not answer." : "The request failed."}</strong>{" "}
      {gone ? "Retrying every second." : of.error.message}
      {of.data !== null && " The latest answer is shown."}
    </div>
  );
}

export function Locked() {
  return (
    <Empty title="A console session is required">
      Open the address that <code>throng up</code> printed, with its <code>#token=…</code>, or enter a token under{" "}
      <a href="#/about">About</a>. Player data and all changes require a session.
    </Empty>
  );
}

export const Guarded = ({ children }: { children: ComponentChildren }) => (session.use() ? <>{children}</> : <Locked />);

export interface Column<T> {
  head: string;
  cell: (row: T) => ComponentChildren;
  num?: boolean;
  wide?: boolean;
}

export function Table<T>(props: {
  rows: T[];
  columns: Column<T>[];
  id: (row: T) => string | number;
  empty?: string;
  caption: string;
  selected?: string | number | null;
}) {
  if (props.rows.length === 0) return <Empty title={props.empty ?? "Empty"} />;
  return (
    <div class="table" tabIndex={0} role="region" aria-label={props.caption}>
      <table>
        <thead>
          <tr>
            {props.columns.map((column) => (
              <th key={column.head} class={column.num ? "num" : ""} scope="col">
                {column.head}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {props.rows.map((row) => {
            const id = props.id(row);
            return (
              <tr key={id} aria-selected={id === props.selected}>
                {props.columns.map((column) => (
                  <td key={column.head} class={`${column.num ? "num" : ""} ${column.wide ? "wide" : ""}`}>
                    {column.cell(row)}
                  </td>
                ))}
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

/** Search and page of a list, and the query that asks for them. */
export function usePaging(limit = 50) {
  const [search, setSearch] = useState("");
  const [offset, setOffset] = useState(0);
  const query = `limit=${limit}&offset=${offset}&search=${encodeURIComponent(search)}`;
  const find = (
    <input
      type="search"
      placeholder="Search"
      aria-label="Search"
      maxLength={100}
      value={search}
      onInput={(event) => {
        setSearch((event.target as HTMLInputElement).value);
        setOffset(0);
      }}
    />
  );
  const pager = (total: number | undefined) =>
    total === undefined ? null : (
      <nav class="pager" aria-label="Pages">
        <button disabled={offset === 0} onClick={() => setOffset(Math.max(0, offset - limit))} aria-label="Previous page">
          ‹
        </button>
        <span>
          {total === 0 ? "0" : `${offset + 1}–${Math.min(total, offset + limit)}`} of {total.toLocaleString("en")}
        </span>
        <button disabled={offset + limit >= total} onClick={() => setOffset(offset + limit)} aria-label="Next page">
          ›
        </button>
      </nav>
    );
  return { query, find, pager };
}

export const Stale = ({ of, children }: { of: Polled | { stale: boolean }; children: ComponentChildren }) => (
  <div class={of.stale ? "stale" : ""}>{children}</div>
);

/** Decoded fields as a tree; long ones are folded. Strings are shown as text nodes, never as markup. */
export function Fields({ value, name, open = true }: { value: unknown; name?: string; open?: boolean }): JSX.Element {
  const label = name !== undefined && <span class="field">{name}</span>;
  if (value === null || typeof value !== "object") {
    const kind = typeof value;
    return (
      <div class="leaf">
        {label}
        <span class={`value ${kind}`}>{kind === "string" ? JSON.stringify(value) : String(value)}</span>
      </div>
    );
  }
  const entries = Object.entries(value);
  const shown = entries.slice(0, 200);
  return (
    <details class="branch" open={open && entries.length <= 30}>
      <summary>
        {label || <span class="field">message</span>}
        <span class="size">{`${entries.length} ${Array.isArray(value) ? "item" : "field"}${entries.length === 1 ? "" : "s"}`}</span>
      </summary>
      {shown.map(([key, inner]) => (
        <Fields key={key} name={key} value={inner} open={entries.length <= 8} />
      ))}
      {entries.length > shown.length && <div class="leaf size">… {entries.length - shown.length} more</div>}
    </details>
  );
}
