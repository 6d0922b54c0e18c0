"""Mutants of questions about pictures (see `tests.mutants`)."""

from tests.mutants import Mutant

MUTANTS = [
    Mutant(
        "selector: aliases are ignored",
        "drlib/questions/webwatcher.py",
        "return (entity, *(node.aliases if node else ()))",
        "return (entity,)",
        ("tests/test_questions_webwatcher.py",),
        "a question names the pictured entity by an alias",
    ),
    Mutant(
        "selector: accents hide a name",
        "drlib/questions/webwatcher.py",
        'plain = unicodedata.normalize("NFKD", text.casefold())',
        "plain = text.casefold()",
        ("tests/test_questions_webwatcher.py",),
        "a name without its accents counts as no leak",
    ),
    Mutant(
        "examiner: every picture is accepted",
        "drlib/questions/webwatcher.py",
        'return "" if found == visual.entity else f"shows {found!r}"',
        'return ""',
        ("tests/test_questions_webwatcher.py",),
        "a question has the picture of another entity",
    ),
    Mutant(
        "pictures: the nearest emblem, however far",
        "drlib/tools/pictures.py",
        "if not len(near) or worst.min() >= NEAR:",
        "if not len(near):",
        ("tests/test_tools_pictures.py",),
        "a foreign picture is matched to an entity",
    ),
    Mutant(
        "webwatcher: the cropped picture is not shown",
        "drlib/agents/webwatcher.py",
        'if result.tool == "crop" and part in self.toolbox.pictures:',
        "if False:",
        ("tests/test_agents_webwatcher.py",),
        "cropping has no effect",
    ),
    Mutant(
        "request: a name is sent in place of the picture",
        "drlib/agents/context.py",
        "        return [self._with_urls(message) for message in new]",
        "        return new",
        ("tests/test_agents_webwatcher.py",),
        "the model never receives the picture",
    ),
    Mutant(
        "reward: the weights of format and answer are swapped",
        "drlib/rewards/functions.py",
        "weight * formed + (1 - weight) * right",
        "(1 - weight) * formed + weight * right",
        ("tests/test_rewards_functions.py",),
        "a policy learns the format instead of the answer",
    ),
]
