/** Kind of an error, for programs; the message is for people. */
export type ErrorCode =
  /** No response in time. The protocol has no negative responses, so a refused request looks the same. */
  | "timeout"
  /** The connection ended before the response, or for good. */
  | "closed"
  /** There is no connection at the moment, or no longer. */
  | "not_connected"
  /** The gateway refused the login, or the matcher a call. */
  | "refused"
  /** Another node of the cluster serves the world, and the search for it has failed. */
  | "world_elsewhere"
  /** No packet can hold the message. */
  | "too_large"
  /** The limit of bytes to send, or of events to read, is exceeded. */
  | "queue_full"
  /** The bytes violate the protocol. */
  | "malformed"
  /** There is no WebSocket in this environment and none was given. */
  | "no_websocket";

/** Every error of this package. */
export class ThrongError extends Error {
  /** Kind of the error, for programs. */
  readonly code: ErrorCode;

  /** @internal */
  constructor(code: ErrorCode, message: string) {
    super(message);
    this.name = "ThrongError";
    this.code = code;
  }
}
