"""Scripted replies with known faults for `questions.crafting`, and figures of what checks find.

Used by the notebook on model-written questions: a real model does not reveal which of its questions
are wrong.
"""

import json
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from drlib.questions import crafting
from drlib.questions.entity_memory import EntityMemory
from drlib.questions.replies import Reply

KINDS = ("right", "answer in the question", "no subject", "other answer", "other answer and proof")
READERS = ("independent", "same mistakes")
ENDS = ("execution", "reader", "kept")  # the check that rejects a question, or none
_FACT = re.compile(r"(?m)^(\d+)\. The (.+?) of (.+?) is (.+)\.$")
_REJECTED_BY = {"": "kept", "a reader comes to another answer": "reader"}  # else: execution


class ScriptedReplies:
    """Replies of a function of system prompt and user message, in the interface of `Replies`."""

    def __init__(self, write: Callable[[str, str], str]):
        self.write = write

    def ask(self, messages: Sequence[dict[str, str]], **_options: Any) -> Reply:
        """Return the function's reply."""
        system, user = (message["content"] for message in messages)
        return Reply(self.write(system, user))

    def each(self, work: Callable, items: Iterable) -> list:
        """Apply `work` to each item, in order."""
        return [work(item) for item in items]


class Draft(NamedTuple):
    """A question of one style, with texts that identify the cited statements."""

    question: str
    answer: str
    proof: tuple[str, ...]
    expression: str = ""


def script_drafts(drafts: Mapping[str, Draft], entity: str) -> ScriptedReplies:
    """Return a model that writes these drafts about an entity and answers each by its own answer.

    Args:
        drafts: style -> draft.
        entity: entity of the prompts.
    """

    def cite(statements: str, proof: Sequence[str]) -> list[int]:
        lines = re.findall(r"(?m)^(\d+)\. (.*)$", statements)
        return [int(number) for number, text in lines if any(part in text for part in proof)]

    def write(system: str, user: str) -> str:
        if system.startswith("You write"):
            wishes = crafting.WISHES.items()
            style = next(s for s, wish in wishes if wish.format(entity=entity) in system)
            fields = drafts[style]._asdict()
            return json.dumps(fields | {"statements": cite(user, drafts[style].proof)})
        draft = next(one for one in drafts.values() if one.question == user)
        return draft.answer or str(cite(system, draft.proof))

    return ScriptedReplies(write)


def write_fact(kind: str, entity: str, statements: str) -> tuple[str, str, int, str] | None:
    """Write a fact question from numbered statements, with a fault.

    Args:
        kind: one of KINDS.
        entity: subject of the question.
        statements: the prompt's list.

    Returns:
        Question, written answer, cited statement and right answer; None without two usable facts.
    """
    found = _FACT.findall(statements)
    own = [fact for fact in found if fact[2] == entity]
    others = [fact for fact in found if own and own[0][3] not in fact[2:]]
    if not others:
        return None
    number, relation, _, right = own[0]
    subject = {"answer in the question": f"{entity}, {right}", "no subject": "it"}.get(kind, entity)
    answer = others[0][3] if kind.startswith("other") else right
    cited = others[0][0] if kind.endswith("proof") else number
    return f"What is the {relation} of {subject}?", answer, int(cited), right


def verify_fact(
    memory: EntityMemory,
    kind: str,
    entity: str,
    reader: str,
    accuracy: float = 1.0,
    seed: int = 0,
) -> str:
    """Write and verify one fact question; return one of ENDS, or "" if there is no question.

    Args:
        memory: statements.
        kind: one of KINDS.
        entity: subject of the question.
        reader: "independent" answers correctly or with a random value, "same mistakes" repeats the
            written answer.
        accuracy: probability that the independent reader answers correctly.
        seed: seed of the statements and the reader.
    """
    rng = random.Random(f"{seed}-{kind}-{entity}")
    written: list[tuple[str, str, int, str] | None] = []

    def write(system: str, user: str) -> str:
        if system.startswith("You write"):
            written.append(write_fact(kind, entity, user))
            question, answer, cited, _ = written[0] or ("", "", 0, "")
            return json.dumps({"question": question, "answer": answer, "statements": [cited]})
        assert written[0] is not None  # without a question there is no second reading
        _, answer, _, right = written[0]
        slips = rng.random() >= accuracy
        own = rng.choice(_FACT.findall(system))[3] if slips else right
        return own if reader == "independent" else answer

    model: Any = ScriptedReplies(write)
    (one,) = crafting.craft(memory, [(entity, "fact")], model, seed=seed)
    return _REJECTED_BY.get(one.reason, "execution") if written[0] else ""


def precision(e: Any, d: float, c: float, f: float = 0.0) -> Any:
    """Return the share of right questions among those that two checks keep.

    Args:
        e: share of wrong questions, a number or an array.
        d: share of the wrong ones that execution rejects.
        c: share of the remaining wrong ones that the reader agrees with.
        f: share of the right ones that are rejected.
    """
    right, wrong = (1 - e) * (1 - f), e * (1 - d) * c
    return right / (right + wrong)


def plot_ends(ax: Axes, shares: Mapping[str, np.ndarray]) -> None:
    """Plot where the questions of each kind end, in percent.

    Args:
        ax: axes to draw into.
        shares: kind -> shares of ENDS.
    """
    left = np.zeros(len(shares))
    for number, (end, color) in enumerate(zip(ENDS, ("C0", "C4", "0.8"))):
        width = np.array([100 * row[number] for row in shares.values()])
        label = "kept" if end == "kept" else f"rejected by {end}"
        ax.barh(range(len(shares)), width, left=left, color=color, label=label)
        left = left + width
    ax.set_yticks(range(len(shares)), list(shares))
    ax.set(xlabel="questions, %", ylim=(len(shares) - 0.5, -0.5))


def plot_precision(ax: Axes, arms: Mapping[str, Mapping[str, float]]) -> None:
    """Plot the precision against the share of wrong questions, and the precision without a check.

    Args:
        ax: axes to draw into.
        arms: name -> d, c and f of `precision`.
    """
    e = np.linspace(0, 0.9, 50)
    for number, (name, numbers) in enumerate(arms.items()):
        ax.plot(100 * e, 100 * precision(e, **numbers), color=("C0", "C4")[number], label=name)
    ax.plot(100 * e, 100 * (1 - e), "k:", label="no check")
    ax.set(xlabel="wrong questions written, %", ylabel="right among the kept, %", ylim=(0, 102))


def plot_checks(d: float, c: float) -> Figure:
    """Plot the precision of two checks with these numbers."""
    fig, ax = plt.subplots(figsize=(6, 3.2), layout="constrained")
    plot_precision(ax, {f"d = {d}, c = {c}": {"d": d, "c": c}})
    fig.legend(loc="outside upper center", ncols=2)
    return fig


def plot_verification(
    shares: Mapping[tuple[str, str], np.ndarray], measured: Mapping[str, Mapping[str, float]]
) -> Figure:
    """Plot the ends of all kinds for both readers, and the precision.

    Args:
        shares: (kind, reader) -> shares of ENDS.
        measured: reader -> d, c and f.
    """
    fig, axes = plt.subplots(1, 3, figsize=(12, 3.9), layout="constrained")
    for ax, reader in zip(axes, READERS):
        plot_ends(ax, {kind: shares[kind, reader] for kind in KINDS})
        ax.set_title(f"Reader: {reader}")
    axes[1].set_yticklabels([])
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=3)
    names = {"independent": "both checks", "same mistakes": "execution alone"}
    plot_precision(axes[2], {names[reader]: measured[reader] for reader in READERS})
    axes[2].set_title("Equation (1)")
    fig.legend(*axes[2].get_legend_handles_labels(), loc="outside upper right", ncols=3)
    return fig
