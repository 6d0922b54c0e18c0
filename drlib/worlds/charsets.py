"""Decode plain text of unknown encoding, or refuse if the encoding is ambiguous.

A declared encoding, a byte order mark and UTF-8 are tried first. Otherwise charset-normalizer
guesses among the encodings of old files (Windows, Shift-JIS, EUC, GB, Big5, KOI8, UTF-16 without a
mark). A guess is accepted only if the runner-up gives the same text or reads worse: a wrong guess
would fill pages with nonsense, so an ambiguous text is refused and the reason names both encodings.
The library needs more than a few accented letters; such a text is read as Windows-1252, a superset
of Latin-1, if the bytes are letters or punctuation there.

Not implemented: encodings of DOS and old Macintoshes, and a user-supplied language.
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


def codec(charset: str) -> str:
    """Return the Python codec of a declared encoding; "" for an unknown or quadratic-time one."""
    with suppress(LookupError, ValueError):
        name = codecs.lookup(charset).name  # normalises spellings such as "-idna"
        return "" if name in ("idna", "punycode") else name
    return ""


def decode(data: bytes, charset: str = "") -> str:
    """Decode `data` by the declared encoding, a byte order mark, UTF-8, or a guess.

    Raises:
        ValueError: binary data or an ambiguous encoding; the message contains the remedy.
        ImportError: charset-normalizer is needed and not installed.
    """
    marked = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    for name in (codec(charset), marked):
        with suppress(UnicodeError, LookupError):
            text = data.decode(name) if name else "\0"
            if "\0" not in text:
                return text
    western = _few_western_letters(data)
    return western if western is not None else _guessed(data)


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
