"""Real federations: the clients are Flower SuperNodes, and this engine sends them their tasks and waits.

The modules here need Flower in `wire` and `federation` only; the codec and the node's store can be used without it.
"""
