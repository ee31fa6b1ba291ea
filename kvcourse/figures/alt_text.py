"""Alternative texts of figures in the book: what `style.show` stored becomes the `alt` of the page's <img>.

myst-nb 1.4 takes only width and height from the metadata of an output. This renderer adds `alt`; myst-nb
finds it by the entry point `myst_nb.mime_renderers` in pyproject.toml.
"""


class AltText:
    """Renderer plugin of myst-nb for images whose output metadata carries `alt`."""

    mime_priority_overrides = ()

    @staticmethod
    def handle_mime(renderer, data, inline: bool):
        """Docutils nodes of the image with its alternative text; None leaves the output to myst-nb."""
        alt = data.output_metadata.get(data.mime_type, {}).get("alt")
        if not alt or not data.mime_type.startswith("image/"):
            return None
        images = renderer.render_image_inline(data) if inline else renderer.render_image(data)
        for image in images:
            image["alt"] = alt
        return images
