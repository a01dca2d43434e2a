"""Many runs: comparisons, the papers' experiments, tuning."""
