"""Validation across sections, and validation errors of pydantic as `UserError`."""

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from math import isfinite
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from fedrecall.config.schema import key_infos
from fedrecall.core.preaggregation import Bucketing, NearestNeighbourMixing
from fedrecall.core.privacy import GaussianMechanism
from fedrecall.core.robust import AGGREGATION_RULES, Krum
from fedrecall.core.schedules import Cosine
from fedrecall.errors import UserError, unknown_name
from fedrecall.simulation.attacks import Attack, num_malicious

if TYPE_CHECKING:
    from fedrecall.config.experiment import Experiment


def find_conflict(experiment: "Experiment") -> UserError | None:
    """Return the error for the first pair of settings that contradict each other, or None.

    The number of clients counts if it is known: without federation.clients, the user's own data may name the clients.
    """
    return next(_conflicts(experiment), None)


def check_number_of_clients(experiment: "Experiment") -> None:
    """Raise an error if a setting contradicts the number of clients, which is that of the data now."""
    for conflict in _conflicts_of_clients(experiment):
        raise conflict


def _conflicts(experiment: "Experiment") -> Iterator[UserError]:
    federation, server = experiment.federation, experiment.server
    if not experiment.data.may_name_clients or "clients" in federation.model_fields_set:
        yield from _conflicts_of_clients(experiment)
    elif federation.sample is not None:
        yield from _conflicts_of_round(experiment)
    if experiment.ray.address is not None and (name := experiment.engine.name) != "ray":
        wrong = f'no effect with engine.name = "{name}"'
        yield _conflict("ray.address", experiment.ray.address, wrong, 'set engine.name = "ray", or remove ray.address')
    if server.preaggregation is not None and server.robust is None:
        hint = "set server.robust, or remove server.preaggregation"
        yield _conflict("server.preaggregation", server.preaggregation, "no effect without server.robust", hint)
    yield from _training_conflicts(experiment)
    if isinstance(server.privacy, GaussianMechanism):  # not the record of an object
        yield from _privacy_conflicts(experiment, server.privacy)


def _conflicts_of_clients(experiment: "Experiment") -> Iterator[UserError]:
    federation, privacy = experiment.federation, experiment.server.privacy
    attack, clients = federation.attack, federation.clients
    federation.check_number_of_clients()
    yield from _conflicts_of_round(experiment)
    if isinstance(attack, Attack) and not num_malicious(attack, clients):  # not the record of an object
        wrong = f"selects none of the {clients} clients"
        yield _conflict("federation.attack.share", attack.share, wrong, "increase it, or remove federation.attack")
    if isinstance(privacy, GaussianMechanism) and privacy.delta >= 1 / clients:
        wrong, hint = f"must be well below 1 / {clients} clients", f"set a value below {1 / clients:.2g}"
        yield _conflict("server.privacy.delta", privacy.delta, wrong, hint)


def _conflicts_of_round(experiment: "Experiment") -> Iterator[UserError]:
    min_replies, rule = experiment.engine.min_replies, experiment.server.robust
    per_round = experiment.federation.clients_per_round
    if min_replies is not None and min_replies > per_round:
        wrong = f"more than the {per_round} clients of a round"
        yield _conflict("engine.min_replies", min_replies, wrong, f"set at most {per_round}")
    # Replies that a round may be left with: a malicious client can have its own rejected.
    mixing, fewest = experiment.server.preaggregation, min_replies or per_round
    unit, more = "clients per round", "set a larger federation.sample, or fewer attackers"
    if min_replies is not None:
        unit, more = "valid replies (engine.min_replies)", "set a larger engine.min_replies, or fewer attackers"
    if isinstance(mixing, NearestNeighbourMixing) and 2 * mixing.attackers >= fewest:
        wrong = f"needs {2 * mixing.attackers + 1} {unit}, not {fewest}"
        yield _conflict("server.preaggregation", mixing, wrong, more)
    if isinstance(mixing, Bucketing):
        fewest, unit = -(-fewest // mixing.size), "buckets of replies"
    if isinstance(rule, Krum) and rule.min_replies > fewest:
        wrong = f"needs {rule.min_replies} {unit}, not {fewest}"
        yield _conflict("server.robust", rule, wrong, more)


def _training_conflicts(experiment: "Experiment") -> Iterator[UserError]:
    local, method, schedule = experiment.local, experiment.known_method, experiment.local.schedule
    if method is not None and method.traits.needs_sgd and local.optimiser != "sgd":
        wrong = f"{method} needs updates that are linear combinations of gradients"
        hint = 'set local.optimiser = "sgd", or another method'
        yield _conflict("local.optimiser", local.optimiser, wrong, hint)
    private, traits = experiment.federation.private, None if method is None else method.traits
    if private is not None and traits is not None and (traits.needs_auxiliary_data or traits.needs_global_model):
        wrong = f"the server has only the shared part of the model, and {method} needs the complete one there"
        yield _conflict("federation.private", private, wrong, "remove federation.private, or set another method")
    rule, excludes = experiment.server.robust, () if traits is None else traits.excludes
    if private is not None and "federation.private" in excludes:
        hint = "remove federation.private, or set another method"
        yield _conflict("federation.private", private, f"{method} trains two complete models", hint)
    if rule is not None and {"server.robust", f"server.robust.{_rule_name(rule)}"} & {*excludes}:
        wrong = f"{method} computes with all numbers of a reply together, of which the rule changes some"
        yield _conflict("server.robust", rule, wrong, "remove server.robust, or set another method")
    rounds = experiment.run.rounds
    if isinstance(schedule, Cosine) and not schedule.final and (schedule.rounds or rounds) < rounds:
        wrong = f"less than run.rounds = {rounds}: the learning rate of later rounds would be 0"
        yield _conflict("local.schedule.rounds", schedule.rounds, wrong, "remove it, or set local.schedule.final")


def _rule_name(rule: object) -> str | None:
    """Return the name of an aggregation rule; None for a user's own."""
    return next((name for name, cls in AGGREGATION_RULES.items() if type(rule) is cls), None)


def _privacy_conflicts(experiment: "Experiment", privacy: GaussianMechanism) -> Iterator[UserError]:
    federation, server = experiment.federation, experiment.server
    if server.reply_weighting != "uniform":
        wrong = "server.privacy bounds the influence of one client, so all replies must have the same weight"
        yield _conflict("server.weights", server.reply_weighting, wrong, 'set server.weights = "uniform"')
    for part in ("client_test", "validation"):
        if share := getattr(experiment.data, part):
            wrong = "server.privacy does not cover the scores that clients send of their held-out examples"
            yield _conflict(f"data.{part}", share, wrong, f"remove data.{part} or server.privacy")
    uncovered = {
        "server.robust": server.robust,
        "federation.private": federation.private,
        "federation.dropout": federation.dropout,
        "federation.straggler": federation.straggler,
    }
    for key, value in uncovered.items():
        if value:
            wrong = "the accounting of server.privacy does not cover it"
            yield _conflict(key, value, wrong, f"remove {key} or server.privacy")
    method = experiment.known_method
    if method is not None and method.traits.needs_auxiliary_data and experiment.data.aux == "overlap":
        wrong = "server.privacy does not cover auxiliary examples that clients hold too"
        yield _conflict("data.aux", experiment.data.aux, wrong, 'set data.aux = "holdout"')
    if method is not None and method.traits.personalised:
        wrong = "server.privacy protects the global model, and this method has none"
        yield _conflict("method", type(method).__name__, wrong, "remove server.privacy")
    if privacy.source == "seed" and experiment.engine.name == "flower":
        wrong = "the noise of a real federation must not be predictable from run.seed"
        yield _conflict("server.privacy.source", "seed", wrong, 'set server.privacy.source = "system"')


def _conflict(key: str, value: object, wrong: str, hint: str) -> UserError:
    return UserError("config.conflict", f"{key} = {value}: {wrong}", key, hint)


def to_user_error(error: ValidationError, model: type[BaseModel], top: str = "section") -> UserError:
    """Return the first validation error with its key. `top` is the noun for the model's own fields."""
    # A misspelt key is often a missing key too, and its error has the nearest valid name.
    first = min(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
    path = [str(part) for part in first["loc"]]
    if first["type"] == "missing":
        return UserError("config.missing_key", f"{'.'.join(path)}: the key is missing", ".".join(path), "set it")
    if first["type"] == "extra_forbidden":
        return _unknown_key(path, model, top)
    return type_error(path, first)


def nearest_key(key: str, known: Iterable[str] = ()) -> str | None:
    """Return the valid key that an unknown dotted key most likely means; None if none is near.

    A misspelt key of the same table is returned as its last part, one of `known`. A key that exists in another table
    is returned in full.

    >>> nearest_key("federation.alpha"), nearest_key("run.rouns", ["rounds", "seed"]), nearest_key("method.nme")
    ('federation.partition.alpha', 'rounds', 'method.name')
    """
    table, _, last = key.rpartition(".")
    infos = key_infos()
    elsewhere = [other for other in infos if other.rpartition(".")[2] == last and other != key]
    if elsewhere:  # of the same section, then a key of a section before a setting of one of several choices

        def rank(other: str) -> tuple[bool, bool]:
            return other.partition(".")[0] != key.partition(".")[0], f"{other.rpartition('.')[0]}.name" in infos

        return min(elsewhere, key=rank)
    if near := get_close_matches(last, list(known), n=1, cutoff=0.5):
        return near[0]
    siblings = [other for other in infos if other.rpartition(".")[0] == table]
    near = get_close_matches(key, siblings, n=1, cutoff=0.7) or get_close_matches(key, infos, n=1, cutoff=0.7)
    return near[0] if near else None


def unknown_key(key: str, what: str, known: Iterable[str], code: str = "config.unknown_key") -> UserError:
    """Return the error for a key that its table does not have, with the nearest key of any table as its hint."""
    listed, near = sorted(known), nearest_key(key, known)
    hint = f'did you mean "{near}"?' if near else None
    return UserError(code, f'unknown {what} "{key.rpartition(".")[2]}" (valid: {", ".join(listed)})', key, hint)


def type_error(path: list[str], wrong: ErrorDetails) -> UserError:
    """Return the error for a value of the wrong type or out of range."""
    key, value = ".".join(path), wrong["input"]
    if wrong["type"] == "literal_error":
        key = re.sub(r"\.\d+$", "", key)  # an item of a list: the message has its value
        return unknown_name(key, value, re.findall("'([^']*)'", wrong["ctx"]["expected"]), key=key)
    if wrong["type"] == "model_type":
        hint = f"set its keys, such as {key}.KEY=VALUE"
        return UserError("config.invalid_value", f"{key} = {value!r}: not a table", key, hint)
    if isinstance(value, float) and not isfinite(value):  # else a bound may be reported, which says less
        return UserError("config.invalid_value", f"{key} = {value!r}: it must be finite", key)
    reason = wrong["msg"].removeprefix("Value error, ").replace("Input should", "it must", 1)
    reason = re.sub(r"0\.0{9,}\d+|\d{16,}", lambda number: f"{float(number[0]):g}", reason)
    return UserError("config.invalid_value", f"{key} = {value!r}: {reason[:1].lower()}{reason[1:]}", key)


def _section_model(annotation: Any) -> type[BaseModel] | None:
    """Return the model of a section that may be None, or None if the field is not a section."""
    inner = [part for part in get_args(annotation) or (annotation,) if part is not type(None)]
    return inner[0] if len(inner) == 1 and isinstance(inner[0], type) and issubclass(inner[0], BaseModel) else None


def _unknown_key(path: list[str], model: type[BaseModel], top: str) -> UserError:
    """Return the error for a key that its section does not have."""
    *sections, key = path
    code = "config.unknown_section" if not sections and top == "section" else "config.unknown_key"
    for section in sections:
        inner = _section_model(model.model_fields[section].annotation) if section in model.model_fields else None
        if inner is None:  # such as an item of a list
            message = f"{'.'.join(path)}: {'.'.join(sections)} has no key {key}"
            return UserError(code, message, ".".join(path), f"remove {key}")
        model = inner
    where = f"key in [{'.'.join(sections)}]" if sections else top
    if top != "section":  # the definition of a study
        return unknown_name(where, key, model.model_fields, code, ".".join(path))
    return unknown_key(".".join(path), where, model.model_fields, code)
