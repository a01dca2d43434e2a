"""Federated learning that does not forget.

>>> import fedrecall as fr
>>> result = fr.run(fr.Experiment(method={"name": "fedprox", "mu": 0.1}, run={"rounds": 2}))
>>> sorted(result.summary)[:2]
['best', 'best_round']
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedrecall._version import __version__ as __version__

if TYPE_CHECKING:
    from fedrecall.api import compare as compare
    from fedrecall.api import load as load
    from fedrecall.api import report as report
    from fedrecall.api import reproduce as reproduce
    from fedrecall.api import run as run
    from fedrecall.api import tune as tune
    from fedrecall.config.experiment import Experiment as Experiment
    from fedrecall.core import losses as losses
    from fedrecall.core.method import Method as Method
    from fedrecall.core.method_extensions import Traits as Traits
    from fedrecall.core.types import Cohort as Cohort
    from fedrecall.core.types import Local as Local
    from fedrecall.core.types import Payload as Payload
    from fedrecall.core.types import Reply as Reply
    from fedrecall.core.types import Server as Server
    from fedrecall.core.types import Step as Step
    from fedrecall.data.custom import from_arrays as from_arrays
    from fedrecall.data.custom import from_clients as from_clients
    from fedrecall.data.custom import from_folder as from_folder
    from fedrecall.data.custom import from_huggingface as from_huggingface
    from fedrecall.data.custom import from_text as from_text
    from fedrecall.data.custom import from_torch as from_torch
    from fedrecall.data.dataset import Dataset as Dataset
    from fedrecall.data.tabular import from_table as from_table
    from fedrecall.data.tokens import from_tokens as from_tokens
    from fedrecall.errors import UserError as UserError
    from fedrecall.methods import METHODS as METHODS
    from fedrecall.reporting.comparison import Comparison as Comparison
    from fedrecall.runs.result import Result as Result

_PUBLIC = {
    "METHODS": "fedrecall.methods",
    "Cohort": "fedrecall.core.types",
    "Comparison": "fedrecall.reporting.comparison",
    "Dataset": "fedrecall.data.dataset",
    "Experiment": "fedrecall.config.experiment",
    "Local": "fedrecall.core.types",
    "Method": "fedrecall.core.method",
    "Payload": "fedrecall.core.types",
    "Reply": "fedrecall.core.types",
    "Result": "fedrecall.runs.result",
    "Server": "fedrecall.core.types",
    "Step": "fedrecall.core.types",
    "Traits": "fedrecall.core.method_extensions",
    "UserError": "fedrecall.errors",
    "compare": "fedrecall.api",
    "from_arrays": "fedrecall.data.custom",
    "from_clients": "fedrecall.data.custom",
    "from_folder": "fedrecall.data.custom",
    "from_huggingface": "fedrecall.data.custom",
    "from_table": "fedrecall.data.tabular",
    "from_text": "fedrecall.data.custom",
    "from_tokens": "fedrecall.data.tokens",
    "from_torch": "fedrecall.data.custom",
    "load": "fedrecall.api",
    "losses": "fedrecall.core.losses",
    "report": "fedrecall.api",
    "reproduce": "fedrecall.api",
    "run": "fedrecall.api",
    "tune": "fedrecall.api",
}

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `fedrecall --help` must not wait for torch."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'fedrecall' has no attribute {name!r}")
    module = import_module(_PUBLIC[name])
    return module if name == "losses" else getattr(module, name)


def __dir__() -> list[str]:
    """Return the public names, without the names that this module needs itself."""
    return [*__all__, "__version__"]
