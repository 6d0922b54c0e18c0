"""Web navigation on a generated shop, verified by the shop's state and the pages visited.

`web:easy` (three or four actions), `web:medium` (five to ten), `web:hard` (eleven to nineteen); ""
is easy. The tools are `read`, `click`, `type` and `back`. A page is a text with links and fields,
so no browser is needed. A task is solved if cart and sent forms are exactly the expected ones. A
question also needs the right answer and a visit to the page that contains it.
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

from drlib.chat.tool_calls import ToolCall
from drlib.environments.environment import (
    Environment,
    Episode,
    Observation,
    Solution,
    choose_tier,
)
from drlib.task import Task, is_correct
from drlib.tools.definitions import Parameter, Tool

READ = Tool("read", "Read the current page.", ())
CLICK = Tool("click", "Click a link of the page.", (Parameter("link", "Its text."),))
TYPE = Tool(
    "type",
    "Fill in a field of the page.",
    (Parameter("field", "Its name."), Parameter("text", "The new value.")),
)
BACK = Tool("back", "Return to the page before.", ())

DONE = "done"  # answer of a task that is not a question
KINDS = "lamp chair clock carpet mirror kettle vase basket".split()
MAKERS = (
    "Arden Brio Corvo Delta Elm Fjord Gala Hobart Ivo Juno Karst Lido "
    "Mira Norden Orbis Pico Quist Rook Sorel Tarn Ursa Velo Wend Zephyr"
).split()
COLOURS = "amber black blue brown green grey red white".split()
NAMES = "Kim Lou Max Noa Pat Rae Sam Tea".split()
SURNAMES = "Abel Berg Cole Dahl Egan Falk Gray Hall".split()
CITIES = "Oslo Porto Riga Turin Ghent Lyon".split()
DELIVERIES = ("post", "express", "pickup")
FORMS = {  # page -> fields, button
    "Newsletter": (("Email",), "Subscribe"),
    "Contact": (("Name", "Message"), "Send"),
    "Order": (("Name", "City", "Delivery"), "Pay"),
}
SHELVES = 3  # kinds of products in one shop
PRODUCTS = 6  # of each kind
PER_PAGE = 4  # products on one page of a list


class Product(NamedTuple):
    """An article of the shop."""

    name: str
    kind: str
    price: int
    colour: str
    stock: int


class Goal(NamedTuple):
    """A task on a shop.

    Attributes:
        shelves: kind -> products in the order of their list.
        cart: names in the cart at the start.
        final_cart: names in the cart at the end, sorted.
        sent: forms at the end: page, values of the fields, and for an order the sorted products.
        pages: must have been visited.
        steps: (thought, tool, arguments) of the scripted solution.
    """

    request: str
    shelves: dict[str, list[Product]]
    steps: list[tuple[str, str, dict[str, str]]]
    answer: str = DONE
    cart: tuple[str, ...] = ()
    final_cart: tuple[str, ...] = ()
    sent: tuple[tuple[str, ...], ...] = ()
    pages: tuple[str, ...] = ()


class WebEnvironment(Environment):
    """Tasks on a shop.

    Args:
        arguments: "easy", "medium" or "hard"; "" is easy.

    Raises:
        ValueError: another tier.
    """

    def __init__(self, arguments: str):
        self.tier, self.name = choose_tier("web", arguments, GOALS)

    def draw(self, rng: random.Random) -> Task:
        """Draw a shop and a goal."""
        seed = rng.getrandbits(31)
        goal = _goal(self.tier, seed)
        ending = f" Answer {DONE}." if goal.answer == DONE else ""
        name, data = f"web-{self.tier}-{seed}", json.dumps({"seed": seed})
        question = f"You are in a web shop. {goal.request}{ending}"
        return Task(name, question, goal.answer, self.name, self.name, environment=data)

    def tools(self, task: Task) -> Sequence[Tool]:
        """Return read, click, type and back."""
        return (READ, CLICK, TYPE, BACK)

    def reset(self, task: Task) -> Episode:
        """Open the shop's home page."""
        return _Shop(self._goal(task), task)

    def solve(self, task: Task) -> Solution:
        """Take the goal's steps."""
        for thought, tool, arguments in _goal(
            self.tier, json.loads(task.environment)["seed"]
        ).steps:
            yield thought, ToolCall(tool, arguments)
        return "All is done." if task.answer == DONE else f"It is {task.answer}.", task.answer

    def _goal(self, task: Task) -> Goal:
        return _goal(self.tier, json.loads(task.environment)["seed"])


class _Shop(Episode):
    """A visit to the shop: the current page and everything that the visitor changed."""

    def __init__(self, goal: Goal, task: Task):
        self.goal = goal
        self.task = task
        self.products = {p.name: p for shelf in goal.shelves.values() for p in shelf}
        self.page = "Home"
        self.history: list[str] = []
        self.visited = {"Home"}
        self.typed: dict[str, str] = {}
        self.cart = [*goal.cart]
        self.sent: list[tuple[str, ...]] = []

    def call(self, name: str, arguments: Mapping[str, Any]) -> Observation:
        if name == TYPE.name:
            fields = {field.casefold(): field for field in FORMS.get(self.page, ((), ""))[0]}
            field = fields.get(arguments["field"].strip().casefold())
            if field is None:
                return Observation(f"Error: there is no field {arguments['field']!r}.", False)
            self.typed[field] = arguments["text"].strip()
        elif name == CLICK.name:
            links = {label.casefold(): act for label, act in self._links().items()}
            act = links.get(arguments["link"].strip(" []").casefold())
            if act is None:
                return Observation(f"Error: there is no link {arguments['link']!r}.", False)
            problem = act()
            if problem:
                return Observation(f"Error: {problem}.", False)
        elif name == BACK.name:
            if not self.history:
                return Observation("Error: there is no page before.", False)
            self._open(self.history.pop())
        elif name != READ.name:
            return super().call(name, arguments)
        return Observation(self._show())

    def verify(self, answer: str | None) -> float:
        """1 if the answer is right, its pages were visited, and cart and forms are as expected."""
        if answer is None:
            return 0.0
        is_right = self.task.answer == DONE or is_correct(answer, self.task)
        is_state = (*sorted(self.cart),) == self.goal.final_cart and (*self.sent,) == self.goal.sent
        return float(is_right and is_state and self.visited >= {*self.goal.pages})

    def _show(self) -> str:
        """Return the text of the page."""
        lines = [self.page]
        kind, start = self._list()
        if kind:
            shelf = self.goal.shelves[kind]
            lines += [f"{p.name}: {p.price} euros" for p in shelf[start : start + PER_PAGE]]
        if self.page in self.products:
            product = self.products[self.page]
            lines.append(f"{product.price} euros, {product.colour}, {product.stock} in stock")
        if self.page == "Cart":
            lines += self.cart or ["The cart is empty."]
        for field in FORMS.get(self.page, ((), ""))[0]:
            lines.append(f"Field {field}: {self.typed.get(field, '')}")
        return "\n".join([*lines, f"Links: {', '.join(self._links())}"])

    def _links(self) -> dict[str, Callable[[], str | None]]:
        """Return text -> action; an action returns the text of an error, or nothing."""
        pages: list[str] = []
        actions: dict[str, Callable[[], str | None]] = {}
        kind, start = self._list()
        if self.page == "Home":
            pages = [_title(kind) for kind in self.goal.shelves] + ["Contact", "Newsletter"]
        elif kind:
            pages = [p.name for p in self.goal.shelves[kind][start : start + PER_PAGE]]
            if start == 0:
                actions["Next"] = partial(self._visit, _title(kind, 2))
        elif self.page in self.products:
            actions["Add to cart"] = partial(self._change_cart, self.cart.append, self.page)
        elif self.page == "Cart":
            for name in self.cart:
                actions[f"Remove {name}"] = partial(self._change_cart, self.cart.remove, name)
            pages = ["Order"] if self.cart else []
        elif self.page in FORMS:
            actions[FORMS[self.page][1]] = self._send
        pages += [page for page in ("Home", "Cart") if page != self.page]
        return {page: partial(self._visit, page) for page in pages} | actions

    def _list(self) -> tuple[str, int]:
        """Return the kind of the current list and the number of its first product; ("", 0)."""
        for kind in self.goal.shelves:
            if self.page in (_title(kind), _title(kind, 2)):
                return kind, 0 if self.page == _title(kind) else PER_PAGE
        return "", 0

    def _visit(self, page: str) -> None:
        self.history.append(self.page)
        self._open(page)

    def _open(self, page: str) -> None:
        self.page = page
        self.typed = {}
        self.visited.add(page)

    def _change_cart(self, change: Callable[[str], None], name: str) -> None:
        change(name)
        self._visit("Cart")

    def _send(self) -> str | None:
        """Send the form of the page."""
        values = [self.typed.get(field, "") for field in FORMS[self.page][0]]
        if not all(values):
            return "a field is empty"
        if self.page == "Order":
            if not self.cart:
                return "the cart is empty"
            values += sorted(self.cart)
            self.cart.clear()
        self.sent.append((self.page, *values))
        self._visit("Thank you")
        return None


def _title(kind: str, page: int = 1) -> str:
    """Return the title of a page of a list: "Lamps" or "Lamps 2"."""
    return f"{kind.capitalize()}s" + (f" {page}" if page > 1 else "")


# ---------------------------------------------------------------- goals


@cache
def _goal(tier: str, seed: int) -> Goal:
    rng = random.Random(f"web-{tier}-{seed}")
    shelves = {}
    for kind in rng.sample(KINDS, SHELVES):
        columns = (
            rng.sample(MAKERS, PRODUCTS),
            rng.sample(range(10, 100), PRODUCTS),
            rng.sample(COLOURS, PRODUCTS),
            rng.sample(range(2, 80), PRODUCTS),
        )
        shelves[kind] = [
            Product(f"{maker} {kind}", kind, price, colour, stock)
            for maker, price, colour, stock in zip(*columns, strict=True)
        ]
    return rng.choice(GOALS[tier])(shelves, rng)


def _click(*links: str) -> list[tuple[str, str, dict[str, str]]]:
    return [(f"Click {link}.", CLICK.name, {"link": link}) for link in links]


def _fill(page: str, values: Sequence[str]) -> list[tuple[str, str, dict[str, str]]]:
    """Return the steps that fill in and send the form of the current page."""
    fields, button = FORMS[page]
    steps = [
        (f"The field {field} is {value}.", TYPE.name, {"field": field, "text": value})
        for field, value in zip(fields, values, strict=True)
    ]
    return [*steps, ("Send the form.", CLICK.name, {"link": button})]


START = [("Read the page.", READ.name, {})]
RETURN = [("Go back.", BACK.name, {})]


def _reach(product: Product, shelf: Sequence[Product]) -> list[tuple[str, str, dict[str, str]]]:
    """Return the steps from the home page to a product."""
    is_second = shelf.index(product) >= PER_PAGE
    return _click(_title(product.kind), *(["Next"] if is_second else []), product.name)


def _compare(cheapest: Product, shelf: Sequence[Product]) -> list[tuple[str, str, dict[str, str]]]:
    """Return the steps from the home page over both pages of a list to its cheapest product."""
    is_first = shelf.index(cheapest) < PER_PAGE
    steps = _click(_title(cheapest.kind), "Next") + (RETURN if is_first else [])
    thought = f"The cheapest is {cheapest.name} for {cheapest.price} euros."
    return [*steps, (thought, CLICK.name, {"link": cheapest.name})]


def _inspect(product: Product, shelf: Sequence[Product]) -> list[tuple[str, str, dict[str, str]]]:
    """Return the steps from the home page over the earlier products of a list to a product."""
    steps = _click(_title(product.kind))
    for other in shelf[: shelf.index(product)]:
        steps += [*_click(other.name), (f"It is {other.colour}. Go back.", BACK.name, {})]
    return steps + _click(product.name)


def _person(rng: random.Random) -> str:
    return f"{rng.choice(NAMES)} {rng.choice(SURNAMES)}"


def _detail(shelves: dict, rng: random.Random) -> Goal:
    product = rng.choice(rng.choice([*shelves.values()])[:PER_PAGE])
    request, answer = rng.choice(
        (
            (f"Which colour is the {product.name}?", product.colour),
            (f"How many of the {product.name} are in stock?", str(product.stock)),
        )
    )
    steps = START + _reach(product, shelves[product.kind])
    return Goal(request, shelves, steps, answer, pages=(product.name,))


def _add(shelves: dict, rng: random.Random) -> Goal:
    product = rng.choice(rng.choice([*shelves.values()])[:PER_PAGE])
    steps = START + _reach(product, shelves[product.kind]) + _click("Add to cart")
    request = f"Put the {product.name} into the cart."
    return Goal(request, shelves, steps, final_cart=(product.name,))


def _subscribe(shelves: dict, rng: random.Random) -> Goal:
    email = f"{_person(rng).replace(' ', '.').lower()}@{rng.choice(CITIES).lower()}.example"
    steps = START + _click("Newsletter") + _fill("Newsletter", [email])
    request = f"Subscribe {email} to the newsletter."
    return Goal(request, shelves, steps, sent=(("Newsletter", email),))


def _cheapest(shelves: dict, rng: random.Random) -> Goal:
    shelf = rng.choice([*shelves.values()])
    product = min(shelf, key=lambda p: p.price)
    steps = START + _compare(product, shelf) + _click("Add to cart")
    most = rng.randint(max(p.price for p in shelf), 120)
    request = f"I have {most} euros. Put the cheapest {product.kind} into the cart."
    return Goal(request, shelves, steps, final_cart=(product.name,))


def _coloured(shelves: dict, rng: random.Random) -> Goal:
    shelf = rng.choice([*shelves.values()])
    product = shelf[rng.randrange(1, PER_PAGE)]
    steps = START + _inspect(product, shelf) + _click("Add to cart")
    request = f"Put the {product.colour} {product.kind} into the cart."
    return Goal(request, shelves, steps, final_cart=(product.name,))


def _message(shelves: dict, rng: random.Random) -> Goal:
    values = [_person(rng), f"parcel {rng.randrange(100, 1000)} is late"]
    steps = START + _click("Contact") + _fill("Contact", values)
    request = f"Send the shop a message. Name: {values[0]}. Message: {values[1]}"
    return Goal(f"{request}.", shelves, steps, sent=(("Contact", *values),))


def _order(shelves: dict, rng: random.Random) -> Goal:
    first, second, third = shelves.values()
    named, cheap = rng.choice(first), min(second, key=lambda p: p.price)
    old = rng.choice(third).name
    values = [_person(rng), rng.choice(CITIES), rng.choice(DELIVERIES)]
    steps = START + _click("Cart", f"Remove {old}", "Home")
    steps += _reach(named, first) + _click("Add to cart", "Home")
    steps += _compare(cheap, second) + _click("Add to cart", "Order") + _fill("Order", values)
    request = (
        f"Remove everything from the cart. Then order the {named.name} and the cheapest "
        f"{cheap.kind}. Name: {values[0]}. City: {values[1]}. Delivery: {values[2]}."
    )
    order = ("Order", *values, *sorted((named.name, cheap.name)))
    return Goal(request, shelves, steps, cart=(old,), sent=(order,))


def _order_coloured(shelves: dict, rng: random.Random) -> Goal:
    shelf = rng.choice([*shelves.values()])
    product = shelf[rng.randrange(1, PER_PAGE)]
    values = [_person(rng), rng.choice(CITIES), rng.choice(DELIVERIES)]
    steps = START + _inspect(product, shelf) + _click("Add to cart", "Order")
    steps += _fill("Order", values)
    request = (
        f"Order the {product.colour} {product.kind}. Name: {values[0]}. City: {values[1]}. "
        f"Delivery: {values[2]}."
    )
    return Goal(request, shelves, steps, sent=(("Order", *values, product.name),))


GOALS: dict[str, tuple[Callable[[dict, random.Random], Goal], ...]] = {
    "easy": (_detail, _add, _subscribe),
    "medium": (_cheapest, _coloured, _message),
    "hard": (_order, _order_coloured),
}
