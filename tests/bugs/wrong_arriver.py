"""Wrong arriver: the storer arrives on the semaphore that counts consumers."""

from pknumba.interpreter import write
from pknumba.primitives import arrive, fence_async, store_async, store_async_read_wait, wait

ERROR, WORDS = "ContractError", ("declared by='consumer'", "storer may not arrive")
TILES, TENSORS = {"c": (8, 8)}, {"Y": (16, 8)}
SEMAPHORES = {"full": (1, "consumer"), "empty": (1, "storer")}


def consumer(g, s):
    for k in range(2):
        wait(s.empty[0], k ^ 1)
        write(s.c, k)
        fence_async(s.c)
        arrive(s.full[0])


def storer(g, s):
    for k in range(2):
        wait(s.full[0], k)
        store_async(g.Y, (k, 0), s.c)
        store_async_read_wait(0)
        arrive(s.full[0])                       # wrong
        # right: arrive(s.empty[0])
