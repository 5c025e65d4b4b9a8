"""Workflows: wiring only, each reads like the algorithm box."""
