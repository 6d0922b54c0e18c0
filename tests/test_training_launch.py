"""Threads of the processes that build a stage."""

import os
import subprocess
import sys

import pytest

from drlib.config import Config
from drlib.training.launch import count_threads

CORES = len(os.sched_getaffinity(0))
REAL = {"model.path": "somewhere/a-model"}
SHOW_THREADS = """
import sys, torch
from drlib.training.distributed import Ranks
Ranks(sys.argv[1])
print("threads", torch.get_num_threads())
"""


@pytest.mark.parametrize(
    ("profile", "changes", "processes", "expected"),
    [
        ("gpu1", REAL, 1, CORES),
        ("gpu1", REAL, CORES, 1),
        ("gpu1", REAL, 2 * CORES, 1),
        ("gpu8", REAL, 1, CORES),
        ("laptop", {}, 1, 1),
        ("ci", {}, 2, 1),
    ],
)
def test_real_models_share_the_cores(profile, changes, processes, expected):
    assert count_threads(Config.load(profile, **changes), processes) == expected


@pytest.mark.parametrize(
    ("variable", "expected"), [("1", 1), ("2", 2), ("3", 3), ("2,1", 2), (None, 1)]
)
def test_stage_processes_use_their_threads(variable, expected):
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    if variable:
        environment["OMP_NUM_THREADS"] = variable
    command = [sys.executable, "-c", SHOW_THREADS, "trl"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["threads", str(expected)]
