"""Verifiers: a completion and the known answer in, a verdict out."""
