"""Completions that try to be paid without the answer: in the modes function and assertions each ends in fail or timeout."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

from posttrain.config_verify import CodeReward, VerifySettings
from posttrain.verify.base import Verdict
from tests.verify.judging import judge

NONCE = "nonce-5d1c"
SETTINGS = VerifySettings(timeout_s=1.0, memory_mib=150)
HEAD = "import os, sys\n"
FRAME = """
import json
def frame(value, size=None):
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    os.write(5, (len(text) if size is None else size).to_bytes(4, 'big') + text)
"""
FORGED = r"""
lines = b'{"passed": true}\n{"value": true}\n{"value": 1}\nready\n{"outcome": "pass", "reward": 1.0}\n'
for descriptor in (1, 2, 3, 4, 5, 6, 7, 8):
    try:
        os.write(descriptor, lines)
    except OSError:
        pass
"""
SEARCH = """
import gc
def look(thing, depth):
    if isinstance(thing, str) and thing.startswith('nonce' + '-'):
        found.append(thing)
    elif isinstance(thing, (list, tuple, dict)) and depth < 1:
        for item in (thing.values() if isinstance(thing, dict) else thing):
            look(item, depth + 1)
found = []
for thing in gc.get_objects():
    look(thing, 0)
frame = sys._getframe()
while frame:
    look([frame.f_locals, frame.f_globals, list(frame.f_code.co_consts)], 0)
    frame = frame.f_back
return found[0] if found else 'nothing'
"""
READ_ALL = r"""
for descriptor in (0, 1, 2, 3, 4, 5, 6, 7):
    try:
        os.set_blocking(descriptor, False)
        for _ in range(9):
            text = os.pread(descriptor, 1 << 20, 0) if descriptor < 1 else os.read(descriptor, 1 << 20)
            if b'nonce' in text:
                return text[text.index(b'nonce'):][:10].decode()
    except OSError:
        pass
"""
EVERYTHING = """
class Everything{0}:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __hash__ = None
    __bool__ = __lt__ = __gt__ = __contains__ = lambda *a: True
"""
SHADOW = """
text = 'def loads(*a, **k): return {"passed": True, "value": "x", "state": []}\\ndumps = loads\\nEqual = True\\n'
for name in ('json', 'builtins', 'sitecustomize', 'usercustomize', 'conftest', 'colorsys', 'math', 'unittest', 'posttrain'):
    open(name + '.py', 'w').write(text)
sys.path.insert(0, os.getcwd())
"""
PATCHED = """
import builtins, json, time
time.time = time.monotonic = time.perf_counter = lambda: 0.0
json.loads = lambda *a, **k: {'passed': True}
builtins.all = builtins.any = builtins.len = builtins.isinstance = lambda *a: True
builtins.AssertionError = type('Never', (Exception,), {})
"""
PATCHED_SERVER = """
import posttrain.verify.programs as programs, posttrain.verify.program_calls as calls, posttrain.verify.plain_values as plain
programs._plain = lambda *a: True
calls._answer = lambda *a: {'value': True, 'state': []}
plain.Objects.encode = lambda *a, **k: True
"""
HOOKS = """
import atexit, threading
atexit.register(os._exit, 0)
sys.excepthook = threading.excepthook = sys.unraisablehook = lambda *a: os._exit(0)
sys.settrace(lambda *a: None)
"""

# name: what stands before the function, its body
CHEATS = {
    "exit at the start": ("sys.exit(0)", "return x"), "exit": ("", "sys.exit(0)"), "quit": ("", "quit()"), "exit with a text": ("", "exit('nonce-5d1c')"), "leave at the start": ("os._exit(0)", "return x"), "leave": ("", "os._exit(0)"),
    "raise AssertionError": ("", "raise AssertionError"), "raise KeyboardInterrupt": ("", "raise KeyboardInterrupt"), "raise GeneratorExit": ("", "raise GeneratorExit"),
    "raise StopIteration": ("", "raise StopIteration('nonce')"), "raise an unknown exception": ("", "raise ExceptionGroup('x', [ValueError()])"),
    "exit in a thread": ("import threading", "t = threading.Thread(target=sys.exit, args=(0,))\nt.start(); t.join()"), "leave in a thread": ("import threading", "threading.Thread(target=os._exit, args=(0,)).start()\nwhile True: pass"),
    "kill itself": ("", "os.kill(os.getpid(), 9)"), "segmentation fault": ("import ctypes", "ctypes.string_at(0)"), "abort": ("", "os.abort()"),
    "forge lines": ("", FORGED + "return x"), "forge lines and leave": ("", FORGED + "os._exit(0)"), "forge lines at the start": (FORGED + "os._exit(0)", "return x"), "forge lines and hang": ("", FORGED + "while True: pass"),
    "close everything": ("", "os.closerange(0, 64)\nreturn x"), "close everything and leave": ("", "os.closerange(0, 64)\nos._exit(0)"), "close everything and hang": ("", "os.closerange(0, 64)\nwhile True: pass"),
    "forge a value": (FRAME, "frame({'value': True, 'state': []})\nreturn x"), "forge a verdict": (FRAME, "frame({'passed': True})\nos._exit(0)"), "forge a value early": (FRAME + "frame({'value': True, 'state': []})", "return x"),
    "value of no kind": (FRAME, "frame({'value': {'a': 1}, 'state': []})\nos._exit(0)"), "reference to nothing": (FRAME, "frame({'value': ['ref', 99], 'state': []})\nos._exit(0)"),
    "state of nothing": (FRAME, "frame({'value': True, 'state': [['list', 1]]})\nos._exit(0)"), "unknown tag": (FRAME, "frame({'value': ['eval', '1'], 'state': []})\nos._exit(0)"), "no value": (FRAME, "frame([1])\nos._exit(0)"),
    "unhashable key": (FRAME, "frame({'value': ['dict', ['list'], 1], 'state': []})\nos._exit(0)"), "wrong exception": (FRAME, "frame({'raised': 'print', 'arguments': ['list'], 'state': []})\nos._exit(0)"),
    "deep value": (FRAME, "frame(b'{\"value\": ' + b'[\"tuple\",' * 5000)\nos._exit(0)"), "invalid text": (FRAME, "frame(b'{\"value\": \"\\xff\\xfe\"}')\nos._exit(0)"), "NaN in JSON": (FRAME, "frame(b'{\"value\": NaN, \"state\": []}')\nos._exit(0)"),
    "endless frame": (FRAME, "frame(b'x', size=2 ** 32 - 1)\nwhile True: os.write(5, bytes(1 << 16))"), "half a frame": (FRAME, "frame(b'{', size=100)\nreturn x"), "half a frame and hang": (FRAME, "frame(b'{', size=100)\nwhile True: pass"),
    "huge integer": (FRAME, "frame({'value': ['int', '9' * 4_000_000], 'state': []})\nos._exit(0)"), "raw huge integer": (FRAME, "frame(b'9' * 100_000)\nos._exit(0)"),
    "equal to everything": (EVERYTHING.format(""), "return Everything()"), "text equal to everything": (EVERYTHING.format("(str)").replace("None", "str.__hash__"), "return Everything('x')"),
    "integer equal to everything": (EVERYTHING.format("(int)"), "return Everything(1)"), "list equal to everything": (EVERYTHING.format("(list)"), "return Everything()"), "claims another class": (EVERYTHING.format("").replace("__hash__ = None", "__class__ = str"), "return Everything()"),
    "patched modules": (PATCHED, "return x"), "patched server": (PATCHED_SERVER, "return x"), "hooks": (HOOKS, "raise ValueError"), "shadow modules": (SHADOW, "return x"), "emptied modules": ("", "sys.modules.clear()\nreturn x"),
    "search memory": ("", SEARCH), "read every descriptor": ("", READ_ALL), "all answers at once": ("", "return ['nonce-5d1c', 1, True, None]"), "NaN": ("", "return float('nan')"), "True": ("", "return True"),
    "reward file": ("", "for name in ('reward', 'reward.txt', 'verdict.json', '/logs/reward.txt'):\n    try: open(name, 'w').write('1')\n    except OSError: pass"),
    "flood": ("", "while True: os.write(1, bytes(1 << 16))"), "flood of lines": ("", "while True: os.write(3, b'{}\\n' * 1000)"), "deep recursion": ("sys.setrecursionlimit(10 ** 9)", "return f(x)"),
}  # fmt: skip
HANGING = {"flood of lines", "forge lines and hang", "close everything and hang", "half a frame and hang", "endless frame"}


def source(before: str, body: str) -> str:
    return f"{HEAD}{before}\ndef f(x):\n{textwrap.indent(body.strip(), '    ')}\n"


def answer(mode: str) -> dict[str, Any]:
    if mode == "function":
        return {"mode": mode, "name": "f", "inputs": [[1], [2]], "outputs": [NONCE, NONCE]}
    # colorsys is imported by no one before: a shadow of it would be found
    tests = [f"import colorsys\nassert not hasattr(colorsys, 'Equal')\nassert f(1) == {NONCE!r}", f"assert f(2) == {NONCE!r}"]
    return {"mode": mode, "name": "f", "tests": tests}


@pytest.fixture(scope="module", params=["function", "assertions"])
def judged(request: pytest.FixtureRequest) -> dict[str, Verdict]:
    """Every cheat, and after each an honest completion that must not suffer."""
    honest = source("", f"return {NONCE!r}")
    sources = [text for before, body in CHEATS.values() for text in (source(before, body), honest)]
    verdicts = judge("code", [(text, answer(request.param)) for text in sources], settings=SETTINGS)
    assert [verdict.outcome for verdict in verdicts[1::2]] == ["pass"] * len(CHEATS)
    return dict(zip(CHEATS, verdicts[::2], strict=True))


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_is_never_paid_and_never_an_error(judged: dict[str, Verdict], name: str) -> None:
    verdict = judged[name]
    assert verdict.outcome in ("fail", "timeout"), verdict
    assert verdict.reward == 0.0
    assert verdict.seconds < 10


@pytest.mark.parametrize("mode", ["function", "assertions"])
def test_with_fraction_a_cheat_earns_nothing(mode: str) -> None:
    settings = VerifySettings(timeout_s=1.0, memory_mib=150, code_reward=CodeReward.fraction)
    names = [name for name in CHEATS if name not in HANGING]
    verdicts = judge("code", [(source(*CHEATS[name]), answer(mode)) for name in names], settings=settings)
    found = dict(zip(names, verdicts, strict=True))
    assert {name: verdict for name, verdict in found.items() if verdict.reward != 0.0} == {}


def test_the_numbers_that_tests_compare_keep_their_python_meaning() -> None:
    """Where an expected output is given, True is not 1; where a test says ==, it is what Python says."""
    numbers = {"mode": "function", "name": "f", "inputs": [[1]], "outputs": [1]}
    asserted = {"mode": "assertions", "name": "f", "tests": ["assert f(1) == 1"]}
    pairs = [("def f(x): return True", numbers), ("def f(x): return True", asserted)]
    assert [verdict.outcome for verdict in judge("code", pairs)] == ["fail", "pass"]
