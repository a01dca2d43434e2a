"""Heat maps, with numbers in their cells where they fit."""

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.image import AxesImage

from fedrecall.experiment.figures.gather import Floats
from fedrecall.experiment.figures.sheet import text_width, thin
from fedrecall.experiment.figures.style import FAINT, SEQUENTIAL, SMALL, on

NOTHING = "#eceef1"  # a cell without a value


def heat(
    axes: Axes,
    table: Floats,
    *,
    limits: tuple[float, float] = (0.0, 1.0),
    colours: str | Colormap = SEQUENTIAL,
    write: Callable[[float], str] | None = None,
    cell: tuple[float, float] = (0.0, 0.0),
) -> AxesImage:
    """Draw a table [rows, columns]; `write` makes a cell's text, which is left out where cells of so many inches are
    too small for it.
    """
    image = axes.imshow(
        np.ma.masked_invalid(table),
        vmin=limits[0],
        vmax=limits[1],
        cmap=colours,
        aspect="auto",
        interpolation="nearest",
    )
    axes.set_facecolor(NOTHING)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=2)
    if write is not None:
        texts = {at: write(float(value)) for at, value in np.ndenumerate(table) if np.isfinite(value)}
        widest = max((text_width(text, SMALL) for text in set(texts.values())), default=0.0)
        if cell[0] >= widest + 0.03 and cell[1] >= 1.3 * SMALL / 72:
            for (row, column), text in texts.items():
                shown = on(image.cmap(image.norm(table[row, column])))
                axes.text(column, row, text, ha="center", va="center", fontsize=SMALL, color=shown)
    return image


def percent(value: float) -> str:
    """A share in whole per cent."""
    return f"{100 * value:.0f}"


def number_classes(axes: Axes, classes: int, room: float, *, across: bool, name: str = "class") -> None:
    """Class numbers along an axis, thinned out where they would overlap."""
    widest = text_width(str(classes - 1), SMALL)
    shown = thin(classes, room, widest + 0.06 if across else 1.3 * SMALL / 72)
    if across:
        axes.set_xticks(list(shown))
        axes.set_xlabel(name)
    else:
        axes.set_yticks(list(shown))
        axes.set_ylabel(name)


def frame(axes: Axes) -> None:
    """A thin line around a map whose lowest values are almost white."""
    axes.spines[:].set_visible(True)
    axes.spines[:].set_color(FAINT)
    axes.spines[:].set_linewidth(0.4)
