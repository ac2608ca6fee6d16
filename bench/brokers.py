"""Brokers to compare: how each kind is configured, started, joined to others, stopped, and how what it uses is read.

Needs nothing but Python's standard library. Where brokers run is network.py's business.
"""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time

START_SECONDS = 10.0
STARTS = 5
# A probe may wait so long for what never comes.
PROBE_SECONDS = 5.0
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class StartError(Exception):
    """A broker, or brokers that are to be joined, that did not come up."""


class NotUp(StartError):
    """What did not come up however often it was started."""


class Broker:
    """One process, and where it is reached."""

    def __init__(self, argv, directory, place, placement, address, mesh_address=None, ready=None, name=None, health=None):
        self.argv, self.log, self.placement = [*place.prefix, *argv], os.path.join(directory, "log"), placement
        self.address, self.mesh_address, self.ready, self.name, self.health = address, mesh_address, ready, name, health
        self.start()

    def start(self):
        if self.ready and os.path.exists(self.ready):
            os.remove(self.ready)
        with open(self.log, "a") as log:
            # The child inherits the placement before it decides how many threads it needs.
            self.process = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=self.placement)

    def wait_ready(self):
        """For brokers that say when they are; the others are probed."""
        until = time.monotonic() + START_SECONDS
        while self.ready and not os.path.exists(self.ready):
            self.check()
            if time.monotonic() > until:
                raise StartError(f"{self.argv[0]} was not ready within {START_SECONDS:.0f} s")
            time.sleep(0.02)

    def check(self):
        if self.process.poll() is not None:
            with open(self.log, errors="replace") as log:
                raise StartError(f"{' '.join(self.argv)} ended with {self.process.returncode}: {log.read()[-500:].strip()}")

    def cpu_seconds(self):
        """Processor time used so far, user and kernel, in steps of 10 ms."""
        try:
            return cpu_seconds_of(self.process.pid)
        except OSError:
            self.check()
            raise

    def resident_bytes(self):
        with open(f"/proc/{self.process.pid}/stat") as stat:
            return int(stat.read().rpartition(")")[2].split()[21]) * os.sysconf("SC_PAGE_SIZE")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()


def cpu_seconds_of(pid):
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


class Mosquitto:
    """Bridges of Mosquitto: every message in both directions, which is right for a tree and for nothing with a cycle."""

    name = "mosquitto"
    joins = True
    families = None

    def __init__(self, program=None):
        self.program = program or shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        if not self.program:
            raise StartError("mosquitto is not installed (apt-get install mosquitto), or name it with --peer mosquitto=PATH")
        if not os.access(self.program, os.X_OK):
            raise StartError(f"{self.program} cannot be run (--peer mosquitto=PATH)")

    def version(self):
        said = subprocess.run([self.program, "-h"], capture_output=True, text=True).stdout
        return said.splitlines()[0].removeprefix("mosquitto version ")

    def prepare(self, directory):
        pass

    def start(self, setting, before):
        port = setting.port()
        # Limits that do not bound the windows of the load; the rest is the default.
        lines = [f"listener {port} 0.0.0.0" if setting.place.prefix else f"listener {port} 127.0.0.1", "allow_anonymous true",
                 "log_type error", "set_tcp_nodelay true", "max_inflight_messages 1000", "max_queued_messages 100000"]
        if setting.is_durable:
            lines += ["persistence true", f"persistence_location {setting.directory}/", "autosave_interval 1",
                      *([f"user {owner()}"] if os.geteuid() == 0 else [])]
        for number, other in enumerate(before):
            link = f"{setting.name}-{number}"
            lines += [f"connection {link}", f"address {other.mesh_address}", f"topic # both {setting.qos}", "notifications false",
                      "restart_timeout 1", "keepalive_interval 5", "cleansession false", f"remote_clientid {link}",
                      f"local_clientid local.{link}"]
        path = setting.write("mosquitto.conf", "\n".join(lines) + "\n")
        return Broker([self.program, "-c", path], setting.directory, setting.place, setting.placement,
                      f"{setting.place.client_ip}:{port}", f"{setting.place.mesh_ip}:{port}")


class Ours:
    """A mesh of ours, with certificates of a throw-away authority; alone without a mesh."""

    name = "mqtt-st-quic"
    joins = True
    mesh = "bench"

    def __init__(self, program, families=None, other_build="", **settings):
        """With `settings` of [mesh], or as another build, it is another peer, for these families only."""
        self.program, self.families, self.settings = program, families, settings
        self.name = ", ".join([self.name, *[os.path.basename(other_build)] * bool(other_build), *(f"{key} = {value}" for key, value in settings.items())])
        if not os.access(program, os.X_OK):
            raise StartError(f"{program} is missing (cargo build --release), or name it with --binary")

    def version(self):
        said = subprocess.run([self.program, "--version"], capture_output=True, text=True, check=True).stdout
        return said.split()[-1]

    def prepare(self, directory):
        self.pki = os.path.join(directory, "certs")
        self.certs("ca", "--mesh", self.mesh, "--out", self.pki)

    def certs(self, *arguments):
        done = subprocess.run([self.program, "certs", *arguments], capture_output=True, text=True)
        if done.returncode:
            raise StartError(f"{self.program} certs: {done.stderr.strip()}")

    def start(self, setting, before):
        text = json.dumps  # a JSON string, number or list of strings is one in TOML, too
        port, ready = setting.port(), os.path.join(setting.directory, "ready.json")
        tables = {"": {"name": setting.name, "data_dir": os.path.join(setting.directory, "data")},
                  "[listener]": {"bind": f"{setting.place.client_ip}:{port}", "allow_anonymous": True},
                  "persistence": {"enabled": setting.is_durable},
                  "limits": {"max_connections": 100_000}}
        mesh_address = None
        if setting.is_joined:
            mesh_address = f"{setting.place.mesh_ip}:{setting.port(socket.SOCK_DGRAM)}"
            self.certs("broker", "--mesh", self.mesh, "--name", setting.name, "--san", setting.place.mesh_ip, "--ca", self.pki,
                       "--out", self.pki)
            pki = os.path.join(self.pki, setting.name)
            tables["mesh"] = {"name": self.mesh, "listen": mesh_address, "peers": [other.mesh_address for other in before],
                              "discovery": ["static"], "subscribe_ack": "mesh", "cafile": os.path.join(self.pki, "ca.pem"),
                              "certfile": f"{pki}.pem", "keyfile": f"{pki}.key"}
            tables["mesh"] |= self.settings
            if setting.priority is not None:
                tables["mesh"]["priority"] = setting.priority
        health = None
        if setting.watched:
            tables["log"] = {"filter": setting.watched}
            health = f"{setting.place.client_ip}:{setting.port(standard=9884)}"
            tables["health"] = {"bind": health}
        lines = []
        for table, keys in tables.items():
            lines += [f"[{table}]"] * bool(table) + [f"{key} = {text(value)}" for key, value in keys.items()]
        path = setting.write("broker.toml", "\n".join(lines) + "\n")
        return Broker([self.program, "serve", "--config", path, "--ready-file", ready], setting.directory, setting.place,
                      setting.placement, f"{setting.place.client_ip}:{port}", mesh_address, ready, setting.name, health)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How another broker is started on its own. `{port}` is where it listens, `{file}` a file with `configuration`."""

    arguments: tuple
    configuration: str = ""
    environment: tuple = ()
    version: tuple = ("--version",)


# As their documentation has it. Anonymous clients on loopback, limits that do not bound the windows of the load, the rest the default.
RECIPES = {
    "flashmq": Recipe(("--config-file", "{file}"), """allow_anonymous true
max_qos_msg_pending_per_client 65535
listen {
  protocol mqtt
  inet_protocol ip4
  inet4_bind_address 127.0.0.1
  port {port}
}
"""),
    "nanomq": Recipe(("start", "--conf", "{file}"), """listeners.tcp {
  bind = "127.0.0.1:{port}"
}
mqtt {
  max_inflight_window = 2048
  max_mqueue_len = 2048
}
auth {
  allow_anonymous = true
}
log {
  to = [console]
  level = error
}
"""),
    "rumqttd": Recipe(("--config", "{file}"), """id = 0
[router]
id = 0
max_connections = 20010
max_outgoing_packet_count = 200
max_segment_size = 104857600
max_segment_count = 10
[v4.1]
name = "v4-1"
listen = "127.0.0.1:{port}"
next_connection_delay_ms = 0
[v4.1.connections]
connection_timeout_ms = 60000
max_payload_size = 20480
max_inflight_count = 1000
dynamic_filters = true
"""),
    "rmqtt": Recipe(("-f", "{file}"), """node.id = 1
rpc.server_addr = "127.0.0.1:0"
log.to = "console"
log.level = "error"
listener.tcp.external.addr = "127.0.0.1:{port}"
listener.tcp.external.allow_anonymous = true
listener.tcp.external.max_inflight = 1000
listener.tcp.external.max_mqueue_len = 100000
listener.tcp.external.mqueue_rate_limit = "4294967295,1s"
"""),
    "emqx": Recipe(("foreground",), environment=(
        ("EMQX_LISTENERS__TCP__DEFAULT__BIND", "127.0.0.1:{port}"), ("EMQX_LISTENERS__SSL__DEFAULT__ENABLED", "false"),
        ("EMQX_LISTENERS__WS__DEFAULT__ENABLED", "false"), ("EMQX_LISTENERS__WSS__DEFAULT__ENABLED", "false"),
        ("EMQX_DASHBOARD__LISTENERS__HTTP__BIND", "0"), ("EMQX_MQTT__MAX_INFLIGHT", "1000"),
        ("EMQX_LOG__CONSOLE__LEVEL", "error")), version=("--help",)),
}


class Foreign:
    """Another broker, by its recipe, on its own."""

    joins = False
    families = None

    def __init__(self, name, program):
        self.name, self.program, self.recipe = name, program, RECIPES[name]
        if not os.access(program, os.X_OK):
            raise StartError(f"{program} cannot be run (--peer {name}=PATH)")

    def version(self):
        """The first word of what it says that begins with a digit."""
        try:
            done = subprocess.run([self.program, *self.recipe.version], capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return "?"
        words = (done.stdout + done.stderr).replace(",", " ").split()
        return next((word.removeprefix("v") for word in words if word.removeprefix("v")[:1].isdigit()), "?")

    def prepare(self, directory):
        pass

    def start(self, setting, _before):
        port = setting.port()
        path = setting.write("configuration", self.recipe.configuration.replace("{port}", str(port)))
        arguments = [argument.replace("{file}", path) for argument in self.recipe.arguments]
        variables = [f"{key}={value.replace('{port}', str(port))}" for key, value in self.recipe.environment]
        return Broker(["env", *variables, self.program, *arguments] if variables else [self.program, *arguments],
                      setting.directory, setting.place, setting.placement, f"{setting.place.client_ip}:{port}")


@dataclasses.dataclass(frozen=True)
class Setting:
    """What one broker is started with."""

    name: str
    directory: str
    place: object
    placement: object  # of its threads: what a child does before it runs
    qos: int
    is_joined: bool
    is_durable: bool
    priority: int | None = None  # the lowest is the root
    watched: str = ""  # what it is to log, where its health is looked at as well

    def port(self, kind=socket.SOCK_STREAM, standard=1883):
        """A free one; in a namespace, where nobody else is, always the same."""
        if self.place.prefix:
            return standard
        with socket.socket(socket.AF_INET, kind) as free:
            free.bind((self.place.client_ip, 0))
            return free.getsockname()[1]

    def write(self, file, content):
        path = os.path.join(self.directory, file)
        with open(path, "w") as out:
            out.write(content)
        return path


@contextlib.contextmanager
def joined(kind, parents, network, probe, qos=0, placement=None, is_durable=False, priorities=None, watched=""):
    """Brokers of one kind, each joined to those before it that `parents` names, through all of which `probe(brokers)` has come; anew until that
    is so, since bridges do not always come up. Yields the brokers and how many starts failed before."""
    why = ""
    for failures in range(STARTS):
        with tempfile.TemporaryDirectory(prefix="bench-") as directory, contextlib.ExitStack() as stack:
            brokers = []
            try:
                kind.prepare(directory)
                for number, before in enumerate(parents):
                    own = os.path.join(directory, str(number))
                    os.mkdir(own)
                    setting = Setting(f"bench-{number}", own, network.places[number], placement, qos, len(parents) > 1, is_durable,
                                      priorities and priorities[number], watched)
                    brokers.append(kind.start(setting, [brokers[other] for other in before]))
                    stack.callback(brokers[-1].stop)
                    brokers[-1].wait_ready()
                why = not_joined(brokers, probe)
            except StartError as error:
                why = str(error)
            if not why:
                yield brokers, failures
                return
    raise NotUp(f"{len(parents)} of {kind.name} did not come up in {STARTS} starts: {why}")


def not_joined(brokers, probe):
    """Why no message comes through; nothing if it does."""
    until = time.monotonic() + START_SECONDS
    why = ""
    while time.monotonic() < until:
        for broker in brokers:
            broker.check()
        why = probe(brokers)
        if not why:
            return ""
        time.sleep(0.1)
    return why


def owner():
    """The user this runs as: Mosquitto would give up root, and then could not write where we can."""
    import pwd
    return pwd.getpwuid(os.geteuid()).pw_name
