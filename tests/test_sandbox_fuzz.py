"""Random text as code, stdin and history: a typed result for each, in order, without a hang.

Seeded: bytes decoded as Latin-1 and as UTF-8 with replacements, lone surrogates, Python words in
random order, and working programs with changed characters. `DRLIB_FUZZ_CALLS` sets the number; ten
thousand take about a minute on two cores.
"""

import os
import random

import pytest

from drlib.sandbox import Sandbox, SandboxResult
from tests.odd_cases import FORGED, ODD, WORKS
from tests.sandbox_targets import skip_without

CALLS = int(os.environ.get("DRLIB_FUZZ_CALLS", "10000"))
STATUSES = {"ok", "error", "timeout", "cpu_limit", "memory_limit", "output_limit", "killed"}
SOUP = (
    "def f ( x ) : return lambda class if else for in while try except finally with as import os "
    "sys print None True 1 0x 1e9 'a' \"b f' ''' [ ] { } = == += ** // @ ~ -> ... , ; \n \n \t "
    "await async yield del global assert raise __import__ exec eval open numpy \\ # \0 é \ufeff"
).split(" ")
PROGRAMS = [c.code for c in WORKS + FORGED + ODD if len(c.code) < 600 and "sleep" not in c.code]


def random_text(generator: random.Random) -> str:
    """Draw a text of one of the five kinds, at most 400 characters."""
    kind = generator.randrange(5)
    size = int(400 ** generator.random())
    if kind == 0:
        return generator.randbytes(size).decode("latin-1")
    if kind == 1:
        return generator.randbytes(size).decode("utf-8", "replace")
    if kind == 2:
        return generator.randbytes(size).decode("utf-8", "surrogateescape")
    if kind == 3:
        return " ".join(generator.choices(SOUP, k=max(size // 8, 1)))
    text = list(generator.choice(PROGRAMS))
    for _ in range(generator.randint(1, 6)):
        at = generator.randrange(len(text) + 1) if text else 0
        change = generator.randrange(4)
        if change == 0:
            del text[at : at + generator.randint(1, 9)]
        elif change == 1:
            text.insert(at, chr(generator.randrange(32, 127)))
        elif change == 2:
            text[at:at] = text[at : at + 20]
        else:
            text[at:at] = generator.choice(PROGRAMS)[:30]
    return "".join(text)


def check(result: SandboxResult) -> None:
    """Check that a result is typed, printable and no environment fault."""
    assert isinstance(result, SandboxResult) and result.status in STATUSES, result
    assert not result.env_fault and len(result.text) < 10_000
    for text in (result.text, result.stdout, result.stderr):
        text.encode("utf-8")
    assert isinstance(result.exit_code, int) and result.duration_s >= 0


@pytest.fixture(scope="module")
def sandbox():
    skip_without("standard")
    with Sandbox(workers=2, timeout_s=1.0, memory_mb=128) as made:
        yield made


def fuzz_codes(sandbox: Sandbox, count: int, seed: int) -> dict[str, int]:
    """Run `count` random programs with numbered ones between them; count each status."""
    generator = random.Random(seed)
    codes = [
        f"print('number', {i})" if i % 25 == 0 else random_text(generator) for i in range(count)
    ]
    results = sandbox.map(codes)
    assert len(results) == count
    for i, result in enumerate(results):
        check(result)
        if i % 25 == 0:
            assert result.text == f"number {i}"
    statuses = [result.status for result in results]
    return {status: statuses.count(status) for status in sorted(set(statuses))}


def test_random_code(sandbox):
    counts = fuzz_codes(sandbox, CALLS, seed=0)
    assert {"ok", "error"} <= set(counts) and counts["error"] > CALLS // 2
    assert sandbox.run("print('after')").text == "after"


def test_random_input_and_history(sandbox):
    generator = random.Random(1)
    code = "import sys\nprint(len(sys.stdin.read()))"
    for _ in range(CALLS // 40):
        stdin = random_text(generator)
        history = [random_text(generator) for _ in range(generator.randrange(3))]
        check(sandbox.run(random_text(generator), stdin, history, generator.random() < 0.5))
        result = sandbox.run(code, stdin)
        as_read = stdin.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
        for end in ("\r\n", "\r"):  # universal newlines
            as_read = as_read.replace(end, "\n")
        assert result.text == str(len(as_read)), (stdin, result)


def test_random_history_has_no_effect(sandbox):
    """A failing earlier cell has no effect."""
    generator = random.Random(2)
    for _ in range(CALLS // 100):
        cell = generator.randbytes(60).decode("latin-1")
        assert sandbox.run("print(x)", history=["x = 5", "(" + cell]).text == "5"
