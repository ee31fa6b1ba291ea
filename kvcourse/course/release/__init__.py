"""What learners get: student copies of the notebooks, in a folder, a zip or nbgrader's sources."""
