"""What a client's training does to the classes: the global model before it, the local models after it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from fedrecall.errors import UserError
from fedrecall.reporting.figures.heatmaps import colour_bar, heatmap, label_classes, label_shares, outline, percent
from fedrecall.reporting.figures.layout import add_title_legend_notes, new_figure, set_panel_title, text_width
from fedrecall.reporting.figures.series import (
    MOST_SKEWED,
    Floats,
    MissingData,
    Selection,
    label_counts,
    no_finished_run,
    participants,
    pick_client,
    probe_records,
    recall,
    safe_divide,
    scale_note,
    select,
)
from fedrecall.reporting.figures.style import DATA_COLOUR, PAGE_WIDTH, SMALL, single_hue_colormap
from fedrecall.studies.results import FinishedRun, StudyResults


class ModelStage(NamedTuple):
    """A model before or after a client's training."""

    label: str
    confusion: Floats | None  # [C, C]
    recall: Floats  # [C]


class ClientRound(NamedTuple):
    """One client's round, trained by several methods."""

    client: int
    seed: int
    shares: Floats  # of the labels in its training data [C]
    stages: list[ModelStage]


def client_rounds(
    results: StudyResults, *, rows: Selection, columns: Selection, start: str | None, client: int | str, matrices: bool
) -> dict[str, ClientRound]:
    """A client's round in each column whose runs are finished; `matrices` asks for whole confusion matrices.

    With a row to start from, its last global model is what all others begin with; else each row has its own.
    """
    found, missing = {}, no_finished_run()
    for column in select(results.study.columns, columns, "column"):
        try:
            found[column] = _in_column(results, column, rows, start, client, "local_confusion" if matrices else "local")
        except MissingData as error:
            missing = error
    if not found:
        raise missing
    return found


def _in_column(
    results: StudyResults, column: str, rows: Selection, start: str | None, client: int | str, probe: str
) -> ClientRound:
    study = results.study
    names = select(study.rows, rows, "row")
    begins = start or next((str(study.rows[row]["start"]) for row in names if "start" in study.rows[row]), None)
    begins = select(study.rows, [begins], "row")[0] if begins else None
    others = [row for row in names if row != begins]
    others = [row for row in others if study.rows[row].get("start") == begins] or others
    trained = {row: outcomes for row in others if (outcomes := results.finished_runs(row, column))}
    if not trained:
        raise no_finished_run()
    first = next(iter(trained.values()))[0]
    seed, counts = first.cell.seed, label_counts(first)
    who = pick_client(client, participants(probe_records(first, probe)), counts)
    stages = []
    if begins is not None:
        beginnings = [outcome for outcome in results.finished_runs(begins, column) if outcome.cell.seed == seed]
        stages += [_before(outcome, None, "global model") for outcome in beginnings]
    for row, outcomes in trained.items():
        outcome = next((each for each in outcomes if each.cell.seed == seed), None)
        if outcome is None:
            continue
        number, after = _after(outcome, probe, who, f"{row} local")
        if begins is None and number > 1:
            stages.append(_before(outcome, number - 1, f"{row} global"))
        stages.append(after)
    return ClientRound(who, seed, safe_divide(counts[who], counts[who].sum()), stages)


def _before(outcome: FinishedRun, number: int | None, label: str) -> ModelStage:
    lines = probe_records(outcome, "confusion")
    number = max(lines) if number is None else number
    if number not in lines:
        text = f"{outcome.cell.row} was not evaluated after round {number}"
        raise MissingData("report.missing_measurement", text, "run.evaluate_every", "set it to 1 and run it again")
    confusion = np.asarray(lines[number]["confusion"], dtype=np.float64)
    return ModelStage(label, confusion, recall(confusion))


def _after(outcome: FinishedRun, probe: str, client: int, label: str) -> tuple[int, ModelStage]:
    """The client's model of the last round that it took part in, with the number of that round."""
    there = {number: line for number, line in probe_records(outcome, probe).items() if client in line["clients"]}
    if not there:
        text = f"client = {client}: the client did not participate in {outcome.cell.row}"
        raise MissingData("report.absent_client", text, "client", f'use another client or "{MOST_SKEWED}"')
    number, line = max(there.items())
    at = line["clients"].index(client)
    if probe == "local":
        return number, ModelStage(label, None, safe_divide(line["correct"][at], line["test"]))
    confusion = np.asarray(line["confusion"][at], dtype=np.float64)
    return number, ModelStage(label, confusion, recall(confusion))


def confusion(
    results: StudyResults,
    *,
    title: str = "",
    start: str | None = None,
    client: int | str = MOST_SKEWED,
    rows: Selection = None,
    columns: Selection = None,
) -> Figure:
    """Confusion matrices in per cent of the true class: the global model, then a client's models after its training.

    Before them, the client's label shares.
    """
    found = client_rounds(results, rows=rows, columns=columns, start=start, client=client, matrices=True)
    places = [(name, part, stage) for name, part in found.items() for stage in (None, *part.stages)]
    numbers = all(len(part.shares) <= 12 for part in found.values())  # which need room
    across = 2 if len(places) <= 4 or (numbers and len(places) <= 6) else 3
    down = -(-len(places) // across)
    side = 2.5 if across == 2 else 1.7
    figure = new_figure(PAGE_WIDTH, down * (side + 0.45))
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    for spare in axes[len(places) :]:
        spare.remove()
    for place, (name, part, stage) in zip(axes[: len(places)], places, strict=True):
        classes = len(part.shares)
        if stage is None or stage.confusion is None:
            label_shares(place, part.shares, side)
            what = f"data of client {part.client}"
        else:
            table = safe_divide(stage.confusion, stage.confusion.sum(axis=1, keepdims=True))
            cell = ((PAGE_WIDTH - 0.8) / across - 0.5) / classes, side / classes
            image = heatmap(place, table, write=percent, cell=cell)
            label_classes(place, classes, side, across=True, name="predicted class")
            label_classes(place, classes, side, across=False, name="true class")
            what = stage.label
        set_panel_title(place, f"{name}: {what}" if len(found) > 1 else what)
    colour_bar(figure, image, axes[: len(places)], "share of the true class (%)", down)
    notes = [f"seed {part.seed}" for part in found.values()]
    return add_title_legend_notes(figure, title=title, notes=[*dict.fromkeys(notes), *scale_note(results)])


DATA_SHARE_ROW = "data share"  # a row of what is printed

ROW_HEIGHT = 0.19  # inches: height of a row of the heat map


class _Panel(NamedTuple):
    title: str
    classes: list[int]  # in the order of the client's shares
    shares: Floats  # [C]
    rows: dict[str, Floats]  # accuracies by class [C]


def forgetting(
    results: StudyResults,
    *,
    title: str = "",
    start: str | None = None,
    client: int | str = MOST_SKEWED,
    printed: Mapping[str, Sequence[float]] | None = None,
    rows: Selection = None,
    columns: Selection = None,
) -> Figure:
    """Class-wise accuracy of the global model and of a client's models, below the label shares of that client.

    Classes stand in the order of these shares: what the client lacks is at the left. What the paper printed, by row,
    is drawn below.
    """
    parts, notes = [], []
    found = client_rounds(results, rows=rows, columns=columns, start=start, client=client, matrices=False)
    for column, seen in found.items():
        order = np.argsort(seen.shares, kind="stable")
        recalls = {stage.label: stage.recall[order] for stage in seen.stages}
        parts.append(_Panel(column, order.tolist(), seen.shares[order], recalls))
        notes.append(f"{column}: client {seen.client}, seed {seen.seed}")
    if printed:
        parts.append(_printed(printed))
    figure = new_figure(PAGE_WIDTH, sum(ROW_HEIGHT * (len(part.rows) + 1) + 0.7 for part in parts))
    ratios = [lines for part in parts for lines in (1, len(part.rows))]
    grid = figure.subplots(2 * len(parts), 1, squeeze=False, gridspec_kw={"height_ratios": ratios})[:, 0]
    room = PAGE_WIDTH - 1.0 - max(text_width(row, SMALL) for part in parts for row in part.rows)
    for part, top, below in zip(parts, grid[::2], grid[1::2], strict=True):
        cell = (room / len(part.shares), ROW_HEIGHT)
        limits = (0.0, float(part.shares.max()))
        heatmap(
            top, part.shares[None], limits=limits, colours=single_hue_colormap(DATA_COLOUR), write=percent, cell=cell
        )
        outline(top)
        top.set_yticks([0], [f"{DATA_SHARE_ROW} (%)"])
        top.set_xticks([])
        if len(parts) > 1:
            top.set_title(part.title)
        image = heatmap(below, np.stack(list(part.rows.values())), write=percent, cell=cell)
        below.set_yticks(range(len(part.rows)), list(part.rows))
        if cell[0] > text_width(str(len(part.classes)), SMALL) + 0.06:
            below.set_xticks(range(len(part.classes)), [str(k) for k in part.classes])
            below.set_xlabel("class")
        else:
            below.set_xticks([])
            below.set_xlabel(f"{len(part.classes)} classes, in the order of their share")
        colour_bar(figure, image, [top, below], "accuracy (%)")
    return add_title_legend_notes(figure, title=title, notes=[*notes, *scale_note(results)])


def _printed(table: Mapping[str, Sequence[float]]) -> _Panel:
    lines = {row: np.asarray(line, dtype=np.float64) for row, line in table.items()}
    if DATA_SHARE_ROW not in lines or len({len(line) for line in lines.values()}) != 1 or len(lines) < 2:
        rows = ", ".join(f"{row} ({len(line)} classes)" for row, line in lines.items()) or "no rows"
        raise UserError(
            "report.invalid_option",
            f'the figure option "printed" has {rows}',
            "printed",
            f'add a row "{DATA_SHARE_ROW}", and rows of accuracies with the same number of classes',
        )
    shares = lines.pop(DATA_SHARE_ROW)
    named = {row if row.startswith("global") else f"{row} local": line for row, line in lines.items()}
    return _Panel("printed in the paper", list(range(len(shares))), shares, named)
