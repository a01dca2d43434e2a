"""The Python interface: scripts, prompt, notebooks."""

import doctest
import inspect
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import tomli_w
import torch
import torch.nn.functional as F
from rich.console import Console
from sklearn.feature_extraction.text import CountVectorizer
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

import fedrecall as fr
from fedrecall.models import adapt
from fedrecall.testing import check_method, method_checks

QUICK = {"local": {"epochs": 1}, "engine": {"name": "serial"}, "run": {"rounds": 2}}
rng = np.random.default_rng(0)
Y = rng.integers(0, 3, 150)
X = (rng.normal(size=(150, 4)) + 2 * Y[:, None]).astype(np.float32)


@dataclass(frozen=True)
class Mine(fr.Method):
    """FedAvg with a weight."""

    weight: float = 0.5

    def loss(self, s, r) -> Tensor:
        return self.weight * F.cross_entropy(s.z, s.y)


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


# --- what is public ---------------------------------------------------------------------------
MODULES = sorted({module for name in fr.__all__ if (module := getattr(getattr(fr, name), "__module__", None))})


@pytest.mark.parametrize("module", ["fedrecall", "fedrecall.testing.contract", *MODULES])
def test_docstring_examples(module: str) -> None:
    tried = doctest.testmod(import_module(module), optionflags=doctest.ELLIPSIS)
    assert tried.failed == 0


def test_dir_lists_public_names() -> None:
    listed = subprocess.run(
        [sys.executable, "-c", "import fedrecall; print(*dir(fedrecall))"], capture_output=True, text=True, check=True
    ).stdout.split()  # in a new process: nothing has been imported by its name yet
    assert listed == sorted([*fr.__all__, "__version__"])


@pytest.mark.parametrize("name", fr.__all__)
def test_everything_public_is_described_and_typed(name: str) -> None:
    objects = list(fr.METHODS.values()) if name == "METHODS" else [getattr(fr, name)]
    functions = [item for item in objects if inspect.isfunction(item)]
    functions += [f for item in objects for _, f in inspect.getmembers(item, inspect.isfunction)]
    assert all(inspect.getdoc(item) for item in objects)
    for function in functions:
        if function.__module__.startswith("fedrecall") and not function.__name__.startswith("_"):
            assert "return" in function.__annotations__, function
            assert function.__doc__, function


# The library makes these and passes them to a method's hooks: the example of Method shows them in use.
HOOK_ARGUMENTS = {"Cohort", "Local", "Payload", "Reply", "Server", "Step", "Traits", "losses"}


@pytest.mark.parametrize("name", [n for n in fr.__all__ if n not in {"METHODS", *HOOK_ARGUMENTS}])
def test_everything_public_has_an_example(name: str) -> None:
    assert ">>>" in inspect.getdoc(getattr(fr, name))


# --- compare ------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def side() -> fr.Comparison:
    methods = ["fedavg", "fedlmd:tau=3", {"name": "fedprox", "mu": 0.1}, Mine(), Mine(weight=2.0)]
    return fr.compare(methods, data=(X, Y), clients=4, alpha=0.5, seeds=2, config=QUICK, baselines=[])


def test_it_prints_as_a_table(side: fr.Comparison) -> None:
    assert side.methods == ["fedavg", "fedlmd:tau=3", "fedprox:mu=0.1", "Mine", "Mine:weight=2.0"]
    lines = str(side).splitlines()
    assert lines[0] == "Methods compared on arrays"
    assert all(any(line.startswith(f"{name} ") and "±" in line for line in lines) for name in side.methods)
    assert max(map(len, lines)) <= 80
    assert repr(side) == str(side)
    html = side._repr_html_()
    assert html.count("<tr>") == 6
    assert "Mine:weight=2.0" in html
    assert "script" not in html


def test_its_numbers(side: fr.Comparison) -> None:
    assert len(side.runs) == 10
    lines = side.to_dataframe()
    assert len(lines) == 20
    assert set(lines["method"]) == set(side.methods)
    mean = lines[(lines["method"] == "Mine") & (lines["round"] == 2)]["accuracy"].mean()
    assert side.to_dict()["Mine"]["final"]["mean"] == pytest.approx(100 * mean)
    assert len(side.to_dataframe("runs")) == 10
    assert "| Mine |" in side.to_markdown()
    assert r"\toprule" in side.to_latex()
    with pytest.raises(fr.UserError) as error:
        side.to_dataframe("run")
    assert (error.value.code, error.value.key) == ("config.unknown_name", "of")
    assert '"runs"' in str(error.value)


def test_its_figure(side: fr.Comparison) -> None:
    figure = side.plot()
    (axes,) = figure.axes
    assert len(axes.lines) == 5
    assert len(axes.collections) == 5, "a band each"
    assert axes.get_ylabel() == "test accuracy (%)"
    with pytest.raises(fr.UserError) as error:
        side.plot("forgetting")
    assert (error.value.code, error.value.key) == ("report.missing_measurement", "y")
    assert "global minus local" in str(error.value)


def test_its_models(side: fr.Comparison) -> None:
    module = side.model("Mine", seed=1)
    _, z = module(torch.zeros(2, 4))
    assert z.shape == (2, 3)
    with pytest.raises(fr.UserError) as error:
        side.model("mine")
    assert (error.value.code, error.value.key) == ("config.unknown_name", "method")
    assert '"Mine"' in str(error.value)
    with pytest.raises(fr.UserError) as error:
        side.model("Mine", seed=7)
    assert (error.value.code, error.value.key) == ("study.no_model", "seed")
    assert "Mine" in str(error.value)
    assert "7" in str(error.value)


def test_a_comparison_without_a_folder_is_removed_unless_saved(side: fr.Comparison, tmp_path: Path) -> None:
    short = fr.compare(["fedavg"], data=(X, Y), clients=4, seeds=1, config=QUICK)
    folder = short.folder
    assert folder.exists()
    assert short.save(tmp_path / "kept") == short.folder == tmp_path / "kept"
    assert (tmp_path / "kept" / "tables").is_dir()
    assert (tmp_path / "kept" / "figures").is_dir()
    again = fr.load(tmp_path / "kept")
    assert str(again) == str(short)
    assert torch.equal(again.model()(torch.ones(1, 4))[1], short.model()(torch.ones(1, 4))[1]), "without the data"
    assert again.report(tmp_path / "page.html").read_text().startswith("<!doctype html>")
    del short
    assert not folder.exists()
    with pytest.raises(fr.UserError) as error:
        side.save(tmp_path / "kept")
    assert (error.value.code, error.value.key) == ("run.directory_not_empty", str(tmp_path / "kept"))


def test_a_folder_is_resumed_with_the_same_objects_only(tmp_path: Path) -> None:
    def compare(methods: list, x: np.ndarray = X, model: object = None) -> fr.Comparison:
        return fr.compare(methods, data=(x, Y), model=model, clients=4, seeds=1, config=QUICK, out=tmp_path / "a")

    compare(["fedavg"])
    assert compare(["fedavg", Mine()]).methods == ["fedavg", "Mine"]
    with pytest.raises(fr.UserError) as error:
        compare(["fedavg"], x=X + 1)
    assert error.value.code == "study.other_settings"
    assert str(error.value.key).startswith(str(tmp_path / "a"))
    assert "data (environment) was" in str(error.value)


def test_initial_weights_of_the_users_module_are_part_of_the_study(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(4, 3))
    settings = {"data": (X, Y), "clients": 4, "seeds": 1, "config": QUICK, "out": tmp_path / "a"}
    fr.compare(["fedavg"], model=module, **settings)
    fr.compare(["fedavg"], model=module, **settings)
    nn.init.zeros_(module[0].weight)
    with pytest.raises(fr.UserError) as error:
        fr.compare(["fedavg"], model=module, **settings)
    assert error.value.code == "study.other_settings"
    assert "start (environment)" in str(error.value)


def test_a_class_gives_each_seed_its_own_weights_and_lazy_layers_their_sizes() -> None:
    side = fr.compare({"plain": "fedavg", "mine": Mine}, data=(X, Y), model=Lazy, clients=4, seeds=2, config=QUICK)
    assert side.methods == ["plain", "mine"]
    first = {(run.cell.row, run.cell.seed): run.summary["initial"] for run in side.runs}
    assert first["plain", 0] == first["mine", 0] != first["plain", 1]
    lazy = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(3))
    first, again = (fr.run(QUICK, data=(X, Y), model=lazy).server.w for _ in range(2))
    assert torch.equal(first, again), "an object that is lazy has its weights from the seed, too"
    assert any(map(is_lazy, lazy.parameters())), "and is left alone"


def test_clients_of_the_data_are_the_clients() -> None:
    places = np.array(["north", "south", "west"])[rng.integers(0, 3, 150)]
    side = fr.compare(["fedavg"], data=(X, Y, places), seeds=1, config=QUICK)
    assert side.runs[0].records[0]["clients"] == [0, 1, 2]
    partitioned = fr.compare(["fedavg"], data=(X, Y, places), clients=5, alpha=1.0, seeds=1, config=QUICK)
    assert len(partitioned.runs[0].records[0]["clients"]) == 5


def test_configurations_of_every_kind(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(
        "[local]\nepochs = 1\n[federation]\nclients = 7\nfraction = 0.5\n[run]\nrounds = 9\n"
    )
    source = (tmp_path / "c.toml", {"federation": {"clients": 7, "fraction": 0.5}, "run": {"rounds": 9}})
    for config in (*source, fr.Experiment(**source[1])):
        found = fr.compare(["fedavg"], config=config, sample=2, rounds=1, seeds=1, overrides=["local.epochs=1"])
        assert [len(record["clients"]) for record in found.runs[0].records] == [2]


@pytest.mark.parametrize(
    ("arguments", "code", "key", "fact"),
    [
        ({"methods": "fedavg"}, "config.invalid_value", "methods", '["fedavg"]'),
        ({"methods": [3]}, "config.invalid_value", "methods", "3"),
        ({"methods": [{"name": "fedlmd", "tua": 1}]}, "config.unknown_key", "method.tua", '"tau"'),
        ({"methods": [Mine(), Mine()]}, "study.duplicate_name", "methods", "Mine"),
        ({"data": "digit"}, "config.unknown_name", "data", '"digits"'),
        ({"data": ([["a"], ["b"]], [0, 1])}, "data.invalid_inputs", "inputs", "text"),
        ({"data": (np.full((20, 2), np.nan), [0, 1] * 10)}, "data.not_finite", "train_x", "NaN"),
        ({"alpha": 0.1, "partition": "iid"}, "config.conflict", "alpha", "partition"),
        ({"model": "mpl"}, "config.unknown_name", "model", '"mlp"'),
        ({"model": 3}, "model.not_a_module", "model", "3"),
        ({"seeds": 0}, "config.invalid_value", "seeds", "0"),
        ({"rounds": 0}, "config.invalid_value", "run.rounds", "run.rounds = 0"),
        ({"sample": 99}, "config.conflict", "federation.sample", "federation.sample = 99"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    arguments: dict, code: str, key: str, fact: str, tmp_path: Path
) -> None:
    source = {"methods": ["fedavg"], "data": (X, Y), "clients": 4, "seeds": 1, "config": QUICK} | arguments
    with pytest.raises(fr.UserError) as error:
        fr.compare(**source, out=tmp_path / "a")
    assert (error.value.code, error.value.key) == (code, key)
    assert fact in str(error.value)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.rglob("summary.json"))


# --- data and models ----------------------------------------------------------------------------
def test_sparse_texts_and_tables_of_different_scales() -> None:
    counts = CountVectorizer().fit_transform(["a good day", "a bad day", "a good night", "a bad night"] * 10)
    assert fr.from_arrays(counts, ["good", "bad"] * 20).shape == (4,)
    data = fr.from_arrays(X * 1000 + 5, Y, standardise=True)
    assert torch.allclose(data.train_x.mean(0), torch.zeros(4), atol=1e-4)
    assert torch.allclose(data.train_x.std(0, correction=0), torch.ones(4), atol=1e-4)
    with pytest.raises(fr.UserError) as error:
        fr.from_arrays(np.zeros((20, 8, 8), dtype=np.uint8), [0, 1] * 10, standardise=True)
    assert (error.value.code, error.value.key) == ("config.conflict", "standardise")


def test_unused_lazy_layers_are_an_error() -> None:
    def spare() -> nn.Module:
        module = Lazy()
        module.spare = nn.LazyLinear(3)
        return module

    with pytest.raises(fr.UserError) as error:
        fr.run(QUICK, data=(X, Y), model=spare)
    assert (error.value.code, error.value.key) == ("model.lazy_layers", "model")
    assert "forward" in str(error.value)
    with pytest.raises(fr.UserError) as error:
        fr.run(QUICK, data=(X, Y), model=Lazy())
    assert (error.value.code, error.value.key) == ("model.cannot_copy", "model")
    assert "Lazy" in str(error.value)
    with pytest.raises(fr.UserError) as error:
        adapt(nn.LazyLinear(3))
    assert (error.value.code, error.value.key) == ("model.lazy_layers", "model")
    assert "LazyLinear" in str(error.value)


# --- run and its result -------------------------------------------------------------------------
def test_a_result_prints_plots_and_is_a_table() -> None:
    result = fr.run(QUICK, method=Mine(weight=1.0), data=(X, Y), rounds=3)
    first, second = repr(result).splitlines()
    assert first.startswith("Mine on your data: 3 rounds, ")
    assert second.startswith("accuracy: final ")
    assert result.plot("loss").axes[0].get_ylabel() == "test loss"
    assert list(result.to_dataframe()["round"]) == [1, 2, 3]
    with pytest.raises(fr.UserError) as error:
        result.plot("forgetting")
    assert (error.value.code, error.value.key) == ("report.missing_measurement", "y")
    assert "global minus local" in str(error.value)


def test_a_configuration_with_a_users_method_records_and_requires_it(tmp_path: Path) -> None:
    fr.run(QUICK, method=Mine(), out=tmp_path / "a")
    with pytest.raises(fr.UserError) as error:
        fr.run(tmp_path / "a" / "config.toml")
    assert (error.value.code, error.value.key) == ("config.needs_python_object", "method")
    assert "Mine" in str(error.value)
    assert fr.run(tmp_path / "a" / "config.toml", method=Mine()).summary["final"] == pytest.approx(
        fr.load(tmp_path / "a").runs[0].summary["final"]
    )


# --- where it is used ---------------------------------------------------------------------------
SCRIPT = """
import fedrecall as fr
from dataclasses import dataclass
from torch.nn.functional import cross_entropy

@dataclass(frozen=True)
class Mine(fr.Method):
    def loss(self, s, r):
        return 2 * cross_entropy(s.z, s.y)

side = fr.compare(["fedavg", Mine()], data="digits", clients=4, rounds=2, seeds=1, config={"engine": {"workers": 2}})
print(side.methods, [len(run.records) for run in side.runs])
"""


@pytest.mark.parametrize("interactive", [False, True])
def test_worker_processes_from_standard_input(interactive: bool, tmp_path: Path) -> None:
    flags = ["-i", "-q"] if interactive else ["-"]
    environment = os.environ | {"PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, *flags], input=SCRIPT, cwd=tmp_path, env=environment, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == "['fedavg', 'Mine'] [2, 2]"
    if not interactive:
        assert done.stderr == "", "no progress where nobody looks"


def test_progress_if_set(capfd: pytest.CaptureFixture[str]) -> None:
    fr.compare(["fedavg"], data=(X, Y), clients=4, seeds=1, config=QUICK, progress=True, baselines=[])
    fr.run(QUICK, data=(X, Y), progress=True)
    output = capfd.readouterr()
    assert output.out == ""
    assert output.err.splitlines()[1].startswith("1/1  fedavg, seed 0: final ")
    assert output.err.splitlines()[-1].startswith("round 2/2  accuracy ")


# --- the contract of methods --------------------------------------------------------------------
def test_the_contract_finds_what_is_broken() -> None:
    assert check_method(Mine(), engines=["serial"]) == len(method_checks(["serial"]))

    class Unframed(fr.Method):
        pass

    @dataclass(frozen=True)
    class Random(fr.Method):
        def loss(self, s, r):
            return F.cross_entropy(s.z, s.y) * np.random.rand()  # noqa: NPY002

    @dataclass(frozen=True)
    class Forgetful(fr.Method):
        def reply(self, w, steps, r):
            return {"w": w}, {"note": w}

    @dataclass(frozen=True)
    class KeepsAll(fr.Method):
        def reply(self, w, steps, r):
            r.down["w"].zero_()
            return {"w": w}, {}

    checks = method_checks(["serial"])
    broken = {
        "is a frozen dataclass": Unframed(),
        "is reproducible, plain, serial": Random(),
        "declares client state": Forgetful(),
        "does not modify inputs": KeepsAll(),
    }
    for name, method in broken.items():
        with pytest.raises(AssertionError):
            checks[name](method)
    with pytest.raises(AssertionError) as error:
        check_method(Unframed(), engines=["serial"])
    assert error.value.__notes__ == ["in the check: is a frozen dataclass"]


@pytest.mark.parametrize("experiment", [None, QUICK, fr.Experiment(**QUICK)], ids=["none", "tables", "experiment"])
def test_overrides_change_every_kind_of_configuration(experiment) -> None:
    result = fr.run(experiment, overrides=["run.rounds=1", "local.epochs=1", "run.seed=5"], progress=False)
    assert (len(result.rounds), result.experiment.run.seed) == (1, 5)


@pytest.mark.parametrize("unknown", ["own data", "own model", "words"])
def test_a_reproduction_whose_cost_cannot_be_estimated_is_run(unknown: str, tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    table.write_text("a,b,label\n" + "".join(f"old{i % 5} {i % 3},{i % 7},{i % 2}\n" for i in range(80)))
    named = {"name": "table", "path": str(table), "label": "label", "aux_per_class": 1}
    base: dict[str, dict] = {**QUICK, "federation": {"clients": 2}}
    base |= {
        "own data": {"data": {"name": "support.own_code:blobs"}},
        "own model": {
            "data": named | {"drop": ["a"]},
            "model": {"name": "support.own_code:Net", "inputs": 1, "classes": 2},
        },
        "words": {"data": named | {"text": "a"}, "model": {"name": "rnn"}},
    }[unknown]
    definition = {"title": "own", "base": base, "rows": {"FedAvg": {}}, "columns": {"all": {}}}
    (tmp_path / "own.toml").write_text(tomli_w.dumps(definition))
    shown = Console(file=StringIO(), force_terminal=True)
    found = fr.reproduce(str(tmp_path / "own.toml"), progress=shown)
    assert [len(run.records) for run in found.runs] == [2]
