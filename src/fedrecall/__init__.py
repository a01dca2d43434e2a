"""Federated learning that does not forget.

>>> import fedrecall as fr
>>> result = fr.run(fr.Experiment(method={"name": "fedprox", "mu": 0.1}, run={"rounds": 2}))
>>> sorted(result.summary)[:2]
['best', 'best_round']
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedrecall.core.method import Method as Method
    from fedrecall.data.datasets import Dataset as Dataset
    from fedrecall.data.own import from_arrays as from_arrays
    from fedrecall.data.own import from_folder as from_folder
    from fedrecall.data.own import from_huggingface as from_huggingface
    from fedrecall.data.own import from_torch as from_torch
    from fedrecall.data.table import from_table as from_table
    from fedrecall.errors import UserError as UserError
    from fedrecall.experiment.comparison import Comparison as Comparison
    from fedrecall.experiment.comparison import compare as compare
    from fedrecall.experiment.comparison import load as load
    from fedrecall.experiment.comparison import reproduce as reproduce
    from fedrecall.experiment.config import Experiment as Experiment
    from fedrecall.experiment.result import Result as Result
    from fedrecall.experiment.run import run as run
    from fedrecall.experiment.tune import tune as tune
    from fedrecall.methods import METHODS as METHODS

__version__ = "0.1.0.dev0"

_PUBLIC = {
    "METHODS": "fedrecall.methods",
    "Comparison": "fedrecall.experiment.comparison",
    "Dataset": "fedrecall.data.datasets",
    "Experiment": "fedrecall.experiment.config",
    "Method": "fedrecall.core.method",
    "Result": "fedrecall.experiment.result",
    "UserError": "fedrecall.errors",
    "compare": "fedrecall.experiment.comparison",
    "from_arrays": "fedrecall.data.own",
    "from_folder": "fedrecall.data.own",
    "from_huggingface": "fedrecall.data.own",
    "from_table": "fedrecall.data.table",
    "from_torch": "fedrecall.data.own",
    "load": "fedrecall.experiment.comparison",
    "reproduce": "fedrecall.experiment.comparison",
    "run": "fedrecall.experiment.run",
    "tune": "fedrecall.experiment.tune",
}
__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `fedrecall --help` must not wait for torch."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'fedrecall' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    """What Tab offers: the public names, not what the module needs itself."""
    return [*__all__, "__version__"]
