"""A small sample of our own, two prompts a task, for ``--quick`` and for whoever has no prompt file at hand."""

PASSAGE = (
    "The lighthouse at Cape Merrow was built in 1871 by the harbour board after three grain ships were lost in one "
    "winter. It stands 34 metres tall and its lamp could be seen for 22 miles. The first keeper, Ada Thorne, kept the "
    "light for 41 years and wrote down the weather every evening; her journals are still used by climate researchers. "
    "In 1963 the lamp was made automatic, and in 1998 the tower became a small museum. The museum is run by volunteers "
    "and opens from May to September. Last year it had 14,200 visitors, more than ever before, after a film was shot "
    "there. The money from the tickets paid for a new roof."
)
LETTER = (
    "Dear Mr Okafor, thank you for your order of 12 oak chairs and 3 tables. Because of the storm the oak has come two "
    "weeks late to our workshop in Gdansk. We can deliver the chairs on 9 May and the tables on 23 May, or everything "
    "together on 23 May. If you would rather cancel, we return your deposit of 480 euros within five days. Please tell "
    "us by Friday which you prefer. With kind regards, Marta Zielinska"
)

SAMPLE: tuple[dict[str, str], ...] = (
    {"category": "writing", "prompt": "Write a short letter to a neighbour asking to borrow a ladder for the weekend."},
    {
        "category": "coding",
        "prompt": "Write a Python function that returns the n-th Fibonacci number, with a docstring.",
    },
    {"category": "translation", "prompt": "Translate German to English: Der Zug nach Bremen faehrt heute von Gleis 9."},
    {
        "category": "translation",
        "prompt": "Translate French to English: Il pleut depuis trois jours et la route est fermee.",
    },
    {"category": "summarization", "prompt": f"Summarize: {PASSAGE}\nTL;DR: "},
    {"category": "summarization", "prompt": f"Summarize: {LETTER}\nTL;DR: "},
    {"category": "qa", "prompt": "What is the largest planet of the solar system, and how many moons does it have?"},
    {"category": "qa", "prompt": "Who wrote the novel Pride and Prejudice, and in which century?"},
    {
        "category": "math_reasoning",
        "prompt": "A baker makes 24 rolls an hour and sells 18 of them. How many are left after 5 hours?",
    },
    {
        "category": "math_reasoning",
        "prompt": "Tom has 3 boxes with 12 pencils each and gives away 7 pencils. How many pencils does he have left?",
    },
    {
        "category": "rag",
        "prompt": f"Answer from the passage. Passage: {PASSAGE}\nQuestion: Who was the first keeper and for how long?",
    },
    {
        "category": "rag",
        "prompt": f"Answer from the passage. Passage: {LETTER}\nQuestion: When can the tables be delivered?",
    },
)
