"""Plots of raw results, as SVG that stands on light and on dark ground: for each load a bar a broker, the median, with its spread."""

import html
import math
import os
import statistics

import table

COLOURS = ("#2f7ed8", "#e07b39", "#4caf50", "#a05bd0", "#c2185b", "#7f8c8d", "#c9a400")
BAR, GAP, LABEL, WIDTH, PANEL_GAP, LEGEND = 14, 12, 230, 340, 70, 230


def write(directory, results):
    """A file for each family that has something to plot; their paths, by family."""
    paths = {}
    for family in dict.fromkeys(run["family"] for run in results["runs"]):
        text = draw(results, family)
        if text:
            os.makedirs(directory, exist_ok=True)
            paths[family] = os.path.join(directory, f"{family}.svg")
            with open(paths[family], "w") as file:
                file.write(text)
    return paths


def draw(results, family):
    panels = []
    for title, value in PANELS[family]:
        rows = {}
        for (scenario, peer), runs in table.by_scenario(results, family).items():
            values = [found for found in map(value, runs) if found]
            if values:
                rows.setdefault(scenario, []).append((peer, statistics.median(values), min(values), max(values)))
        if rows:
            panels.append((title, rows))
    if not panels:
        return ""
    peers = [peer for peer in results["peers"] if any(peer == bar[0] for _, rows in panels for bars in rows.values() for bar in bars)]
    loads = list(dict.fromkeys(scenario for _, rows in panels for scenario in rows))
    height_of = {load: max(len(rows.get(load, ())) for _, rows in panels) * BAR + GAP for load in loads}
    height = sum(height_of.values()) + 90
    width = LABEL + max(len(panels) * (WIDTH + PANEL_GAP), len(peers) * LEGEND)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11" fill="#808080">']
    for number, peer in enumerate(peers):
        x = LABEL + number * LEGEND
        out.append(f'<rect x="{x}" y="8" width="12" height="12" fill="{COLOURS[number % len(COLOURS)]}"/>'
                   f'<text x="{x + 17}" y="18">{html.escape(peer)} {html.escape(results["peers"][peer])}</text>')
    for number, (title, rows) in enumerate(panels):
        left = LABEL + number * (WIDTH + PANEL_GAP)
        low = min(bar[2] for bars in rows.values() for bar in bars)
        high = max(bar[3] for bars in rows.values() for bar in bars)
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high * 1.0001))

        def at(value, left=left, first=first, last=last):
            return left + WIDTH * (math.log10(value) - first) / (last - first)

        out.append(f'<text x="{left}" y="44" font-weight="bold">{html.escape(title)}</text>')
        for power in range(first, last + 1):
            x = at(10.0**power)
            out.append(f'<line x1="{x:.1f}" y1="52" x2="{x:.1f}" y2="{height - 26}" stroke="#808080" stroke-opacity="0.3"/>'
                       f'<text x="{x:.1f}" y="{height - 12}" text-anchor="middle">{tick(power)}</text>')
        top = 56
        for load in loads:
            if not number:
                out.append(f'<text x="{LABEL - 8}" y="{top + (height_of[load] - GAP) / 2 + 4:.1f}" text-anchor="end">{html.escape(load)}</text>')
            for place, (peer, median, least, most) in enumerate(rows.get(load, ())):
                y, colour = top + place * BAR, COLOURS[peers.index(peer) % len(COLOURS)]
                out.append(f'<rect x="{left}" y="{y}" width="{at(median) - left:.1f}" height="{BAR - 3}" fill="{colour}"/>'
                           f'<path d="M{at(least):.1f} {y + (BAR - 3) / 2} H{at(most):.1f}" stroke="#808080" stroke-width="2"/>'
                           f'<text x="{at(most) + 4:.1f}" y="{y + BAR - 5}" font-size="9">{told(median)}</text>')
            top += height_of[load]
    return "\n".join([*out, "</svg>"]) + "\n"


def tick(power):
    return f"{10**power:,}" if power >= 0 else f"{10.0**power:g}"


def told(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def rate(run):
    return table.rate(run) if run["placement"] == "free" and run["report"].get("rate") is None else None


def cost(run):
    return table.cpu_us(run) if run["placement"] == "pinned" and table.at_limit(run) else None


def p99(run):
    latency = run["report"].get("latency_us")
    return latency["p99"] / 1e3 if latency and run["report"].get("rate") is not None and run["placement"] == "free" else None


def link_megabytes(run):
    return statistics.fmean(run["link_bytes"].values()) / 1e6


def suback_ms(run):
    return statistics.median(run["suback_ms"])


PANELS = {
    "single": (("messages a second", rate), ("CPU of the broker, µs a message", cost)),
    "joined": (("messages a second", rate), ("CPU of all brokers, µs a message", cost)),
    "wan": (("messages a second", rate), ("99 % within, ms", p99)),
    "recovery": (("longest gap, s", table.gap_seconds),),
    "control": (("SUBACK of all brokers, ms", suback_ms), ("a death is noticed after, s", lambda run: run["noticed_seconds"])),
    "interest": (("MB a link", link_megabytes),),
}
