"""What an attempt has cost in tokens, read off its record, whoever made it.

Left out: money, which only a server's prices tell (`metadata["usage"]`).
"""

import numpy as np

from drlib.trajectory import Trajectory

COUNTS = ("sampled", "processed", "longest", "contexts", "calls")


def costs_of(trajectory: Trajectory) -> dict[str, int]:
    """Tokens sampled; tokens processed (all that stood in its contexts, each once; of a server, as
    it counted prompts and turns); the longest context in tokens (0 of a server's); contexts;
    calls. Of Heavy with its researchers'."""
    usage = trajectory.metadata.get("usage", {})
    lengths = [len(trajectory)]
    if trajectory.contexts is not None:
        lengths = np.bincount(trajectory.contexts).tolist()
    said = usage.get("said_tokens", 0)
    own = {
        "sampled": int(trajectory.generated.sum()) or said,
        "processed": len(trajectory) or usage.get("read_tokens", 0) + said,
        "longest": max(lengths),
        "contexts": len(lengths),
        "calls": len(trajectory.tool_results),
    }
    runs = trajectory.metadata.get("runs")
    if runs is None:
        return own
    if runs["merge"] == "vote":  # nobody merged: the trajectory is one of the runs
        own = dict.fromkeys(COUNTS, 0)
    summed = {name: own[name] + sum(part[name] for part in runs["costs"]) for name in COUNTS}
    longest = max(own["longest"], *(part["longest"] for part in runs["costs"]))
    return summed | {"longest": longest}
