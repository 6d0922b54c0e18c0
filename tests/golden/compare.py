"""Compare a checkout with a base commit, value for value.

The same probes run in both versions on this machine: all stages of the tour, RL and SFT options,
questions, the parser, the sandbox. Values must be equal to the last bit; numbers differ between CPU
types, so nothing is compared with stored values. Times, folder names, manifests and the wording of
errors are not compared; values that only the new version has are counted.

Command: PYTHONPATH=. python -m tests.golden.compare BASE [--new PATH] [--only GROUP ...]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.golden.probes import GROUPS

ROOT = Path(__file__).resolve().parents[2]


def run_probes(adapter: str, root: Path, out: Path, groups: list[str]) -> dict:
    """Run the groups in a subprocess that imports drlib from `root`."""
    # the probes come from this checkout, drlib and the caches of compiled kernels from `root`
    paths = [str(root), str(ROOT)]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    code = (
        "import sys; sys.path.insert(1, sys.argv.pop(1)); import runpy; "
        "runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    )
    probes = str(ROOT / "tests" / "golden" / "probes.py")
    data = str(ROOT / "figures" / "reference")
    command = [sys.executable, "-c", code, str(ROOT), probes, adapter, str(root), data, str(out)]
    subprocess.run([*command, *groups], cwd=root, env=environment, check=True)
    return json.loads(out.read_text())


def main() -> int:
    """Compare both versions; return 1 on any difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base")
    parser.add_argument("--new", type=Path, default=ROOT)
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS))
    args = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "base"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "-q", "--detach", str(tree), args.base], check=True)
        try:
            for group in args.only:
                old = run_probes("old", tree, Path(folder) / "old.json", [group])[group]
                new = run_probes("new", args.new.resolve(), Path(folder) / "new.json", [group])
                failed |= _report(group, old, new[group])
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
    return int(failed)


def _report(group: str, old: dict, new: dict) -> bool:
    """Print the differences of a group; return True if there are any."""
    differing = [name for name in sorted(old) if old[name] != new.get(name)]
    added = len(new.keys() - old.keys())
    print(f"{group}: {len(old)} values, {len(differing)} differ, {added} added", flush=True)
    for name in differing[:50]:
        print(f"  {name}: {old.get(name)} -> {new.get(name)}")
    return bool(differing)


if __name__ == "__main__":
    sys.exit(main())
