"""Trajectory viewer: one self-contained HTML page with a list, filters and token entropies.

The page is `viewer.html` with `viewer.js` and embedded data: a JSON element for the list, and one
per trajectory that is decoded when opened. Columns are base64 of little-endian arrays: float16 for
log-probabilities and entropies (three digits, as displayed), the smallest unsigned integers for the
rest. NaN is an unknown value.

Texts of pages and policies cannot run: JSON is ASCII with `<`, `>` and `&` escaped, the page
creates text nodes only, and its content security policy allows one script (by hash) and no
requests. Invisible characters are drawn as boxes with code points, and right-to-left texts are
isolated. Equal trajectories give equal bytes. Not supported: sets larger than memory, editing.
"""

import base64
import hashlib
import html
import json
import re
from collections import Counter
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from drlib.analysis.inputs import read_rollouts
from drlib.analysis.rendering import TINTS, UNSEEN, escape_unseen
from drlib.analysis.rollout_formats import decode_ids
from drlib.analysis.row_files import repair_text
from drlib.analysis.token_table import TrajectorySource, find_responses, get_status, judge_outcome
from drlib.chat.template import load_any_tokenizer
from drlib.files import write_atomic
from drlib.trajectory import Termination, Trajectory
from drlib.validation import require

TEMPLATE = Path(__file__).with_name("viewer.html")
SCRIPT = Path(__file__).with_name("viewer.js")
TOOL_FILTERS = ("all ok", "some error", "some empty", "no calls")
_FULL_COLOUR_QUANTILE = 0.995  # quantile of the values that gets the full colour
_SAME_FILE = "rescore one file with both checkpoints (rescoring.rescore) and compare the results"
Sides = tuple[Trajectory, ...]  # one trajectory under each checkpoint


def viewer_page(
    source: TrajectorySource,
    tokenizer=None,
    *,
    compare: TrajectorySource | None = None,
    title: str = "",
) -> str:
    """Return the HTML page of a rollout file or of trajectories.

    Args:
        source: file in any format of `inputs`, or trajectories.
        tokenizer: tokenizer of the model, or its folder; without one, ids are shown as #123.
        compare: the same tokens rescored with another checkpoint.
        title: title of the page; default: file name.

    Raises:
        ValueError: no trajectories, different trajectories in `compare`, or ids outside the
            tokenizer's vocabulary.

    """
    if isinstance(tokenizer, str | Path):
        tokenizer = load_any_tokenizer(tokenizer)
    sources = [source] if compare is None else [source, compare]
    sets = [
        list(read_rollouts(some, tokenizer)) if isinstance(some, str | Path) else list(some)
        for some in sources
    ]
    require(bool(sets[0]), "no trajectories to view; pass at least one")
    if compare is not None:
        _check_same(*sets)
    ids = _find_used_ids(sets)
    texts = [f"#{i}" for i in ids] if tokenizer is None else [*decode_ids(tokenizer, ids)]
    rows = [_build_row(t) for t in sets[0]]
    trajectories = [*zip(*sets)]
    measures = [_choose_measure(sides) for sides in trajectories]
    files = [Path(some) for some in sources if isinstance(some, str | Path)]
    head = {
        "names": _name_checkpoints(files, len(sets)),
        "texts": texts,
        "ids": ids.tolist(),
        "rows": rows,
        "scale": _build_scale(trajectories, measures),
        "unseen": UNSEEN.pattern,
        "filters": _build_filters(rows),
    }
    parts = [
        _pack_trajectory(sides, measure, ids) for sides, measure in zip(trajectories, measures)
    ]
    return _fill_template(title or (files[0].name if files else "Trajectories"), head, parts)


def save_page(out: str | Path, text: str) -> Path:
    """Write a page atomically and return its path."""
    return write_atomic(out, text)


def _find_used_ids(sets: list[list[Trajectory]]) -> np.ndarray:
    """Return the ids of all tokens and alternatives, ascending; all sets have equal tokens."""
    used = [t.token_ids for t in sets[0]]
    used += [t.top_ids.ravel() for some in sets for t in some if t.top_ids is not None]
    ids = np.unique(np.concatenate(used))
    return ids[ids >= 0]  # -1 is a missing alternative


def _name_checkpoints(files: list[Path], sets: int) -> list[str]:
    """Return a short name for each checkpoint: its file name if unique."""
    stems = [path.stem for path in files]
    return stems if len({*stems}) == 2 else ["first", "second"][:sets]


def _build_filters(rows: list[dict]) -> dict[str, list[tuple[str, int]]]:
    """Return the filters of the list with their numbers of rows, by group."""
    found = Counter(name for row in rows for name in (row["outcome"], *row["status"]))
    unanswered = sorted({row["outcome"] for row in rows} - {"right", "wrong"})
    names_by_group = {"outcome": ("right", "wrong", *unanswered), "status": TOOL_FILTERS}
    return {
        group: [(name, found[name]) for name in names if found[name]]
        for group, names in names_by_group.items()
    }


def _check_same(first: list[Trajectory], second: list[Trajectory]) -> None:
    """Raise ValueError unless both sets have the same ids and tokens."""
    for a, b in zip_longest(first, second):
        first_id = "nothing" if a is None else repr(a.id)
        second_id = "nothing" if b is None else repr(b.id)
        require(
            first_id == second_id,
            f"the first set has {first_id} where the second has {second_id}: {_SAME_FILE}",
        )
        same = np.array_equal(a.token_ids, b.token_ids)
        require(same, f"trajectory {first_id} has different tokens in the second set: {_SAME_FILE}")


# ---------------------------------------------------------------------------------------------
# one trajectory


def name_outcome(t: Trajectory) -> str:
    """Return "right", "wrong", "unjudged", or "no answer" with the termination."""
    judged = judge_outcome(t)
    if judged != 1 and t.answer is None and t.termination != Termination.ANSWERED:
        return f"no answer ({t.termination.value})"
    return {1.0: "right", 0.0: "wrong"}.get(judged, "unjudged")


def _build_row(t: Trajectory) -> dict:
    """Return a row of the list; `status` has the tool filters that it passes."""
    count = Counter(map(get_status, t.tool_results))
    calls = len(t.tool_results)
    holds = {
        "all ok": calls and count["ok"] == calls,
        "some error": count["error"],
        "some empty": count["empty"],
        "no calls": not calls,
    }
    entropies = _get_finite(t, "entropies")
    about = t.metadata
    return {
        "id": t.id,
        "question": str(about.get("question") or ""),
        "answer": t.answer or "",
        "expected": str(about.get("right_answer") or ""),
        "outcome": name_outcome(t),
        "tokens": len(t),
        "calls": calls,
        "errors": count["error"],
        "empties": count["empty"],
        "mean": float(entropies.mean()) if len(entropies) else None,
        "status": [name for name in TOOL_FILTERS if holds[name]],
    }


def _get_finite(t: Trajectory, name: str) -> np.ndarray:
    """Return the finite values of `entropies` or `logprobs` at sampled tokens, float64."""
    values = getattr(t, name)
    if values is None:
        return np.empty(0)
    sampled = values[t.generated].astype(np.float64)
    return sampled[np.isfinite(sampled)]


def _choose_measure(sides: Sides) -> str:
    """Return the first measure with finite values in every checkpoint, or ""."""
    for measure, name in (("entropy", "entropies"), ("surprisal", "logprobs")):
        if all(len(_get_finite(t, name)) for t in sides):
            return measure
    return ""


def _build_scale(trajectories: list[Sides], measures: list[str]) -> dict[str, list[float]]:
    """Return the value and the difference (nats) with the full colour, by measure."""
    scale = {}
    for measure in sorted({*measures} - {""}):
        chosen = [sides for sides, m in zip(trajectories, measures) if m == measure]
        by_checkpoint = [
            np.concatenate([_get_sampled_values(t, measure) for t in side]) for side in zip(*chosen)
        ]
        values = np.concatenate(by_checkpoint)
        differences = abs(by_checkpoint[-1] - by_checkpoint[0])
        scale[measure] = [_compute_full_colour(values), _compute_full_colour(differences)]
    return scale


def _get_sampled_values(t: Trajectory, measure: str) -> np.ndarray:
    """Return the entropies or surprisals of sampled tokens, nats."""
    values = t.entropies if measure == "entropy" else -t.logprobs
    return values[t.generated]


def _compute_full_colour(values: np.ndarray) -> float:
    """Return a high quantile of the finite values with two digits; at least 0.01."""
    finite = np.append(values[np.isfinite(values)], 0)
    cap = np.quantile(finite, _FULL_COLOUR_QUANTILE, method="lower")
    return float(f"{max(cap, 0.01):.2g}")


def _pack_trajectory(sides: Sides, measure: str, ids: np.ndarray) -> dict:
    """Return the columns of one trajectory, with one side per checkpoint."""
    t = sides[0]
    return {
        "measure": measure,
        "events": _list_events(t),
        "ids": _pack(np.searchsorted(ids, t.token_ids)),
        "turns": _pack(t.turns),
        "segments": _pack(t.segments),
        "generated": _pack(t.generated),
        "sides": [_pack_checkpoint(one, ids) for one in sides],
    }


def _list_events(t: Trajectory) -> list[dict]:
    """Return the tool results with their token spans, including one at the end."""
    spans = [(start, end) for start, end, _ in find_responses(t)]
    end_of_sampling = int(np.flatnonzero(t.generated).max(initial=-1)) + 1
    if end_of_sampling < len(t) and len(spans) < len(t.tool_results):
        spans.append((end_of_sampling, len(t)))  # observed, but followed by no sampled token
    while len(spans) < len(t.tool_results):
        spans.append((len(t), len(t)))  # truncated before the response
    return [
        {
            "start": start,
            "end": end,
            "tool": r.tool,
            "status": get_status(r),
            "error": "" if r.ok else r.error or "",
        }
        for (start, end), r in zip(spans, t.tool_results)
    ]


def _pack_checkpoint(t: Trajectory, ids: np.ndarray) -> dict:
    """Return the values of a checkpoint at sampled tokens, and its experts at all tokens."""
    side: dict[str, Any] = {
        "logprob": _pack(t.logprobs[t.generated]),
        "entropy": None if t.entropies is None else _pack(t.entropies[t.generated]),
    }
    if t.top_ids is not None:
        top_NK = t.top_ids[t.generated]
        missing_NK = top_NK < 0
        place_NK = np.where(missing_NK, 0, np.searchsorted(ids, top_NK))
        logp_NK = np.where(missing_NK, -np.inf, t.top_logprobs[t.generated])
        side["top"] = [top_NK.shape[1], _pack(place_NK), _pack(logp_NK)]
    if t.routed_experts is not None:
        side["experts"] = [*t.routed_experts.shape[1:], _pack(t.routed_experts)]
    return side


def _pack(values: np.ndarray) -> tuple[str, str]:
    """Encode values as float16 or the smallest unsigned integers: (kind, base64)."""
    if values.dtype.kind == "f":
        kind = "f2"
    else:
        kind = next(f"u{n}" for n in (1, 2, 4) if values.max(initial=0) < 256**n)
    return kind, base64.b64encode(values.astype(f"<{kind}").tobytes()).decode()


# ---------------------------------------------------------------------------------------------
# the page


def _to_script_json(value) -> str:
    """Convert to JSON that is safe in a script element: ASCII, with <, > and & escaped."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return re.sub("[<>&]", lambda found: f"\\u{ord(found[0]):04x}", text)


def _fill_template(title: str, head: dict, parts: list[dict]) -> str:
    """Fill the page template."""
    script = SCRIPT.read_text(encoding="utf-8")
    values = {
        "TITLE": html.escape(escape_unseen(repair_text(title))),
        "SET": _to_script_json(head),
        "SCRIPT": script,
        "PARTS": "\n".join(
            f'<script type="application/json" class="part">{_to_script_json(part)}</script>'
            for part in parts
        ),
        "HASH": hash_script(script),
        "TINTS": " ".join(f"--{name}: {tint};" for name, tint in TINTS.items()),
    }
    return fill_placeholders(TEMPLATE.read_text(encoding="utf-8"), values)


def hash_script(script: str) -> str:
    """Return the hash under which a content security policy allows an inline script."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def fill_placeholders(template: str, values: dict[str, str]) -> str:
    """Replace @@NAME@@ in one pass, so that values are not substituted again."""
    return re.sub("@@([A-Z]+)@@", lambda found: values[found[1]], template)
