"""Links from a notebook to pages of the course that do not travel with it."""

import re

from kvcourse.course.manifest import Manifest

_OUTSIDE = re.compile(r"(?<!!)\[(?P<text>[^\]\n]+)\]\((?P<path>\.\./[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def unlink(student: dict, manifest: Manifest) -> None:
    """Links to files of the course that a copy lacks lead to its repository, or become plain text."""

    def replacement(match: re.Match) -> str:
        if not manifest.repository_url:
            return match["text"]
        branch = manifest.repository_branch or "main"
        page = match["path"].removeprefix("../")
        return f"[{match['text']}]({manifest.repository_url}/blob/{branch}/{page}{match['anchor'] or ''})"

    for cell in student["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = _OUTSIDE.sub(replacement, cell["source"])
