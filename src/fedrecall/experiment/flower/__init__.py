"""From a configuration to a federation on Flower: the apps on both sides, what writes them, and a trial on one machine.

The modules `server` and `client` are what a Flower app's components name; they need Flower, the others do not.
"""
