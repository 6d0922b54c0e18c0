"""The same facts told otherwise: a world whose pages and search results have changed.

The web does not stand still while a policy learns in it: sites are redesigned, rankings altered.
Here both happen to a small world at once, and no fact changes, so the right answers stay right:
every page tells its facts in the opposite order, behind its kind ("territory: language French;
currency Central African CFA Franc."), and a search lists the same pages, last one first, so that
an exact title no longer comes on top. Measured on 24 search questions with the committed policies:
right answers fall from 0.86 to 0.28 after reinforcement learning and from 0.45 to 0.28 before, and
enough groups stay live (0.42, 0.29) to learn from. Values told before their relations would leave
nothing of either.

It has a version of its own, so that no cache mixes it with what it was made from. Left out: facts
that change or vanish (answers would no longer be right), and changes by degrees.
"""

from dataclasses import replace

from drlib.task import Task
from drlib.worlds.small import Entity, SmallWorld
from drlib.worlds.world import Hit, Page


class ChangedWorld(SmallWorld):
    """`world` with its pages re-worded and its search results in the opposite order."""

    def __init__(self, world: SmallWorld):
        super().__init__(world.entities.values(), world.name, scheme=world.scheme)
        self.before = world
        self.version = changed_version(world.version)

    def search(self, query: str, k: int = 10) -> list[Hit]:
        """The `k` pages that the world before found, last one first. ValueError: k < 1."""
        hits = self.before.search(query, k)
        return [Hit(h.title, h.url, retold(self.entities[h.title])) for h in reversed(hits)]

    def page(self, title_or_url: str) -> Page:
        """The page of a title or URL; KeyError names it when there is none."""
        page = self.before.page(title_or_url)
        entity = self.entities[page.title]
        sentences = [*entity.notes]
        for relation, value in reversed(entity.facts.items()):
            shown = f"[{value}]({self.url(value)})" if value in page.links else value
            sentences.append(f"{relation.capitalize()}: {shown}.")
        text = " ".join([*sentences, f"That is {page.title}, a {entity.kind}."])
        return Page(page.title, page.url, text, page.links)


def changed_version(version: str) -> str:
    """Of the changed world, from the version of what it was made from."""
    return f"{version}-changed"


def retold(entity: Entity) -> str:
    """The facts on one line, `territory: language Norwegian; currency Norwegian Krone.`"""
    facts = [f"{relation} {value}" for relation, value in reversed(entity.facts.items())]
    return f"{entity.kind}: {'; '.join(facts)}."


def all_changed(
    tasks: list[Task], worlds: dict[str, SmallWorld], usual: SmallWorld
) -> tuple[list[Task], dict[str, SmallWorld]]:
    """The same tasks in changed worlds, and these by version: every one in `worlds`, and `usual`,
    where the other look-ups are. A task that has no world (a sum) stays as it is."""
    changed = {version: ChangedWorld(world) for version, world in worlds.items()}
    changed.setdefault(usual.version, ChangedWorld(usual))
    moved = [
        replace(task, world=changed[task.world].version) if task.world in changed else task
        for task in tasks
    ]
    return moved, {world.version: world for world in changed.values()}
