"""WebWatcher (arXiv 2508.05748): questions about pictures, converted from questions about names.

The entity's name is replaced by "the thing in the picture". The Selector and the Examiner drop
unusable questions and pictures, and `find_rollout_fault` filters rollouts. Simplified: pictures are
drawn emblems (`drlib.worlds.emblems`), alone or numbered on a sheet, and rules replace the models'
judgements. `act_by_rule` is a policy without weights for tests and demonstrations. Not reproduced:
photographs and fuzzy questions.
"""

import random
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from drlib.chat.tool_calls import ToolCall, parse, render_answer, render_call
from drlib.files import write_atomic
from drlib.task import Task, is_correct
from drlib.tools.pictures import Album, from_data_url, to_png
from drlib.tools.toolbox import HIT
from drlib.trajectory import Trajectory
from drlib.validation import require
from drlib.worlds import World
from drlib.worlds.emblems import WHITE, Box, Pixels, draw, find_boxes, make_sheet, read_numbers

ALONE = "the thing in the picture"
AMONG = "the thing numbered {} in the picture"
OTHERS = 3  # other emblems on a sheet
LEAST_RELEVANCE = 0.2
LEAST_CALLS = 3

See = Callable[[Pixels, str], str | None]


@dataclass(frozen=True)
class Visual:
    """A question about a picture.

    Attributes:
        task: the task with `picture`, its name in the album.
        source: the original question.
        entity: the entity whose name was replaced.
        number: the number of its emblem on a sheet; empty if the emblem is alone.
    """

    task: Task
    source: Task
    entity: str
    number: str = ""


def make_visual_questions(
    tasks: Iterable[Task], world: World, album: Album, seed: int | str = 0, others: int = OTHERS
) -> tuple[list[Visual], list[tuple[Task, str]]]:
    """Convert tasks to questions about pictures.

    Args:
        tasks: the questions.
        world: their world.
        album: emblems and pictures; new pictures are added.
        seed: seed of the other emblems.
        others: other emblems on the sheet; 0 shows the entity's emblem alone.

    Returns:
        The converted questions, and (task, reason) for the rest.

    Raises:
        ValueError: the album has too few emblems.
    """
    require(0 <= others < len(album.emblems), f"others={others}: {len(album.emblems)} emblems")
    made: list[Visual] = []
    dropped: list[tuple[Task, str]] = []
    for task in tasks:
        if task.start not in album.emblems:
            dropped.append((task, f"no picture of {task.start!r}"))
        else:
            rng = random.Random(f"visual-{seed}-{task.id}")
            made.append(_make_visual(task, world, album, others, rng))
    return made, dropped


def _make_visual(task: Task, world: World, album: Album, others: int, rng: random.Random) -> Visual:
    """Convert one task."""
    entity = task.start
    number = album.emblems[entity].number if others else ""
    words = AMONG.format(number) if others else ALONE
    question = task.question
    # longest first: a name may contain another one
    for name in sorted(_list_names(entity, world), key=len, reverse=True):
        question = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", words, question, flags=re.IGNORECASE)
    beside = [
        title
        for title, emblem in album.emblems.items()
        if title != entity and emblem.number != number
    ]
    shown = [entity, *rng.sample(beside, others)]
    rng.shuffle(shown)
    drawn = [draw(album.emblems[title]) for title in shown]
    picture = album.add(make_sheet(drawn) if others else drawn[0])
    kind = "sheet" if others else "emblem"
    visual = replace(
        task, id=f"{task.id}-{kind}", question=question, start="", query="", picture=picture
    )
    return Visual(visual, task, entity, number)


def _list_names(entity: str, world: World) -> tuple[str, ...]:
    """Return the title and aliases of an entity."""
    node = world.graph.nodes.get(entity) if world.graph is not None else None
    return (entity, *(node.aliases if node else ()))


# ---- Selector and Examiner


def find_selector_fault(visual: Visual, world: World, least: float = LEAST_RELEVANCE) -> str:
    """Return the Selector's reason to drop a question (unchanged, leak, low relevance), or an
    empty string.
    """
    if _split_words(visual.task.question) == _split_words(visual.source.question):
        return "unchanged"
    asked = _split_words(visual.task.question)
    for name in _list_names(visual.entity, world):
        if _contains_sequence(_split_words(name), asked):
            return f"leaks {name!r}"
    found = measure_relevance(visual, world)
    return "" if found >= least else f"relevance {found:.2f}"


def measure_relevance(visual: Visual, world: World) -> float:
    """Return the share, in [0, 1], of the question's relation words that the entity's page
    contains.
    """
    known = {word for relation in world.graph.adjacent for word in _split_words(relation)} - {"of"}
    asked = [word for word in _split_words(visual.task.question) if word in known]
    page = set(_split_words(world.page(visual.entity).text))
    return sum(word in page for word in asked) / len(asked) if asked else 0.0


def _split_words(text: str) -> list[str]:
    """Return the words without case and accents."""
    plain = unicodedata.normalize("NFKD", text.casefold())
    return re.findall(r"\w+", "".join(c for c in plain if not unicodedata.combining(c)))


def _contains_sequence(name: Sequence[str], words: Sequence[str]) -> bool:
    """Return True if the words of a name occur consecutively."""
    places = range(len(words) - len(name) + 1)
    return bool(name) and any([*words[at : at + len(name)]] == [*name] for at in places)


def find_examiner_fault(visual: Visual, album: Album, see: See | None = None) -> str:
    """Return the Examiner's reason to drop a picture, or an empty string.

    Args:
        visual: the question.
        album: the pictures.
        see: function of (pixels, number or empty) that returns a title; default: emblem comparison.
    """
    if visual.task.picture not in album:
        return "no picture"
    look = see or (lambda pixels, number: identify_thing(pixels, number, album))
    found = look(album.pixels(visual.task.picture), visual.number)
    if found is None:
        return "shows nothing known"
    return "" if found == visual.entity else f"shows {found!r}"


def identify_thing(pixels: Pixels, number: str, album: Album) -> str | None:
    """Return the title of the thing in a picture; with a number, of the thing that bears it."""
    if not number:
        return album.identify(pixels)
    parts = [
        pixels[top : top + high, left : left + wide] for left, top, wide, high in find_boxes(pixels)
    ]
    bearing = [part for part in parts if read_numbers(part) == number]
    return album.identify(bearing[0]) if len(bearing) == 1 else None


def filter_visuals(
    visuals: Iterable[Visual], world: World, album: Album, see: See | None = None
) -> tuple[list[Visual], list[tuple[Visual, str]]]:
    """Return the questions that pass Selector and Examiner, and (question, reason) for the rest."""
    kept: list[Visual] = []
    dropped: list[tuple[Visual, str]] = []
    for visual in visuals:
        reason = find_selector_fault(visual, world) or find_examiner_fault(visual, album, see)
        if reason:
            dropped.append((visual, reason))
        else:
            kept.append(visual)
    return kept, dropped


def blank_picture(visual: Visual, album: Album) -> Visual:
    """Return the question with a white picture of the same size, as a control."""
    white = np.full_like(album.pixels(visual.task.picture), WHITE)
    return replace(visual, task=replace(visual.task, picture=album.add(white)))


# ---- rollouts and export


def find_rollout_fault(trajectory: Trajectory, task: Task, least: int = LEAST_CALLS) -> str:
    """Return why a rollout must not be learnt from, or an empty string.

    The reasons are a wrong answer, fewer than `least` valid calls, or a call that names a picture
    or page that no earlier message showed.
    """
    if not is_correct(trajectory.answer, task):
        return "wrong answer"
    calls = sum(result.tool != "format" for result in trajectory.tool_results)
    if calls < least:
        return f"{calls} calls"
    seen = ""
    for message in trajectory.messages:
        if message["role"] != "assistant":
            seen += message["content"] + "\n"
            continue
        action = parse(message["content"])
        for name in _list_addresses(action.arguments) if isinstance(action, ToolCall) else ():
            if name not in seen:
                return f"names {name!r} unseen"
    return ""


def _list_addresses(arguments: Mapping) -> list[str]:
    """Return the pictures and pages that a call names."""
    urls = arguments.get("url", [])
    named = [arguments.get("image"), *([urls] if isinstance(urls, str) else urls)]
    return [name for name in named if isinstance(name, str)]


def export_rows(visuals: Iterable[Visual], album: Album, folder: str | Path) -> list[dict]:
    """Return rows {question, image_path, answers, domain} and write the pictures as PNG files."""
    rows = []
    for visual in visuals:
        path = Path(folder) / visual.task.picture
        write_atomic(path, to_png(album.pixels(visual.task.picture)))
        rows.append(
            {
                "question": visual.task.question,
                "image_path": path.name,
                "answers": [visual.task.answer, *visual.task.aliases],
                "domain": "sheet" if visual.number else "emblem",
            }
        )
    return rows


# ---- rule-based policy

UNKNOWN = "unknown"


def act_by_rule(messages: Sequence[dict]) -> str:
    """Return the next turn of a rule-based policy that sees only the messages.

    It reads the numbers, crops the requested thing, identifies it by its pixels and searches for
    each relation. If the pixels match nothing, it searches for the question's words and guesses.

    Raises:
        ValueError: the question is not one of `make_visual_questions`.
    """
    first = next(message for message in messages if message["role"] == "user")
    question, picture = _split_content(first["content"])
    steps = _list_steps(messages)
    asked = re.search(r"\bthe (.+?) of the thing (?:numbered (\d+) )?in the picture", question)
    named = re.search(r"picture is called (\S+) and", question)
    require(bool(asked and named), f"no question about a picture: {question[:80]!r}")
    relations = asked[1].split(" of the ")[::-1]
    call, observation = steps[-1] if steps else (None, "")
    if call is None and asked[2]:
        return _write_call("Which of them has the number?", "read", image=named[1])
    if call is None:
        return _write_call("What is it?", "image_search", image=named[1])
    if call.name == "read":
        box = _find_box(asked[2], observation, picture)
        if box:
            return _write_call("That one.", "crop", image=named[1], box=",".join(map(str, box)))
    if call.name == "crop":
        part = observation.partition(" ")[0]
        return _write_call("What is it?", "image_search", image=part)
    hits = [*HIT.finditer(observation)]
    if call.name in ("read", "image_search") and not hits:
        return _write_call("I see nothing that I know.", "search", query=[question.splitlines()[0]])
    done = sum(before.name == "search" for before, _ in steps)
    if call.name == "image_search":
        return _write_call(f"It is {hits[0]['title']}.", "search", query=[hits[0]["title"]])
    seen = any(before.name == "image_search" and HIT.search(text) for before, text in steps)
    if not seen:
        return _write_answer(_find_fact(relations[-1], [hit["text"] for hit in hits]))
    value = _find_fact(relations[done - 1], [hit["text"] for hit in hits[:1]])
    if done == len(relations) or value == UNKNOWN:
        return _write_answer(value)
    return _write_call(f"Its {relations[done - 1]} is {value}.", "search", query=[value])


def _split_content(content: str | list[dict]) -> tuple[str, Pixels | None]:
    """Return the text and the decoded picture of a user message."""
    if isinstance(content, str):
        return content, None
    text = "".join(part["text"] for part in content if part["type"] == "text")
    urls = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
    return text, from_data_url(urls[0]) if urls else None


def _list_steps(messages: Sequence[dict]) -> list[tuple[ToolCall, str]]:
    """Return the calls so far with their observations."""
    steps = []
    for said, heard in zip(messages, messages[1:]):
        action = parse(said["content"]) if said["role"] == "assistant" else None
        if isinstance(action, ToolCall):
            text, _ = _split_content(heard["content"])
            inside = text.removeprefix("<tool_response>\n").removesuffix("\n</tool_response>")
            steps.append((action, inside))
    return steps


def _find_box(number: str, read: str, picture: Pixels | None) -> Box | None:
    """Return the box of the thing with this number."""
    boxes = [] if picture is None else find_boxes(picture)
    numbers = read.split()
    found = len(boxes) == len(numbers) and number in numbers
    return boxes[numbers.index(number)] if found else None


def _find_fact(relation: str, lines: Iterable[str]) -> str:
    """Return the value of a relation in lines of facts."""
    found = (re.search(rf"(?:^|; ){re.escape(relation)} ([^;]+?)(?:;|\.$)", line) for line in lines)
    return next((fact[1] for fact in found if fact), UNKNOWN)


def _write_call(thought: str, name: str, **arguments) -> str:
    """Return a turn with a tool call."""
    return f"<think>{thought}</think>{render_call(name, arguments)}"


def _write_answer(value: str) -> str:
    """Return a turn with an answer."""
    return f"<think>So it is.</think>{render_answer(value)}"
