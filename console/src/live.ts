// The figures of the overview, kept for five minutes so that a chart has a past when its page is opened.
import { Watched, listen, type Json } from "./api.ts";

export const KEPT = 300;

export interface Live {
  now: Json;
  /** Rates and gauges by name, aligned with `time`. */
  series: Record<string, (number | null)[]>;
  time: number[];
  lostSince: number | null;
}

export const live = new Watched<Live>({ now: null, series: {}, time: [], lostSince: null });

let before: { data: Json; at: number } | null = null;

function push(name: string, value: number | null) {
  const { series, time } = live.value;
  const list = (series[name] ??= new Array(time.length - 1).fill(null));
  list.push(value !== null && Number.isFinite(value) ? value : null);
  if (list.length > KEPT) list.shift();
}

function take(data: Json) {
  const at = Date.now();
  const state = live.value;
  const restarted = before !== null && data.uptime_ms < before.data.uptime_ms;
  const past = restarted ? null : before;
  const seconds = past ? (data.uptime_ms - past.data.uptime_ms) / 1000 : 0;
  const rate = (of: (data: Json) => number) => (past && seconds > 0 ? (of(data) - of(past.data)) / seconds : null);
  state.time.push(at / 1000);
  if (state.time.length > KEPT) state.time.shift();
  for (const kind of ["clients", "servers"]) {
    push(`${kind}.connections`, data[kind].connections);
    for (const what of ["messages_in", "messages_out", "bytes_in", "bytes_out"]) {
      push(`${kind}.${what}`, rate((d) => d[kind][what]));
    }
  }
  push("messages_in", rate((d) => d.clients.messages_in + d.servers.messages_in));
  push("messages_out", rate((d) => d.clients.messages_out + d.servers.messages_out));
  push("bytes_in", rate((d) => d.clients.bytes_in + d.servers.bytes_in));
  push("bytes_out", rate((d) => d.clients.bytes_out + d.servers.bytes_out));
  push("updates", rate((d) => d.updates_merged));
  push("fan_out", rate((d) => d.fan_out_messages));
  push("dropped", rate((d) => d.state_dropped));
  push("handovers", rate((d) => d.handovers));
  push("cpu", rate((d) => d.cpu_seconds));
  push("memory", data.resident_bytes);
  push("subscriptions", data.subscriptions);
  data.shards.forEach((shard: Json, index: number) => {
    const of = (d: Json) => d.shards[index] ?? shard;
    push(`shard.${index}.busy`, rate((d) => of(d).busy_ns / 1e9));
    push(`shard.${index}.rounds`, rate((d) => of(d).rounds));
    const ticks = rate((d) => of(d).fan_out_ticks);
    const late = rate((d) => of(d).fan_out_late_ns);
    push(`shard.${index}.late`, ticks !== null && late !== null ? (ticks > 0 ? late / ticks / 1e6 : 0) : null);
    push(`shard.${index}.mailbox`, shard.mailbox);
  });
  before = { data, at };
  state.now = data;
  state.lostSince = null;
  live.touch();
}

export function startLive() {
  listen("stream?topic=overview&interval_ms=1000", take, () => {
    live.value.lostSince ??= Date.now();
    live.touch();
  });
}

/** The latest value of a series. */
export const last = (name: string): number | null => live.value.series[name]?.at(-1) ?? null;
