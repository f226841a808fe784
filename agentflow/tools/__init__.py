"""Tools: ordinary functions that a model may call, their schemas, and how they are run."""
