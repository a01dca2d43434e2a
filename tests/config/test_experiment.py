import math
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedrecall import Experiment, UserError
from fedrecall.core.method import Method
from fedrecall.core.optim import ClientAdam, ClientSGD
from fedrecall.core.schedules import Cosine, Decay
from fedrecall.data.partitioners import PARTITIONERS
from fedrecall.methods import METHODS
from fedrecall.methods.presets import PRESETS
from fedrecall.models import MODELS


def load(text: str, tmp_path: Path, *overrides: str) -> Experiment:
    path = tmp_path / "experiment.toml"
    path.write_text(text)
    return Experiment.load(path, overrides)


def test_empty_tables_are_the_quickstart() -> None:
    assert Experiment.load() == Experiment()
    assert Experiment().data.name == "digits"


def test_toml_python_and_overrides_are_equivalent(tmp_path: Path) -> None:
    text = """
    [federation]
    clients = 100
    sample = 10
    partition = { name = "dirichlet", alpha = 0.05 }
    [method]
    name = "fedprox"
    mu = 1
    [model]
    name = "mlp"
    hidden = [10, 20]
    """
    tables = {
        "federation": {"clients": 100, "sample": 10, "partition": {"name": "dirichlet", "alpha": 0.05}},
        "method": {"name": "fedprox", "mu": 1},
        "model": {"name": "mlp", "hidden": [10, 20]},
    }
    overrides = ["federation.clients=100", "federation.sample=10", "federation.partition.name=dirichlet",
                 "federation.partition.alpha=0.05", "method.name=fedprox", "method.mu=1", "model.name=mlp",
                 "model.hidden=[10, 20]"]  # fmt: skip
    experiment = load(text, tmp_path)
    assert experiment == Experiment(**tables) == Experiment.load(None, overrides)
    assert experiment.method == METHODS["fedprox"](mu=1.0)
    assert experiment.model == MODELS["mlp"](hidden=(10, 20))


@pytest.mark.parametrize("name", METHODS)
def test_complete_tables_read_back_as_the_same_experiment(name: str) -> None:
    experiment = Experiment(method={"name": name}, model={"name": "cnn", "head": True}, run={"targets": [0.5, 0.65]})
    written = tomli_w.dumps(experiment.to_tables())
    assert Experiment(**tomllib.loads(written)) == experiment


def test_another_method_drops_the_settings_of_the_first(tmp_path: Path) -> None:
    text = '[method]\nname = "fedprox"\nmu = 0.5'
    assert load(text, tmp_path, "method.name=fedavg").method == Method()
    assert load(text, tmp_path, "method.name=fedprox").method == METHODS["fedprox"](mu=0.5)
    assert load(text, tmp_path, "method.name=fedavgm", "method.beta_s=0.7").method == METHODS["fedavgm"](beta_s=0.7)


def test_only_a_choice_is_reset_by_a_new_name_and_the_order_of_overrides_does_not_matter(tmp_path: Path) -> None:
    text = '[data]\nname = "cifar10"\nroot = "folder"\naugment = "moon"\n[method]\nname = "fedprox"\nmu = 0.5'
    experiment = load(text, tmp_path, "method.beta_s=0.7", "data.name=cifar100", "method.name=fedavgm")
    assert (experiment.data.name, experiment.data.augment, str(experiment.data.root)) == ("cifar100", "moon", "folder")
    assert experiment.method == METHODS["fedavgm"](beta_s=0.7)
    with pytest.raises(UserError) as error:
        load(text, tmp_path, "method.mu=high", "method.name=fedprox")
    assert (error.value.code, error.value.key) == ("config.invalid_value", "method.mu")


@pytest.mark.parametrize(("preset", "name"), [(p, name) for p, methods in PRESETS.items() for name in methods])
def test_presets_are_valid_and_explicit_settings_take_precedence(preset: str, name: str) -> None:
    method = Experiment(method={"name": name, "preset": preset}).method
    assert all(getattr(method, key) == value for key, value in PRESETS[preset][name].items())
    for key, value in PRESETS[preset][name].items():
        if isinstance(value, float):
            assert getattr(Experiment(method={"name": name, "preset": preset, key: value / 2}).method, key) == value / 2


def test_a_setting_without_a_name_is_the_defaults() -> None:
    experiment = Experiment.load(None, ["federation.partition.alpha=0.1"])
    assert experiment.federation.partition == PARTITIONERS["dirichlet"](alpha=0.1)


def test_python_objects_pass_through() -> None:
    partitioner = PARTITIONERS["iid"]()
    experiment = Experiment(method=METHODS["fedprox"](mu=0.3), federation={"partition": partitioner})
    assert experiment.method == METHODS["fedprox"](mu=0.3)
    assert experiment.federation.partition is partitioner


@pytest.mark.parametrize(
    ("overrides", "problem", "key", "fact"),
    [
        (["method.name=fedavgg"], "unknown_name", "method.name", '"fedavg"'),
        (["model.name=cn"], "unknown_name", "model.name", '"cnn"'),
        (["federation.partition.name=dirichelt"], "unknown_name", "federation.partition.name", '"dirichlet"'),
        (["locall.epochs=3"], "unknown_section", "locall", '"local"'),
        (["epochs=3"], "unknown_section", "epochs", '"local.epochs"'),
        (["local.epoch=3"], "unknown_key", "local.epoch", '"epochs"'),
        (["method.name=fedprox", "method.nu=3"], "unknown_key", "method.nu", '"mu"'),
        (["method.name=fedavg", "method.mu=3"], "unknown_key", "method.mu", "fedavg"),
        (["local.epochs=many"], "invalid_value", "local.epochs", "integer"),
        (["local.epochs=1.5"], "invalid_value", "local.epochs", "integer"),
        (["local.epochs=0"], "invalid_value", "local.epochs", "greater than or equal to 1"),
        (["local.lr=-1"], "invalid_value", "local.lr", "-1"),
        (["local.lr=inf"], "invalid_value", "local.lr", "finite"),
        (["local.drop_last=1"], "invalid_value", "local.drop_last", "boolean"),
        (["method.name=fedprox", "method.mu=big"], "invalid_value", "method.mu", "number"),
        (["method.mu=3"], "unknown_key", "method.mu", "fedavg"),
        (["model.head=true"], "missing_key", "model.name", "cnn"),
        (["federation.sample=3", "federation.fraction=0.5"], "conflict", "federation.fraction", "federation.sample"),
        (["federation.sample=30"], "conflict", "federation.sample", "federation.clients = 10"),
        (["federation.fraction=0"], "invalid_value", "federation.fraction", "0"),
        (["engine.name=parallel"], "unknown_name", "engine.name", "flower, pool"),
        (["server.optimiser=lion"], "unknown_name", "server.optimiser", "adagrad, adam"),
        (["run.rounds"], "invalid_override", "run.rounds", "key=value"),
        (["=3"], "invalid_override", "=3", "key=value"),
        (["run.rounds=3", "run.rounds.x=3"], "invalid_override", "run.rounds.x=3", "not a table"),
        (["run=3"], "invalid_value", "run", "3"),
        (["data.path=x"], "conflict", "data.path", "digits"),
        (["data.name=table", "data.limit=3"], "conflict", "data.limit", "table"),
        (["server.optimiser=adam", "server.momentum=0.5"], "conflict", "server.momentum", "adam"),
        (["server.optimiser=adam", "server.damped=true"], "conflict", "server.damped", "adam"),
        (["server.nesterov=true"], "conflict", "server.nesterov", "server.momentum"),
        (["engine.name=serial", "engine.workers=2"], "conflict", "engine.workers", "serial"),
        (["method.name=fedcad", "method.preset=fedcad-w2"], "unknown_name", "method.preset", "did you mean"),
        (["method.name=feddyn", "method.preset=x"], "unknown_name", "method.preset", "feddyn"),
        (["method=3"], "invalid_value", "method", "3"),
        (["method.name=[1]"], "unknown_name", "method.name", "[1]"),
        (["local.optimiser=adan"], "unknown_name", "local.optimiser", '"adam"'),
        (["local.optimiser=adamw", "local.momentum=0.5"], "conflict", "local.momentum", "adamw"),
        (["local.beta1=0.5"], "conflict", "local.beta1", "sgd"),
        (["local.clip=-1"], "invalid_value", "local.clip", "-1"),
        (["local.clip=inf"], "invalid_value", "local.clip", "finite"),
        (["local.class_weights=balance"], "unknown_name", "local.class_weights", '"balanced"'),
        (["local.class_weights=[1, 0]"], "invalid_value", "local.class_weights", "above 0"),
        (["local.schedule.name=cosin"], "unknown_name", "local.schedule.name", '"cosine"'),
        (["local.schedule.name=step", "local.schedule.every=0"], "invalid_value", "local.schedule.every", "1"),
        (["local.schedule.name=cosine", "local.lr_decay=0.9"], "conflict", "local.lr_decay", "schedule"),
        (["local.schedule.name=cosine", "local.schedule.rounds=3"], "conflict", "local.schedule.rounds", "20"),
        (["local.optimiser=adam", "method.name=fednova"], "conflict", "local.optimiser", "FedNova"),
        (["local.optimiser=adam", "method.name=scaffold", "method.mode=post_step"], "conflict", "local.optimiser", ""),
        (["local.precision=fp16"], "unknown_name", "local.precision", '"bf16"'),
        (["engine.device=gpu"], "unknown_name", "engine.device", "cuda"),
        (["engine.name=ray", "engine.device=cuda:1"], "conflict", "engine.device", "Ray"),
        (["ray.address=auto"], "conflict", "ray.address", "pool"),
        (["engine.min_replies=11"], "conflict", "engine.min_replies", "10"),
        (["run.seed=-1"], "invalid_value", "run.seed", "-1"),
        (["run.partition_seed=-1"], "invalid_value", "run.partition_seed", "-1"),
        (["run.init_seed=-1"], "invalid_value", "run.init_seed", "-1"),
        (["run.sample_seed=-1"], "invalid_value", "run.sample_seed", "-1"),
        (["data.split_seed=-1"], "invalid_value", "data.split_seed", "-1"),
        (["data.split_seed=rnu"], "invalid_value", "data.split_seed", "rnu"),
    ],
)  # fmt: skip
def test_errors_have_the_key(overrides: list[str], problem: str, key: str, fact: str) -> None:
    with pytest.raises(UserError) as error:
        Experiment.load(None, overrides)
    assert (error.value.code, error.value.key) == (f"config.{problem}", key)
    assert fact in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "code", "fact"),
    [
        ("missing.toml", None, "config.unreadable_file", "No such file"),
        ("", None, "config.unreadable_file", "directory"),
        ("bad.toml", b"[run\nrounds = 3", "config.invalid_toml", "line 1"),
        ("binary.toml", b"\xff\xfe\x00", "config.unreadable_file", "decode"),
    ],
)
def test_files_that_cannot_be_read(name: str, content: bytes | None, code: str, fact: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as error:
        Experiment.load(tmp_path / name)
    assert (error.value.code, error.value.key) == (code, str(tmp_path / name))
    assert fact in str(error.value)


@given(st.integers(1, 2000), st.floats(0.001, 1))
def test_cohort_is_the_floor_of_the_share_and_at_least_one(clients: int, fraction: float) -> None:
    cohort = Experiment(federation={"clients": clients, "fraction": fraction}).federation.clients_per_round
    assert 1 <= cohort <= clients
    assert cohort == max(1, math.floor(round(fraction * clients, 6)))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
sections = st.sampled_from(["data", "federation", "model", "local", "method", "server", "engine", "run", "x"])


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(
        sections, values | st.dictionaries(st.sampled_from(["name", "lr", "clients", "partition", "augment"]), values)
    )
)
def test_any_table_is_an_experiment_or_a_user_error(tables: dict[str, object]) -> None:
    with suppress(UserError):
        Experiment(**tables)


def test_the_learning_rate_depends_on_the_optimiser_unless_set() -> None:
    rates = [Experiment.load(None, [f"local.optimiser={name}"]).local.lr for name in ("sgd", "adam", "adamw")]
    assert rates == [0.01, 0.001, 0.001]
    assert Experiment.load(None, ["local.optimiser=adamw", "local.lr=0.01"]).local.lr == 0.01


def test_settings_of_local_training_reach_the_training_loop() -> None:
    table = {
        "optimiser": "adamw",
        "beta2": 0.99,
        "weight_decay": 0.1,
        "clip": 2.0,
        "class_weights": [1, 2.5],
        "prox": 0.1,
        "schedule": {"name": "cosine", "final": 0.1},
    }
    experiment = Experiment(local=table)
    for same in (experiment, Experiment(**experiment.to_tables())):
        training = same.local.to_training(rounds=8)
        assert training.optimiser == ClientAdam(0.001, 0.9, 0.99, 1e-8, 0.1, decoupled=True)
        assert (training.clip, training.class_weights, training.prox) == (2.0, (1.0, 2.5), 0.1)
        assert training.schedule == Cosine(rounds=8, final=0.1)
    decayed = Experiment(local={"lr_decay": 0.9}).local.to_training(rounds=8)
    assert (decayed.optimiser, decayed.schedule) == (ClientSGD(), Decay(0.9))
