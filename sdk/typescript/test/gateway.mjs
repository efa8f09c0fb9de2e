// A gateway of one's own for tests, on free ports. THRONG names the program; without it the one that was built last.
import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, rmSync, statSync } from "node:fs";
import { createServer, connect as connectTo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const repository = fileURLToPath(new URL("../../../", import.meta.url));
const built = ["debug", "release"].map((profile) => join(repository, "target", profile, "throng")).filter(existsSync);
export const program =
  process.env.THRONG ?? built.sort((a, b) => statSync(b).mtimeMs - statSync(a).mtimeMs)[0];

/** Starts a gateway in which clients may do what chat rooms need. `flags` are those of `throng up`. */
export async function startGateway(flags = []) {
  const folder = mkdtempSync(join(tmpdir(), "throng-"));
  const child = spawn(
    program,
    [
      "up", "--only", "gateway", "--data", "data", "--http", "127.0.0.1:0", "--gateway.servers.addr", "127.0.0.1:0",
      "--gateway.servers.transport", "ws", "--gateway.clients.addr", "127.0.0.1:0", "--gateway.clients.transport", "ws",
      "--gateway.permissions", "channeld", "--gateway.clients.state_machine", "client_authoratative",
      "--schema", join(repository, "fixtures/proto/chat.proto"), ...flags,
    ],
    { cwd: folder, stdio: ["ignore", "pipe", "ignore"] },
  );
  const gateway = {
    clients: "",
    servers: "",
    async stop() {
      child.kill();
      await new Promise((resolve) => (child.exitCode === null ? child.once("exit", resolve) : resolve()));
      rmSync(folder, { recursive: true });
    },
  };
  for await (const line of createInterface(child.stdout)) {
    const [, who, url] = /^ {2}(players|game servers) +(ws:\/\/[^ ]+)/.exec(line) ?? [];
    if (who === "players") gateway.clients = url;
    if (who === "game servers") gateway.servers = url;
    if (line.startsWith("  stop")) break;
  }
  if (gateway.clients === "") throw new Error(`${program} did not start`);
  return gateway;
}

/** A way to a WebSocket that can be cut and refused, as networks do. */
export async function startProxy(url) {
  const { hostname, port } = new URL(url);
  const sockets = new Set();
  const proxy = { url: "", refusing: false, cut: () => sockets.forEach((socket) => socket.destroy()), stop: undefined };
  const server = createServer((client) => {
    if (proxy.refusing) return client.destroy();
    const gateway = connectTo(Number(port), hostname);
    for (const [from, to] of [[client, gateway], [gateway, client]]) {
      sockets.add(from);
      from.on("error", () => to.destroy()).on("close", () => {
        sockets.delete(from);
        to.destroy();
      });
      from.pipe(to);
    }
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  proxy.url = `ws://127.0.0.1:${server.address().port}`;
  proxy.stop = () => {
    proxy.cut();
    server.close();
  };
  return proxy;
}
