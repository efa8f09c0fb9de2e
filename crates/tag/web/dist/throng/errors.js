/** Every error of this package. */
export class ThrongError extends Error {
    /** Kind of the error, for programs. */
    code;
    /** @internal */
    constructor(code, message) {
        super(message);
        this.name = "ThrongError";
        this.code = code;
    }
}
