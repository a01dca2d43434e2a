"""Data sets, their readers, transforms and splits, and their partition over clients."""
