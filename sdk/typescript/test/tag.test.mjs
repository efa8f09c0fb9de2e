// Two people play a round of tag in two tabs of a browser. Skipped where there is no Chromium.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { accessSync, constants } from "node:fs";
import { delimiter, join } from "node:path";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { chromium } from "playwright-core";
import { program } from "./gateway.mjs";

const found = (name) =>
  (process.env.PATH ?? "").split(delimiter).map((folder) => join(folder, name)).find((path) => {
    try {
      accessSync(path, constants.X_OK);
      return true;
    } catch {
      return false;
    }
  });
const executablePath = ["chromium", "chromium-browser", "google-chrome"].map(found).find((path) => path);

test("two people and some simulated ones play a round", { skip: executablePath ? false : "no Chromium here" }, async () => {
  const game = spawn(program, ["tag", "--page", "127.0.0.1:0", "--players", "4", "--round", "6s"], {
    stdio: ["ignore", "pipe", "ignore"],
  });
  let browser;
  try {
    let url = "";
    for await (const line of createInterface(game.stdout)) {
      url ||= /^ {2}play +(http:[^ ]+)/.exec(line)?.[1] ?? "";
      if (line.startsWith("  stop")) break;
    }
    browser = await chromium.launch({
      executablePath,
      // The sandbox needs rights that containers do not have; the page is ours.
      args: [
        "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
      ],
    });
    const errors = [];
    const tabs = [];
    const hostile = `<img src=x onerror="document.title='got'">`;
    for (const name of ["Ann", hostile]) {
      const page = await browser.newPage({ viewport: { width: 1100, height: 700 } });
      page.setDefaultTimeout(60_000);
      page.on("pageerror", (error) => errors.push(error.message));
      page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
      await page.goto(url);
      await page.waitForFunction(() => Number(document.body.dataset.players) >= 4);
      // The page cuts names for convenience; the server cuts those of others.
      await page.$eval("#name", (field, value) => {
        field.removeAttribute("maxlength");
        field.value = value;
      }, name);
      await page.click("#join button");
      tabs.push(page);
    }
    const [ann, other] = tabs;
    for (const page of tabs) await page.waitForFunction(() => Number(document.body.dataset.players) >= 6);
    const board = await other.$$eval("#board span", (names) => names.map((name) => name.textContent));
    assert.ok(board.includes("Ann"), `${board}`);
    assert.ok(board.includes(hostile.slice(0, 14)), `names are text: ${board}`);

    // Who steers, moves: to the left wall, or to the right one when it is there already.
    const x = () => ann.evaluate(() => Number(document.body.dataset.x));
    const before = await x();
    const [key, moved] = before > 300 ? ["KeyA", "<"] : ["KeyD", ">"];
    await ann.bringToFront();
    await ann.keyboard.down(key);
    await ann.waitForFunction(
      ([before, moved]) => (moved === "<" ? 1 : -1) * (before - Number(document.body.dataset.x)) > 100,
      [before, moved],
    );
    await ann.keyboard.up(key);

    await ann.waitForFunction(() => document.body.dataset.phase === "over" && !document.getElementById("result").hidden);
    assert.match(await ann.textContent("#winner"), /win/);
    const round = Number(await ann.evaluate(() => document.body.dataset.round));
    await ann.waitForFunction((round) => Number(document.body.dataset.round) > round, round);

    // Who closes the tab leaves the game.
    await other.close();
    await ann.waitForFunction(() => Number(document.body.dataset.players) === 5);
    assert.equal(await ann.title(), "Tag — a game on Throng");
    assert.deepEqual(errors, []);
  } finally {
    await browser?.close();
    game.kill();
  }
});
