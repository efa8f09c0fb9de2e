/**
 * Client for the Throng gateway over WebSocket, for browsers and Node, without dependencies.
 *
 * {@link Throng} is the connection. {@link ProtoReader} and {@link ProtoWriter} read and write protobuf for games
 * that generate no code; any protobuf library does as well.
 *
 * @module
 */
export { type Backoff, Throng, type ThrongOptions, type WebSocketLike } from "./client.js";
export { type ErrorCode, ThrongError } from "./errors.js";
export { CloseCode, Emitter, type Listener, type ThrongEvents } from "./events.js";
export { encodeEntry, encodeFrame, FrameReader, type Message, PACKET_BYTES_MAX } from "./frame.js";
export { MatchMethod, type MatchWorld, matchWorld } from "./matchmaking.js";
export {
  Access, Broadcast, type ChannelInfo, ChannelType, type CreateOptions, type MergeOptions, MessageType, type Payload,
  type RecoveredChannel, type SubscribeOptions,
} from "./messages.js";
export { ProtoReader, ProtoWriter } from "./proto.js";
export { ChannelState, type Merge } from "./state.js";
