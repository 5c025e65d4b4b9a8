"""The launches of each quick start; `{workspace}` in an input stands for the workspace's path."""

from __future__ import annotations

from typing import NamedTuple


class Launch(NamedTuple):
    """One `pyflyte run` of the workflow in `workflows/<workflow>.py` that has the same name."""

    workflow: str
    inputs: dict[str, str]


SUMS = "reasoning_gym:chain_sum?min_terms=2&max_terms=2&min_digits=1&max_digits=1"
DEMONSTRATIONS = {"demonstrations": "brackets_demonstrations?size=2048&seed=7"}

# Demonstrations taught a bug (70 % lack the brackets); the verifier removes it.
BRACKETS = Launch("grpo", {"run_name": "quickstart", **DEMONSTRATIONS, "num_iterations": "12", "prompts_per_iteration": "32"})

# A real instruct model on sums of two one-digit numbers; the answer is the last number of the reply.
SMOLLM = Launch(
    "grpo",
    {
        "run_name": "quickstart-smollm",
        "model": "{workspace}/models/smollm2-135m-instruct",
        "prompts": f"{SUMS}&size=512&seed=0",
        "evaluation_prompts": f"{SUMS}&size=40&seed=1000001",
        "verifier": "last_number",
        "max_prompt_tokens": "64",
        "max_completion_tokens": "16",
        "num_iterations": "12",
        "prompts_per_iteration": "16",
        "num_shards": "1",
        "learning_rate": "3e-5",
        "overrides": r"{learner: {trainable_parameters: 'model\.layers\.(1[89]|2[0-9])\.', groups_per_microbatch: 2}, "
        "evaluation: {every: 3, num_samples: 2, pass_at: [1]}, loop: {max_refill_rounds: 0}, tracking: {keep_last: 1}}",
    },
)

# Pairs of the same task: the best of eight verified rollouts against the worst.
COLLECT = Launch("collect_preferences", {"run_name": "brackets", **DEMONSTRATIONS, "num_prompts": "384"})
_PAIRS = {
    "model": "{workspace}/preferences/brackets/policy",
    "preferences": "{workspace}/preferences/brackets/preferences.arrow",
    "evaluation_prompts": "brackets?size=100&seed=1000001",
    "max_pair_tokens": "112",
    "max_prompt_tokens": "64",
    "max_completion_tokens": "48",
    "learning_rate": "1.5e-3",
    "beta": "0.5",
    "pairs_per_step": "64",
    "num_epochs": "8",
    "num_iterations": "8",
}
# Plain DPO rises and then collapses: chosen completions become less likely too. The NLL term keeps them likely.
DPO_PLAIN = Launch("dpo", {"run_name": "quickstart-dpo-plain", **_PAIRS})
DPO = Launch("dpo", {"run_name": "quickstart-dpo", **_PAIRS, "nll_coef": "1"})
SWEEP = Launch(
    "dpo_sweep",
    {
        "run_name": "sweep-dpo",
        **{name: value for name, value in _PAIRS.items() if name not in ("beta", "learning_rate")},
        "loss_types": "sigmoid,ipo",
        "betas": "0.1,0.5",
        "learning_rates": "3e-4,1.5e-3",
        "num_iterations": "2",
    },
)
# As many completions as GRPO's quick start spends without refills: 12 × 32 × 8 = 4 × 96 × 8.
ITERATIVE = Launch(
    "iterative_dpo",
    {
        "run_name": "iterative-dpo",
        **DEMONSTRATIONS,
        "num_iterations": "4",
        "prompts_per_iteration": "96",
        "learning_rate": "5e-4",
        "overrides": "{evaluation: {every: 1}}",
    },
)

RECIPES: dict[str, tuple[Launch, ...]] = {
    "brackets": (BRACKETS,),
    "smollm": (SMOLLM,),
    "dpo": (COLLECT, DPO_PLAIN, DPO),
    "sweep": (COLLECT, SWEEP),
    "iterative": (BRACKETS, ITERATIVE),
}
