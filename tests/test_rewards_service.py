"""The reward service as a real process: equal answers, kills, slow and raising verifiers, refusals.

Run: python -m pytest tests/test_rewards_service.py
"""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from drlib.cli.rewards import main
from drlib.rewards import remote_reward
from drlib.rewards.functions import RewardResult, check_reward, make_reward
from drlib.rewards.functions import _example as example
from drlib.rewards.remote_reward import (
    TOKEN,
    RewardClient,
    RewardRaised,
    RewardRefused,
    RewardServiceError,
    RewardTimeout,
    RewardUnreachable,
    decode_task,
    decode_trajectory,
    encode_trajectory,
)
from drlib.task import Task
from drlib.training.rollouts import judge_rollouts
from drlib.trajectory import Termination
from tests.waiting import until

pytest.importorskip("fastapi", reason="the cluster extra is not installed")
TASK = Task(
    "t-7", "What is the capital of Norway?", "Oslo", "search", "w", aliases=("Christiania",)
)
PLUGIN = """
import math, time
from drlib import register

@register.reward("slow")
def slow(trajectory, task, seconds=60.0):
    time.sleep(seconds if trajectory.answer == "slow" else 0.0)
    return 1.0

@register.reward("raising")
def raising(trajectory, task):
    if trajectory.answer == "bad":
        raise KeyError("gold")
    return math.nan if trajectory.answer == "nan" else 1.0
"""


class Service:
    """`drlib rewards serve` in a separate process."""

    def __init__(self, folder, *options, port=0, token=""):
        (folder / "slow_rewards.py").write_text(PLUGIN, encoding="utf-8")
        environment = {k: v for k, v in os.environ.items() if k != TOKEN}
        environment["PYTHONPATH"] = os.pathsep.join([str(folder), *sys.path])
        environment |= {TOKEN: token} if token else {}
        command = [sys.executable, "-m", "drlib.cli", "rewards", "serve", f"--port={port}"]
        self.process = subprocess.Popen(
            [*command, "--plugins=slow_rewards", *options],
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        self.port = json.loads(self.process.stdout.readline())["port"]
        self.url = f"http://127.0.0.1:{self.port}"

    def ask(self, method, path, body=None, **headers):
        """Send one request; return (status, body)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, headers)
            reply = connection.getresponse()
            return reply.status, reply.read().decode()
        finally:
            connection.close()

    def health(self):
        return json.loads(self.ask("GET", "/health")[1])

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        code = self.process.wait(20)
        self.process.stdout.close()
        return code


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    running = Service(tmp_path_factory.mktemp("service"), "--timeout=1")
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def clients():
    remote_reward._shared_client.cache_clear()


def rollout(number, answer):
    return replace(example(answer), id=f"r-{number}")


def samples(count):
    """Return varied samples: right, wrong, graded, missing, ill-formed and faulty ones."""
    answers = ["Oslo", "Oslo fjord", "the Oslo", "Bergen", None, "Christiania.", "\ud800", "東京"]
    made = []
    for number in range(count):
        trajectory = rollout(number, answers[number % len(answers)])
        trajectory.metadata["progress"] = number / count
        if number % 7 == 3:
            trajectory.tool_results[0].error = "format"
        if number % 31 == 5:
            trajectory.termination = Termination.ENV_FAULT
        made.append(
            (trajectory, replace(TASK, id=f"t-{number}", kind=["search", "gym"][number % 2]))
        )
    return made


# ---------------------------------------------------------------- equal answers


def test_samples_survive_the_message():
    trajectory, task = samples(7)[6]
    trajectory.entropies[1] = np.nan
    message = json.loads(json.dumps([encode_trajectory(trajectory), vars(task)]))
    assert decode_trajectory(message[0]) == trajectory
    assert decode_task(message[1]) == task


@pytest.mark.parametrize(
    ("reward", "arguments"),
    [
        ("exact_match", {}),
        ("random", {"seed": 3}),
        ("judged", {"judge": "squad", "graded": True}),
        ("gated", {"weights": {"format": 1, "random": 2}, "share": 0.3}),
        ("by_task", {}),
        ("threshold", {"schedule": [[0.5, 0.6], [1, 0.9]], "reward": "judged"}),
    ],
)
def test_http_equals_in_process(service, reward, arguments):
    """All rewards together judge 2,000 samples."""
    some = samples(334)
    some = [
        (t, replace(task, verifier='{"reward": "format"}' if t.id.endswith("3") else ""))
        for t, task in some
    ]
    own = make_reward(reward, **arguments)
    expected = [own(trajectory, task) for trajectory, task in some]
    assert len({found.value for found in expected}) > 1
    assert RewardClient(service.url).judge_all(some, reward, arguments) == expected


def test_reward_remote_in_several_threads(service):
    some = samples(40)
    reward = make_reward("remote", url=service.url, reward="random")
    found = judge_rollouts(*zip(*some), reward)
    alone = judge_rollouts(*zip(*some), make_reward("random"))
    assert reward.threads == 16 and [t.id for t in found] == [t.id for t, _ in some]
    assert [t.reward for t in found] == [t.reward for t in alone]
    check_reward("remote", url=service.url)


# ---------------------------------------------------------------- faults


def test_200_clients_while_the_service_is_killed_and_restarted(tmp_path):
    """Every sample gets exactly one answer, and it is that sample's."""
    running = Service(tmp_path)
    each, clients_ = 6, 200
    some = samples(each * clients_)
    expected = [make_reward("random")(trajectory, task) for trajectory, task in some]
    found: list[list[RewardResult]] = [[] for _ in some]
    killed = threading.Event()

    def ask(number):
        client = RewardClient(running.url, deadline_s=100)
        client.has_answered = True  # not a first contact: the deadline is 100 s
        for i in range(number * each, (number + 1) * each):
            if i % each == each // 2:
                killed.wait()  # half of the samples come after the kill
            found[i].append(client.judge(*some[i], "random", {}))

    with ThreadPoolExecutor(clients_) as pool:
        asked = [pool.submit(ask, number) for number in range(clients_)]
        until(lambda: sum(map(bool, found)) > clients_)
        running.stop(signal.SIGKILL)
        killed.set()
        again = Service(tmp_path, port=running.port)
        for one in asked:
            one.result(150)
    assert [len(answers) for answers in found] == [1] * len(some)
    assert [answers[0] for answers in found] == expected
    until(lambda: again.health().get("open") == 0)
    assert again.stop() == 0


def test_slow_verifier_is_a_timeout_and_delays_no_one(service):
    client = RewardClient(service.url)
    some = [(rollout(i, "slow" if i % 10 == 0 else "Oslo"), TASK) for i in range(60)]
    started = time.monotonic()
    found = client.judge_all(some, "slow", {"seconds": 4.0})
    assert time.monotonic() - started < 4.0
    for (trajectory, _), result in zip(some, found):
        if trajectory.answer == "slow":
            assert isinstance(result, RewardTimeout) and "task t-7" in str(result)
        else:
            assert result == RewardResult(1.0, {"slow": 1.0})
    assert service.health()["overdue"] == 6
    until(lambda: service.health()["overdue"] == 0)  # their threads have ended
    reward = make_reward("remote", url=service.url, reward="slow", arguments={"seconds": 2.0})
    with pytest.warns(RuntimeWarning, match="r-1 has no reward"):
        assert reward(rollout(1, "slow"), TASK).value is None


@pytest.mark.parametrize(
    ("reward", "answer", "message"),
    [
        ("raising", "bad", "task t-7: KeyError: 'gold'"),
        ("raising", "nan", "task t-7: ValueError: reward 'raising': raising is nan"),
        ("exact_mach", "Oslo", "task t-7: ValueError: unknown reward 'exact_mach'"),
        ("weighted", "Oslo", "task t-7: ValueError.*weights"),
        ("remote", "Oslo", "cannot use the reward remote"),
    ],
)
def test_errors_of_a_verifier_name_the_sample(service, reward, answer, message):
    found = RewardClient(service.url).judge_all(
        [(rollout(1, answer), TASK), (rollout(2, "Oslo"), TASK)], reward
    )
    assert isinstance(found[0], RewardRaised)
    assert isinstance(found[1], RewardRaised) == (reward != "raising")
    with pytest.raises(ValueError, match=message):
        make_reward("remote", url=service.url, reward=reward)(rollout(1, answer), TASK)


def test_first_contact_without_a_service_is_an_error(monkeypatch):
    monkeypatch.setattr(remote_reward, "FIRST_CONTACT_S", 0.3)
    reward = make_reward("remote", url="http://127.0.0.1:9")
    with pytest.raises(RewardUnreachable, match="drlib rewards serve"):
        reward(rollout(1, "Oslo"), TASK)
    with pytest.raises(ValueError, match="drlib rewards serve"):
        check_reward("remote", url="http://127.0.0.1:9")


def test_rollouts_are_excluded_while_the_service_is_down(tmp_path):
    running = Service(tmp_path)
    reward = make_reward("remote", url=running.url, deadline_s=0.5)
    assert reward(rollout(1, "Oslo"), TASK).value == 1.0
    running.stop(signal.SIGKILL)
    with pytest.warns(RuntimeWarning, match="r-2 has no reward: no answer within 0.5 s"):
        assert reward(rollout(2, "Bergen"), TASK) == RewardResult(None)


def test_stopped_service_gives_up_running_samples(tmp_path):
    running = Service(tmp_path)
    client = RewardClient(running.url, deadline_s=2.0)
    client.has_answered = True
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(client.judge_all, [(rollout(1, "slow"), TASK)], "slow")
        until(lambda: running.health().get("open") == 1)
        started = time.monotonic()
        assert running.stop() == 0 and time.monotonic() - started < 10
        assert isinstance(asked.result()[0], RewardUnreachable)


def test_queue_limit_delays_but_loses_nothing(tmp_path):
    running = Service(tmp_path, "--threads=4", "--max-queue=256")
    found = RewardClient(running.url, threads=64).judge_all(samples(1500), "random")
    assert not any(isinstance(one, RewardServiceError) for one in found)
    running.stop()


# ---------------------------------------------------------------- refusals


def test_token(tmp_path):
    running = Service(tmp_path, token="a-secret-of-the-test")
    sample = (rollout(1, "Oslo"), TASK, "exact_match", {})
    with pytest.raises(RewardRefused, match="401.*set DRLIB_REWARDS_TOKEN"):
        RewardClient(running.url, "wrong").judge(*sample)
    assert running.ask("GET", "/health")[0] == 401
    assert RewardClient(running.url, "a-secret-of-the-test").judge(*sample).value == 1.0
    running.stop()


def test_other_hosts_need_a_token(capsys, monkeypatch):
    monkeypatch.delenv(TOKEN, raising=False)
    assert main(["serve", "--host", "0.0.0.0", "--port", "0"]) == 1
    assert "set DRLIB_REWARDS_TOKEN" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Content-Type": "text/plain"}, 415),
    ],
)
def test_requests_of_web_pages_are_rejected(service, headers, status):
    headers = {"Content-Type": "application/json"} | headers
    assert service.ask("POST", "/judge", "{}", **headers)[0] == status


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "Expecting value"),
        ("[]", "JSON object"),
        ("{}", "samples"),
        ('{"samples": []}', "1 to 256"),
        ('{"samples": [{"id": 0}]}', "samples[0]: needs id"),
        ('{"samples": [{"id": 0, "trajectory": {}, "task": 1}]}', "samples[0]"),
        ('{"samples": [{"id": 0, "trajectory": {}, "task": {}}]}', "reward: must be"),
        ("[" * 100000, "recursion"),
    ],
)
def test_malformed_requests(service, body, message):
    status, text = service.ask("POST", "/judge", body, **{"Content-Type": "application/json"})
    assert status == 422 and message in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"url": "ftp://x"}, "give http"),
        ({"url": []}, "give http"),
        ({"url": "http://x", "threads": 0}, "threads=0"),
        ({}, "url"),
    ],
)
def test_settings_that_do_not_fit(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_reward("remote", **arguments)
