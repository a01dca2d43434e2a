"""A folder that a study is extended in, and definitions that make no sense."""

from pathlib import Path

import pytest

from fedrecall.errors import UserError
from fedrecall.experiment import papers
from fedrecall.experiment.compare import comparison_study
from fedrecall.experiment.extend import settle, together
from fedrecall.experiment.reproduce import listed, reproduction
from fedrecall.experiment.study import Study, Target, read

ROWS = {"a": {"method": {"name": "fedavg"}}, "b": {"method": {"name": "fedprox"}}}


def test_parts_of_a_papers_figure_come_together_in_its_own_order(tmp_path: Path) -> None:
    whole = papers.definition("fedlmd-fig-8")
    names = list(whole.columns)
    late, early = whole.part(columns=names[4:]), whole.part(columns=names[:4])
    settle(late, tmp_path)
    settle(early, tmp_path)
    assert list(Study.load(tmp_path).columns) == names


def test_a_method_that_is_added_does_not_move_the_target(tmp_path: Path) -> None:
    first, added = comparison_study(["fedavg", "fedprox"]), comparison_study(["fedlmd"])
    both = together(first, added, tmp_path)
    assert list(both.rows) == ["fedavg", "fedprox", "fedlmd"]
    assert both.target == Target(of="fedavg", measure="best")


def test_names_that_would_share_a_folder_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    settle(comparison_study(["fedprox:mu=0.1"]), tmp_path)
    before = (tmp_path / "study.toml").read_bytes()
    with pytest.raises(UserError, match="two rows would have the same folder"):
        settle(comparison_study(["fedprox:mu= 0.1"]).model_copy(update={"rows": {"fedprox:mu:0.1": {}}}), tmp_path)
    assert (tmp_path / "study.toml").read_bytes() == before
    assert list(comparison_study(["fedprox: mu = 0.1"]).rows) == ["fedprox:mu=0.1"], "blanks mean nothing"


def test_a_place_that_cannot_be_written_to_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot make the folder"):
        settle(comparison_study(["fedavg"]), tmp_path / "file")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seeds": (0, 0)}, "a seed is given twice"),
        ({"id": "../../elsewhere"}, "id"),
        ({"target": {"nowhere": 0.5}}, "a target for the column 'nowhere'"),
        ({"base": {"run": 7}}, "base: run = 7 must be a table"),
        ({"rows": {"a": {"method": 3}}}, "rows a: method = 3 must be a table"),
        ({"rows": {"a": 3}}, "rows a must be a table of tables"),
        ({"rows": {"a": {"start": ["x"]}}}, "must be of type str"),
        ({"rows": {"a": {"columns": 3}}}, "columns = 3 must be a table"),
        ({"columns": {"c": {"group": 3}}}, "must be of type str"),
    ],
)
def test_definitions_that_make_no_sense_are_refused_by_name(change: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Study(**{"id": "mine", "title": "t", "rows": ROWS, "columns": {"c": {}}} | change)


@pytest.mark.parametrize("text", ["printed = 3", "[printed]\nfinal = 3", "[printed.final]\na = 3"])
def test_printed_numbers_of_the_wrong_form_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(f'{text}\n[rows.a]\nmethod = {{ name = "fedavg" }}\n[columns.c]\n')
    with pytest.raises(UserError):
        Study(**{"id": "mine", "title": "t"} | read(tmp_path / "mine.toml"))


def test_names_with_commas_can_be_listed() -> None:
    names = ["x, y", "x", "z"]
    assert listed("x, y,z", names, "cell") == ["x, y", "z"]
    assert listed("X", names, "cell") == ["x"]
    with pytest.raises(UserError, match='unknown cell "w"'):
        listed("x,w", names, "cell")


@pytest.mark.parametrize("arguments", [{"seeds": 0}, {"overrides": ["run.seed=5"]}])
def test_seeds_are_a_number_of_repetitions(arguments: dict[str, object]) -> None:
    with pytest.raises(UserError, match="seeds"):
        reproduction("fedlmd-table-1", **arguments)
