// What a page has to load: under 20 KB compressed, and nothing that is not ours.
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { gzipSync } from "node:zlib";

test("the package is under 20 KB and needs nothing else", () => {
  const folder = new URL("../dist/", import.meta.url);
  const files = readdirSync(folder).filter((name) => name.endsWith(".js"));
  const size = gzipSync(Buffer.concat(files.map((name) => readFileSync(new URL(name, folder))))).length;
  assert.ok(size < 20_000, `${size} bytes`);
  for (const name of files) {
    const text = readFileSync(new URL(name, folder), "utf8");
    for (const [, from] of text.matchAll(/from "([^"]+)"/g)) assert.ok(from.startsWith("./"), `${name} imports ${from}`);
  }
  const manifest = JSON.parse(readFileSync(new URL("../package.json", import.meta.url), "utf8"));
  assert.equal(manifest.dependencies, undefined);
});
