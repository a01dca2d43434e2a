"""Checks and notices of a run: mistakes in a user's method, methods that cannot act on the data or had no effect."""

import logging

import torch

from fedrecall.core.dry_run import DryRun
from fedrecall.core.method import Method
from fedrecall.core.rounds import RoundSchedule, run_rounds
from fedrecall.errors import UserError, warn_once
from fedrecall.methods import METHODS
from fedrecall.runs.records import has_no_effect
from fedrecall.runs.result import Result, run_title
from fedrecall.runs.setup import Setup

MAX_COUNTS = 10_000_000  # clients x classes: a larger matrix is not made for a notice

log = logging.getLogger(__name__)


def check_own_method(setup: Setup) -> None:
    """Reject a user's method that writes to the payload, which is read-only memory in the workers of the pool.

    Other errors of its dry run, on two examples, are left to the run itself.
    """
    method, server = setup.clients.method, setup.server
    if type(method) in METHODS.values():
        return
    schedule = RoundSchedule(rounds=1, population=1, sample=1, seed=0)
    try:
        next(run_rounds(method, server, DryRun(setup.clients, server.f), schedule))
    except UserError as error:
        if error.code == "method.writes_to_payload":
            raise
    except Exception as error:
        log.debug("the dry run of %s failed: %s", type(method).__name__, error)


def warn_of_untrained_parts(setup: Setup) -> None:
    """Warn if the local epochs are too few for a method that trains the parts of the model in turn."""
    epochs, smallest = setup.clients.training.epochs, setup.clients.method.traits.min_epochs
    if epochs < smallest:
        what = f"local.epochs = {epochs}: {setup.clients.method} never trains a part of the model"
        warn_once(log, f"{what}: set at least {smallest}")


def inactive_reason(setup: Setup) -> str | None:
    """Return why the method is FedAvg on this data, with a warning; None if it acts."""
    method, data = setup.clients.method, setup.data
    partition, classes = data.partition, data.dataset.num_classes
    counts = None
    is_known = len(partition.indices) and partition.samples == len(data.client_examples)  # not on other machines
    if is_known and len(partition) * classes <= MAX_COUNTS:
        counts = torch.from_numpy(partition.counts(data.client_examples.example_labels.numpy(), classes))
    reason = method.inactive_reason(classes, counts)
    if reason is not None:
        warn_once(log, f"method = {type(method).__name__}: {reason}: on this data it is FedAvg, at a higher cost")
    return reason


def skipped_last_step(setup: Setup, rounds: int) -> str | None:
    """Return why a run that was stopped after some rounds lacks the step of its method that follows the last one."""
    method, last = setup.clients.method, setup.schedule.rounds
    if rounds == last or type(method).finish is Method.finish:
        return None
    reason = f"its last step follows round {last}, and the run was stopped after round {rounds}"
    warn_once(log, f"method = {type(method).__name__}: {reason}: the model is that of FedAvg")
    return reason


def warn_of_no_effect(result: Result) -> None:
    """Warn at the end of a run whose distillation was practically nothing in every round (probe `pull`)."""
    if has_no_effect(result.rounds):
        log.warning(
            "%s has practically no effect at these settings: its distillation is below 1 %% of the gradient at the "
            "logits in every round: use a larger weight, or another method",
            run_title(result.experiment),
        )
