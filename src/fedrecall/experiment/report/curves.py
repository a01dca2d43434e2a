"""The learning curves as data for the page's script: one panel a column, one line a row, mean and spread over seeds."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from fedrecall.experiment.results import Outcome, Results
from fedrecall.experiment.stats import Curve, spread

POINTS = 200  # a line has no more: a screen shows no more


class Measure(NamedTuple):
    """Something that is drawn by round."""

    key: str  # in rounds.jsonl
    name: str
    unit: str = " %"
    digits: int = 2
    scale: float = 100.0


ACCURACY = Measure("accuracy", "test accuracy")
LOCAL = Measure("local_accuracy", "mean local accuracy")
FORGETTING = Measure("forgetting", "forgetting", unit=" points")
MEASURES = (
    ACCURACY,
    LOCAL,
    FORGETTING,
    Measure("loss", "test loss", unit="", digits=4, scale=1.0),
    Measure("train_loss", "training loss", unit="", digits=4, scale=1.0),
)


def curve(outcome: Outcome, measure: Measure) -> Curve:
    """A run's values; a column that is about a group of the test set has an accuracy only, the rest is of all of it."""
    if measure is ACCURACY:
        return outcome.curve()
    if outcome.cell.group is not None:
        return []
    if measure is FORGETTING:
        local = dict(outcome.curve(LOCAL.key))
        return [(number, value - local[number]) for number, value in outcome.curve() if number in local]
    return outcome.curve(measure.key)


def panels(results: Results) -> dict[str, Any]:
    """What the script draws: the measures that there are, and for each column the lines of each of them."""
    found = []
    for column in results.study.columns:
        lines: dict[str, list[dict[str, Any]]] = {}
        for measure in MEASURES:
            drawn = [
                {"row": at, **line}
                for at, row in enumerate(results.study.rows)
                if (line := _line(drawable(results.outcomes(row, column)), measure))
            ]
            if drawn:
                lines[measure.key] = drawn
        found.append({"name": column, "lines": lines})
    have = {key for panel in found for key in panel["lines"]}
    measures = [{"key": m.key, "name": m.name, "unit": m.unit, "digits": m.digits} for m in MEASURES if m.key in have]
    return {"measures": measures, "panels": found}


def drawable(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Runs that broke off would cut the others short: they are left out, unless there is nothing else."""
    return [outcome for outcome in outcomes if not outcome.diverged] or list(outcomes)


def _line(outcomes: Sequence[Outcome], measure: Measure) -> dict[str, Any] | None:
    """Mean and sample deviation at the rounds that all seeds have, thinned to what can be seen."""
    by_round = [dict(found) for outcome in outcomes if (found := curve(outcome, measure))]
    rounds = thinned(sorted(set.intersection(*map(set, by_round)))) if by_round else []
    if not rounds:
        return None
    spreads = [s for number in rounds if (s := spread([values[number] for values in by_round]))]
    figures = measure.digits + 1
    return {
        "x": rounds,
        "y": [round(measure.scale * s.mean, figures) for s in spreads],
        "spread": [round(measure.scale * (s.deviation or 0.0), figures) for s in spreads],
    }


def thinned(rounds: list[int]) -> list[int]:
    """No more than POINTS of them, evenly spaced, with the first and the last."""
    if len(rounds) <= POINTS:
        return rounds
    step = (len(rounds) - 1) / (POINTS - 1)
    return [rounds[round(i * step)] for i in range(POINTS)]
