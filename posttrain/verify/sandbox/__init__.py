"""Runs untrusted Python, one process for each execution.

`pool` is the side that gives work and reads what comes back. `server` is a clean process, started by exec, that forks one
child for each execution; `isolation` and `seccomp` take the child's rights away. `server` and everything it imports
use the standard library alone, and neither ever sees an expected result.
"""
