/** Calls the application's code. What it throws is reported as uncaught and stops nobody else. @internal */
export function report(call) {
    try {
        call();
    }
    catch (error) {
        queueMicrotask(() => {
            throw error;
        });
    }
}
/** Listeners by event. What one throws is reported as uncaught; the others still hear. */
export class Emitter {
    #listeners = new Map();
    /** Calls `listener` for every event of that name from now on. Returns how to stop. */
    on(name, listener) {
        let set = this.#listeners.get(name);
        if (set === undefined)
            this.#listeners.set(name, (set = new Set()));
        set.add(listener);
        return () => void set.delete(listener);
    }
    /** @internal */
    emit(name, event) {
        for (const listener of [...(this.#listeners.get(name) ?? [])]) {
            report(() => listener(event));
        }
    }
}
