/* The C library ENet at either end of the bench.
 *
 *   peer serve HOST PORT SLOTS HZ
 *       A host in the style of the library's tutorial: serviced HZ times a second, echoes every packet with its lane and
 *       flags. Writes "listening on HOST:PORT", then "peers N" for every line that it reads.
 *
 *   peer swarm HOST PORT CLIENTS BATCH EVERY_MS BYTES WARMUP_MS WINDOW_MS FIRST_ADDRESS
 *       Real clients, each with a host and socket of its own. They connect BATCH at a time, then each sends a packet of
 *       BYTES bytes every EVERY_MS milliseconds on four lanes in turn, every fifth reliable, and checks what comes back.
 *       Their addresses are 127.0.0.FIRST_ADDRESS and the following. Writes "connected" and waits for a line, then "window"
 *       and "end" as it gets there, then one line of JSON.
 */
#define _GNU_SOURCE
#include <enet/enet.h>
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define LANES 4
/* Slots of one millisecond in which clients are serviced, whatever arrives: fewer times when they send rarely. */
#define SLOTS_MIN 100
#define SLOTS_MAX 250
/* Times are counted in steps of ten microseconds, up to ten seconds. */
#define STEPS 1000000
/* A batch of connects has this long. */
#define PATIENCE_US 60000000
#define PORTS_PER_ADDRESS 14000
#define DESCRIPTORS 131072

static uint64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t) now.tv_sec * 1000000u + (uint64_t) now.tv_nsec / 1000u;
}

static void pause_us(uint64_t us) {
    struct timespec wait = {(time_t) (us / 1000000u), (long) (us % 1000000u) * 1000};
    nanosleep(&wait, NULL);
}

static void raise_limits(void) {
    struct rlimit limit, more = {DESCRIPTORS, DESCRIPTORS};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    /* Beyond the hard limit only with privileges. */
    if (limit.rlim_max < DESCRIPTORS && setrlimit(RLIMIT_NOFILE, &more) == 0)
        return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static void say(const char *line) {
    puts(line);
    fflush(stdout);
}

/* ---- server */

static int serve(const char *name, int port, size_t slots, unsigned hz) {
    ENetAddress address = {0, 0}, bound;
    ENetHost *host;
    uint64_t due = now_us();
    int lines = 1;
    enet_address_set_host(&address, name);
    address.port = (enet_uint16) port;
    host = enet_host_create(&address, slots, 255, 0, 0);
    if (host == NULL) {
        fprintf(stderr, "no host with %zu slots: the library allows %d\n", slots, ENET_PROTOCOL_MAXIMUM_PEER_ID);
        return 1;
    }
    enet_socket_get_address(host->socket, &bound);
    printf("listening on %s:%u\n", name, bound.port);
    fflush(stdout);
    for (;;) {
        ENetEvent event;
        int first = 1;
        struct pollfd in = {0, POLLIN, 0};
        while ((first ? enet_host_service(host, &event, 0) : enet_host_check_events(host, &event)) > 0) {
            if (event.type == ENET_EVENT_TYPE_RECEIVE && enet_peer_send(event.peer, event.channelID, event.packet) < 0)
                enet_packet_destroy(event.packet);
            /* The tutorial's loop: service until there is nothing more. */
            first = 1;
        }
        enet_host_flush(host);
        if (lines && poll(&in, 1, 0) > 0) {
            char line[16];
            lines = read(0, line, sizeof line) > 0;
            if (lines) {
                printf("peers %zu\n", host->connectedPeers);
                fflush(stdout);
            }
        }
        due += 1000000u / hz;
        {
            uint64_t now = now_us();
            if (due > now)
                pause_us(due - now);
            else if (now - due > 1000000u)
                due = now;
        }
    }
}

/* ---- clients */

struct client {
    ENetHost *host;
    ENetPeer *peer;
    uint32_t next;
    uint32_t seen[LANES];
    enum { IDLE, CONNECTING, CONNECTED, LOST } state;
};

static struct {
    struct client *clients;
    size_t count, bytes, slots;
    uint64_t every_us, window_start, window_end;
    int sends;
    uint64_t connected, failed, lost, sent, echoed, wrong, overtook;
    uint64_t late_max_us;
    uint32_t *steps;
} swarm;

static void put32(enet_uint8 *at, uint32_t value) {
    at[0] = (enet_uint8) (value >> 24);
    at[1] = (enet_uint8) (value >> 16);
    at[2] = (enet_uint8) (value >> 8);
    at[3] = (enet_uint8) value;
}

static uint32_t get32(const enet_uint8 *at) {
    return (uint32_t) at[0] << 24 | (uint32_t) at[1] << 16 | (uint32_t) at[2] << 8 | at[3];
}

static void check(size_t index, const ENetEvent *event) {
    const ENetPacket *packet = event->packet;
    struct client *client = &swarm.clients[index];
    uint32_t number;
    uint64_t due;
    size_t i;
    if (packet->dataLength != swarm.bytes || get32(packet->data) != index) {
        ++swarm.wrong;
        return;
    }
    number = get32(packet->data + 4);
    due = (uint64_t) get32(packet->data + 8) << 32 | get32(packet->data + 12);
    for (i = 16; i < swarm.bytes; ++i)
        if (packet->data[i] != (enet_uint8) number) {
            ++swarm.wrong;
            return;
        }
    if (event->channelID != number % LANES) {
        ++swarm.wrong;
        return;
    }
    if (number < client->seen[event->channelID])
        ++swarm.overtook;
    else
        client->seen[event->channelID] = number + 1;
    if (due >= swarm.window_start && due < swarm.window_end) {
        uint64_t step = (now_us() - due) / 10;
        ++swarm.echoed;
        ++swarm.steps[step < STEPS ? step : STEPS - 1];
    }
}

static void service(size_t index) {
    struct client *client = &swarm.clients[index];
    ENetEvent event;
    while (enet_host_service(client->host, &event, 0) > 0) {
        switch (event.type) {
        case ENET_EVENT_TYPE_CONNECT:
            if (client->state == CONNECTING) {
                client->state = CONNECTED;
                ++swarm.connected;
                /* No throttle, at either end: what is missing then was lost. */
                enet_peer_throttle_configure(client->peer, ENET_PEER_PACKET_THROTTLE_INTERVAL,
                                             ENET_PEER_PACKET_THROTTLE_SCALE, 0);
            }
            break;
        case ENET_EVENT_TYPE_DISCONNECT:
            if (client->state == CONNECTED)
                ++swarm.lost;
            client->state = LOST;
            break;
        case ENET_EVENT_TYPE_RECEIVE:
            check(index, &event);
            enet_packet_destroy(event.packet);
            break;
        default:
            break;
        }
    }
}

static void send_packet(size_t index, uint64_t due) {
    struct client *client = &swarm.clients[index];
    uint32_t number = client->next++;
    ENetPacket *packet = enet_packet_create(NULL, swarm.bytes, number % 5 == 0 ? ENET_PACKET_FLAG_RELIABLE : 0);
    uint64_t late = now_us() - due;
    memset(packet->data, (enet_uint8) number, swarm.bytes);
    put32(packet->data, (uint32_t) index);
    put32(packet->data + 4, number);
    put32(packet->data + 8, (uint32_t) (due >> 32));
    put32(packet->data + 12, (uint32_t) due);
    if (enet_peer_send(client->peer, (enet_uint8) (number % LANES), packet) < 0) {
        enet_packet_destroy(packet);
        return;
    }
    enet_host_flush(client->host);
    if (due >= swarm.window_start && due < swarm.window_end) {
        ++swarm.sent;
        if (late > swarm.late_max_us)
            swarm.late_max_us = late;
    }
}

/* One wait, and what is due: every client has its millisecond of each hundred. */
static void step(int epoll, uint64_t start, uint64_t *slots_done, uint64_t until) {
    struct epoll_event ready[256];
    struct timespec wait;
    uint64_t now = now_us(), due, next;
    int count, i;
    while ((due = start + *slots_done * 1000) <= now) {
        size_t index = *slots_done % swarm.slots;
        uint64_t round = *slots_done / swarm.slots;
        uint64_t rounds = swarm.every_us / (swarm.slots * 1000);
        ++*slots_done;
        for (; index < swarm.count; index += swarm.slots) {
            struct client *client = &swarm.clients[index];
            if (client->state != CONNECTING && client->state != CONNECTED)
                continue;
            /* At less than 10 Hz the clients take turns. */
            if (swarm.sends && client->state == CONNECTED && rounds > 0 && (round + index / swarm.slots) % rounds == 0)
                send_packet(index, due);
            else
                service(index);
        }
        now = now_us();
    }
    next = start + *slots_done * 1000;
    if (next > until)
        next = until;
    wait.tv_sec = 0;
    wait.tv_nsec = next > now ? (long) (next - now) * 1000 : 0;
    count = epoll_pwait2(epoll, ready, 256, &wait, NULL);
    for (i = 0; i < count; ++i)
        service((size_t) ready[i].data.u64);
}

static double quantile_ms(double share) {
    uint64_t wanted = (uint64_t) ((double) swarm.echoed * share), sum = 0;
    size_t i;
    for (i = 0; i < STEPS; ++i) {
        sum += swarm.steps[i];
        if (sum > wanted)
            break;
    }
    return (double) i / 100.0;
}

static int run_swarm(char **words) {
    ENetAddress server;
    size_t batch = (size_t) atol(words[3]), first, i;
    uint64_t warmup = (uint64_t) atol(words[6]) * 1000, window = (uint64_t) atol(words[7]) * 1000;
    uint64_t start, slots_done = 0, end, batch_max_us = 0;
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct timespec cpu;
    struct pollfd in = {0, POLLIN, 0};
    swarm.count = (size_t) atol(words[2]);
    swarm.every_us = (uint64_t) atol(words[4]) * 1000;
    swarm.bytes = (size_t) atol(words[5]);
    swarm.slots = swarm.every_us >= 4 * SLOTS_MAX * 1000 ? SLOTS_MAX : SLOTS_MIN;
    swarm.clients = calloc(swarm.count, sizeof *swarm.clients);
    swarm.steps = calloc(STEPS, sizeof *swarm.steps);
    swarm.window_start = swarm.window_end = UINT64_MAX;
    enet_address_set_host(&server, words[0]);
    server.port = (enet_uint16) atoi(words[1]);
    for (i = 0; i < swarm.count; ++i) {
        ENetAddress local = {0, 0};
        struct epoll_event event = {0};
        /* One address does not have ports for everybody. */
        local.host = ENET_HOST_TO_NET_32(0x7F000000u + (enet_uint32) atoi(words[8]) + (enet_uint32) (i / PORTS_PER_ADDRESS));
        swarm.clients[i].host = enet_host_create(&local, 1, LANES, 0, 0);
        if (swarm.clients[i].host == NULL) {
            fprintf(stderr, "no socket for client %zu: %s\n", i, strerror(errno));
            return 1;
        }
        event.events = EPOLLIN;
        event.data.u64 = i;
        epoll_ctl(epoll, EPOLL_CTL_ADD, swarm.clients[i].host->socket, &event);
    }
    start = now_us();
    for (first = 0; first < swarm.count; first += batch) {
        size_t last = first + batch < swarm.count ? first + batch : swarm.count;
        uint64_t before = swarm.connected, begun = now_us(), took;
        for (i = first; i < last; ++i) {
            struct client *client = &swarm.clients[i];
            client->peer = enet_host_connect(client->host, &server, LANES, (enet_uint32) i);
            client->state = CONNECTING;
            enet_host_flush(client->host);
        }
        while (swarm.connected - before < last - first && now_us() - begun < PATIENCE_US)
            step(epoll, start, &slots_done, begun + PATIENCE_US);
        took = now_us() - begun;
        if (took > batch_max_us)
            batch_max_us = took;
        for (i = first; i < last; ++i)
            if (swarm.clients[i].state == CONNECTING) {
                enet_peer_reset(swarm.clients[i].peer);
                swarm.clients[i].state = LOST;
                ++swarm.failed;
            }
    }
    say("connected");
    while (poll(&in, 1, 0) == 0)
        step(epoll, start, &slots_done, now_us() + 1000);
    swarm.sends = 1;
    end = now_us() + warmup;
    while (now_us() < end)
        step(epoll, start, &slots_done, end);
    swarm.window_start = now_us();
    swarm.window_end = end = swarm.window_start + window;
    say("window");
    while (now_us() < end)
        step(epoll, start, &slots_done, end);
    say("end");
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    /* The last echoes. */
    end = now_us() + 1000000;
    while (now_us() < end)
        step(epoll, start, &slots_done, end);
    printf("{\"clients\":%zu,\"connected\":%llu,\"failed\":%llu,\"batch_max_ms\":%.3f,\"lost\":%llu,\"sent\":%llu,"
           "\"echoed\":%llu,\"wrong\":%llu,\"overtook\":%llu,\"p50_ms\":%.2f,\"p99_ms\":%.2f,\"max_ms\":%.2f,"
           "\"late_max_ms\":%.2f,\"cpu_s\":%.3f}\n",
           swarm.count, (unsigned long long) swarm.connected, (unsigned long long) swarm.failed,
           (double) batch_max_us / 1000.0, (unsigned long long) swarm.lost, (unsigned long long) swarm.sent,
           (unsigned long long) swarm.echoed, (unsigned long long) swarm.wrong, (unsigned long long) swarm.overtook,
           quantile_ms(0.5), quantile_ms(0.99), quantile_ms(0.999999), (double) swarm.late_max_us / 1000.0,
           (double) cpu.tv_sec + (double) cpu.tv_nsec / 1e9);
    fflush(stdout);
    return 0;
}

int main(int count, char **words) {
    if (enet_initialize() != 0)
        return 1;
    raise_limits();
    if (count == 6 && strcmp(words[1], "serve") == 0)
        return serve(words[2], atoi(words[3]), (size_t) atol(words[4]), (unsigned) atoi(words[5]));
    if (count == 11 && strcmp(words[1], "swarm") == 0)
        return run_swarm(words + 2);
    fprintf(stderr, "see the head of peer.c\n");
    return 2;
}
