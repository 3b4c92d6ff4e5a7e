"""How even the work of five daemons is that join a stream in which one value is frequent.

    python -m experiments.benches.join_skew

Two of five orders are one customer's; the others are spread over a thousand. Orders are published at one peer,
customers at another. Once the catalogue says what is frequent, the two are joined through the DHT, first with every
customer at one evaluator (`skew = whole`), then with the frequent one at several (`auto`). Each evaluator counts the
tuples and triggers that it takes (`peerd_join_taken_total` of /metrics).
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final, NamedTuple

from experiments.benches.daemons import daemons, peer
from experiments.benches.figures import GOAL_MISSED, note
from experiments.benches.join_bench import PEERS

SEED: Final = 1
SHARE: Final = 0.4
HOT: Final = 7
CUSTOMERS: Final = range(1000, 2000)
ORDERS: Final = 20_000  # Then from the first again.
RATE_PER_S: Final = 2000
KNOWN_WITHIN_S: Final = 60.0
WATCH_S: Final = 6.0
ALGORITHMS: Final = ("sai", "dai-v")
GOAL_RATIO: Final = 1.7  # The busiest to the mean, with the frequent value spread.


class Balance(NamedTuple):
    """Of one join, for a while."""

    ratio: float  # The busiest evaluator to the mean.
    per_tuple: float  # Messages to evaluators.
    spread: int  # Evaluators of the frequent value.


def known_after_s(folder: Path) -> float:
    """When the catalogue has said that the customer is frequent."""
    began = time.monotonic()
    while time.monotonic() < began + KNOWN_WITHIN_S:
        shown = json.loads(peer(folder, "stream", "show", "orders", "-o", "json"))
        if any(str(HOT) in each["fields"]["customer"]["frequent"] for each in shown["publishers"]):
            return time.monotonic() - began
    raise TimeoutError(f"not within {KNOWN_WITHIN_S:g} s: what is frequent is known")


def taken(addresses: list[str]) -> list[int]:
    """By each peer, so far."""
    found: list[int] = []
    for address in addresses:
        host, _, port = address.rpartition(":")
        connection = HTTPConnection(host, int(port), timeout=30)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        (count,) = re.findall(r"^peerd_join_taken_total (\S+)$", text, re.MULTILINE)
        found.append(int(float(count)))
    return found


def measure(folder: Path, addresses: list[str], customers: Path, algorithm: str, skew: str) -> Balance:
    text = f"SELECT o.id, c.name FROM orders o, customers c WHERE o.customer = c.id WITH (skew = {skew})"  # noqa: S608 - ours
    name = peer(folder, "subscribe", text, "--join", algorithm, "--detach", "-p", "5").strip()
    peer(folder, "publish", "customers", "-f", str(customers), "-p", "3")
    before = taken(addresses)
    time.sleep(WATCH_S)
    each = [after - first for first, after in zip(before, taken(addresses), strict=True)]
    shown: dict[str, Any] = json.loads(peer(folder, "query", "show", name, "-o", "json", "-p", "5"))
    index = shown["subgraphs"][0]["index"]
    peer(folder, "query", "stop", name, "-p", "5")
    spread = next((each["evaluators"] for each in index["heavy_values"] if each["value"] == f"n{HOT}"), 1)
    return Balance(max(each) * len(each) / sum(each), index["messages_per_tuple"], spread)


def compare(folder: Path, orders: Path, customers: Path) -> bool:
    """Whether the frequent value is well spread."""
    numbers = [str(number) for number in range(1, PEERS + 1)]
    addresses = [json.loads(peer(folder, "status", "-p", number, "-o", "json"))["http"] for number in numbers]
    peer(folder, "stream", "create", "orders", "id int, customer int")
    peer(folder, "stream", "create", "customers", "id int, name string")
    load = ["-f", str(orders), "-p", "2", "--rate", str(RATE_PER_S), "--count", str(10**9)]
    command = [sys.executable, "-m", "peerd.cli", "publish", "orders", *load, "--data-dir", str(folder)]
    is_good = True
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as publishing:
        try:
            print(f"what is frequent was known after {known_after_s(folder):.1f} s", flush=True)
            print(f"{'join':<6} {'skew':<6} {'evaluators of it':>17} {'busiest / mean':>15} {'messages a tuple':>17}")
            for algorithm in ALGORITHMS:
                ratios: dict[str, float] = {}
                for skew in ("whole", "auto"):
                    seen = measure(folder, addresses, customers, algorithm, skew)
                    ratios[skew] = seen.ratio
                    figures = f"{seen.spread:>17} {seen.ratio:>15.2f} {seen.per_tuple:>17.2f}"
                    print(f"{algorithm:<6} {skew:<6} {figures}", flush=True)
                    is_good &= skew == "whole" or seen.ratio <= GOAL_RATIO
                note(f"busiest of five, {algorithm}, spread", ratios["auto"], "x", "whole", ratios["whole"])
        finally:
            publishing.terminate()
    return is_good


def main() -> int:
    rng = random.Random(SEED)
    print(f"{PEERS} daemons, one customer with {SHARE:.0%} of the orders, {RATE_PER_S:,} orders a second; seed={SEED}")
    buyers = [HOT if rng.random() < SHARE else rng.choice(CUSTOMERS) for _ in range(ORDERS)]
    with daemons(PEERS) as folder:
        orders, customers = folder / "orders.jsonl", folder / "customers.jsonl"
        orders.write_text("".join(f"[{number}, {buyer}]\n" for number, buyer in enumerate(buyers)))
        customers.write_text("".join(f'[{each}, "c{each}"]\n' for each in (HOT, *CUSTOMERS)))
        is_good = compare(folder, orders, customers)
    return 0 if is_good else GOAL_MISSED


if __name__ == "__main__":
    sys.exit(main())
