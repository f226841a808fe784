"""Stores: the event log and the sessions, one class per backend behind the protocols of `stores.base`."""
