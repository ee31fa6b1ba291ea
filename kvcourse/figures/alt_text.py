"""What the book's pages say to those who see no image and run no script.

myst-nb 1.4 takes only width and height of an image from the metadata of an output, and shows nothing in place of
a widget. This plugin adds the `alt` that `style.show` stored, and the text of an explorer as <noscript>. myst-nb
finds it by the entry point `myst_nb.mime_renderers` in pyproject.toml.
"""

from html import escape

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


class AltText:
    """Renderer plugin of myst-nb for images with `alt` and widgets with `fallback` in their output metadata."""

    mime_priority_overrides = ()

    @staticmethod
    def handle_mime(renderer, data, inline: bool):
        """Docutils nodes of the output; None leaves it to myst-nb."""
        metadata = data.output_metadata.get(data.mime_type, {})
        if data.mime_type.startswith("image/") and metadata.get("alt"):
            images = renderer.render_image_inline(data) if inline else renderer.render_image(data)
            for image in images:
                image["alt"] = metadata["alt"]
            return images
        if data.mime_type == WIDGET_VIEW and metadata.get("fallback"):
            from docutils import nodes

            text = f"<noscript><p>{escape(metadata['fallback'])}</p></noscript>"
            return [*renderer.render_widget_view(data), nodes.raw(text=text, format="html")]
        return None
