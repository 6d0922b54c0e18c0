"""Functions from which `swe.py` builds repositories, with the wrong lines that can be planted.

A template is text. The lines `#!` after a line are wrong versions of it. `{x}` is a noun, `{k}` a
threshold, `{low}` and `{high}` limits around it, `{n}` a small number. The docstring defines the
correct behaviour.
"""

import random
import re
from typing import NamedTuple

NOUNS = (
    "price weight score age length height speed depth mark fee cost size distance bid tip level "
    "rate dose delay width rank point wage bill offer bonus grade limit load meter mile minute "
    "amount order parcel pulse reading refund salary sample share step ticket token visit volume "
    "vote"
).split()
WORDS = (
    "anna level river moss noon tree paper radar winter lamp civic stone bread kayak cloud seed "
    "apple rotor garden moon letter coffee window green summer book"
).split()


class Template(NamedTuple):
    """A function, as a pattern or filled in.

    Attributes:
        name: of the function; a pattern lists several, separated by spaces.
        stem: name of its module and of its figure in reports.
        code: source without markers of bugs.
        kinds: kinds of its arguments, separated by spaces.
        bugs: (correct line, wrong line), without indentation.
        threshold: around which the values of lists are drawn.
    """

    name: str
    stem: str
    code: str
    noun: str
    kinds: str
    bugs: tuple[tuple[str, str], ...]
    threshold: int = 9

    def fill(self, noun: str, rng: random.Random) -> "Template":
        """Choose the names and numbers of a pattern."""
        k = rng.randint(4, 30)
        numbers = {"k": k, "low": k - rng.randint(1, 3), "high": k + rng.randint(1, 3)}
        words = {name: str(number) for name, number in numbers.items()}
        values = words | {"n": str(rng.randint(2, 4)), "x": noun}
        values["name"] = rng.choice(self.name.split()).format(**values)

        def fill(text: str) -> str:
            return re.sub(r"\{(\w+)\}", lambda f: values.get(f[1], f[0]), text)

        bugs = tuple((fill(right), fill(wrong)) for right, wrong in self.bugs)
        return Template(
            values["name"], self.stem, fill(self.code), noun, self.kinds, bugs, numbers["k"]
        )

    def arguments(self, rng: random.Random) -> tuple:
        """Draw the arguments of one call."""
        return tuple(self._argument(kind, rng) for kind in self.kinds.split())

    def _argument(self, kind: str, rng: random.Random):
        near = (max(0, self.threshold - 5), self.threshold + 5)
        if kind == "list":
            return [rng.randint(*near) for _ in range(rng.choice((1, 2, 3, 3, 4, 4, 5)))]
        if kind == "near":
            return rng.randint(*near)
        if kind in ("small", "limit"):
            return rng.randint(1, 3 if kind == "limit" else 6)
        if kind == "large":
            return rng.randint(10, 400)
        if kind == "word":
            return rng.choice(WORDS)
        return " ".join(rng.sample(WORDS, rng.randint(2, 3)))  # "text"


def _parse(text: str) -> list[Template]:
    """Read templates: a line "stem | names | kinds", then the code."""
    templates = []
    for part in text.strip().split("\n\n"):
        head, *lines = part.split("\n")
        stem, names, kinds = (field.strip() for field in head.split("|"))
        code: list[str] = []
        bugs = []
        for line in lines:
            if line.strip().startswith("#!"):
                bugs.append((code[-1].strip(), line.strip()[3:]))
            else:
                code.append(line)
        templates.append(Template(names, stem, "\n".join(code) + "\n", "", kinds, tuple(bugs)))
    return templates


# From a list to a number.
MEASURES = _parse('''
total | total_large_{x}s sum_large_{x}s add_large_{x}s | list
def {name}({x}s):
    """Return the sum of the {x}s above {k}."""
    total = 0
    #! total = 1
    for {x} in {x}s:
        if {x} > {k}:
        #! if {x} >= {k}:
        #! if {x} < {k}:
            total += {x}
            #! total = {x}
            #! total -= {x}
            #! total += 1
    return total

count | count_small_{x}s number_of_small_{x}s | list
def {name}({x}s):
    """Return how many {x}s are {k} or less."""
    count = 0
    for {x} in {x}s:
        if {x} <= {k}:
        #! if {x} < {k}:
        #! if {x} >= {k}:
            count += 1
            #! count = 1
            #! count += {x}
            #! count += 2
    return count

multiples | count_multiples multiples_of_{n} | list
def {name}({x}s):
    """Return how many {x}s are multiples of {n}."""
    count = 0
    for {x} in {x}s:
        if {x} % {n} == 0:
        #! if {x} % {n} == 1:
        #! if {x} // {n} == 0:
        #! if {x} % {n} != 0:
            count += 1
            #! count -= 1
            #! count = 1
    return count

largest | largest_{x} highest_{x} top_{x} | list
def {name}({x}s):
    """Return the largest of the {x}s."""
    best = {x}s[0]
    for each in {x}s:
        if each > best:
        #! if each < best:
            best = each
            #! best += each
            #! best = each + 1
    return best

smallest | smallest_{x} lowest_{x} | list
def {name}({x}s):
    """Return the smallest of the {x}s."""
    best = {x}s[0]
    #! best = 0
    for each in {x}s:
        if each < best:
        #! if each > best:
            best = each
            #! best -= each
    return best

place | place_of_largest_{x} index_of_top_{x} | list
def {name}({x}s):
    """Return the index of the first largest {x}."""
    place = 0
    for i in range(len({x}s)):
    #! for i in range(len({x}s) - 1):
    #! for i in range(1):
        if {x}s[i] > {x}s[place]:
        #! if {x}s[i] >= {x}s[place]:
        #! if {x}s[i] < {x}s[place]:
            place = i
            #! place = {x}s[i]
            #! place += 1
    return place

run | longest_run_of_large_{x}s longest_streak | list
def {name}({x}s):
    """Return the length of the longest run of {x}s above {k}."""
    best = run = 0
    for {x} in {x}s:
        run = run + 1 if {x} > {k} else 0
        #! run = run + 1 if {x} > {k} else run
        #! run = run + 1 if {x} < {k} else 0
        best = max(best, run)
        #! best = min(best, run)
        #! best = run
    return best

rises | count_rises number_of_rises | list
def {name}({x}s):
    """Return how often a {x} is larger than the one before."""
    count = 0
    for i in range(1, len({x}s)):
    #! for i in range(2, len({x}s)):
    #! for i in range(1, len({x}s) - 1):
        if {x}s[i] > {x}s[i - 1]:
        #! if {x}s[i] >= {x}s[i - 1]:
        #! if {x}s[i] < {x}s[i - 1]:
        #! if {x}s[i] > {x}s[0]:
            count += 1
    return count

odd | sum_of_every_second_{x} total_of_every_second_{x} | list
def {name}({x}s):
    """Return the sum of every second {x}, from the first one on."""
    total = 0
    for i in range(0, len({x}s), 2):
    #! for i in range(1, len({x}s), 2):
    #! for i in range(0, len({x}s), 3):
    #! for i in range(0, len({x}s) - 1, 2):
        total += {x}s[i]
        #! total += i
        #! total = {x}s[i]
    return total

spread | spread_of_{x}s range_of_{x}s | list
def {name}({x}s):
    """Return the largest {x} minus the smallest."""
    low = min({x}s)
    #! low = {x}s[0]
    #! low = max({x}s)
    high = max({x}s)
    #! high = {x}s[-1]
    #! high = len({x}s)
    return high - low
    #! return low - high
    #! return high + low

balance | balance_of_{x}s alternating_sum | list
def {name}({x}s):
    """Return the {x}s added and subtracted in turn, first added."""
    total = 0
    sign = 1
    #! sign = -1
    for {x} in {x}s:
        total += sign * {x}
        #! total += {x}
        #! total -= sign * {x}
        sign = -sign
        #! sign = sign
    return total

squares | sum_of_squares add_squares | list
def {name}({x}s):
    """Return the sum of the squares of the {x}s."""
    total = 0
    for {x} in {x}s:
        total += {x} * {x}
        #! total += {x} * 2
        #! total += {x} + {x}
        #! total = {x} * {x}
    return total

average | average_{x} mean_{x} | list
def {name}({x}s):
    """Return the average of the {x}s, rounded down."""
    total = sum({x}s)
    #! total = max({x}s)
    #! total = sum({x}s[1:])
    return total // len({x}s)
    #! return total // (len({x}s) + 1)
    #! return total % len({x}s)

last | last_large_{x} final_large_{x} | list
def {name}({x}s):
    """Return the last {x} above {k}, or 0."""
    found = 0
    for {x} in {x}s:
        if {x} > {k}:
        #! if {x} >= {k}:
        #! if {x} < {k}:
            found = {x}
            #! found += {x}
            #! found = found or {x}
    return found

change | total_change sum_of_changes | list
def {name}({x}s):
    """Return the sum of the distances between neighbouring {x}s."""
    total = 0
    for i in range(1, len({x}s)):
    #! for i in range(2, len({x}s)):
    #! for i in range(1, len({x}s) - 1):
        total += abs({x}s[i] - {x}s[i - 1])
        #! total += {x}s[i] - {x}s[i - 1]
        #! total += abs({x}s[i] - {x}s[0])
        #! total += abs({x}s[i] + {x}s[i - 1])
    return total
''')

# From a list to a list that is not empty.
LISTS = _parse('''
capped | cap_{x}s limit_{x}s | list
def {name}({x}s):
    """Return the {x}s, those above {k} replaced by {k}."""
    result = []
    for {x} in {x}s:
        result.append(min({x}, {k}))
        #! result.append(max({x}, {k}))
        #! result.append({x})
        #! result.append(min({x}, {low}))
    return result

running | running_totals add_up_{x}s | list
def {name}({x}s):
    """Return the sums of the first one, two, three, ... {x}s."""
    total = 0
    result = []
    for {x} in {x}s:
        total += {x}
        #! total = {x}
        #! total -= {x}
        #! total += 1
        result.append(total)
        #! result.append({x})
    return result

unique | unique_{x}s without_repeats | list
def {name}({x}s):
    """Return the {x}s in order, each only once."""
    result = []
    for {x} in {x}s:
        if {x} not in result:
        #! if {x} in {x}s:
        #! if {x} != {x}s[0]:
        #! if result[-1:] != [{x}]:
            result.append({x})
            #! result.insert(0, {x})
    return result

ranked | rank_{x}s sort_{x}s_down | list
def {name}({x}s):
    """Return the {x}s, largest first."""
    result = sorted({x}s)
    #! result = list({x}s)
    #! result = sorted(set({x}s))
    result.reverse()
    #! result.sort()
    return result

scaled | scale_{x}s multiply_{x}s | list
def {name}({x}s):
    """Return {n} times each {x}, plus {k}."""
    result = []
    for {x} in {x}s:
        result.append({n} * {x} + {k})
        #! result.append({n} * ({x} + {k}))
        #! result.append({n} * {x} - {k})
        #! result.append({n} + {x} + {k})
        #! result.append({n} * {x})
    return result

padded | keep_or_zero replace_outside_{x}s | list
def {name}({x}s):
    """Return the {x}s, with 0 for those not from {low} to {high}."""
    result = []
    for {x} in {x}s:
        if {low} <= {x} <= {high}:
        #! if {low} < {x} <= {high}:
        #! if {low} <= {x} < {high}:
        #! if {x} <= {high}:
        #! if {low} <= {x}:
            result.append({x})
            #! result.append(1)
            #! result.append({high})
        else:
            result.append(0)
    return result

steps | steps_of_{x}s differences | list
def {name}({x}s):
    """Return the first {x}, then the change to each next one."""
    result = [{x}s[0]]
    #! result = [0]
    for i in range(1, len({x}s)):
    #! for i in range(1, len({x}s) - 1):
    #! for i in range(2, len({x}s)):
        result.append({x}s[i] - {x}s[i - 1])
        #! result.append({x}s[i - 1] - {x}s[i])
        #! result.append({x}s[i] - {x}s[0])
        #! result.append({x}s[i] + {x}s[i - 1])
    return result

flipped | reverse_{x}s flip_{x}s | list
def {name}({x}s):
    """Return the {x}s in reverse order."""
    result = []
    for {x} in {x}s:
        result.insert(0, {x})
        #! result.append({x})
        #! result.insert(1, {x})
        #! result.insert(0, {x}s[0])
    return result
''')

# Other arguments; for repositories with one file.
OTHERS = _parse('''
discount | discounted_{x} reduce_{x} | near small
def {name}({x}, count):
    """Return {x} times count, less 10 if count is {n} or more."""
    total = {x} * count
    #! total = {x} + count
    #! total = {x}
    if count >= {n}:
    #! if count > {n}:
    #! if count <= {n}:
        total -= 10
        #! total += 10
        #! total = 10
    return total

fee | fee_for_{x} charge_{x} | near
def {name}({x}):
    """Return 5 up to {low}, 8 up to {high}, otherwise 12."""
    if {x} <= {low}:
    #! if {x} < {low}:
    #! if {x} >= {low}:
        return 5
        #! return 8
    if {x} <= {high}:
    #! if {x} < {high}:
    #! if {x} <= {low}:
    #! if {x} > {high}:
        return 8
        #! return 12
    return 12

clamp | clamp_{x} bound_{x} | near
def {name}({x}):
    """Return {x}, at least {low} and at most {high}."""
    {x} = max({x}, {low})
    #! {x} = min({x}, {low})
    #! {x} = max({x}, {high})
    {x} = min({x}, {high})
    #! {x} = min({x}, {low})
    #! {x} = max({x}, {high})
    return {x}

digits | sum_of_digits add_digits | large
def {name}({x}):
    """Return the sum of the digits of {x}."""
    total = 0
    while {x} > 0:
    #! while {x} > 9:
        total += {x} % 10
        #! total = {x} % 10
        #! total += 1
        #! total += {x} // 10
        {x} //= 10
        #! {x} //= 100
    return total

power | grow_{x} compound_{x} | near small
def {name}({x}, years):
    """Return {x} doubled every year for the given years."""
    for _ in range(years):
    #! for _ in range(years - 1):
    #! for _ in range(years + 1):
    #! for _ in range(1):
        {x} *= 2
        #! {x} += 2
        #! {x} **= 2
    return {x}

upto | sum_up_to add_up_to | small
def {name}(last):
    """Return 1 + 2 + ... + last."""
    total = 0
    for i in range(1, last + 1):
    #! for i in range(1, last):
    #! for i in range(2, last + 1):
    #! for i in range(last, last + 1):
        total += i
        #! total += 1
        #! total *= i
        #! total = i
    return total

clock | format_{x} show_{x} | large
def {name}({x}):
    """Return {x} minutes as hours and minutes, such as "2:05"."""
    hours = {x} // 60
    #! hours = {x} // 24
    #! hours = {x} % 60
    minutes = {x} % 60
    #! minutes = {x} % 24
    #! minutes = {x} // 60
    return f"{hours}:{minutes:02}"

initials | initials short_form | text
def {name}(text):
    """Return the first letters of the words, in capitals."""
    result = ""
    for word in text.split():
        result += word[0].upper()
        #! result += word[-1].upper()
        #! result += word[0]
        #! result = word[0].upper()
        #! result += word.upper()
    return result

vowels | count_vowels number_of_vowels | word
def {name}(word):
    """Return how many letters of the word are vowels."""
    count = 0
    for letter in word:
    #! for letter in word[1:]:
    #! for letter in word[:-1]:
    #! for letter in set(word):
        if letter in "aeiou":
        #! if letter in "aeio":
        #! if letter in "aiou":
        #! if letter not in "aeiou":
            count += 1
    return count

longest | longest_word find_longest | text
def {name}(text):
    """Return the first longest word."""
    best = ""
    for word in text.split():
        if len(word) > len(best):
        #! if len(word) >= len(best):
        #! if word > best:
        #! if len(word) < len(best):
            best = word
            #! best += word
    return best

backwards | reverse_words words_backwards | text
def {name}(text):
    """Return the words in reverse order."""
    words = text.split()
    words.reverse()
    #! words.sort()
    #! words.pop()
    return " ".join(words)
    #! return "".join(words)
    #! return "-".join(words)

letters | count_letter times_letter | word
def {name}(word):
    """Return how often the first letter of the word occurs in it."""
    count = 0
    for letter in word:
    #! for letter in word[1:]:
    #! for letter in word[:-1]:
        if letter == word[0]:
        #! if letter != word[0]:
        #! if letter == word[-1]:
        #! if letter >= word[0]:
            count += 1
    return count

mask | mask_word hide_word | word
def {name}(word):
    """Return the word with all letters but the last two hidden by *."""
    hidden = "*" * (len(word) - 2)
    #! hidden = "*" * (len(word) - 1)
    #! hidden = "*" * len(word)
    #! hidden = "*" * 2
    return hidden + word[-2:]
    #! return hidden + word[:2]
    #! return hidden + word[2:]
    #! return word[-2:] + hidden
''')
