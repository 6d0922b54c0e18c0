"""Sandboxes on every node of a Ray cluster: `RaySandbox`.

A `Sandbox` is an actor, pinned to each node that offers the custom resource "sandbox" (keep
trainers off those) or, where none does, to all; drlib must be importable there, and Ray restarts
one that dies. Batching, power of two choices and repetition are `Front`'s.
Ray contains nothing: its actors are trusted, and the templates that they start get nothing of its
environment or descriptors. Left out: nodes that join later.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from drlib.sandbox.client import Front, Unreachable, import_extra
from drlib.sandbox.pool import Sandbox
from drlib.sandbox.result import SandboxResult


class RaySandbox(Front):
    """The same surface as `Sandbox`, over the nodes of a cluster; call `ray.init()` before.

    Args:
        workers: calls at the same time on each node; as many CPUs are reserved there.
        batch: calls sent together, 1 to 64.
        in_flight: batches under way at the same time.
        patience_s: seconds without any answer after which a node counts as dead; longer than its
            queue time-out and call time-out together.
        deadline_s: seconds from a call's first sending (or, while nothing answers at all, from its
            submission) after which it is `service_unavailable`.
        settings: of each node's `Sandbox`; queue_timeout_s is 30 unless given: calls that wait
            behind runaways are tried elsewhere, and a node that answers nothing is dead, not full.

    RuntimeError without a cluster, or where an actor does not start.
    """

    def __init__(
        self,
        workers: int = 1,
        *,
        batch: int = 32,
        in_flight: int = 8,
        patience_s: float = 120.0,
        deadline_s: float = 300.0,
        **settings: Any,
    ) -> None:
        self._ray = import_extra("ray")
        self._patience_s = patience_s
        pin = import_extra("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
        if not self._ray.is_initialized():
            raise RuntimeError("RaySandbox needs a cluster: call ray.init() before.")
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        chosen = [node for node in alive if "sandbox" in node["Resources"]] or alive
        settings = {"workers": workers, "queue_timeout_s": 30.0, **settings}
        make = self._ray.remote(num_cpus=workers, max_restarts=-1)(Sandbox)
        actors = [
            make.options(scheduling_strategy=pin(node["NodeID"], soft=False)).remote(**settings)
            for node in chosen
        ]
        super().__init__(actors, batch, in_flight, deadline_s)
        try:
            self._ray.get([a.template_pids.remote() for a in actors], timeout=300.0)
        except self._ray.exceptions.RayError as error:
            self.close()
            raise RuntimeError(f"A node's sandbox did not start: {error}") from error

    def _ask(self, address: Any, calls: list[dict]) -> Iterator[tuple[int, SandboxResult]]:
        waiting: dict[Any, int] = {}  # a call's reference -> its index
        try:
            waiting = {address.arun.remote(**call): index for index, call in enumerate(calls)}
            while waiting:
                ended, _ = self._ray.wait(list(waiting), timeout=self._patience_s)
                if not ended:
                    raise Unreachable(f"a node gave no answer in {self._patience_s} s")
                (call,) = ended
                yield waiting.pop(call), self._ray.get(call)
        except self._ray.exceptions.RayError as error:
            raise Unreachable(f"a node's actor is gone: {error}") from error
        finally:  # what is sent again must not run there too
            for ref in waiting:
                self._ray.cancel(ref)

    def _abort(self) -> None:
        if self._ray.is_initialized():
            for node in self._nodes:
                self._ray.kill(node.address)
