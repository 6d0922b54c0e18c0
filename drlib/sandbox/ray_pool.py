"""Sandboxes on every node of a Ray cluster: `RaySandbox`.

One `Sandbox` actor is pinned to each node with the custom resource "sandbox" (keep trainers off
these), or to all nodes if there are none. drlib must be importable there, and Ray restarts dead
actors. Ray itself isolates nothing: actors are trusted, and the templates that they start inherit
neither their environment nor their descriptors. Left out: nodes that join later.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from drlib.sandbox.pool import Sandbox
from drlib.sandbox.remote import RemoteRunner, Unreachable, import_extra
from drlib.sandbox.result import SandboxResult


class RaySandbox(RemoteRunner):
    """Sandboxes of a Ray cluster with the interface of `Sandbox`; call `ray.init()` first.

    Args:
        workers: concurrent calls per node, and CPUs reserved there.
        batch: calls per request, 1 to 64.
        in_flight: concurrent requests.
        patience_s: seconds without an answer after which a node counts as dead; must exceed its
            queue time-out plus call time-out.
        deadline_s: seconds from a call's first sending after which it is `service_unavailable`
            (from its submission while no node answers at all).
        settings: settings of each node's `Sandbox`; queue_timeout_s defaults to 30, so that calls
            behind runaways are retried elsewhere, and a silent node is dead rather than full.

    Raises:
        RuntimeError: there is no cluster, or an actor does not start.
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
            raise RuntimeError("RaySandbox needs a cluster: call ray.init() first.")
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        nodes = [node for node in alive if "sandbox" in node["Resources"]] or alive
        settings = {"workers": workers, "queue_timeout_s": 30.0, **settings}
        make = self._ray.remote(num_cpus=workers, max_restarts=-1)(Sandbox)
        actors = [
            make.options(scheduling_strategy=pin(node["NodeID"], soft=False)).remote(**settings)
            for node in nodes
        ]
        super().__init__(actors, batch, in_flight, deadline_s)
        try:
            self._ray.get([a.template_pids.remote() for a in actors], timeout=300.0)
        except self._ray.exceptions.RayError as error:
            self.close()
            raise RuntimeError(f"A node's sandbox did not start: {error}") from error

    def _run_batch(self, address: Any, calls: list[dict]) -> Iterator[tuple[int, SandboxResult]]:
        waiting: dict[Any, int] = {}  # reference of a call -> its index
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
        finally:  # retried calls must not run here too
            for ref in waiting:
                self._ray.cancel(ref)

    def _abort(self) -> None:
        if self._ray.is_initialized():
            for node in self._nodes:
                self._ray.kill(node.address)
