"""What is compared: the loads of each family, as data, and how one of them is measured."""

import dataclasses
import functools
import json
import os
import platform
import resource
import shlex
import subprocess
import tempfile
import threading
import time

import brokers
import control
import network

# Where brokers and load run: processors, or None for wherever the system puts them.
_cores = sorted(os.sched_getaffinity(0))
PLACEMENTS = {"free": (None, None), "pinned": ({_cores[0]}, {_cores[-1]})}
# Beyond what a run is to take; then it is ended, and counts as failed.
PATIENCE_SECONDS = 120

CHAIN, HUB, PAIR, TRIANGLE = ((), (0,), (1,)), ((), (0,), (0,), (0,), (0,)), ((), (0,)), ((), (0,), (0, 1))
LINE_OF_FIVE = ((), (0,), (1,), (2,), (3,))


@dataclasses.dataclass(frozen=True)
class Scenario:
    """One load, and what it is put on."""

    name: str
    mode: str  # of loadtest
    load: tuple  # its options
    qos: int = 0
    parents: tuple = ((),)  # for each broker those that it is joined to
    publish_at: tuple = (0,)
    subscribe_at: tuple = (0,)
    priorities: tuple | None = None  # of each broker; the lowest is the root of a mesh of ours
    between: dict | None = None  # settings of the emulator; none: on loopback
    placements: tuple = ("free", "pinned")
    fault: str = ""
    seconds: float | None = None  # how long, whatever --seconds says
    ours_only: bool = False
    is_timed: bool = True  # whether it takes --duration


def pairs(qos, parents, publish_at, subscribe_at, name, **more):
    load = ("--pairs", 10, "--payload-bytes", 40, "--window", 100)
    return Scenario(f"{name}, QoS {qos}", "pair", load, qos, parents, (publish_at,), (subscribe_at,), **more)


def single():
    """One broker. The windows bound the batch, and with it the cost."""
    fans = [Scenario(f"1 to {n}, QoS {qos}", "fanout", ("--subscribers", n), qos) for n, qos in ((1, 0), (10, 0), (100, 0), (1000, 0), (100, 1))]
    many = [Scenario("100 to 1, QoS 0", "fanin", ("--publishers", 100)),
            Scenario("100 pairs, QoS 0", "pair", ("--pairs", 100, "--payload-bytes", 40, "--window", 20))]
    few = [Scenario(f"10 pairs, QoS {qos}", "pair", ("--pairs", 10, "--payload-bytes", 40, "--window", 100), qos) for qos in (1, 2)]
    slow = Scenario("1 to 1, 10,000/s, QoS 0", "latency", ("--rate", 10_000, "--payload-bytes", 40))
    idle = Scenario("10,000 idle clients", "connect", ("--connections", 10_000, "--hold", "3s"), placements=("pinned",), is_timed=False)
    return [*fans, *many, *few, slow, idle]


def joined():
    """Brokers joined, on loopback."""
    chains = [pairs(qos, CHAIN, 0, 2, "chain of 3") for qos in (0, 1)]
    hubs = [pairs(qos, HUB, 1, 2, "hub, leaf to leaf of 4") for qos in (0, 1)]
    spread = Scenario("1 to 100 at each of 3, QoS 0", "fanout", ("--subscribers", 300, "--window", 100), parents=CHAIN,
                      subscribe_at=(0, 1, 2))
    slow = Scenario("chain of 3, 1,000/s, QoS 0", "latency", ("--rate", 1_000, "--payload-bytes", 40), parents=CHAIN,
                    subscribe_at=(2,), placements=("free",))
    return [*chains, *hubs, spread, slow]


def wan():
    """Emulated links of 20 ms there and back: two brokers, with loss; then a chain and a hub, as on loopback."""
    found = []
    for loss in (0.0, 0.01, 0.03):
        link = {"delay_ms": 10, "loss": loss}
        more = {"parents": PAIR, "subscribe_at": (1,), "between": link, "placements": ("free",)}
        said = f"{loss:.0%} lost"
        found += [Scenario(f"{said}, {rate:,}/s, QoS 0", "latency", ("--rate", rate, "--payload-bytes", 40), **more) for rate in (1_000, 10_000)]
        found += [pairs(qos, PAIR, 0, 1, said, between=link, placements=("free",)) for qos in (0, 1)]
    # Many topics, and so many lanes: what is lost of one holds up no other.
    found.append(Scenario("1% lost, 10,000/s of 20 pairs, QoS 0", "pair", ("--pairs", 20, "--payload-bytes", 40, "--rate", 10_000), parents=PAIR, subscribe_at=(1,),
                          between={"delay_ms": 10, "loss": 0.01}, placements=("free",)))
    for loss, shapes in ((0.0, (0, 1)), (0.01, (1,))):
        more = {"between": {"delay_ms": 10, "loss": loss}, "placements": ("free",)}
        found += [pairs(qos, CHAIN, 0, 2, f"chain of 3, {loss:.0%} lost", **more) for qos in shapes]
        found += [pairs(qos, HUB, 1, 2, f"hub, leaf to leaf of 4, {loss:.0%} lost", **more) for qos in shapes]
    return found


def recovery():
    """What faults do: how long messages stand still, and what becomes of them. Clients at the ends, with sessions that are kept."""
    load = ("--qos", 1, "--rate", 500, "--payload-bytes", 40)
    more = {"placements": ("free",), "seconds": 20.0}
    ends = {"publish_at": (0, 2), "subscribe_at": (0, 2)}
    link = {"delay_ms": 10}
    return [
        Scenario("middle of 3 killed, back after 2 s", "mesh", load, 1, CHAIN, fault="kill 1; wait 2; start 1", **ends, **more),
        # All that the others say to each other goes through it.
        Scenario("root of a triangle killed", "mesh", load, 1, TRIANGLE, priorities=(1, 0, 1), fault="kill 1", ours_only=True, **ends, **more),
        Scenario("20 ms there and back, cut for 5 s", "mesh", load, 1, PAIR, publish_at=(0, 1), subscribe_at=(0, 1), between=link,
                 fault="cut 0 1; wait 5; heal 0 1", **more),
    ]


def controlled():
    """What full lanes do to control: three brokers in a line, each link idle, then full both ways. `load` is what is put on each link."""
    # The first is the root, and its neighbour when it is dead.
    more = {"parents": CHAIN, "priorities": (0, 1, 2), "placements": ("free",), "ours_only": True}
    full = ("--pairs", 4, "--payload-bytes", 1_000, "--window", 150)
    paths = [("loopback", None), ("10 Mbit/s, 20 ms", {"delay_ms": 10, "rate_mbit": 10}), ("10 Mbit/s, 40 ms, 5% lost", {"delay_ms": 20, "rate_mbit": 10, "loss": 0.05})]
    return [Scenario(f"{path}, {state}", "control", load, between=between, **more)
            for path, between in paths for state, load in (("idle", ()), ("full", full))]


TOPICS = 10_000
# Of the topics that somebody wants: so many have a subscriber.
WANTED = (0.0, 0.01, 0.2)


def interest():
    """Bytes between brokers, of which some topics have a subscriber and the others none."""
    return [Scenario(f"{share:.0%} wanted", "interest", (round(TOPICS * share),), 1, LINE_OF_FIVE, tuple(range(5)), between={}, placements=("free",), is_timed=False)
            for share in WANTED]


FAMILIES = {"single": single, "joined": joined, "wan": wan, "recovery": recovery, "control": controlled, "interest": interest}


def measure(options, peer, scenario, placement):
    """One start of the brokers, probed and loaded: what was found."""
    broker_cores, load_cores = PLACEMENTS[placement]
    count = len(scenario.parents)
    with (network.Loopback(count) if scenario.between is None else network.Emulated(count, **scenario.between)) as net:
        probe = functools.partial(passes, options.loadtest, net, scenario.qos)
        watched = control.LOG if scenario.mode == "control" else ""
        with brokers.joined(peer, scenario.parents, net, probe, scenario.qos, place(broker_cores), bool(scenario.fault), scenario.priorities,
                            watched) as (up, failed_starts):
            found = {"failed_starts": failed_starts}
            counted = net.count() if scenario.between is not None else None
            before, idle = [broker.cpu_seconds() for broker in up], idle_seconds(broker_cores)
            clock = Clock(net)

            def account(still_running_seconds=0.0):
                used = [broker.cpu_seconds() - start for start, broker in zip(before, up)]
                return {"broker_cpu_seconds": used, "others_share": clock.others_share(sum(used) + still_running_seconds),
                        "idle_seconds": idle_seconds(broker_cores) - idle}

            if scenario.mode == "control":
                found |= control.measure(options.loadtest, net, up, scenario.load, options.seconds, account)
            elif scenario.mode == "interest":
                found |= interesting(options, net, up, scenario) | account()
            else:
                found["report"] = load(options, net, up, scenario, place(load_cores))
                if not scenario.fault:
                    found |= account()
            if counted:
                found |= carried(counted, net.count())
            return found


def carried(before, after):
    """What the emulator has to say of a run."""
    return {"link_bytes": {f"{a}-{b}": count for (a, b), count in network.between_links(before, after).items()},
            "emulator_packets": sum(way["packets"] for way in after["ways"]) - sum(way["packets"] for way in before["ways"]),
            "emulator_late": after["late"] - before["late"]}


def load(options, net, up, scenario, placement):
    argv = [scenario.mode, *brokers_of(up, scenario.publish_at, "--broker")]
    seconds = scenario.seconds or options.seconds
    if scenario.mode == "mesh":
        argv += ["--drain", "5s"]
    elif scenario.mode == "connect":
        argv += ["--pid", up[0].process.pid]
    else:
        argv += [*brokers_of(up, scenario.subscribe_at, "--subscribe-at"), "--qos", scenario.qos]
        if len(up) == 1:
            argv += ["--pid", up[0].process.pid]
    if scenario.is_timed:
        argv += ["--duration", f"{seconds}s"]
    argv += scenario.load
    if not scenario.fault:
        return loadtest(options.loadtest, net, argv, placement, seconds)
    with tempfile.TemporaryDirectory() as directory:
        moment = os.path.join(directory, "now")
        done = threading.Event()
        fault = threading.Thread(target=inflict, args=(net, up, scenario.fault, moment, done))
        fault.start()
        try:
            return loadtest(options.loadtest, net, [*argv, "--fault", f"3s touch {shlex.quote(moment)}"], placement, seconds)
        finally:
            done.set()
            fault.join()


def inflict(net, up, script, moment, done):
    """Waits until loadtest says that the moment has come, then breaks what is to be broken."""
    while not os.path.exists(moment):
        if done.wait(0.01):
            return
    for step in script.split(";"):
        verb, *numbers = step.split()
        numbers = [int(number) for number in numbers]
        if verb == "wait":
            done.wait(numbers[0])
        elif verb in ("cut", "heal"):
            getattr(net, verb)(*numbers)
        else:
            {"kill": up[numbers[0]].kill, "start": up[numbers[0]].start}[verb]()


def interesting(options, net, up, scenario):
    """All publish to all topics; a part of these has a subscriber each, somewhere. Bytes of the links while messages flow, and while none do."""
    wanted = scenario.load[0]
    at_rest = net.count()
    time.sleep(options.seconds)
    rested = net.count()
    # A message of each topic from each of five publishers: the publishers of the topics that are wanted are at all brokers in turn, and their
    # subscribers beside them, one, two, three and four brokers away, as often.
    rate, each = 2_000, len(up)
    subscribe_at = [(publisher + away) % len(up) for away in range(len(up)) for publisher in range(len(up))]
    flows = [("pub", TOPICS - wanted, ["--publishers", len(up), "--topics", max(1, (TOPICS - wanted) // len(up)), "--count", (TOPICS - wanted) // len(up) * each]),
             ("pair", wanted, [*brokers_of(up, subscribe_at, "--subscribe-at"), "--pairs", wanted, "--count", each])]
    reports = []
    begun = time.monotonic()
    for mode, topics, how in flows:
        if topics:
            argv = [mode, *brokers_of(up, scenario.publish_at, "--broker"), "--qos", 1, "--payload-bytes", 100, "--rate", rate, *how]
            reports.append(loadtest(options.loadtest, net, argv, None, topics * each / rate))
    seconds = time.monotonic() - begun
    idle = network.between_links(at_rest, rested)
    report = {key: sum(report[key] for report in reports) for key in ("sent", "acknowledged", "delivered", "lost", "duplicated", "reordered", "corrupted", "foreign")}
    return {"report": report, "seconds": seconds,
            "idle_bytes_per_second": {f"{a}-{b}": count / options.seconds for (a, b), count in idle.items()}, "rest_seconds": options.seconds}


def brokers_of(up, numbers, option):
    return [word for number in numbers for word in (option, up[number].address)]


def loadtest(program, net, argv, placement, seconds):
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        argv = [*net.driver, program, argv[0], "--quiet", "--json", report.name, *map(str, argv[1:])]
        said = " ".join(argv)
        try:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=placement,
                                  timeout=seconds + PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            raise brokers.StartError(f"{said}: no end after {seconds + PATIENCE_SECONDS:.0f} s") from None
        if done.returncode:
            raise brokers.StartError(f"{said}: {done.stderr.strip()}")
        with open(report.name) as file:
            return json.load(file)


def passes(program, net, qos, up):
    """Why no message comes from each end to the other; nothing if they do. The ends are the first broker and all that nobody is joined to."""
    for other in up[1:] or up[:1]:
        probe = [*net.driver, program, "pair", "--quiet", "--broker", up[0].address, "--subscribe-at", other.address, "--qos", str(qos), "--count", "1",
                 "--timeout", "1s", "--drain", "500ms", "--fail-on", "lost>0"]
        try:
            done = subprocess.run(probe, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  timeout=brokers.PROBE_SECONDS)
        except subprocess.TimeoutExpired:
            return f"{' '.join(probe)}: no end after {brokers.PROBE_SECONDS:.0f} s"
        if done.returncode:
            return done.stdout.strip()[-300:]
    return ""


class Clock:
    """What programs that have nothing to do with a run use of the processors meanwhile."""

    def __init__(self, net):
        self.net = net
        self.start = self.look()

    def look(self):
        children, own = resource.getrusage(resource.RUSAGE_CHILDREN), resource.getrusage(resource.RUSAGE_SELF)
        ours = children.ru_utime + children.ru_stime + own.ru_utime + own.ru_stime + self.net.cpu_seconds()
        return time.monotonic(), idle_seconds(None), ours

    def others_share(self, brokers_seconds):
        (from_time, from_idle, from_ours), (to_time, to_idle, to_ours) = self.start, self.look()
        there_was = (to_time - from_time) * os.cpu_count()
        others = there_was - (to_idle - from_idle) - (to_ours - from_ours) - brokers_seconds
        return max(others / there_was, 0.0)


def idle_seconds(cores):
    """Time that these processors, or all, have had nothing to do."""
    with open("/proc/stat") as stat:
        lines = [line.split() for line in stat if line.startswith("cpu") and line[3].isdigit()]
    return sum((int(line[4]) + int(line[5])) / brokers.TICKS_PER_SECOND
               for line in lines if cores is None or int(line[0][3:]) in cores)


def place(cores):
    """For a child, before it runs: onto `cores`."""
    return functools.partial(os.sched_setaffinity, 0, cores) if cores else None


def commit():
    said = subprocess.run(["git", "-C", os.path.dirname(os.path.abspath(__file__)), "describe", "--always", "--dirty"], capture_output=True, text=True)
    return said.stdout.strip() or "unknown"


def machine():
    with open("/proc/cpuinfo") as cpuinfo:
        models = [line.partition(":")[2].strip() for line in cpuinfo if line.startswith("model name")]
    with open("/proc/meminfo") as meminfo:
        memory_kib = int(meminfo.readline().split()[1])
    with open("/proc/sys/net/ipv4/tcp_congestion_control") as congestion:
        tcp = congestion.read().strip()
    return {"processors": os.cpu_count(), "model": models[0] if models else platform.machine(), "kernel": platform.release(),
            "memory_gib": round(memory_kib / 2**20), "tcp": tcp, "load_average": os.getloadavg()[0]}
