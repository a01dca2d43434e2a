"""Contents of the figures against the records of the runs."""

import json
from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text

from fedrecall.errors import UserError
from fedrecall.reporting.figures.curves import AXIS_NOTE
from fedrecall.reporting.figures.style import colour_of
from fedrecall.reporting.figures.tsne import embed
from fedrecall.reporting.html.svg import inline_figure
from fedrecall.studies.results import FinishedRun, StudyResults
from fedrecall.studies.study import FigureSpec, Study

Make, Drawn = Callable[..., StudyResults], Callable[..., Figure]
START = {"global model": {}} | {name: {"start": "global model"} for name in ("FedAvg", "FedCAD")}


def study(rows: list[str] | dict, columns: list[str] | dict, **fields: object) -> Study:
    named = [{name: {} for name in names} if isinstance(names, list) else names for names in (rows, columns)]
    return Study(id="s", title="s", rows=named[0], columns=named[1], **fields)


def image(axes: Axes) -> np.ndarray:
    (found,) = axes.get_images()
    return np.ma.filled(found.get_array().astype(float), np.nan)


def panel(figure: Figure, title: str) -> Axes:
    return next(axes for axes in figure.axes if axes.get_title() == title)


def rewrite(run: FinishedRun, probe: str, lines: list[dict]) -> None:
    (run.path / "probes" / f"{probe}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def notes(figure: Figure) -> list[str]:
    """Notes below the panels, without their line breaks and without that of the vertical axis."""
    found = " ".join(figure.texts[-1].get_text().split()).split("; ")
    return [note for note in found if note != AXIS_NOTE]


def test_curves_are_means_with_a_band_of_one_deviation_in_the_method_s_colour(make: Make, drawn: Drawn) -> None:
    results = make(study(["FedAvg", "FedCAD"], ["a", "b"], seeds=(0, 1, 2)), rounds=5)
    figure = drawn(results, "curves")
    axes = panel(figure, "b")
    table = np.array([[value for _, value in run.curve()] for run in results.finished_runs("FedCAD", "b")])
    line = axes.lines[1]
    assert line.get_color() == colour_of("FedCAD")
    np.testing.assert_array_equal(line.get_xdata(), [1, 2, 3, 4, 5])
    np.testing.assert_allclose(line.get_ydata(), table.mean(0))
    edge = axes.collections[1].get_paths()[0].vertices
    np.testing.assert_allclose(max(edge[edge[:, 0] == 3, 1]), table[:, 2].mean() + table[:, 2].std(ddof=1))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["FedAvg", "FedCAD"]
    assert ["3 seeds" in note for note in notes(figure)] == [True]


def test_one_seed_has_no_band_and_a_run_that_diverged_a_cross(make: Make, drawn: Drawn) -> None:
    results = make(study(["FedAvg", "SCAFFOLD"], ["a"]), rounds=6, diverged=["SCAFFOLD"])
    figure = drawn(results, "curves")
    (axes,) = figure.axes
    assert not axes.collections
    assert [len(line.get_xdata()) for line in axes.lines] == [6, 3, 1]
    assert axes.lines[-1].get_marker() == "x"
    assert ["diverged" in note for note in notes(figure)] == [False, True]


def test_rows_and_columns_without_runs_are_left_out(make: Make, drawn: Drawn) -> None:
    results = make(study(["FedAvg", "FedCAD"], ["a", "b"], seeds=(0, 1)), rounds=2)
    for run in results.finished_runs("FedCAD", "a") + results.finished_runs("FedCAD", "b")[1:]:
        (run.path / "summary.json").unlink()
    figure = drawn(results, "curves")
    assert [len(axes.lines) for axes in figure.axes] == [1, 2]
    assert ["1 to 2 seeds" in note for note in notes(figure)] == [True]


def test_against_puts_columns_at_their_numbers(make: Make, drawn: Drawn) -> None:
    printed = {"best": {"FedCSD": [50.0, "Failed", 70.0]}}
    results = make(study(["FedCSD"], ["mu = 1", "tau = 1", "both"], seeds=(0, 1), printed=printed), rounds=3)
    options = {"columns": ["tau = 1", "both"], "x": [1, 10], "measure": "best"}
    figure = drawn(results, "against", **options)
    best = [
        np.mean([max(v for _, v in o.curve()) for o in results.finished_runs("FedCSD", c)]) for c in options["columns"]
    ]
    line, *_, hollow = figure.axes[0].lines
    np.testing.assert_array_equal(line.get_xdata(), [1, 10])
    np.testing.assert_allclose(line.get_ydata(), best)
    assert (list(hollow.get_xdata()), list(hollow.get_ydata())) == ([10], [0.7])
    assert figure.axes[0].get_ylabel() == "best accuracy (%)"


def test_a_logarithmic_axis_shows_zero_too(make: Make, drawn: Drawn) -> None:
    results = make(study(["FedCSD"], ["a", "b", "c"]), rounds=1)
    assert drawn(results, "against", x=[1, 10, 100], log=True).axes[0].get_xscale() == "log"
    assert drawn(results, "against", x=[0, 10, 100], log=True).axes[0].get_xscale() == "symlog"


def test_bars_stand_on_zero_and_are_as_high_as_the_accuracy(make: Make, drawn: Drawn) -> None:
    printed = {"final": {"FedCAD": [71.5, None]}}
    rows = ["FedAvg", "FedCAD", "variant 0", "variant 11"]
    results = make(study(rows, ["a", "b"], printed=printed), rounds=2)
    figure = drawn(results, "bars")
    (axes,) = figure.axes
    heights = [patch.get_height() for patch in axes.patches]
    np.testing.assert_allclose(
        heights, [results.finished_runs(r, c)[0].curve()[-1][1] for r in rows for c in ("a", "b")]
    )
    assert {patch.get_y() for patch in axes.patches} == {0}
    assert [to_hex(patch.get_facecolor()) for patch in axes.patches[:4:2]] == [colour_of(r).lower() for r in rows[:2]]
    lines = [line for line in axes.lines if len(line.get_xdata()) == 2 and line.get_ydata()[0] == 0.715]
    assert len(lines) == 1
    assert lines[0].get_xdata()[0] < axes.patches[2].get_x() + axes.patches[2].get_width() / 2 < lines[0].get_xdata()[1]


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("bars", {}),
        ("against", {"x": [1]}),
        ("grid", {a: {"name": "split_seed", "values": [1]} for a in "xy"}),
        ("curves", {}),
    ],
)
def test_a_seed_that_diverged_is_excluded_and_noted(make: Make, drawn: Drawn, form: str, options: dict) -> None:
    seeded = study(["FedAvg"], {"1": {"data": {"split_seed": 1}}}, seeds=(0, 1, 2))
    figure = drawn(make(seeded, rounds=4, diverged=[("FedAvg", 1)]), form, **options)
    assert ["2 seeds" in note for note in notes(figure)] == [True, False]
    assert ["diverged" in note for note in notes(figure)] == [False, True]


def test_bars_of_one_colour_have_patterns(make: Make, drawn: Drawn) -> None:
    twins = [name for name in (f"variant {i}" for i in range(200)) if colour_of(name) == colour_of("variant 0")][:3]
    figure = drawn(make(study(twins, ["a"]), rounds=1), "bars")
    assert len({patch.get_hatch() for patch in figure.axes[0].patches}) == 3


def test_a_partition_is_drawn_once_for_the_columns_that_share_it(make: Make, drawn: Drawn) -> None:
    results = make(study(["FedAvg", "FedCAD"], ["a", "b", "c"]), rounds=1, clients=4, classes=3)
    same = (results.finished_runs("FedAvg", "a")[0].path / "partition.json").read_text()
    for run in results.finished_runs(column="b"):
        (run.path / "partition.json").write_text(same)
    figure = drawn(results, "partition")
    titles = [axes.get_title() for axes in figure.axes if axes.get_images()]
    assert titles == ["a, b", "c"]
    counts = np.array(json.loads(same)["counts"])
    np.testing.assert_array_equal(np.nan_to_num(image(figure.axes[0])), counts.T)
    written = [text.get_text() for text in figure.axes[0].texts]
    assert sorted(written) == sorted(str(count) for count in counts.ravel() if count)


def test_maps_of_partitions_have_numbers_all_or_none(make: Make, drawn: Drawn) -> None:
    results = make(study(["FedAvg"], ["a", "b", "c"]), rounds=1, clients=4, classes=3)
    (large,) = results.finished_runs(column="c")
    (large.path / "partition.json").write_text(json.dumps({"hash": "x", "counts": [[1_000_000_000] * 3] * 4}))
    assert not any(axes.texts for axes in drawn(results, "partition").axes)
    (large.path / "partition.json").write_text(json.dumps({"hash": "x", "counts": [[1] * 3] * 4}))
    assert all(axes.texts for axes in drawn(results, "partition").axes if axes.get_images())


def test_forgetting_orders_classes_by_the_client_s_share(make: Make, drawn: Drawn) -> None:
    results = make(study(START, ["digits"]), probes=["confusion", "local"], classes=3, clients=2)
    (start,), (plain,), (cad,) = (results.finished_runs(row) for row in START)
    counts = [[10, 60, 30], [34, 33, 33]]
    for run in (start, plain, cad):
        (run.path / "partition.json").write_text(json.dumps({"hash": "x", "counts": counts}))
    confusion = [[8, 1, 1], [0, 4, 0], [5, 5, 10]]
    before = [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    rewrite(start, "confusion", [{"round": 1, "confusion": before}, {"round": 2, "confusion": confusion}])
    line = {"round": 1, "clients": [1, 0], "test": [10, 4, 20]}
    rewrite(plain, "local", [{**line, "correct": [[9, 4, 9], [1, 3, 5]]}])
    rewrite(cad, "local", [{**line, "correct": [[9, 4, 9], [4, 4, 15]]}])
    figure = drawn(results, "forgetting")
    share, table = figure.axes[:2]
    np.testing.assert_allclose(image(share), [[0.1, 0.3, 0.6]])  # of client 0, the least even: classes 0, 2, 1
    np.testing.assert_allclose(image(table), [[0.8, 0.5, 1.0], [0.1, 0.25, 0.75], [0.4, 0.75, 1.0]])
    assert [label.get_text() for label in table.get_xticklabels()] == ["0", "2", "1"]
    assert [label.get_text() for label in table.get_yticklabels()] == ["global model", "FedAvg local", "FedCAD local"]
    assert notes(figure) == ["digits: client 0, seed 0"]


@pytest.mark.parametrize("form", ["forgetting", "confusion", "classwise", "labels-over-rounds", "tsne", "presence"])
def test_names_of_classes_and_clients_are_in_every_figure(form: str, make: Make, drawn: Drawn) -> None:
    probes = ["confusion", "local", "local_confusion", "cohort", "features"]
    results = make(study(START, ["a"]), probes=probes, classes=3, clients=4, named=True)
    for run in results.finished_runs():
        manifest = json.loads((run.path / "partition.json").read_text())
        names = {"class_names": ["cat", "dog", "eel"], "client_names": ["Aspen", "Birch", "Cedar", "Elm"]}
        (run.path / "partition.json").write_text(json.dumps(manifest | names))
    figure = drawn(results, form, **({} if form in ("labels-over-rounds", "presence") else {"client": 3}))
    texts = " ".join(text.get_text() for text in figure.findobj(Text))
    if form != "presence":
        assert all(name in texts for name in ("cat", "dog", "eel"))
    if form != "labels-over-rounds":
        assert "Elm" in texts
        assert "client 3" not in texts


NAMED = [
    "forgetting",
    "confusion",
    "classwise",
    "global-confusion",
    "labels-over-rounds",
    "tsne",
    "presence",
    "partition",
]


@pytest.mark.parametrize("form", NAMED)
def test_unprintable_characters_of_names_are_spaces(form: str, make: Make, drawn: Drawn) -> None:
    probes = ["confusion", "local", "local_confusion", "cohort", "features"]
    results = make(study(START, ["a"]), probes=probes, classes=3, clients=4, named=True)
    for run in results.finished_runs():
        manifest = json.loads((run.path / "partition.json").read_text())
        names = {"class_names": ["c\x1b[2J", "d\x00", "e"], "client_names": ["A\x1b[2J", "B", "C\x07", "D"]}
        (run.path / "partition.json").write_text(json.dumps(manifest | names))
    options = {"client": 0} if form in ("forgetting", "confusion", "classwise", "tsne") else {}
    texts = [text.get_text() for text in drawn(results, form, **options).findobj(Text)]
    assert all(line.isprintable() for text in texts for line in text.splitlines())
    found = inline_figure(results, FigureSpec(form=form, options=options), "figure")
    assert "[2J" in found.svg


def test_unfinished_runs_are_not_in_the_figure_of_forgetting(make: Make, drawn: Drawn) -> None:
    results = make(study(START, ["a", "b", "c"], seeds=(0, 1)), probes=["confusion", "local"], classes=3, clients=2)
    for row, column in (("FedAvg", "b"), ("FedCAD", "b"), ("FedAvg", "c")):
        for run in results.finished_runs(row, column):
            (run.path / "summary.json").unlink()
    figure = drawn(results, "forgetting")
    assert [note.partition(":")[0] for note in notes(figure)] == ["a", "c"]
    maps = [axes for axes in figure.axes if len(axes.get_yticklabels()) > 1 and axes.get_images()]
    labels = [[label.get_text() for label in axes.get_yticklabels()] for axes in maps]
    assert labels == [["global model", "FedAvg local", "FedCAD local"], ["global model", "FedCAD local"]]


def test_confusion_is_in_shares_of_the_true_class(make: Make, drawn: Drawn) -> None:
    results = make(study(START, ["digits"]), probes=["confusion", "local_confusion"], classes=2, clients=3)
    (cad,) = results.finished_runs("FedCAD")
    tables = [[[1, 0], [0, 1]], [[3, 1], [2, 2]]]
    rewrite(cad, "local_confusion", [{"round": 1, "clients": [0, 2], "confusion": tables}])
    figure = drawn(results, "confusion", client=2)
    np.testing.assert_allclose(image(panel(figure, "FedCAD local")), [[0.75, 0.25], [0.5, 0.5]])
    assert [text.get_text() for text in panel(figure, "FedCAD local").texts] == ["75", "25", "50", "50"]
    bars = [patch.get_width() for patch in panel(figure, "data of client 2").patches]
    assert sum(bars) == pytest.approx(1)
    with pytest.raises(UserError) as error:
        drawn(results, "confusion", client=1)
    assert (error.value.code, error.value.key) == ("report.absent_client", "client")
    assert "FedCAD" in str(error.value)


def test_without_a_row_to_start_from_every_method_has_its_own_model_before(make: Make, drawn: Drawn) -> None:
    results = make(study(["FedAvg", "FedCAD"], ["a"]), probes=["confusion", "local"], rounds=3, classes=4)
    figure = drawn(results, "forgetting", client=1)
    labels = [label.get_text() for label in figure.axes[1].get_yticklabels()]
    assert labels == ["FedAvg global", "FedAvg local", "FedCAD global", "FedCAD local"]
    (run,) = results.finished_runs("FedCAD")
    before = np.array(run.probe_records("confusion")[1]["confusion"])  # after round 2, which round 3 begins with
    shares = np.array(json.loads((run.path / "partition.json").read_text())["counts"][1])
    order = np.argsort(shares, kind="stable")
    np.testing.assert_allclose(image(figure.axes[1])[2], (np.diagonal(before) / before.sum(1))[order])


def test_classwise_compares_a_local_model_with_the_received_global_one(make: Make, drawn: Drawn) -> None:
    results = make(study(["FedAvg"], ["a"]), probes=["confusion", "local"], rounds=3, classes=2, clients=2)
    (run,) = results.finished_runs()
    rewrite(run, "confusion", [{"round": n, "confusion": [[n, 10 - n], [0, 10]]} for n in (1, 2, 3)])
    local = [{"round": n, "clients": [0] if n < 3 else [1], "correct": [[9, 1]], "test": [10, 10]} for n in (1, 2, 3)]
    rewrite(run, "local", local)
    figure = drawn(results, "classwise", client=0)
    nan = np.nan
    np.testing.assert_allclose(image(panel(figure, "global model")), [[0.1, 0.2, 0.3], [1, 1, 1]])
    np.testing.assert_allclose(image(panel(figure, "local model")), [[0.9, 0.9, nan], [0.1, 0.1, nan]])
    np.testing.assert_allclose(image(panel(figure, "local less global")), [[nan, 0.8, nan], [nan, -0.9, nan]])


def test_labels_over_rounds_are_shares_of_each_round(make: Make, drawn: Drawn) -> None:
    results = make(study(["FedAvg", "FedLMD"], ["a"]), probes=["confusion", "cohort"], rounds=4, classes=3)
    figure = drawn(results, "labels-over-rounds")
    (_, lmd) = results.finished_runs()
    predicted = np.array([np.sum(line["confusion"], axis=0) for line in lmd.probe_records("confusion")]).T
    table = image(panel(figure, "FedLMD predicts"))
    np.testing.assert_allclose(table, predicted / predicted.sum(0))
    np.testing.assert_allclose(image(panel(figure, "cohort's training data")).sum(0), 1)
    limits = {axes.get_images()[0].get_clim() for axes in figure.axes if axes.get_title()}
    assert len(limits) == 1  # one scale for all, or they could not be compared


def test_shift_shows_the_means_over_clients_and_the_averaged_model(make: Make, drawn: Drawn) -> None:
    rows = {"global model": {}, "plain training": {"start": "global model"}}
    results = make(study(rows, ["1", "8"]), probes=["shift"], rounds=2)
    figure = drawn(results, "shift", rows=["plain training"], column="8", x=[1, 8])
    (run,) = results.finished_runs("plain training", "8")
    (probe,) = run.probe_records("shift")
    np.testing.assert_allclose(figure.axes[0].lines[0].get_ydata(), np.mean(probe["kl"], axis=0))
    np.testing.assert_allclose(figure.axes[1].lines[0].get_ydata(), np.mean(probe["features"], axis=0))
    averaged = figure.axes[2].lines[1]
    np.testing.assert_array_equal(averaged.get_xdata(), [1, 8])
    expected = [results.finished_runs("plain training", column)[0].curve()[-1][1] for column in ("1", "8")]
    np.testing.assert_allclose(averaged.get_ydata(), expected)


def test_shift_leaves_out_a_client_without_a_training_step(make: Make, drawn: Drawn) -> None:
    results = make(study(["FedAvg"], ["a"]), probes=["shift"], rounds=2)
    (run,) = results.finished_runs()
    lines = run.probe_records("shift")
    expected = np.mean(lines[-1]["kl"][1:], axis=0)
    for key in ("kl", "features", "accuracy"):
        lines[-1][key][0] = lines[-1][key][0][:1]
    rewrite(run, "shift", lines)
    figure = drawn(results, "shift")
    np.testing.assert_allclose(figure.axes[0].lines[0].get_ydata(), expected)
    assert any("9 clients" in note for note in notes(figure))


def test_a_seed_that_diverged_is_in_no_confusion_matrix(make: Make, drawn: Drawn) -> None:
    seeded = study(["FedAvg"], ["a"], seeds=(0, 1, 2))
    results = make(seeded, rounds=4, probes=["confusion"], classes=3, diverged=[("FedAvg", 1)])
    figure = drawn(results, "global-confusion")
    kept = [run for run in results.finished_runs() if not run.diverged]
    matrix = np.sum([run.probe_records("confusion")[-1]["confusion"] for run in kept], axis=0)
    np.testing.assert_allclose(image(figure.axes[0]), matrix / matrix.sum(axis=1, keepdims=True))
    assert any("diverged" in note for note in notes(figure))


def test_the_received_model_is_that_of_the_round_before(make: Make, drawn: Drawn) -> None:
    results = make(study(["FedAvg"], ["a"]), probes=["own_data", "local"], rounds=3)
    (axes,) = drawn(results, "drift-accuracy").axes
    (run,) = results.finished_runs()
    records = run.probe_records("own_data")
    global_test, local_test, global_own, local_own = axes.lines
    np.testing.assert_allclose(global_test.get_ydata(), [value for _, value in run.curve()])
    np.testing.assert_allclose(local_test.get_ydata(), [line["mean_accuracy"] for line in run.probe_records("local")])
    np.testing.assert_array_equal(global_own.get_xdata(), [0, 1, 2])
    np.testing.assert_allclose(global_own.get_ydata(), [np.mean(line["global"]) for line in records])
    np.testing.assert_array_equal(local_own.get_xdata(), [1, 2, 3])
    np.testing.assert_allclose(local_own.get_ydata(), [np.mean(line["local"]) for line in records])


def test_local_global_has_a_dot_a_round(make: Make, drawn: Drawn) -> None:
    results = make(study(["FedAvg"], ["#K=2", "uniform"]), local_accuracy=True, rounds=7)
    scatter, boxes = drawn(results, "local-global").axes
    dots = scatter.collections[1].get_offsets()
    (run,) = results.finished_runs(column="uniform")
    local, global_accuracy = ([value for _, value in run.curve(key)] for key in ("local_accuracy", "accuracy"))
    np.testing.assert_allclose(dots, np.stack([local, global_accuracy], axis=1))
    assert [label.get_text() for label in boxes.get_xticklabels()] == ["#K=2", "uniform"]


def test_filter_rate(make: Make, drawn: Drawn) -> None:
    results = make(study(["FedCSD"], ["a"]), probes=["distillation"], rounds=3)
    (axes,) = drawn(results, "filter-rate").axes
    rates = [line["filter_rate"] for line in results.finished_runs()[0].probe_records("distillation")]
    np.testing.assert_allclose(axes.lines[0].get_ydata(), rates)


def test_a_grid_knows_its_columns_by_what_they_set(make: Make, drawn: Drawn) -> None:
    columns = {
        f"{t} {b}": {"method": {"name": "fedlmd", "tau": t, "beta": b}} for t in (1.0, 3.0) for b in (5.0, 0.1, 2.0)
    }
    results = make(study(["FedLMD"], columns, measure="best"), rounds=2)
    axes = {"x": {"name": "tau", "values": [1, 3]}, "y": {"name": "beta", "values": [0.1, 2, 5]}}
    table = image(drawn(results, "grid", **axes).axes[0])
    assert table.shape == (3, 2)
    for (j, beta), (i, tau) in ((y, x) for y in enumerate((0.1, 2.0, 5.0)) for x in enumerate((1.0, 3.0))):
        (run,) = results.finished_runs("FedLMD", f"{tau} {beta}")
        assert table[j, i] == pytest.approx(max(value for _, value in run.curve()))
    with pytest.raises(UserError) as error:
        drawn(results, "grid", x={"name": "tau", "values": [2]}, y=axes["y"])
    assert (error.value.code, error.value.key) == ("report.invalid_option", "tau")
    assert "2.0" in str(error.value)


def test_tsne_keeps_classes_together_and_is_the_same_every_time() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    features = rng.normal(0, 8, (3, 12))[y] + rng.normal(0, 1, (60, 12))
    points = embed(features)
    distance = np.linalg.norm(points[:, None] - points[None], axis=-1) + 1e9 * np.eye(60)
    assert (y[distance.argmin(1)] == y).all()
    np.testing.assert_array_equal(points, embed(features))


def test_tsne_shows_global_models_then_one_client_s(make: Make, drawn: Drawn) -> None:
    rows = {"FedAvg": {}, "FedCSD": {}, "local, full loss": {"start": "FedCSD"}}
    results = make(study(rows, ["a"]), probes=["features"], classes=3)
    figure = drawn(results, "tsne", **{"global": ["FedCSD"], "local": ["local, full loss"], "client": 3})
    assert [axes.get_title() for axes in figure.axes] == ["FedCSD: global model", "local, full loss"]
    assert ["client 3" in note for note in notes(figure)] == [False, True]
    assert len(drawn(results, "tsne").axes) == 3
