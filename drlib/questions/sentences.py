"""Natural-language wording: a query as English sentences without brackets.

Nested conditions become relative clauses, at most two deep. What is deeper is found first, in a
sentence of its own, and referred to later, so that no clause can attach to the wrong noun:

    Find the languages official in Mali and written in the Latin script. Finally, which territory
    has the same currency as Togo and officially uses one of those languages?
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from drlib.questions.joins import UNNAMED
from drlib.questions.phrases import (
    Phrasebook,
    add_article,
    choose_pronoun,
    to_plural,
    to_plural_clause,
)
from drlib.questions.queries import (
    And,
    Anything,
    Count,
    Diff,
    Exists,
    Extreme,
    Or,
    Proj,
    Query,
    Range,
    Var,
    bind,
    canonicalise,
    choose_rank_words,
    count_clauses,
    evaluate_query,
    find_compared,
    fits,
    format_range,
    goes_back,
    is_union_of_titles,
    walk,
)

Style = Literal["which", "what", "name", "steps"]
STYLES: tuple[Style, ...] = ("which", "what", "name", "steps")
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
FIRST, NEXT, LAST, CHOSEN = "Find ", "Then find ", "Finally, ", "There is "
MARK = "\0"  # surrounds the reference to a step until all steps exist


class Step(NamedTuple):
    """A sentence that precedes the question.

    Attributes:
        noun: noun for what is found or chosen.
        is_one: True if it is a single thing.
        text: noun phrase of the sentence.
        is_chosen: True for the choice of an `Exists`.
    """

    noun: str
    is_one: bool
    text: str
    is_chosen: bool = False

    def write(self, number: int) -> str:
        """Return the sentence with index `number`."""
        lead = CHOSEN if self.is_chosen else NEXT if number else FIRST
        return f"{lead}{self.text}."


def write_sentences(
    query: Query,
    book: Phrasebook,
    style: Style = "which",
    names: Mapping[Query, str] | None = None,
) -> str:
    """Return `query` as a question of one to nine sentences.

    Args:
        query: the query.
        book: phrases of its world.
        style: "steps" gives each description its own sentence; the others only deep ones.
        names: texts for constants or unions of constants (`websailor`); such a question cannot be
            parsed back.

    Returns:
        The question; empty if it needs more than eight steps or has an inexpressible `Exists`.
    """
    writer = _SentenceWriter(book, 0 if style == "steps" else 1, names or {})
    query = writer.word_choices(canonicalise(query))
    if any(isinstance(part, Exists | Anything) for part in walk(query)):
        return ""
    asked = writer.word_final(query, style)
    if len(writer.steps) > len(ORDINALS):
        return ""
    sentences = [step.write(number) for number, step in enumerate(writer.steps)]
    is_last = not all(step.is_chosen for step in writer.steps)
    sentences.append(_lead_in(LAST, asked) if is_last else asked)
    if book.source:
        sentences[0] = add_source(sentences[0], book.source)
    return writer.resolve_marks(" ".join(sentences))


def add_source(sentence: str, source: str) -> str:
    """Return `sentence` with its source: before a question, at the end of an instruction."""
    if sentence.startswith((FIRST, "Name ")):
        return f"{sentence[:-1]}, {source[0].lower()}{source[1:]}."
    return _lead_in(f"{source}, ", sentence)


def _lead_in(lead: str, sentence: str) -> str:
    """Return `sentence` with words before it."""
    return f"{lead}{sentence[0].lower()}{sentence[1:]}"


class _SentenceWriter:
    """Writer of one question; `steps` are the sentences that come first.

    `spare` is the number of additional clauses that a description may open at the end of a
    sentence.
    """

    def __init__(self, book: Phrasebook, spare: int, names: Mapping[Query, str]):
        self.book = book
        self._names = names
        self.steps: list[Step] = []
        self._spare = spare
        self._found: dict[Query, int] = {}  # query -> its step
        self._among: dict[str, Query] = {}  # what variables are chosen among

    def word_choices(self, query: Query) -> Query:
        """Return `query` without its leading choices, each of which becomes a step."""
        while isinstance(query, Exists):
            among = query.among
            if query.name == UNNAMED or any(isinstance(p, Exists | Anything) for p in walk(among)):
                return query
            if isinstance(among, Proj):
                noun, clause = self.noun_and_clause(among, 2 * self._spare)
            else:
                noun, clause = self.noun(among), self.word_clause(among, is_one=True)
            self._among[query.name] = among
            self._found[Var(query.name)] = len(self.steps)
            self.steps.append(Step(noun, True, f"{add_article(noun)} {clause}", is_chosen=True))
            query = query.of
        return query

    def find_answers(self, query: Query) -> frozenset[str]:
        """Return the answers of `query` for any choice."""
        for name, among in reversed(self._among.items()):
            query = bind(query, name, among)
        return evaluate_query(query, self.book.graph)

    # ------------------------------------------------------------------------------ the question

    def word_final(self, query: Query, style: Style) -> str:
        """Return the last sentence."""
        if isinstance(query, Count):
            group = self.word_group(query.of, 2 * self._spare)
            is_found = group.startswith(MARK)  # "how many those territories" is no English
            if style == "which" and not isinstance(query.of, str) and not is_found:
                return f"How many {group.removeprefix('the ')} are there?"
            return f"What is the number of {group.removeprefix('the ')}?"
        is_person = not isinstance(query, str) and choose_pronoun(self.noun(query)) == "who "
        if isinstance(query, Extreme | str):
            return f"{'Who' if is_person else 'What'} is {self.word_description(query)}?"
        if style == "what" and is_person:
            return f"Who {self.word_conditions(query, is_verb=True)}?"
        if style == "what" and not isinstance(query, And | Diff):
            return f"What is {self.word_description(query)}?"
        noun = self.noun(query)
        if style == "name":
            clause = self.word_conditions(query, is_verb=True, that=choose_pronoun(noun))
            return f"Name the {noun} {clause}."
        return f"Which {noun} {self.word_conditions(query, is_verb=True)}?"

    def word_description(self, query: Query) -> str:
        """Return a noun phrase for all of `query` at the end of a sentence."""
        if isinstance(query, str | Extreme | Count):
            return self.word_operand(query, 2 * self._spare)
        if isinstance(query, Proj):
            return "the {} {}".format(*self.noun_and_clause(query, 2 * self._spare))
        return f"the {self.noun(query)} {self.word_clause(query, is_one=True)}"

    def word_clause(self, query: Query, is_one: bool) -> str:
        """Return the conditions on one thing or on several."""
        several = isinstance(query, And) or (
            isinstance(query, Diff) and isinstance(query.left, And)
        )
        if is_one and several:
            return self.word_conditions(query, is_verb=True, that=choose_pronoun(self.noun(query)))
        return self.word_conditions(query, several=not is_one)

    def noun(self, query: Query) -> str:
        """Return the noun for the answers of `query`."""
        inner = query
        while isinstance(inner, And | Diff | Extreme):
            parts = inner.parts if isinstance(inner, And) else ()
            inner = parts[0] if parts else inner.left if isinstance(inner, Diff) else inner.of
        relation = inner.relation if isinstance(inner, Proj) else ""
        return self.book.noun(self.find_answers(query), relation)

    def word_conditions(
        self, query: Query, is_verb: bool = False, that: str = "", several: bool = False
    ) -> str:
        """Return the joined conditions of `query`, the deepest one last."""
        excluded = None
        if isinstance(query, Diff):
            query, excluded = query.left, query.right
        parts = query.parts if isinstance(query, And) else (query,)
        parts = sorted(parts, key=lambda part: (count_clauses(part), self.ends_in_a_clause(part)))
        text, said = "", ""
        for number, part in enumerate(parts, 1):
            is_last = number == len(parts) and excluded is None
            limit = self._spare * (2 if is_last else 1)
            has_clause = number > 1 and (
                count_clauses(parts[number - 2]) > 1 or " that " in said.removeprefix(that)
            )
            said = that + self.word_condition(part, limit, is_verb, several)
            text += said if number == 1 else f"{', and ' if has_clause else ' and '}{said}"
        if excluded is None:
            return text
        if isinstance(excluded, str | Var):
            without = "and is not" if is_verb else "other than"
            return f"{text}, {without} {self.word_operand(excluded, 0)}"
        others = excluded.parts if isinstance(excluded, And) else (excluded,)
        said = " and ".join(self.word_condition(part, 0, False) for part in others)
        return f"{text}, but {'is ' if is_verb else ''}not one {said}"

    def ends_in_a_clause(self, query: Query) -> bool:
        """Return True if what follows could attach to its clause ("a module that X also
        raises").
        """
        if not isinstance(query, Proj) or find_compared(query) is None:
            return False
        return " that " in self.book.phrases[query.relation.removesuffix(" of")].same

    def word_condition(self, query: Query, limit: int, is_verb: bool, several: bool = False) -> str:
        """Return one condition as a verb or a clause; `several` selects the plural."""
        if isinstance(query, Proj):
            said = self.word_fact(query, limit, is_verb)
            return to_plural_clause(said) if several else said
        if isinstance(query, Range):
            return self.word_range(query, is_verb)
        if (
            isinstance(query, Or)
            and not is_union_of_titles(query)
            and all(isinstance(part, Proj | Range) for part in query.parts)
        ):
            said = [self.word_condition(part, 0, is_verb) for part in query.parts]
            return f"either {' or '.join(said)}"
        return f"{'is' if is_verb else 'being'} {self.word_operand(query, 0)}"

    def word_fact(self, query: Proj, limit: int, is_verb: bool) -> str:
        """Return the phrase of a projection."""
        relation = query.relation.removesuffix(" of")
        phrase = self.book.phrases[relation]
        if relation == query.relation:
            other = query.of.of if goes_back(query) and phrase.along else None
            if other is not None:
                form = phrase.along if is_verb else phrase.alongs
                return form.format(x=self.word_operand(other, limit))
            form = phrase.of_value if is_verb else phrase.of_values
            return form.format(x=self.word_operand(query.of, limit))
        shared = find_compared(query)
        if shared is not None:
            form = phrase.same if is_verb else phrase.sames
            # only for languages: the noun of the question already has this kind
            if isinstance(shared, str) and not self._names and self.book.kind(shared) == "language":
                return form.format(x=self.book.mention_briefly(shared))
            return form.format(x=self.word_operand(shared, limit))
        form = phrase.of_thing if is_verb else phrase.of_things
        says_the_kind = form.startswith("whose ") or phrase.bare
        if isinstance(query.of, str) and says_the_kind and not self._names:
            return form.format(x=self.book.mention_briefly(query.of))
        return form.format(x=self.word_operand(query.of, limit))

    def word_range(self, query: Range, is_verb: bool) -> str:
        """Return the phrase of a range."""
        phrase = self.book.phrases[query.relation]
        form = phrase.during if is_verb else phrase.durings
        if query in self._names:
            return form.format(x=self._names[query])
        is_dated = add_article(phrase.label) not in form and add_article(query.relation) not in form
        return form.format(x=format_range(query.low, query.high, "in" if is_dated else "of"))

    # ---------------------------------------------------------------------------- what is named

    def name_title(self, title: str) -> str:
        """Return the text for a title."""
        return self._names.get(title) or self.book.mention(title)

    def word_operand(self, query: Query, limit: int) -> str:
        """Return a noun phrase: a name, a description of at most `limit` clauses, or a step
        reference.
        """
        if isinstance(query, str):
            return self.name_title(query)
        if is_union_of_titles(query):
            return self._names.get(query) or " or ".join(map(self.name_title, query.parts))
        if query not in self._found and fits(query, limit):
            if isinstance(query, Count):
                return f"the number of {self.word_group(query.of, limit).removeprefix('the ')}"
            if isinstance(query, Extreme):
                return self.word_extreme(query, limit)
            assert isinstance(query, Proj)  # what fits and is no Count or Extreme
            is_one = len(self.find_answers(query)) == 1
            noun, clause = self.noun_and_clause(query, limit - 1)
            return f"{f'the {noun}' if is_one else add_article(noun)} {clause}"
        return self.refer_to(query, "member")

    def noun_and_clause(self, query: Proj, limit: int, several: bool = False) -> tuple[str, str]:
        """Return noun and condition: ("exception", "raised by the module") or ("currency", "of
        Denmark").
        """
        phrase = self.book.phrases[query.relation.removesuffix(" of")]
        noun = phrase.owner if query.relation.endswith(" of") else phrase.owned
        if noun:
            return noun, f"of {self.word_operand(query.of, limit)}"
        return self.noun(query), self.word_condition(query, limit, False, several)

    def word_group(self, query: Query, limit: int) -> str:
        """Return a plural noun phrase for all things of `query`."""
        if isinstance(query, str):
            return self.name_title(query)
        if query not in self._found and fits(query, limit) and isinstance(query, Proj):
            noun, clause = self.noun_and_clause(query, limit - 1, several=True)
            return f"the {to_plural(noun)} {clause}"
        return self.refer_to(query, "group")

    def word_extreme(self, query: Extreme, limit: int) -> str:
        """Return the phrase of an extreme."""
        label = self.book.phrases[query.relation].label
        rank = choose_rank_words(label)[query.most]
        group = self.word_group(query.of, limit)
        return f"the {self.noun(query)} with the {rank} {label} among {group}"

    def refer_to(self, query: Query, how: str) -> str:
        """Return a mark for a step, which `resolve_marks` replaces once all steps exist."""
        if query not in self._found:
            text, is_one, noun = self._word_step(query)
            self._found[query] = len(self.steps)
            self.steps.append(Step(noun, is_one, text))
        return f"{MARK}{self._found[query]}{how[0]}{MARK}"

    def _word_step(self, query: Query) -> tuple[str, bool, str]:
        """Return noun phrase, number and noun of a new step."""
        is_one = len(self.find_answers(query)) == 1
        noun = self.noun(query)
        if isinstance(query, Extreme):
            return self.word_extreme(query, 1), is_one, noun
        if isinstance(query, Count):
            return (
                f"the number of {self.word_group(query.of, 1).removeprefix('the ')}",
                True,
                "number",
            )
        if isinstance(query, Or) and not all(isinstance(p, Proj | Range) for p in query.parts):
            said = " or ".join(self.word_operand(part, 0) for part in query.parts)
            return f"each {noun} that is {said}", False, noun
        if isinstance(query, Proj):
            noun, clause = self.noun_and_clause(query, 2 * self._spare, several=not is_one)
        else:
            clause = self.word_clause(query, is_one)
        return f"the {noun if is_one else to_plural(noun)} {clause}", is_one, noun

    def resolve_marks(self, text: str) -> str:
        """Replace the marks by "that language", "one of those languages" or a reference by
        step number.
        """
        nouns = [step.noun for step in self.steps]
        for number, step in enumerate(self.steps):
            noun = step.noun if step.is_one else to_plural(step.noun)
            if nouns.count(step.noun) == 1:
                group = f"{'that' if step.is_one else 'those'} {noun}"
            else:
                group = f"the {noun} of the {ORDINALS[number]} step"
            member = group if step.is_one else f"one of {group}"
            text = text.replace(f"{MARK}{number}m{MARK}", member)
            text = text.replace(f"{MARK}{number}g{MARK}", group)
        return text
