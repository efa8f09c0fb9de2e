import type { ChannelInfo, Payload, RecoveredChannel, SubscribeOptions } from "./messages.js";

/** Events of a connection, by name. */
export interface ThrongEvents {
  /** The gateway admitted this connection, for the first time or again. */
  authenticated: {
    /** Id of the connection; the old one when it was resumed. */
    conn: number;
    /** The gateway restored the session: `recovered` follows, and subscriptions are as before. */
    resumed: boolean;
    /** The gateway no longer knows the session that was to be resumed, and this is a new one. */
    resumeRefused: boolean;
  };
  /** The subscriptions of a resumed session, oldest first. Messages that arrived meanwhile follow. */
  recovered: { channels: RecoveredChannel[] };
  /** The connection was lost; another attempt follows after the pause. `code` as in `closed`. */
  reconnecting: { attempt: number; pauseMs: number; reason: string; code: number };
  /** The connection is over for good. `code` is the gateway's close code ({@link CloseCode}), or 0. */
  closed: { reason: string; code: number };
  /** Data of a channel: first the full state, then changes. */
  update: { channel: number } & Payload;
  /** A user-space message. */
  message: {
    channel: number;
    /** Its number, from 100 on. */
    type: number;
    payload: Uint8Array;
    /** For servers the client that sent it, for clients the value that the server set. */
    client: number;
    broadcast: number;
    stub: number;
  };
  /** To players: a match begins, and this one is subscribed to its channel. */
  matched: { room: string; channel: number };
  /** To players: this one is no longer in a match. */
  unmatched: { room: string; channel: number };
  /** To players: a notification of the matcher; `type` is its kind, docs/reference/matcher.md documents `body`. */
  notice: { type: number; body: Uint8Array };
  /** A channel was created; also as a copy to the owner of GLOBAL. */
  created: ChannelInfo & { owner: number };
  removed: { channel: number };
  /** A connection was subscribed to a channel: this one, or another one to a channel that this one owns. */
  subscribed: { channel: number; conn: number; kind: number; type: number; options: SubscribeOptions };
  unsubscribed: { channel: number; conn: number; kind: number; type: number };
  /** To the owner of GLOBAL: a login. Result 0 is success. */
  peer: { conn: number; result: number; recovering: boolean };
  /** The owner of a channel was lost and may return. */
  ownerLost: { channel: number };
  ownerRecovered: { channel: number };
  /** A message below 100 that has no event of its own. */
  other: { channel: number; type: number; stub: number; body: Uint8Array };
}

/** Codes with which a gateway closes a connection; docs/transports.md lists them. */
export const CloseCode = {
  SHUTDOWN: 1001, RULE: 1008, INTERNAL: 1011, RESTARTED: 1012, FULL: 1013,
  KICKED: 4001, BANNED: 4002, LOGIN: 4003, RATE: 4004, SUPERSEDED: 4005, IDLE: 4007,
} as const;

/** A listener of one event. */
export type Listener<T> = (event: T) => void;

/** Calls the application's code. An exception is reported as uncaught and does not affect other listeners. @internal */
export function report(call: () => void): void {
  try {
    call();
  } catch (error) {
    queueMicrotask(() => {
      throw error;
    });
  }
}

/** Listeners by event. An exception of one is reported as uncaught; the others are still called. */
export class Emitter<Events> {
  #listeners = new Map<keyof Events, Set<Listener<never>>>();

  /** Calls `listener` for every event of that name from now on. Returns a function that stops it. */
  on<K extends keyof Events>(name: K, listener: Listener<Events[K]>): () => void {
    let set = this.#listeners.get(name);
    if (set === undefined) this.#listeners.set(name, (set = new Set()));
    set.add(listener);
    return () => void set.delete(listener);
  }

  /** @internal */
  protected emit<K extends keyof Events>(name: K, event: Events[K]): void {
    for (const listener of [...(this.#listeners.get(name) ?? [])]) {
      report(() => (listener as Listener<Events[K]>)(event));
    }
  }
}
