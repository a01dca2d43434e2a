"""Real federations with Flower: the engine, its messages, the two apps, and tools to deploy them.

Only `messages`, `nodes`, `engine`, `server_app` and `client_app` import Flower.
"""
