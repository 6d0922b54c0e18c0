"""Exercises of `terminal_tasks.py`: files, a request, commands and the expected state.

The expected state is computed in Python from the generated files, not by the commands.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

STEMS = (
    "alpha audit backup batch billing cargo clients costs daily data events export fleet garden "
    "hotel import index invoice items journal kitchen labels ledger letters library mail members "
    "metrics notes office orders parts people plan prices queue readings report rooms routes sales "
    "samples school scores server shop staff stock survey tasks team tickets tools trips users "
    "visits weather"
).split()
WORDS = (
    "amber anchor apple arrow autumn basin beacon birch bridge candle canyon castle cedar cloud "
    "copper coral desert dragon eagle ember falcon forest garnet glacier harbor hazel island ivory "
    "jasper juniper lantern lemon lotus maple marble meadow mint moon nectar ocean olive onyx opal "
    "orchid otter pearl pebble pine plum quartz raven river robin ruby saffron sage silver sparrow "
    "spruce stone summit thistle timber topaz tulip valley velvet walnut willow winter"
).split()
LEVELS = ("ERROR", "WARN", "INFO", "DEBUG")
PLACES = ("archive", "done", "inbox", "keep", "old", "output", "results", "sorted", "store", "temp")


class Exercise(NamedTuple):
    """A task on files.

    Attributes:
        request: text of the task.
        files: path -> content at the start.
        steps: (thought, command) of a solution.
        changes: path -> content at the end; None if the file must be gone.
        answer: of a question; "" otherwise.
        folders: that must exist at the end.
        modes: path -> permissions at the start, of files that have not the usual ones.
        new_modes: path -> permissions at the end.
    """

    request: str
    files: dict[str, str]
    steps: list[tuple[str, str]]
    changes: dict[str, str | None] = {}
    answer: str = ""
    folders: list[str] = []
    modes: dict[str, int] = {}
    new_modes: dict[str, int] = {}


def _text(lines: Iterable[object]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _numbered_stem(rng: random.Random) -> str:
    """Draw a name for a request that has no other random part."""
    return f"{rng.choice(STEMS)}{rng.randint(1, 99)}"


def _words(rng: random.Random, least: int = 3, most: int = 7) -> list[str]:
    return rng.sample(WORDS, rng.randint(least, most))


def _lines(rng: random.Random, word: str) -> list[str]:
    """Draw lines of three words, of which some contain `word`."""
    others = [w for w in WORDS if w != word]
    lines = [" ".join(rng.sample(others, 3)) for _ in range(rng.randint(2, 4))]
    for _ in range(rng.randint(1, 4)):
        line = rng.sample(others, 2)
        line.insert(rng.randint(0, 2), word)
        lines.append(" ".join(line))
    rng.shuffle(lines)
    return lines


def _log(rng: random.Random, least: int = 6, most: int = 10) -> list[str]:
    """Draw lines "TIME LEVEL WORD"."""
    lines = []
    minute = rng.randint(0, 30)
    for _ in range(rng.randint(least, most)):
        minute += rng.randint(1, 3)
        level = rng.choice(LEVELS)
        lines.append(f"10:{minute:02} {level} {rng.choice(WORDS)}")
    return lines


def _table(rng: random.Random, least: int = 4, most: int = 6) -> list[tuple[str, str, int]]:
    """Draw rows (word, place, number) with different words."""
    words = rng.sample(WORDS, rng.randint(least, most))
    kinds = rng.sample(STEMS, 2)
    numbers = rng.sample(range(10, 100), len(words))
    return [(word, rng.choice(kinds), number) for word, number in zip(words, numbers, strict=True)]


def _csv(rows: Iterable[tuple]) -> str:
    return _text(",".join(map(str, row)) for row in rows)


def _small_files(rng: random.Random, names: Iterable[str]) -> dict[str, str]:
    return {name: _text(_words(rng, 1, 3)) for name in names}


# ---------------------------------------------------------------- easy: one command


def _count_lines(rng: random.Random) -> Exercise:
    stem, word = rng.choice(STEMS), rng.choice(WORDS)
    lines = _lines(rng, word)
    count = sum(word in line for line in lines)
    return Exercise(
        f"How many lines of {stem}.txt contain {word}?",
        {f"{stem}.txt": _text(lines)},
        [(f"Count the lines with {word}.", f"grep -c {word} {stem}.txt")],
        answer=str(count),
    )


def _count_files(rng: random.Random) -> Exercise:
    kind, other = rng.sample(("txt", "csv", "log", "md", "json"), 2)
    stems = rng.sample(STEMS, rng.randint(4, 7))
    cut = rng.randint(1, len(stems) - 1)
    names = [f"{s}.{kind}" for s in stems[:cut]] + [f"{s}.{other}" for s in stems[cut:]]
    return Exercise(
        f"How many .{kind} files are in the folder with {names[0]}, {names[-1]} and others?",
        _small_files(rng, names),
        [(f"Count the .{kind} files.", f"ls *.{kind} | wc -l")],
        answer=str(cut),
    )


def _find_word(rng: random.Random) -> Exercise:
    word = rng.choice(WORDS)
    names = [f"{stem}.txt" for stem in rng.sample(STEMS, rng.randint(3, 5))]
    others = [w for w in WORDS if w != word]
    files = {name: _text(rng.sample(others, 2)) for name in names}
    right = rng.choice(names)
    files[right] += f"{word}\n"
    return Exercise(
        f"Which .txt file contains the word {word}?",
        files,
        [(f"Search for {word}.", f"grep -l {word} *.txt")],
        answer=right,
    )


def _rename(rng: random.Random) -> Exercise:
    old, new = rng.sample(STEMS, 2)
    kind = rng.choice(("txt", "csv", "log", "md"))
    files = _small_files(rng, [f"{old}.{kind}"])
    return Exercise(
        f"Rename {old}.{kind} to {new}.{kind}.",
        files,
        [("Rename the file.", f"mv {old}.{kind} {new}.{kind}")],
        {f"{old}.{kind}": None, f"{new}.{kind}": files[f"{old}.{kind}"]},
    )


def _copy(rng: random.Random) -> Exercise:
    stem, new = rng.sample(STEMS, 2)
    files = _small_files(rng, [f"{stem}.txt"])
    return Exercise(
        f"Copy {stem}.txt to {new}.txt.",
        files,
        [("Copy the file.", f"cp {stem}.txt {new}.txt")],
        {f"{new}.txt": files[f"{stem}.txt"]},
    )


def _filter(rng: random.Random) -> Exercise:
    stem, word, new = rng.choice(STEMS), rng.choice(WORDS), rng.choice(PLACES)
    lines = _lines(rng, word)
    keeps = rng.random() < 0.5
    kept = [line for line in lines if (word in line) == keeps]
    verb, option = ("contain", "") if keeps else ("do not contain", "-v ")
    return Exercise(
        f"Write the lines of {stem}.txt that {verb} {word} to {new}.txt.",
        {f"{stem}.txt": _text(lines)},
        [("Filter the lines.", f"grep {option}{word} {stem}.txt > {new}.txt")],
        {f"{new}.txt": _text(kept)},
    )


def _sort(rng: random.Random) -> Exercise:
    stem, new = rng.choice(STEMS), rng.choice(PLACES)
    words = _words(rng)
    down = rng.random() < 0.5
    order, option = ("Z to A", "-r ") if down else ("A to Z", "")
    return Exercise(
        f"Write the lines of {stem}.txt, sorted from {order}, to {new}.txt.",
        {f"{stem}.txt": _text(words)},
        [("Sort the lines.", f"sort {option}{stem}.txt > {new}.txt")],
        {f"{new}.txt": _text(sorted(words, reverse=down))},
    )


def _column(rng: random.Random) -> Exercise:
    stem, new = rng.choice(STEMS), rng.choice(PLACES)
    rows = _table(rng)
    column = rng.randint(1, 3)
    return Exercise(
        f"Write column {column} of {stem}.csv (separated by commas) to {new}.txt.",
        {f"{stem}.csv": _csv(rows)},
        [(f"Cut column {column}.", f"cut -d, -f{column} {stem}.csv > {new}.txt")],
        {f"{new}.txt": _text(row[column - 1] for row in rows)},
    )


def _move(rng: random.Random) -> Exercise:
    kind, other = rng.sample(("txt", "csv", "log", "md", "json"), 2)
    stems = rng.sample(STEMS, rng.randint(3, 5))
    place = rng.choice(PLACES)
    names = [f"{stem}.{kind}" for stem in stems[1:]]
    files = _small_files(rng, [f"{stems[0]}.{other}", *names])
    changes: dict[str, str | None] = dict.fromkeys(names)
    changes |= {f"{place}/{name}": files[name] for name in names}
    return Exercise(
        f"Move all .{kind} files into a new folder {place}, next to {stems[0]}.{other}.",
        files,
        [("Make the folder and move the files.", f"mkdir {place} && mv *.{kind} {place}")],
        changes,
    )


def _merge(rng: random.Random) -> Exercise:
    (first, second), new = rng.sample(STEMS, 2), rng.choice(PLACES)
    files = _small_files(rng, [f"{first}.txt", f"{second}.txt"])
    return Exercise(
        f"Write {first}.txt followed by {second}.txt to {new}.txt.",
        files,
        [("Join the files.", f"cat {first}.txt {second}.txt > {new}.txt")],
        {f"{new}.txt": files[f"{first}.txt"] + files[f"{second}.txt"]},
    )


def _delete(rng: random.Random) -> Exercise:
    kind, other = rng.sample(("tmp", "bak", "old", "log", "txt", "csv"), 2)
    stems = rng.sample(STEMS, rng.randint(3, 5))
    names = [f"{stem}.{kind}" for stem in stems[1:]]
    return Exercise(
        f"Delete all .{kind} files, such as {names[0]}, and keep {stems[0]}.{other}.",
        _small_files(rng, [f"{stems[0]}.{other}", *names]),
        [(f"Delete the .{kind} files.", f"rm *.{kind}")],
        dict.fromkeys(names),
    )


def _permissions(rng: random.Random) -> Exercise:
    stem = rng.choice(STEMS)
    mode = rng.choice((0o600, 0o640, 0o444, 0o755, 0o700))
    return Exercise(
        f"Set the permissions of {stem}.sh to {mode:o}.",
        _small_files(rng, [f"{stem}.sh"]),
        [("Change the permissions.", f"chmod {mode:o} {stem}.sh")],
        new_modes={f"{stem}.sh": mode},
    )


def _folders(rng: random.Random) -> Exercise:
    first, second = rng.sample(STEMS, 2)
    place = rng.choice(PLACES)
    return Exercise(
        f"Make the folders {place}/{first} and {place}/{second}.",
        {},
        [("Make the folders.", f"mkdir -p {place}/{first} {place}/{second}")],
        folders=[f"{place}/{first}", f"{place}/{second}"],
    )


def _replace(rng: random.Random) -> Exercise:
    stem = rng.choice(STEMS)
    old, new = rng.sample(WORDS, 2)
    lines = [line for line in _lines(rng, old) if new not in line]
    return Exercise(
        f"Replace {old} by {new} in {stem}.txt.",
        {f"{stem}.txt": _text(lines)},
        [(f"Replace {old}.", f"sed -i s/{old}/{new}/g {stem}.txt")],
        {f"{stem}.txt": _text(line.replace(old, new) for line in lines)},
    )


def _first_lines(rng: random.Random) -> Exercise:
    stem, new = rng.choice(STEMS), rng.choice(PLACES)
    words = _words(rng, 4, 8)
    count = rng.randint(1, 3)
    end = rng.choice(("first", "last"))
    kept = words[:count] if end == "first" else words[-count:]
    tool = "head" if end == "first" else "tail"
    number = "line" if count == 1 else f"{count} lines"
    return Exercise(
        f"Write the {end} {number} of {stem}.txt to {new}.txt.",
        {f"{stem}.txt": _text(words)},
        [(f"Take the {end} {number}.", f"{tool} -n {count} {stem}.txt > {new}.txt")],
        {f"{new}.txt": _text(kept)},
    )


def _append(rng: random.Random) -> Exercise:
    stem = rng.choice(STEMS)
    words = _words(rng)
    word = rng.choice([w for w in WORDS if w not in words])
    return Exercise(
        f"Append the line {word} to {stem}.txt.",
        {f"{stem}.txt": _text(words)},
        [("Append the line.", f"echo {word} >> {stem}.txt")],
        {f"{stem}.txt": _text([*words, word])},
    )


def _upper(rng: random.Random) -> Exercise:
    stem, new = rng.choice(STEMS), rng.choice(PLACES)
    words = _words(rng)
    return Exercise(
        f"Write {stem}.txt in capital letters to {new}.txt.",
        {f"{stem}.txt": _text(words)},
        [("Change the letters.", f"tr a-z A-Z < {stem}.txt > {new}.txt")],
        {f"{new}.txt": _text(words).upper()},
    )


# ---------------------------------------------------------------- medium: pipelines and loops


def _count_values(rng: random.Random) -> Exercise:
    stem = _numbered_stem(rng)
    log = _log(rng)
    count = len({line.split()[1] for line in log})
    return Exercise(
        f"How many different levels (second word of each line) are in {stem}.log?",
        {f"{stem}.log": _text(log)},
        [("Count the values.", f"cut -d' ' -f2 {stem}.log | sort -u | wc -l")],
        answer=str(count),
    )


def _most_frequent(rng: random.Random) -> Exercise:
    stem = _numbered_stem(rng)
    words = _words(rng, 3, 5)
    counts = rng.sample(range(1, 8), len(words))
    lines = [word for word, count in zip(words, counts, strict=True) for _ in range(count)]
    rng.shuffle(lines)
    best = Counter(lines).most_common(1)[0][0]
    command = f"sort {stem}.txt | uniq -c | sort -n | tail -n 1"
    return Exercise(
        f"Which line occurs most often in {stem}.txt?",
        {f"{stem}.txt": _text(lines)},
        [("Count each line.", command)],
        answer=best,
    )


def _sum_column(rng: random.Random) -> Exercise:
    stem, new = rng.choice(STEMS), rng.choice(PLACES)
    rows = _table(rng)
    kind = rng.choice(rows)[1]
    total = sum(row[2] for row in rows if row[1] == kind)
    program = f"""awk -F, '$2 == "{kind}" {{ s += $3 }} END {{ print s }}' {stem}.csv > {new}.txt"""
    return Exercise(
        f"Write the sum of column 3 of {stem}.csv, over the rows with {kind} in column 2, to "
        f"{new}.txt.",
        {f"{stem}.csv": _csv(rows)},
        [("Add the numbers.", program)],
        {f"{new}.txt": f"{total}\n"},
    )


def _unique_lines(rng: random.Random) -> Exercise:
    stems, new = rng.sample(STEMS, 3), rng.choice(PLACES)
    pool = _words(rng, 6, 8)
    files = {f"{stem}.txt": _text(rng.sample(pool, rng.randint(3, 5))) for stem in stems}
    lines = sorted({line for text in files.values() for line in text.split()})
    return Exercise(
        f"Write all different lines of {', '.join(files)}, sorted from A to Z, to {new}.out.",
        files,
        [("Merge and sort.", f"cat *.txt | sort -u > {new}.out")],
        {f"{new}.out": _text(lines)},
    )


def _collect(rng: random.Random) -> Exercise:
    level, new = rng.choice(LEVELS), rng.choice(PLACES)
    files = {f"{stem}.log": _text(_log(rng)) for stem in rng.sample(STEMS, 3)}
    lines = sorted(
        line for text in files.values() for line in text.splitlines() if line.split()[1] == level
    )
    return Exercise(
        f"Write the {level} lines of all .log files, sorted, to {new}.txt.",
        files,
        [("Collect the lines.", f"cat *.log | grep ' {level} ' | sort > {new}.txt")],
        {f"{new}.txt": _text(lines)},
    )


def _rename_all(rng: random.Random) -> Exercise:
    old, new = rng.sample(("txt", "md", "text", "dat", "log"), 2)
    names = rng.sample(STEMS, rng.randint(3, 5))
    files = _small_files(rng, [f"{name}.{old}" for name in names])
    changes: dict[str, str | None] = dict.fromkeys(files)
    changes |= {f"{name}.{new}": files[f"{name}.{old}"] for name in names}
    loop = f'for f in *.{old}; do mv "$f" "${{f%.{old}}}.{new}"; done'
    return Exercise(
        f"Rename every .{old} file, such as {names[0]}.{old}, to end in .{new} instead.",
        files,
        [("Rename in a loop.", loop)],
        changes,
    )


def _threshold(rng: random.Random) -> Exercise:
    stem, new = rng.choice(STEMS), rng.choice(PLACES)
    rows = _table(rng, 5, 8)
    limit = sorted(row[2] for row in rows)[len(rows) // 2]
    kept = sorted(row[0] for row in rows if row[2] > limit)
    return Exercise(
        f"Write column 1 of the rows of {stem}.csv whose column 3 is above {limit}, sorted from A "
        f"to Z, to {new}.txt.",
        {f"{stem}.csv": _csv(rows)},
        [
            (
                "Select and sort.",
                f"awk -F, '$3 > {limit} {{ print $1 }}' {stem}.csv | sort > {new}.txt",
            )
        ],
        {f"{new}.txt": _text(kept)},
    )


def _sort_column(rng: random.Random) -> Exercise:
    stem, new = rng.choice(STEMS), rng.choice(PLACES)
    rows = _table(rng, 5, 8)
    count = rng.randint(2, 3)
    kept = sorted(rows, key=lambda row: -row[2])[:count]
    return Exercise(
        f"Write the {count} rows of {stem}.csv with the largest numbers in column 3, largest "
        f"first, to {new}.csv.",
        {f"{stem}.csv": _csv(rows)},
        [("Sort by number.", f"sort -t, -k3,3nr {stem}.csv | head -n {count} > {new}.csv")],
        {f"{new}.csv": _csv(kept)},
    )


def _tree_count(rng: random.Random) -> Exercise:
    kind, other = rng.sample(("txt", "csv", "log", "md"), 2)
    places = rng.sample(PLACES, 3)
    names = [
        f"{place}/{stem}.{rng.choice((kind, other))}"
        for place in places
        for stem in rng.sample(STEMS, rng.randint(1, 3))
    ]
    names.append(f"{places[0]}/{places[1]}/{rng.choice(STEMS)}.{kind}")
    count = sum(name.endswith(f".{kind}") for name in names)
    return Exercise(
        f"How many .{kind} files are in {', '.join(places)} and the folders inside them?",
        _small_files(rng, names),
        [("Count the files.", f"find . -name '*.{kind}' | wc -l")],
        answer=str(count),
    )


def _read_only(rng: random.Random) -> Exercise:
    kind, other = rng.sample(("sh", "key", "conf", "pem"), 2)
    mode = rng.choice((0o600, 0o400, 0o750))
    places = rng.sample(PLACES, 2)
    stems = rng.sample(STEMS, 5)
    names = [f"{rng.choice(places)}/{stem}.{kind}" for stem in stems[:3]]
    others = [f"{rng.choice(places)}/{stem}.{other}" for stem in stems[3:]]
    return Exercise(
        f"Set the permissions of all .{kind} files in all folders, such as {names[0]}, to "
        f"{mode:o}. Leave the others.",
        _small_files(rng, [*names, *others]),
        [("Find them.", f"find . -name '*.{kind}' -exec chmod {mode:o} {{}} +")],
        new_modes=dict.fromkeys(names, mode) | dict.fromkeys(others, 0o644),
    )


def _replace_all(rng: random.Random) -> Exercise:
    old, new = rng.sample(WORDS, 2)
    place = rng.choice(PLACES)
    files = {}
    for stem in rng.sample(STEMS, 3):
        lines = [line for line in _lines(rng, old) if new not in line]
        files[f"{place}/{stem}.conf"] = _text(lines)
    return Exercise(
        f"Replace {old} by {new} in all .conf files in {place}.",
        files,
        [(f"Replace {old}.", f"sed -i s/{old}/{new}/g {place}/*.conf")],
        {name: text.replace(old, new) for name, text in files.items()},
    )


def _numbered(rng: random.Random) -> Exercise:
    stem, new = rng.choice(STEMS), rng.choice(PLACES)
    words = _words(rng)
    lines = [f"{number}:{word}" for number, word in enumerate(sorted(words), 1)]
    return Exercise(
        f"Sort the lines of {stem}.txt from A to Z and write them with their number, such as "
        f"1:{sorted(words)[0]}, to {new}.txt.",
        {f"{stem}.txt": _text(words)},
        [("Sort and number.", f"sort {stem}.txt | awk '{{ print NR \":\" $0 }}' > {new}.txt")],
        {f"{new}.txt": _text(lines)},
    )


# ---------------------------------------------------------------- hard: several steps


def _organise(rng: random.Random) -> Exercise:
    kinds = rng.sample(("txt", "csv", "log", "md", "json"), 3)
    stems = iter(rng.sample(STEMS, 9))
    groups = {kind: [next(stems) for _ in range(rng.randint(1, 3))] for kind in sorted(kinds)}
    names = [f"{stem}.{kind}" for kind, group in groups.items() for stem in group]
    files = _small_files(rng, names)
    changes: dict[str, str | None] = dict.fromkeys(names)
    changes |= {f"{name.split('.')[1]}/{name}": files[name] for name in names}
    changes["index"] = _text(f"{kind} {len(group)}" for kind, group in groups.items())
    kinds_text = " ".join(groups)
    move = f"for k in {kinds_text}; do mkdir $k; mv *.$k $k; done"
    count = f'for k in {kinds_text}; do echo "$k $(ls $k | wc -l)"; done > index'
    return Exercise(
        f"Move the files, such as {names[0]} and {names[-1]}, into folders named after their "
        f"endings ({', '.join(groups)}). Then write a file index with one line for each folder in "
        "this order: its name, a space, and the number of its files.",
        files,
        [("Move the files.", move), ("Write the index.", count), ("Check it.", "cat index")],
        changes,
    )


def _log_report(rng: random.Random) -> Exercise:
    stem, level = _numbered_stem(rng), rng.choice(LEVELS)
    log = _log(rng, 10, 16)
    counts = Counter(line.split()[1] for line in log)
    kept = [line.split()[2] for line in log if line.split()[1] == level]
    report = _text(f"{name} {counts[name]}" for name in sorted(counts))
    program = f"cut -d' ' -f2 {stem}.log | sort | uniq -c | awk '{{ print $2, $1 }}' > report.txt"
    return Exercise(
        f"Lines of {stem}.log have a time, a level and a word. Write each level with its number of "
        f"lines, such as {log[0].split()[1]} {counts[log[0].split()[1]]}, sorted from A to Z, to "
        f"report.txt. Write the words of the {level} lines, in order, to words.txt. Then delete "
        f"{stem}.log.",
        {f"{stem}.log": _text(log)},
        [
            ("Count the levels.", program),
            ("Take the words.", f"awk '$2 == \"{level}\" {{ print $3 }}' {stem}.log > words.txt"),
            ("Delete the log.", f"rm {stem}.log"),
        ],
        {"report.txt": report, "words.txt": _text(kept), f"{stem}.log": None},
    )


def _configure(rng: random.Random) -> Exercise:
    old, new = rng.sample(range(1000, 10000), 2)
    place = rng.choice(PLACES)
    files = {
        f"{stem}.conf": f"name={rng.choice(WORDS)}\nport={rng.choice((old, old, new - 1))}\n"
        for stem in rng.sample(STEMS, 4)
    }
    files[rng.choice(list(files))] = f"name={rng.choice(WORDS)}\nport={old}\n"
    changes = {f"{place}/{name}": text for name, text in files.items()}
    changes |= {n: text.replace(f"port={old}", f"port={new}") for n, text in files.items()}
    return Exercise(
        f"Copy all .conf files to a new folder {place}. Then change port={old} to port={new} in "
        f"the original .conf files, and set the permissions of the originals to 600.",
        files,
        [
            ("Copy the files.", f"mkdir {place} && cp *.conf {place}"),
            ("Change the port.", f"sed -i s/port={old}/port={new}/ *.conf"),
            ("Set the permissions.", "chmod 600 *.conf"),
            ("Check it.", "grep port *.conf; ls -l"),
        ],
        changes,
        new_modes=dict.fromkeys(files, 0o600),
    )


def _split_table(rng: random.Random) -> Exercise:
    stem = _numbered_stem(rng)
    rows = _table(rng, 6, 9)
    kinds = sorted({row[1] for row in rows})
    changes: dict[str, str | None] = {}
    for kind in kinds:
        own = [row for row in rows if row[1] == kind]
        changes[f"by_kind/{kind}.csv"] = _csv(sorted(own, key=lambda row: row[2]))
    changes["total.txt"] = f"{sum(row[2] for row in rows)}\n"
    loop = (
        f"for k in $(cut -d, -f2 {stem}.csv | sort -u); do "
        f"awk -F, -v k=$k '$2 == k' {stem}.csv | sort -t, -k3,3n > by_kind/$k.csv; done"
    )
    return Exercise(
        f"For each value of column 2 of {stem}.csv, write its rows, sorted by the number in column "
        "3 (smallest first), to by_kind/VALUE.csv. Write the sum of column 3 over all rows to "
        "total.txt.",
        {f"{stem}.csv": _csv(rows)},
        [
            ("Make the folder.", "mkdir by_kind"),
            ("Split the rows.", loop),
            (
                "Add the numbers.",
                f"awk -F, '{{ s += $3 }} END {{ print s }}' {stem}.csv > total.txt",
            ),
            ("Check it.", "head by_kind/* total.txt"),
        ],
        changes,
    )


def _duplicates(rng: random.Random) -> Exercise:
    new = _numbered_stem(rng)
    names = sorted(f"{stem}.txt" for stem in rng.sample(STEMS, 6))
    texts = [_text(rng.sample(WORDS, 2)) for _ in range(3)]
    files = {name: rng.choice(texts) for name in names}
    files[names[0]] = files[names[-1]] = texts[0]
    seen: set[str] = set()
    removed = []
    for name, text in files.items():
        if text in seen:
            removed.append(name)
        seen.add(text)
    changes: dict[str, str | None] = dict.fromkeys(removed)
    changes[f"{new}.list"] = _text(removed)
    find = f"md5sum *.txt | awk 'seen[$1]++ {{ print $2 }}' > {new}.list"
    return Exercise(
        f"Some .txt files, such as {names[0]} and {names[-1]}, have the same content. Of each such "
        "group, keep the file whose name is first from A to Z and delete the others. Write the "
        f"names of the deleted files, sorted, to {new}.list.",
        files,
        [
            ("Find the copies.", find),
            ("Delete them.", f"rm $(cat {new}.list)"),
            ("Check it.", f"ls; cat {new}.list"),
        ],
        changes,
    )


def _join_tables(rng: random.Random) -> Exercise:
    stems = sorted(rng.sample(STEMS, 3))
    tables = [_table(rng, 2, 4) for _ in stems]
    files = {
        f"{stem}.csv": "word,kind,number\n" + _csv(rows)
        for stem, rows in zip(stems, tables, strict=True)
    }
    rows = sorted((row for table in tables for row in table), key=lambda row: -row[2])
    numbers = [row[2] for row in rows]
    if len(set(numbers)) < len(numbers):  # the order of equal numbers would be open
        return _join_tables(rng)
    join = "(echo word,kind,number; tail -q -n +2 *.csv | sort -t, -k3,3nr) > all.out"
    return Exercise(
        f"Join {', '.join(files)} in all.out: the header line once, then all rows, largest number "
        "(column 3) first. Which word (column 1) has the largest number?",
        files,
        [("Join the rows.", join), ("Look at the top.", "head -n 2 all.out")],
        {"all.out": "word,kind,number\n" + _csv(rows)},
        answer=rows[0][0],
    )


def _nested(rng: random.Random) -> Exercise:
    word, place = rng.choice(WORDS), rng.choice(PLACES)
    others = [w for w in WORDS if w != word]
    folders = rng.sample(STEMS, 3)
    files = {}
    for stem in rng.sample(STEMS, 6):
        words = rng.sample(others, 2) + [word] * rng.randint(0, 1)
        files[f"{rng.choice(folders)}/{stem}.txt"] = _text(words)
    found = sorted(name for name, text in files.items() if word in text.split())
    if len(found) in (0, len(files)):
        return _nested(rng)
    changes: dict[str, str | None] = dict.fromkeys(found)
    changes |= {f"{place}.d/{name.split('/')[1]}": files[name] for name in found}
    changes["moved.list"] = _text(found)
    moves = f"mkdir {place}.d && for f in $(cat moved.list); do mv $f {place}.d; done"
    return Exercise(
        f"Find the .txt files in all folders that contain the line {word}. Write their paths, such "
        f"as {folders[0]}/NAME.txt, sorted, to moved.list, and move them into a new folder "
        f"{place}.d.",
        files,
        [
            ("Find the files.", f"grep -rlx --include='*.txt' {word} * | sort > moved.list"),
            ("Move them.", moves),
            ("Check it.", f"cat moved.list; ls {place}.d"),
        ],
        changes,
    )


# tier -> generators
EXERCISES: dict[str, tuple[Callable[[random.Random], Exercise], ...]] = {
    "easy": (
        _count_lines,
        _count_files,
        _find_word,
        _rename,
        _copy,
        _filter,
        _sort,
        _column,
        _move,
        _merge,
        _delete,
        _permissions,
        _folders,
        _replace,
        _first_lines,
        _append,
        _upper,
    ),
    "medium": (
        _count_values,
        _most_frequent,
        _sum_column,
        _unique_lines,
        _collect,
        _rename_all,
        _threshold,
        _sort_column,
        _tree_count,
        _read_only,
        _replace_all,
        _numbered,
    ),
    "hard": (
        _organise,
        _log_report,
        _configure,
        _split_table,
        _duplicates,
        _join_tables,
        _nested,
    ),
}
