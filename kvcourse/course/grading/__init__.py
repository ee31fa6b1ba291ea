"""Grading: submissions are read, their code runs in a sandbox, pytest compares it with the course's own."""
