"""Bitwise comparison of probe values between a base commit and a checkout.

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


def run_probes(adapter, root, out, groups):
    """Run the groups in a subprocess that imports drlib from root."""
    env = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{ROOT / 'tests/golden'}"}
    subprocess.run([sys.executable, str(ROOT / "tests/golden/probes.py"), adapter, str(root),
                    str(ROOT / "figures/reference"), str(out), *groups],
                   cwd=root, env=env, check=True)
    return json.loads(out.read_text())


def main():
    """Compare both versions; return 1 on any difference."""
    parser = argparse.ArgumentParser()
    parser.add_argument("base")
    parser.add_argument("--new", type=Path, default=ROOT)
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "base"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "-q", "--detach", str(tree), args.base], check=True)
        try:
            old = run_probes("adapter_old", tree, Path(folder) / "old.json", args.only)
            new = run_probes("adapter_new", args.new.resolve(), Path(folder) / "new.json", args.only)
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
    failed = False
    for group in args.only:
        names = sorted(old[group].keys() | new[group].keys())
        differing = [n for n in names if old[group].get(n) != new[group].get(n)]
        print(f"{group}: {len(names)} values, {len(differing)} differ")
        for n in differing:
            print(f"  {n}: {old[group].get(n)} -> {new[group].get(n)}")
        failed |= bool(differing)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
