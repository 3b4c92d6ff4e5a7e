"""Plots of experiments: lines and bars in one style, as PNG files.

Matplotlib is for those who develop; where it is missing, an experiment prints its tables all the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS: Final = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#aa3377", "#66ccee", "#666666", "#000000")
MARKERS: Final = "os^Dv<>P"
DASHES: Final = ("-", "--", ":", "-.")
INCHES: Final = (7.0, 4.2)
STYLE: Final[dict[Any, Any]] = {
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 11,
    "font.size": 9,
    "grid.color": "#dddddd",
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "savefig.dpi": 130,
}

Points = Sequence[tuple[float, float]]


def lines(path: Path, series: Mapping[str, Points], *, title: str, x: str, y: str, log: str = "") -> Path | None:
    """A line for each series; `log` names the axes that are logarithmic. Returns the file; None without matplotlib."""

    def draw(axes: Axes) -> None:
        for number, (name, points) in enumerate(series.items()):
            axes.plot(
                [each[0] for each in points],
                [each[1] for each in points],
                label=name,
                color=COLOURS[number % len(COLOURS)],
                marker=MARKERS[number % len(MARKERS)],
                linestyle=DASHES[number // len(COLOURS) % len(DASHES)],
            )
        for axis in log:
            axes.set(**{f"{axis}scale": "log"})
        axes.set_xlabel(x)

    return _drawn(path, draw, title, y)


def bars(
    path: Path, groups: Sequence[str], series: Mapping[str, Sequence[float]], *, title: str, y: str, log: str = ""
) -> Path | None:
    """A bar of each series in every group, side by side."""

    def draw(axes: Axes) -> None:
        width = 0.8 / len(series)
        for number, (name, heights) in enumerate(series.items()):
            middle = (number - (len(series) - 1) / 2) * width
            places = [group + middle for group in range(len(groups))]
            axes.bar(places, heights, width * 0.92, label=name, color=COLOURS[number % len(COLOURS)])
        axes.set_xticks(range(len(groups)), groups)
        for axis in log:
            axes.set(**{f"{axis}scale": "log"})

    return _drawn(path, draw, title, y)


def _drawn(path: Path, draw: Callable[[Axes], None], title: str, y: str) -> Path | None:
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        print(f"no {path.name}: plots need matplotlib, which `make check` installs (or pip does)", file=sys.stderr)
        return None
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=INCHES, layout="constrained")  # Draws with Agg: no screen, no state.
        axes = figure.subplots()
        draw(axes)
        axes.set_title(title, loc="left")
        axes.set_ylabel(y)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="png")
    return path
