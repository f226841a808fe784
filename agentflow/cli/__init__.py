"""The command line: `agentflow`, one module per job.

`commands` reads flags, `chat` runs the messages of a session, `screen` shows events. Nothing here decides what a
run does.
"""

from agentflow.cli.commands import main

__all__ = ["main"]
