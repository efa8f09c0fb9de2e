import { ThrongError } from "./errors.js";
import { ProtoReader, ProtoWriter } from "./proto.js";

/** Bytes of the tag in front of a packet. */
const TAG_BYTES = 5;
/** Longest packet that peers accept. */
export const PACKET_BYTES_MAX = 65_530;
/** Longest packet that a tag can announce. */
const PACKET_BYTES_RECEIVED_MAX = 65_535;

/** One message of a packet. */
export interface Message {
  /** Target channel to the gateway, source channel from it. */
  channel: number;
  /** Receivers of a user-space message; see {@link Broadcast}. */
  broadcast: number;
  /** Repeated in the response to this message; 0 for none. */
  stub: number;
  /** Below 100 the gateway's, from 100 on the game's. */
  type: number;
  body: Uint8Array;
}

/** The bytes of one message as an entry of a packet. */
export function encodeEntry(message: Message): Uint8Array {
  const write = (inner: ProtoWriter): void => {
    inner
      .uint32(1, message.channel)
      .uint32(2, message.broadcast)
      .uint32(3, message.stub)
      .uint32(4, message.type)
      .bytes(5, message.body);
  };
  return new ProtoWriter().message(1, write).finish();
}

/** One frame of entries that together are at most {@link PACKET_BYTES_MAX} long. Never compressed. */
export function encodeFrame(entries: readonly Uint8Array[]): Uint8Array<ArrayBuffer> {
  const size = entries.reduce((sum, entry) => sum + entry.length, 0);
  if (size === 0 || size > PACKET_BYTES_MAX) {
    throw new ThrongError("too_large", `a packet of ${size} bytes; 1 to ${PACKET_BYTES_MAX} can be sent`);
  }
  const frame = new Uint8Array(TAG_BYTES + size);
  frame.set([0x43, 0x48, size >> 8, size & 0xff, 0]);
  let at = TAG_BYTES;
  for (const entry of entries) {
    frame.set(entry, at);
    at += entry.length;
  }
  return frame;
}

/** Cuts a stream into messages. Keeps the rest of an unfinished frame only. */
export class FrameReader {
  #rest = new Uint8Array();

  /** Bytes of an unfinished frame. */
  get bufferedBytes(): number {
    return this.#rest.length;
  }

  /**
   * The messages of all frames that `input` completes. Bodies are views into the input.
   *
   * @throws ThrongError `malformed`; the border of the next frame is unknown then, so the connection is over.
   */
  feed(input: Uint8Array): Message[] {
    let bytes = input;
    if (this.#rest.length > 0) {
      bytes = new Uint8Array(this.#rest.length + input.length);
      bytes.set(this.#rest);
      bytes.set(input, this.#rest.length);
    }
    const messages: Message[] = [];
    let at = 0;
    while (bytes.length - at >= TAG_BYTES) {
      const [first, second, high, low, compression] = bytes.subarray(at) as unknown as [
        number, number, number, number, number,
      ];
      const size = high * 256 + low;
      if (first !== 0x43 || second !== 0x48) throw new ThrongError("malformed", "a frame does not begin with CH");
      if (size === 0) throw new ThrongError("malformed", "a frame of no bytes");
      if (compression > 1) throw new ThrongError("malformed", `compression ${compression}`);
      if (bytes.length - at - TAG_BYTES < size) break;
      const packet = bytes.subarray(at + TAG_BYTES, at + TAG_BYTES + size);
      decodePacket(compression === 1 ? unsnap(packet) : packet, messages);
      at += TAG_BYTES + size;
    }
    this.#rest = bytes.slice(at);
    return messages;
  }
}

function decodePacket(packet: Uint8Array, messages: Message[]): void {
  const entries = new ProtoReader(packet);
  while (entries.next()) {
    if (entries.field !== 1) continue;
    const message: Message = { channel: 0, broadcast: 0, stub: 0, type: 0, body: new Uint8Array() };
    const fields = new ProtoReader(entries.bytes());
    while (fields.next()) {
      switch (fields.field) {
        case 1:
          message.channel = fields.uint32();
          break;
        case 2:
          message.broadcast = fields.uint32();
          break;
        case 3:
          message.stub = fields.uint32();
          break;
        case 4:
          message.type = fields.uint32();
          break;
        case 5:
          message.body = fields.bytes();
          break;
      }
    }
    messages.push(message);
  }
}

/**
 * Decompresses a raw Snappy block. Throng compresses only towards peers that compress, which this client never
 * does; other gateways of the protocol may.
 */
function unsnap(input: Uint8Array): Uint8Array {
  const wrong = (what: string): ThrongError => new ThrongError("malformed", `not a Snappy block: ${what}`);
  let at = 0;
  const byte = (): number => {
    const value = input[at++];
    if (value === undefined) throw wrong("it ends too early");
    return value;
  };
  const little = (count: number): number => {
    let value = 0;
    for (let i = 0; i < count; i++) value += byte() * 256 ** i;
    return value;
  };
  let declared = 0;
  for (let factor = 1; ; factor *= 128) {
    const bits = byte();
    declared += (bits & 0x7f) * factor;
    if (declared > PACKET_BYTES_RECEIVED_MAX || factor > 128 ** 4) throw wrong("it declares too much");
    if (bits < 0x80) break;
  }
  const output = new Uint8Array(declared);
  let written = 0;
  while (at < input.length) {
    const tag = byte();
    let length = (tag >> 2) + 1;
    if ((tag & 3) === 0) {
      if (length > 60) length = little(length - 60) + 1;
      if (length > input.length - at || length > declared - written) throw wrong("a literal is too long");
      output.set(input.subarray(at, at + length), written);
      at += length;
      written += length;
      continue;
    }
    let offset: number;
    if ((tag & 3) === 1) {
      length = ((tag >> 2) & 7) + 4;
      offset = (tag >> 5) * 256 + byte();
    } else {
      offset = little((tag & 3) === 2 ? 2 : 4);
    }
    if (offset === 0 || offset > written || length > declared - written) throw wrong("a copy is out of bounds");
    // Byte by byte: a copy may overlap what it writes.
    for (const end = written + length; written < end; written++) output[written] = output[written - offset]!;
  }
  if (written !== declared) throw wrong("it holds less than it declares");
  return output;
}
