"""Each paper's settings of each method, as data: `method = { name = "fedcad", preset = "fedcad-sa" }`.

A preset gives the fields that a paper (or the code it was run with) states; a key set beside it wins. Where a paper
gives only a grid, the field is left out: there is nothing to state. Settings that are not the method's own (clients,
rounds, learning rate) belong to an experiment.
"""

from typing import Any

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "fedcad-w": {  # full version; FedLSD's weight and FedCAD's beta, gamma were searched in grids
        "fedlsd": {"tau": 2.0},
        "fedcad": {"estimate": "aux", "tau": 2.0},
    },
    "fedcad-sa": {  # two-page version
        "fedcad": {"estimate": "local", "beta": 0.25, "gamma": 0.5, "tau": 2.0},
    },
    "fedssd-cifar10": {
        "fedprox": {"mu": 0.01},
        "fedcurv": {"lam": 1e-3},
        "moon": {"mu": 5.0, "tau": 0.5},
        "fedntd": {"beta": 1.0, "tau": 1.0},
        "fedssd": {"m_max": 0.01},
    },
    "fedssd-cifar100": {
        "fedprox": {"mu": 0.001},
        "fedcurv": {"lam": 1e-4},
        "moon": {"mu": 1.0, "tau": 0.5},
        "fedntd": {"beta": 1.0, "tau": 1.0},
        "fedssd": {"m_max": 0.001},
    },
    "fedssd-tiny-imagenet": {
        "fedprox": {"mu": 0.001},
        "fedcurv": {"lam": 1e-5},
        "moon": {"mu": 1.0, "tau": 0.5},
        "fedntd": {"beta": 1.0, "tau": 1.0},
        "fedssd": {"m_max": 0.001},
    },
    "fedcsd": {  # CIFAR-100 and FEMNIST
        "fedprox": {"mu": 0.001},
        "fednova": {},
        "fedavgm": {"beta_s": 0.9},
        "moon": {"mu": 1.0, "tau": 0.5},
        "fedgkd": {"coef": 0.01, "buffer": 5, "tau": 1.0},
        "fedproto": {"lam": 1.0},
        "fedcsd": {"mu": 0.001, "tau": 10.0, "alpha": 0.9},
    },
    "fedcsd-office": {
        "fedcsd": {"mu": 0.5, "tau": 4.0, "alpha": 0.9},
    },
    "fedcsd-code": {  # what the released script does
        "fedcsd": {
            "mu": 0.5,
            "tau": 4.0,
            "prototypes": "local",
            "prototype_images": "augmented",
            "grad_through_target": True,
            "mask_on": "refined",
            "convex": True,
            "teacher_bn": "batch",
        },
    },
    "fedlmd": {  # the defaults of its code; the paper only speaks of a grid search
        "fedprox": {"mu": 1.0},
        "fedavgm": {"beta_s": 0.7},
        "fedcurv": {"lam": 1.0, "fisher": "per_batch", "size": 500},
        "fednova": {},
        "scaffold": {"mode": "grad"},
        "moon": {"mu": 0.1, "tau": 0.5},
        "fedrs": {"alpha": 0.5},
        "fedntd": {"beta": 1.0, "tau": 1.0},
        "fedavg-kd": {"beta": 1.0, "tau": 1.0},
        "fedavg-ls": {"smoothing": 0.1},
        "fedlmd": {"beta": 1.0, "tau": 1.0},
        "fedlmd-tf": {"beta": 1.0, "tau": 1.0},
    },
}
