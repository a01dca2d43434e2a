"""Legibility of every form: no text is cut off, overlapped or too small."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from fedrecall.reporting.figures import FIGURES
from fedrecall.studies.results import StudyResults
from fedrecall.studies.study import Study

TEN = ["FedAvg", "FedProx", "FedCurv", "FedNova", "SCAFFOLD", "MOON", "FedRS", "FedNTD", "FedLMD", "FedLMD-Tf"]
LONG = "A rather long name of a data set and a partition that cannot be shortened"
START = {"global model": {}} | {name: {"start": "global model"} for name in ("FedAvg", "FedLSD", "FedCAD")}
GRID = {f"{b} {t}": {"method": {"beta": b, "tau": t}} for b in (0.1, 0.5, 1.0, 2.0, 5.0) for t in (0.5, 1.0, 2.0, 3.0)}
AXES = {"x": {"name": "tau", "values": [0.5, 1, 2, 3]}, "y": {"name": "beta", "values": [0.1, 0.5, 1, 2, 5]}}
LMD = {name: {"method": {"name": name.lower()}} for name in ("FedLMD", "FedLMD-Tf")}
PRINTED = {"data share": [0.1] * 10, "global model": [0.5] * 10, "FedCAD": [1.0] * 10}
ALL_PROBES = ["confusion", "local", "local_confusion", "cohort", "shift", "distillation", "own_data", "features"]

# name: (form, options, rows, columns, options of the runs)
CASES: dict[str, tuple[str, dict, list[str] | dict, list[str] | dict, dict]] = {
    "ten methods": ("curves", {}, TEN, ["CIFAR-10"], {"rounds": 40}),
    "ten panels": ("curves", {"y": "forgetting"}, TEN, [f"{i} {LONG}" for i in range(10)], {"rounds": 2}),
    "two lines of panels": ("curves", {"y": ["accuracy", "local_accuracy"]}, TEN[:3], ["a", "b", LONG], {}),
    "one method": ("curves", {}, ["FedAvg"], ["CIFAR-10"], {"rounds": 1}),
    "against": ("against", {"x": [1, 5, 10, 20, 40], "xlabel": "epochs"}, TEN, ["1", "5", "10", "20", "40"], {}),
    "against logs": ("against", {"x": [0, 0.001, 0.1, 10], "log": True}, TEN[:2], ["a", "b", "c", "d"], {}),
    "bars": ("bars", {}, TEN[:5], [f"CIFAR-10 LDA 0.{i}" for i in range(8)], {}),
    "bars with long names": ("bars", {}, TEN, ["Dirichlet_with_alpha=0.05", "b", LONG], {}),
    "few bars": ("bars", {}, TEN[:2], ["a", "b"], {}),
    "partition": ("partition", {}, ["FedAvg"], ["a"], {}),
    "partitions": ("partition", {}, ["FedAvg"], ["a", "b", LONG], {"clients": 100, "classes": 100, "rounds": 1}),
    "presence": ("presence", {}, ["FedAvg"], ["a"], {"rounds": 8}),
    "presence of many": ("presence", {}, ["FedAvg"], ["a"], {"clients": 300, "rounds": 100}),
    "forgetting": ("forgetting", {"printed": PRINTED}, START, ["CIFAR-10"], {}),
    "forgetting of 200 classes": ("forgetting", {}, START, ["Tiny"], {"classes": 200, "rounds": 2}),
    "local-global": ("local-global", {}, ["FedAvg"], ["#K=2", "#K=5", "0.5", LONG], {"rounds": 30}),
    "classwise": ("classwise", {}, ["FedAvg", "FedSSD"], ["CIFAR-10"], {"rounds": 30, "cohort": 5}),
    "classwise of 100 classes": ("classwise", {}, ["FedAvg"], ["CIFAR-100"], {"classes": 100, "rounds": 10}),
    "confusion": ("confusion", {"client": 3}, START, ["CIFAR-10"], {}),
    "confusion of 100 classes": ("confusion", {}, START, ["CIFAR-100"], {"classes": 100, "clients": 3, "rounds": 1}),
    "confusion of one method": ("confusion", {}, {"global model": {}, "FedSSD": {"start": "global model"}}, ["a"], {}),
    "global confusion": ("global-confusion", {}, TEN[:4], ["CIFAR-10"], {"rounds": 2}),
    "global confusion of 100 classes": ("global-confusion", {}, TEN[:2], ["a", LONG], {"classes": 100, "rounds": 1}),
    "labels": ("labels-over-rounds", {}, ["FedAvg", "FedLMD"], ["CIFAR-10"], {"rounds": 100, "cohort": 3}),
    "labels of 100": ("labels-over-rounds", {}, TEN[:5], ["C"], {"classes": 100, "rounds": 4}),
    "shift": ("shift", {"x": [2, 8]}, ["plain training", "logit distillation"], ["2", "8"], {"rounds": 1}),
    "drift-accuracy": ("drift-accuracy", {}, ["FedAvg"], ["CIFAR-100"], {"rounds": 100}),
    "drift-accuracy of more": ("drift-accuracy", {}, TEN[:2], ["a", "b"], {}),
    "filter-rate": ("filter-rate", {}, ["FedCSD"], ["CIFAR-100 0.5", "FEMNIST 0.5"], {"rounds": 100}),
    "tsne": ("tsne", {}, ["FedAvg"], ["a"], {"classes": 10}),
    "tsne of more": ("tsne", {}, ["FedAvg"], ["a"], {"classes": 26}),
    "presence of named clients": ("presence", {}, ["FedAvg"], ["a"], {"rounds": 8, "named": True}),
    "forgetting of names": ("forgetting", {}, START, ["CIFAR-10"], {"named": True}),
    "forgetting of few names": ("forgetting", {}, START, ["Three"], {"named": True, "classes": 3}),
    "classwise by name": ("classwise", {}, ["FedAvg", "FedSSD"], ["CIFAR-10"], {"rounds": 30, "named": True}),
    "confusion of names": ("confusion", {"client": 3}, START, ["CIFAR-10"], {"named": True}),
    "confusion of few names": ("confusion", {"client": 3}, START, ["a"], {"named": True, "classes": 3}),
    "global confusion of names": ("global-confusion", {}, TEN[:3], ["a"], {"named": True, "classes": 3}),
    "global confusion of ten names": ("global-confusion", {}, TEN[:3], ["a"], {"named": True}),
    "labels by name": ("labels-over-rounds", {}, TEN[:5], ["C"], {"rounds": 4, "named": True}),
    "tsne of names": ("tsne", {}, ["FedAvg"], ["a"], {"classes": 10, "named": True}),
    "grid": ("grid", AXES, LMD, GRID, {"rounds": 1}),
}


def build(make: Callable[..., StudyResults], case: str) -> StudyResults:
    form, _, rows, columns, run_options = CASES[case]
    rows, columns = ({name: {} for name in names} if isinstance(names, list) else names for names in (rows, columns))
    study = Study(id="s", title="s", rows=rows, columns=columns, fraction=0.1, seeds=(0, 1) if form == "bars" else (0,))
    needs = {"forgetting": ["confusion", "local"], "confusion": ["confusion", "local_confusion"], "tsne": ["features"]}
    probes = needs.get(form, [p for p in ALL_PROBES if p not in ("local_confusion", "features")])
    return make(study, probes=probes, **run_options)


def test_every_form_has_a_case() -> None:
    assert {form for form, *_ in CASES.values()} == set(FIGURES)


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_cut_off_covered_or_small(
    case: str, make: Callable[..., StudyResults], drawn: Callable[..., Figure]
) -> None:
    form, options, *_ = CASES[case]
    figure = drawn(build(make, case), form, "A title of the figure that says what can be seen in it", **options)
    assert float(figure.get_size_inches()[0]) in (3.4, 7.0)
    assert float(figure.get_size_inches()[1]) < 14
    page = figure.bbox
    texts = list(shown_texts(figure))
    for text, box in texts:
        assert text.get_fontsize() >= 7, text
        assert box.x0 >= -1, text
        assert box.y0 >= -1, text
        assert box.x1 <= page.x1 + 1, text
        assert box.y1 <= page.y1 + 1, text
    upright = [(text, box) for text, box in texts if text.get_rotation() % 90 == 0]
    boxes = np.array([box.extents for _, box in upright])
    for i, (text, box) in enumerate(upright):
        width = np.minimum(box.x1, boxes[i + 1 :, 2]) - np.maximum(box.x0, boxes[i + 1 :, 0])
        height = np.minimum(box.y1, boxes[i + 1 :, 3]) - np.maximum(box.y0, boxes[i + 1 :, 1])
        for other in np.flatnonzero((width > 1) & (height > 1)):
            pytest.fail(f"{text.get_text()!r} overlaps {upright[i + 1 + other][0].get_text()!r}")
    for legend in figure.legends:
        for axes in figure.axes:
            assert Bbox.intersection(legend.get_window_extent(), axes.get_tightbbox()) is None
    assert any("rounds scaled to 10 %" in text.get_text() for text, _ in texts) or form in ("partition", "presence")


def shown_texts(figure: Figure) -> Iterator[tuple[Text, Bbox]]:
    """Yield the visible texts with their boxes, without labels of ticks outside the axis limits."""
    hidden = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            slack = 1e-6 * (high - low)
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                if not low - slack <= tick.get_loc() <= high + slack:
                    hidden |= {tick.label1, tick.label2}
    for text in figure.findobj(Text):
        if text.get_text().strip() and text.get_visible() and text not in hidden:
            yield text, text.get_window_extent()
