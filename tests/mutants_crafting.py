"""The faults of questions and rows that a language model writes (see `tests.mutants`)."""

from tests.mutants import Mutant

CRAFTING = "tests/test_synthesis_crafting.py"
TEACHER = "tests/test_synthesis_model_teacher.py"
ALTERNATIVES = "tests/test_synthesis_alternatives.py"
USERS = "tests/test_synthesis_users.py"
USERS_FILE = "drlib/synthesis/users.py"
MEMORY = "tests/test_synthesis_world_memory.py"
CRAFT = "drlib/synthesis/crafting.py"
MODEL = "drlib/synthesis/model_teacher.py"

MUTANTS = [
    Mutant(
        "craft: the writer judges its own plans",
        "drlib/lab/craft.py",
        "    teacher = ModelTeacher(writer, reader, names=memory.entities)\n",
        "    teacher = ModelTeacher(writer, writer, names=memory.entities)\n",
        (f"{TEACHER}::test_another_model_reads_and_judges",),
        "a second model was asked for and is not",
    ),
    Mutant(
        "craft: an answer from any statement",
        CRAFT,
        "any(says(one.text, said.answer) for one in said.used):",
        "any(said.answer for one in said.used):",
        (f"{CRAFTING}::test_what_the_model_says_is_executed",),
        "answers that nobody told would be trained on",
    ),
    Mutant(
        "craft: a sum is not computed",
        CRAFT,
        "    if not answers_match(said.answer, str(value)):\n",
        "    if False:\n",
        (f"{CRAFTING}::test_what_the_model_says_is_executed",),
        "wrong numbers would be right answers",
    ),
    Mutant(
        "craft: numbers from nowhere",
        CRAFT,
        "if len(taken) < 2 or not {*taken} <= there:",
        "if len(taken) < 2:",
        (f"{CRAFTING}::test_what_the_model_says_is_executed",),
        "a sum of invented numbers would pass",
    ),
    Mutant(
        "craft: one statement is enough",
        CRAFT,
        "    if any(says(one.text, title) for one in holds for title in named):\n",
        "    if False:\n",
        (f"{CRAFTING}::test_what_the_model_says_is_executed",),
        "questions of two hops would need one",
    ),
    Mutant(
        "craft: hops that nothing links",
        CRAFT,
        "{*first.entities} & {*last.entities} - named for",
        "{*first.entities} | {*last.entities} for",
        (f"{CRAFTING}::test_nothing_links_the_statements_of_two_things",),
        "two unrelated facts would be a chain",
    ),
    Mutant(
        "craft: nobody reads again",
        CRAFT,
        "return made if made.reason else _read_again(made, shown, reader or writer)",
        "return made",
        (f"{CRAFTING}::test_a_second_reader_must_come_to_the_same",),
        "a question with two answers would have one",
    ),
    Mutant(
        "craft: a hub links everything",
        CRAFT,
        "if len(memory.about(title)) < HUB]",
        "if len(memory.about(title)) >= 0]",
        (f"{CRAFTING}::test_what_is_shown_is_the_thing_and_what_stands_beside_it",),
        "all that is a ferry would stand beside a ferry",
    ),
    Mutant(
        "teacher: no verdict is a yes",
        MODEL,
        '            return "not judged: no verdict"\n',
        "            return KEPT\n",
        (f"{TEACHER}::test_a_judge_without_a_verdict_keeps_nothing",),
        "rows that nobody judged would be trained on",
    ),
    Mutant(
        "teacher: a no is a yes",
        MODEL,
        'return KEPT if word[1].casefold() == "yes" else',
        'return KEPT if word[1].casefold() != "maybe" else',
        (f"{TEACHER}::test_plans_are_written_blind_and_judged_by_what_is_known",),
        "rejection would reject nothing",
    ),
    Mutant(
        "teacher: the planner sees the facts",
        MODEL,
        "reply = self.writer.ask(prompt(PLAN, task.question), seed=number)",
        "reply = self.writer.ask(prompt(PLAN + _lines(known), task.question), seed=number)",
        (f"{TEACHER}::test_plans_are_written_blind_and_judged_by_what_is_known",),
        "plans would be of what a policy cannot know",
    ),
    Mutant(
        "teacher: another answer is kept",
        MODEL,
        'return turn, "" if right else "another answer"',
        'return turn, ""',
        (f"{TEACHER}::test_reasoning_is_kept_by_its_answer_and_its_length",),
        "wrong answers would be learned",
    ),
    Mutant(
        "memory: two things of one name",
        "drlib/synthesis/world_memory.py",
        "        if not is_address:\n",
        "        if True:\n",
        (f"{MEMORY}::test_what_cannot_be_told_apart_or_says_nothing_is_left_out",),
        "what is said of a town would be said of its harbour",
    ),
    Mutant(
        "alternatives: the same look-up in other words",
        "drlib/synthesis/alternatives.py",
        "                pairs.pop((relation, name), None)\n",
        "",
        (f"{ALTERNATIVES}::test_neither_form_nor_mention_finds_the_real_step",),
        "a right option would be taught as a wrong one",
    ),
    Mutant(
        "alternatives: names from anywhere",
        "drlib/synthesis/alternatives.py",
        "names = [one for one in every_name if says(read, one)] or [name]",
        "names = list(every_name)",
        (f"{ALTERNATIVES}::test_neither_form_nor_mention_finds_the_real_step",),
        "what was mentioned would tell the real step",
    ),
    Mutant(
        "alternatives: the setting does nothing",
        "drlib/training/pretrain.py",
        'close = config.cpt_has_alternatives == "read"',
        "close = False",
        (f"{ALTERNATIVES}::test_the_setting_changes_the_higher_order_rows_alone",),
        "an ablation would compare a thing with itself",
    ),
    Mutant(
        "users: nothing is withheld",
        USERS_FILE,
        "step=step.text(without=self.missing))",
        "step=step.text())",
        (f"{USERS}::test_what_is_withheld_is_in_no_turn_before_it_is_asked_for",),
        "an agent would learn to ask for what it was told",
    ),
    Mutant(
        "users: any answer is told",
        USERS_FILE,
        "        if spoken(self.missing) in said.casefold():\n",
        "        if True:\n",
        (f"{USERS}::test_a_user_that_nobody_asks_gives_up",),
        "an agent would not have to ask for the right thing",
    ),
    Mutant(
        "users: the user sees the calls",
        USERS_FILE,
        "            elif isinstance(action, Answer):\n",
        "            elif action and (action := Answer(message['content'])):\n",
        (f"{USERS}::test_a_model_may_be_the_user_and_sees_no_calls",),
        "a user would know what only the agent can",
    ),
    Mutant(
        "users: an answer is cut when the user goes on",
        "drlib/synthesis/actions.py",
        "        elif pieces and pieces[-1][1]:",
        "        elif False:",
        (f"{USERS}::test_a_sample_is_what_a_rollout_would_have_seen",),
        "what the assistant said last would be cut off and unlearned",
    ),
    Mutant(
        "users: the setting does nothing",
        "drlib/training/sft.py",
        "play_with_user(task, seed=0) if several else play(task)",
        "play(task)",
        (f"{USERS}::test_the_setting_s_samples_ask",),
        "an ablation would compare a thing with itself",
    ),
    Mutant(
        "replies: a thought without an end is a fault of the server",
        "drlib/synthesis/replies.py",
        "        if text is None and any(",
        "        if text == 0 and any(",
        (
            "tests/test_synthesis_pass_rates.py::"
            "test_who_only_thinks_or_refuses_has_answered_nothing",
        ),
        "five cut thoughts end the asking, each at five times its price",
    ),
    Mutant(
        "api: a thought without an end is a fault of the server",
        "drlib/policy/api.py",
        "    if not has_thought and not has_more:\n",
        "    if not has_more:\n",
        ("tests/test_policy_api.py::test_a_thought_that_was_cut_and_a_refusal_are_what_was_said",),
        "an attempt that thought too long is not judged",
    ),
    Mutant(
        "triples: a server that never answered is asked ahead",
        "drlib/worlds/triples.py",
        "ahead=self._answers)",
        "ahead=True)",
        ("tests/test_worlds_triples.py::test_a_server_that_refuses_is_asked_few_times",),
        "a wrong key costs as many requests as there are files",
    ),
    Mutant(
        "triples: one file after the other",
        "drlib/worlds/triples.py",
        "ahead=self._answers)",
        "ahead=False)",
        (
            "tests/test_worlds_triples.py::"
            "test_small_files_are_asked_about_at_the_same_time_and_each_once",
        ),
        "a thousand notes take a thousand replies' time",
    ),
]
