"""Rollouts on a Ray cluster: a gateway per node, every rollout counted once, whatever dies.

``book.py`` which attempt of which rollout runs where; ``node.py`` what one node runs; ``shipment.py`` what it sends
back; ``run.py`` the driver; ``handles.py`` what the driver asks of a cluster; ``cluster.py`` Ray itself, which nothing
else here imports.
"""
