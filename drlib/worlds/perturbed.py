"""A perturbed world: the same facts with different pages and search results.

Web sites are redesigned and rankings change while a policy learns. Both happen here to a small
world, and no fact changes, so correct answers stay correct: each page lists its facts in reverse
order, behind its kind ("territory: language French; currency Central African CFA Franc."), and a
search returns the same pages in reverse order, so an exact title is no longer first.

| accuracy of the committed policies on 24 search questions | before | perturbed |
|---|---|---|
| after RL | 0.86 | 0.28 |
| before RL | 0.45 | 0.28 |

Enough groups keep a non-zero reward variance (0.42 and 0.29) for training to continue. The
perturbed world has its own version, so caches do not mix the two. Not implemented: changed facts
(the answers would be wrong) and gradual changes.
"""

from dataclasses import replace

from drlib.task import Task
from drlib.worlds.small import Entity, SmallWorld
from drlib.worlds.world import Hit, Page


class PerturbedWorld(SmallWorld):
    """`world` with reworded pages and reversed search results."""

    def __init__(self, world: SmallWorld):
        super().__init__(world.entities.values(), world.name, scheme=world.scheme)
        self.original = world
        self.version = perturbed_version(world.version)

    def search(self, query: str, k: int = 10) -> list[Hit]:
        """Return the `k` pages that the original world finds, in reverse order.

        Raises:
            ValueError: k < 1.
        """
        hits = self.original.search(query, k)
        return [
            Hit(h.title, h.url, perturbed_snippet(self.entities[h.title])) for h in reversed(hits)
        ]

    def page(self, title_or_url: str) -> Page:
        """Return the page of a title or URL.

        Raises:
            KeyError: no such page; the message names it.
        """
        page = self.original.page(title_or_url)
        entity = self.entities[page.title]
        sentences = [*entity.notes]
        for relation, value in reversed([*entity.facts.items()]):
            shown = f"[{value}]({self.url(value)})" if value in page.links else value
            sentences.append(f"{relation.capitalize()}: {shown}.")
        text = " ".join([*sentences, f"That is {page.title}, a {entity.kind}."])
        return Page(page.title, page.url, text, page.links)


def perturbed_version(version: str) -> str:
    """Return the version of the perturbed form of the world with this `version`."""
    return f"{version}-changed"


def perturbed_snippet(entity: Entity) -> str:
    """Return the facts on one line: `territory: language Norwegian; currency Norwegian Krone.`"""
    facts = [f"{relation} {value}" for relation, value in reversed([*entity.facts.items()])]
    return f"{entity.kind}: {'; '.join(facts)}."


def perturb_worlds(
    tasks: list[Task], worlds: dict[str, SmallWorld], default_world: SmallWorld
) -> tuple[list[Task], dict[str, SmallWorld]]:
    """Move tasks into perturbed worlds.

    Args:
        tasks: questions; a task without a world (arithmetic) is unchanged.
        worlds: worlds by version.
        default_world: the world of all other search tasks.

    Returns:
        The moved tasks, and the perturbed worlds by version.
    """
    changed = {version: PerturbedWorld(world) for version, world in worlds.items()}
    changed.setdefault(default_world.version, PerturbedWorld(default_world))
    moved = [
        replace(task, world=changed[task.world].version) if task.world in changed else task
        for task in tasks
    ]
    return moved, {world.version: world for world in changed.values()}
