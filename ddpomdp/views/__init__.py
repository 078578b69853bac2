"""The environments as others know them: PettingZoo (parallel, turn by turn), Gymnasium (one, many), language models.

A view owns a state and a luck key, checks what it is given, takes one compiled step, and hands out numpy copies. It
adds nothing to the laws: everything it says is in the `TimeStep` or the state of the environment behind it.
"""
