# The other side of the interoperability tests on Godot 3's NetworkedMultiplayerENet, run with `godot3-server -s`.
#
#   serve <port> <coder>              sends every packet back to whom it came from
#   connect <port> <coder>            sends packets of three kinds to the server until each has come back
#   wait <port> <coder>               waits for another client and answers its packets
#   call <port> <coder>               waits for another client and sends it packets until each has come back
#
# Every line begins with "- ": the engine prints lines of its own.
extends SceneTree

const SIZES = [10, 1000, 20000]
const MODES = [
	NetworkedMultiplayerPeer.TRANSFER_MODE_RELIABLE,
	NetworkedMultiplayerPeer.TRANSFER_MODE_UNRELIABLE_ORDERED,
	NetworkedMultiplayerPeer.TRANSFER_MODE_UNRELIABLE,
]

var enet = NetworkedMultiplayerENet.new()
var others = []
var is_over = false

func say(text):
	print("- ", text)

func joined(id):
	say("joined %s" % ("server" if id == 1 else "client"))
	if id != 1:
		others.append(id)

func left(id):
	say("left %s" % ("server" if id == 1 else "client"))
	if id != 1:
		is_over = true

func ended():
	say("ended")
	is_over = true

func content(mode, size):
	var bytes = PoolByteArray()
	for i in range(size):
		bytes.append((i * 7 + (i >> 8) + mode) & 255)
	return bytes

func send(to, mode, bytes):
	enet.set_target_peer(to)
	enet.transfer_mode = mode
	if enet.put_packet(bytes) != OK:
		say("cannot send")

# Sends each size in each mode to `to` until all have come back.
func exchange(to, missing, step):
	for key in missing:
		# What is reliable is sent once.
		if step == 0 or missing[key][0] != NetworkedMultiplayerPeer.TRANSFER_MODE_RELIABLE:
			send(to, missing[key][0], missing[key][1])

func _init():
	var words = OS.get_cmdline_args()
	var at = 0
	while words[at] != "--":
		at += 1
	var verb = words[at + 1]
	var port = int(words[at + 2])
	# 0 none, 1 range coder, 2 FastLZ, 3 zlib, 4 zstd
	enet.compression_mode = int(words[at + 3])
	enet.connect("peer_connected", self, "joined")
	enet.connect("peer_disconnected", self, "left")
	enet.connect("connection_failed", self, "ended")
	enet.connect("server_disconnected", self, "ended")
	var result
	if verb == "serve":
		result = enet.create_server(port, 8)
	else:
		result = enet.create_client("127.0.0.1", port)
	if result != OK:
		say("cannot start")
		quit()
		return
	say("ready")
	var missing = {}
	for size in SIZES:
		for mode in MODES:
			missing["%d %d" % [mode, size]] = [mode, content(mode, size)]
	var step = 0
	var give_up = OS.get_ticks_msec() + 100000
	while not is_over and OS.get_ticks_msec() < give_up:
		enet.poll()
		while enet.get_available_packet_count() > 0:
			var from = enet.get_packet_peer()
			var bytes = enet.get_packet()
			if verb == "serve" or verb == "wait":
				# The mode is written in the first byte.
				send(from, bytes[0], bytes)
				continue
			for key in missing.keys():
				if missing[key][1] == bytes:
					missing.erase(key)
					say("echo " + key)
			if missing.empty():
				say("done")
				enet.close_connection()
				is_over = true
				break
		var to = 0
		if verb == "connect" and enet.get_connection_status() == NetworkedMultiplayerPeer.CONNECTION_CONNECTED:
			to = 1
		elif verb == "call" and not others.empty():
			to = others[0]
		if to != 0 and not is_over:
			if step % 200 == 0:
				exchange(to, missing, step)
			step += 1
		OS.delay_msec(1)
	quit()
