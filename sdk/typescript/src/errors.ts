/** What went wrong, for code to act on. The text of the error says it to people. */
export type ErrorCode =
  /** No answer in time. The protocol has no negative answers, so a refused request looks like this too. */
  | "timeout"
  /** The connection ended before the answer, or for good. */
  | "closed"
  /** There is no connection at the moment, or no longer. */
  | "not_connected"
  /** The gateway refused the login, or the matcher a call. */
  | "refused"
  /** No packet can hold the message. */
  | "too_large"
  /** More is waiting to be sent, or to be read, than the limit allows. */
  | "queue_full"
  /** The bytes are not what the protocol says. */
  | "malformed"
  /** There is no WebSocket in this environment and none was given. */
  | "no_websocket";

/** Every error of this package. */
export class ThrongError extends Error {
  /** What went wrong, for code to act on. */
  readonly code: ErrorCode;

  /** @internal */
  constructor(code: ErrorCode, message: string) {
    super(message);
    this.name = "ThrongError";
    this.code = code;
  }
}
