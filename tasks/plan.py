"""The plan of a DPO run, printed before it starts: what leaves the cluster when DPO takes the place of PPO."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pyarrow as pa
from flytekit import Deck, task

from posttrain.config_dpo import DpoLearnerSettings
from posttrain.planner.algorithms import compare_algorithms
from posttrain.planner.costs import AlgorithmCost
from posttrain.planner.model import model_shape
from posttrain.planner.rendering import plan_html, plan_text
from posttrain.table_checks import list_lengths
from tasks import artifacts
from tasks.artifacts import PolicyDirectory, TableFile
from tasks.pools import CPU

logger = logging.getLogger("posttrain")


@task(enable_deck=True, **CPU)
def plan_dpo(policy_directory: PolicyDirectory, shards: list[TableFile], settings: DpoLearnerSettings) -> str:
    """PPO, GRPO and DPO side by side for this model and these pairs; returns the table as text."""
    costs = plan_of(policy_directory, artifacts.read_all(shards, "PREFERENCES"), settings)
    text = plan_text(costs)
    Deck("Plan", plan_html(costs))
    logger.info("what this run costs, beside PPO and GRPO on as many tokens:\n%s", text)
    return text


def plan_of(policy_directory: PolicyDirectory, pairs: Sequence[pa.Table], settings: DpoLearnerSettings) -> list[AlgorithmCost]:
    """The costs for PREFERENCES or REFERENCED tables."""
    prompts = sum(int(list_lengths(table, "prompt_ids").sum()) for table in pairs)
    answers = sum(int(list_lengths(table, side).sum()) for table in pairs for side in ("chosen_ids", "rejected_ids"))
    num_pairs = sum(table.num_rows for table in pairs)
    mean_prompt_tokens = prompts / max(1, num_pairs)
    return compare_algorithms(
        model_shape(artifacts.local_directory(policy_directory)),
        num_pairs,
        mean_prompt_tokens + answers / max(1, 2 * num_pairs),
        settings.num_epochs,
        mean_prompt_tokens=mean_prompt_tokens,
    )
