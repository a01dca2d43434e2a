"""The experiment of the table of docs/robustness.md: attacks by rules, on digits."""

import fedrecall as fr

ATTACKS = {
    "nobody": None,
    "sign flip": {"name": "sign-flip", "share": 0.2, "scale": 4.0},
    "scaling": {"name": "scaling", "share": 0.2, "scale": 50.0},
    "label flip": {"name": "label-flip", "share": 0.2},
    "label flip, 40 %": {"name": "label-flip", "share": 0.4},
}
PARTITIONS = {"IID": {"name": "iid"}, "Dirichlet 0.3": {"name": "dirichlet", "alpha": 0.3}}
RULES = ("none", "median", "trimmed mean", "clip", "krum", "multi-krum")


def rule(name: str, share: float) -> dict[str, object] | None:
    """Return a rule for this share of malicious clients among 20."""
    number = round(20 * share)
    return {
        "none": None,
        "median": {"name": "median"},
        "trimmed mean": {"name": "trimmed-mean", "share": share},
        "clip": {"name": "clip"},
        "krum": {"name": "krum", "attackers": number},
        "multi-krum": {"name": "krum", "attackers": number, "keep": 10},
    }[name]


def accuracy(robust: str, attack: str, partition: str, *, method: str = "fedavg", seed: int = 0) -> float:
    """Return the final test accuracy of 15 rounds with all 20 clients."""
    settings = ATTACKS[attack]
    chosen = rule(robust, 0.2 if settings is None else float(str(settings["share"])))
    federation = {"clients": 20, "partition": PARTITIONS[partition]} | (
        {} if settings is None else {"attack": settings}
    )
    return float(
        fr.run(
            {
                "federation": federation,
                "server": {"weights": "uniform"} | ({} if chosen is None else {"robust": chosen}),
                "local": {"epochs": 2, "batch": 10, "lr": 0.05},
                "method": {"name": method},
                "engine": {"name": "serial"},
                "run": {"rounds": 15, "evaluate_every": 15, "seed": seed},
            }
        ).summary["final"]
    )
