"""More rounds for a finished run, with the bits of a run that had so many from the start.

The state of most methods is the global model. A server with more state keeps a last checkpoint. Client states may be
larger than everything else together and are not kept.
"""

from dataclasses import replace

from fedrecall.core.client_state_store import ClientStateStore
from fedrecall.core.flat_model import FlatModel
from fedrecall.core.method import Method
from fedrecall.core.schedules import Cosine
from fedrecall.core.types import Server
from fedrecall.errors import UserError
from fedrecall.runs.checkpoints import CHECKPOINT_FOLDER, Checkpoint
from fedrecall.runs.directory import RunDirectory
from fedrecall.runs.setup import MODEL_FILE, Setup, load_weights


def save_final_state(
    server: Server, client_state: ClientStateStore, directory: RunDirectory, initial_accuracy: float | None
) -> None:
    """Keep the state after the last round, where the global model is not all of it and no client has any."""
    if len(client_state):
        directory.record_state_file(None)
        return
    is_model = not server.optimiser_state and not server.extra
    if not is_model:
        directory.checkpoints.save(server, client_state, directory.log_files, {"initial": initial_accuracy})
    directory.record_state_file(MODEL_FILE if is_model else CHECKPOINT_FOLDER)


def extension_error(setup: Setup, directory: RunDirectory) -> str | None:
    """Return the reason why a finished run cannot have more rounds, or None."""
    run, schedule = setup.experiment.run, setup.experiment.local.schedule
    if "failed" in directory.summary:
        return f"it failed, and would fail again ({directory.summary['failed']})"
    if type(setup.clients.method).finish is not Method.finish:
        return "the last step of the method followed its last round"
    for key in ("evaluate_every", "probe_every"):
        if directory.summary["rounds"] % getattr(run, key):
            return f"run.{key} = {getattr(run, key)}: its last round was evaluated only because it was the last"
    if isinstance(schedule, Cosine) and schedule.rounds is None:
        return "local.schedule depends on the number of rounds"
    if "features" in run.probes:
        return 'run.probes: "features" depends on the number of rounds'
    name = directory.state_file()
    if name is None or not (directory.path / name).exists():
        return "the method stores state on clients, which a finished run does not keep"
    return None


def final_state(setup: Setup, directory: RunDirectory) -> Checkpoint:
    """Return the state of a finished run; it is a checkpoint from now on."""
    if directory.state_file() == CHECKPOINT_FOLDER:
        checkpoint = directory.checkpoints.latest()
        if checkpoint is None:
            message = f"cannot add rounds to {directory.path}: its last checkpoint is damaged"
            raise UserError("run.cannot_extend", message, str(directory.path), "start a new run with another --out")
        return checkpoint
    fresh, summary = setup.server, directory.summary
    module = fresh.f.to_module(fresh.w, fresh.b, fresh.int_buffers)
    load_weights(module, directory.path)
    f, extra = FlatModel(module), {"initial": summary["initial"]}
    server = replace(fresh, w=f.w, b=f.b, int_buffers=f.int_buffers, t=summary["rounds"])
    directory.checkpoints.save(server, ClientStateStore(), directory.log_files, extra)
    tensors = {"server.w": f.w, "server.b": f.b, "server.counters": f.int_buffers}
    return Checkpoint(tensors, {}, {"round": server.t} | extra)
