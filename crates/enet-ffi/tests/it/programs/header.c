/* Sizes and offsets as the compiler of C has them; src/abi.rs asserts the same. */
#include <enet/enet.h>
#include <stddef.h>

_Static_assert(sizeof(ENetHost) == 11024 && sizeof(ENetPeer) == 456, "host, peer");
_Static_assert(sizeof(ENetPacket) == 48 && sizeof(ENetEvent) == 32, "packet, event");
_Static_assert(sizeof(ENetAddress) == 8 && sizeof(ENetProtocol) == 48, "address, command");
_Static_assert(offsetof(ENetPeer, connectID) == 28 && offsetof(ENetPeer, data) == 48, "peer");
_Static_assert(offsetof(ENetPeer, state) == 56 && offsetof(ENetPeer, acknowledgements) == 224, "peer");
_Static_assert(offsetof(ENetPeer, unsequencedWindow) == 312 && offsetof(ENetPeer, totalWaitingData) == 448, "peer");
_Static_assert(offsetof(ENetHost, peers) == 40 && offsetof(ENetHost, checksum) == 2704, "host");
_Static_assert(offsetof(ENetHost, packetData) == 2744 && offsetof(ENetHost, receivedAddress) == 10936, "host");
_Static_assert(offsetof(ENetHost, totalSentData) == 10960 && offsetof(ENetHost, intercept) == 10976, "host");
_Static_assert(offsetof(ENetHost, duplicatePeers) == 11000, "host");

int main(void) { return 0; }
