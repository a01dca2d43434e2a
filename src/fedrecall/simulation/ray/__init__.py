"""Simulations on a cluster: clients as tasks on Ray actors, one for each core or GPU. The bits of `serial`."""

from fedrecall.simulation.ray.engine import RayEngine

__all__ = ["RayEngine"]
