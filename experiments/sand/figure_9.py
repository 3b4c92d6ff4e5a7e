"""SAND's figures 9 and 10: bandwidth and stretch as the delay bound loosens, for trees that are deeper or wider.

    python -m experiments.sand.figure_9 [--scale 0.01] [--seed N] [--master local[2]]

In-Network, as in the paper, and the optimum beside it. The paper does not say where the sources of these figures lie,
nor what its three forms are. Here they are a cluster, up to the tightest bound away from the proxy (nearer, 32 sources
do not make one), and a deeper and a wider form than the same middle one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from experiments import plots, sweep
from experiments.report import Claim, print_claims, print_table, told
from experiments.sand.model import (
    LOOSE_MS,
    SCENARIOS,
    TIGHT_MS,
    Lines,
    gathered,
    measure,
    optimum_claim,
    size_told,
    slices,
)
from protocols.placement.place import Algorithm


class Form(NamedTuple):
    """Complete trees of one fanout and depth."""

    fanout: int
    depth: int


SCENARIO: Final = "cluster"
FORMS: Final = {
    "binary, depth 3": Form(2, 3),
    "deeper: binary, depth 5": Form(2, 5),
    "wider: ternary, depth 3": Form(3, 3),
}
MIDDLE, DEEPER, WIDER = FORMS
BOUNDS_MS: Final = (TIGHT_MS, 140.0, 160.0, 180.0, 200.0, 250.0, LOOSE_MS, 400.0, 500.0)
LOOSE: Final = BOUNDS_MS.index(LOOSE_MS)
SHOWN: Final[tuple[Algorithm, ...]] = ("in-network", "exact")
LEVEL: Final = 0.02  # What still changes once a curve has levelled.


def cells(chosen: sweep.Options) -> list[dict[str, Any]]:
    return [
        {
            "seed": chosen.seed,
            **each._asdict(),
            "apd_over_asd": SCENARIOS[SCENARIO],
            "reach_ms": TIGHT_MS,
            "depths": [form.depth],
            "fanout": form.fanout,
            "bounds_ms": list(BOUNDS_MS),
            "algorithms": list(SHOWN),
        }
        for each in slices(chosen.scale)
        for form in FORMS.values()
    ]


def figures(chosen: sweep.Options) -> Lines:
    asked = cells(chosen)
    results = sweep.run("sand_9", measure, asked, chosen)
    found = gathered(asked, results, lambda cell: Form(cell["fanout"], cell["depths"][0]))
    return {
        (name, algorithm): {bound_ms: found[form, bound_ms, algorithm] for bound_ms in BOUNDS_MS}
        for name, form in FORMS.items()
        for algorithm in SHOWN
    }


def claims(found: Lines) -> Iterator[Claim]:
    ratio = {form: [each.ratio for each in found[form, "in-network"].values()] for form in FORMS}
    stretch = {form: [each.stretch for each in found[form, "in-network"].values()] for form in FORMS}
    for where, what, lines in (("fig 9", "ratio", ratio), ("fig 10", "stretch", stretch)):
        first = {form: line[len(line) // 2] - line[0] for form, line in lines.items()}
        last = {form: line[-1] - line[-2] for form, line in lines.items()}
        yield Claim(
            where,
            f"the {what} {'falls' if what == 'ratio' else 'rises'} as the bound loosens, then levels",
            f"change from {BOUNDS_MS[0]:g} to {BOUNDS_MS[len(BOUNDS_MS) // 2]:g} ms: {told(first)};"
            f" from {BOUNDS_MS[-2]:g} to {BOUNDS_MS[-1]:g} ms: {told(last)}",
            all((change < 0) == (what == "ratio") for change in first.values())
            and all(abs(last[form]) < max(LEVEL, abs(first[form]) / 5) for form in FORMS),
        )
    for form, word, is_less in ((DEEPER, "lower", True), (WIDER, "higher", False)):
        held = [
            bound_ms
            for bound_ms, mine, middle in zip(BOUNDS_MS, ratio[form], ratio[MIDDLE], strict=True)
            if (mine < middle) == is_less
        ]
        yield Claim(
            "fig 9",
            f"{form.split(':')[0]} trees have a {word} ratio (with the loose bound)",
            told({each: ratio[each][LOOSE] for each in (MIDDLE, form)})
            + f"; at {len(held)} of {len(BOUNDS_MS)} bounds",
            BOUNDS_MS[LOOSE] in held,
        )
    for form in (DEEPER, WIDER):
        loosest = {each: stretch[each][LOOSE] for each in (MIDDLE, form)}
        says = f"{form.split(':')[0]} trees have a larger stretch (with the loose bound)"
        yield Claim("fig 10", says, told(loosest), loosest[form] > loosest[MIDDLE])
    level = {form: _levels_at(line) for form, line in stretch.items()}
    yield Claim(
        "fig 10",
        "deeper and wider trees level later",
        "within 5 % of the last value from " + ", ".join(f"{form}: {ms:g} ms" for form, ms in level.items()),
        level[DEEPER] >= level[MIDDLE] <= level[WIDER],
    )
    yield optimum_claim(found)


def _levels_at(line: Sequence[float]) -> float:
    return next(bound_ms for bound_ms, value in zip(BOUNDS_MS, line, strict=True) if value >= line[-1] * 0.95)


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = sweep.options(sweep.parser("SAND, figures 9 and 10", scale=0.01, seed=9).parse_args(arguments))
    found = figures(chosen)
    print(f"seed={chosen.seed} scale={chosen.scale:g}: {size_told(chosen.scale)} of each form, {SCENARIO}")
    print_table(
        ("form", "algorithm", "bound ms", "ratio", "stretch", "over optimum"),
        [
            (form, name, bound_ms, each.ratio, each.stretch, f"{each.over_optimum:.1%}")
            for (form, name), line in found.items()
            for bound_ms, each in line.items()
        ],
    )
    print_claims(claims(found))
    for number, field, y in ((9, "ratio", "bandwidth consumption ratio"), (10, "stretch", "stretch")):
        plots.lines(
            chosen.out / f"sand_{number}.png",
            {
                f"{form}\n{name}": [(bound_ms, getattr(each, field)) for bound_ms, each in line.items()]
                for (form, name), line in found.items()
            },
            title=f"SAND, figure {number}: {y} by delay bound",
            x="delay bound, ms",
            y=y,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
