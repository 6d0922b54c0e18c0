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
from drlib.analysis.rendering import TINTS, UNSEEN, visible
from drlib.analysis.token_table import TrajectorySource, outcome, responses, status_of, token_texts
from drlib.chat import load_any_tokenizer
from drlib.checks import require
from drlib.files import write_whole
from drlib.trajectory import Termination, Trajectory

TEMPLATE, SCRIPT = (Path(__file__).with_name(f"viewer.{end}") for end in ("html", "js"))
TOOLS = ("all ok", "some error", "some empty", "no calls")  # what the tool filter offers
_FULL = 0.995  # the quantile of all values that gets the full colour
_REMEDY = "run one file through both checkpoints (rescoring.rescore) and compare those"


def page(
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
    tokenizer = load_any_tokenizer(tokenizer) if isinstance(tokenizer, str | Path) else tokenizer
    sources = [source] if compare is None else [source, compare]
    paths = [Path(some) for some in sources if isinstance(some, str | Path)]
    sets = [
        list(read_rollouts(some, tokenizer)) if isinstance(some, str | Path) else list(some)
        for some in sources
    ]
    require(bool(sets[0]), "no trajectories to view: the set is empty")
    if compare is not None:
        _check_same(*sets)
    used = [t.token_ids for t in sets[0]]
    used += [t.top_ids.ravel() for some in sets for t in some if t.top_ids is not None]
    ids = np.unique(np.concatenate(used))
    ids = ids[ids >= 0]  # -1 stands where there is no alternative
    stems, rows, both = [path.stem for path in paths], [_row(t) for t in sets[0]], [*zip(*sets)]
    measures = [_measure(some) for some in both]
    found = Counter(name for row in rows for name in (row["outcome"], *row["status"]))
    ends = sorted({row["outcome"] for row in rows} - {"right", "wrong"})
    head = {
        "names": stems if len({*stems}) == 2 else ["first", "second"][: len(sets)],
        "texts": [f"#{i}" for i in ids] if tokenizer is None else [*token_texts(tokenizer, ids)],
        "ids": ids.tolist(),
        "rows": rows,
        "scale": _scale(both, measures),
        "unseen": UNSEEN.pattern,
        "filters": {
            group: [(name, found[name]) for name in names if found[name]]
            for group, names in (("outcome", ("right", "wrong", *ends)), ("status", TOOLS))
        },
    }
    parts = [_part(some, measure, ids) for some, measure in zip(both, measures)]
    return _fill(title or (paths[0].name if paths else "Trajectories"), head, parts)


def write_page(out: str | Path, source: TrajectorySource, tokenizer=None, **how) -> Path:
    """Write `page(...)` to the file `out`; `how`: its `compare` and `title`."""
    return save(out, page(source, tokenizer, **how))


def save(out: str | Path, text: str) -> Path:
    """Write a page, whole or not at all."""
    return write_whole(out, text)


def _check_same(first: list[Trajectory], second: list[Trajectory]) -> None:
    for a, b in zip_longest(first, second):
        first_id, second_id = ("nothing" if t is None else repr(t.id) for t in (a, b))
        require(
            first_id == second_id,
            f"the first set has {first_id} where the second has {second_id}: {_REMEDY}",
        )
        same = np.array_equal(a.token_ids, b.token_ids)
        require(same, f"trajectory {first_id} has other tokens in the second set: {_REMEDY}")


# ---------------------------------------------------------------------------------------------
# one trajectory


def verdict(t: Trajectory) -> str:
    """right, wrong, unjudged, or how it ended without an answer."""
    judged = outcome(t)
    if judged != 1 and t.answer is None and t.termination != Termination.ANSWERED:
        return f"no answer ({t.termination.value})"
    return {1.0: "right", 0.0: "wrong"}.get(judged, "unjudged")


def _row(t: Trajectory) -> dict:
    """What the list shows of it; `status` is what the tool filter looks at."""
    count, calls = Counter(map(status_of, t.tool_results)), len(t.tool_results)
    fits = (calls and count["ok"] == calls, count["error"], count["empty"], not calls)
    values, about = _known(t, "entropies"), t.metadata
    return {
        "id": t.id,
        "question": str(about.get("question") or ""),
        "answer": t.answer or "",
        "expected": str(about.get("right_answer") or ""),
        "outcome": verdict(t),
        "tokens": len(t),
        "calls": calls,
        "errors": count["error"],
        "empties": count["empty"],
        "mean": float(values.mean()) if len(values) else None,
        "status": [name for name, fit in zip(TOOLS, fits) if fit],
    }


def _known(t: Trajectory, name: str) -> np.ndarray:
    values = getattr(t, name)
    values = np.empty(0) if values is None else values[t.generated].astype(np.float64)
    return values[np.isfinite(values)]


def _measure(some: tuple[Trajectory, ...]) -> str:
    """What the colours can show: known, at least in part, for each of the compared."""
    for measure, name in (("entropy", "entropies"), ("surprisal", "logprobs")):
        if all(len(_known(t, name)) for t in some):
            return measure
    return ""


def _scale(both: list[tuple[Trajectory, ...]], measures: list[str]) -> dict[str, list[float]]:
    """By measure, the value (nats) that gets the full colour, and the difference that does."""
    scale = {}
    for measure in sorted({*measures} - {""}):
        chosen = [some for some, m in zip(both, measures) if m == measure]
        sides = [
            np.concatenate(
                [(t.entropies if measure == "entropy" else -t.logprobs)[t.generated] for t in side]
            )
            for side in zip(*chosen)
        ]
        caps = [
            np.quantile(np.append(side[np.isfinite(side)], 0), _FULL, method="lower")
            for side in (np.concatenate(sides), abs(sides[-1] - sides[0]))
        ]
        scale[measure] = [float(f"{max(cap, 0.01):.2g}") for cap in caps]
    return scale


def _part(some: tuple[Trajectory, ...], measure: str, ids: np.ndarray) -> dict:
    """The columns of one trajectory, with a side for each checkpoint."""
    t = some[0]
    return {
        "measure": measure,
        "events": _events(t),
        "ids": _pack(np.searchsorted(ids, t.token_ids)),
        "turns": _pack(t.turns),
        "segments": _pack(t.segments),
        "generated": _pack(t.generated),
        "sides": [_side(one, ids) for one in some],
    }


def _events(t: Trajectory) -> list[dict]:
    """The tool results in order with the tokens of each, that which ends a trajectory included."""
    spans, n = [span[:2] for span in responses(t)], len(t)
    after = int(np.flatnonzero(t.generated).max(initial=-1)) + 1  # what nothing was sampled after
    spans += [(after, n)] * (after < n and len(spans) < len(t.tool_results))
    spans += [(n, n)] * (len(t.tool_results) - len(spans))  # cut off before they could be read
    return [
        {
            "start": start,
            "end": end,
            "tool": r.tool,
            "status": status_of(r),
            "error": "" if r.ok else r.error or "",
        }
        for (start, end), r in zip(spans, t.tool_results)
    ]


def _side(t: Trajectory, ids: np.ndarray) -> dict:
    side = {"logprob": _pack(t.logprobs[t.generated])}
    side["entropy"] = None if t.entropies is None else _pack(t.entropies[t.generated])
    if t.top_ids is not None:
        top, logp = t.top_ids[t.generated], t.top_logprobs[t.generated]
        place = np.where(top < 0, 0, np.searchsorted(ids, top))
        side["top"] = [top.shape[1], _pack(place), _pack(np.where(top < 0, -np.inf, logp))]
    if t.routed_experts is not None:
        side["experts"] = [*t.routed_experts.shape[1:], _pack(t.routed_experts)]
    return side


def _pack(values: np.ndarray) -> tuple[str, str]:
    """(kind, base64): float16, or the smallest unsigned integers that hold the values."""
    fits = (f"u{n}" for n in (1, 2, 4) if values.max(initial=0) < 256**n)
    kind = "f2" if values.dtype.kind == "f" else next(fits)
    return kind, base64.b64encode(values.astype(f"<{kind}").tobytes()).decode()


# ---------------------------------------------------------------------------------------------
# the page


def _json(value) -> str:
    """JSON that can stand in a script element whatever its texts are; ASCII, so no U+2028."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return re.sub("[<>&]", lambda found: f"\\u{ord(found[0]):04x}", text)


def _fill(title: str, head: dict, parts: list[dict]) -> str:
    script = SCRIPT.read_text(encoding="utf-8")
    values = {
        "TITLE": html.escape(visible(title)),
        "SET": _json(head),
        "SCRIPT": script,
        "PARTS": "\n".join(
            f'<script type="application/json" class="part">{_json(part)}</script>' for part in parts
        ),
        "HASH": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "TINTS": " ".join(f"--{name}: {tint};" for name, tint in TINTS.items()),
    }
    template = TEMPLATE.read_text(encoding="utf-8")  # is filled in one pass
    return re.sub("@@([A-Z]+)@@", lambda found: values[found[1]], template)
