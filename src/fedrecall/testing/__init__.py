"""Tests that every method of the library passes, for methods of users too."""

from fedrecall.testing.contract import check_method, method_checks

__all__ = ["check_method", "method_checks"]
