"""Processes of the job's own user, lent to helixd: they touch media and run recipes.

host      a fork server: takes the ring's memory, forks and reaps workers at helixd's word
worker    describes and fills
"""
