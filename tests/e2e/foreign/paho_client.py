"""What a client wants of a broker, asked by paho-mqtt: connect, QoS 0, 1 and 2, retained messages, a will, a session that goes on.

paho_client.py VERSION TRANSPORT PORT [CAFILE]; prints what is good, and ends with an error at the first thing that is not."""
import os
import queue
import subprocess
import sys

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

version, transport, port = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
cafile = sys.argv[4] if len(sys.argv) > 4 and sys.argv[4] else None
PATIENCE = 30


class Client:
    def __init__(self, name, clean=True, will=None):
        more = {} if version == 5 else {"clean_session": clean}
        self.client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, name, protocol=version, transport=transport, **more)
        self.messages, self.connected, self.subscribed = queue.Queue(), queue.Queue(), queue.Queue()
        self.client.on_message = lambda _client, _data, message: self.messages.put(message)
        self.client.on_connect = lambda _client, _data, flags, reason, _properties: self.connected.put((flags, reason))
        self.client.on_subscribe = lambda _client, _data, _id, reasons, _properties: self.subscribed.put(reasons)
        if cafile:
            self.client.tls_set(cafile)
        if will:
            self.client.will_set(*will)
        options = {}
        if version == 5:
            options["clean_start"] = clean
            if not clean:
                options["properties"] = Properties(PacketTypes.CONNECT)
                options["properties"].SessionExpiryInterval = 600
        self.client.connect("localhost" if cafile else "127.0.0.1", port, 30, **options)
        self.client.loop_start()
        self.flags, reason = self.connected.get(timeout=PATIENCE)
        assert not reason.is_failure, reason

    def subscribe(self, topic, qos):
        self.client.subscribe(topic, qos)
        assert [reason.value for reason in self.subscribed.get(timeout=PATIENCE)] == [qos]

    def publish(self, topic, payload, qos, retain=False):
        self.client.publish(topic, payload, qos, retain).wait_for_publish(PATIENCE)

    def expect(self, topic, payload, qos, retain=False):
        message = self.messages.get(timeout=PATIENCE)
        seen = (message.topic, message.payload, message.qos, bool(message.retain))
        assert seen == (topic, payload.encode(), qos, retain), seen

    def end(self):
        self.client.disconnect()
        self.client.loop_stop()


if len(sys.argv) > 5:
    # Gone without a good-bye.
    Client("dying", will=("will", "gone", 1, False))
    os._exit(0)

one, two = Client("one"), Client("two")
for qos in (0, 1, 2):
    one.subscribe(f"qos/{qos}", qos)
    for payload in ("first", "x" * 100_000, ""):
        two.publish(f"qos/{qos}", payload, qos)
        one.expect(f"qos/{qos}", payload, qos)
print("qos")
two.publish("kept", "retained", 1, retain=True)
one.subscribe("kept", 1)
one.expect("kept", "retained", 1, retain=True)
two.publish("kept", "", 1, retain=True)
one.expect("kept", "", 1)
print("retained")
one.subscribe("will", 1)
subprocess.run([sys.executable, *sys.argv[:4], cafile or "", "dying"], check=True, timeout=PATIENCE)
one.expect("will", "gone", 1)
print("will")
away = Client("away", clean=False)
assert not away.flags.session_present
away.subscribe("missed", 2)
away.end()
for number in range(5):
    two.publish("missed", str(number), 2)
back = Client("away", clean=False)
assert back.flags.session_present
for number in range(5):
    back.expect("missed", str(number), 2)
back.end()
Client("away", clean=True).end()
print("resumed")
one.end()
two.end()
