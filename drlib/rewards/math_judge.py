"""Comparison of formulas with math-verify, in a process of its own.

math-verify limits its time with signals, which work in the main thread only, and some formulas
take minutes. The process is killed after `timeout_s` and started again.
Run as a program, this module answers one JSON line [gold, answer] with true, false or null.
"""

import json
import re
import select
import subprocess
import sys
import threading

_MATH = re.compile(
    r"[\\$^]|\b(sqrt|pi|sin|cos|tan|log|ln|exp)\b|[=<>≤≥∈∪∩√π∞]|[0-9a-z)] ?[*/] ?[0-9a-z(]"
    r"|^\s*[\[(].*,.*[\])]\s*$",
    re.IGNORECASE,
)
MAX_CHARACTERS = 2000  # of a formula; longer texts are no formulas


class ComparisonError(Exception):
    """Two formulas could not be compared."""


def looks_like_math(text: str) -> bool:
    """Return True if `text` may be a formula rather than words.

    Example:
        >>> looks_like_math(r"\\frac{1}{2}"), looks_like_math("[0, 1)"), looks_like_math("Paris")
        (True, True, False)
    """
    return len(text) <= MAX_CHARACTERS and bool(_MATH.search(text))


class MathWorker:
    """Compares formulas; safe for several threads, one comparison at a time.

    The process starts at the first use and ends with its owner.

    Args:
        timeout_s: seconds for one comparison.
    """

    START_S = 60.0  # limit for the start, in which sympy is imported

    def __init__(self, timeout_s: float = 5.0):
        self.timeout_s = timeout_s
        self._process: subprocess.Popen | None = None
        self._lock = threading.Lock()

    def equal(self, gold: str, answer: str) -> bool | None:
        """Return True if `answer` has the value of `gold`; None if `gold` is no formula.

        Raises:
            ComparisonError: the comparison took too long, or its process ended.
            RuntimeError: math-verify is not installed.
        """
        if len(gold) > MAX_CHARACTERS:
            return None
        if len(answer) > MAX_CHARACTERS:
            return False
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._start()
            try:
                self._process.stdin.write(json.dumps([gold, answer]).encode() + b"\n")
                reply = self._read_line(self.timeout_s)
            except BrokenPipeError:
                reply = b""
            if not reply:
                self.close()
                raise ComparisonError(f"math-verify gave no result within {self.timeout_s} s")
            return json.loads(reply)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process.stdin.close()
            self._process.stdout.close()
            self._process = None

    def __del__(self):
        self.close()

    def _start(self) -> None:
        self.close()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "drlib.rewards.math_judge"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        if not self._read_line(self.START_S):
            self.close()
            raise RuntimeError("math-verify does not start: pip install 'drlib[judges]'")

    def _read_line(self, seconds: float) -> bytes:
        """Return a line of the process, b"" if none comes in time or the process ended."""
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        return self._process.stdout.readline() if ready else b""


def compare(gold: str, answer: str) -> bool | None:
    """Compare two formulas in this process; the order matters to math-verify."""
    from math_verify import LatexExtractionConfig, parse, verify

    def read(text: str):
        # only LaTeX: elsewhere math-verify reads the first number of 2\pi, or of a sentence
        marked = text if "$" in text or "\\boxed" in text else f"${text}$"
        return parse(marked, [LatexExtractionConfig()], parsing_timeout=None)

    wanted = read(gold)
    if not wanted:
        return None
    return bool(verify(wanted, read(answer), timeout_seconds=None))


def main() -> int:
    import math_verify  # noqa: F401 - the comparison imports it again

    print("ready", flush=True)
    for line in sys.stdin:
        gold, answer = json.loads(line)
        print(json.dumps(compare(gold, answer)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
