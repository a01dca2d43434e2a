"""The same federated rounds in fedrecall and in other frameworks (peers), each in a separate environment.

`python -m benchmarks.peers` creates the environments (in build/peers, or in the folder FEDRECALL_BENCH_ENVS), runs the
peers alternately, prints a table and writes JSON. With `--check` it first shows that all peers do the same arithmetic.

All peers of a task have the same pictures, initial weights, sizes of clients, cohorts and batches, local epochs, SGD,
and mean of the client models weighted by size. Each peer has optimisations beyond its documentation: pictures that are
normalised once and stay as tensors in its worker processes, one torch thread per process, and logging, telemetry and
evaluation switched off where possible. It does not have an optimisation that neither its documentation nor its
baselines have: a teacher that is evaluated once per round. For FedNTD the peers evaluate the teacher on every batch, as
FedNTD's public code and Flower's FedNTD baseline do.

Only `ours` imports fedrecall. The environment of a peer contains only the packages of this peer.
"""
