"""The program inside every sandbox: standard library only, Python 3.9 or newer.

`python3 -I -S FOLDER CONFIG` runs it (`__main__`). It serves framed requests over a Unix socket
(`frames`), to those who prove that they know the secret (`proof`). Requests carry an id and are
answered in any order, and a fencing token: one that is lower than the highest seen is refused, and
a higher one ends what lower ones started. One thread and callbacks only (`loop`): nothing here
waits for anything but the event loop, so pings are answered while commands run. Importing this
package imports nothing else: both sides of the socket share its modules.
"""
