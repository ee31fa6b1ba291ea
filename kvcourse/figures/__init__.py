"""Figures and explorers of the book: one style, drawings of ideas, charts of data, interactive panels.

Needs the extra `course` (matplotlib, anywidget). Nothing else in the package imports this folder.
"""
