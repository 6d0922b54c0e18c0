"""Test that the recipes give the same questions under any hash seed."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import hashlib, random
from query_examples import unique_queries
from drlib.questions.webdancer import crawl, draw_crawl_questions, e2hqa
from drlib.questions.webwalker import make_site
from drlib.questions.websailor import obfuscate
from drlib.questions.websailor_v2 import (
    find_bridge_question, find_cyclic_question, draw_dense_subgraph, draw_focuses)
from drlib.questions.wording import render_question
from drlib.worlds import load_world
world = load_world("tour")
graph, made = world.graph, []
for i, (query, _) in enumerate(unique_queries(graph, 30, 2)):
    made += [render_question(query, graph, i), obfuscate(query, graph, random.Random(i)),
             e2hqa(query, graph, random.Random(i), 3)]
for i in range(6):
    found = draw_dense_subgraph(graph, random.Random(i), 10, 2)
    for focus in draw_focuses(found, 4, random.Random(i)):
        made += [find_cyclic_question(found, focus, graph)]
        made += [find_bridge_question(found, focus, graph)]
made += [make_site(0)]
made += [sum(map(bool, made)), crawl(world, "Norway").facts]
print(hashlib.sha256(repr(made).encode()).hexdigest())
"""


def test_question_recipes_do_not_depend_on_the_hash_seed():
    tests, digests = Path(__file__).parent, set()
    for seed in ("0", "1", "77"):
        paths = os.pathsep.join([str(tests.parent), str(tests)])
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths}
        completed = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, text=True, capture_output=True
        )
        assert completed.returncode == 0, completed.stderr
        digests.add(completed.stdout)
    assert len(digests) == 1
