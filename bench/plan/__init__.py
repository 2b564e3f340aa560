"""`python -m bench plan`: what planning makes of declared costs, and what it takes.

distributions -> costs -> windows (libhelix.plan) -> measure -> report
                      \\-> packing: longest first and swaps against differencing, windows of 1 to 32 steps
"""
