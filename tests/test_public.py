"""The public names are sealed: a new one is a decision, not an accident."""

import subprocess
import sys

import foredraft
from foredraft import errors


def test_public_names() -> None:
    assert foredraft.__all__ == [
        "Conversation",
        "Draft",
        "ForedraftError",
        "LanguageModel",
        "Piece",
        "Result",
        "Stream",
        "__version__",
        "load",
    ]
    for name in foredraft.__all__:
        assert getattr(foredraft, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(foredraft, "generate_text")


def test_importing_costs_nothing() -> None:
    code = "import foredraft, sys; print({'torch', 'numpy', 'tokenizers'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"


def test_every_error_hangs_on_the_tree_drawn_in_its_docstring() -> None:
    drawn = errors.__doc__ or ""
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), foredraft.ForedraftError)
        assert name in drawn
