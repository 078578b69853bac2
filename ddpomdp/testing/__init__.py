"""The conformance suite: one named check per rule, for our environments and third parties'.

`check_env(env)` raises `CheckFailed` naming the rules an environment breaks; `run_checks(env)` returns every result.
On the command line: `ddpomdp check ENV [key=value ...]`. One file per theme; each check says what it means.
"""

from ddpomdp.testing.checks import CHECKS, Check, CheckFailed, Result, check_env, run_checks

__all__ = ["CHECKS", "Check", "CheckFailed", "Result", "check_env", "run_checks"]
