"""Writes figures/reference/entropy/descent.json: how the right answer's loss falls (notebook 31).

The 48 rollouts of viewer_rl.parquet under the tour's policies before and after RL. Bridges: "cut"
closes the thought and opens the answer wherever it is; "words" begins a turn in the policy's own
words, where its last turn says the right answer. `shown`: does a turn's context hold the answer in
a response? `other`: a control. Changes by class are of "cut". Both landscapes lie in one plane.

Run (a minute, equal bytes): PYTHONPATH=. python tests/benchmarks/make_descent.py
"""

import json
import re
from functools import partial
from pathlib import Path

import numpy as np
import torch

from drlib.analysis import pseudo_gradient as pg
from drlib.analysis import reflection, routing
from drlib.analysis.rescoring import rescore
from drlib.analysis.token_table import find_responses, token_statistics
from drlib.files import write_atomic
from drlib.models.moe import load_policy
from drlib.trajectory import Segment, load_trajectories

ROOT = Path(__file__).resolve().parents[2] / "figures/reference"
KINDS = ("code", "currency", "language", "territory", "script")
GRID = np.linspace(-0.5, 0.5, 11)


def flat(values) -> list:
    return np.asarray(values, float).round(5).tolist()


def describe(tokenizer, trajectories) -> list[dict]:
    """Describe the parts that no policy changes: questions, bridges, other answers, pages shown."""
    rows = []
    texts = [tokenizer.decode(t.token_ids) for t in trajectories]
    for t in trajectories:
        right = t.metadata["right_answer"]
        begins = np.flatnonzero(np.diff(t.generated * 1) > 0) + 1
        turns = begins[
            begins
            <= min(np.flatnonzero(t.generated & (t.segments == Segment.ANSWER)), default=len(t))
        ]
        seen = [t.token_ids[:n][t.segments[:n] == Segment.TOOL_RESPONSE] for n in turns]
        # an early answer ends the curve, and not all last turns say the right one
        says = len(turns) == len(begins) and right in tokenizer.decode(t.token_ids[begins[-1] :])
        words = pg.extract_bridge(tokenizer, t, right) if says else None
        rows.append(
            {
                "id": t.id,
                "question": t.metadata["question"],
                "answer": right,
                "reward": t.reward,
                "tokens": len(t),
                "responses": find_responses(t),
                "words": words,
                "turns": turns.tolist(),
                "shown": [
                    bool(re.search(rf"\b{re.escape(right)}\b", tokenizer.decode(ids)))
                    for ids in seen
                ],
            }
        )
    for i, row in enumerate(rows):
        kind = next((k for k in KINDS if k in (row["words"] or "")), "no words")
        row["other"] = next(
            (
                o["answer"]
                for o in rows[i + 1 :] + rows[:i]
                if o["words"] and kind in o["words"] and o["answer"] not in texts[i]
            ),
            None,
        )
    return rows


def measure(ask, tokenizer, t, row, forks_T, number) -> dict:
    """Losses by bridge and changes by class, of one trajectory under one policy."""
    cut = ask()
    says_T = np.zeros(len(t), bool)
    found = {
        "ends": cut.ends_P.tolist(),
        "cut": flat(cut.losses_P),
        "cut, no thoughts": flat(ask(think=False).losses_P),
    }
    words = row["words"]
    if words:
        how = dict(bridge=words, segments=())
        found |= {
            "words": flat(ask(**how).losses_P),
            "words, no thoughts": flat(ask(think=False, **how).losses_P),
            "words, other": flat(ask(answer=row["other"], **how).losses_P),
        }
        sizes = [len(tokenizer.encode(x, add_special_tokens=False)) for x in (words, row["answer"])]
        says_T[row["turns"][-1] + sizes[0] :][: sizes[1]] = True
    classes = {"fork after a response": forks_T & ~says_T, "says the answer": says_T}
    changes = pg.token_class_deltas(cut, t, classes, seed=number)
    return found | {"changes": {name: [flat(x) for x in pair] for name, pair in changes.items()}}


def main():
    torch.set_num_threads(1)
    stored = load_trajectories(ROOT / "entropy" / "viewer_rl.parquet")
    scored = {}
    out = {"grid": flat(GRID), "landscape": {}, "routing": {}}
    for name, which in (("before RL", "sft"), ("after RL", "rl")):
        model, tokenizer = load_policy(ROOT / "tour" / f"policy_{which}")
        scored[name] = some = list(rescore(model.eval(), stored, experts=True))
        rows = out.setdefault("rollouts", describe(tokenizer, some))
        table = token_statistics(some)
        marked = reflection.reflection_tokens(table, 8, share=0.2, scope="batch")
        for i, (t, row) in enumerate(zip(some, rows)):
            forks_T = np.isin(np.arange(len(t)), table.position[marked & (table.row == i)])
            row[name] = measure(
                partial(pg.pseudo_gradient, model, tokenizer, t), tokenizer, t, row, forks_T, i
            )
        few = [
            (
                t,
                row,
                *(
                    tokenizer.encode(row[key], add_special_tokens=False)
                    for key in ("answer", "words")
                ),
            )
            for t, row in zip(some, rows)
            if row["words"]
        ][:8]
        for at, place in ((0, "question"), (-1, "responses")):

            def loss(model, at=at, few=few):
                return np.mean(
                    [
                        pg.answer_losses(model, t.token_ids, [row["turns"][at]], *ids)
                        for t, row, *ids in few
                    ]
                )

            out["landscape"][f"{name}, {place}"] = flat(pg.landscape(model, loss, GRID, seed=0))
        tables = routing.compute_specialisation(some, model.config.num_experts) | {
            "load": routing.compute_load(some, model.config.num_experts),
            "entropy": routing.compute_router_entropies(model, some),
        }
        out["routing"][name] = {key: flat(values) for key, values in tables.items()}
    out["routing"]["agreement"] = flat(routing.compute_agreement(*scored.values()))
    rollouts = ",\n".join(json.dumps(row) for row in out.pop("rollouts"))
    text = f'{json.dumps(out)[:-1]}, "rollouts": [\n{rollouts}\n]}}\n'
    write_atomic(ROOT / "entropy" / "descent.json", text)


if __name__ == "__main__":
    main()
