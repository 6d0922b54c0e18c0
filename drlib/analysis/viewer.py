"""Trajectories as one HTML page that needs nothing else: list, filters, entropy token by token.

The page is `viewer.html` with `viewer.js` and the trajectories in it: a JSON element for the list,
and one for each trajectory, decoded when it is opened. Columns are base64 of little-endian arrays:
float16 for log-probabilities and entropies (three digits, which is what is shown), the smallest
unsigned integers for the rest; of sampled tokens only where others have none. NaN is "not known".

Whatever pages and policies wrote is inert: JSON is ASCII with `<`, `>` and `&` escaped, the page
makes text nodes only, and its security policy allows one script (by hash) and no request. Nor does
it re-order what stands beside it: unseen characters are drawn as boxes with their numbers, and each
text is isolated, of a trajectory's tokens those that are written from right to left. Equal
trajectories give equal bytes. Left out: sets larger than memory, editing, notes.
"""

import base64
import hashlib
import html
import json
import re
from collections import Counter
from itertools import zip_longest
from pathlib import Path

import numpy as np

from drlib.analysis.inputs import read_rollouts
from drlib.analysis.rendering import TINTS, UNSEEN, escape_unseen
from drlib.analysis.token_table import TrajectorySource, find_responses, get_status, judge_outcome
from drlib.chat.segments import token_texts
from drlib.chat.template import load_any_tokenizer
from drlib.files import write_atomic
from drlib.trajectory import Termination, Trajectory
from drlib.validation import require

TEMPLATE = Path(__file__).with_name("viewer.html")
SCRIPT = Path(__file__).with_name("viewer.js")
TOOL_FILTERS = ("all ok", "some error", "some empty", "no calls")
_FULL_COLOUR_QUANTILE = 0.995  # the quantile of all values that gets the full colour
_SAME_FILE = "run one file through both checkpoints (rescoring.rescore) and compare those"
Sides = tuple[Trajectory, ...]  # one trajectory under each checkpoint


def viewer_page(
    source: TrajectorySource,
    tokenizer=None,
    *,
    compare: TrajectorySource | None = None,
    title: str = "",
) -> str:
    """The page of a rollout file (of any format in `inputs`), or of trajectories.

    tokenizer: of the model that made them, or its folder; with None, ids are shown as #123.
    compare: the same tokens under another checkpoint. title: the name of the file by default.

    ValueError: no trajectories, other trajectories in `compare`, ids of another tokenizer.
    """
    if isinstance(tokenizer, str | Path):
        tokenizer = load_any_tokenizer(tokenizer)
    sources = [source] if compare is None else [source, compare]
    sets = [
        list(read_rollouts(some, tokenizer)) if isinstance(some, str | Path) else list(some)
        for some in sources
    ]
    require(bool(sets[0]), "no trajectories to view: the set is empty")
    if compare is not None:
        _check_same(*sets)
    ids = _find_used_ids(sets)
    texts = [f"#{i}" for i in ids] if tokenizer is None else [*token_texts(tokenizer, ids)]
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
    """Write a page, whole or not at all."""
    return write_atomic(out, text)


def _find_used_ids(sets: list[list[Trajectory]]) -> np.ndarray:
    """The ids of all tokens and alternatives, ascending; those of the first set stand for both."""
    used = [t.token_ids for t in sets[0]]
    used += [t.top_ids.ravel() for some in sets for t in some if t.top_ids is not None]
    ids = np.unique(np.concatenate(used))
    return ids[ids >= 0]  # -1 stands where there is no alternative


def _name_checkpoints(files: list[Path], sets: int) -> list[str]:
    """Return a short name for each checkpoint: its file name if that is unique."""
    stems = [path.stem for path in files]
    return stems if len({*stems}) == 2 else ["first", "second"][:sets]


def _build_filters(rows: list[dict]) -> dict[str, list[tuple[str, int]]]:
    """Return the filters of the list, each with its number of rows."""
    found = Counter(name for row in rows for name in (row["outcome"], *row["status"]))
    unanswered = sorted({row["outcome"] for row in rows} - {"right", "wrong"})
    offered = {"outcome": ("right", "wrong", *unanswered), "status": TOOL_FILTERS}
    return {
        group: [(name, found[name]) for name in names if found[name]]
        for group, names in offered.items()
    }


def _check_same(first: list[Trajectory], second: list[Trajectory]) -> None:
    for a, b in zip_longest(first, second):
        first_id = "nothing" if a is None else repr(a.id)
        second_id = "nothing" if b is None else repr(b.id)
        require(
            first_id == second_id,
            f"the first set has {first_id} where the second has {second_id}: {_SAME_FILE}",
        )
        same = np.array_equal(a.token_ids, b.token_ids)
        require(same, f"trajectory {first_id} has other tokens in the second set: {_SAME_FILE}")


# ---------------------------------------------------------------------------------------------
# one trajectory


def name_outcome(t: Trajectory) -> str:
    """right, wrong, unjudged, or how it ended without an answer."""
    judged = judge_outcome(t)
    if judged != 1 and t.answer is None and t.termination != Termination.ANSWERED:
        return f"no answer ({t.termination.value})"
    return {1.0: "right", 0.0: "wrong"}.get(judged, "unjudged")


def _build_row(t: Trajectory) -> dict:
    """Return a row of the list; `status` is used by the tool filter."""
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
    """The finite values of `entropies` or `logprobs` at sampled tokens."""
    values = getattr(t, name)
    if values is None:
        return np.empty(0)
    sampled = values[t.generated].astype(np.float64)
    return sampled[np.isfinite(sampled)]


def _choose_measure(sides: Sides) -> str:
    """Return the measure that every checkpoint has at least in part, or ""."""
    for measure, name in (("entropy", "entropies"), ("surprisal", "logprobs")):
        if all(len(_get_finite(t, name)) for t in sides):
            return measure
    return ""


def _build_scale(trajectories: list[Sides], measures: list[str]) -> dict[str, list[float]]:
    """By measure, the value (nats) that gets the full colour, and the difference that does."""
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
    values = t.entropies if measure == "entropy" else -t.logprobs
    return values[t.generated]


def _compute_full_colour(values: np.ndarray) -> float:
    """A high quantile of the finite values, in two digits; never 0."""
    finite = np.append(values[np.isfinite(values)], 0)
    cap = np.quantile(finite, _FULL_COLOUR_QUANTILE, method="lower")
    return float(f"{max(cap, 0.01):.2g}")


def _pack_trajectory(sides: Sides, measure: str, ids: np.ndarray) -> dict:
    """The columns of one trajectory, with a side for each checkpoint."""
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
    """The tool results in order with the tokens of each, that which ends a trajectory included."""
    spans = [(start, end) for start, end, _ in find_responses(t)]
    end_of_sampling = int(np.flatnonzero(t.generated).max(initial=-1)) + 1
    if end_of_sampling < len(t) and len(spans) < len(t.tool_results):
        spans.append((end_of_sampling, len(t)))  # read, but nothing was sampled after it
    while len(spans) < len(t.tool_results):
        spans.append((len(t), len(t)))  # cut off before it could be read
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
    """Return a checkpoint's values for sampled tokens, and its experts for all tokens."""
    side = {
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
    """(kind, base64): float16, or the smallest unsigned integers that hold the values."""
    if values.dtype.kind == "f":
        kind = "f2"
    else:
        kind = next(f"u{n}" for n in (1, 2, 4) if values.max(initial=0) < 256**n)
    return kind, base64.b64encode(values.astype(f"<{kind}").tobytes()).decode()


# ---------------------------------------------------------------------------------------------
# the page


def _to_script_json(value) -> str:
    """JSON that can stand in a script element whatever its texts are; ASCII, so no U+2028."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return re.sub("[<>&]", lambda found: f"\\u{ord(found[0]):04x}", text)


def _fill_template(title: str, head: dict, parts: list[dict]) -> str:
    script = SCRIPT.read_text(encoding="utf-8")
    values = {
        "TITLE": html.escape(escape_unseen(title)),
        "SET": _to_script_json(head),
        "SCRIPT": script,
        "PARTS": "\n".join(
            f'<script type="application/json" class="part">{_to_script_json(part)}</script>'
            for part in parts
        ),
        "HASH": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "TINTS": " ".join(f"--{name}: {tint};" for name, tint in TINTS.items()),
    }
    template = TEMPLATE.read_text(encoding="utf-8")  # is filled in one pass
    return re.sub("@@([A-Z]+)@@", lambda found: values[found[1]], template)
