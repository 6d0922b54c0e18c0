"""Mutants of the environments that run programs (see `tests.mutants`)."""

from tests.mutants import Mutant

SWE = "drlib/environments/swe.py"
SPACE = "drlib/environments/workspace.py"
TERMINAL = "drlib/environments/terminal_tasks.py"
HARBOR = "drlib/environments/harbor_tasks.py"
DATABASE = "drlib/environments/database.py"
USERS = "tests/test_environments_database.py::"
WEB = "drlib/environments/web_tasks.py"
PROCESS = "drlib/sandbox/program_process.py"
CHEATING = "tests/test_environments_cheating.py::"
MODULES = f"{CHEATING}test_modules_that_cheat_fail_the_hidden_tests"

CORE = "tests/test_environments.py::"

MUTANTS = [
    Mutant(
        "environments: a fault of the verification is a score of 0",
        "drlib/tools/episode_toolbox.py",
        "return Verification(None, self._fault(error))",
        "return Verification(0.0)",
        (f"{CORE}test_a_fault_of_the_environment_is_excluded_and_never_scored",),
        "a crash would be punished",
    ),
    Mutant(
        "environments: partial credit counts as solved",
        "drlib/rewards/functions.py",
        "verification_score(trajectory, task) >= 1",
        "verification_score(trajectory, task) > 0",
        (f"{CORE}test_rewards_read_the_verification",),
        "every rollout near the goal would be correct",
    ),
    Mutant(
        "environments: test tasks are trained on",
        "drlib/environments/environment.py",
        'if is_test(task.question) == (split == "test"):',
        'if split == "train" or is_test(task.question):',
        (f"{CORE}test_splits_are_disjoint_for_every_seed",),
        "held-out results would be those of training tasks",
    ),
    Mutant(
        "environments: states are never closed after a verification",
        "drlib/tools/episode_toolbox.py",
        "            finally:\n                self._close()",
        "            finally:\n                pass",
        (f"{CORE}test_each_rollout_has_a_state_of_its_own_and_no_call_is_cached",),
        "databases and folders would accumulate",
    ),
    Mutant(
        "environments: an evaluation counts faults as wrong",
        "drlib/evaluation/evaluate.py",
        "    if faults:\n",
        "    if False:\n",
        (
            "tests/test_environments_training.py::"
            "test_a_fault_in_an_evaluation_is_repeated_and_never_wrong",
        ),
        "a full disk would lower the accuracy",
    ),
    Mutant(
        "a process that exits early passes the hidden tests",
        SWE,
        "        if values is None:\n            return 0.0",
        "        if values is None:\n            return 1.0",
        (MODULES,),
        "os._exit(0) would be a solution",
    ),
    Mutant(
        "a result with fewer values is accepted",
        SPACE,
        "is_complete = isinstance(values, list) and len(values) == len(calls)",
        "is_complete = isinstance(values, list)",
        (MODULES,),
        "an empty result would pass all tests",
    ),
    Mutant(
        "values of different types are equal",
        SPACE,
        "    if type(left) is not type(right):\n        return False\n",
        "",
        ("tests/test_environments_swe.py::test_values_are_compared_by_type",),
        "True would pass for 1",
    ),
    Mutant(
        "a bug with one hidden value is planted",
        SWE,
        "len({value for _, value in others}) < 2",
        "len({value for _, value in others}) < 1",
        (f"{CHEATING}test_hidden_values_never_reach_the_shell",),
        "a constant function would pass",
    ),
    Mutant(
        "a rollout without an answer is verified",
        SWE,
        "        if answer is None:\n            return 0.0\n        sources",
        "        sources",
        (f"{CHEATING}test_the_correct_module_passes_despite_prints_and_threads",),
        "a rollout that never stops would be rewarded",
    ),
    Mutant(
        "an edit replaces every occurrence",
        SPACE,
        "        if count != 1:\n",
        "        if count < 1:\n",
        ("tests/test_environments_swe.py::test_edit",),
        "a short string would change other lines",
    ),
    Mutant(
        "paths may leave the working folder",
        SPACE,
        'return place if place == self.folder or place.startswith(f"{self.folder}/") else ""',
        "return place",
        ("tests/test_environments_swe.py::test_paths_outside_links_and_binaries_are_refused",),
        "view would show files that are not part of the repository",
    ),
    Mutant(
        "the input files may change",
        TERMINAL,
        'for path, text in (data["files"] | data["changes"]).items():',
        'for path, text in data["changes"].items():',
        (f"{CHEATING}test_terminal_tasks_are_not_fooled",),
        "a task could be solved by changing the question",
    ),
    Mutant(
        "a file that must be gone may stay",
        TERMINAL,
        '            if f"{FOLDER}/{path}" in workspace.files:\n                return False\n',
        "",
        ("tests/test_environments_terminal.py",),
        "copying would pass for moving",
    ),
    Mutant(
        "permissions are not compared",
        TERMINAL,
        '(-1, ""))[0] != mode:',
        '(-1, ""))[0] < 0:',
        ("tests/test_environments_terminal.py",),
        "a task on permissions would be solved at the start",
    ),
    Mutant(
        "a killed test run keeps its reward",
        HARBOR,
        'return reward if done.status == "ok" else 0.0',
        "return reward",
        ("tests/test_environments_harbor.py::test_rewards",),
        "code under test could write the reward and kill the tests",
    ),
    Mutant(
        "the code under test can read the expected values",
        SWE,
        'os.unlink("/tests/tests.json")\n',
        "",
        (f"{CHEATING}test_saved_tasks_are_not_fooled_by_code",),
        "a solution could look up the results",
    ),
    Mutant(
        "programs run without a filter",
        PROCESS,
        "        program_filter.install()\n",
        "",
        ("tests/test_sandbox_programs.py::test_nothing_outside_can_be_reached",),
        "a command could reach rarely used parts of the kernel",
    ),
    Mutant(
        "the interpreter can be replaced",
        PROCESS,
        "    layers.make_read_only(root + PROGRAMS)\n",
        "",
        ("tests/test_sandbox_programs.py::test_nothing_outside_can_be_reached",),
        "code under test could replace the interpreter of the tests",
    ),
    Mutant(
        "files may have any size",
        PROCESS,
        "                if total > STATE_BYTES:\n                    return None\n",
        "",
        ("tests/test_sandbox_programs.py::test_limits",),
        "a sparse file would fill the memory of the trainer",
    ),
    Mutant(
        "the pages of a question need no visit",
        WEB,
        "return float(is_right and is_state and self.visited >= {*self.goal.pages})",
        "return float(is_right and is_state)",
        ("tests/test_environments_web.py::test_a_question_needs_its_page_and_its_answer",),
        "a guessed answer would be rewarded",
    ),
    Mutant(
        "an order leaves the cart as it is",
        WEB,
        "            self.cart.clear()\n",
        "",
        ("tests/test_environments_web.py",),
        "no order could be verified",
    ),
    Mutant(
        "text of a field survives a change of the page",
        WEB,
        "        self.typed = {}\n        self.visited.add(page)",
        "        self.visited.add(page)",
        ("tests/test_environments_web.py::test_cheating_with_forms",),
        "a form could be sent with values of another one",
    ),
    Mutant(
        "a change without confirmation is only counted",
        DATABASE,
        "if answer is None or self.has_unconfirmed:",
        "if answer is None:",
        (f"{USERS}test_a_change_without_confirmation_fails_whatever_the_state",),
        "the policy would learn to skip the question",
    ),
    Mutant(
        "a confirmation holds for every later call",
        DATABASE,
        "                    self.agreed.remove(call)  # for one call\n",
        "                    pass\n",
        (f"{USERS}test_one_confirmation_is_for_one_call",),
        "one agreement would cover repeated payments",
    ),
    Mutant(
        "the user agrees to a change with other values",
        DATABASE,
        "values == sorted(call.arguments.values())",
        "set(values) >= set(call.arguments.values())",
        (f"{USERS}test_the_user_agrees_to_exactly_one_wished_change",),
        "a list of all values would always be confirmed",
    ),
    Mutant(
        "a changed Harbor task is the same stage",
        "drlib/environments/environment.py",
        "                total.update(line.encode())\n",
        "",
        ("tests/test_environments_harbor.py::test_a_changed_task_is_another_stage",),
        "results of the old task would be reused",
    ),
]
