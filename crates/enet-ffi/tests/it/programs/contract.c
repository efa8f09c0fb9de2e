/* What programs of the C library rely on beyond the prototypes. Prints one line for each; the same with both libraries. */
#include <enet/enet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ENetHost *server, *client;
static int freed;

static void ENET_CALLBACK count_free(ENetPacket *packet) { freed += 1 + (packet->referenceCount != 0) * 1000; }

/* Services both hosts for a moment; the first event of `wanted` at `host`. */
static ENetEvent until(ENetHost *host, ENetEventType wanted) {
  ENetEvent event, other;
  for (int i = 0; i < 3000; i++) {
    if (enet_host_service(host == server ? client : server, &other, 0) > 0 && other.type == ENET_EVENT_TYPE_RECEIVE)
      enet_packet_destroy(other.packet);
    while (enet_host_service(host, &event, 1) > 0) {
      if (event.type == wanted) return event;
      if (event.type == ENET_EVENT_TYPE_RECEIVE) enet_packet_destroy(event.packet);
    }
  }
  printf("no event of type %d\n", wanted);
  fflush(stdout);
  exit(1);
}

static ENetPeer *connect_client(ENetPeer **ours) {
  ENetAddress address = server->address;
  enet_address_set_host_ip(&address, "127.0.0.1");
  ENetPeer *peer = enet_host_connect(client, &address, 3, 77);
  printf("connecting: state %d, channels %zu\n", peer->state, peer->channelCount);
  ENetEvent event = until(server, ENET_EVENT_TYPE_CONNECT);
  *ours = event.peer;
  printf("server: data %u, index %td is incomingPeerID %d, state %d, channels %zu, connected %zu\n", event.data,
         event.peer - server->peers, event.peer->incomingPeerID, event.peer->state, event.peer->channelCount,
         server->connectedPeers);
  if (peer->state != ENET_PEER_STATE_CONNECTED) until(client, ENET_EVENT_TYPE_CONNECT);
  printf("client: state %d\n", peer->state);
  return peer;
}

static int ENET_CALLBACK intercept(ENetHost *host, ENetEvent *event) {
  (void)event;
  return host->receivedDataLength == 5 && memcmp(host->receivedData, "hello", 5) == 0;
}

int main(void) {
  if (enet_initialize() != 0) return 1;
  printf("version %u\n", enet_linked_version() >> 16);
  ENetAddress any = {ENET_HOST_ANY, ENET_PORT_ANY};
  server = enet_host_create(&any, 4, 8, 0, 0);
  client = enet_host_create(NULL, 4, 0, 0, 0);
  printf("peers %zu, channels %zu %zu, mtu %u, port %d\n", server->peerCount, server->channelLimit,
         client->channelLimit, server->mtu, server->address.port != 0);
  printf("limits %zu %zu %zu\n", server->duplicatePeers, server->maximumPacketSize, server->maximumWaitingData);
  ENetPeer *at_server, *peer = connect_client(&at_server);
  at_server->data = &server;

  /* A packet's reference, and a callback that is set after sending. */
  static char content[] = "kept by the program";
  ENetPacket *packet =
      enet_packet_create(content, sizeof content, ENET_PACKET_FLAG_RELIABLE | ENET_PACKET_FLAG_NO_ALLOCATE);
  int sent = enet_peer_send(peer, 1, packet);
  printf("sent: %d, references %zu\n", sent, packet->referenceCount);
  packet->freeCallback = count_free;
  ENetEvent event = until(server, ENET_EVENT_TYPE_RECEIVE);
  printf("received: channel %d, length %zu, flags %u, references %zu, %s\n", event.channelID,
         event.packet->dataLength, event.packet->flags, event.packet->referenceCount, event.packet->data);
  event.packet->data[0] = 'K';
  enet_packet_destroy(event.packet);
  for (int i = 0; i < 100 && !freed; i++) {
    enet_host_service(server, NULL, 1);
    enet_host_service(client, NULL, 1);
  }
  printf("freed: %d\n", freed);

  /* A limit on what waits for the program, and what waits. */
  size_t limit = server->maximumWaitingData, waiting = 0;
  server->maximumWaitingData = 20000;
  static char kilobyte[1000];
  for (int i = 0; i < 100; i++)
    enet_peer_send(peer, 0, enet_packet_create(kilobyte, sizeof kilobyte, ENET_PACKET_FLAG_RELIABLE));
  for (int i = 0; i < 200; i++) {
    enet_host_service(client, NULL, 1);
    enet_host_service(server, NULL, 1);
    if (at_server->totalWaitingData > waiting) waiting = at_server->totalWaitingData;
  }
  server->maximumWaitingData = limit;
  for (int i = 0; i < 100; i++) enet_packet_destroy(until(server, ENET_EVENT_TYPE_RECEIVE).packet);
  printf("waiting: at most %zu, then %zu\n", waiting, at_server->totalWaitingData);

  /* Refusals leave the packet with the program. */
  packet = enet_packet_create("x", 1, 0);
  printf("no such channel: %d, references %zu\n", enet_peer_send(peer, 3, packet), packet->referenceCount);
  client->maximumPacketSize = 10;
  enet_packet_resize(packet, 11);
  printf("too long: %d, length %zu\n", enet_peer_send(peer, 0, packet), packet->dataLength);
  client->maximumPacketSize = 1 << 20;
  enet_packet_destroy(packet);

  /* A queue of its own for each peer. */
  for (int i = 0; i < 3; i++) enet_peer_send(peer, i, enet_packet_create("abc", 1 + i, ENET_PACKET_FLAG_RELIABLE));
  int got = 0;
  for (int i = 0; i < 1000 && got < 3; i++) {
    enet_host_service(client, NULL, 1);
    enet_host_service(server, NULL, 1);
    enet_uint8 channel;
    while ((packet = enet_peer_receive(at_server, &channel)) != NULL) {
      printf("of the peer: channel %d, length %zu\n", channel, packet->dataLength);
      enet_packet_destroy(packet);
      got++;
    }
  }

  /* Counters that the program sets to zero, and figures of a peer. */
  printf("counters: %d %d\n", server->totalReceivedData > 0, client->totalSentData > 0);
  server->totalReceivedData = server->totalSentData = 0;
  enet_peer_ping(peer);
  for (int i = 0; i < 50; i++) {
    enet_host_service(client, NULL, 1);
    enet_host_service(server, NULL, 1);
  }
  printf("after zero: %d\n", server->totalReceivedData > 0 && server->totalReceivedData < 200);
  printf("figures: %d %d %d\n", peer->roundTripTime < 500, peer->packetThrottle == 32, peer->mtu > 576);

  /* Broadcast, one packet for all. */
  freed = 0;
  packet = enet_packet_create("to all", 7, ENET_PACKET_FLAG_RELIABLE);
  packet->freeCallback = count_free;
  enet_host_broadcast(server, 0, packet);
  event = until(client, ENET_EVENT_TYPE_RECEIVE);
  printf("broadcast: %s\n", event.packet->data);
  enet_packet_destroy(event.packet);
  for (int i = 0; i < 100 && !freed; i++) {
    enet_host_service(client, NULL, 1);
    enet_host_service(server, NULL, 1);
  }
  printf("freed: %d\n", freed);

  /* A datagram that is not ENet's. */
  server->intercept = intercept;
  ENetSocket other = enet_socket_create(ENET_SOCKET_TYPE_DATAGRAM);
  ENetAddress to = server->address;
  enet_address_set_host_ip(&to, "127.0.0.1");
  ENetBuffer buffer = {"hello", 5};
  printf("raw: %d\n", enet_socket_send(other, &to, &buffer, 1));
  printf("intercepted: %d\n", enet_host_service(server, &event, 20) == 0);
  server->intercept = NULL;
  enet_socket_destroy(other);

  /* A limit written after create; the peer's place in the array afterwards. */
  server->duplicatePeers = 1;
  ENetPeer *second = enet_host_connect(client, &to, 1, 0);
  for (int i = 0; i < 200; i++) {
    enet_host_service(client, NULL, 1);
    enet_host_service(server, NULL, 0);
  }
  printf("second from one address: connected %zu\n", server->connectedPeers);
  enet_peer_reset(second);
  printf("reset: state %d\n", second->state);
  server->duplicatePeers = 100;

  /* The pointer of the program survives the end. */
  enet_peer_disconnect(peer, 5);
  printf("leaving: state %d\n", peer->state);
  event = until(server, ENET_EVENT_TYPE_DISCONNECT);
  printf("left: data %u, pointer kept %d, state %d, connected %zu\n", event.data, event.peer->data == &server,
         event.peer->state, server->connectedPeers);
  event = until(client, ENET_EVENT_TYPE_DISCONNECT);
  printf("confirmed: data %u\n", event.data);

  /* Without a call after it. */
  peer = connect_client(&at_server);
  enet_peer_disconnect_now(peer, 9);
  printf("gone: state %d\n", peer->state);
  for (int i = 0; i < 1000 && enet_host_service(server, &event, 1) <= 0; i++) {
  }
  printf("told: type %d, data %u\n", event.type, event.data);

  /* With a checksum, and with the range coder. */
  server->checksum = client->checksum = enet_crc32;
  enet_host_compress_with_range_coder(server);
  enet_host_compress_with_range_coder(client);
  peer = connect_client(&at_server);
  static char text[3000];
  memset(text, 'a', sizeof text);
  enet_peer_send(peer, 0, enet_packet_create(text, sizeof text, ENET_PACKET_FLAG_UNRELIABLE_FRAGMENT));
  event = until(server, ENET_EVENT_TYPE_RECEIVE);
  printf("packed: length %zu, flags %u\n", event.packet->dataLength, event.packet->flags);
  enet_packet_destroy(event.packet);
  enet_peer_disconnect_later(peer, 3);
  event = until(server, ENET_EVENT_TYPE_DISCONNECT);
  printf("later: data %u\n", event.data);

  char name[64];
  ENetAddress address = {0, 7};
  printf("names: %d", enet_address_set_host(&address, "127.0.0.1"));
  printf(" %d %s", enet_address_get_host_ip(&address, name, sizeof name), name);
  printf(" %d %d\n", enet_address_get_host_ip(&address, name, 3) < 0, enet_address_set_host_ip(&address, "x") < 0);
  ENetBuffer digits = {"123456789", 9};
  printf("crc %08x\n", enet_crc32(&digits, 1));
  enet_host_destroy(client);
  enet_host_destroy(server);
  enet_deinitialize();
  return 0;
}
