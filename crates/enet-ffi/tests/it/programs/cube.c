/* Clients of Sauerbraten as far as a server sees them: they answer N_SERVINFO with N_CONNECT, talk and leave. Prints each
   packet's channel, flags and first message, without what is drawn at random or depends on the time. */
#include <enet/enet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_CONNECT = 0, N_SERVINFO = 1, N_TEXT = 5, N_PING = 30, N_PONG = 31 };

static void put(unsigned char **at, int n) {
  if (n < 128 && n > -127) {
    *(*at)++ = (unsigned char)n;
  } else if (n < 0x8000 && n >= -0x8000) {
    *(*at)++ = 0x80, *(*at)++ = n & 255, *(*at)++ = (n >> 8) & 255;
  } else {
    *(*at)++ = 0x81;
    for (int i = 0; i < 4; i++) *(*at)++ = (n >> (8 * i)) & 255;
  }
}

static void put_text(unsigned char **at, const char *text) {
  while (*text) put(at, *text++);
  put(at, 0);
}

static int get(const unsigned char **at) {
  int c = (signed char)*(*at)++;
  if (c == -128) {
    int n = (*at)[0] | (signed char)(*at)[1] << 8;
    *at += 2;
    return n;
  }
  if (c == -127) {
    int n = (*at)[0] | (*at)[1] << 8 | (*at)[2] << 16 | (int)((unsigned)(*at)[3] << 24);
    *at += 4;
    return n;
  }
  return c;
}

static void say(ENetPeer *peer, const unsigned char *bytes, const unsigned char *end) {
  enet_peer_send(peer, 1, enet_packet_create(bytes, end - bytes, ENET_PACKET_FLAG_RELIABLE));
}

/* One client from its connection to its end. */
static void play(const ENetAddress *address, int number) {
  ENetHost *host = enet_host_create(NULL, 2, 3, 0, 0);
  ENetPeer *peer = enet_host_connect(host, address, 3, 0);
  int step = 0;
  unsigned char bytes[512], *end;
  enet_uint32 until = enet_time_get() + 15000;
  while ((int)(until - enet_time_get()) > 0) {
    ENetEvent event;
    if (enet_host_service(host, &event, 10) <= 0) continue;
    if (event.type == ENET_EVENT_TYPE_CONNECT) {
      printf("%d connected\n", number);
    } else if (event.type == ENET_EVENT_TYPE_DISCONNECT) {
      printf("%d disconnected, reason %u\n", number, event.data);
      break;
    } else if (event.type == ENET_EVENT_TYPE_RECEIVE) {
      const unsigned char *at = event.packet->data;
      int kind = get(&at);
      if (kind == N_SERVINFO) {
        int id = get(&at), protocol = get(&at);
        get(&at);
        printf("%d channel %d, flags %u, server info: client %d, protocol %d, password %d\n", number,
               event.channelID, event.packet->flags, id, protocol, get(&at));
        end = bytes;
        put(&end, N_CONNECT);
        put_text(&end, "player");
        put(&end, 0);
        put_text(&end, number == 2 ? "a wrong password" : "");
        put_text(&end, "");
        put_text(&end, "");
        say(peer, bytes, end);
        step = 1;
      } else if (step == 1 && event.channelID == 1) {
        printf("%d channel %d, flags %u, welcome: message %d, length over 20: %d\n", number, event.channelID,
               event.packet->flags, kind, event.packet->dataLength > 20);
        step = 2;
        end = bytes;
        put(&end, N_TEXT);
        put_text(&end, "hello");
        say(peer, bytes, end);
        /* A ping of the game, answered on its channel. */
        end = bytes;
        put(&end, N_PING);
        put(&end, 1234);
        enet_peer_send(peer, 0, enet_packet_create(bytes, end - bytes, 0));
      } else if (kind == N_PONG) {
        printf("%d pong: channel %d, flags %u, %d\n", number, event.channelID, event.packet->flags, get(&at));
        enet_peer_disconnect(peer, 0);
      }
      enet_packet_destroy(event.packet);
    }
  }
  enet_host_destroy(host);
}

int main(int count, char **words) {
  if (count != 2 || enet_initialize() != 0) return 2;
  ENetAddress address;
  enet_address_set_host_ip(&address, "127.0.0.1");
  address.port = (enet_uint16)atoi(words[1]);
  for (int number = 0; number < 4; number++) play(&address, number);

  /* Answers to strangers come from a socket of the program's own, beside the host's. */
  ENetSocket socket = enet_socket_create(ENET_SOCKET_TYPE_DATAGRAM);
  unsigned char question[] = {1, 2, 3}, answer[1024];
  address.port++;
  ENetBuffer buffer = {question, sizeof question};
  enet_socket_set_option(socket, ENET_SOCKOPT_NONBLOCK, 1);
  enet_socket_send(socket, &address, &buffer, 1);
  enet_uint32 wait = ENET_SOCKET_WAIT_RECEIVE;
  enet_socket_wait(socket, &wait, 5000);
  buffer.data = answer;
  buffer.dataLength = sizeof answer;
  int length = enet_socket_receive(socket, NULL, &buffer, 1);
  printf("info: answered %d, begins as the question %d\n", length > 10, memcmp(answer, question, 3) == 0);
  return 0;
}
