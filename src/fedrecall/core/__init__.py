"""The heart: what a method, a client's round and a federation's round are."""
