"""Every client operation written down, and afterwards compared with what the contract promises.

How a fault test uses it:

1. Spawn `python -m tests.history.process --url URL --log FILE --seed N --operations M`. It opens
   the store, prints READY, runs the workload and prints DONE. What it asks and what it is
   answered goes line by line into FILE, outside the store under test.
2. Hurt it: SIGKILL it between READY and DONE, make a crash image, restore a backup. Repeat from 1
   with the same FILE as often as you like; each process is a new run in it.
3. Open the store again and let `settle` finish what is left, writing to the same FILE:

       store = await open_store(url)
       with FileLog(path) as log:                                  # tests.history.record
           recorder = Recorder(store, log)                         # tests.history.recorder
           known = History.read(path).ids()                        # tests.history.operations
           final = await settle(recorder, known=known)             # tests.history.workload

4. `assert_clean(check(History.read(path), final))`, both of `tests.history.checker`.

An operation without an answer is *unknown*: it may have happened or not, and the checker allows
both, and nothing else. `check` takes what a fault is allowed to cost as parameters: see there. A
restored backup, or a power loss with `durability=os`, may lose what was answered after an instant;
a power loss with `fsync` may lose claims. A SIGKILL of the store's own process may lose nothing.

A history is what one tenant did. Its one file is the order of things: a line is written before a
call is made and after it was answered, so if one operation's answer stands above another's
question, it happened before.
"""
