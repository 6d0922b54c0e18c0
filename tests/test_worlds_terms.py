"""Search in scripts without spaces and in any Unicode form.

Run: python -m pytest tests/test_worlds_terms.py
"""

import random
import re
import time
import unicodedata

import pytest

from drlib.worlds.library import Library
from drlib.worlds.store import Document, Part, Store
from drlib.worlds.terms import DOTTED_NAME, derived_terms, fold_name, search_terms
from tests.folder_examples import load
from tests.store_examples import library, place

SENTENCES = [  # (text, queries that find it)
    ("東京は日本の首都である。", ("首都", "東京", "日本の首都", "日")),
    ("北京是中华人民共和国的首都。", ("首都", "共和国", "京")),
    ("กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย", ("เมืองหลวง", "ประเทศไทย", "ไทย")),
    ("ນະຄອນຫຼວງວຽງຈັນເປັນເມືອງຫຼວງຂອງປະເທດລາວ", ("ເມືອງຫຼວງ", "ປະເທດລາວ")),
    ("ភ្នំពេញជារដ្ឋធានីនៃប្រទេសកម្ពុជា", ("រដ្ឋធានី", "កម្ពុជា")),
    ("ရန်ကုန်မြို့သည်မြန်မာနိုင်ငံ၏အကြီးဆုံးမြို့ဖြစ်သည်", ("မြန်မာ", "ရန်ကုန်")),
    ("서울은 대한민국의 수도이다", ("서울", "수도", "대한민국")),
    ("台灣的首都在臺北", ("臺北", "首都")),
    ("ソフトウェアはPythonで書かれた", ("Python", "ソフトウェア")),
    ("改行で分かれた首\n都について", ("首都",)),
    ("𠮷野家の牛丼", ("𠮷野", "牛丼")),
]
FORMS = [  # (text, query)
    ("The oﬃce ﬁle", "office file"),
    ("ＰＹＴＨＯＮ３ and ｶﾞｽ", "python3"),
    ("半角ｶﾞｽ管", "ガス"),
    ("docu\u00admen\u00adtation", "documentation"),
    ("שָׁלוֹם עֲלֵיכֶם", "שלום"),
    ("שלום עליכם", "שָׁלוֹם"),
    ("مُحَمَّد", "محمد"),
    ("كـــتاب", "كتاب"),
    ("Росси\u0301я", "Россия"),
    ("Россия", "Росси\u0301я"),
    ("می\u200cخواهم", "میخواهم"),
    ("zero\ufeffwidth", "zerowidth"),
    ("हिन्दी भाषा", "हिन्दी"),
    ("Straße", "STRASSE"),
    ("year ١٩٩٧", "1997"),
    (unicodedata.normalize("NFD", "Дневной йогурт"), "йогурт"),
    (unicodedata.normalize("NFD", "한국어를 배운다"), "한국어"),
    (unicodedata.normalize("NFD", "Việt Nam"), "Việt"),
    ("cafés", unicodedata.normalize("NFD", "cafés")),
    ("⽇本語", "日本語"),
]


def store_of(*texts):
    store = Store()
    store.update({"s": "1"}, lambda _: Part([Document(f"p{i}", t) for i, t in enumerate(texts)]))
    return store


@pytest.mark.parametrize("number", range(len(SENTENCES)))
def test_words_are_found_inside_text_without_spaces(number):
    text, queries = SENTENCES[number]
    texts = [text.replace("\n", "") for text, _ in SENTENCES]
    others = [other for other in texts if not any(query in other for query in queries)]
    store = store_of("English text only.", *others, text)
    for query in queries:
        assert store.search(query, 3)[0] == f"p{len(others) + 1}", query


@pytest.mark.parametrize("engine", ["fts5", "bm25s"])
def test_other_engine_finds_them_too(engine):
    store = store_of("English", *[text for text, _ in SENTENCES[:3]])
    world = Library("t", store, "t", engine)
    assert [world.search(word, 1)[0].title for word in ("日本", "共和国")] == ["p1", "p2"]


@pytest.mark.parametrize("text, query", FORMS)
def test_text_and_query_may_have_different_forms(text, query):
    assert store_of("something else", "more of it", text).search(query, 1) == ["p2"]


def test_title_and_facts_are_found_and_follow_updates(tmp_path):
    store, parts = Store(tmp_path / "index"), {}

    def update(**changed):
        parts.update(changed)
        stamps = {name: str(hash(str(part))) for name, part in parts.items()}
        store.update(stamps, parts.__getitem__)

    update(a=place("東京都庁", ("所在地", "新宿区西新宿")), b=place("Oslo", ("land", "Norge")))
    assert store.search("西新", 1) == ["東京都庁"] == store.search("都庁", 1)
    update(a=place("東京都庁", ("所在地", "千代田区")), b=place("Oslo", ("land", "ノルウェー")))
    assert store.search("西新", 1) == [] and store.search("ノルウ", 1) == ["Oslo"]
    update(a=place("Tokyo"), b=place("Oslo"))
    assert store.search("千代", 1) == store.search("ノルウ", 1) == store.search("都庁", 1) == []
    assert store.rows("SELECT COUNT(*) FROM derived WHERE title || text || facts != ''") == [(0,)]


def test_rare_words_of_a_few_pages_count_as_rare():
    """A Japanese page among English ones is found before pages with the English word."""
    english = [f"Python page {number} " + "word " * (number % 7) for number in range(60)]
    assert store_of(*english, "Pythonの首都").search("Python 首都", 1) == ["p60"]


def test_plain_text_gives_the_same_terms_as_before():
    for text in ("call json.dumps — “now” café", "Größe über naïve", "Привет, мир", "שלום عالم"):
        assert derived_terms(text.replace("ß", "ss")) == ""
    assert search_terms("what is json.dumps of Émile") == ["json.dumps", "json", "dumps", "Émile"]


def test_dotted_names_are_found_as_before():
    pattern = re.compile(r"\w\w+(?:[._]\w+)+")
    rng = random.Random(48)
    for _ in range(3000):
        text = "".join(rng.choice("ab._ -é") for _ in range(rng.randint(1, 14)))
        assert DOTTED_NAME.findall(text) == pattern.findall(text)


def test_names_are_compared_in_one_form_but_keep_their_value():
    parts = {
        "a": place(unicodedata.normalize("NFD", "Café Zürich")),
        "b": place("10²"),
        "c": place("102"),
        "d": place("ﬁle", aliases=("ｆｉｌｅ２",)),
    }
    world = library(parts)
    assert world.find("café zürich") == world.find("t:CAFE\u0301 Zürich") == "Café Zürich"
    assert world.find("102") == "102" and world.find("10²") == "10²"
    assert world.find("file") == "ﬁle" and world.store.names("file2") == ["ﬁle"]
    assert fold_name("x₂") != fold_name("x2")


def test_file_names_links_and_cells_in_any_form(tmp_path):
    decomposed = unicodedata.normalize("NFD", "größe für é.md")
    (tmp_path / decomposed).write_text("# Ménage\n\ntext")
    (tmp_path / "가나.md").write_text(unicodedata.normalize("NFD", "# 가나다\n\n## Übung\n\ntext"))
    (tmp_path / "ZÜ.csv").write_text("Name,Ort\nA1x,Ｍénage\n")
    links = "[a](<größe für é.md>) [b](gr%C3%B6%C3%9Fe%20f%C3%BCr%20%C3%A9.md) [[Me\u0301nage]]"
    (tmp_path / "start.md").write_text(f"# Start\n\n{links} [c](가나.md#übung)\n")
    world = load(tmp_path)
    target = "größe für é.md"
    found = {to for subject, relation, to in world.graph.facts if relation == "link"}
    assert found == {target, "가나.md#übung"}
    assert ("ZÜ.csv: A1x", "Ort", target) in world.graph.facts
    assert world.changes.skipped == {}


def test_second_of_two_files_that_differ_only_in_form_is_reported(tmp_path):
    for form in ("NFC", "NFD"):
        (tmp_path / unicodedata.normalize(form, "é.md")).write_text(f"# {form}\n")
    world = load(tmp_path)
    assert world.find("é.md") and len(world.changes.skipped) == 1


@pytest.mark.parametrize(
    "text",
    [
        "é" + "A" * 300_000 + " Ｂ",
        "ยA" * 30_000,
        "\u0301" * 100_000,
        "a\xad" * 100_000,
        "日" * 100_000,
        "日 \n" * 50_000,
        "日" + " \t" * 100_000,
    ],
)
def test_hostile_text_takes_linear_time(text):
    start = time.process_time()
    derived_terms(text)
    search_terms(text)
    assert time.process_time() - start < 2.0
