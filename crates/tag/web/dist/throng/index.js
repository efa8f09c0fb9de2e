/**
 * Client for the Throng gateway over WebSocket, for browsers and Node, without dependencies.
 *
 * {@link Throng} is the connection. {@link ProtoReader} and {@link ProtoWriter} read and write protobuf for games
 * that generate no code; any protobuf library does as well.
 *
 * @module
 */
export { Throng } from "./client.js";
export { ThrongError } from "./errors.js";
export { CloseCode, Emitter } from "./events.js";
export { encodeEntry, encodeFrame, FrameReader, PACKET_BYTES_MAX } from "./frame.js";
export { MatchMethod, matchWorld } from "./matchmaking.js";
export { Access, Broadcast, ChannelType, MessageType, } from "./messages.js";
export { ProtoReader, ProtoWriter } from "./proto.js";
export { ChannelState } from "./state.js";
