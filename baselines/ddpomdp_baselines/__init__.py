"""Learners for ddpomdp."""
