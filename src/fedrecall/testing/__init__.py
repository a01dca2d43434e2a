"""For whoever writes a method: the tests that every method of the library has to pass, ready to be run on yours."""

from fedrecall.testing.contract import check_method, method_checks

__all__ = ["check_method", "method_checks"]
