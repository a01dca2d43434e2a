"""How figures look: one colour, line and marker for each method, the same in every figure and in the report."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any, NamedTuple
from zlib import crc32

import matplotlib
from matplotlib.colors import ListedColormap, to_rgb

from fedrecall.studies.study import slug

COLUMN_WIDTH, PAGE_WIDTH = 3.4, 7.0  # inches: the width of one column of a paper, and of both

SMALL, NORMAL, LARGE = 7.0, 8.0, 9.0  # points; nothing is smaller than SMALL

TEXT_COLOUR, MUTED_COLOUR, GRID = "#1d2733", "#5b6672", "#e3e6ea"

DATA_COLOUR = "#5E5E5E"  # what clients hold

SEQUENTIAL, DIFFERENCE = "viridis", "RdBu"  # both are read alike by colour-blind people

STYLE: dict[Any, object] = {
    "axes.axisbelow": True,
    "axes.edgecolor": MUTED_COLOUR,
    "axes.grid": True,
    "axes.labelcolor": TEXT_COLOUR,
    "axes.labelsize": NORMAL,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": NORMAL,
    "figure.titlesize": LARGE,
    "font.size": NORMAL,
    "grid.color": GRID,
    "grid.linewidth": 0.5,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "lines.linewidth": 1.0,
    "lines.markersize": 3.5,
    "pdf.fonttype": 42,  # fonts stay fonts, as publishers ask
    "savefig.dpi": 300,
    "svg.fonttype": "none",  # text stays text: it can be searched, and edited
    "svg.hashsalt": "fedrecall",  # otherwise ids are random
    "text.color": TEXT_COLOUR,
    "text.parse_math": False,  # a dollar in the name of a class is a dollar
    "xtick.color": MUTED_COLOUR,
    "xtick.labelcolor": TEXT_COLOUR,
    "xtick.labelsize": SMALL,
    "xtick.major.size": 2.5,
    "xtick.major.width": 0.6,
    "ytick.color": MUTED_COLOUR,
    "ytick.labelcolor": TEXT_COLOUR,
    "ytick.labelsize": SMALL,
    "ytick.major.size": 2.5,
    "ytick.major.width": 0.6,
}

Dashes = tuple[float, tuple[float, ...]]

SOLID: Dashes = (0, ())

DASHED: Dashes = (0, (4, 1.5))

DOTTED: Dashes = (0, (1.2, 1.2))

MIXED: Dashes = (0, (5, 1.5, 1.2, 1.5))


class LineStyle(NamedTuple):
    """What tells a line from the others, in colour and without."""

    colour: str
    line: Dashes
    marker: str


# FedAvg is the grey that all are compared with; what distils is solid, the other baselines are dashed. The colours are
# of Okabe and Ito, and of Tol, chosen so that the methods of one paper differ for colour-blind readers, and so that
# all show on white and on black; where two share a colour, their lines and markers differ.
METHOD_STYLES = {
    "fedavg": LineStyle("#5E5E5E", SOLID, "o"),
    "fedprox": LineStyle("#CC79A7", DASHED, "s"),
    "fedavgm": LineStyle("#8C6BB1", DASHED, "v"),
    "scaffold": LineStyle("#56B4E9", MIXED, "D"),
    "fednova": LineStyle("#CC3311", DASHED, "^"),
    "feddyn": LineStyle("#B8860B", MIXED, "d"),
    "fedcurv": LineStyle("#E69F00", DASHED, "P"),
    "moon": LineStyle("#7A5230", MIXED, "X"),
    "fedproto": LineStyle("#6A5ACD", DOTTED, "p"),
    "fedrs": LineStyle("#EE7733", DOTTED, "<"),
    "fedlsd": LineStyle("#7A5230", SOLID, ">"),
    "fedntd": LineStyle("#6A5ACD", SOLID, "v"),
    "fedgkd": LineStyle("#33BBEE", SOLID, "h"),
    "fedcad": LineStyle("#009E73", SOLID, "^"),
    "fedssd": LineStyle("#D55E00", SOLID, "D"),
    "fedcsd": LineStyle("#E69F00", SOLID, "*"),
    "fedlmd": LineStyle("#0072B2", SOLID, "s"),
    "fedlmd-tf": LineStyle("#EE6677", MIXED, "s"),
    "fedavg-kd": LineStyle("#E69F00", MIXED, "o"),
    "fedavg-ls": LineStyle("#A0522D", DOTTED, "o"),
}

# Variants that the papers compare.
METHOD_STYLES |= {
    "fedntd-tf": LineStyle("#6A5ACD", MIXED, "v"),
    "fedlmd-prox": LineStyle("#CC79A7", DASHED, "s"),
    "fedlmd-avgm": LineStyle("#E69F00", MIXED, "s"),
    "fedlmd-prox-avgm": LineStyle("#D55E00", DOTTED, "s"),
    "fedssd-squared": LineStyle("#56B4E9", DASHED, "D"),
    "kl": LineStyle("#0072B2", DASHED, "o"),
    "mse": LineStyle("#009E73", MIXED, "s"),
    "ssd": METHOD_STYLES["fedssd"],
    "ssd-squared": LineStyle("#56B4E9", DASHED, "D"),
    "base": LineStyle("#0072B2", DASHED, "p"),  # FedCSD with none of its parts
    "m1": LineStyle("#009E73", MIXED, "^"),  # and with two of them
    "m2": LineStyle("#CC79A7", DOTTED, "v"),
    "m3": LineStyle("#56B4E9", DASHED, "d"),
    "hard-mask": LineStyle("#0072B2", DASHED, "s"),
    "adaptive-mask": METHOD_STYLES["fedcsd"],
    "plain-training": METHOD_STYLES["fedavg"],
    "feature-distillation": LineStyle("#0072B2", DASHED, "s"),
    "logit-distillation": LineStyle("#D55E00", MIXED, "^"),
}

COLOURS = tuple(dict.fromkeys(look.colour for look in METHOD_STYLES.values()))[1:]  # for other names; grey is FedAvg's

LINES = (SOLID, DASHED, DOTTED, MIXED)

MARKERS = tuple(dict.fromkeys(look.marker for look in METHOD_STYLES.values()))

# For things that are no methods, in their order: columns of a study, classes.
CATEGORY_COLOURS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#D55E00",
    "#56B4E9",
    "#7A5230",
    "#6A5ACD",
    "#999933",
    "#5E5E5E",
)

MAX_CATEGORIES = len(CATEGORY_COLOURS)  # as many as can be told apart


def colour_of(name: str) -> str:
    """The colour of a method or a variant, as #rrggbb."""
    return style_of(name).colour


def style_of(name: str) -> LineStyle:
    """The look of a method or a variant; one that is not known has a look that depends on its name alone."""
    key = slug(name).replace("-plus-", "-")
    if key in METHOD_STYLES:
        return METHOD_STYLES[key]
    number = crc32(key.encode())
    return LineStyle(
        COLOURS[number % len(COLOURS)],
        LINES[number // 64 % len(LINES)],
        MARKERS[number // 1024 % len(MARKERS)],
    )


def distinct_styles(names: Iterable[str]) -> dict[str, LineStyle]:
    """The looks of the lines of one figure: colours as everywhere; of two lines that look the same, one changes."""
    names = list(names)
    found = {name: style_of(name) for name in names}
    seen: set[LineStyle] = set()
    for name in names:
        hue = found[name].colour
        others = (LineStyle(hue, line, marker) for marker, line in product(MARKERS, LINES))
        found[name] = next((each for each in (found[name], *others) if each not in seen), found[name])
        seen.add(found[name])
    return found


def category_colours(count: int) -> list[str]:
    """Colours of things in their order; more than a few are steps of one scale."""
    if count <= MAX_CATEGORIES:
        return list(CATEGORY_COLOURS[:count])
    scale = matplotlib.colormaps[SEQUENTIAL]
    return [matplotlib.colors.to_hex(scale((i + 0.5) / count)) for i in range(count)]


def text_colour_on(background: Sequence[float]) -> str:
    """The colour of text that is read on a background: dark on light, light on dark."""
    return max((TEXT_COLOUR, "#ffffff"), key=lambda text: contrast(to_rgb(text), background))


def contrast(one: Sequence[float], other: Sequence[float]) -> float:
    """How well one colour stands out from another, from 1 to 21, as the WCAG define it."""

    def luminance(rgb: Sequence[float]) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb[:3]]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def single_hue_colormap(hue: str) -> ListedColormap:
    """A map from almost white to a colour, for shares beside a map of accuracies."""
    end = to_rgb(hue)
    steps = [tuple(1 - i / 255 * (1 - part) for part in end) for i in range(10, 256)]
    return ListedColormap(steps, name=hue)


@contextmanager
def figure_style() -> Iterator[None]:
    """Matplotlib with these settings, whatever the user's own are, which come back afterwards."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield
