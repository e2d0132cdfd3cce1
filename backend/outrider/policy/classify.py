"""Guesses the task of a prompt from a few words. Knows no model: a wrong guess costs speed, never correctness."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

#: Instructions stand at the beginning or the end of a prompt; the middle is material. This bounds the time, too.
_HEAD_CHARS = 500
_TAIL_CHARS = 300
#: Fences are looked for in this much of each end, so that a megabyte costs no more than a page.
_FENCE_CHARS = 8192
#: A prompt this long whose last line is a short question carries its own context.
_RAG_MIN_CHARS = 1200
_QUESTION_MAX_CHARS = 200

_WORD = re.compile(r"[a-z][a-z+#]*")
_NUMBER = re.compile(r"\d[\d,.]*|\b(?:two|three|four|five|six|seven|eight|nine|ten|twice|half|dozen|double|triple)\b")

_CODE_LINE = re.compile(
    r"^[ \t]*(?:def \w+\(|async def |class \w+[:({]|class \w+ \{|import [\w.]+(?: as \w+)?;?[ \t]*$"
    r"|from [\w.]+ import |#include\b|#!/|fn \w+|func \w+\(|function \w*\(|(?:const|let|var) \w+ ?="
    r"|(?:public|private|static) \w+ |select .+ from |@\w+\()",
    re.MULTILINE,
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CHANGE_WORDS = _words(
    "fix change edit refactor rename modify rewrite add remove update convert improve optimize optimise correct"
    " replace debug simplify port make clean adapt"
)

_QUOTE = re.compile(
    r"\bverbatim\b|\bword[- ]for[- ]word\b"
    r"|(?:^|[.!?:;,\n]\s*|\b(?:please|you|and|then|first|just|only)\s+)(?:repeat|quote|copy|echo|reproduce|retype)\b"
    r"[^.?!\n]{0,40}\b(?:text|paragraph|passage|sentences?|message|document|letter|article|poem|code|lines?"
    r"|back|exactly|above|below|following)\b"
)
_EDIT = re.compile(
    r"\b(?:proofread|edit|correct|fix|polish)\b[^.\n]{0,40}\b(?:following|this|these|below|my|the|any|all)\b[^.\n]{0,40}"
    r"\b(?:text|paragraph|sentences?|passage|email|letter|essay|draft|grammar|grammatical|spelling|typos?)\b"
)
_CODE_REQUEST = re.compile(
    r"\b(?:write|implement|develop|create|build|generate|give|show|design|complete|finish)\b[^.\n]{0,80}?"
    r"\b(?:functions?|programs?|scripts?|code|methods?|algorithms?|regex|regular expression|sql|query|queries|website"
    r"|web page|html|css|api|endpoint|unit tests?|dockerfile|makefile|parser|compiler|app)\b"
)
_LANGUAGE = re.compile(
    r"(?<!monty )\bpython\b|\b(?:javascript|typescript|golang|kotlin|numpy|pandas|pytest|pytorch|postgresql)\b"
    r"|\bc(?:\+\+|#)|\bin (?:java|rust|go|c|ruby|swift|php|perl|scala|sql|bash|haskell|lua)\b"
    r"|\b(?:source code|stack trace|traceback)\b"
)
_HUMAN_LANGUAGE = (
    "(?:english|german|french|spanish|italian|portuguese|dutch|swedish|danish|norwegian|finnish|polish|czech|greek|latin"
    "|russian|ukrainian|turkish|arabic|hebrew|hindi|chinese|mandarin|japanese|korean|vietnamese|thai|indonesian)"
)
_TRANSLATE = re.compile(
    rf"\btranslat(?:e|ion)\b[^\n]{{0,80}}?\b(?:to|into|from|in)\s+{_HUMAN_LANGUAGE}\b|^\s*(?:please )?translate\b"
    r"|\btranslate (?:the|this|these|my) (?:following|text|sentences?|paragraph|passage|letter|message)\b"
)
_SUMMARISE = re.compile(
    r"(?:^|[.!?:,\n]\s*|\b(?:please|you|then|and|to)\s+)summari[sz]e\b|\btl;?dr\b"
    r"|\b(?:write|give|provide|make|create|produce|need|want|short|brief|concise)\b[^.\n]{0,40}\bsummary\b"
)
_EXTRACT = re.compile(
    r"\b(?:output|return|format|answer|respond|reply|result|results|generate|produce|present)\b[^.\n]{0,60}"
    r"\b(?:json|csv|xml|yaml)\b|\bnamed entit|\bextract\s+(?:the|all|any|each|every|these|following|and|from|key)\b"
    r"|\b(?:identify|list|find|count|pull out)\b[^.\n]{0,80}\b(?:in|from) (?:the|this|these|each) (?:\w+ ){0,3}"
    r"(?:texts?|sentences?|articles?|paragraphs?|passages?|documents?|data|emails?|records?|tables?|invoices?)\b"
    r"|\bgiven (?:the|these) following (?:data|records?|table)\b|\bread the \w+ below and count\b"
    r"|\b(?:evaluate|rate|classify|label|categori[sz]e|analy[sz]e)\b[^.\n]{0,30}\bfollowing\b[^.\n]{0,20}"
    r"\b(?:reviews?|tweets?|comments?|texts?|questions?|messages?|items?)\b"
    r"|\bassign (?:them|each)\b[^.\n]{0,40}\bcategor"
)
_RAG = re.compile(
    r"(?:^|\n)\s*(?:context|passages?|documents?|sources?|background|search results)\s*(?:\[?\d+\]?)?\s*:"
    r"|\b(?:based on|according to|using|given|from|read)\b[^.\n]{0,30}\b(?:this|the|these|below|following)\b"
    r"[^.\n]{0,30}\b(?:context|passages?|documents?|articles?|paragraphs?|excerpts?|sources)\b"
)
_INTERROGATIVE = re.compile(
    r"\s*(?:who|what|when|where|which|why|how|is|are|was|were|do|does|did|can|could|should|describe|explain|name)\b"
)
_WORD_PROBLEM = re.compile(
    r"\bhow (?:many|much|long|far|old|fast|tall|high|big|heavy)\b|\b(?:calculate|compute)\b"
    r"|\bpercent(?:age)?\b|\bprobability\b"
    r"|\bwhat(?:'s| is| was| are| will| would)\b[^?]{0,80}\b(?:total|average|number|cost|price|area|sum|remainder|age"
    r"|speed|distance|profit|weight|height|length|temperature|difference|ratio|time|score|value|amount|weights?)\b"
)
_SYMBOLIC = re.compile(
    r"\b(?:solve|simplify|factor|integrate|differentiate|prove|evaluate|express|find)\b[^.\n]{0,60}"
    r"(?:[a-z0-9)]\s*[=^+<>]\s*[a-z0-9(]|\b[fg]\(|\bequations?\b|\bsquare root\b|\btheorem\b)"
    r"|\b(?:derivative|integral|matrix|eigenvalue|polynomial|inequality|hypotenuse)\b"
)
_CREATIVE = re.compile(
    r"\b(?:write|compose|craft|tell|create|draft|invent|describe|continue|generate|give|make)\b[^.\n]{0,80}?"
    r"\b(?:story|stories|poems?|novel|lyrics|song|haiku|limerick|sonnet|ballad|blog|fiction|fictional|dialogue"
    r"|screenplay|monologue|tale|fable|scene|character|imagery|metaphors?|joke|slogan|headline)\b"
    r"|\b(?:pretend|picture) (?:to be|you are|you're|yourself)\b|\b(?:embody|persona of|speak like)\b"
    r"|\bembrace the role\b"
    r"|\bonce upon a time\s*[,.]"
)


@dataclass(slots=True)
class _View:
    """What the rules look at: `prose` is the lower-case head and tail without fenced code, `words` its word set."""

    prose: str
    words: frozenset[str]
    has_code: bool
    num_chars: int
    last_line: str

    @classmethod
    def of(cls, text: str) -> _View:
        outside = text.split("```")
        prose = _ends("\n".join(outside[::2]), _HEAD_CHARS, _TAIL_CHARS).lower()
        has_code = len(outside) > 1 or _CODE_LINE.search(_ends(text, _HEAD_CHARS, _TAIL_CHARS).lower()) is not None
        last_line = text[-2 * _QUESTION_MAX_CHARS :].rstrip().rpartition("\n")[2].lower()
        return cls(prose, frozenset(_WORD.findall(prose)), has_code, len(text), last_line)

    def says(self, words: frozenset[str], pattern: re.Pattern[str]) -> bool:
        """True when the pattern occurs; the word set is asked first since it is much cheaper than the pattern."""
        return not self.words.isdisjoint(words) and pattern.search(self.prose) is not None


def _ends(text: str, head: int, tail: int) -> str:
    """The first `head` and the last `tail` characters, or all of a text that is no longer."""
    return text if len(text) <= head + tail else f"{text[:head]}\n{text[-tail:]}"


def _gate(words: str, pattern: re.Pattern[str]) -> Callable[[_View], bool]:
    gate = _words(words)
    return lambda view: view.says(gate, pattern)


def _asks_about_material(view: _View) -> bool:
    is_question = view.last_line.endswith("?") or _INTERROGATIVE.match(view.last_line) is not None
    return (
        view.num_chars >= _RAG_MIN_CHARS and 0 < len(view.last_line) <= _QUESTION_MAX_CHARS and is_question
    ) or _names_material(view)


def _asks_for_number(view: _View) -> bool:
    if not _has_quantity_question(view):
        return False
    numbers = _NUMBER.findall(view.prose)
    return len(numbers) >= 2 and any(number[0].isdigit() for number in numbers)


_names_material = _gate("context passage passages document documents article paragraph excerpt sources", _RAG)
_has_quantity_question = _gate(
    "how calculate compute percent percentage probability what what's total average", _WORD_PROBLEM
)

#: Scanned in order, first hit wins. Explicit commands come before what the text merely looks like: a fenced block to
#: summarise is a summary. `edit` precedes `code` because both see code; `rag` precedes the weak signs, since long
#: passages contain any word; numbers come late, because dates and prices occur in everything.
_RULES: tuple[tuple[str, Callable[[_View], bool]], ...] = (
    ("quote", _gate("verbatim word repeat quote copy echo reproduce retype", _QUOTE)),
    ("edit", lambda view: view.has_code and not view.words.isdisjoint(_CHANGE_WORDS)),
    ("edit", _gate("proofread edit correct fix polish", _EDIT)),
    (
        "code",
        _gate(
            "function functions program programs script scripts code method methods algorithm algorithms regex"
            " regular sql query queries website web html css api endpoint unit dockerfile makefile parser compiler"
            " app",
            _CODE_REQUEST,
        ),
    ),
    ("translate", _gate("translate translation", _TRANSLATE)),
    ("summarise", _gate("summarize summarise summary tl tldr", _SUMMARISE)),
    (
        "extract",
        _gate(
            "json csv xml yaml named extract identify list find count pull given evaluate rate classify label"
            " categorize categorise analyze analyse assign",
            _EXTRACT,
        ),
    ),
    ("code", lambda view: view.has_code),
    ("rag", _asks_about_material),
    (
        "code",
        _gate(
            "python javascript typescript golang kotlin numpy pandas pytest pytorch postgresql c++ c# java rust go c"
            " ruby swift php perl scala sql bash haskell lua source stack traceback",
            _LANGUAGE,
        ),
    ),
    ("maths", _asks_for_number),
    (
        "maths",
        _gate(
            "solve simplify factor integrate differentiate prove evaluate express find derivative integral matrix"
            " eigenvalue polynomial inequality hypotenuse",
            _SYMBOLIC,
        ),
    ),
    (
        "creative",
        _gate(
            "write compose craft tell create draft invent describe continue generate give make pretend picture embody"
            " persona speak embrace once",
            _CREATIVE,
        ),
    ),
)


def classify(text: str, system: str = "") -> str:
    """The task of a prompt, one of `core.TASKS`; `chat` when nothing speaks for another.

    `text` is what the user asks; `system` is weaker evidence, used only when `text` shows none, and only when it
    points to a single task: a prompt that lists everything an assistant can do says nothing.
    """
    return _classified(_ends(text, _FENCE_CHARS, _FENCE_CHARS), _ends(system, _FENCE_CHARS, _FENCE_CHARS))


@lru_cache(maxsize=128)
def _classified(text: str, system: str) -> str:
    """Of the ends, the only parts that are looked at. An agent asks with the same ones after every call of a tool."""
    view = _View.of(text)
    for task, holds in _RULES:
        if holds(view):
            return task
    if system:
        system_view = _View.of(system)
        tasks = {task for task, holds in _RULES if holds(system_view)}
        if len(tasks) == 1:
            return tasks.pop()
    return "chat"
