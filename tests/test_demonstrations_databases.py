"""Tools over a database: effects, failures without side effects, and state hashes.

Run: python -m pytest tests/test_demonstrations_databases.py
"""

import ast
import itertools
import json
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drlib.chat.tool_calls import ToolCall
from drlib.demonstrations.agentscaler import READS, Api, Domain, find_domains, sample_task, toy_apis

APIS = toy_apis()
DOMAINS_FOUND = [Domain(part) for part in find_domains(APIS)]
LIBRARY = DOMAINS_FOUND[0]


def test_schema_is_derived_from_the_tools():
    assert LIBRARY.schema == {
        "book": ["title", "genre", "shelf"],
        "loan": ["book_id", "reader", "day"],
    }
    single = Domain([api for api in APIS if api.name == "find_loan"])  # a table only referred to
    assert single.schema == {"book": [], "loan": ["book_id"]}
    for api in APIS:  # each tool alone is a domain that opens
        Domain([api]).open(0).close()


def test_tool_is_runnable_python_source():
    source = LIBRARY.sources["set_book"]
    (function,) = ast.parse(source).body
    assert [a.arg for a in function.args.args] == ["db", "book_id", "shelf"]
    assert "UPDATE book SET shelf" in source


def test_tools_read_and_write_the_database():
    with closing(LIBRARY.open(1)) as db:

        def call(name, **arguments):
            worked, shown = LIBRARY.call(db, name, arguments)
            return json.loads(shown) if worked else shown

        book = call("add_book", title="Emma", genre="novel", shelf="A1")["book_id"]
        assert call("get_book", book_id=book) == {
            "book_id": book,
            "title": "Emma",
            "genre": "novel",
            "shelf": "A1",
        }
        again = call("add_book", title="Emma", genre="crime", shelf="A2")["book_id"]
        assert int(again) == int(book) + 1
        assert call("find_book", title="Emma") == {"book_id": book}  # the first match
        assert call("set_book", book_id=book, shelf="B2") == {"book_id": book}
        assert call("get_book", book_id=book)["shelf"] == "B2"
        assert call("get_book", book_id=again)["shelf"] == "A2"
        loan = call("add_loan", book_id=book, reader="Ito", day="Monday")["loan_id"]
        assert call("find_loan", book_id=book) == {"loan_id": loan}
        assert call("remove_book", book_id=book) == "Error: FOREIGN KEY constraint failed."
        assert call("remove_loan", loan_id=loan) == {}
        assert call("get_loan", loan_id=loan) == "Error: no such loan."
        assert call("remove_book", book_id=book) == {}
        assert call("find_book", title="Emma") == {"book_id": again}
        missing = call("add_loan", book_id="99", reader="Ito", day="Monday")
        assert missing == "Error: FOREIGN KEY constraint failed."


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("get_moon", {}),
        ("get_book", {}),
        ("get_book", {"book_id": 1}),
        ("get_book", {"id": "1"}),
        ("get_book", {"book_id": "1", "shelf": "A"}),
        ("set_book", {"book_id": ["1"], "shelf": "A"}),
    ],
)
def test_invalid_call_returns_an_error_observation(name, arguments):
    with closing(LIBRARY.open(0)) as db:
        before = LIBRARY.hash(db)
        worked, shown = LIBRARY.call(db, name, arguments)
        assert not worked and shown.startswith("Error: no tool") and name in shown
        assert LIBRARY.hash(db) == before


def test_invalid_tools_are_rejected():
    for table in ("book; DROP TABLE loan", "a b", ""):
        with pytest.raises(ValueError, match="'show'.*identifiers"):
            Domain([Api("show", "get", table, ("x_id",), ("x_id",))])
    with pytest.raises(ValueError, match="'show'.*op one of .*'remove'"):
        Domain([Api("show", "drop", "book", ("book_id",), ("book_id",))])
    lone = Domain([api for api in APIS if api.name == "remove_book"])
    with pytest.raises(ValueError, match="book: no walk of 2 to 8 calls"):
        sample_task(lone, 0)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(0, 59), st.integers(0, 10), st.data())
def test_reads_and_failed_writes_never_change_the_hash(index, seed, data):
    api = APIS[index]
    domain = next(domain for domain in DOMAINS_FOUND if api.name in domain.apis)
    odd = st.sampled_from(["'; DROP TABLE book; --", "\ud800", "?", "title-3"])
    values = st.one_of(st.integers(0, 12).map(str), st.text(max_size=8), odd)
    with closing(domain.open(seed)) as db:
        before = domain.hash(db)
        worked, _ = domain.call(db, api.name, {p: data.draw(values) for p in api.params})
        if api.op in READS or not worked:
            assert domain.hash(db) == before
        elif api.op != "set":  # a set may write the existing value
            assert domain.hash(db) != before


@pytest.mark.parametrize("domain", DOMAINS_FOUND, ids=lambda domain: domain.name)
def test_initial_states_are_diverse_and_hashed_by_content(domain):
    hashes, sizes = [], set()
    for seed in [*range(20), *range(20)]:
        with closing(domain.open(seed)) as db:
            hashes.append(domain.hash(db))
            sizes.add(db.execute(f"SELECT COUNT(*) FROM {next(iter(domain.schema))}").fetchone()[0])
    assert hashes[:20] == hashes[20:] and len(set(hashes)) == 20
    assert sizes <= {*range(3, 9)} and len(sizes) >= 4


def test_hash_ignores_the_order_of_independent_writes():
    writes = [ToolCall("set_book", {"book_id": i, "shelf": f"new-{i}"}) for i in ("1", "2", "3")]
    task = sample_task(LIBRARY, 0)
    finals = {task.run(order)[1] for order in itertools.permutations(writes)}
    assert task.domain is LIBRARY and len(finals) == 1
