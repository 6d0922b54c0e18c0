"""Mutants of confidence, branches, folding, vague words and rubrics (see `tests.mutants`)."""

from tests.mutants import Mutant

BROWSECONF = "tests/test_agents_browseconf.py"
PARALLELMUSE = "tests/test_agents_parallelmuse.py"
FAMILY = "tests/test_agents_family.py"
VAGUE = "tests/test_questions_vague_words.py"
RUBRICS = "tests/test_rewards_evolving_rubrics.py"
ANCHORED = "tests/test_rewards_anchored.py"

MUTANTS = [
    Mutant(
        "browseconf: the last answer is returned",
        "drlib/agents/browseconf.py",
        "return max(range(len(runs)), key=rank)",
        "return len(runs) - 1",
        (BROWSECONF,),
        "further attempts replace better answers",
    ),
    Mutant(
        "browseconf: threshold below which answers are right",
        "drlib/agents/browseconf.py",
        "if score >= threshold]",
        "if score <= threshold]",
        (BROWSECONF,),
        "the threshold is calibrated on the wrong answers",
    ),
    Mutant(
        "parallelmuse: branches at the most certain steps",
        "drlib/agents/parallelmuse.py",
        "key=lambda step: -perplexities[step]",
        "key=lambda step: perplexities[step]",
        (PARALLELMUSE,),
        "branches repeat what the policy is sure of",
    ),
    Mutant(
        "parallelmuse: calls of the prefix are not counted",
        "drlib/agents/parallelmuse.py",
        "state.results += first.tool_results[:calls]",
        "state.results += []",
        (PARALLELMUSE,),
        "a branch has more calls than the limit",
    ),
    Mutant(
        "agentfold: the first of two facts is kept",
        "drlib/agents/resum.py",
        "last = {_SUBJECT.match(fact)[0] or fact: fact for fact in facts}",
        "last = {_SUBJECT.match(fact)[0] or fact: fact for fact in reversed(facts)}",
        (FAMILY,),
        "the summary says where the walk began, not where it is",
    ),
    Mutant(
        "vague words: parts of the wrong century",
        "drlib/questions/vague_words.py",
        "number = (year - 1) // 100",
        "number = year // 100",
        (VAGUE,),
        "the year 2000 is said to be in the 21st century",
    ),
    Mutant(
        "vague words: one answer is not required",
        "drlib/questions/vague_words.py",
        "if len(left) != 1:",
        "if not left:",
        (VAGUE,),
        "questions with several answers are proved unique",
    ),
    Mutant(
        "rubrics: criteria are dropped after one step",
        "drlib/rewards/evolving_rubrics.py",
        "return len(recent) == self.window and not any(recent)",
        "return not any(recent)",
        (RUBRICS,),
        "a criterion that discriminates in most steps is lost",
    ),
    Mutant(
        "rubrics: idle criteria are rewarded",
        "drlib/rewards/evolving_rubrics.py",
        "prefix = PREFIX if is_active else IDLE",
        "prefix = PREFIX",
        (RUBRICS,),
        "the buffer has no effect",
    ),
    Mutant(
        "anchors: a worse rollout is rewarded",
        "drlib/rewards/anchored.py",
        "math.exp(best - given)",
        "math.exp(given - best)",
        (ANCHORED,),
        "the policy is trained to lose against the anchor",
    ),
]
