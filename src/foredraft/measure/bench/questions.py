"""Prompts to certify and benchmark with: short, of many kinds, some to be answered by copying, some unguessable."""

from __future__ import annotations

from typing import Final

QUESTIONS: Final = (
    "Why is the sky blue?",
    "Write a Python function that returns the n-th Fibonacci number, with a docstring.",
    "Translate into French: The train to Lyon leaves at nine in the morning, and the ticket costs forty euros.",
    "Repeat this list three times: red, green, blue, yellow, red, green, blue, yellow.",
    "A farmer has 17 sheep and buys 5 more, then sells 9. How many are left? Explain step by step.",
    "Summarise in one sentence: The committee met on Tuesday. It agreed to repair the old bridge before winter, to "
    "close it to lorries until then, and to ask the county for half of the money.",
    "Write the opening of a story about a lighthouse keeper who finds a letter.",
    "List ten countries with their capitals, one a line.",
    'Return this as JSON with the keys name, age and city: "Ana is 31 years old and lives in Porto."',
    "What is the difference between a virus and a bacterium?",
    "Give me a limerick about a cat that cannot count.",
    "Correct the spelling: Thier are many freinds who beleive that definately is spelt diffrently.",
)
KINDS: Final = (
    "explain", "code", "translate", "repeat", "math", "summarise",
    "story", "list", "json", "explain", "poem", "correct",
)  # fmt: skip
