// Asking the matcher. Requests and answers are those of its reference page.
import { post, type Json } from "../../api.ts";
import { duration } from "../../format.ts";

/** The path of a method that changes nothing. */
export const ask = (method: string, request: Json) => `matcher?method=${method}&request=${encodeURIComponent(JSON.stringify(request))}`;

/** A request that is too long for a path, or puts a queue's rules. */
export const call = (method: string, request: Json): Promise<Json> => post("matcher", { method, request });

export const milliseconds = (value: Json) => (typeof value === "number" ? duration(value) : "–");

/** A page of rooms: which queue, ticket, room or role it shows. */
export const at = (what: { queue?: string | null; ticket?: string; room?: string; role?: string; edit?: string }) => {
  const query = new URLSearchParams(Object.entries(what).filter(([, value]) => value) as [string, string][]);
  return `#/rooms${query.size > 0 ? `?${query}` : ""}`;
};
