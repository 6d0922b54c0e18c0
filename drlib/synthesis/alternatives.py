"""Steps beside the real one that only a reader tells apart, for AgentFounder's higher-order rows.

`Teacher` offers names from anywhere in the world. A rule that looks whether the name of an option
was mentioned before then finds the real step in 99% of the decisions, and that rule is all that the
rows can teach. Here an option has the form of the real step (a malformed call stays malformed), a
relation and a name that have been read as well, and asks for something else: which of the things
that were read is the next one, only the question decides. A tiny policy gains nothing by it: with
these rows its cold start answers 5.9 points fewer of the held-out search questions, sampled, than
with the others (three seeds; figures/reference/findings/has_close.json).

Left out: alternatives that would be right too (the same look-up in other words is none; a program
with two numbers swapped may come to the same).
"""

import itertools
import json
import random
import re
from collections.abc import Sequence

from drlib.chat.tool_calls import ToolCall, parse, render_call
from drlib.synthesis.families.agentfounder import Teacher
from drlib.synthesis.oracle import FIRST, HOLDER, NEXT
from drlib.synthesis.wording import says

_NUMBER = re.compile(r"\d+")
_OPERATION = re.compile(r"(?<=[\d) ])[+*-](?=[\d( ])")
OPEN = "<think>"
CLOSE = "</think>"


class CloseTeacher(Teacher):
    """A teacher whose alternatives are of what has been read."""

    def alternatives(
        self, messages: Sequence[dict], step: str, n: int, rng: random.Random
    ) -> list[str]:
        """`n` others that ask for something else, all different. What has been read is the question
        and the last response. ValueError: there are not so many."""
        read = "\n".join(message["content"] for message in (messages[0], messages[-1]))
        thought, _, call = step.partition(CLOSE)
        action = parse(step)
        if isinstance(action, ToolCall) and action.name == "python":
            programs = _other_programs(str(action.arguments.get("code")), n)
            calls = [render_call("python", {"code": program}) for program in programs]
            found = [f"{thought}{CLOSE}{call}" for call in calls]
        else:
            found = self._other_look_ups(thought.removeprefix(OPEN), call, read, n, rng)
        if len(found) < n:
            raise ValueError(f"found {len(found)} alternatives of {n} to {step!r}")
        return rng.sample(found, n)

    def _other_look_ups(
        self, thought: str, call: str, read: str, n: int, rng: random.Random
    ) -> list[str]:
        """Turns with another (relation, name) than this one's: both read where there are enough of
        those, else a relation or at last a name that was not."""
        named = self.relation.search(thought)
        relation, name = named[0] if named else "", _searched(call)
        relations = dict.fromkeys(self.relation.findall(read)) if named else {"": None}
        every_relation = self.relations if named else []
        every_name = self.names if name else [""]  # an empty query stays one
        names = [one for one in every_name if says(read, one)] or [name]
        pairs: dict[tuple[str, str], None] = {}
        wider = (relations, names), (every_relation, names), (relations, every_name)
        for some_relations, some_names in wider:
            if len(pairs) < n:
                pairs |= dict.fromkeys(itertools.product(some_relations, some_names))
                pairs.pop((relation, name), None)
        return [
            f"{OPEN}{_reworded(thought, relation, other, rng)}{CLOSE}"
            f"{call.replace(_quoted(name), _quoted(other_name)) if name else call}"
            for other, other_name in pairs
        ]


def _searched(call: str) -> str:
    """The name that a call searches for, in the list that it should be or outside of one."""
    action = parse(call)
    query = action.arguments.get("query") if isinstance(action, ToolCall) else None
    return next((str(one) for one in (query if isinstance(query, list) else [query]) if one), "")


def _quoted(name: str) -> str:
    """As it stands in a call."""
    return json.dumps(name, ensure_ascii=False)


def _reworded(thought: str, relation: str, other: str, rng: random.Random) -> str:
    """The thought about another relation, in one of the ways in which it is said."""
    for wordings in (FIRST, NEXT, HOLDER):
        if relation and thought in [wording.format(r=relation) for wording in wordings]:
            return rng.choice(wordings).format(r=other)
    return thought.replace(relation, other) if relation else thought


def _other_programs(code: str, n: int) -> list[str]:
    """Programs with the same numbers, two of them swapped or with another operation; where there
    are not `n` of those, also with a number that is a little off."""
    numbers = [*_NUMBER.finditer(code)]
    found = [_swapped(code, one, other) for one, other in itertools.combinations(numbers, 2)]
    for place in _OPERATION.finditer(code):
        found += [_with(code, place, operation) for operation in "+-*"]
    alike = [*dict.fromkeys(program for program in found if program != code)]
    if len(alike) >= n:
        return alike
    off = [_with(code, number, str(int(number[0]) + d)) for number in numbers for d in (1, 2, 3)]
    return [*dict.fromkeys(alike + off)]


def _with(code: str, place: re.Match, text: str) -> str:
    return code[: place.start()] + text + code[place.end() :]


def _swapped(code: str, one: re.Match, other: re.Match) -> str:
    """With two numbers in each other's place; `one` stands before `other`."""
    between = code[one.end() : other.start()]
    return code[: one.start()] + other[0] + between + one[0] + code[other.end() :]
