// The spatial map: draws the latest world on a canvas, entities on their way between two of its states. Nothing is
// allocated per entity and frame, so ten thousand move at the display's rate.
import type { Json } from "./api.ts";

export type Heat = "servers" | "entities" | "subscribers" | "backlog";

export interface Picked {
  channel: number;
  client: number | null;
  cell: number | null;
  x: number;
  z: number;
  version: number;
}

interface Flash {
  x: number;
  z: number;
  at: number;
}

const FLASH_MS = 900;
/** Entities from which on pixels are cheaper than rectangles. */
const PIXELS_FROM = 1_500;
const HUES = [196, 268, 142, 38, 346, 222, 172, 300, 84, 14, 250, 110];

/** A colour as a pixel has it, opaque. */
function rgba(hue: number, saturation: number, lightness: number): number {
  const a = saturation * Math.min(lightness, 1 - lightness);
  const part = (n: number) => {
    const k = (n + hue / 30) % 12;
    return Math.round((lightness - a * Math.max(-1, Math.min(k - 3, 9 - k, 1))) * 255);
  };
  return (0xff000000 | (part(4) << 16) | (part(8) << 8) | part(0)) >>> 0;
}

export class WorldMap {
  world: Json = null;
  heat: Heat = "servers";
  showEntities = true;
  selected: number | null = null;
  onPick: (picked: Picked | null) => void = () => {};
  fps = 0;
  drawn = 0;
  reducedMotion = matchMedia("(prefers-reduced-motion: reduce)").matches;

  private context: CanvasRenderingContext2D;
  private scale = 1;
  private left = 0;
  private top = 0;
  private fitted = false;
  private slots = new Map<number, number>();
  // Columns by slot: where from, where to, look.
  private fromX = new Float64Array(0);
  private fromZ = new Float64Array(0);
  private toX = new Float64Array(0);
  private toZ = new Float64Array(0);
  private cell = new Int32Array(0);
  private version = new Float64Array(0);
  private order: Int32Array[] = [];
  private length = 0;
  private tookAt = 0;
  private span = 250;
  private flashes: Flash[] = [];
  private frame = 0;
  private frames: number[] = [];
  private stop: () => void;
  private colors: Record<string, string> = {};
  private layer = document.createElement("canvas");
  private pixels: ImageData | null = null;

  constructor(private canvas: HTMLCanvasElement) {
    this.context = canvas.getContext("2d")!;
    const resize = new ResizeObserver(() => this.resize());
    resize.observe(canvas);
    this.restyle();
    const draw = (now: number) => {
      this.draw(now);
      this.frame = requestAnimationFrame(draw);
    };
    this.frame = requestAnimationFrame(draw);
    const off = this.listen();
    this.stop = () => {
      resize.disconnect();
      off();
      cancelAnimationFrame(this.frame);
    };
  }

  destroy() {
    this.stop();
  }

  restyle() {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["bg", "line", "text", "muted", "accent", "amber", "rose"]) {
      this.colors[name] = style.getPropertyValue(`--${name}`).trim();
    }
  }

  /** A new state of the world; what moved goes there until the next one is expected. */
  take(world: Json) {
    const now = performance.now();
    if (this.world !== null) this.span = Math.min(2000, Math.max(60, 0.7 * this.span + 0.3 * (now - this.tookAt)));
    const { channel, x, z, cell, version } = world.entities;
    const n: number = channel.length;
    const progress = this.progress(now);
    const old = this.slots;
    const [oldFromX, oldFromZ, oldToX, oldToZ, oldVersion] = [this.fromX, this.fromZ, this.toX, this.toZ, this.version];
    this.slots = new Map();
    this.fromX = new Float64Array(n);
    this.fromZ = new Float64Array(n);
    this.toX = Float64Array.from(x);
    this.toZ = Float64Array.from(z);
    this.version = Float64Array.from(version);
    this.cell = Int32Array.from(cell, (value: number | null) => value ?? -1);
    const servers = world.grid ? world.grid.server_columns * world.grid.server_rows : 1;
    const groups: number[][] = Array.from({ length: servers }, () => []);
    for (let i = 0; i < n; i++) {
      this.slots.set(channel[i], i);
      const before = old.get(channel[i]);
      if (before === undefined) {
        this.fromX[i] = this.toX[i];
        this.fromZ[i] = this.toZ[i];
      } else {
        this.fromX[i] = oldFromX[before] + (oldToX[before] - oldFromX[before]) * progress;
        this.fromZ[i] = oldFromZ[before] + (oldToZ[before] - oldFromZ[before]) * progress;
        if (version[i] > oldVersion[before] && this.flashes.length < 400) {
          this.flashes.push({ x: x[i], z: z[i], at: now });
        }
      }
      const owner = this.cell[i] >= 0 && world.cells.length > 0 ? (world.cells[this.cell[i]]?.[0] ?? 0) : 0;
      groups[owner % servers].push(i);
    }
    this.order = groups.map((group) => Int32Array.from(group));
    this.length = n;
    this.world = world;
    this.tookAt = now;
    if (!this.fitted) this.fit();
  }

  fit() {
    const box = this.extent();
    if (box === null || this.canvas.clientWidth === 0) return;
    const [x0, z0, x1, z1] = box;
    const pad = 1.04;
    this.scale = Math.min(this.canvas.clientWidth / ((x1 - x0) * pad), this.canvas.clientHeight / ((z1 - z0) * pad));
    this.left = (x0 + x1) / 2 - this.canvas.clientWidth / 2 / this.scale;
    this.top = (z0 + z1) / 2 + this.canvas.clientHeight / 2 / this.scale;
    this.fitted = true;
  }

  zoom(factor: number, px = this.canvas.clientWidth / 2, py = this.canvas.clientHeight / 2) {
    const x = this.left + px / this.scale;
    const z = this.top - py / this.scale;
    this.scale = Math.min(1e4, Math.max(1e-4, this.scale * factor));
    this.left = x - px / this.scale;
    this.top = z + py / this.scale;
  }

  pan(dx: number, dy: number) {
    this.left -= dx / this.scale;
    this.top += dy / this.scale;
  }

  private extent(): [number, number, number, number] | null {
    const grid = this.world?.grid;
    if (grid) return [grid.x, grid.z, grid.x + grid.columns * grid.cell_width, grid.z + grid.rows * grid.cell_height];
    if (this.length === 0) return null;
    let [x0, z0, x1, z1] = [Infinity, Infinity, -Infinity, -Infinity];
    for (let i = 0; i < this.length; i++) {
      x0 = Math.min(x0, this.toX[i]);
      x1 = Math.max(x1, this.toX[i]);
      z0 = Math.min(z0, this.toZ[i]);
      z1 = Math.max(z1, this.toZ[i]);
    }
    const side = Math.max(x1 - x0, z1 - z0, 10);
    return [x0 - side * 0.1, z0 - side * 0.1, x0 + side * 1.1, z0 + side * 1.1];
  }

  private progress(now: number) {
    return this.reducedMotion ? 1 : Math.min(1, (now - this.tookAt) / this.span);
  }

  private resize() {
    const ratio = Math.min(2, window.devicePixelRatio || 1);
    this.canvas.width = Math.max(1, Math.round(this.canvas.clientWidth * ratio));
    this.canvas.height = Math.max(1, Math.round(this.canvas.clientHeight * ratio));
    if (!this.fitted) this.fit();
  }

  private draw(now: number) {
    this.frames.push(now);
    while (this.frames[0] < now - 1000) this.frames.shift();
    this.fps = this.frames.length;
    const { context: c, canvas, colors } = this;
    const ratio = canvas.width / Math.max(1, canvas.clientWidth);
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.fillStyle = colors.bg;
    c.fillRect(0, 0, canvas.clientWidth, canvas.clientHeight);
    if (this.world === null) return;
    const dark = document.documentElement.dataset.theme !== "light";
    this.cells(dark);
    const progress = this.progress(now);
    if (this.showEntities) this.entities(progress, dark);
    this.drawFlashes(now);
    this.selection(progress);
  }

  private sx = (x: number) => (x - this.left) * this.scale;
  private sy = (z: number) => (this.top - z) * this.scale;

  private cells(dark: boolean) {
    const { grid, cells, interest } = this.world;
    if (!grid) return;
    const c = this.context;
    const column = { servers: 0, entities: 2, subscribers: 3, backlog: 4 }[this.heat];
    const most = Math.max(1, ...cells.map((cell: Json) => cell[column]));
    const w = grid.cell_width * this.scale;
    const h = grid.cell_height * this.scale;
    const covered = new Map<number, number>((interest?.cells ?? []).map(([cell, far]: [number, number]) => [cell, far]));
    for (let i = 0; i < cells.length; i++) {
      const x = this.sx(grid.x + (i % grid.columns) * grid.cell_width);
      const y = this.sy(grid.z + (Math.floor(i / grid.columns) + 1) * grid.cell_height);
      if (x > this.canvas.clientWidth || y > this.canvas.clientHeight || x + w < 0 || y + h < 0) continue;
      const [server, owner] = cells[i];
      if (this.heat === "servers") {
        c.fillStyle = `hsl(${HUES[server % HUES.length]} 70% ${dark ? 60 : 45}% / ${owner === null ? 0.02 : dark ? 0.1 : 0.12})`;
      } else {
        c.fillStyle = `hsl(${dark ? 200 : 210} 90% ${dark ? 60 : 45}% / ${(0.75 * cells[i][column]) / most})`;
      }
      c.fillRect(x, y, w, h);
      if (owner === null && w > 6) {
        c.strokeStyle = this.colors.rose;
        c.globalAlpha = 0.5;
        c.beginPath();
        c.moveTo(x, y);
        c.lineTo(x + w, y + h);
        c.stroke();
        c.globalAlpha = 1;
      }
      if (covered.has(i)) {
        c.fillStyle = `hsl(48 100% 60% / ${0.24 / (1 + (covered.get(i) ?? 0) * 0.6)})`;
        c.fillRect(x, y, w, h);
      }
    }
    c.lineWidth = 1;
    c.strokeStyle = this.colors.line;
    c.beginPath();
    for (let i = 0; i <= grid.columns; i++) {
      const x = Math.round(this.sx(grid.x + i * grid.cell_width)) + 0.5;
      c.moveTo(x, this.sy(grid.z));
      c.lineTo(x, this.sy(grid.z + grid.rows * grid.cell_height));
    }
    for (let i = 0; i <= grid.rows; i++) {
      const y = Math.round(this.sy(grid.z + i * grid.cell_height)) + 0.5;
      c.moveTo(this.sx(grid.x), y);
      c.lineTo(this.sx(grid.x + grid.columns * grid.cell_width), y);
    }
    c.stroke();
    this.borders(grid, cells, dark);
  }

  /** Lines between the areas of different servers, and each area's number. */
  private borders(grid: Json, cells: Json, dark: boolean) {
    const c = this.context;
    c.strokeStyle = dark ? "#8fb6d9aa" : "#39587aaa";
    c.lineWidth = 1.5;
    c.beginPath();
    const middle = new Map<number, [number, number, number]>();
    for (let i = 0; i < cells.length; i++) {
      const column = i % grid.columns;
      const row = Math.floor(i / grid.columns);
      const [x, y] = [this.sx(grid.x + column * grid.cell_width), this.sy(grid.z + row * grid.cell_height)];
      const [w, h] = [grid.cell_width * this.scale, grid.cell_height * this.scale];
      const sum = middle.get(cells[i][0]) ?? [0, 0, 0];
      middle.set(cells[i][0], [sum[0] + x + w / 2, sum[1] + y - h / 2, sum[2] + 1]);
      if (column + 1 < grid.columns && cells[i + 1][0] !== cells[i][0]) {
        c.moveTo(x + w, y);
        c.lineTo(x + w, y - h);
      }
      if (row + 1 < grid.rows && cells[i + grid.columns][0] !== cells[i][0]) {
        c.moveTo(x, y - h);
        c.lineTo(x + w, y - h);
      }
    }
    c.stroke();
    c.font = "600 12px system-ui, sans-serif";
    c.textAlign = "center";
    c.fillStyle = this.colors.muted;
    c.globalAlpha = 0.75;
    for (const [server, [x, y, n]] of middle) c.fillText(`server ${server}`, x / n, y / n);
    c.globalAlpha = 1;
  }

  private entities(progress: number, dark: boolean) {
    const size = Math.max(1.6, Math.min(7, 2.2 + this.scale * 0.12));
    this.drawn = 0;
    if (this.length > PIXELS_FROM) this.asPixels(progress, dark, size);
    else this.asRects(progress, dark, size);
  }

  private asRects(progress: number, dark: boolean, size: number) {
    const c = this.context;
    const half = size / 2;
    const [width, height] = [this.canvas.clientWidth, this.canvas.clientHeight];
    this.order.forEach((group, server) => {
      c.fillStyle = `hsl(${HUES[server % HUES.length]} ${dark ? 85 : 75}% ${dark ? 66 : 38}%)`;
      for (let k = 0; k < group.length; k++) {
        const i = group[k];
        const x = (this.fromX[i] + (this.toX[i] - this.fromX[i]) * progress - this.left) * this.scale;
        const y = (this.top - this.fromZ[i] - (this.toZ[i] - this.fromZ[i]) * progress) * this.scale;
        if (x < 0 || y < 0 || x > width || y > height) continue;
        c.fillRect(x - half, y - half, size, size);
        this.drawn++;
      }
    });
  }

  /** Many entities: a call per entity costs more than all of their pixels, so these are written by hand. */
  private asPixels(progress: number, dark: boolean, size: number) {
    const { width, height } = this.canvas;
    const ratio = width / Math.max(1, this.canvas.clientWidth);
    if (this.pixels === null || this.pixels.width !== width || this.pixels.height !== height) {
      this.layer.width = width;
      this.layer.height = height;
      this.pixels = new ImageData(width, height);
    }
    const out = new Uint32Array(this.pixels.data.buffer);
    out.fill(0);
    const side = Math.max(1, Math.round(size * ratio));
    const scale = this.scale * ratio;
    this.order.forEach((group, server) => {
      const color = rgba(HUES[server % HUES.length], dark ? 0.85 : 0.75, dark ? 0.66 : 0.38);
      for (let k = 0; k < group.length; k++) {
        const i = group[k];
        const x = Math.round((this.fromX[i] + (this.toX[i] - this.fromX[i]) * progress - this.left) * scale);
        const y = Math.round((this.top - this.fromZ[i] - (this.toZ[i] - this.fromZ[i]) * progress) * scale);
        if (x < 0 || y < 0 || x + side > width || y + side > height) continue;
        for (let row = y * width + x, end = row + side * width; row < end; row += width) out.fill(color, row, row + side);
        this.drawn++;
      }
    });
    this.layer.getContext("2d")!.putImageData(this.pixels, 0, 0);
    this.context.drawImage(this.layer, 0, 0, this.canvas.clientWidth, this.canvas.clientHeight);
  }

  private drawFlashes(now: number) {
    const c = this.context;
    this.flashes = this.flashes.filter((flash) => now - flash.at < FLASH_MS);
    c.strokeStyle = this.colors.amber;
    c.lineWidth = 1.5;
    for (const flash of this.flashes) {
      const age = (now - flash.at) / FLASH_MS;
      c.globalAlpha = 1 - age;
      c.beginPath();
      c.arc(this.sx(flash.x), this.sy(flash.z), 3 + age * 12, 0, Math.PI * 2);
      c.stroke();
    }
    c.globalAlpha = 1;
  }

  private selection(progress: number) {
    const slot = this.selected === null ? undefined : this.slots.get(this.selected);
    if (slot === undefined) return;
    const c = this.context;
    const x = this.sx(this.fromX[slot] + (this.toX[slot] - this.fromX[slot]) * progress);
    const y = this.sy(this.fromZ[slot] + (this.toZ[slot] - this.fromZ[slot]) * progress);
    c.strokeStyle = this.colors.amber;
    c.fillStyle = this.colors.amber;
    c.lineWidth = 1.25;
    c.font = "11px system-ui, sans-serif";
    c.textAlign = "left";
    for (const [within, interval] of this.world.bands) {
      if (within === null) continue;
      const r = within * this.scale;
      c.setLineDash([5, 4]);
      c.beginPath();
      c.arc(x, y, r, 0, Math.PI * 2);
      c.stroke();
      c.setLineDash([]);
      c.fillText(`${interval} ms`, x + r * 0.71 + 4, y - r * 0.71 - 2);
    }
    c.lineWidth = 2;
    c.beginPath();
    c.arc(x, y, 9, 0, Math.PI * 2);
    c.stroke();
  }

  /** The entity next to a point of the canvas. */
  pick(px: number, py: number): Picked | null {
    const entities = this.world?.entities;
    if (!entities) return null;
    let best = -1;
    let least = 14 ** 2;
    for (let i = 0; i < this.length; i++) {
      const d = (this.sx(this.toX[i]) - px) ** 2 + (this.sy(this.toZ[i]) - py) ** 2;
      if (d < least) [best, least] = [i, d];
    }
    if (best < 0) return null;
    return this.describe(entities.channel[best]);
  }

  describe(channel: number | null): Picked | null {
    const i = channel === null ? undefined : this.slots.get(channel);
    if (i === undefined || channel === null) return null;
    const { client } = this.world.entities;
    return { channel, client: client[i], cell: this.cell[i] < 0 ? null : this.cell[i], x: this.toX[i], z: this.toZ[i], version: this.version[i] };
  }

  private listen() {
    const canvas = this.canvas;
    let drag: { x: number; y: number; moved: number } | null = null;
    const down = (event: PointerEvent) => {
      drag = { x: event.offsetX, y: event.offsetY, moved: 0 };
      canvas.setPointerCapture(event.pointerId);
    };
    const move = (event: PointerEvent) => {
      if (drag === null) return;
      const [dx, dy] = [event.offsetX - drag.x, event.offsetY - drag.y];
      this.pan(dx, dy);
      drag = { x: event.offsetX, y: event.offsetY, moved: drag.moved + Math.abs(dx) + Math.abs(dy) };
    };
    const up = (event: PointerEvent) => {
      if (drag !== null && drag.moved < 5) this.onPick(this.pick(event.offsetX, event.offsetY));
      drag = null;
    };
    const wheel = (event: WheelEvent) => {
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY * 0.0016), event.offsetX, event.offsetY);
    };
    const key = (event: KeyboardEvent) => {
      const step: Record<string, () => void> = {
        ArrowLeft: () => this.pan(60, 0),
        ArrowRight: () => this.pan(-60, 0),
        ArrowUp: () => this.pan(0, 60),
        ArrowDown: () => this.pan(0, -60),
        "+": () => this.zoom(1.3),
        "-": () => this.zoom(1 / 1.3),
        "0": () => this.fit(),
        Escape: () => this.onPick(null),
      };
      const act = step[event.key];
      if (act === undefined) return;
      event.preventDefault();
      act();
    };
    canvas.addEventListener("pointerdown", down);
    canvas.addEventListener("pointermove", move);
    canvas.addEventListener("pointerup", up);
    canvas.addEventListener("wheel", wheel, { passive: false });
    canvas.addEventListener("keydown", key);
    return () => {
      canvas.removeEventListener("pointerdown", down);
      canvas.removeEventListener("pointermove", move);
      canvas.removeEventListener("pointerup", up);
      canvas.removeEventListener("wheel", wheel);
      canvas.removeEventListener("keydown", key);
    };
  }
}
