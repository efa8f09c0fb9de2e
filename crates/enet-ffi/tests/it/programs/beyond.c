/* Where this library goes beyond the C library, or says that it cannot. */
#include <enet/enet.h>
#include <stdio.h>

static enet_uint32 ENET_CALLBACK own_sum(const ENetBuffer *buffers, size_t count) {
  (void)buffers;
  return (enet_uint32)count;
}

int main(void) {
  if (enet_initialize() != 0) return 1;
  ENetAddress any = {ENET_HOST_ANY, ENET_PORT_ANY};
  ENetHost *server = enet_host_create(&any, 65535, 1, 0, 0);
  printf("65535 peers: %d\n", server != NULL);
  printf("65536 peers: %d\n", enet_host_create(&any, 65536, 1, 0, 0) != NULL);

  /* Clients on 42 sockets, none with more peers than the C library gives one; a hundred connect at a time. */
  ENetAddress to = server->address;
  enet_address_set_host_ip(&to, "127.0.0.1");
  enum { HOSTS = 42, EACH = 100 };
  static ENetHost *clients[HOSTS];
  ENetEvent event;
  for (int count = 1; count <= HOSTS; count++) {
    ENetHost *fresh = clients[count - 1] = enet_host_create(NULL, EACH, 1, 0, 0);
    for (int j = 0; j < EACH; j++) enet_host_connect(fresh, &to, 1, 0);
    for (int round = 0; server->connectedPeers < (size_t)count * EACH; round++) {
      /* The others only keep their connections. */
      for (int i = round % 64 == 0 ? 0 : count - 1; i < count; i++)
        while (enet_host_service(clients[i], &event, 0) > 0) {
        }
      while (enet_host_service(server, &event, 1) > 0) {
      }
    }
  }
  printf("connected: %zu\n", server->connectedPeers);
  int last = 0;
  for (int i = 0; i < 65535; i++)
    if (server->peers[i].state == ENET_PEER_STATE_CONNECTED) last = i;
  printf("highest index: %d\n", last);
  server->checksum = own_sum;
  printf("own checksum: %d %d\n", enet_host_service(server, &event, 0), enet_host_service(server, &event, 0));
  server->checksum = NULL;
  printf("without: %d\n", enet_host_service(server, &event, 0) >= 0);
  enet_host_destroy(server);
  return 0;
}
