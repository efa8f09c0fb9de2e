// The page of tag is checked in as built, so that building Throng needs no Node. THRONG_UPDATE=1 writes it anew.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

const here = fileURLToPath(new URL("..", import.meta.url));
const web = join(here, "../../crates/tag/web");

test("the built page of tag is that of its source", () => {
  const out = mkdtempSync(join(tmpdir(), "throng-tag-"));
  try {
    execFileSync(process.execPath, [join(here, "node_modules/typescript/bin/tsc"), "-p", web, "--outDir", out]);
    for (const name of readdirSync(join(here, "dist")).filter((name) => name.endsWith(".js"))) {
      cpSync(join(here, "dist", name), join(out, "throng", name));
    }
    const dist = join(web, "dist");
    if (process.env.THRONG_UPDATE) {
      rmSync(dist, { recursive: true, force: true });
      cpSync(out, dist, { recursive: true });
    }
    const files = (folder) => readdirSync(folder, { recursive: true }).filter((name) => name.endsWith(".js")).sort();
    assert.deepEqual(files(dist), files(out), "run the test with THRONG_UPDATE=1");
    for (const name of files(out)) {
      const [built, kept] = [out, dist].map((folder) => readFileSync(join(folder, name), "utf8"));
      assert.equal(kept, built, `${name}: run the test with THRONG_UPDATE=1`);
    }
  } finally {
    rmSync(out, { recursive: true });
  }
});
