"""From a chapter to sentences that are short enough to be spoken in one go."""

import re
from collections.abc import Iterator

LONGEST = 240
"""Weight of the longest piece: about 16 seconds of speech at 15 letters a second. The frames of a sentence, and with
them its memory, are bounded; what is longer is split further."""
IDEOGRAPH_WEIGHT = 3
"""of Chinese, Japanese and Korean characters, which take about three times a letter's time to say"""

_PARAGRAPH = re.compile(r"\n\s*\n")
_END = re.compile(r"[.!?…]+[\"'”’»)\]]*\s+|[。！？]+[”’」』）]*\s*")
_CLAUSE = re.compile(r"[,;:—–][\"'”’»)\]]*\s+|\s[—–-]\s|[，、；：]")
_ABBREVIATIONS = frozenset({
    "mr", "mrs", "ms", "dr", "prof", "st", "sr", "jr", "vs", "etc", "e.g", "i.e", "no", "vol", "ch", "fig", "cf",
    "capt", "col", "gen", "lt", "sgt", "rev", "hon", "mt", "approx", "bzw", "z.b", "d.h", "usw", "hr", "fr", "nr",
    "sra", "dott", "mme", "mlle",
})  # fmt: skip
"""words whose full stop ends no sentence"""


def split_sentences(text: str, *, longest: int = LONGEST) -> tuple[str, ...]:
    """Return the sentences of `text` in order, none of more weight than `longest`; what cannot be said is left out.

    A sentence ends at . ! ? … or their ideographic forms, unless the full stop belongs to an abbreviation or an
    initial, or the next word is in lower case; and at an empty line. Longer ones are split at clauses, else between
    words.
    """
    found: list[str] = []
    for paragraph in _PARAGRAPH.split(text):
        for sentence in _sentences(" ".join(paragraph.split())):
            found += [piece for piece in _pieces(sentence, longest) if any(map(str.isalnum, piece))]
    return tuple(found)


def weight(text: str) -> int:
    """Return how long `text` takes to say, in Latin letters."""
    return sum(IDEOGRAPH_WEIGHT if _is_ideograph(letter) else 1 for letter in text)


def _sentences(paragraph: str) -> Iterator[str]:
    start = 0
    for match in _END.finditer(paragraph):
        following = paragraph[match.end() : match.end() + 1]
        abbreviated = match.group()[0] == "." and _is_abbreviation(paragraph[start : match.start()])
        if following.islower() or abbreviated:
            continue
        yield paragraph[start : match.end()].strip()
        start = match.end()
    if paragraph[start:].strip():
        yield paragraph[start:].strip()


def _is_abbreviation(before: str) -> bool:
    word = before.rpartition(" ")[2].lstrip("\"'“‘«([").lower()
    return word in _ABBREVIATIONS or (len(word) == 1 and word.isalpha())


def _pieces(sentence: str, longest: int) -> Iterator[str]:
    """Cut after the last clause that fits, else after the last word that does, else anywhere."""
    while weight(sentence) > longest:
        most = _prefix(sentence, longest)
        cuts = [match.end() for match in _CLAUSE.finditer(sentence[:most]) if match.end() > most // 3]
        cut = cuts[-1] if cuts else sentence.rfind(" ", most // 3, most) + 1 or most
        yield sentence[:cut].strip()
        sentence = sentence[cut:].strip()
    if sentence:
        yield sentence


def _prefix(text: str, longest: int) -> int:
    """Return how many characters of `text` weigh `longest` at most; at least one."""
    total = 0
    for index, letter in enumerate(text):
        total += weight(letter)
        if total > longest:
            return max(index, 1)
    return len(text)


def _is_ideograph(letter: str) -> bool:
    return "⺀" <= letter <= "鿿" or "가" <= letter <= "힣" or "豈" <= letter <= "﫿"
