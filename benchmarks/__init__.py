"""Benchmarks behind every claim of speed: `make bench`. Compared programs run alternately in one session."""
