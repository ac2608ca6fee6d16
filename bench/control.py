"""How the mesh's own words fare beside lanes that are full, and beside idle ones.

Three brokers in a line, the first the root, each link full both ways or idle. A client at the last subscribes over and over, and gets each SUBACK when
all brokers know of it (`subscribe_ack = "mesh"`): that is two links there and back beside all that the lanes carry. Beside it the same client's PINGRESP,
which no link has to do with: what the machine itself takes. Then the root is killed under the same load: when its neighbour notices, and how much later
the last broker, to which nothing but a BPDU tells it, has the next tree.

This file is also the program that asks, since it must run where clients are:

    control.py SECONDS BROKER HEALTH...     (addresses) prints what it found, as JSON
"""

import contextlib
import datetime
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time

import brokers
import mqtt

# What brokers log, so that a moment can be told from it.
LOG = "info,mqtt_st_quic::mesh::driver::tree=debug"
# Until lanes are as full as they get.
WARM_UP_SECONDS = 3.0
# Between two questions, so that they load nothing.
PAUSE_SECONDS = 0.05
LOOK_SECONDS = 0.25
GAUGES = {"round_trip_ms": "mesh_link_rtt_seconds", "hello_jitter_ms": "mesh_link_hello_jitter_seconds"}
# A death that is not noticed by then is not noticed.
NOTICE_SECONDS = 15.0
PATIENCE_SECONDS = 60.0


def measure(program, net, up, load, seconds, account):
    """All of it, for one start of the brokers. `account(others)` says what processors did meanwhile; `others` is the load's processor time."""
    with loaded(program, net, up, load) as processes:
        time.sleep(WARM_UP_SECONDS)
        still_there(processes)
        found = asked(net, up, seconds)
        still_there(processes)
        found |= account(sum(brokers.cpu_seconds_of(process.pid) for process, _ in processes))
        return found | killed(up)


@contextlib.contextmanager
def loaded(program, net, up, load):
    """Both links full, both ways; nothing where there is no `load`. One load a link, so that the death of a broker ends that of its link alone."""
    first, middle, last = (broker.address for broker in up)
    processes = []
    try:
        for end in (first, last) if load else ():
            complaints = tempfile.TemporaryFile("w+")
            argv = [*net.driver, program, "pair", "--quiet", "--broker", middle, "--broker", end, "--subscribe-at", end, "--subscribe-at", middle,
                    "--duration", "1000s", *map(str, load)]
            processes.append((subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=complaints), complaints))
        yield processes
    finally:
        for process, complaints in processes:
            process.kill()
            process.wait()
            complaints.close()


def still_there(processes):
    for process, complaints in processes:
        if process.poll() is not None:
            complaints.seek(0)
            raise brokers.StartError(f"{' '.join(process.args)}: {complaints.read().strip()[-500:]}")


def asked(net, up, seconds):
    """What a client hears, by the program below."""
    argv = [*net.driver, sys.executable, os.path.abspath(__file__), str(seconds), up[-1].address, *(broker.health for broker in up)]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds + PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        raise brokers.StartError(f"{' '.join(argv)}: no end after {seconds + PATIENCE_SECONDS:.0f} s") from None
    if done.returncode:
        raise brokers.StartError(f"{' '.join(argv)}: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout)


def killed(up):
    """The root dies; by the clock of this machine, which all brokers share."""
    at = time.time()
    up[0].kill()
    until = time.monotonic() + NOTICE_SECONDS
    while time.monotonic() < until:
        down = first_line(up[1], at, f"link down peer={up[0].name} ")
        before, after = first_line(up[1], at, ": tree epoch="), first_line(up[2], at, ": tree epoch=")
        if down and before and after:
            return {"noticed_seconds": down - at, "passed_on_ms": (after - before) * 1e3}
        time.sleep(0.05)
    raise brokers.StartError(f"{up[0].address} is dead, and {up[1].address if not down else up[2].address} has not noticed after {NOTICE_SECONDS:.0f} s")


def first_line(broker, since, word):
    return next((at for at, line in said(broker) if at >= since and word in line), None)


def said(broker):
    """Lines of a log, with their times in seconds since 1970. One that is still being written may have none."""
    with open(broker.log, errors="replace") as log:
        for line in log:
            with contextlib.suppress(ValueError):
                at = datetime.datetime.strptime(line.partition(" ")[0], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=datetime.timezone.utc)
                yield at.timestamp(), line


# -- the program that asks

def ask(seconds, address, health):
    with contextlib.suppress(OSError):
        os.nice(-10)  # our own waiting for a processor would look like theirs
    done, looked = threading.Event(), {name: [] for name in GAUGES}
    looker = threading.Thread(target=look, args=(done, health, looked))
    before, begun = [metrics(one) for one in health], time.monotonic()
    looker.start()
    try:
        subacks, pings = subscribe(address, begun + seconds)
    finally:
        done.set()
        looker.join()
    lasted, after = time.monotonic() - begun, [metrics(one) for one in health]

    def growth(name, of=range(len(health))):
        return sum(total(after[number], name) - total(before[number], name) for number in of)

    # The one in the middle has both links.
    carried = growth("mesh_link_sent_bytes", [1]) + growth("mesh_link_received_bytes", [1])
    return looked | {"suback_ms": subacks, "ping_ms": pings, "bytes_per_second_each_way": carried / 4 / lasted,
            "links_lost": growth("mesh_links_closed"), "why_lost": [line for text in after for line in lines(text, "mesh_links_closed")], "tree_changes": growth("mesh_tree_changes")}


def subscribe(address, until):
    client = mqtt.Client(address, "control", is_clean=True)
    subacks, pings = [], []
    while time.monotonic() < until:
        pings.append(milliseconds(client.ping))
        subacks.append(milliseconds(lambda: client.subscribe([f"control/{len(subacks)}"], 0)))
        time.sleep(PAUSE_SECONDS)
    client.close()
    return subacks, pings


def look(done, health, looked):
    """What brokers have averages of, now and then."""
    while not done.wait(LOOK_SECONDS):
        for text in map(metrics, health):
            for name, found in looked.items():
                found.extend(round(value * 1e3, 3) for value in values(text, GAUGES[name]))


def milliseconds(do):
    begun = time.monotonic()
    do()
    return round((time.monotonic() - begun) * 1e3, 3)


def metrics(address):
    connection = http.client.HTTPConnection(address, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()


def lines(text, name):
    return [line for line in text.splitlines() if re.match(rf"mqtt_st_quic_{name}(_total)?[{{ ]", line)]


def values(text, name):
    return [float(line.rpartition(" ")[2]) for line in lines(text, name)]


def total(text, name):
    return sum(values(text, name))


if __name__ == "__main__":
    json.dump(ask(float(sys.argv[1]), sys.argv[2], sys.argv[3:]), sys.stdout)
