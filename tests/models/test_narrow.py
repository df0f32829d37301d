"""A model that says some of its tokens: the same logits for these, none for the others, in either pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foredraft.errors import ModelError, WeightsError
from foredraft.models.model import Rows
from foredraft.models.views.narrow import FILE, NarrowModel, describe_vocabulary, narrow_vocabulary
from foredraft.runtime.loaded_model import Machine, open_model
from tests.models.checkpoints import make_checkpoint
from tests.models.decoders import TEXT, TREE, open_decoder
from tests.native.models import open_native
from tests.tiny import make_chat_model

IDS = (0, 3, 17, 18, 64, 96)


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2", "granite"])
@pytest.mark.parametrize(("native", "dtype"), [(True, "f32"), (True, "bf16"), (False, "f32"), (False, "bf16")])
def test_the_logits_are_the_models(tmp_path: Path, family: str, native: bool, dtype: str) -> None:
    folder = make_checkpoint(family, tmp_path)
    open_: Any = open_native if native else open_decoder
    whole, narrow = open_(folder, dtype=dtype), NarrowModel(open_(folder, dtype=dtype), IDS)
    assert narrow.vocabulary == whole.vocabulary == 97
    assert narrow.rewindable
    rest = np.setdiff1d(np.arange(97), IDS)
    prompt, tree, one = (
        Rows(0, 0, TEXT[:9], tuple(range(-1, 8)), 1), Rows(0, 9, TEXT[9:15], TREE, 6), Rows(0, 9, TEXT[9:10], (-1,), 1),
    )  # fmt: skip
    for rows in ([prompt], [tree], [one]):
        wanted, found = (model.forward(rows, (0,)) for model in (whole, narrow))
        assert found.starts == wanted.starts
        np.testing.assert_array_equal(found.hidden[0], wanted.hidden[0])
        close = 0 if native else 1e-6 if dtype == "f32" else 2e-2  # torch's products depend on their shape
        np.testing.assert_allclose(found.logits[:, IDS], wanted.logits[:, IDS], rtol=0, atol=close)
        assert (found.logits[:, rest] == -np.inf).all()
    assert narrow.forward([one], logits=False).logits.shape == (0, 97)
    assert narrow.compact(0, 9, [0]) == 1
    narrow.release(0)


def test_a_folder_says_which(tmp_path: Path) -> None:
    folder = make_chat_model(tmp_path / "tiny")
    assert narrow_vocabulary(folder, 260) is None
    describe_vocabulary(folder, np.array([5, 66, 259]), {"name": "x"}, {})
    assert narrow_vocabulary(folder, 260) == (5, 66, 259)
    loaded = open_model(str(folder), Machine(dtype="f32", threads=1, cache=tmp_path / "cache"))
    assert isinstance(loaded.target.model, NarrowModel)
    assert loaded.target.model.ids == (5, 66, 259)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be read"), ("[1, 2]", "names no tokens below 97 in format 1"),
        ('{"format": 2, "vocabulary": [1]}', "in format 1"), ('{"format": 1, "vocabulary": []}', "names no tokens"),
        ('{"format": 1, "vocabulary": [1, 97]}', "below 97"), ('{"format": 1, "vocabulary": [1, true]}', "below 97"),
        ('{"format": 1, "vocabulary": [3, 3]}', "in increasing order"),
    ],
)  # fmt: skip
def test_files_that_name_none(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(WeightsError, match=said):
        narrow_vocabulary(tmp_path, 97)


def test_a_pass_that_gives_no_part_of_its_head() -> None:
    with pytest.raises(ModelError, match="which transformers' own module does not give"):
        NarrowModel(object(), IDS)
