"""What changes of trees will walk, asked for some changes ahead, all at once.

Walking a tree is waiting for memory, a node at a time. Here the walks of the next changes are made in step,
so that they wait together; when each change is then applied, what it reads is near. It is a guess, which
nothing depends on: an earlier change may move what a later one walks.

Does not: change anything but its own notes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clusterd.operators.kernels.treap import BELOW, KEY, LEFT, OWN, PARENT, RIGHT, below, order_key
from shm_arrangements.kernels.jit import inner

AHEAD = 32  # changes looked at once: twice the misses that a core has under way, for walks differ in length


@inner
def look_for_rows(
    order: Any, start: Any, end: Any, p_slot: Any, p_time: Any, p_words: Any,
    lanes: Any, kinds: Any, flips: Any, s_words: Any, nodes: Any, root: Any, ahead: Any,
) -> None:  # fmt: skip
    """Walk to where the rows of the partials order[start:end] are, or are to be put.

    ahead: (AHEAD, 3) where each is, the key of a row that is to be found its place, or that it has one.
    """
    m = end - start
    for i in range(m):
        p = order[start + i]
        ahead[i, 0] = p_slot[p]
        ahead[i, 1] = np.int64(p_words[p, 0] ^ p_time[p])
    for i in range(m):
        row = ahead[i, 0]
        ahead[i, 2] = np.int64(lanes[row, 0] ^ s_words[row, 0]) ^ nodes[row, OWN]
    for i in range(m):
        row = ahead[i, 0]
        if nodes[row, OWN] > 0:
            ahead[i, 2] = 1
        else:
            ahead[i, 0] = root[np.int64(lanes[row, 0])]
            ahead[i, 1] = order_key(lanes, kinds, flips, row)
            ahead[i, 2] = 0
    going = m
    while going > 0:
        going = 0
        for i in range(m):
            at = ahead[i, 0]
            if at >= 0:
                if ahead[i, 2] != 0:
                    ahead[i, 0] = nodes[at, PARENT]
                elif ahead[i, 1] < nodes[at, KEY]:
                    ahead[i, 0] = nodes[at, LEFT]
                else:
                    ahead[i, 0] = nodes[at, RIGHT]
                going += 1


@inner
def look_for_edges(
    order: Any, start: Any, end: Any, p_slot: Any, bounds: Any, column: Any, lanes: Any, nodes: Any,
    root: Any, ahead: Any,
) -> None:  # fmt: skip
    """Walk to the rows that a change at partials order[start:end] may move across the end of their window.

    bounds[:, column]: where windows end, of each group, or (1,) of all. ahead: (AHEAD, 3) where each is, and
    how many copies further on it goes.
    """
    m = end - start
    every = 0 if bounds.shape[0] == 1 else -1
    for i in range(m):
        group = np.int64(lanes[p_slot[order[start + i]], 0])
        at = np.int64(root[group])
        further = bounds[group & every, column] - 1
        ahead[i, 0] = at if at >= 0 and nodes[at, BELOW] > further else -1
        ahead[i, 1] = further
    going = m
    while going > 0:
        going = 0
        for i in range(m):
            at = ahead[i, 0]
            if at >= 0:
                left = nodes[at, LEFT]
                further = ahead[i, 1] - below(nodes, left)
                if further < 0:
                    ahead[i, 0] = left
                elif further < nodes[at, OWN]:
                    ahead[i, 0] = -1
                else:
                    ahead[i, 1] = further - nodes[at, OWN]
                    ahead[i, 0] = nodes[at, RIGHT]
                going += 1
