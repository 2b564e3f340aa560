"""Systems under test, one file for each kind; bench/node/system.py says what they are."""
