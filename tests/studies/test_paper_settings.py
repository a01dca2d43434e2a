"""The settings of the papers' experiments, cell by cell, against tables typed by hand."""

from dataclasses import replace
from typing import Any

import pytest

from fedrecall.config.experiment import CHOICES, Experiment
from fedrecall.core.method import Method
from fedrecall.methods import METHODS as M
from fedrecall.reporting import figures
from fedrecall.studies import papers
from fedrecall.studies.definitions import experiment_ids

Facts = dict[str, Any]


def dirichlet(alpha: float) -> Facts:
    return {"partition": ("dirichlet", alpha)}


def shards(s: int) -> Facts:
    return {"partition": ("shards", s)}


# data, partition, model, clients, a round, rounds, epochs, batch, lr, decay, augmentation, auxiliary examples a class
KEYS = ("data", "partition", "model", "clients", "cohort", "rounds", "epochs", "batch", "lr", "decay", "augment", "aux")
SETTINGS: dict[str, tuple[object, ...]] = {
    "fedcad": ("cifar10", ("dirichlet", 0.5), "cnn", 10, 10, 100, 10, 64, 0.01, 1.0, "moon", 32),
    "fedcad-sa": ("cifar10", ("dirichlet", 0.5), "cnn", 10, 10, 100, 5, 64, 0.01, 1.0, "moon", 0),
    "fedssd": ("cifar10", ("dirichlet", 0.5), "cnn", 10, 10, 100, 10, 64, 0.01, 1.0, "moon", 64),
    "fedcsd": ("cifar100", ("dirichlet", 0.5), "resnet50", 10, 10, 100, 5, 64, 0.1, 1.0, "fedcsd", 0),
    "fedlmd": ("cifar10", ("dirichlet", 0.05), "cnn-32-64", 100, 10, 200, 5, 50, 0.01, 0.99, "fedlmd", 0),
}
R50 = {"model": "resnet50"}
C100 = {"data": "cifar100"} | R50
TINY = {"data": "tiny-imagenet", "rounds": 30} | R50
FEMNIST = {"data": "femnist", "classes": 10, "model": "cnn"}
OFFICE = {
    "data": "office-caltech-10", "size": 256, "limit": 62, "clients": 4, "cohort": 4, "batch": 32,
    "partition": ("groups", None), "model": "alexnet",
}  # fmt: skip
OFFICE_CSD = OFFICE | {"FedCSD": {"mu": 0.5, "tau": 4.0}, "Base": {"mu": 0.5, "tau": 4.0}}
HUNDRED = {"clients": 100}
SKEWS = {"#K=2": {"partition": ("labels", 2)}, "#K=5": {"partition": ("labels", 5)}} | {
    name: dirichlet(float(name)) for name in ("0.1", "0.5", "10")
}
CSD_SKEWS = {
    "CIFAR-100 0.01": dirichlet(0.01), "CIFAR-100 0.5": dirichlet(0.5), "CIFAR-100 5": dirichlet(5.0),
    "FEMNIST 0.01": FEMNIST | dirichlet(0.01), "FEMNIST 0.05": FEMNIST | dirichlet(0.05),
    "FEMNIST 0.5": FEMNIST | dirichlet(0.5),
}  # fmt: skip
LMD_CIFAR10 = {f"CIFAR-10 s={s}": shards(s) for s in (2, 3, 5, 10)} | {
    f"CIFAR-10 LDA {alpha}": dirichlet(alpha) for alpha in (0.05, 0.1, 0.3, 0.5)
}
LMD_OTHERS = {
    "MNIST s=2": {"data": "mnist"} | shards(2), "MNIST LDA 0.1": {"data": "mnist"} | dirichlet(0.1),
    "CIFAR-100 s=10": {"data": "cifar100"} | shards(10), "CIFAR-100 LDA 0.1": {"data": "cifar100"} | dirichlet(0.1),
    "CINIC-10 s=2": {"data": "cinic10"} | shards(2), "CINIC-10 LDA 0.1": {"data": "cinic10"} | dirichlet(0.1),
}  # fmt: skip
LDA005 = {"CIFAR-10 LDA 0.05": {}}
GRID = {
    f"beta = {beta:g}, tau = {tau:g}": {"method": {"beta": beta, "tau": tau}}
    for beta in (0.1, 0.5, 1, 2, 5)
    for tau in (0.5, 1, 2, 3, 5)
}

# Every experiment with its columns, and what each has that the paper's usual setting has not. What a column changes in
# the method of all rows is under "method", of one row under that row's name.
EXPERIMENTS: dict[str, dict[str, Facts]] = {
    "fedcad-table-1": {
        "CIFAR-10": {}, "CIFAR-100": C100,
        "FEMNIST": {"data": "femnist", "classes": 62, "writers": 2000, "partition": ("groups", None), "rounds": 50}
        | R50,
    },
    "fedcad-table-2": {name: dirichlet(float(name)) for name in ("0.1", "0.5", "5", "10")},
    "fedcad-table-3": {"0.1": HUNDRED, "0.3": HUNDRED | {"cohort": 30}, "0.5": HUNDRED | {"cohort": 50}},
    "fedcad-table-4": {name: {"epochs": int(name)} for name in ("1", "10", "20", "50")},
    "fedcad-fig-1": {"CIFAR-10": {"rounds": 1}},
    "fedcad-fig-3": {
        f"Dirichlet {alpha:g}": dirichlet(alpha) | {"rounds": 1, "epochs": 1} for alpha in (0.1, 0.5, 5.0, 10.0)
    },
    "fedcad-fig-4": {"CIFAR-10": {}},
    "fedcad-sa-fig-1": {"CIFAR-10": {}},
    "fedcad-sa-fig-2": {"CIFAR-10": {"rounds": 1, "epochs": 10}},
    "fedssd-table-1": {"CIFAR-10": {}, "CIFAR-100": C100, "Tiny-ImageNet": TINY},
    "fedssd-table-2": SKEWS,
    "fedssd-table-3": {
        name: {row: {"beta": float(name)} for row in ("KL", "MSE")}
        | {row: {"m_max": float(name)} for row in ("SSD", "SSD (squared)")}
        for name in ("0.01", "0.1", "0.5")
    },
    "fedssd-fig-2": {name: SKEWS[name] for name in ("#K=2", "#K=5", "0.5")} | {"uniform": {"partition": ("iid", None)}},
    "fedssd-fig-3": {"CIFAR-10": {}},
    "fedssd-fig-4": {"CIFAR-10": {"rounds": 1}},
    "fedssd-fig-6": {name: skew | {"rounds": 1, "epochs": 1} for name, skew in SKEWS.items()},
    "fedssd-fig-7": {"CIFAR-10": {}, "CIFAR-100": C100, "Tiny-ImageNet": TINY},
    "fedssd-fig-8": {
        "CIFAR-10, 10 of 100": HUNDRED, "CIFAR-10, 20 of 100": HUNDRED | {"cohort": 20},
        "CIFAR-100, 10 of 100": C100 | HUNDRED, "CIFAR-100, 20 of 100": C100 | HUNDRED | {"cohort": 20},
    },
    "fedssd-fig-9": {name: {"epochs": int(name)} for name in ("1", "5", "10", "20", "40")},
    "fedcsd-table-1": CSD_SKEWS,
    "fedcsd-table-2": dict.fromkeys(("Amazon", "Caltech", "DSLR", "Webcam", "average"), OFFICE_CSD),
    "fedcsd-table-3": {"CIFAR-100 0.5": {}},
    "fedcsd-table-4": {name: CSD_SKEWS[name] for name in ("CIFAR-100 0.01", "CIFAR-100 0.5", "CIFAR-100 5")},
    "fedcsd-fig-1": {name: {"rounds": 1, "epochs": int(name)} for name in ("1", "10", "20", "30", "40", "50")},
    "fedcsd-fig-3": {f"tau = {tau:g}": {"method": {"mu": 0.001, "tau": tau}} for tau in (1, 4, 20)}
    | {f"mu = {mu:g}": {"method": {"mu": mu, "tau": 10.0}} for mu in (0.01, 0.1, 1)}
    | {"mu = 0.001, tau = 10": {"method": {"mu": 0.001, "tau": 10.0}}},
    "fedcsd-fig-4": {f"{alpha:g}": {"method": {"alpha": alpha}} for alpha in (0, 0.8, 0.9, 0.99)},
    "fedcsd-fig-5": {name: CSD_SKEWS[name] for name in ("CIFAR-100 0.5", "FEMNIST 0.5")},
    "fedcsd-fig-6": CSD_SKEWS | {"Office": OFFICE_CSD},
    "fedcsd-fig-7": {"FEMNIST 0.01": CSD_SKEWS["FEMNIST 0.01"]},
    "fedlmd-table-1": LDA005,
    "fedlmd-table-2": LDA005,
    "fedlmd-table-3": LMD_CIFAR10 | LMD_OTHERS,
    "fedlmd-table-4": {
        "CNN": {}, "MobileNet": {"model": "mobilenet", "bn": "batch"}, "ResNet-8": {"model": "resnet8", "bn": "batch"},
    },
    "fedlmd-table-5": {"CIFAR-10 LDA 0.5": dirichlet(0.5)},
    "fedlmd-fig-2": {"CIFAR-10 LDA 0.05": {"rounds": 100}},
    "fedlmd-fig-4": LDA005,
    "fedlmd-fig-5": LMD_CIFAR10,
    "fedlmd-fig-6": {f"CIFAR-10 LDA {alpha}": dirichlet(alpha) for alpha in (0.05, 0.3, 0.5)},
    "fedlmd-fig-7": {
        "1 epoch": {"epochs": 1}, "3 epochs": {"epochs": 3}, "5 epochs, 10 clients": {}, "10 epochs": {"epochs": 10},
        "20 clients": {"cohort": 20}, "50 clients": {"cohort": 50},
    },
    "fedlmd-fig-8": {str(switch): {"method": {"switch": switch}} for switch in range(0, 201, 25)},
    "fedlmd-fig-9": GRID,
}  # fmt: skip
ROWS: dict[tuple[str, str], Facts] = {  # rows that differ from the others of their experiment
    ("fedcad-fig-1", "global model"): {"rounds": 10},
    ("fedcad-sa-fig-2", "global model"): {"rounds": 10, "epochs": 5},
    ("fedssd-fig-4", "global model"): {"rounds": 10},
    ("fedcsd-fig-1", "global model"): {"rounds": 100, "epochs": 5},
    ("fedcsd-fig-7", "local, cross-entropy"): {"rounds": 1},
    ("fedcsd-fig-7", "local, full loss"): {"rounds": 1},
    ("fedcsd-fig-7", "local, full loss (code)"): {"rounds": 1},
    ("fedlmd-table-3", "FedAvg (text: equal weights)"): {"weights": "uniform"},
    ("fedlmd-table-3", "FedLMD (text: equal weights)"): {"weights": "uniform"},
    ("fedlmd-table-5", "FedLMD+Prox"): {"prox": 1.0},
    ("fedlmd-table-5", "FedLMD+AvgM"): {"server momentum": 0.7},
    ("fedlmd-table-5", "FedLMD+Prox+AvgM"): {"prox": 1.0, "server momentum": 0.7},
}
FEDAVG = Method()
LSD, CAD = M["fedlsd"](alpha=0.3, tau=2.0), M["fedcad"](beta=0.3, gamma=0.5, tau=2.0, estimate="aux")
CAD_SA = M["fedcad"](beta=0.25, gamma=0.5, tau=2.0, estimate="local")
FEDCSD = M["fedcsd"](mu=0.001, tau=10.0, alpha=0.9)
BASE = replace(FEDCSD, use_similarity=False, use_mask="none", use_tma=False)
CODE = M["fedcsd"](
    mu=0.5, tau=4.0, alpha=0.9, prototypes="local", prototype_images="augmented", grad_through_target=True,
    mask_on="refined", convex=True, teacher_bn="batch",
)  # fmt: skip
LMD, LMD_TF = M["fedlmd"](beta=1.0, tau=1.0), M["fedlmd-tf"](beta=1.0, tau=1.0)


def ssd_methods(mu: float, lam: float, moon: float, m_max: float) -> dict[str, Method]:
    linear = M["fedssd"](m_max=m_max, weighting="linear")
    return {
        "FedAvg": FEDAVG, "global model": FEDAVG, "plain training": FEDAVG, "FedProx": M["fedprox"](mu=mu),
        "FedCurv": M["fedcurv"](lam=lam), "MOON": M["moon"](mu=moon, tau=0.5), "FedNTD": M["fedntd"](beta=1.0, tau=1.0),
        "FedCAD": CAD, "FedSSD": linear, "FedSSD (squared)": replace(linear, weighting="squared"),
        "KL": M["grid"](divergence="kl", tau=1.0), "MSE": M["grid"](divergence="l2"), "SSD": linear,
        "SSD (squared)": replace(linear, weighting="squared"),
    }  # fmt: skip


SSD_METHODS = {
    "cifar10": ssd_methods(0.01, 1e-3, 5.0, 0.01),
    "cifar100": ssd_methods(0.001, 1e-4, 1.0, 0.001),
    "tiny-imagenet": ssd_methods(0.001, 1e-5, 1.0, 0.001),
}
METHODS: dict[str, dict[str, Method]] = {
    "fedcad": {
        "FedAvg": FEDAVG, "global model": FEDAVG, "FedProx": M["fedprox"](mu=0.01), "FedLSD": LSD, "FedCAD": CAD,
        "FedLSD (T2)": replace(LSD, kd_scale="T2"), "FedCAD (T2)": replace(CAD, kd_scale="T2"),
        "FedLSD (sum)": replace(LSD, kd_scale="sum"), "FedCAD (sum)": replace(CAD, kd_scale="sum"),
    },
    "fedcad-sa": {
        "FedAvg": FEDAVG, "global model": FEDAVG, "FedProx": M["fedprox"](mu=0.01), "FedLSD": LSD, "FedCAD": CAD_SA,
        "FedLSD (T2)": replace(LSD, kd_scale="T2"), "FedCAD (T2)": replace(CAD_SA, kd_scale="T2"),
        "FedLSD (sum)": replace(LSD, kd_scale="sum"), "FedCAD (sum)": replace(CAD_SA, kd_scale="sum"),
    },
    "fedcsd": {
        "FedAvg": FEDAVG, "FedProx": M["fedprox"](mu=0.001), "FedNova": M["fednova"](),
        "FedAvgM": M["fedavgm"](beta_s=0.9, eta_s=1.0), "MOON": M["moon"](mu=1.0, tau=0.5),
        "FedGKD": M["fedgkd"](coef=0.01, buffer=5, tau=1.0), "FedProto": M["fedproto"](lam=1.0, share_weights=True),
        "FedCSD": FEDCSD, "Base": BASE, "M1": replace(FEDCSD, use_tma=False), "M2": replace(FEDCSD, use_mask="none"),
        "M3": replace(FEDCSD, use_similarity=False), "hard mask": replace(FEDCSD, use_mask="hard"),
        "adaptive mask": FEDCSD, "global model": FEDAVG, "plain training": FEDAVG,
        "feature distillation": M["grid"](divergence="features", beta=0.01),
        "logit distillation": M["grid"](divergence="ce", beta=0.001, tau=10.0, kd_scale="T2"),
        "local, cross-entropy": FEDAVG, "local, full loss": FEDCSD, "FedCSD (code)": CODE,
        "local, full loss (code)": CODE, "adaptive mask (code)": CODE,
        "hard mask (code)": replace(CODE, use_mask="hard"),
        "Base (code)": replace(CODE, use_similarity=False, use_mask="none", use_tma=False),
        "M1 (code)": replace(CODE, use_tma=False), "M2 (code)": replace(CODE, use_mask="none"),
        "M3 (code)": replace(CODE, use_similarity=False),
        "logit distillation (code)": M["grid"](divergence="kl", beta=0.5, tau=4.0, kd_scale="T2", convex=True),
    },
    "fedlmd": {
        "FedAvg": FEDAVG, "FedCurv": M["fedcurv"](lam=1.0, fisher="per_batch", size=500),
        "FedProx": M["fedprox"](mu=1.0),
        "FedNova": M["fednova"](), "FedNova (ccvr_code)": M["fednova"](ccvr_code=True),
        "FedAvg (text: equal weights)": FEDAVG, "FedLMD (text: equal weights)": LMD,
        "SCAFFOLD": M["scaffold"](mode="grad"), "MOON": M["moon"](mu=0.1, tau=0.5),
        "FedRS": M["fedrs"](alpha=0.5), "FedNTD": M["fedntd"](beta=1.0, tau=1.0), "FedLMD": LMD, "FedLMD-Tf": LMD_TF,
        "FedAvg+KD": M["fedavg-kd"](beta=1.0, tau=1.0), "FedAvg+LS": M["fedavg-ls"](smoothing=0.1),
        "FedNTD-Tf": M["grid"](teacher="uniform", mask="not-true", divergence="kl", beta=1.0, tau=1.0),
        "FedLMD+Prox": LMD, "FedLMD+AvgM": LMD, "FedLMD+Prox+AvgM": LMD,
    },
}  # fmt: skip


ONE_SEED = (
    "fedcad-fig-1", "fedcad-sa-fig-2", "fedcad-fig-3", "fedssd-fig-2", "fedssd-fig-3", "fedssd-fig-4", "fedssd-fig-6"
)  # fmt: skip


def facts(e: Experiment) -> Facts:
    partition = list(CHOICES["partition"].dump(e.federation.partition).values())
    model, local = CHOICES["model"].dump(e.model), e.local
    return {
        "data": e.data.name, "classes": e.data.classes, "size": e.data.size, "limit": e.data.limit,
        "writers": e.data.writers,
        "partition": (partition[0], partition[1] if len(partition) > 1 else None), "model": model["name"],
        "bn": model.get("bn_stats", "running"), "clients": e.federation.clients,
        "cohort": e.federation.clients_per_round,
        "rounds": e.run.rounds, "epochs": local.epochs, "batch": local.batch, "lr": local.lr, "decay": local.lr_decay,
        "momentum": local.momentum, "weight decay": local.weight_decay, "augment": e.data.augment, "prox": local.prox,
        "aux": e.data.aux_per_class, "overlap": e.data.aux, "weights": e.server.reply_weighting,
        "server momentum": e.server.momentum, "server": e.server.optimiser, "drop last": local.drop_last,
    }  # fmt: skip


USUAL: Facts = {
    "classes": None, "size": None, "limit": None, "writers": None,
    "bn": "running", "momentum": 0.9, "weight decay": 1e-5, "prox": 0.0,
    "overlap": "overlap", "weights": "size", "server momentum": 0.0, "server": "average", "drop last": False,
}  # fmt: skip


def paper_of(name: str) -> str:
    return name.rsplit("-", 2)[0]


def test_every_table_and_every_computed_figure_is_defined() -> None:
    assert sorted(experiment_ids()) == sorted(EXPERIMENTS)
    order = experiment_ids()
    assert order[:3] == ["fedcad-table-1", "fedcad-table-2", "fedcad-table-3"]
    assert order.index("fedcsd-table-4") < order.index("fedcsd-fig-1")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_settings(name: str) -> None:
    study, paper = papers.load_study(name), paper_of(name)
    usual = USUAL | dict(zip(KEYS, SETTINGS[paper], strict=True))
    columns = EXPERIMENTS[name]
    assert set(study.columns) == set(columns)
    assert study.paper == paper
    assert study.seeds == ((0, 1, 2) if paper not in ("fedcsd", "fedlmd") and name not in ONE_SEED else (0,))
    assert study.measure == ("best" if paper in ("fedcsd", "fedlmd") else "final")
    for cell in study.cells():
        experiment, column = study.experiment(cell), columns[cell.column]
        changes = {key: value for key, value in column.items() if key in usual}
        expected = usual | changes | ROWS.get((name, cell.row), {})
        assert facts(experiment) == expected, (cell.row, cell.column)
        methods = SSD_METHODS[experiment.data.name] if paper == "fedssd" else METHODS[paper]
        method = replace(methods[cell.row], **column.get("method", {}), **column.get(cell.row, {}))
        assert experiment.method == method, (cell.row, cell.column)
        head = getattr(experiment.model, "head", False)
        assert head == (paper == "fedssd" and cell.row == "MOON")


PROBES = {  # experiment -> row -> what is measured in the last column
    "fedcad-fig-1": {"global model": {"confusion"}, "FedCAD": {"local"}},
    "fedcad-fig-4": {"FedAvg": {"local_accuracy"}},
    "fedcad-sa-fig-1": {"FedCAD": {"local_accuracy"}},
    "fedssd-fig-2": {"FedAvg": {"local_accuracy"}},
    "fedssd-fig-3": {"FedAvg": {"confusion", "local"}},
    "fedssd-fig-4": {"global model": {"confusion"}, "FedSSD": {"local_confusion"}},
    "fedssd-fig-7": {"FedSSD": {"local_accuracy"}},
    "fedcsd-fig-1": {
        "global model": {"own_data", "local", "local_accuracy"}, "plain training": {"shift", "local_accuracy"},
    },
    "fedcsd-fig-5": {"FedCSD": {"distillation"}},
    "fedcsd-fig-7": {"FedAvg": {"features"}, "local, full loss": {"features"}},
    "fedlmd-fig-2": {"FedAvg": {"cohort", "confusion"}, "FedLMD": {"cohort", "confusion"}},
}  # fmt: skip


@pytest.mark.parametrize("name", PROBES)
def test_figures_measure_what_they_show(name: str) -> None:
    study = papers.load_definition(name)
    for row, probes in PROBES[name].items():
        run_ = study.experiment(study.cell(row, list(study.columns)[-1], 0)).run
        assert {*run_.probes, *(["local_accuracy"] if run_.local_accuracy else [])} == probes


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_figures_are_of_forms_that_exist(name: str) -> None:
    study = papers.load_definition(name)
    assert bool(study.figures) == ("-fig-" in name)
    assert bool(study.printed) == ("-table-" in name)
    assert len(study.about) > 40
    for figure in study.figures:
        figures.validated_options(figure)
        for kind, names in (("rows", study.rows), ("columns", study.columns)):
            assert set(figure.options.get(kind, ())) <= set(names)
        if "x" in figure.options and figure.form in ("against", "shift"):
            assert len(figure.options["x"]) == len(figure.options.get("columns", study.columns))
