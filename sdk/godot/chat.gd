# Godot 3 over ENet: joins a room of a mode, writes one line to the channel when the match begins, and prints the lines of the
# others until one of them says "bye". docs/how-to/connect-a-client.md starts the gateway.
#
#     godot3-server -s chat.gd -- 127.0.0.1:12110 alice party hello
extends SceneTree

enum { AUTH = 1, SUBSCRIBE = 6, UPDATE = 8, MATCHMAKING = 110, JOIN_RANDOM_ROOM = 30 }

var enet = NetworkedMultiplayerENet.new()
var words
var conn = 0
var is_over = false

# Protobuf: a number, then a number or bytes behind their length.
func varint(value):
	if value < 128:
		return PoolByteArray([value])
	return PoolByteArray([value & 127 | 128]) + varint(value >> 7)

func number(field, value):
	return varint(field << 3) + varint(value)
func bytes(field, value):
	return varint(field << 3 | 2) + varint(value.size()) + value
func text(field, value):
	return bytes(field, value.to_utf8())

# The fields of a message: [[field, number or bytes], ...]
func fields(message):
	var at = 0
	var out = []
	while at < message.size():
		var pair = [0, 0]
		for i in range(2):
			var shift = 0
			while message[at] > 127:
				pair[i] |= (message[at] & 127) << shift
				shift += 7
				at += 1
			pair[i] |= message[at] << shift
			at += 1
		if pair[0] & 7 == 2:
			at += pair[1]
			pair[1] = message.subarray(at - pair[1], at - 1) if pair[1] > 0 else PoolByteArray()
		out.append([pair[0] >> 3, pair[1]])
	return out

func field(message, wanted, default = PoolByteArray()):
	for pair in fields(message):
		default = pair[1] if pair[0] == wanted else default
	return default

func send(channel, type, body):
	var packet = bytes(1, number(1, channel) + number(3, 1) + number(4, type) + bytes(5, body))
	enet.put_packet(PoolByteArray([0x43, 0x48, packet.size() >> 8, packet.size() & 255, 0]) + packet)

# google.protobuf.Any with data of one line.
func line(sender, content):
	var data = bytes(1, text(1, sender) + text(3, content))
	return text(1, "type.googleapis.com/chatpb.ChatChannelData") + bytes(2, data)

func handle(type, body):
	if type == AUTH:
		conn = field(body, 2, 0)
		var join = bytes(1, PoolByteArray()) + bytes(2, text(1, words[2])) # The gateway fills in who asks.
		send(0, MATCHMAKING, number(1, JOIN_RANDOM_ROOM) + bytes(2, join))
	elif type == MATCHMAKING:
		var event = field(body, 2) # of a message that the gateway passes on
		var channel = field(event, 6, 0)
		if field(event, 2, 0) != 0:
			print("refused: " + field(field(event, 3), 1).get_string_from_utf8())
			is_over = true
		elif channel != 0 and field(event, 7, 0) == 1:
			# The gateway has subscribed us; this asks for our own lines as well.
			send(channel, SUBSCRIBE, number(1, conn) + bytes(2, number(1, 2) + number(3, 50) + number(5, 0)))
			send(channel, UPDATE, bytes(1, line(words[1], words[3])))
	elif type == UPDATE:
		for pair in fields(field(field(body, 1), 2)):
			var content = field(pair[1], 3).get_string_from_utf8()
			print("<%s> %s" % [field(pair[1], 1).get_string_from_utf8(), content])
			is_over = is_over or content == "bye"

func _init():
	words = Array(OS.get_cmdline_args())
	words = words.slice(words.find("--") + 1, -1)
	var address = words[0].replace("enet://", "").split(":")
	enet.create_client(address[0], int(address[1]))
	enet.set_target_peer(NetworkedMultiplayerPeer.TARGET_PEER_SERVER)
	enet.connect("connection_succeeded", self, "send", [0, AUTH, text(1, words[1])])
	while not is_over and enet.get_connection_status() != NetworkedMultiplayerPeer.CONNECTION_DISCONNECTED:
		enet.poll()
		while enet.get_available_packet_count() > 0:
			var packet = enet.get_packet() # whole frames: a tag of five bytes, then messages
			while packet.size() > 5:
				var size = packet[2] << 8 | packet[3]
				for entry in fields(packet.subarray(5, 4 + size)):
					handle(field(entry[1], 4, 0), field(entry[1], 5))
				packet = packet.subarray(5 + size, -1) if packet.size() > 5 + size else PoolByteArray()
		OS.delay_msec(5)
	quit()
