"""Run an experiment on a Ray cluster: the same stages, folders and results, concurrently.

    ray start --head            on one host; on each other: ray start --address=HOST:6379
    drlib experiment run FILE --ray auto --runs /shared/runs

Every missing stage is one Ray task that depends on those of its inputs. It requests one CPU per
process, and GPUs if TRL trains on a cluster that has some. A stage shared by several runs is built
once. Runs of different arms and seeds are concurrent as far as resources allow. A stage's processes
share one node; for one stage on several nodes see `drlib.training.ray_training`.

The runs folder must be on a shared file system under the same path on every host. The driver writes
a token there, and a task that does not find it fails with this reason. The package and the modules
of `plugins` must be installed on every host. Ray restarts a task whose node dies, and it resumes
from its last checkpoint. After Ctrl-C, run the same command again.

Wall-clock seconds of runs that share a node are longer than those of single runs.
"""

import secrets
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from drlib.config import Config, absolute_paths
from drlib.experiments.plan import ExperimentPlan
from drlib.experiments.runner import build_or_say, is_finished
from drlib.registry import load_plugins
from drlib.sandbox.remote import import_extra
from drlib.training import ray_training, stages
from drlib.validation import require


def built_on_ray(
    plan: ExperimentPlan, runs: Path, address: str | None = None
) -> Iterator[tuple[str, int, str]]:
    """Build the runs on a Ray cluster and yield them as they finish, like the local runner.

    Args:
        runs: on a file system that all hosts share.
        address: cluster address ("auto": the cluster of this host); None starts Ray on this host.
            An existing connection is used.

    Raises:
        ImportError: Ray is not installed.
        ValueError: there is no cluster, or no node is large enough for a stage.
    """
    require(not plan.policies, f"{plan.name} trains policies in sequence: omit --ray")
    runs.mkdir(parents=True, exist_ok=True)
    try:
        connected = ray_training.connect_to_ray(address)
        with connected, tempfile.TemporaryDirectory(dir=runs, prefix=".plan-") as scratch:
            token = Path(scratch, "token")
            token.write_text(secrets.token_hex())
            yield from _built(plan, runs, token)
    except ValueError as fault:
        raise ValueError(str(fault).replace("--address", "--ray")) from fault


def _built(plan: ExperimentPlan, runs: Path, token: Path) -> Iterator[tuple[str, int, str]]:
    """Submit all tasks and yield each run as it ends."""
    ray = import_extra("ray")
    tasks: dict[Path, object] = {}  # a stage's folder -> the task that builds it
    waiting = {}
    for arm, seed in plan.runs():
        if is_finished(plan, arm, seed, runs):
            yield arm, seed, ""
            continue
        config = plan.config(arm, seed)
        config = config.derive(**absolute_paths(config.overrides()))  # for workers elsewhere
        work = {"config": config, "runs": runs, "token": token, "text": token.read_text()}
        for name in stages.missing_stages(f"evaluate_{plan.stage}", config, runs):
            folder = stages.folder(name, config, runs)
            if folder not in tasks:
                inputs = [stages.folder(i, config, runs) for i in stages.list_inputs(name, config)]
                before = [tasks[path] for path in inputs if path in tasks]
                task = ray.remote(_build_here).options(**_wants(name, config))
                tasks[folder] = task.remote(work | {"stage": name}, *before)
        waiting[tasks[folder]] = arm, seed
    while waiting:
        (ended,), _ = ray.wait([*waiting])
        yield *waiting.pop(ended), _outcome(ended)


def _wants(name: str, config: Config) -> dict:
    """Return the resources of a stage's task; ValueError if no node has enough."""
    ray = import_extra("ray")
    processes = config.processes if stages.STAGES[name].parallel else 1
    wants = {"CPU": processes}
    if config.trainer.backend == "trl" and ray.cluster_resources().get("GPU", 0) > 0:
        wants["GPU"] = processes
    for kind, number in wants.items():
        most = max(int(node["Resources"].get(kind, 0)) for node in ray.nodes() if node["Alive"])
        fault = f"processes={number}: no node of the cluster has so many {kind}s, at most {most}"
        require(number <= most, f"{fault}: set processes in the plan's common settings")
    return {"num_cpus": processes, "num_gpus": wants.get("GPU", 0)}


def _build_here(work: Mapping, *before: str) -> str:
    """Build one stage in subprocesses; return "" or why it or an input failed."""
    fault = next(filter(None, before), "")
    if fault:
        return fault
    token = work["token"]
    if not token.exists() or token.read_text() != work["text"]:
        return (
            f"a node cannot see what this host writes to {work['runs']}: give --runs a folder on a "
            "file system that all hosts share, under the same path"
        )
    load_plugins(work["config"].plugins)
    return build_or_say(work["stage"], work["config"], work["runs"])


def _outcome(task) -> str:
    """Return the task's result, or Ray's error if Ray lost it."""
    ray = import_extra("ray")
    try:
        return ray.get(task)
    except ray.exceptions.RayError as fault:
        return " ".join(str(fault).split())[:500]
