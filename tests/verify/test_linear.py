"""Text patterns that run beside the training process take linear time: much of anything is done at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# a pattern of quadratic cost takes minutes on each of these texts, and holds the interpreter's lock meanwhile
SCRIPT = """
from posttrain.verify import code, compare, exact, fences, last_number, maths, maths_text, reasoning_gym, verdicts
from posttrain.verify.base import VerificationRequest
M = 200_000
texts = [unit * (M // len(unit)) for unit in (
    "1", "1,234", "1.", ".1", "-", "e1", "1e", " ", chr(92), "{", "}", "`", "~", "```\\n", "```a`\\n", "~~~x\\n~~~\\n", "    ```\\n", "def ",
    "async ", "a=", "\\n", "\\r", "<answer>", "</answer>", "</think>", "\\\\boxed{", "\\\\fbox ", "1 ", "1 2/", "$", "$1 ", "answer is ", "\\\\text{")]
texts += [text + end for text in texts for end in ("x", "`\\r\\rx", "}")]
for text in texts:
    compare.equal_text("1.5", text), compare.equal_text(text, "1.5")
    last_number.last_number(text)
    fences.extract_code(text, "solve"), fences.extract_expression(text)
    maths_text.last_box(text), reasoning_gym.extract_answer(text), verdicts.clean(text)
    tail = text[-maths.MAX_TAIL_CHARACTERS:]
    maths_text.normalise(tail, False), maths_text.normalise(tail), maths_text.is_text(tail), maths_text.without_false_values(tail)
    maths_text.is_hedge(tail), maths_text.expression(tail), maths_text.is_single(tail)
    maths_text.stated_last(tail), maths_text.equal_as_text(tail, tail), maths_text.align_equations(tail, "5")
print("done")
"""


@pytest.mark.slow
def test_much_hostile_text_is_read_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "done", done.stderr
