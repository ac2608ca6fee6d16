"""bench/compare beside brokers that are absent, refuse, drop, say nothing or lie: each is said, the exit code is 1, nothing hangs, and the others are measured all the same.

`python3 bench/test_compare.py` needs the release build's programs; it is part of .ci/run.
"""

import contextlib
import dataclasses
import importlib.machinery
import importlib.util
import io
import os
import re
import socket
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import brokers
import mqtt
import scenarios

# Messages that a broker which drops passes on before; enough for a probe.
PASSED_BEFORE_DROP = 50


class Fake:
    """A broker of QoS 0 that is at fault in one way, or in none."""

    def __init__(self, fault):
        self.fault, self.subscribers, self.passed = fault, {}, 0

    def serve(self, listener):
        while True:
            client, _ = listener.accept()
            threading.Thread(target=self.talk, args=(client,), daemon=True).start()

    def talk(self, client):
        with contextlib.suppress(OSError, mqtt.MqttError), client:
            self.answer(client, client.makefile("rb"))

    def answer(self, client, file):
        while True:
            first, body = mqtt.packet(file)
            if self.fault == "says nothing":
                time.sleep(1000)
            kind = first >> 4
            if kind == 1:
                client.sendall(bytes([0x20, 2, 0, 5 if self.fault == "refuses" else 0]))
            elif kind == 8:
                size = int.from_bytes(body[2:4], "big")
                self.subscribers.setdefault(body[4:4 + size], []).append(client)
                client.sendall(bytes([0x90, 3]) + body[:2] + bytes([0]))
            elif kind == 3:
                self.passed += 1
                if self.fault == "drops" and self.passed > PASSED_BEFORE_DROP:
                    return
                topic = body[2:2 + int.from_bytes(body[:2], "big")]
                for subscriber in self.subscribers.get(topic, []):
                    with contextlib.suppress(OSError):
                        subscriber.sendall(bytes([0x30]) + mqtt.length(len(body)) + body)
                        if self.fault == "lies":
                            lie = mqtt.string(topic.decode()) + b"what nobody has sent, and not in the load's own form"
                            subscriber.sendall(bytes([0x30]) + mqtt.length(len(lie)) + lie)
            elif kind == 12:
                client.sendall(bytes([0xD0, 0]))
            elif kind == 14:
                return


def be_a_broker(fault, argv):
    """What --peer starts: it finds its port in the configuration that the recipe gives it."""
    if "--version" in argv:
        return print("fake 1.0")
    if fault == "ends at once":
        sys.exit("this broker does not like its configuration")
    configuration = next(word for word in argv if os.path.exists(word))
    with open(configuration) as file:
        port = int(re.search(r"^\s*port\s+(\d+)", file.read(), re.MULTILINE)[1])
    listener = socket.create_server(("127.0.0.1", port))
    Fake(fault).serve(listener)


def compare(*argv):
    """Runs bench/compare in this process, with less patience, and each load once. Its exit code, and all that it says."""
    once = [dataclasses.replace(scenario, placements=("free",)) for scenario in scenarios.single()]
    loader = importlib.machinery.SourceFileLoader("compare", os.path.join(HERE, "compare"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("compare", loader))
    loader.exec_module(module)
    said = io.StringIO()
    with mock.patch.object(sys, "argv", ["compare", *argv]), mock.patch.object(brokers, "START_SECONDS", 5.0), \
            mock.patch.object(brokers, "STARTS", 1), mock.patch.object(brokers, "PROBE_SECONDS", 3.0), \
            mock.patch.dict(scenarios.FAMILIES, single=lambda: once), \
            contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        return module.main(), said.getvalue()


class Faults(unittest.TestCase):
    def run_with(self, fault):
        with tempfile.TemporaryDirectory() as directory:
            program = os.path.join(directory, "fake")
            if fault != "is absent":
                with open(program, "w") as file:
                    file.write(f"#!/bin/sh\nexec {sys.executable} {os.path.abspath(__file__)} --be '{fault}' \"$@\"\n")
                os.chmod(program, 0o755)
            return compare("single", "--only", "1 to 1, QoS 0", "--rounds", "1", "--seconds", "1", "--scratch", "--without-mosquitto",
                           "--peer", f"flashmq={program}")

    def assert_said(self, fault, expected):
        code, said = self.run_with(fault)
        self.assertRegex(said, rf"compare: .*{expected}", fault)
        self.assertEqual(code, 1, said)
        # Ours was measured: there is a row of its own in the table.
        self.assertRegex(said, r"\| 1 to 1, QoS 0 \| mqtt-st-quic [^|]+\| [1-9]", fault)

    def test_without_a_fault_all_is_well(self):
        code, said = self.run_with("nothing")
        self.assertEqual(code, 0, said)
        self.assertRegex(said, r"\| 1 to 1, QoS 0 \| flashmq 1.0 \| [1-9]")

    def test_absent(self):
        self.assert_said("is absent", "cannot be run")

    def test_ends(self):
        self.assert_said("ends at once", "does not like its configuration")

    def test_refuses(self):
        self.assert_said("refuses", "flashmq did not come up.*refuse")

    def test_says_nothing(self):
        self.assert_said("says nothing", "flashmq did not come up")

    def test_drops(self):
        self.assert_said("drops", "flashmq, 1 to 1, QoS 0: ")

    def test_lies(self):
        self.assert_said("lies", "flashmq, 1 to 1, QoS 0: .*(corrupted|foreign)")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--be"]:
        be_a_broker(sys.argv[2], sys.argv[3:])
    else:
        unittest.main()
