// How large the console is for whoever loads it; fails over the limit.
import { readFileSync, readdirSync } from "node:fs";
import { gzipSync } from "node:zlib";

const folder = new URL("../dist/", import.meta.url);
const size = (name) => gzipSync(readFileSync(new URL(name, folder)), { level: 9 }).length;
const all = readdirSync(folder).map(size).reduce((a, b) => a + b);
console.log(`console: ${all} bytes gzipped (limit 100000)`);
if (all > 100_000) process.exit(1);
