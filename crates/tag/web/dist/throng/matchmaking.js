import { ProtoReader, ProtoWriter } from "./proto.js";
/** Methods of the matcher for players. Their requests and answers: docs/reference/matcher.md. */
export const MatchMethod = {
    ROLE_JOIN_RANDOM_ROOM: 30,
    ROLE_LEAVE_ROOM: 33,
    CREATE_TICKET: 60,
    CANCEL_TICKET: 61,
    GET_TICKET: 62,
    ACCEPT_MATCH: 64,
    GET_QUEUE_STATS: 65,
};
/** Type of the notice that a match is ready. */
const MATCH_READY = 23;
/** A call. The gateway adds the player's role. @internal */
export function encodeCall(method, body) {
    return new ProtoWriter().uint32(1, method).bytes(2, body).finish();
}
/** Request to join a room of a mode with a free seat, or to open one. @internal */
export function encodeJoinRoom(mode) {
    return new ProtoWriter().message(1, () => undefined).message(2, (create) => create.string(1, mode)).finish();
}
/** Request to queue alone and without attributes. @internal */
export function encodeJoinQueue(queue) {
    return new ProtoWriter().string(1, queue).message(2, () => undefined).finish();
}
/** Text of the first field, of the message in the first field when nested. @internal */
export function firstText(body, nested = false) {
    const reader = new ProtoReader(body);
    while (reader.next()) {
        if (reader.field === 1)
            return nested ? firstText(reader.bytes()) : reader.string();
    }
    return "";
}
/** Layout: {1: method, 2: status, 3: body}, {4: {1: player, kind: body}}, or {5: room, 6: channel, 7: whether in it}. @internal */
export function decodeMatchEvent(payload) {
    let status = 0;
    let body = new Uint8Array();
    let notice;
    let room;
    let channel = 0;
    let isIn = false;
    const reader = new ProtoReader(payload);
    while (reader.next()) {
        if (reader.field === 2)
            status = reader.uint32();
        else if (reader.field === 3)
            body = reader.bytes();
        else if (reader.field === 4)
            notice = reader.bytes();
        else if (reader.field === 5)
            room = reader.string();
        else if (reader.field === 6)
            channel = reader.uint32();
        else if (reader.field === 7)
            isIn = reader.bool();
    }
    if (notice !== undefined)
        return decodeNotice(notice);
    if (room !== undefined)
        return { kind: isIn ? "matched" : "unmatched", room, channel };
    return { kind: "answer", status, body };
}
/** The world of its own that a match has, from the notice that the match is ready; otherwise undefined. */
export function matchWorld(notice) {
    if (notice.type !== MATCH_READY)
        return undefined;
    const data = {};
    let address = "";
    const reader = new ProtoReader(notice.body);
    while (reader.next()) {
        if (reader.field === 4)
            address = reader.string();
        if (reader.field !== 11)
            continue;
        const entry = new ProtoReader(reader.bytes());
        let key = "";
        while (entry.next()) {
            if (entry.field === 1)
                key = entry.string();
            else if (entry.field === 2)
                data[key] = JSON.parse(entry.string());
        }
    }
    const { World: name, Addresses: addresses, Ticket: ticket } = data;
    if (typeof name !== "string" || typeof ticket !== "string")
        return undefined;
    return { name, address, addresses: addresses, ticket };
}
function decodeNotice(entry) {
    let type = 0;
    let body = new Uint8Array();
    const reader = new ProtoReader(entry);
    while (reader.next()) {
        // Field 1 names players; whichever other there is says what it is about by its number.
        if (reader.field === 1)
            continue;
        type = reader.field;
        body = reader.bytes();
    }
    return { kind: "notice", type, body };
}
