"""Mutants of agents with several contexts and of their training (see `tests.mutants`)."""

from tests.mutants import Mutant

SAMPLES = "tests/test_training_samples.py"
SKILLS = "tests/test_demonstrations_skills.py"
STRATEGIES = "tests/test_experiments_agents.py"

MUTANTS = [
    Mutant(
        "contexts: a sample includes earlier contexts",
        "drlib/training/rollouts.py",
        "inside_T = trajectory.contexts == number",
        "inside_T = trajectory.contexts <= number",
        (SAMPLES,),
        "tokens are trained after text that was not in their context",
    ),
    Mutant(
        "contexts: advantage of another rollout",
        "drlib/training/batch.py",
        "share_over_segments(advantages_N[mine], owners),",
        "share_over_segments(advantages_N[mine], owners[::-1]),",
        (SAMPLES,),
        "segments are trained on rewards of other rollouts",
    ),
    Mutant(
        "contexts: baseline over rollouts instead of samples",
        "drlib/training/batch.py",
        'if config.rl.advantage.baseline == "samples":',
        "if False:",
        (SAMPLES,),
        "a long failed rollout outweighs a short correct one",
    ),
    Mutant(
        "down-sampling: no sample is dropped",
        "drlib/rl/resampling.py",
        "[: n // multiple * multiple]",
        "[:n]",
        (SAMPLES,),
        "processes get batches of different sizes",
    ),
    Mutant(
        "trails: later treasures are ignored",
        "drlib/questions/chains.py",
        "return titles[0], found[places[-1]], entities",
        "return titles[0], found[places[0]], entities",
        ("tests/test_questions_trails.py",),
        "the answer is known early, so no memory is required",
    ),
    Mutant(
        "skills: summary of the previous turn",
        "drlib/demonstrations/skills.py",
        "summary = report_text(episode.known_before[cut])",
        "summary = report_text(episode.known_before[cut - 1])",
        (SKILLS,),
        "the policy is trained to drop the last observation",
    ),
    Mutant(
        "skills: a turn starts before the summary request",
        "drlib/demonstrations/actions.py",
        "opened = len(shown) - len(chat.assistant_start)",
        "opened = len(shown)",
        (SKILLS,),
        "the samples differ from ReSum's prompts",
    ),
    Mutant(
        "skills: pre-training contains answers",
        "drlib/demonstrations/skills.py",
        "yield from self._sample(_without_answer(conversation))",
        "yield from self._sample(conversation)",
        (SKILLS,),
        "the cold start adds no new information",
    ),
    Mutant(
        "several agents: tasks are exchanged",
        "drlib/agents/agent_spec.py",
        "for n, i in enumerate(indices)",
        "for n, i in enumerate(reversed(indices))",
        ("tests/test_agents_spec.py",),
        "rollouts are judged against other questions",
    ),
    Mutant(
        "heavy: researchers are not counted",
        "drlib/agents/rollout_state.py",
        'own[name] + sum(part[name] for part in runs["costs"])',
        "own[name]",
        (STRATEGIES,),
        "Heavy is reported as cheap as one turn",
    ),
    Mutant(
        "votes: over all samples",
        "drlib/experiments/agent_comparison.py",
        "chosen = vote(answers[:n])",
        "chosen = vote(answers)",
        (STRATEGIES,),
        "a small vote is reported with the accuracy of a large one",
    ),
    Mutant(
        "equal tokens: all samples are used",
        "drlib/experiments/agent_comparison.py",
        "return max(1, min(samples, len(one.right[0])))",
        "return len(one.right[0])",
        (STRATEGIES,),
        "the control uses more tokens than the agent",
    ),
]
