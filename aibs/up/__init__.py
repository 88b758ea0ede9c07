"""`aibs up`: the whole scheduler on one machine, in one process tree.

    aibs up ──┬─ holds the embedded Valkey (where no other is configured)
              ├─ aibs monitor
              └─ aibs serve

It decides what the children are told beside the settings (an embedded pool may schedule, because
one machine runs everything), when a child that died is started again, and in which order all ends:
the gateway first, while the monitor still keeps the nodes fresh and the server takes the releases;
then the monitor, which gives its term back; then the server.

It never decides anything of the fleet, and passes no request.

Failure: a child that dies is started again, later each time, and given up after a few; one that
says that its settings cannot be used is not started again. When this process itself is killed, the
children end by themselves, and the server after its last holder.
"""
