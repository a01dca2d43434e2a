"""From a configuration to what stands between clients and method: screening, robustness, privacy, absence."""

from fedrecall.core.exchange import Guard
from fedrecall.core.privacy import Private, epsilon
from fedrecall.core.rounds import Plan, rounds
from fedrecall.core.reply_validation import Screen
from fedrecall.core.types import Engine
from fedrecall.simulation.availability import Absence
from fedrecall.core.dry_run import Rehearsal
from fedrecall.runs.setup import Setup



def guard(ready: Setup) -> Guard:
    """What every reply goes through.

    The form of replies is rehearsed, and they are looked at closely, only where they come from other machines, or a
    round may go on without some of them: else an odd reply is a mistake in the method's code, and its own error says
    more.
    """
    experiment = ready.experiment
    least, federation, server = experiment.engine.min_replies, experiment.federation, experiment.server
    strange = least is not None or experiment.engine.name == "flower"
    rehearsal = Rehearsal(ready.world, ready.server.f)
    screen = Screen(
        min_replies=least,
        max_norm=federation.max_norm,
        max_examples=federation.max_examples or int(ready.dealt.partition.sizes.max()) or None,  # 0: nobody knows
        form=rehearsal.form if strange else None,
        looks=(rehearsal.look, ready.world.method.doubt) if strange else (),
    )
    private = None if server.privacy is None else Private(server.privacy, ready.world.seed)
    return Guard(screen, server.robust if private is None else private)


def attended(engine: Engine, ready: Setup) -> Engine:
    """The engine, without the clients that do not answer."""
    federation = ready.experiment.federation
    if federation.dropout is None and federation.straggler is None:
        return engine
    return Absence(
        engine,
        sizes=ready.dealt.partition.sizes.tolist(),
        wanted=federation.cohort,
        seed=ready.plan.seed,
        dropout=federation.dropout or 0.0,
        straggler=federation.straggler,
    )


def rehearse_privacy(ready: Setup) -> None:
    """Refuse what server.privacy does not cover before anything runs: a round with the server as its only client."""
    privacy = ready.experiment.server.privacy
    if privacy is None:
        return
    epsilon(privacy, ready.plan.population, ready.plan.sample, 1)
    rule, alone = Private(privacy, ready.world.seed), Plan(rounds=1, population=1, sample=1, seed=0)
    next(rounds(ready.world.method, ready.server, Rehearsal(ready.world, ready.server.f), alone, Guard(rule=rule)))


def spent(ready: Setup, number: int) -> float | None:
    """Epsilon after so many rounds, where there is a promise to account for."""
    privacy = ready.experiment.server.privacy
    return None if privacy is None else epsilon(privacy, ready.plan.population, ready.plan.sample, number)
