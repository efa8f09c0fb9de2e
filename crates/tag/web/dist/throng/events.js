/** Codes by which a gateway says why it closes a connection; docs/transports.md has them all. */
export const CloseCode = {
    SHUTDOWN: 1001, RULE: 1008, INTERNAL: 1011, RESTARTED: 1012, FULL: 1013,
    KICKED: 4001, BANNED: 4002, LOGIN: 4003, RATE: 4004, SUPERSEDED: 4005, IDLE: 4007,
};
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
