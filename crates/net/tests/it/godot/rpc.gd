# Two of these speak through a relay by remote procedure calls, run with `godot3-server -s`.
#
#   answer <port>     answers the calls of another client until that leaves
#   ask <port>        waits for another client, calls it, leaves when everything was answered
#
# Every line begins with "- ": the engine prints lines of its own.
extends SceneTree

const CALLS = 20

class Speaker extends Node:
	var answers = {}

	remote func ask(number, words):
		var caller = get_tree().get_rpc_sender_id()
		rpc_id(caller, "answer", number, words + [get_tree().get_network_unique_id()])

	remote func answer(number, words):
		answers[number] = words

	remotesync func hello(words):
		print("- hello ", words, " from ", "me" if get_tree().get_rpc_sender_id() == get_tree().get_network_unique_id() else "them")

var enet = NetworkedMultiplayerENet.new()
var speaker = Speaker.new()
var verb = ""
var other = 0
var asked = 0
var is_over = false
var give_up = 0

func came(id):
	if id != 1:
		other = id
		print("- came")

func went(id):
	if id != 1:
		print("- went")
		is_over = true

func ended():
	print("- ended")
	is_over = true

func _initialize():
	var words = OS.get_cmdline_args()
	var at = 0
	while words[at] != "--":
		at += 1
	verb = words[at + 1]
	speaker.name = "speaker"
	get_root().add_child(speaker)
	connect("network_peer_connected", self, "came")
	connect("network_peer_disconnected", self, "went")
	connect("connection_failed", self, "ended")
	connect("server_disconnected", self, "ended")
	if enet.create_client("127.0.0.1", int(words[at + 2])) != OK:
		ended()
	set_network_peer(enet)
	give_up = OS.get_ticks_msec() + 100000

func is_right(number):
	var words = speaker.answers[number]
	return words == [number, "text %d" % number, Vector2(number, 2), other]

func _idle(_delta):
	if verb == "ask" and other != 0 and not is_over:
		if asked == 0:
			speaker.rpc("hello", "everybody")
		while asked < CALLS:
			speaker.rpc_id(other, "ask", asked, [asked, "text %d" % asked, Vector2(asked, 2)])
			asked += 1
		if speaker.answers.size() == CALLS:
			for number in speaker.answers:
				if not is_right(number):
					print("- wrong ", speaker.answers[number])
			print("- done")
			is_over = true
	if is_over or OS.get_ticks_msec() > give_up:
		if enet.get_connection_status() != NetworkedMultiplayerPeer.CONNECTION_DISCONNECTED:
			enet.close_connection()
		quit()
