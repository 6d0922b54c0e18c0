"""RL questions: shares of sources, kinds, and a fixed pool in epochs.

Run: python -m pytest tests/test_training_questions.py
"""

from collections import Counter
from fractions import Fraction

import pytest

from drlib.config import ROOT
from drlib.demonstrations.document_teacher import draw_document_questions
from drlib.rl.curriculum import Curriculum, Epochs
from drlib.training.question_scheduler import (
    SKILLS,
    QuestionScheduler,
    check_question_settings,
    question_source,
    source_shares,
)
from drlib.worlds import Names, fictional_world
from tests.loop_examples import cold_start, reload_state, settings

start = cold_start


def make_scheduler(start, **changes) -> QuestionScheduler:
    return QuestionScheduler(settings(**changes), start.world, Names.from_world(start.world))


def sources(drawn_questions) -> list[str]:
    tasks, worlds = drawn_questions
    return [question_source(task, worlds) for task in tasks]


# ---------------------------------------------------------------- sources and kinds

MIXED = {
    "rl.curriculum.mixture": "exact",
    "rl.curriculum.trail_share": 0.2,
    "rl.curriculum.trail_pages": 3,
    "rl.curriculum.python_share": 0.25,
    "rl.curriculum.fictional_share": 0.5,
}


def test_default_questions_match_the_committed_runs(start):
    tasks, _ = make_scheduler(start).draw(3, Curriculum(SKILLS))
    assert [task.id for task in tasks] == [
        "search-h3-eb77c198ab",
        "search-h1-d2c1aba54a",
        "search-h3-1c15b2366a",
        "python-factor-d71f66932b",
        "search-h3-f6d644afcd",
        "search-h1-c1e6288c34",
        "search-h2-1d2843243b",
        "search-h2-24781f52b1",
    ]


def test_second_draw_of_a_step_has_new_questions(start):
    questions, curriculum = make_scheduler(start), Curriculum(SKILLS)
    first, again = (questions.draw(3, curriculum, n)[0] for n in (0, 1))
    assert first == questions.draw(3, curriculum)[0]
    assert not {task.id for task in first} & {task.id for task in again}


def test_source_shares_are_exact():
    assert source_shares(settings(**MIXED)) == {
        "trail": Fraction(1, 5),
        "python": Fraction(1, 5),
        "real": Fraction(3, 10),
        "fictional": Fraction(3, 10),
    }
    assert source_shares(settings(rl__curriculum__python_share=1.0)) == {"python": 1}
    assert source_shares(
        settings(rl__curriculum__python_share=0.0, rl__curriculum__fictional_share=0.3)
    ) == {
        "real": Fraction(7, 10),
        "fictional": Fraction(3, 10),
    }


FOLDER = f"folder:{ROOT / 'tests' / 'first_hour' / 'folders' / 'company_wiki'}"


def test_documents_are_asked_about_in_their_own_world(start):
    """Half of the searches are about documents; each task's world has its page."""
    share = {"rl.curriculum.document_share": 0.5, "rl.curriculum.mixture": "exact"}
    changes = MIXED | share | {"rl.curriculum.documents": FOLDER, "rl.questions": 20}
    assert source_shares(settings(**changes))["documents"] == Fraction(3, 10)
    assert "documents" not in source_shares(settings(**MIXED))
    tasks, worlds = make_scheduler(start, **changes).draw(0, Curriculum(SKILLS))
    assert Counter(sources((tasks, worlds)))["documents"] == 6
    known = {q.task.id: q.task for q in draw_document_questions(FOLDER, 500, seed=0)[1]}
    read = [task for task in tasks if question_source(task, worlds) == "documents"]
    assert all(known[task.id] == task for task in read)
    assert all(worlds[task.world].search(task.question, 1) for task in read)


def test_document_questions_need_a_world_that_stays(start, tmp_path):
    with pytest.raises(ValueError, match="leave out rl.curriculum.documents"):
        check_question_settings(
            settings(rl__curriculum__documents=FOLDER, rl__callbacks__world_change=2)
        )
    (tmp_path / "a.md").write_text("# Nothing\n")
    with pytest.raises(ValueError, match="no question about folder:"):
        make_scheduler(start, rl__curriculum__documents=f"folder:{tmp_path}")


def test_exact_mixture_meets_its_shares_in_every_step(start):
    questions, curriculum = make_scheduler(start, rl__questions=10, **MIXED), Curriculum(SKILLS)
    expected = {"trail": 2, "python": 2, "real": 3, "fictional": 3}
    places = Counter()
    for step in range(12):
        drawn_questions = sources(questions.draw(step, curriculum))
        assert Counter(drawn_questions) == expected
        places.update((source, place) for place, source in enumerate(drawn_questions))
    # in random order: otherwise one process or agent would get all questions of a source
    assert len(places) > 25
    by_chance = make_scheduler(
        start, rl__questions=10, **MIXED | {"rl.curriculum.mixture": "chance"}
    )
    met = [Counter(sources(by_chance.draw(step, curriculum))) == expected for step in range(12)]
    assert not all(met)


def test_exact_mixture_resumes(start):
    """With seven questions per step only ten steps together meet the shares."""
    whole, curriculum = make_scheduler(start, rl__questions=7, **MIXED), Curriculum(SKILLS)
    before = [whole.draw(step, curriculum) for step in range(4)]
    resumed = reload_state(whole, make_scheduler(start, rl__questions=7, **MIXED))
    rest = [whole.draw(step, curriculum) for step in range(4, 10)]
    again = [resumed.draw(step, curriculum) for step in range(4, 10)]
    assert [tasks for tasks, _ in again] == [tasks for tasks, _ in rest]
    total = Counter(
        source for drawn_questions in before + rest for source in sources(drawn_questions)
    )
    assert total == {"trail": 14, "python": 14, "real": 21, "fictional": 21}


def test_kinds_are_drawn_evenly_without_weighting(start):
    """Draw 300 sums of eight kinds and 300 chains of three lengths: expect 37.5 and 100 each."""
    mastered = Curriculum(SKILLS, dict.fromkeys(SKILLS, 1.0) | {"h3": 0.5, "gcd": 0.5})

    def kinds(**changes):
        drawn_questions = make_scheduler(
            start, rl__questions=300, rl__curriculum__fictional_share=0.0, **changes
        )
        return Counter(task.skill for task in drawn_questions.draw(0, mastered)[0])

    sums, chains = (
        kinds(rl__curriculum__weighting="none", rl__curriculum__python_share=share)
        for share in (1.0, 0.0)
    )
    assert len(sums) == 8 and all(15 < n < 65 for n in sums.values())
    assert len(chains) == 3 and all(70 < n < 130 for n in chains.values())
    weighed = kinds(rl__curriculum__python_share=0.0)
    assert weighed["h3"] > 200  # 0.29 of 0.37


# ---------------------------------------------------------------- a fixed set


def test_pool_is_seeded_and_drawn_in_epochs(start):
    pool = {"rl.curriculum.pool": 20, "rl.questions": 8, **MIXED}
    questions, same = (make_scheduler(start, **pool) for _ in range(2))
    other = make_scheduler(start, seed=1, **pool)
    assert len(questions.pool) == 20 and list(questions.pool) == list(same.pool)
    assert not {*questions.pool} & {*other.pool}
    everything = questions.pool_questions(list(questions.pool))
    kinds = Counter(sources(everything))
    assert kinds == {"trail": 4, "python": 4, "real": 6, "fictional": 6}
    curriculum, asked_ids = Curriculum(SKILLS), []
    for step in range(10):
        tasks, worlds = questions.draw(step, curriculum)
        assert len({task.id for task in tasks}) == 8
        for task in tasks:
            _, world = questions.pool[task.id]
            assert world is None or worlds[task.world] is world
        asked_ids += [task.id for task in tasks]
    # 80 draws are four epochs of 20; each of them is in another order
    epochs = [asked_ids[at : at + 20] for at in range(0, 80, 20)]
    assert all(sorted(epoch) == sorted(questions.pool) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_pool_resumes_within_an_epoch(start):
    pool, curriculum = {"rl.curriculum.pool": 20, "rl.questions": 8}, Curriculum(SKILLS)
    whole = make_scheduler(start, **pool)
    _ = [whole.draw(step, curriculum) for step in range(4)]
    resumed = reload_state(whole, make_scheduler(start, **pool))
    for step in range(4, 9):
        assert resumed.draw(step, curriculum)[0] == whole.draw(step, curriculum)[0]
    assert resumed.epochs.state["epoch"] == 4


def test_epochs_follow_changes_of_the_set():
    epochs = Epochs("abcdef", seed=0)
    first = epochs.draw(4)
    epochs.keep([*"abc", "new"])
    rest = sorted({*"abc"} - {*first})
    assert sorted(epochs.draw(len(rest))) == rest  # of this epoch; "new" comes with the next
    assert sorted(epochs.draw(4)) == ["a", "b", "c", "new"]
    # a set smaller than a draw is repeated
    assert Counter(epochs.draw(9)).most_common()[-1][1] == 2
    with pytest.raises(ValueError, match="set of questions is empty"):
        epochs.keep([])


def test_pool_has_even_kinds_and_unique_questions(start):
    kinds = Counter(
        task.skill
        for task, _ in make_scheduler(
            start, rl__curriculum__pool=240, rl__curriculum__python_share=1.0
        ).pool.values()
    )
    assert len(kinds) == 8 and min(kinds.values()) > 10
    small = fictional_world(1, Names.from_world(start.world))
    few = settings(
        rl__curriculum__pool=3000,
        rl__curriculum__python_share=0.0,
        rl__curriculum__fictional_share=0.0,
    )
    with pytest.raises(
        ValueError, match=r"rl.curriculum.pool=3000 exceeds the \d+ different questions.*lower it"
    ):
        QuestionScheduler(few, small, Names.from_world(start.world))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rl.curriculum.pool": 7}, "rl.curriculum.pool=7 is smaller than rl.questions=8"),
        ({"rl.curriculum.curation_every": 1}, "set rl.curriculum.pool"),
        ({"rl.curriculum.stages": "three"}, "set rl.curriculum.pool"),
        (
            {"rl.curriculum.stages": "three", "rl.curriculum.pool": 8, "rl.steps": 2},
            "set rl.steps to 3",
        ),
    ],
)
def test_incompatible_settings_are_rejected(changes, message):
    with pytest.raises(ValueError, match=message):
        check_question_settings(settings(**changes))
