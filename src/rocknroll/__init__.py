"""rocknroll: a sandbox fleet (`rock`) and an asynchronous RL trainer for agents (`roll`)."""

__version__ = "0.1.0"
