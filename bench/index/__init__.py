"""How fast files are indexed: headers against the scan, and trees as a whole.

command.py   `python -m bench index`       measure.py   rounds of probing, and builds, with their CPU time
files.py     what is indexed               report.py    rounds -> figures, the table
"""
