"""The ledger of claims as Markdown, measured anew at every build."""

from typing import Any

from kvcourse.claims import CLAIMS, Claim


def claims_markdown(chapter_links: list[str]) -> str:
    """A section a claim, in order. `chapter_links` are Markdown links to the chapters that exist, by number."""
    return "\n\n".join(_section(claim, chapter_links) for claim in sorted(CLAIMS, key=lambda c: c.number))


def _section(claim: Claim, chapter_links: list[str]) -> str:
    known = 0 <= claim.chapter < len(chapter_links)
    chapter = chapter_links[claim.chapter] if known else f"{claim.chapter}, not written yet"
    rows = "\n".join(f"| {_cell(label)} | {_number(value)} |" for label, value in claim.measure().items())
    return (
        f"## {claim.number}. “{claim.said}”\n\n"
        f"**Verdict: {claim.verdict}.** {claim.finding}\n\n"
        f"| Measured here | |\n|---|--:|\n{rows}\n\n"
        f"Source: {claim.source}. How we know: {claim.status}.\n"
        f"Reproduce: `{claim.command}`. Chapter: {chapter}."
    )


def _number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _cell(str(value))
    return f"{value:,}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
