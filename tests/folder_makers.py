"""Three folders of Markdown, generated from a seed: the source of test questions.

A company's handbook, a project's documentation and a set of research notes, each with about
sixty documents and one or two tables. The text is our own; names are drawn from lists here. Each
maker is a pure function of its seed and returns file name -> text; `written` writes it to a folder.

Facts are in front matter, tables and csv files; the prose repeats some and adds none. Noise such
as broken links is not included (see `tests/folder_examples.py`).
"""

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

FIRST = """Ada Bram Carla Dmitri Elin Farid Greta Hugo Ines Jonas Katya Luis Mira Nils Olga Pavel
Quinn Rosa Stefan Tara Ulrik Vera Willem Yara Zeno Anouk Basil Clara Dario Edda""".split()
LAST = """Lindqvist Okafor Marchetti Sorensen Vasquez Holloway Brandt Castellan Nakagawa Petrov
Ferreira Ashworth Duvall Kowalczyk Haddad Ellery Tanaka Moreau Vogel Whitcombe Ibarra Jansen
Quist Rosario Saito Thorne Underhill Varga Winslow Zielinski""".split()


def written(files: Mapping[str, str], folder: Path) -> Path:
    """Write the files into `folder` and return it."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def _people(rng: random.Random, n: int) -> list[str]:
    return [f"{a} {b}" for a, b in zip(rng.sample(FIRST, n), rng.sample(LAST, n), strict=True)]


def _slug(name: str) -> str:
    return "-".join(name.casefold().replace(".", " ").replace("'", "").replace(":", "").split())


def _page(front: Mapping[str, object], heading: str, *blocks: str) -> str:
    lines = []
    for key, value in front.items():
        if isinstance(value, list):
            lines += [f"{key}:", *(f"  - {one}" for one in value)]
        else:
            lines.append(f"{key}: {value}")
    return "\n\n".join(["---\n" + "\n".join(lines) + "\n---", f"# {heading}", *blocks]) + "\n"


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _csv(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    return "".join(",".join(map(str, row)) + "\n" for row in [columns, *rows])


# ------------------------------------------------------------------------------------- handbook

TEAMS = "Billing Logistics Platform Design Research Support Sales Security".split()
OFFICES = "Rotterdam Porto Gdansk Trieste Bergen".split()
PRODUCTS = "Kestrel Juniper Halyard Marlin Cobalt Saffron Tundra Osprey Lantern Quarry".split()
ROLES = ("engineer", "designer", "analyst", "writer", "accountant", "researcher", "advisor")
POLICIES = """Travel|Remote work|Expenses|Parental leave|Laptops|On-call|Visitors|Data retention|
Purchasing|Recruiting|Incident reports|Gifts|Training budget|Working hours""".replace("\n", "")
CUSTOMERS = """Ambleside Bank|Norrland Ferries|Casa Bruma|Delfin Foods|Eastgate Clinics|Fjellheim
Energy|Garrigue Wines|Hollow Oak Press|Istria Tours|Kaunas Rail|Lundby Tools|Meridian Optics|Nova
Textil|Orchard Schools|Pinewood Homes|Ravenna Ceramics""".replace("\n", " ")
COURSES = """First aid|Plain writing|Negotiation|SQL for everyone|Fire safety|Interviewing|
Presenting|Threat modelling|Bookkeeping""".replace("\n", "")

VENDORS = """Abel Paper|Bright Cleaning|Corner Bakery|Dovetail Furniture|Ember Coffee|Fern Rentals|
Glasshouse Plants|Hatch Print|Ironside Locks|Jetty Couriers|Kiln Ceramics|Loom Uniforms""".replace(
    "\n", ""
)


def handbook(seed: int | str) -> dict[str, str]:
    """Return a company's handbook: people, teams, products, policies, customers and courses."""
    rng = random.Random(f"handbook-{seed}")
    people = _people(rng, 26)
    leads = dict(zip(TEAMS, people))
    team_of = {
        name: TEAMS[i] if i < len(TEAMS) else rng.choice(TEAMS) for i, name in enumerate(people)
    }
    files = {
        "index.md": "# Handbook\n\nWho we are, where we work, and what we agreed on. Start with "
        "[the customers](customers.md), [the vendors](vendors.md) or [the courses](courses.md).\n"
    }
    for name in people:
        team = team_of[name]
        lead = leads[team]
        manager = lead if lead != name else people[(TEAMS.index(team) + 3) % len(TEAMS)]
        role = rng.choice(ROLES)
        office = rng.choice(OFFICES)
        front = {
            "team": f"[[{team}]]",
            "manager": f"[[{manager}]]",
            "office": f"[[{office}]]",
            "role": role,
            "joined": rng.randint(2011, 2023),
        }
        about = (
            f"{name.split()[0]} sits in {office} and writes the minutes when nobody else does.",
            f"Ask {name.split()[0]} before you book the large meeting room.",
            f"{name.split()[0]} answers messages in the morning and thinks in the afternoon.",
        )
        files[f"people/{_slug(name)}.md"] = _page(front, name, rng.choice(about))
    _add_teams_and_offices(rng, people, files)
    _add_products_and_policies(rng, people, files)
    _add_handbook_tables(rng, people, files)
    return files


def _add_teams_and_offices(
    rng: random.Random, people: Sequence[str], files: dict[str, str]
) -> None:
    for team, lead in zip(TEAMS, people):
        front = {
            "lead": lead,
            "office": rng.choice(OFFICES),
            "founded": rng.randint(2009, 2019),
        }
        day = rng.choice(["Mondays", "Tuesdays", "Thursdays"])
        said = f"The team meets on {day}, for half an hour."
        files[f"teams/{_slug(team)}.md"] = _page(front, team, said)
    managers = rng.sample(people, len(OFFICES))
    for office, manager in zip(OFFICES, managers, strict=True):
        front = {"office manager": f"[[{manager}]]", "opened": rng.randint(2008, 2020)}
        text = "Badges are at the desk. The kitchen is cleaned on Fridays, so take your lunch home."
        files[f"offices/{_slug(office)}.md"] = _page(front, office, text)


def _add_products_and_policies(
    rng: random.Random, people: Sequence[str], files: dict[str, str]
) -> None:
    for product in PRODUCTS:
        front = {
            "team": rng.choice(TEAMS),
            "product manager": rng.choice(people),
            "released": rng.randint(2014, 2023),
            "language": rng.choice(["Python", "Go", "Rust", "Kotlin"]),
        }
        text = f"{product} is sold by the seat. Prices are on request, discounts are not."
        files[f"products/{_slug(product)}.md"] = _page(front, product, text)
    for policy in POLICIES.split("|"):
        front = {
            "owner": rng.choice(people),
            "approved by": rng.choice(people[:8]),
            "updated": rng.randint(2018, 2024),
        }
        text = (
            f"This policy holds for everybody. If it stands in your way, talk to {front['owner']}."
        )
        files[f"policies/{_slug(policy)}.md"] = _page(front, policy, text)


def _add_handbook_tables(rng: random.Random, people: Sequence[str], files: dict[str, str]) -> None:
    rows = [
        (
            name,
            rng.choice(PRODUCTS),
            rng.choice(people),
            rng.randint(2015, 2024),
            rng.choice(OFFICES),
        )
        for name in CUSTOMERS.split("|")
    ]
    columns = ("Customer", "Product", "Account manager", "Customer since", "Served from")
    files["customers.md"] = f"# Customers\n\nWho looks after whom.\n\n{_table(columns, rows)}\n"
    rows = [
        (name, rng.choice(people), rng.choice(OFFICES), rng.choice(TEAMS))
        for name in COURSES.split("|")
    ]
    columns = ("Course", "Teacher", "Held at", "Organised by")
    files["courses.md"] = f"# Courses\n\nSign up a week before.\n\n{_table(columns, rows)}\n"
    rows = [
        (name, rng.choice(people), rng.choice(OFFICES), rng.choice(people[:8]))
        for name in VENDORS.split("|")
    ]
    columns = ("Vendor", "Contact", "Supplies", "Approved by")
    files["vendors.md"] = f"# Vendors\n\nWhom we buy from.\n\n{_table(columns, rows)}\n"


# -------------------------------------------------------------------------------- documentation

MODULES = """harbor.cache harbor.queue harbor.store harbor.auth harbor.routes harbor.mail
harbor.forms harbor.jobs harbor.locks harbor.metrics harbor.shell harbor.tokens harbor.views
harbor.signals harbor.uploads""".split()
COMMANDS = "init serve migrate seed backup restore lint watch deploy rollback status purge".split()
ERRORS = """LockTimeout QueueFull StaleToken BadRoute MissingForm UploadTooLarge BrokenPipe
UnknownSignal MailRejected CacheMiss ShellDenied JobLost""".split()
RELEASES = "1.0 1.1 1.2 2.0 2.1 2.2 3.0 3.1".split()
GUIDES = """Getting started|Sending mail|Running jobs|Uploading files|Signing in|Going live|
Writing tests""".replace("\n", "")
SETTINGS = """CACHE_SIZE CACHE_TTL QUEUE_LIMIT QUEUE_RETRIES LOCK_WAIT LOCK_DIR MAIL_HOST MAIL_FROM
TOKEN_LIFETIME TOKEN_SECRET UPLOAD_DIR UPLOAD_LIMIT ROUTE_PREFIX JOB_WORKERS JOB_TIMEOUT VIEW_THEME
SHELL_PROMPT METRICS_PORT METRICS_PATH SIGNAL_BUFFER STORE_URL STORE_POOL FORM_CSRF
LOG_LEVEL""".split()


def documentation(seed: int | str) -> dict[str, str]:
    """Return a project's documentation: modules, commands, errors, guides, releases, settings."""
    rng = random.Random(f"documentation-{seed}")
    people = _people(rng, 9)
    files = {
        "README.md": "# Harbor\n\nA small web framework. See [the settings](settings.md).\n",
    }
    for name in people:
        front = {"type": "maintainer", "time zone": rng.choice(["UTC", "UTC+1", "UTC+9", "UTC-5"])}
        files[f"about/{_slug(name)}.md"] = _page(front, name, "Reviews patches at weekends.")
    for i, name in enumerate(MODULES):
        front = {
            "maintainer": f"[[{rng.choice(people)}]]",
            "added in": f"[[Harbor {rng.choice(RELEASES)}]]",
            "requires": [
                f"[[{one}]]"
                for one in sorted(rng.sample(MODULES[:i] or MODULES[1:3], min(2, max(1, i))))
            ],
        }
        code = f"```python\nimport {name}\n```"
        files[f"modules/{_slug(name)}.md"] = _page(front, name, "Import it as it is:", code)
    for name in COMMANDS:
        front = {
            "module": f"[[{rng.choice(MODULES)}]]",
            "introduced in": f"[[Harbor {rng.choice(RELEASES)}]]",
            "maintainer": f"[[{rng.choice(people)}]]",
        }
        text = f"Run it where your project lies.\n\n```\nharbor {name} --help\n```"
        files[f"commands/{name}.md"] = _page(front, f"harbor {name}", text)
    _add_errors_releases_and_guides(rng, people, files)
    _add_settings(rng, files)
    return files


def _add_errors_releases_and_guides(
    rng: random.Random, people: Sequence[str], files: dict[str, str]
) -> None:
    for name in ERRORS:
        front = {
            "raised by": [f"[[{one}]]" for one in sorted(rng.sample(MODULES, 2))],
            "added in": f"[[Harbor {rng.choice(RELEASES)}]]",
            "documented by": f"[[{rng.choice(people)}]]",
        }
        text = (
            f"You see {name} when something outside of Harbor gave up. Try again, then report it."
        )
        files[f"errors/{_slug(name)}.md"] = _page(front, name, text)
    for i, name in enumerate(RELEASES):
        front = {"release manager": f"[[{rng.choice(people)}]]", "released": 2016 + i}
        text = "Upgrade with care: read the notes to the end before you begin."
        files[f"releases/{name}.md"] = _page(front, f"Harbor {name}", text)
    for name in GUIDES.split("|"):
        front = {
            "author": f"[[{rng.choice(people)}]]",
            "covers": [f"[[{one}]]" for one in sorted(rng.sample(MODULES, 2))],
            "written for": f"[[Harbor {rng.choice(RELEASES)}]]",
        }
        files[f"guides/{_slug(name)}.md"] = _page(front, name, "It takes about ten minutes.")


def _add_settings(rng: random.Random, files: dict[str, str]) -> None:
    rows = [
        (
            f"`{name}`",
            f"[{(module := rng.choice(MODULES))}](modules/{_slug(module)}.md)",
            rng.choice(["integer", "text", "path", "switch"]),
            f"[[Harbor {rng.choice(RELEASES)}]]",
            f"[[harbor {rng.choice(COMMANDS)}]]",
        )
        for name in SETTINGS
    ]
    columns = ("Setting", "Module", "Value type", "Added in", "Read by")
    text = "Settings stand in `harbor.toml`."
    files["settings.md"] = f"# Settings\n\n{text}\n\n{_table(columns, rows)}\n"


# ------------------------------------------------------------------------------- research notes

PAPERS = """Counting seals from the air|Why kelp comes back|Slow tides in narrow fjords|A census of
driftwood|Plastic on northern beaches|Salt and the eider|Listening to sandbanks|Ice edges in
spring|Mussels as thermometers|When gulls move inland|Mapping eelgrass by drone|Cold water and
coralline algae|Noise below the ferry lane|The return of the sturgeon|Storm surges and salt
marshes|Night lights and plankton|Tracking eels with tags|Oyster beds after the dredge""".replace(
    "\n", " "
)
METHODS = (
    "transect counts|aerial photography|hydrophone arrays|sediment cores|mark and recapture|"
    "stable isotopes|eDNA sampling|acoustic tagging"
).split("|")
DATA_SETS = "Skerry 2014|Fjordline|Blue Ledger|Tidewatch|Marram|Northbeach|Sounding 7".split("|")
SITES = "Vesle Bay|Kvalnes|Ramsund|Holmen|Inner Storfjord|Tarva|Grip".split("|")
JOURNALS = "Coastal Letters|Journal of Shore Ecology|Marine Notes|Northern Waters".split("|")


def research_notes(seed: int | str) -> dict[str, str]:
    """Return research notes in one flat folder: papers, people, methods, data sets, sites."""
    rng = random.Random(f"notes-{seed}")
    people = _people(rng, 12)
    number = iter(range(202303010900, 202303990000, 7))
    files: dict[str, str] = {}

    def add(heading: str, front: dict, text: str) -> None:
        files[f"{next(number)} {heading}.md"] = _page(front, heading, text)

    papers = PAPERS.split("|")
    for i, name in enumerate(papers):
        front = {
            "type": "paper",
            "authors": [f"[[{one}]]" for one in sorted(rng.sample(people, 2))],
            "published": rng.randint(2012, 2023),
            "journal": rng.choice(JOURNALS),
            "method": f"[[{rng.choice(METHODS)}]]",
            "data set": f"[[{rng.choice(DATA_SETS)}]]",
        }
        if i > 2:
            front["cites"] = [f"[[{one}]]" for one in sorted(rng.sample(papers[:i], 2))]
        add(name, front, "Read once, quickly. The appendix is better than the paper. #toread")
    for name in people:
        front = {
            "type": "person",
            "institute": rng.choice(
                ["Bodin Institute", "Leith Marine Station", "Aarle University"]
            ),
            "supervisor": f"[[{rng.choice([p for p in people if p != name])}]]",
        }
        add(name, front, "Met at the workshop; kind, answers mail.")
    _add_methods_data_sets_and_sites(rng, people, add)
    files["experiments.csv"] = _experiments(rng, people, papers)
    for i in range(8):
        links = ", ".join(f"[[{name}]]" for name in rng.sample(papers, 2))
        add(f"Loose thought {i + 1}", {"type": "note"}, f"Somewhere between {links}.")
    return files


def _add_methods_data_sets_and_sites(
    rng: random.Random, people: Sequence[str], add: Callable[[str, dict, str], None]
) -> None:
    for name in METHODS:
        front = {
            "type": "method",
            "introduced by": f"[[{rng.choice(people)}]]",
            "first used": rng.randint(1962, 2011),
        }
        add(name, front, "Cheap, if somebody else pays for the boat.")
    for name in DATA_SETS:
        front = {
            "type": "data set",
            "curator": f"[[{rng.choice(people)}]]",
            "recorded at": f"[[{rng.choice(SITES)}]]",
            "released": rng.randint(2010, 2020),
        }
        add(name, front, "Ask for the raw files, the cleaned ones lack the winter.")
    for name in SITES:
        front = {
            "type": "site",
            "warden": f"[[{rng.choice(people)}]]",
            "municipality": rng.choice(["Lurvik", "Hessen", "Skarn"]),
        }
        add(name, front, "Bring boots.")


def _experiments(rng: random.Random, people: Sequence[str], papers: Sequence[str]) -> str:
    rows = [
        (
            f"E{i:02}",
            rng.choice(SITES),
            rng.choice(METHODS),
            rng.choice(people),
            f"2023-{rng.randint(4, 9):02}-{rng.choice([3, 12, 21]):02}",
            rng.choice(papers),
        )
        for i in range(1, 31)
    ]
    columns = ("experiment", "carried out at", "method", "led by", "date", "reported in")
    return _csv(columns, rows)


MAKERS: Mapping[str, Callable[[int | str], dict[str, str]]] = {
    "handbook": handbook,
    "documentation": documentation,
    "research notes": research_notes,
}
