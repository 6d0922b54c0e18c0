"""`RaySandbox` on a real cluster of two local nodes, one of which is killed under its calls."""

import asyncio
import os

import psutil
import pytest
from ray_cluster import left_over, two_nodes
from waiting import until

from drlib.sandbox import probe
from drlib.sandbox.pool import check_call

if os.environ.get("RAY_ADDRESS"):
    pytest.skip("a cluster of the user's is configured", allow_module_level=True)
pytest.importorskip("ray", reason="the cluster extra is not installed")
pytestmark = pytest.mark.skipif(
    probe().level not in ("standard", "strong"), reason=f"isolation here is {probe().level}"
)
SEEN = []  # processes of the cluster before a node was killed: all must be gone in the end


@pytest.fixture(scope="module")
def cluster():
    own = psutil.Process().children(recursive=True)  # of tests before these
    with two_nodes(RAY_SECRET_CANARY="of-the-trainer") as made:
        import ray

        ray.init(address=made.address, log_to_driver=False, logging_level="error")
        yield made
        ray.shutdown()
    assert not left_over([process for process in SEEN if process not in own])


@pytest.fixture(scope="module")
def front(cluster):
    from drlib.sandbox.ray_pool import RaySandbox

    with RaySandbox(batch=16, timeout_s=20.0) as made:
        yield made
        templates = template_processes(made)
    assert templates and not left_over(templates)
    with pytest.raises(RuntimeError, match="closed"):
        made.submit("1")


def template_processes(front):
    import ray

    found = []
    for node in front._nodes:
        try:
            pids = ray.get(node.address.template_pids.remote())
        except ray.exceptions.RayError:  # the node that was killed
            continue
        for pid in pids:
            template = psutil.Process(pid)
            found += [template, *template.children(recursive=True)]
    return found


def numbers(count, wait=0.0):
    return [f"import time; time.sleep({wait}); print({i})" for i in range(count)]


def test_a_cluster_is_needed():
    import ray

    from drlib.sandbox.ray_pool import RaySandbox

    if not ray.is_initialized():
        with pytest.raises(RuntimeError, match=r"ray\.init"):
            RaySandbox()


def test_results_equal_those_of_a_sandbox(front):
    assert len(front._nodes) == 2
    result = front.run("print(input(), x)", stdin="in", history=["x = 1"])
    assert (result.status, result.text, result.isolation) == ("ok", "in 1", probe().level)
    assert front.run("1 / 0").text == "ZeroDivisionError: division by zero"
    assert asyncio.run(front.arun("'a'", echo=True)).text == "'a'"
    assert [r.text for r in front.map(numbers(60))] == [str(i) for i in range(60)]


def test_both_nodes_work_and_code_inherits_nothing_of_ray(front):
    assert len({node.address._actor_id.hex() for node in front._nodes}) == 2
    for process in template_processes(front):
        assert not [name for name in process.environ() if "RAY" in name.upper()]
        kinds = [
            os.readlink(f"/proc/{process.pid}/fd/{fd}")
            for fd in os.listdir(f"/proc/{process.pid}/fd")
        ]
        assert not [kind for kind in kinds if "ray" in kind], kinds
        # the channel and the line to the next child; of that child, its end of the line
        assert len([kind for kind in kinds if kind.startswith("socket:")]) <= 2, kinds
    seen = front.run("import os, sys; print(sorted(os.environ), 'ray' in sys.modules)").text
    assert "RAY" not in seen and seen.endswith("False")
    assert front.run("import ray").text == "ModuleNotFoundError: No module named 'ray'"


def test_cancelled_calls_do_not_run(front, monkeypatch):
    from drlib.sandbox.remote import Unreachable

    address = front._nodes[0].address
    slow = [check_call(code) for code in numbers(40, 3.0)]  # 60 s, two at a time
    monkeypatch.setattr(front, "_patience_s", 0.5)
    with pytest.raises(Unreachable, match="no answer in 0.5 s"):
        list(front._run_batch(address, slow))
    monkeypatch.setattr(front, "_patience_s", 25.0)
    assert [r.text for _, r in front._run_batch(address, [check_call("print(1)")])] == ["1"]


def test_a_lost_actor_starts_again(front):
    actor = template_processes(front)[0].parent()
    family = actor.children(recursive=True)
    answers = [front.submit(code) for code in numbers(40, 0.02)]
    actor.kill()
    assert [a.result().text for a in answers] == [str(i) for i in range(40)]
    assert family and not left_over(family)


def test_killed_node_loses_no_call(cluster, front):
    import ray

    answered = []
    futures = [front.submit(code) for code in numbers(200, 0.02)]
    for i, future in enumerate(futures):
        future.add_done_callback(lambda f, i=i: answered.append((i, f.result().text)))
    until(lambda: len(answered) >= 20)
    (lost,) = cluster.worker_nodes
    name = lost.node_id
    SEEN.extend(psutil.Process().children(recursive=True))
    cluster.remove_node(lost, allow_graceful=False)
    assert len(answered) < 200
    assert [f.result().text for f in futures] == [str(i) for i in range(200)]
    assert sorted(answered) == sorted((i, str(i)) for i in range(200))
    until(lambda: not [n for n in ray.nodes() if n["NodeID"] == name and n["Alive"]])
    for _ in range(3):  # Ray knows now that the node is dead
        assert [r.text for r in front.map(numbers(20))] == [str(i) for i in range(20)]
