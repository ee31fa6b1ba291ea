"""What learners run in the notebooks: public tests that say what differs, and the progress that they keep."""
