/** The data of one channel, kept up to date by a {@link Merge}. */
export class ChannelState {
    channel;
    #value;
    #merge;
    #listeners = new Set();
    #stop;
    /** @internal */
    constructor(channel, merge, stop) {
        this.channel = channel;
        this.#merge = merge;
        this.#stop = stop;
    }
    /** The state; `undefined` until the first update, and again after a loss until everything has come anew. */
    get value() {
        return this.#value;
    }
    /** Calls `listener` after every update. Returns how to stop. */
    onChange(listener) {
        this.#listeners.add(listener);
        return () => void this.#listeners.delete(listener);
    }
    /** Ends the tracking; the subscription stays. */
    stop() {
        this.#stop(this);
    }
    /** @internal */
    apply(update, type) {
        const value = this.#merge(this.#value, update, type);
        this.#value = value;
        for (const listener of [...this.#listeners])
            listener(value);
    }
    /** @internal */
    reset() {
        this.#value = undefined;
    }
}
