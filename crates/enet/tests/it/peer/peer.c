/* The other side of the interoperability tests: a server and a client on the C library ENet.
 *
 *   peer serve <lanes> <checksum> <coder>            prints its port, echoes every packet with its lane and flags, and
 *                                                    disconnects from who sends "bye" with reason 4321, who sends
 *                                                    "later" with 4322 after two more packets, who sends "now" with 4323
 *   peer connect <port> <lanes> <checksum> <coder>   sends every kind of packet to an echo server until each has come
 *                                                    back, then disconnects with reason 77
 *
 *   peer lanes <port>                                sends a packet on each of 255 lanes; reason 78 when all are back
 *   peer impatience <port>                           stays until the other side has been silent for half a second
 *   peer patience <port>                             the same, but for the timeouts of the library
 *
 * All print what happens, a line each, and end after a disconnect.
 */
#include <enet/enet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct kind {
    const char *name;
    enet_uint8 lane;
    enet_uint32 flags;
    size_t length;
    int seen;
};

static struct kind kinds[] = {
    {"reliable", 0, ENET_PACKET_FLAG_RELIABLE, 23, 0},
    {"unreliable", 1, 0, 40, 0},
    {"unsequenced", 2, ENET_PACKET_FLAG_UNSEQUENCED, 41, 0},
    {"fragmented", 3, ENET_PACKET_FLAG_RELIABLE, 10000, 0},
    {"unreliable-fragmented", 1, ENET_PACKET_FLAG_UNRELIABLE_FRAGMENT, 10001, 0},
    {"promoted", 2, 0, 10002, 0},
    {"megabyte", 0, ENET_PACKET_FLAG_RELIABLE, 1 << 20, 0},
};
#define KINDS (sizeof kinds / sizeof kinds[0])

static enet_uint8 byte_at(size_t i, size_t length) {
    return (enet_uint8) (i * 7 + (i >> 8) + length);
}

static int content_is_right(const ENetPacket *packet) {
    size_t i;
    for (i = 0; i < packet->dataLength; ++i)
        if (packet->data[i] != byte_at(i, packet->dataLength))
            return 0;
    return 1;
}

static void send_kind(ENetPeer *peer, const struct kind *kind) {
    ENetPacket *packet = enet_packet_create(NULL, kind->length, kind->flags);
    size_t i;
    for (i = 0; i < kind->length; ++i)
        packet->data[i] = byte_at(i, kind->length);
    enet_peer_send(peer, kind->lane, packet);
}

static ENetHost *make_host(const ENetAddress *address, size_t peers, int lanes, int checksum, int coder) {
    ENetHost *host = enet_host_create(address, peers, (size_t) lanes, 0, 0);
    if (host == NULL) {
        fprintf(stderr, "no host\n");
        exit(1);
    }
    if (checksum)
        host->checksum = enet_crc32;
    if (coder)
        enet_host_compress_with_range_coder(host);
    return host;
}

static int is_word(const ENetPacket *packet, const char *word) {
    return packet->dataLength == strlen(word) && memcmp(packet->data, word, packet->dataLength) == 0;
}

static int serve(int lanes, int checksum, int coder) {
    ENetAddress address = {0, 0}, bound;
    ENetEvent event;
    ENetHost *host;
    enet_address_set_host(&address, "127.0.0.1");
    host = make_host(&address, 64, lanes, checksum, coder);
    enet_socket_get_address(host->socket, &bound);
    printf("port %u\n", bound.port);
    fflush(stdout);
    while (enet_host_service(host, &event, 20000) > 0) {
        switch (event.type) {
        case ENET_EVENT_TYPE_CONNECT:
            printf("connected %u lanes %u\n", event.data, (unsigned) event.peer->channelCount);
            break;
        case ENET_EVENT_TYPE_RECEIVE:
            if (is_word(event.packet, "bye")) {
                enet_packet_destroy(event.packet);
                enet_peer_disconnect(event.peer, 4321);
                break;
            }
            if (is_word(event.packet, "later")) {
                enet_peer_send(event.peer, 0, enet_packet_create("one", 3, ENET_PACKET_FLAG_RELIABLE));
                enet_peer_send(event.peer, 1, enet_packet_create("two", 3, ENET_PACKET_FLAG_RELIABLE));
                enet_packet_destroy(event.packet);
                enet_peer_disconnect_later(event.peer, 4322);
                break;
            }
            if (is_word(event.packet, "now")) {
                enet_packet_destroy(event.packet);
                enet_peer_disconnect_now(event.peer, 4323);
                /* The library tells only the other side. */
                printf("disconnected 0\n");
                enet_host_destroy(host);
                return 0;
            }
            /* The packet belongs to the library again once it is queued. */
            if (enet_peer_send(event.peer, event.channelID, event.packet) < 0)
                printf("cannot echo\n");
            break;
        case ENET_EVENT_TYPE_DISCONNECT:
            printf("disconnected %u\n", event.data);
            enet_host_destroy(host);
            return 0;
        default:
            break;
        }
        fflush(stdout);
    }
    return 1;
}

static int connect_to(int port, int lanes, int checksum, int coder) {
    ENetAddress address;
    ENetEvent event;
    ENetHost *host = make_host(NULL, 1, lanes, checksum, coder);
    ENetPeer *peer;
    size_t i, missing = KINDS;
    enet_uint32 sent_at = 0, give_up;
    int connected = 0;
    enet_address_set_host(&address, "127.0.0.1");
    address.port = (enet_uint16) port;
    peer = enet_host_connect(host, &address, (size_t) lanes, 99);
    give_up = enet_time_get() + 20000;
    while ((int) (give_up - enet_time_get()) > 0) {
        if (enet_host_service(host, &event, 20) > 0) {
            if (event.type == ENET_EVENT_TYPE_CONNECT) {
                printf("connected lanes %u\n", (unsigned) peer->channelCount);
                connected = 1;
                for (i = 0; i < KINDS; ++i)
                    send_kind(peer, &kinds[i]);
                sent_at = enet_time_get();
            } else if (event.type == ENET_EVENT_TYPE_DISCONNECT) {
                printf("disconnected %u\n", event.data);
                enet_host_destroy(host);
                return 0;
            } else if (event.type == ENET_EVENT_TYPE_RECEIVE) {
                for (i = 0; i < KINDS; ++i) {
                    if (kinds[i].length != event.packet->dataLength || kinds[i].seen)
                        continue;
                    kinds[i].seen = 1;
                    --missing;
                    printf("echo %s %s lane %s\n", kinds[i].name,
                           content_is_right(event.packet) ? "intact" : "damaged",
                           event.channelID == kinds[i].lane ? "right" : "wrong");
                }
                enet_packet_destroy(event.packet);
                if (missing == 0)
                    enet_peer_disconnect(peer, 77);
            }
        }
        /* What may get lost is sent until it has come back once. */
        if (connected && missing > 0 && enet_time_get() - sent_at > 200) {
            for (i = 0; i < KINDS; ++i)
                if (!kinds[i].seen && !(kinds[i].flags & ENET_PACKET_FLAG_RELIABLE))
                    send_kind(peer, &kinds[i]);
            sent_at = enet_time_get();
        }
    }
    return 1;
}

static ENetPeer *begin(ENetHost *host, int port, size_t lanes, enet_uint32 data) {
    ENetAddress address;
    enet_address_set_host(&address, "127.0.0.1");
    address.port = (enet_uint16) port;
    return enet_host_connect(host, &address, lanes, data);
}

static int use_all_lanes(int port) {
    ENetHost *host = make_host(NULL, 1, 255, 0, 0);
    ENetPeer *peer = begin(host, port, 255, 98);
    ENetEvent event;
    int seen[255] = {0}, echoed = 0, lane;
    while (enet_host_service(host, &event, 20000) > 0) {
        if (event.type == ENET_EVENT_TYPE_CONNECT) {
            printf("connected lanes %u\n", (unsigned) peer->channelCount);
            for (lane = 0; lane < 255; ++lane) {
                enet_uint8 number = (enet_uint8) lane;
                enet_peer_send(peer, number, enet_packet_create(&number, 1, ENET_PACKET_FLAG_RELIABLE));
            }
        } else if (event.type == ENET_EVENT_TYPE_DISCONNECT) {
            printf("disconnected %u\n", event.data);
            enet_host_destroy(host);
            return 0;
        } else if (event.type == ENET_EVENT_TYPE_RECEIVE) {
            lane = event.channelID;
            if (event.packet->dataLength == 1 && event.packet->data[0] == lane && !seen[lane]++ && ++echoed == 255) {
                printf("255 lanes echoed\n");
                enet_peer_disconnect(peer, 78);
            }
            enet_packet_destroy(event.packet);
        }
    }
    return 1;
}

static int wait_for_silence(int port, int is_patient) {
    ENetHost *host = make_host(NULL, 1, 1, 0, 0);
    ENetPeer *peer = begin(host, port, 1, 97);
    ENetEvent event;
    enet_uint32 give_up = enet_time_get() + 100000;
    while ((int) (give_up - enet_time_get()) > 0) {
        /* It looks at its timers only when it is called, not while it waits. */
        if (enet_host_service(host, &event, 20) <= 0)
            continue;
        if (event.type == ENET_EVENT_TYPE_CONNECT) {
            printf("connected\n");
            if (is_patient)
                continue;
            enet_peer_ping_interval(peer, 50);
            enet_peer_timeout(peer, 4, 300, 2000);
        } else if (event.type == ENET_EVENT_TYPE_DISCONNECT) {
            printf("disconnected %u\n", event.data);
            enet_host_destroy(host);
            return 0;
        }
        fflush(stdout);
    }
    return 1;
}

int main(int count, char **words) {
    if (enet_initialize() != 0)
        return 1;
    if (count == 5 && strcmp(words[1], "serve") == 0)
        return serve(atoi(words[2]), atoi(words[3]), atoi(words[4]));
    if (count == 3 && strcmp(words[1], "lanes") == 0)
        return use_all_lanes(atoi(words[2]));
    if (count == 3 && strcmp(words[1], "patience") == 0)
        return wait_for_silence(atoi(words[2]), 1);
    if (count == 3 && strcmp(words[1], "impatience") == 0)
        return wait_for_silence(atoi(words[2]), 0);
    if (count == 6 && strcmp(words[1], "connect") == 0)
        return connect_to(atoi(words[2]), atoi(words[3]), atoi(words[4]), atoi(words[5]));
    return 2;
}
