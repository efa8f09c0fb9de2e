// Joins a room of a mode, writes one line to the channel when the match begins, and prints the lines of the others
// until one of them says "bye". docs/how-to/connect-a-client.md starts the gateway.
//
//     node chat.mjs ws://127.0.0.1:12108 alice party "hello"
import { Access, ProtoReader, ProtoWriter, Throng } from "@throng/client";

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

export async function chat(url, name, mode, says, print, options = {}) {
  const throng = await Throng.connect(url, { pit: name, ...options });
  throng.on("reconnecting", ({ reason }) => print(`connection lost (${reason}), trying again`));
  // Updates come as soon as the match begins: listen first.
  const updates = throng.stream("update");
  throng.on("matched", ({ channel }) => {
    // The gateway has subscribed us; this asks for our own lines as well.
    throng.changeSubscription(channel, { access: Access.WRITE, skipSelf: false, intervalMs: 50 });
    throng.update(channel, CHAT, encodeLine(name, says));
  });
  await throng.joinRandomRoom(mode);
  for await (const update of updates) {
    for (const { sender, content } of decodeLines(update.value)) {
      print(`<${sender}> ${content}`);
      if (content === "bye") return throng.close();
    }
  }
}

// Node before version 22 has no WebSocket of its own: npm install ws.
if (process.argv[1] === new URL(import.meta.url).pathname) {
  const [url = "ws://127.0.0.1:12108", name = "alice", mode = "party", says = "hello"] = process.argv.slice(2);
  const webSocket = globalThis.WebSocket ?? (await import("ws")).WebSocket;
  await chat(url, name, mode, says, console.log, { webSocket });
}
