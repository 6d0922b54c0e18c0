"""s3: only marked results reach the generator; the gain beyond RAG.

The searcher is a function of its context, the generator is a rule, and the search is real.


Run: python -m pytest tests/test_agents_s3.py
"""

import re

import pytest

from drlib.agents import S3, Limits
from drlib.chat.template import ChatIds, train_tokenizer
from drlib.chat.tool_calls import render_answer
from drlib.task import Task, is_correct
from drlib.tools import Toolbox
from drlib.trajectory import Segment, Termination
from drlib.worlds import Entity, SmallWorld
from tests.agent_examples import TextEngine

WORLD = SmallWorld(
    [
        Entity("Norway", "territory", {"neighbour": "Sweden", "currency": "Norwegian Krone"}),
        Entity("Sweden", "territory", {"currency": "Swedish Krona"}),
        Entity("Denmark", "territory", {"currency": "Danish Krone"}),
        Entity("Oslo", "city", {"territory": "Norway"}),
    ],
    "atlas",
)
FAR = Task("far", "Norway neighbour", "Swedish Krona", "search", "a")  # two hops
NEAR = Task("near", "Sweden", "Swedish Krona", "search", "a")  # its own results contain it
LIMITS = Limits(calls=9, turn_tokens=300, context_tokens=10**5)


def generator(question, documents):
    """Return the currency in the last document that has one other than Norway's."""
    matches = [re.search(r"currency ([^.;]+)", d.text) for d in documents if d.title != "Norway"]
    return next((match[1] for match in reversed(matches) if match), None)


def gain(done, task):
    """Return the gain beyond RAG."""
    return is_correct(done.answer, task) - is_correct(done.metadata["rag_answer"], task)


@pytest.fixture(scope="module")
def chat():
    return ChatIds(train_tokenizer(["what is the currency"], 320))


@pytest.fixture(scope="module")
def toolbox():
    with Toolbox(WORLD, results=2) as toolbox:
        yield toolbox


def run_s3(chat, toolbox, task, say, **options):
    engine = TextEngine(chat, say)
    options = {"generate": generator, **options}
    (done,) = S3(engine, toolbox, chat, LIMITS, **options).run([task])
    return done, engine.read


def oracle(text):
    """Follow the chain in the first result."""
    if "<tool_response>" in text:
        return "<important_info>[1]</important_info><search_complete>"
    return "<important_info>[1]</important_info><query>Sweden</query>"


def test_oracle_gains_exactly_where_rag_fails(chat, toolbox):
    done, read = run_s3(chat, toolbox, FAR, oracle)
    assert (done.answer, done.termination) == ("Swedish Krona", Termination.ANSWERED)
    assert done.metadata["queries"] == ["Sweden"]
    assert done.metadata["documents"] == ["cldr:Norway", "cldr:Sweden"]
    assert gain(done, FAR) == 1 and len(read) == 2
    near, _ = run_s3(chat, toolbox, NEAR, lambda text: "<search_complete>")
    assert near.answer == near.metadata["rag_answer"] == "Swedish Krona" and gain(near, NEAR) == 0


def test_rag_term_cancels_within_a_group(chat, toolbox):
    """Rewards of one question differ only by the documents."""
    says = [oracle, lambda text: "<search_complete>", lambda text: "<important_info>[]"]
    runs = [run_s3(chat, toolbox, FAR, say)[0] for say in says]
    gains = [gain(done, FAR) for done in runs]
    right = [int(is_correct(done.answer, FAR)) for done in runs]
    assert right == [1, 0, 0]

    def centred(rewards):
        return [reward - sum(rewards) / len(rewards) for reward in rewards]

    assert centred(gains) == centred(right)


def test_only_marked_results_reach_the_generator(chat, toolbox):
    seen = []

    def spy(question, documents):
        seen.append([page.title for page in documents])
        return "Krona"

    marks = iter(["<important_info>[2, 9]</important_info><query>Denmark</query>", "Enough."])
    done, _ = run_s3(chat, toolbox, FAR, lambda text: next(marks), generate=spy)
    rag, final = seen
    assert len(rag) == 2 and final[0] == rag[1] and rag[0] not in final
    assert "Denmark" in final, "a block of which nothing is marked is kept whole"
    everything = "<important_info>[1, 2]</important_info>"
    seen.clear()
    run_s3(chat, toolbox, FAR, lambda text: everything, generate=spy, keep=1)
    assert seen[1] == rag[:1]


def test_rounds_are_limited_and_the_last_block_is_kept(chat, toolbox):
    endless = "<important_info>[]</important_info><query>Denmark</query>"
    done, read = run_s3(chat, toolbox, FAR, lambda text: endless, rounds=2)
    assert done.metadata["queries"] == ["Denmark"] * 2 and len(read) == 2
    assert "cldr:Denmark" in done.metadata["documents"] and done.answer == "Danish Krone"
    with pytest.raises(ValueError, match="rounds=0"):
        S3(TextEngine(chat, oracle), toolbox, chat, LIMITS, rounds=0)


def test_searcher_does_not_depend_on_the_generator(chat, toolbox):
    one, _ = run_s3(chat, toolbox, FAR, oracle)
    other, _ = run_s3(chat, toolbox, FAR, oracle, generate=lambda question, documents: None)
    assert one.token_ids.tolist() == other.token_ids.tolist()
    assert (other.answer, other.termination) == (None, Termination.TURNS)
    # retrieved text is read, not sampled
    found = chat.tokenizer.decode(one.token_ids[~one.generated])
    assert "currency Swedish Krona" in found
    assert "Krona" not in chat.tokenizer.decode(one.token_ids[one.generated])
    assert (one.segments[one.generated] != Segment.TOOL_RESPONSE).all()


def test_policy_as_its_own_generator(chat, toolbox):
    def both(text):
        if "Answer from these documents" in text:
            return render_answer("Swedish Krona" if "currency Swedish" in text else "?")
        return oracle(text)

    done, read = run_s3(chat, toolbox, FAR, both, generate=None)
    assert done.answer == "Swedish Krona" and done.metadata["rag_answer"] is None
    assert "important_info" not in read[-1] and done.contexts.max() == 1
