"""The tasks of ddpomdp: simulated LLM-agent teams, calibrated to published numbers."""
