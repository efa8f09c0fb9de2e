// Client of the admin API. The console uses the same routes as `curl`.
import { useEffect, useRef, useState } from "preact/hooks";

export type Json = any;

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

export async function call(method: string, path: string, body?: Json, signal?: AbortSignal): Promise<Json> {
  const init: RequestInit = { method, credentials: "same-origin", signal: signal ?? null };
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    init.headers = { "content-type": "application/json" };
  }
  const response = await fetch(`/api/v1/${path}`, init);
  const text = await response.text();
  let value: Json = null;
  try {
    value = JSON.parse(text);
  } catch {
    // Not every failure comes from the gateway itself.
  }
  if (!response.ok) {
    if (response.status === 401) session.set(false);
    throw new ApiError(response.status, value?.error ?? `the gateway answered ${response.status}`);
  }
  return value;
}

export const get = (path: string, signal?: AbortSignal) => call("GET", path, undefined, signal);
export const post = (path: string, body: Json = {}) => call("POST", path, body);
export const del = (path: string) => call("DELETE", path);

/** A value that components can watch. */
export class Watched<T> {
  private listeners = new Set<() => void>();
  constructor(public value: T) {}
  set(value: T) {
    if (value === this.value) return;
    this.value = value;
    this.touch();
  }
  touch() {
    this.listeners.forEach((listener) => listener());
  }
  use(): T {
    const [, tick] = useState(0);
    useEffect(() => {
      const listener = () => tick((n) => n + 1);
      this.listeners.add(listener);
      return () => void this.listeners.delete(listener);
    }, []);
    return this.value;
  }
}

/** True if this browser has a session: it may see player data and make changes. */
export const session = new Watched(false);

/** The world that pages about connections, channels and the map show; empty for the default one. */
export const chosenWorld = new Watched(sessionStorage.getItem("world") ?? "");

export function chooseWorld(name: string) {
  sessionStorage.setItem("world", name);
  chosenWorld.set(name);
}

/** Adds the chosen world to a path that takes one. */
export function inWorld(path: string): string {
  const takesOne = /^(connections|closures|channels|world)(\/|\?|$)|^stream\?topic=world/.test(path);
  if (chosenWorld.value === "" || !takesOne) return path;
  return `${path}${path.includes("?") ? "&" : "?"}world=${encodeURIComponent(chosenWorld.value)}`;
}

export interface Polled {
  data: Json;
  error: ApiError | Error | null;
  /** The answer is old: the latest attempt failed. */
  stale: boolean;
  again: () => void;
}

/** Polls while the page is visible. A failure keeps the latest answer and marks it stale. */
export function usePoll(wanted: string | null, everyMs = 1000): Polled {
  chosenWorld.use();
  const path = wanted === null ? null : inWorld(wanted);
  const [state, set] = useState<{ data: Json; error: Error | null; path: string | null }>({
    data: null,
    error: null,
    path: null,
  });
  const kick = useRef(() => {});
  useEffect(() => {
    if (path === null) return;
    const abort = new AbortController();
    let timer: number | undefined;
    const turn = async () => {
      window.clearTimeout(timer);
      if (!document.hidden) {
        try {
          const data = await get(path, abort.signal);
          if (abort.signal.aborted) return;
          set({ data, error: null, path });
        } catch (error) {
          if (abort.signal.aborted) return;
          set((old) => ({ data: old.path === path ? old.data : null, error: error as Error, path }));
        }
      }
      timer = window.setTimeout(turn, everyMs);
    };
    kick.current = turn;
    void turn();
    return () => {
      abort.abort();
      window.clearTimeout(timer);
    };
  }, [path, everyMs]);
  const current = state.path === path;
  return {
    data: current ? state.data : null,
    error: current ? state.error : null,
    stale: current && state.error !== null && state.data !== null,
    again: () => kick.current(),
  };
}

/** Server-sent events; the browser reconnects by itself, and `stale` says that it is about to. */
export function useStream(wanted: string | null): { data: Json; stale: boolean; problem: string | null } {
  const [state, set] = useState<{ data: Json; stale: boolean; problem: string | null }>({
    data: null,
    stale: false,
    problem: null,
  });
  chosenWorld.use();
  const path = wanted === null ? null : inWorld(wanted);
  useEffect(() => {
    if (path === null) return;
    return listen(
      path,
      (data) => set({ data, stale: false, problem: null }),
      () => set((old) => ({ ...old, stale: true })),
      (problem) => set((old) => ({ ...old, problem })),
    );
  }, [path]);
  return state;
}

export function listen(
  path: string,
  onData: (data: Json) => void,
  onLost: () => void,
  onProblem: (what: string) => void = () => {},
): () => void {
  let source: EventSource;
  let timer: number | undefined;
  let closed = false;
  const open = () => {
    source = new EventSource(`/api/v1/${path}`);
    source.onmessage = (event) => onData(JSON.parse(event.data));
    source.addEventListener("problem", (event) => onProblem(JSON.parse((event as MessageEvent).data)));
    source.onerror = () => {
      onLost();
      // A browser gives up for good after a refusal; a gateway that restarts refuses for a while.
      if (source.readyState === EventSource.CLOSED && !closed) timer = window.setTimeout(open, 1000);
    };
  };
  open();
  return () => {
    closed = true;
    source.close();
    window.clearTimeout(timer);
  };
}
