"""Tests of the quality report on question sets with known faults.

Run: python -m pytest tests/test_questions_quality.py
"""

import dataclasses
import inspect
import json
import re

import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_hex
from matplotlib.text import Annotation

from drlib.analysis import data_plots
from drlib.analysis.figure_style import png_bytes
from drlib.analysis.widgets import QuestionPanel
from drlib.questions import checks, quality, synthesize_questions
from drlib.questions.quality import (
    build_quality_report,
    count_split_overlap,
    find_contaminated,
    find_near_duplicates,
    get_shape,
    measure_search_rates,
    save_report,
)
from drlib.questions.queries import (
    And,
    Count,
    Diff,
    Extreme,
    Or,
    Proj,
    Range,
    evaluate_query,
    from_text,
    list_constants,
    to_text,
)
from drlib.task import Task
from drlib.tools import Toolbox
from tests.shared_worlds import shared_world


@pytest.fixture(scope="module")
def cldr():
    return shared_world("cldr")


@pytest.fixture(scope="module")
def tasks(cldr):
    return synthesize_questions(cldr, 60, 5)


def replace_query(task, query):
    return dataclasses.replace(task, query=to_text(query))


def test_synthesized_questions_have_no_faults(cldr, tasks):
    report = build_quality_report(tasks, cldr)
    assert report["questions"] == 60 and report["version"] == cldr.version
    assert set(report["by_sets"].values()) == set(report["by_sql"].values()) == {0.0}
    assert report["duplicates"]["queries"] == 0
    assert sum(report["depth"].values()) == sum(report["constants"].values()) == 60
    assert report["answers"]["different"] == len({t.answer for t in tasks})


def test_injected_faults_are_counted_by_both_engines(cldr, tasks):
    """Every third query is made ambiguous by keeping one condition."""
    whole = [from_text(t.query) for t in tasks[:30]]
    bad = [
        replace_query(t, Proj("currency of", "Euro")) if i % 3 == 0 else t
        for i, t in enumerate(tasks[:30])
    ]
    report = build_quality_report(bad, cldr)
    assert report["by_sets"]["not unique"] == report["by_sql"]["not unique"] == pytest.approx(1 / 3)
    assert report["duplicates"]["queries"] == 9 and len(whole) == 30


def test_wrong_and_revealed_answers_are_counted(cldr, tasks):
    bad = [
        dataclasses.replace(t, answer="Wrong") if i % 3 == 0 else t
        for i, t in enumerate(tasks[:30])
    ]
    report = build_quality_report(bad, cldr)
    assert report["by_sets"]["wrong answer"] == report["by_sql"]["wrong answer"]
    assert report["by_sql"]["wrong answer"] == pytest.approx(1 / 3) and not report["by_sql"]["told"]
    revealing = [dataclasses.replace(t, question=f"Is it {t.answer.upper()}?") for t in tasks[:20]]
    revealing[0] = dataclasses.replace(tasks[0], question="Is it Xyland?", aliases=("Xyland",))
    revealing[1] = dataclasses.replace(tasks[1], question=f"Is it {tasks[1].answer}ish?")
    report = build_quality_report(revealing, cldr)
    assert report["by_sets"]["told"] == report["by_sql"]["told"] == 19 / 20
    assert report["by_sets"]["wrong answer"] == 0


def same_year(relation, title):
    return Proj(f"{relation} of", Proj(relation, title))


def test_coincidences_are_counted(cldr, tasks):
    """One coincidence is allowed, two are a fault; both are counted."""
    one = And((same_year("currency start year", "Norway"), Proj("currency of", "Euro")))
    two = And((same_year("currency start year", "Norway"), same_year("currency end year", "Peru")))
    plain = And((Proj("currency of", "Euro"), Proj("widely spoken language of", "Tamil")))
    bad = [replace_query(task, q) for task, q in zip(tasks, (one, two, two, plain), strict=False)]
    report = build_quality_report(bad, cldr)
    assert report["coincidences"] == 3 / 4
    assert report["by_sets"]["coincidence"] == report["by_sql"]["coincidence"] == 2 / 4


def test_answers_adjacent_to_a_constant_are_counted(cldr, tasks):
    both = And((Proj("currency", "Norway"), Proj("currency", "Svalbard & Jan Mayen")))
    near = replace_query(tasks[0], both)
    answer = next(iter(evaluate_query(Proj("currency", "Norway"), cldr.graph)))
    single = replace_query(tasks[1], Proj("currency", "Norway"))
    single = dataclasses.replace(single, answer=answer)
    report = build_quality_report([near, single], cldr)
    assert report["by_sets"]["near"] == report["by_sql"]["near"] == 1 / 2


def test_report_contains_every_fault():
    found = re.findall(r'yield "([a-z ]+)"', inspect.getsource(checks))
    assert len(found) > 8 and {*found} <= {*quality.QUESTION_FAULTS}


def test_near_duplicates_match_brute_force():
    long = "the quick brown fox jumps over the lazy dog near the old river bank today"
    texts = [
        long,
        long + " again",
        "short one",
        "Short one",
        "short two",
        "quite another text that shares nothing with the first of them at all",
    ]

    def grams(text):
        words = text.casefold().split()
        return {tuple(words[i : i + 8]) for i in range(len(words) - 7)} or {text.casefold()}

    brute = []
    for i in range(len(texts)):
        for j in range(i + 1, len(texts)):
            a, b = grams(texts[i]), grams(texts[j])
            if len(a & b) / len(a | b) >= 0.7:
                brute.append((i, j))
    assert find_near_duplicates(texts) == brute == [(0, 1), (2, 3)]


def test_count_split_overlap(tasks):
    assert count_split_overlap(tasks[:20], tasks[20:40])["queries"] == 0
    same = count_split_overlap(tasks[:20], tasks[10:20])
    assert same["queries"] == 10
    assert same["answers"] == len({t.answer for t in tasks[10:20]} & {t.answer for t in tasks[:20]})
    names = [("Ivory Coast", ()), ("Côte d’Ivoire", ("ivory coast.",)), ("Mali", ("x",))]
    one, two, other = (
        dataclasses.replace(tasks[i], answer=a, aliases=b) for i, (a, b) in enumerate(names)
    )
    assert (
        count_split_overlap([one], [two])["answers"]
        == count_split_overlap([two, two], [one])["answers"]
        == 1
    )
    assert count_split_overlap([one, two], [other])["answers"] == 0


@pytest.mark.parametrize("suffix", ["json", "jsonl", "txt", "csv"])
def test_contaminated_question_is_found_in_a_benchmark(tmp_path, suffix):
    words = "which land has a coin that was first struck in the year of the great comet".split()
    question, file = " ".join(words).capitalize() + "?", tmp_path / f"bench.{suffix}"
    rows = [
        {"meta": {"n": 1}, "turns": [{"text": "nothing"}]},
        {"turns": [{"text": f"Q: {question} A: no"}]},
    ]
    text = {"json": json.dumps(rows), "jsonl": "\n".join(map(json.dumps, rows)) + "\n"}
    file.write_text(text.get(suffix, f"id,question\n1,nothing\n2,{question}\n"))
    other = "which land has a coin that was first struck in another year, long before that?"
    assert find_contaminated([question, other, "too short"], file) == [0]
    short = "first struck in the year of the great"
    assert find_contaminated([short], file) == [0]
    tiny = ["Year of the GREAT comet?", "year of the small comet", "the of", "", "?", "great comet"]
    assert find_contaminated(tiny, file) == [0, 5]  # matched by all words in order


def test_benchmarks_with_equal_names_are_both_reported(tmp_path, cldr, tasks):
    files = [tmp_path / name / "test.txt" for name in "ab"]
    for file, text in zip(files, (tasks[0].question, "nothing")):
        file.parent.mkdir()
        file.write_text(text)
    report = build_quality_report(tasks[:5], cldr, benchmarks=files)
    assert report["contaminated"] == {str(files[0]): 1, str(files[1]): 0}


def test_damaged_benchmark_is_an_error(tmp_path, cldr, tasks):
    file = tmp_path / "bench.jsonl"
    file.write_text('{"question": "half')
    with pytest.raises(ValueError):
        build_quality_report(tasks, cldr, benchmarks=[file])
    with pytest.raises(OSError, match="absent"):
        build_quality_report(tasks, cldr, benchmarks=[tmp_path / "absent.txt"])


def test_questions_without_queries_are_rejected(cldr):
    with pytest.raises(ValueError, match="synthesize_questions"):
        build_quality_report([], cldr)
    with pytest.raises(ValueError, match="synthesize_questions"):
        build_quality_report([Task("t", "q", "a", "search", "w")], cldr)


def test_measure_search_rates(cldr):
    tasks = [
        Task("a", "Norway", "Norway", "search", "w"),  # an exact title match ranks first
        Task("b", "Norway", "Norwegian Krone", "search", "w"),
        Task("c", "?!", "Norway", "search", "w"),
    ]
    rates = measure_search_rates(tasks, cldr)
    assert rates["@1"] == pytest.approx(1 / 3, abs=1e-4) and rates["@5"] >= rates["@1"]


def test_shape_ignores_names_and_order():
    one = And((Proj("a", "x"), Proj("b", Proj("c", "y"))))
    two = And((Proj("d", Proj("e", "z")), Proj("f", "u")))
    assert get_shape(one) == get_shape(two) != get_shape(And((Proj("a", "x"), Proj("b", "y"))))
    assert get_shape(Range("since", 1, 2)) == ["Range"]
    assert get_shape(Extreme("n", Or((Proj("a", "x"), Proj("a", "y"))), True)) == [
        "Extreme",
        ["Or", ["Proj", ""], ["Proj", ""]],
    ]
    assert get_shape(Diff(Count("x"), "y")) == ["Diff", "", ["Count", ""]]


def test_save_report_is_atomic(tmp_path):
    path = save_report({"a": 1}, tmp_path / "deep" / "quality_report.json")
    assert json.loads(path.read_text()) == {"a": 1}
    with pytest.raises(TypeError):
        save_report({"a": object()}, path)
    assert json.loads(path.read_text()) == {"a": 1} and len(list(path.parent.iterdir())) == 1


REPORT = {
    "format": {"in": 30, "kept": 20, "reasons": {"no answer": 10}},
    "correct": {"in": 20, "kept": 5, "reasons": {"wrong answer": 15}},
}


def draw_funnel(report, clean):
    fig, ax = plt.subplots()
    data_plots.plot_funnel(ax, report, clean)
    return fig


def test_plot_funnel_bars_and_reasons():
    clean = {rule: {"in": 4, "kept": 3, "reasons": {}} for rule in REPORT}
    ax = draw_funnel(REPORT, clean).axes[0]
    assert [bar.get_width() for bar in ax.patches] == [30, 20, 5, 4, 3, 3]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["sampled", *REPORT]
    texts = [text.get_text().strip() for text in ax.texts]
    assert texts == ["30", "20", "5", "no answer: 10", "wrong answer: 15"]


def test_figures_are_byte_identical(cldr, tasks):
    reports = [build_quality_report(tasks, cldr), build_quality_report(tasks[:20], cldr)]
    for draw in (
        lambda: data_plots.plot_quality(reports),
        lambda: data_plots.plot_question_graph(from_text(tasks[0].query), tasks[0].answer),
        lambda: draw_funnel(REPORT, REPORT),
    ):
        assert png_bytes(draw()) == png_bytes(draw())


def test_depth_bars_of_several_reports_are_aligned(cldr, tasks):
    reports = [build_quality_report(tasks[:4], cldr), build_quality_report(tasks[4:8], cldr)]
    reports[0]["depth"], reports[1]["depth"] = {"3": 4}, {"2": 1, "3": 3, "10": 0}
    ax = data_plots.plot_quality(reports).axes[1]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["2", "3", "10"]
    heights = [[round(bar.get_height(), 3) for bar in bars] for bars in ax.containers]
    assert heights == [[0, 1, 0], [0.25, 0.75, 0]]
    centres = [bars[1].get_x() + bars[1].get_width() / 2 for bars in ax.containers]
    assert centres == pytest.approx([0.8, 1.2])


def test_world_colours_are_fixed(cldr, tasks):
    report = build_quality_report(tasks[:4], cldr)
    names = ("mine", "pydocs", "cldr", "theirs")
    reports = [report | {"world": name} for name in names]
    ax = data_plots.plot_quality(reports).axes[1]
    colors = [to_hex(bars[0].get_facecolor()) for bars in ax.containers]
    world_colors = data_plots.WORLD_COLORS
    assert colors[1:3] == [to_hex(world_colors[name]) for name in ("pydocs", "cldr")]
    assert len(set(colors)) == 4


def list_lines(query):
    """Return (left text, label, right text) of each arrow of a question's graph."""
    ax = data_plots.plot_question_graph(query, "X").axes[0]
    arrows = [text for text in ax.texts if isinstance(text, Annotation)]
    places = {t.get_position(): t.get_text() for t in ax.texts if t not in arrows}
    found = []
    for arrow in arrows:
        (x, y), (right, below) = arrow.get_position(), arrow.xy
        label = places[(x + 0.58, y + 0.58 * (below - y))]
        found.append((places[x, y], label, places[right, below]))
    plt.close(ax.figure)
    return found


def test_question_graph_shows_named_entities():
    union = Proj("p of", Or(("A", "B")))
    assert sorted(list_lines(union)) == [(" ", "or is", "A"), (" ", "or is", "B"), ("X", "p", " ")]
    assert list_lines(Diff(Proj("p of", "A"), "B")) == [("X", "p", "A"), ("X", "not is", "B")]
    assert list_lines(And(("A", Proj("q of", "B")))) == [("X", "is", "A"), ("X", "q", "B")]
    assert list_lines(Extreme("n", "A", True)) == [("X", "is", "A"), ("X", "n", "most")]


def test_nested_conditions_have_a_node():
    both, either = And((Proj("q of", "B"), Proj("r of", "C"))), Or((Proj("q of", "B"), "C"))
    assert sorted(list_lines(Diff(Proj("p of", "A"), both))) == [
        (" ", "q", "B"),
        (" ", "r", "C"),
        ("X", "not", " "),
        ("X", "p", "A"),
    ]
    assert sorted(list_lines(Or((Proj("p of", "A"), both)))) == [
        (" ", "q", "B"),
        (" ", "r", "C"),
        ("X", "or", " "),
        ("X", "or p", "A"),
    ]
    assert sorted(list_lines(Diff("A", either))) == [
        (" ", "or is", "C"),
        (" ", "or q", "B"),
        ("X", "is", "A"),
        ("X", "not", " "),
    ]


def test_question_graphs_show_all_constants(tasks):
    for task in tasks:
        query = from_text(task.query)
        figure = data_plots.plot_question_graph(query, task.answer)
        drawn = {text.get_text() for text in figure.axes[0].texts}
        plt.close(figure)
        assert {*list_constants(query)} <= drawn, task.query


def test_question_panel_shows_the_solver_outcome(cldr, tasks):
    wrong_task = dataclasses.replace(tasks[0], answer="Wrong", aliases=())
    for task, closed, outcome in (
        (tasks[0], False, "right"),
        (wrong_task, False, "wrong"),
        (tasks[0], True, "none"),
    ):
        with Toolbox(cldr, closed_book=closed) as toolbox:
            text = QuestionPanel(cldr, [task], toolbox).text.value
        assert re.search(rf"<td>\d+ calls, {outcome}</td>", text), text


def test_question_graph_shows_all_labels():
    query = And(
        (
            Proj("currency of", Proj("home of", "A")),
            Range("since", 1950, 1970),
            Diff(Proj("p", "B"), Proj("p", "C")),
        )
    )
    drawn = {text.get_text() for text in data_plots.plot_question_graph(query, "X").axes[0].texts}
    assert {"X", "A", "B", "C", "currency", "home", "since", "1950 to 1970", "not p of"} <= drawn
