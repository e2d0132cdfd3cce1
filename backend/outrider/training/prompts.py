"""An endless, reproducible supply of prompts of many kinds, from templates and lists; held-out ones are set apart."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

#: Task of questions that the target asks itself.
OWN = "own"
#: One of so many prompts is kept from training.
HELD_OUT_EVERY = 20

_TOPICS = (
    "the water cycle", "black holes", "the Roman Empire", "photosynthesis", "stock markets", "chess openings",
    "electric cars", "the French Revolution", "climate change", "vaccines", "the human heart", "jazz music",
    "volcanoes", "neural networks", "tea", "the Silk Road", "renewable energy", "bees", "sleep", "democracy",
    "cryptography", "coral reefs", "the Moon landing", "inflation", "yoga", "Shakespeare", "public transport",
    "healthy breakfasts", "time management", "moving to a new city", "learning a language", "job interviews",
)  # fmt: skip
_AUDIENCES = ("a child", "a student", "a beginner", "an expert", "my grandmother", "a busy manager")
_LANGUAGES = ("Python", "JavaScript", "C", "Java", "Go", "Rust", "SQL", "Bash")
_CODE = (
    "reverses a string", "finds the largest number in a list", "checks whether a word is a palindrome",
    "counts words in a text", "merges two sorted lists", "computes the factorial of a number",
    "removes duplicates from a list", "reads a CSV file and prints its rows", "validates an email address",
    "implements a queue", "implements binary search", "converts Celsius to Fahrenheit", "sorts words by length",
    "finds prime numbers up to n", "parses a date", "retries a function three times", "computes a running mean",
    "flattens a nested list", "rotates a matrix", "counts how often each letter occurs",
)  # fmt: skip
_NAMES = ("Anna", "Ben", "Clara", "David", "Elena", "Farid", "Grace", "Hugo", "Ines", "Jonas", "Kira", "Liam")
_THINGS = ("apples", "books", "tickets", "bottles", "pencils", "stamps", "chairs", "cookies", "tiles", "coins")
_PLACES = ("Berlin", "Lagos", "Lima", "Oslo", "Kyoto", "Toronto", "Cairo", "Lisbon", "Mumbai", "Sydney")
_JOBS = ("teacher", "nurse", "engineer", "baker", "pilot", "gardener", "lawyer", "painter", "farmer", "librarian")
_TONGUES = ("French", "German", "Spanish", "Italian", "Portuguese")
_MOODS = ("funny", "sad", "mysterious", "hopeful", "dramatic", "gentle")
_FORMS = ("short story", "poem", "letter", "dialogue", "song", "fairy tale")
_HEROES = (
    "a lighthouse keeper",
    "a lost robot",
    "two old friends",
    "a talking cat",
    "a young inventor",
    "the last tree",
)
_SENTENCES = (
    "{name} moved to {place} last spring and works there as a {job}.",
    "The library in {place} lends {number} books a day.",
    "On weekends {name} sells {things} at the market for {number} dollars.",
    "A storm closed the harbour of {place} for {number} hours.",
    "{name}, a {job} from {place}, won a prize for a study of {topic}.",
    "The museum shows an exhibition about {topic} until the end of the month.",
    "Trains between {place} and {other} leave every {number} minutes.",
    "The council of {place} voted to spend {number} million on {topic}.",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TrainingPrompt:
    """A prompt, and at which temperature it is answered."""

    index: int
    task: str
    text: str
    temperature: float


def is_held_out(text: str) -> bool:
    """Whether a prompt is kept from training: by its words alone, so that no seed or order moves it across."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()) % HELD_OUT_EVERY == 0


def prompts(seed: int = 0) -> Iterator[TrainingPrompt]:
    """Task after task in turn, no text twice; answers are greedy and warm by turns, too.

    Every other prompt has no text and is of the task `OWN`: the target asks itself, as it learnt from questions and
    answers alike (arXiv 2406.08464), which is broader than any list.
    """
    makers = tuple(_MAKERS.items())
    seen: set[str] = set()
    index = 0
    while True:
        task, make = makers[index // 2 % len(makers)] if index % 2 else (OWN, lambda rng: "")
        rng = random.Random(f"{seed} {index}")
        temperature = 0.0 if rng.random() < 0.5 else 0.8
        text = make(rng)
        if not text or text not in seen:
            seen.add(text)
            yield TrainingPrompt(index, task, text, temperature)
        index += 1


def _fill(template: str, rng: random.Random) -> str:
    (place, other), (topic, other_topic) = rng.sample(_PLACES, 2), rng.sample(_TOPICS, 2)
    return template.format(
        name=rng.choice(_NAMES), place=place, other=other, job=rng.choice(_JOBS),
        things=rng.choice(_THINGS), topic=topic, other_topic=other_topic, number=rng.randint(2, 90),
        audience=rng.choice(_AUDIENCES), language=rng.choice(_LANGUAGES), code=rng.choice(_CODE),
        tongue=rng.choice(_TONGUES), mood=rng.choice(_MOODS), form=rng.choice(_FORMS), hero=rng.choice(_HEROES),
    )  # fmt: skip


def _passage(rng: random.Random, least: int, most: int) -> str:
    return " ".join(_fill(sentence, rng) for sentence in rng.sample(_SENTENCES, rng.randint(least, most)))


def _one_of(*templates: str) -> Callable[[random.Random], str]:
    return lambda rng: _fill(rng.choice(templates), rng)


def _maths(rng: random.Random) -> str:
    a, b, c = (rng.randint(2, 60) for _ in range(3))
    name, things = rng.choice(_NAMES), rng.choice(_THINGS)
    return rng.choice((
        f"{name} has {a} {things}, buys {b} more and gives away {min(c, a + b)}. How many are left? Explain.",
        f"What is {a} * {b} + {c}? Show your work.",
        f"A box holds {a} {things}. How many {things} are in {b} boxes, and how many are left after using {c}?",
        f"Solve for x: {a}x + {b} = {a * c + b}. Explain how.",
        f"{name} drives {a} km at {b} km/h. How long does it take?",
    ))  # fmt: skip


def _tool_call(rng: random.Random) -> str:
    tools = rng.choice((
        '{"name": "get_weather", "parameters": {"city": "string", "unit": "celsius or fahrenheit"}}',
        '{"name": "send_email", "parameters": {"to": "string", "subject": "string", "body": "string"}}',
        '{"name": "search_flights", "parameters": {"from": "string", "to": "string", "date": "string"}}',
    ))  # fmt: skip
    wish = _fill(
        rng.choice(("the weather in {place}", "write to {name} about {topic}", "fly from {place} to {other}")), rng
    )
    return f"You can call this tool: {tools}\nAnswer only with a JSON object of the call. The request: {wish}"


_MAKERS: dict[str, Callable[[random.Random], str]] = {
    "chat": _one_of(
        "Explain {topic} to {audience}.", "What should I know about {topic}?", "Give me {number} tips on {topic}.",
        "What are the advantages and disadvantages of {topic}?", "Why does {topic} matter?",
        "I am a {job} in {place}. How can I get better at my work?", "Compare {topic} with {other_topic}.",
    ),
    "code": _one_of(
        "Write a {language} function that {code}.", "Write a {language} program that {code}, with tests.",
        "Explain step by step how a {language} function that {code} works, and show the code.",
        "Write a Python class for a {job} who sells {things}, with methods and docstrings.",
    ),
    "maths": _maths,
    "translate": lambda rng: f"Translate into {rng.choice(_TONGUES)}:\n\n{_passage(rng, 1, 3)}",
    "summarise": lambda rng: f"Summarise in one or two sentences:\n\n{_passage(rng, 4, 7)}",
    "extract": lambda rng: (
        f"List all names, places and numbers in this text as JSON:\n\n{_passage(rng, 2, 5)}"
    ),
    "tools": _tool_call,
    "creative": _one_of(
        "Write a {mood} {form} about {hero}.", "Write a {mood} {form} about {topic}.",
        "Invent {number} names for a shop that sells {things}.", "Describe {place} in a {mood} way.",
    ),
}  # fmt: skip
