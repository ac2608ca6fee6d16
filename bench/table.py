"""From raw results to the table of README.md: medians with their spread, and the ratio between peers of one run."""

import json
import statistics

BEGIN, END = "<!-- compare: begin -->", "<!-- compare: end -->"

# Below this share of the processor time that they could have had, brokers wait for the load: their rows say nothing about
# their cost at the limit.
BUSY_SHARE = 0.5

HEADER = """| chain of {length} | broker | messages/s | CPU µs a message | p50 / p99 ms | lost | brokers busy |
|---|---|---|---|---|---|---|
"""


def spread(values, digits):
    """Median, least and greatest."""
    if not values:
        return "not measured"
    median, least, most = statistics.median(values), min(values), max(values)
    return f"{median:,.{digits}f} ({least:,.{digits}f} to {most:,.{digits}f})"


def cpu_us(run):
    return sum(run["broker_cpu_seconds"]) * 1e6 / max(run["report"]["delivered"], 1)


def busy(run):
    """What the brokers used of the time that was theirs: used by them, or by nobody. What others used does not count."""
    used = sum(run["broker_cpu_seconds"])
    return used / (used + run["idle_seconds"])


def rate(run):
    return run["report"]["delivered_per_second"]


def row(peer, version, qos, runs):
    free = [run for run in runs if run["placement"] == "free"]
    pinned = [run for run in runs if run["placement"] == "pinned"]
    measured = [run for run in pinned if busy(run) >= BUSY_SHARE]
    latency = [[run["report"]["latency_us"][quantile] / 1e3 for run in free if run["report"]["latency_us"]]
               for quantile in ("p50", "p99")]
    quantiles = " / ".join(f"{statistics.median(values):.2f}" if values else "?" for values in latency)
    lost = sum(run["report"]["lost"] for run in runs)
    share = " / ".join(f"{statistics.median(map(busy, group)):.0%}" for group in (pinned, free) if group)
    return (f"| QoS {qos} | {peer} {version} | {spread([rate(run) for run in free], 0)} | "
            f"{spread([cpu_us(run) for run in measured], 2)} | {quantiles} | {lost} | {share} |\n")


def ratios(results, qos):
    """How the peers compare, in the same rounds."""
    def median(peer, placement, value, keep=lambda run: True):
        values = [value(run) for run in results["runs"]
                  if (run["peer"], run["qos"], run["placement"]) == (peer, qos, placement) and keep(run)]
        return statistics.median(values) if values else None
    peers = list(results["peers"])
    if len(peers) != 2:
        return ""
    ours, theirs = peers
    said = []
    rates = [median(peer, "free", rate) for peer in (ours, theirs)]
    if all(rates):
        said.append(f"{rates[0] / rates[1]:.1f} times the messages a second")
    costs = [median(peer, "pinned", cpu_us, lambda run: busy(run) >= BUSY_SHARE) for peer in (ours, theirs)]
    if all(costs):
        said.append(f"{costs[1] / costs[0]:.1f} times less CPU a message")
    return f"QoS {qos}: {ours} has {' and '.join(said)}.\n" if said else ""


def render(results):
    settings, machine = results["settings"], results["machine"]
    text = HEADER.format(length=settings["length"])
    for qos in settings["qos"]:
        for peer, version in results["peers"].items():
            runs = [run for run in results["runs"] if (run["peer"], run["qos"]) == (peer, qos)]
            if runs:
                text += row(peer, version, qos, runs)
    text += "\n" + "".join(ratios(results, qos) for qos in settings["qos"])
    text += (f"\n{results['date']}, commit {results['commit']}, {machine['processors']} x {machine['model']}, Linux "
             f"{machine['kernel']}. {settings['pairs']} pairs from the first broker to the last, {settings['payload_bytes']} B, "
             f"window {settings['window']}, {settings['rounds']} rounds of {settings['seconds']} s, interleaved, chains started "
             "anew for each; median (least to greatest). CPU is the sum of all brokers, they on one core and the load on "
             "another; the rest is unpinned. "
             f"`busy` (pinned / unpinned) is what the brokers used of the processor time that nobody else did; below "
             f"{BUSY_SHARE:.0%} the CPU is not compared.\n")
    return text


def update(readme, results):
    """Replaces the table between the marks of `readme`."""
    with open(readme) as file:
        before, _, rest = file.read().partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"{readme} lacks the lines {BEGIN} and {END}")
    with open(readme, "w") as file:
        file.write(f"{before}{BEGIN}\n{render(results)}{END}{after}")


def load(path):
    with open(path) as file:
        return json.load(file)
