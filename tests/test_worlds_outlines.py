"""HTML to text: blocks separate words, inline elements do not, `pre` keeps its lines."""

import re

import pytest

pytest.importorskip("trafilatura")

from drlib.worlds import load_world
from drlib.worlds.reading import reply_to

ARTICLE = "<p>" + "The moon is a satellite of the earth and of nothing else. " * 20 + "</p>"


def text_of(html, outline=True):
    return reply_to([".html", "", 0, outline], html.encode())["text"]


SEPARATED = {
    "nested lists": "<ul><li>Alpha<ul><li>Beta</li></ul></li><li>Gamma</li></ul>",
    "text around a list": "<div>Alpha<ol><li>Beta</ol>Gamma</div>",
    "nested divs": "<div>Alpha<div>Beta</div>Gamma</div>",
    "quote": "Alpha<blockquote>Beta</blockquote>Gamma",
    "figure": "<figure>Alpha<figcaption>Beta</figcaption></figure><b>Gamma</b>",
    "landmarks": "<header>Alpha</header><main>Beta</main><footer>Gamma</footer>",
    "article": "<article>Alpha<aside>Beta</aside></article><nav>Gamma</nav>",
    "details": "<details><summary>Alpha</summary>Beta</details>Gamma",
    "form": "<fieldset><legend>Alpha</legend><button>Beta</button><button>Gamma</button>",
    "options": "<select><option>Alpha<option>Beta</select>Gamma",
    "definitions": "<dl><dt>Alpha<dd>Beta<dt>Gamma</dl>",
    "rule and picture": "Alpha<hr>Beta<img src=x.png>Gamma",
    "table caption": "<table><caption>Alpha</caption><tr><td>Beta</td></tr></table>Gamma",
    "cell with a list": "<table><tr><td><ul><li>Alpha<li>Beta</ul>Gamma</td></tr></table>",
    "linked blocks": '<a href="b.html"><h3>Alpha</h3><p>Beta</p></a>Gamma',
    "heading": "<h2>Alpha<br>Beta<small><div>Gamma</div></small></h2>",
    "drawing": "<svg><text>Alpha</text><text>Beta</text></svg>Gamma",
    "style": '<b>Alpha</b><span style="display: block">Beta</span><i>Gamma</i>',
    "blocks in inline elements": "<span>Alpha</span><span><div>Beta</div></span><i>Gamma</i>",
}


@pytest.mark.parametrize("name", SEPARATED)
def test_blocks_without_whitespace_separate_words(name):
    found = re.findall(r"\w+", re.sub(r"\]\([^)]*\)", "]", text_of(SEPARATED[name])))
    assert [word for word in found if not word.endswith("3")] == ["Alpha", "Beta", "Gamma"]


@pytest.mark.parametrize(
    "html, text",
    [
        ("<p>un<b>believ</b>able</p>", "unbelievable"),
        ("<p>H<sub>2</sub>O is wa<wbr>ter</p>", "H2O is water"),
        ("<p>it<!-- no -->self</p>", "itself"),
        ("<table><tr><td>H<sub>2</sub>O</td><td><b>5</b>%</td></tr></table>", "|H2O|5%|"),
        ("<p>one\ntwo</p>\n<p> three</p>", "one\ntwo\n\n three"),
        ("<ruby>漢<rp>(</rp><rt>かん</rt><rp>)</rp>字<rt>じ</rt></ruby>", "漢字(かんじ)"),
    ],
)
def test_inline_elements_do_not_split_words(html, text):
    assert text_of(html) == text


@pytest.mark.parametrize(
    "code",
    [
        "one<br>  two<br/>three",
        "<code><div>one</div><div>  two</div><div>three</div></code>",
        "<ol><li>one</li><li>  two</li><li>three</li></ol>",
        "<span>one\n</span><span>  two</span><br><span>three</span>",
        "one\n  two<p>three</p>",
    ],
)
def test_lines_of_preformatted_text_are_kept(code):
    text = text_of(f"<p>before</p><pre>{code}</pre>")
    assert text == "before\n\n```\none\n  two\nthree\n```"


@pytest.mark.parametrize(
    "html",
    [
        "<h4>fn next<div>where</div></h4>",
        "<p>fn next</p>where<p>",
        "<h4><b>fn next</b><div>where</div></h4>",
        "<h4><code>next<span><div>where</div></span></code></h4>",
        "<div><code>next</code></div><div><code>where</code></div>",
        "<dl><dt><code>next</code></dt><dd><code>where</code></dd></dl>",
        "<blockquote><code>next</code></blockquote><div><code>where</code></div>",
    ],
)
def test_blocks_of_an_article_separate_words(html):
    text = text_of(f"<article>{ARTICLE}{html}{ARTICLE}</article>", outline=False)
    assert text.startswith("The moon is") and "nextwhere" not in text and "whereT" not in text
    assert re.search(r"\bnext\b", text) and re.search(r"\bwhere\b", text)


def test_text_after_a_block_is_no_markup():
    text = text_of("<b>one</b><blockquote># two</blockquote>===<hr>```")
    assert text == "one\n\\# two\n\\===\n\\```"


def test_a_menu_before_the_heading_does_not_name_the_page(tmp_path):
    (tmp_path / "a.html").write_text(
        "<html><body><h3>Navigation</h3><p>Home</p><h1>borg create</h1><p>Text.</p></body></html>"
    )
    world = load_world(f"folder:{tmp_path}")
    assert world.graph.values("a.html", "heading") == {"borg create"}
    assert world.search("borg create", 1)[0].title.startswith("a.html")
