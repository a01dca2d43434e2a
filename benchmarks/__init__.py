"""Every claim of speed is a number from here: `make bench`. Ratios measured side by side in one run, interleaved."""
