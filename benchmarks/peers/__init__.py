"""The same federated rounds by fedrecall and by its peers, each in an environment of its own.

`python -m benchmarks.peers` makes the environments (under build/peers, or where FEDRECALL_BENCH_ENVS says), runs the
peers in turns, prints a table and writes JSON; with `--check` it shows first that all of them do the same arithmetic.

What is the same for all: pictures, initial weights, clients, batches of 50, five local epochs, SGD with momentum, the
mean of the clients' models weighted by their sizes. What each peer is given beyond its own documentation: pictures that
are normalised once and kept as tensors in its worker processes, one torch thread per process, all logging, telemetry
and evaluation that can be switched off switched off. What it is not given is what no documentation or baseline of it
does: a teacher that is heard once a round. In FedNTD they ask the teacher at every batch, as FedNTD's public code and
Flower's own FedNTD baseline do.

Nothing here but `ours` imports fedrecall; a peer's environment has its own packages only.
"""
