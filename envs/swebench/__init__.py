"""SWE-bench: repositories to mend, in sandboxes, graded where the agent never was."""
