"""Study folders that grow, and invalid definitions."""

from pathlib import Path

import pytest

from fedrecall.config.tables import read_toml
from fedrecall.errors import UserError
from fedrecall.files import write_atomic
from fedrecall.studies import papers
from fedrecall.studies.compare import comparison_study
from fedrecall.studies.extend import merge_studies, write_or_extend
from fedrecall.studies.reproduce import parse_names, reproduction_study
from fedrecall.studies.study import STUDY_FILE, Study, Target
from fedrecall.studies.tuning.trials import SEARCH_FILE, SearchFolder

ROWS = {"a": {"method": {"name": "fedavg"}}, "b": {"method": {"name": "fedprox"}}}


def test_parts_of_a_papers_figure_are_joined_in_its_order(tmp_path: Path) -> None:
    complete = papers.load_definition("fedlmd-fig-8")
    names = list(complete.columns)
    late, early = complete.subset(columns=names[4:]), complete.subset(columns=names[:4])
    write_or_extend(late, tmp_path)
    write_or_extend(early, tmp_path)
    assert list(Study.load(tmp_path).columns) == names


def test_the_same_command_works_after_a_start_that_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed while it writes the first file leaves a temporary one."""
    with monkeypatch.context() as killed:
        killed.setattr(Path, "replace", lambda *_: None)
        write_atomic(tmp_path / STUDY_FILE, b"")
        write_atomic(tmp_path / SEARCH_FILE, b"")
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(UserError):  # the other file is not of a study
        write_or_extend(comparison_study(["fedavg"])[0], tmp_path)
    assert SearchFolder(tmp_path).open({"trials": 3}) == []
    (tmp_path / SEARCH_FILE).unlink()
    write_or_extend(comparison_study(["fedavg"])[0], tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".study.lock", STUDY_FILE]


def test_a_method_that_is_added_does_not_move_the_target(tmp_path: Path) -> None:
    (first, _), (added, _) = comparison_study(["fedavg", "fedprox"]), comparison_study(["fedlmd"])
    both = merge_studies(first, added, tmp_path)
    assert list(both.rows) == ["fedavg", "fedprox", "fedlmd"]
    assert both.target == Target(of="fedavg", measure="last10")


def test_names_that_would_share_a_folder_are_errors_before_anything_is_written(tmp_path: Path) -> None:
    write_or_extend(comparison_study(["fedprox:mu=0.1"])[0], tmp_path)
    before = (tmp_path / "study.toml").read_bytes()
    with pytest.raises(UserError) as error:
        write_or_extend(
            comparison_study(["fedprox:mu= 0.1"])[0].model_copy(update={"rows": {"fedprox:mu:0.1": {}}}), tmp_path
        )
    assert (error.value.code, error.value.key) == ("study.invalid_definition", "rows")
    assert (tmp_path / "study.toml").read_bytes() == before
    assert list(comparison_study(["fedprox: mu = 0.1"])[0].rows) == ["fedprox:mu=0.1"], "blanks mean nothing"


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError) as error:
        write_or_extend(comparison_study(["fedavg"])[0], tmp_path / "file")
    assert (error.value.code, error.value.key) == ("study.cannot_write", str(tmp_path / "file"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "code", "key"),
    [
        ({"seeds": (0, 0)}, "study.invalid_definition", "seeds"),
        ({"id": "../../elsewhere"}, "config.invalid_value", "id"),
        ({"target": {"nowhere": 0.5}}, "study.invalid_definition", "target.nowhere"),
        ({"target": {"of": "c", "measure": "best"}}, "study.invalid_definition", "target.of"),
        ({"printed": {"best": {"z": [1.0]}}}, "study.invalid_definition", "printed.best.z"),
        ({"printed": {"best": {"a": [1.0, 2.0]}}}, "study.invalid_definition", "printed.best.a"),
        ({"errata": [{"row": "a", "column": "d", "measure": "best", "why": ""}]}, "study.invalid_definition", "errata"),
        ({"errata": [{"raw": "a"}]}, "config.unknown_key", "errata.0.raw"),
        ({"figures": [{}]}, "config.missing_key", "figures.0.form"),
        ({"base": {"run": 7}}, "config.invalid_value", "base.run"),
        ({"rows": {"a": {"method": 3}}}, "config.invalid_value", "rows.a.method"),
        ({"rows": {"a": 3}}, "config.invalid_value", "rows.a"),
        ({"rows": {"a": {"start": ["x"]}}}, "config.invalid_value", "rows.a.start"),
        ({"rows": {"a": {"columns": 3}}}, "config.invalid_value", "rows.a.columns"),
        ({"rows": {"a": {"columns": {"c": 3}}}}, "config.invalid_value", "rows.a.columns.c"),
        ({"columns": {"c": {"group": 3}}}, "config.invalid_value", "columns.c.group"),
    ],
)
def test_invalid_definitions_are_errors_with_the_key(change: dict[str, object], code: str, key: str) -> None:
    with pytest.raises(UserError) as error:
        Study(**{"id": "mine", "title": "t", "rows": ROWS, "columns": {"c": {}}} | change)
    assert (error.value.code, error.value.key) == (code, key)


@pytest.mark.parametrize("text", ["printed = 3", "[printed]\nfinal = 3", "[printed.final]\na = 3"])
def test_printed_numbers_of_the_wrong_form_are_errors(text: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(f'{text}\n[rows.a]\nmethod = {{ name = "fedavg" }}\n[columns.c]\n')
    with pytest.raises(UserError):
        Study(**{"id": "mine", "title": "t"} | read_toml(tmp_path / "mine.toml"))


def test_names_with_commas_can_be_listed() -> None:
    names = ["x, y", "x", "z"]
    assert parse_names("x, y,z", names, "cell") == ["x, y", "z"]
    assert parse_names("X", names, "cell") == ["x"]
    with pytest.raises(UserError) as error:
        parse_names("x,w", names, "cell")
    assert (error.value.code, error.value.key) == ("config.unknown_name", "cell")
    assert '"w"' in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "code", "key"),
    [
        ({"seeds": 0}, "config.invalid_value", "seeds"),
        ({"overrides": ["run.seed=5"]}, "config.conflict", "run.seed"),
    ],
)
def test_seeds_are_a_number_of_repetitions(arguments: dict[str, object], code: str, key: str) -> None:
    with pytest.raises(UserError) as error:
        reproduction_study("fedlmd-table-1", **arguments)
    assert (error.value.code, error.value.key) == (code, key)
