// The room as tag.proto describes it: decoded updates, merged, and moved smoothly between them.
import { ProtoReader, ProtoWriter } from "@throng/client";
export const HELLO = 100;
export const STEER = 101;
export const CAUGHT = 110;
export class Room {
    players = new Map();
    pillars = [];
    width = 1600;
    height = 900;
    radius = 20;
    round = { number: 1, playing: true, secondsLeft: 0, it: 0, winner: 0 };
    /** Best first. */
    ranking() {
        return [...this.players.values()].filter((player) => player.name !== "").sort((a, b) => b.score - a.score);
    }
    /** Moves what is shown towards where everyone should be by now. */
    advance(now, dt) {
        const share = 1 - Math.exp(-dt * 16);
        for (const player of this.players.values()) {
            // The server tells speed as well, so nobody stops between two updates; but not for long without any.
            const age = Math.min((now - player.heardAt) / 1000, 0.15);
            player.sx += (player.x + player.vx * age - player.sx) * share;
            player.sy += (player.y + player.vy * age - player.sy) * share;
            player.trail.push({ x: player.sx, y: player.sy });
            if (player.trail.length > 22)
                player.trail.shift();
        }
    }
    player(id) {
        let player = this.players.get(id);
        if (player === undefined) {
            player = {
                id, name: "", hue: 0, simulated: false, score: 0, x: NaN, y: NaN, vx: 0, vy: 0, heardAt: 0, sx: 0, sy: 0,
                trail: [],
            };
            this.players.set(id, player);
        }
        return player;
    }
}
/** Calls `read` for each field of a message. */
function each(bytes, read) {
    const reader = new ProtoReader(bytes);
    while (reader.next())
        read(reader);
}
/** Calls `read` with key and value of a map's entry. */
function entry(bytes, read) {
    let key = 0;
    let value = new Uint8Array();
    each(bytes, (reader) => {
        if (reader.field === 1)
            key = reader.uint32();
        else if (reader.field === 2)
            value = reader.bytes();
    });
    read(key, value);
}
/** The merge of the room: tag.Arena. */
export function merge(state, update) {
    const room = state ?? new Room();
    each(update, (arena) => {
        switch (arena.field) {
            case 1:
                entry(arena.bytes(), (id, value) => mergePlayer(room, id, value));
                break;
            case 2:
                entry(arena.bytes(), (id, value) => mergeBody(room, id, value));
                break;
            case 3:
                mergeRound(room.round, arena.bytes());
                break;
            case 4:
                mergeRules(room, arena.bytes());
                break;
        }
    });
    return room;
}
function mergePlayer(room, id, bytes) {
    // An entry replaces the entry of the same key as a whole; what is absent is zero.
    const next = { name: "", hue: 0, simulated: false, score: 0 };
    let removed = false;
    each(bytes, (reader) => {
        if (reader.field === 1)
            removed = reader.bool();
        else if (reader.field === 2)
            next.name = reader.string();
        else if (reader.field === 3)
            next.hue = reader.uint32();
        else if (reader.field === 4)
            next.simulated = reader.bool();
        else if (reader.field === 5)
            next.score = reader.uint32();
    });
    if (removed)
        room.players.delete(id);
    else
        Object.assign(room.player(id), next);
}
function mergeBody(room, id, bytes) {
    const next = { x: 0, y: 0, vx: 0, vy: 0 };
    let removed = false;
    each(bytes, (reader) => {
        if (reader.field === 1)
            removed = reader.bool();
        else if (reader.field === 2)
            next.x = reader.sint32() / 4;
        else if (reader.field === 3)
            next.y = reader.sint32() / 4;
        else if (reader.field === 4)
            next.vx = reader.sint32() / 4;
        else if (reader.field === 5)
            next.vy = reader.sint32() / 4;
    });
    if (removed)
        return;
    const player = room.player(id);
    // A new or relocated player does not glide there.
    if (!(Math.hypot(next.x - player.x, next.y - player.y) < 150)) {
        player.sx = next.x;
        player.sy = next.y;
        player.trail = [];
    }
    Object.assign(player, next, { heardAt: performance.now() });
}
function mergeRound(round, bytes) {
    each(bytes, (reader) => {
        if (reader.field === 1)
            round.number = reader.uint32();
        else if (reader.field === 2)
            round.playing = reader.uint32() === 1;
        else if (reader.field === 3)
            round.secondsLeft = reader.uint32();
        else if (reader.field === 4)
            round.it = reader.uint32();
        else if (reader.field === 5)
            round.winner = reader.uint32();
    });
}
function mergeRules(room, bytes) {
    const pillars = [];
    each(bytes, (reader) => {
        if (reader.field === 1)
            room.width = reader.uint32();
        else if (reader.field === 2)
            room.height = reader.uint32();
        else if (reader.field === 3)
            room.radius = reader.uint32();
        else if (reader.field === 4)
            pillars.push(...packed(reader.bytes()));
    });
    room.pillars.length = 0;
    for (let i = 0; i + 2 < pillars.length; i += 3) {
        room.pillars.push({ x: pillars[i], y: pillars[i + 1], radius: pillars[i + 2] });
    }
}
/** Numbers that stand side by side in one field. */
function packed(bytes) {
    const numbers = [];
    let value = 0;
    let factor = 1;
    for (const byte of bytes) {
        value += (byte & 0x7f) * factor;
        factor *= 128;
        if (byte < 0x80) {
            numbers.push(value);
            value = 0;
            factor = 1;
        }
    }
    return numbers;
}
export function encodeHello(name) {
    return new ProtoWriter().string(1, name).finish();
}
/** At most 1 long. */
export function encodeSteer(x, y) {
    return new ProtoWriter().sint32(1, Math.round(x * 100)).sint32(2, Math.round(y * 100)).finish();
}
export function decodeCaught(bytes) {
    const caught = { by: 0, who: 0 };
    each(bytes, (reader) => {
        if (reader.field === 1)
            caught.by = reader.uint32();
        else if (reader.field === 2)
            caught.who = reader.uint32();
    });
    return caught;
}
