"""One gRPC call at a time over HTTP/2, with the standard library alone: enough to ask an executor what it holds."""

import socket
import struct

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
ACK = END_STREAM = 1
END_HEADERS, PADDED = 4, 8


class Connection:
    """A connection to a server. After an error it is of no use any more."""

    def __init__(self, host, port, timeout):
        self.authority, self.stream = f"{host}:{port}", -1
        self.socket = socket.create_connection((host, port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = self.socket.makefile("rb")
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self.send(SETTINGS, 0, 0, b"")
        self.send(WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**30))

    def send(self, kind, flags, stream, payload):
        self.socket.sendall(struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload)

    def begin(self, path, message=b""):
        """Sends a call, and does not wait for its answer."""
        self.stream += 2
        fields = {
            ":method": "POST", ":scheme": "http", ":path": path, ":authority": self.authority,
            "content-type": "application/grpc", "te": "trailers",
        }  # fmt: skip
        # HPACK: each field a literal with a new name, not indexed, not compressed.
        texts = (text.encode() for field in fields.items() for text in field)
        words = [bytes([len(text)]) + text for text in texts]
        block = b"".join(b"\0" + name + value for name, value in zip(words[::2], words[1::2]))
        self.send(HEADERS, END_HEADERS, self.stream, block)
        self.send(DATA, END_STREAM, self.stream, struct.pack(">BI", 0, len(message)) + message)

    def call(self, path, message=b""):
        """The answer's message; fails with OSError when there is none."""
        self.begin(path, message)
        answer = b""
        while True:
            kind, flags, stream, payload = self.frame()
            if stream == self.stream and kind == DATA:
                answer += payload
            if stream == self.stream and kind in (DATA, HEADERS) and flags & END_STREAM:
                if len(answer) < 5:
                    raise OSError("refused")
                return answer[5:]

    def frame(self):
        """The next frame that is not about the connection."""
        while True:
            head = self.buffer.read(9)
            if len(head) < 9:
                raise OSError("closed")
            length, kind, flags, stream = int.from_bytes(head[:3], "big"), *struct.unpack(">BBI", head[3:])
            payload = self.buffer.read(length)
            if kind in (SETTINGS, PING):
                if not flags & ACK:
                    self.send(kind, ACK, 0, payload if kind == PING else b"")
            elif kind in (RST_STREAM, GOAWAY):
                raise OSError("ended by the server")
            elif kind == DATA and flags & PADDED:
                return kind, flags, stream, payload[1 : length - payload[0]]
            elif kind != WINDOW_UPDATE:
                return kind, flags, stream, payload

    def close(self):
        self.socket.close()


def varint(message, at):
    """A number, and where it ends."""
    value = shift = 0
    while True:
        byte = message[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at


def numbers(packed):
    """A packed list of numbers."""
    at, found = 0, []
    while at < len(packed):
        number, at = varint(packed, at)
        found.append(number)
    return found


def fields(message):
    """The fields of a protobuf message by number: numbers, or bytes; of repeated ones the last."""
    at, found = 0, {}
    while at < len(message):
        key, at = varint(message, at)
        value, end = varint(message, at)
        if key & 7 == 2:
            value, end = message[end : end + value], end + value
        elif key & 7:
            raise OSError(f"wire type {key & 7}")
        found[key >> 3], at = value, end
    return found
