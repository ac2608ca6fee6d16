"""Emulates a wide-area network on this machine: delay, loss, a rate, a cut, each way between each two hosts.

A host is a network namespace with a TUN device in it; this process holds the other end of each and carries the packets between them. It counts what
it has carried, and how late it was itself. Host number I has the address 10.77.0.(I+1) on the device `wan`, in the namespace PREFIX-I.

    emulator.py PREFIX HOSTS        (root, /dev/net/tun, iproute2)

prints `ready`, then obeys commands from stdin, a line each, and answers each with a line of JSON (an `error` in it, if there was one):

    set A B [delay_ms X] [loss X] [rate_mbit X]     both ways; loss is a share of 1; a rate of 0 is none
    cut A B | heal A B                              nothing comes through, and again
    count                                           what was carried from host to host so far, and lateness

Packets of one direction keep their order. A full queue (100 ms of the rate, 64 KiB at least) drops what comes. It ends with its stdin, and the
namespaces with it. Not meant: jitter, reordering, more than some 50,000 packets a second (Python carries one in about 10 us).
"""

import fcntl
import heapq
import itertools
import json
import os
import random
import select
import signal
import struct
import subprocess
import sys
import time

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
MTU_BYTES = 1500
# Packets taken from one host before the others have their turn.
BATCH = 64
QUEUE_SECONDS, QUEUE_BYTES_MIN = 0.1, 65536
# A packet that leaves so much later than it was due would be seen in what is measured.
LATE_SECONDS = 0.001


class Way:
    """From one host to another."""

    def __init__(self):
        self.delay_seconds = 0.0
        self.loss = 0.0
        self.rate = 0.0  # bytes a second; 0: as fast as it goes
        self.is_cut = False
        self.free_at = 0.0  # when the line has sent what was given to it
        self.carried_bytes = self.carried = self.lost = self.full = self.refused = 0


class Emulator:
    def __init__(self, prefix, hosts):
        self.prefix, self.hosts = prefix, hosts
        self.ways = {(a, b): Way() for a in range(hosts) for b in range(hosts) if a != b}
        self.tuns = []
        self.under_way, self.sequence = [], itertools.count()
        self.late = 0
        self.latest_seconds = 0.0
        self.random = random.Random(1)

    def make_hosts(self):
        for host in range(self.hosts):
            namespace, device = f"{self.prefix}-{host}", f"wan{os.getpid() % 100000}x{host}"
            ip("netns", "add", namespace)
            tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TUN | IFF_NO_PI))
            ip("link", "set", device, "netns", namespace, "name", "wan")
            inside = ("-n", namespace)
            ip(*inside, "link", "set", "lo", "up")
            ip(*inside, "link", "set", "wan", "mtu", str(MTU_BYTES), "txqueuelen", "10000", "up")
            ip(*inside, "addr", "add", f"10.77.0.{host + 1}/24", "dev", "wan")
            self.tuns.append(tun)

    def remove_hosts(self):
        for tun in self.tuns:
            os.close(tun)
        for host in range(self.hosts):
            subprocess.run(["ip", "netns", "del", f"{self.prefix}-{host}"], stderr=subprocess.DEVNULL)

    def run(self):
        host_of = {tun: host for host, tun in enumerate(self.tuns)}
        lines = b""
        while True:
            self.deliver()
            wait = max(self.under_way[0][0] - time.monotonic(), 0.0) if self.under_way else None
            for ready in select.select([0, *self.tuns], [], [], wait)[0]:
                if ready:
                    self.take(host_of[ready], ready)
                    continue
                said = os.read(0, 4096)
                if not said:
                    return
                *commands, lines = (lines + said).split(b"\n")
                for command in commands:
                    print(json.dumps(self.obey(command.decode().split())), flush=True)

    def take(self, source, tun):
        """What a host sends."""
        now = time.monotonic()
        for _ in range(BATCH):
            try:
                packet = os.read(tun, MTU_BYTES + 64)
            except BlockingIOError:
                return
            # IPv4 only (the kernel says things in IPv6 that nobody needs); the destination's last byte is its host.
            if packet[0] >> 4 != 4 or packet[16:19] != b"\x0a\x4d\x00":
                continue
            way = self.ways.get((source, packet[19] - 1))
            if way is None:
                continue
            if way.is_cut:
                way.refused += 1
                continue
            at = now
            if way.rate:
                start = max(way.free_at, now)
                if (start - now) * way.rate > max(way.rate * QUEUE_SECONDS, QUEUE_BYTES_MIN):
                    way.full += 1
                    continue
                at = way.free_at = start + len(packet) / way.rate
            if way.loss and self.random.random() < way.loss:
                way.lost += 1
                continue
            due = at + way.delay_seconds
            if due <= now and not self.under_way:
                self.give(way, self.tuns[packet[19] - 1], packet)
            else:
                heapq.heappush(self.under_way, (due, next(self.sequence), way, self.tuns[packet[19] - 1], packet))

    def deliver(self):
        """What is due."""
        now = time.monotonic()
        while self.under_way and self.under_way[0][0] <= now:
            due, _, way, tun, packet = heapq.heappop(self.under_way)
            if now - due > LATE_SECONDS:
                self.late += 1
            self.latest_seconds = max(self.latest_seconds, now - due)
            self.give(way, tun, packet)

    @staticmethod
    def give(way, tun, packet):
        if way.is_cut:
            way.refused += 1
            return
        try:
            os.write(tun, packet)
        except OSError:
            way.full += 1
            return
        way.carried += 1
        way.carried_bytes += len(packet)

    def obey(self, words):
        try:
            if words == ["count"]:
                return self.count()
            verb, a, b, *settings = words
            pair = [self.ways[int(a), int(b)], self.ways[int(b), int(a)]]
            change = {"set": set_way, "cut": cut, "heal": heal}[verb]
            for way in pair:
                change(way, settings)
            return {}
        except (KeyError, ValueError, TypeError) as error:
            return {"error": f"{' '.join(words)}: {error!r}"}

    def count(self):
        ways = [{"from": a, "to": b, "packets": way.carried, "bytes": way.carried_bytes, "lost": way.lost, "full": way.full,
                 "refused": way.refused} for (a, b), way in self.ways.items()]
        return {"ways": ways, "late": self.late, "latest_seconds": self.latest_seconds}


def set_way(way, settings):
    for key, value in zip(settings[::2], settings[1::2], strict=True):
        value = float(value)
        if key == "delay_ms":
            way.delay_seconds = value / 1e3
        elif key == "loss" and 0 <= value < 1:
            way.loss = value
        elif key == "rate_mbit":
            way.rate, way.free_at = value * 1e6 / 8, 0.0
        else:
            raise ValueError(f"{key} {value}")


def cut(way, _settings):
    way.is_cut = True


def heal(way, _settings):
    way.is_cut = False


def ip(*arguments):
    done = subprocess.run(["ip", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def main():
    prefix, hosts = sys.argv[1], int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started us ends us
    try:
        os.nice(-10)  # a packet that is late would look like jitter
    except OSError:
        pass
    emulator = Emulator(prefix, hosts)
    try:
        emulator.make_hosts()
        print(json.dumps({"ready": True}), flush=True)
        emulator.run()
    except OSError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        sys.exit(1)
    finally:
        emulator.remove_hosts()


if __name__ == "__main__":
    main()
