"""What the server of `forking` imports before it is forked. Imports only what starts no threads."""

import signal

# Or Ctrl-C, which reaches the whole process group, would interrupt the imports with a traceback.
signal.signal(signal.SIGINT, signal.SIG_IGN)

import rocknroll.trainer.rollout.assembly  # noqa: E402, F401
