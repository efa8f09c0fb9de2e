/*
 * A chat room: enters it, or opens it when there is none, says one line and prints what is said until somebody says
 * "bye". The gateway needs the schema fixtures/proto/chat.proto.
 *
 *     cc chat.c -I../include -L../../../target/release -lthrong_client_ffi -o chat
 *     ./chat 127.0.0.1:12108 alice lobby "hello"
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
    const char *name = argc > 2 ? argv[2] : "alice", *room = argc > 3 ? argv[3] : "lobby";
    throng_options options = {.size = sizeof options, .endpoint = argc > 1 ? argv[1] : "127.0.0.1:12108", .pit = name};
    throng_client *client;
    if (throng_connect(&options, &client) != THRONG_OK) return fprintf(stderr, "%s\n", throng_error()), 1;

    throng_subscription write = {.size = sizeof write, .access = THRONG_ACCESS_WRITE, .interval_ms = 50, .receive_own = 1};
    uint8_t bytes[256];
    uint32_t channel = 0, request;
    int done = throng_list(client, THRONG_CHANNEL_SUBWORLD, room, &request) != THRONG_OK;
    throng_event event;
    while (!done && throng_poll(client, 1000, &event) >= 0) {
        if (event.kind == THRONG_EVENT_LISTED && channel == 0) {
            channel = event.channel;
            throng_subscribe(client, channel, 0, &write, &request);
        } else if (event.kind == THRONG_EVENT_LIST_END && channel == 0) {
            throng_create create = {.size = sizeof create, .channel_type = THRONG_CHANNEL_SUBWORLD, .metadata = room,
                                    .data_type = CHAT, .data = bytes, .data_size = line(bytes, "room", "it is open"),
                                    .list_size_limit = 100, .truncate_top = 1, .subscription = write};
            throng_create_channel(client, &create, &request);
        } else if (event.kind == THRONG_EVENT_SUBSCRIBED && event.conn == throng_conn(client)) {
            channel = event.channel;
            throng_update(client, channel, CHAT, bytes, line(bytes, name, argc > 4 ? argv[4] : "hello"));
        } else if (event.kind == THRONG_EVENT_UPDATE && event.channel == channel) {
            done = print_lines(event.data, event.data_size, 0);
        } else if (event.kind == THRONG_EVENT_DISCONNECTED) {
            printf("connection lost (%s), trying again\n", event.text);
        }
        event.kind = 0;
    }
    throng_close(client);
    return 0;
}
