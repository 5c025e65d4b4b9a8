"""Judges stored rollouts anew: `python -m posttrain.verify.rescore ROLLOUTS.arrow PROMPTS.arrow --out VERDICTS.arrow`.

`--verifier` has every prompt judged by that one instead of its own, `--set verify.timeout_s=5` changes a setting, and
`--old VERDICTS.arrow` says what changed. SCORED may stand for ROLLOUTS and for the old VERDICTS: it holds their columns.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from posttrain import resolution, tables
from posttrain.config_verify import VerifySettings
from posttrain.errors import ConfigError, ContractError, PosttrainError
from posttrain.report.text_table import aligned
from posttrain.table_checks import OUTCOMES
from posttrain.verify.registry import create_verifier
from posttrain.verify.score import verify_rollouts

NUM_NAMED = 10
_OLD_COLUMNS = ("prompt_id", "sample_index", "outcome", "reward")


def rescore(
    rollouts: pa.Table, prompts: pa.Table, settings: VerifySettings, *, verifier: str = "", max_completion_tokens: int = 0
) -> pa.Table:
    """VERDICTS of stored ROLLOUTS by the prompts' own verifiers, or all by `verifier`.

    Args:
        max_completion_tokens: the cap under which they were sampled, from which an overlong buffer counts back.

    Raises:
        ConfigError: an unknown verifier, an answer that it cannot judge by (names the prompt), an overlong buffer without a cap.
        ContractError, VerificationError: as `verify_rollouts`.
    """
    if verifier:
        prompts = prompts.set_column(
            prompts.schema.get_field_index("verifier"),
            prompts.schema.field("verifier"),
            pa.array([verifier] * prompts.num_rows, pa.string()),
        )
        _check_answers(prompts, verifier, settings)
    if settings.overlong_buffer_tokens and not max_completion_tokens:
        why, remedy = "the overlong buffer counts back from it", "Give the cap under which the completions were sampled."
        raise ConfigError("max_completion_tokens", max_completion_tokens, why, remedy)
    return verify_rollouts(rollouts, prompts, settings, max_completion_tokens=max_completion_tokens)


def describe_changes(old: pa.Table, new: pa.Table) -> str:
    """A table of old → new outcomes, how many rewards changed, and the first rows whose outcome changed.

    Raises:
        ContractError: a row of one table is missing in the other.
    """
    before, after = (
        dict(zip(tables.keys(table), table.select(["outcome", "reward"]).to_pylist(), strict=True)) for table in (old, new)
    )
    for key in before.keys() ^ after.keys():
        why = "the row is in one table only"
        raise ContractError("VERDICTS", "prompt_id", None, key, why, "Compare with the verdicts of these rollouts.")
    counts = Counter((before[key]["outcome"], after[key]["outcome"]) for key in before)
    columns = [outcome for outcome in OUTCOMES if any(new == outcome for _, new in counts)]
    lines = [
        [outcome, *(str(counts[outcome, column] or "·") for column in columns)]
        for outcome in OUTCOMES
        if any(old == outcome for old, _ in counts)
    ]
    changed = [key for key in before if before[key]["outcome"] != after[key]["outcome"]]
    rewards = sum(before[key]["reward"] != after[key]["reward"] for key in before)
    named = [f"  {key[0]}/{key[1]}: {before[key]['outcome']} → {after[key]['outcome']}" for key in changed[:NUM_NAMED]]
    more = [f"  and {len(changed) - NUM_NAMED} more"] if len(changed) > NUM_NAMED else []
    table = aligned(["old \\ new", *columns], lines)
    summary = f"{len(changed)} of {len(before)} outcomes and {rewards} rewards changed"
    return "\n".join([table, summary, *named, *more])


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status; errors are said in one line."""
    given = _parser().parse_args(arguments)
    try:
        _check_paths(given)
        settings = _settings(given.set)
        rollouts = tables.read_table(given.rollouts, "ROLLOUTS", tables.JUDGED_COLUMNS)
        prompts = tables.read_table(given.prompts, "PROMPTS")
        old = tables.read_table(given.old, "VERDICTS", _OLD_COLUMNS) if given.old else None
        verdicts = rescore(
            rollouts, prompts, settings, verifier=given.verifier, max_completion_tokens=given.max_completion_tokens
        )
        said = describe_changes(old, verdicts) if old is not None else _describe(verdicts)
        path = tables.write_table(verdicts, "VERDICTS", given.out)
    except (PosttrainError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"{said}\nverdicts: {path.absolute()}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m posttrain.verify.rescore", description="Judges stored rollouts anew.")
    parser.add_argument("rollouts", type=Path, help="Arrow file of ROLLOUTS or SCORED")
    parser.add_argument("prompts", type=Path, help="Arrow file of the PROMPTS that they were sampled from")
    parser.add_argument("--out", type=Path, required=True, help="where the VERDICTS are written")
    parser.add_argument("--verifier", default="", help="judge every prompt by this verifier instead of its own")
    parser.add_argument("--set", action="append", default=[], metavar="verify.FIELD=VALUE", help="change a setting")
    parser.add_argument("--old", type=Path, help="earlier VERDICTS or SCORED of these rollouts, to compare with")
    parser.add_argument("--max-completion-tokens", type=int, default=0, help="cap of the sampler; the overlong buffer needs it")
    return parser


def _check_paths(given: argparse.Namespace) -> None:
    """Before anything is judged: the inputs are there, and the verdicts can be written without losing one of them."""
    inputs: dict[str, Path | None] = {"ROLLOUTS": given.rollouts, "PROMPTS": given.prompts, "--old": given.old}
    out: Path = given.out.absolute()
    for field, path in inputs.items():
        if path is None:
            continue
        if not path.is_file():
            raise ConfigError(field, str(path), "there is no such file", "Give the path of a stored Arrow file.")
        if path.resolve() == out.resolve():
            why = f"the verdicts would be written over {field}"
            raise ConfigError("--out", str(given.out), why, "Give the path of a file of its own.")
    if out.is_dir():
        raise ConfigError("--out", str(given.out), "it is a directory", "Give the path of a file.")
    try:
        with tempfile.TemporaryFile(dir=next(parent for parent in out.parents if parent.exists())):
            pass
    except OSError as error:
        raise ConfigError("--out", str(given.out), f"it cannot be written ({error})", "Choose another place.") from error


def _settings(assignments: Sequence[str]) -> VerifySettings:
    values: dict[str, Any] = {}
    for assignment in assignments:
        name, assigned, value = assignment.partition("=")
        section, _, field = name.partition(".")
        if section != "verify" or not field or not assigned:
            raise ConfigError("--set", assignment, "it does not set a field of verify", "Write --set verify.timeout_s=5.")
        try:
            values[field] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ConfigError("--set", assignment, f"the value is not YAML ({error})", "Put it in quotes.") from error
    return resolution.parse(VerifySettings, values)


def _check_answers(prompts: pa.Table, name: str, settings: VerifySettings) -> None:
    verifier = create_verifier(name, settings)
    for prompt_id, answer in zip(prompts["prompt_id"].to_pylist(), prompts["answer"].to_pylist(), strict=True):
        try:
            verifier.check_answer(json.loads(answer))
        except (ConfigError, ValueError, RecursionError) as error:
            why = f"prompt {prompt_id!r}: {error}"
            raise ConfigError("--verifier", name, why, "Choose a verifier that can judge by the prompts' answers.") from error


def _describe(verdicts: pa.Table) -> str:
    counts = Counter(verdicts["outcome"].to_pylist())
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome]) or "no rollouts"


if __name__ == "__main__":
    sys.exit(main())
