"""The other side of the interoperability tests on python3-enet, with the words and lines of peer.c."""

import sys
import time

import enet

# As in peer.c: name, lane, flags, length.
KINDS = [
    ("reliable", 0, enet.PACKET_FLAG_RELIABLE, 23),
    ("unreliable", 1, 0, 40),
    ("unsequenced", 2, enet.PACKET_FLAG_UNSEQUENCED, 41),
    ("fragmented", 3, enet.PACKET_FLAG_RELIABLE, 10000),
    ("unreliable-fragmented", 1, enet.PACKET_FLAG_UNRELIABLE_FRAGMENT, 10001),
    ("promoted", 2, 0, 10002),
    ("megabyte", 0, enet.PACKET_FLAG_RELIABLE, 1 << 20),
]
CONTENT = {length: bytes((i * 7 + (i >> 8) + length) & 255 for i in range(length)) for *_, length in KINDS}


def say(*words):
    print(*words, flush=True)


def make_host(address, peers, lanes, checksum, coder):
    host = enet.Host(address, peers, lanes, 0, 0)
    if checksum:
        host.checksum = enet.ENET_CRC32
    if coder:
        host.compress_with_range_coder()
    return host


def serve(lanes, checksum, coder):
    host = make_host(enet.Address(b"127.0.0.1", 0), 64, lanes, checksum, coder)
    say("port", host.address.port)
    give_up = time.monotonic() + 20
    while time.monotonic() < give_up:
        event = host.service(100)
        if event.type == enet.EVENT_TYPE_CONNECT:
            say("connected", event.data, "lanes", event.peer.channelCount)
        elif event.type == enet.EVENT_TYPE_RECEIVE:
            data = event.packet.data
            if data == b"bye":
                event.peer.disconnect(4321)
            else:
                event.peer.send(event.channelID, enet.Packet(data, event.packet.flags))
        elif event.type == enet.EVENT_TYPE_DISCONNECT:
            say("disconnected", event.data)
            return 0
    return 1


def connect(port, lanes, checksum, coder):
    host = make_host(None, 1, lanes, checksum, coder)
    peer = host.connect(enet.Address(b"127.0.0.1", port), lanes, 99)
    missing = {kind[0] for kind in KINDS}
    sent_at = None
    give_up = time.monotonic() + 20
    while time.monotonic() < give_up:
        event = host.service(20)
        if event.type == enet.EVENT_TYPE_CONNECT:
            say("connected lanes", peer.channelCount)
            for _, lane, flags, length in KINDS:
                peer.send(lane, enet.Packet(CONTENT[length], flags))
            sent_at = time.monotonic()
        elif event.type == enet.EVENT_TYPE_DISCONNECT:
            say("disconnected", event.data)
            return 0
        elif event.type == enet.EVENT_TYPE_RECEIVE:
            data = event.packet.data
            for name, lane, _, length in KINDS:
                if length == len(data) and name in missing:
                    missing.remove(name)
                    is_intact = "intact" if data == CONTENT[length] else "damaged"
                    is_right = "right" if event.channelID == lane else "wrong"
                    say("echo", name, is_intact, "lane", is_right)
            if not missing:
                peer.disconnect(77)
        # What may get lost is sent until it has come back once.
        if sent_at is not None and missing and time.monotonic() - sent_at > 0.2:
            sent_at = time.monotonic()
            for name, lane, flags, length in KINDS:
                if name in missing and not flags & enet.PACKET_FLAG_RELIABLE:
                    peer.send(lane, enet.Packet(CONTENT[length], flags))
    return 1


if __name__ == "__main__":
    verb, numbers = sys.argv[1], [int(word) for word in sys.argv[2:]]
    sys.exit({"serve": serve, "connect": connect}[verb](*numbers))
