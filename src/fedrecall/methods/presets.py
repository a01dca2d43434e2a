"""The papers' settings of the methods, as data: `method = { name = "fedcad", preset = "fedcad-sa" }`.

A preset has the fields that a paper (or its code) states; a key set besides it takes precedence. If a paper gives only
a grid, the field is omitted. Settings outside the method (clients, rounds, learning rate) belong to an experiment.
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
    "fedcsd-code": {  # settings of the released script
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
    "feddecorr": {  # its code, with FedLC among the baselines
        "feddecorr": {"beta": 0.1},
        "fedlc": {"tau": 0.1},
    },
    "fedacg": {  # its code, with local.clip = 10
        "fedacg": {"lam": 0.85, "beta": 1e-3, "weights": "uniform"},
        "fedlc": {"tau": 1.0},
    },
    "ccvr": {  # CIFAR-10
        "ccvr": {"samples": 100},
    },
    "fedrep": {
        "fedrep": {"body_epochs": 1},
    },
    "fedbabu": {
        "fedbabu": {"finetune_epochs": 5},
    },
    "feddf": {
        "feddf": {"batch": 128, "lr": 1e-3, "steps": 10_000},
    },
    "mofedsam": {
        "fedsam": {"rho": 0.1, "beta": 0.1},
    },
    "fedasam": {
        "fedsam": {"rho": 0.5, "adaptive": True, "eta": 0.2},
    },
    "fedexp-cifar": {  # with local.lr_decay = 0.998
        "fedexp": {"eps": 0.001, "eps_decay": 0.996004},
    },
    "fedexp-emnist": {
        "fedexp": {"eps": 0.1, "eps_decay": 0.996004},
    },
    "fedlmd": {  # defaults of its code; the paper only mentions a grid search
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
