"""The report as a file: contents, self-containment, escaping."""

import base64
import csv
import doctest
import hashlib
import io
import json
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote

import pytest
from jinja2 import UndefinedError

from fedrecall import cli
from fedrecall.config import tables as settings
from fedrecall.config.experiment import Experiment
from fedrecall.errors import UserError
from fedrecall.reporting.html import charts, environment, notebook_table, svg, write_report
from fedrecall.reporting.html import page as study_page
from fedrecall.reporting.html.charts import MAX_POINTS, chart_data, subsample
from fedrecall.reporting.tables import comparison_table
from fedrecall.reporting.tables.cells import scope_notes
from fedrecall.reporting.tables.cost import passes_trained
from fedrecall.studies.results import load_results
from fedrecall.studies.study import Cell, Study
from support.folders import write_run, write_study

VOID = {"meta", "br", "input"}
HEIGHT = {"FedAvg": 0.5, "FedLMD": 0.7, "FedNova": 0.3}


class Node:
    def __init__(self, name: str, attributes: dict[str, str | None]) -> None:
        self.name, self.attributes, self.children, self.text = name, attributes, [], ""

    def all(self, name: str | None = None, **required: str) -> list["Node"]:
        found = [child for child in self.children if name in (None, child.name) and child.has(required)]
        return [*found, *(deep for child in self.children for deep in child.all(name, **required))]

    def has(self, required: dict[str, str]) -> bool:
        return all(value in (self.attributes.get(key.rstrip("_")) or "").split() for key, value in required.items())

    @property
    def all_text(self) -> str:
        return " ".join(" ".join([self.text, *(child.all_text for child in self.children)]).split())


class Page(HTMLParser):
    """A page parsed to a tree; it must be well-formed."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.root = Node("root", {})
        self.open = [self.root]
        self.feed(path.read_text())
        assert [node.name for node in self.open] == ["root"], "every element is closed"

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        node = Node(name, dict(attributes))
        assert len(node.attributes) == len(attributes), "no attribute twice"
        self.open[-1].children.append(node)
        if name not in VOID:
            self.open.append(node)

    def handle_startendtag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.open[-1].children.append(Node(name, dict(attributes)))

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop().name == name

    def handle_data(self, text: str) -> None:
        self.open[-1].text += text

    def section(self, name: str) -> Node:
        (found,) = [node for node in self.root.all("section") if (node.attributes["id"] or "").endswith(f"-{name}")]
        return found


def make(**changes: object) -> Study:
    fields = {
        "id": "fedlmd-table-3",
        "title": "Table 3",
        "paper": "fedlmd",
        "about": "The learning rate is ours.",
        "base": {"run": {"rounds": 40}, "local": {"epochs": 2}, "federation": {"clients": 3, "sample": 2}},
        "rows": {
            "FedAvg": {"method": {"name": "fedavg"}},
            "FedLMD": {"method": {"name": "fedlmd"}},
            "FedNova": {"method": {"name": "fednova"}},
        },
        "columns": {
            "0.05": {"federation": {"partition": {"name": "dirichlet", "alpha": 0.05}}},
            "0.5": {"federation": {"partition": {"name": "dirichlet", "alpha": 0.5}}},
        },
        "seeds": (0, 1),
        "fraction": 0.1,
        "printed": {"final": {"FedAvg": [33.02, 70.0], "FedLMD": [50.45, None], "FedNova": ["Failed", 34.67]}},
        "errata": ({"row": "FedAvg", "column": "0.5", "measure": "final", "consistent": 60.0, "why": "a slip"},),
    }
    return Study(**(fields | changes))


def growing_accuracy(cell: Cell, number: int) -> float:
    """Return an accuracy that grows by 0.01 a round and 0.02 a seed; FedNova diverges at 0.5."""
    if cell.row == "FedNova" and cell.column == "0.5" and number > 2:
        return -1.0
    return HEIGHT.get(cell.row, 0.4) + 0.01 * number + 0.02 * cell.seed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    missing = "cells/fedlmd/0.5/seed-1"
    return write_study(make(), tmp_path_factory.mktemp("r") / "study", growing_accuracy, without=[missing], local=0.1)


@pytest.fixture(scope="module")
def page(folder: Path) -> Page:
    return Page(write_report([folder])[0])


def test_the_page_is_one_file_that_requests_nothing(page: Page) -> None:
    addresses = [
        node.attributes[key] or "" for node in page.root.all() for key in ("src", "href") if key in node.attributes
    ]
    assert all(address.startswith(("#", "data:")) for address in addresses)
    images = [node.attributes["xlink:href"] or "" for node in page.root.all() if "xlink:href" in node.attributes]
    assert all(address.startswith(("#", "data:image/png")) for address in images)
    styles = " ".join([node.text for node in page.root.all("style")])
    assert "@import" not in styles
    assert "url(" not in styles
    (policy,) = page.root.all("meta", **{"http-equiv": "Content-Security-Policy"})
    assert "default-src 'none'" in (policy.attributes["content"] or "")


def test_only_its_own_script_may_run(page: Page) -> None:
    (script,) = [node for node in page.root.all("script") if "type" not in node.attributes]
    digest = base64.b64encode(hashlib.sha256(script.text.encode()).digest()).decode()
    (policy,) = page.root.all("meta", **{"http-equiv": "Content-Security-Policy"})
    assert f"script-src 'sha256-{digest}'" in (policy.attributes["content"] or "")


def test_structure_for_assistive_technology(page: Page) -> None:
    root = page.root
    assert root.all("html")[0].attributes["lang"] == "en"
    assert all(len(root.all(landmark)) == 1 for landmark in ("header", "main", "footer", "nav", "h1"))
    ids = [node.attributes["id"] for node in root.all() if "id" in node.attributes]
    assert len(ids) == len(set(ids)), "ids of figures are unique, too"
    for node in root.all():
        for key in ("aria-labelledby", "data-from", "data-study"):
            assert node.attributes.get(key) in (None, *ids)
        if node.name == "a" and (node.attributes["href"] or "").startswith("#"):
            assert (node.attributes["href"] or "")[1:] in ids
    for table in root.all("table"):
        assert table.all("caption")[0].all_text
        assert all(th.attributes["scope"] == "col" and th.all_text for th in table.all("thead")[0].all("th"))
        assert all(tr.all("th")[0].attributes["scope"] == "row" for tr in table.all("tbody")[0].all("tr"))
    assert all(node.attributes.get("aria-label") or "aria-hidden" in node.attributes for node in root.all("svg"))
    levels = [int(node.name[1]) for node in root.all() if re.fullmatch("h[1-6]", node.name)]
    assert levels[0] == 1
    assert set(levels[1:]) == {2}


def test_the_overview_has_scope_failures_and_settings(page: Page, folder: Path) -> None:
    overview = page.section("overview")
    badges = [badge.all_text for badge in overview.all("li", class_="caution")]
    assert badges == [note.text for note in scope_notes(load_results(folder)) if note.is_caution]
    assert len(badges) == 2, "scaled, and not finished"
    assert "FedLMD, 0.5, seed 1" in overview.all_text
    assert "The learning rate is ours." in overview.all_text
    assert "FedNova, 0.5, seed 0: round 3: a loss is not finite" in overview.all_text
    settings_ = dict(
        zip([n.all_text for n in overview.all("dt")], [n.all_text for n in overview.all("dd")], strict=True)
    )
    assert settings_["data"] == "digits"
    assert settings_["clients"] == "3, 2 per round"
    assert settings_["partition"] == "dirichlet, alpha 0.05; dirichlet, alpha 0.5"
    assert settings_["rounds"] == "4"


def rows_of(table: Node) -> dict[str, list[str]]:
    lines = table.all("tbody")[0].all("tr")
    return {line.all("th")[0].all_text: [cell.all_text for cell in line.all("td")] for line in lines}


def test_printed_numbers_beside_measured_ones(page: Page) -> None:
    (table,) = page.section("paper").all("table")
    found = rows_of(table)
    # FedAvg ends at 0.54 and 0.56
    assert found["FedAvg"] == ["55.00 ± 1.41 full 33.02 (+21.98)", "55.00 ± 1.41 full 70.00[1] (-5.00)"]
    assert found["FedLMD"][1] == "74.00 1 of 2 seeds"
    assert found["FedNova"][0].startswith("35.00 ± 1.41")
    assert found["FedNova"][1] == "Failed full 34.67"
    assert "[1] FedAvg, 0.5: printed 70.00; a slip; the difference is to 60" in page.section("paper").all_text
    values = [cell.attributes["data-value"] for cell in table.all("tbody")[0].all("tr")[0].all("td")]
    assert values == ["55", "55"]


def test_cost_and_forgetting(page: Page, folder: Path) -> None:
    results = load_results(folder)
    # Rounds have clients 0 and 2, then 0 and 1: 40 examples each, two epochs, four rounds.
    assert passes_trained(results.finished_runs("FedAvg", "0.05")[0]) == 4 * 2 * 40
    cost = rows_of(page.section("cost").all("table")[0])
    assert cost["FedAvg"] == ["4", "0.00032", "0.5", "2", "0.008", "0.016"]
    assert cost["FedLMD"][0] == "3"
    rows = rows_of(page.section("forgetting").all("table")[0])
    assert rows["FedAvg"] == ["10.00 ± 0.00", "10.00 ± 0.00"]
    assert rows["FedLMD"] == ["10.00 ± 0.00", "10.00 1 of 2 seeds"]


def test_the_curves_are_means_and_deviations(folder: Path, page: Page) -> None:
    (script,) = [node for node in page.root.all("script") if node.attributes.get("type") == "application/json"]
    data = json.loads(script.text)
    assert data == json.loads(json.dumps(chart_data(load_results(folder))))
    assert [panel["name"] for panel in data["panels"]] == ["0.05", "0.5"]
    assert [m["key"] for m in data["measures"]] == ["accuracy", "local_accuracy", "forgetting", "loss", "train_loss"]
    first = data["panels"][0]["lines"]["accuracy"][0]
    assert first["row"] == 0
    assert data["rounds"][first["x"]] == [1, 2, 3, 4]
    assert first["y"] == [52, 53, 54, 55]
    assert first["spread"] == [1.41] * 4
    assert data["panels"][0]["lines"]["forgetting"][1]["y"] == pytest.approx([10.0] * 4)
    diverged = data["panels"][1]["lines"]["accuracy"][2]
    assert data["rounds"][diverged["x"]] == [1, 2], "the rounds before it diverged"


def test_diverged_runs_are_in_no_mean(tmp_path: Path) -> None:
    def heights(cell: Cell, number: int) -> float:
        return -1.0 if cell.seed == 1 and number > 1 else (0.9 if cell.seed == 1 else 0.5)

    study = Study(id="s", title="S", base={"run": {"rounds": 3}}, rows={"FedAvg": {}}, columns={"a": {}}, seeds=(0, 1))
    (panel,) = chart_data(load_results(write_study(study, tmp_path / "s", heights)))["panels"]
    assert panel["lines"]["accuracy"][0]["y"] == [50.0, 50.0, 50.0]


def test_long_runs_are_subsampled() -> None:
    assert subsample(MAX_POINTS) == list(range(MAX_POINTS))
    for count in (MAX_POINTS + 1, 1000, 12345):
        indices = subsample(count)
        assert len(indices) == len(set(indices)) == MAX_POINTS
        assert (indices[0], indices[-1]) == (0, count - 1)


def test_every_table_is_a_file_and_a_link(folder: Path, page: Page) -> None:
    assert (folder / "report.html").exists()
    tables = list((folder / "tables").iterdir())
    links = {node.attributes["download"]: node.attributes["href"] or "" for node in page.root.all("a")
             if "download" in node.attributes}  # fmt: skip
    assert len(links) == len(page.root.all("table")) * 2
    assert len(tables) == len(page.root.all("table")) * 3
    for path in (path for path in tables if path.suffix != ".md"):
        assert unquote(links[path.name].partition(",")[2]) == path.read_text()
    lines = list(csv.DictReader(io.StringIO((folder / "tables" / "fedlmd-table-3.csv").read_text())))
    assert float(lines[0]["mean"]) == pytest.approx(55.0)
    assert float(lines[0]["printed"]) == 33.02
    assert r"\begin{tabular}" in (folder / "tables" / "fedlmd-table-3.tex").read_text()


def test_the_same_results_give_the_same_page(folder: Path, tmp_path: Path) -> None:
    texts = [write_report([folder], tmp_path / name / "page.html")[0].read_text() for name in ("a", "b")]
    assert texts[0] == texts[1]
    assert (tmp_path / "a" / "tables" / "cost.csv").exists()


INJECTIONS = [
    "<script>hacked = 1</script>",
    '"><img src=x onerror=hacked=1>',
    "</script><!--",
    "javascript:hacked=1",
    "$title %s {0}",
]


def study_with_injections(folder: Path) -> Path:
    """Write a study whose names are injection attempts."""
    study = make(
        id="hostile",
        title="</title></script><script>hacked = 1</script>",
        about="<b onmouseover=hacked=1>\n\n</p></main>",
        rows={name: {"method": {"name": "fedavg"}} for name in INJECTIONS},
        columns={"]]></style><script>hacked = 1</script>": {}, "' onfocus='hacked=1' autofocus='": {}},
        printed={"final": {INJECTIONS[0]: ["<i>1</i>", None]}},
        errata=(),
        figures=({"form": "curves", "title": "<u onclick=hacked=1>"}, {"form": "confusion", "title": "<s>"}),
    )
    return write_study(study, folder / "<img src=x onerror=hacked=1>", growing_accuracy, local=0.1)


def test_no_name_becomes_markup(tmp_path: Path) -> None:
    page = Page(write_report([study_with_injections(tmp_path)], tmp_path / "page.html")[0])
    nodes = page.root.all()
    assert not any(key.startswith("on") or key == "autofocus" for node in nodes for key in node.attributes)
    assert not {node.name for node in nodes} & {"img", "b", "i", "u", "s", "iframe"}
    assert not any((node.attributes.get("href") or "").startswith("javascript:") for node in nodes)
    scripts = page.root.all("script")
    assert [node.attributes.get("type") for node in scripts] == ["application/json", None]
    assert [row["name"] for row in json.loads(scripts[0].text)["rows"]] == INJECTIONS
    assert [th.all_text for th in page.section("cost").all("tbody")[0].all("th")] == INJECTIONS
    assert page.root.all("h1")[0].all_text == "</title></script><script>hacked = 1</script>"


def test_templates_escape_every_value() -> None:
    environment_ = environment()
    text = environment_.from_string('<p title="{{ x }}">{{ x }}</p>').render(x='"<b>&')
    assert text == '<p title="&#34;&lt;b&gt;&amp;">&#34;&lt;b&gt;&amp;</p>'
    with pytest.raises(UndefinedError):
        environment_.from_string("{{ misspelt }}").render()
    data = {"</script>": "<!-- \u2028 ]]> &amp;", "'": [1.5, None]}
    inside = environment_.from_string("{{ data|tojson }}").render(data=data)
    assert not set("<>&'\u2028") & set(inside)
    assert json.loads(inside) == data


def test_a_notebook_gets_the_table(folder: Path) -> None:
    table = comparison_table(load_results(folder), "0.05")
    text = notebook_table(table._replace(title="<b>"))
    assert "&lt;b&gt;" in text
    assert text.count("<tr") == 1 + len(table.rows)
    assert text.count("<th ") == len(table.header) + len(table.rows)
    assert all(cell.lines[0] in text for _, cells in table.rows for cell in cells)


def test_a_large_study_stays_a_small_page(tmp_path: Path) -> None:
    rows = {f"Method {i}": {"method": {"name": "fedprox", "mu": i / 10}} for i in range(10)}
    base = {"run": {"rounds": 100}, "federation": {"clients": 3, "sample": 2}}
    study = make(base=base, rows=rows, columns={"all": {}}, seeds=(0, 1, 2), fraction=1.0, printed={}, errata=())
    path = write_report([write_study(study, tmp_path / "s", growing_accuracy, local=0.1)])[0]
    assert path.stat().st_size < 1_000_000


def test_a_run_directory_alone(tmp_path: Path) -> None:
    run = write_run(Experiment(run={"rounds": 3}), tmp_path / "my run", lambda r: r / 10)
    page = Page(write_report([run])[0])
    assert page.root.all("h1")[0].all_text == "fedavg on digits"
    assert rows_of(page.section("comparison").all("table")[0])["fedavg"][0] == "30.00"
    assert "config.toml' --out" in page.section("repeat").all_text, "the path has a space"
    assert not page.root.all("fieldset", class_="toggles"), "one row has no toggles"


def test_a_run_that_is_not_finished(tmp_path: Path) -> None:
    run = write_run(Experiment(), tmp_path / "run", lambda r: 0.5, finished=False)
    page = Page(write_report([run])[0])
    assert page.section("overview").all("p", class_="warning")
    assert not page.root.all("table")


def test_a_study_without_runs(tmp_path: Path) -> None:
    study = make()
    folder = write_study(study, tmp_path / "s", growing_accuracy, without=[cell.folder for cell in study.cells()])
    page = Page(write_report([folder])[0])
    (warning,) = page.section("overview").all("div", class_="warning")
    assert len(warning.all("li")) == 12
    assert rows_of(page.section("paper").all("table")[0])["FedAvg"][0] == "not run full 33.02"


def test_several_folders_on_one_page(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = write_run(Experiment(run={"rounds": 3}), tmp_path / "run", lambda r: r / 10)
    path, *tables = write_report([folder, run])
    assert path == Path("report.html")
    page = Page(path)
    assert page.root.all("h1")[0].all_text == "2 studies"
    assert [h2.all_text for h2 in page.root.all("h2")] == ["Table 3", "fedavg on digits"]
    assert len(page.root.all("article")) == 2
    assert Path("tables/study-1-cost.csv") in tables
    assert Path("tables/study-2-cost.csv") in tables


def test_columns_that_are_groups_of_the_test_set(tmp_path: Path) -> None:
    study = make(columns={"DSLR": {"group": "dslr"}, "average": {"group": "mean"}}, printed={}, errata=())
    folder = write_study(study, tmp_path / "s", growing_accuracy, groups=["dslr", "amazon"], local=0.1)
    data = chart_data(load_results(folder))
    assert list(data["panels"][0]["lines"]) == ["accuracy"], "losses are of the whole test set"
    cost = rows_of(Page(write_report([folder])[0]).section("cost").all("table")[0])
    assert cost["FedAvg"][0] == "2", "two columns of one run cost one run"


def call(monkeypatch: pytest.MonkeyPatch, *args: object) -> int:
    monkeypatch.setattr(sys, "argv", ["fedrecall", *map(str, args)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(Experiment(run={"rounds": 3}), tmp_path / "run", lambda r: r / 10)
    assert call(monkeypatch, "report", folder, "--out", tmp_path / "new" / "r.html") == 0
    assert capsys.readouterr().out.splitlines() == [
        f"report in {tmp_path / 'new' / 'r.html'}",
        f"its tables as CSV, LaTeX and Markdown in {tmp_path / 'new' / 'tables'}",
    ]
    assert (tmp_path / "new" / "r.html").exists()


@pytest.mark.parametrize("damage", ["nowhere", "empty", "config", "environment", "rounds", "summary"])
def test_bad_folders_are_one_line_and_nothing_is_written(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    if damage == "empty":
        run.mkdir()
    elif damage != "nowhere":
        write_run(Experiment(run={"rounds": 3}), run, lambda r: r / 10)
        name = {"config": "config.toml", "rounds": "rounds.jsonl"}.get(damage, f"{damage}.json")
        (run / name).write_text("{}" if damage == "summary" else "{")
    assert call(monkeypatch, "report", run, "--out", tmp_path / "out.html") == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert str(run) in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "out.html").exists()


def test_a_damaged_partition_is_reported_in_its_section(tmp_path: Path) -> None:
    run = write_run(Experiment(run={"rounds": 1}), tmp_path / "run", lambda r: 0.5)
    (run / "partition.json").write_text('{"hash": "ab", "counts": 3}')
    text = Page(write_report([run])[0]).section("partition").all_text
    assert str(run / "partition.json") in text
    assert "counts" in text


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    folder = write_run(Experiment(), tmp_path / "run", lambda r: 0.5, finished=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError) as error:
        write_report([folder], tmp_path / "file" / "page.html")
    assert (error.value.code, error.value.key) == ("report.cannot_write", str(tmp_path / "file" / "page.html"))


def test_several_runs_are_one_comparison(tmp_path: Path) -> None:
    def run(name: str, method: str, seed: int, height: float, **options: bool) -> Path:
        tables = {"method": {"name": method}, "run": {"rounds": 3, "seed": seed}}
        return write_run(Experiment(**tables), tmp_path / name, lambda r: height + r / 100, **options)

    runs = [run("a", "fedavg", 0, 0.4), run("b", "fedavg", 1, 0.5), run("c", "fedlmd", 0, 0.6)]
    unfinished = run("d", "fedlmd", 1, 0.6, finished=False)
    page = Page(write_report([*runs, unfinished], tmp_path / "page.html")[0])
    assert page.root.all("h1")[0].all_text.startswith("4 runs on ")
    (table,) = page.section("comparison").all("table")
    assert rows_of(table)["fedavg"][0] == "48.00 ± 7.07"
    assert rows_of(table)["fedlmd"][0] == "63.00 1 of 2 seeds"
    assert "fedlmd, digits, seed 1" in page.section("overview").all_text
    assert page.section("repeat").all_text.count("fedrecall run") == 4


def test_runs_of_one_method_go_by_their_folders(tmp_path: Path) -> None:
    for name, mu in (("weak", 0.01), ("strong", 1.0)):
        tables = {"method": {"name": "fedprox", "mu": mu}, "run": {"rounds": 2}}
        write_run(Experiment(**tables), tmp_path / name, lambda r: 0.5)
    page = Page(write_report([tmp_path / "weak", tmp_path / "strong"], tmp_path / "page.html")[0])
    assert list(rows_of(page.section("comparison").all("table")[0])) == ["weak", "strong"]
    marked = [mark.all_text for mark in page.section("configuration").all("mark")]
    assert marked == ["mu = 0.01", "mu = 1.0"]
    shutil.copytree(tmp_path / "weak", tmp_path / "copy")
    with pytest.raises(UserError) as error:
        write_report([tmp_path / "weak", tmp_path / "copy"], tmp_path / "twice.html")
    assert (error.value.code, error.value.key) == ("report.duplicate_run", str(tmp_path / "copy"))


@pytest.mark.parametrize("module", [charts, study_page, svg, settings], ids=lambda m: m.__name__)
def test_examples_in_docstrings(module: ModuleType) -> None:
    tried = doctest.testmod(module)
    assert tried.attempted > 0
    assert tried.failed == 0


def test_control_characters_of_a_figure_become_spaces() -> None:
    drawn = f'<svg xmlns="{svg.SVG}" viewBox="0 0 9 9" height="9"><text>a\x1b[2Jb</text></svg>'
    assert ">a [2Jb</text>" in svg.inline_svg(drawn.encode(), "figure", "label")
