import { ThrongError } from "./errors.js";
import { CloseCode, Emitter, report } from "./events.js";
import { encodeEntry, encodeFrame, FrameReader, PACKET_BYTES_MAX } from "./frame.js";
import { decodeMatchEvent, encodeCall, encodeJoinQueue, encodeJoinRoom, firstText, MatchMethod } from "./matchmaking.js";
import { Broadcast, decode, encode, MessageType, } from "./messages.js";
import { ChannelState } from "./state.js";
/** Maximum number of unread events of a {@link Throng.stream}; above it the stream ends. */
const STREAM_EVENTS_MAX = 1024;
/** Times that a search for the node of a world goes on to another one. */
const MOVES_MAX = 3;
/** Close code of a player who leaves for good. */
const LEAVING = 1000;
/** Close codes after which the gateway refuses the connection for good ... */
const UNWANTED = [CloseCode.KICKED, CloseCode.BANNED, CloseCode.SUPERSEDED];
/** ... or for a while. */
const OVERLOADED = [CloseCode.FULL, CloseCode.RATE];
/**
* A connection to a gateway. It logs in, answers requests with promises, reports everything else as events, and after a
* loss reconnects with growing pauses and resumes its session.
 *
 * ```ts
 * const throng = await Throng.connect("ws://127.0.0.1:12108", { pit: "alice" });
 * throng.on("message", (message) => console.log(message.type, message.payload));
 * throng.send(0, 100, new TextEncoder().encode("hello"));
 * ```
 *
 * Channel data is state: a slow reader may receive several updates merged into one, or a full state again.
 */
export class Throng extends Emitter {
    #url;
    /** Addresses of the node that serves the world, the one in use first, and the world. */
    #home;
    /** Addresses that named another one, since a session last worked. */
    #way = [];
    #options;
    #socketType;
    #state = "connecting";
    #socket;
    #reader = new FrameReader();
    #conn = 0;
    #resumeToken = new Uint8Array();
    #attempt = 0;
    #timer;
    /** Entries that wait for the end of the login or of this turn of the event loop. */
    #queue = [];
    #queuedBytes = 0;
    #flushing = false;
    #requests = new Map();
    #lastStub = 1;
    #states = new Map();
    /** What arrived while recovering. */
    #held = [];
    #recovered = [];
    #malformed = 0;
    #admitted;
    constructor(url, options) {
        super();
        this.#url = url;
        this.#options = options;
        const type = options.webSocket ?? globalThis.WebSocket;
        if (type === undefined) {
            throw new ThrongError("no_websocket", "no global WebSocket here; pass one as the option webSocket");
        }
        this.#socketType = type;
    }
    /**
     * Connects and logs in.
     *
     * @throws ThrongError `closed` without an answer, `refused` if the login is refused, `timeout` if it takes too long,
     * `world_elsewhere` if the nodes of a cluster send it round.
     */
    static async connect(url, options = {}) {
        const throng = new Throng(url, options);
        await new Promise((resolve, reject) => {
            throng.#admitted = { resolve, reject };
            throng.#open();
        });
        return throng;
    }
    /** Id of this connection; kept during a loss until the next login. */
    get conn() {
        return this.#conn;
    }
    /** True if messages are sent at once. */
    get isOpen() {
        return this.#state === "open";
    }
    /** Received messages whose body did not decode; they are dropped. */
    get malformed() {
        return this.#malformed;
    }
    /** Creates a channel; the creator owns it and is subscribed to it. */
    async createChannel(create) {
        return decode.created(await this.#request(0, MessageType.CREATE_CHANNEL, encode.create(create)));
    }
    /** Removes a channel. */
    async removeChannel(channel) {
        await this.#request(0, MessageType.REMOVE_CHANNEL, encode.id(channel), channel);
    }
    /** Channels of a type (all without one) whose metadata contains one of the filters (all without any). */
    async listChannels(filter = {}) {
        const body = encode.list(filter.type, filter.metadata ?? []);
        return decode.list(await this.#request(0, MessageType.LIST_CHANNEL, body));
    }
    /** Subscribes this connection, or for servers another one, to a channel; returns the options in force. */
    async subscribe(channel, options, conn) {
        const body = encode.subscribe(conn ?? this.#conn, options);
        return decode.subscribed(await this.#request(channel, MessageType.SUB_TO_CHANNEL, body)).options;
    }
    /** Changes the options of a subscription. Not answered. */
    changeSubscription(channel, options, conn) {
        this.sendRaw(channel, MessageType.SUB_TO_CHANNEL, encode.subscribe(conn ?? this.#conn, options));
    }
    /** Ends a subscription: of this connection, or for servers of another one. No data of the channel follows. */
    async unsubscribe(channel, conn) {
        await this.#request(channel, MessageType.UNSUB_FROM_CHANNEL, encode.id(conn ?? this.#conn));
    }
    /** Sends an update of a channel's data: a serialized message and the full name of its type. Not answered. */
    update(channel, type, value) {
        this.sendRaw(channel, MessageType.CHANNEL_DATA_UPDATE, encode.update({ type, value }));
    }
    /** Sends a user-space message (`type` from 100 on) to the owner of a channel. Not answered. */
    send(channel, type, payload) {
        if (this.#options.kind === "server")
            this.forward(channel, type, payload);
        else
            this.sendRaw(channel, type, payload);
    }
    /** As a server, sends a user-space message to the receivers that `broadcast` selects. Not answered. */
    forward(channel, type, payload, broadcast = Broadcast.NONE, client = 0) {
        this.sendRaw(channel, type, encode.forward(client, payload), broadcast);
    }
    /**
     * As a player, joins a room of a mode with a free seat, or opens one. When it is full the match begins: the event
     * `matched` names its channel, to which this player is then subscribed.
     *
     * @throws ThrongError `refused` with the matcher's reason.
     */
    async joinRandomRoom(mode) {
        await this.matchmake(MatchMethod.ROLE_JOIN_RANDOM_ROOM, encodeJoinRoom(mode));
    }
    /** As a player, queues for a match by the rules of a queue; `matched` follows. Returns the ticket. */
    async joinQueue(queue) {
        return firstText(await this.matchmake(MatchMethod.CREATE_TICKET, encodeJoinQueue(queue)), true);
    }
    /** As a player, calls a method of the matcher ({@link MatchMethod}); returns the body of the response. */
    async matchmake(method, body) {
        const answer = decodeMatchEvent(await this.#request(0, MessageType.MATCHMAKING, encodeCall(method, body)));
        if (answer.kind !== "answer")
            throw new ThrongError("malformed", "the answer is none");
        if (answer.status !== 0) {
            throw new ThrongError("refused", `the matcher refused: ${firstText(answer.body)} (status ${answer.status})`);
        }
        return answer.body;
    }
    /** Asks the gateway to close another connection. Not answered. */
    disconnect(conn) {
        this.sendRaw(0, MessageType.DISCONNECT, encode.id(conn));
    }
    /**
     * Sends any message as it is. During a login it waits for the result.
     *
     * @throws ThrongError `not_connected` after a loss until the next attempt, `too_large`, or `queue_full`.
     */
    sendRaw(channel, type, body, broadcast = 0, stub = 0) {
        if (this.#state === "closed" || this.#state === "waiting") {
            throw new ThrongError("not_connected", "there is no connection; wait for the event `authenticated`");
        }
        const entry = encodeEntry({ channel, broadcast, stub, type, body });
        if (entry.length > PACKET_BYTES_MAX) {
            throw new ThrongError("too_large", `a message of ${entry.length} bytes; the limit is ${PACKET_BYTES_MAX}`);
        }
        const limit = this.#options.queueBytesMax ?? 1 << 20;
        const waiting = this.#queuedBytes + (this.#socket?.bufferedAmount ?? 0);
        if (waiting + entry.length > limit) {
            throw new ThrongError("queue_full", `${waiting} of ${limit} bytes are waiting to be sent`);
        }
        this.#queue.push(entry);
        this.#queuedBytes += entry.length;
        if (this.#state === "open" && !this.#flushing) {
            // What is sent in the same turn shares a frame.
            this.#flushing = true;
            queueMicrotask(() => this.#flush());
        }
    }
    /** Keeps the data of a channel with the game's own merge. */
    track(channel, merge) {
        const state = new ChannelState(channel, merge, (stopped) => {
            const set = this.#states.get(channel);
            set?.delete(stopped);
            if (set?.size === 0)
                this.#states.delete(channel);
        });
        let set = this.#states.get(channel);
        if (set === undefined)
            this.#states.set(channel, (set = new Set()));
        set.add(state);
        return state;
    }
    /**
     * Events of one name from now on, for `for await`. Ends with the connection, or with the loop over it.
     *
     * @throws ThrongError `queue_full` from the iteration when 1,024 events wait.
     */
    stream(name) {
        const waiting = [];
        let wake = () => undefined;
        let ended = this.#state === "closed";
        let overflow = false;
        const stops = [
            this.on(name, (event) => {
                overflow ||= waiting.length >= STREAM_EVENTS_MAX;
                if (!overflow)
                    waiting.push(event);
                wake();
            }),
            this.on("closed", () => {
                ended = true;
                wake();
            }),
        ];
        // The listeners are there before the first step of the loop, so that nothing is missed.
        return (async function* () {
            try {
                while (true) {
                    const event = waiting.shift();
                    if (event !== undefined)
                        yield event;
                    else if (overflow)
                        throw new ThrongError("queue_full", `${STREAM_EVENTS_MAX} events were not taken`);
                    else if (ended)
                        return;
                    else
                        await new Promise((resolve) => (wake = resolve));
                }
            }
            finally {
                for (const stop of stops)
                    stop();
            }
        })();
    }
    /**
     * Ends the connection for good. The player leaves: its seats in rooms, queues and channels are freed at once.
     * Messages sent before are still delivered.
     */
    close() {
        if (this.#state === "open")
            this.#flush();
        this.#end("closed by the application", new ThrongError("closed", "the connection was closed"), 0, true);
    }
    #open() {
        const url = this.#home?.urls[0] ?? this.#url;
        this.#state = "connecting";
        this.#reader = new FrameReader();
        this.#arm(this.#options.authTimeoutMs ?? 5_000, () => this.#lost("no login result in time", new ThrongError("timeout", "no login result in time")));
        let socket;
        try {
            socket = new this.#socketType(url);
        }
        catch (error) {
            return this.#end(String(error), new ThrongError("closed", `cannot connect to ${url}: ${String(error)}`));
        }
        this.#socket = socket;
        socket.binaryType = "arraybuffer";
        socket.onopen = () => {
            if (socket !== this.#socket)
                return;
            this.#state = "authenticating";
            // An empty token asks for one.
            const { pit = "", loginToken = "", world = "" } = this.#options;
            const body = encode.auth(pit, loginToken, this.#resumeToken, this.#home?.world ?? world);
            const entry = encodeEntry({ channel: 0, broadcast: 0, stub: 1, type: MessageType.AUTH, body });
            socket.send(encodeFrame([entry]));
        };
        socket.onmessage = (event) => {
            if (socket !== this.#socket)
                return;
            let messages;
            try {
                messages = this.#reader.feed(new Uint8Array(event.data));
            }
            catch (error) {
                return this.#lost(String(error), error);
            }
            for (const message of messages) {
                // A listener may have closed the connection meanwhile.
                if (socket !== this.#socket)
                    return;
                try {
                    this.#receive(message);
                }
                catch {
                    this.#malformed++;
                }
            }
        };
        socket.onclose = (event) => {
            if (socket !== this.#socket)
                return;
            // 1005 and 1006 stand for a closure without a code.
            const code = event?.code === 1005 || event?.code === 1006 ? 0 : (event?.code ?? 0);
            if (this.#state === "connecting" && this.#home !== undefined) {
                // Of several addresses the next one may answer, and the first node of all knows better than none of them.
                this.#home.urls.shift();
                if (this.#home.urls.length > 0)
                    return this.#again();
                this.#home = undefined;
                if (this.#way.length > 0)
                    return this.#elsewhere("none of its addresses answers");
            }
            const why = code === 0 ? "the transport ended" : `the gateway closed it: ${event?.reason || "no reason"} (${code})`;
            this.#lost(why, new ThrongError("closed", `no connection to ${url}: ${why}`), code);
        };
        // Of an error nothing can be learnt; a closure follows it.
        socket.onerror = () => undefined;
    }
    #receive(message) {
        const recovering = this.#state === "recovering";
        switch (message.type) {
            case MessageType.AUTH:
                return this.#handleAuth(message);
            case MessageType.RECOVERY_CHANNEL_DATA:
                if (recovering)
                    return this.#handleRecovery(decode.recovery(message.body));
                break;
            case MessageType.RECOVERY_END:
                if (recovering)
                    return this.#handleRecoveryEnd();
                break;
        }
        if (recovering) {
            // The input may be reused; what is held must not change.
            this.#held.push({ ...message, body: message.body.slice() });
        }
        else {
            this.#deliver(message);
        }
    }
    #handleAuth(message) {
        const { result, conn, recovering, resumeToken, elsewhere, resumeRefused } = decode.auth(message.body);
        if (this.#state !== "authenticating")
            return this.emit("peer", { conn, result, recovering });
        if (elsewhere !== undefined)
            return this.#follow(elsewhere.addresses, elsewhere.world);
        if (result !== 0) {
            const why = ["", "the player is refused", "the login token is refused"][result] ?? `login result ${result}`;
            return this.#end(why, new ThrongError("refused", why));
        }
        clearTimeout(this.#timer);
        this.#conn = conn;
        this.#attempt = 0;
        this.#way = [];
        if (resumeToken.length > 0)
            this.#resumeToken = resumeToken;
        this.#state = recovering ? "recovering" : "open";
        if (!recovering)
            this.#resetStates();
        const admitted = this.#admitted;
        this.#admitted = undefined;
        admitted?.resolve();
        this.emit("authenticated", { conn, resumed: recovering, resumeRefused });
        if (!recovering)
            this.#flush();
    }
    /** Another node of the cluster serves the world. */
    #follow(addresses, world) {
        const url = this.#home?.urls[0] ?? this.#url;
        this.#way.push(url);
        // A connection that was encrypted stays so.
        const urls = addresses.filter((address) => /^wss:/.test(address) || (/^ws:/.test(address) && !/^wss:/.test(url)));
        this.#home = undefined;
        if (this.#way.length > MOVES_MAX)
            return this.#elsewhere("the nodes send it round");
        if (urls.length === 0)
            return this.#elsewhere("its node has no address for this connection");
        this.#home = { urls, world };
        this.#again();
    }
    /** Tries another address at once. */
    #again() {
        this.#drop();
        this.#open();
    }
    /** The search for the world's node has failed. */
    #elsewhere(why) {
        const reason = `another node serves the world, and ${why}; the way: ${this.#way.join(", ")}`;
        this.#way = [];
        this.#lost(reason, new ThrongError("world_elsewhere", reason));
    }
    #handleRecovery(part) {
        // Updates of the channel that came before are contained in its data.
        this.#held = this.#held.filter((held) => held.type !== MessageType.CHANNEL_DATA_UPDATE || held.channel !== part.channel);
        if (part.data !== undefined)
            part.data.value = part.data.value.slice();
        const known = this.#recovered.find((channel) => channel.channel === part.channel);
        if (known === undefined) {
            this.#recovered.push(part);
        }
        else if (known.data !== undefined && part.data !== undefined) {
            // Data over the size of a packet comes in parts; serialized messages merge by standing side by side.
            const whole = new Uint8Array(known.data.value.length + part.data.value.length);
            whole.set(known.data.value);
            whole.set(part.data.value, known.data.value.length);
            known.data.value = whole;
        }
    }
    #handleRecoveryEnd() {
        const time = (channel) => channel.subscribedAtUnixNs;
        const channels = this.#recovered.sort((a, b) => (time(a) < time(b) ? -1 : time(a) > time(b) ? 1 : 0));
        const held = this.#held;
        this.#recovered = [];
        this.#held = [];
        this.#state = "open";
        this.#resetStates();
        for (const { channel, data } of channels) {
            if (data !== undefined)
                this.#apply(channel, data.value, data.type);
        }
        this.emit("recovered", { channels });
        for (const message of held)
            this.#deliver(message);
        this.#flush();
    }
    #deliver(message) {
        const { channel, type, broadcast, stub, body } = message;
        let victim = 0;
        switch (type) {
            case MessageType.CHANNEL_DATA_UPDATE: {
                const update = decode.update(body);
                this.#apply(channel, update.value, update.type);
                return this.emit("update", { channel, ...update });
            }
            case MessageType.CREATE_CHANNEL:
                this.emit("created", decode.created(body));
                break;
            case MessageType.REMOVE_CHANNEL:
                victim = decode.id(body);
                this.#resetStates(victim);
                this.emit("removed", { channel: victim });
                break;
            case MessageType.LIST_CHANNEL:
                break;
            case MessageType.SUB_TO_CHANNEL:
                this.emit("subscribed", { channel, ...decode.subscribed(body) });
                break;
            case MessageType.UNSUB_FROM_CHANNEL: {
                const unsubscribed = decode.unsubscribed(body);
                if (unsubscribed.conn === this.#conn)
                    this.#resetStates(channel);
                this.emit("unsubscribed", { channel, ...unsubscribed });
                break;
            }
            case MessageType.CHANNEL_OWNER_LOST:
                return this.emit("ownerLost", { channel });
            case MessageType.CHANNEL_OWNER_RECOVERED:
                return this.emit("ownerRecovered", { channel });
            case MessageType.MATCHMAKING:
                if (channel === 0 && this.#options.kind !== "server")
                    return this.#handleMatchmaking(message);
                return this.emit("message", { channel, type, broadcast, stub, ...decode.forward(body) });
            default:
                if (type >= MessageType.USER_SPACE_START) {
                    return this.emit("message", { channel, type, broadcast, stub, ...decode.forward(body) });
                }
                this.emit("other", { channel, type, stub, body });
        }
        this.#answer(type, stub, victim, body);
    }
    #handleMatchmaking({ type, stub, body }) {
        const { payload } = decode.forward(body);
        const event = decodeMatchEvent(payload);
        if (event.kind === "answer")
            return this.#answer(type, stub, 0, payload);
        if (event.kind === "notice")
            return this.emit("notice", { type: event.type, body: event.body });
        this.emit(event.kind, { room: event.room, channel: event.channel });
    }
    #answer(type, stub, victim, body) {
        let found = stub;
        if (stub === 0 && type === MessageType.REMOVE_CHANNEL) {
            for (const [key, request] of this.#requests)
                if (request.type === type && request.victim === victim)
                    found = key;
        }
        const request = this.#requests.get(found);
        if (request === undefined || request.type !== type)
            return;
        this.#requests.delete(found);
        clearTimeout(request.timer);
        request.resolve(body);
    }
    #request(channel, type, body, victim = 0) {
        return new Promise((resolve, reject) => {
            // Stub 1 is the login's. Ids are not used again soon, so that a late answer is not taken for another's.
            const stub = (this.#lastStub = this.#lastStub >= 0xffff_ffff ? 2 : this.#lastStub + 1);
            this.sendRaw(channel, type, body, 0, stub);
            const timer = setTimeout(() => {
                this.#requests.delete(stub);
                reject(new ThrongError("timeout", "no answer in time; the gateway does not answer requests that it refuses"));
            }, this.#options.requestTimeoutMs ?? 5_000);
            this.#requests.set(stub, { type, victim, resolve, reject, timer });
        });
    }
    #apply(channel, value, type) {
        for (const state of [...(this.#states.get(channel) ?? [])])
            report(() => state.apply(value, type));
    }
    /** Of one channel, or all. */
    #resetStates(channel) {
        for (const [key, states] of this.#states) {
            if (channel === undefined || channel === key)
                for (const state of states)
                    state.reset();
        }
    }
    #flush() {
        this.#flushing = false;
        if (this.#state !== "open")
            return;
        let packet = [];
        let size = 0;
        for (const entry of this.#queue) {
            if (size + entry.length > PACKET_BYTES_MAX) {
                this.#socket?.send(encodeFrame(packet));
                packet = [];
                size = 0;
            }
            packet.push(entry);
            size += entry.length;
        }
        if (size > 0)
            this.#socket?.send(encodeFrame(packet));
        this.#queue = [];
        this.#queuedBytes = 0;
    }
    /** Ends this connection; another one may follow. */
    #lost(reason, error, code = 0) {
        const { reconnect } = this.#options;
        // A first connection that fails is reported by `connect`, not tried again behind its back.
        const first = this.#admitted !== undefined;
        if (reconnect === false || first || UNWANTED.includes(code) || this.#attempt >= (reconnect?.attempts ?? Infinity)) {
            return this.#end(reason, error, code);
        }
        this.#drop();
        this.#state = "waiting";
        // A gateway that has too much already is not asked again soon.
        const doublings = OVERLOADED.includes(code) ? 20 : Math.min(this.#attempt, 20);
        const full = Math.min((reconnect?.firstMs ?? 100) * 2 ** doublings, reconnect?.longestMs ?? 10_000);
        // Between half and the whole, so that those who lost their gateway together do not return together.
        const pauseMs = full * (0.5 + Math.random() / 2);
        this.#attempt++;
        this.#arm(pauseMs, () => this.#open());
        this.emit("reconnecting", { attempt: this.#attempt, pauseMs, reason, code });
    }
    #end(reason, error, code = 0, leaving = false) {
        if (this.#state === "closed")
            return;
        this.#drop(leaving);
        this.#state = "closed";
        clearTimeout(this.#timer);
        this.#admitted?.reject(error);
        this.#admitted = undefined;
        this.emit("closed", { reason, code });
    }
    /** Resets the state of one connection. Only a close code of 1000 tells the gateway that the player leaves. */
    #drop(leaving = false) {
        const socket = this.#socket;
        this.#socket = undefined;
        if (leaving)
            socket?.close(LEAVING);
        else
            socket?.close();
        this.#queue = [];
        this.#queuedBytes = 0;
        this.#held = [];
        this.#recovered = [];
        const requests = [...this.#requests.values()];
        this.#requests.clear();
        for (const request of requests) {
            clearTimeout(request.timer);
            request.reject(new ThrongError("closed", "the connection ended before the answer"));
        }
    }
    #arm(ms, act) {
        clearTimeout(this.#timer);
        this.#timer = setTimeout(act, ms);
    }
}
