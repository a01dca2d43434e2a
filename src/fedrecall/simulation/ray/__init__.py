"""Simulation on a cluster: Ray actors run clients, one actor per core or GPU. It gives the bits of `serial`."""

from fedrecall.simulation.ray.engine import RayEngine

__all__ = ["RayEngine"]
