"""SWE-bench (arXiv 2310.06770), such as SWE-bench Verified: 500 issues with hidden tests.

There is no answer text: a patch is right if the listed tests pass. The tasks are loaded and
checked; their repositories would need a network and Docker.
"""

import re

from drlib.evaluation.benchmarks.benchmark import BenchmarkItem, Row, register_benchmark

_REPO = re.compile(r"[\w.-]+/[\w.-]+")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@register_benchmark("swebench", judge="")
def read_swebench(row: Row) -> BenchmarkItem:
    """Read one row: instance_id, repo, base_commit, patch, test_patch, problem_statement, tests.

    `meta` has the fields by their names in lower case. fail_to_pass and pass_to_pass become lists
    of names of tests; the patches are kept unchanged.
    """
    meta = row.optional("version", "difficulty", "environment_setup_commit", "created_at")
    for name, pattern in (("repo", _REPO), ("base_commit", _COMMIT)):
        meta[name] = row.text(name)
        if not pattern.fullmatch(meta[name]):
            raise row.fail(name, f"must have the form {pattern.pattern}")
    for name in ("patch", "test_patch"):
        if not row.text(name).startswith("diff --git "):
            raise row.fail(name, "is no patch: it must start with 'diff --git'")
        meta[name] = row.find(name)  # with its last line end, without which it does not apply
    for name in ("fail_to_pass", "pass_to_pass"):
        if row.find(name) is None:
            raise row.fail(name, "missing")
        meta[name] = row.listed(name)
        if not all(isinstance(test, str) and test.strip() for test in meta[name]):
            raise row.fail(name, "must be a list of names of tests")
    if not meta["fail_to_pass"]:
        raise row.fail("fail_to_pass", "is empty: no test shows that the issue is solved")
    return BenchmarkItem(row.text("instance_id"), row.text("problem_statement"), (), meta)
