"""Figure of the README: accuracy of client models by digit, with FedAvg and with FedLMD.

`python docs/make_forgetting.py` runs both methods on the embedded digits with the settings of `fedrecall compare`. It
draws the accuracy of the last rounds' client models on each digit, before aggregation, and that of the global model.
"""

from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

import fedrecall as fr
from fedrecall.config.sources import COMPARE_DEFAULTS
from fedrecall.config.tables import merge_tables
from fedrecall.reporting.figures.style import METHOD_STYLES

IMAGES = Path(__file__).parent / "images"
METHODS = {"fedavg": "FedAvg", "fedlmd": "FedLMD"}
TITLES = {"fedavg": "FedAvg: clients forget", "fedlmd": "FedLMD: clients retain"}
ROUNDS = 20  # digits are easy: with three times as many, FedAvg reaches the same accuracy
LAST_ROUNDS = 3  # whose clients are shown


class Theme(NamedTuple):
    """Colours for a light or a dark page; the background of the figure is transparent."""

    ink: str
    faint: str
    low: str  # accuracy 0
    high: str  # accuracy 1
    lines: tuple[str, str]  # of FedAvg and FedLMD


THEMES = {
    "forgetting.png": Theme(
        "#1f2328", "#59636e", "#eceff2", "#0072B2", (METHOD_STYLES["fedavg"].colour, METHOD_STYLES["fedlmd"].colour)
    ),
    "forgetting-dark.png": Theme("#f0f6fc", "#9198a1", "#2b323c", "#56B4E9", ("#9aa0a6", "#56B4E9")),
}


class ClassAccuracy(NamedTuple):
    """Accuracy of the last client models on each class, and of the global model after each round."""

    accuracy: np.ndarray  # [clients, classes]
    holds: np.ndarray  # bool [clients, classes]
    curve: list[float]
    forgotten: float  # share of what the received model classified correctly, over the classes that a client lacks


def measure(method: str) -> ClassAccuracy:
    """Run a method and read its probe."""
    tables = merge_tables(
        COMPARE_DEFAULTS, {"method": {"name": method}, "run": {"rounds": ROUNDS, "probes": ["local", "forgotten"]}}
    )
    result = fr.run(fr.Experiment(**tables))
    lines = result.probes["local"][-LAST_ROUNDS:]
    accuracy = np.concatenate([np.array(line["correct"]) / np.array(line["test"]) for line in lines])
    holds = np.concatenate([np.array(line["labels"]) > 0 for line in lines])
    forgotten = fmean(line["forgotten_absent"] for line in result.probes["forgotten"][-LAST_ROUNDS:])
    return ClassAccuracy(accuracy, holds, [record["accuracy"] for record in result.rounds], forgotten)


def draw(measured: dict[str, ClassAccuracy], theme: Theme, file: Path) -> None:
    """Draw two maps, client by digit, and the accuracy of the global model over the rounds."""
    style = {"text.color": theme.ink, "axes.labelcolor": theme.faint, "xtick.color": theme.faint, "font.size": 9}
    with mpl.rc_context({**style, "ytick.color": theme.faint, "axes.edgecolor": theme.faint}):
        figure = Figure(figsize=(9.6, 3.5))
        left, right, gap, right_most = figure.subplots(1, 4, width_ratios=(1, 1, 0.04, 1))
        gap.set_visible(False)
        figure.subplots_adjust(left=0.03, right=0.92, top=0.78, bottom=0.2, wspace=0.12)
        for axes, method in zip((left, right), METHODS, strict=True):
            _map(axes, measured[method], TITLES[method], theme)
        left.set_ylabel("one client model per row")
        _legend(figure, theme)
        _curves(right_most, measured, theme)
        figure.savefig(file, dpi=200, transparent=True)


def _map(axes: Axes, measured: ClassAccuracy, name: str, theme: Theme) -> None:
    colours = LinearSegmentedColormap.from_list("accuracy", [theme.low, theme.high])
    clients, classes = measured.accuracy.shape
    for (client, digit), value in np.ndenumerate(measured.accuracy):
        axes.add_patch(Rectangle((digit - 0.46, client - 0.46), 0.92, 0.92, fc=colours(value)))
    for client, digit in np.argwhere(measured.holds):
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
    text = f"{100 * measured.forgotten:.0f} % of the digits they lack forgotten"
    axes.text(0, 1.05, text, transform=axes.transAxes, color=theme.faint)


def _legend(figure: Figure, theme: Theme) -> None:
    swatches = [
        Patch(fc=theme.high, label="recognised"),
        Patch(fc=theme.low, label="not recognised"),
        Patch(fill=False, ec=theme.ink, lw=1.1, label="the client has examples of the digit"),
    ]
    figure.legend(
        handles=swatches, loc="lower left", bbox_to_anchor=(0.022, -0.01), ncols=3, frameon=False, handlelength=1
    )


def _curves(axes: Axes, measured: dict[str, ClassAccuracy], theme: Theme) -> None:
    axes.patch.set_visible(False)
    for (method, name), colour in zip(METHODS.items(), theme.lines, strict=True):
        curve = [100 * value for value in measured[method].curve]
        axes.plot(range(1, len(curve) + 1), curve, color=colour, lw=1.8)
        axes.text(len(curve) + 0.7, np.mean(curve[-3:]), name, color=colour, va="center", fontweight="bold")
    axes.set_xlim(1, len(curve))
    axes.set_ylim(0, 100)
    axes.set_yticks(range(0, 101, 25), [f"{y} %" for y in range(0, 101, 25)])
    axes.tick_params(length=0)
    axes.grid(axis="y", color=theme.low)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel("round", labelpad=1)
    axes.set_title("The global model", loc="left", y=1.14, fontsize=12, fontweight="bold")
    axes.text(0, 1.05, "accuracy on all ten digits", transform=axes.transAxes, color=theme.faint)


if __name__ == "__main__":
    measured = {method: measure(method) for method in METHODS}
    for file, theme in THEMES.items():
        draw(measured, theme, IMAGES / file)
