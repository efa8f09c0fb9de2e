# A client of Godot 3 that speaks DTLS, run with `godot3-server -s`. Its own multiplayer cannot (`use_dtls` does nothing in
# 3.2), so it carries ENet's datagrams itself: a CONNECT through PacketPeerDTLS, and the acknowledgement of the answer.
#
#   <port> <certificate> <steps>      prints each step: secure, verified, welcome (a packet of the server with that word)
#
# Every line begins with "- ": the engine prints lines of its own.
extends SceneTree

func say(text):
	print("- ", text)

# CONNECT of ENet 1.3 (crates/enet/src/wire.rs) with a sent time of 7, channels 1 and data 42.
func connect_command():
	var out = StreamPeerBuffer.new()
	out.big_endian = true
	out.put_u16(0x8FFF)
	out.put_u16(7)
	out.put_u8(0x82)
	out.put_u8(0xFF)
	out.put_u16(1)
	out.put_u16(5)
	out.put_u8(0xFF)
	out.put_u8(0xFF)
	for value in [1392, 32768, 1, 0, 0, 5000, 2, 2, 0xC0FFEE, 42]:
		out.put_u32(value)
	return out.data_array

# Acknowledges the VERIFY_CONNECT in `datagram`.
func acknowledgement(datagram):
	var answer = StreamPeerBuffer.new()
	answer.big_endian = true
	answer.data_array = datagram
	answer.get_u16()
	var sent = answer.get_u16()
	answer.get_u16()
	var number = answer.get_u16()
	var id = answer.get_u16()
	answer.get_u8()
	var session = answer.get_u8()
	var out = StreamPeerBuffer.new()
	out.big_endian = true
	out.put_u16(0x8000 | (session << 12) | id)
	out.put_u16(8)
	out.put_u8(1)
	out.put_u8(0xFF)
	out.put_u16(number)
	out.put_u16(number)
	out.put_u16(sent)
	return out.data_array

func _init():
	var words = OS.get_cmdline_args()
	var at = 0
	while words[at] != "--":
		at += 1
	var certificate = X509Certificate.new()
	certificate.load(words[at + 2])
	var udp = PacketPeerUDP.new()
	udp.connect_to_host("127.0.0.1", int(words[at + 1]))
	var dtls = PacketPeerDTLS.new()
	dtls.connect_to_peer(udp, true, "localhost", certificate)
	var give_up = OS.get_ticks_msec() + 60000
	var step = 0
	var steps = int(words[at + 3])
	while OS.get_ticks_msec() < give_up and step < steps:
		dtls.poll()
		var status = dtls.get_status()
		if status == PacketPeerDTLS.STATUS_ERROR or status == PacketPeerDTLS.STATUS_ERROR_HOSTNAME_MISMATCH:
			say("error %d" % status)
			break
		if status == PacketPeerDTLS.STATUS_DISCONNECTED and step > 0:
			say("ended")
			break
		if status == PacketPeerDTLS.STATUS_CONNECTED:
			if step == 0:
				say("secure")
				dtls.put_packet(connect_command())
				step = 1
			while dtls.get_available_packet_count() > 0:
				var datagram = dtls.get_packet()
				# Header, then VERIFY_CONNECT with a sequence number, or a reliable packet.
				var kind = datagram[4] & 15
				if step == 1 and kind == 3:
					say("verified")
					dtls.put_packet(acknowledgement(datagram))
					step = 2
				elif step == 2 and datagram.hex_encode().find("77656c636f6d65") >= 0:
					say("welcome")
					step = 3
		OS.delay_msec(5)
	quit()
