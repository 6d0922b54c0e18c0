"""Client of the reward service, and the reward `remote` that uses it.

A sample is a trajectory with its task. The service judges it with any registered reward and gives
the answer that the reward gives in this process. Lost connections are retried until a deadline, so
a restarted service loses no sample. Routes and top log-probabilities are not sent.
"""

import base64
import dataclasses
import http.client
import json
import os
import random
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from drlib.rewards.functions import REWARDS, Reward, RewardResult
from drlib.task import Task
from drlib.trajectory import Termination, ToolResult, Trajectory
from drlib.validation import require

TOKEN = "DRLIB_REWARDS_TOKEN"  # environment variable with the secret of service and client
BATCH = 16  # samples per request of `RewardClient.judge_all`
CONNECT_S = 5.0
FIRST_CONTACT_S = 10.0  # deadline until a service has answered for the first time
NOT_SENT = ("routed_experts", "top_ids", "top_logprobs")


class RewardServiceError(Exception):
    """A sample has no reward; the subclass states the reason."""


class RewardUnreachable(RewardServiceError):
    """No service gave an answer before the deadline."""


class RewardTimeout(RewardServiceError):
    """The verifier exceeded the time limit of the service."""


class RewardRaised(RewardServiceError, ValueError):
    """The verifier is unknown, lacks an argument or raised an error; the message names the task."""


class RewardRefused(RewardServiceError):
    """The service rejected the request, for example its token: a retry cannot help."""


ERRORS = {"raised": RewardRaised, "timeout": RewardTimeout}  # errors of a reply's line


# ---------------------------------------------------------------- messages


def encode_trajectory(trajectory: Trajectory) -> dict[str, Any]:
    """Return a trajectory as JSON values; arrays are base64 of their bytes."""
    fields = {**vars(trajectory), **dict.fromkeys(NOT_SENT)}
    for name, value in fields.items():
        if isinstance(value, np.ndarray):
            bytes_ = base64.b64encode(np.ascontiguousarray(value).data).decode()
            fields[name] = [str(value.dtype), bytes_]
    return fields | {"tool_results": [vars(result) for result in trajectory.tool_results]}


def decode_trajectory(fields: Mapping[str, Any]) -> Trajectory:
    """Return the trajectory of `encode_trajectory`."""
    known = dict(fields)
    for field in dataclasses.fields(Trajectory):
        if "ndarray" in str(field.type) and known[field.name] is not None:
            dtype, text = known[field.name]
            known[field.name] = np.frombuffer(base64.b64decode(text), dtype)
    known["tool_results"] = [ToolResult(**result) for result in known["tool_results"]]
    return Trajectory(**known | {"termination": Termination(known["termination"])})


def decode_task(fields: Mapping[str, Any]) -> Task:
    """Return the task of its JSON fields, in which tuples are lists."""
    known: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
    return Task(**known)


# ---------------------------------------------------------------- client


class RewardClient:
    """HTTP client of one or several reward services; safe for several threads.

    Each thread has its own connection. Every sample gets one `RewardResult` or raises one
    `RewardServiceError`.

    Args:
        url: `http://host:port`, or several; each thread starts with another one.
        token: secret of the services; default: environment variable DRLIB_REWARDS_TOKEN.
        patience_s: seconds without a byte after which a service counts as dead; must exceed its
            time limit of a sample plus its waiting time.
        deadline_s: seconds after which a sample that no service answered is `RewardUnreachable`.
        threads: concurrent requests of `judge_all`.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        token: str | None = None,
        *,
        patience_s: float = 120.0,
        deadline_s: float = 120.0,
        threads: int = 16,
    ):
        self._urls = [urlsplit(text) for text in ([url] if isinstance(url, str) else url)]
        is_usable = all(parts.scheme == "http" and parts.hostname for parts in self._urls)
        require(bool(self._urls) and is_usable, f"url={url!r}: give http://host:port")
        require(threads >= 1, f"threads={threads} must be at least 1")
        token = os.environ.get(TOKEN, "") if token is None else token
        self._headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        self.patience_s, self.deadline_s, self.threads = patience_s, deadline_s, threads
        self.has_answered = False  # True after the first answer of a service
        self._local = threading.local()
        self._random = random.Random()  # separate, because training uses the global generator

    def judge(
        self, trajectory: Trajectory, task: Task, reward: str, arguments: Mapping[str, Any]
    ) -> RewardResult:
        """Return the reward of one sample.

        Raises:
            RewardServiceError: there is none.
        """
        (found,) = self._judge_batch([(trajectory, task)], reward, arguments)
        if isinstance(found, RewardServiceError):
            raise found
        return found

    def judge_all(
        self,
        samples: Sequence[tuple[Trajectory, Task]],
        reward: str,
        arguments: Mapping[str, Any] | None = None,
    ) -> list[RewardResult | RewardServiceError]:
        """Return the reward or the error of each sample, in order."""
        batches = [samples[i : i + BATCH] for i in range(0, len(samples), BATCH)]
        with ThreadPoolExecutor(self.threads) as pool:
            found = pool.map(lambda some: self._judge_batch(some, reward, arguments or {}), batches)
            return [result for some in found for result in some]

    def _judge_batch(
        self, samples: Sequence[tuple[Trajectory, Task]], reward: str, arguments: Mapping
    ) -> list[RewardResult | RewardServiceError]:
        """Send a batch until each of its samples has an answer, or the deadline ends."""
        rows = [{"trajectory": encode_trajectory(t), "task": vars(task)} for t, task in samples]
        found: dict[int, RewardResult | RewardServiceError] = {}
        deadline_s = self.deadline_s
        if not self.has_answered:
            deadline_s = min(deadline_s, FIRST_CONTACT_S)
        end, pause_s = time.monotonic() + deadline_s, 0.1
        while missing := [i for i in range(len(rows)) if i not in found]:
            message = {"reward": reward, "arguments": arguments}
            message["samples"] = [{**rows[i], "id": i} for i in missing]
            is_reused = self._is_connected()
            reason = "the service stopped"
            try:
                for index, result in self._send(json.dumps(message).encode()):
                    found.setdefault(index, result)
            except RewardRefused as error:
                return [found.get(i, error) for i in range(len(rows))]
            except (OSError, http.client.HTTPException, ValueError) as error:
                self._disconnect()
                reason = f"{type(error).__name__}: {error}"
                if is_reused:  # the service closes idle connections
                    continue
            if len(found) < len(rows):
                if time.monotonic() + pause_s > end:
                    late = RewardUnreachable(f"no answer within {deadline_s:g} s ({reason})")
                    return [found.get(i, late) for i in range(len(rows))]
                time.sleep(pause_s * self._random.uniform(0.5, 1.0))
                pause_s = min(2 * pause_s, 2.0)
        return [found[i] for i in range(len(rows))]

    def _send(self, body: bytes) -> Iterator[tuple[int, RewardResult | RewardServiceError]]:
        """Send one request; yield (index, result) per line of the reply."""
        connection = self._connect()
        connection.request("POST", "/judge", body, self._headers)
        reply = connection.getresponse()
        if reply.status != 200:
            text = reply.read(500).decode("utf-8", "replace")
            if reply.status in (408, 429) or reply.status >= 500:
                raise ConnectionError(f"{reply.status} {text}")
            self._disconnect()
            hint = f" (set {TOKEN} to the service's token)" if reply.status in (401, 403) else ""
            raise RewardRefused(f"{reply.status} {text}{hint}")
        while line := reply.readline():
            answer = json.loads(line)
            self.has_answered = True
            if kind := answer.get("error"):
                if kind != "stopped":
                    yield answer["id"], ERRORS[kind](answer["message"])
            else:
                yield answer["id"], RewardResult(answer["value"], answer["parts"])

    def _is_connected(self) -> bool:
        connection = getattr(self._local, "connection", None)
        return connection is not None and connection.sock is not None

    def _connect(self) -> http.client.HTTPConnection:
        """Return this thread's connection, opened if necessary."""
        if not self._is_connected():
            number = getattr(self._local, "number", threading.get_ident())
            self._local.number = number + 1  # a retry uses the next service
            parts = self._urls[number % len(self._urls)]
            connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=CONNECT_S)
            connection.connect()
            connection.sock.settimeout(self.patience_s)
            self._local.connection = connection
        return self._local.connection

    def _disconnect(self) -> None:
        if (connection := getattr(self._local, "connection", None)) is not None:
            connection.close()
            self._local.connection = None


@lru_cache(maxsize=8)
def _shared_client(process: int, url: str | tuple[str, ...], **settings) -> RewardClient:
    """Return the client that all rewards of this process share."""
    return RewardClient(url, **settings)


@REWARDS.register("remote")
def remote(
    *,
    url: str | Sequence[str],
    reward: str = "exact_match",
    arguments: Mapping[str, Any] | None = None,
    patience_s: float = 120.0,
    deadline_s: float = 120.0,
    threads: int = 16,
) -> Reward:
    """Create a reward that a service computes (`drlib rewards serve`).

    A rollout without an answer, or whose verifier exceeded its time, has no reward and is
    excluded. It is never scored 0.

    Args:
        url, patience_s, deadline_s, threads: see `RewardClient`.
        reward: name of the reward at the service.
        arguments: of that reward.

    Raises:
        RewardUnreachable: (the reward) the first sample got no answer: the service is not running.
        RewardRaised: (the reward) the verifier raised an error; the message names the task.
        RewardRefused: (the reward) the service rejected the request.
    """
    where = url if isinstance(url, str) else tuple(url)
    settings = {"patience_s": patience_s, "deadline_s": deadline_s, "threads": threads}
    _shared_client(os.getpid(), where, **settings)  # ValueError for a wrong url or number

    def judge(trajectory: Trajectory, task: Task) -> RewardResult:
        client = _shared_client(os.getpid(), where, **settings)
        try:
            return client.judge(trajectory, task, reward, arguments or {})
        except (RewardTimeout, RewardUnreachable) as error:
            if isinstance(error, RewardUnreachable) and not client.has_answered:
                raise RewardUnreachable(
                    f"the reward service {url} gave no answer ({error}): start it with "
                    "`drlib rewards serve`"
                ) from error
            warnings.warn(f"{trajectory.id} has no reward: {error}", RuntimeWarning, stacklevel=2)
            return RewardResult(None)

    vars(judge)["threads"] = threads  # read by `make_reward`
    return judge
