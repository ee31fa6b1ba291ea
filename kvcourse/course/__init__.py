"""The course around the package: manifest, book, notebook execution and student copies."""
