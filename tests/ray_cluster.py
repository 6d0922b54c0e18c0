"""A real Ray cluster of two nodes on this machine, for tests: one CPU each, loopback only."""

import os
import shutil
import socket
import tempfile
from contextlib import contextmanager

import psutil

SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # loopback only
    "RAY_raylet_start_wait_time_s": "180",
}
AGENTS = (
    "metrics_agent_port",
    "metrics_export_port",
    "dashboard_agent_listen_port",
    "runtime_env_agent_port",
)


def free_ports():
    """Return ports for Ray's agents; a raylet waits only 15 s for one that chooses its own."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in AGENTS]
    ports = {name: s.getsockname()[1] for name, s in zip(AGENTS, sockets, strict=True)}
    for opened in sockets:
        opened.close()
    return ports


def start(folder):
    """Start a cluster of two nodes without optional services."""
    from ray.cluster_utils import Cluster

    node = {
        "num_cpus": 1,
        "include_dashboard": False,
        "object_store_memory": 80 << 20,
        "include_log_monitor": False,
        "no_monitor": True,
    }
    timing = {"health_check_period_ms": 1000, "health_check_failure_threshold": 5}
    cluster, before = Cluster(), psutil.Process().children(recursive=True)
    try:
        cluster.add_node(**node, **free_ports(), _system_config=timing, temp_dir=folder)
        cluster.add_node(**node, **free_ports())
    except BaseException:
        cluster.shutdown()
        for process in psutil.Process().children(recursive=True):
            if process not in before:
                process.kill()
        raise
    return cluster


def left_over(processes):
    """Return the processes that have not ended after 30 s."""
    _, alive = psutil.wait_procs(processes, 30)
    return [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]


@contextmanager
def two_nodes(**settings):
    """Yield the cluster; `settings` are set in the environment of its nodes."""
    settings = SETTINGS | settings
    before = {name: os.environ.get(name) for name in (*settings, "RAY_TMPDIR")}
    os.environ.update(settings)
    cluster, own = None, psutil.Process().children(recursive=True)
    try:
        for attempt in range(5):
            folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # paths of sockets must be short
            os.environ["RAY_TMPDIR"] = folder
            os.mkdir(os.path.join(folder, "ray"))  # it writes the cluster's address there
            try:
                cluster = start(folder)
                break
            except Exception as error:  # a node waits a fixed 15 s for its agents (Ray issue 65983)
                shutil.rmtree(folder, ignore_errors=True)
                if "timed out during startup" not in str(error) or attempt == 4:
                    raise
        yield cluster
    finally:
        now = psutil.Process().children(recursive=True)
        descendants = [process for process in now if process not in own]
        if cluster:
            cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    assert descendants
    left = left_over(descendants)
    assert not left, left
