// The drawing on the canvas.
import type { Player, Room } from "./model.js";

interface Spark {
  x: number;
  y: number;
  vx: number;
  vy: number;
  life: number;
  hue: number;
}

const color = (hue: number, lightness = 62, alpha = 1): string => `hsl(${hue} 85% ${lightness}% / ${alpha})`;

export class Scene {
  readonly #context: CanvasRenderingContext2D;
  #sparks: Spark[] = [];
  #rings: { x: number; y: number; age: number; hue: number }[] = [];
  #shake = 0;
  /** From units of the arena to pixels of the canvas. */
  #scale = 1;
  #left = 0;
  #top = 0;

  constructor(readonly canvas: HTMLCanvasElement) {
    const context = canvas.getContext("2d");
    if (context === null) throw new Error("this browser has no canvas");
    this.#context = context;
  }

  /** Where a point of the page is in the arena. */
  toArena(x: number, y: number): { x: number; y: number } {
    const pixels = devicePixelRatio;
    return { x: (x * pixels - this.#left) / this.#scale, y: (y * pixels - this.#top) / this.#scale };
  }

  /** Somebody was caught here. */
  burst(x: number, y: number, hue: number, isMine: boolean): void {
    for (let i = 0; i < 46; i++) {
      const angle = Math.random() * Math.PI * 2;
      const speed = 60 + Math.random() * 340;
      this.#sparks.push({ x, y, vx: Math.cos(angle) * speed, vy: Math.sin(angle) * speed, life: 1, hue });
    }
    this.#rings.push({ x, y, age: 0, hue });
    if (isMine) this.#shake = 1;
  }

  draw(room: Room, me: number, now: number, dt: number): void {
    const context = this.#context;
    this.#fit(room);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.fillStyle = "#070a12";
    context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    this.#shake = Math.max(0, this.#shake - dt * 3);
    const shake = (): number => (Math.random() - 0.5) * 14 * this.#shake;
    context.setTransform(this.#scale, 0, 0, this.#scale, this.#left + shake(), this.#top + shake());
    this.#floor(room);
    for (const player of room.players.values()) this.#trail(player, room.round.it === player.id, room.radius);
    for (const pillar of room.pillars) this.#pillar(pillar.x, pillar.y, pillar.radius);
    for (const player of room.players.values()) {
      if (player.name !== "") this.#player(player, room, player.id === me, now);
    }
    this.#effects(dt);
  }

  #fit(room: Room): void {
    const { canvas } = this;
    const width = Math.round(canvas.clientWidth * devicePixelRatio);
    const height = Math.round(canvas.clientHeight * devicePixelRatio);
    if (canvas.width !== width || canvas.height !== height) {
      canvas.width = width;
      canvas.height = height;
    }
    const margin = 14 * devicePixelRatio;
    this.#scale = Math.max(0.05, Math.min((width - 2 * margin) / room.width, (height - 2 * margin) / room.height));
    this.#left = (width - room.width * this.#scale) / 2;
    this.#top = (height - room.height * this.#scale) / 2;
  }

  #floor(room: Room): void {
    const context = this.#context;
    const light = context.createRadialGradient(
      room.width / 2, room.height / 2, 80, room.width / 2, room.height / 2, room.width * 0.6,
    );
    light.addColorStop(0, "#182136");
    light.addColorStop(1, "#0b101c");
    context.fillStyle = light;
    context.beginPath();
    context.roundRect(0, 0, room.width, room.height, 22);
    context.fill();
    context.strokeStyle = "rgb(120 150 220 / 0.07)";
    context.lineWidth = 1;
    context.beginPath();
    for (let x = 100; x < room.width; x += 100) {
      context.moveTo(x, 0);
      context.lineTo(x, room.height);
    }
    for (let y = 100; y < room.height; y += 100) {
      context.moveTo(0, y);
      context.lineTo(room.width, y);
    }
    context.stroke();
    context.strokeStyle = "rgb(140 170 255 / 0.35)";
    context.lineWidth = 3;
    context.beginPath();
    context.roundRect(0, 0, room.width, room.height, 22);
    context.stroke();
  }

  #pillar(x: number, y: number, radius: number): void {
    const context = this.#context;
    const shade = context.createRadialGradient(x - radius / 3, y - radius / 3, radius / 8, x, y, radius);
    shade.addColorStop(0, "#46557a");
    shade.addColorStop(1, "#222c45");
    context.fillStyle = shade;
    context.beginPath();
    context.arc(x, y, radius, 0, Math.PI * 2);
    context.fill();
    context.strokeStyle = "rgb(150 180 255 / 0.3)";
    context.lineWidth = 2;
    context.stroke();
  }

  #trail(player: Player, isIt: boolean, radius: number): void {
    const context = this.#context;
    context.lineCap = "round";
    for (let i = 1; i < player.trail.length; i++) {
      const [from, to] = [player.trail[i - 1]!, player.trail[i]!];
      const share = i / player.trail.length;
      context.strokeStyle = isIt ? color(0, 60, share * 0.4) : color(player.hue, 60, share * 0.22);
      context.lineWidth = radius * 1.5 * share;
      context.beginPath();
      context.moveTo(from.x, from.y);
      context.lineTo(to.x, to.y);
      context.stroke();
    }
  }

  #player(player: Player, room: Room, isMe: boolean, now: number): void {
    const context = this.#context;
    const { sx: x, sy: y, hue } = player;
    const { radius } = room;
    const isIt = room.round.it === player.id;
    if (isIt) {
      const pulse = 1 + 0.14 * Math.sin(now / 110);
      const glow = context.createRadialGradient(x, y, radius * 0.6, x, y, radius * 3.2 * pulse);
      glow.addColorStop(0, "rgb(255 70 70 / 0.6)");
      glow.addColorStop(1, "rgb(255 70 70 / 0)");
      context.fillStyle = glow;
      context.beginPath();
      context.arc(x, y, radius * 3.2 * pulse, 0, Math.PI * 2);
      context.fill();
    }
    const body = context.createRadialGradient(x - radius / 3, y - radius / 3, radius / 6, x, y, radius);
    body.addColorStop(0, isIt ? "#ffb0a0" : color(hue, 80));
    body.addColorStop(1, isIt ? "#e5322d" : color(hue, 48));
    context.fillStyle = body;
    context.beginPath();
    context.arc(x, y, radius, 0, Math.PI * 2);
    context.fill();
    this.#eyes(player, radius);
    if (isMe) {
      context.strokeStyle = "#ffffff";
      context.lineWidth = 3;
      context.beginPath();
      context.arc(x, y, radius + 6, 0, Math.PI * 2);
      context.stroke();
    }
    context.textAlign = "center";
    context.font = `${isMe ? 700 : 500} 17px system-ui, sans-serif`;
    context.fillStyle = isMe ? "#ffffff" : "rgb(220 230 255 / 0.75)";
    context.fillText(player.name, x, y + radius + 22);
    if (isIt) {
      context.font = "800 16px system-ui, sans-serif";
      context.fillStyle = "#ff8a80";
      context.fillText("IT", x, y - radius - 12);
    }
  }

  /** They look where the player goes. */
  #eyes(player: Player, radius: number): void {
    const context = this.#context;
    const speed = Math.hypot(player.vx, player.vy);
    const [dx, dy] = speed > 12 ? [player.vx / speed, player.vy / speed] : [0, 0.4];
    for (const side of [-1, 1]) {
      const x = player.sx + dx * radius * 0.32 - dy * side * radius * 0.38;
      const y = player.sy + dy * radius * 0.32 + dx * side * radius * 0.38 + (speed > 12 ? 0 : -radius * 0.2);
      const across = speed > 12 ? x : player.sx + side * radius * 0.36;
      context.fillStyle = "#ffffff";
      context.beginPath();
      context.arc(across, y, radius * 0.26, 0, Math.PI * 2);
      context.fill();
      context.fillStyle = "#10131c";
      context.beginPath();
      context.arc(across + dx * radius * 0.1, y + dy * radius * 0.1, radius * 0.14, 0, Math.PI * 2);
      context.fill();
    }
  }

  #effects(dt: number): void {
    const context = this.#context;
    for (const ring of this.#rings) {
      ring.age += dt * 1.8;
      context.strokeStyle = color(ring.hue, 70, Math.max(0, 1 - ring.age));
      context.lineWidth = 8 * Math.max(0, 1 - ring.age);
      context.beginPath();
      context.arc(ring.x, ring.y, 20 + ring.age * 150, 0, Math.PI * 2);
      context.stroke();
    }
    this.#rings = this.#rings.filter((ring) => ring.age < 1);
    for (const spark of this.#sparks) {
      spark.x += spark.vx * dt;
      spark.y += spark.vy * dt;
      spark.vx *= 1 - 2.4 * dt;
      spark.vy *= 1 - 2.4 * dt;
      spark.life -= dt * 1.4;
      context.fillStyle = color(spark.hue, 68, Math.max(0, spark.life));
      context.beginPath();
      context.arc(spark.x, spark.y, 4.5 * Math.max(0, spark.life), 0, Math.PI * 2);
      context.fill();
    }
    this.#sparks = this.#sparks.filter((spark) => spark.life > 0);
  }
}
