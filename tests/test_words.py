"""How plain the English is. The counts are a help; only their ceilings hold, and may only go down (`make words`)."""

from pathlib import Path

import pytest

from words import SETS, count, find_all, find_in, find_in_source

CEILINGS = {"src": (2, 4), "docs": (75, 90)}
"""Words that hide who acts, and sentences that are too long. Lower these when you have mended some."""
LONG = "This sentence has one word after another, " * 6


@pytest.mark.parametrize("name", CEILINGS)
def test_the_english_does_not_get_worse(name: str) -> None:
    found = list(find_all(SETS[name]))
    counts = count(found)
    print(f"{name}: {counts[0]} words that hide who acts, {counts[1]} long sentences")
    assert all(now <= most for now, most in zip(counts, CEILINGS[name], strict=True)), (
        f"{counts} is more than {CEILINGS[name]}: name who acts, and say one fact in a sentence. "
        f"make words ARGS={name} shows each place"
    )


def found_in(text: str) -> list[str]:
    return [f"{each.line} {each.what}" for each in find_in(text, Path("page.md"))]


def test_words_and_sentences_are_found_by_line() -> None:
    assert found_in("One.\nSomebody asks nobody.") == ["2 somebody", "2 nobody"]
    assert found_in(f"One.\n\n{LONG}end.") == ["3 a sentence of 43 words"]


@pytest.mark.parametrize(
    "text",
    [
        "```python\nnobody = 1\n```",
        "`nobody` is the owner",
        f"- {'a few words, '.join(['', *['']] * 3)}\n- and an item of a list\n- and another one",
        f"{'Short enough. ' * 20}",
        f"    {LONG}",
    ],
)
def test_code_and_short_sentences_are_not(text: str) -> None:
    assert found_in(text) == []


def test_the_source_is_read_by_docstrings_comments_and_texts(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        '"""For somebody."""\n\n# Whoever asks:\n# nobody answers.\nE = "tell everybody"\nnobody = "nobody"\n'
    )
    assert sorted(f"{each.line} {each.what}" for each in find_in_source(module)) == [
        "1 somebody",
        "3 whoever",
        "4 nobody",
        "5 everybody",
    ]
