"""Style of the figures: one colour, line and marker per method, the same in every figure and in the report."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any, NamedTuple
from zlib import crc32

import matplotlib
from matplotlib.colors import ListedColormap, to_rgb

from fedrecall.studies.study import slug

COLUMN_WIDTH, PAGE_WIDTH = 3.4, 7.0  # inches: one column of a two-column paper, and both

MAX_NAME_WIDTH = 0.9  # inches of the name of a client or class; a longer one is truncated
SMALL, NORMAL, LARGE = 7.0, 8.0, 9.0  # points; SMALL is the smallest readable size in print

TEXT_COLOUR, MUTED_COLOUR, GRID = "#1d2733", "#5b6672", "#e3e6ea"

DATA_COLOUR = "#5E5E5E"  # label shares of clients

SEQUENTIAL, DIFFERENCE = "viridis", "RdBu"  # both are safe for colour-blind readers

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
    "pdf.fonttype": 42,  # TrueType fonts, which publishers require
    "savefig.dpi": 300,
    "svg.fonttype": "none",  # text stays text, which can be searched and edited
    "svg.hashsalt": "fedrecall",  # random ids would change the file at every run
    "text.color": TEXT_COLOUR,
    "text.parse_math": False,  # names may contain a dollar sign
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
    """Colour, dashes and marker of a line: distinct in colour and in black and white."""

    colour: str
    line: Dashes
    marker: str


# FedAvg, the reference, is grey; distillation methods are solid, the other baselines dashed. The colours are those of
# Okabe and Ito, and of Tol, chosen so that the methods of one paper differ for colour-blind readers and all are visible
# on white and on black. Where two methods share a colour, their lines and markers differ.
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
    "fedlc": LineStyle("#009E73", DASHED, "<"),
    "feddecorr": LineStyle("#0072B2", DASHED, "P"),
    "fedsam": LineStyle("#33BBEE", DASHED, "X"),
    "fedexp": LineStyle("#CC3311", MIXED, "^"),
    "fedacg": LineStyle("#8C6BB1", MIXED, "v"),
    "feddf": LineStyle("#009E73", DOTTED, "D"),
    "ccvr": LineStyle("#D55E00", MIXED, "*"),
    "fedrep": LineStyle("#0072B2", DOTTED, "p"),
    "fedbabu": LineStyle("#33BBEE", DOTTED, "h"),
    "ditto": LineStyle("#CC3311", DOTTED, "d"),
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

# Variants in the papers' ablations.
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
    "base": LineStyle("#0072B2", DASHED, "p"),  # FedCSD without its three components
    "m1": LineStyle("#009E73", MIXED, "^"),  # FedCSD with two of them
    "m2": LineStyle("#CC79A7", DOTTED, "v"),
    "m3": LineStyle("#56B4E9", DASHED, "d"),
    "hard-mask": LineStyle("#0072B2", DASHED, "s"),
    "adaptive-mask": METHOD_STYLES["fedcsd"],
    "plain-training": METHOD_STYLES["fedavg"],
    "feature-distillation": LineStyle("#0072B2", DASHED, "s"),
    "logit-distillation": LineStyle("#D55E00", MIXED, "^"),
}

# Baselines of a comparison: horizontal lines without markers.
BASELINE_STYLES = {
    "central": LineStyle("#7f7f7f", DASHED, ""),
    "local": LineStyle("#7f7f7f", MIXED, ""),
    "majority": LineStyle("#7f7f7f", DOTTED, ""),
}

LINE_COLOURS = tuple(dict.fromkeys(style.colour for style in METHOD_STYLES.values()))[1:]  # without FedAvg's grey

LINES = (SOLID, DASHED, DOTTED, MIXED)

MARKERS = tuple(dict.fromkeys(style.marker for style in METHOD_STYLES.values()))

# For categories that are not methods, in their order: columns of a study, classes.
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

MAX_CATEGORIES = len(CATEGORY_COLOURS)  # more are not distinguishable


def colour_of(name: str) -> str:
    """Return the colour of a method or variant, as #rrggbb."""
    return style_of(name).colour


def style_of(name: str) -> LineStyle:
    """Return the style of a method or variant; an unknown name gets one that depends on the name alone."""
    key = slug(name).replace("-plus-", "-")
    if key in METHOD_STYLES or key in BASELINE_STYLES:
        return METHOD_STYLES[key] if key in METHOD_STYLES else BASELINE_STYLES[key]
    number = crc32(key.encode())
    return LineStyle(
        LINE_COLOURS[number % len(LINE_COLOURS)],
        LINES[number // 64 % len(LINES)],
        MARKERS[number // 1024 % len(MARKERS)],
    )


def distinct_styles(names: Iterable[str]) -> dict[str, LineStyle]:
    """Return the styles of one figure's lines; of two equal styles, one gets another line or marker."""
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
    """Return one colour per category; beyond MAX_CATEGORIES, steps of a colour scale."""
    if count <= MAX_CATEGORIES:
        return list(CATEGORY_COLOURS[:count])
    scale = matplotlib.colormaps[SEQUENTIAL]
    return [matplotlib.colors.to_hex(scale((i + 0.5) / count)) for i in range(count)]


def text_colour_on(background: Sequence[float]) -> str:
    """Choose a dark or a light text colour, whichever has more contrast on the background."""
    return max((TEXT_COLOUR, "#ffffff"), key=lambda text: contrast(to_rgb(text), background))


def contrast(first: Sequence[float], second: Sequence[float]) -> float:
    """Compute the contrast ratio of two colours, from 1 to 21, as defined by the WCAG."""

    def luminance(rgb: Sequence[float]) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb[:3]]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def single_hue_colormap(hue: str) -> ListedColormap:
    """Make a colour map from almost white to a colour, for shares beside a heat map of accuracies."""
    end = to_rgb(hue)
    steps = [tuple(1 - i / 255 * (1 - part) for part in end) for i in range(10, 256)]
    return ListedColormap(steps, name=hue)


@contextmanager
def figure_style() -> Iterator[None]:
    """Apply STYLE to matplotlib's defaults; restore the user's settings on exit."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield
