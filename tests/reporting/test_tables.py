"""Tables from hand-made runs."""

import csv
import json
import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from fedrecall.errors import UserError
from fedrecall.reporting.tables import (
    ReportTable,
    TableCell,
    TableNote,
    all_tables,
    comparison_table,
    paper_tables,
    print_table,
    write_tables,
)
from fedrecall.reporting.tables.render import column_blocks, escape_latex, to_csv, to_latex, to_markdown
from fedrecall.studies.results import load_results
from fedrecall.studies.study import Cell, Study
from support.folders import write_study

CURVES = {  # four rounds; a second seed is 0.02 better, FedLMD's 0.04
    "FedAvg": [0.60, 0.66, 0.70, 0.68],
    "FedLMD": [0.64, 0.71, 0.74, 0.72],
    "FedNova": [0.50, 0.51, 0.49, 0.49],  # two classes: chance is 0.5
    "MOON": [0.60, -1, 0, 0],
}


def accuracy(cell: Cell, number: int) -> float:
    value = CURVES[cell.row][number - 1]
    step = {"FedAvg": 0.02, "FedLMD": 0.04}.get(cell.row, 0.0)
    return value + step * cell.seed if value >= 0 else value


def study(**fields: object) -> Study:
    defaults = {
        "id": "paper-table-1",
        "title": "A table",
        "paper": "fedlmd",
        "base": {"run": {"rounds": 4}},
        "rows": {
            "FedAvg": {},
            "FedLMD": {"method": {"name": "fedlmd"}},
            "FedNova": {"method": {"name": "fednova"}},
            "MOON": {"method": {"name": "moon"}},
        },
        "columns": {"digits": {}, "few": {"federation": {"clients": 5}}},
        "seeds": (0, 1),
        "target": {"of": "FedAvg", "measure": "best"},
    }
    return Study(**defaults | fields)


def entries(table: ReportTable) -> dict[str, dict[str, tuple[str, ...]]]:
    return {
        row: {title: entry.lines for title, entry in zip(table.header[1:], line, strict=True)}
        for row, line in table.rows
    }


def notes(table: ReportTable, kind: str) -> list[str]:
    return [note.text for note in table.notes if note.kind == kind]


def test_comparison(tmp_path: Path) -> None:
    results = load_results(write_study(study(), tmp_path / "s", accuracy, local=0.25))
    table = comparison_table(results, "digits")
    shown = entries(table)
    assert shown["FedAvg"]["final"] == ("69.00 ± 1.41",)
    assert shown["FedAvg"]["best"] == ("71.00 ± 1.41",)
    assert shown["FedAvg"]["last 10"] == ("67.00 ± 1.41",)
    assert shown["FedAvg"]["final less FedAvg"] == ("-",)
    # 74 - 69 = 5 with differences 4 and 6: t(1 degree) = 12.706, half = 12.706 * 1.41421 / 1.41421
    assert shown["FedLMD"]["final less FedAvg"] == ("+5.00", "[-7.71, +17.71]")
    # The mean curve of FedAvg is best in round 3 with 0.71; that of FedLMD has 0.73 in round 2.
    assert [shown[row]["rounds to target"][0] for row in CURVES] == ["3", "2", "Failed", "Failed"]
    assert [shown[row]["speedup"][0] for row in CURVES] == ["1.00", "2.00", "Failed", "Failed"]
    assert [shown[row]["speedup over FedAvg"][0] for row in CURVES] == ["1.00", "1.50", "Failed", "Failed"]
    assert shown["FedAvg"]["global - local"] == ("25.00 ± 0.00",)
    assert shown["FedAvg"]["local"] == ("42.00 ± 1.41",)
    assert [shown["FedAvg"][key][0] for key in ("s/round", "MB up", "MB down")] == ["0.5", "0.001", "0.002"]
    assert shown["FedNova"]["best"] == ("51.00 ± 0.00",)
    assert shown["MOON"]["final"] == ("Failed",), "a diverged run has no accuracy"
    assert any("71.00 %" in text and "best of FedAvg" in text for text in notes(table, "legend")), "the target"
    failures = notes(table, "failure")
    assert len(failures) == 2
    assert all("MOON, digits, seed" in text and "round 2" in text for text in failures)


def test_majority_never_fails_and_what_a_run_did_not_record_is_no_failure(tmp_path: Path) -> None:
    rows = {"FedAvg": {}, "FedNova": {"method": {"name": "fednova"}}, "majority": {"baseline": "majority"}}

    def at_chance(cell: Cell, number: int) -> float:
        return 0.5 if cell.row == "majority" else accuracy(cell, number)

    results = load_results(write_study(study(rows=rows), tmp_path / "s", at_chance, local=0.25))
    for run in results.finished_runs():
        if run.cell.row != "FedAvg":
            lines = [{k: v for k, v in line.items() if k != "local_accuracy"} for line in run.records]
            (run.path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shown = entries(comparison_table(load_results(tmp_path / "s"), "digits"))
    assert shown["FedNova"]["rounds to target"] == ("Failed",)
    assert shown["majority"]["rounds to target"] == shown["majority"]["speedup"] == ("-",)
    assert shown["FedNova"]["local"] == shown["majority"]["local"] == ("-",)


def test_one_seed_has_no_deviation_and_no_interval(tmp_path: Path) -> None:
    results = load_results(write_study(study(seeds=(0,)), tmp_path / "s", accuracy))
    table = comparison_table(results, "digits")
    assert entries(table)["FedLMD"]["final less FedAvg"] == ("+4.00",)
    assert entries(table)["FedLMD"]["final"] == ("72.00",)
    assert not {"global - local", "forgotten", "pull"} & set(table.header), "not measured"
    assert not any("interval" in text or "±" in text for text in notes(table, "legend"))


def test_seeds_that_are_missing_are_counted(tmp_path: Path) -> None:
    without = ["cells/fedlmd/digits/seed-1", "cells/fedavg/few/seed-0", "cells/fedavg/few/seed-1"]
    results = load_results(write_study(study(), tmp_path / "s", accuracy, without=without))
    table = comparison_table(results, "digits")
    assert entries(table)["FedLMD"]["final"] == ("72.00", "1 of 2 seeds")
    assert entries(table)["FedLMD"]["final less FedAvg"] == ("+4.00",), "paired with the same seed"
    (note,) = notes(table, "unfinished")
    assert "3 of 16" in note
    few = comparison_table(results, "few")
    assert entries(few)["FedAvg"]["final"] == ("not run",)
    assert "speedup" not in few.header, "FedAvg sets the target"


def test_rounds_to_target_are_compared_over_the_seeds_that_both_have(tmp_path: Path) -> None:
    without = ["cells/fedlmd/digits/seed-1", "cells/fedavg/few/seed-1", "cells/fedlmd/few/seed-0"]

    def harder(cell: Cell, number: int) -> float:  # FedAvg is best with 0.70 in seed 0 and 0.92 in seed 1
        return accuracy(cell, number) + 0.2 * cell.seed * (cell.row == "FedAvg")

    results = load_results(write_study(study(), tmp_path / "s", harder, without=without))
    table = comparison_table(results, "digits")
    shown = entries(table)
    assert shown["FedLMD"]["rounds to target"] == ("2",), "of the seed that both have"
    assert shown["FedLMD"]["speedup over FedAvg"] == ("1.50",)
    assert any("FedAvg" in text and "shared seeds" in text for text in notes(table, "legend"))
    assert entries(comparison_table(results, "few"))["FedLMD"]["rounds to target"] == ("-",), "they share none"
    fixed = load_results(write_study(study(target=0.7, paper=None), tmp_path / "t", harder, without=without))
    shown = entries(comparison_table(fixed, "few"))
    assert shown["FedLMD"]["rounds to target"] == ("2",), "a number needs no other row"
    assert shown["FedLMD"]["speedup over FedAvg"] == ("-",)


def test_speedups_name_the_row_that_sets_the_target(tmp_path: Path) -> None:
    rule = study(target={"of": "FedLMD", "measure": "best"})
    table = comparison_table(load_results(write_study(rule, tmp_path / "s", accuracy)), "digits")
    assert "speedup over FedLMD" in table.header
    assert "final less FedAvg" in table.header, "differences are to the first row"
    assert any("over FedLMD" in text for text in notes(table, "legend"))
    assert not any("over FedAvg" in text for text in (*table.header, *notes(table, "legend")))


def test_a_group_of_the_test_set_has_no_local_accuracy(tmp_path: Path) -> None:
    columns = {"Amazon": {"group": "amazon"}, "all of it": {}}
    defaults = study(columns=columns, paper=None)
    results = load_results(write_study(defaults, tmp_path / "s", accuracy, local=0.25, groups=["amazon"]))
    assert not {"local", "global - local"} & set(comparison_table(results, "Amazon").header)
    assert {"local", "global - local"} <= set(comparison_table(results, "all of it").header)


def test_the_rule_of_fedssd(tmp_path: Path) -> None:
    """The target is FedAvg's final accuracy; FedAvg has its last round although it reached the target before."""
    rule = study(target={"of": "FedAvg", "measure": "final"}, printed={"rounds_to_target": {"FedAvg": [4, 4]}})
    accuracy_table, rounds = paper_tables(load_results(write_study(rule, tmp_path / "s", accuracy)))
    assert [line[0].lines[0] for _, line in rounds.rows] == ["4", "2", "Failed", "Failed"]
    assert rounds.name == "paper-table-1-rounds-to-target"
    assert rounds.rows[0][1][0].lines == ("4", "paper 4 (+0)")
    assert not any("printed" in key for _, line in accuracy_table.rows for cell in line for key in cell.numbers)


def test_a_fixed_target_by_column(tmp_path: Path) -> None:
    rule = study(target={"digits": 0.73, "few": 0.99})
    results = load_results(write_study(rule, tmp_path / "s", accuracy))
    shown = entries(comparison_table(results, "digits"))
    assert [shown[row]["rounds to target"][0] for row in ("FedAvg", "FedLMD")] == ["-", "2"]
    assert [shown[row]["speedup"][0] for row in ("FedAvg", "FedLMD")] == ["-", "2.00"], "never reached"
    assert shown["FedLMD"]["speedup over FedAvg"] == ("-",), "FedAvg never reaches it"
    assert entries(comparison_table(results, "few"))["FedLMD"]["rounds to target"] == ("-",)


PRINTED = {
    "final": {"FedAvg": [68.5, 98.49], "FedLMD": [73.0, None], "MOON": ["Failed", 50.0]},
    "deviation": {"FedAvg": [0.23, None]},
    "speedup": {"FedLMD": [5.26, "Failed"]},
}
ERRATA = ({"row": "FedAvg", "column": "few", "measure": "final", "consistent": 67.1, "why": "the text says +0.43"},)


def test_numbers_beside_the_papers(tmp_path: Path) -> None:
    paper_study = study(printed=PRINTED, errata=ERRATA)
    table, speedups = paper_tables(load_results(write_study(paper_study, tmp_path / "s", accuracy)))
    shown = entries(table)
    assert table.title == "A table: final accuracy, %"
    assert shown["FedAvg"]["digits"] == ("69.00 ± 1.41", "paper 68.50 ± 0.23 (+0.50)")
    assert shown["FedAvg"]["few"] == ("69.00 ± 1.41", "paper 98.49[1] (+1.90)")
    assert shown["FedLMD"]["few"] == ("74.00 ± 2.83",)
    assert shown["MOON"]["digits"] == ("Failed", "paper Failed")
    (note,) = notes(table, "erratum")
    assert note.startswith("[1] FedAvg, few")
    assert all(fact in note for fact in ("98.49", "the text says +0.43", "67.1"))
    assert entries(speedups)["FedLMD"]["digits"] == ("2.00", "paper 5.26 (-3.26)")
    assert entries(speedups)["FedLMD"]["few"] == ("2.00", "paper Failed")


def test_scaled_rounds_are_noted(tmp_path: Path) -> None:
    scaled = study(fraction=0.1, base={"run": {"rounds": 40}}, printed=PRINTED)
    results = load_results(write_study(scaled, tmp_path / "s", accuracy, without=["cells/fedavg/digits/seed-0"]))
    for table in all_tables(results):
        assert ["4 of 40" in text for text in notes(table, "scaled")] == [True]
        assert ["1 of 16" in text for text in notes(table, "unfinished")] == [True]
        assert {line["fraction"] for line in csv.DictReader(StringIO(to_csv(table)))} == {"0.1"}
    shown = entries(paper_tables(results)[0])
    assert shown["FedAvg"]["digits"] == ("70.00", "1 of 2 seeds", "full 68.50 ± 0.23 (+1.50)")


def test_not_run_cells_stand_beside_the_papers(tmp_path: Path) -> None:
    paper_study = study(printed=PRINTED, seeds=(0,))
    results = load_results(write_study(paper_study, tmp_path / "s", accuracy, without=["cells/fedavg/digits/seed-0"]))
    assert entries(paper_tables(results)[0])["FedAvg"]["digits"] == ("not run", "paper 68.50 ± 0.23")


TABLE = ReportTable(
    name="t",
    title="50 % & more",
    header=("method", "a_b", "C10 | 0.5"),
    rows=(
        ("fed_avg", (TableCell(("70.49 ± 0.23", "paper 71.00 (-0.51)"), {"mean": 70.4912345, "deviation": 0.23}),) * 2),
        ("x", (TableCell(("not run",), {"mean": None, "printed": 3.0}), TableCell(("-0.50",), {"mean": -0.5}))),
    ),
    notes=(TableNote("a note with 5 % and #1"),),
)


def test_csv_has_one_line_per_cell_and_plain_numbers() -> None:
    lines = list(csv.DictReader(StringIO(to_csv(TABLE))))
    assert len(lines) == 4
    assert lines[0] == {
        "method": "fed_avg",
        "column": "a_b",
        "mean": "70.4912345",
        "deviation": "0.23",
        "printed": "",
        "fraction": "1",
        "shown": "70.49 ± 0.23; paper 71.00 (-0.51)",
    }
    assert (lines[2]["mean"], lines[2]["printed"], lines[3]["mean"]) == ("", "3", "-0.5")


def test_latex_is_escaped_and_balanced() -> None:
    text = to_latex(TABLE)
    assert r"\caption{50 \% \& more}" in text
    assert r"method & a\_b & C10 $|$ 0.5 \\" in text
    assert r"\shortstack[r]{70.49 $\pm$ 0.23\\{\scriptsize paper 71.00 ($-$0.51)}}" in text
    assert r"not run & $-$0.50 \\" in text
    assert r"5 \% and \#1" in text
    assert text.count("{") == text.count("}")
    body = text[text.index(r"\midrule") : text.index(r"\bottomrule")].splitlines()[1:]
    assert all(len(re.findall(r"(?<!\\)&", line)) == 2 for line in body)


@pytest.mark.parametrize("name", ["probe-own_data-10 %", "a{b", "a#b"])
def test_a_latex_label_has_no_special_characters(name: str) -> None:
    (label,) = re.findall(r"^\\label\{(.*)\}$", to_latex(TABLE._replace(name=name)), re.MULTILINE)
    assert re.fullmatch(r"tab:[a-z0-9.-]+", label)


def test_latex_special_characters() -> None:
    assert escape_latex(r"\ { } ~ ^ < >") == (r"\textbackslash{} \{ \} \textasciitilde{} \textasciicircum{} $<$ $>$")
    assert escape_latex("CIFAR-10, -3 to -5, 1e-5") == "CIFAR-10, $-$3 to $-$5, 1e-5"


def test_markdown() -> None:
    lines = to_markdown(TABLE).splitlines()
    assert lines[0] == "### 50 % & more"
    assert lines[2:5] == [
        r"| method | a_b | C10 \| 0.5 |",
        "| --- | ---: | ---: |",
        "| fed_avg | 70.49 ± 0.23<br>paper 71.00 (-0.51) | 70.49 ± 0.23<br>paper 71.00 (-0.51) |",
    ]
    assert lines[-1] == "a note with 5 % and #1"


def printed(table: ReportTable, width: int) -> str:
    out = StringIO()
    print_table(table, Console(file=out, width=width))
    return out.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_wide_tables_are_shown_in_blocks_that_fit(tmp_path: Path, width: int) -> None:
    table = comparison_table(load_results(write_study(study(), tmp_path / "s", accuracy, local=0.1)), "digits")
    text = printed(table, width)
    assert all(len(line) <= width for line in text.splitlines())
    assert text.count("\nFedNova") == len(column_blocks(table, width)) > 1, "every block has the rows' names"
    joined = " ".join(text.split())
    for _, line in table.rows:
        assert all(part in joined for entry in line for part in entry.lines), "and nothing is cut off"
    assert "\x1b" not in text, "no colours where there is no terminal"


def test_blocks_have_every_column_once(tmp_path: Path) -> None:
    for width in (20, 45, 200):
        assert sorted(i for block in column_blocks(TABLE, width) for i in block) == [0, 1]
    assert column_blocks(TABLE, 30) == [[0], [1]]
    assert column_blocks(TABLE, 200) == [[0, 1]]


def test_all_tables_are_written(tmp_path: Path) -> None:
    folder = write_study(study(printed=PRINTED), tmp_path / "s", accuracy)
    paths = write_tables(load_results(folder))
    names = ["paper-table-1", "paper-table-1-speedup", "compare-digits", "compare-few"]
    assert {p.relative_to(folder / "tables").name for p in paths} == {
        f"{n}.{e}" for n in names for e in ("csv", "tex", "md")
    }
    assert all(path.read_text().endswith("\n") for path in paths)
    assert [t.name for t in all_tables(load_results(folder))] == names


def test_tables_that_cannot_be_written_are_one_line(tmp_path: Path) -> None:
    folder = write_study(study(), tmp_path / "s", accuracy)
    (folder / "tables").write_text("")
    with pytest.raises(UserError) as error:
        write_tables(load_results(folder))
    assert (error.value.code, error.value.key) == ("report.cannot_write", str(folder / "tables" / "paper-table-1.csv"))
    assert "File exists" in str(error.value)


def test_names_of_files_are_slugs(tmp_path: Path) -> None:
    folder = write_study(study(id="My_table"), tmp_path / "s", accuracy)
    names = {path.name for path in write_tables(load_results(folder))}
    assert "my-table.csv" in names
    assert {path.name for path in (folder / "tables").iterdir()} == names


def test_a_users_comparison_has_no_paper_table(tmp_path: Path) -> None:
    results = load_results(write_study(study(paper=None), tmp_path / "s", accuracy))
    assert [t.name for t in all_tables(results)] == ["compare-digits", "compare-few"]
