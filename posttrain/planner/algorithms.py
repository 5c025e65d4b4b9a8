"""PPO-RLHF, GRPO and DPO side by side: what each holds in memory, computes and needs running, and what is given up."""

from __future__ import annotations

from posttrain.planner.costs import AlgorithmCost, Workload
from posttrain.planner.hardware import H100, Gpu
from posttrain.planner.model import ModelShape

TRAINED_BYTES = 16  # per parameter: bfloat16 weights and gradients, float32 master weights and both moments
SERVED_BYTES = 2  # per parameter: bfloat16 weights
BACKWARD_AND_FORWARD = 6  # FLOP per parameter and token
FORWARD = 2
MODEL_FLOP_UTILISATION = 0.4


def compare_algorithms(
    model: ModelShape,
    num_pairs: int,
    mean_sequence_tokens: float,
    num_epochs: int,
    gpu: Gpu = H100,
    *,
    mean_prompt_tokens: float = 0.0,
    model_flop_utilisation: float = MODEL_FLOP_UTILISATION,
) -> list[AlgorithmCost]:
    """PPO-RLHF, GRPO with and without KL, DPO with and without a precomputed reference, at equal trained tokens.

    Training costs 6 · N FLOP a token and a forward pass 2 · N; attention (7 % more at 4k tokens for a model of 8 billion) is
    left out. GPU-seconds = FLOP / (peak · MFU). Generation: see `posttrain.planner.hardware.decoding`; prompts, which are
    prefilled once for a group, are left out. All models of an algorithm have the size of the policy.

    Args:
        mean_sequence_tokens: a prompt and one of its answers.
        mean_prompt_tokens: of these; with 0 every token counts as generated, an upper bound.
    """
    workload = Workload(model, num_pairs, mean_sequence_tokens, mean_prompt_tokens, num_epochs, gpu, model_flop_utilisation)
    return [_cost(workload, *row) for row in _ALGORITHMS]


# Name, trained models, models in forward passes, train-side forward passes, forward passes made once, services, what is given up.
_ALGORITHMS: tuple[tuple[str, tuple[str, ...], tuple[str, ...], int, int, tuple[str, ...], str], ...] = (
    (
        "PPO-RLHF",
        ("actor", "critic"),
        ("reference", "reward model", "rollout copy"),
        4,  # old logprobs, values, reference, reward model
        0,
        ("actor", "critic", "reference", "reward model", "rollout engine", "weight sync"),
        "nothing: it explores and has a value for every token",
    ),
    (
        "GRPO, kl_coef > 0",
        ("policy",),
        ("reference", "rollout copy"),
        2,  # old logprobs, reference
        0,
        ("policy", "reference", "verifier", "rollout engine", "weight sync"),
        "the critic: all tokens of a completion share one advantage; the reward must be verifiable or served",
    ),
    (
        "GRPO, kl_coef = 0",
        ("policy",),
        ("rollout copy",),
        1,  # old logprobs; not needed either (6 N) when they equal the sampler's
        0,
        ("policy", "verifier", "rollout engine", "weight sync"),
        "the critic, and the tie to a reference",
    ),
    (
        "DPO",
        ("policy",),
        ("reference",),
        1,
        0,
        ("trainer", "reference", "dataset"),
        "exploration: it learns only from the pairs that it is given",
    ),
    (
        "DPO, reference precomputed",
        ("policy",),
        (),
        0,
        1,
        ("trainer", "dataset"),
        "exploration; reference, tokenizer and truncation are fixed before training",
    ),
)


def _cost(
    workload: Workload,
    name: str,
    trained: tuple[str, ...],
    served: tuple[str, ...],
    forward_passes: int,
    forward_passes_once: int,
    services: tuple[str, ...],
    given_up: str,
) -> AlgorithmCost:
    return AlgorithmCost(
        name=name,
        models=(*trained, *served),
        services=services,
        given_up=given_up,
        bytes_per_parameter=TRAINED_BYTES * len(trained) + SERVED_BYTES * len(served),
        flop_per_parameter_token=BACKWARD_AND_FORWARD * len(trained) + FORWARD * forward_passes,
        once_flop_per_parameter_token=FORWARD * forward_passes_once,
        generates="rollout copy" in served,
        workload=workload,
    )
