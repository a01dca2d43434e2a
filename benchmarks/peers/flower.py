"""Flower's simulation: Ray actors with one CPU each run the clients, one client per actor at a time."""

import os
import sys
import tempfile

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
STORE = 100 * 2**20  # bytes of Ray's object store: messages are a quarter of a megabyte, its default is 30 % of the RAM


def main(path: str) -> None:
    """Run all rounds."""
    with tempfile.TemporaryDirectory(prefix="flwr") as home:
        os.environ.update(QUIET, FLWR_HOME=home)  # before the import, which reads them
        from flwr.simulation import run_simulation

        from benchmarks.peers.flower_app import client_app, server_app
        from benchmarks.peers.job import Job

        job = Job.read(path)
        run_simulation(
            server_app=server_app(path),
            client_app=client_app,
            num_supernodes=job.clients,
            backend_config={
                "init_args": {"num_cpus": job.workers, "object_store_memory": STORE, "_temp_dir": home},
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            },
        )


if __name__ == "__main__":
    main(sys.argv[1])
