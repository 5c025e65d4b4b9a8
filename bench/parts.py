"""Measures generation, verification and update of the quick start's model on this machine.

Usage: python -m bench.parts [--engine vllm|transformers]
Prints one line for each measurement and writes them to bench-results.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from posttrain import advantages, brackets, grpo, policy, prompts, rollouts, tables
from posttrain.config import AdvantageSettings, DataSettings, EngineName, LearnerSettings, RolloutSettings, VerifySettings
from posttrain.engines.base import SamplingParameters
from posttrain.engines.registry import close_shared_engine, shared_engine
from posttrain.table_checks import list_lengths
from posttrain.verify.base import VerificationRequest
from posttrain.verify.registry import create_verifier

RESULTS = Path("bench-results.json")
NUM_PROMPTS, GROUP_SIZE = 32, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", type=EngineName, default=EngineName.vllm, choices=list(EngineName))
    engine = parser.parse_args().engine
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(prefix="posttrain-bench-") as scratch:
        results = measure(Path(scratch), engine)
    results["peak_memory_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    RESULTS.write_text(json.dumps(results, indent=2), encoding="utf-8")
    for name, value in results.items():
        print(f"{name:30} {value:12.2f}")


def measure(scratch: Path, engine_name: EngineName) -> dict[str, float]:
    """Every measurement by name, the unit last in the name."""
    results: dict[str, float] = {}
    directory = scratch / "policy"
    brackets.build_model(directory, seed=0)
    table = prompts.load_prompts(f"brackets?size={NUM_PROMPTS}", policy.load_tokenizer(directory), DataSettings()).table
    settings = RolloutSettings(engine=engine_name)
    engine, results["engine_start_s"] = timed(lambda: shared_engine(settings, directory))
    sampled, seconds = timed(lambda: generate(engine, table, directory))
    results["generation_tokens_per_s"] = int(list_lengths(sampled, "completion_ids").sum()) / seconds
    _, results["fingerprint_s"] = timed(engine.check_fingerprint)
    results["verification_per_s"] = verification_rate()
    _, results["update_s"] = timed(lambda: update(scratch, sampled))
    _, results["weight_swap_s"] = timed(lambda: engine.load_policy(scratch / "updated"))
    close_shared_engine()
    return results


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    started = time.perf_counter()
    value = work()
    return value, time.perf_counter() - started


def generate(engine: Any, table: Any, directory: Path) -> Any:
    return rollouts.generate_rollouts(
        engine,
        table,
        SamplingParameters(temperature=1.0, top_p=1.0, max_completion_tokens=48),
        group_size=GROUP_SIZE,
        run_seed=0,
        iteration=1,
        tokenizer=policy.load_tokenizer(directory),
    )


def verification_rate() -> float:
    """Completions a second that the code verifier runs, the demonstrations' own: most fail, some pass."""
    answers = {problem.prompt: problem.answer for problem in brackets.problems(2048, 7)}
    requests = [
        VerificationRequest(f"bench:{row}", 0, item["prompt"], item["completion"], answers[item["prompt"]], "stop")
        for row, item in enumerate(brackets.demonstrations(256, 7))
        if item["prompt"] in answers
    ]
    verifier = create_verifier("code", VerifySettings())
    verifier.verify(requests[:8])  # starts the sandbox
    _, seconds = timed(lambda: verifier.verify(requests))
    return len(requests) / seconds


def update(scratch: Path, sampled: Any) -> Any:
    """One update on the rollouts of an iteration, with rewards that alternate: every group teaches something."""
    keys = zip(*(sampled[name].to_pylist() for name in ("prompt_id", "sample_index")), strict=True)
    judged = {"outcome": "pass", "detail": "", "seconds": 0.0, "verifier": "bench", "verifier_version": "1"}
    rows = [{"prompt_id": prompt_id, "sample_index": index, "reward": float(index % 2), **judged} for prompt_id, index in keys]
    scored = advantages.score(sampled, tables.from_rows("VERDICTS", rows), AdvantageSettings())
    outputs = {"output_policy": scratch / "updated", "output_state": scratch / "state"}
    return grpo.update_policy(scratch / "policy", None, [scored], LearnerSettings(), iteration=1, **outputs)


if __name__ == "__main__":
    main()
