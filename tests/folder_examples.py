"""Example files and folders for the tests of folders as worlds."""

import json
import random

from drlib.worlds import load_world
from tests.test_tools_parse_file import docx, paragraph, pdf

INTRO = """---
tags: [alpha, beta]
author: Ada
nested: {a: 1}
part of: a series
link: own name
---
# Intro

See [install](#install), [usage](../api.rst#usage), [the web](https://example.org/a.md), an
![image](a.png), [nothing here](#nowhere) and [up and out](../../../etc/passwd.md).

## Install now!

[It](it%20aly.html) is text.

| City | Country | Notes |
|------|---------|-------|
| **Oslo** | Norway | |
| Rome | [Italy](it%20aly.html#history) | a \\| b |

```
# no heading
```

### Details

## Install now!

Again.
"""
API = """
===
API
===

Hello :doc:`guide/intro` and `home <guide/intro.md>`_.

Usage
=====

Some text::

    Indented
    --------

Details
-------

Deep.

Other
=====
"""
ITALY = """<html><head><title>Italy</title><script>evil()</script></head><body>
<h1>Italy</h1><p>Back to <a href="intro.md">intro</a>.</p>
<section id="history"><h2>History<a href="#history">¶</a></h2><p>Old.</p>
<pre># code, no heading</pre>
<table><tr><th>Year</th><th>Ruler</th></tr><tr><td>1861</td><td>Victor</td></tr>
<tr><td>1878</td><td>Umberto</td></tr></table></section></body></html>"""
NOTEBOOK = {
    "cells": [
        {"cell_type": "markdown", "source": ["# A study\n", "of [Italy](it%20aly.html)"]},
        {"cell_type": "code", "source": "# a comment\nprint(1)", "outputs": []},
    ]
}


def mixed_folder(path):
    """Create a folder with a file of most types."""
    guide = path / "guide"
    guide.mkdir(parents=True)
    (guide / "intro.md").write_text(INTRO)
    (guide / "it aly.html").write_text(ITALY)
    (guide / "study.ipynb").write_text(json.dumps(NOTEBOOK))
    (path / "api.rst").write_text(API)
    (path / "plain.txt").write_text("# no heading\n[no link](api.rst)\n")
    (path / "paper.pdf").write_bytes(pdf("The first page", "The second page"))
    (path / "memo.docx").write_bytes(docx(paragraph("A memo about tungsten")))
    return path


def load(path, index=None, **options):
    return load_world(f"folder:{path}", index, **options)


def facts_of(part):
    return {tuple(fact) for fact in part.facts}


STARTS, ENDS = ("ab", "el", "is", "or", "un", "yr"), ("ba", "do", "fe", "ka", "mi")
SOUNDS = [start + end for start in STARTS for end in ENDS]


def island_folder(path):
    """Create thirty islands with towns, mayors and a table of lights.

    Chains of facts lead from a light to a pet.
    """
    lights = ["# Lights", "", "| Light | Island | Height |", "|---|---|---|"]
    for number, sound in enumerate(SOUNDS):
        name = sound.capitalize()
        pages = {
            f"islands/{sound}": ("island", f"capital: Port {name}", f"Isle {name}"),
            f"towns/{sound}": ("town", f"mayor: Mayor {name}", f"Port {name}"),
            f"people/{sound}": ("person", f"pet: cat {name}", f"Mayor {name}"),
        }
        for place, (kind, fact, heading) in pages.items():
            file = path / f"{place}.md"
            file.parent.mkdir(parents=True, exist_ok=True)
            text = "Read [about lights](../lights.md).\n\n## History\n\nNobody wrote it down.\n"
            file.write_text(f"---\nkind: {kind}\n{fact}\n---\n# {heading}\n\n{text}")
        link = f"[Isle {name}](islands/{sound}.md)"
        lights.append(f"| {name} Light | {link} | {number + 10} |")
    (path / "lights.md").write_text("\n".join(lights) + "\n")
    return path


def guild_folder(path):
    """Create eighty people with home, guild, trade and teacher, drawn with one seed."""
    rng = random.Random("guilds-0")
    towns = [f"Town {letter}" for letter in "ABCDEFGHIJ"]
    guilds = [f"Guild {letter}" for letter in "KLMNOPQRS"]
    trades = [f"Trade {letter}" for letter in "TUVWXYZ"]
    people = [f"Person {number}" for number in range(80)]
    rivers, patrons = ([f"{kind} {n}" for n in range(5)] for kind in ("River", "Patron"))
    relations = {
        "town": (towns, {"river": rivers, "twin": towns}),
        "guild": (guilds, {"seat": towns, "patron": patrons}),
        "trade": (trades, {"seat": towns, "patron": patrons}),
        "river": (rivers, {}),
        "patron": (patrons, {"born": towns}),
        "person": (people, {"home": towns, "guild": guilds, "trade": trades, "teacher": people}),
    }
    for kind, (names, facts) in relations.items():
        (path / kind).mkdir(parents=True)
        for name in names:
            front = "".join(f"{key}: {rng.choice(values)}\n" for key, values in facts.items())
            file = path / kind / f"{name.casefold().replace(' ', '-')}.md"
            file.write_text(f"---\nkind: {kind}\n{front}---\n# {name}\n\nNothing more.\n")
    return path
