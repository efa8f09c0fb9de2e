"""A server on python3-enet: sends every packet back, and says what happened. server.py <port>"""

import sys

import enet

host = enet.Host(enet.Address(b"127.0.0.1", int(sys.argv[1])), 10, 0, 0, 0)
print("ready", flush=True)
while True:
    event = host.service(1000)
    if event.type == enet.EVENT_TYPE_CONNECT:
        print("connect", event.data, event.peer.incomingPeerID)
    elif event.type == enet.EVENT_TYPE_RECEIVE:
        packet = event.packet
        print("receive", event.channelID, len(packet.data), packet.flags, sum(packet.data) % 1000)
        event.peer.send(event.channelID, enet.Packet(packet.data, packet.flags))
    elif event.type == enet.EVENT_TYPE_DISCONNECT:
        print("disconnect", event.data, event.peer.incomingPeerID, host.totalSentData > 50000)
        break
