"""One libzmq socket, driven line by line from the tests in `it/libzmq.rs`.

Usage: libzmq_peer.py KIND bind|connect ENDPOINT [heartbeat_ms [engine-like]]

An engine-like ROUTER has libzmq's own queue limit and drops what a slow reader leaves waiting.

Prints `ready ENDPOINT` once the socket is up, then obeys one command per line of standard input:
  subscribe TOPIC | unsubscribe TOPIC
  awaitsub               wait for one subscription message (XPUB) and print it
  send TOPIC FIRST COUNT SIZE [PAUSE_MS]
                         COUNT messages [topic, number, payload], numbered from FIRST
  recv COUNT             print `got N FIRST LAST ordered|disordered` for COUNT messages (number: last frame but one)
  ask START              send ["", START] (DEALER) or [START] (REQ)
  replay COUNT SIZE topic|plain
                         serve one request (ROUTER): COUNT numbered messages and the end marker; print `asked START`
  serve COUNT SIZE       serve requests for ever (ROUTER); messages are batches without events, padded
  quit
Each command answers with exactly one line, but for `serve` and `quit`.
"""

import struct
import sys
import time

import zmq


def number(frames):
    return struct.unpack(">Q", frames[-2])[0]


def open_socket(kind, mode, endpoint, heartbeat_ms, engine_like):
    socket = zmq.Context.instance().socket(getattr(zmq, kind))
    socket.setsockopt(zmq.LINGER, 0)
    # Nothing may be lost to libzmq's own bounds: what these tests count is what the wire carries.
    socket.setsockopt(zmq.SNDHWM, 1000 if kind == "ROUTER" and engine_like else 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.RECONNECT_IVL, 20)
    socket.setsockopt(zmq.RCVTIMEO, 20000)
    if heartbeat_ms:
        socket.setsockopt(zmq.HEARTBEAT_IVL, heartbeat_ms)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 10000)
        socket.setsockopt(zmq.HEARTBEAT_TTL, 10000)
    if mode == "connect":
        socket.connect(endpoint)
        return socket, endpoint
    for _ in range(200):
        try:
            socket.bind(endpoint)
            return socket, socket.getsockopt_string(zmq.LAST_ENDPOINT)
        except zmq.ZMQError:
            time.sleep(0.05)
    raise SystemExit("cannot bind " + endpoint)


def receive(socket, count):
    numbers = [number(socket.recv_multipart()) for _ in range(count)]
    ordered = all(b == a + 1 for a, b in zip(numbers, numbers[1:]))
    return "got %d %d %d %s" % (len(numbers), numbers[0], numbers[-1], "ordered" if ordered else "disordered")


def replay(socket, count, payload, style):
    identity, empty, start = socket.recv_multipart()
    first = struct.unpack(">Q", start)[0]
    head = [identity, b""] + ([b""] if style == "topic" else [])
    for n in range(first, count):
        socket.send_multipart(head + [struct.pack(">Q", n), payload])
    socket.send_multipart(head + [b"\xff" * 8, b""])
    return "asked %d" % first


def obey(socket, words):
    command, arguments = words[0], words[1:]
    if command == "subscribe":
        socket.setsockopt_string(zmq.SUBSCRIBE, arguments[0] if arguments else "")
    elif command == "unsubscribe":
        socket.setsockopt_string(zmq.UNSUBSCRIBE, arguments[0])
    elif command == "awaitsub":
        return "subscription " + repr(socket.recv())
    elif command == "send":
        topic = arguments[0].encode()
        first, count, size = (int(a) for a in arguments[1:4])
        pause = float(arguments[4]) / 1000 if len(arguments) > 4 else 0
        for n in range(first, first + count):
            socket.send_multipart([topic, struct.pack(">Q", n), b"x" * size])
            if pause:
                time.sleep(pause)
    elif command == "recv":
        return receive(socket, int(arguments[0]))
    elif command == "ask":
        start = struct.pack(">Q", int(arguments[0]))
        socket.send_multipart([start] if socket.getsockopt(zmq.TYPE) == zmq.REQ else [b"", start])
    elif command == "replay":
        return replay(socket, int(arguments[0]), b"x" * int(arguments[1]), arguments[2])
    elif command == "serve":
        # [timestamp, no events, rank 0, padding] in MessagePack.
        size = int(arguments[1])
        batch = b"\x94\xcb" + struct.pack(">d", 1.5) + b"\x90\x00\xc5" + struct.pack(">H", size) + b"x" * size
        socket.setsockopt(zmq.RCVTIMEO, -1)
        while True:
            replay(socket, int(arguments[0]), batch, "topic")
    else:
        raise SystemExit("unknown command " + command)
    return "done"


def main():
    kind, mode, endpoint = sys.argv[1:4]
    heartbeat_ms = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    engine_like = len(sys.argv) > 5
    socket, bound = open_socket(kind, mode, endpoint, heartbeat_ms, engine_like)
    print("ready", bound, flush=True)
    for line in sys.stdin:
        words = line.split()
        if words == ["quit"]:
            break
        print(obey(socket, words), flush=True)
    socket.close()


main()
