"""A fake clock, a scripted backend and an operation for the tests of tools."""

import threading

from drlib.tools import ReliabilityPolicy, ToolFault

Q = {"query": "Norway", "k": 2}
PLAIN = ReliabilityPolicy(breaker_failures=0)


class FakeClock:
    """Clock that advances only while threads sleep.

    It jumps to the end of the next sleep when all threads were idle for a moment; a slow thread can
    cause an early jump.
    """

    QUIET_S = 0.004

    def __init__(self):
        self.now, self._ends, self._changes = 0.0, [], 0
        self._condition = threading.Condition()

    def monotonic(self):
        with self._condition:
            self._changes += 1
            return self.now

    def sleep(self, seconds):
        assert seconds > 0
        with self._condition:
            end = self.now + seconds
            self._ends.append(end)
            self._changes += 1
            while self.now < end:
                before = self._changes
                if not self._condition.wait(self.QUIET_S) and before == self._changes:
                    self.now = max(self.now, min(self._ends))
                    self._changes += 1
                    self._condition.notify_all()
            self._ends.remove(end)
            self._changes += 1


class Scripted:
    """Backend that returns `replies` in order, then `after`; faults are raised."""

    def __init__(self, name, *replies, after="ok", clock=None):
        self.name, self.replies, self.after, self.clock = name, list(replies), after, clock
        self.calls, self._lock = [], threading.Lock()

    def __call__(self, arguments, timeout_s):
        with self._lock:
            now = self.clock.monotonic() if self.clock else 0.0
            self.calls.append((now, dict(arguments), timeout_s))
            reply = self.replies.pop(0) if self.replies else self.after
        if isinstance(reply, Exception):
            raise reply
        return reply

    @property
    def times(self):
        return [now for now, _, _ in self.calls]


def fault(kind, **more):
    return ToolFault(kind, "scripted", **more)


def hits(*titles, **more):
    return [
        {"title": title, "url": f"https://{title}.org", "snippet": f"about {title}", **more}
        for title in titles
    ]


def together(n, work):
    """Run `work(i)` in n threads started at the same moment; return results in order."""
    results, start = [None] * n, threading.Barrier(n)

    def run(i):
        start.wait()
        results[i] = work(i)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    return results
