"""The environments as other libraries know them: PettingZoo (parallel and turn by turn) and Gymnasium (one and many).

A view owns a state and a luck key, checks what it is given, takes one compiled step, and hands out numpy copies. It
adds nothing to the laws: everything it says is in the `TimeStep` or the state of the environment behind it.
"""
