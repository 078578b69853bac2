"""Dynamic-Dec-POMDP environments for teams of LLM agents."""
