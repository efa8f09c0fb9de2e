/* A game's client on the C library ENet, as far as the gateway can tell: takes one TCP connection and passes its bytes on
 * as reliable packets, and what comes back the other way.
 *
 *   bridge PORT       of the gateway on loopback; writes the port for the TCP connection
 */
#include <arpa/inet.h>
#include <enet/enet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int count, char **words) {
    struct sockaddr_in local = {0};
    socklen_t len = sizeof local;
    int listener = socket(AF_INET, SOCK_STREAM, 0), stream;
    ENetAddress gateway = {0, 0};
    ENetHost *host;
    ENetPeer *peer;
    int connected = 0, ended = 0;
    if (count != 2 || enet_initialize() != 0)
        return 2;
    local.sin_family = AF_INET;
    local.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (struct sockaddr *) &local, sizeof local) != 0 || listen(listener, 1) != 0)
        return 1;
    getsockname(listener, (struct sockaddr *) &local, &len);
    printf("%d\n", ntohs(local.sin_port));
    fflush(stdout);
    stream = accept(listener, NULL, NULL);
    fcntl(stream, F_SETFL, fcntl(stream, F_GETFL) | O_NONBLOCK);

    enet_address_set_host(&gateway, "127.0.0.1");
    gateway.port = (enet_uint16) atoi(words[1]);
    host = enet_host_create(NULL, 1, 2, 0, 0);
    peer = enet_host_connect(host, &gateway, 2, 0);
    for (;;) {
        ENetEvent event;
        char bytes[4096];
        ssize_t got;
        while (enet_host_service(host, &event, 1) > 0) {
            if (event.type == ENET_EVENT_TYPE_CONNECT) {
                connected = 1;
            } else if (event.type == ENET_EVENT_TYPE_DISCONNECT) {
                enet_host_destroy(host);
                return 0;
            } else if (event.type == ENET_EVENT_TYPE_RECEIVE) {
                size_t done = 0;
                while (done < event.packet->dataLength) {
                    got = write(stream, event.packet->data + done, event.packet->dataLength - done);
                    if (got < 0 && errno != EAGAIN)
                        break;
                    if (got > 0)
                        done += (size_t) got;
                }
                enet_packet_destroy(event.packet);
            }
        }
        while (connected && !ended && (got = read(stream, bytes, sizeof bytes)) >= 0) {
            if (got > 0) {
                enet_peer_send(peer, 0, enet_packet_create(bytes, (size_t) got, ENET_PACKET_FLAG_RELIABLE));
            } else {
                ended = 1;
                enet_peer_disconnect_later(peer, 0);
            }
        }
    }
}
