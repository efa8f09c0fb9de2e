// The console in a real browser, on a running demo: every page loads and shows live data, names of hostile players stay
// text, a gateway that dies is shown as dead and a new one as live.
//
//   node test/run.mjs PATH/TO/throng [folder for screenshots]
//
// Needs Debian's chromium (or CHROMIUM=path) and `npm ci` in console/. Prints what it checked; exit 1 at the first failure.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, mkdirSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";

const { chromium } = createRequire(import.meta.url)("playwright-core");
const [given, pictures] = process.argv.slice(2);
assert.ok(given, "usage: node test/run.mjs PATH/TO/throng [FOLDER]");
// Children run in a folder of their own.
const program = resolve(given);
if (pictures) mkdirSync(pictures, { recursive: true });
const HOSTILE = `<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>`;
const folder = mkdtempSync(join(tmpdir(), "throng-console-"));

/** Far beyond what any step needs on a slow machine; reached only when a check fails. */
const PATIENCE_MS = 180_000;

const children = new Set();
/** Starts a command and resolves with the first match of `ready` in what it prints. */
function start(args, ready) {
  const child = spawn(program, args, { cwd: folder, stdio: ["ignore", "pipe", "pipe"] });
  children.add(child);
  child.once("exit", () => children.delete(child));
  return new Promise((resolve, reject) => {
    let text = "";
    const timer = setTimeout(() => reject(new Error(`${args.join(" ")} did not get ready:\n${text}`)), PATIENCE_MS);
    const take = (chunk) => {
      text += chunk;
      const match = ready.exec(text);
      if (match === null) return;
      clearTimeout(timer);
      resolve({ child, match });
    };
    child.stdout.on("data", take);
    child.stderr.on("data", take);
    child.once("exit", (code) => reject(new Error(`${args.join(" ")} ended with ${code}:\n${text}`)));
  });
}

function stop(child) {
  return new Promise((resolve) => {
    child.removeAllListeners("exit");
    child.once("exit", () => {
      children.delete(child);
      resolve();
    });
    child.kill("SIGINT");
  });
}

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
let failed = null;
try {
  await everything();
} catch (error) {
  failed = error;
}
await Promise.all([...children].map(stop));
await browser.close();
if (failed) {
  console.error(failed);
  process.exit(1);
}
console.log("all done");

async function everything() {
  const began = Date.now();
  const say = (what) => console.log(`${((Date.now() - began) / 1000).toFixed(1)} s  ${what}`);
  const demo = await start(["demo", "--spatial", "--players", "60"], /console\s+(http:\S+#token=[0-9a-f]+)/);
  const address = demo.match[1];
  say(`demo is up: ${address.replace(/#.*/, "")}`);
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, colorScheme: "dark" });
  // While the console is being changed: its files from a folder instead of from the binary.
  if (process.env.CONSOLE_DIST) {
    const served = /\/console\/(app\.js|app\.css|icon\.svg)?(\?.*)?$/;
    await context.route(served, (route) => route.fulfill({ path: join(process.env.CONSOLE_DIST, served.exec(route.request().url())[1] ?? "index.html") }));
  }
  context.setDefaultTimeout(PATIENCE_MS);
  const page = await context.newPage();
  const errors = [];
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("console", (message) => message.type() === "error" && !/Failed to load resource|ERR_/.test(message.text()) && errors.push(message.text()));
  const shot = (name) => pictures && page.screenshot({ path: join(pictures, `${name}.png`) });

  await page.goto(address);
  await page.waitForSelector(".status.good");
  assert.ok(!page.url().includes("token"), "the token stays in no history");
  assert.equal(await page.locator("a.badge.warn", { hasText: "no session" }).count(), 0, "the token opened a session");
  const again = await (await browser.newContext()).newPage();
  again.setDefaultTimeout(PATIENCE_MS);
  await again.goto(address);
  await again.waitForSelector("a.badge.warn:has-text('no session')");
  await again.close();
  say("the token opens one session and no second");

  const pages = {
    overview: async () => {
      await page.waitForFunction(() => /\d/.test(document.querySelector(".stats .stat:nth-child(4) .value")?.textContent ?? ""));
      await page.waitForTimeout(pictures ? 15_000 : 0);
    },
    connections: () => page.waitForSelector("tbody tr:nth-child(10)"),
    "connections?closed": () => page.waitForSelector(".card"),
    channels: () => page.waitForSelector("tbody tr:nth-child(10)"),
    map: async () => {
      await page.waitForFunction(() => window.throngMap?.drawn > 50);
      const before = await page.evaluate(() => window.throngMap.world.handovers);
      await page.waitForFunction((before) => window.throngMap.world.handovers > before, before);
    },
    rooms: async () => {
      await page.waitForSelector("text=Queue duel");
      // Who waits in the list may be matched before it is clicked; the page says that too, and the next one is asked about.
      const searching = page.locator("text=fitting players");
      const over = page.locator("text=the ticket is not searching");
      const until = Date.now() + PATIENCE_MS;
      for (let seen = false, tries = 0; !seen; tries += 1) {
        assert.ok(Date.now() < until, "every ticket was matched before it was asked about");
        if (tries > 0) {
          await page.locator("a:text-is('close')").click();
          await page.waitForTimeout(2_000); // The list is fetched as often.
        }
        await page.locator("tr:has-text('searching') >> text=why not matched?").first().click();
        await searching.or(over).first().waitFor();
        seen = await searching.isVisible();
      }
    },
    cache: async () => {
      await page.waitForSelector("td:has-text('demo')");
      await page.waitForSelector("h2:has-text('Evicted next')");
      // Before sizes were counted, which happens once a minute, there is nothing to name; the page says so.
      const next = page.locator("[aria-label='Evicted next']").or(page.locator("text=Not counted yet"));
      await next.first().waitFor();
      const collections = () => page.locator("dl.facts div", { hasText: "garbage collections" }).locator("dd").innerText();
      const before = await collections();
      await page.click("text=Collect garbage now");
      await page.waitForFunction((before) => [...document.querySelectorAll("dl.facts div")].some((row) => row.querySelector("dt")?.textContent === "garbage collections" && row.querySelector("dd")?.textContent !== before), before);
    },
    lab: () => page.waitForSelector("text=Swarm on this gateway"),
    packets: () => page.waitForSelector("text=Capture for two minutes"),
    config: () => page.waitForSelector("text=gateway.clients.addr"),
    docs: async () => {
      await page.waitForSelector(".prose h1");
      assert.ok(!(await page.textContent(".prose")).includes("<!--"), "a comment of a document is shown");
    },
    about: () => page.waitForSelector("text=Reliability ledger"),
  };
  for (const [name, ready] of Object.entries(pages)) {
    await page.goto(`${address.replace(/#.*/, "")}#/${name}`);
    await ready();
    await shot(name.replace("?", "-"));
  }
  say(`${Object.keys(pages).length} pages show live data`);

  await matcher(page, address.replace(/console.*/, ""), shot, say);

  // One connection, what crosses it, and its channel.
  const base = address.replace(/console.*/, "");
  const connections = (await (await fetch(`${base}api/v1/connections?search=client&limit=3`)).json()).connections;
  await page.goto(`${base}console/#/connections/${connections[1].id}`);
  await page.waitForSelector("text=Subscriptions");
  await page.waitForSelector("tbody tr");
  await page.locator("a:has-text('why?')").first().click();
  await page.waitForSelector("td:has-text('fan-out')");
  assert.ok((await page.locator("h2:has-text('Why are updates missing?')").count()) === 1);
  await shot("connection");
  say("a connection's page says what an update passes on its way");
  await page.click("text=Inspect packets");
  await page.waitForSelector(".packets li");
  await page.click(".packets li:has-text('CHANNEL_DATA_UPDATE') button");
  await page.waitForSelector(".packets .fields .field");
  await shot("packets-live");
  say("packets of a connection are decoded");
  const channel = (await (await fetch(`${base}api/v1/channels?type=ENTITY&limit=1`)).json()).channels[0];
  await page.goto(`${base}console/#/channels/${channel.id}`);
  await page.waitForSelector(".fields .value");
  await shot("channel");
  await page.goto(`${base}console/#/map?connection=${connections[1].id}`);
  await page.waitForFunction(() => window.throngMap?.selected !== null && window.throngMap?.world?.interest);
  await page.waitForTimeout(pictures ? 1_500 : 0);
  await shot("map-selected");
  await page.click("button[aria-label='Light colours']");
  await shot("map-light");
  await page.goto(`${base}console/#/overview`);
  await page.waitForSelector(".stats");
  await shot("overview-light");
  await page.click("button[aria-label='Dark colours']");

  // By keyboard alone: the palette, a page, a link.
  await page.keyboard.press("Control+k");
  await page.keyboard.type("config");
  await page.keyboard.press("Enter");
  await page.waitForSelector("h1:has-text('Configuration')");
  await page.waitForSelector("td:has-text('POST /api/v1/capture')");
  say("what the console changed is in the audit log");
  await page.keyboard.press("Tab");
  assert.ok(await page.evaluate(() => document.activeElement !== document.body), "something has the focus");
  say("the keyboard reaches pages");

  await heavy(context, base, say);
  await stop(demo.child);

  // A gateway with a hostile name in it, which then dies and comes back.
  writeFileSync(join(folder, "hostile.proto"), `syntax = "proto3"; package hostile; message Name { string name = 1; }`);
  // The first life gets free ports, and the second the same for its console: the page comes back by itself.
  const up = (http) => start(["up", "--console-token", "--dev", "--schema", "hostile.proto", "--gateway.spatial.controller", "4x1", "--gateway.servers.addr", "127.0.0.1:0", "--gateway.clients.addr", "127.0.0.1:0", "--http", http], /game servers\s+tcp:\S+:(?<servers>\d+)[^]*?console\s+(?<console>http:\S+#token=[0-9a-f]+)/);
  const first = await up("127.0.0.1:0");
  const { servers, console: home } = first.match.groups;
  await page.goto("about:blank");
  await page.goto(home);
  await page.waitForSelector(".status.good");
  await hostile(Number(servers));
  await page.goto(home.replace(/#.*/, "#/channels"));
  await page.waitForSelector("td:has-text('onerror')");
  await page.click("tr:has-text('onerror') td:first-child a");
  await page.waitForSelector(".fields .value.string:has-text('onerror')");
  await shot("hostile");
  assert.equal(await page.evaluate(() => window.pwned), undefined, "a name ran");
  say("hostile names are text");
  await page.goto(home.replace(/#.*/, "#/map"));
  await page.waitForSelector("dl.facts div:has-text('Without position'):has-text('1: hostile.Name')");
  await shot("without-position");
  say("entities without a position are named on the map's page");
  await page.goto(home.replace(/#.*/, "#/overview"));
  await page.waitForSelector(".stats");
  await stop(first.child);
  await page.waitForSelector(".banner:has-text('does not answer')");
  await shot("dead");
  const players = await page.textContent(".stats .stat:first-child .value");
  assert.ok(players !== "", "the last figures stay, marked as stale");
  assert.equal(await page.locator(".stale").count() > 0, true);
  const second = await up(new URL(home).host);
  await page.waitForSelector(".status.good");
  assert.equal(await page.locator(".banner").count(), 0);
  say("a dead gateway is shown as dead, and a new one is live again");
  await stop(second.child);
  assert.deepEqual(errors, [], "errors in the page");
}

/** Ten thousand entities on the map: it draws them all, and says how fast. On a quiet machine that is 3 to 8 ms a frame. */
/** Roles, rooms, charts, a draft of rules that is tried and put, and the matcher's tests in the lab. */
async function matcher(page, base, shot, say) {
  const narrow = async (name) => {
    await page.setViewportSize({ width: 390, height: 844 });
    await page.waitForTimeout(pictures ? 1_000 : 0);
    assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= 390, `${name} is wider than a phone`);
    await shot(`${name}-390`);
    await page.setViewportSize({ width: 1280, height: 900 });
    await page.waitForTimeout(pictures ? 1_000 : 0);
    await shot(`${name}-1280`);
  };
  const show = (query) => page.goto(`${base}console/#/rooms?${query}`);
  const ask = (method, request) => page.evaluate(([method, request]) => fetch(`/api/v1/matcher?method=${method}&request=${encodeURIComponent(JSON.stringify(request))}`).then((answer) => answer.json()), [method, request]);

  await show("queue=duel");
  for (const chart of ["Wait time", "Quality", "Searching", "Matches per minute"]) await page.waitForSelector(`.chart[aria-label='${chart}'] canvas`);
  await page.waitForTimeout(pictures ? 20_000 : 0);
  await narrow("queue");
  say("a queue's waits and qualities are charts");

  // Who waits now is in a room a little later, and out of it soon: on a slow machine before it is searched for.
  const seen = new Set();
  const until = Date.now() + PATIENCE_MS;
  const inRoom = async () => {
    for (;;) {
      assert.ok(Date.now() < until, "no player stayed in a room for long enough to be found");
      for (const ticket of (await ask("ListTickets", { Queue: "duel" })).Tickets) ticket.Players.forEach((player) => seen.add(player.RoleID));
      for (const id of seen) if (Object.keys((await ask("GetRole", { RoleID: id })).RoomInfos ?? {}).length > 0) return id;
      await page.waitForTimeout(100);
    }
  };
  await page.goto(`${base}console/#/rooms`);
  await page.fill("input[aria-label='Role']", "nobody at all");
  await page.click("form[role='search'] button");
  await page.waitForSelector("text=Not in a room, team or queue");
  let role = null;
  for (let found = false; !found; ) {
    role = await inRoom();
    await page.fill("input[aria-label='Role']", role);
    await page.click("form[role='search'] button");
    const shown = page.waitForSelector(`h2:has-text('Role ${role}')`, { timeout: 5_000 });
    found = await shown.then(() => true, () => false);
  }
  await narrow("role");
  const rooms = Object.keys((await ask("GetRole", { RoleID: role })).RoomInfos ?? {});
  if (rooms.length > 0) {
    await show(`room=${rooms[0]}`);
    await page.waitForSelector("[aria-label='History'] tbody tr, .empty");
    await narrow("room");
  }
  say("a role is found, and its room");

  await show("queue=duel&edit=1");
  const draft = page.locator("textarea");
  await draft.waitFor();
  const rules = JSON.parse(await draft.inputValue());
  await draft.fill(JSON.stringify({ ...rules, timeout_s: 0 }, null, 2));
  await page.click("button:text-is('Try')");
  await page.waitForSelector(".problem code:has-text('timeout_s')");
  await narrow("draft-wrong");
  const better = { ...rules, version: "tried", tick_ms: (rules.tick_ms ?? 250) * 2 };
  await draft.fill(JSON.stringify(better, null, 2));
  assert.ok(await page.locator("button:text-is('Apply')").isDisabled(), "untried rules cannot be applied");
  await page.click("button:text-is('Try')");
  await page.waitForSelector("[aria-label='Results of the trial'] tbody tr");
  await narrow("draft");
  await page.click("button:text-is('Apply')");
  await page.waitForSelector("text=Replace the rules of duel?");
  assert.notEqual((await ask("ListQueues", {})).Queues.duel.Version, "tried");
  await page.click("text=Yes, apply");
  await page.waitForSelector("text=The rules are active.");
  assert.equal((await ask("ListQueues", {})).Queues.duel.Version, "tried");
  await page.goto(`${base}console/#/config`);
  await page.waitForSelector("td:has-text('POST /api/v1/matcher')");
  say("a draft is refused by its place, tried, put and recorded");

  await page.goto(`${base}console/#/lab`);
  await page.click("text=Quick benchmark");
  await page.fill("input[list='tests']", "matcher Ping");
  await page.click("form.stack button.primary");
  await page.waitForSelector("td:has-text('Ping, 64 workers')");
  await narrow("lab-matcher");
  await page.setViewportSize({ width: 1440, height: 900 });
  say("the lab runs a test of the matcher");
}

async function heavy(context, base, say) {
  const page = await context.newPage();
  await page.goto(`${base}console/#/map`);
  await page.waitForFunction(() => window.throngMap?.world?.grid);
  const cost = await page.evaluate(async () => {
    const map = window.throngMap;
    const { grid, cells } = map.world;
    const n = 10_000;
    const world = (step) => {
      const column = (of) => Array.from({ length: n }, (_, i) => of(i));
      const x = column((i) => grid.x + ((i * 37 + step * 3) % 1000) / 1000 * grid.columns * grid.cell_width);
      const z = column((i) => grid.z + ((i * 91 + step) % 1000) / 1000 * grid.rows * grid.cell_height);
      return { ...map.world, entities: { channel: column((i) => i), x, z, cell: column((i) => i % cells.length), client: column(() => null), version: column(() => 0) } };
    };
    const took = [];
    for (let step = 0; step < 60; step++) {
      if (step % 15 === 0) map.take(world(step));
      const from = performance.now();
      map.draw(from);
      took.push(performance.now() - from);
    }
    // The best: other work of the machine is not the map's.
    return { ms: Math.min(...took), drawn: map.drawn };
  });
  assert.ok(cost.drawn > 9_000, `${cost.drawn} of 10000 drawn`);
  say(`10,000 entities: ${cost.ms.toFixed(1)} ms a frame`);
  await page.close();
}

/** A game server that gives a channel a hostile name, in bytes written by hand. */
async function hostile(port) {
  const { connect } = await import("node:net");
  const socket = connect(port, "127.0.0.1");
  await new Promise((resolve) => socket.once("connect", resolve));
  const varint = (n) => (n < 128 ? [n] : [(n & 127) | 128, ...varint(n >> 7)]);
  const field = (number, value) => (typeof value === "number" ? [number << 3, ...varint(value)] : [(number << 3) | 2, ...varint(value.length), ...value]);
  const text = (value) => [...Buffer.from(value)];
  const send = (type, body, channel = 0) => {
    const packet = field(1, [...field(1, channel), ...field(3, 1), ...field(4, type), ...field(5, body)]);
    socket.write(Uint8Array.from([0x43, 0x48, packet.length >> 8, packet.length & 255, 0, ...packet]));
  };
  const answer = () => new Promise((resolve) => socket.once("data", resolve));
  send(1, field(1, text(HOSTILE)));
  await answer();
  const any = [...field(1, text("type.googleapis.com/hostile.Name")), ...field(2, field(1, text(HOSTILE)))];
  send(3, [...field(1, 3), ...field(2, text(HOSTILE)), ...field(4, any)]);
  await answer();
  // An entity whose data has no position.
  send(3, field(1, 4));
  await answer();
  send(15, [...field(1, 0x80001), ...field(4, any)], 0x10000);
  await answer();
}
