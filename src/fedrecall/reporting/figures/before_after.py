"""Figures of one client's round by class: global model before its training, local models after it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from fedrecall.errors import UserError
from fedrecall.reporting.figures.heatmaps import (
    colour_bar,
    heatmap,
    label_classes,
    label_shares,
    needs_upright_names,
    outline,
    percent,
)
from fedrecall.reporting.figures.layout import (
    add_title_legend_notes,
    new_figure,
    set_panel_title,
    text_width,
    truncate_text,
)
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
    select,
)
from fedrecall.reporting.figures.style import DATA_COLOUR, MAX_NAME_WIDTH, PAGE_WIDTH, SMALL, single_hue_colormap
from fedrecall.studies.results import FinishedRun, StudyResults

DATA_SHARE_ROW = "data share"  # row of the option `printed`

ROW_HEIGHT = 0.19  # inches


class ModelStage(NamedTuple):
    """Model before or after a client's training."""

    label: str
    confusion: Floats | None  # [C, C]
    recall: Floats  # [C]


class ClientRound(NamedTuple):
    """Round of one client, trained by several methods."""

    client: str
    seed: int
    classes: list[str]
    shares: Floats  # of the labels in its training data [C]
    stages: list[ModelStage]


def client_rounds(
    results: StudyResults, *, rows: Selection, columns: Selection, start: str | None, client: int | str, matrices: bool
) -> dict[str, ClientRound]:
    """Return a client's round in each column with finished runs; `matrices` requires full confusion matrices.

    With `start`, all rows start from the last global model of that row; otherwise each row has its own.
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
    start_row = start or next((str(study.rows[row]["start"]) for row in names if "start" in study.rows[row]), None)
    start_row = select(study.rows, [start_row], "row")[0] if start_row else None
    others = [row for row in names if row != start_row]
    others = [row for row in others if study.rows[row].get("start") == start_row] or others
    trained = {row: runs for row in others if (runs := results.finished_runs(row, column))}
    if not trained:
        raise no_finished_run()
    first = next(iter(trained.values()))[0]
    seed, counts = first.cell.seed, label_counts(first)
    chosen = pick_client(client, participants(probe_records(first, probe)), counts)
    stages = []
    if start_row is not None:
        start_runs = [run for run in results.finished_runs(start_row, column) if run.cell.seed == seed]
        stages += [_before(run, None, "global model") for run in start_runs]
    for row, runs in trained.items():
        run = next((each for each in runs if each.cell.seed == seed), None)
        if run is None:
            continue
        number, after = _after(run, probe, chosen, f"{row} local")
        if start_row is None and number > 1:
            stages.append(_before(run, number - 1, f"{row} global"))
        stages.append(after)
    shares = safe_divide(counts[chosen], counts[chosen].sum())
    return ClientRound(first.client_name(chosen), seed, first.class_names, shares, stages)


def _before(run: FinishedRun, number: int | None, label: str) -> ModelStage:
    lines = probe_records(run, "confusion")
    number = max(lines) if number is None else number
    if number not in lines:
        text = f"{run.cell.row} was not evaluated after round {number}"
        raise MissingData("report.missing_measurement", text, "run.evaluate_every", "set it to 1 and run it again")
    confusion = np.asarray(lines[number]["confusion"], dtype=np.float64)
    return ModelStage(label, confusion, recall(confusion))


def _after(run: FinishedRun, probe: str, client: int, label: str) -> tuple[int, ModelStage]:
    """Return the last round in which the client participated, and its local model of that round."""
    rounds = {number: line for number, line in probe_records(run, probe).items() if client in line["clients"]}
    if not rounds:
        text = f"client = {client}: the client did not participate in {run.cell.row}"
        raise MissingData("report.absent_client", text, "client", f'use another client or "{MOST_SKEWED}"')
    number, line = max(rounds.items())
    position = line["clients"].index(client)
    if probe == "local":
        return number, ModelStage(label, None, safe_divide(line["correct"][position], line["test"]))
    confusion = np.asarray(line["confusion"][position], dtype=np.float64)
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
    """Draw a client's label shares, then confusion matrices of the global model and of the client's local models.

    Cells are in percent of the true class.
    """
    found = client_rounds(results, rows=rows, columns=columns, start=start, client=client, matrices=True)
    contents = [(name, part, stage) for name, part in found.items() for stage in (None, *part.stages)]
    numbers = all(len(part.shares) <= 12 for part in found.values())  # numbers need larger cells
    across = 2 if len(contents) <= 4 or (numbers and len(contents) <= 6) else 3
    down = -(-len(contents) // across)
    side = 2.5 if across == 2 else 1.7
    width = (PAGE_WIDTH - 0.8) / across - 0.5
    upright = max(MAX_NAME_WIDTH if needs_upright_names(part.classes, width) else 0.0 for part in found.values())
    figure = new_figure(PAGE_WIDTH, down * (side + 0.45 + upright))
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    for spare in axes[len(contents) :]:
        spare.remove()
    for panel, (name, part, stage) in zip(axes[: len(contents)], contents, strict=True):
        classes = len(part.shares)
        if stage is None or stage.confusion is None:
            label_shares(panel, part.shares, side, part.classes)
            label = f"data of client {part.client}"
        else:
            table = safe_divide(stage.confusion, stage.confusion.sum(axis=1, keepdims=True))
            cell = width / classes, side / classes
            image = heatmap(panel, table, write=percent, cell=cell)
            label_classes(panel, part.classes, width, across=True, name="predicted class")
            label_classes(panel, part.classes, side, across=False, name="true class")
            label = stage.label
        set_panel_title(panel, f"{name}: {label}" if len(found) > 1 else label)
    colour_bar(figure, image, axes[: len(contents)], "share of the true class (%)", down)
    notes = [f"seed {part.seed}" for part in found.values()]
    return add_title_legend_notes(figure, title=title, notes=[*dict.fromkeys(notes), *results.study.scale_note()])


class _Panel(NamedTuple):
    title: str
    classes: list[str]  # in ascending order of the client's label shares
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
    """Draw the class-wise accuracy of the global model and of a client's local models, below the label shares.

    Classes are in ascending order of the client's label shares: absent classes are at the left. Numbers `printed` in
    the paper, by row, are a panel below.
    """
    parts, notes = [], []
    found = client_rounds(results, rows=rows, columns=columns, start=start, client=client, matrices=False)
    for column, client_round in found.items():
        order = np.argsort(client_round.shares, kind="stable")
        recalls = {stage.label: stage.recall[order] for stage in client_round.stages}
        names = [truncate_text(client_round.classes[k], MAX_NAME_WIDTH, SMALL) for k in order]
        parts.append(_Panel(column, names, client_round.shares[order], recalls))
        notes.append(f"{column}: client {client_round.client}, seed {client_round.seed}")
    if printed:
        parts.append(_printed_panel(printed))
    width = PAGE_WIDTH - 1.0 - max(text_width(row, SMALL) for part in parts for row in part.rows)
    upright = [_name_height(part, width) for part in parts]
    heights = [ROW_HEIGHT * (len(part.rows) + 1) + 0.7 + (name or 0) for part, name in zip(parts, upright, strict=True)]
    figure = new_figure(PAGE_WIDTH, sum(heights))
    ratios = [lines for part in parts for lines in (1, len(part.rows))]
    grid = figure.subplots(2 * len(parts), 1, squeeze=False, gridspec_kw={"height_ratios": ratios})[:, 0]
    for part, top, below, name_height in zip(parts, grid[::2], grid[1::2], upright, strict=True):
        cell = (width / len(part.shares), ROW_HEIGHT)
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
        if name_height is not None:
            below.set_xticks(range(len(part.classes)), part.classes, rotation=90 if name_height else 0)
            below.set_xlabel("class")
        else:
            below.set_xticks([])
            below.set_xlabel(f"{len(part.classes)} classes, in the order of their share")
        colour_bar(figure, image, [top, below], "accuracy (%)")
    return add_title_legend_notes(figure, title=title, notes=[*notes, *results.study.scale_note()])


def _name_height(part: _Panel, width: float) -> float | None:
    """Return the height of names of classes that must stand upright, in inches; 0 if they lie, None if none fit."""
    cell, widest = width / len(part.classes), max(text_width(name, SMALL) for name in part.classes)
    if cell > widest + 0.06:
        return 0.0
    return widest if cell > 1.3 * SMALL / 72 else None


def _printed_panel(table: Mapping[str, Sequence[float]]) -> _Panel:
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
    rows_by_label = {row if row.startswith("global") else f"{row} local": line for row, line in lines.items()}
    return _Panel("printed in the paper", [str(k) for k in range(len(shares))], shares, rows_by_label)
