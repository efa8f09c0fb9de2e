// Conversations with a real gateway.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { WebSocket, WebSocketServer } from "ws";
import {
  Access, Broadcast, ChannelType, encodeEntry, encodeFrame, FrameReader, ProtoReader, ProtoWriter, Throng,
} from "../dist/index.js";
import { program, startGateway, startProxy } from "./gateway.mjs";

const CHAT = "chatpb.ChatChannelData";
const line = (content) => new ProtoWriter().message(1, (inner) => inner.string(3, content)).finish();
/** Contents of the messages of chat data; as a merge, appended. */
const merge = (state, update) => {
  const lines = state ?? [];
  const data = new ProtoReader(update);
  while (data.next()) {
    const message = new ProtoReader(data.bytes());
    while (message.next()) if (message.field === 3) lines.push(message.string());
  }
  return lines;
};
const text = new TextEncoder();
// A busy machine is slow; that is not what is tested, but where a test says so.
const options = { webSocket: WebSocket, authTimeoutMs: 60_000, requestTimeoutMs: 60_000 };

/** The next event of that name that fits. */
const next = (throng, name, fits = () => true) =>
  new Promise((resolve) => {
    const stop = throng.on(name, (event) => {
      if (!fits(event)) return;
      stop();
      resolve(event);
    });
  });

let gateway;
const open = [];
const connect = async (pit, more = {}, url = gateway.clients) => {
  const throng = await Throng.connect(url, { ...options, pit, ...more });
  open.push(throng);
  return throng;
};

before(async () => {
  assert.ok(program, "no throng was built; run cargo build, or set THRONG");
  gateway = await startGateway();
});
after(async () => {
  for (const throng of open) throng.close();
  await gateway?.stop();
});

/** A node that serves no world and names addresses of another one. */
const startElsewhere = async (addresses) => {
  const asked = [];
  const server = new WebSocketServer({ port: 0, host: "127.0.0.1" });
  await new Promise((resolve) => server.once("listening", resolve));
  server.on("connection", (socket) =>
    socket.on("message", (data) => {
      const [message] = new FrameReader().feed(new Uint8Array(data));
      const login = new ProtoReader(message.body);
      let world = "";
      while (login.next()) if (login.field === 101) world = login.string();
      asked.push(world);
      const body = new ProtoWriter().uint32(1, 2).message(101, (elsewhere) => {
        elsewhere.string(1, "world_elsewhere");
        for (const address of addresses) elsewhere.string(2, address);
        elsewhere.string(3, "main");
      });
      socket.send(encodeFrame([encodeEntry({ ...message, broadcast: 0, body: body.finish() })]));
    }),
  );
  return { url: `ws://127.0.0.1:${server.address().port}`, asked, addresses, stop: () => server.close() };
};

test("a login goes to the node that serves its world, and gives up after three moves", async () => {
  const node = await startElsewhere(["tcp://127.0.0.1:1", "ws://127.0.0.1:1", gateway.clients]);
  const alice = await connect("alice", { world: "hub" }, node.url);
  assert.deepEqual([node.asked, alice.isOpen], [["hub"], true]);
  node.stop();
  const round = await startElsewhere([]);
  round.addresses.push(round.url);
  const error = await connect("alice", {}, round.url).catch((error) => error);
  assert.equal(error.code, "world_elsewhere", error.message);
  assert.deepEqual(round.asked, ["", "main", "main", "main"]);
  round.stop();
  const none = await startElsewhere(["tcp://127.0.0.1:1"]);
  await assert.rejects(connect("alice", {}, none.url), { code: "world_elsewhere" });
  none.stop();
});

test("channels are created, listed, subscribed to, updated and removed", async () => {
  const alice = await connect("alice");
  const bob = await connect("bob");
  const write = { access: Access.WRITE, skipSelf: false, intervalMs: 20 };
  const room = await alice.createChannel({
    type: ChannelType.SUBWORLD, metadata: "green room", data: { type: CHAT, value: line("open") }, options: write,
  });
  assert.deepEqual([room.owner, room.metadata, room.type], [alice.conn, "green room", ChannelType.SUBWORLD]);
  const listed = await bob.listChannels({ type: ChannelType.SUBWORLD, metadata: ["green"] });
  assert.deepEqual(listed, [{ channel: room.channel, type: ChannelType.SUBWORLD, metadata: "green room" }]);
  assert.deepEqual(await bob.listChannels({ metadata: ["no such"] }), []);

  const [hers, his] = [alice, bob].map((throng) => throng.track(room.channel, merge));
  const joined = next(alice, "subscribed", (event) => event.conn === bob.conn);
  const given = await bob.subscribe(room.channel, write);
  assert.deepEqual([given.access, given.intervalMs, given.skipSelf], [Access.WRITE, 20, false]);
  assert.equal((await joined).channel, room.channel);

  const all = (state, count) =>
    new Promise((resolve) => {
      const check = () => state.value?.length >= count && resolve();
      state.onChange(check);
      check();
    });
  const seen = [all(hers, 3), all(his, 3)];
  alice.update(room.channel, CHAT, line("hello"));
  bob.update(room.channel, CHAT, line("hi"));
  await Promise.all(seen);
  for (const state of [hers, his]) assert.deepEqual([...state.value].sort(), ["hello", "hi", "open"]);

  const left = next(alice, "unsubscribed", (event) => event.conn === bob.conn);
  await bob.unsubscribe(room.channel);
  await left;
  assert.equal(his.value, undefined, "what is not kept up to date is not shown");
  await alice.removeChannel(room.channel);
  assert.deepEqual(await alice.listChannels({ metadata: ["green"] }), []);
});

test("players talk to their server, and the server to them", async () => {
  const server = await connect("game", { kind: "server" }, gateway.servers);
  const world = (await server.createChannel({ type: ChannelType.GLOBAL, metadata: "game" })).channel;
  assert.equal(world, 0);
  const came = next(server, "peer");
  const player = await connect("player");
  assert.deepEqual(await came, { conn: player.conn, result: 0, recovering: false });

  await server.subscribe(world, { access: Access.READ }, player.conn);
  const asked = next(server, "message");
  player.send(world, 100, text.encode("ping"));
  const { client, type, payload } = await asked;
  assert.deepEqual([client, type, new TextDecoder().decode(payload)], [player.conn, 100, "ping"]);
  const answers = player.stream("message");
  const answer = answers.next();
  server.forward(world, 101, text.encode("pong"), Broadcast.SINGLE_CONNECTION, client);
  server.forward(world, 102, text.encode("all"), Broadcast.ALL_BUT_SENDER);
  assert.equal(new TextDecoder().decode((await answer).value.payload), "pong");
  assert.equal((await answers.next()).value.type, 102);
  const ended = answers.next();
  const closed = next(player, "closed");
  player.close();
  assert.deepEqual(await closed, { reason: "closed by the application", code: 0 });
  assert.equal((await ended).done, true);
  assert.throws(() => player.send(world, 100, text.encode("late")), { code: "not_connected" });
  server.close();
});

test("a lost connection returns as the same one, with its subscriptions", async () => {
  const proxy = await startProxy(gateway.clients);
  try {
    const owner = await connect("owner");
    const room = await owner.createChannel({
      type: ChannelType.SUBWORLD, metadata: "cave", data: { type: CHAT, value: line("one") },
      options: { access: Access.WRITE, intervalMs: 20 },
    });
    const player = await connect("climber", { reconnect: { firstMs: 10, longestMs: 50 } }, proxy.url);
    const state = player.track(room.channel, merge);
    const first = next(player, "update");
    await player.subscribe(room.channel, { intervalMs: 20 });
    await first;
    const before = player.conn;
    const open = player.listChannels().catch((error) => error.code);
    proxy.refusing = true;
    proxy.cut();
    const attempts = [];
    player.on("reconnecting", ({ attempt }) => attempts.push(attempt));
    await next(player, "reconnecting", ({ attempt }) => attempt === 3);
    assert.equal(await open, "closed", "a request that was under way fails");
    assert.throws(() => player.send(0, 100, text.encode("x")), { code: "not_connected" });
    owner.update(room.channel, CHAT, line("two"));
    // Handled before the player is back: an answer says so.
    await owner.listChannels();
    const recovered = next(player, "recovered");
    proxy.refusing = false;
    const { channels } = await recovered;
    assert.deepEqual(channels.map(({ channel, metadata }) => [channel, metadata]), [[room.channel, "cave"]]);
    assert.equal(player.conn, before);
    assert.deepEqual(attempts.slice(0, 3), [1, 2, 3]);
    assert.deepEqual(state.value, ["one", "two"]);
    const more = next(player, "update");
    owner.update(room.channel, CHAT, line("three"));
    await more;
    assert.deepEqual(state.value, ["one", "two", "three"]);
  } finally {
    proxy.stop();
  }
});

test("what cannot be is refused with a reason", async () => {
  await assert.rejects(Throng.connect("ws://127.0.0.1:1", options), { code: "closed" });
  const user = await connect("user", { requestTimeoutMs: 50, queueBytesMax: 70_000 });
  await assert.rejects(user.subscribe(4_000_000), { code: "timeout" });
  assert.throws(() => user.send(0, 100, new Uint8Array(65_530)), { code: "too_large" });
  assert.throws(() => {
    for (let i = 0; i < 100; i++) user.send(0, 100, new Uint8Array(1_000));
  }, { code: "queue_full" });
  // The others hear what one listener cannot bear, and it is reported as uncaught.
  const uncaught = [];
  const real = globalThis.queueMicrotask;
  globalThis.queueMicrotask = (call) =>
    real(() => {
      try {
        call();
      } catch (error) {
        uncaught.push(error.message);
      }
    });
  user.on("closed", () => {
    throw new Error("a mistake of the application");
  });
  const heard = next(user, "closed");
  user.close();
  await heard;
  globalThis.queueMicrotask = real;
  assert.deepEqual(uncaught, ["a mistake of the application"]);
  const missing = globalThis.WebSocket;
  if (missing === undefined) await assert.rejects(Throng.connect("ws://127.0.0.1:1"), { code: "no_websocket" });
});

test("a gateway that sends nonsense is left", async () => {
  class Nonsense {
    bufferedAmount = 0;
    constructor() {
      queueMicrotask(() => {
        this.onopen({});
        this.onmessage({ data: Uint8Array.of(1, 2, 3, 4, 5, 6).buffer });
      });
    }
    send() {}
    close() {}
  }
  await assert.rejects(Throng.connect("ws://x", { webSocket: Nonsense }), { code: "malformed" });
  class Silent extends Nonsense {
    constructor() {
      super();
      this.onmessage = null;
    }
    set onmessage(_) {}
    get onmessage() {
      return () => undefined;
    }
  }
  await assert.rejects(Throng.connect("ws://x", { webSocket: Silent, authTimeoutMs: 20 }), { code: "timeout" });
});

test("a wrong token is refused", async () => {
  const strict = await startGateway(["--gateway.auth.kind", "refuse"]);
  try {
    await assert.rejects(Throng.connect(strict.clients, { ...options, pit: "eve" }), { code: "refused" });
  } finally {
    await strict.stop();
  }
});
