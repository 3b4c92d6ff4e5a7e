"""How fast five daemons on this machine take tuples at one peer and deliver them at another; beside raw Mosquitto.

    python -m experiments.benches.delivery_bench

Batches of 100 tuples of about 58 bytes, acknowledged and delivered; then single tuples, from publication to the reader;
then the same on 100 and 1,000 streams. Mosquitto gets the same batches as payloads (mosquitto.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from experiments.benches import mosquitto
from experiments.benches.daemons import daemons, peer
from experiments.benches.figures import note

PEERS: Final = 5
RUN_S: Final = 4.0
BATCH_ROWS: Final = 100
DURABILITIES: Final = ("memory", "disk", "replicated")
STREAMS: Final = (1, 100, 1000)
GOALS: Final = {"disk": (100_000, 10.0), "replicated": (50_000, 15.0)}


def bench(folder: Path, *arguments: str) -> dict[str, Any]:
    load = ["--batch", str(BATCH_ROWS), "--for", f"{RUN_S:g}s"]
    told = peer(folder, "bench", "-p", "2", "--to", "3", *load, "-o", "json", *arguments)
    figures: list[dict[str, Any]] = json.loads(told)
    return figures[0]


def measure_mosquitto() -> mosquitto.Figures | None:
    try:
        figures = mosquitto.measure(RUN_S, BATCH_ROWS)
    except mosquitto.NoMosquitto as reason:
        print(f"No comparison: {reason}", flush=True)
        return None
    show("Mosquitto, QoS 1", figures.tuples_per_s, figures.single_ms_p50, figures.single_ms_p99)
    return figures


def measure_durabilities(folder: Path, yardstick: mosquitto.Figures | None) -> float:
    """Print a line for each durability; returns the rate on a disk stream."""
    rates: dict[str, float] = {}
    for durability in DURABILITIES:
        figures = bench(folder, "--durability", durability)
        rate, p50_ms, p99_ms = figures["delivered_per_s"], figures["single_ms_p50"], figures["single_ms_p99"]
        rates[durability] = rate
        notes = ""
        beside = ("Mosquitto", yardstick.tuples_per_s) if yardstick else ()
        note(f"delivery, {durability}", rate, "tuples/s", *beside)
        note(f"one tuple, {durability}", p50_ms, "ms", *(("Mosquitto", yardstick.single_ms_p50) if yardstick else ()))
        if yardstick:
            notes += (
                f"   {rate / yardstick.tuples_per_s:.2f} x the rate, {p50_ms / yardstick.single_ms_p50:.1f} x the time"
            )
        if goal := GOALS.get(durability):
            notes += f"   (goal {goal[0]:,}/s, {goal[1]:g} ms)"
        show(f"peerd, {durability}", rate, p50_ms, p99_ms, notes)
    return rates["disk"]


def show(title: str, rate: float, p50_ms: float, p99_ms: float, notes: str = "") -> None:
    times = f"one tuple {p50_ms:>6.2f} ms p50 {p99_ms:>6.2f} ms p99"
    print(f"{title:<18} {rate:>9,.0f} tuples/s   {times}{notes}", flush=True)


def measure_growth(folder: Path, rate_of_one: float) -> None:
    print(f"\nstreams   cost per tuple (disk, batches of {BATCH_ROWS})")
    for streams in STREAMS:
        rate = rate_of_one if streams == 1 else bench(folder, "--streams", str(streams))["delivered_per_s"]
        print(f"{streams:>7,}   {1e6 / rate:.2f} µs, {rate_of_one / rate:.2f} x that of one stream", flush=True)
        if streams > 1:
            note(f"delivery, {streams:,} streams", rate, "tuples/s", "one stream", rate_of_one)


def main() -> None:
    print(f"{PEERS} daemons; published at one, read at another; batches of {BATCH_ROWS} tuples\n", flush=True)
    yardstick = measure_mosquitto()
    with daemons(PEERS) as folder:
        rate_of_one = measure_durabilities(folder, yardstick)
        measure_growth(folder, rate_of_one)


if __name__ == "__main__":
    main()
