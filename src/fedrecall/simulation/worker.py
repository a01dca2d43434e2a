"""A worker process: it waits for orders, carries out one at a time, and never outlives its engine."""

import gc
import multiprocessing
import os
import signal
import sys
import threading
from itertools import cycle
from multiprocessing.connection import Connection

import torch

from fedrecall.core.flat_model import FlatModel
from fedrecall.simulation.clients import SimulatedClients
from fedrecall.simulation.jobs import run_job
from fedrecall.simulation.shared_memory import Channel, SharedBuffer


def worker_main(connection: Connection, world: SimulatedClients, f: FlatModel, number: int) -> None:
    """The life of a worker. How `world` and `f` get here is the crew's affair."""
    _init_process()
    f = f.to(worker_device(number))
    channel = Channel(connection)
    channel.send({"ready": True})
    # Two places for answers: the engine can send the next order before it has taken the last answer.
    for shelf in cycle([SharedBuffer("even"), SharedBuffer("odd")]):
        try:
            said, payloads = run_job(world, f, *channel.receive())
            channel.send(said, shelf.write(payloads))
        except (EOFError, ConnectionError):  # the engine is gone
            return


def worker_device(number: int) -> torch.device:
    """Where a worker computes: the CUDA devices in turn where there are any, else the processor."""
    count = torch.cuda.device_count()
    return torch.device("cuda", number % count) if count else torch.device("cpu")


def _init_process() -> None:
    """Make a process, perhaps a fork of one with threads, a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the engine, which then ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    # One thread each. It is also what makes a fork safe after the parent has used OpenMP, whose threads it lacks;
    # torch's own DataLoader does the same.
    torch.set_num_threads(1)
    gc.freeze()  # a collection would otherwise write to, and so copy, every page shared with the parent
    if sys.stdout is sys.__stdout__:  # another thread of the parent may have held the lock of its buffer
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 (a file descriptor, kept open)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
