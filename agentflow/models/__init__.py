"""Model clients: one interface, one module per kind of provider, one registry that resolves model strings."""
