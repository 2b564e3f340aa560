"""Decoding files as training asks for it, by DataHelix and by the libraries that people use.

requests   what a side is asked            systems   one class for each library
side       a process with one library      corpus    the files, and what is wanted of them
rounds     all sides in turn               report    figures, targets and the table
command    python -m bench media
"""
