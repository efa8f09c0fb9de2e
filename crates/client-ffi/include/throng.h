/*
 * C interface of the Throng client (crate throng-client-ffi): a player's or a game server's connection to a gateway
 * over TCP, TLS or WebSocket. It logs in, reconnects with growing pauses and resumes its session by itself.
 *
 * A program connects, then calls throng_poll in its loop, and sends at any time:
 *
 *     throng_options options = {.size = sizeof options, .endpoint = "127.0.0.1:12108", .pit = "alice"};
 *     throng_client *client;
 *     if (throng_connect(&options, &client) != THRONG_OK) fprintf(stderr, "%s\n", throng_error());
 *     throng_event event;
 *     while (throng_poll(client, 16, &event) >= 0) { ... }
 *     throng_close(client);
 *
 * OWNERSHIP. Arguments are copied before the function returns. The memory of an event belongs to the client and is
 * valid until its next throng_poll or throng_close. Strings are UTF-8 and end with a zero byte; string arguments may
 * be NULL for empty.
 *
 * THREADS. Every client has one thread of its own, which does the input and output. All functions except throng_poll
 * and throng_close may be called for one client from several threads at a time. throng_poll is for one thread at a
 * time; a second caller waits for its end. After throng_close the client must not be used.
 *
 * ERRORS. Functions return THRONG_OK (or a positive count) or one of the negative codes below; throng_error()
 * returns a message about the last failure on the calling thread. Events answer requests: an event has the request
 * number that the function stored. The protocol has no negative responses, so a refused request fails with
 * THRONG_EVENT_REQUEST_FAILED after five seconds. Calls take microseconds, except throng_connect, which waits for the
 * login.
 *
 * Structures begin with their size, so that later versions can add fields: set it to sizeof. Fields that are zero
 * have their default.
 */
#ifndef THRONG_H
#define THRONG_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this interface: rises by one with every addition; nothing is removed or changed. */
#define THRONG_ABI_VERSION 2

typedef struct throng_client throng_client;

/* Results. */
enum {
    THRONG_OK = 0,
    THRONG_ERROR_ARGUMENT = -1,      /* a required argument is NULL, a string is not UTF-8, or a size is wrong */
    THRONG_ERROR_ENDPOINT = -2,      /* the endpoint or the certificates are invalid */
    THRONG_ERROR_CONNECT = -3,       /* no answer, or not in time */
    THRONG_ERROR_REFUSED = -4,       /* the gateway refused the login */
    THRONG_ERROR_NOT_CONNECTED = -5, /* the connection is lost; the client is reconnecting */
    THRONG_ERROR_QUEUE_FULL = -6,    /* too many bytes or requests are pending */
    THRONG_ERROR_TOO_LARGE = -7,     /* no packet can hold the message */
    THRONG_ERROR_CLOSED = -8,        /* the connection has ended for good */
    THRONG_ERROR_INTERNAL = -9,      /* a defect of this library; close the client */
    THRONG_ERROR_ELSEWHERE = -10     /* world_elsewhere: another node of the cluster serves the world, and the search
                                        for it has failed */
};

/* Kinds of events, and the fields of throng_event that they use besides `kind`. */
enum {
    THRONG_EVENT_AUTHENTICATED = 1,   /* conn; flag: the session is being resumed; code 1: the gateway no longer knows
                                         the session that was to be resumed, and this is a new one */
    THRONG_EVENT_RECOVERED = 2,       /* one per channel of a resumed session: channel, channel_type, conn (owner),
                                         text (name of the data's type), data */
    THRONG_EVENT_RECOVERY_END = 3,    /* all channels of the session have been reported */
    THRONG_EVENT_CREATED = 4,         /* request, channel, channel_type, conn (owner), text (metadata) */
    THRONG_EVENT_REMOVED = 5,         /* request, channel */
    THRONG_EVENT_LISTED = 6,          /* one per channel of a list: request, channel, channel_type, text (metadata) */
    THRONG_EVENT_LIST_END = 7,        /* request */
    THRONG_EVENT_SUBSCRIBED = 8,      /* request, channel, channel_type, conn, flag: conn is a server */
    THRONG_EVENT_UNSUBSCRIBED = 9,    /* the same */
    THRONG_EVENT_UPDATE = 10,         /* channel, text (name of the data's type), data */
    THRONG_EVENT_MESSAGE = 11,        /* channel, msg_type, conn, broadcast, data */
    THRONG_EVENT_PEER = 12,           /* to the owner of GLOBAL, a login: conn, code (0 = admitted), flag: it resumed */
    THRONG_EVENT_OWNER_LOST = 13,     /* channel */
    THRONG_EVENT_OWNER_RECOVERED = 14,/* channel */
    THRONG_EVENT_REQUEST_FAILED = 15, /* request, code (1 = no response in time, 2 = the connection ended) */
    THRONG_EVENT_DISCONNECTED = 16,   /* text (reason), code (close code of the gateway, see docs/transports.md; 0 if
                                         it sent none); the client reconnects, and THRONG_EVENT_AUTHENTICATED follows,
                                         except after 4001 (kicked), 4002 (banned) and 4005 (superseded) */
    THRONG_EVENT_OTHER = 17,          /* request, channel, msg_type, broadcast, data */
    THRONG_EVENT_MATCHMAKING = 18,    /* response of the matcher: request, msg_type (method), code (0 = success, else
                                         its status), text (reason of a refusal), data (the response) */
    THRONG_EVENT_NOTICE = 19,         /* notification of the matcher: msg_type (kind), text (name of the kind), data */
    THRONG_EVENT_MATCHED = 20,        /* a match begins, and this player is subscribed: channel, text (room) */
    THRONG_EVENT_UNMATCHED = 21       /* the player has left the match: channel, text (room) */
};

enum { THRONG_CLIENT = 0, THRONG_SERVER = 1 };

/* Types of channels; games may use others. */
enum {
    THRONG_CHANNEL_GLOBAL = 1,
    THRONG_CHANNEL_PRIVATE = 2,
    THRONG_CHANNEL_SUBWORLD = 3,
    THRONG_CHANNEL_SPATIAL = 4,
    THRONG_CHANNEL_ENTITY = 5
};

enum { THRONG_ACCESS_DEFAULT = 0, THRONG_ACCESS_NONE = 1, THRONG_ACCESS_READ = 2, THRONG_ACCESS_WRITE = 3 };

/* Receivers of a server's message; combine with |. */
enum {
    THRONG_TO_OWNER = 0,
    THRONG_TO_ONE = 1,
    THRONG_TO_ALL = 2,
    THRONG_TO_ALL_BUT_SENDER = 4,
    THRONG_TO_ALL_BUT_OWNER = 8,
    THRONG_TO_ALL_BUT_CLIENTS = 16,
    THRONG_TO_ALL_BUT_SERVERS = 32,
    THRONG_TO_ADJACENT = 64
};

typedef struct throng_options {
    size_t size;
    const char *endpoint;    /* HOST:PORT, or tcp://, tls://, ws://, wss:// in front of it */
    const char *pit;         /* identity: the player identifier token */
    const char *login_token; /* proof of identity, for the authentication provider */
    const char *ca_pem;      /* certificates to trust for tls:// and wss://, as PEM text (not a file name) */
    uint32_t kind;           /* THRONG_CLIENT or THRONG_SERVER: kind of the endpoint's listener */
    uint32_t reconnects;     /* attempts after a loss; 0 = unlimited, UINT32_MAX = none */
    const char *world;       /* name of the world to enter; NULL: the login or the listener decides */
} throng_options;

typedef struct throng_subscription {
    size_t size;
    uint32_t access;      /* THRONG_ACCESS_... */
    uint32_t interval_ms; /* shortest time between two updates; 0 = default of the channel's type */
    uint32_t receive_own; /* not 0: also receive this connection's own updates */
    uint32_t skip_first;  /* not 0: omit the initial full state */
} throng_subscription;

typedef struct throng_create {
    size_t size;
    uint32_t channel_type;
    const char *metadata;     /* string that list requests filter by */
    const char *data_type;    /* full name of the data's type; NULL = no data */
    const uint8_t *data;      /* serialized message */
    size_t data_size;
    uint32_t list_size_limit; /* longest list kept; 0 = unlimited */
    uint32_t truncate_top;    /* not 0: lists that are too long lose their first elements */
    uint32_t replace_list;    /* not 0: a list in an update replaces the list */
    uint32_t check_removable; /* not 0: entries of maps whose value has removed = true are deleted */
    throng_subscription subscription; /* of the creator; its size may be 0 for the defaults */
} throng_create;

typedef struct throng_event {
    uint32_t kind;         /* THRONG_EVENT_... */
    uint32_t request;      /* the request that this answers; 0 = none */
    uint32_t channel;
    uint32_t channel_type;
    uint32_t conn;
    uint32_t msg_type;
    uint32_t broadcast;
    uint32_t code;
    uint32_t flag;
    const char *text;      /* never NULL */
    const uint8_t *data;   /* never NULL */
    size_t data_size;
} throng_event;

/* THRONG_ABI_VERSION of the library. */
uint32_t throng_abi_version(void);

/* Message about the last failure on this thread; valid until the next call on it. Never NULL. */
const char *throng_error(void);

/* Connects and logs in; waits for the result, ten seconds at most for the connection and five for the login. */
int32_t throng_connect(const throng_options *options, throng_client **client);

/* Waits up to timeout_ms for the next event: 1 = stored in *event, 0 = none, THRONG_ERROR_CLOSED = no more events. */
int32_t throng_poll(throng_client *client, uint32_t timeout_ms, throng_event *event);

/* Id of the connection, as of the latest polled THRONG_EVENT_AUTHENTICATED. */
uint32_t throng_conn(const throng_client *client);

/* Lists channels of a type (0 = all) whose metadata contains `metadata` (NULL = all). */
int32_t throng_list(const throng_client *client, uint32_t channel_type, const char *metadata, uint32_t *request);

/* Creates a channel; this connection owns it and is subscribed to it. */
int32_t throng_create_channel(const throng_client *client, const throng_create *create, uint32_t *request);

int32_t throng_remove_channel(const throng_client *client, uint32_t channel, uint32_t *request);

/* Subscribes this connection (conn = 0), or for servers another one, to a channel. `subscription` may be NULL. */
int32_t throng_subscribe(const throng_client *client, uint32_t channel, uint32_t conn,
                         const throng_subscription *subscription, uint32_t *request);

int32_t throng_unsubscribe(const throng_client *client, uint32_t channel, uint32_t conn, uint32_t *request);

/* Sends an update of a channel's data: a serialized message, and the full name of its type. Not answered. */
int32_t throng_update(const throng_client *client, uint32_t channel, const char *data_type, const uint8_t *data,
                      size_t size);

/* Sends a message (msg_type from 100 on) to the owner of a channel. Not answered. */
int32_t throng_send(const throng_client *client, uint32_t channel, uint32_t msg_type, const uint8_t *data, size_t size);

/* As a server, sends a message to the receivers that `broadcast` (THRONG_TO_...) selects; conn is for THRONG_TO_ONE. */
int32_t throng_forward(const throng_client *client, uint32_t channel, uint32_t broadcast, uint32_t msg_type,
                       uint32_t conn, const uint8_t *data, size_t size);

/* As a player, joins a room of a mode with a free seat, or opens one. THRONG_EVENT_MATCHMAKING answers; when the room
 * is full, THRONG_EVENT_MATCHED names the channel. */
int32_t throng_join_random_room(const throng_client *client, const char *mode, uint32_t *request);

/* As a player, queues for a match by the rules of a queue; answered and followed by the same events. */
int32_t throng_join_queue(const throng_client *client, const char *queue, uint32_t *request);

/* As a player, calls any method of the matcher that players may call: its number and its request, in protobuf. */
int32_t throng_matchmake(const throng_client *client, uint16_t method, const uint8_t *data, size_t size,
                         uint32_t *request);

/* Asks the gateway to close another connection. Not answered. */
int32_t throng_disconnect(const throng_client *client, uint32_t conn);

/* Sends pending messages, ends the connection (a player leaves), and frees the client. NULL is allowed. */
void throng_close(throng_client *client);

#ifdef __cplusplus
}
#endif

#endif
