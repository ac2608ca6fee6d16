"""Chains of brokers to compare: how each kind is installed, configured, started, and known to be joined.

A chain of N is N processes on loopback; each but the first is joined to the one before. The first and the last are where
clients connect. Needs nothing but Python's standard library.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time

START_SECONDS = 10.0
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class StartError(Exception):
    """A broker or a chain that did not come up."""


class Broker:
    """One process and the address of its MQTT listener."""

    def __init__(self, argv, directory, placement):
        self.address = None
        self.log = os.path.join(directory, "log")
        with open(self.log, "w") as log:
            # The child inherits the placement before it decides how many threads it needs.
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=placement)

    def check(self):
        if self.process.poll() is not None:
            with open(self.log) as log:
                raise StartError(f"{self.process.args[0]} ended with {self.process.returncode}: {log.read()[-500:]}")

    def cpu_seconds(self):
        """Processor time used so far, user and kernel, in steps of 10 ms."""
        with open(f"/proc/{self.process.pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Mosquitto:
    """Bridges of Mosquitto: every message in both directions, which is right for a chain and for nothing with a cycle."""

    name = "mosquitto"

    def __init__(self, program=None):
        self.program = program or shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        if not self.program:
            raise StartError("mosquitto is not installed (apt-get install mosquitto), or name it with --mosquitto")

    def version(self):
        said = subprocess.run([self.program, "-h"], capture_output=True, text=True).stdout
        return said.splitlines()[0].removeprefix("mosquitto version ")

    def prepare(self, directory):
        pass

    def start(self, directory, name, before, qos, placement):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        # Limits that do not bound the windows of the load; the rest is the default.
        lines = [f"listener {port} 127.0.0.1", "allow_anonymous true", "log_type error", "set_tcp_nodelay true",
                 "max_inflight_messages 1000", "max_queued_messages 100000"]
        if before:
            lines += [f"connection {name}", f"address {before.address}", f"topic # both {qos}", "notifications false",
                      "restart_timeout 1", f"remote_clientid {name}", f"local_clientid local.{name}"]
        path = os.path.join(directory, "mosquitto.conf")
        with open(path, "w") as configuration:
            configuration.write("\n".join(lines) + "\n")
        broker = Broker([self.program, "-c", path], directory, placement)
        broker.address = f"127.0.0.1:{port}"
        return broker


class Ours:
    """A mesh of ours, with certificates of a throw-away authority."""

    name = "mqtt-st-quic"
    mesh = "bench"

    def __init__(self, program):
        self.program = program
        if not os.access(program, os.X_OK):
            raise StartError(f"{program} is missing (cargo build --release), or name it with --binary")

    def version(self):
        said = subprocess.run([self.program, "--version"], capture_output=True, text=True, check=True).stdout
        return said.split()[-1]

    def prepare(self, directory):
        self.pki = os.path.join(directory, "certs")
        self.certs("ca", "--mesh", self.mesh, "--out", self.pki)

    def certs(self, *arguments):
        subprocess.run([self.program, "certs", *arguments], check=True, stdout=subprocess.DEVNULL)

    def start(self, directory, name, before, _qos, placement):
        self.certs("broker", "--mesh", self.mesh, "--name", name, "--ca", self.pki, "--out", self.pki)
        text = json.dumps  # a JSON string or list of strings is one in TOML, too
        ready = os.path.join(directory, "ready.json")
        path = os.path.join(directory, "broker.toml")
        with open(path, "w") as configuration:
            configuration.write(f"""name = {text(name)}
data_dir = {text(os.path.join(directory, "data"))}
[[listener]]
bind = "127.0.0.1:0"
allow_anonymous = true
[mesh]
name = {text(self.mesh)}
listen = "127.0.0.1:0"
peers = {text([before.mesh_address] if before else [])}
discovery = ["static"]
replication = "full"
cafile = {text(os.path.join(self.pki, "ca.pem"))}
certfile = {text(os.path.join(self.pki, name + ".pem"))}
keyfile = {text(os.path.join(self.pki, name + ".key"))}
[admin]
bind = "127.0.0.1:0"
""")
        broker = Broker([self.program, "serve", "--config", path, "--ready-file", ready], directory, placement)
        until = time.monotonic() + START_SECONDS
        while not os.path.exists(ready):
            broker.check()
            if time.monotonic() > until:
                broker.stop()
                raise StartError(f"{name} was not ready within {START_SECONDS:.0f} s")
            time.sleep(0.02)
        with open(ready) as addresses:
            bound = json.load(addresses)
        broker.address, broker.mesh_address = bound["mqtt"][0], bound["mesh"]
        return broker


class Chain:
    """Brokers of one kind, joined one after the other."""

    def __init__(self, brokers):
        self.brokers = brokers
        self.first, self.last = brokers[0].address, brokers[-1].address

    def cpu_seconds(self):
        return [broker.cpu_seconds() for broker in self.brokers]


@contextlib.contextmanager
def chain(kind, length, qos, placement, probe):
    """A chain through which `probe(first, last)` has come; anew until that is so, since bridges do not always come up.

    Yields the chain and how many starts failed before it.
    """
    failures = 0
    while True:
        with tempfile.TemporaryDirectory(prefix="bench-") as directory, contextlib.ExitStack() as stack:
            kind.prepare(directory)
            brokers = []
            for number in range(length):
                own = os.path.join(directory, str(number))
                os.mkdir(own)
                before = brokers[-1] if brokers else None
                brokers.append(kind.start(own, f"bench-{number}", before, qos, placement))
                stack.callback(brokers[-1].stop)
            if joined(brokers, probe):
                yield Chain(brokers), failures
                return
        failures += 1
        if failures == 5:
            raise StartError(f"a chain of {length} of {kind.name} did not come up in {failures} starts")


def joined(brokers, probe):
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        for broker in brokers:
            broker.check()
        if probe(brokers[0].address, brokers[-1].address):
            return True
        time.sleep(0.1)
    return False
