"""From raw results to the tables of README.md: medians with their spread, and the ratio between peers of one run."""

import json
import statistics

# Below this share of the processor time that they could have had, brokers wait for the load: their rows say nothing about
# their cost at the limit.
BUSY_SHARE = 0.5

TITLES = {
    "single": "One broker",
    "joined": "Brokers joined, on loopback",
    "wan": "Over links of 20 ms there and back",
    "recovery": "Faults",
    "control": "Control beside full lanes",
    "interest": "What nobody wants",
}


def spread(values, digits):
    """Median, least and greatest."""
    values = [value for value in values if value is not None]
    if not values:
        return "not measured"
    median, least, most = statistics.median(values), min(values), max(values)
    if len(values) == 1:
        return f"{median:,.{digits}f}"
    return f"{median:,.{digits}f} ({least:,.{digits}f} to {most:,.{digits}f})"


def cpu_us(run):
    connections = run["report"].get("connections")
    count = connections["opened"] if connections else run["report"]["delivered"]
    return sum(run["broker_cpu_seconds"]) * 1e6 / max(count, 1)


def busy(run):
    """What the brokers used of the time that was theirs: used by them, or by nobody. What others used does not count."""
    used = sum(run["broker_cpu_seconds"])
    return used / max(used + run["idle_seconds"], 1e-9)


def rate(run):
    connections = run["report"].get("connections")
    return connections["opened_per_second"] if connections else run["report"]["delivered_per_second"]


def at_limit(run):
    """Whether the load asked for all that there is, and the brokers were busy enough that their cost is told."""
    return run["report"].get("rate") is None and busy(run) >= BUSY_SHARE


def gap_seconds(run):
    return max((flow["gap_ms"] for flow in run["report"]["mesh"]["flows"]), default=0.0) / 1e3


def faults(runs):
    """Lost, twice, out of order, of all runs."""
    sums = [sum(run["report"][key] for run in runs) for key in ("lost", "duplicated", "reordered")]
    return " / ".join(f"{count:,}" for count in sums)


def brief(run):
    """One run in a line."""
    if "suback_ms" in run:
        return (f"{run['bytes_per_second_each_way'] / 1e6:.2f} MB/s each way  SUBACK {of_all([run], 'suback_ms')} ms  {run['links_lost']:.0f} links lost{' (' + ', '.join(run['why_lost']) + ')' if run['links_lost'] else ''}  "
                f"death noticed after {run['noticed_seconds']:.2f} s")
    report = run["report"]
    said = [f"lost {report['lost']}, twice {report['duplicated']}"]
    if report.get("mesh"):
        said.insert(0, f"gap {gap_seconds(run):.2f} s")
    elif "idle_bytes_per_second" in run:
        said.insert(0, f"{megabytes(run)} MB")
    elif rate(run) is not None:
        said.insert(0, f"{rate(run):,.0f}/s")
    if "broker_cpu_seconds" in run and (report["delivered"] or report.get("connections")):
        said.append(f"{cpu_us(run):.2f} us, busy {busy(run):.0%}")
    if run["failed_starts"]:
        said.append(f"{run['failed_starts']} starts failed")
    return "  ".join(said)


def megabytes(run):
    """On each link, least to most."""
    counts = sorted(count / 1e6 for count in run["link_bytes"].values())
    return f"{counts[0]:.2f} to {counts[-1]:.2f}"


def by_scenario(results, family):
    """The runs of a family that came to their end, by load and peer."""
    found = {}
    for run in results["runs"]:
        if run["family"] == family:
            runs = found.setdefault((run["scenario"], run["peer"]), [])
            if "error" not in run:
                runs.append(run)
    return found


def throughput(results, family):
    is_wan = family == "wan"
    link_columns = " bytes on links a message | late |" if is_wan else ""
    text = (f"| load | broker | messages/s | CPU µs a message | messages a read | p50 / p99 ms | lost / twice / out of order | brokers busy |{link_columns}\n"
            f"|---|---|---|---|---|---|---|---|{'---|---|' if is_wan else ''}\n")
    for (scenario, peer), runs in by_scenario(results, family).items():
        if any(run["report"].get("connections") for run in runs):
            continue
        name = f"| {scenario} | {peer} {results['peers'][peer]} |"
        if not runs:
            text += f"{name} failed |{' |' * (7 if is_wan else 5)}\n"
            continue
        free = [run for run in runs if run["placement"] == "free"] or runs
        costed = [run for run in runs if run["placement"] == "pinned"] or runs
        latency = [[run["report"]["latency_us"][quantile] / 1e3 for run in free if run["report"]["latency_us"]] for quantile in ("p50", "p99")]
        quantiles = " / ".join(f"{statistics.median(values):.2f}" if values else "?" for values in latency)
        share = " / ".join(f"{statistics.median(map(busy, group)):.0%}" for group in (costed, free))
        cost = [cpu_us(run) for run in costed if at_limit(run) or run["report"].get("rate") is not None]
        reads = [run["report"].get("messages_per_read") for run in free]
        text += f"{name} {spread([rate(run) for run in free], 0)} | {spread(cost, 2)} | {spread(reads, 1)} | {quantiles} | {faults(runs)} | {share} |"
        if is_wan:
            bytes_each = [sum(run["link_bytes"].values()) / max(run["report"]["delivered"], 1) for run in runs]
            late = sum(run["emulator_late"] for run in runs) / max(sum(run["emulator_packets"] for run in runs), 1)
            text += f" {spread(bytes_each, 0)} | {late:.1%} |"
        text += "\n"
    return text + idle_clients(results, family) + ratios(results, family)


def idle_clients(results, family):
    text = ""
    for (scenario, peer), runs in by_scenario(results, family).items():
        idle = [run["report"]["connections"] for run in runs if run["report"].get("connections")]
        if idle:
            failed = sum(each["failed"] + each["dropped"] for each in idle)
            text += (f"| {scenario} | {peer} {results['peers'][peer]} | {spread([each['opened_per_second'] for each in idle], 0)} | "
                     f"{spread([cpu_us(run) for run in runs], 1)} | {spread([each['broker_bytes_each'] for each in idle], 0)} | {failed} |\n")
    return text and ("\n| idle clients | broker | accepted/s | CPU µs each | bytes each | failed or dropped |\n|---|---|---|---|---|---|\n" + text)


def ratios(results, family):
    """How ours compares with Mosquitto, in the same rounds."""
    ours, theirs = "mqtt-st-quic", "mosquitto"
    found = by_scenario(results, family)
    text = ""
    for scenario in dict.fromkeys(scenario for scenario, _ in found):
        runs = [[run for run in found.get((scenario, peer), []) if run["report"].get("rate") is None and not run["report"].get("connections")]
                for peer in (ours, theirs)]
        if not all(runs):
            continue
        rates = [[rate(run) for run in group if run["placement"] == "free" and rate(run)] for group in runs]
        costs = [[cpu_us(run) for run in group if run["placement"] == "pinned" and at_limit(run)] for group in runs]
        said = []
        if all(rates):
            said.append(f"{statistics.median(rates[0]) / statistics.median(rates[1]):.1f} times the messages a second")
        if all(costs):
            said.append(f"{statistics.median(costs[1]) / statistics.median(costs[0]):.1f} times less CPU a message")
        if said:
            text += f"- {scenario}: {ours} has {' and '.join(said)}.\n"
    return text and "\n" + text


def recovery(results, family):
    text = "| fault | broker | longest gap, s | lost / twice / out of order |\n|---|---|---|---|\n"
    for (scenario, peer), runs in by_scenario(results, family).items():
        found = f"{spread([gap_seconds(run) for run in runs], 2)} | {faults(runs)}" if runs else "failed | "
        text += f"| {scenario} | {peer} {results['peers'][peer]} | {found} |\n"
    return text


def control(results, family):
    text = ("| path, lanes | broker | MB/s each way | SUBACK of all brokers, ms | PINGRESP, ms | round trip of control, ms | hello jitter, ms | links lost / tree changes | "
            "a death is noticed after, s | the next tree one broker further, ms later |\n|---|---|---|---|---|---|---|---|---|---|\n")
    for (scenario, peer), runs in by_scenario(results, family).items():
        name = f"| {scenario} | {peer} {results['peers'][peer]} |"
        if not runs:
            text += f"{name} failed |{' |' * 7}\n"
            continue
        samples = " | ".join(of_all(runs, key) for key in ("suback_ms", "ping_ms", "round_trip_ms", "hello_jitter_ms"))
        alarms = " / ".join(f"{sum(run[key] for run in runs):.0f}" for key in ("links_lost", "tree_changes"))
        text += (f"{name} {spread([run['bytes_per_second_each_way'] / 1e6 for run in runs], 2)} | {samples} | {alarms} | "
                 f"{spread([run['noticed_seconds'] for run in runs], 2)} | {spread([run['passed_on_ms'] for run in runs], 1)} |\n")
    return text


def of_all(runs, key):
    """Median, 99 of a hundred and the most of the samples of all runs."""
    samples = sorted(sample for run in runs for sample in run[key])
    if not samples:
        return "not measured"
    return " / ".join(f"{samples[place]:,.1f}" if samples[place] >= 10 else f"{samples[place]:.2f}" for place in (len(samples) // 2, (len(samples) - 1) * 99 // 100, -1))


def interest(results, family):
    text = "| topics | brokers | MB on each of the links | beside flooding | at rest, kB/s | lost / twice / out of order |\n|---|---|---|---|---|---|\n"
    found = by_scenario(results, family)
    for (scenario, peer), runs in found.items():
        name = f"| {scenario} | {peer} {results['peers'][peer]} |"
        if not runs:
            text += f"{name} failed | | | |\n"
            continue
        run = runs[0]
        flooded = next((most for other, group in found.items() if other[0] == scenario and "replication" in other[1] for most in group), None)
        beside = f"{sum(run['link_bytes'].values()) / sum(flooded['link_bytes'].values()):.1%}" if flooded else ""
        text += f"{name} {megabytes(run)} | {beside} | {spread([max(run['idle_bytes_per_second'].values(), default=0.0) / 1e3], 1)} | {faults(runs)} |\n"
    return text


NOTES = {
    "single": "Windows of the load bound the batch, and with it the cost. `messages a read` is what the load's subscribers got with one read.",
    "joined": "10 pairs from the first broker to the last (hub: from leaf to leaf), 40 B, window 100.",
    "wan": "Links are emulated in user space (`emulator.py`), two brokers joined by one unless a row says otherwise; `bytes` are of all links together, `late` are packets delivered more than 1 ms late: where these are many, its figures are those of a busy machine. "
           "Brokers, load and emulator share the processors.",
    "recovery": "500 messages/s of QoS 1 at each end, both ends hear both, sessions that are kept; Mosquitto saves once a second. The gap of the longest standstill includes the fault itself.",
    "control": "Three brokers in a line, the first the root; `full`: 4 pairs of 1,000 B, window 150, at QoS 0 over each link, two each way, which is more than credit lets onto a way. "
               "The SUBACK (`subscribe_ack = \"mesh\"`) of a client at the last broker says that all three know: two links there and back, of signed words that each end gathers for 10 ms. PINGRESP is the same "
               "client's, and no link's. Of these and of round trip and hello jitter, which are averages of the brokers' own: median / 99 of 100 / the most of all rounds. Links lost and changes of the tree "
               "are of the time before the root is killed, all brokers together. Cubic's lanes carry little where packets are lost; bbr's fill the path's own queue, 100 ms of it.",
    "interest": "Five brokers in a line; 10,000 topics, five messages of 100 B at QoS 1 to each, from all brokers alike; of those wanted each has one subscriber, zero to four brokers away. "
                "IP bytes of a link, both ways together, the whole run: with subscriptions, acknowledgements and what the link carries at rest.",
}


def render(results, family):
    settings = results["settings"]
    make = {"recovery": recovery, "control": control, "interest": interest}.get(family, throughput)
    cost = ("CPU is the sum of all brokers, they on one core and the load on another; the rest is unpinned. `busy` (pinned / unpinned) is what the brokers used of the "
            f"processor time that nobody else did; below {BUSY_SHARE:.0%} the CPU of a load without a rate is not compared. ") if family in ("single", "joined", "wan") else ""
    shares = [run["others_share"] for run in results["runs"] if run["family"] == family and "others_share" in run]
    others = f"Other programs used {statistics.median(shares):.0%} of the processors meanwhile (median). " if shares else ""
    rounds = "" if family == "interest" else (f"{settings['rounds']} rounds" + (f" of {settings['seconds']:g} s" if family != "recovery" else "") +
                                              ", interleaved, brokers started anew for each; median (least to greatest). ")
    return (f"{make(results, family)}\n{provenance(results)} "
            f"{rounds}{others}{NOTES[family]} {cost}".rstrip() + "\n")


def provenance(results):
    """When, what and where."""
    machine = results["machine"]
    memory = f", {machine['memory_gib']} GiB" if "memory_gib" in machine else ""
    tcp = f", TCP with {machine['tcp']}" if "tcp" in machine else ""
    load = f", load average {machine['load_average']:.1f} at the start" if "load_average" in machine else ""
    return f"{results['date']}, commit {results['commit']}, {machine['processors']} x {machine['model']}{memory}, Linux {machine['kernel']}{tcp}{load}."


def update(readme, results, plotted):
    """Replaces the tables of the families in `results`. `plotted`: families with a plot."""
    for family in dict.fromkeys(run["family"] for run in results["runs"]):
        picture = f"\n![{TITLES[family]}](plots/{family}.svg)\n" if family in plotted else ""
        replace(readme, f"<!-- compare {family}: begin -->", f"<!-- compare {family}: end -->", TITLES[family], render(results, family) + picture)


def replace(readme, begin, end, title, text):
    """Puts `text` between the marks of `readme`; where there are none yet, at the end."""
    with open(readme) as file:
        before, found, rest = file.read().partition(begin)
    if not found:
        before, rest = f"{before.rstrip()}\n\n### {title}\n\n", f"{end}\n"
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{readme} has {begin} and not {end}")
    with open(readme, "w") as file:
        file.write(f"{before}{begin}\n{text}{end}{after}")


def load(path):
    with open(path) as file:
        return json.load(file)
