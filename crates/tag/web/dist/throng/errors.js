/** Every error of this package. */
export class ThrongError extends Error {
    /** What went wrong, for code to act on. */
    code;
    /** @internal */
    constructor(code, message) {
        super(message);
        this.name = "ThrongError";
        this.code = code;
    }
}
