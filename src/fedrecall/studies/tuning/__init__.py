"""Tuning: search for the settings of a method that have the highest accuracy on held-out examples of the clients."""
