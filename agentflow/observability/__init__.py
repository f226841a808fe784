"""What an operator sees of runs, and what holds their load: traces, metrics, logs, rate limits, breakers.

Everything here learns from the event bus, and nothing below it knows it: gates and hooks are Protocols of the chain.
"""
