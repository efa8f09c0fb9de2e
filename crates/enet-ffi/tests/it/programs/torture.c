/* What a program can do with the interface beyond common use: every call in every state, fields after each step,
 * callbacks that call back. Prints one line for each; the same with both libraries. */
#include <enet/enet.h>
#include <enet/time.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ENetHost *server, *client;
static ENetAddress to;
static int freed, sent_flags;

static void ENET_CALLBACK count_free(ENetPacket *packet) {
  freed++;
  sent_flags += (packet->flags & ENET_PACKET_FLAG_SENT) != 0;
}

static void start(size_t peers, size_t channels) {
  ENetAddress any = {ENET_HOST_ANY, ENET_PORT_ANY};
  server = enet_host_create(&any, peers, channels, 0, 0);
  client = enet_host_create(NULL, peers, 0, 0, 0);
  to = server->address;
  enet_address_set_host_ip(&to, "127.0.0.1");
}

static void stop(void) {
  enet_host_destroy(client);
  enet_host_destroy(server);
}

/* Both hosts for a while, without taking events. */
static void spin(int ms) {
  enet_uint32 end = enet_time_get() + ms;
  do {
    enet_host_service(client, NULL, 0);
    enet_host_service(server, NULL, 1);
  } while (ENET_TIME_LESS(enet_time_get(), end));
}

static const char *TYPES[] = {"none", "connect", "disconnect", "receive"};

/* Takes all events that a host has, and adds a line for each; their number. */
static int take(const char *who, ENetHost *host, char *lines) {
  ENetEvent event;
  int count = 0;
  while (enet_host_check_events(host, &event) > 0) {
    count++;
    lines += strlen(lines);
    lines += sprintf(lines, "  %s: %s of %td", who, TYPES[event.type], event.peer - host->peers);
    if (event.type != ENET_EVENT_TYPE_RECEIVE)
      lines += sprintf(lines, ", data %u, state %d", event.data, event.peer->state);
    if (event.type == ENET_EVENT_TYPE_RECEIVE) {
      lines += sprintf(lines, ", channel %d, length %zu, flags %u, references %zu, there %d", event.channelID,
                       event.packet->dataLength, event.packet->flags, event.packet->referenceCount,
                       event.packet->data != NULL);
      enet_packet_destroy(event.packet);
    }
    sprintf(lines, ", connected %zu\n", host->connectedPeers);
  }
  return count;
}

/* Both hosts until nothing has happened for a moment. */
static void settle(const char *title) {
  static char at_server[20000], at_client[20000];
  at_server[0] = at_client[0] = 0;
  for (int quiet = 0; quiet < 15; quiet++) {
    enet_host_service(client, NULL, 1);
    enet_host_service(server, NULL, 1);
    if (take("server", server, at_server) + take("client", client, at_client) > 0) quiet = 0;
  }
  printf("%s\n%s%s", title, at_server, at_client);
}

/* What both libraries have before the event of it is taken. */
static void brief(const char *title, const ENetPeer *peer) {
  printf("%s: state %d, connected %zu\n", title, peer->state, peer->host->connectedPeers);
}

static void show(const char *title, const ENetPeer *peer) {
  /* Of a connected peer it depends on how fast the machine is. */
  enet_uint32 throttle = peer->state == ENET_PEER_STATE_DISCONNECTED ? peer->packetThrottle : 0;
  printf(
      "%s: state %d, id %d, connect id %d, event data %u, channels %zu, mtu %u, window %u, throttle %u %u %u %u %u, "
      "ping %u, timeout %u %u %u, bandwidth %u %u, waiting %d, flight %u, connected %zu\n",
      title, peer->state, peer->outgoingPeerID < 4095, peer->connectID != 0, peer->eventData, peer->channelCount,
      peer->mtu, peer->windowSize, throttle, peer->packetThrottleLimit, peer->packetThrottleInterval,
      peer->packetThrottleAcceleration, peer->packetThrottleDeceleration, peer->pingInterval, peer->timeoutLimit,
      peer->timeoutMinimum, peer->timeoutMaximum, peer->incomingBandwidth, peer->outgoingBandwidth,
      peer->totalWaitingData > 0, peer->reliableDataInTransit, peer->host->connectedPeers);
}

static ENetPeer *join(size_t channels, enet_uint32 data) {
  ENetPeer *peer = enet_host_connect(client, &to, channels, data);
  if (peer == NULL) {
    printf("no place\n");
    return NULL;
  }
  settle("join");
  return peer;
}

static ENetPacket *text(size_t length, enet_uint32 flags) {
  static char bytes[100000];
  ENetPacket *packet = enet_packet_create(bytes, length, flags);
  packet->freeCallback = count_free;
  return packet;
}

static void states(void) {
  printf("== states\n");
  start(4, 8);
  ENetPeer *peer = &client->peers[0];
  show("unused", peer);
  /* Calls about a peer that is not connected. */
  enet_peer_ping(peer);
  enet_peer_disconnect(peer, 1);
  enet_peer_disconnect_now(peer, 1);
  enet_peer_disconnect_later(peer, 1);
  enet_peer_reset(peer);
  enet_peer_timeout(peer, 0, 0, 0);
  enet_peer_ping_interval(peer, 0);
  ENetPacket *packet = text(3, ENET_PACKET_FLAG_RELIABLE);
  printf("send: %d, references %zu\n", enet_peer_send(peer, 0, packet), packet->referenceCount);
  enet_packet_destroy(packet);
  printf("receive: %d\n", enet_peer_receive(peer, NULL) != NULL);
  settle("nothing happens");

  /* Before the answer. */
  peer = enet_host_connect(client, &to, 2, 5);
  show("connecting", peer);
  packet = text(3, ENET_PACKET_FLAG_RELIABLE);
  printf("send: %d\n", enet_peer_send(peer, 0, packet));
  enet_packet_destroy(packet);
  enet_peer_disconnect(peer, 6);
  show("not any more", peer);
  settle("no event");
  peer = enet_host_connect(client, &to, 2, 5);
  enet_peer_disconnect_later(peer, 6);
  show("later at once", peer);
  settle("no event");
  peer = enet_host_connect(client, &to, 2, 5);
  enet_peer_disconnect_now(peer, 6);
  show("now", peer);
  settle("no event");
  peer = enet_host_connect(client, &to, 2, 5);
  enet_peer_reset(peer);
  show("reset", peer);
  settle("no event");

  peer = join(2, 7);
  ENetPeer *other = &server->peers[0];
  show("client's", peer);
  show("server's", other);
  printf("same connection: %d\n", peer->connectID == other->connectID);
  enet_peer_timeout(peer, 4, 1000, 2000);
  enet_peer_ping_interval(peer, 250);
  spin(10);
  printf("kept: %u %u %u %u\n", peer->timeoutLimit, peer->timeoutMinimum, peer->timeoutMaximum, peer->pingInterval);
  enet_peer_timeout(peer, 0, 0, 0);
  enet_peer_ping_interval(peer, 0);
  printf("defaults: %u %u %u %u\n", peer->timeoutLimit, peer->timeoutMinimum, peer->timeoutMaximum,
         peer->pingInterval);
  enet_peer_throttle_configure(peer, 1000, 3, 4);
  spin(40);
  show("throttle here", peer);
  show("throttle there", other);

  /* The disconnection of a connected peer, and every call during it. */
  enet_peer_disconnect(peer, 8);
  show("leaving", peer);
  packet = text(3, ENET_PACKET_FLAG_RELIABLE);
  printf("send: %d\n", enet_peer_send(peer, 0, packet));
  enet_packet_destroy(packet);
  enet_peer_disconnect(peer, 9);
  enet_peer_disconnect_later(peer, 9);
  enet_peer_ping(peer);
  show("still leaving", peer);
  spin(40);
  brief("at the server, before its event", other);
  packet = text(3, ENET_PACKET_FLAG_RELIABLE);
  printf("send: %d\n", enet_peer_send(other, 0, packet));
  enet_packet_destroy(packet);
  settle("left");
  show("client's", peer);
  show("server's", other);

  /* Both at once. */
  peer = join(2, 1);
  enet_peer_disconnect(peer, 2);
  enet_peer_disconnect(other, 3);
  settle("both leave");

  /* Later, with nothing to wait for, and with something. */
  peer = join(2, 1);
  enet_peer_disconnect_later(peer, 4);
  show("later, idle", peer);
  settle("left");
  peer = join(2, 1);
  enet_peer_send(peer, 0, text(3, ENET_PACKET_FLAG_RELIABLE));
  enet_peer_send(other, 1, text(4, ENET_PACKET_FLAG_RELIABLE));
  enet_peer_disconnect_later(peer, 5);
  show("later, busy", peer);
  packet = text(3, ENET_PACKET_FLAG_RELIABLE);
  printf("send: %d\n", enet_peer_send(peer, 0, packet));
  enet_packet_destroy(packet);
  enet_peer_disconnect_later(peer, 6);
  settle("left");
  peer = join(2, 1);
  enet_peer_send(peer, 0, text(3, ENET_PACKET_FLAG_RELIABLE));
  enet_peer_disconnect_later(peer, 5);
  enet_peer_disconnect(peer, 7);
  show("later, then at once", peer);
  settle("left");

  /* At once while leaving: no event here. */
  peer = join(2, 1);
  enet_peer_disconnect(peer, 8);
  enet_peer_disconnect_now(peer, 9);
  show("leaving, then now", peer);
  spin(40);
  settle("no event here");
  enet_peer_reset(other);
  show("reset", other);
  settle("nothing is left");

  /* What was received and not taken is gone when this side leaves. */
  peer = join(2, 1);
  enet_peer_send(peer, 0, text(3, ENET_PACKET_FLAG_RELIABLE));
  enet_peer_send(peer, 1, text(4, 0));
  spin(40);
  show("waiting", other);
  enet_peer_disconnect(other, 1);
  show("left with packets", other);
  printf("receive: %d\n", enet_peer_receive(other, NULL) != NULL);
  settle("left");
  peer = join(2, 1);
  enet_peer_send(peer, 0, text(3, ENET_PACKET_FLAG_RELIABLE));
  spin(40);
  enet_peer_reset(other);
  settle("reset with packets");
  enet_peer_reset(peer);

  /* The end, before the program takes its event. */
  peer = join(2, 1);
  enet_peer_disconnect(peer, 11);
  spin(40);
  brief("its end waits", other);
  settle("left");
  stop();
}

static void places(void) {
  printf("== places\n");
  start(3, 2);
  int marks[3];
  ENetPeer *peers[4];
  for (int i = 0; i < 4; i++) peers[i] = join(1, i);
  for (int i = 0; i < 3; i++) {
    peers[i]->data = &marks[i];
    printf("place %td at the server %d\n", peers[i] - client->peers, server->peers[i].data == NULL);
    server->peers[i].data = &marks[i];
  }
  printf("full: %d\n", enet_host_connect(client, &to, 1, 0) == NULL);
  enet_peer_reset(peers[1]);
  enet_peer_reset(&server->peers[1]);
  printf("kept: %d %d\n", peers[1]->data == &marks[1], server->peers[1].data == &marks[1]);
  peers[1] = join(1, 5);
  printf("again: place %td, kept %d %d\n", peers[1] - client->peers, peers[1]->data == &marks[1],
         server->peers[1].data == &marks[1]);

  /* A place is free only after the event was taken. */
  enet_peer_disconnect(peers[0], 1);
  spin(40);
  printf("before the event: %d\n", enet_host_connect(client, &to, 1, 0) == NULL);
  settle("after it");
  peers[0] = join(1, 6);
  printf("again: place %td\n", peers[0] - client->peers);

  /* One event of each in turn. */
  for (int i = 0; i < 3; i++)
    for (int j = 0; j < 2; j++) enet_peer_send(peers[i], 0, text(10 * i + j, ENET_PACKET_FLAG_RELIABLE));
  settle("in turn");

  /* Events, by one call each. */
  ENetEvent event;
  printf("none: %d %d\n", enet_host_check_events(server, &event), event.type);
  printf("nothing to write to: %d\n", enet_host_check_events(server, NULL));
  enet_peer_send(peers[2], 0, text(5, ENET_PACKET_FLAG_RELIABLE));
  enet_peer_send(peers[2], 0, text(6, ENET_PACKET_FLAG_RELIABLE));
  spin(40);
  int first = enet_host_service(server, &event, 0);
  printf("first: %d %d %zu\n", first, event.type, event.packet->dataLength);
  enet_packet_destroy(event.packet);
  enet_peer_reset(event.peer);
  int second = enet_host_service(server, &event, 0);
  printf("none of a peer that was reset: %d %d\n", second, event.type);
  stop();
}

static void channels(void) {
  printf("== channels\n");
  start(8, 5);
  const size_t counts[] = {0, 1, 5, 6, 255, 256, 1000};
  for (int i = 0; i < 7; i++) {
    ENetPeer *peer = enet_host_connect(client, &to, counts[i], 0);
    size_t before = peer->channelCount;
    settle("");
    printf("%zu: %zu %zu at the server %zu\n", counts[i], before, peer->channelCount, server->peers[i].channelCount);
    size_t last = peer->channelCount - 1;
    enet_peer_send(peer, last, text(2, ENET_PACKET_FLAG_RELIABLE));
    ENetPacket *packet = text(2, ENET_PACKET_FLAG_RELIABLE);
    if (enet_peer_send(peer, last + 1, packet) < 0) enet_packet_destroy(packet);
  }
  settle("all");
  stop();
  start(2, 0);
  ENetPeer *peer = join(255, 0);
  enet_peer_send(peer, 254, text(2, ENET_PACKET_FLAG_RELIABLE));
  settle("last of 255");
  enet_host_channel_limit(server, 3);
  enet_host_channel_limit(client, 1000);
  printf("limits %zu %zu\n", server->channelLimit, client->channelLimit);
  peer = join(9, 0);
  printf("agreed: %zu\n", peer->channelCount);
  enet_host_channel_limit(server, 0);
  printf("limits %zu\n", server->channelLimit);
  stop();
}

static void packets(void) {
  printf("== packets\n");
  start(3, 2);
  ENetPeer *peer = join(2, 0), *second = join(2, 0);
  /* The throttle drops nothing, however late acknowledgements are. */
  enet_peer_throttle_configure(peer, 5000, 32, 0);
  for (int i = 0; i < 2; i++) enet_peer_throttle_configure(&server->peers[i], 5000, 32, 0);
  settle("throttle");
  const enet_uint32 flags[] = {0,
                               ENET_PACKET_FLAG_RELIABLE,
                               ENET_PACKET_FLAG_UNSEQUENCED,
                               ENET_PACKET_FLAG_UNRELIABLE_FRAGMENT,
                               ENET_PACKET_FLAG_RELIABLE | ENET_PACKET_FLAG_UNSEQUENCED,
                               ENET_PACKET_FLAG_RELIABLE | ENET_PACKET_FLAG_UNRELIABLE_FRAGMENT,
                               ENET_PACKET_FLAG_UNSEQUENCED | ENET_PACKET_FLAG_UNRELIABLE_FRAGMENT};
  const size_t lengths[] = {0, 1, 1300, 5000, 50000};
  for (int i = 0; i < 7; i++)
    for (int j = 0; j < 5; j++) {
      printf("flags %u, length %zu", flags[i], lengths[j]);
      freed = sent_flags = 0;
      enet_peer_send(peer, 1, text(lengths[j], flags[i]));
      settle("");
      printf("  freed %d, sent %d\n", freed, sent_flags);
    }

  /* References. */
  freed = 0;
  ENetPacket *packet = text(9, ENET_PACKET_FLAG_RELIABLE);
  packet->userData = &freed;
  packet->referenceCount++;
  enet_peer_send(peer, 0, packet);
  enet_peer_send(second, 0, packet);
  printf("references %zu\n", packet->referenceCount);
  settle("both");
  printf("references %zu, freed %d, user data %d\n", packet->referenceCount, freed, packet->userData == &freed);
  packet->referenceCount--;
  enet_packet_destroy(packet);
  printf("freed %d\n", freed);

  /* Sizes. */
  static char mine[100] = "mine";
  packet = enet_packet_create(mine, 10, ENET_PACKET_FLAG_NO_ALLOCATE);
  packet->freeCallback = count_free;
  printf("not copied: %d\n", (char *)packet->data == mine);
  enet_packet_resize(packet, 100);
  printf("resized: %zu, %d\n", packet->dataLength, (char *)packet->data == mine);
  enet_packet_destroy(packet);
  packet = enet_packet_create("0123456789", 10, 0);
  const size_t sizes[] = {4, 40, 0};
  for (int i = 0; i < 3; i++) {
    int resized = enet_packet_resize(packet, sizes[i]);
    printf("resized: %d, %zu, %.4s\n", resized, packet->dataLength, packet->data);
  }
  enet_packet_destroy(packet);
  packet = enet_packet_create(NULL, 10, 0);
  printf("without content: %d\n", packet->data != NULL);
  enet_packet_destroy(packet);
  packet = enet_packet_create(NULL, 0, 0);
  printf("empty: %d, resized %d\n", packet->data != NULL, enet_packet_resize(packet, 3));
  memcpy(packet->data, "abc", 3);
  enet_peer_send(peer, 0, packet);
  enet_packet_destroy(NULL);
  settle("three bytes");

  /* Broadcasts: to all, to those who have the channel, to nobody. */
  ENetPeer *narrow = join(1, 0);
  freed = 0;
  enet_host_broadcast(server, 0, text(4, ENET_PACKET_FLAG_RELIABLE));
  settle("to all");
  printf("freed %d\n", freed);
  enet_host_broadcast(server, 1, text(4, 0));
  settle("to two");
  printf("freed %d\n", freed);
  enet_host_broadcast(server, 9, text(4, 0));
  printf("freed %d\n", freed);
  enet_peer_disconnect(&server->peers[0], 0);
  enet_host_broadcast(server, 0, text(4, ENET_PACKET_FLAG_RELIABLE));
  settle("not to the one who leaves");
  enet_peer_reset(narrow);
  enet_peer_reset(second);
  for (int i = 0; i < 3; i++) enet_peer_reset(&server->peers[i]);
  freed = 0;
  enet_host_broadcast(server, 0, text(4, ENET_PACKET_FLAG_RELIABLE));
  printf("to nobody: freed %d\n", freed);

  /* The longest packet, at either end. */
  peer = join(1, 0);
  client->maximumPacketSize = 5000;
  packet = text(5001, ENET_PACKET_FLAG_RELIABLE);
  printf("too long: %d\n", enet_peer_send(peer, 0, packet));
  enet_packet_destroy(packet);
  printf("not too long: %d\n", enet_peer_send(peer, 0, text(5000, ENET_PACKET_FLAG_RELIABLE)));
  settle("arrives");
  freed = 0;
  enet_peer_send(peer, 0, text(5000, ENET_PACKET_FLAG_RELIABLE));
  enet_host_destroy(client);
  printf("freed with the host: %d\n", freed);
  enet_host_destroy(server);
}

static ENetPeer *victim;

static void ENET_CALLBACK reset_victim(ENetPacket *packet) {
  (void)packet;
  freed++;
  if (victim != NULL) enet_peer_reset(victim);
  victim = NULL;
}

static void ENET_CALLBACK send_again(ENetPacket *packet) {
  if (++freed < 3) {
    ENetPacket *next = enet_packet_create("again", 6, ENET_PACKET_FLAG_RELIABLE);
    next->freeCallback = send_again;
    enet_peer_send(packet->userData, 0, next);
    next->userData = packet->userData;
    enet_host_flush(client);
  }
}

static int intercepted, verdict;

static int ENET_CALLBACK intercept(ENetHost *host, ENetEvent *event) {
  if (host->receivedDataLength < 4 || memcmp(host->receivedData, "mine", 4) != 0) return 0;
  intercepted++;
  if (verdict == 1 && event != NULL) {
    event->type = ENET_EVENT_TYPE_RECEIVE;
    event->peer = NULL;
    event->packet = enet_packet_create(host->receivedData, host->receivedDataLength, 0);
  }
  return verdict;
}

/* Datagrams of this program have four bytes in front, and every byte is changed. */
static int ENET_CALLBACK unwrap(ENetHost *host, ENetEvent *event) {
  (void)event;
  if (host->receivedDataLength < 4 || memcmp(host->receivedData, "wrap", 4) != 0) return 0;
  intercepted++;
  host->receivedData += 4;
  host->receivedDataLength -= 4;
  return 0;
}

static int ENET_CALLBACK reset_in_intercept(ENetHost *host, ENetEvent *event) {
  (void)event;
  if (victim != NULL) enet_peer_reset(victim);
  victim = NULL;
  return host->receivedDataLength == 0;
}

static void callbacks(void) {
  printf("== callbacks\n");
  start(4, 2);
  ENetPeer *peer = join(2, 0), *second = join(2, 0);
  freed = 0;
  victim = second;
  ENetPacket *packet = enet_packet_create("x", 1, ENET_PACKET_FLAG_RELIABLE);
  packet->freeCallback = reset_victim;
  enet_peer_send(peer, 0, packet);
  settle("another peer is reset when a packet is freed");
  printf("freed %d, state %d\n", freed, second->state);
  victim = NULL;
  enet_peer_reset(&server->peers[1]);
  freed = 0;
  packet = enet_packet_create("first", 6, ENET_PACKET_FLAG_RELIABLE);
  packet->freeCallback = send_again;
  packet->userData = peer;
  enet_peer_send(peer, 0, packet);
  settle("sent again when freed");
  spin(60);
  settle("and again");
  printf("freed %d\n", freed);

  /* Datagrams of other protocols. */
  ENetSocket other = enet_socket_create(ENET_SOCKET_TYPE_DATAGRAM);
  ENetBuffer mine = {"mine", 4};
  ENetEvent event;
  server->intercept = intercept;
  for (verdict = -1; verdict <= 1; verdict++) {
    intercepted = 0;
    enet_socket_send(other, &to, &mine, 1);
    int result = enet_host_service(server, &event, 30);
    printf("verdict %d: %d, %d, event %d\n", verdict, result, intercepted, event.type);
    if (result == 1) enet_packet_destroy(event.packet);
  }
  for (verdict = -1; verdict <= 1; verdict += 2) {
    intercepted = 0;
    for (int i = 0; i < 3; i++) enet_socket_send(other, &to, &mine, 1);
    for (int i = 0; i < 4; i++) {
      int result = enet_host_service(server, &event, 30);
      printf("verdict %d, one of three: %d, %d, event %d\n", verdict, result, intercepted, event.type);
      if (result == 1) enet_packet_destroy(event.packet);
    }
  }
  verdict = 1;
  intercepted = 0;
  enet_socket_send(other, &to, &mine, 1);
  printf("without an event: %d, %d\n", enet_host_service(server, NULL, 30), intercepted);
  server->intercept = reset_in_intercept;
  victim = &server->peers[0];
  enet_peer_send(peer, 0, text(3, ENET_PACKET_FLAG_RELIABLE));
  settle("reset while its datagram is at hand");
  enet_peer_reset(peer);

  /* An interceptor that unwraps datagrams: a whole handshake comes wrapped. */
  server->intercept = unwrap;
  intercepted = 0;
  ENetSocket relay = enet_socket_create(ENET_SOCKET_TYPE_DATAGRAM);
  ENetAddress at = {ENET_HOST_ANY, ENET_PORT_ANY};
  enet_socket_bind(relay, &at);
  enet_socket_get_address(relay, &at);
  enet_socket_set_option(relay, ENET_SOCKOPT_NONBLOCK, 1);
  enet_address_set_host_ip(&at, "127.0.0.1");
  ENetAddress from = {0, 0};
  peer = enet_host_connect(client, &at, 1, 3);
  for (int i = 0; i < 60; i++) {
    char bytes[4100] = "wrap";
    ENetAddress source;
    ENetBuffer in = {bytes + 4, 4096};
    enet_host_service(client, NULL, 1);
    for (int n; (n = enet_socket_receive(relay, &source, &in, 1)) > 0;) {
      if (source.port == to.port) {
        ENetBuffer out = {bytes + 4, n};
        enet_socket_send(relay, &from, &out, 1);
      } else {
        ENetBuffer out = {bytes, n + 4};
        from = source;
        enet_socket_send(relay, &to, &out, 1);
      }
    }
    enet_host_service(server, NULL, 1);
  }
  printf("wrapped: %d, state %d\n", intercepted > 1, peer->state);
  settle("there");
  enet_socket_destroy(relay);
  enet_socket_destroy(other);
  stop();
}

static int compressed, decompressed, destroyed, context_at;

/* Drops trailing zeros. */
static size_t ENET_CALLBACK squeeze(void *context, const ENetBuffer *in, size_t count, size_t size, enet_uint8 *out,
                                    size_t limit) {
  size_t length = 0;
  static enet_uint8 all[5000];
  for (size_t i = 0; i < count; i++) {
    memcpy(all + length, in[i].data, in[i].dataLength);
    length += in[i].dataLength;
  }
  context_at += context == &context_at;
  compressed += length == size;
  while (length > 0 && all[length - 1] == 0) length--;
  if (length + 2 > limit) return 0;
  out[0] = size >> 8;
  out[1] = size;
  memcpy(out + 2, all, length);
  return length + 2;
}

static size_t ENET_CALLBACK stretch(void *context, const enet_uint8 *in, size_t length, enet_uint8 *out,
                                    size_t limit) {
  size_t size = in[0] << 8 | in[1];
  context_at += context == &context_at;
  decompressed++;
  if (length < 2 || size > limit || length - 2 > size) return 0;
  memset(out, 0, size);
  memcpy(out, in + 2, length - 2);
  return size;
}

static void ENET_CALLBACK destroy(void *context) { destroyed += context == &context_at; }

static void compression(void) {
  printf("== compression\n");
  start(2, 2);
  ENetCompressor own = {&context_at, squeeze, stretch, destroy};
  enet_host_compress(server, &own);
  enet_host_compress(client, &own);
  ENetPeer *peer = join(2, 0);
  compressed = decompressed = 0;
  enet_peer_send(peer, 0, text(1000, ENET_PACKET_FLAG_RELIABLE));
  settle("zeros");
  printf("used: %d %d, context %d\n", compressed > 0, decompressed > 0, context_at > 0);
  enet_host_compress(client, &own);
  printf("destroyed when replaced: %d\n", destroyed);
  enet_host_compress(client, NULL);
  printf("destroyed when removed: %d, context %d\n", destroyed, client->compressor.context != NULL);
  compressed = 0;
  enet_peer_send(peer, 0, text(1000, ENET_PACKET_FLAG_RELIABLE));
  enet_host_flush(client);
  printf("without: %d\n", compressed);
  settle("arrives");
  /* Without a context nothing is compressed. */
  ENetCompressor none = {NULL, squeeze, stretch, destroy};
  enet_host_compress(client, &none);
  enet_peer_send(peer, 0, text(1000, ENET_PACKET_FLAG_RELIABLE));
  enet_host_flush(client);
  printf("without a context: %d\n", compressed);
  settle("arrives");
  printf("range coder: %d, context %d\n", enet_host_compress_with_range_coder(client),
         client->compressor.context != NULL);
  enet_host_compress_with_range_coder(server);
  printf("destroyed: %d\n", destroyed);
  enet_peer_send(peer, 0, text(3000, ENET_PACKET_FLAG_RELIABLE));
  settle("arrives");
  enet_host_compress(server, &own);
  stop();
  printf("destroyed with the host: %d\n", destroyed);

  void *coder = enet_range_coder_create();
  char words[200], packed[300], again[300];
  for (int i = 0; i < 200; i++) words[i] = "range coder "[i % 12];
  ENetBuffer parts[2] = {{words, 50}, {words + 50, 150}};
  size_t length = enet_range_coder_compress(coder, parts, 2, 200, (enet_uint8 *)packed, 300);
  size_t size = enet_range_coder_decompress(coder, (enet_uint8 *)packed, length, (enet_uint8 *)again, 300);
  printf("range coder: %zu, %zu, %d\n", length, size, memcmp(words, again, 200));
  printf("no room: %zu %zu\n", enet_range_coder_compress(coder, parts, 2, 200, (enet_uint8 *)packed, 10),
         enet_range_coder_decompress(coder, (enet_uint8 *)packed, length, (enet_uint8 *)again, 10));
  enet_range_coder_destroy(coder);
  printf("crc: %08x\n", enet_crc32(parts, 2));
}

static void limits(void) {
  printf("== limits\n");
  ENetAddress any = {ENET_HOST_ANY, ENET_PORT_ANY};
  server = enet_host_create(&any, 2, 2, 50000, 60000);
  client = enet_host_create(NULL, 2, 2, 7000, 8000);
  to = server->address;
  enet_address_set_host_ip(&to, "127.0.0.1");
  ENetPeer *peer = join(2, 0);
  show("client's", peer);
  show("server's", &server->peers[0]);
  printf("limited: %zu %zu\n", server->bandwidthLimitedPeers, client->bandwidthLimitedPeers);
  enet_host_bandwidth_limit(server, 90000, 0);
  printf("host: %u %u\n", server->incomingBandwidth, server->outgoingBandwidth);
  spin(1200);
  printf("told: %u %u\n", peer->incomingBandwidth, peer->outgoingBandwidth);
  enet_uint32 now = enet_time_get();
  printf("heard within a second: %d\n", now - peer->lastReceiveTime < 1000);
  enet_peer_ping_interval(peer, 60000);
  enet_peer_ping_interval(&server->peers[0], 60000);
  settle("quiet");
  now = enet_time_get();
  spin(200);
  printf("nothing heard since: %d %d\n", ENET_TIME_LESS_EQUAL(peer->lastReceiveTime, now),
         ENET_TIME_LESS_EQUAL(server->peers[0].lastReceiveTime, now));

  /* No answer. */
  enet_peer_reset(&server->peers[0]);
  enet_peer_timeout(peer, 1, 50, 100);
  enet_peer_send(peer, 0, text(3, ENET_PACKET_FLAG_RELIABLE));
  spin(600);
  brief("silence", peer);
  settle("over");
  show("after the event", peer);
  ENetAddress nowhere = {to.host, 1};
  peer = enet_host_connect(client, &nowhere, 1, 0);
  enet_peer_timeout(peer, 1, 50, 100);
  spin(800);
  brief("nobody there", peer);
  settle("over");
  stop();

  ENetHost *host = enet_host_create(NULL, 1, 1000, 1, 2);
  printf("no address: %u %u, channels %zu, bandwidth %u %u, peers %zu\n", host->address.host, host->address.port,
         host->channelLimit, host->incomingBandwidth, host->outgoingBandwidth, host->peerCount);
  ENetAddress taken;
  enet_socket_get_address(host->socket, &taken);
  enet_host_destroy(host);
  host = enet_host_create(&any, 1, 0, 0, 0);
  taken = host->address;
  printf("taken: %d\n", enet_host_create(&taken, 1, 0, 0, 0) == NULL);
  ENetEvent event;
  printf("idle: %d\n", enet_host_service(host, &event, 2));
  enet_host_flush(host);
  enet_socket_destroy(host->socket);
  printf("a socket that is closed: %d\n", enet_host_service(host, &event, 2));
  host->socket = ENET_SOCKET_NULL;
  enet_host_destroy(host);
  enet_host_destroy(NULL);
}

static void sockets(void) {
  printf("== sockets\n");
  ENetSocket listener = enet_socket_create(ENET_SOCKET_TYPE_STREAM);
  ENetAddress at = {0, 0}, peer_at = {1, 1};
  enet_address_set_host_ip(&at, "127.0.0.1");
  printf("bind %d", enet_socket_bind(listener, &at));
  printf(", address %d %d", enet_socket_get_address(listener, &at), at.port != 0);
  printf(", listen %d\n", enet_socket_listen(listener, -1));
  enet_socket_set_option(listener, ENET_SOCKOPT_NONBLOCK, 1);
  printf("nobody: %d\n", enet_socket_accept(listener, NULL));
  ENetSocket one = enet_socket_create(ENET_SOCKET_TYPE_STREAM);
  enet_socket_set_option(one, ENET_SOCKOPT_NONBLOCK, 1);
  printf("connect %d\n", enet_socket_connect(one, &at));
  enet_uint32 condition = ENET_SOCKET_WAIT_RECEIVE;
  printf("wait %d, %u\n", enet_socket_wait(listener, &condition, 1000), condition);
  ENetSocket two = enet_socket_accept(listener, &peer_at);
  printf("accepted %d, %08x\n", two >= 0, peer_at.host);
  for (int option = 0; option <= 10; option++) {
    int value = -7;
    printf("option %d:", option);
    printf(" %d %d", enet_socket_set_option(two, option, 1), enet_socket_get_option(two, option, &value));
    printf(" %d\n", value);
  }
  enet_socket_set_option(two, ENET_SOCKOPT_NONBLOCK, 1);
  char bytes[10];
  ENetBuffer in = {bytes, 10}, out[2] = {{"abc", 3}, {"defg", 4}};
  printf("nothing: %d\n", enet_socket_receive(two, NULL, &in, 1));
  printf("send: %d\n", enet_socket_send(one, NULL, out, 2));
  condition = ENET_SOCKET_WAIT_RECEIVE | ENET_SOCKET_WAIT_SEND | ENET_SOCKET_WAIT_INTERRUPT;
  printf("wait %d, %u\n", enet_socket_wait(two, &condition, 1000), condition);
  int count = enet_socket_receive(two, &peer_at, &in, 1);
  printf("receive: %d %.7s\n", count, bytes);
  condition = ENET_SOCKET_WAIT_RECEIVE;
  printf("wait %d, %u\n", enet_socket_wait(two, &condition, 1), condition);
  condition = ENET_SOCKET_WAIT_NONE;
  printf("wait %d, %u\n", enet_socket_wait(two, &condition, 1), condition);
  ENetSocketSet reads, writes;
  ENET_SOCKETSET_EMPTY(reads);
  ENET_SOCKETSET_EMPTY(writes);
  ENET_SOCKETSET_ADD(reads, two);
  ENET_SOCKETSET_ADD(writes, two);
  printf("select %d\n", enet_socketset_select(two, &reads, &writes, 10));
  printf("  %d %d\n", ENET_SOCKETSET_CHECK(reads, two) != 0, ENET_SOCKETSET_CHECK(writes, two) != 0);
  printf("select %d\n", enet_socketset_select(two, &reads, NULL, 1));
  printf("shutdown %d\n", enet_socket_shutdown(one, ENET_SOCKET_SHUTDOWN_WRITE));
  condition = ENET_SOCKET_WAIT_RECEIVE;
  enet_socket_wait(two, &condition, 1000);
  printf("end: %u, %d\n", condition, enet_socket_receive(two, NULL, &in, 1));
  enet_socket_destroy(one);
  enet_socket_destroy(two);
  enet_socket_destroy(listener);
  printf("closed: %d %d %d %d\n", enet_socket_send(one, NULL, out, 1), enet_socket_receive(one, NULL, &in, 1),
         enet_socket_shutdown(one, ENET_SOCKET_SHUTDOWN_READ), enet_socket_get_address(one, &at));
  enet_socket_destroy(ENET_SOCKET_NULL);

  one = enet_socket_create(ENET_SOCKET_TYPE_DATAGRAM);
  two = enet_socket_create(ENET_SOCKET_TYPE_DATAGRAM);
  printf("bind %d %d\n", enet_socket_bind(one, NULL), enet_socket_bind(two, NULL));
  enet_socket_get_address(two, &at);
  printf("any: %08x\n", at.host);
  enet_address_set_host_ip(&at, "127.0.0.1");
  ENetBuffer longer = {"more than ten bytes", 19};
  printf("send: %d\n", enet_socket_send(one, &at, &longer, 1));
  printf("too long: %d\n", enet_socket_receive(two, &peer_at, &in, 1));
  printf("empty: %d\n", enet_socket_send(one, &at, NULL, 0));
  printf("empty: %d\n", enet_socket_receive(two, &peer_at, &in, 1));
  enet_socket_set_option(two, ENET_SOCKOPT_RCVTIMEO, 5);
  printf("timeout: %d\n", enet_socket_receive(two, &peer_at, &in, 1));
  enet_socket_destroy(one);
  enet_socket_destroy(two);
}

static void addresses(void) {
  printf("== addresses\n");
  const char *names[] = {"127.0.0.1", "0.0.0.0",  "255.255.255.255", "192.168.1.255", "localhost", "1.2.3",
                         "1",         "01.2.3.4", "1.2.3.4 ",        " 1.2.3.4",      "",          "256.1.1.1",
                         "::1",       "0x7f.1",   "1.2.3.4.5",       "-1.0.0.0",      "no.such.name.invalid"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    ENetAddress ip = {42, 7}, host = {42, 7};
    printf("\"%s\": ", names[i]);
    printf("%d", enet_address_set_host_ip(&ip, names[i]));
    printf(" %08x %d,", ip.host, ip.port);
    printf(" %d", enet_address_set_host(&host, names[i]));
    printf(" %08x %d\n", host.host, host.port);
  }
  const enet_uint32 hosts[] = {0, ENET_HOST_BROADCAST, 0x0100007f, 0x04030201};
  for (int i = 0; i < 4; i++)
    for (size_t length = 0; length <= 40; length += i == 2 ? 1 : 20) {
      char name[64];
      memset(name, '#', sizeof name);
      ENetAddress address = {hosts[i], 0};
      int result = enet_address_get_host_ip(&address, name, length);
      printf("%08x in %zu: %d", hosts[i], length, result);
      if (result == 0) printf(" %s", name);
      printf(", end %c", name[length]);
      memset(name, '#', sizeof name);
      result = enet_address_get_host(&address, name, length);
      printf(", %d", result);
      if (result == 0 && length > 0) printf(" %s", name);
      printf("\n");
    }
  printf("orders: %x %x\n", ENET_HOST_TO_NET_16(0x1234), ENET_NET_TO_HOST_32(0x12345678));

  /* A name server for a whole network: the first that answers is the peer. */
  start(2, 2);
  ENetAddress everybody = {ENET_HOST_BROADCAST, to.port};
  ENetPeer *peer = enet_host_connect(client, &everybody, 1, 0);
  printf("broadcast: %d, %08x\n", peer != NULL, peer->address.host);
  enet_peer_reset(peer);
  stop();

  enet_time_set(5000);
  enet_uint32 time = enet_time_get();
  printf("time: %d\n", time >= 5000 && time < 5100);

  ENetList list;
  ENetListNode nodes[4];
  enet_list_clear(&list);
  for (int i = 0; i < 4; i++) enet_list_insert(enet_list_end(&list), &nodes[i]);
  printf("list: %zu", enet_list_size(&list));
  enet_list_move(enet_list_begin(&list), &nodes[2], &nodes[3]);
  for (ENetListIterator at = enet_list_begin(&list); at != enet_list_end(&list); at = enet_list_next(at))
    printf(" %td", (ENetListNode *)at - nodes);
  enet_list_remove(&nodes[0]);
  printf(", %zu\n", enet_list_size(&list));
}

static int allocated;

static void *ENET_CALLBACK own_malloc(size_t size) {
  allocated++;
  return malloc(size);
}

static void ENET_CALLBACK own_free(void *memory) { free(memory); }

int main(void) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  ENetCallbacks half = {own_malloc, NULL, NULL}, whole = {own_malloc, own_free, NULL};
  printf("too old: %d\n", enet_initialize_with_callbacks(ENET_VERSION_CREATE(1, 2, 9), &whole));
  printf("half: %d\n", enet_initialize_with_callbacks(ENET_VERSION, &half));
  printf("whole: %d\n", enet_initialize_with_callbacks(ENET_VERSION, &whole));
  enet_packet_destroy(enet_packet_create("x", 1, 0));
  printf("allocations: %d\n", allocated);
  states();
  places();
  channels();
  packets();
  callbacks();
  compression();
  limits();
  sockets();
  addresses();
  enet_deinitialize();
  return 0;
}
