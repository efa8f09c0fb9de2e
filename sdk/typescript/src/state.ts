/**
 * How an update becomes part of the state: returns the new state. Without state (`undefined`) the update is all
 * there is. It may change `state` in place and return it.
 */
export type Merge<T> = (state: T | undefined, update: Uint8Array, type: string) => T;

/** The data of one channel, kept up to date by a {@link Merge}. */
export class ChannelState<T> {
  readonly channel: number;
  #value: T | undefined;
  readonly #merge: Merge<T>;
  readonly #listeners = new Set<(value: T) => void>();
  readonly #stop: (state: ChannelState<T>) => void;

  /** @internal */
  constructor(channel: number, merge: Merge<T>, stop: (state: ChannelState<T>) => void) {
    this.channel = channel;
    this.#merge = merge;
    this.#stop = stop;
  }

  /** The state; `undefined` until the first update, and again after a loss until everything has come anew. */
  get value(): T | undefined {
    return this.#value;
  }

  /** Calls `listener` after every update. Returns how to stop. */
  onChange(listener: (value: T) => void): () => void {
    this.#listeners.add(listener);
    return () => void this.#listeners.delete(listener);
  }

  /** Ends the tracking; the subscription stays. */
  stop(): void {
    this.#stop(this);
  }

  /** @internal */
  apply(update: Uint8Array, type: string): void {
    const value = this.#merge(this.#value, update, type);
    this.#value = value;
    for (const listener of [...this.#listeners]) listener(value);
  }

  /** @internal */
  reset(): void {
    this.#value = undefined;
  }
}
