"""The faults of agents of several contexts, and of training through them (see `tests.mutants`)."""

from tests.mutants import Mutant

SAMPLES = "tests/test_training_samples.py"
SKILLS = "tests/test_demonstrations_skills.py"
STRATEGIES = "tests/test_experiments_agents.py"

MUTANTS = [
    Mutant(
        "contexts: a sample reads those before it",
        "drlib/training/rollouts.py",
        "inside_T = trajectory.contexts == number",
        "inside_T = trajectory.contexts <= number",
        (SAMPLES,),
        "tokens are trained behind text that the policy had forgotten",
    ),
    Mutant(
        "contexts: the advantage of another rollout",
        "drlib/training/batch.py",
        "share_over_segments(advantages_N[mine], owners),",
        "share_over_segments(advantages_N[mine], owners[::-1]),",
        (SAMPLES,),
        "segments are pushed by the rewards of others",
    ),
    Mutant(
        "contexts: the baseline over samples is one over rollouts",
        "drlib/training/batch.py",
        'if config.rl.advantage.baseline == "samples":',
        "if False:",
        (SAMPLES,),
        "a failure of many rounds pushes harder than a success of few pulls",
    ),
    Mutant(
        "down-sampling: nothing is dropped",
        "drlib/rl/resampling.py",
        "[: n // multiple * multiple]",
        "[:n]",
        (SAMPLES,),
        "processes get batches of different sizes",
    ),
    Mutant(
        "trails: a later treasure does not count",
        "drlib/questions/chains.py",
        "return titles[0], found[places[-1]], entities",
        "return titles[0], found[places[0]], entities",
        ("tests/test_questions_trails.py",),
        "the answer is known long before the end, and nothing has to be remembered",
    ),
    Mutant(
        "skills: a summary of the turn before",
        "drlib/demonstrations/skills.py",
        "summary = report_text(episode.known_before[cut])",
        "summary = report_text(episode.known_before[cut - 1])",
        (SKILLS,),
        "a policy is taught to forget what it has just read",
    ),
    Mutant(
        "skills: a turn opens before the summary is asked for",
        "drlib/demonstrations/actions.py",
        "opened = len(shown) - len(chat.assistant_start)",
        "opened = len(shown)",
        (SKILLS,),
        "what is taught is not what ReSum shows",
    ),
    Mutant(
        "skills: pre-training tells answers",
        "drlib/demonstrations/skills.py",
        "yield from self._sample(_without_answer(conversation))",
        "yield from self._sample(conversation)",
        (SKILLS,),
        "the cold start has nothing left to teach",
    ),
    Mutant(
        "several agents: the tasks of one for another",
        "drlib/agents/agent_spec.py",
        "for n, i in enumerate(indices)",
        "for n, i in enumerate(reversed(indices))",
        ("tests/test_agents_spec.py",),
        "rollouts are judged by the answers of other questions",
    ),
    Mutant(
        "heavy: researchers cost nothing",
        "drlib/agents/rollout_state.py",
        'own[name] + sum(part[name] for part in runs["costs"])',
        "own[name]",
        (STRATEGIES,),
        "Heavy seems as cheap as one turn",
    ),
    Mutant(
        "votes: of all samples",
        "drlib/experiments/agent_comparison.py",
        "chosen = vote(answers[:n])",
        "chosen = vote(answers)",
        (STRATEGIES,),
        "a vote of few is sold with the accuracy of many",
    ),
    Mutant(
        "equal tokens: as many samples as there are",
        "drlib/experiments/agent_comparison.py",
        "return max(1, min(samples, len(one.right[0])))",
        "return len(one.right[0])",
        (STRATEGIES,),
        "the control spends more than what it is compared with",
    ),
]
