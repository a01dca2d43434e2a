"""Accuracy by setting: against a number, in bars, and over a grid of two numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from fedrecall.errors import UserError
from fedrecall.experiment.figures.curves import handle
from fedrecall.experiment.figures.gather import (
    Missing,
    Names,
    chosen,
    finished,
    measured,
    scale_note,
    seeds_note,
)
from fedrecall.experiment.figures.matrix import heat
from fedrecall.experiment.figures.sheet import PERCENT, blank, finish, fold, name_ticks, panels, text_width
from fedrecall.experiment.figures.style import COLUMN, FAINT, INK, NORMAL, PAGE, SMALL, looks
from fedrecall.experiment.results import Outcome, Results
from fedrecall.experiment.stats import Spread

MEASURES = {"final": "final", "best": "best", "last10": "mean of the last ten"}
HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\")
Cells = Mapping[tuple[str, str], Spread]


def against(
    results: Results,
    *,
    title: str = "",
    x: Sequence[float] | None = None,
    xlabel: str = "",
    log: bool = False,
    measure: str | None = None,
    rows: Names = None,
    columns: Names = None,
    panels_: Sequence[Mapping[str, Any]] | None = None,
) -> Figure:
    """Accuracy against the columns' numbers, one line a row."""
