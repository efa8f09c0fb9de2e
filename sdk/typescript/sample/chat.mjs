// A chat room: enters it, or opens it when there is none, says one line and prints what is said until somebody says
// "bye". The gateway needs the schema: throng up --schema fixtures/proto/chat.proto ... (see README.md)
//
//     node chat.mjs ws://127.0.0.1:12108 alice lobby "hello"
import { Access, ChannelType, ProtoReader, ProtoWriter, Throng } from "@throng/client";

const CHAT = "chatpb.ChatChannelData";

/** chatpb.ChatChannelData with one message. Games of some size generate this from their .proto files. */
function encodeLine(sender, content) {
  return new ProtoWriter().message(1, (message) => message.string(1, sender).string(3, content)).finish();
}

function decodeLines(bytes) {
  const lines = [];
  const data = new ProtoReader(bytes);
  while (data.next()) {
    if (data.field !== 1) continue;
    const line = { sender: "", content: "" };
    const message = new ProtoReader(data.bytes());
    while (message.next()) {
      if (message.field === 1) line.sender = message.string();
      if (message.field === 3) line.content = message.string();
    }
    lines.push(line);
  }
  return lines;
}

/** Subscribes to the room, or opens it. */
async function enter(throng, room) {
  const options = { access: Access.WRITE, skipSelf: false, intervalMs: 50 };
  const [found] = await throng.listChannels({ type: ChannelType.SUBWORLD, metadata: [room] });
  if (found !== undefined) {
    await throng.subscribe(found.channel, options);
    return found.channel;
  }
  const merge = { listSizeLimit: 100, truncateTop: true };
  const data = { type: CHAT, value: encodeLine("room", `${room} is open`) };
  const created = await throng.createChannel({ type: ChannelType.SUBWORLD, metadata: room, data, merge, options });
  return created.channel;
}

export async function chat(url, name, room, says, print, options = {}) {
  const throng = await Throng.connect(url, { pit: name, ...options });
  throng.on("reconnecting", ({ reason }) => print(`connection lost (${reason}), trying again`));
  // Updates come as soon as the room is entered: listen first.
  const updates = throng.stream("update");
  const channel = await enter(throng, room);
  throng.update(channel, CHAT, encodeLine(name, says));
  for await (const update of updates) {
    if (update.channel !== channel) continue;
    for (const { sender, content } of decodeLines(update.value)) {
      print(`<${sender}> ${content}`);
      if (content === "bye") return throng.close();
    }
  }
}

// Node before version 22 has no WebSocket of its own: npm install ws.
if (process.argv[1] === new URL(import.meta.url).pathname) {
  const [url = "ws://127.0.0.1:12108", name = "alice", room = "lobby", says = "hello"] = process.argv.slice(2);
  const webSocket = globalThis.WebSocket ?? (await import("ws")).WebSocket;
  await chat(url, name, room, says, console.log, { webSocket });
}
