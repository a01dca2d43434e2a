"""Tuning: the settings of a method that do best on examples held out from the clients."""

from fedrecall.studies.tuning.search import TuningResult, Watch, tune

__all__ = ["TuningResult", "Watch", "tune"]
