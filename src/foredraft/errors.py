"""Every error a user can meet, in one tree.

ForedraftError
├── OptionError                 an option, or its value, that cannot be honoured
├── PromptError                 a prompt that cannot be answered: empty, or not text
│   └── PromptTooLong           one that the context leaves no room to answer
├── ModelError                  anything about a model
│   ├── ModelNotFound           no such folder, file, alias or hub id
│   ├── UnsupportedModel        recognised, but it cannot be run (and why)
│   ├── WeightsError            pickled, truncated or lying weights
│   │   └── DamagedHeads        heads that were trained here, where others can stand in
│   ├── TokenizerError          no tokenizer, or one of a kind that is not understood
│   └── NumericalError          the model answered with NaN or infinite logits
├── DrafterError                an unknown drafter, or one that broke the protocol
│   ├── NoHeads                 nobody has trained heads for this model yet
│   └── VocabularyMismatch      draft and target do not speak the same tokens
├── GenerationError             an answer that cannot go on as its options want it
│   ├── NoTokenLeft             the options rule every token out
│   └── GrammarLimit            a grammar that has become too complex to follow
├── ServiceError                a service that takes nothing more now: try again later
│   ├── Overloaded              its queue is full
│   └── Draining                it is about to end
├── FetchError                  a download that failed or is not what was asked for
└── StorageError                the disk refused (full, read-only)

Each message is one sentence that says what is wrong and, where there is one, the way out.
"""

__all__ = [
    "DamagedHeads",
    "DrafterError",
    "Draining",
    "FetchError",
    "ForedraftError",
    "GenerationError",
    "GrammarLimit",
    "ModelError",
    "ModelNotFound",
    "NoHeads",
    "NoTokenLeft",
    "NumericalError",
    "OptionError",
    "Overloaded",
    "PromptError",
    "PromptTooLong",
    "ServiceError",
    "StorageError",
    "TokenizerError",
    "UnsupportedModel",
    "VocabularyMismatch",
    "WeightsError",
]


class ForedraftError(Exception):
    """Anything Foredraft refuses or cannot do."""


class OptionError(ForedraftError, ValueError):
    """An option, or its value, that cannot be honoured."""


class PromptError(ForedraftError, ValueError):
    """A prompt that cannot be answered."""


class PromptTooLong(PromptError):  # noqa: N818 - the name says it; "PromptTooLongError" says it twice
    """A prompt that the context leaves no room to answer."""


class ModelError(ForedraftError):
    """Anything about a model."""


class ModelNotFound(ModelError):  # noqa: N818 - the name says it; "ModelNotFoundError" says it twice
    """No such folder, file, alias or hub id."""


class UnsupportedModel(ModelError):  # noqa: N818 - as above
    """A model that is recognised but cannot be run.

    ``elsewhere`` says that only the decoder table lacks it and transformers' own module may run it; without it the
    model is refused outright.
    """

    def __init__(self, message: str, *, elsewhere: bool = False) -> None:
        super().__init__(message)
        self.elsewhere = elsewhere


class WeightsError(ModelError):
    """Weights that are pickled, truncated or lie about themselves."""


class DamagedHeads(WeightsError):  # noqa: N818 - as above
    """Heads that were trained here and cannot be used, where there are others for the model.

    ``why`` says what is wrong with them; ``others`` names the others, which lie at ``spare``.
    """

    def __init__(self, why: str, others: str, spare: str) -> None:
        super().__init__(f"{why}; delete it, and {others} are used")
        self.why = why
        self.others = others
        self.spare = spare


class TokenizerError(ModelError):
    """No tokenizer, or one of a kind that is not understood."""


class NumericalError(ModelError):
    """The model answered with NaN or infinite logits."""


class DrafterError(ForedraftError):
    """An unknown drafter, or one that broke the protocol."""


class NoHeads(DrafterError):  # noqa: N818 - as above
    """There are no heads for this model."""


class VocabularyMismatch(DrafterError):  # noqa: N818 - as above
    """Draft and target do not speak the same tokens."""


class GenerationError(ForedraftError):
    """An answer that cannot go on as its options want it; other answers are not touched."""


class NoTokenLeft(GenerationError):  # noqa: N818 - as above
    """The options rule every token out."""


class GrammarLimit(GenerationError):  # noqa: N818 - as above
    """A grammar that has become too complex to follow."""


class ServiceError(ForedraftError):
    """A service that takes nothing more now."""


class Overloaded(ServiceError):  # noqa: N818 - as above
    """A service whose queue is full. ``retry_after`` is in how many seconds there may be room, at least 1."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Draining(ServiceError):  # noqa: N818 - as above
    """A service that is about to end: it finishes what it has, and takes nothing more."""


class FetchError(ForedraftError):
    """A download that failed, or that is not what was asked for."""


class StorageError(ForedraftError):
    """The disk refused."""
