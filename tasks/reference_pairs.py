"""The reference's logprobs of pairs: computed once on a pool of their own, cached by content, shared by every run."""

from __future__ import annotations

from typing import NamedTuple

from flytekit import task

from posttrain import dpo_reference
from posttrain.config_base import Dtype
from posttrain.events import EventRecorder
from posttrain.table_checks import list_lengths
from tasks import artifacts
from tasks.artifacts import PolicyDirectory, TableFile
from tasks.caching import cached
from tasks.pools import REFERENCE


class ReferencedPairs(NamedTuple):
    referenced: TableFile
    events: TableFile


@task(cache=cached("reference_pairs"), **REFERENCE)
def reference_pairs(pairs: TableFile, reference: PolicyDirectory, dtype: str, trust_remote_code: bool) -> ReferencedPairs:
    """PREFERENCES → REFERENCED.

    The cache key is content: rows hold token ids, so tokenizer, template and truncation are in them; the hash of the
    reference names its weights. Nothing else changes the values.
    """
    table = artifacts.read(pairs, "PREFERENCES")
    events = EventRecorder("reference", artifacts.device_name(), 0)
    if table.num_rows:
        with artifacts.recoverable_faults(), events.phase("logprob") as phase:
            phase.tokens = sum(int(list_lengths(table, side).sum()) for side in ("chosen_ids", "rejected_ids"))
            directory = artifacts.local_directory(reference)
            table = dpo_reference.reference_logprobs(table, directory, dtype=Dtype(dtype), trust_remote_code=trust_remote_code)
    else:
        table = dpo_reference.no_pairs()
    return ReferencedPairs(
        artifacts.write(table, "REFERENCED", "reference_pairs"), artifacts.write(events.table(), "EVENTS", "reference_pairs")
    )
