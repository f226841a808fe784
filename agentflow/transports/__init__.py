"""Agents over HTTP: `create_app` and `setup`, and `sse.respond` for handlers of one's own.

Handlers forward what runs say and what people decide; none of them decides what a run does.
"""

from agentflow.transports.app import create_app, setup

__all__ = ["create_app", "setup"]
