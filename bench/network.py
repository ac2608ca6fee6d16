"""Where brokers run: all on loopback, or each in a network namespace of its own with the emulator (emulator.py) between them.

Clients reach every broker directly, whatever lies between the brokers: on loopback, or over a pair of interfaces that the emulator does not see.
"""

import dataclasses
import itertools
import json
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
_numbers = itertools.count()


class NetworkError(Exception):
    """A network that this machine does not give us."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where one broker runs."""

    prefix: tuple  # of its command
    client_ip: str  # where clients reach it
    mesh_ip: str  # where other brokers reach it


class Loopback:
    """All on 127.0.0.1."""

    kind = "loopback"

    def __init__(self, hosts):
        self.places = [Place((), "127.0.0.1", "127.0.0.1")] * hosts
        self.driver = ()

    def cpu_seconds(self):
        """Processor time that the network itself has used."""
        return 0.0

    def close(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Emulated(Loopback):
    """Namespaces and the emulator. `between`: settings of the emulator, for all ways."""

    kind = "emulated"

    def __init__(self, hosts, **between):
        why = missing()
        if why:
            raise NetworkError(why)
        self.prefix = f"cmp{os.getpid()}n{next(_numbers)}"
        self.hosts = hosts
        self.emulator = subprocess.Popen([sys.executable, os.path.join(HERE, "emulator.py"), self.prefix, str(hosts)],
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.answer()
        self.load = f"{self.prefix}-load"
        self.driver = ("ip", "netns", "exec", self.load)
        try:
            ip("netns", "add", self.load)
            ip("-n", self.load, "link", "set", "lo", "up")
            self.places = [self.attach(host) for host in range(hosts)]
            self.set(**between)
        except NetworkError:
            self.close()
            raise

    def attach(self, host):
        """Gives a broker's namespace a way to the clients' that the emulator does not see."""
        namespace, near, far = f"{self.prefix}-{host}", f"10.78.{host}.1", f"10.78.{host}.2"
        ip("-n", self.load, "link", "add", f"to{host}", "type", "veth", "peer", "name", "clients", "netns", namespace)
        ip("-n", self.load, "addr", "add", f"{near}/24", "dev", f"to{host}")
        ip("-n", self.load, "link", "set", f"to{host}", "up")
        ip("-n", namespace, "addr", "add", f"{far}/24", "dev", "clients")
        ip("-n", namespace, "link", "set", "clients", "up")
        return Place(("ip", "netns", "exec", namespace), far, f"10.77.0.{host + 1}")

    def command(self, *words):
        self.emulator.stdin.write(" ".join(map(str, words)) + "\n")
        self.emulator.stdin.flush()
        return self.answer()

    def answer(self):
        line = self.emulator.stdout.readline()
        said = json.loads(line) if line else {"error": "it ended"}
        if "error" in said:
            raise NetworkError(f"the emulator: {said['error']}")
        return said

    def set(self, **between):
        settings = [word for setting in between.items() for word in setting]
        for a, b in itertools.combinations(range(self.hosts), 2):
            self.command("set", a, b, *settings)

    def cut(self, a, b):
        self.command("cut", a, b)

    def heal(self, a, b):
        self.command("heal", a, b)

    def count(self):
        """What the emulator has carried so far."""
        return self.command("count")

    def cpu_seconds(self):
        with open(f"/proc/{self.emulator.pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self):
        self.emulator.stdin.close()
        try:
            self.emulator.wait(10)
        except subprocess.TimeoutExpired:
            self.emulator.kill()
            self.emulator.wait()
        self.emulator.stdout.close()
        subprocess.run(["ip", "netns", "del", self.load], stderr=subprocess.DEVNULL)


def between_links(before, after):
    """Bytes that crossed each pair of hosts between two counts, both ways together."""
    def bytes_of(count):
        sums = {}
        for way in count["ways"]:
            pair = tuple(sorted((way["from"], way["to"])))
            sums[pair] = sums.get(pair, 0) + way["bytes"]
        return sums
    first, last = bytes_of(before), bytes_of(after)
    return {pair: last[pair] - first[pair] for pair in last if last[pair]}


def missing():
    """Why there can be no emulated network here, or None."""
    if os.geteuid() != 0:
        return "emulated links need root (network namespaces and TUN devices): run this as root, or leave out the families that need them"
    if not shutil.which("ip"):
        return "emulated links need iproute2 (apt-get install iproute2)"
    if not os.path.exists("/dev/net/tun"):
        return "emulated links need /dev/net/tun (modprobe tun)"
    return None


def ip(*arguments):
    done = subprocess.run(["ip", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise NetworkError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
