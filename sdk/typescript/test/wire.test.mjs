// The golden frames that crates/wire is held against, both ways, and bytes that are wrong.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { encodeEntry, encodeFrame, FrameReader, matchWorld, PACKET_BYTES_MAX, ProtoReader, ProtoWriter } from "../dist/index.js";
import { decode, encode } from "../dist/messages.js";

const golden = JSON.parse(readFileSync(new URL("../../../fixtures/gateway/vectors.json", import.meta.url), "utf8"));
const hex = (text) => Uint8Array.from(text.match(/../g) ?? [], (pair) => Number.parseInt(pair, 16));
const toHex = (bytes) => Buffer.from(bytes).toString("hex");
const malformed = { code: "malformed" };

const plain = (messages) =>
  messages.map(({ channel, broadcast, stub, type, body }) => ({ channel, broadcast, stub, type, body: toHex(body) }));
const expected = (vector) =>
  vector.messages.map((m) => ({
    channel: m.channelId, broadcast: m.broadcast, stub: m.stubId, type: m.msgType, body: m.bodyHex,
  }));

test("every golden frame decodes to its messages, plain and compressed, in any portions", () => {
  assert.equal(golden.vectors.length, 42);
  for (const vector of golden.vectors) {
    for (const key of ["framePlainHex", "frameSnappyHex"]) {
      const bytes = hex(vector[key]);
      assert.deepEqual(plain(new FrameReader().feed(bytes)), expected(vector), `${vector.name} ${key}`);
      const reader = new FrameReader();
      const found = [...bytes].flatMap((byte) => reader.feed(Uint8Array.of(byte)));
      assert.deepEqual(plain(found), expected(vector), `${vector.name} ${key} byte by byte`);
      assert.equal(reader.bufferedBytes, 0);
    }
  }
});

test("every golden frame is written with the same bytes", () => {
  for (const vector of golden.vectors) {
    const entries = expected(vector).map((message) => encodeEntry({ ...message, body: hex(message.body) }));
    assert.equal(toHex(encodeFrame(entries)), vector.framePlainHex, vector.name);
  }
});

test("the answer to a login says whether the resume token is void", () => {
  const answer = (write) => decode.auth(write(new ProtoWriter().uint32(2, 7)).finish());
  assert.deepEqual([answer((body) => body).resumeRefused, answer((body) => body.uint32(102, 1)).resumeRefused], [false, true]);
});

test("the notice of a match names its world", () => {
  const addresses = { client: { ws: "ws://a:1" }, server: { tcp: "tcp://a:2" } };
  const data = { World: "duel-1", Addresses: addresses, Ticket: "e.y.J" };
  const body = new ProtoWriter().string(4, "ws://a:1");
  for (const [key, value] of Object.entries(data)) {
    body.message(11, (entry) => entry.string(1, key).string(2, JSON.stringify(value)));
  }
  const notice = { type: 23, body: body.finish() };
  assert.deepEqual(matchWorld(notice), { name: "duel-1", address: "ws://a:1", addresses, ticket: "e.y.J" });
  assert.equal(matchWorld({ ...notice, type: 22 }), undefined);
  assert.equal(matchWorld({ type: 23, body: new ProtoWriter().string(4, "ws://a:1").finish() }), undefined);
});

test("the tag announces the size", () => {
  for (const { packetSize, tagHex } of golden.tagsBySize.filter(({ packetSize }) => packetSize <= PACKET_BYTES_MAX)) {
    assert.equal(toHex(encodeFrame([new Uint8Array(packetSize)]).subarray(0, 5)), tagHex);
  }
  assert.throws(() => encodeFrame([new Uint8Array(PACKET_BYTES_MAX + 1)]), { code: "too_large" });
  assert.throws(() => encodeFrame([]), { code: "too_large" });
});

// What the vectors say in JSON, in the form of this package.
const options = (json = {}) => {
  const found = {};
  const access = { NO_ACCESS: 0, READ_ACCESS: 1, WRITE_ACCESS: 2 };
  if (json.dataAccess !== undefined) found.access = access[json.dataAccess] ?? json.dataAccess;
  if (json.dataFieldMasks?.length) found.fields = json.dataFieldMasks;
  if (json.fanOutIntervalMs !== undefined) found.intervalMs = json.fanOutIntervalMs;
  if (json.fanOutDelayMs !== undefined) found.delayMs = json.fanOutDelayMs;
  if (json.skipSelfUpdateFanOut !== undefined) found.skipSelf = json.skipSelfUpdateFanOut;
  if (json.skipFirstFanOut !== undefined) found.skipFirst = json.skipFirstFanOut;
  return found;
};
const channelType = (name = 0) =>
  ({ UNKNOWN: 0, GLOBAL: 1, PRIVATE: 2, SUBWORLD: 3, SPATIAL: 4, ENTITY: 5, TEST: 100 })[name] ?? name;

const READERS = {
  AuthMessage: (body, bytes) => {
    const again = encode.auth(body.playerIdentifierToken ?? "", body.loginToken ?? "", undefined);
    assert.equal(toHex(again), toHex(bytes));
  },
  AuthResultMessage: (body, bytes) => {
    const read = decode.auth(bytes);
    const result = { SUCCESSFUL: 0, INVALID_PIT: 1, INVALID_LT: 2 }[body.result ?? 0] ?? body.result ?? 0;
    assert.deepEqual([read.result, read.conn, read.recovering], [result, body.connId ?? 0, body.shouldRecover ?? false]);
  },
  CreateChannelResultMessage: (body, bytes) =>
    assert.deepEqual(decode.created(bytes), {
      channel: body.channelId ?? 0, type: channelType(body.channelType), metadata: body.metadata ?? "",
      owner: body.ownerConnId ?? 0,
    }),
  RemoveChannelMessage: (body, bytes) => {
    assert.equal(decode.id(bytes), body.channelId);
    assert.equal(toHex(encode.id(body.channelId)), toHex(bytes));
  },
  ListChannelMessage: (body, bytes) =>
    assert.equal(toHex(encode.list(channelType(body.typeFilter), body.metadataFilters ?? [])), toHex(bytes)),
  ListChannelResultMessage: (body, bytes) =>
    assert.deepEqual(
      decode.list(bytes),
      (body.channels ?? []).map((channel) => ({
        channel: channel.channelId ?? 0, type: channelType(channel.channelType), metadata: channel.metadata ?? "",
      })),
    ),
  SubscribedToChannelMessage: (body, bytes) => {
    const sub = body.subOptions === undefined ? undefined : options(body.subOptions);
    assert.equal(toHex(encode.subscribe(body.connId ?? 0, sub)), toHex(bytes));
  },
  SubscribedToChannelResultMessage: (body, bytes) => {
    const read = decode.subscribed(bytes);
    assert.deepEqual([read.conn, read.options], [body.connId ?? 0, options(body.subOptions)]);
  },
  UnsubscribedFromChannelResultMessage: (body, bytes) => assert.equal(decode.unsubscribed(bytes).conn, body.connId),
  ChannelDataUpdateMessage: (body, bytes) => {
    const read = decode.update(bytes);
    assert.equal(`type.googleapis.com/${read.type}`, body.data["@type"] ?? body.data.typeUrl);
    if (body.contextConnId === undefined || body.contextConnId === 0) assert.equal(toHex(encode.update(read)), toHex(bytes));
  },
  ServerForwardMessage: (body, bytes) => {
    const read = decode.forward(bytes);
    assert.deepEqual([read.client, Buffer.from(read.payload).toString("base64")], [body.clientConnId ?? 0, body.payload ?? ""]);
    assert.equal(toHex(encode.forward(read.client, read.payload)), toHex(bytes));
  },
  ChannelDataRecoveryMessage: (body, bytes) => {
    const read = decode.recovery(bytes);
    assert.deepEqual(
      [read.channel, read.metadata, read.owner, read.subscribedAtUnixNs, read.options],
      [body.channelId ?? 0, body.metadata ?? "", body.ownerConnId ?? 0, BigInt(body.subTime ?? 0), options(body.subOptions)],
    );
  },
};

test("the bodies of the golden frames mean what they are said to mean", () => {
  const seen = new Set();
  for (const { name, messages } of golden.vectors) {
    for (const message of messages) {
      const type = message.bodyType?.split(".").pop();
      if (READERS[type] === undefined) continue;
      seen.add(type);
      try {
        READERS[type](message.body, hex(message.bodyHex));
      } catch (error) {
        error.message = `${name} (${type}): ${error.message}`;
        throw error;
      }
    }
  }
  assert.deepEqual(Object.keys(READERS).filter((type) => !seen.has(type)), []);
});

test("wrong frames are errors", () => {
  for (const { hex: bytes, why } of golden.invalidFrames) {
    // Too short to be wrong: the rest may follow.
    if (bytes.length < 10) continue;
    assert.throws(() => new FrameReader().feed(hex(bytes)), malformed, why);
  }
  for (const block of ["ff", "ffffffffff7f", "0a", "0568", "0100", "0501000100", "058568000000", "04f0ff68"]) {
    const bytes = hex(block);
    const frame = Uint8Array.of(0x43, 0x48, 0, bytes.length, 1, ...bytes);
    assert.throws(() => new FrameReader().feed(frame), malformed, block);
  }
});

test("any bytes decode or are an error", () => {
  // xorshift: the same bytes every time.
  let seed = 0x9e3779b9;
  const random = (below) => {
    seed ^= seed << 13;
    seed ^= seed >>> 17;
    seed ^= seed << 5;
    return (seed >>> 0) % below;
  };
  const seeds = golden.vectors.map((vector) => hex(vector.packetHex));
  for (let round = 0; round < 20_000; round++) {
    const packet = seeds[random(seeds.length)].slice();
    for (let i = random(4); i >= 0; i--) packet[random(packet.length)] = random(256);
    const frame = Uint8Array.of(0x43, 0x48, packet.length >> 8, packet.length & 255, random(2), ...packet);
    try {
      for (const { body } of new FrameReader().feed(frame)) for (const read of Object.values(decode)) read(body);
    } catch (error) {
      assert.equal(error.code, "malformed", String(error.stack));
    }
  }
});

test("numbers, floats and text survive both directions", () => {
  const bytes = new ProtoWriter()
    .uint32(1, 0xffff_ffff).int32(2, -1).sint32(3, -150).float(4, 1.5).double(5, -2.25).bool(6, true)
    .string(7, "grüße 🎮").uint32(8, 0, true).message(9, (inner) => inner.int32(1, -2_147_483_648)).uint32(20, 0)
    .finish();
  const reader = new ProtoReader(bytes);
  const read = [
    () => assert.equal(reader.uint32(), 0xffff_ffff), () => assert.equal(reader.int32(), -1),
    () => assert.equal(reader.sint32(), -150), () => assert.equal(reader.float(), 1.5),
    () => assert.equal(reader.double(), -2.25), () => assert.equal(reader.bool(), true),
    () => assert.equal(reader.string(), "grüße 🎮"), () => assert.equal(reader.uint32(), 0),
    () => {
      const inner = new ProtoReader(reader.bytes());
      assert.ok(inner.next());
      assert.equal(inner.int32(), -2_147_483_648);
    },
  ];
  for (const [index, check] of read.entries()) {
    assert.ok(reader.next());
    assert.equal(reader.field, index + 1);
    check();
  }
  assert.ok(!reader.next(), "a value of 0 is left out");
  // -1 as ten bytes, as protobuf wants it, and 2^40 cut to 32 bits.
  assert.equal(toHex(new ProtoWriter().int32(1, -1).finish()), "08ffffffffffffffffff01");
  const wide = new ProtoReader(hex("0880808080808020"));
  assert.ok(wide.next());
  assert.deepEqual([wide.uint32(), wide.int64()], [0, 1n << 47n]);
});
