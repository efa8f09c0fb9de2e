"""A client on python3-enet: sends packets of every kind and leaves when all have come back. client.py <port>"""

import sys
import time

import enet

host = enet.Host(None, 1, 0, 0, 0)
peer = host.connect(enet.Address(b"127.0.0.1", int(sys.argv[1])), 4, 99)
back = []
give_up = time.monotonic() + 60
while time.monotonic() < give_up:
    event = host.service(1000)
    if event.type == enet.EVENT_TYPE_CONNECT:
        print("connect", event.data, peer.state)
        peer.send(0, enet.Packet(b"reliable", enet.PACKET_FLAG_RELIABLE))
        peer.send(1, enet.Packet(b"unreliable", 0))
        peer.send(2, enet.Packet(b"unsequenced", enet.PACKET_FLAG_UNSEQUENCED))
        peer.send(3, enet.Packet(b"x" * 50000, enet.PACKET_FLAG_RELIABLE))
        peer.send(3, enet.Packet(b"y" * 5000, enet.PACKET_FLAG_UNRELIABLE_FRAGMENT))
    elif event.type == enet.EVENT_TYPE_RECEIVE:
        back.append((event.channelID, len(event.packet.data), event.packet.flags))
        if len(back) == 5:
            peer.disconnect(7)
    elif event.type == enet.EVENT_TYPE_DISCONNECT:
        print("disconnect", event.data)
        break
for line in sorted(back):
    print("back", *line)
