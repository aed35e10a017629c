"""Grading a patch in a fresh sandbox, on evidence that the patched code cannot forge."""
