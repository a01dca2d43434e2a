"""Colours, lines and markers: constant for a method, and distinguishable for every reader."""

import re
from itertools import combinations

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb

from fedrecall.methods import METHODS
from fedrecall.reporting.figures.style import (
    METHOD_STYLES,
    category_colours,
    colour_of,
    contrast,
    distinct_styles,
    figure_style,
    style_of,
    text_colour_on,
)
from fedrecall.studies import papers
from fedrecall.studies.definitions import experiment_ids

PAPERS = [
    "fedavg fedprox fedlsd fedcad",
    "fedavg fedprox fedcurv moon fedntd fedcad fedssd",
    "fedavg fedprox fednova fedavgm moon fedgkd fedproto fedcsd",
    "fedavg fedcurv fedprox fednova scaffold moon fedrs fedntd fedlmd",
    "fedavg fedprox fednova fedrs fedlmd-tf",
    "fedlmd fedlmd-tf fedavg fedntd",
    "fedlsd fedntd fedgkd fedcad fedssd fedcsd fedlmd",
]
# Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency", 2009.
EYES = {
    "normal": np.eye(3),
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
}


def lab(hex_colour: str, eye: str) -> np.ndarray:
    """Convert a colour to CIELAB, as perceived by an eye."""
    rgb = np.array(to_rgb(hex_colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    perceived = np.clip(np.asarray(EYES[eye]) @ linear, 0, 1)
    to_xyz = np.array([[0.41246, 0.35758, 0.18044], [0.21267, 0.71515, 0.07217], [0.01933, 0.11919, 0.95030]])
    xyz = to_xyz @ perceived / [0.95047, 1.0, 1.08883]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("eye", EYES)
@pytest.mark.parametrize("names", PAPERS)
def test_the_methods_of_a_paper_have_colours_that_colour_blind_readers_distinguish(names: str, eye: str) -> None:
    for first, other in combinations(names.split(), 2):
        distance = np.linalg.norm(lab(colour_of(first), eye) - lab(colour_of(other), eye))
        assert distance > 12, (first, other)  # about 2.3 is just noticed, side by side


def test_no_two_methods_have_the_same_style() -> None:
    for first, other in combinations(sorted(set(METHODS) - {"grid"}), 2):
        assert METHOD_STYLES[first] != METHOD_STYLES[other], (first, other)
        if METHOD_STYLES[first].colour == METHOD_STYLES[other].colour:
            assert METHOD_STYLES[first].line != METHOD_STYLES[other].line, (first, other)


def test_colours_are_hex_and_show_on_white_and_on_black() -> None:
    for name in METHOD_STYLES:
        assert re.fullmatch("#[0-9A-F]{6}", colour_of(name))
        assert contrast(to_rgb(colour_of(name)), to_rgb("#ffffff")) > 2.1, name
        assert contrast(to_rgb(colour_of(name)), to_rgb("#15181c")) > 2.3, name


def test_a_name_is_known_however_it_is_written() -> None:
    assert style_of("FedAvg+KD") == style_of("FedAvg + KD") == style_of("fedavg-kd") == METHOD_STYLES["fedavg-kd"]
    assert style_of("FedLMD-Tf") == METHOD_STYLES["fedlmd-tf"]


def test_unknown_names_always_have_the_same_style_and_never_fedavgs_grey() -> None:
    assert style_of("my own method").colour == "#EE6677", "the same in every process and version"
    assert {colour_of(f"variant {i}") for i in range(200)} == {c.colour for c in METHOD_STYLES.values()} - {
        colour_of("fedavg")
    }


@pytest.mark.parametrize("name", experiment_ids())
def test_the_rows_of_every_papers_study_have_distinct_styles(name: str) -> None:
    rows = list(papers.load_definition(name).rows)
    assert len(set(distinct_styles(rows).values())) == len(rows)


@given(st.lists(st.text("abc+ 0123", min_size=1, max_size=6), unique=True, max_size=30))
def test_within_a_figure_colours_stay_and_styles_differ(names: list[str]) -> None:
    found = distinct_styles(names)
    assert len(set(found.values())) == len(names)
    assert all(found[name].colour == colour_of(name) for name in names)


def test_text_is_read_on_every_colour_of_a_map() -> None:
    for name in ("viridis", "RdBu"):
        for value in np.linspace(0, 1, 50):
            background = matplotlib.colormaps[name](value)
            assert contrast(to_rgb(text_colour_on(background)), background) > 3.5


def test_contrast_is_that_of_the_definition() -> None:
    assert contrast((0, 0, 0), (1, 1, 1)) == pytest.approx(21)
    assert contrast((1, 1, 1), to_rgb("#777777")) == pytest.approx(4.48, abs=0.01)


def test_categories_have_a_colour_each() -> None:
    for count in (1, 10, 11, 62):
        assert len(set(category_colours(count))) == count


def test_the_users_settings_are_ignored_and_restored() -> None:
    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"axes.facecolor": "black", "text.usetex": True}):
        mine = dict(matplotlib.rcParams)
        with figure_style():
            assert matplotlib.rcParams["axes.facecolor"] == "white"
            assert not matplotlib.rcParams["text.usetex"]
        assert dict(matplotlib.rcParams) == mine
    assert dict(matplotlib.rcParams) == before
