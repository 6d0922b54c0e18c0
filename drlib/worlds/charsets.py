"""Decode text of unknown or wrongly declared encoding, or refuse if the encoding is ambiguous.

The order is that of browsers (WHATWG Encoding Standard): a byte order mark, then the declared
encoding, whose label is interpreted by `webencodings`; but a label that contradicts valid UTF-8 is
ignored. Text that is UTF-8 except for a few bytes is read as UTF-8, with U+FFFD for these bytes.

Otherwise charset-normalizer guesses among the encodings of old files (Windows, Shift-JIS, EUC, GB,
Big5, KOI8, UTF-16 without a mark). A guess is accepted only if the runner-up gives the same text or
reads worse: a wrong guess would fill pages with nonsense, so an ambiguous text is refused and the
reason names both encodings. The library needs more than a few accented letters; such a text is read
as Windows-1252, a superset of Latin-1, if the bytes are letters or punctuation there.

Not implemented: encodings of DOS and old Macintoshes without a label, and a user-supplied language.
"""

import codecs
import re
from contextlib import suppress

GUESSED = (
    *("cp1252", "cp1250", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256", "cp874", "koi8_r"),
    *("cp932", "euc_jp", "gb18030", "big5", "cp949"),
)
WIDE = ("utf_16_le", "utf_16_be")  # only if there are zero bytes, as between ASCII letters
FEW = 8  # bytes beyond ASCII, too few for a guess
SMALL_SHARE = 0.25  # largest share of such bytes
# Characters that do not occur in Western text, or are Turkish letters in Windows-1254.
ODD_IN_WESTERN = re.compile(r"[^\t\n\f\r -~\w¡-¿‘’‚“”„–—…€•†‡‹›™×÷]|[ÐðÝýÞþ]")
WITHIN = 0.05  # difference of chaos or coherence below which two guesses are equally good


# Python's codecs for encodings of the standard that have another meaning under the same name.
STANDARD_CODECS = {
    "shift_jis": "cp932",
    "euc-kr": "cp949",
    "gbk": "gb18030",
    "big5": "big5hkscs",
    "x-user-defined": "cp1252",
    "utf-16le": "utf_16_le",
    "utf-16be": "utf_16_be",
}
MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # begins with the mark of UTF-16
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
    (codecs.BOM_UTF32_BE, "utf-32"),
)
GOOD_PER_BAD = 2  # valid sequences per bad byte of a text that is taken for UTF-8
BAD_SHARE = 0.01  # largest share of bytes that a declared encoding does not know


def codec(charset: str) -> str:
    """Return the Python codec of a declared encoding; "" for an unknown or quadratic-time one.

    Labels of the Encoding Standard have its meaning: "latin1" is Windows-1252.

    Raises:
        ImportError: webencodings is needed and not installed.
    """
    if not charset.strip():
        return ""
    try:
        import webencodings
    except ImportError:
        raise ImportError('webencodings missing: pip install "drlib[docs]"') from None
    known = webencodings.lookup(charset)
    label = STANDARD_CODECS.get(known.name, known.codec_info.name) if known else charset
    with suppress(LookupError, ValueError):
        found = codecs.lookup(label)  # normalises spellings such as "-idna"
        b" ".decode(found.name)  # LookupError for "hex" and others that give no text
        return "" if found.name in ("idna", "punycode") else found.name
    return ""


def decode(data: bytes, charset: str = "") -> str:
    """Decode `data` by a byte order mark, UTF-8, the declared encoding, or a guess.

    Raises:
        ValueError: binary data or an ambiguous encoding; the message contains the remedy.
        ImportError: charset-normalizer or webencodings is needed and not installed.
    """
    for mark, name in MARKS:
        if data.startswith(mark):
            text = data.decode(name, "replace")
            if "\0" not in text:
                return text
    declared = codec(charset)
    is_stateful = declared.startswith(("iso2022", "hz", "utf-7")) and data.isascii()
    if not is_stateful:
        with suppress(UnicodeError):
            text = data.decode("utf-8")
            if "\0" not in text:
                return text
    if declared:
        text = data.decode(declared, "replace")
        bad = text.count("\ufffd")
        if "\0" not in text and bad <= BAD_SHARE * len(data):
            return text
    for found in (_damaged_utf8(data), _few_western_letters(data)):
        if found is not None:
            return found
    return _guessed(data)


def _damaged_utf8(data: bytes) -> str | None:
    """Decode as UTF-8 if most of the bytes beyond ASCII are valid."""
    text = data.decode("utf-8", "replace")
    bad = text.count("\ufffd")
    good = sum(letter > "\x7f" for letter in text) - bad
    return text if "\0" not in text and good >= GOOD_PER_BAD * bad else None


def _few_western_letters(data: bytes) -> str | None:
    """Decode as Windows-1252 if few bytes are beyond ASCII and all of them are letters."""
    beyond = sum(byte > 127 for byte in data)
    if b"\0" in data or beyond > FEW or beyond > max(1, SMALL_SHARE * len(data)):
        return None
    with suppress(UnicodeError):
        text = data.decode("cp1252")
        return None if ODD_IN_WESTERN.search(text) else text
    return None


def _guessed(data: bytes) -> str:
    """Return charset-normalizer's best guess if it is clearly better than the others."""
    try:
        import charset_normalizer
    except ImportError:
        raise ImportError('charset-normalizer missing: pip install "drlib[docs]"') from None
    names = [*WIDE] if b"\0" in data else [*GUESSED]
    matches = [*charset_normalizer.from_bytes(data, cp_isolation=names)]
    read = [(match, str(match)) for match in matches if "\0" not in str(match)]
    if not read:
        raise ValueError("binary bytes, not text in an encoding that is known here")
    best, text = read[0]
    for other, its_text in read[1:]:
        as_clear = other.chaos <= best.chaos + WITHIN
        as_fluent = other.coherence >= best.coherence - WITHIN
        if its_text != text and as_clear and as_fluent:
            both = f"{best.encoding} or {other.encoding}"
            raise ValueError(f"its encoding may be {both}: save it as UTF-8")
    return text
