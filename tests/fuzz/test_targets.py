"""The fuzzer's targets without the fuzzer: the corpus, what is near to it, and random bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
EXAMPLES = 150


def corpus(target: str) -> list[bytes]:
    return [file.read_bytes() for file in sorted((CORPUS / target).iterdir())]


@pytest.mark.parametrize("target", TARGETS)
def test_the_corpus(target: str) -> None:
    inputs = corpus(target)
    assert inputs, f"tests/fuzz/corpus/{target} is empty"
    for data in inputs:
        TARGETS[target](data)


@pytest.mark.parametrize("target", TARGETS)
def test_random_bytes_and_what_is_near_to_the_corpus(target: str) -> None:
    known = corpus(target)
    near = st.builds(
        lambda seed, at, cut, put: seed[: at % (len(seed) + 1)] + put + seed[(at + cut) % (len(seed) + 1) :],
        st.sampled_from(known), st.integers(0, 1000), st.integers(0, 8), st.binary(max_size=8),
    )  # fmt: skip

    @settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.binary(max_size=300) | near | st.text(max_size=100).map(lambda text: text.encode("utf-8")))
    def attack(data: bytes) -> None:
        TARGETS[target](data)

    attack()


def test_every_folder_of_the_corpus_belongs_to_a_target() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} == set(TARGETS)
