import { ProtoReader, ProtoWriter } from "./proto.js";

/** Numbers of the gateway's own messages. Those of games begin at 100. */
export const MessageType = {
  AUTH: 1,
  CREATE_CHANNEL: 3,
  REMOVE_CHANNEL: 4,
  LIST_CHANNEL: 5,
  SUB_TO_CHANNEL: 6,
  UNSUB_FROM_CHANNEL: 7,
  CHANNEL_DATA_UPDATE: 8,
  DISCONNECT: 9,
  RECOVERY_CHANNEL_DATA: 20,
  RECOVERY_END: 21,
  CHANNEL_OWNER_LOST: 22,
  CHANNEL_OWNER_RECOVERED: 23,
  USER_SPACE_START: 100,
  /** Players and the matcher behind the gateway, on GLOBAL. */
  MATCHMAKING: 110,
} as const;

/** Types of channels; games may use others. */
export const ChannelType = { GLOBAL: 1, PRIVATE: 2, SUBWORLD: 3, SPATIAL: 4, ENTITY: 5 } as const;

/** Access of a subscriber to a channel's data. */
export const Access = { NONE: 0, READ: 1, WRITE: 2 } as const;

/** Receivers of a server's user-space message; combine with `|`. */
export const Broadcast = {
  NONE: 0,
  SINGLE_CONNECTION: 1,
  ALL: 2,
  ALL_BUT_SENDER: 4,
  ALL_BUT_OWNER: 8,
  ALL_BUT_CLIENT: 16,
  ALL_BUT_SERVER: 32,
  ADJACENT_CHANNELS: 64,
} as const;

/** Options of a subscription; absent options have the default of the channel's type. */
export interface SubscribeOptions {
  /** One of {@link Access}; read by default. */
  access?: number;
  /** Dot-separated names of the fields to receive; none = everything. */
  fields?: string[];
  /** Shortest time between two updates in milliseconds; 0 = every tick of the channel. */
  intervalMs?: number;
  /** Extra delay of the first update in milliseconds; may be negative. */
  delayMs?: number;
  /** Omits the subscriber's own updates; true by default. */
  skipSelf?: boolean;
  /** Omits the initial full state; false by default. */
  skipFirst?: boolean;
}

/** A serialized message with the full name of its type. */
export interface Payload {
  /** Full name, as in `chatpb.ChatChannelData`. */
  type: string;
  value: Uint8Array;
}

/** Options for merging updates into a channel's data. */
export interface MergeOptions {
  /** A list in an update replaces the list instead of being appended. */
  replaceList?: boolean;
  /** Longest list kept; 0 = unlimited. */
  listSizeLimit?: number;
  /** Lists that are too long lose their first elements instead of their last. */
  truncateTop?: boolean;
  /** Entries of maps whose value has `removed` = true are deleted. */
  checkRemovable?: boolean;
}

/** A channel to create. */
export interface CreateOptions {
  /** One of {@link ChannelType}, or a game's own. */
  type: number;
  /** String that list requests filter by. */
  metadata?: string;
  /** Options of the creator's own subscription. */
  options?: SubscribeOptions;
  /** Its initial data. */
  data?: Payload;
  /** Merge options. */
  merge?: MergeOptions;
}

/** A channel in a list. */
export interface ChannelInfo {
  channel: number;
  /** One of {@link ChannelType}, or a game's own. */
  type: number;
  metadata: string;
}

/** A channel to which a resumed connection is subscribed again. */
export interface RecoveredChannel extends ChannelInfo {
  /** Connection that owns it; 0 for none. */
  owner: number;
  /** Time of the lost subscription, in nanoseconds since 1970. */
  subscribedAtUnixNs: bigint;
  options: SubscribeOptions;
  /** The channel's data as it is now; updates follow. */
  data: Payload | undefined;
}

const TYPE_URL = "type.googleapis.com/";

/** Calls `read` for every field of a message. */
function each(body: Uint8Array, read: (reader: ProtoReader) => void): void {
  const reader = new ProtoReader(body);
  while (reader.next()) read(reader);
}

function writeAny(payload: Payload): (writer: ProtoWriter) => void {
  return (writer) => writer.string(1, TYPE_URL + payload.type).bytes(2, payload.value);
}

function readAny(body: Uint8Array): Payload {
  const payload: Payload = { type: "", value: new Uint8Array() };
  each(body, (any) => {
    if (any.field === 1) payload.type = any.string().split("/").pop() ?? "";
    else if (any.field === 2) payload.value = any.bytes();
  });
  return payload;
}

function writeOptions(options: SubscribeOptions | undefined): ((writer: ProtoWriter) => void) | undefined {
  if (options === undefined || Object.keys(options).length === 0) return undefined;
  return (writer) => {
    writer.uint32(1, options.access, true);
    for (const field of options.fields ?? []) writer.string(2, field, true);
    writer
      .uint32(3, options.intervalMs, true)
      .int32(4, options.delayMs, true)
      .bool(5, options.skipSelf, true)
      .bool(6, options.skipFirst, true);
  };
}

function readOptions(body: Uint8Array): SubscribeOptions {
  const options: SubscribeOptions = {};
  each(body, (reader) => {
    switch (reader.field) {
      case 1:
        options.access = reader.uint32();
        break;
      case 2:
        (options.fields ??= []).push(reader.string());
        break;
      case 3:
        options.intervalMs = reader.uint32();
        break;
      case 4:
        options.delayMs = reader.int32();
        break;
      case 5:
        options.skipSelf = reader.bool();
        break;
      case 6:
        options.skipFirst = reader.bool();
        break;
    }
  });
  return options;
}

/** Bodies of sent messages. */
export const encode = {
  auth(pit: string, loginToken: string, resumeToken: Uint8Array | undefined, world = ""): Uint8Array {
    const body = new ProtoWriter().string(1, pit).string(2, loginToken).bytes(100, resumeToken, true);
    return body.string(101, world).finish();
  },

  create(create: CreateOptions): Uint8Array {
    const { merge, data } = create;
    return new ProtoWriter()
      .uint32(1, create.type)
      .string(2, create.metadata)
      .message(3, writeOptions(create.options))
      .message(4, data && writeAny(data))
      .message(
        5,
        merge &&
          ((writer) =>
            writer
              .bool(1, merge.replaceList)
              .uint32(2, merge.listSizeLimit)
              .bool(3, merge.truncateTop)
              .bool(4, merge.checkRemovable)),
      )
      .finish();
  },

  list(type: number | undefined, metadata: readonly string[]): Uint8Array {
    const writer = new ProtoWriter().uint32(1, type);
    for (const filter of metadata) writer.string(2, filter, true);
    return writer.finish();
  },

  subscribe(conn: number, options: SubscribeOptions | undefined): Uint8Array {
    return new ProtoWriter().uint32(1, conn).message(2, writeOptions(options)).finish();
  },

  /** REMOVE_CHANNEL, UNSUB_FROM_CHANNEL and DISCONNECT: one id. */
  id(id: number): Uint8Array {
    return new ProtoWriter().uint32(1, id).finish();
  },

  update(payload: Payload): Uint8Array {
    return new ProtoWriter().message(1, writeAny(payload)).finish();
  },

  forward(client: number, payload: Uint8Array): Uint8Array {
    return new ProtoWriter().uint32(1, client).bytes(2, payload).finish();
  },
};

/** Bodies of received messages. */
export const decode = {
  auth(body: Uint8Array) {
    const result = {
      result: 0, conn: 0, recovering: false, resumeToken: new Uint8Array() as Uint8Array,
      elsewhere: undefined as { addresses: string[]; world: string } | undefined, resumeRefused: false,
    };
    each(body, (reader) => {
      if (reader.field === 1) result.result = reader.uint32();
      else if (reader.field === 2) result.conn = reader.uint32();
      else if (reader.field === 4) result.recovering = reader.bool();
      else if (reader.field === 100) result.resumeToken = reader.bytes().slice();
      else if (reader.field === 101) result.elsewhere = decode.elsewhere(reader.bytes());
      else if (reader.field === 102) result.resumeRefused = reader.bool();
    });
    return result;
  },

  elsewhere(body: Uint8Array) {
    const elsewhere = { addresses: [] as string[], world: "" };
    each(body, (reader) => {
      if (reader.field === 2) elsewhere.addresses.push(reader.string());
      else if (reader.field === 3) elsewhere.world = reader.string();
    });
    return elsewhere;
  },

  created(body: Uint8Array): ChannelInfo & { owner: number } {
    const created = { channel: 0, type: 0, metadata: "", owner: 0 };
    each(body, (reader) => {
      if (reader.field === 1) created.type = reader.uint32();
      else if (reader.field === 2) created.metadata = reader.string();
      else if (reader.field === 3) created.owner = reader.uint32();
      else if (reader.field === 4) created.channel = reader.uint32();
    });
    return created;
  },

  id(body: Uint8Array): number {
    let id = 0;
    each(body, (reader) => {
      if (reader.field === 1) id = reader.uint32();
    });
    return id;
  },

  list(body: Uint8Array): ChannelInfo[] {
    const channels: ChannelInfo[] = [];
    each(body, (reader) => {
      if (reader.field !== 1) return;
      const info: ChannelInfo = { channel: 0, type: 0, metadata: "" };
      each(reader.bytes(), (inner) => {
        if (inner.field === 1) info.channel = inner.uint32();
        else if (inner.field === 2) info.type = inner.uint32();
        else if (inner.field === 3) info.metadata = inner.string();
      });
      channels.push(info);
    });
    return channels;
  },

  subscribed(body: Uint8Array) {
    const result = { conn: 0, options: {} as SubscribeOptions, kind: 0, type: 0 };
    each(body, (reader) => {
      if (reader.field === 1) result.conn = reader.uint32();
      else if (reader.field === 2) result.options = readOptions(reader.bytes());
      else if (reader.field === 3) result.kind = reader.uint32();
      else if (reader.field === 4) result.type = reader.uint32();
    });
    return result;
  },

  unsubscribed(body: Uint8Array) {
    const result = { conn: 0, kind: 0, type: 0 };
    each(body, (reader) => {
      if (reader.field === 1) result.conn = reader.uint32();
      else if (reader.field === 2) result.kind = reader.uint32();
      else if (reader.field === 3) result.type = reader.uint32();
    });
    return result;
  },

  update(body: Uint8Array): Payload {
    let payload: Payload = { type: "", value: new Uint8Array() };
    each(body, (reader) => {
      if (reader.field === 1) payload = readAny(reader.bytes());
    });
    return payload;
  },

  forward(body: Uint8Array): { client: number; payload: Uint8Array } {
    const result = { client: 0, payload: new Uint8Array() as Uint8Array };
    each(body, (reader) => {
      if (reader.field === 1) result.client = reader.uint32();
      else if (reader.field === 2) result.payload = reader.bytes();
    });
    return result;
  },

  recovery(body: Uint8Array): RecoveredChannel {
    const channel: RecoveredChannel = {
      channel: 0, type: 0, metadata: "", owner: 0, subscribedAtUnixNs: 0n, options: {}, data: undefined,
    };
    each(body, (reader) => {
      switch (reader.field) {
        case 1:
          channel.channel = reader.uint32();
          break;
        case 2:
          channel.type = reader.uint32();
          break;
        case 3:
          channel.metadata = reader.string();
          break;
        case 4:
          channel.owner = reader.uint32();
          break;
        case 5:
          channel.subscribedAtUnixNs = reader.int64();
          break;
        case 6:
          channel.options = readOptions(reader.bytes());
          break;
        case 7:
          channel.data = readAny(reader.bytes());
          break;
      }
    });
    return channel;
  },
};
