/*
 * Joins a room of a mode, writes one line to the channel when the match begins, and prints the lines of the others
 * until one of them says "bye". docs/how-to/connect-a-client.md starts the gateway.
 *
 *     cc chat.c -I../include -L../../../target/release -lthrong_client_ffi -o chat
 *     ./chat 127.0.0.1:12108 alice party "hello"
 */
#define _POSIX_C_SOURCE 200809L /* strnlen */
#include <stdio.h>
#include <string.h>
#include <throng.h>

static const char CHAT[] = "chatpb.ChatChannelData";

/* One field of bytes in protobuf; texts of up to 127 bytes will do here. */
static size_t put(uint8_t *out, uint8_t field, const void *bytes, size_t size) {
    out[0] = (uint8_t)(field << 3 | 2);
    out[1] = (uint8_t)size;
    memcpy(out + 2, bytes, size);
    return size + 2;
}

/* chatpb.ChatChannelData with one message. */
static size_t line(uint8_t out[256], const char *sender, const char *content) {
    uint8_t message[128];
    size_t size = put(message, 1, sender, strnlen(sender, 20));
    size += put(message + size, 3, content, strnlen(content, 80));
    return put(out, 1, message, size);
}

/* Prints chat data (depth 0) or one of its messages (depth 1); not 0 if one says "bye". */
static int print_lines(const uint8_t *at, size_t size, int depth) {
    const uint8_t *end = at + size;
    int bye = 0;
    while (end - at >= 2) {
        int field = *at >> 3, is_number = (*at & 7) == 0;
        size_t value = 0;
        at++;
        for (int shift = 0; at < end && shift <= 28; shift += 7) {
            value |= (size_t)(*at & 0x7f) << shift;
            if (*at++ < 0x80) break;
        }
        if (is_number) continue;
        if (value > (size_t)(end - at)) return bye;
        if (depth == 0 && field == 1) bye |= print_lines(at, value, 1);
        if (depth == 1 && field == 1) printf("<%.*s> ", (int)value, (const char *)at);
        if (depth == 1 && field == 3) {
            printf("%.*s\n", (int)value, (const char *)at);
            bye |= value == 3 && memcmp(at, "bye", 3) == 0;
        }
        at += value;
    }
    fflush(stdout);
    return bye;
}

int main(int argc, char **argv) {
    const char *name = argc > 2 ? argv[2] : "alice", *mode = argc > 3 ? argv[3] : "party";
    throng_options options = {.size = sizeof options, .endpoint = argc > 1 ? argv[1] : "127.0.0.1:12108", .pit = name};
    throng_client *client;
    if (throng_connect(&options, &client) != THRONG_OK) return fprintf(stderr, "%s\n", throng_error()), 1;

    throng_subscription own = {.size = sizeof own, .access = THRONG_ACCESS_WRITE, .interval_ms = 50, .receive_own = 1};
    uint8_t bytes[256];
    int done = throng_join_random_room(client, mode, NULL) != THRONG_OK;
    throng_event event;
    while (!done && throng_poll(client, 1000, &event) >= 0) {
        if (event.kind == THRONG_EVENT_MATCHMAKING && event.code != 0) {
            printf("refused: %s\n", event.text);
            done = 1;
        } else if (event.kind == THRONG_EVENT_MATCHED) {
            /* The gateway has subscribed us; this asks for our own lines as well. */
            throng_subscribe(client, event.channel, 0, &own, NULL);
            throng_update(client, event.channel, CHAT, bytes, line(bytes, name, argc > 4 ? argv[4] : "hello"));
        } else if (event.kind == THRONG_EVENT_UPDATE) {
            done = print_lines(event.data, event.data_size, 0);
        } else if (event.kind == THRONG_EVENT_DISCONNECTED) {
            printf("connection lost (%s), trying again\n", event.text);
        }
        event.kind = 0;
    }
    throng_close(client);
    return 0;
}
