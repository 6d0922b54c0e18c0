"""Rewriting with back translation, against a real server on loopback that words, reads and errs.

Run: python -m pytest tests/test_synthesis_rewriting.py
"""

import random
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from query_examples import any_query

from drlib.endpoint import ChatEndpoint
from drlib.files import read_json_lines
from drlib.synthesis.queries import (
    And,
    Count,
    Diff,
    Or,
    Proj,
    canonical,
    evaluate_query,
    from_text,
    to_text,
)
from drlib.synthesis.replies import MAX_FAILED, Replies
from drlib.synthesis.rewriting import Rewriter, hidden_names, read_query, same_question
from drlib.synthesis.wording import render_question
from drlib.task import Task
from tests.rewriting_examples import (
    GRAPH,
    NORD,
    QUERIES,
    REFUSED,
    RIN,
    SAVA,
    SUND,
    TASKS,
    TURNED,
    WORLD,
    WRONG,
    Model,
    worded,
)
from tests.scripted_server import Scripted

ALL = list(TASKS.values())


@contextmanager
def serving(model, faults=lambda number: None):
    with Scripted(model.say, faults) as server:
        server.keep = True
        yield server
        model.over.set()


def replies(server, path, timeout_s=20, **how):
    how = {"calls": 1000, "pause_s": 0.01, "workers": 1} | how
    return Replies(ChatEndpoint(server.url, "scripted", timeout_s=timeout_s), path, **how)


# ------------------------------------------------------------------- what a faithful model gives


def test_faithful_wordings_take_the_place_of_the_templates(tmp_path):
    model = Model()
    with serving(model) as server:
        done = Rewriter(WORLD, replies(server, tmp_path / "r.jsonl", workers=4)).rewrite(ALL)
    assert done.counts == {"rewritten": len(ALL)}
    assert [task.question for task in done.tasks] == [worded(q) for q in QUERIES.values()]
    for old, new in zip(ALL, done.tasks):
        assert old.question != new.question
        assert vars(old) | {"question": ""} == vars(new) | {"question": ""}
    assert server.asked == 2 * len(ALL) == len(read_json_lines(tmp_path / "r.jsonl"))


def test_the_first_call_knows_no_answer_and_the_second_no_question(tmp_path):
    model = Model()
    with serving(model) as server:
        Rewriter(WORLD, replies(server, tmp_path / "r.jsonl")).rewrite([TASKS["chain"]])
        word, read = ([m["content"] for m in body["messages"]] for body in server.bodies)
    for told in word + read:
        assert "940" not in told and "Sava" not in told and "Sau" not in told
    assert TASKS["chain"].question in word[1] and '"length" (river: value)' in word[1]
    assert '"region"' not in word[1]  # it is not in the question
    assert read[1] == worded(QUERIES["chain"]) and '"region" (town: region)' in read[0]


# ------------------------------------------------------------------------------ and one that errs


@pytest.mark.parametrize("name, reason", sorted(REFUSED.items()))
def test_a_changed_meaning_is_refused_before_anybody_reads_it(tmp_path, name, reason):
    model = Model({name: worded(WRONG[name])})
    with serving(model) as server:
        done = Rewriter(WORLD, replies(server, tmp_path / "r.jsonl")).rewrite(ALL)
    assert server.asked == 2 * len(ALL) - 1
    assert done.counts == {"rewritten": len(ALL) - 1, reason: 1}
    assert done.outcomes[list(TASKS).index(name)].text == worded(WRONG[name])


def test_the_same_words_in_other_places_are_read_back_as_another_question(tmp_path):
    with serving(Model({"not": worded(TURNED)})) as server:
        done = Rewriter(WORLD, replies(server, tmp_path / "r.jsonl")).rewrite([TASKS["not"]])
    assert done.outcomes[0][:3] == (TASKS["not"], "it asks something else", worded(TURNED))
    assert canonical(from_text(done.outcomes[0].detail)) == canonical(TURNED)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("chain", worded(QUERIES["chain"]) + " Think of the Sava.", "it tells the answer .."),
        ("chain", worded(QUERIES["chain"]) + " Think of the sau.", "it tells the answer .."),
        ("both", worded(QUERIES["both"]) + " Is it not Burg?", "it tells the answer .."),
        ("short", worded(QUERIES["short"]).replace("58", "85"), "its numbers are others"),
        ("both", worded(QUERIES["both"]).replace("Rin", "Rhine"), "it loses .."),
        ("both", "", "it is empty"),
        ("both", "<think>Hm.</think>\n", "it is empty"),
        ("both", "Rin, Sund?", "it has .. characters for .."),
        ("both", "Sorry, I cannot say more about Rin and Sund!", "it does not end like a question"),
        (
            "both",
            "I know of a river Rin and a region Sund. The rest is junk.",
            "it cannot be read back",
        ),
    ],
)
def test_a_refused_text_leaves_the_old_question_and_its_reason(tmp_path, name, text, reason):
    model = Model({name: text})
    with serving(model) as server:
        done = Rewriter(WORLD, replies(server, tmp_path / "r.jsonl")).rewrite(ALL)
    assert done.counts == {"rewritten": len(ALL) - 1, reason: 1}
    assert done.tasks[list(TASKS).index(name)] is TASKS[name]


@pytest.mark.parametrize(
    ("reply", "detail"),
    [
        ("I do not know.", "no query"),
        ("[]", "starts with its kind"),
        ('["nand", "Rin", "Sund"]', "unknown kind of query 'nand'"),
        ('["proj", "mouth of", "Rin"]', "a relation that is not there: 'mouth of'"),
        ('["proj", "river of", "Rhine"]', "0 things are called 'Rhine'"),
        ("[" * 100_000 + "]", "nested too deeply"),
    ],
)
def test_a_reply_that_is_no_query_of_this_world(tmp_path, reply, detail):
    model = Model(reads={worded(QUERIES["both"]): reply})
    with serving(model) as server:
        done = Rewriter(WORLD, replies(server, tmp_path / "r.jsonl")).rewrite([TASKS["both"]])
    assert done.counts == {"it cannot be read back": 1} and detail in done.outcomes[0].detail
    assert done.tasks == [TASKS["both"]]


def test_more_tries_find_a_wording_where_the_first_has_failed(tmp_path):
    model = Model({"not": worded(TURNED)})  # the guard passes it, the reader does not
    say = model.say

    def better_the_second_time(messages):
        if model.worded.count("not") == 1:
            model.says.clear()
        return say(messages)

    model.say = better_the_second_time
    with serving(model) as server:
        made = Rewriter(WORLD, replies(server, tmp_path / "r.jsonl"), tries=3)
        assert made.rewrite([TASKS["not"]]).counts == {"rewritten": 1}
        assert server.asked == 4
        assert [body.get("seed") for body in server.bodies] == [0, None, 1, None]


def test_a_task_without_a_query_is_left_and_a_world_without_a_graph_refused(tmp_path):
    sum_ = Task("python-product-1", "What is 2 times 3?", "6", "python", "python")
    model = Model()
    with serving(model) as server:
        made = Rewriter(WORLD, replies(server, tmp_path / "r.jsonl"))
        assert made.rewrite([sum_]).outcomes[0][:2] == (sum_, "no query") and server.asked == 0
        with pytest.raises(ValueError, match="bare has no graph"):
            Rewriter(type(WORLD)(name="bare", graph=None), replies(server, tmp_path / "r.jsonl"))


# ------------------------------------------------------------------------ a server that fails


def test_errors_that_pass_are_tried_again(tmp_path):
    model = Model()
    faults = {0: "500", 1: "429", 3: "cut", 4: "junk"}
    with serving(model, faults.get) as server:
        done = Rewriter(WORLD, replies(server, tmp_path / "r.jsonl")).rewrite([TASKS["both"]])
        assert done.counts == {"rewritten": 1} and server.asked == 6
    calls = [row["calls"] for row in read_json_lines(tmp_path / "r.jsonl")]
    assert calls == [3, 3]


def test_a_question_that_hangs_is_left_and_asked_again_the_next_time(tmp_path):
    model = Model(hangs=("first",))
    with serving(model) as server:
        hurried = replies(server, tmp_path / "r.jsonl", timeout_s=2, attempts=2)
        done = Rewriter(WORLD, hurried).rewrite(ALL)
        assert done.counts == {"rewritten": len(ALL) - 1, "timeout: no end within .. s": 1}
        assert done.tasks[list(TASKS).index("first")] is TASKS["first"]
        assert model.worded.count("first") == 2
        model.hangs = ()
        before = server.asked
        again = Rewriter(WORLD, replies(server, tmp_path / "r.jsonl")).rewrite(ALL)
        assert again.counts == {"rewritten": len(ALL)} and server.asked - before == 2


def test_a_prompt_that_is_too_long_is_that_questions_own_fault(tmp_path):
    model = Model()
    say = model.say
    model.say = lambda messages: None  # HTTP 400
    with serving(model) as server:
        done = Rewriter(WORLD, replies(server, tmp_path / "r.jsonl")).rewrite(ALL + ALL)
        assert server.asked == 2 * len(ALL) > MAX_FAILED
        assert list(done.counts) == ["HTTP .. Bad Request: the maximum context length is exceeded"]
        server.say = say
        again = Rewriter(WORLD, replies(server, tmp_path / "r.jsonl")).rewrite(ALL)
        assert again.counts == {"rewritten": len(ALL)}


def test_a_dead_server_costs_a_few_prompts_and_no_question(tmp_path):
    with serving(Model()) as server:
        pass
    gone = replies(server, tmp_path / "r.jsonl", attempts=2)
    done = Rewriter(WORLD, gone).rewrite(ALL)
    assert done.tasks == ALL and gone.spent_calls == 2 * MAX_FAILED
    assert done.counts["not asked: the endpoint failed .. times in a row"] == 2


# --------------------------------------------------------------- cache, budget and a killed run


def test_what_has_a_reply_is_not_asked_again(tmp_path):
    model = Model({"either": worded(WRONG["either"])})
    with serving(model) as server:
        first = Rewriter(WORLD, replies(server, tmp_path / "r.jsonl", workers=4)).rewrite(ALL)
        asked = server.asked
        again = Rewriter(WORLD, replies(server, tmp_path / "r.jsonl")).rewrite(ALL)
        twice = Rewriter(WORLD, replies(server, tmp_path / "r.jsonl", workers=4)).rewrite(ALL + ALL)
        assert server.asked == asked and again == first
        assert twice.outcomes == first.outcomes * 2
        other = replies(server, tmp_path / "r.jsonl", options={"temperature": 0.5})
        Rewriter(WORLD, other).rewrite([TASKS["both"]])
        assert server.asked == asked + 1  # another prompt; the reader is at 0 anyway
    here = Model()
    with serving(here) as server:
        Rewriter(WORLD, replies(server, tmp_path / "new.jsonl", workers=8)).rewrite(ALL * 5)
        assert server.asked == 2 * len(ALL)  # also when they come at the same time


@pytest.mark.parametrize("workers", [1, 8])
def test_the_budget_of_calls_holds_exactly_and_over_several_runs(tmp_path, workers):
    model = Model()
    with serving(model, {2: "500"}.get) as server:
        for calls, in_all in ((5, 5), (5, 5), (9, 9)):
            some = replies(server, tmp_path / "r.jsonl", calls=calls, workers=workers)
            done = Rewriter(WORLD, some).rewrite(ALL)
            assert server.asked == in_all == some.spent_calls
            assert done.counts["budget: .. calls are spent"] + done.counts.get("rewritten", 0) == 7
            left = [o.task for o in done.outcomes if o.reason]
            assert left == [TASKS[task.id.removeprefix("search-")] for task in left]


def test_the_budget_of_tokens_is_never_passed_and_not_given_up_early(tmp_path):
    model = Model()
    with serving(model) as server:
        free = replies(server, tmp_path / "free.jsonl")
        Rewriter(WORLD, free).rewrite(ALL)
        costs = [row["tokens"] for row in read_json_lines(tmp_path / "free.jsonl")]
        assert free.spent_tokens == sum(costs) and min(costs) > 50
        for workers in (1, 8):
            # a request holds more than it costs: the room of one beyond all that is spent
            tokens = sum(costs) + 8000
            path = tmp_path / f"{workers}.jsonl"
            some = replies(server, path, tokens=tokens, workers=workers)
            assert Rewriter(WORLD, some).rewrite(ALL).counts == {"rewritten": len(ALL)}
            assert some.spent_tokens == sum(costs)
        few = replies(server, tmp_path / "few.jsonl", tokens=4500, workers=8)
        done = Rewriter(WORLD, few).rewrite(ALL)
        assert done.counts["budget: .. tokens are spent"] >= 1 and 0 < few.spent_tokens <= 4500


KILLED = """
import sys
from drlib.synthesis.rewriting import Rewriter
from tests.rewriting_examples import TASKS, WORLD
from tests.test_synthesis_rewriting import replies
from types import SimpleNamespace
server = SimpleNamespace(url=sys.argv[1])
Rewriter(WORLD, replies(server, sys.argv[2])).rewrite([*TASKS.values()])
"""


def test_a_killed_run_goes_on_without_asking_again(tmp_path):
    hung = list(TASKS)[3]
    model = Model(hangs=(hung,))
    path, root = tmp_path / "r.jsonl", Path(__file__).resolve().parents[1]
    with serving(model) as server:
        child = subprocess.Popen(
            [sys.executable, "-c", KILLED, server.url, str(path)],
            cwd=root,
            env={"PYTHONPATH": f"{root}:{root / 'tests'}", "PATH": ""},
        )
        try:
            while hung not in model.worded and child.poll() is None:
                model.over.wait(0.05)
        finally:
            child.send_signal(signal.SIGKILL)
            assert child.wait() == -signal.SIGKILL
        assert server.asked == 7 and len(read_json_lines(path)) == 6
        with path.open("a") as file:
            file.write('{"asked": "half a li')
        model.hangs = ()
        done = Rewriter(WORLD, replies(server, path)).rewrite(ALL)
        assert done.counts == {"rewritten": len(ALL)}
        assert server.asked == 7 + 2 * (len(ALL) - 3)
        assert [name for name in TASKS if model.worded.count(name) != 1] == [hung]
    assert len(read_json_lines(path)) == 2 * len(ALL)


def test_bad_settings_and_a_file_of_others_are_named(tmp_path):
    with serving(Model()) as server:
        with pytest.raises(ValueError, match="calls=0, .* start at 1"):
            replies(server, tmp_path / "r.jsonl", calls=0)
        for line in ('{"question": 1}\n', "[1]\n", "7\n"):
            (tmp_path / "other.jsonl").write_text(line)
            with pytest.raises(ValueError, match="other.jsonl, line 1 is no reply of ours"):
                replies(server, tmp_path / "other.jsonl")


# ------------------------------------------------------------------------------------ its parts


def test_the_same_question_is_the_same_on_every_graph():
    """Random queries and forms of them; whatever is called the same has the same answers."""
    rng, same = random.Random(3), 0
    for _ in range(3000):
        a, b = (any_query(GRAPH, rng, 2) for _ in range(2))
        if same_question(a, b):
            same += canonical(a) != canonical(b)
            assert evaluate_query(a, GRAPH) == evaluate_query(b, GRAPH)
        assert same_question(a, canonical(a))
    union = Proj("river", Or(("Alba", "Cove")))
    spread = Or((Proj("river", "Cove"), Proj("river", "Alba")))
    assert same_question(union, spread) and same_question(
        Proj("length", union), Proj("length", spread)
    )
    cut = And((Diff(RIN, NORD), SUND))
    assert same_question(cut, Diff(And((SUND, RIN)), NORD))
    assert same_question(Diff(Diff(RIN, NORD), SAVA), Diff(RIN, Or((SAVA, NORD))))
    assert same_question(
        And((Diff(RIN, NORD), Diff(SUND, SAVA))), Diff(And((RIN, SUND)), Or((NORD, SAVA)))
    )
    for a, b in [
        (Diff(RIN, NORD), Diff(NORD, RIN)),
        (cut, Diff(And((SUND, RIN)), SAVA)),
        (Proj("river", And(("Alba", "Cove"))), And((Proj("river", "Alba"), Proj("river", "Cove")))),
        (Count(RIN), RIN),
    ]:
        assert not same_question(a, b)


def test_every_form_has_the_answers_of_its_query():
    """`same_question` compares forms: each must mean what the query means."""
    from drlib.synthesis.rewriting import _settled

    rng, changed = random.Random(5), 0
    for _ in range(5000):
        query = any_query(GRAPH, rng, 3)
        form = _settled(query)
        assert evaluate_query(form, GRAPH) == evaluate_query(query, GRAPH)
        assert _settled(form) == form
        changed += form != canonical(query)
    assert changed > 300


def test_names_are_found_by_title_in_any_case_and_by_the_alias_of_one_thing():
    assert read_query('["proj", "river", "borg"]', GRAPH) == Proj("river", "Borg")
    assert read_query('Here: ["proj", "length", "SAU"].', GRAPH) == Proj("length", "Sava")
    thought = '<think>["proj", "river", "Alba"]?</think>["proj", "region", "Burg"]'
    assert read_query(thought, GRAPH) == Proj("region", "Borg")


def test_hidden_names_are_those_that_the_question_does_not_tell():
    chain = TASKS["chain"]
    assert hidden_names(chain, QUERIES["chain"], GRAPH) == ["940", "Sau", "Sava"]
    told = Task("t", "Is Sava the one?", "940", "search", "w", query=chain.query)
    assert hidden_names(told, QUERIES["chain"], GRAPH) == ["940", "Sau"]
    assert hidden_names(TASKS["both"], QUERIES["both"], GRAPH) == ["Borg", "Burg"]


def test_the_templates_of_all_queries_differ():
    """The example model tells its texts apart by their wording."""
    texts = [render_question(query, GRAPH, 3) for query in [*QUERIES.values(), *WRONG.values()]]
    assert len(set(texts)) == len(texts) == len({to_text(from_text(t.query)) for t in ALL}) + 5
