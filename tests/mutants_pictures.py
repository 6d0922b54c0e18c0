"""Mutants of questions about pictures (see `tests.mutants`)."""

from tests.mutants import Mutant

MUTANTS = [
    Mutant(
        "selector: an alias is no name",
        "drlib/questions/webwatcher.py",
        "return (entity, *(node.aliases if node else ()))",
        "return (entity,)",
        ("tests/test_questions_webwatcher.py",),
        "a question says what its picture shows, by another name",
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
        "examiner: whatever it sees is good",
        "drlib/questions/webwatcher.py",
        'return "" if found == visual.entity else f"shows {found!r}"',
        'return ""',
        ("tests/test_questions_webwatcher.py",),
        "a question's picture is of another thing",
    ),
    Mutant(
        "pictures: the nearest emblem, however far",
        "drlib/tools/pictures.py",
        "if not len(near) or worst.min() >= NEAR:",
        "if not len(near):",
        ("tests/test_tools_pictures.py",),
        "a picture with foreign digits is taken for a thing of the world",
    ),
    Mutant(
        "webwatcher: the part that was cut out is not shown",
        "drlib/agents/webwatcher.py",
        'if result.tool == "crop" and part in self.toolbox.pictures:',
        "if False:",
        ("tests/test_agents_webwatcher.py",),
        "a policy that looks closer sees nothing",
    ),
    Mutant(
        "wire: a picture's address in the place of the picture",
        "drlib/agents/context.py",
        "        return [self._with_urls(message) for message in new]",
        "        return new",
        ("tests/test_agents_webwatcher.py",),
        "the model is asked about a picture that it never gets",
    ),
    Mutant(
        "reward: format weighs what the answer should",
        "drlib/rewards/functions.py",
        "weight * formed + (1 - weight) * right",
        "(1 - weight) * formed + weight * right",
        ("tests/test_rewards_functions.py",),
        "a policy learns to be neat, and wrong",
    ),
]
