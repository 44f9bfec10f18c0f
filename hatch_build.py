"""Makes the readme that the package index shows.

README.md links to other files of this repository. The index has only the readme, so such a link would lead nowhere
there. If pyproject.toml names the project's `Source` URL, each link is made absolute. Without one, its text remains.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|mailto:|#)([^)\s]+)\)")


def readme_for_index(text: str, source: str | None) -> str:
    """The readme with every relative link made absolute, or replaced by its text if there is no URL to begin with."""
    return LINK.sub(r"\1" if source is None else rf"[\1]({source.rstrip('/')}/blob/main/\2)", text)


class ReadmeHook(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        source = metadata.get("urls", {}).get("Source")
        metadata["readme"] = {"content-type": "text/markdown", "text": readme_for_index(text, source)}
