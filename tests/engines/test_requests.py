"""What an engine may believe of reported logprobs (vllm-project/vllm#4149)."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from posttrain.engines.requests import usable_logprobs
from posttrain.engines.served import check_context
from posttrain.engines.vllm_engine import sampled_logprobs
from posttrain.errors import ConfigError


@pytest.mark.parametrize("bad", [float("-inf"), float("nan"), -9999.0, None])
def test_one_value_that_is_no_logprob_makes_the_whole_completion_unusable(bad: float | None) -> None:
    assert usable_logprobs([-0.5, bad, -0.1]) is None


def test_real_logprobs_pass_unchanged() -> None:
    assert usable_logprobs([-0.5, 0.0, -103.25]) == (-0.5, 0.0, -103.25)
    assert usable_logprobs([]) == ()


def test_the_sampled_token_is_looked_up_by_id_and_not_taken_as_the_first_entry() -> None:
    top, other = SimpleNamespace(logprob=-0.1), SimpleNamespace(logprob=-2.5)
    assert sampled_logprobs([7, 9], [{9: top, 7: other}, {9: top}]) == (-2.5, -0.1)


@pytest.mark.parametrize("entry", [{}, {8: SimpleNamespace(logprob=-0.1)}, None, {7: SimpleNamespace(logprob=-9999.0)}])
def test_a_sampled_token_without_entry_makes_the_completion_unusable(entry: dict[int, SimpleNamespace] | None) -> None:
    assert sampled_logprobs([7], [entry]) is None
    assert sampled_logprobs([7], None) is None


def test_a_context_that_the_model_has_no_positions_for_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 256}')
    check_context(tmp_path, 256)
    with pytest.raises(ConfigError, match=r"257.*256 positions"):
        check_context(tmp_path, 257)
