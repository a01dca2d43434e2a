"""One run: from a configuration to a run directory and a result."""
