"""The reference's logprobs of both sides of every pair, computed once: the reference then leaves the loop."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from posttrain import policy, tables
from posttrain.config_base import Dtype
from posttrain.pair_logprobs import pair_logprobs


def reference_logprobs(pairs: pa.Table, reference_directory: Path, *, dtype: Dtype, trust_remote_code: bool) -> pa.Table:
    """PREFERENCES → REFERENCED: sums of each side's token logprobs, in nats at temperature 1, and the reference's policy hash.

    Without pairs no model is loaded.

    Raises:
        ContractError: the table breaks its contract.
        PolicyError: the reference is incomplete or altered, lacks an id of the pairs, or gives a logprob that is not finite.
    """
    tables.validate(pairs, "PREFERENCES")
    if not pairs.num_rows:
        return no_pairs()
    chosen, rejected = pair_logprobs(pairs, reference_directory, dtype, trust_remote_code, "reference logprobs")
    name = pa.array([policy.policy_hash(reference_directory)] * pairs.num_rows)
    columns = [*pairs.columns, pa.array(chosen), pa.array(rejected), name]
    return tables.validate(pa.Table.from_arrays(columns, schema=tables.REFERENCED), "REFERENCED")


def no_pairs() -> pa.Table:
    """REFERENCED without rows."""
    return tables.empty("REFERENCED")
