"""Run the commands of docs/getting_started.md ("Paths") far from the package.

A copy of the package takes the place of an installed one. The commands must leave it unchanged.

Run: python -m tests.first_hour.paths
"""

import os
import shutil
from pathlib import Path

from tests.first_hour import printed

PAGE = "getting_started.md"
ROOT = Path(__file__).resolve().parents[2]
FOLDERS = Path(__file__).with_name("folders")
POLICIES = ("policy_sft", "policy_rl")
SWEEP = """\
name: beginning
about: A policy of this folder against the one of the profile
stage: rl
profile: ci
seeds: [0]
common: {rl.steps: 1, rl.questions: 4}
control: usual
arms:
  usual: {}
  own: {rl.start: policies/own, rl.lr: 1.0e-3}
"""


def list_files(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of every file; caches of compiled code may change."""
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def main(folder: Path) -> None:
    """Run the commands and compare what they wrote with the page."""
    place, here = folder / "installed", folder / "mine"
    shutil.copytree(ROOT / "drlib", place / "drlib")
    for policy in POLICIES:
        committed = f"figures/reference/tour/{policy}"
        shutil.copytree(ROOT / committed, place / committed)
    # enough questions without the question engine, the slowest family
    shutil.copytree(FOLDERS / "company_wiki", here / "notes")
    shutil.copytree(place / "figures/reference/tour/policy_rl", here / "policies" / "own")
    (here / "sweep.yaml").write_text(SWEEP)
    before = list_files(place)

    commands = printed.find_block(PAGE, "drlib experiment run sweep").text
    path = os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    module = printed.run_command(
        "python -c 'import drlib; print(drlib.__file__)'", here, PYTHONPATH=path
    )
    assert module.stdout.strip() == str(place / "drlib" / "__init__.py")
    ended = printed.run_command(commands, here, PYTHONPATH=path)

    assert (here / "questions").is_dir() and any((here / "questions").iterdir())
    sft = [line for line in ended.stdout.splitlines() if "/sft-" in line]
    assert sft and Path(sft[0]).parent == here / "runs" / "ci" and Path(sft[0]).is_dir()
    logs = [log.name for log in (here / "runs" / "logs").iterdir()]
    assert any(name.startswith("sft-") for name in logs)
    experiments = here / "runs" / "experiments"
    assert {path.name for path in experiments.glob("beginning.*")} == {
        "beginning.parquet",
        "beginning.png",
    }
    assert "own, seed 0: finished" in ended.stdout
    assert "Norway" in (here / "answer.html").read_text(encoding="utf-8")
    names = {path.name for path in here.iterdir() if path.name != "__pycache__"}
    assert names == {
        *("notes", "policies", "sweep.yaml"),
        *("questions", "runs", "answer.html"),
    }
    assert list_files(place) == before, "the package was changed"

    # the same settings from another folder of the same disk are another path of the same world
    again = printed.run_command(
        "drlib train sft --profile ci --world.name folder:../notes --runs ../runs",
        (here / "policies"),
        PYTHONPATH=path,
    )
    assert again.stdout.strip() == f"{sft[0]}: already complete, nothing was built"


if __name__ == "__main__":
    printed.run_job(main)
