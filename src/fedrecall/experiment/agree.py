"""Settings that are each valid and do not go together."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedrecall.core.robust import Krum
from fedrecall.engines.attack import attackers

if TYPE_CHECKING:
    from fedrecall.experiment.config import Experiment


def disagreement(experiment: "Experiment") -> str | None:
    """The first of them, as one line; None if all is well."""
    return next(_disagreements(experiment), None)


def _disagreements(experiment: "Experiment") -> Iterator[str]:
    least, asked, rule = experiment.engine.min_replies, experiment.federation.cohort, experiment.server.robust
    if least is not None and least > asked:
        yield f"engine.min_replies = {least} is more than the {asked} clients of a round"
    if experiment.ray.address is not None and (name := experiment.engine.name) != "ray":
        yield f'ray.address has no meaning for engine.name = "{name}": set that to "ray", or leave it out'
    if isinstance(rule, Krum) and rule.least > asked:
        yield f"server.robust: {rule} needs {rule.least} clients a round, not {asked}"
    attack, clients = experiment.federation.attack, experiment.federation.clients
    if attack is not None and not attackers(attack, clients):
        yield f"federation.attack.share = {attack.share} of {clients} clients is nobody: raise it, or leave it out"
    if experiment.server.privacy is not None:
        yield from _not_private(experiment)


def _not_private(experiment: "Experiment") -> Iterator[str]:
    federation, server = experiment.federation, experiment.server
    if server.weights != "uniform":
        yield 'server.privacy bounds what one client can do: set server.weights = "uniform"'
    if server.robust or federation.dropout or federation.straggler:
        yield "server.privacy accounts for neither server.robust nor federation.dropout nor straggler: leave them out"
    if experiment.method.needs_aux and experiment.data.aux == "overlap":
        yield 'server.privacy does not cover auxiliary data that clients hold too: set data.aux = "holdout"'
    if experiment.method.personal:
        yield "server.privacy is for the global model, and this method has none"
    if server.privacy is not None and server.privacy.delta >= 1 / federation.clients:
        yield f"server.privacy.delta = {server.privacy.delta} must be well below 1 / {federation.clients} clients"
