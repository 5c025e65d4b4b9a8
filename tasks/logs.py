"""What a task writes to its log: our own lines with the time, and only warnings of the libraries underneath."""

from __future__ import annotations

import logging
import os
import sys


def configure_logging() -> None:
    """Sends `posttrain` lines to stderr once; quietens libraries that announce themselves at every start."""
    logger = logging.getLogger("posttrain")
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow").setLevel(logging.WARNING)
