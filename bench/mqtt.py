"""Just enough MQTT 3.1.1 to leave sessions and subscriptions behind by the hundred thousand; `loadtest` does everything that is measured."""

import socket

TIMEOUT_SECONDS = 60
# Filters in one SUBSCRIBE; the packet stays well below what any broker takes.
FILTERS_PER_PACKET = 500


class MqttError(Exception):
    """A broker that does not do what was asked."""


class Client:
    def __init__(self, address, client_id, is_clean):
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), TIMEOUT_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.socket.makefile("rb")
        self.send(0x10, string("MQTT") + bytes([4, 2 if is_clean else 0, 0, 0]) + string(client_id))
        answer = self.receive(0x20)
        if answer[1]:
            raise MqttError(f"{address} refuses {client_id}: return code {answer[1]}")

    def subscribe(self, filters, qos):
        for begin in range(0, len(filters), FILTERS_PER_PACKET):
            some = filters[begin:begin + FILTERS_PER_PACKET]
            self.send(0x82, b"\x00\x01" + b"".join(string(one) + bytes([qos]) for one in some))
            answer = self.receive(0x90)
            if any(code != qos for code in answer[2:]) or len(answer) != 2 + len(some):
                raise MqttError(f"not all of {len(some)} filters were granted")

    def ping(self):
        self.send(0xC0, b"")
        self.receive(0xD0)

    def close(self):
        self.send(0xE0, b"")
        self.file.close()
        self.socket.close()

    def send(self, first, body):
        self.socket.sendall(bytes([first]) + length(len(body)) + body)

    def receive(self, first):
        """The body of the packet that comes; an MqttError if it is another."""
        head, body = packet(self.file)
        if head != first:
            raise MqttError(f"a packet {head:#x} in place of {first:#x}")
        return body


def packet(file):
    """The next packet: its first byte and its body."""
    head, size, shift = exactly(file, 1)[0], 0, 0
    while True:
        byte = exactly(file, 1)[0]
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return head, exactly(file, size)


def exactly(file, size):
    found = file.read(size)
    if len(found) < size:
        raise MqttError("the connection was closed")
    return found


def string(text):
    encoded = text.encode()
    return len(encoded).to_bytes(2, "big") + encoded


def length(value):
    out = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        out.append(low | (0x80 if value else 0))
        if not value:
            return bytes(out)
