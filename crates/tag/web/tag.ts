// The page: connects, shows the room, sends where the player wants to go.
import { type ChannelState, Throng, ThrongError } from "@throng/client";
import { Scene } from "./draw.js";
import { CAUGHT, decodeCaught, encodeHello, encodeSteer, HELLO, merge, type Room, STEER } from "./model.js";

const element = <T extends HTMLElement>(id: string): T => {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`the page has no #${id}`);
  return found as T;
};

const scene = new Scene(element<HTMLCanvasElement>("arena"));
const board = element("board");
const form = element<HTMLFormElement>("join");
const nameField = element<HTMLInputElement>("name");

let throng: Throng | undefined;
let room: ChannelState<Room> | undefined;
let playerName = "";
let isPlaying = false;
/** For the line about the network. */
const traffic = { updates: 0, bytes: 0, since: performance.now() };

/** Time in which the game server brings a player into a room, and pause before another login; in milliseconds. */
const [ROOM_PATIENCE, PAUSE] = [5_000, 500];
const query = new URLSearchParams(location.search);

/** Plays at a gateway, or in a world of a cluster: there each of the nodes knows the way, and one may be lost. */
async function play(): Promise<void> {
  const { gateways, worlds } = (await (await fetch("config.json")).json()) as { gateways: string[]; worlds: string[] };
  const random = crypto.getRandomValues(new Uint32Array(2)).join("-");
  const options = { pit: `tag-${random}`, world: query.get("world") ?? worlds[0] ?? "" };
  if (gateways.length === 1) return connect(await Throng.connect(gateways[0]!, options));
  for (let turn = 0; ; turn++) {
    try {
      const connection = await Throng.connect(gateways[turn % gateways.length]!, { ...options, reconnect: false });
      const closed = new Promise<void>((resolve) => connection.on("closed", () => resolve()));
      connect(connection);
      // A player who logged in before the game server did is never noticed by it.
      const timer = setTimeout(() => room === undefined && connection.close(), ROOM_PATIENCE);
      await closed;
      clearTimeout(timer);
    } catch (error) {
      status(String(error), "bad");
    }
    room?.stop();
    room = undefined;
    await new Promise((resolve) => setTimeout(resolve, PAUSE));
  }
}

function connect(connection: Throng): void {
  throng = connection;
  status("connected", "good");
  connection.on("update", ({ value }) => {
    traffic.updates++;
    traffic.bytes += value.length;
  });
  connection.on("message", ({ type, payload }) => {
    if (type !== CAUGHT || room?.value === undefined) return;
    const { by, who } = decodeCaught(payload);
    const caught = room.value.players.get(who);
    if (caught === undefined) return;
    const isMine = who === connection.conn || by === connection.conn;
    scene.burst(caught.sx, caught.sy, who === connection.conn ? 0 : caught.hue, isMine);
    const name = (id: number): string => room?.value?.players.get(id)?.name ?? "somebody";
    if (isMine) say(who === connection.conn ? `${name(by)} caught you!` : `You caught ${name(who)}! +5`);
  });
  connection.on("authenticated", ({ resumed }) => {
    status(resumed ? "back again" : "connected", "good");
  });
  connection.on("reconnecting", ({ attempt }) => status(`connection lost, attempt ${attempt}`, "bad"));
  connection.on("closed", ({ reason }) => status(reason, "bad"));
  connection.on("subscribed", ({ channel, conn }) => enterRoom(connection, channel, conn));
}

/** The game server has brought this connection into a room. */
function enterRoom(connection: Throng, channel: number, conn: number): void {
  if (conn !== connection.conn) return;
  room?.stop();
  room = connection.track(channel, merge);
  if (isPlaying) hello();
}

function hello(): void {
  if (room !== undefined && throng?.isOpen) throng.send(room.channel, HELLO, encodeHello(playerName));
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  playerName = nameField.value.trim() || "You";
  isPlaying = true;
  form.hidden = true;
  nameField.blur();
  hello();
});

// Keys by where they lie, not by what is printed on them.
const KEYS: Record<string, [number, number]> = {
  KeyW: [0, -1], KeyA: [-1, 0], KeyS: [0, 1], KeyD: [1, 0],
  ArrowUp: [0, -1], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowRight: [1, 0],
};
const held = new Set<string>();
addEventListener("keydown", (event) => {
  if (!isPlaying || KEYS[event.code] === undefined) return;
  held.add(event.code);
  event.preventDefault();
});
addEventListener("keyup", (event) => held.delete(event.code));
addEventListener("blur", () => held.clear());
let pointer: { x: number; y: number } | undefined;
const point = (event: PointerEvent): void => {
  pointer = event.buttons > 0 ? scene.toArena(event.clientX, event.clientY) : undefined;
};
for (const name of ["pointerdown", "pointermove", "pointerup"] as const) scene.canvas.addEventListener(name, point);

/** Where the player wants to go, at most 1 long. */
function wish(): { x: number; y: number } {
  let [x, y] = [0, 0];
  for (const code of held) {
    x += KEYS[code]![0];
    y += KEYS[code]![1];
  }
  const me = throng && room?.value?.players.get(throng.conn);
  if (pointer !== undefined && me !== undefined && held.size === 0) {
    [x, y] = [(pointer.x - me.x) / 60, (pointer.y - me.y) / 60];
  }
  const length = Math.hypot(x, y);
  return length > 1 ? { x: x / length, y: y / length } : { x, y };
}

let sent = "";
setInterval(() => {
  if (!isPlaying || room === undefined || !throng?.isOpen) return;
  const { x, y } = wish();
  const bytes = encodeSteer(x, y);
  // Only what is new: standing still costs nothing.
  if (bytes.join() === sent) return;
  sent = bytes.join();
  throng.send(room.channel, STEER, bytes);
}, 33);

function say(text: string): void {
  const toast = element("toast");
  toast.textContent = text;
  toast.classList.remove("shown");
  // Starts the animation anew.
  void toast.offsetWidth;
  toast.classList.add("shown");
}

function status(text: string, kind: "good" | "bad"): void {
  element("status").textContent = text;
  element("status").className = kind;
}

/** The texts around the canvas; names are text, never markup. */
function showTexts(state: Room): void {
  const { round } = state;
  const me = throng?.conn ?? 0;
  const ranking = state.ranking();
  const { dataset } = document.body;
  dataset.phase = round.playing ? "playing" : "over";
  dataset.round = String(round.number);
  dataset.players = String(ranking.length);
  element("timer").textContent = `${Math.floor(round.secondsLeft / 60)}:${String(round.secondsLeft % 60).padStart(2, "0")}`;
  element("timer").classList.toggle("late", round.playing && round.secondsLeft <= 10);
  element("round").textContent = `Round ${round.number}`;
  const it = state.players.get(round.it);
  element("role").textContent =
    !isPlaying || !round.playing ? "" : round.it === me ? "You are it: catch somebody!" : it ? `Run from ${it.name}` : "";
  element("role").classList.toggle("it", round.it === me);

  // The local player is always on the board, however far down.
  const mine = ranking.findIndex((player) => player.id === me);
  const shown = mine < 12 ? ranking.slice(0, 12) : [...ranking.slice(0, 11), ranking[mine]!];
  const rows = shown.map((player) => {
    const row = document.createElement("li");
    const dot = document.createElement("i");
    dot.style.background = player.id === round.it ? "#ff4a42" : `hsl(${player.hue} 85% 62%)`;
    const name = document.createElement("span");
    name.textContent = player.name;
    const score = document.createElement("b");
    score.textContent = String(player.score);
    row.append(dot, name, score);
    if (player.id === me) row.className = "me";
    return row;
  });
  board.replaceChildren(...rows);

  const result = element("result");
  const winner = state.players.get(round.winner);
  result.hidden = round.playing || winner === undefined;
  if (winner !== undefined) {
    element("winner").textContent = winner.id === me ? "You win!" : `${winner.name} wins`;
    element("points").textContent = `${winner.score} points, next round in ${round.secondsLeft}`;
  }
}

function showTraffic(now: number): void {
  const seconds = (now - traffic.since) / 1000;
  const players = room?.value?.players.size ?? 0;
  element("traffic").textContent =
    `${players} players · ${(traffic.updates / seconds).toFixed(0)} updates/s · ` +
    `${(traffic.bytes / seconds / 1000).toFixed(1)} kB/s`;
  Object.assign(traffic, { updates: 0, bytes: 0, since: now });
}

let last = performance.now();
let textsAt = 0;
function frame(now: number): void {
  const dt = Math.min((now - last) / 1000, 0.1);
  last = now;
  const state = room?.value;
  if (state !== undefined) {
    state.advance(now, dt);
    scene.draw(state, throng?.conn ?? 0, now, dt);
    const me = state.players.get(throng?.conn ?? 0);
    if (me !== undefined) document.body.dataset.x = String(Math.round(me.sx));
    if (now - textsAt > 100) {
      textsAt = now;
      showTexts(state);
    }
  }
  if (now - traffic.since > 1000) showTraffic(now);
  requestAnimationFrame(frame);
}
requestAnimationFrame(frame);

const given = query.get("name");
if (given !== null) {
  nameField.value = given;
  form.requestSubmit();
}
play().catch((error: unknown) => {
  status(error instanceof ThrongError ? `no gateway: ${error.message}` : String(error), "bad");
});
