/** Codes with which a gateway closes a connection; docs/transports.md lists them. */
export const CloseCode = {
    SHUTDOWN: 1001, RULE: 1008, INTERNAL: 1011, RESTARTED: 1012, FULL: 1013,
    KICKED: 4001, BANNED: 4002, LOGIN: 4003, RATE: 4004, SUPERSEDED: 4005, IDLE: 4007,
};
/** Calls the application's code. An exception is reported as uncaught and does not affect other listeners. @internal */
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
/** Listeners by event. An exception of one is reported as uncaught; the others are still called. */
export class Emitter {
    #listeners = new Map();
    /** Calls `listener` for every event of that name from now on. Returns a function that stops it. */
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
