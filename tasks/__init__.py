"""Typed Flyte tasks: thin shells that validate, call the library once, and validate again."""

from tasks.logs import configure_logging
from tasks.numbers import accept_whole_numbers

accept_whole_numbers()
configure_logging()
