"""The picture of the README: what a client's model knows before and after a method helps it to remember.

`python docs/make_forgetting.py` runs FedAvg and FedLMD on the embedded digits, as `fedrecall compare` does, and draws
what the last clients' models know of each digit, before they are averaged, and what the global model knows.
"""

from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

import fedrecall as fr
from fedrecall.config.experiment import COMPARE_DEFAULTS
from fedrecall.config.tables import merge_tables
from fedrecall.reporting.figures.style import METHOD_STYLES

IMAGES = Path(__file__).parent / "images"
METHODS = {"fedavg": "FedAvg", "fedlmd": "FedLMD"}
TITLES = {"fedavg": "FedAvg: clients forget", "fedlmd": "FedLMD: they remember"}
ROUNDS = 30  # digits are easy: given twice as many, FedAvg gets there too
LAST = 4  # rounds whose participants are shown


class Theme(NamedTuple):
    """Colours for a light page, or a dark one; the picture itself is transparent."""

    ink: str
    faint: str
    nothing: str  # a digit that a model never recognises
    all: str  # one that it always does
    lines: tuple[str, str]  # FedAvg's and FedLMD's


THEMES = {
    "forgetting.png": Theme(
        "#1f2328", "#59636e", "#eceff2", "#0072B2", (METHOD_STYLES["fedavg"].colour, METHOD_STYLES["fedlmd"].colour)
    ),
    "forgetting-dark.png": Theme("#f0f6fc", "#9198a1", "#2b323c", "#56B4E9", ("#9aa0a6", "#56B4E9")),
}


class Known(NamedTuple):
    """What the last clients' models know of each class, and how good the global model was after each round."""

    accuracy: np.ndarray  # [clients, classes]
    holds: np.ndarray  # bool [clients, classes]
    curve: list[float]

    @property
    def elsewhere(self) -> float:
        """Mean accuracy on what a client does not hold."""
        return float(self.accuracy[~self.holds].mean())


def known(method: str) -> Known:
    """Run a method and read its probe."""
    tables = merge_tables(
        COMPARE_DEFAULTS, {"method": {"name": method}, "run": {"rounds": ROUNDS, "probes": ["local"]}}
    )
    result = fr.run(fr.Experiment(**tables))
    lines = result.probes["local"][-LAST:]
    accuracy = np.concatenate([np.array(line["correct"]) / np.array(line["test"]) for line in lines])
    holds = np.concatenate([np.array(line["labels"]) > 0 for line in lines])
    return Known(accuracy, holds, [record["accuracy"] for record in result.rounds])


def draw(found: dict[str, Known], theme: Theme, file: Path) -> None:
    """Two maps, client by digit, and the global model's accuracy over the rounds."""
    style = {"text.color": theme.ink, "axes.labelcolor": theme.faint, "xtick.color": theme.faint, "font.size": 9}
    with mpl.rc_context({**style, "ytick.color": theme.faint, "axes.edgecolor": theme.faint}):
        figure = Figure(figsize=(9.6, 3.5))
        left, right, gap, over = figure.subplots(1, 4, width_ratios=(1, 1, 0.04, 1))
        gap.set_visible(False)
        figure.subplots_adjust(left=0.03, right=0.92, top=0.78, bottom=0.2, wspace=0.12)
        for axes, method in zip((left, right), METHODS, strict=True):
            _map(axes, found[method], TITLES[method], theme)
        left.set_ylabel("a client's model in each row")
        _legend(figure, theme)
        _curves(over, found, theme)
        figure.savefig(file, dpi=200, transparent=True)


def _map(axes: Axes, known: Known, name: str, theme: Theme) -> None:
    colours = LinearSegmentedColormap.from_list("known", [theme.nothing, theme.all])
    clients, classes = known.accuracy.shape
    for (client, digit), value in np.ndenumerate(known.accuracy):
        axes.add_patch(Rectangle((digit - 0.46, client - 0.46), 0.92, 0.92, fc=colours(value)))
    for client, digit in np.argwhere(known.holds):
        axes.add_patch(Rectangle((digit - 0.38, client - 0.38), 0.76, 0.76, fill=False, ec=theme.ink, lw=1.1))
    axes.set_xticks(range(classes))
    axes.set_yticks([])
    axes.set_xlim(-0.5, classes - 0.5)
    axes.set_ylim(clients - 0.5, -0.5)
    axes.patch.set_visible(False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("digit", labelpad=1)
    axes.set_title(name, loc="left", y=1.14, fontsize=12, fontweight="bold")
    text = f"{100 * known.elsewhere:.0f} % right on digits they have no data of"
    axes.text(0, 1.05, text, transform=axes.transAxes, color=theme.faint)


def _legend(figure: Figure, theme: Theme) -> None:
    swatches = [
        Patch(fc=theme.all, label="recognised"),
        Patch(fc=theme.nothing, label="not recognised"),
        Patch(fill=False, ec=theme.ink, lw=1.1, label="the client has examples of it"),
    ]
    figure.legend(
        handles=swatches, loc="lower left", bbox_to_anchor=(0.022, -0.01), ncols=3, frameon=False, handlelength=1
    )


def _curves(axes: Axes, found: dict[str, Known], theme: Theme) -> None:
    axes.patch.set_visible(False)
    for (method, name), colour in zip(METHODS.items(), theme.lines, strict=True):
        curve = [100 * value for value in found[method].curve]
        axes.plot(range(1, len(curve) + 1), curve, color=colour, lw=1.8)
        axes.text(len(curve) + 0.7, np.mean(curve[-3:]), name, color=colour, va="center", fontweight="bold")
    axes.set_xlim(1, len(curve))
    axes.set_ylim(0, 100)
    axes.set_yticks(range(0, 101, 25), [f"{y} %" for y in range(0, 101, 25)])
    axes.tick_params(length=0)
    axes.grid(axis="y", color=theme.nothing)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel("round", labelpad=1)
    axes.set_title("The global model", loc="left", y=1.14, fontsize=12, fontweight="bold")
    axes.text(0, 1.05, "accuracy on all ten digits", transform=axes.transAxes, color=theme.faint)


if __name__ == "__main__":
    found = {method: known(method) for method in METHODS}
    for file, theme in THEMES.items():
        draw(found, theme, IMAGES / file)
