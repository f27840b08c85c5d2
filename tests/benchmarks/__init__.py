"""How fast it is, beside a plain reference measured in the same run.

    python -m tests.benchmarks                  # every figure
    python -m tests.benchmarks N1 N4 --quick    # some, with a fifth of the events and rounds
    python -m tests.benchmarks --json           # the same for programs, with the machine's facts

They measure and judge nothing else: a goal that is missed is printed, not an error. Disks and
neighbours drift, so ratios taken in one run count and absolute numbers only orient.

A figure is a function with `@figure`, in the module of its family; `__main__` imports those modules.
"""
